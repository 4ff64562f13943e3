"""The CPU reference, with a real small model in its real process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo.build_models import PROMPTS
from pipeline import reference, verdict
from pipeline.record import Generation, Observation, Run
from pipeline.reference import NoReference, Reference
from pipeline.words import CpuMatch, Target
from tests import papers

NEW = 8
PADDED = 24


@pytest.fixture(scope="module")
def model(models: Callable[[str], Path]) -> Path:
    return models("tiny-qwen3")


@pytest.fixture(scope="module")
def inputs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What run.py leaves: the prompts' tensors, padded on the left to one length."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    tensors = {}
    for index, prompt in enumerate(PROMPTS):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        pad = (PADDED - ids.shape[1], 0)
        tensors[f"{index}.input_ids"] = torch.nn.functional.pad(ids, pad)
        tensors[f"{index}.attention_mask"] = torch.nn.functional.pad(torch.ones_like(ids), pad)
    path = tmp_path_factory.mktemp("inputs") / "inputs.safetensors"
    save_file(tensors, path)
    return path


@pytest.fixture(scope="module")
def tokens(model: Path) -> list[list[int]]:
    """What the model itself says, one prompt at a time, without padding."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    told = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        whole = loaded.generate(
            ids, do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW, pad_token_id=0
        )
        told.append(whole[0, ids.shape[1] :].tolist())
    return told


def _asked(model: Path, **changes: object) -> Run:
    stack = papers.stack(Target.CPU, torch="2.13.0")
    return papers.run(
        "demo/tiny", stack=stack, source=str(model), prompts=PROMPTS, new_tokens=NEW, **changes
    )


def _seen(tokens: list[list[int]]) -> Observation:
    answers = [
        Generation(prompt=prompt, tokens=tuple(ids), text="")
        for prompt, ids in zip(PROMPTS, tokens, strict=True)
    ]
    return papers.observation(papers.stack(Target.CPU), generations=tuple(answers))


def _compare(
    model: Path, inputs: Path, tokens: list[list[int]], kept: Path | None = None
) -> Reference | NoReference:
    return reference.compare(
        _asked(model), _seen(tokens), inputs, kept=kept, limit_s=120, available_bytes=None
    )


def test_the_models_own_tokens_are_exact_and_kept(
    model: Path, inputs: Path, tokens: list[list[int]], tmp_path: Path
) -> None:
    """Its own greedy tokens match exactly, padding or not, and the answer is kept by content."""
    first = _compare(model, inputs, tokens, tmp_path)
    assert isinstance(first, Reference) and not first.cached
    assert verdict.match(first)[0] is CpuMatch.EXACT
    again = _compare(model, inputs, tokens, tmp_path)
    assert isinstance(again, Reference) and again.cached
    assert again.steps == first.steps


def test_one_wrong_token_is_a_mismatch(
    model: Path, inputs: Path, tokens: list[list[int]], tmp_path: Path
) -> None:
    """A single other token in the last prompt is found, and where it is; nothing old is reused."""
    _compare(model, inputs, tokens, tmp_path)
    wrong = [*tokens[:2], [*tokens[2][:5], (tokens[2][5] + 1) % 400, *tokens[2][6:]]]
    found = _compare(model, inputs, wrong, tmp_path)
    assert isinstance(found, Reference) and not found.cached
    match, gap, reason = verdict.match(found)
    assert match is CpuMatch.MISMATCH
    assert gap and gap > verdict.NEAR_TIE_GAP
    assert reason and reason.startswith("prompt 3, token 6")


@pytest.mark.parametrize(
    "damage", ["", "{", '{"steps": []}', '{"steps": [[[0, 0]], [], []]}', "[1]"]
)
def test_a_damaged_kept_answer_is_made_again(
    model: Path, inputs: Path, tokens: list[list[int]], tmp_path: Path, damage: str
) -> None:
    """A kept answer that is not one step for each token is not used."""
    seen = _seen(tokens)
    key = reference._key(_asked(model), seen, "0")
    (tmp_path / f"{key}.json").write_text(damage)
    assert reference._recall(tmp_path / f"{key}.json", seen) is None


def test_an_answer_depends_on_everything(model: Path, tokens: list[list[int]]) -> None:
    """Weights, dtype, inputs, tokens and library versions each make another key."""
    run, seen = _asked(model), _seen(tokens)
    newer = seen.model_copy(
        update={"versions": seen.versions.model_copy(update={"transformers": "9"})}
    )
    keys = {
        reference._key(run, seen, "a"),
        reference._key(run, seen, "b"),
        reference._key(_asked(model, revision="other"), seen, "a"),
        reference._key(_asked(model, dtype="float32"), seen, "a"),
        reference._key(run, _seen([ids[::-1] for ids in tokens]), "a"),
        reference._key(run, newer, "a"),
    }
    assert len(keys) == 6


def test_too_large_for_this_machine(model: Path, inputs: Path, tokens: list[list[int]]) -> None:
    """A checkpoint that does not fit free memory is not tried, and the sizes are told."""
    asked = _asked(model, parameters=10_000_000_000)
    found = reference.compare(
        asked, _seen(tokens), inputs, kept=None, limit_s=60, available_bytes=8 * 2**30
    )
    assert isinstance(found, NoReference)
    assert "22.4 GiB" in found.reason and "8.0 GiB are free" in found.reason


def test_no_inputs(model: Path, tokens: list[list[int]], tmp_path: Path) -> None:
    """Without what the model was given there is no comparison, and it is said."""
    found = _compare(model, tmp_path / "inputs.safetensors", tokens)
    assert isinstance(found, NoReference) and "inputs.safetensors" in found.reason


def test_a_failing_reference_is_told(inputs: Path, tokens: list[list[int]], tmp_path: Path) -> None:
    """A checkpoint that the CPU cannot load gives a reason, not an exception."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    found = _compare(tmp_path, inputs, tokens)
    assert isinstance(found, NoReference) and found.reason.startswith(
        "the reference ended with 1: "
    )


def test_a_slow_reference_is_ended(model: Path, inputs: Path, tokens: list[list[int]]) -> None:
    """The reference has its own time limit."""
    found = reference.compare(
        _asked(model), _seen(tokens), inputs, kept=None, limit_s=0.2, available_bytes=None
    )
    assert isinstance(found, NoReference) and "did not answer" in found.reason


def test_tokens_that_were_not_free_do_not_count(model: Path, inputs: Path, tmp_path: Path) -> None:
    """Generation may not end early, so the reference may not prefer an end-of-text either."""
    logits = torch.tensor([[[0.0, 9.0, 5.0]] * 3])

    class Stub:
        def __call__(self, **_: object) -> object:
            return type("Output", (), {"logits": logits})()

    batch = {"input_ids": torch.tensor([[1]]), "attention_mask": torch.tensor([[1]])}
    led = reference._follow(Stub(), batch, [2, 2, 2], ends=[1])
    assert led == [(0.0, 0)] * 3
    free = reference._follow(Stub(), batch, [2, 2, 2], ends=[])
    assert all(gap == pytest.approx(4.0) and place == 1 for gap, place in free)
