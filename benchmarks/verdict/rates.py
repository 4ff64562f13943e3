"""Shares with their exact 95 % intervals."""

from __future__ import annotations

from scipy.stats import binomtest


def interval(k: int, n: int) -> tuple[float, float]:
    """The exact (Clopper-Pearson) 95 % interval of the share of `k` among `n` independent trials.

    (0, 1) without any trial. Raises ValueError unless 0 <= k <= n.
    """
    if n == 0 and k == 0:
        return 0.0, 1.0
    found = binomtest(k, n).proportion_ci(confidence_level=0.95, method="exact")
    return float(found.low), float(found.high)


def rate(k: int, n: int) -> str:
    """A share for a table: `1 of 200 = 0.5 % (0.0-2.8)`, the interval in percent."""
    low, high = interval(k, n)
    share = f"{100 * k / n:.1f} %" if n else "none"
    return f"{k} of {n} = {share} ({100 * low:.1f}-{100 * high:.1f})"
