"""Texts that no model made: those written by hand, and the ways they are spoilt."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.verdict.corpus import HALVES, written
from benchmarks.verdict.device import NEW_TOKENS
from benchmarks.verdict.faults import SEED
from benchmarks.verdict.kinds import KINDS

PER_HALF: Final = 14
"""Texts of each half that each kind of damage is done to, two of each kind of text but short."""
ORDINARY: Final = 20
"""The first ids of the vocabulary are special tokens."""

Found = tuple[str, str, str, str, str]
"""(kind, half, prompt, text, made_by)"""


@dataclass(frozen=True)
class Passage:
    """A written text: its first 32 tokens, and the same as text."""

    half: str
    prompt: str
    ids: tuple[int, ...]
    text: str


@dataclass
class Spoiler:
    """Damages passages; the same draws every time for the same kind."""

    tokenizer: Any
    rng: random.Random

    def decoded(self, ids: list[int]) -> str:
        """As run.py decodes."""
        return str(self.tokenizer.decode(ids[:NEW_TOKENS]))

    def noise(self, count: int) -> list[int]:
        """Ordinary tokens at random."""
        return [self.rng.randrange(ORDINARY, len(self.tokenizer)) for _ in range(count)]

    def loop(self, ids: tuple[int, ...], start: int, stop: int) -> str:
        """ids up to `stop`, then those from `start` to `stop` again and again."""
        return self.decoded([*ids[:stop], *ids[start:stop] * NEW_TOKENS])

    def replaced(self, ids: tuple[int, ...], every: int) -> str:
        """One token in `every` is random."""
        first = self.rng.randrange(every)
        return self.decoded(
            [self.noise(1)[0] if at % every == first else one for at, one in enumerate(ids)]
        )

    def shuffled(self, text: str) -> str:
        """The words in random order."""
        words = text.split()
        self.rng.shuffle(words)
        return " " + " ".join(words)

    def special(self) -> str:
        """Special tokens alone."""
        names = [str(one) for one in self.tokenizer.added_tokens_decoder.values()]
        return "".join(self.rng.choice(names) for _ in range(NEW_TOKENS))

    def echoed(self, prompt: str) -> str:
        """The prompt again and again."""
        ids = self.tokenizer(f" {prompt}", add_special_tokens=False)["input_ids"]
        return self.decoded(ids * NEW_TOKENS)


DAMAGES: Final[dict[str, Callable[[Spoiler, Passage, Passage], str]]] = {
    "prompt_echoed": lambda by, one, _: by.echoed(one.prompt),
    "one_token_repeated": lambda by, one, _: by.decoded([by.rng.choice(one.ids)] * NEW_TOKENS),
    "phrase_repeated": lambda by, one, _: by.loop(one.ids, 0, by.rng.randrange(2, 7)),
    "loop_after_12_tokens": lambda by, one, _: by.loop(one.ids, 8, 12),
    "byte_soup": lambda by, one, _: by.rng.randbytes(80).decode("utf-8", errors="replace"),
    "empty": lambda by, one, _: "",
    "special_tokens_only": lambda by, one, _: by.special(),
    "shuffled_words": lambda by, one, _: by.shuffled(one.text),
    "random_tokens": lambda by, one, _: by.decoded(by.noise(NEW_TOKENS)),
    "random_tail": lambda by, one, _: by.decoded([*one.ids[:16], *by.noise(16)]),
    "random_token_in_8": lambda by, one, _: by.replaced(one.ids, 8),
    "random_token_in_16": lambda by, one, _: by.replaced(one.ids, 16),
    "no_spaces": lambda by, one, _: " " + "".join(one.text.split()),
    "text_of_another_prompt": lambda by, one, other: other.text,
    "two_texts_glued": lambda by, one, other: by.decoded([*one.ids[:16], *other.ids[16:]]),
}
"""What each kind makes of a passage, with another passage of the same half at hand."""

KIND_NAMES: Final = (
    *(name for name in KINDS if name.startswith("written_")),
    *DAMAGES,
    "another_language",
)
"""Every kind this module makes."""


def texts(tokenizer: Any) -> Iterator[Found]:
    """Every text without a model, trimmed to 32 tokens of this tokenizer."""
    passages: dict[str, list[Passage]] = {}
    for right in written("right.json"):
        ids = tokenizer(right["text"], add_special_tokens=False)["input_ids"][:NEW_TOKENS]
        passage = Passage(right["half"], right["prompt"], tuple(ids), tokenizer.decode(ids))
        passages.setdefault(right["kind"], []).append(passage)
        yield f"written_{right['kind']}", passage.half, passage.prompt, passage.text, "written"
    for half in HALVES:
        long = [
            [one for one in several if one.half == half and len(one.ids) == NEW_TOKENS]
            for kind, several in sorted(passages.items())
            if kind != "short"
        ]
        for kind, change in DAMAGES.items():
            spoiler = Spoiler(tokenizer, _seeded(f"{SEED} {kind} {half}"))
            chosen = [
                one
                for several in long
                for one in spoiler.rng.sample(several, min(len(several), PER_HALF // len(long)))
            ]
            for at, one in enumerate(chosen):
                # Half the list further on: of another kind.
                other = chosen[(at + len(chosen) // 2) % len(chosen)]
                text = change(spoiler, one, other)
                yield kind, half, one.prompt, text, "text"
    for foreign in written("foreign.json"):
        ids = tokenizer(foreign["text"], add_special_tokens=False)["input_ids"][:NEW_TOKENS]
        text = tokenizer.decode(ids)
        yield "another_language", foreign["half"], foreign["prompt"], text, "written"


def _seeded(seed: str) -> random.Random:
    return random.Random(seed)  # noqa: S311 (the same draws every time are what is wanted)
