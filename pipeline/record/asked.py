"""What is asked: a run of one model on one stack, the jobs that hold runs, the plan of all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import Field, model_validator

from pipeline.record.base import SCHEMA_VERSION, Bytes, Name, Paper, RunName, ShortText
from pipeline.words import Failure, Parallelism, RunId, Target, Task


class StackVersions(Paper):
    """The stack a run is for: exact versions as models.yaml names them; None = not named."""

    name: Name
    target: Target
    library: Name
    library_version: Name
    torch: Name
    neuronx_cc: Name | None = None
    torch_neuronx: Name | None = None
    nki: Name | None = None
    runtime: Name | None = None
    driver: Name | None = None
    python: Name | None = None
    image: Name | None = None

    @property
    def compiler(self) -> str:
        """The compiler's name in run ids and cache prefixes."""
        return "neuronxcc" if self.target is not Target.CPU else "inductor"

    @property
    def compiler_version(self) -> str:
        """neuronx-cc's version; Inductor has none of its own, it is a part of torch."""
        return self.neuronx_cc or self.torch

    def run_id(self, model_id: str) -> RunId:
        """The id of `model_id`'s run on this stack."""
        return RunId(
            model_id,
            self.library,
            self.library_version,
            self.compiler,
            self.compiler_version,
            self.torch,
        )


class Placement(Paper):
    """How many cores, and how the model is spread; sizes in bytes on the fullest core."""

    cores: Annotated[int, Field(ge=1, le=16)]
    parallelism: Parallelism
    weight_bytes: Bytes
    cache_bytes: Bytes
    margin_bytes: Bytes
    reason: ShortText

    @property
    def core_bytes(self) -> int:
        """Estimated need of the fullest core."""
        return self.weight_bytes + self.cache_bytes + self.margin_bytes


class Refusal(Paper):
    """Why a run is not even tried. It becomes a row of stage `plan`."""

    failure: Failure
    reason: ShortText


class Run(Paper):
    """What is asked: one model on one stack in one placement, and how long it may take."""

    run_id: RunName
    model_id: Name
    source: str | None = None
    """A local directory that holds the checkpoint; None = the Hub."""
    revision: Name | None
    task: Task
    model_type: Name | None
    parameters: Annotated[int, Field(ge=0)] | None
    checkpoint_bytes: Bytes | None
    stack: StackVersions
    runner: Name
    core_bytes: Bytes
    """Memory of one core of the runner class, bytes."""
    machine_cores: Annotated[int, Field(ge=1, le=64)] | None = None
    """Cores of one machine of the runner class: a run pays for its share of them."""
    usd_per_hour: Annotated[float, Field(ge=0)] | None = None
    placement: Placement | None
    larger: tuple[Placement, ...] = ()
    """Where to go on after device_out_of_memory: the other allowed placements, smallest first."""
    host_bytes: Bytes | None = None
    """Host memory that the run and its check are expected to need; None = unknown."""
    refusal: Refusal | None
    dtype: Name
    new_tokens: Annotated[int, Field(ge=1, le=4096)]
    prompts: Annotated[tuple[str, ...], Field(min_length=1, max_length=64)]
    prefill_chunk: Annotated[int, Field(ge=1, le=8192)]
    """Prompts are left-padded to a multiple of it, in tokens."""
    mixture_of_experts: bool = False
    extra_packages: tuple[Name, ...] = ()
    limit_s: Annotated[int, Field(ge=1)]
    """The run, its check apart, is ended after this many seconds."""
    estimated_s: Annotated[int, Field(ge=1)]
    """What planning expects it to take: the last run's wall time, else by size."""
    script_sha256: Name | None
    reason: ShortText
    """Why it is due."""
    attempt: Annotated[int, Field(ge=1)] = 1
    cache_keys: tuple[str, ...] = ()
    """Compiled-graph cache entries that the last good row of this run recorded."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        run_id = RunId.parse(self.run_id)
        if self.stack.run_id(self.model_id) != run_id:
            raise ValueError(f"run_id {self.run_id} is not that of {self.model_id} on its stack")
        if (self.placement is None) == (self.refusal is None):
            raise ValueError("a run has either a placement or a refusal")
        return self


class Machine(Paper):
    """What one machine of a runner class has; runs share it side by side."""

    cores: Annotated[int, Field(ge=1, le=64)]
    host_bytes: Bytes
    compilations: Annotated[int, Field(ge=1)]
    """Runs that may compile at the same time: compilers need host memory and processors."""


class Job(Paper):
    """What one workflow job executes: runs for one runner class, in order."""

    job_id: Name
    runner: Name
    labels: tuple[Name, ...]
    machine: Machine
    estimated_s: Annotated[int, Field(ge=1)]
    """What planning expects the whole job to take on its machine."""
    limit_s: Annotated[int, Field(ge=1)]
    """After this the job itself may be ended: every run has had its own limit before."""
    runs: tuple[Run, ...]


class Skipped(Paper):
    """A run that is not due, or that the budget left for later."""

    run_id: RunName
    reason: ShortText


class Plan(Paper):
    """What `qualify plan` decided. `refused` runs need no device: their record is the refusal."""

    schema_version: int = SCHEMA_VERSION
    jobs: tuple[Job, ...]
    refused: tuple[Run, ...]
    skipped: tuple[Skipped, ...]

    @property
    def runs(self) -> Iterator[Run]:
        """Every run that must end in a row: those of the jobs, then the refused."""
        for job in self.jobs:
            yield from job.runs
        yield from self.refused
