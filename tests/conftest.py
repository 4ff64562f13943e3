"""What all tests share: small real models, and no network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Read at import by huggingface_hub, so before anything imports it: tests reach no Hub, and the
# client's own daily question to it stays off.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

ROOT = Path(__file__).parent.parent

SEEN = """
def seen(stage):
    while json.loads(Path("record.json").read_text())["stage"] != stage:
        time.sleep(0.02)
"""
"""For a script in place of run.py, which runs beside its record: waits until the harness has
noticed that stage, however slow the machine is."""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """name -> directory of that small real model, built on first use."""
    from demo.build_models import build

    named = os.environ.get("TRN_QUALIFY_TEST_MODELS")
    out = Path(named).resolve() if named else tmp_path_factory.mktemp("models")
    return lambda name: build(out, [name])[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that use a real model, so that the fast ones can be chosen."""
    for item in items:
        if isinstance(item, pytest.Function) and "models" in item.fixturenames:
            item.add_marker(pytest.mark.models)


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
