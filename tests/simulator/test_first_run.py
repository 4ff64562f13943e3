"""The first run for real, on the stand-in for the device: what can hold there does, and a wrong
assumption or a crash is told as such, with the place where it is mended.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from pipeline.first_run import CHECKS
from tests.conftest import ROOT
from tests.simulator.machine import Machine

pytestmark = pytest.mark.long

ABSENT = {
    "driver-version": "the stand-in has no driver",
    "runtime-version": "it is no Debian package",
    "neuron-ls-without-device": "there is no /dev/neuron* to hide",
    "driver-counters": "there is nothing below /sys",
    "driver-peak-clears": "needs driver-counters",
    "driver-peak-moves": "needs driver-counters",
}
"""Checks that the stand-in cannot pass, and why."""

ELSEWHERE = {"run-one-core", "run-restored", "run-two-cores", "run-experts", "run-picture"}
"""Whole runs that other tests of this folder execute."""


@dataclass(frozen=True)
class Seen:
    """A check's entry in the report."""

    outcome: str
    text: str
    places: Sequence[str]


_SESSION = """
import json, sys
from pathlib import Path
from pipeline import catalog
from pipeline.first_run import CHECKS, first_run
ids = json.loads(sys.argv[2])
listed = catalog.load(Path("models.yaml"))
stack = listed.stack_versions(listed.defaults.stacks[0])
first_run(Path(sys.argv[1]), stack, print, tuple(one for one in CHECKS if one.id in ids))
"""


def session(
    machine: Machine, ids: Sequence[str], environment: Mapping[str, str]
) -> dict[str, Seen]:
    """A first run of these checks on the machine; id -> what the report says."""
    report = machine.directory / "report.md"
    subprocess.run(
        [str(machine.python), "-c", _SESSION, str(report), json.dumps(ids)],
        cwd=ROOT,
        env=environment,
        check=True,
    )
    told = json.loads(report.with_suffix(".json").read_text())
    return {
        one["id"]: Seen(one["outcome"], one["seen"], one["mended_in"]) for one in told["checks"]
    }


def test_what_can_hold_on_the_stand_in_holds(machine: Machine) -> None:
    """Every probe works: nothing but what the stand-in lacks is left, and that is told as such.

    The compiler fails in the one check that wants a failure.
    """
    ids = [check.id for check in CHECKS if check.id not in ELSEWHERE]
    failing = {"fault": "compiler_error", "where": "compile-failure-raises"}
    seen = session(machine, ids, machine.environment(failing))
    others = {name: one for name, one in seen.items() if one.outcome != "holds"}
    assert others.keys() == ABSENT.keys(), others
    assert seen["driver-counters"].outcome == "does not hold"
    assert "pipeline/device/sysfs.py: PEAK" in seen["driver-counters"].places
    assert "signature ncc-ibcg901" in seen["compile-failure-text"].text


def test_a_wrong_assumption_and_a_crash_leave_the_others(machine: Machine) -> None:
    """Cores of another size and a SIGSEGV are reported with their places; the rest goes on."""
    ids = ["neuron-ls", "torch-import", "compiled-graph", "compiler-counters"]
    ids += ["memory-peak", "core-memory"]
    crash = {"fault": "segv", "at": "load", "where": "compiled-graph"}
    seen = session(machine, ids, machine.environment(crash, core_bytes=12 * 2**30))
    assert seen["compiled-graph"].outcome == "does not hold"
    assert "ended by SIGSEGV" in seen["compiled-graph"].text
    assert seen["compiler-counters"].outcome == "could not be tried"
    assert seen["core-memory"].outcome == "does not hold"
    assert str(12 * 2**30) in seen["core-memory"].text
    assert seen["core-memory"].places == ["models.yaml: core_gib"]
    assert {seen[name].outcome for name in ("neuron-ls", "torch-import", "memory-peak")} == {
        "holds"
    }
