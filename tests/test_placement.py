"""Placement: real configurations as a table, the rules one by one, and two ranks as the truth."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

from pipeline.footprint import read
from pipeline.placement import (
    CORE_COUNTS,
    GIB,
    Checkpoint,
    Margin,
    PlanTable,
    Tensor,
    host_bytes,
    ladder,
)
from pipeline.record import Placement, Refusal
from pipeline.words import Failure, Parallelism, Target, Task

DATA = Path(__file__).parent / "data"
CHECKPOINTS = DATA / "checkpoints"
PLACEMENTS = DATA / "placements.json"

CORE = 24 * GIB
"""A core of trn2: 24 GiB of HBM (LNC=2)."""

MARGIN = Margin(fixed_bytes=2 * GIB, weights_share=0.05)
"""Stated here, so that a refitted default leaves the expectations alone."""


@dataclass(frozen=True)
class Row:
    """A real checkpoint: its tensors in short form and what placement must say of it."""

    id: str
    task: Task
    tensors: list[tuple[str, str, list[int]]]
    expect: str


def load() -> list[Row]:
    return [
        Row(entry["id"], Task(entry["task"]), entry["tensors"], entry["expect"])
        for entry in json.loads(PLACEMENTS.read_text(encoding="utf-8"))
    ]


ROWS = {row.id: row for row in load()} if PLACEMENTS.exists() else {}


def config_of(model_id: str) -> dict[str, Any]:
    path = CHECKPOINTS / f"{model_id.replace('/', '--')}.json"
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["config"]
    return config


def expand(name: str) -> Iterator[str]:
    """All names that `{first-last}` runs in `name` stand for."""
    parts = re.split(r"\{(\d+-\d+)\}", name)
    runs = []
    for text in parts[1::2]:
        first, last = text.split("-")
        runs.append([str(number) for number in range(int(first), int(last) + 1)])
    for numbers in product(*runs):
        pairs = zip(parts[::2], (*numbers, ""), strict=True)
        yield "".join(text + number for text, number in pairs)


def checkpoint(row: Row) -> Checkpoint:
    tensors = tuple(
        Tensor(name, dtype, tuple(shape))
        for short, dtype, shape in row.tensors
        for name in expand(short)
    )
    config = config_of(row.id)
    size = sum(tensor.bytes for tensor in tensors)
    return Checkpoint(row.id, "0" * 40, config, tensors, size, "auto_map" in config)


@cache
def real(model_id: str) -> Checkpoint:
    return checkpoint(ROWS[model_id])


@cache
def table() -> PlanTable:
    return PlanTable.load()


def placed(
    found: Checkpoint, task: Task = Task.TEXT_GENERATION, **options: Any
) -> Placement | Refusal:
    """The smallest of `ladder`, as for a trn2 instance of four devices, but for `options`."""
    usual: dict[str, Any] = {
        "task": task,
        "dtype": "bfloat16",
        "sequence_length": 128,
        "core_bytes": CORE,
        "max_cores": 16,
        "margin": MARGIN,
        "plans": table(),
    }
    rungs = ladder(found, **(usual | options))
    return rungs if isinstance(rungs, Refusal) else rungs[0]


def outcome(row: Row) -> str:
    """The placement of a row in a line."""
    found = placed(checkpoint(row), row.task)
    if isinstance(found, Refusal):
        return f"{found.failure}: {found.reason}"
    gib = f"{found.weight_bytes / GIB:.1f} + {found.cache_bytes / GIB:.2f} GiB"
    return f"{found.cores} {found.parallelism}, {gib}"


def fits(found: Placement | Refusal) -> Placement:
    assert isinstance(found, Placement), found
    return found


def refused(found: Placement | Refusal, failure: Failure, phrase: str) -> None:
    assert isinstance(found, Refusal), found
    assert (found.failure, phrase in found.reason) == (failure, True), found


# Real configurations.


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.id)
def test_real_configuration(row: Row) -> None:
    """Every checkpoint of the table gets the reviewed cores, split and bytes, or refusal."""
    assert outcome(row) == row.expect


def test_the_table_covers_what_the_planner_meets() -> None:
    """At least forty real configurations, of every count of cores, both splits and refusals."""
    expects = [row.expect for row in ROWS.values()]
    assert len(expects) >= 40
    for start in ("1 none", "2 tensor", "4 tensor", "8 tensor", "2 expert"):
        assert any(text.startswith(start) for text in expects), start
    for failure in ("unsupported_checkpoint", "unsupported_parallelism", "too_large"):
        assert any(text.startswith(failure) for text in expects), failure
    assert {path.stem for path in CHECKPOINTS.glob("*.json")} == {
        name.replace("/", "--") for name in ROWS
    }


@pytest.mark.parametrize(
    ("model_id", "parameters"),
    [
        ("EleutherAI/pythia-12b-deduped", 11_846_072_320),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
        ("Qwen/Qwen2.5-VL-7B-Instruct", 8_292_166_656),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("allenai/OLMoE-1B-7B-0924-Instruct", 6_919_161_856),
        ("deepseek-ai/DeepSeek-V2-Lite", 15_706_484_224),
        ("google/gemma-2-9b", 9_241_705_984),
        ("google/gemma-3-27b-it", 27_432_406_640),
        ("llava-hf/llava-1.5-7b-hf", 7_063_427_072),
        ("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248),
        ("meta-llama/Llama-3.3-70B-Instruct", 70_553_706_496),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 108_641_793_536),
        ("microsoft/phi-4", 14_659_507_200),
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
        ("newsrx/bloomz-7b1", 7_069_016_064),
        ("openai-community/gpt2", 124_439_808),
        ("tiiuae/falcon-7b-instruct", 6_921_720_704),
    ],
)
def test_tensors_of_the_table_are_the_published_ones(model_id: str, parameters: int) -> None:
    """The table's tensors, built from configs, have the parameter counts that are published."""
    assert real(model_id).parameters == parameters


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.id)
def test_no_smaller_count_would_do(row: Row) -> None:
    """Where several cores are given, every smaller count asked for outright is refused."""
    found = placed(real(row.id), row.task)
    if isinstance(found, Placement):
        for count in CORE_COUNTS[: CORE_COUNTS.index(found.cores)]:
            smaller = placed(real(row.id), row.task, cores=count)
            assert isinstance(smaller, Refusal), count


