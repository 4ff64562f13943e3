"""Every kind of continuation in the corpus: what it is, what it counts as, who can see it.

`visible` was decided by reading eight to ten samples of each wrong kind (all five of eos_ignored),
all from the training half: a kind is visible when a reader of English who sees prompt and
continuation notices something wrong in most of them. `why` says what was seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Label(StrEnum):
    """What a verdict should say of a continuation."""

    RIGHT = "right"
    """A healthy model, or a person, wrote it."""
    DIFFERENT = "different"
    """A healthy device that computes in another order than the reference: to be passed."""
    WRONG = "wrong"
    """A broken device wrote it, or it is no continuation."""


@dataclass(frozen=True)
class Kind:
    """One kind. how: how it is made. device: a model wrote it greedily as run.py makes it do, so
    that its tokens can be held against the reference (only those lines carry evidence).

    visible, why: of wrong kinds, else None and "". constant: its text is the same whatever the
    prompt, so it stands in both halves.
    """

    name: str
    label: Label
    how: str
    device: bool = False
    visible: bool | None = None
    why: str = ""
    constant: bool = False


def _right(name: str, how: str, *, device: bool = False) -> Kind:
    return Kind(name, Label.RIGHT, how, device)


def _different(name: str, how: str) -> Kind:
    return Kind(name, Label.DIFFERENT, how, device=True)


def _device(name: str, how: str, *, visible: bool, why: str, constant: bool = False) -> Kind:
    return Kind(name, Label.WRONG, how, True, visible, why, constant)


def _text(name: str, how: str, why: str, *, visible: bool = True, constant: bool = False) -> Kind:
    return Kind(name, Label.WRONG, how, False, visible, why, constant)


WRITTEN: Final = ("prose", "story", "chat", "list", "code", "numbers", "short", "caption")
"""Kinds of prompts and of texts that people wrote."""

_KINDS: Final = (
    *(_right(f"written_{kind}", f"written by hand, {kind}; 32 tokens at most") for kind in WRITTEN),
    _right("greedy_fp32", "the healthy model in float32", device=True),
    _right("greedy_bf16", "the healthy model in bf16: eager attention, growing cache", device=True),
    _right("chat_template", "the healthy model, asked through its chat template", device=True),
    _right("sampled", "the healthy model at temperature 0.7, top_p 0.9"),
    _right("stops_early", "the healthy model, asked by chat template and left to end by itself"),
    _right(
        "healthy_loop",
        "a healthy continuation that goes in circles, as small models do: no fault of the device, "
        "and no example of good English either, so it is kept apart and bounds no threshold",
        device=True,
    ),
    _different(
        "bf16_against_fp32",
        "bf16 as run.py computes: fused attention, static cache, padding to 128; the figures "
        "against float32 are the ones meant",
    ),
    _different("compiled", "bf16, the forward pass compiled by Inductor"),
    _different(
        "sharded_sums_rising", "3 ranks, their rounded sums added from the first to the last"
    ),
    _different(
        "sharded_sums_falling", "3 ranks, their rounded sums added from the last to the first"
    ),
    _device(
        "ranks_swapped",
        "two ranks' columns of o_proj and down_proj exchanged, all layers",
        visible=True,
        why="word salad",
    ),
    _device(
        "ranks_swapped_one_layer",
        "the same in the middle layer alone",
        visible=False,
        why="fluent; odd in 3 of 10 (New York as the capital of France)",
    ),
    _device(
        "all_reduce_missing",
        "one rank's part of every sum, all layers",
        visible=True,
        why="word salad of few words",
    ),
    _device(
        "all_reduce_missing_one_layer",
        "the same in the middle layer alone",
        visible=False,
        why="reads like the healthy model in 9 of 10",
    ),
    _device(
        "layer_skipped",
        "the middle layer hands its input on",
        visible=False,
        why="fluent; repeats itself in 4 of 10, and so does the healthy model",
    ),
    _device(
        "two_layers_skipped",
        "the two middle layers do",
        visible=False,
        why="fluent; an answer that is none in 2 of 10",
    ),
    _device(
        "stale_cache_slot",
        "one decode step's cache entry is never written, in all layers",
        visible=False,
        why="reads like the healthy model; a broken sentence in 2 of 10",
    ),
    _device(
        "stale_cache_layer",
        "no decode step's cache entry is written in the second layer",
        visible=True,
        why="rows of line breaks, or a loop, in 6 of 8",
    ),
    _device(
        "position_off_by_one",
        "decoded tokens stand one place too far",
        visible=False,
        why="reads like the healthy model in 10 of 10",
    ),
    _device(
        "rotary_base_wrong",
        "rotary base 10 000 instead of 100 000",
        visible=False,
        why="reads like the healthy model in 10 of 10",
    ),
    _device(
        "o_proj_transposed", "o_proj transposed, all layers", visible=True, why="rows of dashes"
    ),
    _device(
        "o_proj_transposed_one_layer",
        "in the middle layer alone",
        visible=False,
        why="fluent; goes in circles in 4 of 10",
    ),
    _device(
        "key_heads_swapped",
        "each query group gets the next one's keys",
        visible=True,
        why="dashes, commas and single words",
    ),
    _device(
        "overflow_to_nan",
        "bf16 overflows in the middle layer, all logits are NaN",
        visible=True,
        why="nothing but the first token of the vocabulary, a special one",
        constant=True,
    ),
    _device(
        "overflow_to_inf",
        "the logits overflow bf16",
        visible=True,
        why="the same, with stray marks in between",
        constant=True,
    ),
    _device(
        "vocabulary_shard_lost",
        "no logits from the last third of the vocabulary",
        visible=False,
        why="reads like the healthy model in 8 of 8: these tokens are rare",
    ),
    _device(
        "vocabulary_first_shard_lost",
        "no logits from the first third of the vocabulary, which holds the common tokens",
        visible=True,
        why="one or a few words over and over",
    ),
    _device(
        "vocabulary_shard_zero",
        "zeros there",
        visible=False,
        why="reads like the healthy model in 8 of 8",
    ),
    _device(
        "padding_unmasked",
        "the padding to 128 columns is attended to",
        visible=True,
        why="rows of line breaks, loops, another subject, in 8 of 8",
    ),
    _device(
        "eos_ignored",
        "asked by chat template, the model ends though it may not, and the device goes on",
        visible=True,
        why="chat markup and another conversation after the end, in 4 of 5",
    ),
    _device(
        "noise_1_percent",
        "1 % noise on every matrix",
        visible=False,
        why="reads like the healthy model in 8 of 8",
    ),
    _device(
        "noise_5_percent",
        "5 % noise on every matrix",
        visible=False,
        why="reads like the healthy model in 7 of 8",
    ),
    _device("noise_30_percent", "30 % noise on every matrix", visible=True, why="word salad"),
    _text(
        "prompt_echoed",
        "the prompt again, as often as 32 tokens hold",
        "the same words over and over",
    ),
    _text(
        "one_token_repeated", "one token of a good text, 32 times", "the same word over and over"
    ),
    _text(
        "phrase_repeated",
        "its first 2-6 tokens again and again",
        "the same words over and over, or nothing but line breaks",
    ),
    _text(
        "loop_after_12_tokens",
        "12 good tokens, then the last 4 of them again and again",
        "four tokens over and over after a good beginning",
    ),
    _text("another_language", "written by hand in another language", "it is not English"),
    _text("byte_soup", "random bytes read as UTF-8", "control and replacement characters"),
    _text("empty", "no text at all", "there is nothing", constant=True),
    _text(
        "special_tokens_only", "32 special tokens of the tokenizer", "markup where text should be"
    ),
    _text("shuffled_words", "the words of a good text in random order", "no sentence can be read"),
    _text("random_tokens", "32 random tokens", "no word follows from another"),
    _text("random_tail", "16 good tokens, then 16 random ones", "the second half is word salad"),
    _text(
        "random_token_in_8",
        "every eighth token of a good text replaced by a random one",
        "four foreign words stand in it",
    ),
    _text("random_token_in_16", "every sixteenth", "two foreign words stand in it: seen in 8 of 8"),
    _text("no_spaces", "a good text without its spaces", "one long word"),
    _text(
        "text_of_another_prompt",
        "a good text that answers another prompt",
        "good English about something else: seen beside the prompt alone, in 8 of 8",
    ),
    _text(
        "two_texts_glued",
        "16 tokens of a good text, then the second half of another",
        "the subject changes within a sentence: seen in 8 of 8",
    ),
)

KINDS: Final = MappingProxyType({kind.name: kind for kind in _KINDS})
"""By name, in the corpus's order."""
