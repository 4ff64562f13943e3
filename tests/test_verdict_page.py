"""docs/verdict.md says what the figures say."""

from __future__ import annotations

import re

import pytest

from benchmarks.verdict.page import PAGE, figures, renewed


def test_the_page_has_the_figures_that_were_measured() -> None:
    """Every table of the page is made from the figures in the repository, and all are shown."""
    text, found = PAGE.read_text(encoding="utf-8"), figures()
    assert renewed(text, found) == text
    assert set(re.findall(r"<!-- figures: (.+?) -->", text)) == set(found)
    assert text.count("<!-- end figures -->") == len(found)


def test_a_region_is_made_again() -> None:
    """What stood in a region goes, what stands outside stays, and a misspelt name is told."""
    region = "a\n<!-- figures: one -->\n{}\n<!-- end figures -->\nb\n"
    assert renewed(region.format("old"), {"one": "new"}) == region.format("new")
    with pytest.raises(KeyError):
        renewed(region.format("old"), {"two": "new"})