@pytest.mark.parametrize(
    ("model_id", "split", "cores", "weights"),
    [
        # q, k, v, o, gate, up, down of 32 layers halved; 65 norms whole; embedding and head by
        # vocabulary.
        (
            "meta-llama/Llama-3.1-8B-Instruct",
            Parallelism.TENSOR,
            2,
            2
            * (
                32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096) // 2
                + 65 * 4096
                + 2 * 128256 * 4096 // 2
            ),
        ),
        # Head and embedding are one; 151936 rows over 4 cores.
        (
            "Qwen/Qwen3-0.6B",
            Parallelism.TENSOR,
            4,
            2
            * (
                28 * (2 * 2048 * 1024 + 2 * 1024 * 1024 + 3 * 3072 * 1024) // 4
                + 28 * (2 * 1024 + 2 * 128)
                + 1024
                + 151936 * 1024 // 4
            ),
        ),
        # Eight experts of three matrices; the router's 8 x 4096 whole.
        (
            "mistralai/Mixtral-8x7B-v0.1",
            Parallelism.TENSOR,
            4,
            2
            * (
                32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 8 * 3 * 14336 * 4096) // 4
                + 32 * (8 * 4096 + 2 * 4096)
                + 4096
                + 2 * 32000 * 4096 // 4
            ),
        ),
        # Only embedding and experts are divided: attention (64 query heads, 8 key/value heads of
        # 64 with biases and 64 sinks), router and the head's ... stay as the plan says.
        (
            "openai/gpt-oss-20b",
            Parallelism.EXPERT,
            2,
            2
            * (
                24 * 16 * (2880 * 5760 + 5760 + 2880 * 2880 + 2880)
                + 24 * (2 * 4096 * 2880 + 4096 + 2880 + 2 * (512 * 2880 + 512) + 64)
                + 24 * (32 * 2880 + 32 + 2 * 2880)
                + 2880
                + 2 * 201088 * 2880 // 2
            ),
        ),
        # falcon has no plan: one core holds it whole, with the head tied.
        (
            "tiiuae/falcon-7b-instruct",
            Parallelism.NONE,
            1,
            2
            * (
                32 * ((71 + 2) * 64 * 4544 + 4544 * 4544 + 2 * 4 * 4544 * 4544 + 2 * 4544)
                + 2 * 4544
                + 65024 * 4544
            ),
        ),
    ],
)
def test_weights_by_hand(model_id: str, split: Parallelism, cores: int, weights: int) -> None:
    """Weights per core are the sum worked out by hand from the architecture."""
    kind = table().find(Task.TEXT_GENERATION, real(model_id).config)
    assert kind is not None
    assert read(kind, real(model_id), 2).rank_bytes(split, cores) == weights


