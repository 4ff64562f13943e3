"""What a broken device computes, and what a healthy one computes in another order.

The functions here change a healthy Transformers causal model in memory, most of them in a `with`
block that puts everything back bit for bit. A model cut over several
ranks is imitated in arithmetic: a rank holds some rows of q/k/v/gate/up_proj and the columns of
o_proj and down_proj that belong to them, and an all-reduce adds the ranks' products.

Models must be built as Llama is (decoder.layers, self_attn.o_proj, mlp.down_proj, rotary_emb with
one inv_freq); of a mixture of experts only the attention is cut. ValueError where a fault has no
meaning for a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

SEED: Final = 20261130
STALE_STEP: Final = 8
"""The decode step whose entry is lost: early enough that most of the text comes after it."""

Damage = Callable[[Any], AbstractContextManager[None]]
"""A model -> a block inside which it computes otherwise."""


@dataclass(frozen=True)
class Fault:
    """How a device goes wrong; what is not said is healthy.

    model: the block the model runs in. stale: (steps, layers) whose cache entries are never
    written; None = all of them. unmasked: padding is attended to. ends_allowed: the ban on
    end-of-text has no effect.
    """

    model: Damage = lambda _: nullcontext()
    stale: tuple[range | None, range | None] | None = None
    unmasked: bool = False
    ends_allowed: bool = False


# --- the parts of a model -------------------------------------------------------------------------


def layers_of(model: Any) -> list[Any]:
    """The decoder's layers, from the first."""
    layers = getattr(model.get_decoder(), "layers", None)
    if layers is None:
        raise ValueError(f"{type(model).__name__} is not built as Llama is")
    return list(layers)


def ranks_of(model: Any) -> int:
    """The least number of ranks, above one, that share the heads of this model evenly."""
    layers_of(model)  # ValueError where it is built otherwise
    config = model.config.get_text_config()
    for ranks in range(2, config.num_key_value_heads + 1):
        if not (config.num_attention_heads % ranks or config.num_key_value_heads % ranks):
            return ranks
    raise ValueError(f"{config.num_key_value_heads} key heads cannot be shared")


def _middle(model: Any, count: int = 1) -> range:
    """`count` layers in the middle."""
    depth = len(layers_of(model))
    first = (depth - count + 1) // 2
    return range(first, first + count)


def _row_parallel(model: Any, layers: range | None) -> list[Any]:
    """The linear layers whose input is cut over ranks, and whose products an all-reduce adds.

    down_proj is among them where it can be cut evenly.
    """
    chosen = [one for at, one in enumerate(layers_of(model)) if layers is None or at in layers]
    found = [layer.self_attn.o_proj for layer in chosen]
    down = [layer.mlp.down_proj for layer in chosen if hasattr(layer.mlp, "down_proj")]
    return found + [one for one in down if one.in_features % ranks_of(model) == 0]


def _shares(length: int, ranks: int) -> list[slice]:
    if length % ranks:
        raise ValueError(f"{ranks} ranks cannot share {length} columns evenly")
    share = length // ranks
    return [slice(rank * share, (rank + 1) * share) for rank in range(ranks)]


# --- changing and putting back --------------------------------------------------------------------


