"""Learn a judge's rule from labelled signals of the training half.

Weights are those of a logistic regression that may only speak against a text (none is negative),
with a ridge, kinds of text weighing the same within right and wrong. Which signals take part is
found by adding, one at a time, the one that lowers the loss on left-out prompts most, until none
lowers it by LEAST. The two bounds are set on scores that left-out prompts got from rules that
never saw them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from pipeline.calibration import Bounds, Rule, Side, Term
from pipeline.signals import Signals

Floats = NDArray[np.float64]

CANDIDATES: Final = (
    ("mean_nll", Side.HIGH),
    ("typicality", Side.HIGH),
    ("typicality", Side.LOW),
    ("worst_window", Side.HIGH),
    ("flattest_window", Side.HIGH),
    ("flattest_window", Side.LOW),
    ("far_tokens", Side.HIGH),
    ("prompt_gain", Side.LOW),
    ("echo", Side.HIGH),
    ("distinct_2", Side.LOW),
    ("compressed", Side.LOW),
    ("compressed", Side.HIGH),
    ("function_words", Side.LOW),
    ("function_words", Side.HIGH),
    ("ascii_letters", Side.LOW),
    ("letters_and_spaces", Side.LOW),
    ("longest_word", Side.HIGH),
    ("broken_characters", Side.HIGH),
    ("after_end", Side.HIGH),
)
LIMIT: Final = 6.0
"""Spreads: farther out a signal says no more, so a huge value cannot outweigh all the others."""
CAP: Final = 4.0
"""Log odds of a text, 98 %: one odd text of three does not make a run not_fluent by itself."""
RIDGE: Final = 0.003
FOLDS: Final = 5
LEAST: Final = 0.01
"""Share of the loss that a further signal must save on left-out prompts."""
INNER: Final = 0.75
OUTER: Final = 0.97
"""Shares of the right texts within a term's centre, and within one spread of it."""
FLOOR: Final = {
    "mean_nll": 0.1,
    "typicality": 0.1,
    "worst_window": 0.1,
    "flattest_window": 0.1,
    "far_tokens": 0.03,
    "prompt_gain": 0.05,
    "echo": 0.05,
    "distinct_2": 0.04,
    "compressed": 0.01,
    "function_words": 0.04,
    "ascii_letters": 0.02,
    "letters_and_spaces": 0.01,
    "longest_word": 1.0,
    "broken_characters": 0.01,
    "after_end": 0.5,
}
"""The least spread of a signal, about one token, word or letter of a continuation: where all right
texts agree, the next step outwards is not infinitely far."""


@dataclass(frozen=True)
class Labelled:
    """One text with signals. group: whose texts make a run; prompt: what no two folds share."""

    kind: str
    group: str
    wrong: bool
    prompt: str
    signals: Signals


def text_weights(kinds: Sequence[str], wrong: Sequence[bool]) -> Floats:
    """Weights that sum to 1/2 over right and over wrong texts, kinds weighing the same in each."""
    texts = Counter(zip(wrong, kinds, strict=True))
    several = Counter(side for side, _ in texts)
    return np.array(
        [0.5 / several[side] / texts[side, kind] for side, kind in zip(wrong, kinds, strict=True)]
    )


