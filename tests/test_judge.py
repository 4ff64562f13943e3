"""What the judge must see, must not see, and must survive."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from pipeline import judge
from pipeline.errors import UsageError
from pipeline.judge import Bounds, Continuation, Signals, TextScore, Thresholds
from pipeline.words import English

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def smollm(models: Callable[[str], Path]) -> str:
    """The directory of the real judge model."""
    return str(models("SmolLM2-135M-Instruct"))


PROSE = (
    " we had to wait for the rain to stop before the boats could leave, and by then it was so "
    "dark that nobody could see the other side of the river"
)
THRESHOLDS = Thresholds(
    mean_nll=Bounds(fluent=4.0, not_fluent=5.0),
    worst_window=Bounds(fluent=6.0, not_fluent=7.0),
    distinct_2=Bounds(fluent=0.7, not_fluent=0.6),
    function_words=Bounds(fluent=0.25, not_fluent=0.15),
    ascii_letters=Bounds(fluent=0.97, not_fluent=0.96),
    broken_characters=Bounds(fluent=0.0, not_fluent=0.02),
)
GOOD = Signals(
    tokens=32,
    characters=140,
    mean_nll=2.5,
    worst_window=4.0,
    distinct_2=1.0,
    function_words=0.5,
    ascii_letters=1.0,
    broken_characters=0.0,
)


def scores(pattern: str) -> list[TextScore]:
    """One text a letter: f(luent), n(ot_fluent), i(nconclusive), x (not_run)."""
    verdicts = {
        "f": English.FLUENT,
        "n": English.NOT_FLUENT,
        "i": English.INCONCLUSIVE,
        "x": English.NOT_RUN,
    }
    return [TextScore(verdicts[letter], "") for letter in pattern]


# Signals


def test_signals_of_plain_prose() -> None:
    """Each signal is what its description says, on a text small enough to count by hand."""
    signals = judge.measure("the cat and the dog", [1.0, 2.0, 3.0, 4.0, 5.0])
    assert signals.tokens == 5
    assert signals.mean_nll == pytest.approx(3.0)
    assert signals.worst_window == pytest.approx(3.0)  # shorter than a window: all of it
    assert signals.distinct_2 == 1.0
    assert signals.function_words == pytest.approx(3 / 5)
    assert signals.ascii_letters == 1.0
    assert signals.broken_characters == 0.0


def test_worst_window_finds_a_bad_stretch_anywhere() -> None:
    """Eight bad tokens in a row count in full wherever they stand; the mean hides them."""
    for start in (0, 11, 24):
        nlls = [1.0] * 32
        nlls[start : start + 8] = [9.0] * 8
        signals = judge.measure(PROSE, nlls)
        assert signals.worst_window == pytest.approx(9.0)
        assert signals.mean_nll == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("text", "distinct"),
    [("the the the the the", 1 / 4), ("go on, go on. Go on!", 2 / 5), ("!!!!!!", 0), ("one", 0)],
)
def test_loops_lower_distinct_2(text: str, distinct: float) -> None:
    """A loop shows in the pairs of words, whatever its case and punctuation; no words, no pairs."""
    assert judge.measure(text, [0.1] * 8).distinct_2 == pytest.approx(distinct)


def test_ascii_counts_letters_only() -> None:
    """Curly quotes, dashes, emoji and digits are English too; letters of other scripts are not."""
    assert (
        judge.measure("\u201cIt\u2019s 20\u00b0 \u2014 warm!\u201d \U0001f600", [1.0]).ascii_letters
        == 1.0
    )
    assert judge.measure("ab\u0436\u0438", [1.0]).ascii_letters == pytest.approx(0.5)
    assert judge.measure("12 34", [1.0]).ascii_letters == 0.0


def test_a_curly_apostrophe_does_not_hide_a_function_word() -> None:
    """Typography of the model does not move the share of function words."""
    assert judge.measure("it\u2019s", [1.0]).function_words == 1.0


def test_broken_characters_are_counted() -> None:
    """U+FFFD, control and private-use characters count; line breaks and tabs do not."""
    assert judge.measure("a\ufffd\x00\ue000", [1.0]).broken_characters == pytest.approx(3 / 4)
    assert judge.measure("a\tb\r\n", [1.0]).broken_characters == 0.0


def test_no_tokens_no_signals() -> None:
    """Absence is never a number."""
    with pytest.raises(ValueError, match="without tokens"):
        judge.measure("", [])


# What is judged


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("<think>\nI should say so.</think> Yes.", "\nI should say so. Yes."),
        (" Paris.<|im_end|>\n<|im_start|>assistant\nIt is", " Paris.\n\nIt is"),
        ("<|channel|>analysis<|message|>The user asks", "The user asks"),
        ("It is.<\uff5cend\u2581of\u2581sentence\uff5c>", "It is."),
        ("[INST] Hello [/INST]</s><pad><pad>", " Hello "),
        ("a < b and c > d, x <y> z", "a < b and c > d, x <y> z"),
        ("cut in a char \ufffd\ufffd", "cut in a char "),
        ("torn \ufffd inside", "torn \ufffd inside"),
        ("lone \ud800 surrogate", "lone \ufffd surrogate"),
    ],
)
def test_markup_goes_and_text_stays(raw: str, seen: str) -> None:
    """Chat markup and a half character at the end are no part of the text; all else is."""
    assert judge.clean(raw) == seen


def test_length_is_bounded() -> None:
    """A device that writes megabytes costs no more than the stated bound."""
    assert len(judge.clean("word " * 1_000_000)) == judge.MAX_CHARACTERS
    assert judge.clean_prompt("a" * 10_000 + " the end").endswith(" the end")
    assert len(judge.clean_prompt("a" * 10_000)) == judge.MAX_CHARACTERS


# One text


def test_good_signals_are_fluent() -> None:
    """Every signal within its first bound: fluent."""
    assert judge.score_signals(GOOD, THRESHOLDS).verdict is English.FLUENT


@pytest.mark.parametrize(
    ("signal", "doubtful", "bad"),
    [
        ("mean_nll", 4.5, 5.5),
        ("worst_window", 6.5, 7.5),
        ("distinct_2", 0.65, 0.5),
        ("function_words", 0.2, 0.1),
        ("ascii_letters", 0.965, 0.9),
        ("broken_characters", 0.01, 0.03),
    ],
)
def test_each_signal_alone_decides(signal: str, doubtful: float, bad: float) -> None:
    """Each signal, on its bad side, makes a text inconclusive and then not_fluent, and is named."""
    between = judge.score_signals(Signals(**{**asdict(GOOD), signal: doubtful}), THRESHOLDS)
    beyond = judge.score_signals(Signals(**{**asdict(GOOD), signal: bad}), THRESHOLDS)
    assert between.verdict is English.INCONCLUSIVE and signal in between.reason
    assert beyond.verdict is English.NOT_FLUENT and signal in beyond.reason


def test_the_good_side_has_no_bound() -> None:
    """A text that is likelier and plainer than usual is still fluent."""
    easy = replace(GOOD, mean_nll=0.01, worst_window=0.02, function_words=0.9)
    assert judge.score_signals(easy, THRESHOLDS).verdict is English.FLUENT


def test_short_or_empty_texts_decide_nothing() -> None:
    """Too few tokens, or none, is inconclusive: neither a PASS nor the model's fault."""
    short = replace(GOOD, tokens=judge.MIN_TOKENS - 1, mean_nll=20.0)
    assert judge.score_signals(short, THRESHOLDS).verdict is English.INCONCLUSIVE
    assert judge.score_signals(None, THRESHOLDS).verdict is English.INCONCLUSIVE


