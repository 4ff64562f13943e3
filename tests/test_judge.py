"""What the judge must see, must not see, and must survive."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from pipeline import judge
from pipeline.calibration import (
    Architecture,
    Bounds,
    Calibration,
    CalibrationFile,
    Rule,
    Side,
    Term,
    architecture_of,
)
from pipeline.errors import UsageError
from pipeline.judge import Continuation, TextScore
from pipeline.likelihood import Likelihood, Tokens
from pipeline.signals import WINDOW, Signals, TokenSignals, measure, summarise
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
RULE = Rule(
    bias=-3.0,
    limit=6.0,
    cap=4.0,
    terms=(
        Term(signal="mean_nll", side=Side.HIGH, centre=3.0, spread=0.5, weight=2.0),
        Term(signal="distinct_2", side=Side.LOW, centre=0.9, spread=0.1, weight=1.0),
    ),
    bounds=Bounds(fluent=-1.0, not_fluent=1.0),
)
SUMMARY = TokenSignals(
    tokens=32,
    mean_nll=2.5,
    typicality=0.0,
    worst_window=0.5,
    flattest_window=1.5,
    far_tokens=0.0,
    prompt_gain=0.7,
)
GOOD = measure("Because of the storm", PROSE, SUMMARY)


def tokens(nll: list[float], **others: list[float]) -> Tokens:
    """Values of as many tokens; what is not given is as if the judge had expected just that."""
    columns = {"nll": nll, "alone": nll, "entropy": nll, "variance": [1.0] * len(nll), **others}
    return Tokens(rank=(0,) * len(nll), **{name: tuple(of) for name, of in columns.items()})


def counts(text: str, prompt: str = "") -> Signals:
    """The signals of a text whose tokens do not matter."""
    return measure(prompt, text, SUMMARY)


# Signals


def test_signals_of_tokens() -> None:
    """Each signal of the tokens is what its description says, on numbers to reckon by hand."""
    found = summarise(
        Tokens(
            nll=(1.0, 2.0, 3.0),
            alone=(2.0, 4.0, 6.0),
            entropy=(1.0, 1.0, 1.0),
            variance=(1.0, 1.0, 1.0),
            rank=(0, 999, 1000),
        )
    )
    assert found.tokens == 3
    assert found.mean_nll == pytest.approx(2.0)
    assert found.typicality == pytest.approx((6 - 3) / math.sqrt(3 + 1))
    assert found.worst_window == pytest.approx(1.0)  # shorter than a window: all of it
    assert found.flattest_window == pytest.approx(2.0)
    assert found.far_tokens == pytest.approx(1 / 3)
    assert found.prompt_gain == pytest.approx(2.0)


def test_windows_find_a_stretch_anywhere() -> None:
    """Eight tokens in a row that are far too surprising, or dead certain, count in full wherever
    they stand; the mean hides them."""
    for start in (0, 11, 24):
        nll = [2.0] * 32
        nll[start : start + WINDOW] = [9.0] * WINDOW
        found = summarise(tokens(nll, entropy=[2.0] * 32))
        assert found.worst_window == pytest.approx(7.0)
        assert found.mean_nll == pytest.approx(3.75)
        nll[start : start + WINDOW] = [0.0] * WINDOW
        assert summarise(tokens(nll)).flattest_window == pytest.approx(0.0)


def test_certain_tokens_divide_by_nothing() -> None:
    """A judge that is sure of every token gives finite signals."""
    found = summarise(tokens([0.0] * 32, variance=[0.0] * 32))
    assert found.typicality == 0.0


def test_no_tokens_no_signals() -> None:
    """Absence is never a number."""
    with pytest.raises(ValueError, match="without tokens"):
        summarise(tokens([]))


@pytest.mark.parametrize(
    ("text", "distinct"),
    [("the the the the the", 1 / 4), ("go on, go on. Go on!", 2 / 5), ("!!!!!!", 1), ("one", 1)],
)
def test_loops_lower_distinct_2(text: str, distinct: float) -> None:
    """A loop shows in the pairs of words, whatever its case and punctuation; no words, no pairs."""
    assert counts(text).distinct_2 == pytest.approx(distinct)


def test_loops_of_any_sign_compress() -> None:
    """A loop shows in the compressed size even where it has no words; prose hardly compresses."""
    assert counts(PROSE).compressed > 0.6
    for loop in ("the end of the line, " * 8, "-" * 100, "\u4e2d" * 100, "1 2 3 " * 20):
        assert counts(loop).compressed < 0.3


def test_ascii_counts_letters_only() -> None:
    """Curly quotes, dashes, emoji and digits are English too; letters of other scripts are not."""
    curly = "\u201cIt\u2019s 20\u00b0 \u2014 warm!\u201d \U0001f600"
    assert counts(curly).ascii_letters == 1.0
    assert counts("ab\u0436\u0438").ascii_letters == pytest.approx(0.5)
    assert counts("12 34").ascii_letters == 1.0


def test_a_curly_apostrophe_does_not_hide_a_function_word() -> None:
    """Typography of the model does not move the share of function words."""
    assert counts("it\u2019s").function_words == 1.0
    assert counts("the cat and the dog").function_words == pytest.approx(3 / 5)


def test_echo_is_what_the_prompt_said() -> None:
    """Four words in a row of the prompt are an echo, three are how people answer."""
    prompt = "What is the capital of France?"
    assert counts(" What is the capital of France?", prompt).echo == 1.0
    assert counts(" The capital of Spain is Madrid.", prompt).echo == 0.0
    assert counts(" Paris", prompt).echo == 0.0


def test_characters_are_counted() -> None:
    """U+FFFD, control and private-use characters are broken, line breaks and tabs are not; letters
    and spaces are what is neither digit nor sign; a word ends at a space."""
    assert counts("a\ufffd\x00\ue000").broken_characters == pytest.approx(3 / 4)
    assert counts("a\tb\r\n").broken_characters == 0.0
    assert counts("ab 12").letters_and_spaces == pytest.approx(3 / 5)
    assert counts("a longer/word b").longest_word == len("longer/word")


# What is judged


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("<think>\nI should say so.</think> Yes.", "\nI should say so. Yes."),
        (" Paris.<|im_end|>\n<|im_start|>assistant\nIt is", " Paris.\n\nIt is"),
        ("<|channel|>analysis<|message|>The user asks", "The user asks"),
        ("It is.<\uff5cend\u2581of\u2581sentence\uff5c>", "It is."),
        ("[INST] Hello [/INST]</s><pad><pad>", " Hello "),
        ("<|reserved_special_token_12|><unused12><extra_id_0>[PAD]", ""),
        ("<start_of_turn><image>A dog", "A dog"),
        ("git checkout -b <new_branch>", "git checkout -b <new_branch>"),
        ("a < b and c > d, x <y> z", "a < b and c > d, x <y> z"),
        ("<div>list[int] [INTRO]</div>", "<div>list[int] [INTRO]</div>"),
        ("cut in a char \ufffd\ufffd", "cut in a char "),
        ("torn \ufffd inside", "torn \ufffd inside"),
        ("lone \ud800 surrogate", "lone \ufffd surrogate"),
    ],
)
def test_markup_goes_and_text_stays(raw: str, seen: str) -> None:
    """Chat markup and a half character at the end are no part of the text; all else is."""
    assert judge.clean(raw) == seen


@pytest.mark.parametrize(
    ("raw", "beyond"),
    [
        (" Paris.<|im_end|>\n<|im_start|>user\nI am planning", True),
        (" Paris.</s> Then", True),
        (" Paris.<|im_end|>\n<|im_start|>assistant\n", False),
        (" Paris.<|endoftext|><|endoftext|>", False),
        ("<think>So</think> Paris.", False),
        ("<|channel|>analysis<|message|>The user asks", False),
        ("<|endoftext|>" * 1_000_000 + "x", False),  # what is not read is not seen
        ("\ud800<eos>a", True),
    ],
)
def test_text_behind_the_end_is_seen(raw: str, beyond: bool) -> None:
    """Text behind a token that ends one is evidence; thinking and channels are no ends."""
    assert judge.goes_on(raw) is beyond
    found = measure("So", judge.clean(raw) or "x", SUMMARY, after_end=judge.goes_on(raw))
    assert found.after_end == float(beyond)


def test_length_is_bounded() -> None:
    """A device that writes megabytes costs no more than the stated bound."""
    assert len(judge.clean("word " * 1_000_000)) == judge.MAX_CHARACTERS
    assert judge.clean("<|endoftext|>" * 1_000_000) == ""
    assert judge.clean_prompt("a" * 10_000 + " the end").endswith(" the end")
    assert len(judge.clean_prompt("a" * 10_000)) == judge.MAX_CHARACTERS


# One text and a run


def score(prompt: str, text: str, found: TokenSignals | None, rule: Rule = RULE) -> TextScore:
    return judge.score_text(prompt, text, found, rule)


def test_a_right_text_has_the_least_score() -> None:
    """Within what right texts show no signal says anything, however likely and plain the text."""
    assert score("So", PROSE, SUMMARY) == TextScore(-3.0, {}, counts(PROSE, "So"))
    easy = replace(SUMMARY, mean_nll=0.01, worst_window=-3.0)
    assert score("So", PROSE, easy).score == -3.0


def test_a_score_adds_what_lies_beyond() -> None:
    """Each spread beyond the centre adds the weight, up to the limit, and the signal is named; the
    whole is capped."""
    found = score("So", PROSE, replace(SUMMARY, mean_nll=3.75))
    assert found.score == pytest.approx(-3.0 + 2.0 * 1.5)
    assert found.against == {"mean_nll high": pytest.approx(3.0)}
    loop = score("So", "go on " * 20, SUMMARY)
    assert loop.against == {"distinct_2 low": pytest.approx(6.0)}
    assert loop.score == pytest.approx(3.0)
    assert score("So", "go on " * 20, replace(SUMMARY, mean_nll=9.0)).score == 4.0


@pytest.mark.parametrize("text", ["", " \n\t ", "\u3000"])
def test_nothing_shown_is_a_fault(text: str) -> None:
    """32 tokens that show nothing are no doubt: the highest score, with that reason."""
    assert score("So", text, None) == TextScore(4.0, {"no text": 4.0})
    assert score("So", text, SUMMARY).score == 4.0


def test_a_text_without_tokens_is_a_fault() -> None:
    """A text the judge's tokenizer makes nothing of shows nothing to it."""
    assert score("So", PROSE, None).score == 4.0


