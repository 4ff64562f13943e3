"""The plan table: it is that of the installed Transformers, and its reading equals the truth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from pipeline import parallel_plans
from pipeline.footprint import Checkpoint, Tensor, read
from pipeline.plan_table import PlanTable, generic, held_share
from pipeline.words import Parallelism, Task

ROOT = Path(__file__).parents[1]
CONTENT: dict[str, Any] = json.loads(parallel_plans.PATH.read_text(encoding="utf-8"))


def test_the_file_is_that_of_the_installed_transformers() -> None:
    """`python -m pipeline.parallel_plans`, run as CI runs it, finds nothing to change."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.parallel_plans"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_the_file_covers_both_tasks_and_says_what_made_it() -> None:
    """Every type has a class; versions and command stand in the file; few classes are unbuilt."""
    assert CONTENT["generated_by"] == parallel_plans.COMMAND
    named = {name for tasks in CONTENT["types"].values() for name in tasks.values()}
    assert named == CONTENT["classes"].keys()
    assert {Task(task) for tasks in CONTENT["types"].values() for task in tasks} == set(Task)
    unbuilt = [name for name, entry in CONTENT["classes"].items() if not entry["built"]]
    assert len(unbuilt) < len(named) / 10, unbuilt


def test_text_and_differences() -> None:
    """The text reads back as the content, and a changed, a new and a gone entry are all told."""
    assert json.loads(parallel_plans.dump(CONTENT)) == CONTENT
    assert parallel_plans.dump(CONTENT) == parallel_plans.PATH.read_text(encoding="utf-8")
    assert parallel_plans.differences(CONTENT, CONTENT) == []
    other = deepcopy(CONTENT)
    other["classes"]["GPT2LMHeadModel"]["tensor"] = {"lm_head": "colwise"}
    other["classes"]["New"] = other["classes"].pop("OPTForCausalLM")
    other["transformers"] = "9.0.0"
    assert parallel_plans.differences(CONTENT, other) == [
        f"transformers: {CONTENT['transformers']} -> 9.0.0",
        "classes: GPT2LMHeadModel changed",
        "classes: New added",
        "classes: OPTForCausalLM gone",
    ]


def test_an_unknown_style_is_an_error() -> None:
    """A parallel style whose sharding is not known here must not be taken for replication."""
    other = deepcopy(CONTENT)
    other["classes"]["GPT2LMHeadModel"]["tensor"] = {"lm_head": "diagonal"}
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel: .*diagonal"):
        PlanTable(other)


def test_generic_names() -> None:
    """Only whole numbers between dots become `*`, as Transformers writes its plans."""
    assert generic("model.layers.12.mlp.w1.weight") == "model.layers.*.mlp.w1.weight"
    assert generic("blocks.3") == "blocks.*"


@pytest.mark.parametrize(
    ("style", "leaf", "shape", "stacked", "share"),
    [
        ("colwise", "weight", (10, 6), False, (3, 10)),
        ("colwise", "bias", (10,), False, (3, 10)),
        ("colwise_gather_output", "weight", (8, 6), False, (2, 8)),
        ("rowwise", "weight", (10, 6), False, (2, 6)),
        ("rowwise", "bias", (10,), False, (1, 1)),
        ("packed_colwise", "weight", (5, 12, 6), False, (4, 12)),
        ("packed_colwise", "weight", (6, 6), True, (2, 6)),
        ("packed_rowwise", "weight", (5, 6, 12), False, (4, 12)),
        ("embedding_rowwise", "weight", (9, 6), False, (3, 9)),
        ("embedding_colwise", "weight", (9, 6), False, (2, 6)),
        ("grouped_gemm", "weight", (8, 5, 6), False, (2, 8)),
        ("grouped_gemm", "weight", (5, 6), True, (1, 4)),
        ("replicated_with_grad_allreduce", "weight", (64,), False, (1, 1)),
        ("moe_tp_experts", "weight", (4, 4), False, (1, 1)),
        ("colwise", "scale", (), False, (1, 1)),
    ],
)
def test_what_a_style_keeps(
    style: str, leaf: str, shape: tuple[int, ...], stacked: bool, share: tuple[int, int]
) -> None:
    """Each style divides its dimension over four cores, rounded up; the rest stays whole."""
    assert held_share(f"model.part.{leaf}", shape, stacked, {"model.part": style}, 4) == share


# The truth: Transformers' own sharding of meta models, over a process group without processes.

TYPES = (
    "bamba",
    "cohere2",
    "deepseek_v2",
    "gemma2",
    "gemma3",
    "glm4_moe",
    "gpt_neox",
    "gpt_oss",
    "llama4_text",
    "llava",
    "mistral3",
    "mixtral",
    "olmo2",
    "phi3",
    "qwen2_5_vl",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_vl_moe",
    "smollm3",
    "starcoder2",
)
WORLD = 4


@pytest.fixture(scope="module")
def world() -> Iterator[None]:
    """A process group of four ranks, of which this process is the first and only one."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    store: Any = FakeStore
    dist.init_process_group("fake", store=store(), rank=0, world_size=WORLD)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("model_type", TYPES)
def test_shares_are_what_transformers_shards(model_type: str, world: None) -> None:
    """The estimate from checkpoint names equals what rank 0 of 4 keeps, to the byte, per split."""
    import transformers
    from torch.distributed.tensor import DTensor
    from transformers import initialization
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.distributed.configuration_utils import DistributedConfig
    from transformers.distributed.utils import initialize_distributed_mesh
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    table = PlanTable.load()
    task = min(table.tasks(model_type))
    name = CONTENT["types"][model_type][task.value].partition(":")[0]
    model_class: Any = getattr(transformers, name)
    config: Any = parallel_plans._config(model_class, CONFIG_MAPPING[model_type], shrunk=True)
    whole = parallel_plans._meta_model(model_class, config)
    stored = revert_weight_conversion(whole, dict(whole.named_parameters()))
    raw = {**config.to_dict(), "model_type": model_type}
    tensors = tuple(Tensor(key, "F32", tuple(value.shape)) for key, value in stored.items())
    kind = table.find(task, raw)
    assert kind is not None
    model = read(kind, Checkpoint(model_type, "main", raw, tensors, 0, False), 4)

    def held(target: Any) -> int:
        parts = {id(part): part for part in target.parameters()}.values()
        local = [part.to_local() if isinstance(part, DTensor) else part for part in parts]
        return 4 * sum(part.numel() for part in local)

    assert model.weight_bytes == held(whole)
    for split, experts in ((Parallelism.TENSOR, 1), (Parallelism.EXPERT, WORLD)):
        if split is Parallelism.EXPERT and not kind.expert:
            continue
        with initialization.no_tie_weights():
            sharded = parallel_plans._meta_model(model_class, config)
        wanted = DistributedConfig(tp_size=WORLD, ep_size=experts)
        _, mesh = initialize_distributed_mesh(wanted)
        sharded = model_class.maybe_distribute_model(sharded, wanted, mesh)
        sharded.tie_weights()
        assert model.rank_bytes(split, WORLD) == held(sharded), split
