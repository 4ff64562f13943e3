"""Asking git about a checkout, whoever owns it and whatever repository a hook is of."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def ask(folder: Path, *arguments: str) -> bytes:
    """What git prints in `folder`; OSError without git, CalledProcessError where it refuses."""
    # Inside a git hook GIT_DIR and its like name the hook's repository.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        # A container's user often does not own the checkout, which git refuses for fear of what the
        # repository's configuration starts; code from there is running already.
        ["git", "-c", "safe.directory=*", "-C", str(folder), *arguments],
        capture_output=True,
        check=True,
        env=environment,
        timeout=30,
    )
    return done.stdout