def test_too_little_says_nothing() -> None:
    """A word or two is neither; a long row of signs is judged in however few tokens it fits."""
    few = replace(SUMMARY, tokens=judge.MIN_TOKENS - 1, mean_nll=20.0)
    assert score("So", " Yes.", few).score is None
    assert score("So", " Yes.", replace(few, tokens=judge.MIN_TOKENS)).score == 4.0
    assert score("So", "-" * judge.MIN_CHARACTERS, few).score == 4.0
    assert score("So", "-" * (judge.MIN_CHARACTERS - 1), few).score is None


def run_of(*scores: float | None) -> list[TextScore]:
    return [TextScore(one) for one in scores]


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ((-3, -3, -3, -3), English.FLUENT),
        ((-3, -3, -3), English.INCONCLUSIVE),  # three are too few
        ((-3, -3, 3, -1), English.INCONCLUSIVE),  # the mean is just at the bound
        ((-3,) * 7 + (4,), English.FLUENT),
        ((-3, -3, 4), English.INCONCLUSIVE),
        ((-3, 4, 4), English.NOT_FLUENT),
        ((0, 0, 0), English.INCONCLUSIVE),
        ((1, 1, 1), English.INCONCLUSIVE),
        ((1.1, 1.1, 1.1), English.NOT_FLUENT),
        ((-3, -3), English.INCONCLUSIVE),
        ((4,), English.NOT_FLUENT),
        ((-3, -3, None, None), English.INCONCLUSIVE),
        ((-3, -3, -3, None), English.FLUENT),
        ((None, None, None), English.INCONCLUSIVE),
        ((4, None, None), English.NOT_FLUENT),
        ((), English.NOT_RUN),
    ],
)
def test_combine(scores: tuple[float | None, ...], verdict: English) -> None:
    """The mean decides, one too short to say standing between the bounds; fluent needs four texts,
    three of which say something, and one odd text does not make a run not_fluent."""
    assert judge.combine(run_of(*scores), RULE) is verdict


