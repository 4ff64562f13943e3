"""Stores of every kind: the same calls, the same answers, and no store that holds a run up."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import store
from pipeline.errors import UsageError
from pipeline.store import open_store
from tests.bucket_server import BucketServer
from tests.stores import Kind, Place, Trouble, at_objects, away, place


@pytest.fixture(params=Kind)
def there(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    with place(request.param, tmp_path, monkeypatch) as made:
        yield made


def test_every_store_moves_files(there: Place, tmp_path: Path) -> None:
    """What was put arrives byte for byte; what is not there does not, and is no problem."""
    sources = {}
    for number in range(12):
        path = tmp_path / f"source-{number}"
        path.write_bytes(bytes([number]) * (1000 + number))
        sources[f"one/ab/{number}.neff"] = path
    put = there.store.put(sources)
    assert (sorted(put.paths), put.problem) == (sorted(sources), None)

    wanted = {path: tmp_path / "into" / path for path in [*sources, "one/ab/none", "none/at/all"]}
    got = there.store.fetch(wanted)
    assert (sorted(got.paths), got.problem) == (sorted(sources), None)
    for name, source in sources.items():
        assert wanted[name].read_bytes() == source.read_bytes() == there.read(name)
    assert not list((tmp_path / "into").rglob("*.part"))

    sources["one/ab/0.neff"].write_bytes(b"newer")
    again = there.store.put({"one/ab/0.neff": sources["one/ab/0.neff"]})
    assert (again.problem, there.read("one/ab/0.neff")) == (None, b"newer")


def test_every_store_finds_one_folder(there: Place) -> None:
    """A folder is that folder, not every name that begins like it; an absent one is empty."""
    there.write("neuronxcc-2.28/ab/one.neff", b"1")
    there.write("neuronxcc-2.28.7/ab/two.neff", b"2")
    there.write("neuronxcc-2.28/ab/cd/three.neff", b"3")
    found = there.store.find("neuronxcc-2.28")
    assert found.problem is None
    assert found.paths == ("neuronxcc-2.28/ab/cd/three.neff", "neuronxcc-2.28/ab/one.neff")
    assert there.store.find("neuronxcc-9") == store.Moved((), None)


@pytest.mark.parametrize("trouble", Trouble)
@pytest.mark.parametrize("url", ["hf://buckets/org/store", "s3://campaign/graphs"])
def test_a_remote_store_that_is_away_is_one_sentence(
    url: str, trouble: Trouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused, failing or silent: every call ends within its limit and says which store it was."""
    (tmp_path / "entry").write_bytes(b"entry")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    with away(trouble) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        at_objects(address, monkeypatch)
        there = open_store(url, limit_s=1)
        moved = there.fetch({"a/b": tmp_path / "into"})
        assert moved.paths == ()
        assert moved.problem is not None
        assert moved.problem.startswith(f"the store {url}: ")
        assert "\n" not in moved.problem
        if trouble is Trouble.REFUSED:
            assert there.put({"a/b": tmp_path / "entry"}).problem
            assert there.find("a").problem


def test_a_local_store_that_hangs_is_left_behind(tmp_path: Path) -> None:
    """A disk that never answers (here: a pipe nobody writes to) holds a call to its limit only."""
    os.mkfifo(tmp_path / "pipe")
    found = store._in_thread(
        lambda: store._Answer(paths=[(tmp_path / "pipe").read_text()], problem=None), 0.2
    )
    assert (found["paths"], found["problem"]) == ([], "did not answer within 0.2 s")
    (tmp_path / "pipe").open("w").close()  # lets the thread end


def test_a_client_that_dies_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash in a driver's native code is the end of a transfer, not of the run."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    moved = open_store("hf://buckets/org/store").fetch({"a": tmp_path / "a"})
    assert moved.problem == "the store hf://buckets/org/store: its client ended with -11"


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    """A folder in whose place there is a file, and one that is read-only, are named."""
    (tmp_path / "entry").write_bytes(b"entry")
    (tmp_path / "file").write_bytes(b"")
    moved = open_store(str(tmp_path / "file")).put({"a/b": tmp_path / "entry"})
    assert moved.paths == ()
    assert moved.problem is not None and "NotADirectoryError" in moved.problem