@pytest.mark.parametrize(
    "text", ["-" * 32, " " * 400, "a" * 100, "\n1. \n2. \n3. \n4. \n5. \n6. \n7. \n8. \n9. "]
)
def test_ruin_in_few_tokens_is_not_fluent(text: str) -> None:
    """A long text without two words counts against, though it fits in a few likely tokens."""
    signals = judge.measure(text, [0.1, 0.1])
    assert judge.score_signals(signals, THRESHOLDS).verdict is English.NOT_FLUENT
    brief = judge.measure(text[: judge.MIN_CHARACTERS - 1], [0.1, 0.1])
    assert judge.score_signals(brief, THRESHOLDS).verdict is English.INCONCLUSIVE


# A run


@pytest.mark.parametrize(
    ("pattern", "verdict"),
    [
        ("fff", English.FLUENT),
        ("ffi", English.FLUENT),
        ("ffn", English.INCONCLUSIVE),
        ("fii", English.INCONCLUSIVE),
        ("iii", English.INCONCLUSIVE),
        ("fnn", English.NOT_FLUENT),
        ("ffffffff", English.FLUENT),
        ("ffffffni", English.FLUENT),
        ("ffffffnn", English.FLUENT),
        ("fffffnnn", English.INCONCLUSIVE),
        ("ffffnn", English.INCONCLUSIVE),
        ("fffffiii", English.INCONCLUSIVE),
        ("ffffnnnn", English.INCONCLUSIVE),
        ("fffnnnnn", English.NOT_FLUENT),
        ("ff", English.INCONCLUSIVE),
        ("f", English.INCONCLUSIVE),
        ("n", English.NOT_FLUENT),
        ("ffx", English.INCONCLUSIVE),
        ("xxx", English.NOT_RUN),
        ("", English.NOT_RUN),
    ],
)
def test_combine(pattern: str, verdict: English) -> None:
    """A run is fluent only on three judged texts or more, two thirds fluent, few against."""
    assert judge.combine(scores(pattern)) is verdict


