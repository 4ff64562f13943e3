"""What a checkpoint costs a core: weights as its class loads them, and the static cache. Bytes.

Weights count in the run's dtype: parameters that Transformers keeps in float32 whatever the dtype
(`_keep_in_fp32_modules_strict`: routers' biases, some norms) and buffers are far below any margin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from typing import Any

from pipeline.plan_table import ModelClass, held_share
from pipeline.words import Parallelism

_ELEMENT_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6} | {
    name: bits
    for bits, names in {
        8: "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
        16: "U16 I16 F16 BF16",
        32: "U32 I32 F32",
        64: "U64 I64 F64 C64",
    }.items()
    for name in names.split()
}
"""Bits of one element by safetensors dtype name."""

_SCALE = re.compile(r"(?:_scale_inv|_scales?)$")
"""Names of quantisation scales: gone after expansion."""

_DECODER_NAMES = {
    "num_hidden_layers": ("decoder_layers", "num_decoder_layers"),
    "num_attention_heads": ("decoder_attention_heads",),
}
"""Names that go first: where both halves of an encoder-decoder are described side by side."""

_OTHER_NAMES = {
    "hidden_size": ("n_embd", "n_embed", "d_model"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_hidden_layers": ("n_layer", "n_layers"),
    "num_key_value_heads": ("num_kv_heads",),
}
"""Names that published config.json files use beside the class's own."""


@dataclass(frozen=True)
class Tensor:
    """One stored tensor as a safetensors header names it."""

    name: str
    dtype: str
    """The header's name of the type: "BF16", "F32", "F8_E4M3", "U8"."""
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many numbers it holds; 1 for a scalar."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Its size as stored; KeyError on a dtype that safetensors does not have."""
        return (self.elements * _ELEMENT_BITS[self.dtype] + 7) // 8


@dataclass(frozen=True)
class Checkpoint:
    """What is known of a checkpoint without its weights."""

    model_id: str
    revision: str
    config: Mapping[str, Any]
    """The parsed config.json."""
    tensors: tuple[Tensor, ...]
    """Empty when the repository has no safetensors."""
    checkpoint_bytes: int
    """Sum of the tensors' bytes as stored."""
    remote_code: bool
    """Whether the config names classes that live in the repository (`auto_map`)."""

    @property
    def model_type(self) -> str | None:
        """The config's model type; None where it has none."""
        value = self.config.get("model_type")
        return value if isinstance(value, str) else None

    @property
    def parameters(self) -> int:
        """Elements over all stored tensors."""
        return sum(tensor.elements for tensor in self.tensors)


@dataclass(frozen=True)
class Weights:
    """Stored tensors that share parameter (layers and experts as `*`), dtype and shape."""

    rule: str
    shape: tuple[int, ...]
    stacked: bool
    bytes: int
    """Of all of them in the run's dtype."""


@dataclass(frozen=True)
class Footprint:
    """A checkpoint as its class sees it: what is loaded, and how it divides."""

    kind: ModelClass
    config: Mapping[str, Any]
    weights: Sequence[Weights]
    experts: int
    element_bytes: int

    @cached_property
    def weight_bytes(self) -> int:
        """Of one whole copy."""
        return sum(group.bytes for group in self.weights)

    def rank_bytes(self, parallelism: Parallelism, cores: int) -> int:
        """Bytes of weights that the fullest core keeps."""
        plan = self.kind.plan(parallelism)
        total = 0
        for group in self.weights:
            held, size = held_share(group.rule, group.shape, group.stacked, plan, cores)
            total += group.bytes * held // size
        return total

    def replicated_share(self, parallelism: Parallelism, cores: int) -> float:
        """Share of the weights that every core keeps whole, 0 to 1."""
        spread = self.weight_bytes / cores
        excess = self.rank_bytes(parallelism, cores) - spread
        return excess / (self.weight_bytes - spread) if self.weight_bytes and cores > 1 else 0.0

    def number(self, key: str) -> int | None:
        """A field of the text config: as written, else the class's default."""
        return _number(self.kind, self.config, key)

    @cached_property
    def attention(self) -> tuple[tuple[int, int], ...]:
        """(key/value heads, head width) of each kind of attention layer; () = not known."""
        heads = self.number("num_attention_heads")
        one = self.number("multi_query") and not self.number("new_decoder_architecture")
        usual = 1 if one else self.number("num_key_value_heads") or heads
        width = self.number("head_dim") or (self.number("hidden_size") or 0) // (heads or 1)
        found = [(usual, width)]
        for kind in ("global", "swa"):
            other = self.number(f"num_{kind}_key_value_heads")
            other = other or self.number(f"{kind}_num_key_value_heads")
            wide = self.number(f"{kind}_head_dim")
            if other or wide:
                found.append((other or usual, wide or width))
        return tuple((count, wide) for count, wide in found if count and wide)

    def cache_bytes(self, parallelism: Parallelism, cores: int, length: int) -> int | None:
        """Bytes of a core's static cache; None where the config does not say its shape.

        A plain layer of `length` positions for every decoder layer, as run.py allocates it. Of
        layers that differ the largest counts for all, and layers that keep a state instead of
        keys and values count as if they kept these: never below what is really kept.
        """
        layers = self.number("num_hidden_layers")
        if self.kind.cache == "latent":
            rank, rope = self.number("kv_lora_rank"), self.number("qk_rope_head_dim") or 0
            width = rank + rope if rank else 0
        else:
            split = cores if self.kind.splits_heads(parallelism) else 1
            sizes = (2 * ceil(count / split) * wide for count, wide in self.attention)
            width = max(sizes, default=0)
        return layers * width * length * self.element_bytes if layers and width else None

    def obstacle(self, parallelism: Parallelism, cores: int) -> str | None:
        """Why the weights cannot be spread so; None = they can."""
        kind = self.config["model_type"]
        over = f"cannot be divided over {cores} cores"
        if parallelism is Parallelism.NONE:
            return None if cores == 1 else f"{cores} cores need tensor or expert parallelism"
        if cores == 1:
            return f"{parallelism.value} parallelism needs more than one core"
        if parallelism is Parallelism.TENSOR and not self.kind.tensor:
            return f"{kind} has no tensor-parallel plan"
        if parallelism is Parallelism.EXPERT:
            if not (self.kind.expert and self.experts):
                return f"{kind} has no expert-parallel plan"
            if self.experts % cores:
                return f"{self.experts} experts {over}"
        heads: list[tuple[Any, str]] = []
        if self.kind.splits_heads(parallelism):
            heads.append((self.number("num_attention_heads"), "attention"))
            # MLA's heads share one latent, which every core keeps.
            if self.kind.cache != "latent":
                heads += [(count, "key/value") for count, _ in self.attention]
        if self.kind.splits_heads(parallelism, vision=True):
            vision = _part(self.config, ("vision_config",))
            heads.append((vision.get("num_attention_heads") or vision.get("num_heads"), "vision"))
        odd = [
            f"{count} {what} {'head' if count == 1 else 'heads'}"
            for count, what in heads
            if isinstance(count, int) and count % cores
        ]
        return f"{' and '.join(dict.fromkeys(odd))} {over}" if odd else None


