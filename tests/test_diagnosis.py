"""From what a failed script left to the class of its failure."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pipeline import diagnosis
from pipeline.record import Observation
from pipeline.words import Failure, Stage
from tests import papers


def _seen(stage: Stage, kind: str | None, message: str | None) -> Observation:
    return papers.observation(stage=stage, error_type=kind, error_message=message)


@pytest.mark.parametrize(
    ("stage", "kind", "message", "log", "facts", "failure", "signature"),
    [
        (Stage.LOAD, "ValueError", "bad config", "", {}, Failure.LOAD_ERROR, None),
        (Stage.COMPILE, "RuntimeError", "odd", "", {}, Failure.RUNTIME_ERROR, None),
        (Stage.COMPILE, "BackendCompilerFailed", "x", "", {}, Failure.COMPILER_ERROR, None),
        (Stage.GENERATE, "RuntimeError", "odd", "", {}, Failure.RUNTIME_ERROR, None),
        (Stage.DOWNLOAD, "OSError", "reset by peer", "", {}, Failure.DOWNLOAD, None),
        (Stage.DOWNLOAD, "GatedRepoError", "403", "", {}, Failure.GATED, "hub-gated"),
        (Stage.DOWNLOAD, "RevisionNotFoundError", "", "", {}, Failure.MISSING, "hub-missing"),
        (Stage.DOWNLOAD, "WrongStackError", "torch", "", {}, Failure.WRONG_STACK, None),
        (Stage.LOAD, "OSError", "[Errno 28] No space", "", {}, Failure.DISK_FULL, "disk-full"),
        (
            Stage.COMPILE,
            "FailOnRecompileLimitHit",
            "limit",
            "",
            {},
            Failure.RECOMPILED,
            "recompile-limit",
        ),
        (Stage.GENERATE, "SIGSEGV", "rank 1 died of SIGSEGV", "", {}, Failure.CRASH, None),
        (Stage.GENERATE, "SIGABRT", "rank 0 died of SIGABRT", "", {}, Failure.CRASH, None),
        (Stage.LOAD, "SIGKILL", "rank 0 died", "", {"oom_kills": 0}, Failure.KILLED, None),
        (Stage.LOAD, "SIGKILL", "rank 0 died", "", {"oom_kills": None}, Failure.KILLED, None),
        (
            Stage.LOAD,
            "SIGKILL",
            "rank 0 died",
            "",
            {"oom_kills": 1},
            Failure.HOST_OUT_OF_MEMORY,
            "oom-killer",
        ),
        (Stage.LOAD, None, None, "", {"exit_code": -9}, Failure.KILLED, None),
        (Stage.LOAD, None, None, "", {"exit_code": -11}, Failure.CRASH, None),
        (Stage.LOAD, None, None, "", {"exit_code": -15}, Failure.KILLED, None),
        (Stage.LOAD, None, None, "", {"exit_code": 3}, Failure.LOAD_ERROR, None),
        (
            Stage.LOAD,
            "RuntimeError",
            "DefaultCPUAllocator: can't allocate memory",
            "",
            {},
            Failure.HOST_OUT_OF_MEMORY,
            "host-out-of-memory",
        ),
        (
            Stage.COMPILE,
            "RuntimeError",
            "failed",
            "ERROR: [NCC_EVRF013] TopK on integers",
            {},
            Failure.UNSUPPORTED_OPERATOR,
            "neuron-unsupported-operator",
        ),
        (
            Stage.COMPILE,
            "RuntimeError",
            "failed",
            "INTERNAL_ERROR NCC_IBIR297",
            {},
            Failure.COMPILER_ERROR,
            "neuron-compiler",
        ),
        (
            Stage.LOAD,
            "RuntimeError",
            "NRT allocation failed for size 1024 (OOM)",
            "",
            {},
            Failure.DEVICE_OUT_OF_MEMORY,
            "neuron-out-of-memory",
        ),
        (
            Stage.LOAD,
            "RuntimeError",
            "Logical Neuron Core(s) not available - Requested:4 Available:0",
            "",
            {},
            Failure.DEVICE_UNAVAILABLE,
            "neuron-cores-busy",
        ),
    ],
)
def test_class(
    stage: Stage,
    kind: str | None,
    message: str | None,
    log: str,
    facts: dict[str, Any],
    failure: Failure,
    signature: str | None,
) -> None:
    """Signature first, then the exception's type, then the stage."""
    facts = {"exit_code": 1, "oom_kills": None, **facts}
    found = diagnosis.diagnose(_seen(stage, kind, message), log, **facts)
    assert (found.failure, found.signature) == (failure, signature)
    assert found.error


def test_the_message_weighs_more_than_the_log() -> None:
    """A warning in the log does not override what the exception itself says."""
    seen = _seen(Stage.COMPILE, "RuntimeError", "NCC_IBIR297")
    log = "warning: No space left on device while writing a trace\n"
    found = diagnosis.diagnose(seen, log, exit_code=1, oom_kills=None)
    assert found.failure is Failure.COMPILER_ERROR


def test_signatures_are_sound() -> None:
    """Ids are unique, infrastructure stands first, every one has meaning, remedy and source."""
    signatures = diagnosis.signatures()
    ids = [signature.id for signature in signatures]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[a-z0-9-]+", name) for name in ids)
    for signature in signatures:
        assert signature.meaning and signature.remedy
        assert signature.source.startswith("https://")
        assert not signature.pattern.search("")
