"""A job of GitHub Actions for the commands that workflows call: its variables, event and files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.github_server import GitHubServer


def variables(
    folder: Path,
    event: Mapping[str, Any] | None = None,
    /,
    *,
    event_name: str = "schedule",
    github: GitHubServer | None = None,
    **more: str,
) -> dict[str, str]:
    """What GitHub sets for a job; `more` adds to it. Event, summary and output are in `folder`."""
    (folder / "event.json").write_text(json.dumps(event or {}), encoding="utf-8")
    told = {
        "GITHUB_REPOSITORY": github.repository if github else "org/repo",
        "GITHUB_RUN_ID": "7",
        "GITHUB_EVENT_NAME": event_name,
        "GITHUB_EVENT_PATH": str(folder / "event.json"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "GITHUB_OUTPUT": str(folder / "output"),
    }
    if github:
        told |= {"GITHUB_API_URL": github.url, "GITHUB_TOKEN": github.token}
    return told | more


def qualify(
    root: Path, *arguments: str, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """`qualify actions ...` in the checkout `root`, as a process of its own.

    Of the job that the tests themselves may run in, it sees nothing.
    """
    around = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    return subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "actions", *arguments],
        cwd=root,
        env={**around, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
