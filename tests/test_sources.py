"""Where results are read from: folders, sites on a local server, and datasets of a local Hub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from pipeline import copies, wishes
from pipeline import results as store
from pipeline.errors import ResultsError, UsageError
from pipeline.sources import open_source
from tests import papers
from tests.local_server import Handler, LocalServer
from tests.papers import View, Wanted


def publish(results: Path, *names: str) -> None:
    rows = [store.row_of(papers.passing(papers.run(name))) for name in names]
    store.write(store.prepare(results, rows).files)
    (results / wishes.FILE).write_bytes(wishes.dump(wishes.of(View((Wanted("a/a"),))), 30))


class _Files(Handler, SimpleHTTPRequestHandler):
    """Files of a folder; the first `owner.away` requests find the server busy."""

    def do_GET(self) -> None:
        site = self.server.owner
        assert isinstance(site, Site)
        site.asked_for.append(self.path)
        if site.away > 0:
            site.away -= 1
            self.send_error(503)
            return
        self.directory = str(site.folder)
        SimpleHTTPRequestHandler.do_GET(self)


class Site(LocalServer):
    """What qualify site puts on the web of results, as far as other machines read it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(_Files)
        self.folder = folder
        self.asked_for: list[str] = []
        self.away = 0

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def publish(self, *names: str) -> None:
        publish(self.results, *names)
        self.list_files()

    def list_files(self) -> None:
        (self.results / copies.INDEX).write_bytes(copies.listing(self.results))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(copies, "WAITS_S", (0.0, 0.0))
    with Site(tmp_path / "www") as server:
        server.publish("a/a", "b/b")
        yield server


def models(results: Path) -> list[str]:
    return [row["model_id"] for row in store.read_current(results)]


# --- folders ------------------------------------------------------------------------------------


def test_a_clone_and_its_results(tmp_path: Path) -> None:
    """Either names the results; the list is the one beside them."""
    publish(tmp_path / "results", "a/a")
    whole = open_source(str(tmp_path))
    assert whole.results == tmp_path / "results"
    assert whole.listed is None and whole.notice == ""
    (tmp_path / "models.yaml").touch()
    for text in (tmp_path, tmp_path / "results"):
        assert open_source(str(text)).listed == tmp_path / "models.yaml"
        assert open_source(str(text)).results == tmp_path / "results"


def test_no_results(tmp_path: Path) -> None:
    """A folder without any, and none at all, are told with their name."""
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(ResultsError, match="no published results") as caught:
            open_source(str(place))
        assert caught.value.where == str(place)


# --- sites --------------------------------------------------------------------------------------


def test_a_site(site: Site) -> None:
    """All that readers of rows need comes over, and no more."""
    (site.results / "scripts" / "x.py").write_text("print()")
    found = open_source(f"{site.url}/")
    assert (found.name, found.listed, found.notice) == (f"{site.url}/", None, "")
    assert models(found.results) == ["a/a", "b/b"]
    assert len(store.read_history(found.results)) == 2
    assert wishes.read(found.results).keys() == {"a/a"}
    assert not any("scripts" in path for path in site.asked_for)


def test_only_what_changed_is_fetched(site: Site) -> None:
    """A second look asks for the list alone, and after a publication for the files that changed;
    what the site no longer has goes."""
    open_source(site.url)
    site.asked_for.clear()
    open_source(site.url)
    assert site.asked_for == ["/results/files.json"]
    site.asked_for.clear()
    site.publish("c/c")
    found = open_source(site.url)
    assert models(found.results) == ["a/a", "b/b", "c/c"]
    assert sorted(path.split("/")[2] for path in site.asked_for) == [
        "current",
        "files.json",
        "history",
    ]
    (gone,) = [path for path in (site.results / "history").iterdir() if b"c/c" in path.read_bytes()]
    gone.unlink()
    site.list_files()
    assert len(list((open_source(site.url).results / "history").iterdir())) == 1


def test_a_damaged_copy_is_mended(site: Site) -> None:
    """Each file is held against its digest at every look, of the copy too."""
    (path,) = (open_source(site.url).results / "current").rglob("*.parquet")
    path.write_bytes(bytes(len(path.read_bytes())))
    assert models(open_source(site.url).results) == ["a/a", "b/b"]