@pytest.mark.parametrize(
    ("model_id", "cores", "cache_bytes"),
    [
        # 2 x layers x key/value heads on a core x head size x length x 2 bytes
        ("meta-llama/Llama-3.3-70B-Instruct", 8, 2 * 80 * 1 * 128 * 128 * 2),
        ("Qwen/Qwen3-14B", 2, 2 * 40 * 4 * 128 * 128 * 2),
        # sliding layers count in full: run.py allocates them so
        ("google/gemma-3-27b-it", 4, 2 * 62 * 4 * 128 * 128 * 2),
        # one key/value head for all 71 query heads
        ("tiiuae/falcon-7b-instruct", 1, 2 * 32 * 1 * 64 * 128 * 2),
        # MLA: 512 latent values and 64 rotary ones, whole on every core
        ("deepseek-ai/DeepSeek-V2-Lite", 2, 27 * (512 + 64) * 128 * 2),
        # gathered projections: every core computes all 10 key/value heads
        ("microsoft/phi-4", 2, 2 * 40 * 10 * 128 * 128 * 2),
    ],
)
def test_cache_by_hand(model_id: str, cores: int, cache_bytes: int) -> None:
    """The static cache of a core is what its key/value heads take over the whole length."""
    found = fits(placed(real(model_id), ROWS[model_id].task))
    assert (found.cores, found.cache_bytes) == (cores, cache_bytes)


# The rules, one by one.


def llama(
    *, layers: int = 4, hidden: int = 1024, dtype: str = "BF16", tied: bool = False, **config: Any
) -> Checkpoint:
    """A Llama of square matrices: 7 a layer, and 8 * hidden rows of vocabulary."""
    vocabulary = (8 * hidden, hidden)
    tensors = [Tensor("model.embed_tokens.weight", dtype, vocabulary)]
    tensors += [
        Tensor("lm_head.weight", dtype, vocabulary),
        Tensor("model.norm.weight", dtype, (hidden,)),
    ]
    for layer in range(layers):
        for name in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o"):
            tensors.append(
                Tensor(f"model.layers.{layer}.{name}_proj.weight", dtype, (hidden, hidden))
            )
        for name in ("gate", "up", "down"):
            tensors.append(
                Tensor(f"model.layers.{layer}.mlp.{name}_proj.weight", dtype, (hidden, hidden))
            )
    full = {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "tie_word_embeddings": tied,
    } | config
    size = sum(tensor.bytes for tensor in tensors)
    return Checkpoint("tests/llama", "main", full, tuple(tensors), size, False)


def test_tied_weights_count_once() -> None:
    """A head that the config ties to the embedding takes nothing, though a file stores both."""
    separate, tied = fits(placed(llama())), fits(placed(llama(tied=True)))
    assert separate.weight_bytes - tied.weight_bytes == 2 * 8 * 1024 * 1024


def test_weights_count_in_the_dtype_of_the_run() -> None:
    """float32 on disk is halved by a bfloat16 run, and bfloat16 doubled by a float32 one."""
    usual = fits(placed(llama())).weight_bytes
    assert fits(placed(llama(dtype="F32"))).weight_bytes == usual
    assert fits(placed(llama(), dtype="float32")).weight_bytes == 2 * usual
    with pytest.raises(ValueError, match="float8"):
        placed(llama(), dtype="float8")


