"""The CPU reference: what the same checkpoint, eager on the CPU, thinks of the device's tokens.

The device's tokens go through the model in one teacher-forced forward pass per prompt: in the run's
dtype, and where memory and time allow once more in float32, which shows the model's own rounding
noise. For every step it says how far the token lies below the reference's own first choice, and how
likely the reference holds the device's most likely tokens. It runs in a process of its own
(pipeline.leading), so that nothing else needs torch and its memory is gone afterwards. Answers are
kept, by everything they depend on.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, ValidationError

from pipeline import leading, processes
from pipeline.leading import FAR, LIKELY
from pipeline.record import Observation, Run, Versions, write_atomically
from pipeline.record.base import Paper
from pipeline.record.files import at_most

INPUTS_NAME = "inputs.safetensors"
"""What run.py gave the model; it leaves it beside run.json, with the next."""
LOGITS_NAME = "logits.json"
"""The device's most likely tokens of each step and their log-probabilities."""

MAX_LOGITS_BYTES = 64 * 1024**2
"""The largest honest file, 64 prompts with 4 096 tokens each (the limits of `Run`), has 42 MB."""


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


LogProbability = Annotated[FiniteFloat, Field(ge=-FAR, le=1e-3)]
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
            [python, "-m", "pipeline.leading"],
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
    """Identity of an answer: weights, dtypes, inputs, tokens, ids, libraries, and leading.py.

    The device's log-probabilities are no part of it: they are held against the answer afterwards.
    """
    asked = ("model_id", "revision", "dtype", "float32", "tokens", "ids")
    parts: dict[str, Any] = {name: question[name] for name in asked} | {
        "inputs": inputs_sha256,
        "torch": versions.torch,
        "transformers": versions.transformers,
        "code": hashlib.sha256(Path(leading.__file__).read_bytes()).hexdigest(),
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
