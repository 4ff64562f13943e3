"""Where a run takes place, as far as the machine says so itself: nothing is guessed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from pipeline import git


def provenance() -> dict[str, str | None]:
    """Fields of a record that describe the machine and the caller; None = not known here.

    run_url: from GitHub Actions' own variables. pipeline_commit: of this checkout, with "+changes"
    when files differ from it; None for an installed package, even below a repository. image,
    instance_type: what the workflow states about the container and the machine (QUALIFY_IMAGE,
    QUALIFY_INSTANCE_TYPE).
    """
    return {
        "run_url": _run_url(),
        "pipeline_commit": _commit(Path(__file__).parent),
        "image": os.environ.get("QUALIFY_IMAGE") or None,
        "instance_type": os.environ.get("QUALIFY_INSTANCE_TYPE") or None,
    }


def _run_url() -> str | None:
    """https://docs.github.com/en/actions/reference/workflows-and-actions/variables"""
    parts = [
        os.environ.get(name) for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    ]
    if not all(parts):
        return None
    server, repository, run = parts
    return f"{server}/{repository}/actions/runs/{run}"


def _commit(folder: Path) -> str | None:
    try:
        _git(folder, "ls-files", "--error-unmatch", Path(__file__).name)
        commit = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+changes" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    return git.ask(folder, *arguments).decode().strip()
