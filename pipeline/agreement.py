"""Whether the device computed what the CPU computes, but for rounding.

What is held against the reference (pipeline.reference): each token's distance below its first
choice, and the log-probabilities that the device gave its most likely tokens. A token may be a tie;
a log-probability may be off by what rounding to the run's dtype does to this very model, which the
reference measures by running in float32 too. The device's own tokens lead the reference, so the
rule is the same at every step, before a divergence and after it.

The bounds were found by `python -m benchmarks.verdict.tokens`; docs/verdict.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from itertools import chain, repeat
from operator import sub
from typing import Final

from pipeline.record import Check
from pipeline.reference import NoReference, Reference, Step, Steps
from pipeline.words import CpuMatch

FLOOR = 0.01
"""Nats: the least noise that is reckoned with. Below it rounding in the last digits of a peaked
distribution would decide."""

MAX_NOISE = 0.25
"""Nats: a model whose own rounding moves log-probabilities further cannot be told from a fault."""

ROUTED_SHARE, ROUTED_STEPS = 0.02, 3
"""Of the steps of a mixture of experts, what may be beyond the bounds of a step, and how many at
least: where rounding sends a token to another expert, a healthy step is off by a hundred times the
usual, and the steps after it may be."""

TRIM = 0.1
"""The share of the largest departures that `typical` leaves aside, for that reason."""


@dataclass(frozen=True)
class Bounds:
    """What is still a tie, in nats, or in multiples of the model's own noise.

    run, prompt: typical departure over all steps, over those of one prompt. wrong: of the run,
    from where on it is a mismatch; between `run` and `wrong` nothing is decided. step, gap: of one
    step, whose noise is its own where that is larger than the model's.
    """

    run: float
    wrong: float
    prompt: float
    step: float
    gap: float

    def of(self, noise: float) -> Bounds:
        """These multiples as nats."""
        unit = max(noise, FLOOR)
        return Bounds(*(value * unit for value in astuple(self)))


IN_NOISES: Final = Bounds(run=1.6, wrong=3.0, prompt=3.0, step=16.0, gap=8.0)
"""Multiples of the model's own noise. docs/verdict.md has the figures they come from."""

IN_NATS: Final = Bounds(run=0.12, wrong=0.2, prompt=0.2, step=0.8, gap=1.0)
"""Where the reference did not run in float32, so that the model's own noise is unknown."""


def _bounds(noise: float | None) -> Bounds:
    """In nats, for a model of this noise; None = unknown."""
    return IN_NATS if noise is None else IN_NOISES.of(noise)


@dataclass(frozen=True)
class Match:
    """What a comparison with the CPU showed.

    max_gap: the largest distance of a token below the reference's first choice. departure: the
    typical difference of the device's log-probabilities from the reference's, at the device's most
    likely tokens of each step. noise: the same of the reference itself, in the run's dtype against
    float32. All in nats; None = not compared.
    """

    cpu_match: CpuMatch
    reason: str | None
    max_gap: float | None = None
    departure: float | None = None
    noise: float | None = None

    def check(self, cached: bool | None = None) -> Check:
        """The same as a record's evidence. cached: whether the reference's answer was kept."""
        return Check(
            cpu_match=self.cpu_match,
            cpu_reason=self.reason,
            max_gap=self.max_gap,
            departure=self.departure,
            noise=self.noise,
            reference_cached=cached,
        )


