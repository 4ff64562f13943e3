"""Points: figures from what ranks saw, and whether they may be believed."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.measure.points import Call, Counted, PointSeen, RankSeen, Rules, Standing, judged
from pipeline.record import Finding
from pipeline.words import Failure

NOTHING = Counted(graphs=0, graph_breaks=0, compiled=0, restored=0)
COMPILED = Counted(graphs=2, graph_breaks=0, compiled=2, restored=0)
CPU = Rules(cores=1, new_tokens=3, backend_counts=False)
DEVICE = Rules(cores=1, new_tokens=3, backend_counts=True)


def rank(**changes: Any) -> RankSeen:
    """A rank that compiled two graphs in the warm-up and none later."""
    fields: dict[str, Any] = {
        "warm_up_s": (30.0, 0.5),
        "warm_up": COMPILED,
        "measured": NOTHING,
        "backend_graphs": None,
        "downgrade": None,
        "peak_bytes": 1024,
        "repeatable": True,
        "tokens": ((1, 2, 3), (4, 5, 6)),
    }
    return RankSeen(**(fields | changes))


def seen(*ranks: RankSeen, **changes: Any) -> PointSeen:
    """Two rows, two calls of three tokens each."""
    fields: dict[str, Any] = {
        "prompt_tokens": 32,
        "batch": 2,
        "refused": None,
        "calls": (
            Call(first_token_s=0.5, token_s=(0.1, 0.2), wall_s=1.0),
            Call(first_token_s=0.7, token_s=(0.1, 0.4), wall_s=1.4),
        ),
        "ranks": ranks or (rank(),),
    }
    return PointSeen(**(fields | changes))


def test_figures_of_a_point() -> None:
    """Every row's tokens count, over all calls; later tokens without the prompt's time."""
    point = judged(seen(), Rules(1, 3, backend_counts=False, machine_cores=4, usd_per_hour=7.2))
    assert point.standing is Standing.VALID
    assert point.reasons == ()
    assert point.tokens_per_s == pytest.approx(2 * 3 * 2 / 2.4)
    assert point.decode_tokens_per_s == pytest.approx(2 * 4 / 0.8)
    assert point.usd_per_million == pytest.approx(7.2 / 4 / 3600 / 5 * 1e6)
    assert point.first_token is not None and point.token is not None
    assert (point.first_token.samples, point.first_token.p50) == (2, 0.5)
    assert (point.token.samples, point.token.p99) == (4, 0.4)
    assert (point.graphs, point.compiled, point.restored) == (2, 2, 0)
    assert point.peak_bytes == (1024,)


def test_one_new_token_has_no_later_ones() -> None:
    """Their figures are absent, not zero."""
    only = seen(calls=(Call(first_token_s=0.5, token_s=(), wall_s=0.6),))
    point = judged(only, Rules(1, 1, backend_counts=False))
    assert (point.token, point.decode_tokens_per_s) == (None, None)
    assert point.tokens_per_s == pytest.approx(2 / 0.6)


@pytest.mark.parametrize(
    ("ranks", "rules", "standing", "reason"),
    [
        ([rank(measured=COMPILED)], CPU, Standing.INVALID, "in the measured calls: 2 graphs"),
        (
            [rank(measured=NOTHING.model_copy(update={"compiled": 1}))],
            CPU,
            Standing.INVALID,
            "1 compiled",
        ),
        (
            [rank(measured=NOTHING.model_copy(update={"restored": 1}))],
            CPU,
            Standing.INVALID,
            "1 read from the cache",
        ),
        ([rank(warm_up=NOTHING)], CPU, Standing.INVALID, "no compiled graph"),
        (
            [rank(warm_up=COMPILED.model_copy(update={"compiled": 0}))],
            CPU,
            Standing.INVALID,
            "no compiled graph: 2 captured, 0 compiled, 0 from the cache",
        ),
        ([rank(repeatable=False)], CPU, Standing.INVALID, "other tokens"),
        (
            [rank(measured=NOTHING.model_copy(update={"compiled": None}))],
            CPU,
            Standing.UNPROVEN,
            "counters could not be read",
        ),
        ([rank()], DEVICE, Standing.UNPROVEN, "did not say how many graphs"),
        ([rank(backend_graphs=1)], DEVICE, Standing.INVALID, "the backend made 1"),
        ([rank(backend_graphs=2)], DEVICE, Standing.VALID, ""),
        ([rank()], Rules(2, 3, backend_counts=False), Standing.UNPROVEN, "1 of 2 ranks"),
        (
            [rank(), rank(tokens=((1, 2, 3), (4, 5, 7)))],
            Rules(2, 3, backend_counts=False),
            Standing.INVALID,
            "rank 1: its tokens are not those of rank 0",
        ),
        (
            [rank(), rank(measured=COMPILED)],
            Rules(2, 3, backend_counts=False),
            Standing.INVALID,
            "rank 1: the compiler was at work",
        ),
        ([rank(), rank()], Rules(2, 3, backend_counts=False), Standing.VALID, ""),
    ],
)
def test_standing(ranks: list[RankSeen], rules: Rules, standing: Standing, reason: str) -> None:
    """A point is valid only when all ranks show that nothing was compiled while it was measured."""
    point = judged(seen(*ranks), rules)
    assert point.standing is standing
    assert reason in "; ".join(point.reasons)
    assert bool(point.reasons) is (standing is not Standing.VALID)


def test_only_valid_points_have_a_cost() -> None:
    """A price of something that was not measured properly would be quoted all the same."""
    rules = Rules(1, 3, backend_counts=False, machine_cores=1, usd_per_hour=1.0)
    assert judged(seen(), rules).usd_per_million is not None
    assert judged(seen(rank(repeatable=False)), rules).usd_per_million is None


def test_findings_of_the_log_make_a_point_invalid() -> None:
    """What speaks against a run speaks against its figures too."""
    found = Finding(signature="s", failure=Failure.CPU_FALLBACK, line="fell back to eager")
    point = judged(seen(), CPU, (found,))
    assert point.standing is Standing.INVALID
    assert point.reasons == ("the log says: fell back to eager",)


def test_what_was_not_measured_has_no_figures() -> None:
    """Neither a size that the model refuses nor one that the script never came to."""
    refused = judged(seen(refused="positions for 32 tokens", calls=(), ranks=()), CPU)
    missing = judged(PointSeen(prompt_tokens=1, batch=1, refused=None, calls=(), ranks=()), CPU)
    assert refused.standing is missing.standing is Standing.NOT_MEASURED
    assert refused.reasons == ("positions for 32 tokens",)
    assert missing.reasons == ("the script did not come to its measured calls",)
    assert (refused.first_token, missing.tokens_per_s) == (None, None)


def test_a_downgrade_is_told() -> None:
    """Graphs in pieces are valid figures that a reader should know the reason of."""
    pieces = COMPILED.model_copy(update={"graph_breaks": 3})
    point = judged(seen(rank(downgrade="cannot trace", warm_up=pieces)), CPU)
    assert point.standing is Standing.VALID
    assert point.notes == ("rank 0: compiled in pieces, with 3 graph breaks: cannot trace",)
