"""Whether what is to be measured was qualified: only then do its figures mean anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import results as store
from pipeline.phrases import iso
from pipeline.record import Placement, Run
from pipeline.words import Result, cores

_COLUMNS = (
    *("run_id", "result", "failure", "tested_at", "revision", "dtype"),
    *("neuron_cores", "parallelism", "run_url"),
)


@dataclass(frozen=True)
class Qualification:
    """What results say of it. reason: why it is not qualified; None = it is.

    placement: that of the PASS, else the planned one. tested_at: ISO 8601, UTC; run_url: of the
    row; both None without a row.
    """

    placement: Placement
    reason: str | None
    tested_at: str | None = None
    run_url: str | None = None


def qualification(asked: Run, results: Path | None) -> Qualification:
    """How the run stands in results (None = there are none); it is not a refused one.

    A PASS counts when it is of the same revision, dtype and placement: planned placements are
    `asked.placement` and those above it, of which the one that passed is taken.
    """
    planned = asked.placement
    if planned is None:
        raise ValueError(f"{asked.run_id} is refused and has no placement")
    if results is None:
        return Qualification(planned, "there are no results")
    rows = store.read_current(results, _COLUMNS)
    row = next((row for row in rows if row["run_id"] == asked.run_id), None)
    if row is None:
        return Qualification(planned, "results have no row of it on this stack")
    at = iso(row["tested_at"])
    fits = [one for one in (planned, *asked.larger) if _is_of(row, one)]
    return Qualification(
        placement=fits[0] if fits else planned,
        reason=_against(asked, row, fits=bool(fits)),
        tested_at=at,
        run_url=row["run_url"],
    )


def _is_of(row: Mapping[str, Any], placement: Placement) -> bool:
    then = (row["neuron_cores"], row["parallelism"])
    return then == (placement.cores, placement.parallelism.value)


def _against(asked: Run, row: Mapping[str, Any], *, fits: bool) -> str | None:
    """Why the row does not qualify the run."""
    if row["result"] != Result.PASS:
        failed = f" ({row['failure']})" if row["failure"] else ""
        return f"its row is {row['result']}{failed}"
    for what, passed, now in (
        ("revision", row["revision"], asked.revision),
        ("dtype", row["dtype"], asked.dtype),
    ):
        if passed != now:
            return f"its PASS is of {what} {passed}, asked for is {now}"
    if not fits and asked.placement is not None:
        then = _placed(row["neuron_cores"], row["parallelism"])
        now = _placed(asked.placement.cores, asked.placement.parallelism.value)
        return f"its PASS is of another placement: {then}; planned: {now}"
    return None


def _placed(count: int, parallelism: str) -> str:
    return cores(count) if count == 1 else f"{cores(count)}, {parallelism} parallel"
