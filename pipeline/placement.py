"""Where a checkpoint goes: how many cores and spread how, or why nowhere. Sizes are bytes.

The estimate of the fullest core is the weights it keeps under the plan (what a plan replicates
counts in full on every core) + its part of the static key/value cache + a stated margin: all from
safetensors headers, config.json and what Transformers does with the model type
(pipeline.footprint, pipeline.plan_table), without a byte of weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from pipeline import words
from pipeline.footprint import Checkpoint, Footprint, Tensor, quantisation, read
from pipeline.plan_table import ModelClass, PlanTable
from pipeline.record import Placement, Refusal
from pipeline.words import Failure, Parallelism, Target, Task

__all__ = [
    "CORE_COUNTS",
    "GIB",
    "Checkpoint",
    "Margin",
    "PlanTable",
    "Tensor",
    "host_bytes",
    "ladder",
]

CORE_COUNTS = (1, 2, 4, 8, 16)
"""Allowed numbers of cores: four a device, up to the sixteen of four devices."""

GIB = 1024**3

_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}

_EXPANDED = frozenset({"fp8", "mxfp4"})
"""`quant_method`s that Transformers itself turns back into the run's dtype where it finds no GPU
(quantizer_finegrained_fp8.py, quantizer_mxfp4.py). Every other needs a package or a GPU."""

_MOSTLY = 0.5
"""A tensor plan that leaves more than this share of the weights whole on every core yields to
the expert plan, where that one leaves fewer bytes."""


@dataclass(frozen=True)
class Margin:
    """Working memory beside weights and cache: fixed bytes, and a share of the core's weights.

    The defaults are an assumption until results give observed peaks to refit them from. Fixed:
    users report about 22 of a core's 24 GiB to be usable; the rest is NEFF code (some 96 MB a
    physical core, two of which make a core, by AWS's device-memory page), collectives' buffers
    and the runtime. Share: activations, scratchpads, a second copy of a weight that is fused
    while loading.
    """

    fixed_bytes: int = 2 * GIB
    weights_share: float = 0.05

    def of(self, weight_bytes: int) -> int:
        """The margin, in bytes, of a core that keeps `weight_bytes` of weights."""
        return self.fixed_bytes + ceil(self.weights_share * weight_bytes)


_RANK_GIB = 1.5
_COMPILER_GIB = {Target.NEURON: 16.0}
_OTHER_COMPILER_GIB = 1.0
_REFERENCE = 1.2
"""Host memory beside weights, GiB; `host_bytes` says what for. All but the last are assumptions
until rows' host_peak_gb refit them. A rank: a Python process with torch and transformers. The
compiler: neuronx-cc's processes for a run; a user saw them ended for want of memory on the 124 GiB
of a trn2.3xlarge, so what little is known speaks for a large figure; Inductor's, on the CPU, are
C++ compilers. The last is what pipeline.reference asks for, as a factor of the weights."""


def host_bytes(placement: Placement, target: Target) -> int:
    """Host memory that a run and its check are expected to need at their peak, bytes.

    The run: the weights in the run's dtype as the loader holds them, the parts of all ranks
    together, and a constant for each rank and for the compiler; where cores have no memory of
    their own, the host also holds what a core would. The CPU reference: the weights once more, a
    fifth for its activations, and a process. The run's processes are gone when the check starts,
    so the larger of both counts. What every core keeps whole counts for every core: never too low.
    """
    held = placement.weight_bytes * placement.cores
    if target is not Target.NEURON:
        held = placement.core_bytes * placement.cores
    fixed = _COMPILER_GIB.get(target, _OTHER_COMPILER_GIB) + _RANK_GIB * placement.cores
    check = _REFERENCE * placement.weight_bytes * placement.cores + _RANK_GIB * GIB
    return ceil(max(held + fixed * GIB, check))


def ladder(
    checkpoint: Checkpoint,
    *,
    task: Task,
    dtype: str,
    sequence_length: int,
    core_bytes: int,
    max_cores: int,
    margin: Margin,
    plans: PlanTable,
    cores: int | None = None,
    parallelism: Parallelism | None = None,
    host_bytes: int | None = None,
) -> tuple[Placement, ...] | Refusal:
    """Every allowed placement that fits and divides, one a core count, the smallest first; or why
    there is none. The first is to be taken, the others follow where a core runs out of memory.

    sequence_length: positions of the static cache, prompt and new tokens together. core_bytes:
    memory of one core. cores, parallelism: what the list asks for; obeyed or refused. host_bytes:
    where cores share the machine's memory (target cpu), its size: together they must fit it.
    ValueError on a dtype other than bfloat16, float16 and float32.
    """
    element_bytes = _DTYPE_BYTES.get(dtype)
    if element_bytes is None:
        raise ValueError(f"{dtype} is none of {', '.join(_DTYPE_BYTES)}")
    kind = plans.find(task, checkpoint.config)
    refusal = _unsupported(checkpoint, task, plans, kind)
    if refusal or kind is None:
        return refusal or _unsupported_checkpoint("no class loads it")
    model = read(kind, checkpoint, element_bytes)
    if model.cache_bytes(Parallelism.NONE, 1, sequence_length) is None:
        return _unsupported_checkpoint(
            f"config.json does not give the shape of {checkpoint.model_type}'s key/value cache"
        )
    if cores is not None and cores not in CORE_COUNTS:
        return Refusal(
            failure=Failure.UNSUPPORTED_PARALLELISM,
            reason=f"{cores} cores are asked for; allowed are {', '.join(map(str, CORE_COUNTS))}",
        )
    if cores is not None and cores > max_cores:
        return Refusal(
            failure=Failure.TOO_LARGE,
            reason=f"{cores} cores are asked for and the runner class gives {max_cores}",
        )
    reasons: list[str] = []
    rungs: list[Placement] = []
    divides = False
    for count in (cores,) if cores else _counts(max_cores, parallelism):
        fitting: dict[Parallelism, Placement] = {}
        divides = False
        for spread in (parallelism,) if parallelism else _spreads(model, count):
            obstacle = model.obstacle(spread, count)
            if obstacle is not None:
                reasons.append(obstacle)
                continue
            divides = True
            placement = _estimate(model, spread, count, sequence_length, margin)
            shortage = _shortage(model, placement, core_bytes, host_bytes)
            if shortage is None:
                fitting[spread] = placement
            else:
                reasons.append(shortage)
        if fitting:
            best = _choose(model, count, fitting)
            note = _notes(checkpoint, model, best, reasons, asked=bool(cores or parallelism))
            if rungs:
                note += f"; {words.cores(rungs[-1].cores)} ran out of device memory"
            rungs.append(best.model_copy(update={"reason": note}))
    if rungs:
        return tuple(rungs)
    # What stopped the largest count names the class: too little room there, or no way to divide.
    # Where even a perfect division leaves too much, it is too large whatever the plan.
    most = cores or max_cores
    if model.weight_bytes > most * core_bytes:
        total, room = model.weight_bytes / GIB, most * core_bytes / GIB
        return Refusal(
            failure=Failure.TOO_LARGE,
            reason=f"its weights take {total:.1f} GiB and {most} cores have {room:.1f} GiB",
        )
    shown = list(dict.fromkeys(reasons))
    if len(shown) > 3:
        shown = [shown[0], *shown[-2:]]
    return Refusal(
        failure=Failure.TOO_LARGE if divides else Failure.UNSUPPORTED_PARALLELISM,
        reason=" and ".join(shown),
    )


def _unsupported(
    checkpoint: Checkpoint, task: Task, plans: PlanTable, kind: ModelClass | None
) -> Refusal | None:
    """Why the checkpoint cannot be loaded or run at all, whatever the cores."""
    model_type = checkpoint.model_type
    version = f"transformers {plans.transformers}"
    if model_type is None:
        return _unsupported_checkpoint("config.json names no model_type")
    if kind is None:
        if plans.tasks(model_type):
            return _unsupported_checkpoint(f"{version} has no {task.value} class for {model_type}")
        remote = ", and code from the repository is never run" if checkpoint.remote_code else ""
        return _unsupported_checkpoint(f"{version} does not know the type {model_type}{remote}")
    if not checkpoint.tensors:
        return _unsupported_checkpoint("the repository has no safetensors weights")
    method = quantisation(checkpoint.config)
    if method is not None and method not in _EXPANDED:
        return _unsupported_checkpoint(
            f"its weights are quantised with {method}, which needs another package or a GPU"
        )
    if kind.cache == "state" and not kind.fullgraph:
        return _unsupported_checkpoint(
            f"{model_type} keeps a state that no static cache holds, and {version} marks it as "
            "not capturable in one graph"
        )
    return None


def _unsupported_checkpoint(reason: str) -> Refusal:
    return Refusal(failure=Failure.UNSUPPORTED_CHECKPOINT, reason=reason)


def _counts(max_cores: int, asked: Parallelism | None) -> list[int]:
    """The numbers of cores to try, the smallest first; never none."""
    least, most = {None: (1, 16), Parallelism.NONE: (1, 1)}.get(asked, (2, 16))
    return [n for n in CORE_COUNTS if least <= n <= min(most, max_cores)] or [1]


def _spreads(model: Footprint, cores: int) -> list[Parallelism]:
    """The ways to try on this number of cores, the preferred first."""
    if cores == 1:
        return [Parallelism.NONE]
    return [Parallelism.TENSOR, *([Parallelism.EXPERT] if model.kind.expert else [])]


def _estimate(
    model: Footprint, spread: Parallelism, cores: int, length: int, margin: Margin
) -> Placement:
    held = model.rank_bytes(spread, cores)
    return Placement(
        cores=cores,
        parallelism=spread,
        weight_bytes=held,
        cache_bytes=model.cache_bytes(spread, cores, length) or 0,
        margin_bytes=margin.of(held),
        reason="",
    )


def _shortage(
    model: Footprint, placement: Placement, core_bytes: int, host_bytes: int | None
) -> str | None:
    """What the placement lacks; None = it fits."""
    need, cores = placement.core_bytes, placement.cores
    if need > core_bytes:
        text = f"needs {need / GIB:.1f} GiB on one core of {core_bytes / GIB:.1f} GiB"
        if cores == 1:
            return text
        text = text.replace("one core", f"each of {cores} cores")
        whole = model.replicated_share(placement.parallelism, cores)
        if whole > _MOSTLY:
            kept = f"the {placement.parallelism.value} plan leaves {whole:.0%} of the weights whole"
            text += f" ({kept} on every core)"
        return text
    if host_bytes is not None and need * cores > host_bytes:
        return (
            f"needs {need * cores / GIB:.1f} GiB over {words.cores(cores)}, "
            f"above the machine's {host_bytes / GIB:.1f} GiB"
        )
    return None


def _choose(model: Footprint, cores: int, fitting: Mapping[Parallelism, Placement]) -> Placement:
    """Tensor parallelism, unless it leaves most weights replicated and experts leave fewer."""
    first = next(iter(fitting.values()))
    expert = fitting.get(Parallelism.EXPERT, first)
    if (
        expert.weight_bytes < first.weight_bytes
        and model.replicated_share(first.parallelism, cores) > _MOSTLY
    ):
        return expert
    return first


def _notes(
    checkpoint: Checkpoint,
    model: Footprint,
    placement: Placement,
    before: Sequence[str],
    *,
    asked: bool,
) -> str:
    """The placement's reason: what ruled out less, and what the estimate had to assume."""
    cores, spread = placement.cores, placement.parallelism
    parallel = f"{cores} cores with {spread.value} parallelism"
    notes = ["fits one core" if cores == 1 else parallel]
    if asked:
        notes[0] += ", as the list asks"
    elif before:
        notes.append(f"ruled out: {', '.join(dict.fromkeys(before))}")
    if cores > 1 and (whole := model.replicated_share(spread, cores)) >= 0.1:
        notes.append(f"{whole:.0%} of the weights stay whole on every core")
    if spread is Parallelism.EXPERT and not model.kind.tensor:
        notes.append("there is no tensor plan beside the expert plan")
    if method := quantisation(checkpoint.config):
        stored = checkpoint.checkpoint_bytes / GIB
        notes.append(f"{method} expands from {stored:.1f} to {model.weight_bytes / GIB:.1f} GiB")
    if model.kind.cache == "state":
        notes.append("layers that keep a state count as attention layers")
    return "; ".join(notes)
