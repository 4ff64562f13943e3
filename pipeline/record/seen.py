"""What was seen: run.py's own observation, the check of its output, and the record of it all."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AwareDatetime, Field, model_validator

from pipeline.record.asked import Run
from pipeline.record.base import SCHEMA_VERSION, Bytes, Name, Paper, Seconds, ShortText
from pipeline.words import (
    CacheState,
    CpuMatch,
    English,
    Failure,
    Parallelism,
    Result,
    Stage,
    TryReason,
)

CoreIds = Annotated[tuple[Annotated[int, Field(ge=0, le=1023)], ...], Field(max_length=16)]


class Versions(Paper):
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


class Generation(Paper):
    """One prompt's answer. tokens: the new token ids only, in order."""

    prompt: str
    tokens: tuple[int, ...]
    text: str


class CallCounts(Paper):
    """What the compiler's own counters say of one call of generate()."""

    graphs: Annotated[int, Field(ge=0)]
    """Graphs that Dynamo captured during the call."""
    compiled: Annotated[int, Field(ge=0)] | None
    """Graphs the compiler compiled anew; None = the counter could not be read."""
    restored: Annotated[int, Field(ge=0)] | None
    """Graphs read from the compiled-graph cache; None = the counter could not be read."""


class Observation(Paper):
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
    backend_graphs: Annotated[int, Field(ge=0)] | None = None
    """Graphs that the neuron backend itself says it made (torch.neuron.get_dynamo_metrics), of the
    rank with the fewest; None = it does not say, or the target has no such list."""
    fullgraph: bool | None = None
    downgrade: ShortText | None = None
    """Why the graph could not be captured whole; None when it was, or when not reached."""
    eager: tuple[Name, ...] | None = None
    """Parts of the model that ran beside the graphs, operator by operator, by the methods that were
    called; None where nothing of the kind is watched."""
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


class Check(Paper):
    """The output check's evidence."""

    cpu_match: CpuMatch = CpuMatch.NOT_RUN
    cpu_reason: ShortText | None = None
    """Why the reference did not run, or where the tokens first departed."""
    max_gap: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Largest gap, in nats, between the reference's first choice and the device's token."""
    departure: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Typical difference, in nats, of the device's log-probabilities from the reference's, at the
    device's five most likely tokens of each step: the root mean square without the largest tenth of
    the steps. None = they were not compared."""
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """The same of the reference itself, in the run's dtype from float32: the model's own rounding
    noise; None = it did not run in both."""
    reference_cached: bool | None = None
    english: English = English.NOT_RUN
    judge: Name | None = None
    judge_score: Annotated[float, Field(allow_inf_nan=False)] | None = None
    judge_reason: ShortText | None = None


class Finding(Paper):
    """A line of the log that speaks against the run whatever its tokens are."""

    signature: Name
    failure: Failure
    line: ShortText


class Try(Paper):
    """An earlier try of the same run that ended and was not the last."""

    reason: TryReason
    cores: Annotated[int, Field(ge=1, le=16)]
    parallelism: Parallelism
    core_ids: CoreIds = ()
    result: Result
    stage: Stage
    failure: Failure | None
    signature: Name | None
    error: ShortText | None
    wall_s: Seconds | None
    cache: CacheState | None
    log: Name | None = None


class Record(Paper):
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
    cache_store: ShortText | None = None
    """URL of the store that holds those entries for others; None = none, or one of this machine."""
    core_ids: CoreIds = ()
    """Ids of the machine's cores that the run had, in rank order; () off the device."""
    reason: TryReason = TryReason.FIRST
    """Why this try was made."""
    tries: tuple[Try, ...] = ()
    """Earlier tries of this run, oldest first; the record itself is of the last."""
    findings: Annotated[tuple[Finding, ...], Field(max_length=100)] = ()
    runtime_peak_bytes: tuple[Bytes, ...] | None = None
    """Device memory by the runtime's or driver's own count, code and buffers included: peak of each
    core in rank order; None = nobody counted, or the count is not of this run alone."""
    runtime_peak_source: Name | None = None
    """"sysfs" or "neuron-monitor"."""
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
