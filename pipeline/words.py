"""The words of a run: closed sets with one meaning each, and the run id that is made of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class Task(StrEnum):
    """What a model is asked to do; the values are the Hub's pipeline tags."""

    TEXT_GENERATION = "text-generation"
    IMAGE_TEXT_TO_TEXT = "image-text-to-text"


class Target(StrEnum):
    """What run.py addresses. `simulator` is the tests' stand-in: publish refuses it."""

    NEURON = "neuron"
    CPU = "cpu"
    SIMULATOR = "simulator"


class Parallelism(StrEnum):
    """How a checkpoint is spread over cores."""

    NONE = "none"
    TENSOR = "tensor"
    EXPERT = "expert"


class Stage(StrEnum):
    """How far a run came; written before the stage is entered. Order is progress (`order`)."""

    PLAN = "plan"
    DOWNLOAD = "download"
    LOAD = "load"
    COMPILE = "compile"
    GENERATE = "generate"
    CHECK = "check"
    DONE = "done"

    @property
    def order(self) -> int:
        """0 for plan, up to 6 for done."""
        return list(Stage).index(self)


class Result(StrEnum):
    """What a run showed. ERROR is about infrastructure and says nothing of the model."""

    PASS = "PASS"  # noqa: S105 -- a result, not a password
    FAIL = "FAIL"
    ERROR = "ERROR"


class Failure(StrEnum):
    """Why a run did not PASS: a closed set. `result` says which of FAIL and ERROR a class gives."""

    UNSUPPORTED_OPERATOR = "unsupported_operator"
    COMPILER_ERROR = "compiler_error"
    DEVICE_OUT_OF_MEMORY = "device_out_of_memory"
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    TIMEOUT = "timeout"
    RUNTIME_ERROR = "runtime_error"
    CRASH = "crash"
    LOAD_ERROR = "load_error"
    UNSUPPORTED_PARALLELISM = "unsupported_parallelism"
    TOO_LARGE = "too_large"
    UNSUPPORTED_CHECKPOINT = "unsupported_checkpoint"
    WRONG_TOKENS = "wrong_tokens"
    NOT_FLUENT = "not_fluent"
    CPU_FALLBACK = "cpu_fallback"
    RECOMPILED = "recompiled"
    DOWNLOAD = "download"
    GATED = "gated"
    MISSING = "missing"
    DEVICE_UNAVAILABLE = "device_unavailable"
    DEVICE_FAULT = "device_fault"
    WRONG_STACK = "wrong_stack"
    LOST_RUNNER = "lost_runner"
    KILLED = "killed"
    DISK_FULL = "disk_full"
    CACHE = "cache"
    INCONCLUSIVE = "inconclusive"
    HARNESS = "harness"

    @property
    def result(self) -> Result:
        """FAIL where the class speaks of the model on this stack, ERROR where it does not."""
        return Result.ERROR if self in _INFRASTRUCTURE else Result.FAIL

    @property
    def meaning(self) -> str:
        """One sentence for people."""
        return _MEANINGS[self]


_INFRASTRUCTURE = frozenset(
    {
        Failure.DOWNLOAD,
        Failure.GATED,
        Failure.MISSING,
        Failure.DEVICE_UNAVAILABLE,
        Failure.DEVICE_FAULT,
        Failure.WRONG_STACK,
        Failure.LOST_RUNNER,
        Failure.KILLED,
        Failure.DISK_FULL,
        Failure.CACHE,
        Failure.INCONCLUSIVE,
        Failure.HARNESS,
    }
)

_MEANINGS = {
    Failure.UNSUPPORTED_OPERATOR: "the compiler or the device does not implement an operator",
    Failure.COMPILER_ERROR: "the compiler failed on a graph of this model",
    Failure.DEVICE_OUT_OF_MEMORY: "a core's memory did not hold the run",
    Failure.HOST_OUT_OF_MEMORY: "the machine's memory did not hold the run",
    Failure.TIMEOUT: "the run did not end within its time limit",
    Failure.RUNTIME_ERROR: "an exception ended the run after loading",
    Failure.CRASH: "a process of the run died of a signal such as SIGSEGV or SIGABRT",
    Failure.LOAD_ERROR: "from_pretrained did not load the checkpoint",
    Failure.UNSUPPORTED_PARALLELISM: "no allowed way to spread this model over cores",
    Failure.TOO_LARGE: "the model does not fit the largest placement of its runner class",
    Failure.UNSUPPORTED_CHECKPOINT: (
        "the repository has no weights this project loads (safetensors, no remote code, "
        "no quantisation that needs another package)"
    ),
    Failure.WRONG_TOKENS: "the tokens differ from the CPU reference by more than a tie",
    Failure.NOT_FLUENT: "the judge found the text not to be fluent English",
    Failure.CPU_FALLBACK: "the model ran, but not as compiled graphs on the target",
    Failure.RECOMPILED: "the second, identical call compiled again",
    Failure.DOWNLOAD: "the checkpoint could not be downloaded",
    Failure.GATED: "the repository is gated and this machine's token may not read it",
    Failure.MISSING: "the repository or the revision does not exist",
    Failure.DEVICE_UNAVAILABLE: "no free device of the target on this machine",
    Failure.DEVICE_FAULT: "the device or its runtime failed in a way that speaks of the hardware",
    Failure.WRONG_STACK: "what is installed is not what the stack names",
    Failure.LOST_RUNNER: "the harness or its machine was lost in the middle of the run",
    Failure.KILLED: "something outside the run killed it (SIGKILL, SIGTERM)",
    Failure.DISK_FULL: "the disk was full",
    Failure.CACHE: "a cached compiled graph was unusable",
    Failure.INCONCLUSIVE: "the output check could not decide; says nothing of the model",
    Failure.HARNESS: "a fault of this project's own code",
}


