"""What a record must show before a row is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from pipeline import evidence
from pipeline.errors import RecordError
from pipeline.record import CallCounts, Check, Finding, Record
from pipeline.words import CpuMatch, Failure, Result, Stage, Target
from tests import papers
from tests.papers import day

NOW = day(100)


def passed(changes: Mapping[str, Any]) -> Record:
    """A PASS on two cores of which `changes` replace fields of the record; those below
    "observation" and "versions" replace fields of these."""
    asked = papers.run(placement=papers.placement(2), stack=changes.get("stack"))
    honest = papers.passing(asked, core_ids=(2, 3))
    seen = honest.observation
    assert seen is not None
    versions = seen.versions.model_copy(update=changes.get("versions", {}))
    peaks = {"device_peak_bytes": (papers.GIB, papers.GIB)}
    seen = seen.model_copy(update=peaks | changes.get("observation", {}) | {"versions": versions})
    fields = {
        name: value
        for name, value in changes.items()
        if name not in ("observation", "versions", "stack")
    }
    return honest.model_copy(update={"observation": seen, **fields})


TIE = Check(cpu_match=CpuMatch.NEAR_TIE, max_gap=0.125, departure=0.04, noise=0.03)

NAMED = papers.stack(nki="0.7.0", runtime="2.35.30.0", driver="2.31.7.0", python="3.14")
SEEN = {"nki": "0.7.0", "runtime": "2.35.30.0-ab12", "neuron_driver": "2.31.7.0"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"observation": {"device_peak_bytes": None}},
        {"observation": {"cpu_fallback_ops": None}},
        {"versions": {"torch_neuronx": "2.14.0.1.55+g1"}},
        {"stack": NAMED, "versions": SEEN},
        {"cache_keys": ()},
        {"run_py": None},
        {"cache": None, "runtime_peak_bytes": None},
    ],
)
def test_a_proven_pass_is_usable(changes: Mapping[str, Any]) -> None:
    """What may be unknown may be null, and a build number behind a version does no harm."""
    record = passed(changes)
    assert evidence.usable(record, NOW, where="here") == record


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"check": Check()}, "inconclusive"),
        ({"check": Check(cpu_match=CpuMatch.MISMATCH, max_gap=9.0)}, "wrong_tokens"),
        ({"check": Check(cpu_match=CpuMatch.INCONCLUSIVE, departure=0.1)}, "inconclusive"),
        ({"check": Check(cpu_match=CpuMatch.NEAR_TIE, max_gap=9.0)}, "wrong_tokens"),
        (
            {"check": TIE.model_copy(update={"max_gap": 9.0, "noise": None})},
            "a token is 9.00 nats below",
        ),
        ({"check": TIE.model_copy(update={"departure": 5.0})}, "are off by 5.000 nats"),
        ({"check": TIE.model_copy(update={"noise": 5.0})}, "own noise is 5.00 nats"),
        ({"observation": {"logits_finite": False}}, "wrong_tokens"),
        ({"observation": {"repeatable": None}}, "wrong_tokens"),
        (
            {"observation": {"all_calls": CallCounts(graphs=0, compiled=0, restored=0)}},
            "cpu_fallback",
        ),
        ({"observation": {"backend_graphs": 1}}, "cpu_fallback"),
        ({"observation": {"backend_graphs": None}}, "inconclusive"),
        (
            {"findings": (Finding(signature="s", failure=Failure.CPU_FALLBACK, line="eager"),)},
            "the log says: eager",
        ),
        ({"versions": {"torch": "2.9.0"}}, "torch 2.14.0 and saw 2.9.0"),
        ({"versions": {"neuronx_cc": None}}, "neuronx-cc 2.28.7631.0 and saw None"),
        ({"versions": {"torch_neuronx": "2.14.0.10"}}, "saw 2.14.0.10"),
        ({"stack": NAMED, "versions": SEEN | {"runtime": None}}, "runtime 2.35.30.0 and saw None"),
        (
            {"stack": NAMED, "versions": SEEN | {"neuron_driver": None}},
            "neuron-driver 2.31.7.0 and saw None",
        ),
        (
            {"stack": NAMED, "versions": SEEN | {"neuron_driver": "2.31.70.0"}},
            "saw 2.31.70.0",
        ),
        ({"stack": NAMED, "versions": SEEN | {"nki": "0.6.0"}}, "nki 0.7.0 and saw 0.6.0"),
        ({"stack": NAMED, "versions": SEEN | {"python": "3.13.1"}}, "python 3.14 and saw 3.13.1"),
        (
            {
                "stack": papers.stack(torch_neuronx=None),
                "versions": {"torch_neuronx": None},
            },
            "saw no torch-neuronx",
        ),
        ({"core_ids": (0,)}, "asked for: 2; ids of the cores it had: 0"),
        ({"core_ids": (0, 0)}, "asked for: 2; ids of the cores it had: 0, 0"),
        ({"core_ids": (0, 1, 2)}, "asked for: 2; ids of the cores it had: 0, 1, 2"),
        (
            {"observation": {"device_peak_bytes": (papers.GIB,)}},
            "asked for: 2; cores whose memory it counted: 1",
        ),
        ({"observation": {"device_peak_bytes": (papers.GIB, 0)}}, "held no tensor"),
        ({"cache_keys": ("fxgraph/ab/cd",)}, "not those of neuronx-cc: fxgraph/ab/cd"),
        ({"run_py": "print('another')"}, "its script is"),
        ({"exit_code": 1}, "exit code 1"),
        ({"exit_code": None}, "exit code None"),
        ({"observation": {"stage": Stage.GENERATE}}, "ended at stage generate"),
        ({"observation": {"error_type": "OSError"}}, "exit code 0 and OSError"),
    ],
)
def test_a_pass_must_be_proven_by_its_own_evidence(changes: Mapping[str, Any], reason: str) -> None:
    """A record that only says PASS is not usable, however well-formed it is."""
    with pytest.raises(RecordError) as caught:
        evidence.usable(passed(changes), NOW, where="here")
    assert "says PASS, which its own evidence does not" in caught.value.reason
    assert reason in caught.value.reason and caught.value.where == "here"


@pytest.mark.parametrize("make", [papers.failing, papers.erring])
def test_what_did_not_pass_needs_no_proof(make: Any) -> None:
    """FAIL and ERROR say why by themselves."""
    assert evidence.usable(make(), NOW, where="").failure is not None


def test_a_record_that_did_not_end_is_an_error() -> None:
    """Its harness was lost; the same record is the same ERROR whenever it is read."""
    record = papers.unended(at=day(3))
    ended = evidence.usable(record, NOW, where="")
    assert (ended.result, ended.failure) == (Result.ERROR, Failure.LOST_RUNNER)
    assert ended.tested_at == day(3)
    assert evidence.usable(record, day(50), where="") == ended


@pytest.mark.parametrize("make", [papers.passing, papers.failing, papers.unended])
def test_dates_may_be_off_by_a_days_clock_skew(make: Any) -> None:
    """Later than that, a row would reign over every honest one until then."""
    evidence.usable(make(at=NOW + timedelta(hours=23)), NOW, where="")
    with pytest.raises(RecordError, match="dated in the future"):
        evidence.usable(make(at=NOW + timedelta(hours=25)), NOW, where="")


def test_simulators_record_is_known_and_let_through() -> None:
    """Who publishes stops at it, whatever else is wrong with it."""
    record = papers.failing(papers.run(stack=papers.stack(Target.SIMULATOR)), at=day(200))
    assert evidence.simulated(evidence.usable(record, NOW, where=""))
    assert not evidence.simulated(papers.passing())


def test_script_is_the_one_asked_for() -> None:
    """Readers replay it, so it is held against the digest where there are both."""
    assert evidence.other_script(papers.failing()) is None
    assert evidence.other_script(papers.failing(run_py=None)) is None
    told = evidence.other_script(papers.failing(run_py="import other"))
    assert told is not None and told.startswith("its script is ")
