"""A row of the stand-in is reproduced on it: cores, counters, compiled graphs as on a device."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pipeline import results as stored
from pipeline.record import Record, find_records, read
from pipeline.rows import row_of
from tests.simulator.commands import qualify, write_list
from tests.simulator.machine import Machine

pytestmark = pytest.mark.long


def test_a_device_row_is_reproduced_on_the_device(
    machine: Machine, models: Callable[[str], Path], tmp_path: Path
) -> None:
    """The same tokens on a free core, out of restored graphs, with the memory of both."""
    entry = {"id": "tiny/tiny-gpt2", "task": "text-generation", "source": str(models("tiny-gpt2"))}
    write_list(tmp_path, models("SmolLM2-135M-Instruct"), 4, entry)
    command = partial(qualify, machine.python, tmp_path, machine.environment())
    done = command("run", "tiny/tiny-gpt2", "--store", "graphs", "--records", "records")
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = find_records([tmp_path / "records"])
    row = row_of(read(Record, path))
    assert (row["result"], row["cache"]) == ("PASS", "cold")
    # Never published: what `qualify publish` refuses is put there by hand.
    stored.write(stored.prepare(tmp_path / "results", [row]).files)
    done = command("reproduce", "tiny/tiny-gpt2", "--store", "graphs", "--output", "out", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["outcome"] == "reproduced"
    assert [one["first"] for one in told["tokens"]] == [None] * 3
    assert told["here"]["cache"] == "restored"
    assert told["here"]["neuron_cores"] == 1
    figures = {one["name"]: one for one in told["figures"]}
    assert figures["device memory, tensors"]["ratio"] > 0
    parts = {one["name"]: one["match"] for one in told["stack"]}
    assert parts["free cores"] == "enough"
    assert parts["neuronx-cc"] == parts["torch-neuronx"] == "same"
