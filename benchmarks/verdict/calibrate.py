"""Calibrate a judge: `python -m benchmarks.verdict.calibrate --judge DIR --id ID --report --write`.

From the training half of corpus.jsonl it learns which signals of a text speak against it, how much,
and the two bounds on a run's score (fit.py, bounds.py say how). Nothing of the held-out half is
looked at, unless --report asks for its figures: that is for a rule that is settled, since a rule
changed after it saw them has no held-out half any more.

What the judge model says of the texts is kept in measured.json, so only texts that are not in it
need the model; --measured names another file. With --write the calibration goes to
pipeline/data/judge_calibration.json (--out: another file). A judge that cannot tell texts apart on
left-out prompts of the training half (area under the ROC below USELESS) is not written without
--force. Without --write the rule is held against the one in the file: exit code 1 when they differ.

A word of caution: the model texts of the corpus come from SmolLM2-135M, which is the default judge
too, and a model finds its own text likelier than that of others. The written kinds (right ones and
other languages) are there because of it.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from benchmarks.verdict.bounds import find_bounds
from benchmarks.verdict.corpus import CORPUS, HELD_OUT, TRAINING
from benchmarks.verdict.fit import Labelled, fit
from benchmarks.verdict.kinds import Label
from benchmarks.verdict.measured import (
    APART,
    MEASURED,
    Line,
    Measured,
    measured_of,
    read_corpus,
)
from benchmarks.verdict.report import NO_TEXT_NLL, make_report, score_lines, table
from benchmarks.verdict.runs import curve
from pipeline.calibration import (
    CALIBRATION_FILE,
    Bounds,
    Calibration,
    CalibrationFile,
    Rule,
    load_calibrations,
)
from pipeline.errors import QualifyError
from pipeline.judge import DEFAULT_JUDGE, says_too_little

DATA: Final = Path(__file__).resolve().parents[2] / "pipeline" / "data" / CALIBRATION_FILE
USELESS: Final = 0.9
SAME: Final = 0.01
"""So far a number of the rule may move between machines, whose arithmetic differs a little."""

Say = Callable[[str], None]


def training_lines(lines: Sequence[Line]) -> list[Line]:
    """What a rule is learnt from: right texts, and wrong ones whose fault a reader sees."""
    return [
        line
        for line in lines
        if line.half == TRAINING
        and line.kind not in APART
        and (line.label is not Label.WRONG or line.visible)
    ]


def training_texts(lines: Sequence[Line], measured: Measured) -> list[Labelled]:
    """Those that say something, each once a kind."""
    found: dict[tuple[str, str], Labelled] = {}
    for line in training_lines(lines):
        values = measured[line]
        if values is None or says_too_little(line.text, values.signals):
            continue
        wrong = line.label is Label.WRONG
        one = Labelled(line.kind, line.group, wrong, line.prompt, line.signals(values))
        found.setdefault((line.kind, line.key), one)
    return list(found.values())


def scores_by_group(
    lines: Sequence[Line],
    measured: Measured,
    texts: Sequence[Labelled],
    scores: Sequence[float],
    nothing: float,
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Scores of right and of wrong training texts by group, for runs to be put together from.

    Texts that show nothing are among them, with the score `nothing` that they get without a rule.
    """
    found: tuple[dict[str, list[float]], dict[str, list[float]]] = ({}, {})
    for one, score in zip(texts, scores, strict=True):
        found[one.wrong].setdefault(one.group, []).append(score)
    for line in training_lines(lines):
        if measured[line] is None:
            found[line.label is Label.WRONG].setdefault(line.group, []).append(nothing)
    return found


def learn(lines: Sequence[Line], measured: Measured, say: Say) -> tuple[Rule, float]:
    """(rule, area under the ROC over left-out prompts), from the training half."""
    texts = training_texts(lines, measured)
    fitted = fit(texts, say)
    scores = fitted.scores.tolist()
    right, wrong = scores_by_group(lines, measured, texts, scores, fitted.rule.cap)
    rule = fitted.rule.model_copy(update={"bounds": find_bounds(right, wrong)})
    return rule, curve(right, wrong).auc or 0.0


def likelihood_bounds(lines: Sequence[Line], measured: Measured) -> Bounds:
    """The bounds for mean_nll alone, set in the same way on the same texts."""
    texts = training_texts(lines, measured)
    values = [one.signals.mean_nll for one in texts]
    return find_bounds(*scores_by_group(lines, measured, texts, values, NO_TEXT_NLL))


