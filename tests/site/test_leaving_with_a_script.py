"""From a model's name to a working run.py: links, copying, downloads, and pages that are not."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.papers import SCRIPT
from tests.site.conftest import Open, Visit

QWEN = "models/Qwen--Qwen3-0.6B/index.html"


def _clipboard(page: Page) -> str:
    text = page.evaluate("navigator.clipboard.readText()")
    assert isinstance(text, str)
    return text


def _allowed(visit: Open) -> Visit:
    return visit(permissions=["clipboard-read", "clipboard-write"])


def test_a_newcomer_leaves_with_the_script(visit: Open) -> None:
    """Search, open the model, show run.py, copy it: all below a sub-folder of the server."""
    page = _allowed(visit).goto()
    page.get_by_role("searchbox").fill("0.6b")
    page.get_by_role("link", name="Qwen/Qwen3-0.6B", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Qwen/Qwen3-0.6B")
    script = page.locator("details.script").first
    script.get_by_text("Show run.py").click()
    expect(script.locator("code")).to_have_text(SCRIPT)
    script.get_by_role("button", name="Copy run.py").click()
    expect(script.get_by_role("button")).to_have_text("Copied")
    assert _clipboard(page).strip() == SCRIPT.strip()


def test_scripts_are_read_only_when_opened_and_once(visit: Open) -> None:
    """Data is fetched for what is looked at."""
    made = visit()
    asked: list[str] = []
    made.page.on("request", lambda request: asked.append(request.url))
    page = made.goto(QWEN)
    page.wait_for_load_state("networkidle")
    assert not [url for url in asked if "/scripts/" in url]
    script = page.locator("details.script").first
    for _ in range(3):
        script.get_by_text("Show run.py").click()
        expect(script.locator("code", has_text="print")).to_have_count(1)
    assert len([url for url in asked if "/scripts/" in url]) == 1


def test_the_pip_line_is_copied_as_it_stands(visit: Open) -> None:
    """What one pastes into a shell is what the page shows."""
    page = _allowed(visit).goto(QWEN)
    holder = page.locator(".copyable", has_text="pip install").first
    holder.get_by_role("button").click()
    expect(page.get_by_role("status").last).to_contain_text("Copied")
    assert _clipboard(page) == holder.locator("code").inner_text().strip()


def test_without_the_clipboard_the_text_is_marked(visit: Open) -> None:
    """A browser that forbids copying still lets the reader press Ctrl+C."""
    page = visit().goto(QWEN)
    page.evaluate("delete Navigator.prototype.clipboard")
    holder = page.locator(".copyable", has_text="pip install").first
    holder.get_by_role("button").click()
    expect(holder.get_by_role("button")).to_have_text("Marked: press Ctrl+C")
    selected = page.evaluate("getSelection().toString()")
    assert selected.strip() == holder.locator("code").inner_text().strip()


def test_the_script_is_downloaded_without_javascript(visit: Open) -> None:
    """The plain link does it."""
    made = visit(java_script_enabled=False)
    page = made.page
    page.goto(made.base + QWEN)
    with page.expect_download() as downloading:
        page.get_by_role("link", name="run.py of this row (download)").first.click()
    assert downloading.value.path().read_text() == SCRIPT


def test_every_link_of_every_page_leads_somewhere(visit: Open) -> None:
    """Pages of the site link to files that are there, from wherever they are."""
    made = visit()
    pages = ["index.html?q=qwen", "compare.html", "models.html", QWEN]
    links = set()
    for path in pages:
        page = made.goto(path)
        links |= set(
            page.eval_on_selector_all("a[href], link[href]", "all => all.map(one => one.href)")
        )
    ours = {
        link.partition("#")[0].partition("?")[0] for link in links if link.startswith(made.base)
    }
    assert len(ours) > 10
    for link in sorted(ours):
        assert made.page.request.get(link).status == 200, link


def test_a_page_that_is_not_there_leads_back(visit: Open) -> None:
    """404 below a model's folder names the model and leads to the search for it."""
    made = visit()
    made.page.goto(made.base + "models/nobody--nothing/index.html")
    made.faults.clear()  # the browser tells a 404 as an error of the console
    expect(made.page.locator("main")).to_contain_text("nobody/nothing")
    made.page.get_by_role("link", name="Search the models").click()
    made.page.wait_for_url("**/some/folder/index.html?q=nobody*")
    expect(made.page.locator("#table")).to_contain_text("No model of this list matches.")
