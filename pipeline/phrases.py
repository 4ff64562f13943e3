"""What a row says, in words: the same on the page and in a terminal. Plain text, not escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pipeline.stack_names import words as stack
from pipeline.words import CpuMatch, English, Failure, Result, RunId, Stage, Target, cores

Row = Mapping[str, Any]

__all__ = [
    "cause",
    "check",
    "counted",
    "duration",
    "evidence",
    "fetch_all_graphs",
    "fetch_graphs",
    "host_operators",
    "iso",
    "memory",
    "moment",
    "stack",
    "tries",
]

_SHOWN = 3
"""Operators, findings or tries that are named; of the rest only the number is told."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """ "1 run", "1,200 runs"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def moment(at: datetime) -> str:
    """ "2026-11-30 08:00 UTC"."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def iso(at: datetime) -> str:
    """ "2026-11-30T08:00:00Z"."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def duration(seconds: int | None) -> str:
    """ "45 s", "6 min", "1 h 05 min"; "-" where it is not known."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def check(row: Row) -> str:
    """What the output check found: "tokens near_tie (0.12 nats), text fluent"; "" = nothing.

    Where logits were compared: "tokens near_tie (0.12 nats; logits off by 0.04, own noise 0.03)".
    """
    tokens, english = row["cpu_match"], row["english"]
    told = []
    if tokens not in (None, CpuMatch.NOT_RUN):
        gap, departure, noise = row["max_gap"], row["departure"], row["noise"]
        figures = [] if tokens == CpuMatch.EXACT or gap is None else [f"{gap:.2g} nats"]
        if departure is not None:
            own = "" if noise is None else f", own noise {noise:.2g}"
            figures.append(f"logits off by {departure:.2g}{own}")
        told.append(f"tokens {tokens}" + (f" ({'; '.join(figures)})" if figures else ""))
    if english not in (None, English.NOT_RUN):
        told.append(f"text {english}")
    on_host = host_operators(row)
    if on_host not in ("-", "none"):
        told.append(f"operators on the host: {on_host}")
    return ", ".join(told)


def evidence(row: Row) -> str | None:
    """On which evidence the verdict on the output rests, and what it cannot see.

    None where nothing was checked. Of the row: cpu_match, english, departure, noise.
    docs/verdict.md has the rates behind these words.
    """
    if row["cpu_match"] not in (None, CpuMatch.NOT_RUN):
        if row["departure"] is None:
            return "tokens against the CPU reference, without logits: a small fault may pass"
        if row["noise"] is None:
            return (
                "tokens and logits against the CPU reference, its own noise unknown: a small fault "
                "may pass"
            )
        return "tokens and logits against the CPU reference"
    if row["english"] not in (None, English.NOT_RUN):
        return (
            "judge of fluent English alone; out of its reach is fluent wrong text, as a fault in "
            "one layer, in positions, in a cache slot or in rare tokens leaves"
        )
    return None


def memory(row: Row) -> str:
    """Device memory of the fullest core, each count under its own name; else the host's.

    The allocator counts tensors only; the runtime also code and buffers: never one for the other.
    """
    counts = (("tensors", row["hbm_peak_gb"]), ("runtime", row["runtime_peak_gb"]))
    told = ", ".join(f"{name} {peak:.3g}" for name, peak in counts if peak is not None)
    if not told:
        return "-" if row["host_peak_gb"] is None else f"{row['host_peak_gb']:.3g} GiB host"
    capacity = row["hbm_capacity_gb"]
    return f"{told}{'' if capacity is None else f' of {capacity:.3g}'} GiB a core"


def tries(row: Row) -> str:
    """What the earlier tries ended in: "after out of memory on 1 core"; "" when there were none."""
    told = [f"{_ending(earlier)} on {cores(earlier['cores'])}" for earlier in row["tries"] or ()]
    return f"after {_few(told, ', then ')}" if told else ""


def _ending(earlier: Row) -> str:
    failure = earlier["failure"]
    if failure == Failure.DEVICE_OUT_OF_MEMORY:
        return "out of memory"
    return str(failure or earlier["result"]).replace("_", " ")


def host_operators(row: Row) -> str:
    """Operators of a device run that the host ran instead: "none", "unknown", or their names.

    "-" where the question does not arise: off the device, or before anything was generated.
    """
    operators = row["cpu_fallback_ops"]
    if row["target"] == Target.CPU:
        return "-"
    if operators is None:
        generated = row["stage"] in (Stage.CHECK, Stage.DONE)
        return "unknown" if generated else "-"
    return _few(operators, ", ") or "none"


def cause(row: Row) -> str:
    """Why it did not PASS, in one line: the error's first, and what the log says besides."""
    if row["result"] == Result.PASS:
        return ""
    error = (row["error"] or "").strip()
    first = error.splitlines()[:1]
    said = [
        finding
        for finding in row["findings"] or ()
        if (finding.partition(": ")[2] or finding) not in error
    ]
    also = "the log also says " if first else "the log says "
    return "; ".join([*first, *([also + _few(said, ", ")] if said else [])])


def fetch_graphs(row: Row) -> str | None:
    """The reader's command for the compiled graphs of a row; None where no store has any."""
    if not row["cache_store"] or not row["cache_keys"]:
        return None
    from pipeline import cache

    run = RunId.parse(row["run_id"])
    return cache.reader_command(
        row["cache_store"], run.compiler, run.compiler_version, row["cache_keys"]
    )


def fetch_all_graphs(rows: Iterable[Row]) -> list[str]:
    """The reader's commands for all compiled graphs of the rows: one a store and compiler."""
    from pipeline import cache

    runs = {(row["cache_store"], RunId.parse(row["run_id"])) for row in rows if row["cache_store"]}
    places = {(store, run.compiler, run.compiler_version) for store, run in runs}
    return [cache.reader_command(*place, ()) for place in sorted(places)]


def _few(names: Sequence[str], between: str) -> str:
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return between.join([*names[:_SHOWN], *more])
