"""`qualify publish` and `qualify show` as people call them: what they print, and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import diagnosis
from pipeline import results as store
from pipeline.record import Finding
from pipeline.words import Failure
from tests import papers
from tests.conftest import ROOT


def qualify(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in the working directory."""
    return subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


@pytest.fixture
def published(in_tmp: Path) -> Path:
    """results/ with a PASS whose graphs others can fetch, two failures of one cause, and one of
    another that no signature knows."""
    known = diagnosis.signatures()[0]
    rows = [
        papers.passing(cache_store="hf://buckets/example/graphs"),
        *(
            papers.failing(papers.run(name), failure=known.failure, signature=known.id)
            for name in ("same/a", "same/b")
        ),
        papers.failing(
            papers.run("odd/one"),
            failure=Failure.CRASH,
            signature=None,
            error="never seen before",
            findings=(Finding(signature="s", failure=Failure.CPU_FALLBACK, line="ran eager"),),
        ),
    ]
    results = in_tmp / "results"
    store.write(store.prepare(results, map(store.row_of, rows)).files)
    return results


def test_failures_are_shown_by_cause(published: Path) -> None:
    """The largest group comes first and says what to do; one without a signature wants one."""
    ended = qualify("show", "--failures")
    assert (ended.returncode, ended.stderr) == (0, "")
    head, first, second = ended.stdout.rstrip().split("\n\n")
    assert head == "3 of 4 results did not pass; causes: 2"
    assert first.startswith("2 x ") and "models: same/a, same/b" in first
    assert f"do: {diagnosis.signatures()[0].remedy}" in " ".join(first.split())
    assert "unclassified" in second and "docs/failures.md" in second


def test_failures_of_some_models(published: Path) -> None:
    """MODEL chooses rows here too, and where none failed that is said."""
    assert "2 x " in qualify("show", "same/*", "--failures").stdout
    assert qualify("show", "Qwen/*", "--failures").stdout == "all of 1 results passed\n"
    assert qualify("show", "none/such", "--failures").returncode == 2


def test_failures_as_json(published: Path) -> None:
    """--json gives every group with all that is known of it."""
    found = json.loads(qualify("show", "--failures", "--json").stdout)
    assert [group["count"] for group in found] == [2, 1]
    assert found[0]["remedy"] == diagnosis.signatures()[0].remedy
    assert json.loads(qualify("show", "Qwen/*", "--failures", "--json").stdout) == []


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_show_fits_the_terminal(published: Path, columns: int) -> None:
    """Tables and failures keep to the terminal's columns, and to 80 where it has fewer."""
    for arguments in (["show"], ["show", "--failures"]):
        for told in (columns, 20):
            ended = qualify(*arguments, COLUMNS=str(told))
            lines = [line for line in ended.stdout.split("\n") if "see: " not in line]
            assert max(map(len, lines)) <= max(80, told)


def test_show_tells_how_to_fetch_the_graphs(published: Path) -> None:
    """The details of a row end with the command for its graphs; rows without a store have none."""
    told = qualify("show", "Qwen/*").stdout
    assert "  to fetch them:\n    hf buckets sync hf://buckets/example/graphs/" in told
    assert "to fetch them" not in qualify("show", "same/a").stdout


def test_show_tells_findings(published: Path) -> None:
    """What the log says against a run stands in its cause and among its details."""
    assert "the log also says s: ran eager" in " ".join(qualify("show").stdout.split())
    assert "  findings:\n    s: ran eager\n" in qualify("show", "odd/one").stdout