def quantile(values: Floats, weights: Floats, share: float) -> float:
    """The value below which `share` of the weight lies."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][min(int(np.searchsorted(reached, share)), len(values) - 1)])


def make_terms(texts: Sequence[Labelled]) -> list[Term]:
    """Every candidate with centre and spread of the right texts, and no weight yet."""
    right = [one for one in texts if not one.wrong]
    weights = text_weights([one.kind for one in right], [False] * len(right))
    terms = []
    for name, side in CANDIDATES:
        sign = 1.0 if side is Side.HIGH else -1.0
        values = sign * np.array([getattr(one.signals, name) for one in right], dtype=np.float64)
        centre = quantile(values, weights, INNER)
        spread = max(quantile(values, weights, OUTER) - centre, FLOOR[name])
        terms.append(
            Term(
                signal=name,
                side=side,
                centre=round(sign * centre, 4),
                spread=round(spread, 4),
                weight=0.0,
            )
        )
    return terms


def distances(terms: Sequence[Term], texts: Sequence[Labelled]) -> Floats:
    """[text, term]: spreads beyond the centre."""
    return np.array([[term.distance(one.signals, LIMIT) for term in terms] for one in texts])


def logistic(far: Floats, wrong: Floats, weights: Floats) -> Floats:
    """[bias, weight of each column], no weight negative."""
    sign = 2 * wrong - 1

    def loss(at: Floats) -> tuple[float, Floats]:
        margin = sign * (at[0] + far @ at[1:])
        pull = -sign * weights / (1 + np.exp(np.clip(margin, -500, 500)))
        slope = np.concatenate([[pull.sum()], far.T @ pull + 2 * RIDGE * at[1:]])
        return float(weights @ np.logaddexp(0, -margin) + RIDGE * (at[1:] @ at[1:])), slope

    start = np.zeros(far.shape[1] + 1)
    bounds = [(None, None), *[(0.0, None)] * far.shape[1]]
    found: Any = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    at: Floats = found.x
    return at


def folds_of(texts: Sequence[Labelled]) -> NDArray[np.int64]:
    """A fold for each text by its prompt, the same in every run of the command."""
    return np.array(
        [int(hashlib.sha256(one.prompt.encode()).hexdigest(), 16) % FOLDS for one in texts]
    )


def left_out(far: Floats, wrong: Floats, weights: Floats, folds: NDArray[np.int64]) -> Floats:
    """The score of each text from a fit to the folds it is not in."""
    scores = np.zeros(len(far))
    for fold in range(FOLDS):
        out = folds == fold
        at = logistic(far[~out], wrong[~out], weights[~out])
        scores[out] = at[0] + far[out] @ at[1:]
    return scores


@dataclass(frozen=True)
class Fitted:
    """A rule without its bounds; scores: of the training texts, each from a fit without it."""

    rule: Rule
    scores: Floats


def fit(texts: Sequence[Labelled], say: Callable[[str], None] = lambda _: None) -> Fitted:
    """Choose signals, fit their weights. Raises ValueError without texts of both labels."""
    wrong = np.array([float(one.wrong) for one in texts])
    if not 0 < wrong.sum() < len(wrong):
        raise ValueError("a rule is learnt from right and wrong texts, one of them is missing")
    weights = text_weights([one.kind for one in texts], [one.wrong for one in texts])
    terms = make_terms(texts)
    far, folds = distances(terms, texts), folds_of(texts)

    def loss(columns: list[int]) -> tuple[float, Floats]:
        scores = left_out(far[:, columns], wrong, weights, folds)
        clipped = np.clip(scores, -CAP, CAP)
        return float(weights @ np.logaddexp(0, -(2 * wrong - 1) * clipped)), scores

    chosen: list[int] = []
    best, scores = float(np.log(2)), np.zeros(len(texts))
    while len(chosen) < len(terms):
        tried = {one: loss([*chosen, one]) for one in range(len(terms)) if one not in chosen}
        one = min(tried, key=lambda at: tried[at][0])
        if tried[one][0] > best * (1 - LEAST):
            break
        chosen.append(one)
        best, scores = tried[one]
        say(f"{terms[one].signal} {terms[one].side}: loss on left-out prompts {best:.4f}")
    at = logistic(far[:, chosen], wrong, weights)
    rule = Rule(
        bias=round(float(at[0]), 4),
        limit=LIMIT,
        cap=CAP,
        terms=tuple(
            terms[one].model_copy(update={"weight": round(float(weight), 4)})
            for one, weight in zip(chosen, at[1:], strict=True)
        ),
        bounds=Bounds(fluent=0.0, not_fluent=0.0),
    )
    return Fitted(rule, np.clip(scores, -CAP, CAP))
