"""Agreement with the CPU: what rounding explains, what it does not, where nothing is decided."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipeline import agreement
from pipeline.agreement import (
    FLOOR,
    IN_NATS,
    IN_NOISES,
    MAX_NOISE,
    ROUTED_STEPS,
    Match,
    match,
    typical,
)
from pipeline.reference import NoReference, Reference, Step, Steps
from pipeline.words import CpuMatch

NOISE = 0.04
"""Nats; above FLOOR, so that the multiples count."""
PROMPTS, TOKENS = 3, 20


def _steps(departures: Sequence[float], gaps: Sequence[float] = ()) -> Steps:
    """PROMPTS x TOKENS steps, all ids of a step off by one value; the rest of the gaps are 0."""
    flat = [
        Step(gap, int(gap > 0), (off,) * 5)
        for off, gap in zip(
            departures, [*gaps, *[0.0] * (len(departures) - len(gaps))], strict=True
        )
    ]
    return tuple(tuple(flat[at : at + TOKENS]) for at in range(0, len(flat), TOKENS))


def _reference(
    off: float | Sequence[float], gaps: Sequence[float] = (), *, noise: float = NOISE
) -> Reference:
    """Both passes ran: the device is `off` the float32 one, and the rounded one is `noise` off."""
    exact = [off] * PROMPTS * TOKENS if isinstance(off, float) else list(off)
    rounded = [one - noise for one in exact]
    return Reference(_steps(rounded, gaps), False, _steps(exact, gaps), noise)


@pytest.mark.parametrize(
    ("noises", "found"),
    [
        (1.0, CpuMatch.EXACT),
        (0.99 * IN_NOISES.run, CpuMatch.EXACT),
        (1.01 * IN_NOISES.run, CpuMatch.INCONCLUSIVE),
        (0.99 * IN_NOISES.wrong, CpuMatch.INCONCLUSIVE),
        (1.01 * IN_NOISES.wrong, CpuMatch.MISMATCH),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_models_own_noise_is_the_measure(noises: float, found: CpuMatch, sign: int) -> None:
    """Off by little more than its own rounding it matches; beyond that doubt, then mismatch."""
    told = match(_reference(sign * noises * NOISE))
    assert told.cpu_match is found
    assert told.departure == pytest.approx(noises * NOISE)
    assert told.noise == pytest.approx(NOISE)
    assert bool(told.reason) is (found is not CpuMatch.EXACT)


def test_logits_tell_where_every_token_is_right() -> None:
    """Tokens that are all the CPU's own do not make up for logits that are far off."""
    told = match(_reference(5 * NOISE))
    assert told.cpu_match is CpuMatch.MISMATCH
    assert told.max_gap == 0
    assert "log-probabilities are off" in str(told.reason)


def test_one_step_far_off_is_a_mismatch() -> None:
    """A stale slot late in one prompt moves no average: the step itself has a bound."""
    off = [NOISE] * PROMPTS * TOKENS
    off[-1] = 1.01 * IN_NOISES.step * NOISE
    told = match(_reference(off))
    assert told.cpu_match is CpuMatch.MISMATCH
    assert str(told.reason).startswith(f"prompt {PROMPTS}, token {TOKENS}: log-probabilities")
    off[-1] = 0.99 * IN_NOISES.step * NOISE
    assert match(_reference(off)).cpu_match is CpuMatch.EXACT


def test_one_prompt_far_off_is_a_mismatch() -> None:
    """What breaks one prompt only is not averaged away by the others."""
    off = [0.0] * (PROMPTS - 1) * TOKENS + [1.1 * IN_NOISES.prompt * NOISE] * TOKENS
    told = match(_reference(off))
    assert told.cpu_match is CpuMatch.MISMATCH
    assert str(told.reason).startswith(f"prompt {PROMPTS}: ")


def test_ties_are_within_the_bound_of_a_gap() -> None:
    """A token below the first choice is a tie as far as rounding may have put it there."""
    told = match(_reference(NOISE, [0.0, 0.99 * IN_NOISES.gap * NOISE]))
    assert told.cpu_match is CpuMatch.NEAR_TIE
    assert told.reason == "1 of 60 tokens are ties"
    told = match(_reference(NOISE, [0.0, 1.01 * IN_NOISES.gap * NOISE]))
    assert told.cpu_match is CpuMatch.MISMATCH
    assert str(told.reason).startswith("prompt 1, token 2: 0.32 nats below the CPU's first choice")


@pytest.mark.parametrize(("routed", "found"), [(True, "near_tie"), (False, "mismatch")])
def test_a_mixture_of_experts_may_take_another_expert_now_and_then(
    routed: bool, found: str
) -> None:
    """A few steps of a mixture of experts may be far off, but not more; of no other model any."""
    few = _reference(NOISE, [5.0] * ROUTED_STEPS)
    assert match(few, routed=routed).cpu_match == found
    more = _reference(NOISE, [5.0] * (ROUTED_STEPS + 1))
    assert match(more, routed=True).cpu_match is CpuMatch.MISMATCH


