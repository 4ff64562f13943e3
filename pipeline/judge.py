"""Is it fluent English? The output check where tokens cannot be held against the CPU.

Text in, scores and a verdict out. A small language model on the CPU says how likely each token of a
continuation is and what it expected there; plain counts over characters and words see what
likelihood misses (pipeline.signals). Each signal is evidence against a text only beyond what right
texts show; the weighted sum is the text's score, the mean over the prompts the run's, and two
bounds on it make the verdict. Weights and bounds belong to one judge model (pipeline.calibration).

What no fluency judge sees: faults that leave fluent text. A model with a little noise on its
weights, or with half a sum lost in one layer, still writes good English. A verdict of `fluent`
therefore says "not visibly broken", and comparing tokens with the CPU comes first wherever the CPU
can hold the model.

This module never imports torch. The model runs in a process of its own (pipeline.likelihood), so a
crash or a hang of it costs a verdict and nothing else.
"""

from __future__ import annotations

import json
import math
import re
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from pipeline import processes
from pipeline.calibration import Calibration, Rule, find_calibration, load_calibrations
from pipeline.likelihood import MAX_TOKENS, Tokens, weights_sha256
from pipeline.signals import Signals, TokenSignals, measure, summarise
from pipeline.words import English

__all__ = [
    "DEFAULT_JUDGE",
    "MAX_CHARACTERS",
    "MAX_REASON",
    "MAX_TOKENS",
    "MIN_CHARACTERS",
    "MIN_PROMPTS",
    "MIN_SAID",
    "MIN_TOKENS",
    "Calibration",
    "Continuation",
    "Judgement",
    "TextScore",
    "clean",
    "clean_prompt",
    "combine",
    "find_calibration",
    "goes_on",
    "judge",
    "load_calibrations",
    "run_score",
    "says_too_little",
    "score_text",
    "weights_sha256",
]

DEFAULT_JUDGE: Final = "HuggingFaceTB/SmolLM2-135M-Instruct"

MIN_TOKENS: Final = 4
"""A text below this, and below MIN_CHARACTERS, decides nothing: "Yes." is neither English nor not.
The calibration's own short answers begin at five words."""
MIN_CHARACTERS: Final = 32
"""Text of this length is judged in however few of the judge's tokens it fits (a row of dashes fits
in one): 32 generated tokens that show at all are at least 32 characters."""
MAX_CHARACTERS: Final = 2_000
"""Text beyond this is not read. 64 tokens of prose are about 300 characters; a device that writes
megabytes must not cost memory here."""
MIN_PROMPTS: Final = 4
"""Fewer continuations never make a run fluent: of held-out runs of three whose fault a reader sees
4.1 % would pass, of runs of four 0.8 % (calibration, held_out.errors)."""
MIN_SAID: Final = 3
"""So many of them must be long enough to say something."""
MAX_REASON: Final = 500
_MAX_NAME: Final = 200
"""Characters of a name in a record."""

_MARKUP = re.compile(
    # a role or channel name belongs to the token before it: <|im_start|>assistant
    r"<\|(?:im_start|start|start_header_id|channel)\|>[ ]?\w{0,20}"
    r"|<[|\uff5c][^<>\n]{1,60}[|\uff5c]>"
    r"|</?(?:s|bos|eos|pad|unk|mask|image|think|thinking|thought|reponame|filename)>"
    r"|<(?:repo_name|file_sep|gh_stars|issue_\w{1,9}|jupyter_\w{1,16}|empty_output|fim_\w{1,9})>"
    r"|<(?:(?:start|end)_of_(?:turn|image|text)|image_soft_token|extra_id_\d{1,4}|unused\d{1,4})>"
    r"|\[/?INST\]|\[(?:PAD|UNK|CLS|SEP|MASK|BOS|EOS)\]"
)
_MAX_MARKUP: Final = 64
"""Characters of the longest special token that _MARKUP knows."""
_END = re.compile(
    r"<\|(?:im_end|end|endoftext|end_of_text|end_of_turn|eot|eot_id|return)\|>"
    r"|<[|\uff5c]end\u2581of\u2581sentence[|\uff5c]>|<(?:eos|/s|end_of_turn)>|\[EOS\]"
)
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_NAMED: Final = 3
"""So many signals a reason names."""


