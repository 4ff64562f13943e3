"""Whether an ended run is tried once more, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline import diagnosis, retry, script
from pipeline.record import Record, Run, Try
from pipeline.retry import next_try
from pipeline.words import Failure, Parallelism, Stage, Target, TryReason
from tests import papers

LARGER = (papers.placement(2), papers.placement(4))
"""Where a run of one core may go on."""


def _failed(failure: Failure, signature: str | None = None, **changes: Any) -> Record:
    return papers.failing(failure=failure, signature=signature, **changes)


def _try(reason: TryReason, failure: Failure = Failure.DEVICE_UNAVAILABLE) -> Try:
    return Try(
        reason=reason,
        cores=1,
        parallelism=Parallelism.NONE,
        result=failure.result,
        stage=Stage.LOAD,
        failure=failure,
        signature=None,
        error="NeuronCore(s) not available",
        wall_s=3.0,
        cache=None,
    )


def _reason(record: Record) -> TryReason | None:
    found = next_try(record)
    return found.reason if found else None


CURES = {
    Failure.DEVICE_UNAVAILABLE: TryReason.OTHER_CORES,
    Failure.DEVICE_FAULT: TryReason.OTHER_CORES,
    Failure.KILLED: TryReason.OTHER_CORES,
    Failure.DOWNLOAD: TryReason.OTHER_CORES,
    Failure.HOST_OUT_OF_MEMORY: TryReason.ALONE,
    Failure.CACHE: TryReason.CLEAN_CACHE,
    Failure.DEVICE_OUT_OF_MEMORY: TryReason.MORE_CORES,
}


@pytest.mark.parametrize("failure", list(Failure))
def test_each_class_has_its_cure_or_none(failure: Failure) -> None:
    """Seven classes are tried again at once; what gates, misses or fails by itself is not."""
    record = _failed(failure, run=papers.run(larger=LARGER))
    assert _reason(record) is CURES.get(failure)


@pytest.mark.parametrize(
    ("failure", "signature", "reason"),
    [
        (Failure.COMPILER_ERROR, "compiler-exit-70", TryReason.CLEAN_CACHE),
        (Failure.COMPILER_ERROR, "compiler-crash", TryReason.CLEAN_CACHE),
        (Failure.COMPILER_ERROR, "ncc-internal", TryReason.CLEAN_CACHE),
        (Failure.COMPILER_ERROR, "ncc-ibir297", None),
        (Failure.COMPILER_ERROR, "ncc-error", None),
        (Failure.UNSUPPORTED_OPERATOR, "neuron-integer-topk", None),
        (Failure.COMPILER_ERROR, diagnosis.UNCLASSIFIED, None),
        (Failure.TIMEOUT, "neuron-collectives-hang", TryReason.OTHER_CORES),
        (Failure.DEVICE_UNAVAILABLE, "neuron-driver-missing", None),
        (Failure.DEVICE_UNAVAILABLE, "neuron-cores-busy", TryReason.OTHER_CORES),
        # The class that the evidence gave weighs more than that of the signature.
        (Failure.HOST_OUT_OF_MEMORY, "compiler-killed", TryReason.ALONE),
        (Failure.RUNTIME_ERROR, "neuron-neff-unusable", None),
        (Failure.TIMEOUT, "compiler-exit-70", None),
    ],
)
def test_a_signature_may_know_better_than_its_class(
    failure: Failure, signature: str, reason: TryReason | None
) -> None:
    """Failures inside the compiler may pass; what it refuses with a documented code does not."""
    assert _reason(_failed(failure, signature)) is reason


def test_alone_asks_for_all_memory() -> None:
    """A run that the host's memory did not hold is tried once without neighbours."""
    found = next_try(_failed(Failure.HOST_OUT_OF_MEMORY))
    assert found is not None and found.reason is TryReason.ALONE
    assert (found.run.host_bytes or 0) > 2**50
    tried = _failed(Failure.HOST_OUT_OF_MEMORY, run=found.run, reason=TryReason.ALONE)
    assert next_try(tried) is None


def test_the_run_itself_stays_as_it_is() -> None:
    """Other cores and an empty cache change nothing of what is asked."""
    record = _failed(Failure.DEVICE_FAULT)
    found = next_try(record)
    assert found is not None
    assert found.run == record.run


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Failure.DEVICE_FAULT, TryReason.OTHER_CORES),
        (Failure.CACHE, TryReason.CLEAN_CACHE),
    ],
)
def test_the_same_cure_is_tried_once(failure: Failure, reason: TryReason) -> None:
    """Whether it was the last try or an earlier one; another cure is still open."""
    assert next_try(_failed(failure, reason=reason, tries=(_try(TryReason.FIRST),))) is None
    earlier = (_try(TryReason.FIRST), _try(reason))
    assert next_try(_failed(failure, reason=TryReason.MORE_CORES, tries=earlier)) is None
    other = {TryReason.OTHER_CORES, TryReason.CLEAN_CACHE}.difference({reason}).pop()
    assert _reason(_failed(failure, reason=other, tries=(_try(TryReason.FIRST),))) is reason


