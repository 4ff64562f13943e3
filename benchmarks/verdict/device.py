"""A device in memory: how it generates, and what the reference says of its tokens.

Generation is Transformers' own, asked as run.py asks it (greedy, left padding, end-of-text banned
before its time), with a batch in place of one prompt. Multiplications in bf16 add in float32
(faults.float32_sums). The reference is the one of the pipeline: each prompt alone, without padding,
eager attention, led along the device's tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GenerationConfig,
    StaticCache,
)

from benchmarks.verdict import faults
from benchmarks.verdict.faults import Fault
from pipeline.leading import LIKELY, end_tokens, follow
from pipeline.reference import rms

NEW_TOKENS: Final = 32
PREFILL_CHUNK: Final = 128
"""As in run.py."""
COLUMNS: Final = 8
"""Elsewhere the prompts' columns are a multiple of this: masked padding costs only time."""


HEALTHY: Final = Fault()


@dataclass(frozen=True)
class Asked:
    """How to generate; what is not said is greedy, as run.py does it.

    cache: "static" or "growing". columns: of the prompt, at least. compiled: forward by Inductor.
    seed: of sampling at temperature 0.7 and top_p 0.9.
    """

    fault: Fault = HEALTHY
    cache: str = "static"
    columns: int = 0
    compiled: bool = False
    seed: int | None = None


@dataclass(frozen=True)
class Made:
    """One continuation: tokens; ids and log-probabilities (nats) of the 5 most likely of each step,
    None when some logits were no numbers."""

    tokens: list[int]
    ids: list[list[int]] | None
    logprobs: list[list[float]] | None


@dataclass(frozen=True)
class Models:
    """One checkpoint in both dtypes, in evaluation mode."""

    bf16: Any
    fp32: Any
    name: str

    @classmethod
    def load(cls, directory: Path, *, image: bool = False) -> Models:
        """Both from the same files."""
        auto: Any = AutoModelForImageTextToText if image else AutoModelForCausalLM
        rounded, exact = (
            auto.from_pretrained(directory, dtype=dtype).eval().requires_grad_(False)
            for dtype in (torch.bfloat16, torch.float32)
        )
        faults.use_float32_sums(rounded)
        return cls(rounded, exact, directory.name)


def pad(batch: dict[str, Any], columns: int, *, unmasked: bool = False) -> dict[str, Any]:
    """A batch of prompts with `columns` columns, padded as run.py pads: zeros on the left."""
    own = batch["input_ids"].shape
    padded = {
        name: torch.nn.functional.pad(value, (columns - own[1], 0)) if value.shape == own else value
        for name, value in batch.items()
    }
    padded["input_ids"] = padded["input_ids"] * padded["attention_mask"]
    if unmasked:
        padded["attention_mask"] = torch.ones_like(padded["attention_mask"])
    return padded


