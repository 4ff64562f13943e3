"""Two stacks compared: what fails newly comes first, and every choice is in the address."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from pipeline.record import StackVersions
from tests.site.campaign import CPU, NEW, OLD
from tests.site.conftest import Open


def key(stack: StackVersions) -> str:
    """A stack as addresses name it."""
    return str(stack.run_id("a/b")).partition("@")[2]


@pytest.fixture
def compared(visit: Open) -> Page:
    """The page, with the stacks that it chooses by itself."""
    return visit().goto("compare.html")


def models(page: Page, section: str) -> list[str]:
    heading = page.get_by_role("heading", name=re.compile(rf"^{section} \("))
    return page.locator("section", has=heading).locator("tbody th").all_inner_texts()


def test_the_newest_two_stacks_are_compared_first(compared: Page) -> None:
    """Without a choice: what the newest stack of Trainium changed."""
    assert compared.get_by_label("From stack").input_value() == key(OLD)
    assert compared.get_by_label("To stack").input_value() == key(NEW)


def test_sections_hold_common_models_newly_failing_first(compared: Page) -> None:
    """Newly failing, fixed, changed figures, and what an ERROR leaves undecided."""
    headings = compared.locator("#sections h2").all_inner_texts()
    assert headings == ["Newly failing (1)", "Fixed (1)", "Changed figures (1)", "Undecided (1)"]
    assert models(compared, "Newly failing") == ["meta-llama/Llama-3.1-8B"]
    assert models(compared, "Fixed") == ["Qwen/Qwen3-32B"]
    assert models(compared, "Changed figures") == ["Qwen/Qwen3-0.6B"]
    assert models(compared, "Undecided") == ["mistralai/Mistral-7B-v0.3"]
    expect(compared.locator("#count")).to_contain_text(
        "4 models ran on both (4 models on one only)"
    )
    expect(compared.locator("#sections")).to_contain_text("time 12 min to 6 min (-55 %)")


def test_the_other_way_round_what_was_fixed_fails(compared: Page) -> None:
    """Swapping turns the direction, in the address as well; back takes it back."""
    compared.get_by_role("button", name="Swap").click()
    assert models(compared, "Newly failing") == ["Qwen/Qwen3-32B"]
    asked = parse_qs(urlsplit(compared.url).query)
    assert asked == {"from": [key(NEW)], "to": [key(OLD)]}
    compared.go_back()
    assert models(compared, "Newly failing") == ["meta-llama/Llama-3.1-8B"]


def test_the_reader_says_which_change_of_time_counts(compared: Page) -> None:
    """No threshold is hidden: it is a field of the page."""
    compared.get_by_label("Time changes from").fill("60")
    compared.get_by_label("Time changes from").press("Enter")
    expect(compared.locator("#count")).to_contain_text("0 with changed figures, 1 unchanged")
    assert "least=60" in compared.url


def test_a_shared_comparison_is_restored_and_a_cpu_is_named(visit: Open) -> None:
    """Also one without common models, which says so instead of an empty table."""
    page = visit().goto(f"compare.html?from={key(CPU)}&to={key(NEW)}")
    assert page.get_by_label("From stack").input_value() == key(CPU)
    expect(page.locator("#sections")).to_contain_text("No common rows to show.")
    expect(page.locator("#scope")).to_contain_text("says nothing of Trainium")


def test_an_unknown_stack_is_told(visit: Open) -> None:
    """An old link still shows a comparison, and says that it is another one."""
    page = visit().goto("compare.html?from=gone&to=" + key(NEW))
    expect(page.get_by_role("alert")).to_contain_text('from "gone"')
    assert models(page, "Newly failing") == ["meta-llama/Llama-3.1-8B"]
