"""The site as a folder: what a web server would serve, and what each file of it says."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from datetime import timedelta
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import copies, outside, rankings, site
from pipeline import results as store
from pipeline.catalog import Catalog, load
from pipeline.errors import ResultsError, UsageError
from pipeline.rankings import Ranked, Ranking, Snapshot
from pipeline.record import Record
from pipeline.site import files
from pipeline.words import Failure, Target, Task
from tests import papers
from tests.conftest import ROOT

NEW = papers.stack(neuronx_cc="2.28.7631.0")
OLD = papers.stack(neuronx_cc="2.27.1.0", library_version="5.20.0")
KEY = "transformers-5.24.0@neuronxcc-2.28.7631.0@torch-2.14.0"
EVIL = "<script>alert(1)</script> {% raw %} | <b>bold</b>"


def published(folder: Path, records: Iterable[Record]) -> Path:
    """results/ in `folder` with these records, each a publication of its own."""
    for record in records:
        update = store.prepare(folder / "results", [store.row_of(record)])
        store.write(update.files)
    return folder / "results"


def listed(folder: Path) -> Catalog:
    """A list that wants Qwen/Qwen3-0.6B and new/model, and excludes two others."""
    text = (ROOT / "models.yaml").read_text(encoding="utf-8")
    head = text[: text.index("\nmodels:")]
    (folder / "models.yaml").write_text(
        f"""{head}
models:
  - {{id: Qwen/Qwen3-0.6B, task: text-generation, note: "{EVIL}"}}
  - {{id: new/model, task: image-text-to-text}}
excluded:
  - id: gone/model
    task: text-generation
    reason: incompatible
    note: its kernels exist for GPUs only
    issue: https://github.com/example/campaign/issues/7
  - {{id: later/model, task: text-generation, reason: not_prioritised, note: after the others}}
