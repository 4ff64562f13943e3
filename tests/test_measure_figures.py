"""The arithmetic of a measurement, held against definitions and figures worked out by hand."""

from __future__ import annotations

import pytest

from pipeline.measure.figures import Spread, percentile, rate, usd_per_million


def test_percentiles_worked_out_by_hand() -> None:
    """The nearest rank of the sorted samples, none interpolated: Wikipedia's worked example."""
    samples = [50, 15, 40, 20, 35]
    assert [percentile(samples, p) for p in (5, 30, 40, 50, 100)] == [15, 20, 20, 35, 50]


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 99, 100, 101, 155, 1000])
@pytest.mark.parametrize("percent", [1, 50, 90, 99, 100])
def test_percentiles_are_what_they_are_defined_as(count: int, percent: int) -> None:
    """The smallest sample that at least so many percent of all do not exceed."""
    samples = [number * 7919 % 1009 / 1009 for number in range(1, count + 1)]  # in no order
    found = percentile(samples, percent)
    enough = [s for s in samples if 100 * sum(o <= s for o in samples) >= percent * count]
    assert found == min(enough)


@pytest.mark.parametrize("percent", [0, -1, 101])
def test_no_such_percentile(percent: int) -> None:
    """Only 1 to 100 mean anything, and only of samples."""
    with pytest.raises(ValueError, match="percentile"):
        percentile([1.0], percent)
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)


@pytest.mark.parametrize(
    ("count", "p90", "p99"),
    [(1, True, True), (9, True, True), (10, False, True), (99, False, True), (100, False, False)],
)
def test_few_samples_make_a_percentile_the_maximum(count: int, p90: bool, p99: bool) -> None:
    """What is said of p90 and p99 is so: they are the largest sample just where it is told."""
    spread = Spread.of([float(number) for number in range(count)])
    assert spread is not None
    assert (spread.p90_is_maximum, spread.p99_is_maximum) == (p90, p99)
    assert (spread.p90 == spread.most, spread.p99 == spread.most) == (p90, p99)
    assert (spread.samples, spread.least, spread.most) == (count, 0.0, count - 1.0)


def test_no_samples_have_no_spread() -> None:
    """Of one new token there is no later one: nothing, not zero."""
    assert Spread.of([]) is None


def test_cost_worked_out_by_hand() -> None:
    """10 USD an hour, a quarter of the machine, 1 000 tokens a second: 3.6 million an hour."""
    found = usd_per_million(10.0, 16, 64, 1000.0)
    assert found == pytest.approx(2.5 / 3.6)
    assert usd_per_million(0.0, 16, 64, 1000.0) == 0


@pytest.mark.parametrize(
    "given", [(None, 1, 4, 10.0), (1.0, 1, None, 10.0), (1.0, 1, 4, None), (1.0, 1, 4, 0.0)]
)
def test_cost_is_not_guessed(given: tuple[float | None, int, int | None, float | None]) -> None:
    """Without a price, the machine's cores or a rate there is no cost."""
    assert usd_per_million(*given) is None


def test_rate() -> None:
    """Tokens over seconds; no time gives no rate."""
    assert rate(96, 1.5) == 64
    assert rate(96, 0.0) is None
