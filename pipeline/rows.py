"""The row of a run: its columns, and how a Record becomes one.

The columns are those of DESIGN.md "Results row": first the ones that readers of the public dataset
`aws-neuron/torch-neuronx-model-support` already query, with its names and types, then ours. A field
that was not seen is null. No disk, no clock.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from pipeline.errors import ResultsError
from pipeline.record import Observation, Plan, Record, Run, Versions
from pipeline.words import Failure, Result, RunId, Stage, Target

SCHEMA_VERSION = 1
"""Of the rows; `results.MIGRATIONS` lifts files of older versions."""

MAX_ROW_BYTES = 4 * 1024 * 1024
"""A row above this size, as JSON, is refused. The largest honest one, 64 prompts with 4 096 tokens
each (the limits of `Run`), is below 3 MiB."""

GIB = 1024**3

Row = dict[str, Any]
"""One value a column of SCHEMA, as pyarrow gives it back: str, int, float, datetime, list, None."""

_STRINGS = pa.list_(pa.string())

COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("model_id", pa.string(), "The model's id on the Hugging Face Hub."),
    ("library", pa.string(), "The library that loads and runs the model."),
    ("library_version", pa.string(), "That library's version."),
    ("neuron_cores", pa.int32(), "Number of cores; null when the run was refused."),
    ("tp", pa.int32(), "The same number as neuron_cores, under the public dataset's name."),
    ("runner", pa.string(), "The runner class the run was planned for."),
    ("result", pa.string(), "PASS, FAIL, or ERROR (infrastructure: says nothing of the model)."),
    ("notes", pa.string(), "What the planner and the script noted on placement and compilation."),
    ("error", pa.string(), "Why the run did not PASS; null when it did."),
    ("exclusion", pa.string(), "Always null here: exclusions are wishes and live in models.yaml."),
    ("wall_s", pa.int32(), "Wall time of the run in seconds, compilation included."),
    ("hbm_peak_gb", pa.float64(), "Peak device memory of the fullest core, GiB."),
    ("hbm_capacity_gb", pa.float64(), "Device memory of one core, GiB; null off the device."),
    ("cpu_match", pa.string(), "Tokens against the CPU: exact, near_tie, mismatch, not_run."),
    ("english", pa.string(), "The judge on the text: fluent, not_fluent, inconclusive, not_run."),
    (
        "neuronx_cc",
        pa.string(),
        "Version of neuronx-cc; null when another compiler took its place.",
    ),
    ("transformers", pa.string(), "Installed version of transformers."),
    ("accelerate", pa.string(), "Installed version of accelerate."),
    ("torch_neuronx", pa.string(), "Installed version of torch-neuronx."),
    ("torch", pa.string(), "Installed version of torch."),
    ("nki", pa.string(), "Installed version of nki."),
    ("python", pa.string(), "Version of Python."),
    ("neuron_driver", pa.string(), "Version of the Neuron driver."),
    ("tested_at", pa.timestamp("ms", tz="UTC"), "When the run ended, UTC."),
    ("run_py", pa.string(), "The script that ran; replay it with python3 run.py."),
    ("schema_version", pa.int32(), "Version of this row's schema."),
    ("run_id", pa.string(), "Name of the run: model, library, compiler, torch, with versions."),
    ("revision", pa.string(), "Commit of the checkpoint; null when not pinned."),
    ("task", pa.string(), "What the model was asked to do: the Hub's pipeline tag."),
    ("model_type", pa.string(), "The checkpoint's model_type."),
    ("parameters", pa.int64(), "Number of parameters."),
    ("checkpoint_bytes", pa.int64(), "Size of the checkpoint's weights, bytes."),
    ("estimated_gb", pa.float64(), "Memory the plan expected on the fullest core, GiB."),
    ("stage", pa.string(), "Stage reached: plan, download, load, compile, generate, check, done."),
    ("failure", pa.string(), "Failure class; null when the run passed."),
    ("signature", pa.string(), "Short name of the error, the same for the same cause."),
    ("runtime", pa.string(), "Version of the Neuron runtime."),
    ("image", pa.string(), "Container image the run took place in."),
    ("extra_packages", _STRINGS, "Packages the run needed beside its stack."),
    ("target", pa.string(), "neuron, or cpu (same code path, says nothing of Trainium)."),
    ("instance_type", pa.string(), "Type of the machine."),
    ("parallelism", pa.string(), "none, tensor or expert; null when the run was refused."),
    ("dtype", pa.string(), "Number format the weights were loaded in."),
    ("prompts", _STRINGS, "The prompts, in order."),
    ("generated_text", _STRINGS, "The continuation of each prompt; null when none was reached."),
    ("generated_tokens", pa.list_(pa.list_(pa.int32())), "Token ids of each continuation."),
    ("max_gap", pa.float64(), "Largest gap to the CPU reference's first choice, nats."),
    ("judge", pa.string(), "The model that judged the text, with its revision."),
    ("judge_score", pa.float64(), "The judge's score."),
    ("download_s", pa.float64(), "Time to download the checkpoint, seconds."),
    ("load_s", pa.float64(), "Time to load it, seconds."),
    ("compile_s", pa.float64(), "First call of generate(), compilation included, seconds."),
    ("generate_s", pa.float64(), "Second, identical call of generate(), seconds."),
    ("tokens_per_s", pa.float64(), "New tokens a second in that second call."),
    ("host_peak_gb", pa.float64(), "Peak host memory of the run, GiB."),
    ("graphs", pa.int32(), "Graphs captured in the run."),
    ("cache", pa.string(), "Where compiled graphs came from: cold, restored, partial."),
    ("cache_keys", _STRINGS, "Entries of the compiled-graph cache that the run used."),
    ("cpu_fallback_ops", _STRINGS, "Operators that ran on the host instead; null when unknown."),
    ("attempts", pa.int32(), "Which attempt at this run it was, from 1."),
    ("script_sha256", pa.string(), "SHA-256 of the script the run was planned with."),
    ("run_url", pa.string(), "The workflow run that made this row."),
    ("pipeline_commit", pa.string(), "Commit of this project that made this row."),
    ("cost_usd", pa.float64(), "Wall time at the whole machine's price an hour, US dollars."),
)
"""(name, type, what it holds) of every column, in order."""

SCHEMA = pa.schema([(name, kind) for name, kind, _ in COLUMNS])


def row_of(record: Record) -> Row:
    """The row of an ended record; ResultsError when it has not ended or holds what no row can."""
    if record.result is None or record.tested_at is None:
        raise ResultsError(f"{record.run.run_id}: not ended", remedy="close the record first")
    row = {"schema_version": SCHEMA_VERSION, **_asked(record.run), **_ended(record)}
    row |= _observed(record.observation) if record.observation else {}
    row |= _versions(record)
    try:
        (normal,) = pa.Table.from_pylist([row], SCHEMA).to_pylist()
        size = len(canonical(normal))
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise ResultsError(f"{record.run.run_id}: a value fits no column: {error}") from error
    if size > MAX_ROW_BYTES:
        raise ResultsError(f"{record.run.run_id}: a row of {size} bytes; limit {MAX_ROW_BYTES}")
    return dict(normal)


def _asked(run: Run) -> Row:
    placement = run.placement
    return {
        "model_id": run.model_id,
        "run_id": run.run_id,
        "runner": run.runner,
        "target": str(run.stack.target),
        "revision": run.revision,
        "task": str(run.task),
        "model_type": run.model_type,
        "parameters": run.parameters,
        "checkpoint_bytes": run.checkpoint_bytes,
        "library": run.stack.library,
        "neuron_cores": placement.cores if placement else None,
        "tp": placement.cores if placement else None,
        "parallelism": str(placement.parallelism) if placement else None,
        "estimated_gb": placement.core_bytes / GIB if placement else None,
        "hbm_capacity_gb": run.core_bytes / GIB if run.stack.target is Target.NEURON else None,
        "dtype": run.dtype,
        "prompts": list(run.prompts),
        "extra_packages": list(run.extra_packages),
        "attempts": run.attempt,
        "script_sha256": run.script_sha256,
    }


def _ended(record: Record) -> Row:
    placement, observation = record.run.placement, record.observation
    notes = [placement.reason if placement else "", observation.downgrade if observation else ""]
    return {
        "result": str(record.result),
        "stage": str(record.stage),
        "failure": str(record.failure) if record.failure else None,
        "signature": clean(record.signature or "") or None,
        "error": clean(record.error or "") or None,
        "notes": "; ".join(clean(note) for note in notes if note) or None,
        "tested_at": record.tested_at,
        "wall_s": None if record.wall_s is None else round(record.wall_s),
        "cost_usd": _cost(record),
        "host_peak_gb": None if record.host_peak_bytes is None else record.host_peak_bytes / GIB,
        "cpu_match": str(record.check.cpu_match),
        "english": str(record.check.english),
        "max_gap": record.check.max_gap,
        "judge": record.check.judge,
        "judge_score": record.check.judge_score,
        "cache": str(record.cache) if record.cache else None,
        "cache_keys": list(record.cache_keys),
        "image": record.image,
        "instance_type": record.instance_type,
        "run_url": record.run_url,
        "pipeline_commit": record.pipeline_commit,
        "run_py": record.run_py,
    }


def _cost(record: Record) -> float | None:
    """The record does not say which share of its machine a run had, so all of it is charged."""
    if record.wall_s is None or record.run.usd_per_hour is None:
        return None
    return record.wall_s / 3600 * record.run.usd_per_hour


def _observed(seen: Observation) -> Row:
    row: Row = {
        "download_s": seen.download_s,
        "load_s": seen.load_s,
        "compile_s": seen.compile_s,
        "generate_s": seen.generate_s,
        "graphs": seen.all_calls.graphs if seen.all_calls else None,
        "hbm_peak_gb": max(seen.device_peak_bytes) / GIB if seen.device_peak_bytes else None,
        "cpu_fallback_ops": (
            None if seen.cpu_fallback_ops is None else [clean(op) for op in seen.cpu_fallback_ops]
        ),
    }
    if seen.generations:
        # The second call repeats the first, which answers the first prompt.
        if seen.generate_s:
            row["tokens_per_s"] = len(seen.generations[0].tokens) / seen.generate_s
        row["prompts"] = [generation.prompt for generation in seen.generations]
        row["generated_text"] = [generation.text for generation in seen.generations]
        row["generated_tokens"] = [list(generation.tokens) for generation in seen.generations]
    return row


def _versions(record: Record) -> Row:
    """What was installed. Library and compiler name the stack, so what was asked stands in.

    neuronx-cc is null off the neuron target even where it is installed: it took no part, and a
    reader who filters by it must not meet rows of another compiler.
    """
    stack = record.run.stack
    seen = record.observation.versions if record.observation else Versions()
    installed: dict[str, str | None] = seen.model_dump()
    columns = ("python", "torch", "transformers", "accelerate", "torch_neuronx", "nki")
    compiler = seen.neuronx_cc or stack.neuronx_cc if stack.target is Target.NEURON else None
    return {
        **{name: installed[name] for name in (*columns, "neuron_driver", "runtime")},
        "neuronx_cc": compiler,
        "library_version": installed.get(stack.library) or stack.library_version,
    }


def close(record: Record, now: datetime | None = None) -> Record:
    """`record` itself when it ended, else the ERROR it stands for: the harness was lost.

    The stage is the furthest that either the harness or the script noted. When it happened nobody
    knows: `now`, or the start of the run, so that the same record gives the same row.
    """
    if record.result is not None:
        return record
    stages = [record.stage] + ([record.observation.stage] if record.observation else [])
    stage = max(stages, key=lambda stage: stage.order)
    ended = record.model_copy(
        update={
            "result": Result.ERROR,
            "failure": Failure.LOST_RUNNER,
            "stage": stage,
            "error": f"the record ends at stage {stage} without a result",
            "tested_at": record.tested_at or now or record.started_at,
        }
    )
    return Record.model_validate(ended.model_dump())


def missing(plan: Plan, records: Iterable[Record], at: datetime) -> list[Record]:
    """A record for each run of `plan` that left none: its refusal, or ERROR / lost_runner."""
    seen = {record.run.run_id for record in records}
    return [unrecorded(run, at) for run in plan.runs if run.run_id not in seen]


def unrecorded(
    run: Run,
    at: datetime,
    failure: Failure = Failure.LOST_RUNNER,
    error: str = "the run was planned and left no record",
) -> Record:
    """The record, dated `at`, of a run that has none; a refused run's record is its refusal."""
    if run.refusal:
        failure, error = run.refusal.failure, run.refusal.reason
    return Record(
        run=run,
        stage=Stage.PLAN,
        result=failure.result,
        failure=failure,
        error=error or failure.meaning,
        started_at=at,
        tested_at=at,
    )


