"""The CPU reference: what the same checkpoint, eager on the CPU, thinks of the device's tokens.

The device's tokens go through the model in one teacher-forced forward pass per prompt: in the run's
dtype, and where memory and time allow once more in float32, which shows the model's own rounding
noise. For every step it says how far the token lies below the reference's own first choice, and how
likely the reference holds the device's most likely tokens. It runs in a process of its own
(`python -m pipeline.reference`, JSON in, JSON out), so that nothing else needs torch and its memory
is gone afterwards. Answers are kept, by everything they depend on.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, ValidationError

from pipeline import processes
from pipeline.record import Observation, Run, Versions, write_atomically
from pipeline.record.base import Paper
from pipeline.record.files import at_most
from pipeline.words import Task

INPUTS_NAME = "inputs.safetensors"
"""What run.py gave the model; it leaves it beside run.json, with the next."""
LOGITS_NAME = "logits.json"
"""The device's most likely tokens of each step and their log-probabilities."""

LIKELY = 5
"""Of each step run.py keeps so many; fewer only where the vocabulary has fewer."""

MAX_LOGITS_BYTES = 64 * 1024**2
"""The largest honest file, 64 prompts with 4 096 tokens each (the limits of `Run`), has 42 MB."""

_SECOND_PASS_SHARE = 0.25
"""Of the time limit: what the first pass may have taken, loading included, for there to be a second
one. It reads twice the bytes, so it takes some twice as long; a round figure."""

_FAR = 1e6
"""Nats: what stands for an infinite distance, so that every value is a number."""


@dataclass(frozen=True)
class Step:
    """One new token: its gap below the first choice in nats, and its place among all (0 = first).

    Tokens that generation was not free to choose (end-of-text before its time) do not count there.
    departures: the device's log-probabilities minus the reference's, in nats, at the device's most
    likely tokens, the most likely first, nothing left out; () where the device's are not known.
    """

    gap: float
    place: int
    departures: tuple[float, ...] = ()


Steps = tuple[tuple[Step, ...], ...]
"""By prompt and position."""


@dataclass(frozen=True)
class Reference:
    """What the reference says. steps: in the run's dtype. cached: the answer was kept from before.

    exact: the same in float32; None where the run's dtype is float32, or memory or time did not
    allow it. noise: root mean square, in nats, of the log-probabilities in the run's dtype minus
    those in float32, over all prompts, steps and most likely tokens (the reference's own where the
    device's are not known); None without `exact`. untold: why there are no departures.
    """

    steps: Steps
    cached: bool
    exact: Steps | None = None
    noise: float | None = None
    untold: str | None = None


@dataclass(frozen=True)
class NoReference:
    """Why there is no reference."""

    reason: str


LogProbability = Annotated[FiniteFloat, Field(ge=-_FAR, le=1e-3)]
"""Nats; a rounding above zero. Squares of more are no numbers."""


class _Logits(Paper):
    """LOGITS_NAME, as run.py leaves it: by prompt, step and rank among the most likely."""

    ids: tuple[tuple[tuple[Annotated[int, Field(ge=0)], ...], ...], ...]
    logprobs: tuple[tuple[tuple[LogProbability, ...], ...], ...]


class _Led(Paper):
    """One step of an answer."""

    gap: FiniteFloat
    place: Annotated[int, Field(ge=0)]
    logprobs: tuple[FiniteFloat, ...]