# Which judge


def write_config(directory: Path, **changes: object) -> Path:
    known = judge.load_calibrations().judges[judge.DEFAULT_JUDGE].architecture.model_dump()
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**known, **changes}), encoding="utf-8")
    return directory


def test_a_directory_is_known_by_its_architecture(tmp_path: Path) -> None:
    """A rebuilt checkpoint of the same model needs no declaration."""
    identity, calibration = judge.find_calibration(str(write_config(tmp_path)))
    assert identity == judge.DEFAULT_JUDGE
    assert calibration.source


def test_a_judge_without_calibration_is_refused(tmp_path: Path) -> None:
    """Bounds of one model are never used for another; the error names the command to make them."""
    other = str(write_config(tmp_path, hidden_size=64))
    for model, declared in (
        (other, None),
        (other, judge.DEFAULT_JUDGE),
        (str(write_config(tmp_path / "same")), "somebody/else"),
        ("somebody/else", None),
        (str(tmp_path / "missing"), None),
    ):
        with pytest.raises(UsageError, match=r"benchmarks\.judge_thresholds"):
            judge.judge([Continuation("A", PROSE)], model=model, declared_id=declared)


def test_bounds_in_the_wrong_order_are_refused() -> None:
    """Bounds that leave no room between good and bad are an error, not a lax judge."""
    for name in Thresholds.model_fields:
        bounds = getattr(THRESHOLDS, name)
        swapped = {"fluent": bounds.not_fluent, "not_fluent": bounds.fluent}
        with pytest.raises(ValidationError, match=name):
            Thresholds.model_validate({**THRESHOLDS.model_dump(), name: swapped})


def test_a_directory_without_config_is_refused(tmp_path: Path) -> None:
    """The error names the file that is missing."""
    with pytest.raises(UsageError, match=r"config\.json"):
        judge.find_calibration(str(tmp_path))


def test_calibration_states_its_source_and_its_errors() -> None:
    """The bounds come with a command, a digest, and figures over three and eight prompts."""
    for calibration in judge.load_calibrations().judges.values():
        assert "benchmarks.judge_thresholds" in calibration.source
        assert len(calibration.weights_sha256) == 64
        assert set(calibration.runs) == {"3", "8"}
        for of in [calibration.single, *calibration.runs.values()]:
            for figures in of.values():
                total = figures.fluent + figures.inconclusive + figures.not_fluent
                assert total == pytest.approx(1.0, abs=0.005)


def test_calibrated_judge_is_worth_having() -> None:
    """Over eight prompts: healthy runs pass, gross faults never do, as far as was measured."""
    runs = judge.load_calibrations().judges[judge.DEFAULT_JUDGE].runs["8"]
    assert runs["prose"].not_fluent == 0 and runs["prose"].fluent > 0.8
    assert runs["healthy model"].not_fluent == 0 and runs["healthy model"].fluent > 0.8
    for kind in (
        "shuffled words",
        "random tokens",
        "loop of one token",
        "another language",
        "model: 30 % noise",
        "model: key heads swapped",
        "model: o_proj transposed",
        "model: half of every sum lost",
    ):
        assert runs[kind].fluent == 0 and runs[kind].not_fluent > 0.8, kind


# The judge's own process


def fake_python(path: Path, body: str) -> str:
    path.write_text(f"#!{sys.executable}\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import sys; sys.exit('no torch here')", "no torch here"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended with -9"),
        ("print('not json')", "cannot be read"),
        ("print('{}')", "cannot be read"),
        ('print(\'{"weights_sha256": "0", "nll": [[1.0], [1.0]]}\')', "wrong shape"),
        ('print(\'{"weights_sha256": "0", "nll": [[NaN]]}\')', "not finite"),
        ("import time; time.sleep(60)", "did not answer within"),
    ],
)
def test_a_failing_process_is_not_run(tmp_path: Path, body: str, said: str) -> None:
    """Whatever becomes of the judge's process, the run gets not_run and the reason."""
    model = str(write_config(tmp_path / "model"))
    python = fake_python(tmp_path / "python", body)
    found = judge.judge([Continuation("A", PROSE)], model=model, python=python, timeout=2)
    assert found.english is English.NOT_RUN
    assert said in found.reason
    assert found.score is None and found.judge == judge.DEFAULT_JUDGE


