"""measure.py: run.py's own loading and sharding, and the clocks; run.py itself is left as it is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from pipeline import script
from pipeline.measure import Request
from pipeline.measure.measuring import render
from pipeline.record import Run
from pipeline.words import Parallelism, Target, Task
from tests import papers
from tests.rendered import RUFF, assert_ruff, assert_types

REQUEST = Request((32, 128), 16, (1, 4), 5, None, 600)


def _kinds() -> list[Run]:
    """Both targets, each placement, experts and sources."""
    return [
        papers.run(
            "some-org/Some.Model_1",
            stack=papers.stack(target),
            placement=papers.placement(cores, parallelism=parallelism),
            mixture_of_experts=experts,
            source=source,
            prompts=('"""); import os; os.abort()  #', "it's", "plain"),
        )
        for target in (Target.CPU, Target.NEURON)
        for cores, parallelism in (
            (1, Parallelism.NONE),
            (2, Parallelism.TENSOR),
            (4, Parallelism.EXPERT),
        )
        for experts, source in ((False, None), (True, "/somewhere/else"))
    ]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measure")
    for number, run in enumerate(_kinds()):
        (folder / f"measure_{number}.py").write_text(render(run, REQUEST))
    return folder


def test_run_py_is_what_it_is_without_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The marks that measure.py hangs on leave no byte in run.py: no run is due because of them."""
    asked = [run.model_copy(update={"task": task}) for run in _kinds() for task in Task]
    texts = [script.render(run) for run in asked]
    marked = (script.template_folder() / "run.py.jinja").read_text()
    bare = re.sub(r"^\{% (block \w+|endblock) %\}\n", "", marked, flags=re.MULTILINE)
    assert bare != marked and "block %}" not in bare
    template = script.environment().from_string(bare)
    monkeypatch.setattr(script, "_template", lambda _: template)
    assert [script.render(run) for run in asked] == texts


@pytest.mark.parametrize("command", RUFF)
def test_every_kind_is_formatted_and_lint_clean(rendered: Path, command: tuple[str, ...]) -> None:
    """As run.py: what a formatter would leave, and nothing for a linter."""
    assert_ruff(rendered, command)


def test_every_kind_type_checks(rendered: Path) -> None:
    """A wrong name in a branch of the template cannot hide, least of all on the device's side."""
    assert_types(rendered, (f"measure_{number}.py" for number in (0, 5, 6, 11)))


def test_constants_are_what_was_asked() -> None:
    """The sizes stand at the top as they were asked for, in order."""
    for run in _kinds():
        constants = {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in ast.parse(render(run, REQUEST)).body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id not in ("Counts", "INSTALL")
        }
        assert constants["PROMPT_TOKENS"] == [32, 128]
        assert constants["BATCHES"] == [1, 4]
        assert (constants["NEW_TOKENS"], constants["REPEATS"]) == (16, 5)
        assert tuple(constants["PROMPTS"]) == run.prompts
        assert run.placement is not None
        assert constants["CORES"] == run.placement.cores


def test_it_loads_as_run_py_does() -> None:
    """From the process group to eval(): the very lines of run.py, not a copy that could drift."""
    for run in _kinds():
        parts = [
            re.search(r"( +torch\._dynamo\.config\.auto.*?requires_grad_\(False\)\n)", text, re.S)
            for text in (script.render(run), render(run, REQUEST))
        ]
        assert parts[0] is not None and parts[1] is not None
        assert parts[0][1] == parts[1][1]


def test_only_calls_that_the_device_documents() -> None:
    """On the device it uses what run.py uses, and of torch.neuron one call more, which is known."""
    for run in _kinds():
        called = [
            set(re.findall(r"torch(?:\.neuron|_neuronx)\.[\w.]+", text))
            for text in (script.render(run), render(run, REQUEST))
        ]
        assert called[1] - called[0] <= {"torch.neuron.reset_peak_memory_stats"}
        if run.stack.target is Target.CPU:
            assert not called[1]
        else:
            assert "torch.neuron.synchronize" in called[1]


def test_stands_alone() -> None:
    """It imports nothing of this project."""
    for run in _kinds():
        names = {
            alias.name if isinstance(node, ast.Import) else node.module
            for node in ast.walk(ast.parse(render(run, REQUEST)))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert not {name for name in names if name and name.split(".")[0] == "pipeline"}
