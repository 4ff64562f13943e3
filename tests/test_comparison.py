"""Two stacks on the models that ran on both."""

from __future__ import annotations

import pytest

from pipeline import comparison
from pipeline.errors import UsageError
from pipeline.results import row_of
from pipeline.words import Failure
from tests import papers

OLD, NEW = papers.stack(), papers.stack(neuronx_cc="2.29.5")
BEFORE, AFTER = (
    "transformers-5.24.0@neuronxcc-2.28.7631.0@torch-2.14.0",
    "transformers-5.24.0@neuronxcc-2.29.5@torch-2.14.0",
)


def test_what_moved() -> None:
    """Newly failing, fixed, changed; pairs with an ERROR and single rows are only counted."""
    two = papers.placement(2)
    records = [
        papers.passing(papers.run("a/worse", stack=OLD)),
        papers.failing(papers.run("a/worse", stack=NEW)),
        papers.failing(papers.run("b/better", stack=OLD)),
        papers.passing(papers.run("b/better", stack=NEW)),
        papers.passing(papers.run("c/slower", stack=OLD), wall_s=300.0),
        papers.passing(papers.run("c/slower", stack=NEW), wall_s=600.0),
        papers.passing(papers.run("d/alike", stack=OLD), wall_s=300.0),
        papers.passing(papers.run("d/alike", stack=NEW), wall_s=310.0),
        papers.failing(papers.run("e/cause", stack=OLD)),
        papers.failing(papers.run("e/cause", stack=NEW), failure=Failure.TIMEOUT),
        papers.passing(papers.run("f/error", stack=OLD)),
        papers.erring(papers.run("f/error", stack=NEW)),
        papers.passing(papers.run("g/single", stack=OLD)),
        papers.failing(papers.run("h/cores", stack=OLD)),
        papers.failing(papers.run("h/cores", stack=NEW, placement=two)),
    ]
    found = comparison.compare(map(row_of, records), BEFORE, AFTER)
    assert [pair.model_id for pair in found.newly_failing] == ["a/worse"]
    assert [pair.model_id for pair in found.fixed] == ["b/better"]
    assert {pair.model_id: pair.moved for pair in found.changed} == {
        "c/slower": ("time 5 min to 10 min (+100 %)",),
        "e/cause": ("compiler_error to timeout",),
        "h/cores": ("1 core to 2 cores tensor",),
    }
    assert (found.common, found.same, found.errors, found.single) == (6, 1, 1, 1)
    text = comparison.text(found, 80)
    assert (
        text.index("Newly failing: 1") < text.index("Fixed: 1") < text.index("Changed figures: 3")
    )
    assert "a/worse: compiler_error at compile: RuntimeError: NCC_EVRF004" in text
    assert "b/better: was compiler_error at compile" in text
    assert max(map(len, text.split("\n"))) <= 80
    assert (
        not comparison.compare(map(row_of, records), BEFORE, AFTER, least=101).changed[0].moved[1:]
    )


def test_stacks_are_named_by_parts() -> None:
    """The newest that fits; and what there is, where none does."""
    rows = [row_of(papers.passing(papers.run("a/a", stack=on))) for on in (OLD, NEW)]
    assert comparison.stack_of(rows, "torch-2.14") == AFTER
    assert comparison.stack_of(rows, "neuronxcc-2.28") == BEFORE
    with pytest.raises(UsageError, match="no result is of a stack 'cpu'") as caught:
        comparison.stack_of(rows, "cpu")
    assert caught.value.remedy.split() == ["there", "are", "results", "of:", AFTER, BEFORE]
