"""`qualify site` as people call it: what it builds from where, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import results as store
from tests import papers
from tests.conftest import ROOT


def qualify(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in the working directory."""
    return subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.fixture
def campaign(in_tmp: Path) -> Path:
    """A folder with a list and one published PASS."""
    store.write(store.prepare(in_tmp / "results", [store.row_of(papers.passing())]).files)
    (in_tmp / "models.yaml").write_bytes((ROOT / "models.yaml").read_bytes())
    return in_tmp


def test_the_list_beside_the_results_is_taken(campaign: Path) -> None:
    """In a campaign's folder no option is needed; what the list excludes has its page."""
    ended = qualify("site")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"{Path('build/site')}: ") and "1 result," in ended.stdout
    assert (campaign / "build/site/models/state-spaces--mamba-130m-hf/badge.svg").is_file()
    assert qualify("site").returncode == 0, "a second build replaces the first"


def test_places_that_are_not_there_are_told(campaign: Path) -> None:
    """Each with its own exit code and a remedy, and nothing is built."""
    for arguments, code in (
        (("--results", "nowhere"), 6),
        (("--list", "nowhere.yaml"), 3),
        (("--also", "nowhere"), 2),
        (("--output", "results"), 2),
    ):
        ended = qualify("site", *arguments)
        assert (ended.returncode, ended.stdout) == (code, ""), arguments
        assert ended.stderr.startswith("qualify: ") and "Traceback" not in ended.stderr
    assert not (campaign / "build").exists()