def test_device_memory_goes_on_to_the_next_placement() -> None:
    """The next larger placement, the rest kept for later, and the script that belongs to it."""
    asked = papers.run(larger=LARGER)
    found = next_try(_failed(Failure.DEVICE_OUT_OF_MEMORY, run=asked))
    assert found is not None
    assert (found.reason, found.run.placement) == (TryReason.MORE_CORES, LARGER[0])
    assert found.run.larger == LARGER[1:]
    assert found.run.script_sha256 == script.sha256(script.render(found.run))
    assert found.run.script_sha256 != asked.script_sha256
    changed = {"placement", "larger", "script_sha256"}
    for name in set(Run.model_fields) - changed:
        assert getattr(found.run, name) == getattr(asked, name), name


def test_host_memory_is_estimated_anew_where_it_was_known() -> None:
    """More ranks need more of the host."""
    asked = papers.run(larger=LARGER, host_bytes=1)
    found = next_try(_failed(Failure.DEVICE_OUT_OF_MEMORY, run=asked))
    assert found is not None
    assert found.run.host_bytes is not None
    assert found.run.host_bytes > 1


def test_every_larger_placement_is_tried_then_none() -> None:
    """The chain ends where planning's ends; each try goes on with what the last left."""
    asked, cores = papers.run(larger=LARGER), []
    tries: tuple[Try, ...] = (_try(TryReason.FIRST),)
    while found := next_try(_failed(Failure.DEVICE_OUT_OF_MEMORY, run=asked, tries=tries)):
        asked, tries = found.run, (*tries, _try(found.reason, Failure.DEVICE_OUT_OF_MEMORY))
        assert asked.placement is not None
        cores.append(asked.placement.cores)
    assert cores == [2, 4]


def test_fixed_cores_are_kept() -> None:
    """Where the list fixes the cores planning names no larger placement, and the FAIL stands."""
    assert next_try(_failed(Failure.DEVICE_OUT_OF_MEMORY, run=papers.run(larger=()))) is None


def test_there_is_an_end_whatever_a_record_says() -> None:
    """The number of tries is limited, more than enough for every number of cores."""
    larger = tuple(papers.placement(16) for _ in range(50))
    for made, expected in ((retry.MAX_TRIES - 2, True), (retry.MAX_TRIES - 1, False)):
        record = _failed(
            Failure.DEVICE_OUT_OF_MEMORY,
            run=papers.run(larger=larger),
            tries=(_try(TryReason.MORE_CORES),) * made,
        )
        assert (next_try(record) is not None) is expected


def test_what_stands_is_not_tried_again() -> None:
    """A PASS, a refusal, a run that never ended."""
    assert next_try(papers.passing()) is None
    assert next_try(papers.unended()) is None
    refused = papers.refused()
    assert next_try(_failed(Failure.DEVICE_UNAVAILABLE, run=refused, observation=None)) is None


def test_an_interrupted_harness_is_obeyed() -> None:
    """Who stops the harness does not want its runs to start again."""
    assert retry.INTERRUPTED == "the harness was interrupted"
    assert next_try(_failed(Failure.KILLED, error=f"{retry.INTERRUPTED} (SIGTERM)")) is None
    assert next_try(_failed(Failure.KILLED, error="run.py died of SIGTERM")) is not None


def test_a_run_that_used_its_whole_time_is_not_tried_again() -> None:
    """A hang that the runtime noticed after seconds is; one that only the clock ended is not."""
    hang = "neuron-collectives-hang"
    asked = papers.run(limit_s=3600)
    assert _reason(_failed(Failure.TIMEOUT, hang, run=asked, wall_s=95.0)) is TryReason.OTHER_CORES
    assert next_try(_failed(Failure.TIMEOUT, hang, run=asked, wall_s=3600.2)) is None


def test_retries_of_the_data_are_ones_that_exist() -> None:
    """`first` and `more_cores` are no cures that a signature can ask for."""
    asked = {one.retry for one in diagnosis.signatures()}
    assert asked <= {None, "never", TryReason.OTHER_CORES, TryReason.CLEAN_CACHE}
    for one in diagnosis.signatures():
        documented = one.id.startswith("neuron-") and one.failure is Failure.UNSUPPORTED_OPERATOR
        assert not (documented and one.retry), one.id


def test_the_stand_in_and_the_cpu_are_treated_alike() -> None:
    """What is tried again does not depend on the target: tests see what trn2 does."""
    for target in Target:
        asked = papers.run(stack=papers.stack(target), larger=LARGER)
        found = next_try(_failed(Failure.DEVICE_OUT_OF_MEMORY, run=asked))
        assert found is not None
        assert found.run.placement == LARGER[0]


def test_pure() -> None:
    """The module starts no process, reads no clock and touches no disk."""
    source = Path(retry.__file__).read_text(encoding="utf-8")
    for name in ("subprocess", "time", "datetime", "pathlib", "torch"):
        assert f"import {name}" not in source
        assert f"from {name}" not in source
