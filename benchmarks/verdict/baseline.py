"""What the new judge has to beat: likelihood alone, and the bounds of the judge before it.

That judge held six signals of a text against two bounds each, found on 55 good texts: any signal
beyond its second bound made the text not fluent, all within their first made it fluent; a run was
fluent with two thirds of its texts fluent and fewer than a third not, not fluent with more than
half of them not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks.verdict.measured import Line, Values
from pipeline.signals import words_of
from pipeline.words import English

BOUNDS: Final = {
    "mean_nll": (4.147, 5.294),
    "worst_nll": (6.18, 7.825),
    "distinct_2": (0.616, 0.44),
    "function_words": (0.31, 0.227),
    "ascii_letters": (0.982, 0.95),
    "broken_characters": (0.0, 0.02),
}
"""(fluent, not_fluent) of each signal, as they stood in the calibration for SmolLM2-135M."""
MIN_TOKENS: Final = 12
MIN_CHARACTERS: Final = 32


def old_score(line: Line, values: Values | None) -> float:
    """How far beyond its bounds the worst signal is: below 0 fluent, above 1 not fluent."""
    if values is None:
        return 0.5
    found = line.signals(values)
    wordless = len(words_of(line.text)) < 2
    if wordless and len(line.text) >= MIN_CHARACTERS:
        return 2.0
    if found.tokens < MIN_TOKENS:
        return 0.5
    measured = {name: getattr(found, name, values.worst_nll) for name in BOUNDS}
    if wordless:
        measured["distinct_2"] = 0.0
    if not any(character.isalpha() for character in line.text):
        measured["ascii_letters"] = 0.0
    worst = max(
        (measured[name] - fluent) / (not_fluent - fluent)
        for name, (fluent, not_fluent) in BOUNDS.items()
    )
    return min(max(worst, -1.0), 2.0)


def old_verdict(scores: Sequence[float]) -> English:
    """The verdict on a run from the scores of its texts."""
    fluent = sum(score <= 0 for score in scores)
    bad = sum(score > 1 for score in scores)
    if 2 * bad > len(scores):
        return English.NOT_FLUENT
    if len(scores) >= 3 and 3 * fluent >= 2 * len(scores) and 3 * bad < len(scores):
        return English.FLUENT
    return English.INCONCLUSIVE
