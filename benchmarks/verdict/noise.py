"""Arithmetic that is right but different, and how far it moves log-probabilities.

No Trainium stands behind these figures. What a healthy device may do otherwise than the reference
is imitated on the CPU: fused attention, partial products of several ranks added in the run's dtype,
an activation read from a table, stochastic rounding, norms in the short dtype, another dtype,
another depth. Each device is led along the same tokens as the reference, in one forward pass, and
chooses its own token at every step; what follows a choice of its own is the business of `tokens`,
which lets devices generate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from benchmarks.verdict import faults
from pipeline.leading import LIKELY, end_tokens
from pipeline.reference import Reference, Step

GAP, PLACE, EXACT_GAP, EXACT_PLACE, DEPARTURE, EXACT_DEPARTURE, NOISE = range(7)
"""Columns of evidence, one row a step, as device.hold and corpus.jsonl have them. Gaps in nats;
departures and noise: root mean square over the device's likely ids, nats."""

Evidence = NDArray[np.float64]
"""[prompt, step, column]"""

_AT_ONCE: Final = 12
"""Prompts in one forward pass: their logits over 49 152 tokens take 75 MB."""


def reference(evidence: Evidence, *, logits: bool = True, float32: bool = True) -> Reference:
    """What pipeline.reference answers to a run of these prompts.

    The root mean square of a step stands as its only departure, and the run dtype's departure is
    set so that the difference of the two is the noise, which is all that a verdict makes of them.
    logits: whether the device's log-probabilities travelled. float32: whether the second pass ran.
    """

    def steps(gap: int, place: int, departure: Callable[[Evidence], float]) -> Any:
        return tuple(
            tuple(
                Step(float(row[gap]), int(row[place]), (departure(row),) if logits else ())
                for row in prompt
            )
            for prompt in evidence
        )

    if not float32:
        return Reference(steps(GAP, PLACE, lambda row: float(row[DEPARTURE])), cached=False)
    return Reference(
        steps(GAP, PLACE, lambda row: float(row[EXACT_DEPARTURE] - row[NOISE])),
        cached=False,
        exact=steps(EXACT_GAP, EXACT_PLACE, lambda row: float(row[EXACT_DEPARTURE])),
        noise=float(np.sqrt(np.mean(evidence[..., NOISE] ** 2))),
    )


# --- right, but different -------------------------------------------------------------------------


@contextmanager
def fused(model: Any) -> Iterator[None]:
    """Fused attention where the model has it, float32 sums: what run.py has on the CPU."""
    before = model.config._attn_implementation
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    try:
        with faults.float32_sums(model):
            yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def _multiplying(
    model: Any,
    ends: tuple[str, ...],
    multiply: Callable[[torch.nn.Linear, torch.Tensor], torch.Tensor],
) -> Iterator[None]:
    """Linear layers whose names end like this multiply so."""
    with fused(model):
        chosen: list[Any] = [
            layer
            for name, layer in model.named_modules()
            if name.endswith(ends) and isinstance(layer, torch.nn.Linear)
        ]
        kept = [layer.forward for layer in chosen]
        for layer in chosen:
            layer.forward = partial(multiply, layer)
        try:
            yield
        finally:
            for layer, before in zip(chosen, kept, strict=True):
                layer.forward = before


