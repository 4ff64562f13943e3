"""What a run is told of the machine's cores."""

from __future__ import annotations

import os

import pytest

from pipeline.targets import core_environment
from pipeline.words import Target


@pytest.mark.parametrize(
    ("cores", "told"),
    [((3,), "3"), ((4, 5, 6, 7), "4-7"), ((0, 1, 2, 3, 12, 13, 14, 15), "0,1,2,3,12,13,14,15")],
)
def test_neuron_cores_are_named(cores: tuple[int, ...], told: str) -> None:
    """One id or a range, as documented; a list only where no range says it."""
    for target in (Target.NEURON, Target.SIMULATOR):
        assert core_environment(target, cores, 16) == {"NEURON_RT_VISIBLE_CORES": told}
        assert core_environment(target, (), 16) == {}


def test_processes_on_the_cpu_share_its_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets its share of threads, one at least; without a count of cores nothing is said."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert core_environment(Target.CPU, (0, 1), 4) == {"OMP_NUM_THREADS": "4"}
    assert core_environment(Target.CPU, (0, 1), 32) == {"OMP_NUM_THREADS": "1"}
    assert core_environment(Target.CPU, (0, 1), None) == {}
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert core_environment(Target.CPU, (0, 1), 4) == {}
