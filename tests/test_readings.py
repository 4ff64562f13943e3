"""What a row and a wish read as together, and what may be acted on."""

from __future__ import annotations

import pytest

from pipeline.readings import Evidence, Reading, evidence, excluded_as, reading, stale
from pipeline.results import row_of
from pipeline.wishes import Kind, Wish
from tests import papers

PASS, FAIL, ERROR = (
    row_of(papers.passing()),
    row_of(papers.failing()),
    row_of(papers.erring()),
)
WANTED = Wish("Qwen/Qwen3-0.6B", "text-generation", Kind.WANTED)
LATER = Wish("Qwen/Qwen3-0.6B", "text-generation", Kind.EXCLUDED, "not_prioritised", "later")
NEVER = Wish("Qwen/Qwen3-0.6B", "text-generation", Kind.EXCLUDED, "incompatible", "GPU only")


@pytest.mark.parametrize("wish", [None, WANTED, LATER, NEVER])
def test_an_observation_is_shown_as_it_is(wish: Wish | None) -> None:
    """No wish changes what a machine saw."""
    assert [reading(row, wish) for row in (PASS, FAIL, ERROR)] == ["PASS", "FAIL", "ERROR"]


def test_readings_without_a_row() -> None:
    """Left out by people, or absent: never one for the other."""
    assert reading(None, None) is reading(None, WANTED) is Reading.UNTESTED
    assert reading(None, LATER) is reading(None, NEVER) is Reading.EXCLUDED
    assert [excluded_as(wish) for wish in (None, WANTED, LATER, NEVER)] == [
        None,
        None,
        "not prioritised",
        "incompatible",
    ]


def test_stale_by_age() -> None:
    """Older than the limit; without one nothing is."""
    assert not stale(PASS, papers.day(30), 30)
    assert stale(PASS, papers.day(31), 30)
    assert not stale(PASS, papers.day(9_000), None)


def test_stale_by_revision() -> None:
    """The list asks for another commit; what commit a branch stands for nobody here knows."""
    same, other = PASS["revision"], "f" * 40
    for revision, moved in ((None, False), (same, False), (other, True), ("main", False)):
        wish = Wish("a/b", "text-generation", Kind.WANTED, revision=revision)
        assert stale(PASS, papers.day(1), 30, wish=wish) is moved


def test_only_a_fresh_undisputed_pass_is_evidence_of_one() -> None:
    """ERROR, absence, age and a known incompatibility never read as PASS; a FAIL stays one."""
    for wish in (None, WANTED, LATER):
        assert evidence(PASS, wish, is_stale=False) is Evidence.PASS
    for row, wish, old in (
        (PASS, None, True),
        (PASS, NEVER, False),
        (ERROR, None, False),
        (ERROR, WANTED, True),
        (None, None, False),
        (None, LATER, False),
    ):
        assert evidence(row, wish, is_stale=old) is Evidence.NONE
    for wish in (None, WANTED, LATER, NEVER):
        for old in (False, True):
            assert evidence(FAIL, wish, is_stale=old) is Evidence.FAIL


def test_every_reading_has_a_meaning() -> None:
    """Pages explain each word."""
    assert all(one.meaning for one in Reading)
