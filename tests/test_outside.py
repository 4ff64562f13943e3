"""pipeline/outside.py: rows that others published, read beside ours."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import outside
from pipeline import results as store
from pipeline.errors import QualifyError, ResultsError, UsageError
from pipeline.outside import OutsideRow
from pipeline.words import Target
from tests.hub_server import Content, HubServer
from tests.papers import passing, run, stack

DATASET = "aws-neuron/torch-neuronx-model-support"
PUBLIC = pa.schema(
    [
        ("model_id", pa.string()),
        ("library", pa.string()),
        ("tp", pa.int32()),
        ("runner", pa.string()),
        ("result", pa.string()),
        ("notes", pa.string()),
        ("error", pa.string()),
        ("exclusion", pa.string()),
        ("wall_s", pa.int32()),
        ("hbm_peak_gb", pa.float64()),
        ("hbm_capacity_gb", pa.float64()),
        ("cpu_match", pa.string()),
        ("english", pa.string()),
        ("neuronx_cc", pa.string()),
        ("library_version", pa.string()),
        ("transformers", pa.string()),
        ("accelerate", pa.string()),
        ("torch_neuronx", pa.string()),
        ("torch", pa.string()),
        ("nki", pa.string()),
        ("python", pa.string()),
        ("neuron_driver", pa.string()),
        ("tested_at", pa.timestamp("ms", tz="UTC")),
        ("run_py", pa.string()),
    ]
)
"""The public dataset's columns, in its order."""
AT = datetime(2026, 11, 3, 4, 5, 6, tzinfo=UTC)


def public(model_id: str, **changes: Any) -> dict[str, Any]:
    """A row as theirs; the rest is null."""
    fields = dict.fromkeys(PUBLIC.names) | {
        "model_id": model_id,
        "library": "transformers",
        "tp": 4,
        "runner": "trn2.3xlarge",
        "result": "PASS",
        "neuronx_cc": "2.28.1",
        "library_version": "5.20.0",
        "torch_neuronx": "2.14.0.1",
        "torch": "2.14.0",
        "tested_at": AT,
        "run_py": "print()",
    }
    return fields | changes


def write(path: Path, rows: list[dict[str, Any]], schema: pa.Schema | None = PUBLIC) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema)
    pq.write_table(table, path, dictionary_pagesize_limit=16 * 1024**2)
    return path


def test_the_public_datasets_columns_are_read(tmp_path: Path) -> None:
    """Each field is theirs, by their names."""
    write(tmp_path / "data" / "a.parquet", [public("Qwen/Qwen3-0.6B", notes="fits")])
    assert outside.read(str(tmp_path)) == (
        OutsideRow(
            model_id="Qwen/Qwen3-0.6B",
            result="PASS",
            library="transformers",
            library_version="5.20.0",
            neuronx_cc="2.28.1",
            torch_neuronx="2.14.0.1",
            torch="2.14.0",
            cores=4,
            runner="trn2.3xlarge",
            notes="fits",
            error=None,
            tested_at=AT,
            dataset=str(tmp_path),
        ),
    )


@pytest.mark.parametrize(
    ("columns", "cores"),
    [
        ({"tp": 2}, 2),
        ({"neuron_cores": 2}, 2),
        ({"neuron_cores": 2, "tp": 2}, 2),
        ({"neuron_cores": 2, "tp": None}, 2),
        ({"neuron_cores": None, "tp": 8}, 8),
        ({"neuron_cores": 2, "tp": 8}, None),
        ({"tp": 4.0}, 4),
        ({"tp": 0}, None),
        ({"tp": "four"}, None),
        ({}, None),
    ],
)
def test_both_names_of_the_number_of_cores(
    tmp_path: Path, columns: dict[str, object], cores: int | None
) -> None:
    """tp and neuron_cores are one; where they disagree, or are no number, it is unknown."""
    write(tmp_path / "a.parquet", [{"model_id": "a/b", "result": "PASS", **columns}], None)
    (row,) = outside.read(str(tmp_path))
    assert row.cores == cores


@pytest.mark.parametrize("word", ["PASS", "pass", "XFAIL", "skipped (no kernel)", "\N{CHECK MARK}"])
def test_results_are_verbatim(tmp_path: Path, word: str) -> None:
    """No word of theirs is translated into ours."""
    write(tmp_path / "a.parquet", [public("a/b", result=word)])
    assert outside.read(str(tmp_path))[0].result == word
    assert word in outside.text(outside.read(str(tmp_path)))


def test_missing_columns_are_unknown(tmp_path: Path) -> None:
    """Files of one dataset may differ; only the model and the result are needed."""
    write(tmp_path / "a.parquet", [{"model_id": "a/b", "result": "PASS"}], None)
    write(tmp_path / "b.parquet", [public("c/d")])
    write(tmp_path / "c.parquet", [{"model_id": "e/f", "result": None}], None)
    write(tmp_path / "d.parquet", [{"model_id": None, "result": "PASS"}], None)
    first, second, third = outside.read(str(tmp_path))
    assert (first.library, first.cores, first.tested_at, first.notes) == (None,) * 4
    assert second.library == "transformers"
    assert third.result == ""


@pytest.mark.parametrize("lost", ["model_id", "result"])
def test_what_has_no_model_or_no_result_is_refused(tmp_path: Path, lost: str) -> None:
    """It is not the dataset that was meant: the error names the file and the column."""
    row = {name: "x" for name in ("model_id", "result") if name != lost}
    path = write(tmp_path / "a.parquet", [row], None)
    with pytest.raises(ResultsError, match=lost) as caught:
        outside.read(str(tmp_path))
    assert caught.value.where == str(path)


