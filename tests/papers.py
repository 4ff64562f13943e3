"""Valid papers for tests: stacks, runs, plans, and records of every outcome.

Every factory takes the fields that a test cares about as keywords; the rest are plausible values
that no test should rely on. All are validated: a factory cannot make what a device could not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipeline import script
from pipeline.record import (
    RECORD_NAME,
    CallCounts,
    Check,
    Generation,
    Job,
    Machine,
    Observation,
    Placement,
    Plan,
    Record,
    Refusal,
    Run,
    StackVersions,
    Versions,
    write,
)
from pipeline.words import CacheState, CpuMatch, Failure, Parallelism, Result, Stage, Target, Task

GIB = 1024**3
START = datetime(2026, 11, 30, 8, 0, 0, tzinfo=UTC)
PROMPTS = ("The capital of France is", "Water boils at", "Once upon a time")
SCRIPT = 'print("The capital of France is Paris.")\n'


def day(number: int) -> datetime:
    """`START` moved by so many days."""
    return START + timedelta(days=number)


def stack(target: Target = Target.NEURON, **changes: Any) -> StackVersions:
    """A neuron stack, or the cpu or simulator stack of that name."""
    fields: dict[str, Any] = {
        "name": str(target),
        "target": target,
        "library": "transformers",
        "library_version": "5.24.0",
        "torch": "2.14.0",
    }
    if target is not Target.CPU:
        fields |= {"neuronx_cc": "2.28.7631.0", "torch_neuronx": "2.14.0.1"}
    return StackVersions.model_validate(fields | changes)


def placement(cores: int = 1, **changes: Any) -> Placement:
    """So many cores: tensor-parallel above one."""
    fields: dict[str, Any] = {
        "cores": cores,
        "parallelism": Parallelism.TENSOR if cores > 1 else Parallelism.NONE,
        "weight_bytes": GIB,
        "cache_bytes": GIB // 4,
        "margin_bytes": GIB // 4,
        "reason": "the smallest number of cores that holds it",
    }
    return Placement.model_validate(fields | changes)


def run(model_id: str = "Qwen/Qwen3-0.6B", **changes: Any) -> Run:
    """A run of `model_id` on one core of a neuron stack."""
    on: StackVersions = changes.pop("stack", None) or stack()
    fields: dict[str, Any] = {
        "run_id": str(on.run_id(model_id)),
        "model_id": model_id,
        "revision": "0123456789abcdef0123456789abcdef01234567",
        "task": Task.TEXT_GENERATION,
        "model_type": "qwen3",
        "parameters": 596_049_920,
        "checkpoint_bytes": 1_503_300_328,
        "stack": on,
        "runner": "trn2-1",
        "core_bytes": 24 * GIB,
        "placement": None if changes.get("refusal") else placement(),
        "refusal": None,
        "dtype": "bfloat16",
        "new_tokens": 4,
        "prompts": PROMPTS,
        "prefill_chunk": 128,
        "limit_s": 3600,
        "estimated_s": 600,
        "script_sha256": hashlib.sha256(SCRIPT.encode()).hexdigest(),
        "reason": "never run",
    }
    return Run.model_validate(fields | changes)


def refused(model_id: str = "big/model", **changes: Any) -> Run:
    """A run that is not even tried."""
    refusal = Refusal(failure=Failure.TOO_LARGE, reason="needs 900 GiB; the largest holds 384")
    return run(model_id, **{"refusal": refusal, "script_sha256": None, **changes})


def versions(on: StackVersions | None = None, **changes: Any) -> Versions:
    """What is installed where the stack `on` runs: what it names."""
    on = on or stack()
    fields: dict[str, Any] = {
        "python": "3.14.2",
        "torch": on.torch,
        "transformers": on.library_version,
        "accelerate": "1.15.0",
        "torch_neuronx": on.torch_neuronx,
        "neuronx_cc": on.neuronx_cc,
    }
    if on.target is Target.NEURON:
        fields |= {"neuron_driver": "2.31.4", "runtime": "2.31.9"}
    return Versions.model_validate(fields | changes)


def answers(asked: Run | None = None) -> tuple[Generation, ...]:
    """As many tokens as asked for (four), another last one for each prompt."""
    prompts, count = (asked.prompts, asked.new_tokens) if asked else (PROMPTS, 4)
    return tuple(
        Generation(
            prompt=prompt, tokens=(*range(7, 6 + count), 100 + index), text=f" answer {index}"
        )
        for index, prompt in enumerate(prompts)
    )


def observation(on: StackVersions | None = None, **changes: Any) -> Observation:
    """A run on the stack `on` that came to its end: two graphs, four tokens for each prompt."""
    on = on or stack()
    fields: dict[str, Any] = {
        "stage": Stage.DONE,
        "versions": versions(on),
        "download_s": 3.5,
        "load_s": 2.25,
        "compile_s": 310.0,
        "generate_s": 0.5,
        "first_call": CallCounts(graphs=2, compiled=2, restored=0),
        "second_call": CallCounts(graphs=0, compiled=0, restored=0),
        "all_calls": CallCounts(graphs=2, compiled=2, restored=0),
        "graph_breaks": 0,
        "fullgraph": True,
        "generations": answers(),
        "repeatable": True,
        "logits_finite": True,
        "vocab_size": 151_936,
        "device_peak_bytes": (3 * GIB // 2,) if on.target is Target.NEURON else None,
        "backend_graphs": None if on.target is Target.CPU else 2,
        "cpu_fallback_ops": (),
    }
    return Observation.model_validate(fields | changes)


def passing(asked: Run | None = None, at: datetime = START, **changes: Any) -> Record:
    """A record that ended in PASS `at`."""
    asked = asked or run()
    fields: dict[str, Any] = {
        "run": asked,
        "stage": Stage.DONE,
        "result": Result.PASS,
        "started_at": at - timedelta(seconds=330),
        "tested_at": at,
        "wall_s": 330.4,
        "host_peak_bytes": 6 * GIB,
        "exit_code": 0,
        "cache": CacheState.COLD,
        "cache_keys": ("ab/cd/one.neff", "ab/ef/two.neff"),
        "observation": observation(
            asked.stack,
            generations=answers(asked),
            ranks_agree=True if asked.placement and asked.placement.cores > 1 else None,
        ),
        "check": Check(
            cpu_match=CpuMatch.NEAR_TIE,
            max_gap=0.125,
            departure=0.04,
            noise=0.03,
            reference_cached=False,
        ),
        "instance_type": "trn2.3xlarge",
        "run_url": "https://github.com/example/campaign/actions/runs/1",
        "pipeline_commit": "fedcba9876543210fedcba9876543210fedcba98",
        "run_py": _script_of(asked),
        "core_ids": _cores_of(asked),
    }
    return Record.model_validate(fields | changes)


def _script_of(asked: Run) -> str:
    """The script whose digest the run names, as the runner keeps it."""
    short = hashlib.sha256(SCRIPT.encode()).hexdigest() == asked.script_sha256
    return SCRIPT if short or asked.placement is None else script.render(asked)


def _cores_of(asked: Run) -> tuple[int, ...]:
    """Ids of the machine's first cores, on the device."""
    on_device = asked.placement and asked.stack.target is not Target.CPU
    return tuple(range(asked.placement.cores)) if asked.placement and on_device else ()


