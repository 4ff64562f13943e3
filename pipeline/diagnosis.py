"""From what a failed run left to its failure class.

Signatures are data (data/signatures.yaml): the first whose pattern occurs in the error message or
the log decides. Without one, the exception's type and the stage do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml

from pipeline.record import Observation
from pipeline.words import Failure, Stage

_SIGNALS_OF_A_CRASH = {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE"}
_BY_TYPE = {
    "WrongStackError": Failure.WRONG_STACK,
    "MemoryError": Failure.HOST_OUT_OF_MEMORY,
    "GatedRepoError": Failure.GATED,
    "RepositoryNotFoundError": Failure.MISSING,
    "RevisionNotFoundError": Failure.MISSING,
    "FailOnRecompileLimitHit": Failure.RECOMPILED,
    "BackendCompilerFailed": Failure.COMPILER_ERROR,
    "InductorError": Failure.COMPILER_ERROR,
    "CppCompileError": Failure.COMPILER_ERROR,
}
_BY_STAGE = {
    Stage.PLAN: Failure.HARNESS,
    Stage.DOWNLOAD: Failure.DOWNLOAD,
    Stage.LOAD: Failure.LOAD_ERROR,
}


@dataclass(frozen=True)
class Signature:
    """A known text of a failure and what it means."""

    id: str
    failure: Failure
    pattern: re.Pattern[str]
    meaning: str
    remedy: str
    source: str


@dataclass(frozen=True)
class Diagnosis:
    """Why a run failed. signature: id of the text that decided, None where none did."""

    failure: Failure
    signature: str | None
    error: str


@cache
def signatures() -> tuple[Signature, ...]:
    """All signatures, in the order in which they are tried."""
    text = files("pipeline").joinpath("data/signatures.yaml").read_text(encoding="utf-8")
    return tuple(
        Signature(
            entry["id"],
            Failure(entry["class"]),
            re.compile(entry["pattern"]),
            entry["meaning"],
            entry["remedy"],
            entry["source"],
        )
        for entry in yaml.safe_load(text)
    )


def diagnose(
    observation: Observation, log: str, *, exit_code: int, oom_kills: int | None
) -> Diagnosis:
    """The class of a script that ended with `exit_code` other than 0, within its time limit.

    log: what the run printed. oom_kills: how many processes the kernel's out-of-memory killer
    ended meanwhile on this machine; None = unknown.
    """
    kind = observation.error_type or ""
    message = observation.error_message or ""
    if not kind and exit_code < 0:
        kind, message = _signal_name(-exit_code), f"run.py died of {_signal_name(-exit_code)}"
    error = f"{kind}: {message}" if kind and kind not in message else message
    error = error or f"run.py ended with exit code {exit_code} and said nothing"
    if kind == "SIGKILL":
        if oom_kills:
            return Diagnosis(
                Failure.HOST_OUT_OF_MEMORY, "oom-killer", f"{error}: out-of-memory killer"
            )
        return Diagnosis(Failure.KILLED, None, error)
    if kind in ("SIGTERM", "SIGINT", "SIGHUP"):
        return Diagnosis(Failure.KILLED, None, error)
    for text in (f"{kind}: {message}", log):
        for signature in signatures():
            if signature.pattern.search(text):
                return Diagnosis(signature.failure, signature.id, error)
    if kind in _SIGNALS_OF_A_CRASH:
        return Diagnosis(Failure.CRASH, None, error)
    if kind in _BY_TYPE:
        return Diagnosis(_BY_TYPE[kind], None, error)
    return Diagnosis(_BY_STAGE.get(observation.stage, Failure.RUNTIME_ERROR), None, error)


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