def test_fp8_expands_and_its_scales_vanish() -> None:
    """FP8 weights count as the run's dtype holds them; the scales are used up on the way."""
    plain = llama()
    stored = tuple(
        part
        for tensor in plain.tensors
        for part in (
            replace(tensor, dtype="F8_E4M3"),
            Tensor(f"{tensor.name}_scale_inv", "F32", ()),
        )
    )
    config = {**plain.config, "quantization_config": {"quant_method": "fp8"}}
    found = fits(placed(replace(plain, tensors=stored, config=config)))
    assert found.weight_bytes == fits(placed(plain)).weight_bytes
    assert "fp8 expands" in found.reason


def test_mxfp4_expands() -> None:
    """gpt-oss's blocks of two values a byte become bfloat16: 3 times the file and more."""
    found = real("openai/gpt-oss-20b")
    kind = table().find(Task.TEXT_GENERATION, found.config)
    assert kind is not None
    assert 2.8 < read(kind, found, 2).weight_bytes / found.checkpoint_bytes < 3.8


def test_layers_for_multi_token_prediction_are_left_out() -> None:
    """Layers numbered from num_hidden_layers on are stored by some types and never loaded."""
    assert (
        fits(placed(llama(layers=6, num_hidden_layers=4))).weight_bytes
        == fits(placed(llama(layers=4))).weight_bytes
    )


def test_an_indivisible_dimension_counts_by_its_ceiling() -> None:
    """8 rows of vocabulary too many for four cores: the first core keeps one row more."""
    odd = llama()
    tensors = tuple(
        replace(tensor, shape=(8 * 1024 + 1, 1024)) if "embed" in tensor.name else tensor
        for tensor in odd.tensors
    )
    four: dict[str, Any] = {"cores": 4, "parallelism": Parallelism.TENSOR}
    more = fits(placed(replace(odd, tensors=tensors), **four)).weight_bytes
    assert more - fits(placed(odd, **four)).weight_bytes == 2 * 1024


def test_the_smallest_count_that_fits_is_taken() -> None:
    """Cores follow from their memory: 1, 2, 4 ... as it shrinks; the sum is what was checked."""
    model = llama(layers=16, hidden=2048)
    margin = Margin(fixed_bytes=0, weights_share=0.0)
    whole = fits(placed(model, margin=margin)).core_bytes
    counts = []
    for share in (1, 2, 4, 8, 16):
        size = int(whole / share * 1.001)
        found = fits(placed(model, margin=margin, core_bytes=size))
        assert found.core_bytes <= size
        counts.append(found.cores)
    assert counts == [1, 2, 4, 8, 16]
    assert f"needs {whole / GIB:.1f} GiB on one core" in found.reason


