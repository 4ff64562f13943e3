"""The verdict: what decides, in which order, and that doubt is never a PASS."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline import verdict
from pipeline.record import CallCounts, Check, Finding, Generation, Observation, Run
from pipeline.words import CpuMatch, English, Failure, Target, Task
from tests import papers

NONE = CallCounts(graphs=0, compiled=0, restored=0)
ONE_CORE = papers.run()
TWO_CORES = papers.run(placement=papers.placement(2))
MATCH = Check(cpu_match=CpuMatch.EXACT, max_gap=0.0)


def _answers(*tokens: tuple[int, ...]) -> tuple[Generation, ...]:
    return tuple(
        Generation(prompt=prompt, tokens=ids, text="text")
        for prompt, ids in zip(papers.PROMPTS, tokens, strict=False)
    )


def _seen(**changes: Any) -> Observation:
    answers = _answers((1, 2, 3, 4), (5, 6, 7, 8), (9, 8, 7, 8))
    return papers.observation(**{"ranks_agree": True, "generations": answers, **changes})


@pytest.mark.parametrize(
    ("changes", "failure"),
    [
        ({}, None),
        ({"all_calls": NONE, "first_call": NONE}, Failure.CPU_FALLBACK),
        ({"all_calls": CallCounts(graphs=2, compiled=0, restored=0)}, Failure.CPU_FALLBACK),
        ({"all_calls": CallCounts(graphs=2, compiled=None, restored=None)}, Failure.CPU_FALLBACK),
        ({"all_calls": CallCounts(graphs=2, compiled=0, restored=2)}, None),
        ({"second_call": CallCounts(graphs=1, compiled=1, restored=0)}, Failure.RECOMPILED),
        ({"second_call": CallCounts(graphs=0, compiled=1, restored=0)}, Failure.RECOMPILED),
        ({"second_call": CallCounts(graphs=1, compiled=0, restored=1)}, Failure.RECOMPILED),
        (
            {"all_calls": CallCounts(graphs=4, compiled=4, restored=0), "backend_graphs": 4},
            Failure.RECOMPILED,
        ),
        ({"backend_graphs": 3}, None),
        ({"backend_graphs": 1}, Failure.CPU_FALLBACK),
        ({"backend_graphs": 0}, Failure.CPU_FALLBACK),
        ({"backend_graphs": None}, Failure.INCONCLUSIVE),
        ({"first_call": None}, Failure.HARNESS),
        ({"second_call": None}, Failure.HARNESS),
        ({"all_calls": None}, Failure.HARNESS),
        ({"generations": ()}, Failure.HARNESS),
        ({"logits_finite": False}, Failure.WRONG_TOKENS),
        ({"logits_finite": None}, Failure.WRONG_TOKENS),
        ({"repeatable": False}, Failure.WRONG_TOKENS),
        ({"repeatable": None}, Failure.WRONG_TOKENS),
        ({"vocab_size": None}, Failure.WRONG_TOKENS),
        ({"vocab_size": 9}, Failure.WRONG_TOKENS),
        ({"generations": _answers((1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4))}, Failure.WRONG_TOKENS),
        (
            {"generations": _answers((-1, 2, 3, 4), (1, 2, 3, 4), (5, 6, 7, 8))},
            Failure.WRONG_TOKENS,
        ),
    ],
)
def test_guards(changes: dict[str, Any], failure: Failure | None) -> None:
    """Each guard fails the run by itself, whatever the CPU said; without one it passes."""
    assert verdict.decide(ONE_CORE, _seen(**changes), MATCH).failure is failure


def test_a_finding_outweighs_the_tokens() -> None:
    """A line of the log decides whatever the tokens are, and the machine before the model."""
    fallback = Finding(signature="a", failure=Failure.CPU_FALLBACK, line="ran eager")
    fault = Finding(signature="b", failure=Failure.DEVICE_FAULT, line="memory error")
    told = verdict.decide(ONE_CORE, _seen(), MATCH, [fallback])
    assert told == verdict.Verdict(Failure.CPU_FALLBACK, "the log says: ran eager")
    told = verdict.decide(ONE_CORE, _seen(), MATCH, [fallback, fault])
    assert told == verdict.Verdict(Failure.DEVICE_FAULT, "the log says: memory error")


def test_the_cpu_has_no_list_of_graphs() -> None:
    """Off the device nobody is asked how many graphs the backend made."""
    asked = papers.run(stack=papers.stack(Target.CPU))
    assert verdict.decide(asked, _seen(backend_graphs=None), MATCH).failure is None


@pytest.mark.parametrize(("agree", "failure"), [(True, None), (False, "w"), (None, "w")])
def test_ranks_must_agree(agree: bool | None, failure: str | None) -> None:
    """On several cores the ranks' tokens are compared, and not knowing is not agreement."""
    told = verdict.decide(TWO_CORES, _seen(ranks_agree=agree), MATCH)
    assert told.failure is (Failure.WRONG_TOKENS if failure else None)


