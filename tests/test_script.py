"""run.py: one template for every kind of run, safe against what a list can hold."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import json
import math
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline import script
from pipeline.record import Placement, Run
from pipeline.words import Parallelism, Target, Task
from tests import papers
from tests.rendered import RUFF, assert_ruff, assert_types

HOSTILE = (
    "a \"double\" and a 'single' quote",
    '"""); import os; os.abort()  #',
    "a newline\nand a back\\slash and a tab\t.",
    "{{ 7 * 7 }} {% raw %} £ é 日本 \N{RIGHT-TO-LEFT OVERRIDE}",
    "it's",
)


def _placement(cores: int, parallelism: Parallelism) -> Placement:
    return papers.placement(cores, parallelism=parallelism)


def _kinds() -> list[Run]:
    made = []
    for task, target, (cores, parallelism), experts, source in itertools.product(
        Task,
        (Target.CPU, Target.NEURON),
        ((1, Parallelism.NONE), (2, Parallelism.TENSOR), (4, Parallelism.EXPERT)),
        (False, True),
        (None, "/somewhere/else"),
    ):
        made.append(
            papers.run(
                "some-org/Some.Model_1",
                stack=papers.stack(target),
                task=task,
                placement=_placement(cores, parallelism),
                mixture_of_experts=experts,
                source=source,
                prompts=HOSTILE,
                extra_packages=("einops==0.8.1", "timm[all]==1.*"),
            )
        )
    return made


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rendered")
    for number, run in enumerate(_kinds()):
        (folder / f"run_{number}.py").write_text(script.render(run))
    return folder


@pytest.mark.parametrize("command", RUFF)
def test_every_kind_is_formatted_and_lint_clean(rendered: Path, command: tuple[str, ...]) -> None:
    """A rendered file is what a formatter would leave and a linter has nothing to say of."""
    assert_ruff(rendered, command)


def test_every_kind_type_checks(rendered: Path) -> None:
    """A wrong name or a forgotten import in a branch of the template cannot hide."""
    assert_types(rendered, (f"run_{number}.py" for number in (0, 7, 13, 22, 31, 40, 47)))


def test_same_run_same_bytes() -> None:
    """Rendering depends on the run alone."""
    for run in _kinds()[:4]:
        again = Run.model_validate_json(run.model_dump_json())
        assert script.render(run) == script.render(again)


def test_constants_are_what_was_asked() -> None:
    """The constants at the top evaluate to the run's own values, hostile prompts included."""
    for run in _kinds():
        constants: dict[str, Any] = {}
        for node in ast.parse(script.render(run)).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if name not in ("Counts", "INSTALL"):
                    constants[name] = ast.literal_eval(node.value)
        assert run.placement is not None
        assert tuple(constants["PROMPTS"]) == run.prompts
        assert constants["MODEL_ID"] == run.model_id
        assert constants.get("SOURCE") == run.source
        assert constants["REVISION"] == run.revision
        assert constants["CORES"] == run.placement.cores
        assert constants["PARALLELISM"] == run.placement.parallelism
        assert constants["NEW_TOKENS"] == run.new_tokens
        assert constants["MADE_FOR"]["torch"] == run.stack.torch
        assert constants["MADE_FOR"].get("neuronx-cc") == run.stack.neuronx_cc