class _Answer(Paper):
    """What the process says: of each prompt and step, in the run's dtype and in float32."""

    steps: tuple[tuple[_Led, ...], ...]
    exact: tuple[tuple[_Led, ...], ...] | None


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

    LOGITS_NAME is looked for beside it. kept: folder of earlier answers, or None. available_bytes:
    free memory of this machine; a checkpoint that does not fit there is not tried (None = unknown:
    it is tried). The second pass, in float32, is made only of a checkpoint whose size is known, and
    that takes at most half of what is free.
    """
    if not inputs.is_file():
        return NoReference(f"{inputs.name} is not there")
    logits, untold = _logits(inputs.with_name(LOGITS_NAME), observation)
    need, exact_need = _memory_need(run, run.dtype), _memory_need(run, "float32")
    float32 = (
        run.dtype != "float32"
        and exact_need is not None
        and (available_bytes is None or 2 * exact_need <= available_bytes)
    )
    question = {
        "model_id": run.model_id,
        "source": run.source,
        "revision": run.revision,
        "task": run.task.value,
        "dtype": run.dtype,
        "float32": float32,
        "limit_s": limit_s,
        "mixture_of_experts": run.mixture_of_experts,
        "inputs": str(inputs),
        "tokens": [list(one.tokens) for one in observation.generations],
        "ids": logits.ids if logits else None,
    }
    key = _key(question, observation.versions, hashlib.sha256(inputs.read_bytes()).hexdigest())
    place = kept / f"{key}.json" if kept else None
    if place and (found := _recall(place, observation, logits)):
        return _reference(found, logits, untold, cached=True)
    if need is not None and available_bytes is not None and need > available_bytes:
        return NoReference(
            f"the reference needs {need / 2**30:.1f} GiB of host memory, "
            f"{available_bytes / 2**30:.1f} GiB are free"
        )
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
    last = b"".join(stdout.strip().splitlines()[-1:])
    answer = _parsed(last, observation, logits)
    if answer is None:
        return NoReference("the reference's answer is not one step for each token")
    if place and (answer.exact or not float32):
        write_atomically(place, last)
    return _reference(answer, logits, untold, cached=False)


def _memory_need(run: Run, dtype: str) -> int | None:
    """Bytes: the weights in that dtype, and a fifth more for loading and activations."""
    if run.parameters is None:
        return None
    return int(run.parameters * (4 if dtype == "float32" else 2) * 1.2)


def _key(question: dict[str, Any], versions: Versions, inputs_sha256: str) -> str:
    """Identity of an answer: weights, dtypes, inputs, tokens, ids, libraries, and this very code.

    The device's log-probabilities are no part of it: they are held against the answer afterwards.
    """
    asked = ("model_id", "revision", "dtype", "float32", "tokens", "ids")
    parts: dict[str, Any] = {name: question[name] for name in asked} | {
        "inputs": inputs_sha256,
        "torch": versions.torch,
        "transformers": versions.transformers,
        "code": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _recall(place: Path, observation: Observation, logits: _Logits | None) -> _Answer | None:
    try:
        return _parsed(place.read_bytes(), observation, logits)
    except OSError:
        return None


def _logits(path: Path, observation: Observation) -> tuple[_Logits | None, str | None]:
    """The device's log-probabilities, or why they are of no use."""
    try:
        data = at_most(path, MAX_LOGITS_BYTES)
        if data is None:
            return None, f"{path.name} is above the limit of {MAX_LOGITS_BYTES} bytes"
        logits = _Logits.model_validate_json(data)
    except FileNotFoundError:
        return None, f"{path.name} is not there"
    except OSError as error:
        return None, f"{path.name} cannot be read: {error}"
    except ValidationError:
        return None, f"{path.name} is damaged"
    vocabulary = observation.vocab_size or 0
    wanted = [[min(LIKELY, vocabulary)] * len(one.tokens) for one in observation.generations]
    if _widths(logits.ids) != wanted or _widths(logits.logprobs) != wanted:
        told = f"{path.name} has not the {LIKELY} most likely tokens of each step"
        return None, told
    if any(one >= vocabulary for prompt in logits.ids for step in prompt for one in step):
        return None, f"{path.name} has an id outside the vocabulary of {vocabulary}"
    return logits, None


def _parsed(answer: bytes, observation: Observation, logits: _Logits | None) -> _Answer | None:
    """An answer with one step for each token; None when it is anything else."""
    try:
        made = _Answer.model_validate_json(answer)
    except ValidationError:
        return None
    widths, exact = (
        None if steps is None else [[len(step.logprobs) for step in prompt] for prompt in steps]
        for steps in (made.steps, made.exact)
    )
    if not widths or [len(prompt) for prompt in widths] != [
        len(one.tokens) for one in observation.generations
    ]:
        return None
    if exact not in (None, widths) or (logits and widths != _widths(logits.ids)):
        return None
    return made


def _reference(
    answer: _Answer, logits: _Logits | None, untold: str | None, *, cached: bool
) -> Reference:
    steps = _steps(answer.steps, logits)
    if answer.exact is None:
        return Reference(steps, cached, untold=untold)
    pairs = zip(_logprobs(answer.steps), _logprobs(answer.exact), strict=True)
    noise = rms(rounded - exact for rounded, exact in pairs)
    return Reference(steps, cached, _steps(answer.exact, logits), noise, untold)


