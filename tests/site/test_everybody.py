"""The pages for keyboards, screen readers, phones, dark rooms, and browsers without JavaScript."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.site.conftest import Open

PAGES = {
    "index": "index.html",
    "nothing": "index.html?q=nothing-like-it",
    "trending": "index.html?view=trending",
    "compare": "compare.html",
    "plain list": "models.html",
    "passing model": "models/Qwen--Qwen3-0.6B/index.html",
    "failing model": "models/meta-llama--Llama-3.1-8B/index.html",
    "excluded model": "models/microsoft--gpu-only/index.html",
    "404": "404.html",
}
OPEN_FOLDS = "document.querySelectorAll('details').forEach(one => { one.open = true; })"
TOO_WIDE = """[...document.querySelectorAll("main *, header *, footer *")].filter(one => {
    const scrolls = one.closest(".table, pre, svg, .visually-hidden, .skip");
    return !scrolls && one.getBoundingClientRect().right > innerWidth + 0.5;
}).map(one => one.outerHTML.slice(0, 80)).join("; ")"""
MODES: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"color_scheme": "dark", "viewport": {"width": 360, "height": 740}},
}


@pytest.mark.parametrize("mode", MODES)
def test_axe_finds_nothing_and_nothing_is_cut_off(visit: Open, mode: str) -> None:
    """Names, roles, headings, contrast and the rest, folds opened; no page scrolls sideways."""
    made = visit(**MODES[mode])
    width = made.page.evaluate("innerWidth")
    faults = {}
    for name, path in PAGES.items():
        page = made.goto(path)
        page.evaluate(OPEN_FOLDS)
        if path.startswith("index.html"):
            expect(page.locator("figure")).to_have_count(4)
        found = Axe().run(page)
        if found.violations_count:
            faults[name] = found.generate_report()
        if page.evaluate("document.documentElement.scrollWidth") > width:
            faults[f"{name} is too wide"] = page.evaluate(TOO_WIDE)
    assert faults == {}


def test_cards_of_a_phone_keep_every_value_and_its_name(visit: Open) -> None:
    """Columns become lines with the name of their column."""
    page = visit(**MODES["phone"]).goto("index.html?q=llama")
    card = page.locator("#table tbody tr")
    labels = card.locator("td:visible").evaluate_all(
        "all => all.map(one => getComputedStyle(one, '::before').content.split('\"')[1])"
    )
    assert labels == ["Architecture", "Result", "Cores", "Time", "Tested", "Stack", "Other stacks"]
    expect(page.get_by_label("Compiler")).to_be_hidden()
    page.locator("summary", has_text="Filters").click()
    page.get_by_label("Sort by").select_option("-time")
    page.wait_for_url("**sort=-time*")


def _focused(page: Page) -> str:
    return str(
        page.evaluate("(document.activeElement.textContent || document.activeElement.name).trim()")
    )


def test_the_page_is_walked_by_keyboard_alone(visit: Open) -> None:
    """Skip link first; then tabs, search, filters, results, the order of columns, a model."""
    index = visit().goto("index.html?q=qwen")
    index.keyboard.press("Tab")
    assert _focused(index) == "Skip to the content"
    index.keyboard.press("Enter")
    seen = []
    for _ in range(34):
        index.keyboard.press("Tab")
        seen.append(_focused(index))
        outline = index.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", f"nobody sees the focus on {seen[-1]}"
        if seen[-1].startswith("Qwen/Qwen3-0.6B"):
            break
    for expected in ("text-generation", "Trending", "q", "Result", "Qwen/Qwen3-0.6B"):
        assert expected in seen, f"{expected} is not reached: {seen}"
    index.keyboard.press("Enter")
    expect(index.get_by_role("heading", level=1)).to_have_text("Qwen/Qwen3-0.6B")


def test_a_column_is_sorted_and_a_result_chosen_by_keyboard(index: Page) -> None:
    """Enter and Space do what a click does, and the focus stays where it was."""
    index.get_by_role("button", name="Cores", exact=True).focus()
    index.keyboard.press("Enter")
    index.keyboard.press("Space")
    expect(index.get_by_role("columnheader", name="Cores")).to_have_attribute(
        "aria-sort", "descending"
    )
    expect(index.get_by_role("button", name="Cores", exact=True)).to_be_focused()


def test_screen_readers_hear_how_many_match(index: Page) -> None:
    """The count is a live region, and the table has a caption."""
    assert index.locator("#count").get_attribute("role") == "status"
    expect(index.get_by_role("table", name="Selected models for text-generation")).to_have_count(1)


def test_motion_is_left_out_where_it_is_not_wanted(visit: Open) -> None:
    """With reduced motion nothing moves for longer than a blink."""
    page = visit(reduced_motion="reduce").goto()
    moving = page.evaluate(
        """() => [...document.querySelectorAll("*")].filter(one => {
            const style = getComputedStyle(one);
            return parseFloat(style.animationDuration) > 0.01
                || parseFloat(style.transitionDuration) > 0.01;
        }).length"""
    )
    assert moving == 0


@pytest.mark.parametrize("path", ["index.html", "compare.html"])
def test_without_javascript_the_page_leads_to_what_works(visit: Open, path: str) -> None:
    """Never a blank page: the plain list and the Parquet files are named."""
    made = visit(java_script_enabled=False)
    made.page.goto(made.base + path)
    note = made.page.locator("noscript")
    expect(note.get_by_role("link", name="plain list")).to_be_visible()
    made.page.goto(made.base + "models.html")
    expect(made.page.get_by_role("link", name="Qwen/Qwen3-0.6B")).to_have_count(1)
