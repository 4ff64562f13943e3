"""One campaign for all end-to-end tests: the demo's list, through the command line, for real."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

NAMES = ("SmolLM2-135M-Instruct", "tiny-qwen3", "tiny-gpt-oss", "tiny-gemma3", "tiny-qwen2-5-vl")


@dataclass(frozen=True)
class Campaign:
    """A folder with a list, and everything that `qualify` leaves there."""

    folder: Path

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def records(self) -> Path:
        return self.folder / "records"

    def qualify(self, *arguments: str, code: int = 0) -> str:
        """Run the command line in the folder; its standard output. `code`: the expected exit."""
        done = subprocess.run(
            [sys.executable, "-m", "pipeline.cli", *arguments],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def plan(self, *arguments: str) -> str:
        """`qualify plan` on this campaign."""
        return self.qualify("plan", *self._places("--records", "--facts-cache"), *arguments)

    def run(self, plan: str) -> str:
        """`qualify run` of a plan file or a model id."""
        places = self._places("--records", "--facts-cache", "--store", "--references")
        return self.qualify("run", plan, *places)

    def publish(self, *arguments: str) -> str:
        """`qualify publish` of all records."""
        return self.qualify("publish", "records", *arguments)

    def _places(self, *options: str) -> list[str]:
        return [text for option in options for text in (option, option.removeprefix("--"))]

    def rows(self) -> dict[str, dict[str, Any]]:
        """model id -> current row."""
        from pipeline import results

        return {row["model_id"]: row for row in results.read_current(self.results)}


def environment() -> dict[str, str]:
    """What `qualify` runs with: this checkout, wherever the working directory is."""
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def campaign(tmp_path_factory: pytest.TempPathFactory, models: Callable[[str], Path]) -> Campaign:
    """The demo's list planned, run and published once, from nothing."""
    made = Campaign(tmp_path_factory.mktemp("campaign"))
    folder = {models(name).parent for name in NAMES}.pop()
    text = (ROOT / "demo" / "models.yaml").read_text()
    (made.folder / "models.yaml").write_text(text.replace("../build/models", str(folder)))
    made.plan("--output", "plan.json")
    made.run("plan.json")
    made.publish("--plan", "plan.json")
    return made