def test_out_of_reach(site: Site) -> None:
    """The copy answers and says of what it is one; without one it is an error with a remedy."""
    with pytest.raises(ResultsError, match="could not be reached") as caught:
        site.away = 9
        open_source(site.url)
    assert caught.value.remedy
    site.away = 0
    open_source(site.url)
    site.away = 9
    found = open_source(site.url)
    assert models(found.results) == ["a/a", "b/b"]
    assert (
        "could not be reached: HTTP 503" in found.notice and "this is the copy of " in found.notice
    )


def test_a_damaged_copy_does_not_stand_in(site: Site) -> None:
    """What is not what the list says is no copy."""
    (path,) = (open_source(site.url).results / "current").rglob("*.parquet")
    path.write_bytes(b"PAR1")
    site.away = 99
    with pytest.raises(ResultsError, match="could not be reached"):
        open_source(site.url)


def test_a_busy_server_is_asked_again(site: Site) -> None:
    """Two answers that say no are waited out."""
    site.away = 2
    assert models(open_source(site.url).results) == ["a/a", "b/b"]


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused connection is an error in words."""
    monkeypatch.setattr(copies, "WAITS_S", ())
    with Site(tmp_path) as server:
        url = server.url
    with pytest.raises(ResultsError, match=r"could not be reached: .*refused"):
        open_source(url, cache=tmp_path)


def test_what_is_no_such_site(site: Site) -> None:
    """Another web server has no list of files; the address is named."""
    (site.results / copies.INDEX).unlink()
    with pytest.raises(ResultsError, match=r"HTTP 404.*files\.json") as caught:
        open_source(site.url)
    assert caught.value.where == site.url


def test_a_file_that_is_not_the_listed_one(site: Site) -> None:
    """Nothing of it is used, and the copy of before stays."""
    before = open_source(site.url).results
    (path,) = (site.results / "current").rglob("*.parquet")
    path.write_bytes(path.read_bytes()[::-1])
    index = json.loads((site.results / copies.INDEX).read_text())
    for file in index["files"]:
        file["sha256"] = file["sha256"][::-1]
    (site.results / copies.INDEX).write_text(json.dumps(index))
    with pytest.raises(ResultsError, match="is not the file that"):
        open_source(site.url)
    assert models(before) == ["a/a", "b/b"]


@pytest.mark.parametrize(
    "change",
    [
        {"path": "../../outside.parquet"},
        {"path": "/etc/passwd"},
        {"path": "current/../../x.parquet"},
        {"path": "current/.hidden.parquet"},
        {"path": "current/x.py"},
        {"path": "current\\x.parquet"},
        {"path": 7},
        {"bytes": -1},
        {"bytes": True},
        {"bytes": copies.MAX_FILE_BYTES + 1},
    ],
)
def test_lists_that_lead_elsewhere_are_refused(
    site: Site, change: dict[str, object], tmp_path: Path
) -> None:
    """A path stays below the copy's folder, a size within its limit."""
    index = json.loads((site.results / copies.INDEX).read_text())
    index["files"][0] |= change
    (site.results / copies.INDEX).write_text(json.dumps(index))
    with pytest.raises(ResultsError, match="is not a list of files"):
        open_source(site.url)
    assert not list(tmp_path.glob("outside*"))


@pytest.mark.parametrize("text", ["", "[]", "null", '{"version": 2, "files": []}', "[" * 100_000])
def test_what_is_no_list(site: Site, text: str) -> None:
    """Told as such."""
    (site.results / copies.INDEX).write_text(text)
    with pytest.raises(ResultsError, match="is not a list of files"):
        open_source(site.url)


def test_a_site_without_results(site: Site) -> None:
    """An empty list is no evidence of anything."""
    shutil.rmtree(site.results / "current")
    shutil.rmtree(site.results / "history")
    site.list_files()
    with pytest.raises(ResultsError, match="no published results"):
        open_source(site.url)


# --- datasets -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["hf://", "hf://datasets/x", "hf://models/a/b", "hf://datasets/a/b/c"]
)
def test_what_is_no_dataset(text: str) -> None:
    """Told before the network is asked."""
    with pytest.raises(UsageError, match="is no dataset of the Hub"):
        open_source(text)