def failing(
    asked: Run | None = None,
    at: datetime = START,
    failure: Failure = Failure.COMPILER_ERROR,
    stage: Stage = Stage.COMPILE,
    error: str = "RuntimeError: NCC_EVRF004: operator is not supported",
    **changes: Any,
) -> Record:
    """A record that ended `at` in the result of `failure`: FAIL or ERROR."""
    asked = asked or run()
    fields: dict[str, Any] = {
        "stage": stage,
        "result": failure.result,
        "failure": failure,
        "signature": str(failure),
        "error": error,
        "exit_code": 1,
        "check": Check(),
        "observation": observation(
            asked.stack,
            stage=stage,
            compile_s=None,
            generate_s=None,
            first_call=None,
            second_call=None,
            all_calls=None,
            generations=(),
            device_peak_bytes=None,
            cpu_fallback_ops=None,
        ),
    }
    return passing(asked, at, **(fields | changes))


def erring(asked: Run | None = None, at: datetime = START, **changes: Any) -> Record:
    """A record that ended `at` in ERROR: the download broke off."""
    fields: dict[str, Any] = {
        "failure": Failure.DOWNLOAD,
        "stage": Stage.DOWNLOAD,
        "error": "OSError: connection reset",
        "observation": None,
    }
    return failing(asked, at, **(fields | changes))


def unended(asked: Run | None = None, at: datetime = START, **changes: Any) -> Record:
    """A record begun `at` whose harness was lost while the script compiled."""
    fields: dict[str, Any] = {"run": asked or run(), "stage": Stage.COMPILE, "started_at": at}
    return Record.model_validate(fields | changes)


def job(runs: Iterable[Run], **changes: Any) -> Job:
    """A job of `runs`, all of one runner class, on a machine of sixteen cores."""
    held = tuple(runs)
    fields: dict[str, Any] = {
        "job_id": f"job-{held[0].runner}",
        "runner": held[0].runner,
        "labels": ("self-hosted", held[0].runner),
        "machine": Machine(cores=16, host_bytes=2048 * GIB, compilations=4),
        "estimated_s": sum(run.estimated_s for run in held),
        "limit_s": sum(run.limit_s for run in held),
        "runs": held,
    }
    return Job.model_validate(fields | changes)


def plan(*runs: Run) -> Plan:
    """A plan of `runs`: one job a runner class, refused ones apart."""
    runners = dict.fromkeys(asked.runner for asked in runs if asked.placement)
    return Plan(
        jobs=tuple(
            job(asked for asked in runs if asked.placement and asked.runner == runner)
            for runner in runners
        ),
        refused=tuple(asked for asked in runs if asked.refusal),
        skipped=(),
    )


def save(folder: Path, records: Iterable[Record]) -> Path:
    """Write each record as the runner does, <folder>/<n>/<run id>/record.json; the folder."""
    for number, record in enumerate(records):
        write(record, folder / str(number) / record.run.run_id / RECORD_NAME)
    return folder


@dataclass(frozen=True)
class Wanted:
    """A model of models.yaml."""

    id: str
    task: str = "text-generation"
    note: str | None = None


@dataclass(frozen=True)
class Banned:
    """An excluded model of models.yaml."""

    id: str
    reason: str = "incompatible"
    task: str = "text-generation"
    note: str | None = "its kernels exist for GPUs only"
    issue: str | None = "https://github.com/example/campaign/issues/7"


@dataclass(frozen=True)
class View:
    """The wishes of a catalog, as far as the page needs them."""

    models: tuple[Wanted, ...] = ()
    excluded: tuple[Banned, ...] = ()
