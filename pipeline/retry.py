"""Whether an ended run is tried once more, and how: on other or more cores, or with an empty cache.

Pure: an ended record in, the next try out. Every try of a run stays in its record (`tries`), and
what is published is the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from pipeline import diagnosis, placement, script
from pipeline.record import Record, Run
from pipeline.words import Failure, Result, TryReason

INTERRUPTED = "the harness was interrupted"
"""How the error of a run begins that this project's own harness ended: nobody waits for more."""

_ALL_MEMORY = 2**60
"""Host memory, bytes, that no machine has: a run that asks for it runs without neighbours."""

MAX_TRIES = len(placement.CORE_COUNTS) + 3
"""Tries of a run in all: one on each number of cores, one on other cores, one with an empty cache,
one alone on the machine.
Not a limit that sensible runs meet, but one that holds whatever a record says."""


@dataclass(frozen=True)
class NextTry:
    """What to do next. run: the run as it was, or in its next larger placement (`more_cores`)."""

    reason: TryReason
    run: Run


def next_try(record: Record) -> NextTry | None:
    """The try that an ended record asks for; None = its result stands.

    Other cores, an empty cache and the machine for itself are each tried once a run. More cores
    are tried as long as `run.larger` names a placement: planning leaves it empty where the list
    fixes the cores.
    """
    if record.result is None or record.result is Result.PASS or record.failure is None:
        return None
    if (record.error or "").startswith(INTERRUPTED) or len(record.tries) + 1 >= MAX_TRIES:
        return None
    reason = _cure(record)
    if reason is None or record.run.placement is None:
        return None
    if reason is TryReason.MORE_CORES:
        return _larger(record.run)
    if reason in {record.reason, *(one.reason for one in record.tries)}:
        return None
    run = record.run
    if reason is TryReason.ALONE:
        run = run.model_copy(update={"host_bytes": _ALL_MEMORY})
    return NextTry(reason, run)


def _cure(record: Record) -> TryReason | None:
    """What may cure the failure: as its signature says, else as its class does."""
    if record.failure is Failure.TIMEOUT and (record.wall_s or 0) >= record.run.limit_s:
        return None  # another try would take as long again, at the cost of the runs behind it
    signature = diagnosis.known(record.signature)
    if signature and signature.failure is record.failure and signature.retry:
        return None if signature.retry == "never" else signature.retry
    return None if record.failure is None else _cure_of(record.failure)


def _cure_of(failure: Failure) -> TryReason | None:
    match failure:
        # A download goes on where it stopped; it is the machine's network that may be better now.
        case Failure.DEVICE_UNAVAILABLE | Failure.DEVICE_FAULT | Failure.KILLED | Failure.DOWNLOAD:
            return TryReason.OTHER_CORES
        # Neighbours may have had the memory; only without them it speaks of the model.
        case Failure.HOST_OUT_OF_MEMORY:
            return TryReason.ALONE
        case Failure.DEVICE_OUT_OF_MEMORY:
            return TryReason.MORE_CORES
        case Failure.CACHE:
            return TryReason.CLEAN_CACHE
        # The machine as a whole, the Hub or this project is at fault: other cores are no better.
        # The next plan makes these runs due again.
        case (
            Failure.GATED
            | Failure.MISSING
            | Failure.WRONG_STACK
            | Failure.LOST_RUNNER
            | Failure.DISK_FULL
            | Failure.INCONCLUSIVE
            | Failure.HARNESS
        ):
            return None
        # What the model did on this stack it does again; which of the compiler's failures may be
        # passing, their signatures say.
        case (
            Failure.UNSUPPORTED_OPERATOR
            | Failure.COMPILER_ERROR
            | Failure.TIMEOUT
            | Failure.RUNTIME_ERROR
            | Failure.CRASH
            | Failure.LOAD_ERROR
            | Failure.UNSUPPORTED_PARALLELISM
            | Failure.TOO_LARGE
            | Failure.UNSUPPORTED_CHECKPOINT
            | Failure.WRONG_TOKENS
            | Failure.NOT_FLUENT
            | Failure.CPU_FALLBACK
            | Failure.RECOMPILED
        ):
            return None
        case _:
            assert_never(failure)


def _larger(run: Run) -> NextTry | None:
    """The run in the next larger placement that planning allowed, with its own script."""
    if not run.larger:
        return None
    first, *rest = run.larger
    fields = {name: getattr(run, name) for name in Run.model_fields}
    fields |= {"placement": first, "larger": tuple(rest)}
    if run.host_bytes is not None:
        fields["host_bytes"] = placement.host_bytes(first, run.stack.target)
    moved = Run.model_validate(fields)
    text = script.render(moved)
    moved = Run.model_validate(fields | {"script_sha256": script.sha256(text)})
    return NextTry(TryReason.MORE_CORES, moved)
