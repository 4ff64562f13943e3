"""One campaign for all end-to-end tests: the demo's list through the workflow, for real."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipeline import results
from tests.conftest import ROOT
from tests.workflows.act import Outcome, World

REAL = "SmolLM2-135M-Instruct"
SMALL = "tiny-llama-3-kv-heads"
"""Stands in the list where the demo has the real model, of the same type and with as many key/value
heads: 30 layers take two minutes to compile. The real one is the judge."""
NAMES = (REAL, SMALL, "tiny-qwen3", "tiny-gpt-oss", "tiny-gemma3", "tiny-qwen2-5-vl")

# The demo's one machine takes any job of GitHub's; these are ours, and two.
_LABELS = "labels: [ubuntu-latest]"
_TWO_MACHINES = "labels: [self-hosted, laptop]\n    machines: 2"


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    """model id -> current row, of a folder with results."""
    return {row["model_id"]: row for row in results.read_current(folder / "results")}


@dataclass(frozen=True)
class Folder:
    """A list, and everything that `qualify` leaves beside it."""

    path: Path

    @property
    def results(self) -> Path:
        return self.path / "results"

    @property
    def records(self) -> Path:
        return self.path / "records"

    def qualify(self, *arguments: str) -> str:
        """Run the command line in the folder; its standard output."""
        done = subprocess.run(
            [sys.executable, "-m", "pipeline.cli", *arguments],
            cwd=self.path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def plan(self, *arguments: str) -> str:
        """`qualify plan` of the list."""
        return self.qualify("plan", *self._places("--records", "--facts-cache"), *arguments)

    def run(self, plan: str) -> str:
        """`qualify run` of a plan file or a model id."""
        places = self._places("--records", "--facts-cache", "--store", "--references")
        return self.qualify("run", plan, *places)

    def _places(self, *options: str) -> list[str]:
        return [text for option in options for text in (option, option.removeprefix("--"))]


@dataclass
class Campaign:
    """A repository with the demo's list, and the folder of a machine that keeps graphs."""

    world: World
    outcomes: list[Outcome] = field(default_factory=list)

    def dispatch(self, **inputs: Any) -> Outcome:
        """Somebody starts the workflow by hand."""
        outcome = self.world.run(
            "workflow_dispatch",
            "qualify.yml",
            inputs=inputs,
            variables={"QUALIFY_FOLDER": str(self.machine)},
            environment={"WORLD": str(self.world.folder)},
            timeout=1_500,  # compilers on a machine that others use
        )
        self.outcomes.append(outcome)
        return outcome

    @property
    def machine(self) -> Path:
        """What a machine keeps from job to job."""
        return self.world.folder / "machine"

    def page(self, *names: str) -> str:
        """What these jobs of the newest run show."""
        return self.world.page(self.outcomes[-1], *names)

    def published(self) -> Path:
        """The files on main as they are now."""
        return self.world.export(f"published-{len(list(self.world.folder.glob('published-*')))}")


def environment() -> dict[str, str]:
    """What `qualify` runs with: this checkout, wherever the working directory is."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def campaign(
    tmp_path_factory: pytest.TempPathFactory, models: Callable[[str], Path]
) -> Iterator[Campaign]:
    """After its first dispatch: the demo's list planned, run and published, from nothing."""
    folder = {models(name).parent for name in NAMES}.pop()
    text = (ROOT / "demo" / "models.yaml").read_text()
    assert _LABELS in text
    head, models_key, entries = text.partition("\nmodels:\n")
    text = head + models_key + entries.replace(REAL, SMALL)
    text = text.replace("../build/models", str(folder)).replace(_LABELS, _TWO_MACHINES)
    with World(tmp_path_factory.mktemp("campaign"), models=text) as world:
        campaign = Campaign(world)
        campaign.dispatch()
        yield campaign


@pytest.fixture(scope="session")
def folder(campaign: Campaign) -> Folder:
    """A clone of what the first dispatch published, with its records and its machine's graphs, for
    `qualify` by hand."""
    made = Folder(campaign.published())
    for artifact in campaign.world.artifacts(campaign.outcomes[0]).glob("records-*"):
        shutil.copytree(artifact, made.records, dirs_exist_ok=True)
    (made.path / "store").symlink_to(campaign.machine / "graphs")
    (made.path / "references").symlink_to(campaign.machine / "references")
    return made