""",
        encoding="utf-8",
    )
    return load(folder / "models.yaml")


def everything(folder: Path) -> Path:
    """Rows of every kind: two stacks, three publications of one run, a FAIL, an ERROR, a cpu row,
    one of an excluded model, and a ranking that names a model nobody knows."""
    qwen = papers.run(stack=NEW)
    results = published(
        folder,
        [
            papers.failing(qwen, papers.day(0), error=EVIL),
            papers.passing(
                qwen,
                papers.day(2),
                image="example.com/torch:1",
                cache_store="hf://buckets/example/graphs",
            ),
            papers.erring(qwen, papers.day(3)),
            papers.passing(papers.run(stack=OLD), papers.day(-40)),
            papers.failing(papers.run("other/model", stack=NEW), papers.day(1), error=EVIL),
            papers.passing(papers.run("third/model", stack=NEW), papers.day(1)),
            papers.passing(papers.run("gone/model", stack=NEW), papers.day(1)),
            papers.passing(papers.run("cpu/model", stack=papers.stack(Target.CPU)), papers.day(1)),
        ],
    )
    row = Ranked(
        rank=3,
        id="ranked/model",
        downloads=1200,
        likes=None,
        trending_score=None,
        library_name=None,
        gated=None,
        parameters=None,
    )
    snapshot = Snapshot(
        task=Task.TEXT_GENERATION,
        ranking=Ranking.TRENDING,
        taken_at=papers.day(1),
        rows=(row, row.model_copy(update={"rank": 4, "id": "qwen/qwen3-0.6b"})),
    )
    rankings.store(results, [snapshot])
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of `everything`, to be read only."""
    return everything(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def built(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of `everything`, to be read only."""
    folder = tmp_path_factory.mktemp("built")
    site.build_from(results, listed(folder), folder / "site")
    return folder / "site"


def page(built: Path, model_id: str) -> str:
    return (built / "models" / model_id.replace("/", "--") / "index.html").read_text()


def text_of(html: str) -> str:
    """What a reader sees of a page, spaces folded."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def section(html: str, label: str) -> str:
    """The part of a page that stands under a stack's heading."""
    (found,) = re.findall(
        rf'<section class="stack".*?{re.escape(label)}[^<]*</h2>(.*?)</section>', html, re.DOTALL
    )
    return str(found)


# --- the folder -----------------------------------------------------------------------------------


def test_every_link_of_the_site_is_relative_and_leads_to_a_file(built: Path) -> None:
    """The site works below any address: pages, styles, scripts and downloads are found."""
    pages = [path for path in built.rglob("*.html") if path.name != "404.html"]
    assert len(pages) > 8
    for path in pages:
        for link in re.findall(r'(?:href|src|data-script)="([^"]*)"', path.read_text()):
            target = unescape(link)
            if re.match(r"https?://|data:,$", target):
                continue
            where, _, mark = target.partition("#")
            assert not where.startswith("/"), link
            file = (path.parent / unquote(where)).resolve() if where else path
            assert file.is_file(), (path.name, link)
            assert not mark or f'id="{mark}"' in file.read_text(), link


def test_nothing_is_asked_of_other_servers(built: Path) -> None:
    """Other addresses stand in plain links only: no style, script, picture or font comes from
    elsewhere, and the pages forbid it."""
    for path in built.rglob("*.html"):
        html = path.read_text()
        assert "default-src 'none'" in html
        for tag in re.findall(r"<(?!a\b)[a-z]+\b[^>]*https?://[^>]*>", html):
            assert re.match(r"<(input|pre|code)\b", tag), tag


def test_the_same_input_gives_the_same_bytes(results: Path, tmp_path: Path) -> None:
    """A second build, over the first and elsewhere, changes no byte of any file."""
    catalog = listed(tmp_path)

    def content(folder: Path) -> dict[str, bytes]:
        site.build_from(results, catalog, folder)
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }

    first = content(tmp_path / "one")
    assert content(tmp_path / "one") == first
    assert content(tmp_path / "far" / "two") == first
    assert {"index.html", "compare.html", "404.html", "style.css", ".nojekyll"} <= set(first)


def test_what_others_fetch_is_listed_with_its_digest(built: Path, results: Path) -> None:
    """results/ of the site is what was published, and files.json is the list of it."""
    for name in ("current", "history", "scripts", "rankings"):
        for path in (results / name).rglob("*"):
            if path.is_file():
                copy = built / "results" / path.relative_to(results)
                assert copy.read_bytes() == path.read_bytes()
    assert (built / "results" / "files.json").read_bytes() == copies.listing(built / "results")
    told = json.loads((built / "results" / "files.json").read_text())
    assert {"models.json"} <= {one["path"] for one in told["files"]}


def test_an_earlier_build_is_replaced_and_foreign_files_are_refused(
    results: Path, tmp_path: Path
) -> None:
    """A folder that a build made is made anew; one with anything else in it is left alone."""
    built = tmp_path / "site"
    site.build_from(results, None, built)
    (built / "models" / "stale.html").write_text("of an earlier build")
    site.build_from(results, None, built)
    assert not (built / "models" / "stale.html").exists()
    other = tmp_path / "home"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="no earlier build"):
        site.build_from(results, None, other)
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]


