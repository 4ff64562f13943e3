"""The papers of a run: what was asked (Run, Job, Plan) and what was seen (Record).

Everything here is data with a schema and no behaviour beyond validation: plans travel to a device
machine as JSON, records travel back. Records are untrusted input wherever they are read.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.errors import RecordError
from pipeline.words import (
    CacheState,
    CpuMatch,
    English,
    Failure,
    Parallelism,
    Result,
    RunId,
    Stage,
    Target,
    Task,
)

SCHEMA_VERSION = 1
MAX_PAPER_BYTES = 32 * 1024 * 1024
"""A plan or record file above this size is refused unread: the largest honest one, a plan of
1 000 models with their cache keys, is below 16 MiB."""


class _Paper(BaseModel):
    """Closed, immutable and strict: a field that no schema knows is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


ShortText = Annotated[str, Field(max_length=4_000)]
Name = Annotated[str, Field(max_length=200)]
RunName = Annotated[str, Field(max_length=1_000)]
"""A run id: a model id has at most 193 characters, each of its four versions at most 200."""
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0)]


class StackVersions(_Paper):
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


class Placement(_Paper):
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


class Refusal(_Paper):
    """Why a run is not even tried. It becomes a row of stage `plan`."""

    failure: Failure
    reason: ShortText


class Run(_Paper):
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
    usd_per_hour: Annotated[float, Field(ge=0)] | None = None
    placement: Placement | None
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


class Job(_Paper):
    """What one workflow job executes: runs for one runner class, in order."""

    job_id: Name
    runner: Name
    labels: tuple[Name, ...]
    runs: tuple[Run, ...]


class Skipped(_Paper):
    """A run that is not due, or that the budget left for later."""

    run_id: RunName
    reason: ShortText


class Plan(_Paper):
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


class Versions(_Paper):
    """What was installed where the run took place; None = not there or not readable."""

    python: Name | None = None
    torch: Name | None = None
    transformers: Name | None = None
    accelerate: Name | None = None
    huggingface_hub: Name | None = None
    safetensors: Name | None = None
    tokenizers: Name | None = None
    torch_neuronx: Name | None = None
    neuronx_cc: Name | None = None
    nki: Name | None = None
    neuron_driver: Name | None = None
    runtime: Name | None = None


class Generation(_Paper):
    """One prompt's answer. tokens: the new token ids only, in order."""

    prompt: str
    tokens: tuple[int, ...]
    text: str


class CallCounts(_Paper):
    """What the compiler's own counters say of one call of generate()."""

    graphs: Annotated[int, Field(ge=0)]
    """Graphs that Dynamo captured during the call."""
    compiled: Annotated[int, Field(ge=0)] | None
    """Graphs the compiler compiled anew; None = the counter could not be read."""
    restored: Annotated[int, Field(ge=0)] | None
    """Graphs read from the compiled-graph cache; None = the counter could not be read."""


class Observation(_Paper):
    """What run.py itself saw and left in run.json, stage by stage; None = not reached."""

    schema_version: int = SCHEMA_VERSION
    stage: Stage
    versions: Versions = Versions()
    download_s: Seconds | None = None
    load_s: Seconds | None = None
    compile_s: Seconds | None = None
    """Wall time of the first call of generate(): compilation and one prompt's tokens."""
    generate_s: Seconds | None = None
    """Wall time of the second, identical call of generate()."""
    first_call: CallCounts | None = None
    second_call: CallCounts | None = None
    all_calls: CallCounts | None = None
    graph_breaks: Annotated[int, Field(ge=0)] | None = None
    fullgraph: bool | None = None
    downgrade: ShortText | None = None
    """Why the graph could not be captured whole; None when it was, or when not reached."""
    generations: tuple[Generation, ...] = ()
    repeatable: bool | None = None
    """Whether the second call gave the tokens of the first."""
    ranks_agree: bool | None = None
    """Whether every rank ended with the same tokens; None on one core."""
    logits_finite: bool | None = None
    vocab_size: Annotated[int, Field(ge=1)] | None = None
    device_peak_bytes: tuple[Bytes, ...] | None = None
    """Allocator peak per core in rank order; None where the target has no allocator counters."""
    cpu_fallback_ops: tuple[Name, ...] | None = None
    """Operators that ran on the host instead of the device; None = unknown."""
    error_type: Name | None = None
    error_message: ShortText | None = None
    error_rank: Annotated[int, Field(ge=0)] | None = None