class CpuMatch(StrEnum):
    """How the tokens compare with the same checkpoint on CPU, eager, teacher-forced."""

    EXACT = "exact"
    NEAR_TIE = "near_tie"
    INCONCLUSIVE = "inconclusive"
    MISMATCH = "mismatch"
    NOT_RUN = "not_run"


class English(StrEnum):
    """What the judge says of the continuations."""

    FLUENT = "fluent"
    NOT_FLUENT = "not_fluent"
    INCONCLUSIVE = "inconclusive"
    NOT_RUN = "not_run"


class CacheState(StrEnum):
    """Where the compiled graphs came from, by the compiler's own counters."""

    COLD = "cold"
    RESTORED = "restored"
    PARTIAL = "partial"


def cores(count: int) -> str:
    """ "1 core", "4 cores"."""
    return "1 core" if count == 1 else f"{count} cores"


def same_version(found: str, wanted: str) -> bool:
    """Equal, or with parts behind it that only `found` has: "2.14.0+cpu", "2.35.30.0-dd58".

    The rule that run.py itself holds its machine against.
    """
    return found == wanted or found.startswith(tuple(f"{wanted}{mark}" for mark in ".+-"))


class TryReason(StrEnum):
    """Why a try of a run was made."""

    FIRST = "first"
    OTHER_CORES = "other_cores"
    MORE_CORES = "more_cores"
    CLEAN_CACHE = "clean_cache"
    ALONE = "alone"


MODEL_ID = re.compile(r"(?:[A-Za-z0-9][\w.-]{0,95}/)?[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
"""What the Hub accepts as a repository id; `--` and `..` are refused beside it, as there."""

_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_!]*")


def is_model_id(text: str) -> bool:
    """Whether `text` can be a model's id: the Hub's rule, so that "--" is free to stand for "/"."""
    return MODEL_ID.fullmatch(text) is not None and "--" not in text and ".." not in text


@dataclass(frozen=True, order=True)
class RunId:
    """One run's name in all its parts. `str()` gives the slug, `parse` takes it back.

    "Qwen/Qwen3-0.6B" on transformers 5.24.0, neuronx-cc 2.28.7631.0 and torch 2.14.0 is
    `Qwen--Qwen3-0.6B@transformers-5.24.0@neuronxcc-2.28.7631.0@torch-2.14.0`: a valid file name,
    artifact name and glob. torch is part of it because one SDK release serves one compiler under
    two torch versions.
    """

    model_id: str
    library: str
    library_version: str
    compiler: str
    compiler_version: str
    torch: str

    def __str__(self) -> str:
        return "@".join(
            (
                self.model_id.replace("/", "--"),
                f"{self.library}-{self.library_version}",
                f"{self.compiler}-{self.compiler_version}",
                f"torch-{self.torch}",
            )
        )

    @property
    def stack(self) -> str:
        """What is left of it without the model, in words: "transformers 5.24.0, ..."."""
        return (
            f"{self.library} {self.library_version}, {self.compiler} {self.compiler_version}, "
            f"torch {self.torch}"
        )

    @property
    def partition(self) -> str:
        """The Parquet file below results/current that holds this run's row."""
        return (
            f"{self.compiler}-{self.compiler_version}/{self.library}-{self.library_version}.parquet"
        )

    @classmethod
    def parse(cls, slug: str) -> Self:
        """The parts of a slug; ValueError when it is not one."""
        match slug.split("@"):
            case [model, library, compiler, torch]:
                library_name, _, library_version = library.partition("-")
                compiler_name, _, compiler_version = compiler.partition("-")
                torch_name, _, torch_version = torch.partition("-")
                run_id = cls(
                    model.replace("--", "/"),
                    library_name,
                    library_version,
                    compiler_name,
                    compiler_version,
                    torch_version,
                )
                versions = (library_version, compiler_version, torch_version)
                if (
                    is_model_id(run_id.model_id)
                    and torch_name == "torch"
                    and library_name.isidentifier()
                    and compiler_name.isidentifier()
                    and all(_VERSION.fullmatch(version) for version in versions)
                    and str(run_id) == slug
                ):
                    return run_id
        raise ValueError(f"not a run id: {slug!r}")