def quantisation(config: Mapping[str, Any]) -> str | None:
    """The checkpoint's quantisation method; "an unnamed method" where the config hides it."""
    for part in (config, _part(config, ("text_config",))):
        if found := part.get("quantization_config"):
            method = found.get("quant_method") if isinstance(found, Mapping) else None
            return str(method or "an unnamed method")
    return None


def _part(config: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    """The config below these keys; empty where there is none."""
    for step in path:
        found = config.get(step)
        config = found if isinstance(found, Mapping) else {}
    return config


def _number(kind: ModelClass, config: Mapping[str, Any], key: str) -> int | None:
    text = _part(config, kind.text)
    own = kind.names.get(key, key)
    for name in (*_DECODER_NAMES.get(key, ()), own, key, *_OTHER_NAMES.get(key, ())):
        if isinstance(text.get(name), int):
            return int(text[name])
    default = kind.defaults.get(key)
    return None if default is None else int(default)


def read(kind: ModelClass, checkpoint: Checkpoint, element_bytes: int) -> Footprint:
    """The checkpoint's tensors by parameter, without what the class does not load."""
    config = checkpoint.config
    quantised = quantisation(config) is not None
    layers = None if kind.pairs or not kind.inner else _number(kind, config, "num_hidden_layers")
    groups: dict[tuple[str, str, tuple[int, ...], bool], list[Tensor]] = {}
    experts = 0
    for tensor in checkpoint.tensors:
        if quantised and _SCALE.search(tensor.name):
            continue
        if found := re.search(r"\.experts\.(\d+)\.", tensor.name):
            experts = max(experts, int(found[1]) + 1)
        number = re.search(r"(?:^|\.)layers\.(\d+)\.", tensor.name)
        beyond = bool(number and layers and int(number[1]) >= layers)
        name = re.sub(r"\.\d+(?=\.|$)", ".*", tensor.name)
        groups.setdefault((name, tensor.dtype, tensor.shape, beyond), []).append(tensor)
    weights: dict[str, list[Weights]] = {}
    for (_, dtype, shape, beyond), tensors in groups.items():
        blocks = quantised and tensors[0].name.endswith("_blocks")
        rule, stacked = kind.parameter(tensors[0].name.removesuffix("_blocks" if blocks else ""))
        # Layers above the config's number are for multi-token prediction, which is not loaded.
        if beyond and rule.startswith(f"{kind.inner}.layers."):
            continue
        if any(pattern.search(rule) for pattern in kind.ignored):
            continue
        values = sum(tensor.elements for tensor in tensors)
        if blocks:  # MXFP4: bytes of two values in blocks, [..., blocks, 16]
            values, shape = 2 * values, (*shape[:-2], 2 * prod(shape[-2:]))
        if blocks or dtype.startswith(("F", "BF")):
            size = values * element_bytes
        else:
            size = sum(tensor.bytes for tensor in tensors)
        if not stacked and len(shape) > 2 and rule in kind.expert:
            experts = max(experts, shape[0])
        weights.setdefault(rule, []).append(Weights(rule, shape, stacked, size))
    top = _part(config, () if kind.nested else kind.text)
    if top.get("tie_word_embeddings", kind.tied_by_default):
        for target, source in kind.tied.items():
            if source in weights:
                weights.pop(target, None)
    loaded = [group for same in weights.values() for group in same]
    return Footprint(kind, config, loaded, experts, element_bytes)