def test_bounds_without_room_still_decide() -> None:
    """Where the two bounds are one, a run that says something lies on one side of it."""
    rule = RULE.model_copy(update={"bounds": Bounds(fluent=0.0, not_fluent=0.0)})
    assert judge.combine(run_of(-1, -1, -1, -1), rule) is English.FLUENT
    assert judge.combine(run_of(1, 1, 1), rule) is English.NOT_FLUENT
    assert judge.combine(run_of(None, None, None), rule) is English.INCONCLUSIVE


# Which judge


KNOWN = Architecture(
    model_type="llama",
    vocab_size=49152,
    hidden_size=576,
    num_hidden_layers=30,
    num_attention_heads=9,
)


def write_config(directory: Path, **changes: object) -> Path:
    directory.mkdir(exist_ok=True)
    config = {**KNOWN.model_dump(), **changes}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def calibration(**changes: object) -> Calibration:
    values: dict[str, object] = {
        "architecture": KNOWN,
        "weights_sha256": "ab" * 32,
        "other_weights": True,
        "note": "",
        "source": "a test",
        "made_with": {},
        "training_auc": 1.0,
        "rule": RULE,
        "held_out": None,
    }
    return Calibration.model_validate({**values, **changes})


def calibrated(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    """The default judge has this calibration and there is no other."""
    file = CalibrationFile(judges={judge.DEFAULT_JUDGE: calibration(**changes)})
    monkeypatch.setattr("pipeline.calibration.load_calibrations", lambda: file)


def test_a_directory_is_known_by_its_architecture(tmp_path: Path) -> None:
    """A rebuilt checkpoint of the same model needs no declaration."""
    identity, found = judge.find_calibration(str(write_config(tmp_path)))
    assert identity == judge.DEFAULT_JUDGE
    assert found.source


def test_a_judge_without_calibration_is_refused(tmp_path: Path) -> None:
    """A rule of one model is never used for another; the error names the command to make one."""
    other = str(write_config(tmp_path, hidden_size=64))
    for model, declared in (
        (other, None),
        (other, judge.DEFAULT_JUDGE),
        (str(write_config(tmp_path / "same")), "somebody/else"),
        ("somebody/else", None),
        (str(tmp_path / "missing"), None),
    ):
        with pytest.raises(UsageError, match=r"python -m benchmarks\.verdict\.calibrate --judge"):
            judge.judge([Continuation("A", PROSE)], model=model, declared_id=declared)


def test_a_directory_without_config_is_refused(tmp_path: Path) -> None:
    """The error names the file that is missing."""
    with pytest.raises(UsageError, match=r"config\.json"):
        judge.find_calibration(str(tmp_path))


def test_an_architecture_is_read_whatever_its_words(models: Callable[[str], Path]) -> None:
    """GPT-2 and models with a part for text name the same things otherwise."""
    for name in ("tiny-gpt2", "tiny-gemma3", "tiny-qwen2-5-vl", "tiny-mixtral"):
        assert architecture_of(models(name)).num_hidden_layers > 0


def test_other_weights_are_refused_or_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights other than the calibrated ones are refused before anything runs; where the
    calibration allows them, the name of the judge says with which it was calibrated."""
    model = write_config(tmp_path / "model")
    (model / "model.safetensors").write_bytes(b"others")
    answer = {
        "weights_sha256": "cd" * 32,
        "texts": [{name: [1.0] * 32 for name in ("nll", "alone", "entropy", "variance", "rank")}],
    }
    python = fake_python(tmp_path / "python", f"print({json.dumps(answer)!r})")
    calibrated(monkeypatch, other_weights=False)
    with pytest.raises(UsageError, match="other weights"):
        judge.judge([Continuation("A", PROSE)], model=str(model), python=python)
    calibrated(monkeypatch)
    found = judge.judge([Continuation("A", PROSE)], model=str(model), python=python)
    assert found.judge == (
        f"{judge.DEFAULT_JUDGE}#sha256:cdcdcdcdcdcd, calibrated with #sha256:abababababab"
    )
    assert "calibrated with other weights" in found.reason
    calibrated(monkeypatch, weights_sha256="cd" * 32)
    found = judge.judge([Continuation("A", PROSE)], model=str(model), python=python)
    assert found.judge == f"{judge.DEFAULT_JUDGE}#sha256:cdcdcdcdcdcd"
    assert "other weights" not in found.reason


def test_a_hub_judge_with_other_weights_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a Hub id holds is known once it is there; other weights then judge nothing."""
    answer = {"weights_sha256": "cd" * 32, "texts": [{"nll": [1.0], "alone": [1.0]}]}
    answer["texts"] = [{n: [1.0] * 32 for n in ("nll", "alone", "entropy", "variance", "rank")}]
    python = fake_python(tmp_path / "python", f"print({json.dumps(answer)!r})")
    calibrated(monkeypatch, other_weights=False)
    found = judge.judge([Continuation("A", PROSE)], python=python)
    assert found.english is English.NOT_RUN and "other weights" in found.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"bounds": {"fluent": 1.0, "not_fluent": 0.0}},
        {"terms": [{**RULE.terms[0].model_dump(), "signal": "charm"}]},
        {"terms": [{**RULE.terms[0].model_dump(), "weight": -0.1}]},
        {"terms": [{**RULE.terms[0].model_dump(), "spread": 0.0}]},
        {"bias": math.inf},
    ],
)
def test_a_senseless_rule_is_refused(changes: dict[str, object]) -> None:
    """Bounds in the wrong order, unknown signals, weights that would speak for a text: an error,
    not a lax judge."""
    with pytest.raises(ValidationError):
        Rule.model_validate({**RULE.model_dump(), **changes})


