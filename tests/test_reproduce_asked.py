"""A script is run for its row only where it says what the row says.

The scripts are rendered by the template and changed in one place, as somebody might who passes off
another run's script, or a row of another run. None is executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pipeline import reproduce, script
from pipeline.record import Run, StackVersions
from pipeline.reproduce.asked import read_constants
from pipeline.rows import Row, row_of
from pipeline.words import Parallelism, Target
from tests import papers

STACK = papers.stack(python="3.14", nki="0.7.0", runtime="2.35", driver="2.31")
MODEL = "demo/one"
RUN_ID = str(STACK.run_id(MODEL))
SCRIPT = f"the script in the row of {RUN_ID} is"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def _asked(stack: StackVersions = STACK, **changes: Any) -> Run:
    return papers.run(MODEL, **{"stack": stack, "script_sha256": None, **changes})


def _row(text: str, asked: Run) -> Row:
    """The row of a PASS whose script is `text`, digest included."""
    asked = asked.model_copy(update={"script_sha256": script.sha256(text)})
    return row_of(papers.passing(asked, run_py=text))


def _changed(old: str, new: str, asked: Run | None = None) -> Row:
    """The row of a run whose script has `new` in the one place where it would have `old`."""
    asked = asked or _asked()
    text = script.render(asked)
    assert text.count(old) == 1, old
    return _row(text.replace(old, new), asked)


def _refusal(row: Row) -> str:
    with pytest.raises(reproduce.NotTried) as caught:
        reproduce.read(row)
    return caught.value.reason


def test_the_unchanged_script_is_taken() -> None:
    """What the changes below are made to would be replayed as it is."""
    asked = reproduce.read(_row(script.render(_asked()), _asked()))
    assert (asked.run.model_id, asked.run.revision) == (MODEL, COMMIT)


CHANGES: Mapping[str, tuple[str, str, str]] = {
    "model": ('MODEL_ID = "demo/one"', 'MODEL_ID = "demo/two"', "of MODEL_ID 'demo/two'"),
    "revision": (
        f'REVISION = "{COMMIT}"',
        f'REVISION = "{"f" * 40}"',
        f"of REVISION '{'f' * 40}', the row of '{COMMIT}'",
    ),
    "no revision": (
        f'REVISION = "{COMMIT}"',
        "REVISION = None",
        f"of REVISION None, the row of '{COMMIT}'",
    ),
    "dtype": (
        'DTYPE = "bfloat16"',
        'DTYPE = "float32"',
        "of DTYPE 'float32', the row of 'bfloat16'",
    ),
    "parallelism": (
        'PARALLELISM = "none"',
        'PARALLELISM = "tensor"',
        "of PARALLELISM 'tensor', the row of 'none'",
    ),
    "cores": ("CORES = 1 ", "CORES = 2 ", "for another number of cores, 2, than the row, 1"),
    "cores as text": (
        "CORES = 1 ",
        "CORES = '1' ",
        "for another number of cores, '1', than the row, 1",
    ),
    "one prompt": (
        '    "Water boils at",\n',
        '    "Water freezes at",\n',
        "of PROMPTS ['The capital of France is', 'Water freezes at', 'Once upon a time'], the row "
        "of ['The capital of France is', 'Water boils at', 'Once upon a time']",
    ),
    "a prompt less": (
        '    "Water boils at",\n',
        "",
        "of PROMPTS ['The capital of France is', 'Once upon a time'], the row of ",
    ),
    "a prompt more": (
        '    "Water boils at",\n',
        '    "Water boils at",\n    "Water boils at",\n',
        "of PROMPTS ['The capital of France is', 'Water boils at', 'Water boils at', ",
    ),
    "torch": ('"torch": "2.14.0"', '"torch": "2.13.0"', "made for torch '2.13.0', the row for "),
    "library": (
        '"transformers": "5.24.0"',
        '"transformers": "5.24.1"',
        "made for transformers '5.24.1', the row for '5.24.0'",
    ),
    "compiler": (
        '"neuronx-cc": "2.28.7631.0"',
        '"neuronx-cc": "2.28"',
        "made for neuronx-cc '2.28', the row for '2.28.7631.0'",
    ),
    "no compiler": (
        '    "neuronx-cc": "2.28.7631.0",\n',
        "",
        "made for neuronx-cc None, the row for '2.28.7631.0'",
    ),
    "no versions": ("MADE_FOR = {", "MADE_FOR = [], {", "made for torch None, the row for "),
    # What is not known is not what the row says.
    "computed": ('MODEL_ID = "demo/one"', 'MODEL_ID = "demo/" + "one"', "of MODEL_ID None"),
    "called": ('DTYPE = "bfloat16"', 'DTYPE = str("bfloat16")', "of DTYPE None"),
    "not there": ('PARALLELISM = "none"\n', "", "of PARALLELISM None"),
    # The last assignment is the one that a reader's script goes by.
    "set anew": (
        "\nCounts = ",
        f'\nREVISION = "{"e" * 40}"\nCounts = ',
        f"of REVISION '{'e' * 40}'",
    ),
    "set anew with a type": (
        "\nCounts = ",
        f'\nREVISION: str = "{"e" * 40}"\nCounts = ',
        "of REVISION None",
    ),
    "set anew by a call": ("\nCounts = ", "\nREVISION = input()\nCounts = ", "of REVISION None"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_script_that_says_another_thing_is_refused(name: str) -> None:
    """The digest is right, and the script is another run's: the reason names what differs."""
    old, new, why = CHANGES[name]
    assert _refusal(_changed(old, new)).startswith(f"{SCRIPT} {why}")


