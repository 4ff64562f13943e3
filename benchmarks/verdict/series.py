"""Evidence of devices, right and wrong, for the figures of the token check (tokens.py)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.verdict import faults, noise
from benchmarks.verdict.corpus import CORPUS, HALVES, read_lines, written
from benchmarks.verdict.device import Asked, generate, hold
from benchmarks.verdict.faults import FAULTS, Fault
from benchmarks.verdict.generate import IMAGE_MODEL, TEXT_MODEL, Device, Prompt
from benchmarks.verdict.kinds import KINDS, Label
from benchmarks.verdict.noise import Evidence
from demo.recipes import CAPTIONS

PER_KIND: Final = 2
"""Prompts of each of the eight kinds, from each half: 16 a half."""
PICTURE_PROMPTS: Final = 5
"""Of each half, asked of each of three pictures."""
FP16: Final = ("tiny-gpt-oss",)
TINY: Final = (
    "tiny-gemma3",
    "tiny-gpt-oss",
    "tiny-gpt2",
    "tiny-llama-3-kv-heads",
    "tiny-mixtral",
    IMAGE_MODEL,
    "tiny-qwen3",
    "tiny-qwen3-moe",
)


@dataclass(frozen=True)
class Series:
    """One kind of device and one checkpoint: its evidence in each half.

    free: whether the device followed its own tokens, or was led along those of a healthy one.
    """

    model: str
    dtype: str
    kind: str
    label: Label
    routed: bool
    free: bool
    evidence: dict[str, Evidence]


# --- devices --------------------------------------------------------------------------------------


def late(damage: faults.Damage, step: int) -> faults.Damage:
    """Healthy up to this decode step, broken from it on."""

    @contextmanager
    def apply(model: Any) -> Iterator[None]:
        whole, calls = model.forward, 0
        with ExitStack() as broken:

            @wraps(whole)  # generate() reads the names of its parameters
            def forward(*args: Any, **kwargs: Any) -> Any:
                nonlocal calls
                if calls == step:
                    broken.enter_context(damage(model))
                calls += 1
                return whole(*args, **kwargs)

            model.forward = forward
            try:
                yield
            finally:
                model.forward = whole

    return apply


_ONE_SUM: Final = FAULTS["all_reduce_missing_one_layer"].model
LATE: Final = {
    "all_reduce_missing_one_layer, from step 16": Fault(late(_ONE_SUM, 16)),
    "all_reduce_missing_one_layer, from step 28": Fault(late(_ONE_SUM, 28)),
    "noise_5_percent, from step 16": Fault(late(FAULTS["noise_5_percent"].model, 16)),
    "stale_cache_slot, step 24": Fault(stale=(range(24, 25), None)),
}
UNSEEN: Final = ("overflow_to_nan", "overflow_to_inf", "eos_ignored")
"""Faults that guards find, without this check: logits that are no numbers, a token that ends."""
MILD: Final = (
    "ranks_swapped_one_layer",
    "all_reduce_missing_one_layer",
    "layer_skipped",
    "rotary_base_wrong",
    "o_proj_transposed_one_layer",
    "key_heads_swapped",
    "vocabulary_shard_lost",
    "noise_1_percent",
    "noise_5_percent",
)
"""Faults of one layer, or slight everywhere: what the real model is measured with."""
WRONG: Final = {name: one for name, one in FAULTS.items() if name not in UNSEEN} | LATE


RIGHT: Final = {
    "growing cache": Asked(cache="growing"),
    "static cache": Asked(),
    "padding to 128 columns": Asked(columns=128),
} | {
    name: Asked(Fault(noise.BF16[name]))
    for name in ("2 ranks", "4 ranks", "activation by table, 256 pieces")
}
"""Right but different, with every family."""
ANYWHERE: Final = (
    *("growing cache", "static cache", "padding to 128 columns"),
    *("stale_cache_slot", "stale_cache_slot, step 24", "stale_cache_layer", "padding_unmasked"),
    *("vocabulary_shard_lost", "vocabulary_shard_zero"),
    *("noise_1_percent", "noise_5_percent", "noise_30_percent", "noise_5_percent, from step 16"),
)
"""What needs no model that is built as Llama is; GPT-2 is not."""


# --- evidence -------------------------------------------------------------------------------------


def _prompts(per_kind: int, only: str = "") -> list[Prompt]:
    """The first of every kind and half; only: a single kind."""
    taken: dict[tuple[str, str], list[Prompt]] = {}
    for one in written("prompts.json"):
        if only in ("", one["kind"]):
            several = taken.setdefault((one["half"], one["kind"]), [])
            several.append(Prompt(one["id"], one["half"], one["prompt"]))
    return [one for several in taken.values() for one in several[:per_kind]]


def _halved(evidence: Sequence[Any], halves: Sequence[str]) -> dict[str, Evidence]:
    return {
        half: np.array([one for one, own in zip(evidence, halves, strict=True) if own == half])
        for half in HALVES
    }


def _routed(model: Any) -> bool:
    """Whether a router sends each token to some of several experts."""
    config = model.config.get_text_config()
    return bool(getattr(config, "num_local_experts", 0) or getattr(config, "num_experts", 0))


def _windowed(model: Any) -> bool:
    """Whether some layers attend to a sliding window only."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    return "sliding_attention" in kinds