def generate(model: Any, batch: dict[str, Any], asked: Asked) -> list[Made]:
    """The continuations of a left-padded batch of tensors from the tokenizer or the processor."""
    longest = batch["input_ids"].shape[1]
    step = PREFILL_CHUNK if asked.fault.unmasked else COLUMNS
    columns = max(asked.columns, -(-longest // step) * step)
    batch = pad(batch, columns, unmasked=asked.fault.unmasked)
    found = model.generation_config
    free = asked.fault.ends_allowed
    settings: Any = GenerationConfig  # its constructor is not annotated
    how = settings(
        do_sample=asked.seed is not None,
        temperature=0.7 if asked.seed is not None else None,
        top_p=0.9 if asked.seed is not None else None,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=None if free else NEW_TOKENS,
        # None would be taken from the checkpoint; no token has this id, so nothing ends.
        eos_token_id=model.config.get_text_config().vocab_size if free else found.eos_token_id,
        pad_token_id=0,
        disable_compile=True,
        return_dict_in_generate=True,
        output_logits=True,
    )
    memory: dict[str, Any] = {}
    if asked.cache == "static":
        cache = StaticCache(config=model.config, max_cache_len=columns + NEW_TOKENS)
        if asked.fault.stale:
            faults.make_stale(cache, columns, *asked.fault.stale)
        memory["cache"] = cache
    if asked.seed is not None:
        torch.manual_seed(asked.seed)
    with ExitStack() as block:
        block.enter_context(asked.fault.model(model))
        if asked.compiled:
            block.enter_context(_compiled(model))
        block.enter_context(torch.inference_mode())  # within: there, changes make no new versions
        output = model.generate(**batch, **memory, generation_config=how)
    return [
        _made(output.sequences[row, columns:].tolist(), [step[row] for step in output.logits])
        for row in range(len(batch["input_ids"]))
    ]


@contextmanager
def _compiled(model: Any) -> Iterator[None]:
    eager = model.forward
    model.forward = _compile(model)
    try:
        yield
    finally:
        model.forward = eager


def _compile(model: Any) -> Any:
    """One compiled forward a model, so that later batches of the same shape find their graphs."""
    made = model.__dict__.get("_compiled_forward")
    if made is None:
        config: Any = torch._dynamo.config  # as run.py sets them
        config.automatic_dynamic_shapes = False
        config.fail_on_recompile_limit_hit = True
        made = torch.compile(model.forward, fullgraph=True, dynamic=False)
        model.__dict__["_compiled_forward"] = made
    return made


def _made(tokens: list[int], logits: list[torch.Tensor]) -> Made:
    logs = torch.log_softmax(torch.stack(logits).float(), dim=-1)
    if torch.isnan(logs).any() or not torch.isfinite(logs.amax(dim=-1)).all():
        return Made(tokens, None, None)
    best = logs.topk(LIKELY, dim=-1)
    return Made(tokens, best.indices.tolist(), best.values.tolist())


def hold(models: Models, prompt: dict[str, Any], made: Made) -> dict[str, Any]:
    """The evidence of one continuation: the reference led along it, in bf16 and in float32.

    prompt: its tensors, one row, without padding. Gaps, departures and noise in nats.
    max_gap_*, worst_place_*: over all steps (place 0 = first); ties: steps with a gap, in bf16;
    departure_*: rms over all steps and ids, worst_departure_*: the largest rms of one step; noise:
    rms of the bf16 reference's minus the float32 reference's log-probabilities at the same ids.
    steps: [gap_bf16, place_bf16, gap_fp32, place_fp32, departure_bf16, departure_fp32, noise] of
    each step. What needs the device's log-probabilities is null where these are no numbers.
    """
    found: dict[str, Any] = {}
    led = {}
    for name, model in (("bf16", models.bf16), ("fp32", models.fp32)):
        given = {
            key: value.to(model.dtype) if value.is_floating_point() else value
            for key, value in prompt.items()
        }
        with torch.inference_mode(), _eager(model):
            led[name], ids = follow(model, given, made.tokens, end_tokens(model), made.ids)
        if made.ids is None:
            made = Made(made.tokens, ids, None)  # the same ids for float32
        found[f"max_gap_{name}"] = _short(max(one["gap"] for one in led[name]))
        found[f"worst_place_{name}"] = max(one["place"] for one in led[name])
    found["ties"] = sum(one["gap"] > 0 for one in led["bf16"])
    apart = {
        name: [_minus(seen, one["logprobs"]) for seen, one in zip(made.logprobs, of, strict=True)]
        if made.logprobs
        else None
        for name, of in led.items()
    }
    noise = [
        _minus(one["logprobs"], exact["logprobs"])
        for one, exact in zip(led["bf16"], led["fp32"], strict=True)
    ]
    for name, departures in apart.items():
        found[f"departure_{name}"] = _rms(chain.from_iterable(departures)) if departures else None
        found[f"worst_departure_{name}"] = max(map(_rms, departures)) if departures else None
    found["noise"] = _rms(chain.from_iterable(noise))
    if apart["bf16"] and apart["fp32"]:
        found["steps"] = [
            [
                _short(led["bf16"][at]["gap"]) or 0,
                led["bf16"][at]["place"],
                _short(led["fp32"][at]["gap"]) or 0,
                led["fp32"][at]["place"],
                _brief(apart["bf16"][at]),
                _brief(apart["fp32"][at]),
                _brief(noise[at]),
            ]
            for at in range(len(made.tokens))
        ]
    return found


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    """The reference's plain attention."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _minus(device: Sequence[float], reference: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(device, reference, strict=True)]


def _rms(values: Iterable[float]) -> float:
    return _short(rms(values) or 0.0)


def _short(value: float) -> float:
    """Three digits after the point, or three digits of a small value."""
    return round(value, 3) if value >= 0.1 else float(f"{value:.3g}")


def _brief(values: Sequence[float]) -> float:
    """The rms of one step: two digits are enough, and there are 60 000 steps in the corpus."""
    return float(f"{_rms(values):.2g}") or 0