def test_a_missing_interpreter_is_not_run(tmp_path: Path) -> None:
    """An interpreter that is not there is a reason, not a traceback."""
    model = str(write_config(tmp_path))
    found = judge.judge([Continuation("A", PROSE)], model=model, python=str(tmp_path / "none"))
    assert found.english is English.NOT_RUN and "did not start" in found.reason


@pytest.mark.parametrize("revision", ["0123abc", None])
def test_a_hub_judge_can_be_pinned(tmp_path: Path, revision: str | None) -> None:
    """The process that downloads a Hub id is told the revision, or that there is none."""
    python = fake_python(
        tmp_path / "python", "import json, sys; sys.exit(repr(json.load(sys.stdin)['revision']))"
    )
    found = judge.judge([Continuation("A", PROSE)], revision=revision, python=python)
    assert found.reason.endswith(f": {revision!r}")


def test_nothing_to_judge_starts_no_process(tmp_path: Path) -> None:
    """Empty texts are inconclusive without a model, an empty run is not_run."""
    model = str(write_config(tmp_path))
    blank = [Continuation("A", ""), Continuation("B", "<|im_end|>"), Continuation("C", "\ufffd")]
    found = judge.judge(blank, model=model, python=str(tmp_path / "none"))
    assert found.english is English.INCONCLUSIVE and len(found.texts) == 3
    assert judge.judge([], model=model).english is English.NOT_RUN


def test_module_needs_no_torch() -> None:
    """The control plane judges without importing torch or transformers itself."""
    code = "import sys, pipeline.judge; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


GERMAN = (
    " wir mussten warten, bis der Regen aufhörte, bevor die Boote fahren konnten, und dann war es "
    "so dunkel, dass niemand das andere Ufer sehen konnte"
)
ASKED = [
    *(Continuation(at, PROSE) for at in ("Because of the storm", "At the harbour", "At dusk")),
    Continuation("So", " " + " ".join(sorted(PROSE.split()))),
    Continuation("So", " the end of the line," * 8),
    Continuation("So", GERMAN),
    *(
        Continuation("So", odd)
        for odd in ("", "\x00" * 40, "\ud800\udfff" * 20, "word " * 500_000, "\U0001f600" * 50)
    ),
]


@pytest.fixture(scope="module")
def judgement(smollm: str) -> judge.Judgement:
    """What the real model says of ASKED, in its own process."""
    return judge.judge(ASKED, model=smollm)


def test_real_judge_tells_prose_from_ruin(judgement: judge.Judgement) -> None:
    """Prose passes; shuffled words, a loop and another language do not, though the model finds the
    loop likelier than the prose."""
    verdicts = [score.verdict for score in judgement.texts]
    assert verdicts[:3] == [English.FLUENT] * 3
    assert verdicts[3:6] == [English.NOT_FLUENT] * 3
    prose, loop = judgement.texts[0].signals, judgement.texts[4].signals
    assert prose and loop and loop.mean_nll < prose.mean_nll


def test_real_judge_survives_odd_texts(judgement: judge.Judgement) -> None:
    """Empty text, control characters, surrogates, megabytes and emoji get a verdict each, never an
    error and never fluent."""
    assert len(judgement.texts) == len(ASKED)
    assert English.FLUENT not in {score.verdict for score in judgement.texts[6:]}
    assert all(one.signals.tokens <= judge.MAX_TOKENS for one in judgement.texts if one.signals)


def test_real_judge_names_itself_and_repeats_itself(
    judgement: judge.Judgement, smollm: str
) -> None:
    """The judge's weights are on the judgement, and a text gets the same numbers in any company."""
    sha256 = judge.weights_sha256(Path(smollm))
    assert judgement.weights_sha256 == sha256
    assert judgement.judge == f"{judge.DEFAULT_JUDGE}#sha256:{sha256[:12]}"
    alone = judge.judge([ASKED[1]], model=smollm, declared_id=judge.DEFAULT_JUDGE)
    assert alone.texts == judgement.texts[1:2]
    assert alone.texts[0].signals and alone.score == alone.texts[0].signals.mean_nll
    assert alone.english is English.INCONCLUSIVE  # fluent, but one prompt is too few
