"""Reads data/parallel_plans.json: which class loads a model type, what it loads, how it divides.

The file is made from the installed Transformers by pipeline.parallel_plans; this side needs
neither torch nor transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from pipeline.words import Parallelism, Task

_COLWISE = frozenset({"colwise", "colwise_rep", "colwise_gather_output"})
_ROWWISE = frozenset({"rowwise", "rowwise_rep", "rowwise_split_input"})
_EMBEDDING = {"embedding_rowwise": 0, "embedding_colwise": -1}
_REPLICATED = frozenset(
    {
        "replicate",
        "replicated_with_grad_allreduce",
        "sequence_parallel",
        "mla_kv_a_proj",
        "all_reduce",
        "moe_tp_experts",
        "moe_identity_expert",
        "local_params",
        "ep_dispatch_experts",
    }
)
"""Styles that keep every parameter whole (transformers/distributed/tensor_parallel.py and
expert_parallel.py, where the dimensions that the others shard are found too)."""

_STYLES = (
    _COLWISE
    | _ROWWISE
    | _REPLICATED
    | _EMBEDDING.keys()
    | {"packed_colwise", "packed_rowwise", "grouped_gemm"}
)

_ATTENTION = re.compile(r"\.(?:[qkv]_proj|q_b_proj|kv_b_proj|qkv_proj|qkv|query_key_value)$")


def generic(name: str) -> str:
    """`name` with `*` for layer numbers: how Transformers' plans are written and looked up."""
    return re.sub(r"\.\d+(\.|$)", r".*\1", name)


def style(rule: str, plan: Mapping[str, str]) -> str | None:
    """The style of a parameter with the generic name `rule`: its own, else its module's."""
    return plan.get(rule) or plan.get(rule.rpartition(".")[0])


def held_share(
    rule: str, shape: tuple[int, ...], stacked: bool, plan: Mapping[str, str], cores: int
) -> tuple[int, int]:
    """(held, of): what share of a parameter the fullest core keeps under `plan`.

    colwise shards the last dimension but one (of a bias the last), rowwise the last (a bias stays
    whole), packed styles both halves of it, embeddings rows or columns, grouped_gemm the experts.
    A dimension need not divide: the first core then holds the ceiling. stacked: the tensor is one
    expert's part of the parameter, so its shape lacks the expert dimension.
    """
    how = style(rule, plan)
    matrix = len(shape) > 1
    if not shape or how is None or how in _REPLICATED:
        return 1, 1
    if how == "grouped_gemm" and stacked:
        return 1, cores
    parts = 2 if how.startswith("packed") and matrix and not stacked else 1
    if how in _COLWISE or how == "packed_colwise":
        size = shape[-2] if matrix else shape[-1]
    elif how in _ROWWISE or how == "packed_rowwise":
        if rule.endswith(".bias") or (how == "packed_rowwise" and not matrix):
            return 1, 1
        size = shape[-1]
    else:
        size = shape[_EMBEDDING.get(how, 0)]
    return min(size, parts * ceil(ceil(size / parts) / cores)), size


@dataclass(frozen=True)
class _Rename:
    """One of Transformers' changes from stored names to parameter names.

    how: "rename"; "each" = a target for every branch of the regex; "pairs" = two stored layers
    make one; "convert" = at most one of these applies, last; "stack" = such a one that stacks the
    experts into one parameter.
    """

    how: str
    scope: str | None
    base: str | None
    source: re.Pattern[str]
    targets: tuple[str, ...]

    def apply(self, name: str) -> str | None:
        """The new name; None where it does not apply."""
        prefix = ""
        if self.scope is not None:
            scope = f"{self.scope}." if self.scope else ""
            full = f"{self.base}.{scope}" if self.base else scope
            prefix = full if name.startswith(full) else scope
            if not name.startswith(prefix):
                return None
        rest = name.removeprefix(prefix)
        match = self.source.search(rest)
        if match is None:
            return None
        if self.how == "pairs":
            layer, part = divmod(int(match[1]), 2)
            return name.replace(match[0], f"layers.{layer}.{'mlp' if part else 'self_attn'}", 1)
        branch = next(key for key, value in match.groupdict().items() if value is not None)
        first = self.source.groupindex[branch]
        target = re.sub(
            r"\\(\d)",
            lambda found: match[first + int(found[1])] or "",
            self.targets[int(branch[1:]) if self.how == "each" else 0],
        )
        return prefix + rest.replace(match[0], target, 1)


