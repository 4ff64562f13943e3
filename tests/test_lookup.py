"""Some rows of results/ without the others: the same as a whole reading gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import results as store
from pipeline.columns import COLUMNS
from pipeline.errors import ResultsError
from pipeline.lookup import Lookup
from pipeline.record import Record
from pipeline.words import Target
from tests import papers

NAMES = tuple(name for name, _, _ in COLUMNS)


def publish(folder: Path, *records: Record) -> Path:
    store.write(store.prepare(folder, map(store.row_of, records)).files)
    return folder


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eleven models on two stacks, in row groups of four, and one on the cpu; two publications."""
    monkeypatch.setattr(store, "ROW_GROUP", 4)
    stacks = (papers.stack(), papers.stack(neuronx_cc="2.29.1"))
    models = [f"a/model-{number:02}" for number in range(11)]
    publish(
        tmp_path / "results",
        *(papers.passing(papers.run(name, stack=on)) for on in stacks for name in models),
        papers.passing(papers.run(models[3], stack=papers.stack(Target.CPU))),
    )
    types = {"model_type": "llama"}
    return publish(
        tmp_path / "results",
        papers.failing(papers.run(models[3]), papers.day(1)),
        papers.passing(papers.run("b/llama", **types), papers.day(1)),
    )


@pytest.mark.parametrize(
    "name", ["a/model-00", "a/model-03", "a/model-04", "a/model-10", "b/llama"]
)
def test_rows_of_a_model(results: Path, name: str) -> None:
    """Every column of every row, whatever row group they are in; times are UTC."""
    whole = [row for row in store.read_current(results) if row["model_id"] == name]
    assert whole
    assert sorted(
        Lookup(results).of_model(name, NAMES), key=lambda row: str(row["run_id"])
    ) == sorted(whole, key=lambda row: str(row["run_id"]))


def test_names_letter_case_aside(results: Path) -> None:
    """As the Hub finds a model; and nothing for a name between two others, or beyond all."""
    found = Lookup(results).of_model("A/Model-03", ["model_id"])
    assert [row["model_id"] for row in found] == ["a/model-03"] * 3
    assert not Lookup(results).of_model("a/model-03x", ["model_id"])
    assert not Lookup(results).of_model("z/z", ["model_id"])


def test_a_run(results: Path) -> None:
    """More columns of one row."""
    (whole,) = [row for row in store.read_current(results) if row["model_id"] == "b/llama"]
    assert Lookup(results).of_run(whole["run_id"], NAMES) == whole


def test_rows_that_hold_a_value(results: Path) -> None:
    """Of all stacks or one; the same as a whole reading finds."""
    columns = ["model_id", "run_id", "result", "tested_at", "wall_s", "tries"]
    for value in ("qwen3", "llama", "none"):
        whole = [
            {name: row[name] for name in columns}
            for row in store.read_current(results)
            if row["model_type"] == value
        ]
        found = Lookup(results).where("model_type", value, columns)
        assert sorted(found, key=lambda row: str(row["run_id"])) == sorted(
            whole, key=lambda row: str(row["run_id"])
        )
    stack = "transformers-5.24.0@neuronxcc-2.29.1@torch-2.14.0"
    assert len(Lookup(results).where("model_type", "qwen3", columns, stack=stack)) == 11


def test_all_rows(results: Path) -> None:
    """In the order of files and rows, and every model once."""
    found = Lookup(results).rows(NAMES)
    assert sorted(found, key=lambda row: str(row["run_id"])) == sorted(
        store.read_current(results), key=lambda row: str(row["run_id"])
    )
    assert Lookup(results).model_ids() == [*(f"a/model-{n:02}" for n in range(11)), "b/llama"]


def test_history(results: Path) -> None:
    """Every publication's rows of a model, or those of the newest publications."""
    names = ["run_id", "result", "tested_at"]
    whole = [row for row in store.read_history(results) if row["model_id"] == "a/model-03"]
    found = Lookup(results).past("a/model-03", names)
    short = [{name: row[name] for name in names} for row in whole]
    assert all(row in short for row in found) and len(found) == len(short) == 4
    (newest,) = Lookup(results).past("a/model-03", names, 1)
    assert (newest["result"], newest["tested_at"]) == ("FAIL", papers.day(1))


def test_files_of_another_schema_are_read_by_those_who_know_it(results: Path) -> None:
    """A broken file is an error that names it, as everywhere."""
    path = next((results / "current").rglob("*.parquet"))
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(ResultsError, match="cannot be read as Parquet") as caught:
        Lookup(results).of_model("a/model-03", ["run_id"])
    assert caught.value.where == str(path)


def test_what_is_not_parquet_is_refused(results: Path) -> None:
    """Other readers of the folder would fail on it."""
    (results / "current" / "README.md").touch()
    with pytest.raises(ResultsError, match="is not Parquet"):
        Lookup(results).of_model("a/model-03", ["run_id"])
