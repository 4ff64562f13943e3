"""The stand-in, built once for all tests here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulator.machine import Machine
from tests.simulator.venv import build


@pytest.fixture(scope="session")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of the environment that holds the stand-in. TRN_QUALIFY_TEST_SIMULATOR names a
    directory where it is kept between sessions."""
    named = os.environ.get("TRN_QUALIFY_TEST_SIMULATOR")
    return build(Path(named) if named else tmp_path_factory.mktemp("simulator") / "venv")


@pytest.fixture
def machine(simulator: Path, tmp_path: Path) -> Machine:
    """A machine of four cores of its own."""
    return Machine(simulator, tmp_path / "machine")
