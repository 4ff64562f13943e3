"""`qualify actions pages` from end to end: results on one branch, the site on another."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.catalog import load
from pipeline.publish import publish
from tests import jobs, papers
from tests.conftest import ROOT
from tests.origins import Origin, git


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin.make(tmp_path)


def push_results(origin: Origin, folder: Path) -> None:
    """Somebody publishes a PASS to the branch `results`, the list beside it."""
    publish(
        [papers.save(folder / "records", [papers.passing()])],
        results=folder / "out" / "results",
        table=folder / "out" / "COMPATIBILITY.md",
        catalog_view=load(ROOT / "models.yaml"),
        plan=None,
        now=papers.day(1),
    )
    tree = origin.checkout(folder / "publisher")
    shutil.copytree(folder / "out", tree, dirs_exist_ok=True)
    shutil.copy(ROOT / "models.yaml", tree)
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "results")
    git(tree, "push", "--quiet", "origin", "HEAD:refs/heads/results")


def pages(checkout: Path) -> subprocess.CompletedProcess[str]:
    told = jobs.variables(checkout.parent, event_name="workflow_dispatch", QUALIFY_BRANCH="results")
    return jobs.qualify(checkout, "pages", variables=told)


def test_the_site_follows_the_results(origin: Origin, tmp_path: Path) -> None:
    """It is made from what is published, and holds nothing else; the same again is no commit."""
    push_results(origin, tmp_path)
    checkout = origin.checkout(tmp_path / "checkout")
    first = pages(checkout)
    assert first.returncode == 0, first.stderr
    assert "## The site is now at " in first.stdout
    held = origin.files("gh-pages")
    assert {"index.html", ".nojekyll", "models/Qwen--Qwen3-0.6B/index.html"} < set(held)
    assert "results/models.json" in held
    assert not {"README.md", "COMPATIBILITY.md", "models.yaml"} & set(held)
    again = pages(checkout)
    assert "## The site is up to date" in again.stdout, again.stdout + again.stderr


def test_without_results_there_is_no_site(origin: Origin, tmp_path: Path) -> None:
    """A branch that is not there yet is told, and nothing is pushed."""
    done = pages(origin.checkout(tmp_path / "checkout"))
    assert done.returncode == 6
    assert "origin has no branch results" in done.stderr
    assert not origin.has("gh-pages")
