"""What every rendered script must be: as a formatter leaves it, lint-clean, and typed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

RUFF = [
    ("format", "--check"),
    ("check", "--select", "E,F,W,I,B,UP,SIM,PTH,C4,RET,PIE", "--ignore", "E501"),
]


def assert_ruff(folder: Path, command: tuple[str, ...]) -> None:
    """`command`, one of RUFF, finds nothing in the folder's scripts."""
    _assert_ends_well(
        ["ruff", *command, "--isolated", "--line-length", "100", "."],
        folder,
    )


def assert_types(folder: Path, names: Iterable[str]) -> None:
    """mypy, which looks into every function, finds nothing in these scripts."""
    _assert_ends_well(
        [
            "mypy",
            "--ignore-missing-imports",
            "--follow-imports=skip",
            "--check-untyped-defs",
            "--scripts-are-modules",
            "--no-incremental",
            *(str(folder / name) for name in names),
        ],
        folder,
    )


def _assert_ends_well(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
