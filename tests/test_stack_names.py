"""Names of stacks: keys, labels, order, and what a pattern means."""

from __future__ import annotations

import pytest

from pipeline import stack_names
from pipeline.results import row_of
from pipeline.words import Target
from tests import papers

KEY = "transformers-5.24.0@neuronxcc-2.28.7631.0@torch-2.14.0"
CPU = "transformers-5.24.0@inductor-2.13.0@torch-2.13.0"


def test_key_and_label() -> None:
    """The key is what stands behind the model; the label names the target off the device."""
    row = row_of(papers.passing())
    assert stack_names.key(row) == KEY
    assert stack_names.label(row) == "neuronx-cc 2.28.7631.0, transformers 5.24.0, torch 2.14.0"
    assert stack_names.label_of(CPU) == "cpu, transformers 5.24.0, torch 2.13.0"
    with pytest.raises(ValueError, match="not a run id"):
        stack_names.label_of("neuronxcc-2.28")


def test_newest_first() -> None:
    """Each stack once, those of the device first, then by version as people count."""
    rows = [
        row_of(papers.passing(papers.run(name, stack=on)))
        for name in ("a/a", "b/b")
        for on in (
            papers.stack(Target.CPU),
            papers.stack(neuronx_cc="2.9.1"),
            papers.stack(neuronx_cc="2.28.1"),
        )
    ]
    compilers = [key.split("@")[1] for key in stack_names.newest_first(rows)]
    assert compilers == ["neuronxcc-2.28.1", "neuronxcc-2.9.1", "inductor-2.14.0"]


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        (KEY, True),
        ("neuronxcc-2.28", True),
        ("neuronx-cc 2.28", True),
        ("neuronx_cc-2.28.7631.0", True),
        ("NEURONXCC-2.2*", True),
        ("torch-2.14,transformers-5.24", True),
        ("neuron", True),
        ("neuronxcc", True),
        ("*", True),
        ("neuronxcc-2.2", False),
        ("neuronxcc-2.280", False),
        ("neuronxcc-2.28@torch-2.13", False),
        ("torch-2.1", False),
        ("cpu", False),
        ("2.28", False),
        ("", False),
        ("@,", False),
    ],
)
def test_patterns(pattern: str, named: bool) -> None:
    """A version's beginning ends at a dot: 2.2 is not 2.28. Every part must fit, and none names
    nothing."""
    assert stack_names.matches(KEY, pattern) is named


def test_what_stacks_have_in_common() -> None:
    """Parts are compared one by one, whatever else a pattern names."""
    assert stack_names.shared(KEY, KEY) == {"compiler", "library", "torch"}
    assert stack_names.shared(KEY, KEY.replace("2.28", "2.29")) == {"library", "torch"}
    assert stack_names.shared(KEY, "neuronxcc-2.28@torch-9") == {"compiler"}
    assert stack_names.shared(KEY, "neuron") == set()


def test_which_target_is_asked_for() -> None:
    """The device, unless another target is named."""
    assert all(map(stack_names.asks_for_device, ("", KEY, "torch-2.14", "neuron")))
    assert not any(map(stack_names.asks_for_device, ("cpu", CPU, "inductor")))