def test_the_margin_is_stated_and_counts() -> None:
    """Fixed bytes and a share of the core's weights stand on the placement and must fit too."""
    margin = Margin(fixed_bytes=GIB, weights_share=0.1)
    found = fits(placed(llama(), margin=margin))
    assert found.margin_bytes == GIB + -(-found.weight_bytes // 10)
    refused(
        placed(llama(), margin=margin, core_bytes=found.core_bytes - 1, max_cores=1),
        Failure.TOO_LARGE,
        "GiB on one core",
    )


@pytest.mark.parametrize(
    ("heads", "phrase"),
    [
        ({"num_key_value_heads": 3}, "3 key/value heads cannot be divided over 2 cores"),
        ({"num_key_value_heads": 1}, "1 key/value head cannot be divided over 2 cores"),
        ({"num_attention_heads": 15}, "15 attention heads cannot be divided over 2 cores"),
    ],
)
def test_heads_must_divide(heads: dict[str, Any], phrase: str) -> None:
    """Attention and key/value heads that a plan splits must divide; the reason counts them."""
    refused(placed(llama(**heads), cores=2), Failure.UNSUPPORTED_PARALLELISM, phrase)
    needed = fits(placed(llama(**heads))).core_bytes - 1
    found = placed(llama(**heads), core_bytes=needed, max_cores=2)
    refused(found, Failure.UNSUPPORTED_PARALLELISM, f"GiB on one core of {needed / GIB:.1f} GiB")
    refused(found, Failure.UNSUPPORTED_PARALLELISM, phrase)


def test_without_a_plan_only_one_core() -> None:
    """A type without any plan that needs more than one core is refused with both facts."""
    found = placed(real("openai-community/gpt2"), core_bytes=2 * GIB, margin=Margin(2 * GIB))
    refused(found, Failure.UNSUPPORTED_PARALLELISM, "GiB on one core of 2.0 GiB")
    refused(found, Failure.UNSUPPORTED_PARALLELISM, "gpt2 has no tensor-parallel plan")


def test_too_large() -> None:
    """What the runner class cannot hold is too large, whether by division or altogether."""
    model = real("meta-llama/Llama-3.3-70B-Instruct")
    refused(placed(model, max_cores=4), Failure.TOO_LARGE, "weights take 131.4 GiB and 4 cores")
    tight = placed(real("mistralai/Mixtral-8x7B-v0.1"), max_cores=4)
    refused(tight, Failure.TOO_LARGE, "GiB on each of 4 cores")
    refused(placed(llama(), cores=4, max_cores=2), Failure.TOO_LARGE, "gives 2")


def test_host_memory_bounds_all_cores_together() -> None:
    """Where cores share the machine's memory, more cores do not make more of it."""
    need = fits(placed(llama())).core_bytes
    assert fits(placed(llama(), host_bytes=need)).cores == 1
    refused(placed(llama(), host_bytes=need - 1), Failure.TOO_LARGE, "above the machine's")


@pytest.mark.parametrize("cores", [1, 2, 4, 8, 16])
def test_asked_cores_are_obeyed(cores: int) -> None:
    """A count in the list is taken, more than needed or not."""
    found = fits(placed(llama(), cores=cores))
    assert found.cores == cores
    assert found.parallelism is (Parallelism.NONE if cores == 1 else Parallelism.TENSOR)
    assert "as the list asks" in found.reason


def test_asked_parallelism_is_obeyed_or_refused() -> None:
    """A split in the list is taken or refused, never replaced."""
    moe = real("Qwen/Qwen3-30B-A3B")
    for asked in (Parallelism.TENSOR, Parallelism.EXPERT):
        assert fits(placed(moe, parallelism=asked)).parallelism is asked
        assert fits(placed(moe, parallelism=asked, cores=4)).parallelism is asked
    assert fits(placed(llama(), parallelism=Parallelism.TENSOR)).cores == 2
    for found, phrase in (
        (placed(llama(), parallelism=Parallelism.EXPERT), "llama has no expert-parallel plan"),
        (placed(llama(), parallelism=Parallelism.TENSOR, cores=1), "more than one core"),
        (placed(llama(), parallelism=Parallelism.TENSOR, max_cores=1), "more than one core"),
        (placed(llama(), parallelism=Parallelism.NONE, cores=2), "2 cores need tensor or expert"),
        (placed(llama(), cores=3), "3 cores are asked for"),
    ):
        refused(found, Failure.UNSUPPORTED_PARALLELISM, phrase)
    refused(placed(moe, parallelism=Parallelism.NONE), Failure.TOO_LARGE, "one core of 24.0 GiB")


def test_experts_where_the_tensor_plan_leaves_most_weights_whole() -> None:
    """gpt-oss: the thin tensor plan leaves more on a core than the expert plan, which is taken."""
    model = real("openai/gpt-oss-20b")
    roomy: dict[str, Any] = {"core_bytes": 100 * GIB, "cores": 2}
    thin = fits(placed(model, parallelism=Parallelism.TENSOR, **roomy))
    found = fits(placed(model, **roomy))
    assert found.parallelism is Parallelism.EXPERT
    assert found.weight_bytes < 0.6 * thin.weight_bytes
    # A full tensor plan stays, though the expert plan keeps no more.
    assert fits(placed(real("Qwen/Qwen3-30B-A3B"), **roomy)).parallelism is Parallelism.TENSOR


def test_experts_where_the_tensor_plan_does_not_fit() -> None:
    """The smallest count that fits decides: there experts are taken where only they fit."""
    model = real("openai/gpt-oss-20b")
    found = fits(placed(model))
    assert (found.cores, found.parallelism) == (2, Parallelism.EXPERT)
    refused(
        placed(model, cores=2, parallelism=Parallelism.TENSOR),
        Failure.TOO_LARGE,
        "the tensor plan leaves",
    )


def test_experts_must_divide() -> None:
    """60 experts go over 4 cores and not over 8."""
    model = real("Qwen/Qwen1.5-MoE-A2.7B-Chat")
    asked: dict[str, Any] = {"parallelism": Parallelism.EXPERT}
    assert fits(placed(model, cores=4, **asked)).parallelism is Parallelism.EXPERT
    refused(
        placed(model, cores=8, **asked),
        Failure.UNSUPPORTED_PARALLELISM,
        "60 experts cannot be divided over 8 cores",
    )


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"tensors": ()}, "no safetensors weights"),
        ({"config": {}}, "names no model_type"),
        ({"config": {"model_type": "own"}, "remote_code": True}, "is never run"),
        ({"config": {"model_type": "own"}}, "does not know the type own"),
        ({"config": {"model_type": "qwen2_5_vl"}}, "no text-generation class for qwen2_5_vl"),
        ({"config": {"model_type": "mamba"}}, "keeps a state"),
        ({"config": {"model_type": "blt"}}, "shape of blt's key/value cache"),
    ],
)
def test_checkpoints_that_cannot_be_loaded(change: Mapping[str, Any], phrase: str) -> None:
    """Each kind of unusable checkpoint is refused in words of its own."""
    refused(placed(replace(llama(), **change)), Failure.UNSUPPORTED_CHECKPOINT, phrase)


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "compressed-tensors", None])
@pytest.mark.parametrize("nested", [False, True])
def test_quantised_checkpoints_are_refused(method: str | None, nested: bool) -> None:
    """Methods that need a package or a GPU are refused by name, wherever the config has them."""
    settings = {"quantization_config": {"quant_method": method, "bits": 4}}
    model = llama(**({"text_config": settings} if nested else settings))
    phrase = f"quantised with {method or 'an unnamed method'}"
    refused(placed(model), Failure.UNSUPPORTED_CHECKPOINT, phrase)


