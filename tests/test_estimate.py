"""How long a run is expected to take, and when it is ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pipeline.estimate import LIMIT_FLOOR_S, Durations, Past
from pipeline.record import Run
from pipeline.words import CacheState, Failure, Result, Stage, Target
from tests import papers

GIB = 1024**3
CAP_S = 240 * 60
COLD, RESTORED = CacheState.COLD, CacheState.RESTORED
KEYS = ("ab/one.neff",)


def row(run: Run, day: float = 0, **changes: Any) -> Past:
    """A PASS of `run` so many days after the start, 900 s cold."""
    fields: dict[str, Any] = {
        "run_id": run.run_id,
        "tested_at": papers.START + timedelta(days=day),
        "result": Result.PASS,
        "stage": Stage.DONE,
        "failure": None,
        "target": run.stack.target,
        "script_sha256": run.script_sha256,
        "checkpoint_bytes": run.checkpoint_bytes,
        "wall_s": 900.0,
        "compile_s": 800.0,
        "cache": COLD,
    }
    return Past(**(fields | changes))


def seconds(asked: Run, *rows: Past) -> int:
    return Durations(rows).expect(asked, CAP_S).run_s


RUN = papers.run()  # one core, 1 GiB of weights
BY_SIZE = 600 + 120


def test_by_size_without_rows() -> None:
    """Ten minutes and two a GiB over all cores; the check is apart."""
    found = Durations().expect(RUN, CAP_S)
    assert (found.run_s, found.basis) == (BY_SIZE, "size")
    assert 0 < found.compiling_s < found.run_s
    assert found.check_s == 14
    wide = papers.run(placement=papers.placement(4))
    assert seconds(wide) == 600 + 4 * 120


def test_restored_graphs_take_what_they_took() -> None:
    """The same script with cache keys: its restored runs, whatever the cold ones took."""
    run = papers.run(cache_keys=KEYS)
    rows = (row(run), row(run, 1, wall_s=60.0, cache=RESTORED))
    found = Durations(rows).expect(run, CAP_S)
    assert (found.run_s, found.basis) == (60, "its runs with restored graphs")
    assert found.compiling_s == 0


def test_restored_graphs_for_the_first_time() -> None:
    """Before any restored run: the cold one without most of its first call."""
    assert seconds(papers.run(cache_keys=KEYS), row(RUN)) == 900 - 0.95 * 800


def test_without_keys_the_script_compiles_again() -> None:
    """What restored runs took is no measure for a run that restores nothing."""
    rows = (row(RUN, script_sha256="0" * 64), row(RUN, 1, wall_s=60.0, cache=RESTORED))
    changed = papers.run(script_sha256="1" * 64)
    assert seconds(changed, *rows) == 900
    assert Durations(rows).expect(changed, CAP_S).basis == "this model's cold runs"


def test_another_compiler_compiles_anew() -> None:
    """Keys of another stack's run help nothing: the model's cold runs there are the measure."""
    newer = papers.run(stack=papers.stack(neuronx_cc="2.29.0"), cache_keys=KEYS)
    rows = (row(RUN), row(RUN, 1, wall_s=60.0, cache=RESTORED))
    assert seconds(newer, *rows) == 900


@pytest.mark.parametrize("odd", [5.0, 9_000.0])
def test_one_odd_run_moves_nothing(odd: float) -> None:
    """The median of the newest five rows: one outlier does not make an estimate."""
    rows = [row(RUN, day, wall_s=900.0 + day) for day in range(4)]
    assert 900 <= seconds(RUN, *rows, row(RUN, 5, wall_s=odd)) <= 904


def test_old_rows_give_way() -> None:
    """What a run takes may change for good: only the newest five count."""
    old = [row(RUN, day, wall_s=9_000.0) for day in range(20)]
    new = [row(RUN, 30 + day, wall_s=700.0) for day in range(5)]
    assert seconds(RUN, *new, *old) == 700


@pytest.mark.parametrize(
    "changes",
    [
        {"result": Result.ERROR, "failure": Failure.DOWNLOAD, "stage": Stage.DOWNLOAD},
        {"result": Result.FAIL, "failure": Failure.TOO_LARGE, "stage": Stage.PLAN},
        {"wall_s": None},
    ],
)
def test_rows_that_tell_nothing(changes: dict[str, Any]) -> None:
    """Infrastructure faults, refusals and rows without a time are passed over."""
    assert seconds(RUN, row(RUN, **({"wall_s": 7.0} | changes))) == BY_SIZE


def test_a_failure_before_the_graphs_were_made_is_no_cold_time() -> None:
    """With another script it may come further; with the same it fails as fast again."""
    failed: dict[str, Any] = {
        "result": Result.FAIL,
        "failure": Failure.COMPILER_ERROR,
        "stage": Stage.COMPILE,
    }
    fast = row(RUN, wall_s=40.0, **failed)
    assert seconds(RUN, fast) == 40
    assert seconds(papers.run(script_sha256="1" * 64), fast) == BY_SIZE


def others(factor: float, *sizes: float, target: Target = Target.NEURON) -> list[Past]:
    """Cold rows of other models of these sizes, in GiB, which took `factor` times the usual."""
    rows = []
    for number, size in enumerate(sizes):
        run = papers.run(f"other/{number}", stack=papers.stack(target))
        took = factor * (600 + 120 * size)
        rows.append(row(run, checkpoint_bytes=int(size * GIB), wall_s=took))
    return rows


def test_models_of_near_size_refit_the_estimate() -> None:
    """Three models within a factor of two: the median of what they took against their sizes."""
    run = papers.run(checkpoint_bytes=GIB)
    found = Durations(others(2.0, 0.6, 1.0, 1.9)).expect(run, CAP_S)
    assert found.basis == "cold runs of models of near size"
    assert abs(found.run_s - 2 * BY_SIZE) <= 2
    # Too few, too far away, or of another target: by size.
    assert seconds(run, *others(2.0, 0.6, 1.0)) == BY_SIZE
    assert seconds(run, *others(2.0, 0.1, 3.0, 9.0)) == BY_SIZE
    assert seconds(run, *others(2.0, 0.6, 1.0, 1.9, target=Target.SIMULATOR)) == BY_SIZE


# --- limits -------------------------------------------------------------------------------------


def limit(asked: Run, *rows: Past, cap_s: int = CAP_S) -> int:
    return Durations(rows).expect(asked, cap_s).limit_s


def test_limits_follow_the_estimate() -> None:
    """Four times what is expected, half an hour at least, the list's limit at most."""
    assert limit(RUN) == 4 * BY_SIZE
    assert limit(RUN, row(RUN, wall_s=5.0)) == LIMIT_FLOOR_S
    assert limit(RUN, row(RUN, wall_s=10_000.0)) == CAP_S
    assert limit(RUN, cap_s=600) == 600


