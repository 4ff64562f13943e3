"""The verdict on a run that generated to the end: guards, then tokens against the CPU, then judge.

Evidence in order of strength. What fails a guard fails whatever it reads like. Where the CPU
reference ran, it decides, on one core and sharded; the judge decides only where it could not run.
Nobody's doubt is a PASS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.agreement import Match, contradicted, match
from pipeline.record import Check, Finding, Observation, Run
from pipeline.words import CpuMatch, English, Failure, Result, Target, Task

__all__ = ["Match", "Verdict", "decide", "guards", "match"]


@dataclass(frozen=True)
class Verdict:
    """failure None = PASS."""

    failure: Failure | None
    reason: str


def guards(run: Run, seen: Observation, findings: Sequence[Finding] = ()) -> Verdict | None:
    """What no reading of the text can mend; None when all of it is in order."""
    placement = run.placement
    if placement is None:
        return Verdict(Failure.HARNESS, "a refused run was executed")
    if findings:
        # What speaks of the machine stands above what it may have done to the model.
        worst = min(findings, key=lambda one: one.failure.result is not Result.ERROR)
        return Verdict(worst.failure, f"the log says: {worst.line}"[:4_000])
    calls = seen.all_calls
    if calls is None or seen.second_call is None or seen.first_call is None:
        return Verdict(Failure.HARNESS, "run.py ended well without saying what it counted")
    if calls.graphs == 0 or not (calls.compiled or calls.restored):
        return Verdict(
            Failure.CPU_FALLBACK,
            f"no compiled graph: {calls.graphs} captured, {calls.compiled} compiled, "
            f"{calls.restored} from the cache",
        )
    if run.stack.target is not Target.CPU:
        # Eager operators are compiled too, so the compiler's counters alone prove no graph.
        if seen.backend_graphs is None:
            return Verdict(
                Failure.INCONCLUSIVE, "the neuron backend did not say how many graphs it made"
            )
        if seen.backend_graphs < calls.graphs:
            return Verdict(
                Failure.CPU_FALLBACK,
                f"{calls.graphs} graphs were captured and the neuron backend made "
                f"{seen.backend_graphs}",
            )
    if seen.second_call.graphs or seen.second_call.compiled:
        return Verdict(
            Failure.RECOMPILED,
            f"the second, identical call made {seen.second_call.graphs} new graphs and compiled "
            f"{seen.second_call.compiled}",
        )
    if calls.graphs > seen.first_call.graphs:
        return Verdict(
            Failure.RECOMPILED, "prompts of the same padded length made new graphs after the first"
        )
    if len(seen.generations) != len(run.prompts):
        return Verdict(
            Failure.HARNESS, f"{len(seen.generations)} answers to {len(run.prompts)} prompts"
        )
    if seen.logits_finite is not True:
        return Verdict(Failure.WRONG_TOKENS, "logits are NaN or infinite")
    if placement.cores > 1 and seen.ranks_agree is not True:
        return Verdict(Failure.WRONG_TOKENS, "ranks ended with different tokens")
    if seen.repeatable is not True:
        return Verdict(Failure.WRONG_TOKENS, "the same prompt gave other tokens the second time")
    for number, one in enumerate(seen.generations, 1):
        if len(one.tokens) != run.new_tokens:
            return Verdict(
                Failure.WRONG_TOKENS,
                f"prompt {number} gave {len(one.tokens)} tokens instead of {run.new_tokens}",
            )
        if seen.vocab_size is None or not all(0 <= t < seen.vocab_size for t in one.tokens):
            return Verdict(
                Failure.WRONG_TOKENS,
                f"prompt {number} gave an id outside the vocabulary of {seen.vocab_size}",
            )
    return None


def decide(run: Run, seen: Observation, check: Check, findings: Sequence[Finding] = ()) -> Verdict:
    """PASS or why not, once all evidence is in."""
    if (broken := guards(run, seen, findings)) is not None:
        return broken
    match check.cpu_match:
        case CpuMatch.MISMATCH:
            return Verdict(Failure.WRONG_TOKENS, check.cpu_reason or "tokens differ from the CPU's")
        case CpuMatch.INCONCLUSIVE:
            reason = check.cpu_reason or "the comparison with the CPU could not decide"
            return Verdict(Failure.INCONCLUSIVE, reason)
        case CpuMatch.EXACT | CpuMatch.NEAR_TIE:
            if told := contradicted(check, routed=run.mixture_of_experts):
                return Verdict(Failure.WRONG_TOKENS, f"{check.cpu_match}, but {told}")
            return Verdict(None, "")
        case CpuMatch.NOT_RUN:
            pass  # the judge has to tell
    answers = [one.tokens for one in seen.generations]
    constant = _constant(answers, same_question=run.task is Task.IMAGE_TEXT_TO_TEXT)
    if constant:
        return Verdict(Failure.WRONG_TOKENS, constant)
    why = check.cpu_reason or "not run"
    match check.english:
        case English.FLUENT:
            return Verdict(None, "")
        case English.NOT_FLUENT:
            return Verdict(Failure.NOT_FLUENT, check.judge_reason or "not fluent English")
        case English.INCONCLUSIVE:
            return Verdict(
                Failure.INCONCLUSIVE,
                f"the judge could not decide ({check.judge_reason}) and the CPU reference: {why}",
            )
        case English.NOT_RUN:
            return Verdict(
                Failure.INCONCLUSIVE,
                f"neither the CPU reference ({why}) nor the judge ({check.judge_reason}) ran",
            )


def _constant(answers: Sequence[Sequence[int]], *, same_question: bool) -> str | None:
    """What is constant in the answers; the prompts of a picture all ask for its description."""
    for number, tokens in enumerate(answers, 1):
        if len(tokens) > 1 and len(set(tokens)) == 1:
            return f"prompt {number} gave token {tokens[0]} {len(tokens)} times"
    if not same_question and len(answers) > 1 and len({tuple(tokens) for tokens in answers}) == 1:
        return "every prompt gave the same tokens"
    return None