@dataclass(frozen=True)
class Continuation:
    """What a model wrote after a prompt; `text` without the prompt."""

    prompt: str
    text: str


@dataclass(frozen=True)
class TextScore:
    """One continuation. score: log odds that it is wrong; None when it is too short to say.

    against: what each signal added to the score, where it added something. signals is None when
    there was nothing to measure.
    """

    score: float | None
    against: dict[str, float] = field(default_factory=dict)
    signals: Signals | None = None


@dataclass(frozen=True)
class Judgement:
    """The verdict on a run.

    score: mean of the scores of its texts, log odds that they are wrong; None when not judged.
    judge: `<Hub id>#sha256:<12 digits of the weights>`, with `calibrated with #sha256:<12 digits>`
    behind it where those are others; the bare id when the weights were not read.
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
    text = _SURROGATES.sub("\ufffd", _read(text))
    return _MARKUP.sub("", text).rstrip("\ufffd")


def _read(text: str) -> str:
    """The part of a text that is read: it does not end inside a special token."""
    if len(text) <= MAX_CHARACTERS:
        return text
    opened = text.rfind("<", MAX_CHARACTERS - _MAX_MARKUP, MAX_CHARACTERS)
    return text[: MAX_CHARACTERS if opened < 0 else opened]


def goes_on(text: str) -> bool:
    """Whether something shows behind a token that ends a text. run.py forbids that token before its
    time, so a healthy model that has nothing more to say goes on without it.
    """
    text = _read(text)
    end = _END.search(text)
    return end is not None and bool(clean(text[end.end() :]).strip())


def clean_prompt(prompt: str) -> str:
    """The end of a prompt, bounded: what stands just before the continuation counts most."""
    return _SURROGATES.sub("\ufffd", _MARKUP.sub("", prompt[-MAX_CHARACTERS:]))


def score_text(
    prompt: str, text: str, tokens: TokenSignals | None, rule: Rule, *, after_end: bool = False
) -> TextScore:
    """The score of a clean text; tokens None = of which nothing was left to measure.

    after_end: whether it went on behind a token that ends one (goes_on). Tokens that show nothing
    are a fault as certain as any: the highest score.
    """
    if tokens is None or not text.strip():
        return TextScore(rule.cap, {"no text": rule.cap})
    signals = measure(prompt, text, tokens, after_end=after_end)
    if says_too_little(text, tokens):
        return TextScore(None, {}, signals)
    return TextScore(rule.score(signals), rule.contributions(signals), signals)


def says_too_little(text: str, tokens: TokenSignals) -> bool:
    """Whether a text is too short to be English or not."""
    return tokens.tokens < MIN_TOKENS and len(text.strip()) < MIN_CHARACTERS


def run_score(texts: Sequence[TextScore], rule: Rule) -> float | None:
    """The mean over a run's texts; one too short to say stands between the bounds."""
    if not texts:
        return None
    between = (rule.bounds.fluent + rule.bounds.not_fluent) / 2
    return math.fsum(between if one.score is None else one.score for one in texts) / len(texts)


