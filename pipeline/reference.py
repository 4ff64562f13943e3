"""The CPU reference: what the same checkpoint, eager on the CPU, thinks of the device's tokens.

The device's tokens go through the model in one teacher-forced forward pass per prompt. For every
step it says how far the token lies below the reference's own first choice. It runs in a process of
its own (`python -m pipeline.reference`, JSON in, JSON out), so that nothing else needs torch and
its memory is gone afterwards. Answers are kept, by everything they depend on.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import processes
from pipeline.record import Observation, Run, Versions, write_atomically
from pipeline.words import Task


@dataclass(frozen=True)
class Step:
    """One new token: its gap below the first choice in nats, and its place among all (0 = first).

    Tokens that generation was not free to choose (end-of-text before its time) do not count.
    """

    gap: float
    place: int


@dataclass(frozen=True)
class Reference:
    """Steps by prompt and position. cached: whether the answer was kept from before."""

    steps: tuple[tuple[Step, ...], ...]
    cached: bool


@dataclass(frozen=True)
class NoReference:
    """Why there is no reference."""

    reason: str


def compare(
    run: Run,
    observation: Observation,
    inputs: Path,
    *,
    kept: Path | None,
    python: str = sys.executable,
    limit_s: float,
    available_bytes: int | None,
    stop: threading.Event | None = None,
) -> Reference | NoReference:
    """Hold the observed tokens against the CPU; `inputs` is what run.py gave the model.

    kept: folder of earlier answers, or None. available_bytes: free memory of this machine; a
    checkpoint that does not fit there is not tried (None = unknown: it is tried).
    """
    if not inputs.is_file():
        return NoReference(f"{inputs.name} is not there")
    key = _key(run, observation, hashlib.sha256(inputs.read_bytes()).hexdigest())
    place = kept / f"{key}.json" if kept else None
    if place and (steps := _recall(place, observation)):
        return Reference(steps, cached=True)
    need = _memory_need(run)
    if need is not None and available_bytes is not None and need > available_bytes:
        return NoReference(
            f"the reference needs {need / 2**30:.1f} GiB of host memory, "
            f"{available_bytes / 2**30:.1f} GiB are free"
        )
    question = {
        "model_id": run.model_id,
        "source": run.source,
        "revision": run.revision,
        "task": run.task.value,
        "dtype": run.dtype,
        "mixture_of_experts": run.mixture_of_experts,
        "inputs": str(inputs),
        "tokens": [list(one.tokens) for one in observation.generations],
    }
    try:
        stdout = processes.ask(
            [python, "-m", "pipeline.reference"],
            json.dumps(question).encode(),
            limit_s=limit_s,
            stop=stop,
            environment=processes.module_environment(),
        )
    except processes.Unanswered as error:
        return NoReference(f"the reference {error}"[:1000])
    answer = stdout.decode(errors="replace").strip().splitlines()[-1:]
    steps = _steps(answer[0] if answer else "", observation)
    if not steps:
        return NoReference("the reference's answer is not one step for each token")
    if place:
        write_atomically(place, answer[0].encode())
    return Reference(steps, cached=False)


def _memory_need(run: Run) -> int | None:
    """Bytes: the weights in the run's dtype, and a fifth more for loading and activations."""
    if run.parameters is None:
        return None
    return int(run.parameters * (4 if run.dtype == "float32" else 2) * 1.2)


def _key(run: Run, observation: Observation, inputs_sha256: str) -> str:
    """Identity of an answer: weights, dtype, inputs, tokens, libraries, and this very code."""
    versions: Versions = observation.versions
    parts: dict[str, Any] = {
        "model_id": run.model_id,
        "revision": run.revision,
        "dtype": run.dtype,
        "inputs": inputs_sha256,
        "tokens": [one.tokens for one in observation.generations],
        "torch": versions.torch,
        "transformers": versions.transformers,
        "code": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _recall(place: Path, observation: Observation) -> tuple[tuple[Step, ...], ...] | None:
    try:
        return _steps(place.read_text(), observation)
    except (OSError, UnicodeDecodeError):
        return None


def _steps(answer: str, observation: Observation) -> tuple[tuple[Step, ...], ...] | None:
    """The steps in an answer, one for each token; None when it is anything else."""
    try:
        prompts = json.loads(answer)["steps"]
        steps = tuple(
            tuple(Step(float(gap), int(place)) for gap, place in prompt) for prompt in prompts
        )
    except (ValueError, KeyError, TypeError):
        return None
    wanted = [len(one.tokens) for one in observation.generations]
    return steps if steps and [len(prompt) for prompt in steps] == wanted else None


# --- the process of its own -------------------------------------------------------------------


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    import torch
    from huggingface_hub import snapshot_download
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    image = question["task"] == Task.IMAGE_TEXT_TO_TEXT.value
    auto: Any = AutoModelForImageTextToText if image else AutoModelForCausalLM
    directory = question["source"] or snapshot_download(
        question["model_id"], revision=question["revision"], local_files_only=True
    )
    # Other code paths than the run's where the library offers them: plain attention, experts in a
    # loop. What both share is not checked by comparing them.
    options: dict[str, Any] = {"attn_implementation": "eager"}
    if question["mixture_of_experts"]:
        options["experts_implementation"] = "eager"
    model = auto.from_pretrained(directory, dtype=getattr(torch, question["dtype"]), **options)
    model.eval()
    ends = model.generation_config.eos_token_id
    ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    tensors = load_file(question["inputs"])
    steps = []
    with torch.inference_mode():
        for index, tokens in enumerate(question["tokens"]):
            batch = _without_padding(
                {
                    name.partition(".")[2]: value
                    for name, value in tensors.items()
                    if name.partition(".")[0] == str(index)
                }
            )
            steps.append(_follow(model, batch, tokens, ends))
    return {"steps": steps}


def _without_padding(batch: dict[str, Any]) -> dict[str, Any]:
    """The prompt's tensors without the columns on the left that the mask hides."""
    mask = batch["attention_mask"][0].bool()
    shape = batch["input_ids"].shape
    return {
        name: value[:, mask] if value.shape == shape else value for name, value in batch.items()
    }


def _follow(
    model: Any, batch: dict[str, Any], tokens: list[int], ends: list[int]
) -> list[tuple[float, int]]:
    """(gap, place) of each token when the model is led along them."""
    import torch

    prompt = batch["input_ids"]
    added = torch.tensor([tokens[:-1]], dtype=prompt.dtype)
    led = dict(batch)
    for name, value in batch.items():
        if value.shape == prompt.shape:
            fill = {"input_ids": added, "attention_mask": torch.ones_like(added)}
            led[name] = torch.cat([value, fill.get(name, torch.zeros_like(added))], dim=1)
    logits = model(**led, use_cache=False).logits[0, prompt.shape[1] - 1 :].float()
    if not torch.isfinite(logits.max()) or torch.isnan(logits).any():
        raise ValueError("the reference's own logits are not finite")
    chosen = torch.tensor(tokens)
    known = torch.tensor([end for end in ends if end < logits.shape[1]], dtype=torch.int64)
    logits = logits.index_fill(1, known, float("-inf"))
    logs = torch.log_softmax(logits, dim=-1)
    own = logs.gather(1, chosen[:, None])
    gaps = (logs.max(dim=-1, keepdim=True).values - own)[:, 0].clamp(max=1e6)
    places = (logs > own).sum(dim=-1)
    return [
        (round(gap, 6), place) for gap, place in zip(gaps.tolist(), places.tolist(), strict=True)
    ]


if __name__ == "__main__":
    print(json.dumps(_answer(json.loads(sys.stdin.read()))))
