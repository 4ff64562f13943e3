"""pipeline.changes: what a list says otherwise than another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.catalog import Catalog, parse
from pipeline.changes import Alteration, Changes, compare

LIST = """\
defaults:
  stacks: [cpu]
  limit_minutes: 20
  margin: {gib: 0.1, fraction: 0.2}
  prompts:
    text-generation: [Once upon a time, The capital of France is, Water boils at]
runners:
  small: {target: cpu, labels: [a], cores: 2, core_gib: 2, host_gib: 4}
  large: {target: cpu, labels: [b], cores: 4, core_gib: 2, host_gib: 8}
stacks:
  cpu: {target: cpu, library_version: "5.24.0", torch: "2.13.0"}
models:
  - {id: org/one, task: text-generation}
  - {id: org/two, task: text-generation, cores: 2, note: two}
excluded:
  - {id: org/out, task: text-generation, reason: not_prioritised, note: later}
"""
ONE = "  - {id: org/one, task: text-generation}\n"
TWO = "  - {id: org/two, task: text-generation, cores: 2, note: two}\n"
OUT = "  - {id: org/out, task: text-generation, reason: not_prioritised, note: later}\n"
NOTHING = Changes((), (), (), (), (), ())


def catalog(text: str) -> Catalog:
    return parse(text.encode(), file="models.yaml")


def changes(*edits: tuple[str, str]) -> Changes:
    """What the list says otherwise after these replacements."""
    text = LIST
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return compare(catalog(LIST), catalog(text))


@pytest.mark.parametrize(
    "edits",
    [
        (),
        ((ONE + TWO, TWO + ONE),),
        ((ONE, f"  # a comment\n{ONE}"),),
        (("note: two", "note: two, parallelism: null"),),
    ],
)
def test_what_is_no_change(edits: tuple[tuple[str, str], ...]) -> None:
    """Order, comments, and defaults that are written out say nothing new."""
    found = changes(*edits)
    assert found == NOTHING
    assert not found


def test_added_and_altered() -> None:
    """Models come in the list's order, alterations by field with both values."""
    found = changes(
        (ONE, ONE + "  - {id: org/new, task: text-generation}\n"),
        ("cores: 2, note", "cores: 4, note"),
    )
    assert [model.id for model in found.added] == ["org/new"]
    (two,) = found.altered
    assert (two.model.id, two.model.cores) == ("org/two", 4)
    assert two.fields == (Alteration("cores", 2, 4),)
    assert [model.id for model in found.models] == ["org/new", "org/two"]
    assert replace(found, added=(), altered=()) == NOTHING
    assert found


def test_a_field_that_comes_or_goes() -> None:
    """What is not there is None."""
    (two,) = changes(("cores: 2, note: two", "revision: v1")).altered
    assert two.fields == (
        Alteration("revision", None, "v1"),
        Alteration("cores", 2, None),
        Alteration("note", "two", None),
    )


def test_letter_case_alters_a_model() -> None:
    """The list's rule: ids that differ by case alone are one model. Its run id becomes another."""
    (one,) = changes(("org/one", "Org/One")).altered
    assert one.fields == (Alteration("id", "org/one", "Org/One"),)


def test_excluding_a_model() -> None:
    """It is newly excluded, and not removed: the list still names it."""
    moved = "  - {id: org/two, task: text-generation, reason: not_prioritised, note: not now}\n"
    found = changes((TWO, ""), (OUT, OUT + moved))
    assert [entry.id for entry in found.excluded] == ["org/two"]
    assert replace(found, excluded=()) == NOTHING


def test_wanting_an_excluded_model() -> None:
    """It is added: it was not planned before."""
    found = changes(
        (OUT, ""), ("excluded:\n", "excluded: []\n"), (ONE, ONE.replace("one", "out") + ONE)
    )
    assert [model.id for model in found.added] == ["org/out"]
    assert replace(found, added=()) == NOTHING


def test_removed() -> None:
    """What the list names no more, wanted or excluded."""
    found = changes((TWO, ""), (OUT, ""), ("excluded:\n", ""))
    assert found.removed == ("org/two", "org/out")
    assert replace(found, removed=()) == NOTHING


def test_an_exclusion_that_reads_otherwise() -> None:
    """It is a change, if of no run."""
    found = changes(("note: later", "note: never"))
    (entry,) = found.reworded
    assert (entry.entry.id, entry.fields) == ("org/out", (Alteration("note", "later", "never"),))
    assert replace(found, reworded=()) == NOTHING


def test_settings() -> None:
    """Defaults, runner classes and stacks, by their path in the list."""
    found = changes(
        ("limit_minutes: 20", "limit_minutes: 30"),
        ("cores: 4, core_gib: 2", "cores: 4, core_gib: 3"),
        ("2.13.0", "2.14.0"),
    )
    assert found.settings == (
        Alteration("defaults.limit_minutes", 20, 30),
        Alteration("runners.large.core_gib", 2.0, 3.0),
        Alteration("stacks.cpu.torch", "2.13.0", "2.14.0"),
    )
    assert replace(found, settings=()) == NOTHING


def test_entries_of_settings() -> None:
    """A class that comes has no value before, one that goes none after."""
    found = changes(("  large:", "  huge:"))
    assert [(one.name, one.before is None, one.after is None) for one in found.settings] == [
        ("runners.huge", True, False),
        ("runners.large", False, True),
    ]


def test_the_order_of_runner_classes() -> None:
    """Placement takes the first with room, so that another order is another setting."""
    small, large = LIST.splitlines(keepends=True)[7:9]
    found = changes((small + large, large + small))
    assert found.settings == (Alteration("order of runners", "small, large", "large, small"),)


def test_no_list_before() -> None:
    """Everything is new, and nothing that all models share was changed."""
    found = compare(None, catalog(LIST))
    assert [model.id for model in found.added] == ["org/one", "org/two"]
    assert [entry.id for entry in found.excluded] == ["org/out"]
    assert replace(found, added=(), excluded=()) == NOTHING