def describe(rule: Rule) -> str:
    """The rule for people."""
    terms = [
        f"  {term.signal:20}{term.side:5} beyond {term.centre:8.3f}, by {term.spread:7.3f}: "
        f"{term.weight:.3f}"
        for term in rule.terms
    ]
    head = f"score of a text: {rule.bias:.3f}, to which each signal adds for every spread"
    bounds = (
        f"a run is fluent below {rule.bounds.fluent}, not fluent above {rule.bounds.not_fluent}"
    )
    return "\n".join([head, *terms, bounds])


def differences(old: Rule, new: Rule) -> list[str]:
    """Where two rules differ by more than SAME."""
    found = []
    was = {(term.signal, term.side): term for term in old.terms}
    now = {(term.signal, term.side): term for term in new.terms}
    for key in sorted(was.keys() ^ now.keys()):
        found.append(f"{' '.join(key)}: in one of the two only")
    pairs = [("bias", old.bias, new.bias)]
    pairs += [
        (f"bounds.{side}", getattr(old.bounds, side), getattr(new.bounds, side))
        for side in Bounds.model_fields
    ]
    for key in sorted(was.keys() & now.keys()):
        pairs += [
            (f"{' '.join(key)}.{name}", getattr(was[key], name), getattr(now[key], name))
            for name in ("centre", "spread", "weight")
        ]
    found += [f"{name}: was {a}, is {b}" for name, a, b in pairs if abs(a - b) > SAME]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Calibrate a judge of fluent English.")
    parser.add_argument("--judge", type=Path, metavar="DIR", help="model directory")
    parser.add_argument("--id", default=DEFAULT_JUDGE, help="Hub id of what DIR holds")
    parser.add_argument("--note", default="", help="where the weights came from")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--measured", type=Path, default=MEASURED)
    parser.add_argument("--report", action="store_true", help="figures of the held-out half too")
    parser.add_argument("--other-weights", action="store_true", help="let other weights use it")
    parser.add_argument("--out", type=Path, default=DATA, help="the calibration file")
    parser.add_argument("--write", action="store_true", help="write it into the file")
    parser.add_argument("--force", action="store_true", help="even if it is useless")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except (QualifyError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    started = time.monotonic()
    known = load_calibrations(options.out).judges if options.out.exists() else {}
    lines = read_corpus(options.corpus)
    if options.judge:
        measured = measured_of(options.judge, options.measured)
        for _ in measured.complete(options.judge, lines, print):
            measured.write(options.measured)
        measured = measured.only(lines)  # what is no longer in the corpus goes
        measured.write(options.measured)
    else:
        measured = Measured.read(options.measured)
    missing = sum(line not in measured for line in lines)
    if missing:
        print(f"{missing} texts are not measured; name the model: --judge DIR", file=sys.stderr)
        return 2
    rule, auc = learn(lines, measured, print)
    print(describe(rule))
    print(f"area under the ROC, texts of left-out prompts of the training half: {auc:.4f}")
    report = None
    if options.report:
        held_out = [line for line in lines if line.half == HELD_OUT]
        report, errors = make_report(
            score_lines(held_out, measured.__getitem__, rule),
            rule,
            likelihood_bounds(lines, measured),
        )
        print(table(report, errors))
    print(f"{time.monotonic() - started:.0f} s")
    if not options.write:
        return _compare(known, options.id, rule)
    if auc < USELESS and not options.force:
        print(f"not written: an area below {USELESS} is a useless judge (--force)", file=sys.stderr)
        return 1
    calibration = Calibration(
        architecture=measured.architecture,
        weights_sha256=measured.weights_sha256,
        other_weights=options.other_weights,
        note=options.note,
        source=_command(options),
        made_with={
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("torch", "transformers", "scipy")},
        },
        training_auc=auc,
        rule=rule,
        held_out=report,
    )
    file = CalibrationFile(judges={**known, options.id: calibration})
    options.out.write_text(file.model_dump_json(indent=1) + "\n", encoding="utf-8")
    print(f"wrote {options.out}")
    return 0


def _compare(known: Mapping[str, Calibration], identity: str, rule: Rule) -> int:
    if identity not in known:
        print(f"no calibration of {identity} to hold it against; make it with --write")
        return 1
    moved = differences(known[identity].rule, rule)
    for line in moved:
        print(f"differs: {line}", file=sys.stderr)
    return 1 if moved else 0


def _command(options: argparse.Namespace) -> str:
    flags = "".join(
        f" --{name}"
        for name in ("report", "other-weights")
        if getattr(options, name.replace("-", "_"))
    )
    return f"python -m benchmarks.verdict.calibrate --judge DIR --id {options.id}{flags} --write"


if __name__ == "__main__":
    sys.exit(main())