class Check(_Paper):
    """The output check's evidence."""

    cpu_match: CpuMatch = CpuMatch.NOT_RUN
    cpu_reason: ShortText | None = None
    """Why the reference did not run, or where the tokens first departed."""
    max_gap: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Largest gap, in nats, between the reference's first choice and the device's token."""
    reference_cached: bool | None = None
    english: English = English.NOT_RUN
    judge: Name | None = None
    judge_score: Annotated[float, Field(allow_inf_nan=False)] | None = None
    judge_reason: ShortText | None = None


class Record(_Paper):
    """What a run leaves. Written from the first second on; `result` is None until it ended."""

    schema_version: int = SCHEMA_VERSION
    run: Run
    stage: Stage
    result: Result | None = None
    failure: Failure | None = None
    signature: Name | None = None
    error: ShortText | None = None
    started_at: AwareDatetime
    tested_at: AwareDatetime | None = None
    wall_s: Seconds | None = None
    host_peak_bytes: Bytes | None = None
    exit_code: int | None = None
    """run.py's exit code; negative = ended by that signal; None = not started or not ended."""
    cache: CacheState | None = None
    cache_keys: tuple[str, ...] = ()
    observation: Observation | None = None
    check: Check = Check()
    instance_type: Name | None = None
    image: Name | None = None
    run_url: str | None = None
    pipeline_commit: Name | None = None
    log: Name | None = None
    run_py: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.result is None:
            return self
        if self.tested_at is None:
            raise ValueError("an ended run says when it ended (tested_at)")
        if self.result is Result.PASS:
            if self.failure is not None or self.stage is not Stage.DONE:
                raise ValueError("PASS has no failure class and ends at stage done")
            if self.observation is None or not self.observation.generations:
                raise ValueError("PASS without generated tokens")
        elif self.failure is None or self.failure.result is not self.result:
            raise ValueError(f"{self.result} with failure class {self.failure}")
        elif not self.error:
            raise ValueError(f"{self.result} without a reason")
        return self


P = TypeVar("P", bound=_Paper)


def read_bytes(path: Path) -> bytes:
    """The content of a paper's file; RecordError naming it when it is unreadable or too large."""
    try:
        size = path.stat().st_size
        if size > MAX_PAPER_BYTES:
            raise RecordError(
                f"{size} bytes is above the limit of {MAX_PAPER_BYTES}", where=str(path)
            )
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}", where=str(path)) from error


def read(kind: type[P], path: Path) -> P:
    """The `kind` in the JSON file `path`; RecordError naming the file and every fault in it."""
    return parse(kind, read_bytes(path), where=str(path))


def parse(kind: type[P], text: bytes | str, *, where: str) -> P:
    """The `kind` in a JSON text; RecordError naming `where` and every fault in it."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(str(part) for part in fault['loc']) or 'file'}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)[:5]
        )
        raise RecordError(
            f"not a valid {kind.__name__.lower()}: {faults}",
            where=where,
            remedy="it was written by another version, cut short, or edited: make it again",
        ) from error


def dump(paper: _Paper) -> str:
    """The JSON text of a paper: same paper, same bytes."""
    return paper.model_dump_json(indent=1) + "\n"


def write(paper: _Paper, path: Path) -> None:
    """Write `paper` to `path` in one step: a reader sees the old file or the new one whole."""
    write_atomically(path, dump(paper).encode())


def write_atomically(path: Path, data: bytes) -> None:
    """Write bytes to a temporary sibling, flush them to the disk, rename it to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def find_records(paths: list[Path]) -> list[Path]:
    """record.json files named by `paths` or found below those that are directories, sorted."""
    found: set[Path] = set()
    for path in paths:
        if path.is_dir():
            found.update(path.rglob(RECORD_NAME))
        elif path.exists():
            found.add(path)
        else:
            raise RecordError("no such file or directory", where=str(path))
    return sorted(found)


def unfinished(records: Path) -> dict[str, Record]:
    """run id -> its newest record that has no result: a run whose harness was lost."""
    lost: dict[str, Record] = {}
    newest: dict[str, datetime] = {}
    for path in sorted(records.glob(f"*/*/{RECORD_NAME}")):
        try:
            record = read(Record, path)
        except RecordError:
            continue
        run_id = record.run.run_id
        if run_id in newest and newest[run_id] >= record.started_at:
            continue
        newest[run_id] = record.started_at
        lost.pop(run_id, None)
        if record.result is None:
            lost[run_id] = record
    return lost


RECORD_NAME = "record.json"
OBSERVATION_NAME = "run.json"
