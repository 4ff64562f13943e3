"""How long a run will take, and when it is ended: from earlier rows, else from its size. Seconds.

Times are of the script, as a row's wall_s is; the check of its output is apart. Medians of a few
rows, so that one odd machine or night moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from pipeline.placement import GIB
from pipeline.record import Run
from pipeline.words import CacheState, Failure, Result, RunId, Stage, Target

_COLD_S = 600
_COLD_S_PER_GIB = 120
"""Expected seconds of a run that never ran: a user measured 576 s cold for a model of 1.2 B
parameters (2.3 GiB) on trn2.3xlarge; the share by size is an assumption until rows refit it."""

_WARM = 0.05
"""What the first call takes with restored graphs, as a share of what it took cold: the same user
measured 25 s instead of 576."""

_UNTIL_COMPILED = 0.95
"""Share of the script's time after which nothing is compiled any more: download, load and first
call before it, a few seconds a prompt after it. An assumption; it decides how many runs can begin
side by side, not how long one takes."""

_CHECK_S = 10
_CHECK_S_PER_GIB = 4
"""The output check: a process starts, reads the weights once more (about 1 GiB/s) and leads them
along the tokens of every prompt. An assumption: no row says how long it took."""

LIMIT_FACTOR = 4
"""A run is ended after so many times what it is expected to take. Compilations vary more than
anything else: a user's mixture of experts took above 3 h where its size suggests about one."""

LIMIT_FLOOR_S = 30 * 60
"""No run gets less: another process may hold a compiled graph's lock for 1 200 s, after which the
smallest model still compiles in 600 s."""

_RECENT = 5
"""So many of the newest rows count."""

_NEAR = 2.0
_NEAR_MODELS = 3
"""Models at most so many times larger or smaller are of near size, if there are so many at least:
the median of fewer is one model's whim."""


@dataclass(frozen=True)
class Past:
    """An earlier row as far as it tells of time; None = the row does not say."""

    run_id: str
    tested_at: datetime
    result: Result
    stage: Stage
    failure: Failure | None
    target: Target | None
    script_sha256: str | None
    checkpoint_bytes: int | None
    wall_s: float | None
    compile_s: float | None
    cache: CacheState | None

    @property
    def model_id(self) -> str:
        """The model that ran; ValueError when the run id is none."""
        return RunId.parse(self.run_id).model_id

    @property
    def compiled(self) -> bool:
        """Whether it came so far that every graph had been compiled."""
        return self.result is Result.PASS or self.stage.order >= Stage.GENERATE.order


@dataclass(frozen=True)
class Expected:
    """What a run is expected to take.

    run_s: the script; compiling_s: of it, until nothing is compiled any more (0 where graphs come
    from the store, as pool.Dispatcher counts it); check_s: the check that follows. limit_s: after
    which the script is ended. basis: where run_s comes from, in words.
    """

    run_s: int
    compiling_s: int
    check_s: int
    limit_s: int
    basis: str


class Durations:
    """What earlier rows tell of time."""

    def __init__(self, rows: Iterable[Past] = ()) -> None:
        """rows: of any runs and stacks, in any order; ERRORs and refusals are passed over."""
        self._of_run: dict[str, list[Past]] = {}
        self._cold_of_model: dict[tuple[str, Target], list[Past]] = {}
        for row in sorted(rows, key=lambda row: (row.tested_at, row.run_id)):
            # A refused run ended at once, and what went wrong around a run says nothing of it.
            if row.result is Result.ERROR or row.stage is Stage.PLAN or not row.wall_s:
                continue
            self._of_run.setdefault(row.run_id, []).append(row)
            if row.cache is CacheState.COLD and row.compiled and row.target:
                self._cold_of_model.setdefault((row.model_id, row.target), []).append(row)

    def expect(self, asked: Run, cap_s: int) -> Expected:
        """What `asked`, which is placed and has its script, will take; cap_s: the list's limit.

        With the script of earlier rows: what those took, with restored graphs if the last good one
        left its keys. With another script or compiler it compiles anew: what this model took cold,
        else what models of near size did, else by size. The limit comes from the cold time even
        where graphs are restored, since a store that is away must cost time and not the result. A
        run that its limit ended gets all that the list allows.
        """
        rows = self._of_run.get(asked.run_id, [])
        cold_s, basis = self._cold(asked)
        expected = cold_s
        known = [row for row in rows if row.script_sha256 == asked.script_sha256]
        known = [row for row in known if row.failure is not Failure.TIMEOUT][-_RECENT:]
        if known and asked.cache_keys:
            expected, basis = _restored(known)
        elif known:
            expected, basis = _median(known), "this script's earlier runs"
        ended = rows[-1] if rows and rows[-1].failure is Failure.TIMEOUT else None
        limit_s = max(LIMIT_FLOOR_S, LIMIT_FACTOR * max(expected, cold_s))
        if ended and ended.wall_s:
            expected, basis = max(expected, ended.wall_s), "its last run was ended by its limit"
            limit_s = cap_s
        run_s = max(1, min(cap_s, round(expected)))
        return Expected(
            run_s=run_s,
            compiling_s=0 if asked.cache_keys else round(run_s * _UNTIL_COMPILED),
            check_s=round(_CHECK_S + _CHECK_S_PER_GIB * _weights(asked) / GIB),
            limit_s=max(1, min(cap_s, round(limit_s))),
            basis=basis,
        )

    def _cold(self, asked: Run) -> tuple[float, str]:
        """(seconds, basis) without a compiled graph."""
        by_size = _by_size(_weights(asked))
        target, size = asked.stack.target, asked.checkpoint_bytes
        own = self._cold_of_model.get((asked.model_id, target), [])
        if own:
            return _median(own[-_RECENT:]), "this model's cold runs"
        if size:
            ratios = [
                rows[-1].wall_s / _by_size(rows[-1].checkpoint_bytes)
                for (_, other), rows in self._cold_of_model.items()
                if other is target
                and rows[-1].wall_s
                and rows[-1].checkpoint_bytes
                and size / _NEAR <= rows[-1].checkpoint_bytes <= size * _NEAR
            ]
            if len(ratios) >= _NEAR_MODELS:
                return median(ratios) * by_size, "cold runs of models of near size"
        return by_size, "size"


def _restored(rows: Sequence[Past]) -> tuple[float, str]:
    """(seconds, basis) with the graphs of `rows`, all of the script that will run."""
    restored = [row for row in rows if row.cache is CacheState.RESTORED]
    if restored:
        return _median(restored), "its runs with restored graphs"
    saved = [
        row.wall_s - (1 - _WARM) * row.compile_s
        for row in rows
        if row.cache is CacheState.COLD
        and row.wall_s
        and row.compile_s
        and row.compile_s < row.wall_s
    ]
    if saved:
        return median(saved), "its cold runs, their compilation apart"
    return _median(rows), "this script's earlier runs"


def _median(rows: Sequence[Past]) -> float:
    return median(row.wall_s for row in rows if row.wall_s)


def _by_size(weight_bytes: int) -> float:
    return _COLD_S + _COLD_S_PER_GIB * weight_bytes / GIB


def _weights(asked: Run) -> int:
    """Bytes of weights over all cores."""
    return asked.placement.weight_bytes * asked.placement.cores if asked.placement else 0


def of_refused() -> Expected:
    """A refused run takes no machine."""
    return Expected(run_s=1, compiling_s=0, check_s=0, limit_s=1, basis="refused")
