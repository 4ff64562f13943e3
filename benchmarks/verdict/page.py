"""The figures of docs/verdict*.md: `python -m benchmarks.verdict.page --write`.

Every region between `<!-- figures: NAME -->` and `<!-- end figures -->` is made from what
benchmarks.verdict.tokens and benchmarks.verdict.calibrate left. Without --write the page is held
against them: exit code 1 when it says something else.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.verdict.corpus import HELD_OUT, TRAINING
from benchmarks.verdict.kinds import Label
from benchmarks.verdict.rates import rate
from benchmarks.verdict.tokens import BEST, FIGURES, GOOD, LEVELS, RUNS, Count
from pipeline.agreement import FLOOR, IN_NOISES
from pipeline.calibration import Calibration, Outcome, Rate, load_calibrations
from pipeline.judge import DEFAULT_JUDGE, MIN_PROMPTS
from pipeline.record import write_atomically

_DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGES: Final = (_DOCS / "verdict.md", _DOCS / "verdict-kinds.md")
SHOWN: Final = ("3", "8")
"""Prompts a run, of those that are shown kind by kind."""
_ALARMS: Final = (0.0, 0.005, 0.01, 0.05)
"""Shares of right runs that are failed, of those at which the ROC curve is shown."""
_SCORERS: Final = {
    "judge": "the judge",
    "judge_before": "the judge before this (bounds on each signal)",
    "mean_nll": "length-normalised likelihood alone",
}

Row = Sequence[str]


def _table(head: Row, rows: Iterable[Row]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _verdicts(tokens: Mapping[str, Any], level: str, prompts: str) -> dict[str, Count]:
    found = tokens["verdicts"][HELD_OUT][level][prompts]
    return {kind: Count(**counts) for kind, counts in found.items()}


def _all_faults(counts: Mapping[str, Count]) -> Count:
    return sum((one for kind, one in counts.items() if kind != GOOD), Count())


def _name(kind: str) -> str:
    """A kind as people say it."""
    return kind.replace("_", " ").replace("percent", "%")


def bounds(tokens: Mapping[str, Any]) -> str:
    """Each bound beside the worst right device and the mildest 1 % noise of the training half."""
    sides = [one for one in tokens["sides"] if one["half"] == TRAINING]
    right = [one for one in sides if one["label"] != Label.WRONG.value]
    noisy = [one for one in sides if one["kind"].endswith("noise_1_percent")]

    def worst(side: str) -> str:
        one = max(right, key=lambda each: float(each[side]))
        return f"{one[side]:.2f} ({one['model']}, {_name(one['kind'])})"

    mild = min(float(one["run"]) for one in noisy)
    wide = max(float(one["wide_steps"]) for one in right)
    own = [float(one["noise"]) for one in right if one["dtype"] == "bfloat16"]
    rows = [
        [
            "typical departure of the run",
            f"{IN_NOISES.run:g} noises; a mismatch from {IN_NOISES.wrong:g} on, in between "
            "`inconclusive`",
            f"worst right device {worst('run')}; weights with 1 % noise from {mild:.2f}",
        ],
        [
            "typical departure of each prompt",
            f"{IN_NOISES.prompt:g} noises",
            f"worst right device {worst('prompt')}",
        ],
        [
            "departure of each step",
            f"{IN_NOISES.step:g} noises",
            f"right devices are beyond this or the next bound in at most {wide:.2%} of the steps",
        ],
        ["token below the first choice, each step", f"{IN_NOISES.gap:g} noises", "as above"],
    ]
    table = _table(["what", "bound", "why there (training half)"], rows)
    return (
        f"{table}\n\nThe noise of the models at hand in bf16: {min(own):.3f} to {max(own):.3f} "
        f"nats. Less than {FLOOR:g} counts as {FLOOR:g}."
    )


def token_rates(tokens: Mapping[str, Any]) -> str:
    """False FAIL and false PASS by number of prompts."""
    rows = []
    for prompts in RUNS:
        counts = _verdicts(tokens, BEST, str(prompts))
        good, bad = counts[GOOD], _all_faults(counts)
        rows.append(
            [
                str(prompts),
                rate(good.refused, good.runs),
                rate(good.undecided, good.runs),
                rate(bad.passed, bad.runs),
            ]
        )
    return _table(
        ["prompts", "false FAIL", "right, inconclusive", "false PASS, all faults together"], rows
    )


def token_kinds(tokens: Mapping[str, Any]) -> str:
    """Passed, inconclusive and failed runs of each fault."""
    by_prompts = {prompts: _verdicts(tokens, BEST, prompts) for prompts in SHOWN}
    passing = [
        kind
        for kind in by_prompts["3"]
        if kind != GOOD and any(counts[kind].passed for counts in by_prompts.values())
    ]
    never = [kind for kind in by_prompts["3"] if kind != GOOD and kind not in passing]
    rows = []
    for kind in sorted(passing, key=lambda one: -by_prompts["8"][one].passed):
        cells = [by_prompts[prompts][kind] for prompts in SHOWN]
        rows.append(
            [_name(kind), *(f"{one.passed} / {one.undecided} / {one.refused}" for one in cells)]
        )
    head = ["fault", *(f"runs of {prompts}: pass / inconclusive / fail" for prompts in SHOWN)]
    listed = ", ".join(map(_name, never))
    return f"{_table(head, rows)}\n\nNever passed, with 3 prompts or with 8: {listed}."


def token_errors(tokens: Mapping[str, Any]) -> str:
    """Errors on each fault, and on what is right, with their intervals."""
    by_prompts = [_verdicts(tokens, BEST, prompts) for prompts in SHOWN]
    rows = []
    for kind in by_prompts[0]:
        good = kind == GOOD
        cells = []
        for counts in by_prompts:
            one = counts[kind]
            cells += [rate(one.refused if good else one.passed, one.runs), str(one.undecided)]
        rows.append([_name(kind), "false FAIL" if good else "false PASS", *cells])
    head = ["kind", "error"]
    for prompts in SHOWN:
        head += [f"runs of {prompts}", "inconclusive"]
    return _table(head, rows)


def token_evidence(tokens: Mapping[str, Any]) -> str:
    """What is lost where less evidence is there, in runs of 8."""
    rows = []
    for level in LEVELS:
        counts = _verdicts(tokens, level, "8")
        good, bad = counts[GOOD], _all_faults(counts)
        rows.append([level, rate(good.refused, good.runs), rate(bad.passed, bad.runs)])
    return _table(["the reference has", "false FAIL", "false PASS, all faults together"], rows)


def _share(of: Rate) -> str:
    return rate(of.k, of.n)


def judge_rates(calibration: Calibration) -> str:
    """Errors of the judge by number of prompts."""

    def both(drawn: float, of: Rate) -> str:
        return f"{drawn:.2%}; {_share(of)}"

    rows = [
        [
            prompts if int(prompts) >= MIN_PROMPTS else f"{prompts}, were these enough",
            both(errors.drawn_false_fail, errors.false_fail),
            f"{errors.drawn_right_inconclusive:.2%}",
            both(errors.drawn_false_pass, errors.false_pass),
            _share(errors.false_pass_hidden),
        ]
        for prompts, errors in _report(calibration).errors.items()
        if prompts != "1"
    ]
    return _table(
        [
            "prompts",
            "false FAIL",
            "right, inconclusive",
            "false PASS, fault visible in the text",
            "false PASS, fault that leaves fluent text",
        ],
        rows,
    )


def judge_curves(calibration: Calibration) -> str:
    """Area under the ROC curve of each way to score."""
    report = _report(calibration)
    prompts = list(report.curves)
    rows = [
        [told, *(f"{report.curves[one][scorer].auc:.4f}" for one in prompts)]
        for scorer, told in _SCORERS.items()
    ]
    return _table(["area under the ROC curve", *(f"runs of {one}" for one in prompts)], rows)


def judge_bounds(calibration: Calibration) -> str:
    """From which score on a run is what."""
    bounds = calibration.rule.bounds
    return (
        f"A run whose score is below {bounds.fluent:g} is fluent, above {bounds.not_fluent:g} not; "
        "in between it is `inconclusive`."
    )


def judge_roc(calibration: Calibration) -> str:
    """Points of the ROC curve of each way to score."""
    report = _report(calibration)
    rows = []
    for prompts, curves in report.curves.items():
        for scorer, told in _SCORERS.items():
            caught = dict(curves[scorer].roc)
            rows.append([prompts, told, *(f"{caught[alarms]:.1%}" for alarms in _ALARMS)])
    head = ["prompts", "score", *(f"caught at {alarms:.1%} false FAIL" for alarms in _ALARMS)]
    return _table(head, rows)


def judge_kinds(calibration: Calibration) -> str:
    """Verdicts on single kinds: what the judge sees, and what it does not."""
    report = _report(calibration)

    def cells(of: Outcome | None) -> list[str]:
        if of is None or not of.of:
            return ["-", "-"]
        counts = f"{of.fluent} / {of.of - of.fluent - of.not_fluent} / {of.not_fluent}"
        return [counts, rate(of.wrong.k, of.wrong.n).partition("= ")[2]]

    rows = []
    for kind, told in report.kinds.items():
        seen = "right" if told.visible is None else "visible" if told.visible else "hidden"
        auc = "-" if told.auc is None else f"{told.auc:.3f}"
        runs = [cell for prompts in SHOWN for cell in cells(told.runs.get(prompts))]
        rows.append((seen, [_name(kind), seen, auc, *runs]))
    order = ("right", "visible", "hidden")
    rows.sort(key=lambda row: order.index(row[0]))
    head = ["kind", "fault", "AUC of one text"]
    for prompts in SHOWN:
        head += [f"runs of {prompts}: fluent / inconclusive / not", "error"]
    return _table(head, [row for _, row in rows])


def _report(calibration: Calibration) -> Any:
    if calibration.held_out is None:
        raise ValueError("the judge's calibration has no report of the held-out half")
    return calibration.held_out


def figures() -> dict[str, str]:
    """Every region of the pages by its name."""
    tokens = json.loads(FIGURES.read_bytes())
    calibration = load_calibrations().judges[DEFAULT_JUDGE]
    of_tokens: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "bounds": bounds,
        "token rates": token_rates,
        "token kinds": token_kinds,
        "token errors": token_errors,
        "token evidence": token_evidence,
    }
    of_judge: dict[str, Callable[[Calibration], str]] = {
        "judge bounds": judge_bounds,
        "judge rates": judge_rates,
        "judge curves": judge_curves,
        "judge roc": judge_roc,
        "judge kinds": judge_kinds,
    }
    return {name: make(tokens) for name, make in of_tokens.items()} | {
        name: make(calibration) for name, make in of_judge.items()
    }


def renewed(text: str, found: Mapping[str, str]) -> str:
    """A page with every region made again. KeyError for a region of an unknown name."""
    return re.sub(
        r"<!-- figures: ([a-z ]+) -->\n.*?<!-- end figures -->",
        lambda hit: f"<!-- figures: {hit[1]} -->\n{found[hit[1].strip()]}\n<!-- end figures -->",
        text,
        flags=re.DOTALL,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Put the figures into their pages of docs.")
    parser.add_argument("--write", action="store_true", help="replace the pages' regions")
    options = parser.parse_args(arguments)
    found = figures()
    status = 0
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        new = renewed(old, found)
        if options.write:
            write_atomically(page, new.encode())
        elif new != old:
            print(f"{page.name} has other figures; make it again with --write", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
