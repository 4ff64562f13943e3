"""The row of a run: how a Record becomes one. No disk, no clock."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from pipeline import phrases
from pipeline.columns import COLUMNS, SCHEMA, SCHEMA_VERSION
from pipeline.errors import ResultsError
from pipeline.record import Observation, Plan, Record, Run, Try, Versions
from pipeline.stack_names import newness
from pipeline.words import Failure, Result, Stage, Target

__all__ = [
    "COLUMNS",
    "GIB",
    "MAX_ROW_BYTES",
    "SCHEMA",
    "SCHEMA_VERSION",
    "Row",
    "canonical",
    "clean",
    "close",
    "digest",
    "missing",
    "newness",
    "row_of",
    "unrecorded",
]

MAX_ROW_BYTES = 4 * 1024 * 1024
"""A row above this size, as JSON, is refused. The largest honest one, 64 prompts with 4 096 tokens
each (the limits of `Run`), a hundred findings (the limit of `Record`) and five tries with an error
of 4 000 characters each, is below 4 MiB."""

GIB = 1024**3

Row = dict[str, Any]
"""One value a column of SCHEMA, as pyarrow gives it back: str, int, float, datetime, list, None."""


def row_of(record: Record) -> Row:
    """The row of an ended record; ResultsError when it has not ended or holds what no row can."""
    if record.result is None or record.tested_at is None:
        raise ResultsError(f"{record.run.run_id}: not ended", remedy="close the record first")
    row = {"schema_version": SCHEMA_VERSION, **_asked(record.run), **_ended(record)}
    row |= _observed(record.run, record.observation) if record.observation else {}
    row |= _versions(record)
    row["check"] = phrases.evidence(row)
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
    counted = _fullest(record.runtime_peak_bytes, record.run)
    notes = [placement.reason if placement else ""]
    if observation and observation.downgrade:
        notes.append(observation.downgrade)
    if observation and observation.eager:
        parts = ", ".join(observation.eager)
        notes.append(f"ran beside the graphs, operator by operator: {parts}")
    return {
        "result": str(record.result),
        "stage": str(record.stage),
        "failure": str(record.failure) if record.failure else None,
        "signature": clean(record.signature or "") or None,
        "findings": _findings(record),
        "error": clean(record.error or "") or None,
        "notes": "; ".join(clean(note) for note in notes if note) or None,
        "tested_at": record.tested_at,
        "wall_s": None if record.wall_s is None else round(record.wall_s),
        "cost_usd": _cost(record),
        "host_peak_gb": None if record.host_peak_bytes is None else record.host_peak_bytes / GIB,
        "cpu_match": str(record.check.cpu_match),
        "english": str(record.check.english),
        "max_gap": record.check.max_gap,
        "departure": record.check.departure,
        "noise": record.check.noise,
        "judge": record.check.judge,
        "judge_score": record.check.judge_score,
        "cache": str(record.cache) if record.cache else None,
        "cache_keys": list(record.cache_keys),
        "cache_store": _public(record.cache_store),
        "core_ids": list(record.core_ids) or None,
        "try_reason": str(record.reason),
        "tries": [_try(earlier) for earlier in record.tries],
        "runtime_peak_gb": counted,
        "runtime_peak_source": None if counted is None else record.runtime_peak_source,
        "image": record.image,
        "instance_type": record.instance_type,
        "run_url": record.run_url,
        "pipeline_commit": record.pipeline_commit,
        "run_py": record.run_py,
    }


def _findings(record: Record) -> list[str] | None:
    """None unless run.py was started and ended: nobody read its log otherwise."""
    if record.exit_code is None and not record.findings:
        return None
    return [clean(f"{found.signature}: {found.line}") for found in record.findings]


def _try(earlier: Try) -> Row:
    return {
        "reason": str(earlier.reason),
        "cores": earlier.cores,
        "parallelism": str(earlier.parallelism),
        "stage": str(earlier.stage),
        "result": str(earlier.result),
        "failure": str(earlier.failure) if earlier.failure else None,
        "signature": clean(earlier.signature or "") or None,
        "error": clean(earlier.error or "") or None,
        "wall_s": earlier.wall_s,
        "cache": str(earlier.cache) if earlier.cache else None,
    }


def _fullest(peaks: Sequence[int] | None, run: Run) -> float | None:
    """Of the bytes of each core the most, GiB; None when a core of the run was not counted."""
    cores = run.placement.cores if run.placement else 0
    return max(peaks) / GIB if peaks and len(peaks) == cores else None


_PUBLIC = re.compile(r"[a-z][a-z0-9+]*://[\w.-]+(?::\d+)?(?:/[\w.+=~-]+)*/?", re.ASCII)


def _public(store: str | None) -> str | None:
    """The address of a store if others can go there; with a password or signature in it, none.

    Rows are public, and readers paste the address into a shell.
    """
    return store if store and _PUBLIC.fullmatch(store) else None


def _cost(record: Record) -> float | None:
    """All tries, each at its cores' share of the machine; None when something is unknown."""
    asked = record.run
    if asked.placement is None or asked.usd_per_hour is None or asked.machine_cores is None:
        return None
    core_seconds = 0.0
    for wall_s, cores in [
        (record.wall_s, asked.placement.cores),
        *((one.wall_s, one.cores) for one in record.tries),
    ]:
        if wall_s is None:
            return None
        core_seconds += wall_s * cores
    return core_seconds / asked.machine_cores / 3600 * asked.usd_per_hour


def _observed(run: Run, seen: Observation) -> Row:
    row: Row = {
        "download_s": seen.download_s,
        "load_s": seen.load_s,
        "compile_s": seen.compile_s,
        "generate_s": seen.generate_s,
        "graphs": seen.all_calls.graphs if seen.all_calls else None,
        "backend_graphs": seen.backend_graphs,
        "hbm_peak_gb": _fullest(seen.device_peak_bytes, run),
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
    return {name: value if _fits(name, value) else None for name, value in row.items()}


def _fits(name: str, value: object) -> bool:
    """Whether a column holds the value: a mad device has token ids of 64 bits."""
    try:
        pa.array([value], SCHEMA.field(name).type)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return False
    return True


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


def canonical(row: Row, names: Sequence[str] = tuple(SCHEMA.names)) -> str:
    """The JSON text of a row: the same for equal rows, whatever file or machine they come from.

    names: the columns, in order; those of an older schema for one of its rows.
    """
    values = {name: row[name] for name in names}
    return json.dumps(values, default=_iso, separators=(",", ":"))


def digest(
    rows: Iterable[Row],
    version: int = SCHEMA_VERSION,
    names: Sequence[str] = tuple(SCHEMA.names),
) -> str:
    """SHA-256, hexadecimal, of `rows` in their order and of their schema's version."""
    state = hashlib.sha256(f"rows {version}\n".encode())
    for row in rows:
        state.update(canonical(row, names).encode() + b"\n")
    return state.hexdigest()


def _iso(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    raise TypeError(f"no row holds a {type(value).__name__}")
