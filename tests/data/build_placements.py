"""Makes tests/data/placements.json: the tensors and the expected placement of real checkpoints.

    python tests/data/build_placements.py

Each config of tests/data/checkpoints is built on the meta device by the installed Transformers and
its parameters are named as its checkpoint names them. What a repository stores beyond that follows
from its config and is added here: FP8 weights with their scales and the layer for multi-token
prediction (DeepSeek, GLM), MXFP4 blocks with theirs (gpt-oss), an untied head. Expectations that
are in the file already stay: they are reviewed by people, so a new one must be read before it is
committed.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from pipeline.placement import PlanTable  # noqa: E402
from pipeline.words import Task  # noqa: E402
from tests.test_placement import CHECKPOINTS, PLACEMENTS, Row, load, outcome  # noqa: E402

Found = tuple[str, str, tuple[int, ...]]
"""(name, safetensors dtype, shape)."""

_STORED = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", None: "F32"}

_NOT_FP8 = r"embed|lm_head|\.gate\.|norm|vision|projector|patch"
"""What published FP8 checkpoints leave in bfloat16 beside `modules_to_not_convert`."""


def main() -> None:
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity(logging.ERROR)
    warnings.simplefilter("ignore")
    known = {row.id: row for row in load()} if PLACEMENTS.exists() else {}
    rows = []
    for path in sorted(CHECKPOINTS.glob("*.json")):
        facts = json.loads(path.read_text())
        task = _task(facts["config"])
        tensors = _compact(_tensors(facts["config"], task))
        row = Row(facts["id"], task, tensors, "")
        expect = known[row.id].expect if row.id in known else outcome(row)
        row = replace(row, expect=expect)
        rows.append(row)
        print(f"{row.id:70}{row.expect}")
    text = ",\n".join(
        json.dumps({"id": r.id, "task": r.task.value, "expect": r.expect, "tensors": r.tensors})
        for r in rows
    )
    PLACEMENTS.write_text(f"[\n{text}\n]\n", encoding="utf-8")


def _task(config: dict[str, Any]) -> Task:
    """Image and text where Transformers has a class for it, else text."""
    tasks = PlanTable.load().tasks(config.get("model_type"))
    both = Task.IMAGE_TEXT_TO_TEXT in tasks
    return Task.IMAGE_TEXT_TO_TEXT if both else Task.TEXT_GENERATION


def _tensors(raw: dict[str, Any], task: Task) -> Iterator[Found]:
    import torch
    import transformers
    from transformers.core_model_loading import revert_weight_conversion

    quantised = raw.get("quantization_config") or {}
    left_out = ("quantization_config", "auto_map")
    clean = {key: value for key, value in raw.items() if key not in left_out}
    config = transformers.AutoConfig.for_model(**clean)
    auto: Any = (
        transformers.AutoModelForImageTextToText
        if task is Task.IMAGE_TEXT_TO_TEXT
        else transformers.AutoModelForCausalLM
    )
    with torch.device("meta"):
        model = auto.from_config(config)
    parameters = revert_weight_conversion(model, dict(model.named_parameters()))
    text = raw.get("text_config") or {}
    names = [part.get(key) for part in (raw, text) for key in ("torch_dtype", "dtype")]
    # Quantised checkpoints leave the rest in bfloat16 where they do not say.
    plain = _STORED[next(filter(None, names), "bfloat16" if quantised else None)]
    found: list[Found] = [(name, plain, tuple(value.shape)) for name, value in parameters.items()]
    layers = config.get_text_config().num_hidden_layers
    if raw.get("num_nextn_predict_layers"):
        last = f"layers.{layers - 1}."
        found += [
            (name.replace(last, f"layers.{layers}."), dtype, shape)
            for name, dtype, shape in found
            if last in name
        ]
    for tensor in found:
        yield from _as_stored(tensor, quantised)


def _as_stored(tensor: Found, quantised: dict[str, Any]) -> Iterator[Found]:
    """A parameter as its quantisation stores it."""
    name, dtype, shape = tensor
    method = quantised.get("quant_method")
    linear = len(shape) == 2 and name.endswith(".weight")
    kept = "|".join([_NOT_FP8, *(quantised.get("modules_to_not_convert") or ())])
    if method == "fp8" and linear and not re.search(kept, name):
        yield name, "F8_E4M3", shape
        block = quantised.get("weight_block_size")
        scale = tuple(-(-n // b) for n, b in zip(shape, block, strict=True)) if block else ()
        yield f"{name}_scale_inv", "F32" if block else "BF16", scale
    elif method == "mxfp4" and re.search(r"experts\.(gate_up|down)_proj$", name):
        experts, inputs, outputs = shape
        yield f"{name}_blocks", "U8", (experts, outputs, inputs // 32, 16)
        yield f"{name}_scales", "U8", (experts, outputs, inputs // 32)
    elif method in ("gptq", "awq") and linear and ".layers." in name:
        yield name.removesuffix("weight") + "qweight", "I32", (shape[1] // 8, shape[0])
    else:
        yield name, dtype, shape


def _compact(found: Iterator[Found]) -> list[tuple[str, str, list[int]]]:
    """The same with `{0-31}` for runs of numbers in names."""
    groups: dict[tuple[str, str, tuple[int, ...]], set[tuple[int, ...]]] = defaultdict(set)
    for name, dtype, shape in found:
        numbers = tuple(int(n) for n in re.findall(r"(?<=\.)\d+(?=\.|$)", name))
        groups[re.sub(r"(?<=\.)\d+(?=\.|$)", "#", name), dtype, shape].add(numbers)
    rows = []
    for (name, dtype, shape), members in groups.items():
        for runs in _runs(members):
            short = name
            for first, last in runs:
                text = f"{{{first}-{last}}}" if first != last else str(first)
                short = short.replace("#", text, 1)
            rows.append((short, dtype, list(shape)))
    return rows


def _runs(numbers: set[tuple[int, ...]]) -> Iterator[list[tuple[int, int]]]:
    """Products of (first, last) runs that together are `numbers`."""
    if numbers == {()}:
        yield []
        return
    tails: dict[frozenset[tuple[int, ...]], list[int]] = defaultdict(list)
    for first in sorted({n[0] for n in numbers}):
        tails[frozenset(n[1:] for n in numbers if n[0] == first)].append(first)
    for rest, firsts in tails.items():
        for _, pairs in groupby(enumerate(firsts), key=lambda pair: pair[1] - pair[0]):
            members = [value for _, value in pairs]
            for tail in _runs(set(rest)):
                yield [(members[0], members[-1]), *tail]


if __name__ == "__main__":
    main()
