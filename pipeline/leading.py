"""A checkpoint on the CPU, led along tokens that a device chose: `python -m pipeline.leading`.

The process that pipeline.reference starts: the question on stdin and the answer on stdout, both
JSON. Only here torch and transformers are needed, and its memory is gone when it ends.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pipeline.words import Task

LIKELY = 5
"""Of each step run.py keeps so many; fewer only where the vocabulary has fewer."""

SECOND_PASS_SHARE = 0.25
"""Of the time limit: what the first pass may have taken, loading included, for there to be a second
one. It reads twice the bytes, so it takes some twice as long; a round figure."""

FAR = 1e6
"""Nats: what stands for an infinite distance, so that every value is a number."""


def answer(question: dict[str, Any]) -> dict[str, Any]:
    import torch
    from huggingface_hub import snapshot_download
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    began = time.monotonic()
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
    ends = end_tokens(model)
    tensors = load_file(question["inputs"])
    tokens = question["tokens"]
    with torch.inference_mode():
        steps, ids = lead(model, tensors, tokens, ends, question["ids"])
    found: dict[str, Any] = {"steps": steps, "exact": None}
    if not question["float32"]:
        return found
    if time.monotonic() - began > SECOND_PASS_SHARE * question["limit_s"]:
        print("no float32 pass: the first one took too long", file=sys.stderr)
        return found
    # What the first pass found must not be lost with the second.
    try:
        with torch.inference_mode():
            found["exact"] = lead(model.float(), tensors, tokens, ends, ids)[0]
    except (MemoryError, RuntimeError, ValueError) as error:
        print(f"no float32 pass: {type(error).__name__}: {error}", file=sys.stderr)
    return found


def end_tokens(model: Any) -> list[int]:
    """Ids of the tokens that end a text."""
    ends = model.generation_config.eos_token_id
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)


def lead(
    model: Any,
    tensors: dict[str, Any],
    tokens: list[list[int]],
    ends: list[int],
    ids: list[list[list[int]]] | None,
) -> tuple[list[list[dict[str, Any]]], list[list[list[int]]]]:
    """(steps, ids) of each prompt; ids: None = the model's own most likely ones."""
    made = []
    for index, chosen in enumerate(tokens):
        batch = without_padding(
            {
                name.partition(".")[2]: value.to(model.dtype)
                if value.is_floating_point()
                else value
                for name, value in tensors.items()
                if name.partition(".")[0] == str(index)
            }
        )
        made.append(follow(model, batch, chosen, ends, ids[index] if ids else None))
    return [steps for steps, _ in made], [likely for _, likely in made]


def without_padding(batch: dict[str, Any]) -> dict[str, Any]:
    """The prompt's tensors without the columns on the left that the mask hides."""
    mask = batch["attention_mask"][0].bool()
    shape = batch["input_ids"].shape
    return {
        name: value[:, mask] if value.shape == shape else value for name, value in batch.items()
    }


def follow(
    model: Any,
    batch: dict[str, Any],
    tokens: list[int],
    ends: list[int],
    ids: list[list[int]] | None,
) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """What the model holds of each token when it is led along them: gap, place, logprobs.

    And the ids of these log-probabilities: `ids`, or where None its own most likely of each step.
    """
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
    # As the device told its own: no token left out.
    whole = torch.log_softmax(logits, dim=-1)
    likely = torch.tensor(ids) if ids else whole.topk(min(LIKELY, whole.shape[1])).indices
    logprobs = whole.gather(1, likely).clamp(min=-FAR)
    chosen = torch.tensor(tokens)
    known = torch.tensor([end for end in ends if end < logits.shape[1]], dtype=torch.int64)
    free = torch.log_softmax(logits.index_fill(1, known, float("-inf")), dim=-1)
    own = free.gather(1, chosen[:, None])
    gaps = (free.max(dim=-1, keepdim=True).values - own)[:, 0].clamp(max=FAR)
    places = (free > own).sum(dim=-1)
    values = zip(gaps.tolist(), places.tolist(), logprobs.tolist(), strict=True)
    steps = [
        {"gap": round(gap, 6), "place": place, "logprobs": [round(one, 6) for one in logs]}
        for gap, place, logs in values
    ]
    return steps, likely.tolist()


if __name__ == "__main__":
    print(json.dumps(answer(json.loads(sys.stdin.read())), separators=(",", ":")))
