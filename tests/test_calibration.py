"""The judge's calibration: what it says of itself, how it is learnt, how it is made again."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.verdict import calibrate
from benchmarks.verdict.bounds import find_bounds
from benchmarks.verdict.corpus import CORPUS, HELD_OUT
from benchmarks.verdict.fit import Labelled, fit, logistic, quantile, text_weights
from benchmarks.verdict.kinds import Label
from benchmarks.verdict.measured import (
    APART,
    MEASURED,
    Line,
    Measured,
    read_corpus,
)
from benchmarks.verdict.rates import interval, rate
from benchmarks.verdict.report import make_report, score_lines
from benchmarks.verdict.runs import curve, disjoint, drawn
from pipeline.calibration import (
    Calibration,
    KindFigures,
    Outcome,
    Report,
    Side,
    load_calibrations,
)
from pipeline.errors import EnvironmentFault
from pipeline.judge import DEFAULT_JUDGE
from pipeline.signals import Signals

PLAIN = Signals(
    tokens=32,
    mean_nll=2.0,
    typicality=0.0,
    worst_window=0.5,
    flattest_window=1.5,
    far_tokens=0.0,
    prompt_gain=0.7,
    echo=0.0,
    distinct_2=1.0,
    compressed=0.7,
    function_words=0.5,
    ascii_letters=1.0,
    letters_and_spaces=0.97,
    longest_word=9.0,
    broken_characters=0.0,
    after_end=0.0,
)


@pytest.fixture(scope="module")
def shipped() -> Calibration:
    """The calibration of the default judge."""
    return load_calibrations().judges[DEFAULT_JUDGE]


@pytest.fixture(scope="module")
def report(shipped: Calibration) -> Report:
    """Its figures of the held-out half, which a shipped calibration has."""
    assert shipped.held_out is not None
    return shipped.held_out


@pytest.fixture(scope="module")
def corpus() -> list[Line]:
    return read_corpus()


# What is shipped


def test_a_calibration_states_its_source() -> None:
    """Each comes with the command that made it, the versions, where the weights came from, and
    figures of the held-out half."""
    for one in load_calibrations().judges.values():
        assert one.source.startswith("python -m benchmarks.verdict.calibrate --judge DIR")
        assert {"python", "torch", "transformers", "scipy"} == set(one.made_with)
        assert one.note and one.held_out is not None
        assert one.training_auc >= calibrate.USELESS


def test_intervals_are_exact(report: Report) -> None:
    """Every interval is the Clopper-Pearson one of its own counts."""
    rates = [outcome.wrong for kind in report.kinds.values() for outcome in outcomes(kind)]
    rates += [
        getattr(errors, name)
        for errors in report.errors.values()
        for name in type(errors).model_fields
        if not name.startswith("drawn")
    ]
    assert len(rates) > 100
    for one in rates:
        assert (one.low, one.high) == pytest.approx(interval(one.k, one.n), abs=1e-5)


def outcomes(kind: KindFigures) -> list[Outcome]:
    return [kind.texts, *kind.runs.values()]


def test_errors_are_the_sums_of_the_kinds(report: Report, corpus: list[Line]) -> None:
    """No kind of the corpus is left out, and what is said of all kinds is what they add up to."""
    assert set(report.kinds) == {line.group for line in corpus if line.half == HELD_OUT}
    for prompts, errors in report.errors.items():
        of = {
            name: kind.texts if prompts == "1" else kind.runs[prompts]
            for name, kind in report.kinds.items()
        }
        wrong = [name for name, kind in report.kinds.items() if kind.label == Label.WRONG]
        right = [name for name in of if name not in wrong and name not in APART]
        seen = [name for name in wrong if report.kinds[name].visible]
        unseen = [name for name in wrong if not report.kinds[name].visible]
        assert errors.false_fail.k == sum(of[name].not_fluent for name in right)
        assert errors.false_fail.n == sum(of[name].of for name in right)
        assert errors.false_pass.k == sum(of[name].fluent for name in seen)
        assert errors.false_pass.n == sum(of[name].of for name in seen)
        assert errors.false_pass_hidden.k == sum(of[name].fluent for name in unseen)


MISSED = {"stale_cache_layer", "all_reduce_missing (picture)"}
"""Kinds whose fault shows in many of their texts, while others read well: runs of them passed."""


def test_the_judge_is_worth_having(report: Report) -> None:
    """On the held-out half, with three prompts or more: at most 1 % of the right runs fail; and no
    wrong run passes of any kind whose fault a reader sees, but for those that are named."""
    for prompts in ("3", "4", "8"):
        assert report.errors[prompts].drawn_false_fail <= 0.01
        for name, kind in report.kinds.items():
            if kind.visible and name not in MISSED:
                assert kind.runs[prompts].fluent == 0, name


def test_the_judge_beats_what_was_before(report: Report) -> None:
    """Likelihood alone, and the bounds of the judge before it, tell less apart, by the text and by
    the run of three."""
    for prompts in ("1", "3"):
        curves = report.curves[prompts]
        for other in ("mean_nll", "judge_before"):
            assert (curves["judge"].auc or 0) > (curves[other].auc or 0) > 0


def test_the_shipped_rule_is_what_the_training_half_gives(
    capsys: pytest.CaptureFixture[str], shipped: Calibration, corpus: list[Line]
) -> None:
    """Learnt again from the kept values of the judge, the rule comes out the same; and all that is
    kept is of the calibrated weights."""
    assert calibrate.main([]) == 0, capsys.readouterr().err
    kept = Measured.read(MEASURED)
    assert kept.weights_sha256 == shipped.weights_sha256
    assert kept.architecture == shipped.architecture


def test_the_shipped_report_is_what_the_held_out_half_gives(
    shipped: Calibration, report: Report, corpus: list[Line]
) -> None:
    """The verdicts counted again, kind by kind, are those in the file."""
    kept = Measured.read(MEASURED)
    held_out = [line for line in corpus if line.half == HELD_OUT]
    texts = score_lines(held_out, kept.__getitem__, shipped.rule)
    again, _ = make_report(texts, shipped.rule, calibrate.likelihood_bounds(corpus, kept))
    assert again.kinds == report.kinds and again.errors == report.errors


# How it is learnt


def test_intervals_of_known_counts() -> None:
    """Exact intervals: 3 of nothing is unknown, none of 100 leaves 3.6 %."""
    assert interval(0, 0) == (0.0, 1.0)
    assert interval(0, 100) == pytest.approx((0.0, 0.0362), abs=1e-4)
    assert interval(3, 3) == pytest.approx((0.2924, 1.0), abs=1e-4)
    assert rate(1, 200) == "1 of 200 = 0.5 % (0.0-2.8)"
    with pytest.raises(ValueError, match="not be greater"):
        interval(4, 3)


def test_kinds_weigh_the_same() -> None:
    """However many texts a kind has, and however many kinds a label."""
    weights = text_weights(["a", "a", "a", "b", "c"], [False, False, False, False, True])
    assert weights.tolist() == pytest.approx([1 / 12, 1 / 12, 1 / 12, 1 / 4, 1 / 2])


def test_quantiles_are_weighted() -> None:
    """The value up to which a share of the weight lies."""
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([8.0, 1.0, 1.0])
    assert quantile(values, weights, 0.1) == 1.0
    assert quantile(values, weights, 0.2) == 2.0
    assert quantile(values, weights, 0.5) == 3.0


def test_no_weight_speaks_for_a_text() -> None:
    """A column that is larger in right texts gets no weight, not a negative one."""
    far = np.array([[0.0, 3.0], [0.0, 3.0], [3.0, 0.0], [3.0, 0.0]])
    at = logistic(far, np.array([0.0, 0.0, 1.0, 1.0]), np.full(4, 0.25))
    assert at[1] > 0.5 and at[2] == 0.0


def test_the_fit_chooses_what_tells_apart() -> None:
    """Of all signals only those in which the wrong texts differ take part, on the side they do."""
    rng = random.Random(1)  # noqa: S311 (texts, not secrets)

    def texts(kind: str, wrong: bool, **shift: float) -> list[Labelled]:
        made = []
        for number in range(40):
            plain = {
                "mean_nll": rng.gauss(2, 0.4),
                "distinct_2": 1 - abs(rng.gauss(0, 0.03)),
                "prompt_gain": rng.gauss(0.7, 0.2),
            }
            moved = {name: value + shift.get(name, 0.0) for name, value in plain.items()}
            signals = Signals(**{**asdict(PLAIN), **moved})
            made.append(Labelled(kind, kind, wrong, f"p{number}", signals))
        return made

    found = fit(
        [
            *texts("good", wrong=False),
            *texts("noise", wrong=True, mean_nll=3.0),
            *texts("loop", wrong=True, distinct_2=-0.6),
        ]
    )
    terms = {(term.signal, term.side): term.weight for term in found.rule.terms}
    assert set(terms) == {("mean_nll", Side.HIGH), ("distinct_2", Side.LOW)}
    assert min(terms.values()) > 0
    assert found.rule.score(PLAIN) < 0 < found.rule.score(replace(PLAIN, mean_nll=5.0))
    with pytest.raises(ValueError, match="one of them is missing"):
        fit(texts("good", wrong=False))


def test_bounds_share_the_room_between() -> None:
    """Where right and wrong runs lie apart, a third of the room goes to each verdict."""
    found = find_bounds({"good": [-3.0] * 9}, {"bad": [3.0] * 9})
    assert (found.fluent, found.not_fluent) == (-1.0, 1.0)


def test_bounds_leave_what_overlaps_in_doubt() -> None:
    """Where they do not, nothing is decided in the range in which either may lie, whichever kind
    reaches into it and however many texts the others have."""
    right = {"good": [-3.0] * 50, "odd": [1.0] * 5}
    wrong = {"bad": [3.0] * 50, "mild": [-1.0] * 5}
    found = find_bounds(right, wrong)
    assert (found.fluent, found.not_fluent) == (-1.0, 1.0)


def test_curve_of_known_scores() -> None:
    """The area is the chance that a wrong text scores higher than a right one, ties half; kinds
    weigh the same."""
    assert curve({"r": [0.0, 1.0]}, {"w": [2.0, 3.0]}).auc == 1.0
    assert curve({"r": [1.0, 1.0]}, {"w": [1.0]}).auc == 0.5
    assert curve({"r": [0.0, 2.0]}, {"w": [1.0]}).auc == 0.5
    assert curve({"r": [0.0], "s": [2.0] * 9}, {"w": [1.0]}).auc == 0.5
    assert curve({"r": []}, {"w": [1.0]}).auc is None
    points = dict(curve({"r": [0.0] * 9 + [5.0]}, {"w": [4.0] * 3 + [6.0]}).roc)
    assert points[0.0] == 0.25 and points[0.1] == 1.0


def test_runs_are_of_different_texts() -> None:
    """Drawn runs never hold a text twice, disjoint ones share none; too few texts make none."""
    texts = list(range(10))
    assert all(len(set(run)) == 4 for run in drawn(texts, 4))
    assert drawn(texts, 1) == [[one] for one in texts]
    assert drawn(texts[:2], 3) == disjoint(texts[:2], 3) == []
    runs = disjoint(texts, 3)
    assert len(runs) == 3 and len({one for run in runs for one in run}) == 9
    assert runs == disjoint(texts, 3)


def test_nothing_held_out_is_learnt_from(corpus: list[Line]) -> None:
    """Without the held-out half the rule is the same: it has no part in it."""
    kept = Measured.read(MEASURED)
    training = [line for line in corpus if line.half != HELD_OUT]
    whole = calibrate.training_texts(corpus, kept)
    assert whole == calibrate.training_texts(training, kept)
    # The same few questions are asked of every picture; there the pictures differ.
    asked = {one.prompt for one in whole if not one.group.endswith("(picture)")}
    shared = asked & {line.prompt for line in corpus if line.half == HELD_OUT}
    assert asked and not shared, f"prompts in both halves: {sorted(shared)[:3]}"


# Another judge


def some_of(corpus: Sequence[Line], kinds: Sequence[str], folder: Path) -> Path:
    """A small corpus: six texts of each half of these kinds."""
    lines = []
    for kind in kinds:
        for half in ("training", "held_out"):
            of = [line for line in corpus if (line.kind, line.half) == (kind, half)][:6]
            lines += [
                {
                    "kind": line.kind,
                    "label": line.label.value,
                    "half": line.half,
                    "prompt": line.prompt,
                    "text": line.text,
                }
                for line in of
            ]
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_another_model_can_be_calibrated(
    tmp_path: Path,
    models: Callable[[str], Path],
    corpus: list[Line],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Any causal model in a directory goes through by one command. One that learnt a few lines of
    text is no judge: it is refused, and by force gets a calibration whose figures say so."""
    kinds = ["written_prose", "written_chat", "shuffled_words", "text_of_another_prompt"]
    some = some_of(corpus, kinds, tmp_path)
    out, kept = tmp_path / "calibration.json", tmp_path / "measured.json"
    files = ["--corpus", str(some), "--measured", str(kept), "--out", str(out), "--id", "org/tiny"]
    assert calibrate.main(files) == 2  # nothing is measured yet
    made = ["--judge", str(models("tiny-qwen3")), "--note", "tiny", "--report", "--write"]
    assert calibrate.main([*files, *made]) == 1
    assert "useless" in capsys.readouterr().err and not out.exists()
    assert calibrate.main([*files, *made, "--force"]) == 0
    found = load_calibrations(out).judges["org/tiny"]
    assert found.architecture.model_type == "qwen3" and not found.other_weights
    assert found.source.endswith("--id org/tiny --report --write")
    assert found.training_auc < calibrate.USELESS
    assert found.held_out is not None and set(found.held_out.kinds) == set(kinds)
    told = found.held_out.curves["3"]["judge"].auc
    assert told is not None and told < 0.9
    assert calibrate.main(files) == 0
    assert calibrate.main([*files, "--id", "org/other"]) == 1  # not in the file


