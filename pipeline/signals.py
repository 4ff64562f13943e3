"""What is measured on one continuation: counts over its text, and what a judge says of its tokens.

A language model alone misses much: a loop is *more* likely than prose, another language about as
likely, numbers and code less. So likelihood is held against what the judge itself expected at each
place, and beside it stand plain counts over characters and words. Nothing here decides: what a
value speaks for is learnt from labelled texts (pipeline.calibration).
"""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Final

from pipeline.likelihood import Tokens

WINDOW: Final = 8
"""Tokens of a window: a quarter of a continuation, long enough that one rare name in good prose
does not fill it."""
FAR: Final = 1000
"""A token is far when the judge held so many others likelier."""
ECHO: Final = 4
"""Words in a row that are taken over from the prompt; three happen in any answer to a question."""

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
class TokenSignals:
    """What a judge's values over the tokens of one continuation come to.

    tokens: how many.
    mean_nll: nats per token of the judge.
    typicality: how far the sum of the likelihoods lies above what the judge's own distributions
        would give, in their standard deviations: high for nonsense, low for loops.
    worst_window, flattest_window: the highest and the lowest mean over WINDOW tokens in a row, of
        likelihood beyond expectation (nats) and of likelihood itself (nats).
    far_tokens: share of tokens of rank FAR or more.
    prompt_gain: nats per token that the prompt saves the judge; near 0 for a text that has nothing
        to do with it.
    """

    tokens: int
    mean_nll: float
    typicality: float
    worst_window: float
    flattest_window: float
    far_tokens: float
    prompt_gain: float


@dataclass(frozen=True)
class Signals(TokenSignals):
    """All that is measured on one continuation: beside the tokens, counts over the text.

    echo: share of the runs of ECHO words that stand in the prompt too.
    distinct_2: distinct pairs of neighbouring words over all such pairs; 1 with one word or none.
    compressed: bytes after over bytes before compression, of the text in lower case; about 0.7 for
        a few dozen words without repetition, near 0 for rows of one sign or of line breaks.
    function_words: share of the words that are English function words.
    ascii_letters: share of the letters that are ASCII; 1 without letters. Punctuation, digits and
        emoji do not count: English uses all of them.
    letters_and_spaces: share of the characters.
    longest_word: characters of the longest stretch without a space.
    broken_characters: share of characters that no text holds (U+FFFD, control, unassigned).
    after_end: 1 when some of the text stands behind a token that ends one, else 0.
    """

    echo: float
    distinct_2: float
    compressed: float
    function_words: float
    ascii_letters: float
    letters_and_spaces: float
    longest_word: float
    broken_characters: float
    after_end: float


SIGNALS: Final = tuple(one.name for one in fields(Signals) if one.name != "tokens")


def summarise(tokens: Tokens) -> TokenSignals:
    """The signals that rest on the judge. Raises ValueError without tokens."""
    count = len(tokens.nll)
    if not count:
        raise ValueError("a text without tokens has no signals")
    beyond = [nll - entropy for nll, entropy in zip(tokens.nll, tokens.entropy, strict=True)]
    return TokenSignals(
        tokens=count,
        mean_nll=math.fsum(tokens.nll) / count,
        # The 1 (nat squared) keeps a text of certain tokens from dividing by nothing.
        typicality=math.fsum(beyond) / math.sqrt(math.fsum(tokens.variance) + 1),
        worst_window=max(windows(beyond)),
        flattest_window=min(windows(tokens.nll)),
        far_tokens=sum(rank >= FAR for rank in tokens.rank) / count,
        prompt_gain=(math.fsum(tokens.alone) - math.fsum(tokens.nll)) / count,
    )


def measure(prompt: str, text: str, tokens: TokenSignals, *, after_end: bool = False) -> Signals:
    """All signals of a clean text that shows something; after_end: see Signals."""
    words = words_of(text)
    pairs = list(itertools.pairwise(words))
    runs, asked = _runs(words), set(_runs(words_of(prompt)))
    letters = [character for character in text if character.isalpha()]
    plain = sum(character.isalpha() or character.isspace() for character in text)
    return Signals(
        **asdict(tokens),
        echo=_share(sum(run in asked for run in runs), len(runs)),
        distinct_2=_share(len(set(pairs)), len(pairs), 1.0),
        compressed=_compressed(text),
        function_words=_share(sum(word in FUNCTION_WORDS for word in words), len(words)),
        ascii_letters=_share(sum(letter.isascii() for letter in letters), len(letters), 1.0),
        letters_and_spaces=_share(plain, len(text)),
        longest_word=float(max(map(len, text.split()), default=0)),
        broken_characters=_share(sum(map(_is_broken, text)), len(text)),
        after_end=float(after_end),
    )


def windows(values: Sequence[float]) -> list[float]:
    """The mean of each WINDOW values in a row; of all when there are fewer."""
    size = min(WINDOW, len(values))
    return [
        math.fsum(values[start : start + size]) / size for start in range(len(values) - size + 1)
    ]


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, apostrophes straight, without digits and punctuation."""
    return [word.lower().replace("\u2019", "'") for word in _WORD.findall(text)]


def _runs(words: Sequence[str]) -> list[tuple[str, ...]]:
    return list(zip(*(words[start:] for start in range(ECHO)), strict=False))


def _compressed(text: str) -> float:
    raw = text.lower().encode(errors="replace")
    # Without the header and checksum of zlib, which weigh on short texts alone.
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return _share(len(packer.compress(raw) + packer.flush()), len(raw), 1.0)


def _share(part: int, whole: int, none: float = 0.0) -> float:
    return part / whole if whole else none


def _is_broken(character: str) -> bool:
    if character in "\t\n\r":
        return False
    return character == "\ufffd" or unicodedata.category(character) in {"Cc", "Cn", "Co", "Cs"}
