"""Evidence about other models of the same architecture."""

from __future__ import annotations

from pipeline.relatives import relatives
from pipeline.results import row_of
from tests import papers

KEY = "transformers-5.24.0@neuronxcc-2.28.7631.0@torch-2.14.0"


def test_models_of_the_type_on_the_stack_are_counted() -> None:
    """Other types, other stacks, ERRORs and the model itself are not."""
    rows = [
        row_of(record)
        for record in (
            papers.passing(papers.run("a/one")),
            papers.passing(papers.run("a/two")),
            papers.failing(papers.run("a/three")),
            papers.erring(papers.run("a/four")),
            papers.passing(papers.run("a/self")),
            papers.passing(papers.run("a/llama", model_type="llama")),
            papers.passing(papers.run("a/older", stack=papers.stack(neuronx_cc="2.27.1"))),
        )
    ]
    found = relatives(rows, "qwen3", KEY, but="a/self")
    assert str(found) == "2 of 3 qwen3 models pass on this stack"
    assert (found.passed, found.of) == (2, 3)
    assert found.model_ids == ("a/one", "a/three", "a/two")
    assert relatives(rows, "qwen3", KEY).of == 4


def test_an_unknown_type_has_no_relatives() -> None:
    """Models without a type are not of one type."""
    rows = [row_of(papers.passing(papers.run("a/a", model_type=None)))]
    assert str(relatives(rows, None, KEY)) == ""
    assert relatives(rows, None, KEY).of == relatives(rows, "", KEY).of == 0


def test_one_model_is_one() -> None:
    """Grammar."""
    rows = [row_of(papers.passing()), row_of(papers.failing(papers.run("a/b")))]
    assert str(relatives(rows[:1], "qwen3", KEY)) == "1 of 1 qwen3 model passes on this stack"
    assert str(relatives(rows[1:], "qwen3", KEY)) == "0 of 1 qwen3 model passes on this stack"
    assert str(relatives(rows, "qwen3", KEY)) == "1 of 2 qwen3 models passes on this stack"