def family(directory: Path, dtype: torch.dtype, per_kind: int = PER_KIND) -> Iterator[Series]:
    """Every device of a small checkpoint, each with tokens of its own."""
    image = directory.name == IMAGE_MODEL
    device = Device(directory, image=image)
    model = device.models.bf16
    if dtype != torch.bfloat16:
        model = type(model).from_pretrained(directory, dtype=dtype).eval().requires_grad_(False)
        faults.use_float32_sums(model)
        device.models = replace(device.models, bf16=model)
    prompts = _prompts(per_kind)
    if image:
        prompts = [
            replace(one, picture=name)
            for one in _prompts(PICTURE_PROMPTS, "caption")
            for name in CAPTIONS
        ]
    halves = [one.half for one in prompts]
    batch = device.tensors(prompts)
    alone = [device.tensors([one]) for one in prompts]
    asked = [(name, Label.DIFFERENT, one) for name, one in RIGHT.items()]
    asked += [(name, Label.WRONG, Asked(one)) for name, one in WRONG.items()]
    if not hasattr(model.get_decoder(), "layers"):
        asked = [one for one in asked if one[0] in ANYWHERE]
    for kind, label, how in asked:
        if how.fault.stale and _windowed(model):
            # device.generate gives such layers a cache of the window's length, run.py a plain one
            print(f"{directory.name}: no {kind}: layers with a window", file=sys.stderr)
            continue
        try:
            made = generate(model, batch, how)
        except ValueError as error:  # a fault without a meaning for this model, as faults.py says
            if label is not Label.WRONG:
                raise
            print(f"{directory.name}: no {kind}: {error}", file=sys.stderr)
            continue
        if any(one.logprobs is None for one in made):
            raise AssertionError(f"{directory.name}, {kind}: logits that are no numbers")
        steps = [
            hold(device.models, prompt, one)["steps"]
            for prompt, one in zip(alone, made, strict=True)
        ]
        name = str(dtype).removeprefix("torch.")
        yield Series(
            directory.name, name, kind, label, _routed(model), True, _halved(steps, halves)
        )


def led(directory: Path) -> Iterator[Series]:
    """The real model's devices, led along the tokens of a healthy one.

    In both short dtypes, in five depths, and with the milder faults that one forward pass shows.
    """
    prompts = _prompts(PER_KIND)
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    ids = [tokenizer(one.text)["input_ids"] for one in prompts]
    auto: Any = AutoModelForCausalLM

    def load(dtype: torch.dtype) -> Any:
        model = auto.from_pretrained(directory, dtype=dtype, attn_implementation="eager")
        return model.eval().requires_grad_(False)

    short, whole = load(torch.bfloat16), load(torch.float32)
    tokenizer.padding_side = "left"
    batch = dict(tokenizer([one.text for one in prompts], return_tensors="pt", padding=True))
    with noise.fused(short):
        made = generate(short, batch, Asked(cache="growing"))
    path = noise.Path.of(ids, [one.tokens for one in made], short)

    def series(
        model: Any, devices: dict[str, faults.Damage], label: Label, name: str, exact: torch.Tensor
    ) -> Iterator[Series]:
        for kind, evidence in noise.depart(model, exact, path, devices):
            halves = _halved(list(evidence), [one.half for one in prompts])
            yield Series(directory.name, name, kind, label, False, False, halves)

    for depth in noise.DEPTHS:
        with noise.cut(short, depth), noise.cut(whole, depth):
            exact = noise.logits(whole, path)
            yield from series(short, noise.CUT, Label.DIFFERENT, f"bfloat16, {depth} layers", exact)
    exact = noise.logits(whole, path)
    del whole
    yield from series(short, noise.BF16, Label.DIFFERENT, "bfloat16", exact)
    broken = {name: noise.at_once(noise.fused, FAULTS[name].model) for name in MILD}
    yield from series(short, broken, Label.WRONG, "bfloat16", exact)
    del short
    half = load(torch.float16)
    yield from series(half, noise.FP16, Label.DIFFERENT, "float16", exact)


def kept(corpus: Path) -> Iterator[Series]:
    """The corpus's devices whose lines carry evidence of every step."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in read_lines(corpus):
        if "steps" in line:
            found.setdefault((line["made_by"], line["device"]), []).append(line)
    for (model, kind), lines in found.items():
        if {one["half"] for one in lines} != set(HALVES):
            continue
        label = KINDS[kind].label
        yield Series(
            model,
            "bfloat16",
            f"corpus: {kind}",
            Label.WRONG if label is Label.WRONG else Label.DIFFERENT,
            False,
            True,
            _halved([one["steps"] for one in lines], [one["half"] for one in lines]),
        )


def measure(models: Path) -> Iterator[Series]:
    """Every series, small families first."""
    for name in TINY:
        yield from family(models / name, torch.bfloat16)
    for name in FP16:
        yield from family(models / name, torch.float16)
    yield from led(models / TEXT_MODEL)
    if CORPUS.exists():
        yield from kept(CORPUS)