ROWS: Mapping[str, tuple[dict[str, Any], str]] = {
    "model": ({"model_id": "demo/two"}, "of MODEL_ID 'demo/one', the row of 'demo/two'"),
    "revision": ({"revision": "main"}, f"of REVISION '{COMMIT}', the row of 'main'"),
    "no revision": ({"revision": None}, f"of REVISION '{COMMIT}', the row of None"),
    "dtype": ({"dtype": "float16"}, "of DTYPE 'bfloat16', the row of 'float16'"),
    "parallelism": (
        {"parallelism": str(Parallelism.EXPERT)},
        "of PARALLELISM 'none', the row of 'expert'",
    ),
    "cores": ({"neuron_cores": 4}, "for another number of cores, 1, than the row, 4"),
    "order of prompts": (
        {"prompts": list(reversed(papers.PROMPTS))},
        "of PROMPTS ['The capital of France is', ",
    ),
    "no prompts": ({"prompts": None}, "of PROMPTS ['The capital of France is', "),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_says_another_thing_is_refused(name: str) -> None:
    """The script is the one that ran, and the row is another's."""
    changes, why = ROWS[name]
    row = _row(script.render(_asked()), _asked())
    assert _refusal({**row, **changes}).startswith(f"{SCRIPT} {why}")


@pytest.mark.parametrize(
    ("stack", "name", "found", "wanted"),
    [
        (papers.stack(torch="2.15.0"), "torch", "2.14.0", "2.15.0"),
        (papers.stack(library_version="5.25.0"), "transformers", "5.24.0", "5.25.0"),
        (papers.stack(neuronx_cc="2.29.1.0"), "neuronx-cc", "2.28.7631.0", "2.29.1.0"),
    ],
)
def test_a_row_moved_to_another_stack_is_refused(
    stack: StackVersions, name: str, found: str, wanted: str
) -> None:
    """A run id names three versions: a script of other ones proves nothing of them."""
    row = _row(script.render(_asked()), _asked())
    moved = {**row, "run_id": str(stack.run_id(MODEL))}
    assert f"made for {name} {found!r}, the row for {wanted!r}" in _refusal(moved)


def test_a_script_of_the_device_is_not_one_of_the_cpu() -> None:
    """On the CPU no compiler is named: a script that insists on neuronx-cc is of another run."""
    cpu = papers.stack(Target.CPU)
    own = script.render(_asked(cpu))
    assert reproduce.read(_row(own, _asked(cpu))).run.stack.target is Target.CPU
    foreign = own.replace("MADE_FOR = {\n", 'MADE_FOR = {\n    "neuronx-cc": "2.28.7631.0",\n')
    assert "made for neuronx-cc '2.28.7631.0', the row for None" in _refusal(
        _row(foreign, _asked(cpu))
    )


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("NEW_TOKENS = 4", "NEW_TOKENS = 0", "('new_tokens',): Input should be greater than"),
        ("NEW_TOKENS = 4", "NEW_TOKENS = 10**9", "('new_tokens',): Input should be a valid"),
        ("NEW_TOKENS = 4", "NEW_TOKENS = 999999", "('new_tokens',): Input should be less than"),
        ("PREFILL_CHUNK = 128", "PREFILL_CHUNK = 'x'", "('prefill_chunk',): Input should be a"),
        ("\nPREFILL_CHUNK = 128", "\nCHUNK = 128", "('prefill_chunk',): Input should be a valid"),
    ],
)
def test_what_only_the_script_says_must_make_a_run(old: str, new: str, why: str) -> None:
    """No row holds how many tokens were generated and how prompts were padded."""
    told = _refusal(_changed(old, new))
    assert told.startswith(f"the row of {RUN_ID} and its script do not make a run: {why}")