_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def clean(text: str) -> str:
    """`text` without terminal sequences, control and format characters; line ends become "\\n".

    Format characters (Unicode category Cf) include those that reverse the reading direction, with
    which a text shows something else than it holds.
    """
    if text.isprintable():  # most are, and pages clean many
        return text.strip()
    lines = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return "".join(
        character
        for character in lines
        if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf")
    ).strip()


_PARTS = re.compile(r"\d+|[A-Za-z]+").findall


def newness(run_id: str) -> tuple[Any, ...]:
    """Sorts run ids of one target by their stack: compiler, then library, then torch."""
    run = RunId.parse(run_id)
    versions = (run.compiler_version, run.library_version, run.torch)
    return (*(_version_key(version) for version in versions), run.library)


def _version_key(version: str) -> tuple[Any, ...]:
    """Numbers as numbers; a word after a number is a pre-release; a local part (+cpu) is newer."""
    public, _, local = version.partition("+")
    parts = [(2, int(part), "") if part.isdigit() else (0, 0, part) for part in _PARTS(public)]
    return (*parts, (1, 0, "")), local


def canonical(row: Row) -> str:
    """The JSON text of a row: the same for equal rows, whatever file or machine they come from."""
    values = {name: row[name] for name in SCHEMA.names}
    return json.dumps(values, default=_iso, separators=(",", ":"))


def digest(rows: Iterable[Row]) -> str:
    """SHA-256, hexadecimal, of `rows` in their order and of the schema's version."""
    state = hashlib.sha256(f"rows {SCHEMA_VERSION}\n".encode())
    for row in rows:
        state.update(canonical(row).encode() + b"\n")
    return state.hexdigest()


def _iso(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    raise TypeError(f"no row holds a {type(value).__name__}")
