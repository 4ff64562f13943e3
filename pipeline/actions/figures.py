"""What a planned run is and costs, in words: the same in previews, proposals and answers."""

from __future__ import annotations

from pipeline.record import Run

HUB = "https://huggingface.co"
NO_PRICE = "price not stated"


def amount(number: int) -> str:
    """1.54 B, 135 M, 64 k: three digits."""
    for size, letter in ((10**9, " B"), (10**6, " M"), (10**3, " k")):
        if number >= size:
            value = number / size
            return f"{value:.0f}{letter}" if value >= 100 else f"{value:.3g}{letter}"
    return str(number)


def share_s(run: Run) -> float:
    """Seconds of a whole machine: the run's, by its share of the cores, as a row's cost is."""
    assert run.placement is not None
    return run.estimated_s * run.placement.cores / (run.machine_cores or run.placement.cores)


def usd(run: Run) -> float | None:
    """What that time costs; None when the runner class states no price."""
    return None if run.usd_per_hour is None else share_s(run) / 3600 * run.usd_per_hour