@contextmanager
def _edited(weights: Iterable[Tensor], change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Each weight replaced by what `change` makes of a copy of it."""
    kept = [(weight, weight.detach().clone()) for weight in weights]
    try:
        with torch.no_grad():
            for weight, before in kept:
                weight.copy_(change(before.clone()))
        yield
    finally:
        with torch.no_grad():
            for weight, before in kept:
                weight.copy_(before)


@contextmanager
def _replaced(
    modules: Iterable[Any], forward: Callable[[Any], Callable[..., Any]]
) -> Iterator[None]:
    """Each module's forward replaced by forward(module)."""
    kept = [(module, module.__dict__.get("forward")) for module in modules]
    try:
        for module, _ in kept:
            module.forward = forward(module)
        yield
    finally:
        for module, before in kept:
            if before is None:
                module.__dict__.pop("forward", None)
            else:
                module.forward = before


@contextmanager
def _changed_output(modules: Iterable[Any], change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    handles = [module.register_forward_hook(lambda *seen: change(seen[2])) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _product(value: Tensor, weight: Tensor) -> Tensor:
    """value x weight^T with float32 sums, rounded once: what matrix units do with bf16."""
    return functional.linear(value.float(), weight.float()).to(value.dtype)


# --- right, but in another order ------------------------------------------------------------------


def float32_sums(model: Any) -> AbstractContextManager[None]:
    """Every linear layer multiplies in the model's dtype and adds in float32, rounding once.

    A processor's own bf16 kernels do the same (on SmolLM2's shapes 1 product in 10 000 differs, by
    the last bit), but take eight times as long where it has no instructions for bf16.
    """
    return _replaced(_linear(model), _multiply)


def use_float32_sums(model: Any) -> None:
    """The same for good, with wide copies of the weights at hand for speed."""
    for module in _linear(model):
        module.forward = _multiply(module, keep=True)


def _linear(model: Any) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, torch.nn.Linear)]


def _multiply(module: Any, *, keep: bool = False) -> Callable[[Tensor], Tensor]:
    kept: dict[int, Tensor] = {}

    def wide() -> Tensor:
        weight: Tensor = module.weight
        if not keep or torch.compiler.is_compiling():
            return weight.float()
        if weight._version not in kept:  # a change in place makes a new version
            kept.clear()
            kept[weight._version] = weight.float()
        return kept[weight._version]

    def forward(value: Tensor) -> Tensor:
        bias = None if module.bias is None else module.bias.float()
        return functional.linear(value.float(), wide(), bias).to(value.dtype)

    return forward


def sharded_sums(
    model: Any, order: Sequence[int], layers: range | None = None
) -> AbstractContextManager[None]:
    """Each rank's product is rounded to the dtype and the all-reduce adds them in this order.

    order: ranks by number, e.g. (0, 1, 2) or (2, 1, 0). With a rank left out its part of the sum is
    missing, as without the all-reduce. layers: None = all.
    """
    ranks = ranks_of(model)

    def forward(module: Any) -> Callable[[Tensor], Tensor]:
        shares = _shares(module.weight.shape[1], ranks)

        def reduce(value: Tensor) -> Tensor:
            parts = [
                _product(value[..., shares[one]], module.weight[:, shares[one]]) for one in order
            ]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            return total if module.bias is None else total + module.bias

        return reduce

    return _replaced(_row_parallel(model, layers), forward)


# --- wrong ----------------------------------------------------------------------------------------


def ranks_swapped(model: Any, layers: range | None = None) -> AbstractContextManager[None]:
    """The first two ranks hold each other's columns of o_proj and down_proj, but their own rows."""
    ranks = ranks_of(model)

    def swap(weight: Tensor) -> Tensor:
        first, second = _shares(weight.shape[1], ranks)[:2]
        held = weight[:, first].clone()
        weight[:, first] = weight[:, second]
        weight[:, second] = held
        return weight

    return _edited((module.weight for module in _row_parallel(model, layers)), swap)


def all_reduce_missing(model: Any, layers: range | None = None) -> AbstractContextManager[None]:
    """The first rank goes on with its own part of every sum."""
    return sharded_sums(model, [0], layers)


def layers_skipped(model: Any, layers: range) -> AbstractContextManager[None]:
    """These layers hand their input on; their cache entries are written all the same."""

    def forward(module: Any) -> Callable[..., Any]:
        compute = module.forward

        def skip(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            compute(hidden_states, *args, **kwargs)
            return hidden_states

        return skip

    return _replaced([layers_of(model)[at] for at in layers], forward)


@contextmanager
def position_off_by_one(model: Any) -> Iterator[None]:
    """Each decoded token stands one place too far; the prompt stands right."""

    def shift(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        def moved(value: Any) -> Any:
            single = isinstance(value, Tensor) and not value.is_floating_point()
            return value + 1 if single and value.shape[-1] == 1 else value

        return tuple(map(moved, args)), {name: moved(value) for name, value in kwargs.items()}

    handle = _rotary(model).register_forward_pre_hook(shift, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def rotary_base_wrong(model: Any) -> AbstractContextManager[None]:
    """The usual base of 10 000 instead of the checkpoint's; ten times it where that is its own."""
    rotary = _rotary(model)
    base = model.config.get_text_config().rope_parameters["rope_theta"]
    wrong = 10_000.0 if base != 10_000.0 else 100_000.0
    steps = torch.arange(len(rotary.inv_freq), dtype=torch.float32) / len(rotary.inv_freq)
    return _edited([rotary.inv_freq], lambda _: wrong**-steps)


def _rotary(model: Any) -> Any:
    rotary = getattr(model.get_decoder(), "rotary_emb", None)
    if rotary is None or not hasattr(rotary, "inv_freq"):
        raise ValueError(f"{type(model).__name__} has not one table of rotary frequencies")
    return rotary


def o_proj_transposed(model: Any, layers: range | None = None) -> AbstractContextManager[None]:
    """The square weight behind the attention is read by columns instead of rows."""
    chosen = [one for at, one in enumerate(layers_of(model)) if layers is None or at in layers]
    weights = [layer.self_attn.o_proj.weight for layer in chosen]
    if any(weight.shape[0] != weight.shape[1] for weight in weights):
        raise ValueError("o_proj is not square in this model")
    return _edited(weights, lambda weight: weight.T)


def key_heads_swapped(model: Any) -> AbstractContextManager[None]:
    """Each group of query heads attends with the keys of the next group."""
    heads = model.config.get_text_config().num_key_value_heads

    def roll(weight: Tensor) -> Tensor:
        return weight.view(heads, -1, weight.shape[1]).roll(1, 0).reshape(weight.shape)

    return _edited((layer.self_attn.k_proj.weight for layer in layers_of(model)), roll)


def weight_noise(model: Any, share: float) -> AbstractContextManager[None]:
    """Every matrix plus normal noise of `share` of its standard deviation; the same each time."""
    generator = torch.Generator().manual_seed(SEED)

    def add(weight: Tensor) -> Tensor:
        drawn = torch.randn(weight.shape, generator=generator)
        return weight + drawn * weight.float().std() * share

    return _edited((one for one in model.parameters() if one.ndim == 2), add)


def overflow_to_nan(model: Any) -> AbstractContextManager[None]:
    """One layer's output is past the largest number: infinite, then NaN in the next norm."""
    modules = [layers_of(model)[at].mlp for at in _middle(model)]
    return _changed_output(modules, lambda output: output * 1e38 * 1e38)


def overflow_to_inf(model: Any) -> AbstractContextManager[None]:
    """The logits themselves are past the largest number, above and below."""
    return _changed_output([model.get_output_embeddings()], lambda output: output * 1e38 * 10)


def vocabulary_shard(model: Any, third: int, value: float) -> AbstractContextManager[None]:
    """The logits of one third of the vocabulary (0, 1 or 2) never arrive; `value` stands there."""

    def lose(output: Tensor) -> Tensor:
        changed = output.clone()
        size = output.shape[-1]
        changed[..., third * size // 3 : (third + 1) * size // 3] = value
        return changed

    return _changed_output([model.get_output_embeddings()], lose)


def make_stale(cache: Any, length: int, steps: range | None, layers: range | None) -> None:
    """Entries that are never written keep what an earlier call on the same memory left there.

    cache: a fresh static cache. length: columns of the prompt. steps: decode steps whose entries
    are lost (None = all), layers: where (None = in all). The memory's earlier content is the end of
    the batch's next prompt. Later and with one prompt alone: its own.
    """
    for at, layer in enumerate(cache.layers):
        if layers is None or at in layers:
            layer.update = _stale_update(layer, length, steps)


def _stale_update(layer: Any, length: int, steps: range | None) -> Callable[..., Any]:
    write = layer.update

    def update(keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not layer.is_initialized:
            layer.lazy_initialization(keys, values)
            room = layer.max_cache_len - length
            ends = length - 1 - torch.arange(room) % min(8, length)
            layer.keys[:, :, length:] = keys.roll(1, 0)[:, :, ends]
            layer.values[:, :, length:] = values.roll(1, 0)[:, :, ends]
            write(keys, values, *args, **kwargs)
            return layer.keys, layer.values
        step = int(layer.get_seq_length()) - length
        if steps is not None and step not in steps:
            write(keys, values, *args, **kwargs)
            return layer.keys, layer.values
        slot = length + step
        kept = layer.keys[:, :, slot].clone(), layer.values[:, :, slot].clone()
        write(keys, values, *args, **kwargs)  # for its counting
        layer.keys[:, :, slot], layer.values[:, :, slot] = kept
        return layer.keys, layer.values

    return update


FAULTS: Final = MappingProxyType(
    {
        "ranks_swapped": Fault(ranks_swapped),
        "ranks_swapped_one_layer": Fault(lambda model: ranks_swapped(model, _middle(model))),
        "all_reduce_missing": Fault(all_reduce_missing),
        "all_reduce_missing_one_layer": Fault(
            lambda model: all_reduce_missing(model, _middle(model))
        ),
        "layer_skipped": Fault(lambda model: layers_skipped(model, _middle(model))),
        "two_layers_skipped": Fault(lambda model: layers_skipped(model, _middle(model, 2))),
        "stale_cache_slot": Fault(stale=(range(STALE_STEP, STALE_STEP + 1), None)),
        "stale_cache_layer": Fault(stale=(None, range(1, 2))),
        "position_off_by_one": Fault(position_off_by_one),
        "rotary_base_wrong": Fault(rotary_base_wrong),
        "o_proj_transposed": Fault(o_proj_transposed),
        "o_proj_transposed_one_layer": Fault(
            lambda model: o_proj_transposed(model, _middle(model))
        ),
        "key_heads_swapped": Fault(key_heads_swapped),
        "overflow_to_nan": Fault(overflow_to_nan),
        "overflow_to_inf": Fault(overflow_to_inf),
        "vocabulary_shard_lost": Fault(lambda model: vocabulary_shard(model, 2, float("-inf"))),
        "vocabulary_first_shard_lost": Fault(
            lambda model: vocabulary_shard(model, 0, float("-inf"))
        ),
        "vocabulary_shard_zero": Fault(lambda model: vocabulary_shard(model, 2, 0.0)),
        "padding_unmasked": Fault(unmasked=True),
        "eos_ignored": Fault(ends_allowed=True),
        "noise_1_percent": Fault(lambda model: weight_noise(model, 0.01)),
        "noise_5_percent": Fault(lambda model: weight_noise(model, 0.05)),
        "noise_30_percent": Fault(lambda model: weight_noise(model, 0.3)),
    }
)
"""Every fault of a device, by the kind of continuation it makes (kinds.py)."""
