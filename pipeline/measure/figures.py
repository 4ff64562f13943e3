"""The arithmetic of a measurement: percentiles, rates, cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PERCENTILES = (50, 90, 99)

HOW_PERCENTILES = (
    "The p-th percentile of n samples is the smallest sample that at least p % of them do not "
    "exceed: number ceil(p x n / 100) of the sorted samples (nearest rank, nothing interpolated). "
    "Below 100 samples p99 is therefore the largest one, below 10 samples p90 as well."
)
HOW_RATE = (
    "Tokens per second are those of all measured calls of a point, batch x new tokens x calls, "
    "over the sum of their wall times, the prompt's share included."
)
HOW_COST = (
    "USD per million tokens = USD per hour of the whole machine x cores used / cores of the "
    "machine / 3600 / tokens per second x 1 000 000. Only tokens that were generated count, and "
    "the time of the prompt is in it."
)


def percentile(samples: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile (0 < percent <= 100); ValueError without samples."""
    if not samples:
        raise ValueError("no samples")
    if not 0 < percent <= 100:
        raise ValueError(f"no percentile: {percent}")
    place = -(-percent * len(samples) // 100)  # in whole numbers: 0.99 x 100 is above 99 in floats
    return sorted(samples)[place - 1]


@dataclass(frozen=True)
class Spread:
    """How samples lie, in their own unit (seconds)."""

    samples: int
    p50: float
    p90: float
    p99: float
    least: float
    most: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread | None:
        """None without samples: of one new token there is no later one."""
        if not samples:
            return None
        p50, p90, p99 = (percentile(samples, percent) for percent in PERCENTILES)
        return cls(len(samples), p50, p90, p99, min(samples), max(samples))

    @property
    def p90_is_maximum(self) -> bool:
        """Whether so few samples make p90 the largest one."""
        return self.samples < 10

    @property
    def p99_is_maximum(self) -> bool:
        """Whether so few samples make p99 the largest one."""
        return self.samples < 100


def rate(tokens: int, seconds: float) -> float | None:
    """Tokens per second; None when no time passed."""
    return tokens / seconds if seconds > 0 else None


def usd_per_million(
    usd_per_hour: float | None,
    cores: int,
    machine_cores: int | None,
    tokens_per_s: float | None,
) -> float | None:
    """Cost of a million generated tokens, as `HOW_COST` says; None when something is unknown.

    usd_per_hour: of the whole machine, of which `cores` of `machine_cores` are paid for.
    """
    if usd_per_hour is None or machine_cores is None or not tokens_per_s:
        return None
    return usd_per_hour * cores / machine_cores / 3600 / tokens_per_s * 1e6