# The judge's own process


def answering(nll: list[object], texts: int = 1) -> str:
    """What a process prints whose `nll` is this and the rest one token."""
    text = {"nll": nll, **{name: [1.0] for name in ("alone", "entropy", "variance", "rank")}}
    answer = json.dumps({"weights_sha256": "0", "texts": [text] * texts})
    return f"print({answer!r})"


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
        ("print('[]')", "cannot be read"),
        (answering(nll=[1.0], texts=2), "wrong shape"),
        (answering(nll=[1.0, 2.0]), "wrong shape"),
        (answering(nll=[math.nan]), "not finite"),
        (answering(nll=["1"]), "cannot be read"),
        ("import time; time.sleep(60)", "did not answer within"),
    ],
)
def test_a_failing_process_is_not_run(tmp_path: Path, body: str, said: str) -> None:
    """Whatever becomes of the judge's process, the run gets not_run and the reason."""
    model = str(write_config(tmp_path / "model"))
    python = fake_python(tmp_path / "python", body)
    timeout = 2 if "sleep" in body else 60
    found = judge.judge([Continuation("A", PROSE)], model=model, python=python, timeout=timeout)
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
    """A run that shows nothing is not fluent, and needs no model to be told so; an empty run is
    not_run."""
    model = str(write_config(tmp_path))
    blank = [Continuation("A", ""), Continuation("B", "<|im_end|>"), Continuation("C", "\ufffd")]
    found = judge.judge(blank, model=model, python=str(tmp_path / "none"))
    assert found.english is English.NOT_FLUENT and len(found.texts) == 3
    assert "no text in 3" in found.reason
    assert found.judge == judge.DEFAULT_JUDGE
    assert judge.judge([], model=model).english is English.NOT_RUN