def test_stands_alone() -> None:
    """A script imports nothing of this project and names no path of it."""
    for run in _kinds():
        text = script.render(run)
        names = {
            alias.name if isinstance(node, ast.Import) else node.module
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert not {name for name in names if name and name.split(".")[0] in ("pipeline", "demo")}
        assert str(Path(__file__).parent.parent) not in text


def test_only_what_the_run_needs() -> None:
    """A one-core CPU script speaks of no process group, no experts, no device; and so on."""
    by_kind = {
        (run.stack.target, run.placement.cores, run.mixture_of_experts, run.task): script.render(
            run
        )
        for run in _kinds()
        if run.placement and run.source
    }
    one = by_kind[Target.CPU, 1, False, Task.TEXT_GENERATION]
    assert not any(word in one for word in ("init_process_group", "experts", "neuron.", "PIL"))
    split = by_kind[Target.NEURON, 4, True, Task.IMAGE_TEXT_TO_TEXT]
    for word in ("init_process_group", "ep_size=CORES", "all_reduce", "batched_mm"):
        assert word in split
    assert "NEURON_RT_VISIBLE_CORES" in split
    assert "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION" in split


class OnDevice:
    """Logits that only the host can read: each operator on the device would be a program."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def cpu(self) -> torch.Tensor:
        return torch.tensor([self.values])


def generated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, steps: list[list[float]]
) -> tuple[ModuleType, dict[str, Any]]:
    """A script as a module, and what its generate() makes of these logits of a model."""
    (folder / "made.py").write_text(script.render(papers.run(stack=papers.stack(Target.CPU))))
    spec = importlib.util.spec_from_file_location("made", folder / "made.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "empty_cache", lambda *_: None)

    def generate(**_: object) -> SimpleNamespace:
        best = [max(range(len(step)), key=step.__getitem__) for step in steps]
        logits = tuple(OnDevice(step) for step in steps)
        return SimpleNamespace(sequences=torch.tensor([[9, 9, *best]]), logits=logits)

    model = SimpleNamespace(generate=generate)
    return module, module.generate(model, {"input_ids": torch.tensor([[9, 9]])})


def test_the_most_likely_tokens_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each step the five most likely ids with their log-probabilities, beside run.json."""
    logits = [[float(one) for one in range(8)], [3.0, 2.0, 1.0, 0.0, 9.0, -1.0, -2.0, -3.0]]
    module, answer = generated(tmp_path, monkeypatch, logits)
    assert (answer["tokens"], answer["finite"]) == ([7, 4], True)
    assert answer["ids"] == [[7, 6, 5, 4, 3], [4, 0, 1, 2, 3]]
    total = math.log(sum(math.exp(one) for one in logits[0]))
    assert answer["logprobs"][0] == pytest.approx([one - total for one in (7, 6, 5, 4, 3)])
    module.Journal(tmp_path).keep_logits([answer, answer])
    kept = json.loads((tmp_path / "logits.json").read_text())
    assert kept == {"ids": [answer["ids"]] * 2, "logprobs": [answer["logprobs"]] * 2}


def test_a_small_vocabulary_is_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are fewer than five tokens, all of them are kept."""
    _, answer = generated(tmp_path, monkeypatch, [[0.0, 2.0, 1.0]])
    assert answer["ids"] == [[1, 2, 0]]


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: float
) -> None:
    """One step that is not finite in one prompt leaves no file, and neither does another rank."""
    module, bad = generated(tmp_path, monkeypatch, [[1.0, 2.0, 3.0], [1.0, odd, 3.0]])
    _, good = generated(tmp_path, monkeypatch, [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    assert (bad["finite"], good["finite"]) == (False, True)
    module.Journal(tmp_path).keep_logits([good, bad])
    module.Journal(None).keep_logits([good])
    assert not (tmp_path / "logits.json").exists()


def test_a_refused_run_has_no_script() -> None:
    """There is nothing to render for a run without a placement."""
    with pytest.raises(ValueError, match="refused"):
        script.render(papers.refused())


@pytest.mark.parametrize("text", [*HOSTILE, "", "plain", "'\"'\"", "\x00\x1b[31m"])
def test_literal_is_the_value(text: str) -> None:
    """A literal evaluates to what it was made of."""
    assert ast.literal_eval(script.literal(text)) == text


def test_docstring_text_cannot_end_the_docstring() -> None:
    """What stands in the docstring is refused when it could be code."""
    for text in ('"""', "a\\", "a\nb", "{{ x }}"):
        with pytest.raises(ValueError, match="docstring"):
            script.plain(text)
