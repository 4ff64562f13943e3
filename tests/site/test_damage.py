"""Where data is damaged, cut off or not there, the page says so and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.site.conftest import Open
from tests.site.server import Served, StaticServer

INDEX = "data/index.json"


@pytest.fixture
def server(served: Served) -> Iterator[StaticServer]:
    """The server, whose damage is mended afterwards."""
    yield served.server
    served.server.damage.clear()


def _damaged(built: Path, **changes: object) -> bytes:
    return json.dumps(json.loads((built / INDEX).read_text()) | changes).encode()


@pytest.mark.parametrize("path", ["index.html", "compare.html"])
@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (404, b"", "the server answered 404"),
        (503, b"", "the server answered 503"),
        (200, b'{"version":1,"stacks":[', "cut off or no JSON"),
        (200, b"<html>sign in</html>", "cut off or no JSON"),
        (200, b'{"version":7}', "is of version 7, this page reads version 1"),
        (200, b'{"version":1}', "is damaged"),
        (200, b"null", "is of version unknown"),
    ],
)
def test_bad_data_is_told_with_what_to_do(
    visit: Open, server: StaticServer, path: str, status: int, body: bytes, told: str
) -> None:
    """No empty table: what is wrong, what to do, and where the results are meanwhile."""
    server.damage[INDEX] = (status, body)
    made = visit()
    page = made.goto(path)
    alert = page.get_by_role("alert").first
    expect(alert).to_contain_text(told)
    expect(alert.get_by_role("link", name="plain list")).to_be_visible()
    expect(page.locator("table")).to_have_count(0)
    made.faults[:] = [fault for fault in made.faults if "Failed to load resource" not in fault]


def test_rows_that_contradict_their_tables_are_damage(
    visit: Open, server: StaticServer, built: Path
) -> None:
    """A number that stands for nothing is no "-": the file is refused as a whole."""
    server.damage[INDEX] = (200, _damaged(built, stacks=[]))
    page = visit().goto()
    expect(page.get_by_role("alert").first).to_contain_text("no stack 0")


def test_a_site_without_results_says_that_nothing_is_known(
    visit: Open, server: StaticServer, built: Path
) -> None:
    """Every model is UNTESTED, and there is nothing to compare."""
    rows = {
        name: type(column)()
        for name, column in json.loads((built / INDEX).read_text())["rows"].items()
    }
    server.damage[INDEX] = (200, _damaged(built, rows=rows, stacks=[], runs=[]))
    page = visit().goto("index.html?q=llama")
    expect(page.locator("#scope")).to_contain_text("no result yet")
    expect(page.locator("#table td.c-result")).to_have_text("UNTESTED")
    page = visit().goto("compare.html")
    expect(page.get_by_role("alert").first).to_contain_text("nothing to compare")


def test_links_that_no_reader_should_follow_are_left_out(
    visit: Open, server: StaticServer, built: Path
) -> None:
    """Only web addresses become links to runs."""
    server.damage[INDEX] = (200, _damaged(built, runs=["javascript:alert(1)"]))
    page = visit().goto("index.html?q=llama")
    expect(page.locator("#table .c-tested a")).to_have_count(0)


def test_charts_say_when_their_figures_are_not_there(visit: Open, server: StaticServer) -> None:
    """The charts that need no more than the table's data are drawn all the same."""
    server.damage["data/figures.json"] = (500, b"")
    made = visit()
    page = made.goto("index.html?charts=open")
    expect(page.locator("figure svg")).to_have_count(2)
    expect(page.locator("#charts .problem")).to_contain_text("the server answered 500")
    made.faults[:] = [fault for fault in made.faults if "Failed to load resource" not in fault]


def test_a_script_that_is_not_there_is_told(visit: Open, server: StaticServer) -> None:
    """The fold says so, and the download link stays."""
    run = "Qwen--Qwen3-0.6B@transformers-5.24.0@neuronxcc-2.28.7631.0@torch-2.14.0.py"
    server.damage[f"results/scripts/{run}"] = (404, b"")
    made = visit()
    page = made.goto("models/Qwen--Qwen3-0.6B/index.html")
    script = page.locator("details.script").first
    script.get_by_text("Show run.py").click()
    expect(script.locator("code")).to_contain_text("could not be read (the server answered 404)")
    made.faults[:] = [fault for fault in made.faults if "Failed to load resource" not in fault]


def test_opened_as_a_file_the_page_says_how_to_serve_it(visit: Open, built: Path) -> None:
    """Browsers run no modules from files: what stands on the page then tells what to do."""
    made = visit()
    made.page.goto((built / "index.html").as_uri())
    expect(made.page.locator("#status")).to_contain_text("python3 -m http.server")
    made.faults.clear()  # the browser tells each file that it does not read