def test_a_step_that_rounds_much_itself_is_not_held_against_the_device() -> None:
    """Where the CPU's own rounding moves one step far, the device may be as far off there."""
    off = [NOISE] * PROMPTS * TOKENS
    off[7] = far = 2 * IN_NOISES.step * NOISE
    exact = _steps(off)
    rounded = _steps([0.0 if one == far else one - NOISE for one in off])
    assert match(Reference(rounded, False, exact, NOISE)).cpu_match is CpuMatch.EXACT
    assert match(_reference(off)).cpu_match is CpuMatch.MISMATCH


def test_a_floor_under_the_noise() -> None:
    """A model that hardly rounds is not held to less than FLOOR."""
    noise = FLOOR / 100
    assert match(_reference(FLOOR, noise=noise)).cpu_match is CpuMatch.EXACT
    assert match(_reference(2 * FLOOR, noise=noise)).cpu_match is CpuMatch.INCONCLUSIVE


def test_a_model_that_is_all_noise_is_not_compared() -> None:
    """Where rounding alone moves everything, agreement would mean nothing."""
    told = match(_reference(MAX_NOISE, noise=1.01 * MAX_NOISE))
    assert told.cpu_match is CpuMatch.NOT_RUN
    assert "own rounding" in str(told.reason)


@pytest.mark.parametrize(
    ("off", "found"),
    [
        (0.9 * IN_NATS.run, CpuMatch.EXACT),
        (1.1 * IN_NATS.run, CpuMatch.INCONCLUSIVE),
        (1.1 * IN_NATS.wrong, CpuMatch.MISMATCH),
    ],
)
def test_without_float32_the_bounds_are_in_nats(off: float, found: CpuMatch) -> None:
    """Where memory held one pass only, fixed bounds take the place of the model's own noise."""
    only = Reference(_steps([off] * PROMPTS * TOKENS), False)
    told = match(only)
    assert (told.cpu_match, told.noise) == (found, None)


@pytest.mark.parametrize(
    ("gap", "found"),
    [
        (0.0, CpuMatch.EXACT),
        (0.9 * IN_NATS.gap, CpuMatch.NEAR_TIE),
        (1.1 * IN_NATS.gap, CpuMatch.MISMATCH),
        (float("inf"), CpuMatch.MISMATCH),
        (float("nan"), CpuMatch.MISMATCH),
    ],
)
def test_tokens_alone(gap: float, found: CpuMatch) -> None:
    """Without logits the tokens are all there is; what is not a number is no tie."""
    told = match(Reference(((Step(gap, 1), Step(0.0, 0)),), False))
    assert (told.cpu_match, told.departure) == (found, None)


def test_tokens_alone_with_the_noise_known() -> None:
    """Without logits but with both passes, a tie is measured by the noise all the same."""
    bound = IN_NOISES.gap * NOISE
    for gap, found in ((0.9 * bound, CpuMatch.NEAR_TIE), (1.1 * bound, CpuMatch.MISMATCH)):
        steps = ((Step(gap, 1), Step(0.0, 0)),)
        assert match(Reference(steps, False, steps, NOISE)).cpu_match is found


def test_no_reference_is_not_a_match() -> None:
    """Why the reference did not run is kept, and it counts as not run."""
    assert match(NoReference("too large")) == Match(CpuMatch.NOT_RUN, "too large")
    assert match(Reference((), cached=False)).cpu_match is CpuMatch.NOT_RUN


def test_typical_leaves_the_largest_tenth_aside() -> None:
    """One wild value in ten does not count, two do, and what is no number is never left out."""
    assert typical([1.0] * 9 + [1e6]) == 1.0
    assert typical([1.0] * 8 + [1e6] * 2) > 1e5
    assert typical([2.0]) == 2.0
    assert not typical([1.0, float("nan"), float("nan")]) <= 1.0


@pytest.mark.parametrize("off", [0.5 * NOISE, 1.5 * NOISE])
def test_a_match_is_not_contradicted_by_its_own_figures(off: float) -> None:
    """What `match` lets through, `contradicted` lets through from the figures alone."""
    told = match(_reference(off, [0.1]))
    check = told.check(cached=True)
    assert (check.cpu_match, check.cpu_reason) == (CpuMatch.NEAR_TIE, told.reason)
    assert (check.max_gap, check.departure, check.noise) == (
        told.max_gap,
        told.departure,
        told.noise,
    )
    assert check.reference_cached is True
    assert agreement.contradicted(check) is None