def match(found: Reference | NoReference, *, routed: bool = False) -> Match:
    """Whether the device computed what the CPU computes, but for rounding.

    The reference is the one in float32 where that ran. routed: the model is a mixture of experts.
    """
    if isinstance(found, NoReference):
        return Match(CpuMatch.NOT_RUN, found.reason)
    prompts = found.exact or found.steps
    steps = [step for prompt in prompts for step in prompt]
    if not steps:
        return Match(CpuMatch.NOT_RUN, "no tokens to compare")
    compared = all(step.departures for step in steps)
    noises = _noises(found) if compared and found.exact else None
    noise = typical(noises) if noises else found.noise
    seen = Match(
        CpuMatch.NEAR_TIE,
        None,
        max_gap=max(step.gap for step in steps),
        departure=typical(map(_departure, steps)) if compared else None,
        noise=noise,
    )
    if noise is not None and noise > MAX_NOISE:
        reason = f"the model's own rounding moves its log-probabilities by {noise:.2f} nats"
        return replace(seen, cpu_match=CpuMatch.NOT_RUN, reason=reason)
    bounds = _bounds(noise)
    each = [_bounds(max(noise or 0.0, own)) for own in noises] if noises else repeat(bounds)
    told = _beyond(prompts, each)
    allowed = max(ROUTED_STEPS, int(ROUTED_SHARE * len(steps))) if routed else 0
    if len(told) > allowed:
        more = f" ({len(told)} such tokens of {len(steps)})" if len(told) > 1 else ""
        return replace(seen, cpu_match=CpuMatch.MISMATCH, reason=told[0] + more)
    if compared and (off := _prompt_beyond(prompts, bounds)):
        return replace(seen, cpu_match=CpuMatch.MISMATCH, reason=off)
    if seen.departure is not None and not seen.departure <= bounds.run:
        wrong = not seen.departure <= bounds.wrong
        return replace(
            seen,
            cpu_match=CpuMatch.MISMATCH if wrong else CpuMatch.INCONCLUSIVE,
            reason=f"log-probabilities are off by {seen.departure:.3f} nats; rounding explains "
            f"{bounds.run:.3f}, and a fault is certain from {bounds.wrong:.3f} on",
        )
    if not any(step.gap for prompt in found.steps for step in prompt):
        return replace(seen, cpu_match=CpuMatch.EXACT)
    ties = sum(step.gap > 0 for step in steps)
    return replace(seen, reason=f"{ties} of {len(steps)} tokens are ties")


def _beyond(prompts: Steps, each: Iterable[Bounds]) -> list[str]:
    """The steps that rounding does not explain, by the bounds of each."""
    told = []
    bounds = iter(each)
    for number, prompt in enumerate(prompts, 1):
        for position, step in enumerate(prompt, 1):
            own = next(bounds)
            where = f"prompt {number}, token {position}: "
            if not step.gap <= own.gap:
                far = f"{step.gap:.2f} nats below the CPU's first choice, place {step.place + 1}"
                told.append(f"{where}{far}; bound {own.gap:.2f}")
            elif step.departures and not _departure(step) <= own.step:
                far = f"log-probabilities are off by {_departure(step):.2f} nats"
                told.append(f"{where}{far}; bound {own.step:.2f}")
    return told


def _prompt_beyond(prompts: Steps, bounds: Bounds) -> str | None:
    """The first prompt whose typical departure rounding does not explain."""
    for number, prompt in enumerate(prompts, 1):
        off = typical(map(_departure, prompt)) if prompt else 0.0
        if not off <= bounds.prompt:
            return (
                f"prompt {number}: log-probabilities are off by {off:.3f} nats; "
                f"bound {bounds.prompt:.3f}"
            )
    return None


def typical(values: Iterable[float]) -> float:
    """Root mean square without the largest tenth; not a number where one of the rest is not."""
    ordered = sorted(values, key=lambda value: math.inf if math.isnan(value) else value)
    return _rms(ordered[: max(1, int((1 - TRIM) * len(ordered)))])


def _departure(step: Step) -> float:
    return _rms(step.departures)


def _rms(values: Iterable[float]) -> float:
    squares = [value * value for value in values]
    return math.sqrt(math.fsum(squares) / len(squares))


def _noises(found: Reference) -> list[float]:
    """Of each step: the reference's log-probabilities in the run's dtype against float32."""
    pairs = zip(chain(*found.steps), chain(*(found.exact or ())), strict=True)
    # Both departures have the device's value in them, which falls out of their difference.
    return [_rms(map(sub, rounded.departures, exact.departures)) for rounded, exact in pairs]


def contradicted(check: Check, *, routed: bool = False) -> str | None:
    """What in a check's own figures says that the tokens do not match, as it says they do."""
    if check.cpu_match not in (CpuMatch.EXACT, CpuMatch.NEAR_TIE):
        return None
    if check.max_gap is None:
        return "it is not said how far the tokens are off"
    bounds = _bounds(check.noise)
    if check.noise is not None and check.noise > MAX_NOISE:
        return f"the model's own noise is {check.noise:.2f} nats, above {MAX_NOISE}"
    if check.departure is not None and check.departure > bounds.run:
        return f"log-probabilities are off by {check.departure:.3f} nats, above {bounds.run:.3f}"
    # With the noise known, the bound of a gap is that of its own step, which is not kept.
    if check.noise is None and check.max_gap > bounds.gap and not routed:
        return f"a token is {check.max_gap:.2f} nats below the CPU's, above {bounds.gap:.2f}"
    return None
