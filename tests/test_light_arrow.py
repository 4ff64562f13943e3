"""pyarrow without NumPy: in a process of its own, since what is imported stays."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import ROOT


def run(code: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return ended.stdout.strip()


def test_numpy_stays_out_and_can_still_be_imported() -> None:
    """pyarrow works without it; nothing is left behind that would refuse it to others."""
    assert run(
        "import sys; from pipeline import light_arrow; light_arrow.load()\n"
        "import pyarrow; print(pyarrow.nulls(2).to_pylist(), 'numpy' in sys.modules)\n"
        "import numpy; print(numpy.ones(2).sum())"
    ).split("\n") == ["[None, None] False", "2.0"]


def test_a_process_that_has_either_is_left_alone() -> None:
    """Whoever imported pyarrow or NumPy before keeps pyarrow whole."""
    for first in ("pyarrow", "numpy"):
        assert (
            run(
                f"import {first}; from pipeline import light_arrow; light_arrow.load()\n"
                "import pyarrow; print(pyarrow.array([1, 2]).to_numpy().sum())"
            )
            == "3"
        )
