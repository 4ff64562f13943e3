"""The wheel that people install: it works where no checkout is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pipeline.record import write
from tests import papers
from tests.conftest import ROOT

_PIP = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in the folder that TRN_QUALIFY_TEST_WHEEL names, or one built from a copy."""
    if named := os.environ.get("TRN_QUALIFY_TEST_WHEEL"):
        (built,) = Path(named).glob("*.whl")
        return built
    source = tmp_path_factory.mktemp("source")
    # A copy, since building leaves files behind, and would take in those of an earlier build.
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    for name in ("pipeline", "templates"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [*_PIP, "--no-build-isolation", "--wheel-dir", str(out), str(source)],
        check=True,
        timeout=300,
    )
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel installs, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def _qualify(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`qualify` of the wheel, in a folder without checkout."""
    (folder / "start.py").write_text(
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        "import pipeline; assert pipeline.__path__[0].startswith(sys.path[0])\n"
        "from pipeline.cli import main; main(prog_name='qualify')\n"
    )
    return subprocess.run(
        [sys.executable, "-P", str(folder / "start.py"), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_everything_that_is_in_the_checkout_is_in_the_wheel(wheel: Path) -> None:
    """A package or a data file that pyproject.toml forgets is missed here, not by a reader."""
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "pipeline").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } | {f"pipeline/{path.relative_to(ROOT).as_posix()}" for path in ROOT.glob("templates/*.jinja")}
    assert wanted <= names, sorted(wanted - names)


def test_its_commands_work_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    """It checks a list, and makes the page from a record: schemas, data and templates are there."""
    shutil.copy(ROOT / "models.yaml", tmp_path)
    write(papers.passing(), tmp_path / "records" / "record.json")
    done = _qualify(installed, tmp_path, "validate")
    assert done.returncode == 0, done.stderr
    assert "no problem found" in done.stdout
    done = _qualify(installed, tmp_path, "publish", "records")
    assert done.returncode == 0, done.stderr
    assert "PASS" in (tmp_path / "COMPATIBILITY.md").read_text()
    told = _qualify(installed, tmp_path, "actions", "--help")
    assert told.returncode == 0 and "publish" in told.stdout, told.stderr


def test_a_release_carries_its_version(wheel: Path) -> None:
    """The tag that a release is made from, where there is one, is the wheel's version."""
    tag = os.environ.get("WHEEL_TAG")
    version = wheel.name.split("-")[1]
    text = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{version}"' in text
    assert tag in (None, f"v{version}"), f"the tag {tag} is not that of version {version}"