def test_a_useless_judge_is_not_written(
    tmp_path: Path,
    models: Callable[[str], Path],
    corpus: list[Line],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What cannot tell wrong texts from right ones on left-out prompts is written only by force:
    here the `wrong` texts are good ones under the name of a fault."""
    some = some_of(corpus, ["written_prose", "written_story"], tmp_path)
    lines = [json.loads(line) for line in some.read_text().splitlines()]
    for line in lines[::2]:
        line.update(kind="two_texts_glued", label="wrong")
    some.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "calibration.json"
    command = ["--corpus", str(some), "--measured", str(tmp_path / "m.json"), "--out", str(out)]
    command += ["--judge", str(models("tiny-qwen3")), "--write"]
    assert calibrate.main(command) == 1
    assert "useless" in capsys.readouterr().err and not out.exists()
    assert calibrate.main([*command, "--force"]) == 0 and out.exists()


def test_an_unreadable_calibration_names_the_command(tmp_path: Path) -> None:
    """A calibration of another form is an error with the remedy, and is not written over."""
    path = tmp_path / "calibration.json"
    path.write_text('{"judges": {"org/judge": {"thresholds": {}}}}')
    with pytest.raises(EnvironmentFault, match=r"benchmarks\.verdict\.calibrate"):
        load_calibrations(path)
    assert calibrate.main(["--out", str(path), "--write"]) == 2
    assert "thresholds" in path.read_text()


def test_a_corpus_of_unknown_kinds_is_refused(tmp_path: Path) -> None:
    """A line that kinds.py does not know, or labels otherwise, is named."""
    assert CORPUS.is_file()
    path = tmp_path / "corpus.jsonl"
    line = {"kind": "written_prose", "label": "wrong", "half": "training", "prompt": "", "text": ""}
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(ValueError, match=r"corpus\.jsonl:1"):
        read_corpus(path)