def test_module_needs_no_torch() -> None:
    """The control plane judges without importing torch or transformers itself."""
    code = "import sys, pipeline.judge; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


GERMAN = (
    " wir mussten warten, bis der Regen aufh\u00f6rte, bevor die Boote fahren konnten, und dann "
    "war es so dunkel, dass niemand das andere Ufer sehen konnte"
)
RIGHT = [
    Continuation(at, PROSE)
    for at in ("Because of the storm", "At the harbour,", "In the evening of the second day")
]
WRONG = [
    Continuation("So", " " + " ".join(sorted(PROSE.split()))),
    Continuation("So", " the end of the line," * 8),
    Continuation("So", GERMAN),
]
ODD = {
    "NUL": "\x00" * 40,
    "control characters": "\x1b[31m\x07\x08" * 10,
    "surrogates": "\ud800\udfff" * 20,
    "invalid UTF-8": b"\xff\xfe\x80 \xc3(\xa0 ".decode(errors="replace") * 8,
    "100 MB": "word " * 20_000_000,
    "one enormous word": "a" * 1_000_000,
    "only blanks": " \n\t" * 50,
    "right to left": "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd " * 6,
    "emoji": "\U0001f600" * 50,
    "zero width": "\u200b" * 60,
    "combining": "e" + "\u0301" * 200,
    "empty": "",
    "special tokens": "<|endoftext|>" * 1_000_000,
}


@pytest.fixture(scope="module")
def judgement(smollm: str) -> judge.Judgement:
    """What the real model says of all of them, in its own process."""
    odd = [Continuation("So", text) for text in ODD.values()]
    return judge.judge([*RIGHT, *WRONG, *odd], model=smollm)


def rule() -> Rule:
    return judge.load_calibrations().judges[judge.DEFAULT_JUDGE].rule