def combine(texts: Sequence[TextScore], rule: Rule, *, fewest: int = MIN_PROMPTS) -> English:
    """The verdict on a run from those on its prompts.

    The mean decides and not a majority: a fault of the device is in all texts at once, while a
    healthy model now and then writes one odd text; each text's score is capped, so one is not
    enough. Fluent needs `fewest` texts, of which MIN_SAID say something. not_run without any.
    """
    score = run_score(texts, rule)
    said = sum(one.score is not None for one in texts)
    if score is None:
        return English.NOT_RUN
    if said and score > rule.bounds.not_fluent:
        return English.NOT_FLUENT
    if len(texts) >= fewest and said >= MIN_SAID and score < rule.bounds.fluent:
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
    asked = [item for item in cleaned if item.text.strip()]
    sha256: str | None = None
    measured: list[Tokens] = []
    if asked:
        answer = _measure_in_process(asked, model, revision, python, timeout, stop)
        if isinstance(answer, str):
            return Judgement(English.NOT_RUN, answer[:MAX_REASON], identity)
        sha256, measured = answer
        if sha256 != calibration.weights_sha256 and not calibration.other_weights:
            reason = f"the judge has other weights than those {identity} was calibrated with"
            return Judgement(English.NOT_RUN, reason, _name(identity, sha256, calibration))
    answers = iter(measured)
    rule = calibration.rule
    texts = tuple(
        score_text(
            item.prompt,
            item.text,
            _summary(next(answers)) if item.text.strip() else None,
            rule,
            after_end=goes_on(raw.text),
        )
        for raw, item in zip(continuations, cleaned, strict=True)
    )
    reason = _reason(texts, rule)
    if sha256 not in (None, calibration.weights_sha256):
        reason = f"calibrated with other weights; {reason}"
    return Judgement(
        english=combine(texts, rule),
        reason=reason[:MAX_REASON],
        judge=_name(identity, sha256, calibration),
        score=run_score(texts, rule),
        weights_sha256=sha256,
        texts=texts,
    )


def _summary(tokens: Tokens) -> TokenSignals | None:
    return summarise(tokens) if tokens.nll else None


def _name(identity: str, sha256: str | None, calibration: Calibration) -> str:
    if sha256 is None:
        return identity
    name = f"{identity}#sha256:{sha256[:12]}"
    if sha256 != calibration.weights_sha256:
        name += f", calibrated with #sha256:{calibration.weights_sha256[:12]}"
    return name[:_MAX_NAME]


def _reason(texts: Sequence[TextScore], rule: Rule) -> str:
    """One line: the score beside the bounds, and which signals spoke against how many texts."""
    score = run_score(texts, rule)
    if score is None:
        return "no texts"
    bounds = rule.bounds
    line = (
        f"score {score:.2f} over {len(texts)} texts, fluent below {bounds.fluent:.2f}, "
        f"not_fluent above {bounds.not_fluent:.2f}"
    )
    short = sum(one.score is None for one in texts)
    if short:
        line += f"; {short} too short to say"
    if score < bounds.fluent:
        if len(texts) < MIN_PROMPTS:
            line += f"; fewer than {MIN_PROMPTS} texts are never fluent"
        elif len(texts) - short < MIN_SAID:
            line += f"; fewer than {MIN_SAID} texts that say something are never fluent"
        return line
    spoke: dict[str, list[float]] = {}
    for one in texts:
        for name, value in one.against.items():
            spoke.setdefault(name, []).append(value)
    named = [
        f"{name} in {len(spoke[name])} of {len(texts)}"
        for name in sorted(spoke, key=lambda name: -math.fsum(spoke[name]))[:_NAMED]
    ]
    return f"{line}; against: {', '.join(named) or 'nothing'}"


def _measure_in_process(
    items: Sequence[Continuation],
    model: str,
    revision: str | None,
    python: str,
    timeout: float,
    stop: threading.Event | None,
) -> tuple[str, list[Tokens]] | str:
    """SHA-256 of the weights, and the tokens of each text. A str says why there is no answer."""
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


def _checked_answer(stdout: bytes, count: int) -> tuple[str, list[Tokens]] | str:
    wrong = "the judge's answer has the wrong shape or is not finite"
    names = [one.name for one in fields(Tokens)]
    try:
        answer: Any = json.loads(stdout)
        sha256, texts = answer["weights_sha256"], answer["texts"]
        found = [Tokens(**{name: tuple(text[name]) for name in names}) for text in texts]
        columns = [[getattr(one, name) for name in names] for one in found]
        if not isinstance(sha256, str) or len(found) != count:
            return wrong
        if not all(len({len(column) for column in of}) == 1 for of in columns):
            return wrong
        if not all(math.isfinite(value) for of in columns for column in of for value in column):
            return wrong
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        return f"the judge's answer cannot be read: {error!r}"
    return sha256, found