def test_the_text_part_of_a_composite_model_brings_its_own_plan() -> None:
    """LLaVA with a Mistral inside: heads from its text_config, layers divided by Mistral's plan."""
    model, task = real("llava-hf/llava-v1.6-mistral-7b-hf"), Task.IMAGE_TEXT_TO_TEXT
    two = fits(placed(model, task, cores=2))
    assert two.weight_bytes < 0.55 * fits(placed(model, task, cores=1)).weight_bytes
    refused(
        placed(model, task, cores=16),
        Failure.UNSUPPORTED_PARALLELISM,
        "8 key/value heads cannot be divided over 16 cores",
    )


def test_the_heads_of_a_split_vision_tower_must_divide() -> None:
    """Llama 4's plan splits the vision tower's attention too: 12 heads do not go over 8 cores."""
    model = real("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    odd = {**model.config, "vision_config": {"num_attention_heads": 12}}
    roomy: dict[str, Any] = {"cores": 8, "core_bytes": 96 * GIB}
    assert fits(placed(model, Task.IMAGE_TEXT_TO_TEXT, **roomy)).cores == 8
    refused(
        placed(replace(model, config=odd), Task.IMAGE_TEXT_TO_TEXT, **roomy),
        Failure.UNSUPPORTED_PARALLELISM,
        "12 vision heads cannot be divided over 8 cores",
    )
    # Gemma 3's plan leaves the tower whole: its heads do not matter.
    gemma = real("google/gemma-3-27b-it")
    odd = {**gemma.config, "vision_config": {"num_attention_heads": 15}}
    fits(placed(replace(gemma, config=odd), Task.IMAGE_TEXT_TO_TEXT, cores=8))


def test_a_text_class_leaves_the_vision_tower_out() -> None:
    """Qwen3.5 as text generation loads no vision tower, and says that it counts states as heads."""
    model = real("Qwen/Qwen3.5-9B")
    text = fits(placed(model, Task.TEXT_GENERATION))
    both = fits(placed(model, Task.IMAGE_TEXT_TO_TEXT))
    visual = sum(t.elements for t in model.tensors if t.name.startswith("model.visual."))
    assert both.weight_bytes - text.weight_bytes == 2 * visual > 0
    assert "layers that keep a state" in text.reason


def test_sizes_of_stored_tensors() -> None:
    """A tensor's bytes follow its dtype; four-bit elements take half a byte each."""
    assert Tensor("a", "F8_E4M3", (3, 5)).bytes == 15
    assert Tensor("a", "F4", (3, 5)).bytes == 8
    assert Tensor("a", "I64", ()).bytes == 8
    with pytest.raises(KeyError):
        _ = Tensor("a", "X9", (1,)).bytes


# The truth: two real ranks.

_SMALL: dict[str, Any] = {
    "vocab_size": 515,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
_EXPERTS = {"moe_intermediate_size": 36, "num_experts_per_tok": 2}
_MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
SMALL_MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {**_SMALL, "head_dim": 16, "tie_word_embeddings": True},
    "qwen3_moe": {**_SMALL, **_EXPERTS, "head_dim": 16, "num_experts": 4},
    "gpt_oss": {**_SMALL, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {**_SMALL, **_EXPERTS, **_MLA},
}
SPLITS = [
    ("qwen3", Parallelism.TENSOR),
    ("qwen3_moe", Parallelism.TENSOR),
    ("qwen3_moe", Parallelism.EXPERT),
    ("gpt_oss", Parallelism.TENSOR),
    ("gpt_oss", Parallelism.EXPERT),
    ("deepseek_v3", Parallelism.TENSOR),
    ("deepseek_v3", Parallelism.EXPERT),
]
LENGTH = 32


def rank_main(rank: int, port: int, directory: Path) -> None:
    """One of two ranks: load every split, run a step, write down the bytes that are here."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    import torch
    import transformers
    from torch.distributed.tensor import DTensor
    from transformers.cache_utils import Cache, StaticLayer
    from transformers.distributed.configuration_utils import DistributedConfig

    torch.set_num_threads(1)
    seen = []
    for name, split in SPLITS:
        experts = 2 if split is Parallelism.EXPERT else 1
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            directory / name,
            dtype=torch.bfloat16,
            distributed_config=DistributedConfig(tp_size=2, ep_size=experts),
            experts_implementation="batched_mm",
        )
        parts = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
        kept: Any = Cache(layers=[StaticLayer(max_cache_len=LENGTH) for _ in range(2)])
        with torch.no_grad():
            model(input_ids=torch.arange(3, 9)[None], cache=kept, use_cache=True)
        cached = [part for layer in kept.layers for part in (layer.keys, layer.values)]
        seen.append([sum(t.numel() * t.element_size() for t in group) for group in (parts, cached)])
    (directory / f"rank{rank}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[list[int]]]]:
    """Directory of the small checkpoints, and per rank and split the [weights, cache] bytes."""
    import torch
    import transformers
    from torch.multiprocessing.spawn import spawn

    directory = tmp_path_factory.mktemp("ranks")
    for name, settings in SMALL_MODELS.items():
        config = transformers.AutoConfig.for_model(name, **settings)
        built: Any = transformers.AutoModelForCausalLM
        built.from_config(config).to(torch.bfloat16).save_pretrained(directory / name)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    start: Any = spawn
    start(rank_main, (port, directory), nprocs=2)
    return directory, [json.loads((directory / f"rank{r}.json").read_text()) for r in (0, 1)]


@pytest.mark.parametrize(("name", "split"), SPLITS)
def test_estimates_are_what_two_ranks_keep(
    name: str, split: Parallelism, two_ranks: tuple[Path, list[list[list[int]]]]
) -> None:
    """Weights and cache of the fuller of two real ranks, dense and fused experts, thin and MLA.

    Exact but for what Transformers keeps in float32: DeepSeek's router, 504 bytes here.
    """
    from safetensors import safe_open

    directory, ranks = two_ranks
    place_ = SPLITS.index((name, split))
    weights, cached = (max(rank[place_][part] for rank in ranks) for part in (0, 1))
    config = json.loads((directory / name / "config.json").read_text())
    with safe_open(directory / name / "model.safetensors", "np") as stored:
        slices = {key: stored.get_slice(key) for key in stored.keys()}  # noqa: SIM118
        tensors = tuple(Tensor(k, s.get_dtype(), tuple(s.get_shape())) for k, s in slices.items())
    found = fits(
        placed(
            Checkpoint(name, "main", config, tensors, 0, False),
            cores=2,
            parallelism=split,
            sequence_length=LENGTH,
        )
    )
    assert found.cache_bytes == cached
    assert weights - found.weight_bytes == (504 if name == "deepseek_v3" else 0)


# --- what comes after the smallest placement, and host memory -----------------------------------


def rungs(model_id: str, **options: Any) -> Any:
    """`ladder` as `placed` calls `place`."""
    usual: dict[str, Any] = {
        "task": ROWS[model_id].task,
        "dtype": "bfloat16",
        "sequence_length": 128,
        "core_bytes": CORE,
        "max_cores": 16,
        "margin": MARGIN,
        "plans": table(),
    }
    return ladder(real(model_id), **(usual | options))


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.id)
def test_the_ladder_begins_with_the_placement(row: Row) -> None:
    """Its first rung is what `place` takes; each further one has more cores, fits and divides."""
    found = rungs(row.id)
    first = placed(real(row.id), row.task)
    if isinstance(first, Refusal):
        assert found == first
        return
    assert found[0] == first
    cores = [rung.cores for rung in found]
    assert cores == sorted(set(cores))
    assert all(rung.core_bytes <= CORE for rung in found)
    last = found[-1]
    (asked,) = rungs(row.id, cores=last.cores, parallelism=last.parallelism)
    assert (asked.cores, asked.core_bytes) == (last.cores, last.core_bytes)
    for before, rung in pairwise(found):
        assert f"{before.cores} core" in rung.reason
        assert "ran out of device memory" in rung.reason


def test_the_ladder_skips_what_does_not_divide() -> None:
    """Nine heads divide over no two cores: one core or nothing."""
    assert [rung.cores for rung in rungs("HuggingFaceTB/SmolLM2-135M-Instruct")] == [1]
    assert [rung.cores for rung in rungs("Qwen/Qwen3-8B")] == [1, 2, 4, 8]
    assert [rung.cores for rung in rungs("Qwen/Qwen3-8B", max_cores=4)] == [1, 2, 4]


def held(cores: int, gib: float) -> Placement:
    return Placement(
        cores=cores,
        parallelism=Parallelism.TENSOR if cores > 1 else Parallelism.NONE,
        weight_bytes=int(gib * GIB),
        cache_bytes=GIB,
        margin_bytes=2 * GIB,
        reason="",
    )


@pytest.mark.parametrize(
    ("placement", "target", "gib"),
    [
        # Weights, the compiler's 16 and 1.5 a rank.
        (held(1, 10), Target.NEURON, 10 + 16 + 1.5),
        (held(4, 10), Target.NEURON, 40 + 16 + 4 * 1.5),
        # The reference holds a fifth more, and then nothing compiles.
        (held(16, 20), Target.NEURON, 1.2 * 320 + 1.5),
        # Cores without memory of their own: the host holds cache and working memory as well.
        (held(2, 10), Target.CPU, 2 * 13 + 1 + 2 * 1.5),
        (held(1, 1), Target.SIMULATOR, 4 + 1 + 1.5),
    ],
)
def test_host_memory_by_hand(placement: Placement, target: Target, gib: float) -> None:
    """The larger of the run (loader, compiler, ranks) and of the check that follows it."""
    assert abs(host_bytes(placement, target) - gib * GIB) <= 1