def test_real_judge_tells_prose_from_ruin(judgement: judge.Judgement) -> None:
    """Three right texts make a run fluent; shuffled words, a loop and another language do not,
    though the model finds the loop likelier than the prose."""
    assert judge.combine([*judgement.texts[:3], judgement.texts[0]], rule()) is English.FLUENT
    for one in judgement.texts[3:6]:
        assert judge.combine([one] * 3, rule()) is English.NOT_FLUENT
    prose, loop = judgement.texts[0].signals, judgement.texts[4].signals
    assert prose and loop and loop.mean_nll < prose.mean_nll


def test_real_judge_survives_odd_texts(judgement: judge.Judgement) -> None:
    """Whatever a device may write gets a verdict with a reason, never an error: a run of such texts
    is not fluent."""
    assert len(judgement.texts) == len(RIGHT + WRONG) + len(ODD)
    for name, one in zip(ODD, judgement.texts[6:], strict=True):
        if name != "100 MB":  # its first 64 tokens are `word` again and again, as are these
            assert one.against, name
        assert judge.combine([one] * 3, rule()) is English.NOT_FLUENT, name
    assert all(one.signals.tokens <= judge.MAX_TOKENS for one in judgement.texts if one.signals)
    assert judgement.english is English.NOT_FLUENT and "against: " in judgement.reason
    assert len(judgement.reason) <= judge.MAX_REASON


def test_real_judge_names_itself_and_repeats_itself(
    judgement: judge.Judgement, smollm: str
) -> None:
    """The judge's weights are on the judgement, and a text gets the same score in any company."""
    sha256 = judge.weights_sha256(Path(smollm))
    assert judgement.weights_sha256 == sha256
    assert judgement.judge.startswith(f"{judge.DEFAULT_JUDGE}#sha256:{sha256[:12]}")
    alone = judge.judge([RIGHT[1]], model=smollm, declared_id=judge.DEFAULT_JUDGE)
    assert alone.texts[0].score == pytest.approx(judgement.texts[1].score, abs=0.01)
    assert alone.score == alone.texts[0].score
    assert alone.english is English.INCONCLUSIVE  # fluent, but one prompt is too few
    assert "fewer than 4 texts" in alone.reason


# What the model says of tokens


@pytest.fixture(scope="module")
def tiny(models: Callable[[str], Path]) -> Likelihood:
    """A judge model of a few kilobytes."""
    return Likelihood(models("tiny-qwen3"))


def test_tokens_are_scored_as_the_model_does(tiny: Likelihood) -> None:
    """Each value is that of the model's own distribution at its place, alone or in a batch of other
    lengths."""
    import torch

    items = [("The first", " second third"), ("", "alone"), ("a " * 50, " b c d e f g h i j k l")]
    for (prompt, text), found in zip(items, tiny(items), strict=True):
        before = [tiny.tokenizer.bos_token_id, *tiny._ids(prompt)]
        after = tiny._ids(text)
        with torch.inference_mode():
            logits = tiny.model(input_ids=torch.tensor([before + after])).logits[0]
        logs = logits[len(before) - 1 : -1].log_softmax(-1)
        own = logs[range(len(after)), after]
        entropy = -(logs.exp() * logs).sum(-1)
        spread = (logs.exp() * (logs + entropy[:, None]).square()).sum(-1)
        assert found.nll == pytest.approx((-own).tolist(), abs=1e-3)
        assert found.entropy == pytest.approx(entropy.tolist(), abs=1e-3)
        assert found.variance == pytest.approx(spread.tolist(), abs=1e-2)
        assert found.rank == tuple((logs > own[:, None]).sum(-1).tolist())
        ((bare,),) = [tiny([("", text)])]
        assert found.alone == pytest.approx(bare.nll, abs=1e-3)


def test_a_tokenizer_without_a_beginning(
    models: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence begins with the token that ends one, or else its first token is not scored."""
    model = Likelihood(models("tiny-qwen3"))
    full = model([("So", " it is")])[0]
    monkeypatch.setattr(type(model.tokenizer), "bos_token_id", None, raising=False)
    ended = model([("So", " it is")])[0]
    assert len(ended.nll) == len(full.nll) and len(ended.alone) == len(full.alone)
    monkeypatch.setattr(type(model.tokenizer), "eos_token_id", None, raising=False)
    bare, lone, none = model([("So", " it is"), ("", " it is"), ("", "")])
    assert len(bare.nll) == len(bare.alone) == len(full.nll)
    assert bare.alone[0] == bare.nll[0]
    assert len(lone.nll) == len(lone.alone) == len(lone.rank) == len(full.nll) - 1
    assert none.nll == none.alone == ()
