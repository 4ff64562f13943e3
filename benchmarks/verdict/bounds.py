"""Set the two bounds on a run's score, on the training half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from benchmarks.verdict.fit import quantile
from benchmarks.verdict.runs import drawn
from pipeline.calibration import Bounds

PROMPTS: Final = 3
"""The fewest prompts a list may ask: with more, scores lie closer together."""
ERROR: Final = 0.003
"""A third of the 1 % that is allowed: the held-out half is expected to do worse. Half of a percent
would leave 1.0 % of the right runs of the training half in doubt instead of 1.5 %."""


def find_bounds(
    right: Mapping[str, Sequence[float]], wrong: Mapping[str, Sequence[float]]
) -> Bounds:
    """The bounds for scores of training texts by kind, kinds weighing the same.

    At most ERROR of the right runs lie above `most`, at most ERROR of the visibly wrong ones below
    `least`. Where `most` is the lower one the two could be told apart anywhere between, and the
    outer thirds of that room go to the verdicts, the middle one to doubt. Otherwise what lies
    between them is doubt.
    """
    most = _beyond(right, 1.0)
    least = -_beyond(wrong, -1.0)
    if most <= least:
        third = (least - most) / 3
        return Bounds(fluent=round(most + third, 3), not_fluent=round(least - third, 3))
    return Bounds(fluent=round(least, 3), not_fluent=round(most, 3))


def _beyond(kinds: Mapping[str, Sequence[float]], sign: float) -> float:
    """What ERROR of the runs' scores, turned by `sign`, lie above."""
    values: list[float] = []
    weights: list[float] = []
    for scores in kinds.values():
        runs = drawn(scores, PROMPTS)
        values += [sign * sum(run) / PROMPTS for run in runs]
        weights += [1 / max(len(runs), 1)] * len(runs)
    return quantile(np.array(values), np.array(weights), 1 - ERROR)