def test_a_failed_build_leaves_the_old_site(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody meets half a site: what was there stays to the last byte, and nothing lies beside."""
    built = tmp_path / "site"
    site.build_from(results, None, built)

    def broken(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    before = {path: path.read_bytes() for path in built.rglob("*") if path.is_file()}
    beside = sorted(tmp_path.iterdir())
    monkeypatch.setattr(site.index, "figures", broken)
    with pytest.raises(OSError, match="No space"):
        site.build_from(results, None, built)
    assert {path: path.read_bytes() for path in built.rglob("*") if path.is_file()} == before
    assert sorted(tmp_path.iterdir()) == beside


def test_nothing_published_is_an_error(tmp_path: Path) -> None:
    """No blank site where there are no results: it would read as "nothing runs"."""
    with pytest.raises(ResultsError, match="no results"):
        site.build(tmp_path, tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_published_folder_is_enough(results: Path, tmp_path: Path) -> None:
    """`build` takes the list that stands beside results/, as on a published branch."""
    listed(tmp_path)
    shutil.copytree(results, tmp_path / "results")
    assert site.build(tmp_path, tmp_path / "site").models == 8
    assert "EXCLUDED" in page(tmp_path / "site", "later/model")


# --- a model's page -------------------------------------------------------------------------------


def test_text_from_a_record_stays_text(built: Path) -> None:
    """What a run printed, or a list notes, is shown and never becomes a part of a page."""
    for path in [*built.rglob("*.html"), *built.rglob("*.svg")]:
        if path.name != "404.html":
            html = path.read_text()
            assert "<script>" not in html and "<b>" not in html, path
    assert EVIL in text_of(page(built, "other/model"))
    assert EVIL in text_of(page(built, "Qwen/Qwen3-0.6B"))


def test_an_address_that_is_none_of_the_web_is_no_link(tmp_path: Path) -> None:
    """A run's address comes from a device machine: only http and https become links."""
    record = papers.passing(run_url="javascript:alert(1)")
    site.build_from(published(tmp_path, [record]), None, tmp_path / "site")
    assert "javascript:" not in page(tmp_path / "site", "Qwen/Qwen3-0.6B")


def test_the_history_has_every_row_newest_first(built: Path) -> None:
    """All three publications of a run are there, the current one named: ERROR came after it."""
    part = section(page(built, "Qwen/Qwen3-0.6B"), "neuronx-cc 2.28.7631.0")
    body = part[part.index("History") :]
    rows = [text_of(row) for row in re.findall(r"<tr.*?</tr>", body)[1:]]
    assert [row[:16] for row in rows] == [
        "2026-12-03 08:00",
        "2026-12-02 08:00",
        "2026-11-30 08:00",
    ]
    assert ["ERROR" in rows[0], "PASS" in rows[1], "FAIL" in rows[2]] == [True] * 3
    assert ["(current)" in row for row in rows] == [False, True, False]
    assert "2 min" not in rows[0] and "0.5 s" in rows[1]


def test_how_to_replay_a_row_can_be_copied(built: Path) -> None:
    """Image with devices, packages beside it and all of them, graphs of exactly its compiler."""
    part = section(page(built, "Qwen/Qwen3-0.6B"), "neuronx-cc 2.28.7631.0")
    told = [unescape(text) for text in re.findall(r"<pre[^>]*><code>(.*?)</code>", part, re.DOTALL)]
    assert told[0] == (
        "docker run --rm --interactive --tty --device=/dev/neuron0 --init "
        '--volume "$PWD":/work --workdir /work example.com/torch:1 bash'
    )
    assert told[1] == "python -m pip install transformers==5.24.0"
    assert told[2].startswith(
        "python -m pip install torch==2.14.0 transformers==5.24.0 'torch-neuronx==2.14.0.1.*' "
        "'neuronx-cc==2.28.7631.0.*' --extra-index-url https://pip.repos.neuron.amazonaws.com"
    )
    assert told[3] == (
        "hf buckets sync hf://buckets/example/graphs/neuronxcc-2.28.7631.0 /tmp/neff_cache "
        "--include=ab/cd/one.neff --include=ab/ef/two.neff"
    )
    (script,) = re.findall(r'<a href="([^"]*)" download="run.py">', part)
    held = (built / "models" / "x" / unquote(script)).resolve()
    assert held.read_text() == papers.SCRIPT
    assert papers.SCRIPT.strip() not in unescape(part), "it is fetched when it is opened"


def test_the_container_gets_the_devices_and_memory_of_the_run(tmp_path: Path) -> None:
    """Four cores a device, as many neighbours as needed; half of the host's memory as /dev/shm."""
    run = papers.run(placement=papers.placement(8), runner="trn2-48xlarge")
    results = published(tmp_path, [papers.passing(run, image="example.com/torch:1")])
    site.build_from(results, load(ROOT / "models.yaml"), tmp_path / "site")
    assert "--device=/dev/neuron0 --device=/dev/neuron1 --init --shm-size=1024g" in text_of(
        page(tmp_path / "site", "Qwen/Qwen3-0.6B")
    )


def test_evidence_of_a_pass(built: Path) -> None:
    """Check, times with compilation apart, and memory against what a core has."""
    told = text_of(section(page(built, "Qwen/Qwen3-0.6B"), "neuronx-cc 2.28.7631.0"))
    for part in (
        "(cpu_match) near_tie",
        "0.125 nats",
        "Rests on tokens and logits against the CPU reference",
        "Logits off by 0.04 nats",
        "The model's own rounding noise 0.03 nats",
        "(english) not_run",
        "First call 5 min (310 s) compilation included: not a speed",
        "Steady state 0.5 s the second, identical call",
        "by the allocator's count 1.5 GiB 24 GiB 6 %",
        "answer 0",
        "The log says nothing against the run.",
    ):
        assert part in told, part


def test_a_failure_says_what_it_means_and_what_to_do(tmp_path: Path) -> None:
    """A known signature brings its meaning and remedy; an unknown one is said to be unknown."""
    from pipeline import diagnosis

    known = diagnosis.signatures()[0]
    results = published(
        tmp_path,
        [
            papers.failing(papers.run("a/a"), failure=known.failure, signature=known.id),
            papers.failing(papers.run("b/b"), failure=Failure.CRASH, signature=None),
        ],
    )
    site.build_from(results, None, tmp_path / "site")
    told = text_of(page(tmp_path / "site", "a/a"))
    assert " ".join(known.meaning.split()) in told and " ".join(known.remedy.split()) in told
    told = text_of(page(tmp_path / "site", "b/b"))
    assert Failure.CRASH.meaning in told and "no remedy is known" in told


def test_same_architecture_is_evidence_about_others(built: Path) -> None:
    """It counts other models only, says so, and stands also where the model has no row."""
    html = page(built, "Qwen/Qwen3-0.6B")
    (aside,) = re.findall(r'<aside class="evidence".*?</aside>', html, re.DOTALL)
    told = text_of(aside)
    assert "2 of 3 qwen3 models pass on this stack" in told
    assert "This is no result of Qwen/Qwen3-0.6B." in told
    assert "gone/model" in told and "other/model" in told
    told = text_of(page(built, "cpu/model"))
    assert "on which cpu/model itself is untested" in told


def test_readings_are_of_trainium(built: Path) -> None:
    """A row off the device says nothing of it; exclusions and absence have their own words."""
    for model, reading in (
        ("Qwen/Qwen3-0.6B", "PASS"),
        ("other/model", "FAIL"),
        ("cpu/model", "UNTESTED"),
        ("later/model", "EXCLUDED"),
        ("new/model", "UNTESTED"),
        ("ranked/model", "UNTESTED"),
        ("gone/model", "PASS"),
    ):
        assert f"<title>{model}: {reading} on Trainium2" in page(built, model)
        folder = built / "models" / model.replace("/", "--")
        assert f"<title>Trainium2: {reading}" in (folder / "badge.svg").read_text()
        assert json.loads((folder / "result.json").read_text())["reading"] == reading
    gone = text_of(page(built, "gone/model"))
    assert "Excluded from this campaign: incompatible. Note: its kernels exist for GPUs" in gone
    assert "Rank 3 by trending among text-generation models" in text_of(page(built, "ranked/model"))


def test_old_rows_are_stale(built: Path) -> None:
    """By the list's limit, measured against the newest row."""
    folder = built / "models" / "Qwen--Qwen3-0.6B"
    told = json.loads((folder / "result.json").read_text())
    assert [one["stale"] for one in told["stacks"]] == [False, True, None]
    html = page(built, "Qwen/Qwen3-0.6B")
    assert '<span class="stale">' in section(html, "neuronx-cc 2.27.1.0")
    assert '<span class="stale">' not in section(html, "neuronx-cc 2.28.7631.0")


# --- data -----------------------------------------------------------------------------------------


def test_the_index_is_the_rows_as_columns(built: Path) -> None:
    """The literal format that the pages' scripts read, with every kind of row and wish in it."""
    told = json.loads((built / "data" / "index.json").read_text())
    assert told.pop("generated") == "2026-12-03T08:00:00Z"
    stacks = told.pop("stacks")
    assert [one["key"] for one in stacks] == [
        KEY,
        "transformers-5.20.0@neuronxcc-2.27.1.0@torch-2.14.0",
        "transformers-5.24.0@inductor-2.14.0@torch-2.14.0",
    ]
    assert stacks[0] == {
        "key": KEY,
        "label": "neuronx-cc 2.28.7631.0, transformers 5.24.0, torch 2.14.0",
        "target": "neuron",
        "compiler": "neuronxcc",
        "compiler_version": "2.28.7631.0",
        "library": "transformers",
        "library_version": "5.24.0",
        "torch": "2.14.0",
    }
    assert told == {
        "version": 1,
        "max_age_days": 30,
        "base_day": "2020-01-01",
        "tasks": ["image-text-to-text", "text-generation"],
        "types": ["qwen3"],
        "failures": ["compiler_error"],
        "runs": ["https://github.com/example/campaign/actions/runs/1"],
        "run_days": [2485],
        "models": {
            "id": [
                "Qwen/Qwen3-0.6B",
                "cpu/model",
                "gone/model",
                "later/model",
                "new/model",
                "other/model",
                "ranked/model",
                "third/model",
            ],
            "task": [1, 1, 1, 1, 0, 1, 1, 1],
            "type": [0, 0, 0, -1, -1, 0, -1, 0],
            "wish": "w-inw---",
            "note": {
                "0": EVIL,
                "2": "its kernels exist for GPUs only",
                "3": "after the others",
            },
            "trending": [4, 0, 0, 0, 0, 0, 3, 0],
            "downloads": [0] * 8,
        },
        "rows": {
            "model": [0, 0, 1, 2, 5, 7],
            "stack": [0, 1, 2, 0, 0, 0],
            "result": "PPPPFP",
            "failure": [-1, -1, -1, -1, 0, -1],
            "cores": [1] * 6,
            "split": "nnnnnn",
            "day": [42, 0, 41, 41, 41, 41],
            "wall": [360] * 6,
            "run": [0] * 6,
        },
    }


def test_rows_of_a_revision_that_moved_are_told(results: Path, tmp_path: Path) -> None:
    """Where the list asks for another commit, the row is stale however young it is."""
    folder = tmp_path / "site"
    catalog = listed(tmp_path)
    moved = catalog.models[0].model_copy(update={"revision": "f" * 40})
    changed = catalog.model_copy(update={"models": (moved, *catalog.models[1:])})
    site.build_from(results, changed, folder)
    told = json.loads((folder / "data" / "index.json").read_text())
    assert told["rows"]["moved"] == [0, 1]
    assert "stale" in (folder / "models" / "Qwen--Qwen3-0.6B" / "badge.svg").read_text()


def test_figures_are_in_the_order_of_the_index(built: Path) -> None:
    """Models and rows as in the index; what was not measured is -1, never 0."""
    told = json.loads((built / "data" / "figures.json").read_text())
    assert told["models"]["parameters"] == [596, 596, 596, -1, -1, 596, -1, 596]
    assert told["rows"]["wall"] == [330] * 6
    assert told["rows"]["compile"] == [310, 310, 310, 310, -1, 310]
    assert told["rows"]["hbm"] == [1.5, 1.5, -1, 1.5, -1, 1.5]
    assert told["rows"]["generate"][0] == 0.5 and told["rows"]["tokens_per_s"][0] == 8


def test_the_endpoint_of_a_model(built: Path) -> None:
    """What another program reads: every stack of the site, null where nothing is known."""
    folder = built / "models" / "Qwen--Qwen3-0.6B"
    told = json.loads((folder / "result.json").read_text())
    first, _, last = told.pop("stacks")
    assert (told["schema_version"], told["model_id"]) == (1, "Qwen/Qwen3-0.6B")
    assert (told["stack"], told["wish"]["wish"]) == (KEY, "wanted")
    assert first["versions"]["neuronx_cc"] == "2.28.7631.0"
    assert {name: first[name] for name in first if name != "versions"} == {
        "stack": KEY,
        "label": "neuronx-cc 2.28.7631.0, transformers 5.24.0, torch 2.14.0",
        "target": "neuron",
        "reading": "PASS",
        "result": "PASS",
        "stage": "done",
        "failure": None,
        "date": "2026-12-02T08:00:00Z",
        "stale": False,
        "cores": 1,
        "parallelism": "none",
        "revision": "0123456789abcdef0123456789abcdef01234567",
        "cpu_match": "near_tie",
        "english": "not_run",
        "run_id": f"Qwen--Qwen3-0.6B@{KEY}",
        "run_url": "https://github.com/example/campaign/actions/runs/1",
        "script": f"../../results/scripts/Qwen--Qwen3-0.6B%40{KEY.replace('@', '%40')}.py",
    }
    assert set(last) == set(first) and last["reading"] == "UNTESTED" and last["result"] is None


# --- what others published ------------------------------------------------------------------------


def test_what_others_say_is_shown_apart_and_verbatim(results: Path, tmp_path: Path) -> None:
    """Their words stay theirs; no reading, row or file of ours changes; other models are left."""
    folder = tmp_path / "others"
    folder.mkdir()
    rows = [
        {"model_id": name, "result": "Works?", "tp": 2, "neuronx_cc": "2.20", "notes": EVIL}
        for name in ("qwen/Qwen3-0.6B", "new/model", "not/here")
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    catalog = listed(tmp_path)
    plain, beside = tmp_path / "plain", tmp_path / "beside"
    site.build_from(results, catalog, plain)
    made = site.build_from(results, catalog, beside, outside.read(str(folder)))
    assert (made.outside, made.left_out) == (2, 1)
    html = page(beside, "Qwen/Qwen3-0.6B")
    (aside,) = re.findall(r'<aside class="outside".*?</aside>', html, re.DOTALL)
    assert "Works? neuronx-cc 2.20 2" in text_of(aside) and EVIL in text_of(aside)
    assert html.replace(aside, "").split() == page(plain, "Qwen/Qwen3-0.6B").split()
    told = json.loads((beside / "data" / "index.json").read_text())
    also = told.pop("also")
    assert [told.pop(f"also_{name}") for name in ("results", "stacks", "datasets")] == [
        ["Works?"],
        ["neuronx-cc 2.20"],
        [str(folder)],
    ]
    assert told == json.loads((plain / "data" / "index.json").read_text())
    assert also == {
        "model": [0, 4],
        "stack": [0, 0],
        "result": [0, 0],
        "dataset": [0, 0],
        "cores": [2, 2],
        "day": [-1, -1],
    }


# --- moving it ------------------------------------------------------------------------------------


def test_a_tree_of_git_is_filled_without_losing_git(tmp_path: Path) -> None:
    """Pages are pushed from a tree: what was there goes, its repository stays."""
    tree, made = tmp_path / "tree", tmp_path / "made"
    (tree / ".git").mkdir(parents=True)
    (tree / ".git" / "HEAD").write_text("ref")
    (tree / "old").mkdir()
    (made / "new").mkdir(parents=True)
    (made / "new" / "page").write_text("new")
    files.move_into(made, tree)
    assert sorted(path.name for path in tree.iterdir()) == [".git", "new"]
    assert (tree / ".git" / "HEAD").read_text() == "ref"


def test_ages_do_not_depend_on_the_day_of_the_build(results: Path, tmp_path: Path) -> None:
    """The newest row is "now": a site built a year later from the same results says the same."""
    built = site.build_from(results, None, tmp_path / "site")
    told = json.loads((tmp_path / "site" / "data" / "index.json").read_text())
    assert told["generated"] == f"{papers.START + timedelta(days=3):%Y-%m-%dT%H:%M:%SZ}"
    assert built.rows == 6
