"""docs/verdict.md and docs/verdict-kinds.md say what the figures say."""

from __future__ import annotations

import re

import pytest

from benchmarks.verdict.page import PAGES, figures, renewed


def test_the_page_has_the_figures_that_were_measured() -> None:
    """Every table is made from the figures in the repository, and each is shown once."""
    found, shown = figures(), list[str]()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert renewed(text, found) == text
        names = re.findall(r"<!-- figures: (.+?) -->", text)
        assert text.count("<!-- end figures -->") == len(names)
        shown += names
    assert sorted(shown) == sorted(found)


def test_a_region_is_made_again() -> None:
    """What stood in a region goes, what stands outside stays, and a misspelt name is told."""
    region = "a\n<!-- figures: one -->\n{}\n<!-- end figures -->\nb\n"
    assert renewed(region.format("old"), {"one": "new"}) == region.format("new")
    with pytest.raises(KeyError):
        renewed(region.format("old"), {"two": "new"})
