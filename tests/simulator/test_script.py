"""The rendered script, byte for byte, on the stand-in: one core, cold and warm, and four.

Its tokens are those of the same checkpoint run eagerly on the CPU. Pictures, experts and two cores
run in test_job, faults in test_misbehaviour, both through the harness.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.record import Run
from pipeline.script import render
from pipeline.words import Target
from tests import papers
from tests.simulator.machine import Machine

_TOKENS = 8
_STACK = {
    "torch": "2.13.0",
    "torch_neuronx": "2.13.3.0",
    "neuronx_cc": "2.28.7631.0",
    "nki": "0.7.0",
}


@dataclass(frozen=True)
class Seen:
    """What a launch left: run.json, what it printed, and its cache."""

    facts: dict[str, Any]
    printed: str
    entries: frozenset[str]
    folder: Path

    @property
    def tokens(self) -> list[list[int]]:
        return [one["tokens"] for one in self.facts["generations"]]

    def counted(self, call: str) -> tuple[int, int, int]:
        """Graphs, compilations and finds in the cache of one call."""
        counts = self.facts[call]
        return counts["graphs"], counts["compiled"], counts["restored"]


def _run(source: Path, cores: int = 1, **changes: Any) -> Run:
    fields: dict[str, Any] = {
        "stack": papers.stack(Target.NEURON, **_STACK),
        "source": str(source),
        "placement": papers.placement(cores),
        "new_tokens": _TOKENS,
        "prefill_chunk": 32,
    }
    return papers.run(f"tiny/{source.name}", **(fields | changes))


def _launch(machine: Machine, asked: Run, name: str, *faults: dict[str, Any]) -> Seen:
    folder = machine.directory / "records" / name
    folder.mkdir(parents=True)
    script = folder / "run.py"
    script.write_text(render(asked))
    ended = subprocess.run(
        [machine.python, script, "--record", folder],
        env=machine.environment(*faults),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    facts = json.loads((folder / "run.json").read_text())
    assert ended.returncode == 0 or faults, ended.stdout[-5000:]
    entries = frozenset(path.name for path in (machine.directory / "neff").rglob("*.neff"))
    return Seen(facts, ended.stdout, entries, folder)


def _reference(source: Path, seen: Seen) -> list[list[int]]:
    """Tokens of the checkpoint on the CPU, eager, for the inputs that the launch left."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    (inputs,) = map(load_file, seen.folder.glob("*.safetensors"))
    made = []
    for index in range(len(seen.tokens)):
        start = f"{index}."
        batch = {
            name.removeprefix(start): value
            for name, value in inputs.items()
            if name.startswith(start)
        }
        output = model.generate(
            **batch, do_sample=False, max_new_tokens=_TOKENS, min_new_tokens=_TOKENS, pad_token_id=0
        )
        made.append(output[0, batch["input_ids"].shape[1] :].tolist())
    return made


def _assert_healthy(seen: Seen, cores: int) -> None:
    """Two graphs, a prefill and a decode step; none in the second call; nothing on the CPU."""
    facts = seen.facts
    assert facts["stage"] == "done"
    assert seen.counted("first_call")[0] == 2
    assert seen.counted("second_call") == (0, 0, 0)
    assert facts["graph_breaks"] == 0
    assert facts["fullgraph"] is True
    assert facts["cpu_fallback_ops"] == []
    assert facts["repeatable"] is True
    assert facts["ranks_agree"] is (True if cores > 1 else None)
    assert len(facts["device_peak_bytes"]) == cores
    assert min(facts["device_peak_bytes"]) > 0


def test_it_is_the_same_file(models: Callable[[str], Path]) -> None:
    """Target simulator renders the bytes of target neuron."""
    source = models("tiny-qwen3")
    stand_in = papers.stack(Target.SIMULATOR, **_STACK)
    assert render(_run(source)) == render(_run(source, stack=stand_in))


def test_text_on_one_core(machine: Machine, models: Callable[[str], Path]) -> None:
    """A first process compiles both graphs, and operators beside them; the next compiles nothing,
    finds as many, and says the same."""
    source = models("tiny-qwen3")
    cold = _launch(machine, _run(source), "cold")
    _assert_healthy(cold, 1)
    assert cold.tokens == _reference(source, cold)
    _, compiled, restored = cold.counted("all_calls")
    assert (compiled, restored) == (len(cold.entries), 0)
    assert compiled >= 2
    versions = cold.facts["versions"]
    for name in ("torch_neuronx", "neuronx_cc", "nki"):
        assert versions[name].endswith("+simulator")

    warm = _launch(machine, _run(source), "warm")
    _assert_healthy(warm, 1)
    assert warm.counted("all_calls") == (2, 0, compiled)
    assert warm.entries == cold.entries
    assert warm.tokens == cold.tokens


def test_text_on_four_cores(machine: Machine, models: Callable[[str], Path]) -> None:
    """Tensor parallel, one head a rank."""
    source = _with_four_key_heads(models("tiny-qwen3"), machine.directory / "four-heads")
    seen = _launch(machine, _run(source, 4), "four")
    _assert_healthy(seen, 4)
    assert seen.tokens == _reference(source, seen)
    assert len(set(seen.facts["device_peak_bytes"])) == 1


def _with_four_key_heads(source: Path, copy: Path) -> Path:
    """The same function in other words: both key and value heads twice."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, copy)
    config = json.loads((copy / "config.json").read_text())
    size = config["head_dim"]
    config["num_key_value_heads"] = 4
    (copy / "config.json").write_text(json.dumps(config))
    tensors = load_file(copy / "model.safetensors")
    for name, value in tensors.items():
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            heads = value.reshape(2, size, -1).repeat_interleave(2, dim=0)
            tensors[name] = heads.reshape(4 * size, -1).contiguous()
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    return copy
