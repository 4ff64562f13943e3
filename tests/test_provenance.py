"""Provenance: the commit, the workflow run and the machine, each only as far as it is known."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline import provenance as module
from pipeline.provenance import provenance
from tests import papers

GITHUB = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "example/campaign",
    "GITHUB_RUN_ID": "12345",
}


@pytest.fixture(autouse=True)
def _outside_github(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the machine that runs the tests is seen."""
    for name in (*GITHUB, "QUALIFY_IMAGE", "QUALIFY_INSTANCE_TYPE"):
        monkeypatch.delenv(name, raising=False)


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    done = subprocess.run(
        ["git", *identity, "-C", str(folder), *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={name: os.environ[name] for name in os.environ if not name.startswith("GIT_")},
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository that holds a copy of the module and of what it imports, committed."""
    package = tmp_path / "checkout" / "pipeline"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for name in ("provenance.py", "git.py"):
        shutil.copy(Path(module.__file__).with_name(name), package)
    root = package.parent
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "first")
    return root


def commit_of(root: Path, **environment: str) -> str | None:
    """pipeline_commit as the copy below `root` tells it."""
    code = "import json; from pipeline.provenance import *; print(json.dumps(provenance()))"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": "", **environment},
    )
    commit: str | None = json.loads(done.stdout)["pipeline_commit"]
    return commit


def test_commit_of_a_checkout(checkout: Path) -> None:
    """A clean checkout is named by its commit; one with changed files says so; new files are none.

    A file that is not part of the repository, such as a record, changes nothing of the code.
    """
    head = git(checkout, "rev-parse", "HEAD")
    assert commit_of(checkout) == head
    (checkout / "record.json").write_text("{}")
    assert commit_of(checkout) == head
    (checkout / "pipeline" / "__init__.py").write_text("# changed\n")
    assert commit_of(checkout) == f"{head}+changes"


def test_no_commit_without_a_repository(checkout: Path) -> None:
    """An unpacked archive has no commit."""
    shutil.rmtree(checkout / ".git")
    assert commit_of(checkout, GIT_CEILING_DIRECTORIES=str(checkout.parent)) is None


def test_no_commit_of_somebody_elses_repository(checkout: Path) -> None:
    """A package installed below another project's checkout is not of that project's commit."""
    installed = checkout / ".venv" / "lib"
    shutil.copytree(checkout / "pipeline", installed / "pipeline")
    assert commit_of(installed) is None


def test_no_commit_without_git(checkout: Path) -> None:
    """A machine without git gives no commit, and no error."""
    assert commit_of(checkout, PATH=str(checkout)) is None


def test_a_checkout_of_another_user(checkout: Path) -> None:
    """In a container the checkout is often somebody else's, which git refuses by itself.

    The variable is git's own switch for its tests of that case.
    """
    other = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}
    refused = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"],
        capture_output=True,
        check=False,
        env={**os.environ, **other, "GIT_CONFIG_GLOBAL": os.devnull},
    )
    assert b"dubious ownership" in refused.stderr
    head = git(checkout, "rev-parse", "HEAD")
    assert commit_of(checkout, **other, GIT_CONFIG_GLOBAL=os.devnull) == head


def test_inside_a_git_hook(checkout: Path, tmp_path: Path) -> None:
    """Variables that a hook sets for its own repository do not lead to that one's commit."""
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    git(other, "commit", "--quiet", "--allow-empty", "-m", "other")
    head = git(checkout, "rev-parse", "HEAD")
    assert commit_of(checkout, GIT_DIR=str(other / ".git"), GIT_WORK_TREE=str(other)) == head


def test_run_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workflow run's address needs all three of GitHub's variables."""
    for name, value in GITHUB.items():
        assert provenance()["run_url"] is None
        monkeypatch.setenv(name, value)
    assert provenance()["run_url"] == "https://github.com/example/campaign/actions/runs/12345"


def test_image_and_instance_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the workflow states is taken; what it leaves empty or out is unknown."""
    found = provenance()
    assert (found["image"], found["instance_type"]) == (None, None)
    monkeypatch.setenv("QUALIFY_IMAGE", "")
    monkeypatch.setenv("QUALIFY_INSTANCE_TYPE", "trn2.3xlarge")
    found = provenance()
    assert (found["image"], found["instance_type"]) == (None, "trn2.3xlarge")


def test_a_record_takes_all_of_it() -> None:
    """Every field is one of a record's."""
    facts: dict[str, Any] = dict(provenance())
    assert papers.unended(**facts).pipeline_commit == facts["pipeline_commit"]