def over_ranks(ranks: int) -> faults.Damage:
    """Sums of row-parallel layers as `ranks` ranks make them: a rounded part each, then added.

    Parts of any size, where faults.sharded_sums cuts by heads: what counts is how many rounded
    parts there are.
    """

    def multiply(layer: torch.nn.Linear, value: torch.Tensor) -> torch.Tensor:
        parts = [
            functional.linear(part.float(), weight.float()).to(value.dtype)
            for part, weight in zip(
                value.tensor_split(ranks, -1), layer.weight.tensor_split(ranks, -1), strict=True
            )
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total if layer.bias is None else total + layer.bias

    return lambda model: _multiplying(model, ("o_proj", "down_proj"), multiply)


def rounding_at_random(model: Any) -> AbstractContextManager[None]:
    """Products rounded to bf16 up or down by chance, the nearer the likelier; twice the variance of
    rounding to the nearest."""
    generator = torch.Generator().manual_seed(faults.SEED)

    def multiply(layer: torch.nn.Linear, value: torch.Tensor) -> torch.Tensor:
        exact = functional.linear(value.float(), layer.weight.float()).contiguous()
        bits = exact.view(torch.int32)
        chance = torch.randint(0, 1 << 16, bits.shape, generator=generator, dtype=torch.int32)
        cut = (bits + chance) & -(1 << 16)  # the upper half of a float32 is a bf16
        return cut.view(torch.float32).to(value.dtype)

    return _multiplying(model, ("_proj", "lm_head"), multiply)


@contextmanager
def short_norms(model: Any) -> Iterator[None]:
    """Norms computed in the run's dtype, where the library goes to float32 and back."""

    def short(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
        square = (hidden * hidden).mean(-1, keepdim=True)
        scaled: torch.Tensor = norm.weight * (hidden * torch.rsqrt(square + norm.variance_epsilon))
        return scaled

    norms = [one for one in model.modules() if type(one).__name__.endswith("RMSNorm")]
    for norm in norms:
        norm.forward = partial(short, norm)
    try:
        with fused(model):
            yield
    finally:
        for norm in norms:
            del norm.forward


class _Table(torch.nn.Module):
    """An activation read from a table of straight pieces over [-8, 8]."""

    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor], pieces: int) -> None:
        super().__init__()
        self.pieces = pieces
        self.values = activation(torch.linspace(-8, 8, pieces + 1))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Same shape and dtype."""
        wide = value.float()
        at = (wide.clamp(-8, 8) + 8) * (self.pieces / 16)
        left = at.floor().long().clamp(0, self.pieces - 1)
        share = at - left
        read = self.values[left] * (1 - share) + self.values[left + 1] * share
        return torch.where(wide > 8, wide, read).to(value.dtype)


def by_table(pieces: int) -> faults.Damage:
    """The activation of every dense block from a table, as accelerators compute it."""

    @contextmanager
    def apply(model: Any) -> Iterator[None]:
        blocks = [
            one
            for one in model.modules()
            if isinstance(getattr(one, "act_fn", None), torch.nn.Module)
        ]
        kept = [block.act_fn for block in blocks]
        for block in blocks:
            block.act_fn = _Table(block.act_fn, pieces)
        try:
            with fused(model):
                yield
        finally:
            for block, before in zip(blocks, kept, strict=True):
                block.act_fn = before

    return apply


def at_once(*several: faults.Damage) -> faults.Damage:
    """All of them, the last one innermost."""

    @contextmanager
    def apply(model: Any) -> Iterator[None]:
        if not several:
            yield
            return
        with several[0](model), at_once(*several[1:])(model):
            yield

    return apply


@contextmanager
def cut(model: Any, depth: int) -> Iterator[None]:
    """Only the first layers, then the last norm and the head: no model for text, but its noise."""
    whole = model.model.layers
    model.model.layers = whole[:depth]
    try:
        yield
    finally:
        model.model.layers = whole


# --- led along given tokens -----------------------------------------------------------------------


@dataclass(frozen=True)
class Path:
    """Prompts padded on the left [prompt, column] and the tokens after them [prompt, step]."""

    ids: torch.Tensor
    mask: torch.Tensor
    tokens: torch.Tensor
    ends: tuple[int, ...]

    @classmethod
    def of(cls, prompts: Sequence[list[int]], tokens: Sequence[list[int]], model: Any) -> Path:
        """Prompts as ids without padding; tokens: as many for each."""
        columns = max(map(len, prompts))
        gaps = [columns - len(one) for one in prompts]
        return cls(
            torch.tensor([[0] * gap + one for gap, one in zip(gaps, prompts, strict=True)]),
            torch.tensor([[0] * gap + [1] * (columns - gap) for gap in gaps]),
            torch.tensor(tokens),
            tuple(end_tokens(model)),
        )


@torch.inference_mode()
def logits(model: Any, path: Path) -> torch.Tensor:
    """float32 [prompt, step, id]."""
    ids = torch.cat([path.ids, path.tokens[:, :-1]], dim=1)
    mask = torch.cat([path.mask, torch.ones_like(path.tokens[:, :-1])], dim=1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    found = [
        model(
            input_ids=ids[at : at + _AT_ONCE],
            attention_mask=mask[at : at + _AT_ONCE],
            position_ids=positions[at : at + _AT_ONCE],
            use_cache=False,
            logits_to_keep=path.tokens.shape[1],
        ).logits.float()
        for at in range(0, len(ids), _AT_ONCE)
    ]
    return torch.cat(found)


def compare(
    device: torch.Tensor, own: torch.Tensor, exact: torch.Tensor, ends: Sequence[int]
) -> Evidence:
    """What the references' logits, in the run's dtype and in float32, say of a device's.

    As in pipeline.reference, tokens that end a text are never chosen, and count in departures only.
    """
    banned = torch.tensor(list(ends), dtype=torch.int64)
    chosen = device.index_fill(2, banned, float("-inf")).argmax(-1, keepdim=True)
    best = torch.log_softmax(device, -1).topk(LIKELY, -1)
    columns, at_best = [], []
    for found in (own, exact):
        at_best.append(torch.log_softmax(found, -1).gather(2, best.indices))
        free = torch.log_softmax(found.index_fill(2, banned, float("-inf")), -1)
        gap = free.amax(-1, keepdim=True) - free.gather(2, chosen)
        columns += [gap[..., 0], (free > free.gather(2, chosen)).sum(-1).float()]
    for apart in (best.values - at_best[0], best.values - at_best[1], at_best[0] - at_best[1]):
        columns.append(apart.square().mean(-1).sqrt())
    return torch.stack(columns, -1).double().numpy()


BF16: Final[dict[str, faults.Damage]] = {
    "fused attention": fused,
    "2 ranks": over_ranks(2),
    "4 ranks": over_ranks(4),
    "8 ranks": over_ranks(8),
    "32 ranks": over_ranks(32),
    "activation by table, 256 pieces": by_table(256),
    "activation by table, 64 pieces": by_table(64),
    "norms in bf16": short_norms,
    "rounding at random": rounding_at_random,
    "the last three at once": at_once(by_table(64), short_norms, rounding_at_random),
}
FP16: Final = {name: BF16[name] for name in ("fused attention", "4 ranks", "8 ranks")} | {
    "activation by table, 256 pieces": by_table(256)
}
CUT: Final = {"4 ranks": BF16["4 ranks"]}
DEPTHS: Final = (6, 12, 18, 24)
"""Of SmolLM2's 30 layers."""


def depart(
    model: Any, exact: torch.Tensor, path: Path, devices: dict[str, faults.Damage]
) -> Iterator[tuple[str, Evidence]]:
    """(kind, evidence) of each device; model: in the run's dtype, eager attention; exact: logits of
    the same checkpoint in float32."""
    with faults.float32_sums(model):
        own = logits(model, path)
    for name, device in devices.items():
        with device(model):
            found = logits(model, path)
        yield name, compare(found, own, exact, path.ends)