@dataclass(frozen=True)
class ModelClass:
    """What Transformers does with the checkpoints that one of its classes loads."""

    name: str
    tensor: Mapping[str, str]
    """Tensor-parallel plan: generic parameter or module name to style."""
    expert: Mapping[str, str]
    prefix: str
    """The base model's attribute: stored names may lack it, or have it too many."""
    inner: str
    """Name of the module that holds the text decoder's `layers`; "" = unknown."""
    text: tuple[str, ...]
    """Keys of config.json that lead to the text decoder's config."""
    nested: bool
    """Whether the class takes the whole config.json (else only its text part)."""
    renames: tuple[_Rename, ...] = field(repr=False)
    ignored: tuple[re.Pattern[str], ...]
    """Parameter names that the class never loads."""
    tied: Mapping[str, str]
    """Parameter to the one it shares, where the config ties them."""
    tied_by_default: bool
    cache: str
    """ "heads" = keys and values; "latent" = MLA's compressed ones; "state" = something else."""
    fullgraph: bool
    """Whether Transformers says that torch.compile captures it whole."""
    names: Mapping[str, str]
    """Usual name of a config field to this class's."""
    defaults: Mapping[str, int | bool]

    @property
    def pairs(self) -> bool:
        """Whether two stored layers make one."""
        return any(rename.how == "pairs" for rename in self.renames)

    def parameter(self, name: str) -> tuple[str, bool]:
        """(generic parameter name, whether it is one expert's part of it) for a stored name.

        As Transformers does, a name that only fits unchanged is left unchanged, and the base
        model's prefix is added or dropped where only that fits.
        """
        renamed, stacked = name, False
        for rename in self.renames:
            if rename.how in ("rename", "each", "pairs"):
                renamed = rename.apply(renamed) or renamed
        for rename in self.renames:
            if rename.how in ("convert", "stack") and (target := rename.apply(renamed)):
                renamed, stacked = target, rename.how == "stack"
                break
        rules = [(generic(renamed), stacked), (generic(name), False)]
        known = self.tied.keys() | set(self.tied.values())
        for rule, part in rules:
            for fit in (rule, f"{self.prefix}.{rule}", rule.removeprefix(f"{self.prefix}.")):
                if fit in known or style(fit, self.tensor) or style(fit, self.expert):
                    return fit, part
        return rules[0]

    def plan(self, parallelism: Parallelism) -> Mapping[str, str]:
        """The rules in force. Expert parallelism overrides the tensor plan below its modules."""
        if parallelism is Parallelism.NONE:
            return {}
        if parallelism is Parallelism.TENSOR:
            return self.tensor
        rest = {
            rule: how
            for rule, how in self.tensor.items()
            if not any(rule == name or rule.startswith(f"{name}.") for name in self.expert)
        }
        return {**rest, **self.expert}

    def splits_heads(self, parallelism: Parallelism, *, vision: bool = False) -> bool:
        """Whether each core computes its own attention heads (gathered projections do not)."""
        return any(
            how == "colwise" and _ATTENTION.search(rule) and ("vis" in rule) is vision
            for rule, how in self.plan(parallelism).items()
        )


class PlanTable:
    """Which class the auto class of a task takes for a model type, by the packaged file."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        """`content` as pipeline.parallel_plans makes it; ValueError on a style unknown here."""
        self.transformers: str = content["transformers"]
        self._types: Mapping[str, Mapping[str, str]] = content["types"]
        self._classes: Mapping[str, Mapping[str, Any]] = content["classes"]
        for name, entry in self._classes.items():
            if odd := {*entry["tensor"].values(), *entry["expert"].values()} - _STYLES:
                raise ValueError(f"{name}: parallel style {sorted(odd)} is not known here")

    @classmethod
    def load(cls, path: Path = Path(__file__).parent / "data" / "parallel_plans.json") -> PlanTable:
        """The packaged table."""
        return cls(json.loads(path.read_text(encoding="utf-8")))

    def tasks(self, model_type: str | None) -> frozenset[Task]:
        """The tasks that Transformers has a class for; empty for a type it does not know."""
        return frozenset(Task(task) for task in self._types.get(model_type or "", {}))

    def find(self, task: Task, config: Mapping[str, Any]) -> ModelClass | None:
        """The class for a config.json, None without one.

        Where its text part may be of any type, plan and cache are those of the type named there.
        """
        name = self._types.get(str(config.get("model_type")), {}).get(task.value)
        if name is None:
            return None
        entry = dict(self._classes[name])
        usual = entry.pop("text_type", None)
        if usual is not None:
            part = config.get(entry["text"][0])
            other = part.get("model_type", usual) if isinstance(part, Mapping) else usual
            if other != usual:
                entry |= self._with_text(entry, str(other))
        entry.pop("built")
        return ModelClass(
            name=name,
            renames=tuple(
                _Rename(how, scope, base, re.compile(source), tuple(targets))
                for how, scope, base, source, targets in entry.pop("renames")
            ),
            ignored=tuple(re.compile(pattern) for pattern in entry.pop("ignored")),
            text=tuple(entry.pop("text")),
            **entry,
        )

    def _with_text(self, entry: Mapping[str, Any], model_type: str) -> dict[str, Any]:
        """What changes in `entry` with another type's decoder in the place of its usual one."""
        name = self._types.get(model_type, {}).get(Task.TEXT_GENERATION.value)
        other = self._classes[name] if name else {}
        here, there = f"{entry['inner']}.", f"{other.get('inner')}."
        changed = {
            plan: {
                **{rule: how for rule, how in entry[plan].items() if not rule.startswith(here)},
                **{
                    here + rule.removeprefix(there): how
                    for rule, how in other.get(plan, {}).items()
                    if rule.startswith(there)
                },
            }
            for plan in ("tensor", "expert")
        }
        kept = {key: other[key] for key in ("cache", "names", "defaults") if key in other}
        fullgraph = entry["fullgraph"] and other.get("fullgraph", True)
        return {**changed, **kept, "fullgraph": fullgraph}
