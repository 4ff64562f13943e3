"""What the held-out half says of a rule: errors, curves, and a line for each kind of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.verdict.baseline import old_score, old_verdict
from benchmarks.verdict.kinds import Label
from benchmarks.verdict.measured import APART, Line, Values
from benchmarks.verdict.rates import interval
from benchmarks.verdict.runs import curve, disjoint, drawn
from pipeline.calibration import Bounds, Curve, Errors, KindFigures, Outcome, Rate, Report, Rule
from pipeline.judge import MIN_SAID, TextScore, combine, run_score, score_text
from pipeline.words import English

PROMPTS: Final = (1, 3, 4, 8)
NO_TEXT_NLL: Final = 20.0
"""Nats, above that of any text: what likelihood alone says of none, in its favour."""
SCORERS: Final = ("judge", "mean_nll", "judge_before")


@dataclass(frozen=True)
class Scored:
    """One held-out text with what each way to score says of it."""

    line: Line
    judged: TextScore
    mean_nll: float
    before: float


def score_lines(
    lines: Iterable[Line], values_of: Callable[[Line], Values | None], rule: Rule
) -> dict[str, list[Scored]]:
    """The texts by group, in the order of the lines."""
    found: dict[str, list[Scored]] = {}
    for line in lines:
        values = values_of(line)
        found.setdefault(line.group, []).append(
            Scored(
                line,
                score_text(
                    line.prompt,
                    line.text,
                    values.signals if values else None,
                    rule,
                    after_end=line.after_end,
                ),
                values.signals.mean_nll if values else NO_TEXT_NLL,
                old_score(line, values),
            )
        )
    return found


def make_report(
    texts: Mapping[str, Sequence[Scored]], rule: Rule, nll_bounds: Bounds
) -> tuple[Report, dict[str, dict[str, Errors]]]:
    """The report, and the errors of the other ways to score, by scorer and number of prompts.

    nll_bounds: the bounds for likelihood alone, set as those of the rule were.
    """
    verdicts: dict[str, Callable[[Sequence[Scored]], English]] = {
        "judge": lambda run: _verdict(run, rule),
        "mean_nll": lambda run: _by_bounds(_mean([one.mean_nll for one in run]), nll_bounds),
        "judge_before": lambda run: old_verdict([one.before for one in run]),
    }
    errors = {
        name: {str(prompts): _errors(texts, prompts, verdict) for prompts in PROMPTS}
        for name, verdict in verdicts.items()
    }
    curves = {str(prompts): _curves(texts, prompts, rule) for prompts in PROMPTS}
    kinds = {kind: _kind(kind, texts, rule) for kind in texts}
    return Report(errors=errors["judge"], curves=curves, kinds=kinds), errors


def _verdict(run: Sequence[Scored], rule: Rule) -> English:
    """That of the judge, did it not ask for MIN_PROMPTS texts; of one text what its bounds say."""
    if len(run) >= MIN_SAID:
        return combine([one.judged for one in run], rule, fewest=MIN_SAID)
    score = run_score([one.judged for one in run], rule)
    return _by_bounds(0.0 if score is None else score, rule.bounds)


def _by_bounds(score: float, bounds: Bounds) -> English:
    if score > bounds.not_fluent:
        return English.NOT_FLUENT
    return English.FLUENT if score < bounds.fluent else English.INCONCLUSIVE


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _rate(k: int, n: int) -> Rate:
    low, high = interval(k, n)
    return Rate(k=k, n=n, low=round(low, 5), high=round(high, 5))


def visible(texts: Sequence[Scored]) -> bool | None:
    """Whether a reader sees the fault of most texts of a group; None of one that is right."""
    seen = [one.line.visible for one in texts]
    return None if seen[0] is None else 2 * seen.count(True) > len(seen)


def _right(texts: Mapping[str, Sequence[Scored]]) -> list[str]:
    return [
        group
        for group, of in texts.items()
        if of[0].line.label is not Label.WRONG and of[0].line.kind not in APART
    ]


def _wrong(texts: Mapping[str, Sequence[Scored]], *, seen: bool) -> list[str]:
    return [group for group, of in texts.items() if visible(of) is seen]


def _errors(
    texts: Mapping[str, Sequence[Scored]],
    prompts: int,
    verdict: Callable[[Sequence[Scored]], English],
) -> Errors:
    counted = {kind: [verdict(run) for run in disjoint(of, prompts)] for kind, of in texts.items()}
    shares = {kind: [verdict(run) for run in drawn(of, prompts)] for kind, of in texts.items()}
    right, seen, hidden = _right(texts), _wrong(texts, seen=True), _wrong(texts, seen=False)

    def count(kinds: Sequence[str], said: English) -> Rate:
        verdicts = [one for kind in kinds for one in counted[kind]]
        return _rate(verdicts.count(said), len(verdicts))

    def share(kinds: Sequence[str], said: English) -> float:
        filled = [shares[kind] for kind in kinds if shares[kind]]
        return round(_mean([of.count(said) / len(of) for of in filled]), 5) if filled else 0.0

    return Errors(
        false_fail=count(right, English.NOT_FLUENT),
        false_pass=count(seen, English.FLUENT),
        false_pass_hidden=count(hidden, English.FLUENT),
        right_inconclusive=count(right, English.INCONCLUSIVE),
        wrong_inconclusive=count(seen, English.INCONCLUSIVE),
        drawn_false_fail=share(right, English.NOT_FLUENT),
        drawn_false_pass=share(seen, English.FLUENT),
        drawn_right_inconclusive=share(right, English.INCONCLUSIVE),
        drawn_wrong_inconclusive=share(seen, English.INCONCLUSIVE),
    )


def _numbers(run: Sequence[Scored], rule: Rule) -> dict[str, float]:
    score = run_score([one.judged for one in run], rule)
    return {
        "judge": 0.0 if score is None else score,
        "mean_nll": _mean([one.mean_nll for one in run]),
        "judge_before": _mean([one.before for one in run]),
    }


def _curves(texts: Mapping[str, Sequence[Scored]], prompts: int, rule: Rule) -> dict[str, Curve]:
    scored = {
        kind: [_numbers(run, rule) for run in drawn(of, prompts)] for kind, of in texts.items()
    }

    def of(scorer: str, kinds: Iterable[str]) -> dict[str, list[float]]:
        return {kind: [one[scorer] for one in scored[kind]] for kind in kinds}

    right, wrong = _right(texts), _wrong(texts, seen=True)
    return {scorer: curve(of(scorer, right), of(scorer, wrong)) for scorer in SCORERS}


def _kind(kind: str, texts: Mapping[str, Sequence[Scored]], rule: Rule) -> KindFigures:
    label = texts[kind][0].line.label
    wrong = label is Label.WRONG
    error = English.FLUENT if wrong else English.NOT_FLUENT

    def outcome(prompts: int) -> Outcome:
        said = [_verdict(run, rule) for run in disjoint(texts[kind], prompts)]
        return Outcome(
            of=len(said),
            fluent=said.count(English.FLUENT),
            not_fluent=said.count(English.NOT_FLUENT),
            wrong=_rate(said.count(error), len(said)),
        )

    def single(of: str) -> list[float]:
        return [_numbers([one], rule)["judge"] for one in texts[of]]

    auc = None
    if wrong:
        right = {other: single(other) for other in _right(texts)}
        auc = curve(right, {kind: single(kind)}).auc
    return KindFigures(
        label=label,
        visible=visible(texts[kind]),
        auc=auc,
        texts=outcome(1),
        runs={str(prompts): outcome(prompts) for prompts in PROMPTS if prompts > 1},
    )


def table(report: Report, errors: Mapping[str, Mapping[str, Errors]]) -> str:
    """The report for people: errors and curves of each scorer, then a line a kind."""
    lines = ["held-out half, runs of one kind each; intervals: exact 95 %, over disjoint runs"]
    for scorer, by_prompts in errors.items():
        for prompts, one in by_prompts.items():
            auc = report.curves[prompts][scorer]
            told = "no curve"
            if auc.auc is not None:
                told = f"AUC {auc.auc:.4f}, caught at 1 % false alarms {dict(auc.roc)[0.01]:.1%}"
            lines.append(
                f"{scorer:13}{prompts:>2} prompts  {told}; false FAIL {_said(one.false_fail)}, "
                f"false PASS {_said(one.false_pass)}, unseen faults {_said(one.false_pass_hidden)};"
                f" inconclusive {one.drawn_right_inconclusive:.1%} of right, "
                f"{one.drawn_wrong_inconclusive:.1%} of wrong; drawn: false FAIL "
                f"{one.drawn_false_fail:.2%}, false PASS {one.drawn_false_pass:.2%}"
            )
    lines.append("")
    heads = "".join(f"   {f'{prompts} prompts':>22}" for prompts in PROMPTS)
    lines.append(f"{'kind (of, fluent, inconclusive, not fluent)':44}{'AUC':>7}{heads}")
    for name, kind in report.kinds.items():
        mark = {None: "+", True: "-", False: "~"}[kind.visible]
        auc_text = "" if kind.auc is None else f"{kind.auc:.3f}"
        cells = "".join(f"   {_counts(one)}" for one in (kind.texts, *kind.runs.values()))
        lines.append(f"{mark} {name:42}{auc_text:>7}{cells}")
    lines.append("+ to be passed   - visibly wrong   ~ wrong, and a reader does not see it")
    return "\n".join(lines)


def _said(rate: Rate) -> str:
    return f"{rate.k}/{rate.n} ({rate.low:.1%}-{rate.high:.1%})"


def _counts(one: Outcome) -> str:
    return f"{one.of:4} {one.fluent:5} {one.of - one.fluent - one.not_fluent:5} {one.not_fluent:5}"
