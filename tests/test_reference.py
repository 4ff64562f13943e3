"""The CPU reference, with a real small model in its real process."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo.build_models import PROMPTS
from pipeline import leading, processes, reference, verdict
from pipeline.record import Generation, Observation, Run
from pipeline.reference import NoReference, Reference
from pipeline.words import CpuMatch, Target
from tests import papers

NEW = 8
PADDED = 24
VOCABULARY = 448
"""Of the model, as its config says."""


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
def said(model: Path) -> dict[str, Any]:
    """What the model itself says, one prompt at a time, without padding, as run.py leaves it."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    told: dict[str, Any] = {"tokens": [], "ids": [], "logprobs": []}
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        output = loaded.generate(
            ids,
            do_sample=False,
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        told["tokens"].append(output.sequences[0, ids.shape[1] :].tolist())
        likely = [step[0].float().log_softmax(dim=-1).topk(5) for step in output.logits]
        told["ids"].append([step.indices.tolist() for step in likely])
        told["logprobs"].append([step.values.tolist() for step in likely])
    return told


@pytest.fixture(scope="module")
def tokens(said: dict[str, Any]) -> list[list[int]]:
    """Its tokens alone."""
    found: list[list[int]] = said["tokens"]
    return found


@pytest.fixture
def logits(inputs: Path, said: dict[str, Any], tmp_path: Path) -> Path:
    """The inputs in a folder of their own, with the log-probabilities beside them."""
    folder = tmp_path / "record"
    folder.mkdir()
    (folder / inputs.name).write_bytes(inputs.read_bytes())
    kept = {name: said[name] for name in ("ids", "logprobs")}
    (folder / reference.LOGITS_NAME).write_text(json.dumps(kept))
    return folder / inputs.name


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
    return papers.observation(
        papers.stack(Target.CPU), generations=tuple(answers), vocab_size=VOCABULARY
    )


def _compare(
    model: Path, inputs: Path, tokens: list[list[int]], kept: Path | None = None
) -> Reference | NoReference:
    return reference.compare(
        _asked(model), _seen(tokens), inputs, kept=kept, limit_s=120, available_bytes=None
    )


def test_the_models_own_tokens_are_exact_and_kept(
    model: Path, inputs: Path, tokens: list[list[int]], tmp_path: Path
) -> None:
    """Its own greedy tokens match exactly, padding or not, and the answer is kept by content; a
    damaged one is made again, the same."""
    first = _compare(model, inputs, tokens, tmp_path)
    assert isinstance(first, Reference) and not first.cached
    assert verdict.match(first).cpu_match is CpuMatch.EXACT
    again = _compare(model, inputs, tokens, tmp_path)
    assert isinstance(again, Reference) and again.cached
    assert again.steps == first.steps
    (kept,) = tmp_path.glob("*.json")
    good = kept.read_bytes()
    kept.write_bytes(good[:-9])
    mended = _compare(model, inputs, tokens, tmp_path)
    assert isinstance(mended, Reference) and not mended.cached
    assert kept.read_bytes() == good


def test_one_wrong_token_is_a_mismatch(
    model: Path, inputs: Path, tokens: list[list[int]], tmp_path: Path
) -> None:
    """A single other token in the last prompt is found, and where it is; nothing old is reused."""
    _compare(model, inputs, tokens, tmp_path)
    wrong = [*tokens[:2], [*tokens[2][:5], (tokens[2][5] + 1) % 400, *tokens[2][6:]]]
    found = _compare(model, inputs, wrong, tmp_path)
    assert isinstance(found, Reference) and not found.cached
    match = verdict.match(found)
    assert match.cpu_match is CpuMatch.MISMATCH
    assert match.max_gap and match.max_gap > 0.25
    assert match.reason and "prompt 3, token 6" in match.reason


DAMAGED = {
    "empty": "",
    "cut": "{",
    "no steps": '{"steps": [], "exact": null}',
    "too few steps": '{"steps": [[{"gap": 0, "place": 0, "logprobs": []}], [], []], "exact": null}',
    "other": "[1]",
    "no number": '{"steps": [[{"gap": NaN, "place": 0, "logprobs": [0]}]], "exact": null}',
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_kept_answer_is_not_used(
    tokens: list[list[int]], tmp_path: Path, damage: str
) -> None:
    """What is not one step for each token is no answer, kept or just given."""
    (tmp_path / "kept.json").write_text(damage)
    assert reference._recall(tmp_path / "kept.json", _seen(tokens), None) is None


def test_an_answer_depends_on_everything(model: Path, tokens: list[list[int]]) -> None:
    """Weights, dtypes, inputs, tokens, ids and library versions each make another key."""
    asked: dict[str, Any] = {
        "model_id": "demo/tiny",
        "revision": "1",
        "dtype": "bfloat16",
        "float32": True,
        "tokens": tokens,
        "ids": None,
    }
    seen = papers.versions()
    others: list[dict[str, Any]] = [
        {"revision": "2"},
        {"dtype": "float16"},
        {"float32": False},
        {"tokens": [ids[::-1] for ids in tokens]},
        {"ids": [[[1, 2, 3, 4, 5]]]},
    ]
    keys = {reference._key(asked | other, seen, "a") for other in others}
    keys |= {
        reference._key(asked, seen, "a"),
        reference._key(asked, seen, "b"),
        reference._key(asked, seen.model_copy(update={"transformers": "9"}), "a"),
    }
    assert len(keys) == 8
    assert reference._key(asked | {"inputs": "elsewhere", "limit_s": 1}, seen, "a") in keys


# --- logits ---------------------------------------------------------------------------------------


def departures(steps: reference.Steps) -> list[float]:
    """All of a run."""
    return [one for prompt in steps for step in prompt for one in step.departures]


def test_the_models_own_logits_depart_by_rounding_alone(
    model: Path, logits: Path, said: dict[str, Any], tmp_path: Path
) -> None:
    """At every token's five most likely ids; and float32 shows the model's own rounding noise."""
    found = _compare(model, logits, said["tokens"], tmp_path / "kept")
    assert isinstance(found, Reference) and found.untold is None
    assert found.exact is not None and found.noise is not None
    assert len(departures(found.steps)) == len(departures(found.exact)) == len(PROMPTS) * NEW * 5
    off, exactly_off = (reference.rms(departures(one)) for one in (found.steps, found.exact))
    assert off is not None and exactly_off is not None
    assert 0 < found.noise < 0.1
    assert off <= 2 * found.noise and 0 < exactly_off <= 2 * found.noise
    again = _compare(model, logits, said["tokens"], tmp_path / "kept")
    assert isinstance(again, Reference) and again.cached
    assert (again.steps, again.exact, again.noise) == (found.steps, found.exact, found.noise)


def test_other_log_probabilities_are_held_against_the_kept_answer(
    model: Path, logits: Path, said: dict[str, Any], tmp_path: Path
) -> None:
    """The kept answer says nothing of the device's values: those of this run are compared."""
    before = _compare(model, logits, said["tokens"], tmp_path / "kept")
    moved = [[[one - 0.5 for one in step] for step in told] for told in said["logprobs"]]
    path = logits.with_name(reference.LOGITS_NAME)
    path.write_text(json.dumps({"ids": said["ids"], "logprobs": moved}))
    found = _compare(model, logits, said["tokens"], tmp_path / "kept")
    assert isinstance(before, Reference) and isinstance(found, Reference) and found.cached
    pairs = zip(departures(before.steps), departures(found.steps), strict=True)
    assert all(old - new == pytest.approx(0.5) for old, new in pairs)
    assert found.noise == before.noise


def test_without_logits_the_tokens_are_compared_alone(
    model: Path, inputs: Path, tokens: list[list[int]]
) -> None:
    """And it is said why; the model's own noise is known all the same."""
    found = _compare(model, inputs, tokens)
    assert isinstance(found, Reference)
    assert found.untold == "logits.json is not there"
    assert departures(found.steps) == []
    assert found.noise is not None and 0 < found.noise < 0.1


def _odd(said: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Text of a file that is of no use -> what is said of it."""

    def text(**changes: Any) -> str:
        return json.dumps({name: said[name] for name in ("ids", "logprobs")} | changes)

    ids, logprobs = said["ids"], said["logprobs"]
    shape = "has not the 5 most likely tokens of each step"
    return {
        "cut": (text()[:-20], "is damaged"),
        "a list": ("[]", "is damaged"),
        "more": (text(more=1), "is damaged"),
        "text": (text(ids="many"), "is damaged"),
        "negative": (text(ids=[[[-1] * 5] * NEW] * 3), "is damaged"),
        "NaN": (text(logprobs=[[[math.nan] * 5] * NEW] * 3), "is damaged"),
        "infinite": (text(logprobs=[[[-math.inf] * 5] * NEW] * 3), "is damaged"),
        "a prompt short": (text(ids=ids[1:], logprobs=logprobs[1:]), shape),
        "a step short": (text(ids=[told[1:] for told in ids]), shape),
        "four": (text(logprobs=[[step[1:] for step in told] for told in logprobs]), shape),
        "empty": (text(ids=[], logprobs=[]), shape),
        "no such token": (text(ids=[[[VOCABULARY] * 5] * NEW] * 3), "outside the vocabulary"),
        "large": (" " * (reference.MAX_LOGITS_BYTES + 1), "above the limit of 67108864 bytes"),
    }


@pytest.mark.parametrize(
    "name",
    [
        *("cut", "a list", "more", "text", "negative", "NaN", "infinite", "a prompt short"),
        *("a step short", "four", "empty", "no such token", "large"),
    ],
)
def test_damaged_logits_are_not_used(said: dict[str, Any], tmp_path: Path, name: str) -> None:
    """What is not the most likely tokens of each step, as numbers, is told and left out."""
    text, told = _odd(said)[name]
    path = tmp_path / reference.LOGITS_NAME
    path.write_text(text)
    found, untold = reference._logits(path, _seen(said["tokens"]))
    assert found is None
    assert untold and untold.startswith("logits.json ") and told in untold


def test_a_vocabulary_of_three_is_whole(tmp_path: Path) -> None:
    """Where there are fewer than five tokens, fewer are looked for."""
    seen = papers.observation(
        generations=(Generation(prompt="p", tokens=(0, 2), text=""),), vocab_size=3
    )
    path = tmp_path / reference.LOGITS_NAME
    path.write_text('{"ids": [[[0, 1, 2], [2, 1, 0]]], "logprobs": [[[0, -1, -2], [0, -1, -2]]]}')
    found, untold = reference._logits(path, seen)
    assert untold is None and found and found.ids == (((0, 1, 2), (2, 1, 0)),)


# --- the second pass ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "free", "asked"),
    [
        ({}, None, True),
        ({"parameters": 1_000_000}, 9_600_000, True),
        ({"parameters": 1_000_000}, 9_599_999, False),
        ({"parameters": None}, None, False),
        ({"dtype": "float32"}, None, False),
    ],
)
def test_float32_is_asked_for_where_memory_allows(
    monkeypatch: pytest.MonkeyPatch,
    model: Path,
    inputs: Path,
    tokens: list[list[int]],
    changes: dict[str, Any],
    free: int | None,
    asked: bool,
) -> None:
    """When it takes at most half of what is free; of an unknown size, or in float32, never."""
    questions = []

    def ask(_: object, question: bytes, **__: object) -> bytes:
        questions.append(json.loads(question))
        return b""

    monkeypatch.setattr(processes, "ask", ask)
    reference.compare(
        _asked(model, **changes), _seen(tokens), inputs, kept=None, limit_s=9, available_bytes=free
    )
    assert questions[0]["float32"] is asked


def _question(model: Path, inputs: Path, tokens: list[list[int]]) -> dict[str, Any]:
    return {
        "model_id": "demo/tiny",
        "source": str(model),
        "revision": None,
        "task": "text-generation",
        "dtype": "bfloat16",
        "float32": True,
        "limit_s": 600,
        "mixture_of_experts": False,
        "inputs": str(inputs),
        "tokens": tokens,
        "ids": None,
    }


@pytest.mark.parametrize("fault", [MemoryError(), RuntimeError("can't allocate memory")])
def test_a_failing_second_pass_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: Path,
    inputs: Path,
    tokens: list[list[int]],
    fault: Exception,
) -> None:
    """What the first pass found is told, and on standard error why there is no second."""

    def full(_: object) -> None:
        raise fault

    whole = leading.answer(_question(model, inputs, tokens))
    monkeypatch.setattr(torch.nn.Module, "float", full)
    half = leading.answer(_question(model, inputs, tokens))
    assert whole["exact"] and half == {"steps": whole["steps"], "exact": None}
    assert type(fault).__name__ in capsys.readouterr().err


def test_no_second_pass_where_time_is_short(
    capsys: pytest.CaptureFixture[str], model: Path, inputs: Path, tokens: list[list[int]]
) -> None:
    """A first pass that took a good part of the time is not lost to the limit."""
    answer = leading.answer(_question(model, inputs, tokens) | {"limit_s": 0})
    assert answer["steps"] and answer["exact"] is None
    assert "too long" in capsys.readouterr().err


def test_half_an_answer_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
    model: Path,
    inputs: Path,
    tokens: list[list[int]],
    tmp_path: Path,
) -> None:
    """Where float32 was asked for and failed, the next comparison asks again."""
    answer = leading.answer(_question(model, inputs, tokens)) | {"exact": None}
    monkeypatch.setattr(processes, "ask", lambda *_, **__: json.dumps(answer).encode())
    found = _compare(model, inputs, tokens, tmp_path)
    assert isinstance(found, Reference) and found.steps
    assert (found.exact, found.noise) == (None, None)
    assert not list(tmp_path.iterdir())


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
    led, ids = leading.follow(Stub(), batch, [2, 2, 2], [1], None)
    assert [(step["gap"], step["place"]) for step in led] == [(0.0, 0)] * 3
    free, _ = leading.follow(Stub(), batch, [2, 2, 2], [], None)
    assert all(step["gap"] == pytest.approx(4.0) and step["place"] == 1 for step in free)
    # The device's own log-probabilities leave nothing out either.
    assert ids == [[1, 2, 0]] * 3
    assert [step["logprobs"] for step in led] == [step["logprobs"] for step in free]
    total = math.log(sum(math.exp(one) for one in (0.0, 9.0, 5.0)))
    assert led[0]["logprobs"] == pytest.approx([9 - total, 5 - total, -total], abs=1e-5)
    other, _ = leading.follow(Stub(), batch, [2, 2, 2], [1], [[0, 2]] * 3)
    assert other[0]["logprobs"] == pytest.approx([-total, 5 - total], abs=1e-5)


def test_infinite_distances_are_numbers() -> None:
    """A token that the reference holds to be impossible is far off, and the answer plain JSON."""
    logits = torch.tensor([[[0.0, float("-inf")]]])

    class Stub:
        def __call__(self, **_: object) -> object:
            return type("Output", (), {"logits": logits})()

    batch = {"input_ids": torch.tensor([[1]]), "attention_mask": torch.tensor([[1]])}
    led, _ = leading.follow(Stub(), batch, [1], [], [[0, 1]])
    assert led == [{"gap": 1e6, "place": 1, "logprobs": [0.0, -1e6]}]
    json.dumps(led, allow_nan=False)
