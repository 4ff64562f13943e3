"""A browser, a small site with every kind of result, and a server that serves it from a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    sync_playwright,
)

from pipeline import site
from tests import papers
from tests.site.campaign import OUTSIDE, publish_campaign
from tests.site.server import Served, StaticServer

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
READ_AT = papers.day(3)
"""The reader's clock: three days after the newest results."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. It is never skipped: without it nobody has seen the pages."""
    if not CHROMIUM.is_file():
        pytest.fail(f"{CHROMIUM} is missing: sudo apt-get install chromium", pytrace=False)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield running
        running.close()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site of `campaign`."""
    folder = tmp_path_factory.mktemp("site")
    publish_campaign(folder / "published")
    site.build_from(folder / "published" / "results", None, folder / "built", OUTSIDE)
    return folder / "built"


@pytest.fixture(scope="session")
def served(built: Path) -> Iterator[Served]:
    """The site below a sub-folder of its server, as GitHub Pages serves a project."""
    with StaticServer(built, "/some/folder") as server:
        yield Served(server)


@dataclass
class Visit:
    """A page in a browser of its own, and what it did that no page of the site may do."""

    page: Page
    base: str
    faults: list[str] = field(default_factory=list)

    def goto(self, path: str = "index.html") -> Page:
        """The page of the site at `path`, when its scripts have shown what they show."""
        self.page.goto(self.base + path)
        ready = "() => !document.querySelector('#status:not([hidden]):not(.problem)')"
        self.page.wait_for_function(ready)
        return self.page

    def watch(self) -> None:
        """Note errors on the console, errors of scripts, and requests to other hosts."""
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", self._asked)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(message.text)

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((self.base, "data:", "blob:")):
            self.faults.append(f"request to {request.url}")


Open = Callable[..., Visit]


@pytest.fixture
def visit(browser: Browser, served: Served) -> Iterator[Open]:
    """Opens a `Visit`; options are those of a browser context. Afterwards none may have a fault."""
    contexts: list[BrowserContext] = []
    visits: list[Visit] = []

    def open_(**options: Any) -> Visit:
        context = browser.new_context(**({"reduced_motion": "reduce"} | options))
        context.set_default_timeout(10_000)
        context.clock.set_fixed_time(READ_AT)
        contexts.append(context)
        made = Visit(context.new_page(), served.url)
        made.watch()
        visits.append(made)
        return made

    yield open_
    for context in contexts:
        context.close()
    assert [fault for one in visits for fault in one.faults] == []


@pytest.fixture
def index(visit: Open) -> Page:
    """The page of models."""
    return visit().goto()
