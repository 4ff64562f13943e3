"""Runs put together from the scores of texts, always of one kind, and the curves they give.

Two ways: `drawn` at random, for shares in which every kind weighs the same; and `disjoint`, no text
in two runs, for counts with exact intervals. (Runs of different kinds answer the same prompts, so
even these are not wholly independent.)
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.calibration import Curve

Floats = NDArray[np.float64]
One = TypeVar("One")

DRAWS: Final = 500
"""Runs drawn of each kind, for each number of prompts."""
FALSE_ALARMS: Final = (0.0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Shares of right runs at which a curve's points are given."""
_SEED: Final = 20261130


def drawn(texts: Sequence[One], prompts: int) -> list[list[One]]:
    """DRAWS runs of `prompts` different texts; the texts themselves for one prompt."""
    if prompts == 1:
        return [[one] for one in texts]
    if len(texts) < prompts:
        return []
    rng = _seeded()
    return [rng.sample(texts, prompts) for _ in range(DRAWS)]


def disjoint(texts: Sequence[One], prompts: int) -> list[list[One]]:
    """As many runs as there are texts for, in a random order that is always the same."""
    order = list(texts)
    _seeded().shuffle(order)
    return [order[at : at + prompts] for at in range(0, len(order) - prompts + 1, prompts)]


def curve(right: Mapping[str, Sequence[float]], wrong: Mapping[str, Sequence[float]]) -> Curve:
    """ROC and its area for scores by kind, high = wrong; kinds weigh the same on either side.

    Without scores on either side there is neither.
    """
    if not any(right.values()) or not any(wrong.values()):
        return Curve(auc=None, roc=())
    values: list[float] = []
    sides: list[float] = []
    weights: list[float] = []
    for side, kinds in ((0.0, right), (1.0, wrong)):
        filled = [scores for scores in kinds.values() if scores]
        for scores in filled:
            values += scores
            sides += [side] * len(scores)
            weights += [1 / len(filled) / len(scores)] * len(scores)
    order = np.argsort(-np.array(values), kind="stable")
    ranked, of, weight = (np.array(one)[order] for one in (values, sides, weights))
    last = np.append(np.diff(ranked) != 0, True)  # a threshold lies between different scores
    alarms = np.append(0.0, np.cumsum(weight * (1 - of))[last])
    caught = np.append(0.0, np.cumsum(weight * of)[last])
    points = []
    for wanted in FALSE_ALARMS:
        at = int(np.searchsorted(alarms, wanted + 1e-9, side="right")) - 1
        points.append((wanted, round(min(float(caught[at]), 1.0), 4)))
    area = float(np.trapezoid(caught, alarms))
    return Curve(auc=round(min(area, 1.0), 5), roc=tuple(points))


def _seeded() -> random.Random:
    return random.Random(_SEED)  # noqa: S311 (the same draws every time are what is wanted)
