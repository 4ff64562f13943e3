"""A model is measured on the stand-in: cores, counters and both memory counts as on a device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.simulator.commands import qualify, write_list
from tests.simulator.machine import Machine

pytestmark = pytest.mark.long


def test_a_model_is_measured_on_the_device(
    machine: Machine, models: Callable[[str], Path], tmp_path: Path
) -> None:
    """Each size has figures of its own and graphs of its own, compiled once and restored later."""
    entry = {"id": "tiny/tiny-gpt2", "task": "text-generation", "source": str(models("tiny-gpt2"))}
    write_list(tmp_path, models("SmolLM2-135M-Instruct"), 4, entry)
    sizes = ("--prompt-tokens", "8", "--batch", "1,2", "--new-tokens", "6", "--repeats", "2")

    def measure(*arguments: str) -> dict[str, Any]:
        # No PASS can stand in results here: `qualify publish` refuses what the stand-in ran.
        done = qualify(
            machine.python,
            tmp_path,
            machine.environment(),
            *("measure", "tiny/tiny-gpt2", "--unqualified", "--json", "--store", "graphs"),
            *(*sizes, *arguments),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    cold = measure("--output", "cold")
    assert (cold["error"], cold["findings"]) == (None, [])
    for point, batch in zip(cold["points"], (1, 2), strict=True):
        assert (point["prompt_tokens"], point["batch"]) == (8, batch)
        assert (point["standing"], point["reasons"]) == ("valid", [])
        assert (point["graphs"], point["compiled"], point["restored"]) == (2, 2, 0)
        assert point["compiled_while_measured"] == 0
        assert [len(call["token_s"]) for call in point["calls"]] == [5, 5]
        assert point["tokens_per_s"] > 0
        (peak,) = point["peak_bytes"]
        assert peak > 0
    assert cold["runtime_peak_source"] == "neuron-monitor"
    (peak,) = cold["runtime_peak_bytes"]
    assert peak > 0
    assert len(cold["cache_keys"]) == 4
    left = {path.name for path in (tmp_path / "cold").iterdir()}
    assert {"measure.py", "log.txt"} <= left and "work" not in left

    warm = measure("--output", "warm", "--whole-store")
    assert [point["standing"] for point in warm["points"]] == ["valid"] * 2
    assert sum(point["compiled"] for point in warm["points"]) == 0
    assert sorted(warm["cache_keys"]) == sorted(cold["cache_keys"])