def test_texts_are_bounded_and_cannot_act_on_a_terminal(tmp_path: Path) -> None:
    """A long text is cut; control characters are dropped. One that all rows share costs one."""
    long = "x" * 5_000_000
    rows = [public(f"a/{number}", error=long, notes="\x1b[31mred\x07") for number in range(500)]
    write(tmp_path / "a.parquet", rows)
    found = outside.read(str(tmp_path))
    assert {row.error for row in found} == {"x" * outside.MAX_TEXT}
    assert {row.notes for row in found} == {"red"}


def test_limits_of_rows_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is larger than such a dataset can be is refused by its own account, unread."""
    write(tmp_path / "a.parquet", [public("a/b", notes="n" * 2_000)] * 5)
    write(tmp_path / "b.parquet", [public("a/b")] * 5)
    monkeypatch.setattr(outside, "MAX_ROWS", 9)
    with pytest.raises(ResultsError, match="more than 9 rows") as caught:
        outside.read(str(tmp_path))
    assert caught.value.where.endswith("b.parquet")


def test_order_and_repeats(tmp_path: Path) -> None:
    """By model, newest first, undated last; the same row twice is one."""
    rows = [
        public("b/b", tested_at=None),
        public("b/b", result="FAIL"),
        public("b/b", tested_at=AT.replace(year=2027)),
        public("a/a"),
    ]
    write(tmp_path / "one.parquet", rows)
    write(tmp_path / "two.parquet", rows)
    found = outside.read(str(tmp_path))
    assert [(row.model_id, row.tested_at and row.tested_at.year) for row in found] == [
        ("a/a", 2026),
        ("b/b", 2027),
        ("b/b", 2026),
        ("b/b", None),
    ]
    assert [row.model_id for row in outside.of_model(found, "B/b")] == ["b/b"] * 3


def test_a_time_without_zone_is_unknown(tmp_path: Path) -> None:
    """It could be any hour's."""
    rows = [{"model_id": "a/b", "result": "PASS", "tested_at": datetime(2026, 1, 2)}]
    write(tmp_path / "a.parquet", rows, None)
    assert outside.read(str(tmp_path))[0].tested_at is None


def test_a_dataset_of_this_project_can_be_the_outside(tmp_path: Path) -> None:
    """The columns are the same; a row of the CPU says so."""
    rows = [store.row_of(passing(run("a/b", stack=stack(Target.CPU))))]
    store.write(store.prepare(tmp_path, rows).files)
    (row,) = outside.read(str(tmp_path))
    assert (row.target, row.neuronx_cc) == ("cpu", None)
    assert "cpu, transformers" in outside.text([row])


def _no_folder(folder: Path) -> str:
    return str(folder / "absent")


def _empty(folder: Path) -> str:
    return str(folder)


def _no_parquet(folder: Path) -> str:
    (folder / "a.parquet").write_bytes(b"PAR1 no")
    return str(folder)


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        (_no_folder, UsageError),
        (_empty, ResultsError),
        (_no_parquet, ResultsError),
        (lambda _: "hf://models/a/b", UsageError),
        (lambda _: "hf://datasets/only-one", UsageError),
    ],
)
def test_what_cannot_be_read_is_an_error(
    tmp_path: Path, place: Any, kind: type[QualifyError]
) -> None:
    """Each with what to do, none with a traceback."""
    with pytest.raises(kind):
        outside.read(place(tmp_path))


def test_the_text_says_whose_words_they_are() -> None:
    """Nothing is printed for no row; otherwise the first line marks all below as others'."""
    assert outside.text(()) == ""
    nothing = (None,) * 7
    row = OutsideRow("a/b", "", *nothing, "boom\nagain", None, "x/y")
    first, second, third = outside.text([row]).splitlines()
    assert "others published" in first
    assert second == "  no result, undated: stack not said (x/y)"
    assert third == "    error: boom again"


SHOW = f"""
import json, sys
from pipeline import outside
from pipeline.errors import QualifyError
try:
    print(json.dumps(outside.plain(outside.read("hf://datasets/{DATASET}"))))
except QualifyError as error:
    sys.exit(str(error))
"""


def over_hub(hub_url: str, home: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as HF_ENDPOINT is read at import."""
    return subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**os.environ, "HF_ENDPOINT": hub_url, "HF_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_dataset_of_the_hub_and_its_kept_copy(tmp_path: Path) -> None:
    """Only Parquet is fetched, the rows name the dataset and its commit, and when the Hub is away
    the kept copy is read."""
    path = write(tmp_path / "a.parquet", [public("a/b")])
    files: dict[str, Content] = {
        "data/a.parquet": path,
        "README.md": b"hello",
        "big.bin": b"0",
    }
    home = tmp_path / "home"
    with HubServer() as hub:
        commit = hub.add(f"datasets/{DATASET}", files)
        done = over_hub(hub.url, home)
        asked = [one for one in hub.paths() if "/resolve/" in one]
    assert done.returncode == 0, done.stderr
    assert f'"dataset": "{DATASET}"' in done.stdout
    assert f'"revision": "{commit}"' in done.stdout
    assert {one.rpartition("/")[2] for one in asked} == {"a.parquet"}
    again = over_hub("http://127.0.0.1:9", home)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    empty = over_hub("http://127.0.0.1:9", tmp_path / "nothing")
    assert f"dataset {DATASET}: the Hub could not be used" in empty.stderr


def test_a_dataset_that_is_not_there(tmp_path: Path) -> None:
    """It is told in our words, with a remedy."""
    with HubServer() as hub:
        done = over_hub(hub.url, tmp_path)
    assert "does not exist" in done.stderr
    assert "Traceback" not in done.stderr