def test_a_bucket_that_takes_no_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only token is a problem of saving; what the Hub refuses of a batch is not counted."""
    (tmp_path / "entry").write_bytes(b"entry")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    with BucketServer(tmp_path / "hub", "org/store") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        there = open_store("hf://buckets/org/store")
        hub.fail_path = "a/two"
        moved = there.put({"a/one": tmp_path / "entry", "a/two": tmp_path / "entry"})
        assert moved.paths == ("a/one",)
        assert moved.problem == "the store hf://buckets/org/store: BucketBatchError"
        hub.refuse_writes = True
        moved = there.put({"a/three": tmp_path / "entry"})
        assert moved.paths == () and moved.problem is not None
        assert sorted(hub.files) == ["a/one"]
        gone = open_store("hf://buckets/org/none").fetch({"a": tmp_path / "a"})
        assert gone.problem is not None and "BucketNotFoundError, HTTP status 404" in gone.problem


def test_one_lost_file_of_a_bucket_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gives up a whole group for one file that cannot be had; the others still come."""
    with place(Kind.BUCKET, tmp_path, monkeypatch) as there:
        for name in ("a", "b", "c"):
            there.write(name, name.encode() * 1000)
        hub = getattr(there, "hub")  # noqa: B009 (only this kind has one)
        hub.files["graphs/b"] = ("ab" * 32, 1000)
        moved = there.store.fetch({name: tmp_path / "into" / name for name in ("a", "b", "c")})
    assert moved.paths == ("a", "c")
    assert moved.problem is not None
    assert (tmp_path / "into/a").read_bytes() == b"a" * 1000
    assert (tmp_path / "into/c").read_bytes() == b"c" * 1000


def test_a_bucket_is_asked_once_for_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests do not grow with the files: the Hub counts them."""
    with place(Kind.BUCKET, tmp_path, monkeypatch) as there:
        for number in range(20):
            there.write(f"e/{number}", b"x")
        hub = getattr(there, "hub")  # noqa: B009 (only this kind has one)
        hub.log.clear()
        there.store.fetch({f"e/{number}": tmp_path / f"{number}" for number in range(20)})
        assert len([line for line in hub.log if "/org/store/" in line]) <= 4


def test_nothing_is_reached_when_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening checks a name: no connection, no folder made."""

    def no_socket(*_: object) -> None:
        raise AssertionError("a connection was made")

    monkeypatch.setattr("socket.socket.connect", no_socket)
    for url in ("hf://buckets/org/store", "s3://campaign/graphs", "build/none", "memory://x"):
        open_store(url)
    assert not Path("build/none").exists()


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("build/graphs", None),
        ("/var/graphs", None),
        ("file:///var/graphs", None),
        ("memory://graphs", None),
        ("hf://buckets/org/store/", "hf://buckets/org/store"),
        ("hf://buckets/org/store/a/b", "hf://buckets/org/store/a/b"),
        ("s3://campaign/graphs", "s3://campaign/graphs"),
        ("ftp://me:secret@example.org/graphs?token=secret", "ftp://example.org/graphs"),
    ],
)
def test_what_goes_on_a_row(url: str, public: str | None) -> None:
    """A row names a store that others can reach, never a password or a path of one machine."""
    opened = open_store(url)
    assert opened.public_url == public
    assert opened.url == url


@pytest.mark.parametrize(
    "url", ["hf://datasets/org/store", "hf://buckets/org", "hf://buckets//x", "nothing://x"]
)
def test_what_is_no_store(url: str) -> None:
    """A URL that can be no store is refused with what to write instead."""
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert "hf://buckets/" in caught.value.remedy


@pytest.mark.parametrize(
    ("url", "module", "remedy"),
    [
        ("s3://campaign/graphs", "s3fs", 'pip install "trn-qualify[s3]"'),
        ("hf://buckets/org/store", "hf_xet", 'pip install "hf-xet"'),
        ("gs://campaign/graphs", "gcsfs", 'pip install "gcsfs"'),
        ("sftp://me:secret@host/graphs", "paramiko", 'pip install "paramiko"'),
    ],
)
def test_a_missing_driver_is_named(url: str, module: str, remedy: str) -> None:
    """Without the driver's package the error is the line to type, and holds no password."""
    code = (
        "import sys\n"
        "class Without:\n"
        "    def __init__(self, finder): self.finder = finder\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        hidden = name.split('.')[0] == {module!r}\n"
        "        return None if hidden else self.finder.find_spec(name, path, target)\n"
        "sys.meta_path = [Without(finder) for finder in sys.meta_path]\n"
        "from pipeline import errors, store\n"
        "try:\n"
        f"    store.open_store({url!r})\n"
        "except errors.EnvironmentFault as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert remedy in done.stdout, done.stderr
    assert "secret" not in done.stdout


def test_local_writes_are_whole(tmp_path: Path) -> None:
    """A reader of a directory sees the old entry or the new one, never a part."""
    there = open_store(str(tmp_path / "store"))
    sizes = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            there.fetch({"a": tmp_path / "into"})
            if (tmp_path / "into").exists():
                sizes.add((tmp_path / "into").stat().st_size)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(20):
        (tmp_path / "source").write_bytes(bytes([number]) * 2_000_000)
        assert there.put({"a": tmp_path / "source"}).problem is None
    done.set()
    reader.join()
    assert sizes <= {2_000_000}