def rms(differences: Iterable[float]) -> float | None:
    """Root mean square; None of nothing."""
    squares = [one * one for one in differences]
    return math.sqrt(math.fsum(squares) / len(squares)) if squares else None


def _steps(led: Sequence[Sequence[_Led]], logits: _Logits | None) -> Steps:
    made = []
    for number, prompt in enumerate(led):
        seen = logits.logprobs[number] if logits else ((),) * len(prompt)
        made.append(
            tuple(
                Step(
                    step.gap,
                    step.place,
                    tuple(device - own for device, own in zip(told, step.logprobs, strict=True))
                    if logits
                    else (),
                )
                for step, told in zip(prompt, seen, strict=True)
            )
        )
    return tuple(made)


def _logprobs(led: Sequence[Sequence[_Led]]) -> Iterator[float]:
    return (one for prompt in led for step in prompt for one in step.logprobs)


def _widths(values: Sequence[Sequence[Sequence[float]]]) -> list[list[int]]:
    """How many values each step of each prompt has."""
    return [[len(step) for step in prompt] for prompt in values]


# --- the process of its own -------------------------------------------------------------------


def _answer(question: dict[str, Any]) -> dict[str, Any]:
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
    ends = model.generation_config.eos_token_id
    ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    tensors = load_file(question["inputs"])
    tokens = question["tokens"]
    with torch.inference_mode():
        steps, ids = _lead(model, tensors, tokens, ends, question["ids"])
    answer: dict[str, Any] = {"steps": steps, "exact": None}
    if not question["float32"]:
        return answer
    if time.monotonic() - began > _SECOND_PASS_SHARE * question["limit_s"]:
        print("no float32 pass: the first one took too long", file=sys.stderr)
        return answer
    # What the first pass found must not be lost with the second.
    try:
        with torch.inference_mode():
            answer["exact"] = _lead(model.float(), tensors, tokens, ends, ids)[0]
    except (MemoryError, RuntimeError, ValueError) as error:
        print(f"no float32 pass: {type(error).__name__}: {error}", file=sys.stderr)
    return answer


def _lead(
    model: Any,
    tensors: dict[str, Any],
    tokens: list[list[int]],
    ends: list[int],
    ids: list[list[list[int]]] | None,
) -> tuple[list[list[dict[str, Any]]], list[list[list[int]]]]:
    """(steps, ids) of each prompt; ids: None = the model's own most likely ones."""
    made = []
    for index, chosen in enumerate(tokens):
        batch = _without_padding(
            {
                name.partition(".")[2]: value.to(model.dtype)
                if value.is_floating_point()
                else value
                for name, value in tensors.items()
                if name.partition(".")[0] == str(index)
            }
        )
        made.append(_follow(model, batch, chosen, ends, ids[index] if ids else None))
    return [steps for steps, _ in made], [likely for _, likely in made]


def _without_padding(batch: dict[str, Any]) -> dict[str, Any]:
    """The prompt's tensors without the columns on the left that the mask hides."""
    mask = batch["attention_mask"][0].bool()
    shape = batch["input_ids"].shape
    return {
        name: value[:, mask] if value.shape == shape else value for name, value in batch.items()
    }


def _follow(
    model: Any,
    batch: dict[str, Any],
    tokens: list[int],
    ends: list[int],
    ids: list[list[int]] | None,
) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """What the model holds of each token when it is led along them, as `_Led`; and the ids of the
    log-probabilities: `ids`, or where these are None its own most likely tokens of each step."""
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
    logprobs = whole.gather(1, likely).clamp(min=-_FAR)
    chosen = torch.tensor(tokens)
    known = torch.tensor([end for end in ends if end < logits.shape[1]], dtype=torch.int64)
    free = torch.log_softmax(logits.index_fill(1, known, float("-inf")), dim=-1)
    own = free.gather(1, chosen[:, None])
    gaps = (free.max(dim=-1, keepdim=True).values - own)[:, 0].clamp(max=_FAR)
    places = (free > own).sum(dim=-1)
    values = zip(gaps.tolist(), places.tolist(), logprobs.tolist(), strict=True)
    steps = [
        {"gap": round(gap, 6), "place": place, "logprobs": [round(one, 6) for one in logs]}
        for gap, place, logs in values
    ]
    return steps, likely.tolist()


if __name__ == "__main__":
    print(json.dumps(_answer(json.loads(sys.stdin.read())), separators=(",", ":")))
