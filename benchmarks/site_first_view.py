"""How soon a reader of the site can work, and what that costs over the wire.

    python -m benchmarks.site_first_view

A synthetic campaign (10 000 models, each with a current row on 5 stacks, the newest fifth with an
older row, too; every id begins with `synthetic-`, nothing of it is a result of anything) is written
to a temporary folder as Parquet, `qualify site` builds its site, a server on this machine serves it
gzip'ed, and headless Chromium opens it, each time with an empty cache.

First usable view: from the start of the navigation until the table has rows *and* a name typed into
the search field has changed them, by the page's own clock. Over the wire: bytes that the server
sent for it, headers included. Beside both, in the same browser, an empty page: what browser and
server take for anything at all. Goals: 1.0 s and 400 kB at the full size.

The ids are syllables and digits drawn with a fixed seed, which compress no better than real names;
times, days and runs of rows are drawn, too (1 680 workflow runs of 30 rows each). Real rows repeat
more. Scripts are short ones: no view
reads them, and the build only copies them.

Needs the extra `dev` and a Chromium (--chromium).
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from playwright.sync_api import Browser, Page, sync_playwright

from pipeline import rankings, wishes
from pipeline import results as store
from pipeline import site as sites
from pipeline.rankings import Ranked, Ranking, Snapshot
from pipeline.record import write_atomically
from pipeline.rows import SCHEMA, SCHEMA_VERSION, Row
from pipeline.wishes import Kind, Wish
from pipeline.words import Failure, RunId, Target, Task

GOAL_S, GOAL_BYTES = 1.0, 400_000
SEED = 5
START = datetime(2026, 11, 1, tzinfo=UTC)
COMPILERS = ("2.28.7631.0", "2.27.5334.0", "2.26.4120.0", "2.25.3371.0", "2.24.8799.0")
TYPES = 90
"""Model types among the rows; Transformers has 282 causal or multimodal ones."""
RUNS_A_DAY = 12
EXCLUDED, WANTED = 0.05, 0.95
"""Of each chance from 0 to 1, below the first a model is excluded, below the second wanted."""
PASSES, FAILS = 0.7, 0.25
"""Shares of results, the rest is ERROR. Assumptions: they hardly matter to size or time."""

_SYLLABLES = [a + b for a in "bcdfghklmnprstvz" for b in ("a", "e", "i", "o", "u", "en", "ar")]
_CHROMIUM = "/usr/bin/chromium"
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_TYPES_OF_FILES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}

_WATCH = """
(wanted) => new Promise((done, fail) => {
  const told = {};
  setTimeout(() => fail(new Error(`no view after 60 s: ${JSON.stringify(told)}`)), 60000);
  const shown = () => [...document.querySelectorAll("#table tbody tr")];
  const look = () => {
    const rows = shown(), field = document.querySelector("input[type=search]");
    if (told.rows === undefined && rows.length && field && field.checkVisibility()) {
      told.rows = performance.now();
      field.value = wanted;
      field.dispatchEvent(new Event("input", { bubbles: true }));
    } else if (told.rows !== undefined && rows.length) {
      if (rows.every((row) => row.textContent.toLowerCase().includes(wanted.toLowerCase()))) {
        told.answer = performance.now();
        done(told);
        return;
      }
    }
    requestAnimationFrame(look);
  };
  look();
})
"""
"""Runs in the page: when its table has rows, and when what is typed has changed them; ms."""

_EMPTY = """
() => new Promise((done) => requestAnimationFrame(() => done({ answer: performance.now() })))
"""


# --- a synthetic campaign -------------------------------------------------------------------------


def campaign(results: Path, models: int, stacks: int) -> None:
    """Fill `results`: rows, rankings, and a list that wants most models and excludes some."""
    draw = random.Random(SEED)  # noqa: S311 -- no secret
    names = _names(draw, models)
    rows = [
        _row(draw, name, place, COMPILERS[stack], stack)
        for place, name in enumerate(names)
        for stack in range(stacks)
    ]
    older = [
        row | {"tested_at": row["tested_at"] - timedelta(days=20), "run_py": None}
        for row in rows
        if row["neuronx_cc"] == COMPILERS[0]
    ]
    for part in (older, rows):
        store.write(store.prepare(results, pa.Table.from_pylist(part, SCHEMA).to_pylist()).files)
    for ranking in Ranking:
        ranked = draw.sample(names, min(rankings.TOP, len(names)))
        snapshot = Snapshot(
            task=Task.TEXT_GENERATION,
            ranking=ranking,
            taken_at=START,
            rows=tuple(_ranked(rank, name) for rank, name in enumerate(ranked, 1)),
        )
        rankings.store(results, [snapshot])
    write_atomically(results / wishes.FILE, wishes.dump(_wishes(draw, rows[::stacks]), 30))


def _wishes(draw: random.Random, rows: list[Row]) -> dict[str, Wish]:
    found = {}
    for row in rows:
        name, task, chance = row["model_id"], row["task"], draw.random()
        if chance < EXCLUDED:
            note = f"Synthetic: {' '.join(draw.choices(_SYLLABLES, k=20))}."
            found[name] = Wish(name, task, Kind.EXCLUDED, "not_prioritised", note)
        elif chance < WANTED:
            found[name] = Wish(name, task, Kind.WANTED)
    return found


def _names(draw: random.Random, count: int) -> list[str]:
    def word(length: int) -> str:
        return "".join(draw.choice(_SYLLABLES) for _ in range(length))

    owners = [f"synthetic-{word(3)}" for _ in range(max(1, count // 20))]
    names: dict[str, None] = {}
    while len(names) < count:
        size = draw.choice(("0.5B", "1B", "3B", "7B", "8B", "14B", "32B", "70B"))
        names[f"{draw.choice(owners)}/{word(2).title()}-{word(2)}-{size}-{word(1)}"] = None
    return list(names)


def _row(draw: random.Random, name: str, place: int, compiler: str, stack: int) -> Row:
    """A row with every column that the site shows; the values mean nothing."""
    run = RunId(name, "transformers", f"5.{24 - stack}.0", "neuronxcc", compiler, "2.14.0")
    chance = draw.random()
    result = "PASS" if chance < PASSES else "FAIL" if chance < PASSES + FAILS else "ERROR"
    failure = None if result == "PASS" else _failure(draw, result)
    cores = draw.choice((1, 1, 2, 4, 8))
    day = draw.randrange(28) - 30 * stack
    wall = round(draw.lognormvariate(6, 0.8))
    row: Row = dict.fromkeys(SCHEMA.names)
    return row | {
        "schema_version": SCHEMA_VERSION,
        "model_id": name,
        "run_id": str(run),
        "library": run.library,
        "library_version": run.library_version,
        "neuron_cores": cores,
        "tp": cores,
        "runner": "trn2-48xlarge",
        "target": str(Target.NEURON),
        "result": result,
        "failure": failure,
        "error": None if failure is None else f"synthetic: {failure} of {name}",
        "signature": failure,
        "stage": "done" if result == "PASS" else "compile",
        "wall_s": wall,
        "compile_s": wall * 0.8,
        "generate_s": draw.uniform(0.3, 3),
        "tokens_per_s": draw.uniform(10, 100),
        "load_s": draw.uniform(2, 40),
        "download_s": draw.uniform(2, 40),
        "hbm_peak_gb": draw.uniform(1, 22),
        "hbm_capacity_gb": 24.0,
        "host_peak_gb": draw.uniform(2, 60),
        "estimated_gb": 20.0,
        "cpu_match": "near_tie",
        "english": "not_run",
        "max_gap": draw.uniform(0, 0.25),
        "neuronx_cc": compiler,
        "transformers": run.library_version,
        "torch": run.torch,
        "torch_neuronx": "2.14.3.0",
        "python": "3.14.2",
        "tested_at": START + timedelta(days=day, seconds=draw.randrange(86_400)),
        "run_py": f'print("synthetic run.py of {name}")\n',
        "task": str(Task.TEXT_GENERATION if place % 5 else Task.IMAGE_TEXT_TO_TEXT),
        "model_type": f"type{draw.randrange(TYPES)}",
        "parameters": draw.randrange(10**8, 7 * 10**10),
        "checkpoint_bytes": draw.randrange(10**8, 10**11),
        "parallelism": "tensor" if cores > 1 else "none",
        "dtype": "bfloat16",
        "prompts": ["The history of the old lighthouse", "My grandmother", "The small town"],
        "generated_text": [f" synthetic text {draw.random()}" for _ in range(3)],
        "graphs": 2,
        "backend_graphs": 2,
        "cpu_fallback_ops": [],
        "findings": [],
        "tries": [],
        "attempts": 1,
        "cache": "cold",
        "cache_keys": ["ab/cd/0123456789abcdef0123456789abcdef.neff"],
        "cache_store": "hf://buckets/synthetic/graphs",
        "run_url": "https://github.com/synthetic/campaign/actions/runs/"
        f"{10**10 + (day + 200) * 997 * RUNS_A_DAY + draw.randrange(RUNS_A_DAY)}",
        "image": "example.invalid/torch-neuronx:synthetic",
    }


def _failure(draw: random.Random, result: str) -> str:
    return str(draw.choice([failure for failure in Failure if failure.result == result]))


def _ranked(rank: int, name: str) -> Ranked:
    return Ranked(
        rank=rank,
        id=name,
        downloads=1_000,
        likes=10,
        trending_score=None,
        library_name="transformers",
        gated=False,
        parameters=None,
    )


# --- a server that counts -------------------------------------------------------------------------


@dataclass
class Wire:
    """What a server sent. paths: (path, bytes) in the order of the requests."""

    address: str = ""
    paths: list[tuple[str, int]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.paths)


@contextmanager
def served(folder: Path) -> Iterator[Wire]:
    """`folder` on this machine, gzip'ed as GitHub Pages does it, nothing kept by the browser."""
    wire = Wire()
    packed: dict[Path, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """Files as they are in the folder."""
            path = folder / unquote(urlsplit(self.path).path).lstrip("/")
            path = path / "index.html" if path.is_dir() else path
            found = path.is_file()
            body = packed.get(path) if found else b""
            if body is None:
                body = packed[path] = gzip.compress(path.read_bytes(), 6, mtime=0)
            head = [
                f"HTTP/1.1 {'200 OK' if found else '404 Not Found'}",
                f"Content-Type: {_TYPES_OF_FILES.get(path.suffix, 'application/octet-stream')}",
                "Content-Encoding: gzip" if found else "X-Missing: yes",
                f"Content-Length: {len(body)}",
                "Cache-Control: no-store",
            ]
            answer = "\r\n".join([*head, "", ""]).encode() + body
            wire.paths.append((self.path, len(answer)))
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        wire.address = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield wire
        finally:
            server.shutdown()
            thread.join()


# --- the browser ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """One opening. rows, usable: seconds from the start of the navigation."""

    rows: float
    usable: float
    bytes: int


def opened(browser: Browser, wire: Wire, page_name: str, wanted: str | None) -> View:
    """Open a page with nothing kept; `wanted` is typed into its search field."""
    before = wire.bytes
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    try:
        page: Page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{wire.address}/{page_name}", wait_until="commit")
        told = page.evaluate(_WATCH, wanted) if wanted else page.evaluate(_EMPTY)
        page.wait_for_load_state("networkidle")
    finally:
        context.close()
    return View(told.get("rows", told["answer"]) / 1000, told["answer"] / 1000, wire.bytes - before)


def median(values: list[float]) -> float:
    return statistics.median(values)


def main() -> int:
    """Print the figures; 1 when a goal is missed at the full size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--stacks", type=int, default=5, choices=range(1, len(COMPILERS) + 1))
    parser.add_argument("--times", type=int, default=7, help="Openings of each page.")
    parser.add_argument("--chromium", default=shutil.which("chromium") or _CHROMIUM)
    parser.add_argument("--keep", type=Path, help="Build here, and keep it; used again if there.")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.keep or Path(scratch)
        results, site = folder / "results", folder / "site"
        if not (results / "current").is_dir():
            print(f"writing {asked.models:,} synthetic models x {asked.stacks} stacks", flush=True)
            campaign(results, asked.models, asked.stacks)
        begun, worked = time.perf_counter(), time.process_time()
        built = sites.build_from(results, None, site)
        took, work = time.perf_counter() - begun, time.process_time() - worked
        print(f"site of {built.models:,} models and {built.rows:,} results built", end=" ")
        print(f"in {took:.0f} s, of them {work:.0f} s of one processor", flush=True)
        texts = [
            wish.id
            for wish in wishes.read(results).values()
            if not wish.excluded and wish.task == Task.TEXT_GENERATION
        ]
        empty = folder / "empty"
        empty.mkdir(exist_ok=True)
        (empty / "index.html").write_text("<!doctype html><title>Empty</title>")
        return _measure(site, empty, texts[len(texts) // 2], asked.chromium, asked.times)


def _measure(site: Path, empty: Path, wanted: str, chromium: str, times: int) -> int:
    with sync_playwright() as tools, served(site) as wire, served(empty) as nothing:
        browser = tools.chromium.launch(executable_path=chromium, args=list(_FLAGS))
        opened(browser, nothing, "index.html", None)  # the browser's own first steps
        baseline = [opened(browser, nothing, "index.html", None) for _ in range(times)]
        views = [opened(browser, wire, "index.html", wanted) for _ in range(times)]
        print(f"Chromium {browser.version}, {os.cpu_count()} processors, {times} openings")
        browser.close()
    usable = median([view.usable for view in views])
    size = max(view.bytes for view in views)
    print(f"{'':24} {'median':>8} {'worst':>8}")
    for name, values in (
        ("empty page", [view.usable for view in baseline]),
        ("table has rows", [view.rows for view in views]),
        ("search has answered", [view.usable for view in views]),
    ):
        print(f"{name:24} {median(values):6.3f} s {max(values):6.3f} s")
    print(f"over the wire            {size:,} bytes; empty page {baseline[0].bytes:,}")
    for path, sent in sorted(set(wire.paths), key=lambda one: -one[1]):
        print(f"  {sent:9,}  {path}")
    for name, met, goal in (
        ("first usable view", usable <= GOAL_S, f"{GOAL_S} s"),
        ("bytes over the wire", size <= GOAL_BYTES, f"{GOAL_BYTES:,}"),
    ):
        print(f"goal {name} <= {goal}: {'met' if met else 'MISSED'}")
    return 0 if usable <= GOAL_S and size <= GOAL_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