def test_one_core_has_no_ranks() -> None:
    """A single rank has nobody to agree with."""
    assert verdict.decide(ONE_CORE, _seen(ranks_agree=None), MATCH).failure is None


@pytest.mark.parametrize("run", [ONE_CORE, TWO_CORES])
@pytest.mark.parametrize(
    ("cpu", "english", "failure"),
    [
        (CpuMatch.EXACT, English.NOT_RUN, None),
        (CpuMatch.NEAR_TIE, English.NOT_FLUENT, None),
        (CpuMatch.MISMATCH, English.FLUENT, Failure.WRONG_TOKENS),
        (CpuMatch.MISMATCH, English.NOT_RUN, Failure.WRONG_TOKENS),
        (CpuMatch.INCONCLUSIVE, English.FLUENT, Failure.INCONCLUSIVE),
        (CpuMatch.INCONCLUSIVE, English.NOT_FLUENT, Failure.INCONCLUSIVE),
        (CpuMatch.NOT_RUN, English.FLUENT, None),
        (CpuMatch.NOT_RUN, English.NOT_FLUENT, Failure.NOT_FLUENT),
        (CpuMatch.NOT_RUN, English.INCONCLUSIVE, Failure.INCONCLUSIVE),
        (CpuMatch.NOT_RUN, English.NOT_RUN, Failure.INCONCLUSIVE),
    ],
)
def test_evidence(run: Run, cpu: CpuMatch, english: English, failure: Failure | None) -> None:
    """The CPU decides where it ran, the judge where it did not, and doubt is an ERROR."""
    told = verdict.decide(run, _seen(), Check(cpu_match=cpu, max_gap=0.1, english=english))
    assert told.failure is failure
    assert bool(told.reason) is (failure is not None)


@pytest.mark.parametrize(
    "answers",
    [
        _answers((1, 2, 3, 4), (9, 9, 9, 9), (5, 6, 7, 8)),
        _answers((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)),
    ],
)
def test_constant_output(answers: tuple[Generation, ...]) -> None:
    """One token over and over, or one answer to every prompt, fails unless the CPU says it too."""
    seen = _seen(generations=answers)
    fluent = Check(english=English.FLUENT)
    assert verdict.decide(ONE_CORE, seen, fluent).failure is Failure.WRONG_TOKENS
    assert verdict.decide(ONE_CORE, seen, MATCH).failure is None


def test_three_questions_about_one_picture_may_have_one_answer() -> None:
    """The same answer to every prompt is a fault only where the prompts ask different things."""
    seen = _seen(generations=_answers((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)))
    picture = papers.run(task=Task.IMAGE_TEXT_TO_TEXT)
    assert verdict.decide(picture, seen, Check(english=English.FLUENT)).failure is None


@pytest.mark.parametrize(
    ("figures", "failure"),
    [
        ({"max_gap": 0.3, "departure": 0.05, "noise": 0.04}, None),
        ({"max_gap": 0.3, "departure": 0.07, "noise": 0.04}, Failure.WRONG_TOKENS),
        ({"max_gap": 0.3, "departure": 0.05, "noise": 0.3}, Failure.WRONG_TOKENS),
        ({"max_gap": 1.1}, Failure.WRONG_TOKENS),
        ({}, Failure.WRONG_TOKENS),
    ],
)
@pytest.mark.parametrize("match", [CpuMatch.EXACT, CpuMatch.NEAR_TIE])
def test_a_match_must_be_borne_out_by_its_figures(
    figures: dict[str, float], failure: Failure | None, match: CpuMatch
) -> None:
    """A record that says the tokens match, with figures beyond the bounds, is no PASS."""
    told = verdict.decide(ONE_CORE, _seen(), Check(cpu_match=match, **figures))
    assert told.failure is failure