def test_a_store_that_is_away_does_not_end_a_run() -> None:
    """A run that expects restored graphs still gets the time to compile."""
    run = papers.run(cache_keys=KEYS)
    assert limit(run, row(run), row(run, 1, wall_s=60.0, cache=RESTORED)) == 4 * 900


def test_after_a_timeout_the_list_decides() -> None:
    """What its limit ended took at least that long, and gets all that the list allows."""
    ended: dict[str, Any] = {
        "result": Result.FAIL,
        "failure": Failure.TIMEOUT,
        "stage": Stage.COMPILE,
    }
    found = Durations([row(RUN, wall_s=2_880.0, **ended)]).expect(RUN, CAP_S)
    assert (found.run_s, found.limit_s) == (2_880, CAP_S)
    # A later good run takes its place.
    rows = (row(RUN, wall_s=2_880.0, **ended), row(RUN, 1, wall_s=1_000.0))
    assert limit(RUN, *rows) == 4_000


def test_the_same_rows_in_any_order() -> None:
    """Rows of one moment are told apart by their run ids: order does not matter."""
    rows = [row(RUN, day, wall_s=100.0 * day + 1) for day in range(7)]
    assert Durations(rows).expect(RUN, CAP_S) == Durations(rows[::-1]).expect(RUN, CAP_S)
