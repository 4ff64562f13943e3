"""Is it fluent English? The output check where tokens cannot be held against the CPU.

Text in, scores and a verdict out. A small language model on the CPU gives the likelihood of each
token of a continuation; plain counts over the words see what likelihood misses (a loop is *more*
likely than prose, another language is about as likely). Each signal has two bounds: within the
first it speaks for fluent English, beyond the second against, between them nothing is decided.
The bounds belong to one judge model (pipeline.calibration).

What no fluency judge sees: subtle faults. A model with a little noise on its weights, or with half
a sum lost in one layer, still writes good English. A verdict of `fluent` therefore says "not
grossly broken", and comparing tokens with the CPU comes first wherever the CPU can hold the model.

This module never imports torch. The model runs in a process of its own (pipeline.likelihood), so a
crash or a hang of it costs a verdict and nothing else.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
import threading
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline import processes
from pipeline.calibration import (
    LOW_IS_BAD,
    Bounds,
    Calibration,
    Thresholds,
    find_calibration,
    load_calibrations,
)
from pipeline.likelihood import MAX_TOKENS, weights_sha256
from pipeline.words import English

__all__ = [
    "DEFAULT_JUDGE",
    "FUNCTION_WORDS",
    "LOW_IS_BAD",
    "MAX_CHARACTERS",
    "MAX_REASON",
    "MAX_TOKENS",
    "MIN_CHARACTERS",
    "MIN_PROMPTS",
    "MIN_TOKENS",
    "WINDOW",
    "Bounds",
    "Calibration",
    "Continuation",
    "Judgement",
    "Signals",
    "TextScore",
    "Thresholds",
    "clean",
    "clean_prompt",
    "combine",
    "find_calibration",
    "judge",
    "load_calibrations",
    "measure",
    "score_signals",
    "weights_sha256",
]

DEFAULT_JUDGE: Final = "HuggingFaceTB/SmolLM2-135M-Instruct"

WINDOW: Final = 8
"""Tokens of the worst window: a quarter of a continuation, long enough that one rare name in good
prose does not fill it."""
MIN_TOKENS: Final = 12
"""Below this nothing is decided: the counts rest on fewer than about ten words."""
MIN_CHARACTERS: Final = 32
"""Text of this length without two words is ruin, in however few of the judge's tokens it fits (a
row of dashes fits in one): 32 generated tokens that show at all are at least 32 characters."""
MAX_CHARACTERS: Final = 2_000
"""Text beyond this is not read. 64 tokens of prose are about 300 characters; a device that writes
megabytes must not cost memory here."""
MIN_PROMPTS: Final = 3
"""Fewer judged continuations never make a run fluent: with one prompt a grossly broken model
passes up to 2 times in 8."""
MAX_REASON: Final = 500

_MARKUP = re.compile(
    # a role or channel name belongs to the token before it: <|im_start|>assistant
    r"<\|(?:im_start|start|start_header_id|channel)\|>[ ]?\w{0,20}"
    r"|<[|\uff5c][^<>\n]{1,60}[|\uff5c]>"
    r"|</?(?:s|bos|eos|pad|unk|mask|think|thinking|thought|start_of_turn|end_of_turn)>"
    r"|\[/?INST\]"
)
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")

FUNCTION_WORDS: Final = frozenset(
    # one block of words: a list of 180 quoted strings is harder to read and to check
    """
    a about above across after again against all almost along already also although always am among
    an and another any anyone anything are around as at away be because been before behind being
    below between both but by can can't cannot could did didn't do does doesn't don't down during
    each either else enough even ever every everyone everything except few for from had has have
    having he her here hers herself him himself his how however i i'm if in instead into is isn't it
    it's its itself just least less many may me might more most much must my myself near never no
    nobody none nor not nothing now of off often on once one only onto or other others our out over
    own perhaps quite rather same she should since so some somebody someone something sometimes soon
    still such than that that's the their them themselves then there these they this those though
    through to together too toward towards under until up upon us very was wasn't we were what when
    where whether which while who whom whose why will with within without won't would yet you your
    yourself
    """.split()  # noqa: SIM905
)
"""Words that carry grammar, not a subject: about half of any English prose."""


@dataclass(frozen=True)
class Continuation:
    """What a model wrote after a prompt; `text` without the prompt."""

    prompt: str
    text: str


@dataclass(frozen=True)
class Signals:
    """What is measured on one continuation.

    tokens: judged tokens, of the judge's own tokenizer. characters: of the whole clean text.
    mean_nll, worst_window: nats per token, over all tokens and over the worst WINDOW in a row.
    distinct_2: distinct pairs of neighbouring words over all such pairs; 0 with one word or none.
    function_words: share of the words that are English function words.
    ascii_letters: share of the letters that are ASCII; 0 without letters. Punctuation, digits and
        emoji do not count: English uses all of them.
    broken_characters: share of characters that no text holds (U+FFFD, control, unassigned).
    """

    tokens: int
    characters: int
    mean_nll: float
    worst_window: float
    distinct_2: float
    function_words: float
    ascii_letters: float
    broken_characters: float


@dataclass(frozen=True)
class TextScore:
    """The verdict on one continuation; signals is None when there was nothing to measure."""

    verdict: English
    reason: str
    signals: Signals | None = None


@dataclass(frozen=True)
class Judgement:
    """The verdict on a run.

    score: mean over the prompts of their mean_nll, nats per token; None when nothing was measured.
    judge: `<Hub id>#sha256:<12 digits of the weights>`; the bare id when the weights were not read.
    """

    english: English
    reason: str
    judge: str
    score: float | None = None
    weights_sha256: str | None = None
    texts: tuple[TextScore, ...] = ()


def clean(text: str) -> str:
    """The text a reader would see: no chat markup, no half character at its end, bounded length.

    Thinking tags go, what stands between them stays: within 32 tokens it is all there is. A
    generation cut after N tokens may end inside a character of several bytes, which decodes to
    U+FFFD and is no fault; anywhere else U+FFFD stays and counts.
    """
    text = _SURROGATES.sub("\ufffd", text[:MAX_CHARACTERS])
    return _MARKUP.sub("", text).rstrip("\ufffd")


def measure(text: str, nlls: Sequence[float]) -> Signals:
    """The signals of a clean text with the negative log-likelihood (nats) of each of its tokens.

    Raises ValueError without tokens.
    """
    if not nlls:
        raise ValueError("a text without tokens has no signals")
    words = [word.lower().replace("\u2019", "'") for word in _WORD.findall(text)]
    pairs = list(itertools.pairwise(words))
    letters = [character for character in text if character.isalpha()]
    window = min(WINDOW, len(nlls))
    return Signals(
        tokens=len(nlls),
        characters=len(text),
        mean_nll=math.fsum(nlls) / len(nlls),
        worst_window=max(
            math.fsum(nlls[start : start + window]) / window
            for start in range(len(nlls) - window + 1)
        ),
        distinct_2=_share(len(set(pairs)), len(pairs)),
        function_words=_share(sum(word in FUNCTION_WORDS for word in words), len(words)),
        ascii_letters=_share(sum(letter.isascii() for letter in letters), len(letters)),
        broken_characters=_share(sum(map(_is_broken, text)), len(text)),
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _is_broken(character: str) -> bool:
    if character in "\t\n\r":
        return False
    return character == "\ufffd" or unicodedata.category(character) in {"Cc", "Cn", "Co", "Cs"}


def score_signals(signals: Signals | None, thresholds: Thresholds) -> TextScore:
    """The verdict on one continuation; None stands for a text of which nothing was left.

    One signal beyond its second bound is enough for not_fluent: each sees a kind of fault that the
    others miss. Fluent needs every signal within its first bound and MIN_TOKENS tokens.
    """
    if signals is None:
        return TextScore(English.INCONCLUSIVE, "no text left to judge")
    if signals.characters >= MIN_CHARACTERS and not signals.distinct_2:
        reason = f"no two words in {signals.characters} characters"
        return TextScore(English.NOT_FLUENT, reason, signals)
    if signals.tokens < MIN_TOKENS:
        reason = f"{signals.tokens} tokens; fewer than {MIN_TOKENS} decide nothing"
        return TextScore(English.INCONCLUSIVE, reason, signals)
    doubtful: list[str] = []
    bad: list[str] = []
    for name in Thresholds.model_fields:
        value: float = getattr(signals, name)
        bounds: Bounds = getattr(thresholds, name)
        sign = -1.0 if name in LOW_IS_BAD else 1.0
        if sign * value > sign * bounds.not_fluent:
            bad.append(f"{name} {value:.2f}, bound {bounds.not_fluent:.2f}")
        elif sign * value > sign * bounds.fluent:
            doubtful.append(f"{name} {value:.2f}, bound {bounds.fluent:.2f}")
    if bad:
        return TextScore(English.NOT_FLUENT, "; ".join(bad), signals)
    if doubtful:
        return TextScore(English.INCONCLUSIVE, "; ".join(doubtful), signals)
    return TextScore(English.FLUENT, "every signal is within its bound", signals)


def combine(scores: Sequence[TextScore]) -> English:
    """The verdict on a run from those on its prompts.

    fluent: of MIN_PROMPTS texts or more at least two thirds are fluent, and fewer than one third
        are not_fluent. not_fluent: more than half are not_fluent. Otherwise inconclusive; not_run
        when no text was judged.
    Why not a plain majority: the costs differ. A false fluent is a PASS for a broken device, so it
    asks for more than half; an inconclusive run is repeated or looked at. Why not every text:
    a healthy model now and then writes a list, a name or a loop. The rates that follow, over three
    and eight prompts, stand in the calibration file.
    """
    verdicts = Counter(score.verdict for score in scores if score.verdict is not English.NOT_RUN)
    judged = verdicts.total()
    if not judged:
        return English.NOT_RUN
    fluent, bad = verdicts[English.FLUENT], verdicts[English.NOT_FLUENT]
    if 2 * bad > judged:
        return English.NOT_FLUENT
    if judged >= MIN_PROMPTS and 3 * fluent >= 2 * judged and 3 * bad < judged:
        return English.FLUENT
    return English.INCONCLUSIVE


def judge(
    continuations: Sequence[Continuation],
    *,
    model: str = DEFAULT_JUDGE,
    declared_id: str | None = None,
    revision: str | None = None,
    python: str = sys.executable,
    timeout: float = 600.0,
    stop: threading.Event | None = None,
) -> Judgement:
    """Judge the continuations of one run with a language model on the CPU.

    model: a directory, or a Hub id (which its process downloads). declared_id: the Hub id of what
    is in the directory; without it the architecture decides. revision: the commit of a Hub id to
    download; None takes its default branch. python: an interpreter with torch and transformers.
    timeout: seconds for loading and judging together. stop: set to give up early.
    No text and no failure of the model's process raises: those end as not_run with the reason.
    Raises UsageError when the judge has no calibration.
    """
    identity, calibration = find_calibration(model, declared_id)
    cleaned = [Continuation(clean_prompt(item.prompt), clean(item.text)) for item in continuations]
    asked = [item for item in cleaned if item.text]
    measured: dict[str, Any] = {"weights_sha256": None, "nll": []}
    if asked:
        answer = _measure_in_process(asked, model, revision, python, timeout, stop)
        if isinstance(answer, str):
            return Judgement(English.NOT_RUN, answer[:MAX_REASON], identity)
        measured = answer
    sha256 = measured["weights_sha256"]
    nlls = iter(measured["nll"])
    texts = tuple(
        score_signals(measure(item.text, next(nlls)) if item.text else None, calibration.thresholds)
        for item in cleaned
    )
    means = [score.signals.mean_nll for score in texts if score.signals]
    return Judgement(
        english=combine(texts),
        reason=_run_reason(texts),
        judge=f"{identity}#sha256:{sha256[:12]}" if sha256 else identity,
        score=math.fsum(means) / len(means) if means else None,
        weights_sha256=sha256,
        texts=texts,
    )


def clean_prompt(prompt: str) -> str:
    """The end of a prompt, bounded: what stands just before the continuation counts most."""
    return _SURROGATES.sub("\ufffd", _MARKUP.sub("", prompt[-MAX_CHARACTERS:]))


def _run_reason(texts: Sequence[TextScore]) -> str:
    """One line: the count of each verdict, then the reason of the first text that is not fluent."""
    counts = Counter(score.verdict for score in texts)
    line = ", ".join(f"{counts[verdict]} {verdict}" for verdict in English if counts[verdict])
    first = next((score for score in texts if score.verdict is not English.FLUENT), None)
    return f"{line} ({first.reason})"[:MAX_REASON] if first else line or "no texts"


def _measure_in_process(
    items: Sequence[Continuation],
    model: str,
    revision: str | None,
    python: str,
    timeout: float,
    stop: threading.Event | None,
) -> dict[str, Any] | str:
    """What the model's process answered, checked: {"weights_sha256": ..., "nll": [[...], ...]}.

    A str says why there is no answer.
    """
    asked = [{"prompt": item.prompt, "text": item.text} for item in items]
    question = json.dumps({"model": model, "revision": revision, "items": asked})
    try:
        stdout = processes.ask(
            [python, "-m", "pipeline.likelihood"],
            question.encode(),
            limit_s=timeout,
            stop=stop,
            environment=processes.module_environment(),
        )
    except processes.Unanswered as error:
        return f"the judge {error}"
    return _checked_answer(stdout, len(items))


def _checked_answer(stdout: bytes, count: int) -> dict[str, Any] | str:
    try:
        answer = json.loads(stdout)
        nlls = answer["nll"]
        finite = all(math.isfinite(value) for text in nlls for value in text)
        if len(nlls) != count or not finite or not isinstance(answer["weights_sha256"], str):
            return "the judge's answer has the wrong shape or is not finite"
    except (ValueError, KeyError, TypeError) as error:
        return f"the judge's answer cannot be read: {error!r}"
    return {"weights_sha256": answer["weights_sha256"], "nll": nlls}
