"""pipeline/dataset_card.py: the card of the dataset, and whether what it says to type works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from pipeline import dataset_card, docs, hub_dataset
from pipeline import results as store
from pipeline.rows import COLUMNS, SCHEMA
from pipeline.words import Failure, Parallelism, Target
from tests.hub_server import HubServer
from tests.papers import day, erring, failing, passing, run, stack

REPO = "org/results"
CPU = stack(Target.CPU)
ODD = stack(library_version="5.25.0+g1a2b3c")
"""A version that needs escaping in an address."""
RECORDS = {
    "neuron": [passing(run("a/one")), failing(run("a/two", stack=ODD), day(1))],
    "cpu": [passing(run("a/one", stack=CPU), day(2)), erring(run("c/three", stack=CPU), day(3))],
}


def published(folder: Path, *targets: str) -> Path:
    """Results of those targets, as the dataset holds them: with the card."""
    for target in targets:
        for record in RECORDS[target]:
            store.write(store.prepare(folder, [store.row_of(record)]).files)
    for name, data in hub_dataset.files(folder, REPO).items():
        (folder / name).write_bytes(data)
    return folder


def head(card: str) -> dict[str, Any]:
    found = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    assert found
    known = yaml.safe_load(found[1])
    assert isinstance(known, dict)
    return known


def snippets(card: str) -> dict[str, str]:
    """Title -> the code below it."""
    found = re.findall(r"### (\S+)\n\n```python\n(.*?)```", card, re.DOTALL)
    return {title.lower(): code for title, code in found}


def test_every_column_is_defined() -> None:
    """Each column of the schema has its line, with its type and what it holds."""
    rows = [store.row_of(record) for record in RECORDS["neuron"]]
    card = dataset_card.card(rows, REPO, 1)
    for name, _, meaning in COLUMNS:
        assert re.search(rf"^\| `{name}` \| [^|]+ \| {re.escape(meaning)} \|$", card, re.MULTILINE)


def test_every_value_is_defined() -> None:
    """Each word of each closed set has its line; what publish refuses is no value."""
    sets: Mapping[str, type[StrEnum]] = {
        **docs.VALUES,
        "parallelism": Parallelism,
        "target": Target,
    }
    assert set(dataset_card.MEANINGS) == set(sets)
    rows = [store.row_of(record) for record in RECORDS["neuron"]]
    card = dataset_card.card(rows, REPO, 1)
    for name, words in sets.items():
        section = card.partition(f"\n### {name}\n")[2].partition("\n#")[0]
        expected = [word.value for word in words if word is not Target.SIMULATOR]
        assert re.findall(r"^\| `(\w+)` \| \S.*\|$", section, re.MULTILINE) == expected
    assert f"| `killed` | ERROR: {Failure.KILLED.meaning} |" in card


def test_meanings_are_those_of_the_documentation() -> None:
    """docs/results.md and the card say the same of a result."""
    page = (docs.ROOT / "docs" / "results.md").read_text()
    for result, meaning in dataset_card.MEANINGS["result"].items():
        assert f"| `{result}` | {meaning} |" in page


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        (["neuron", "cpu"], ["current", "cpu", "history"]),
        (["neuron"], ["current", "history"]),
        (["cpu"], ["cpu", "history"]),
    ],
)
def test_the_viewer_shows_trainium_and_cpu_apart(
    tmp_path: Path, targets: list[str], names: list[str]
) -> None:
    """Each config matches files, all of one schema; the first is shown unasked; `current` holds
    rows of Trainium alone."""
    folder = published(tmp_path / "results", *targets)
    card = (folder / "README.md").read_text()
    configs = head(card)["configs"]
    assert [config["config_name"] for config in configs] == names
    assert [config.get("default", False) for config in configs] == [
        True,
        *[False] * (len(names) - 1),
    ]
    for config in configs:
        files = sorted(folder.glob(config["data_files"]))
        assert files
        assert all(path.suffix == ".parquet" for path in files)
        assert {pq.read_schema(path).remove_metadata() == SCHEMA for path in files} == {True}
        found = {one for path in files for one in pq.read_table(path)["target"].to_pylist()}
        wanted = {"current": {"neuron"}, "cpu": {"cpu"}, "history": set(targets)}
        assert found == wanted[config["config_name"]]


def test_a_dataset_without_trainium_says_so(tmp_path: Path) -> None:
    """Rows of a CPU alone are never taken for evidence of Trainium."""
    said = "There is no row of Trainium here yet"
    assert said in (published(tmp_path / "cpu", "cpu") / "README.md").read_text()
    assert said not in (published(tmp_path / "both", "neuron", "cpu") / "README.md").read_text()


def test_what_a_pass_does_not_say_stands_there(tmp_path: Path) -> None:
    """The limits that every page with a PASS names."""
    card = (published(tmp_path / "results", "neuron") / "README.md").read_text()
    words = " ".join(card.split())
    assert "says nothing of throughput, long generations or answer quality" in words
    assert "No result is absence of evidence, never evidence of failure." in words


def test_the_licence_is_the_projects() -> None:
    """Rows hold scripts made from the project's template: one licence for both."""
    project = tomllib.loads((docs.ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"].lower() == dataset_card.LICENCE


def test_the_same_rows_give_the_same_card() -> None:
    """In any order: a card changes when rows do."""
    rows = [store.row_of(record) for record in (*RECORDS["neuron"], *RECORDS["cpu"])]
    assert dataset_card.card(rows, REPO, 2) == dataset_card.card(rows[::-1], REPO, 2)


def local(code: str, folder: Path) -> str:
    """A snippet that reads `folder` instead of the Hub."""
    code = code.replace(f"hf://datasets/{REPO}", str(folder))
    code = code.replace("from huggingface_hub import snapshot_download\n", "")
    return re.sub(r"^folder = .*$", f"folder = {str(folder)!r}", code, flags=re.MULTILINE)


def answer(code: str, **environment: str) -> str:
    """What a snippet prints."""
    # Tables are cut to the terminal's width; the whole of them is looked at here.
    wide = "import pandas, polars\npandas.options.display.width = 200\n"
    wide += "pandas.options.display.max_columns = 9\n"
    wide += "polars.Config.set_tbl_width_chars(300).set_fmt_str_lengths(60)\n"
    done = subprocess.run(
        [sys.executable, "-c", wide + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["pandas", "polars", "duckdb"])
def test_the_snippets_run_on_the_folder(tmp_path: Path, name: str) -> None:
    """With the folder's path in place of the dataset's address, each prints the rows of Trainium
    and no other."""
    folder = published(tmp_path / "results", "neuron", "cpu")
    shown = answer(local(snippets((folder / "README.md").read_text())[name], folder))
    for word in ("a/one", "a/two", "PASS", "compiler_error", "2.28.7631.0", "5.25.0+g1a2b3c"):
        assert word in shown
    assert "c/three" not in shown


@pytest.mark.parametrize("name", ["pandas", "duckdb"])
def test_the_snippets_run_over_the_hub(tmp_path: Path, name: str) -> None:
    """As they stand, with a server of this machine as the Hub, which HF_ENDPOINT names. polars has
    a client of its own, for the public Hub alone."""
    folder = published(tmp_path / "results", "neuron", "cpu")
    with HubServer() as hub:
        hub.add(f"datasets/{REPO}", folder)
        shown = answer(
            snippets((folder / "README.md").read_text())[name],
            HF_ENDPOINT=hub.url,
            HF_HOME=str(tmp_path / "home"),
        )
    assert "a/one" in shown
    assert "a/two" in shown
    assert "c/three" not in shown


def test_a_cpu_only_dataset_has_snippets_that_show_its_rows(tmp_path: Path) -> None:
    """The snippets take the target that is there."""
    folder = published(tmp_path / "results", "cpu")
    shown = answer(local(snippets((folder / "README.md").read_text())["duckdb"], folder))
    assert "c/three" in shown