def test_only_the_rows_own_script_says_more_of_its_stack() -> None:
    """Versions that no run id names are the script's, and nobody's where it is not the row's."""
    row = _row(script.render(_asked()), _asked())
    own = reproduce.stack_of(row)
    beside = ("torch_neuronx", "nki", "runtime", "driver", "python")
    assert [getattr(own, name) for name in beside] == [getattr(STACK, name) for name in beside]
    for other in ({"run_py": f"{row['run_py']}#"}, {"run_py": None}):
        unknown = reproduce.stack_of({**row, **other})
        assert [getattr(unknown, name) for name in beside] == [None] * 5
        assert (unknown.torch, unknown.neuronx_cc) == (own.torch, own.neuronx_cc)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"run_id": "demo--one"}, "names no stack"),
        ({"target": "gpu"}, "names no stack"),
    ],
)
def test_a_row_without_a_stack_is_refused(changes: dict[str, Any], why: str) -> None:
    """A run id or a target of another shape stands for no stack, and nothing is guessed."""
    row = _row(script.render(_asked()), _asked())
    assert why in _refusal({**row, **changes})


def test_long_constants_are_shortened_in_the_reason() -> None:
    """A script may hold anything of any length: the reason stays readable."""
    told = _refusal(_changed('DTYPE = "bfloat16"', f"DTYPE = '{'x' * 10**5}\\x1b[2J'"))
    assert len(told) < 700


def test_functions_and_classes_have_names_of_their_own() -> None:
    """What they assign is not what the module says before it runs."""
    text = "A = 1\nb = 2\ndef f():\n    A = 3\nclass C:\n    A = 4\n"
    assert read_constants(text) == {"A": 1, "_experts": False}


@pytest.mark.parametrize(
    "more",
    [
        "A: int = 2",
        "A += 1",
        "A = B = 2",
        "A, B = 2, 3",
        "if True:\n    A = 2",
        "for A in (2,): pass",
        "with open('x') as A: pass",
        "print(A := 2)",
        "del A",
    ],
)
def test_a_constant_that_is_set_in_another_way_is_not_known(more: str) -> None:
    """What it is when the script runs is not read there: the row's word for it cannot be held."""
    assert read_constants(f"A = 1\n{more}\n") == {"_experts": False}
    assert read_constants(f"A = 1\n{more}\nA = 5\n") == {"A": 5, "_experts": False}
