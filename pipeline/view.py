"""Published rows as a person reads them in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pipeline import results as store
from pipeline.errors import ResultsError, UsageError

Row = Mapping[str, Any]

_LONG = ("run_py", "cache_keys", "generated_tokens", "prompts", "generated_text")
_CELL, _VALUE = 200, 300
"""Characters shown of a cell of a table, and of a field among a row's details."""


def rows(results: Path, model: str | None) -> list[Row]:
    """Current rows, all or those that `model` names: a model id, run id or glob, case aside."""
    found = store.read_current(results)
    if not found:
        raise ResultsError(
            "there are no published results", where=str(results), remedy="name another --results"
        )
    if model is None:
        return list(found)
    wanted = model.casefold()
    chosen: list[Row] = [
        row
        for row in found
        if any(fnmatchcase(str(row[name]).casefold(), wanted) for name in ("model_id", "run_id"))
    ]
    if not chosen:
        from difflib import get_close_matches

        names = {str(row["model_id"]).casefold(): str(row["model_id"]) for row in found}
        near = get_close_matches(wanted.split("@")[0].replace("--", "/"), names, n=1, cutoff=0.5)
        raise UsageError(
            f"no result for {model!r}: untested, which says nothing of the model",
            remedy=f"did you mean {names[near[0]]}?" if near else "",
        )
    return chosen


def plain(row: Row) -> dict[str, Any]:
    """A row as JSON types: times in ISO 8601, UTC."""
    return {
        name: value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def table(found: Sequence[Row]) -> str:
    """One line a row: what happened, when, on what, and the cause where it failed.

    Rows are named by their models, or by their run ids where the rows are of several stacks.
    """
    several = len({str(row["run_id"]).partition("@")[2] for row in found}) > 1
    name = "run_id" if several else "model_id"
    heads = ("result", "tested", "cores", "seconds", "memory", "graphs", "cache", "check", "cause")
    cells = [("run" if several else "model", *heads)]
    for row in found:
        cores = row["neuron_cores"]
        split = row["parallelism"]
        cells.append(
            (
                str(row[name]),
                str(row["result"]),
                f"{row['tested_at']:%Y-%m-%d}",
                "-" if cores is None else f"{cores} {split}" if cores > 1 else "1",
                "-" if row["wall_s"] is None else f"{row['wall_s']:.0f}",
                _memory(row),
                "-" if row["graphs"] is None else str(row["graphs"]),
                str(row["cache"] or "-"),
                _check(row),
                f"{row['stage']}, {row['failure']}: {row['error']}" if row["failure"] else "",
            )
        )
    return "\n".join(columns(cells))


def details(row: Row) -> str:
    """Every field that is known, long ones shortened or left to --json; then prompts and texts."""
    lines = [f"{row['model_id']}: {row['result']}"]
    for name, value in plain(row).items():
        if value is None or name in _LONG or name == "model_id":
            continue
        lines.append(f"  {name}: {_printable(_text(value), _VALUE)}")
    keys = row["cache_keys"]
    lines.append(f"  cache_keys: {len(keys) if keys else 0} entries")
    for prompt, text in zip(row["prompts"] or (), row["generated_text"] or (), strict=False):
        lines.append(f"  {prompt!r}\n    {text!r}")
    return "\n".join(lines)


def columns(cells: Iterable[Sequence[str]]) -> list[str]:
    """Cells as lines with aligned columns; control characters never reach the terminal."""
    clean = [[_printable(cell) for cell in line] for line in cells]
    widths = [max(len(line[i]) for line in clean) for i in range(len(clean[0]))] if clean else []
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in clean
    ]


def _printable(text: str, limit: int = _CELL) -> str:
    folded = " ".join(text.split())
    shown = folded if len(folded) <= limit else f"{folded[: limit - 3]}..."
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown)


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _memory(row: Row) -> str:
    if row["hbm_peak_gb"] is not None:
        return f"{row['hbm_peak_gb']:.1f} GiB/core"
    return "-" if row["host_peak_gb"] is None else f"{row['host_peak_gb']:.1f} GiB host"


def _check(row: Row) -> str:
    words = []
    if row["cpu_match"] not in (None, "not_run"):
        words.append(f"CPU {row['cpu_match']}")
    if row["english"] not in (None, "not_run"):
        words.append(f"judge {row['english']}")
    return ", ".join(words) or "-"
