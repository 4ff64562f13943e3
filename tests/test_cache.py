"""Compiled graphs between runs: what is restored, what is saved, what is never trusted."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from benchmarks import cache_bytes
from pipeline import cache
from pipeline.errors import UsageError
from pipeline.record import CallCounts
from pipeline.store import Moved, Store, open_store
from pipeline.words import CacheState, Target
from tests import papers
from tests.stores import Kind, Place, Trouble, away, place

ONE, TWO = "ab/cd/one.neff", "ab/ef/two.neff"
RUN = papers.run(cache_keys=(ONE, TWO))
FOLDER = "neuronxcc-2.28.7631.0"


def _fill(folder: Path, **files: bytes) -> Path:
    for name, data in {ONE: b"one", TWO: b"two", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def _note(key: str, data: bytes) -> str:
    """Where the store notes that `data` may stand under a key."""
    return f".sha256/{FOLDER}/{key}/{hashlib.sha256(data).hexdigest()}-{len(data)}"


def _stock(there: Place, mine: Path) -> None:
    """Put the two entries of `RUN` into a store by its back door."""
    for key in RUN.cache_keys:
        there.write(f"{FOLDER}/{key}", (mine / key).read_bytes())
        there.write(_note(key, (mine / key).read_bytes()), b"noted")


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A local store with the two entries of `RUN`."""
    with place(Kind.LOCAL, tmp_path, monkeypatch) as made:
        saved = cache.save(_fill(tmp_path / "first"), RUN, RUN.cache_keys, made.store)
        assert saved == cache.Saved(2, 6, None)
        yield made


@pytest.mark.parametrize("kind", Kind)
def test_round_trip(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every store: what one run saved the next finds whole, and damage is dropped."""
    with place(kind, tmp_path, monkeypatch) as there:
        mine = _fill(tmp_path / "first", **{"ab/three.neff": b"three"})
        keys = cache.entries(mine, RUN)
        assert cache.save(mine, RUN, keys, there.store) == cache.Saved(3, 11, None)
        assert there.read(f"{FOLDER}/{ONE}") == b"one"
        there.write(f"{FOLDER}/{TWO}", b"twO")
        got = cache.restore(there.store, papers.run(cache_keys=keys), tmp_path / "second")
        assert got == cache.Restored((ONE, "ab/three.neff"), (TWO,), 8, None)
        assert (tmp_path / "second" / ONE).read_bytes() == b"one"


def test_a_damaged_entry_is_mended(there: Place, tmp_path: Path) -> None:
    """The run that had to compile it again puts it right, and reads back only what it must."""
    there.write(f"{FOLDER}/{ONE}", b"onE")
    got = cache.restore(there.store, RUN, tmp_path / "second")
    assert (got.keys, got.dropped, got.bytes) == ((TWO,), (ONE,), 3)
    there.delete(f"{FOLDER}/{TWO}")
    mine = tmp_path / "first"
    assert cache.save(mine, RUN, RUN.cache_keys, there.store, proven=got.keys).new == 1
    assert there.read(f"{FOLDER}/{ONE}") == b"one"
    assert cache.save(mine, RUN, RUN.cache_keys, there.store) == cache.Saved(1, 3, None)
    assert cache.restore(there.store, RUN, tmp_path / "third").keys == (ONE, TWO)


def test_nothing_else_is_left_behind(there: Place, tmp_path: Path) -> None:
    """Entries come by a directory beside the compiler's, and that is gone afterwards."""
    (tmp_path / "run").mkdir()
    cache.restore(there.store, RUN, tmp_path / "run" / "graphs")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["graphs"]
    assert cache.entries(tmp_path / "run" / "graphs", RUN) == (ONE, TWO)


def test_only_the_keys_of_the_last_good_row(there: Place, tmp_path: Path) -> None:
    """A re-run moves its own entries; everything of its compiler only when asked."""
    _fill(tmp_path / "other", **{"ab/new.neff": b"other"})
    cache.save(tmp_path / "other", RUN, ["ab/new.neff"], there.store)
    assert cache.restore(there.store, RUN, tmp_path / "a").keys == (ONE, TWO)
    fresh = papers.run(cache_keys=())
    assert cache.restore(there.store, fresh, tmp_path / "b") == cache.Restored((), (), 0, None)
    got = cache.restore(there.store, fresh, tmp_path / "c", everything=True)
    assert got.keys == ("ab/cd/one.neff", "ab/ef/two.neff", "ab/new.neff")


@pytest.mark.parametrize("version", ["2.28.7631", "2.28.7631.0.1", "2.28.7631.0+abc"])
@pytest.mark.parametrize("everything", [False, True])
def test_another_compiler_reads_another_folder(
    there: Place, tmp_path: Path, version: str, everything: bool
) -> None:
    """No compiler version can read what another one wrote, however alike their names."""
    other = papers.run(stack=papers.stack(neuronx_cc=version), cache_keys=RUN.cache_keys)
    got = cache.restore(there.store, other, tmp_path / "into", everything=everything)
    assert got == cache.Restored((), (), 0, None)


def test_the_stand_in_never_shares_a_folder_with_the_compiler() -> None:
    """What the stand-in of the tests writes is no NEFF, and no device may be given it."""
    stand_in = papers.run(stack=papers.stack(Target.SIMULATOR))
    assert stand_in.stack.compiler_version == RUN.stack.compiler_version
    assert cache.prefix(stand_in) != cache.prefix(RUN) == FOLDER


@pytest.mark.parametrize("damage", [b"", b"on", b"onE", b"one" * 9, None])
def test_damaged_entries_are_left_out(there: Place, tmp_path: Path, damage: bytes | None) -> None:
    """An empty, cut, altered, grown or missing entry costs a compilation, nothing else."""
    if damage is None:
        there.delete(f"{FOLDER}/{ONE}")
    else:
        there.write(f"{FOLDER}/{ONE}", damage)
    got = cache.restore(there.store, RUN, tmp_path / "into")
    assert got.keys == (TWO,)
    assert got.dropped == (() if damage is None else (ONE,))
    assert got.problem is None
    assert not (tmp_path / "into" / ONE).exists()


@pytest.mark.parametrize("other", [None, b"two", b"on"])
def test_without_its_digest_an_entry_is_not_trusted(
    there: Place, tmp_path: Path, other: bytes | None
) -> None:
    """With no digest, or those of other contents only, it is compiled again; saving mends it."""
    there.delete(_note(ONE, b"one"))
    if other:
        there.write(_note(ONE, other), b"noted")
    got = cache.restore(there.store, RUN, tmp_path / "into")
    assert (got.keys, got.dropped, got.problem) == ((TWO,), (ONE,), None)
    assert cache.save(tmp_path / "first", RUN, RUN.cache_keys, there.store).new == 1
    assert cache.restore(there.store, RUN, tmp_path / "again").keys == (ONE, TWO)


def test_an_entry_that_proves_right_is_never_rewritten(there: Place, tmp_path: Path) -> None:
    """Other bytes under a known key are no news: the entry that stands there works."""
    other = _fill(tmp_path / "other", **{ONE: b"changed"})
    assert cache.save(other, RUN, RUN.cache_keys, there.store) == cache.Saved(0, 0, None)
    assert there.read(f"{FOLDER}/{ONE}") == b"one"


def test_an_entry_that_made_a_run_fail_is_replaced(there: Place, tmp_path: Path) -> None:
    """After a run that only a clean cache brought to its end, its own entries stand there."""
    other = _fill(tmp_path / "other", **{ONE: b"changed"})
    saved = cache.save(other, RUN, [ONE], there.store, proven=[ONE], replace=True)
    assert saved == cache.Saved(1, 7, None)
    assert there.read(f"{FOLDER}/{ONE}") == b"changed"
    assert cache.restore(there.store, RUN, tmp_path / "into").keys == (ONE, TWO)


def test_either_of_two_savers_bytes_are_trusted(there: Place, tmp_path: Path) -> None:
    """Two machines may compile one key to different bytes: whichever stands there proves right."""
    other = _fill(tmp_path / "other", **{ONE: b"changed"})
    cache.save(other, RUN, [ONE], there.store, replace=True)
    there.write(f"{FOLDER}/{ONE}", b"one")  # the slower of two uploads
    got = cache.restore(there.store, RUN, tmp_path / "into")
    assert (got.keys, got.dropped) == ((ONE, TWO), ())
    assert (tmp_path / "into" / ONE).read_bytes() == b"one"


@dataclass(frozen=True)
class _Watched(Store):
    """A store that notes down, in order, what is put into it."""

    order: list[str] = field(default_factory=list)

    def put(self, files: Mapping[str, Path]) -> Moved:
        self.order.extend(files)
        return super().put(files)


def test_the_digest_goes_first(tmp_path: Path) -> None:
    """At no moment an entry stands there that nobody vouches for."""
    store = _Watched(str(tmp_path / "store"), None)
    cache.save(_fill(tmp_path / "mine"), RUN, [ONE], store)
    assert store.order == [_note(ONE, b"one"), f"{FOLDER}/{ONE}"]


def test_without_a_digest_no_entry_is_sent(tmp_path: Path) -> None:
    """When the digests cannot be written, the entries stay here."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store/.sha256").write_bytes(b"in the way")
    there = open_store(str(tmp_path / "store"))
    saved = cache.save(_fill(tmp_path / "mine"), RUN, RUN.cache_keys, there)
    assert (saved.new, saved.bytes) == (0, 0)
    assert saved.problem is not None
    assert not (tmp_path / "store" / FOLDER).exists()


def _save_in_a_process(
    barrier: Barrier, folder: Path, store: Path, number: int, rounds: int
) -> None:
    for turn in range(rounds):
        mine = _fill(
            folder / f"{number}-{turn}",
            **{
                f"ab/{turn}/shared-{index}.neff": bytes([number]) * (100 + number)
                for index in range(4)
            },
            **{f"ab/{turn}/own-{number}.neff": b"own"},
        )
        barrier.wait()
        saved = cache.save(mine, RUN, cache.entries(mine, RUN), open_store(str(store)))
        assert saved.problem is None, saved.problem


def test_savers_at_once_lose_nothing(tmp_path: Path) -> None:
    """Processes that save the same keys with different bytes leave each key restorable."""
    count, rounds = 4, 6
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count)
    savers = [
        context.Process(
            target=_save_in_a_process,
            args=(barrier, tmp_path, tmp_path / "store", number, rounds),
        )
        for number in range(count)
    ]
    for saver in savers:
        saver.start()
    for saver in savers:
        saver.join()
    assert [saver.exitcode for saver in savers] == [0] * count
    there = open_store(str(tmp_path / "store"))
    fresh = papers.run(cache_keys=())
    got = cache.restore(there, fresh, tmp_path / "into", everything=True)
    assert (got.dropped, got.problem) == ((), None)
    assert len(got.keys) == 2 + rounds * (4 + count)
    for key in got.keys:
        if "shared" in key:
            data = (tmp_path / "into" / key).read_bytes()
            assert data == data[:1] * (100 + data[0])


@pytest.mark.parametrize(
    "key",
    [
        "",
        ".",
        "../../etc/passwd",
        "a/../b.neff",
        "/etc/passwd",
        "//host/share.neff",
        "C:/x.neff",
        "C:x.neff",
        "a\\..\\..\\x.neff",
        "\\\\host\\x.neff",
        "a//b.neff",
        "./a.neff",
        "a/",
        "a/.hidden",
        ".git/x.neff",
        "x.lock",
        "x.tmp",
        "locks/a.neff",
        "a\nb.neff",
        "a\0b.neff",
        "a\u202eb.neff",
        "a" * 1000 + ".neff",
    ],
)
def test_keys_stay_inside(there: Place, tmp_path: Path, key: str) -> None:
    """A key from a row cannot name a file outside its folder, nor an unfinished one."""
    assert not cache.is_key(key)
    got = cache.restore(there.store, papers.run(cache_keys=(key,)), tmp_path / "into")
    assert got == cache.Restored((), (), 0, None)


@pytest.mark.parametrize("key", ["one.neff", "ab/cd/" + "0" * 32 + ".neff", "fxgraph/ab/fabc/x"])
def test_keys_of_compilers(key: str) -> None:
    """The paths that TorchNeuron's and Inductor's caches are made of are keys."""
    assert cache.is_key(key)


def test_foreign_files_never_travel(there: Place, tmp_path: Path) -> None:
    """Locks, temporary, hidden, empty and foreign files, and links, go neither up nor down."""
    foreign = {
        "ab/cd/.tmp.123": b"x",
        "ab/cd/half.neff.tmp": b"x",
        "locks/one.neff": b"x",
        "ab/cd/empty.neff": b"",
        "ab/cd/notes.txt": b"x",
    }
    folder = _fill(tmp_path / "graphs", **foreign)
    (folder / "link.neff").symlink_to(folder / ONE)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/x.neff").write_bytes(b"secret")
    (folder / "linked").symlink_to(tmp_path / "outside")
    assert cache.entries(folder, RUN) == RUN.cache_keys
    asked = [*foreign, "link.neff", "linked/x.neff"]
    assert cache.save(folder, RUN, asked, there.store) == cache.Saved(0, 0, None)
    for key, data in foreign.items():
        there.write(f"{FOLDER}/{key}", data)
        there.write(_note(key, data), b"noted")
    greedy = papers.run(cache_keys=(ONE, *foreign))
    assert cache.restore(there.store, greedy, tmp_path / "a").keys == (ONE,)
    assert cache.restore(there.store, RUN, tmp_path / "b", everything=True).keys == (ONE, TWO)
    cpu = papers.run(stack=papers.stack(Target.CPU))
    assert "ab/cd/notes.txt" in cache.entries(folder, cpu)


def test_a_link_in_the_store_is_no_way_out(there: Place, tmp_path: Path) -> None:
    """A link that somebody put into a store directory does not prove right."""
    (tmp_path / "secret").write_bytes(b"secret")
    entry = Path(there.store.url) / FOLDER / ONE
    entry.unlink()
    entry.symlink_to(tmp_path / "secret")
    assert cache.restore(there.store, RUN, tmp_path / "into").dropped == (ONE,)


@pytest.mark.parametrize("trouble", Trouble)
def test_a_store_that_is_away_costs_time_alone(
    trouble: Trouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restore and save end, and say so, whatever the store does; the run's own files stay."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cache, "_ENTRY_BYTES", 0)  # no time for bytes, none come
    mine = _fill(tmp_path / "graphs")
    with away(trouble) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        there = open_store("hf://buckets/org/store", limit_s=1)
        got = cache.restore(there, RUN, tmp_path / "into")
        saved = cache.save(mine, RUN, RUN.cache_keys, there)
    assert (got.keys, got.dropped, got.bytes) == ((), (), 0)
    assert got.problem is not None and "hf://buckets/org/store" in got.problem
    assert (saved.new, saved.bytes) == (0, 0)
    assert saved.problem is not None
    assert cache.entries(mine, RUN) == (ONE, TWO)


@dataclass(frozen=True)
class _Interrupted(Store):
    """A store that goes away while the first of several entries is under way."""

    def fetch(self, files: Mapping[str, Path], *, size: int = 0) -> Moved:
        moved = super().fetch(files, size=size)
        if f"{FOLDER}/{ONE}" in files:
            files[f"{FOLDER}/{ONE}"].write_bytes(b"o")
            return Moved(moved.paths, "the store went away")
        return moved


def test_an_interrupted_transfer_is_not_called_damage(there: Place, tmp_path: Path) -> None:
    """What was cut short on its way may be whole in the store; what came whole is used."""
    got = cache.restore(_Interrupted(there.store.url, None), RUN, tmp_path / "into")
    assert got == cache.Restored((TWO,), (), 3, "the store went away")


def test_a_store_that_cannot_be_written_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a read-only token a run still restores; saving is a sentence."""
    with place(Kind.BUCKET, tmp_path, monkeypatch) as there:
        mine = _fill(tmp_path / "graphs", **{"ab/new.neff": b"new"})
        _stock(there, mine)
        hub = getattr(there, "hub")  # noqa: B009 (only this kind has one)
        hub.refuse_writes = True
        assert cache.restore(there.store, RUN, tmp_path / "into").keys == (ONE, TWO)
        saved = cache.save(mine, RUN, ["ab/new.neff"], there.store)
        assert saved.new == 0 and saved.problem is not None


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop"])
def test_what_is_no_file_is_no_entry(there: Place, tmp_path: Path, kind: str) -> None:
    """Whatever stands in an entry's place in a directory, the run goes on, with the others."""
    entry = Path(there.store.url) / FOLDER / ONE
    entry.unlink()
    if kind == "pipe":
        os.mkfifo(entry)
    elif kind == "folder":
        entry.mkdir()
    else:
        entry.symlink_to(entry)
    got = cache.restore(there.store, RUN, tmp_path / "into")
    assert (got.keys, got.dropped) == ((TWO,), ())


def test_a_machine_that_cannot_take_entries_says_so(there: Place, tmp_path: Path) -> None:
    """A fault of this machine's disk is a reason to compile, not an error of the run."""
    (tmp_path / "file").write_bytes(b"")
    got = cache.restore(there.store, RUN, tmp_path / "file" / "graphs")
    assert (got.keys, got.bytes) == ((), 0)
    assert got.problem is not None
    assert got.problem.startswith("this machine cannot take entries: ")


URL = "hf://buckets/org/store"


@pytest.mark.parametrize(
    ("url", "keys", "command"),
    [
        (URL, (), f"hf buckets sync {URL}/neuronxcc-2.28+a /tmp/neff_cache"),
        (
            f"{URL}/f/",
            (TWO, ONE),
            f"hf buckets sync {URL}/f/neuronxcc-2.28+a /tmp/neff_cache"
            f" --include={ONE} --include={TWO}",
        ),
        (
            URL,
            tuple(f"{number}.neff" for number in range(17)),
            f"hf buckets sync {URL}/neuronxcc-2.28+a /tmp/neff_cache",
        ),
        ("s3://b/f", (), "aws s3 sync s3://b/f/neuronxcc-2.28+a /tmp/neff_cache"),
        (
            "s3://b/f",
            (ONE,),
            f"aws s3 cp s3://b/f/neuronxcc-2.28+a/{ONE} /tmp/neff_cache/{ONE}",
        ),
        (
            "s3://b/f",
            (ONE, TWO),
            "aws s3 sync s3://b/f/neuronxcc-2.28+a /tmp/neff_cache"
            f" '--exclude=*' --include={ONE} --include={TWO}",
        ),
    ],
)
def test_what_a_reader_types(url: str, keys: tuple[str, ...], command: str) -> None:
    """The reader's command names the few entries of a run, or the folder of its compiler."""
    assert cache.reader_command(url, "neuronxcc", "2.28+a", keys) == command


def test_a_readers_command_is_quoted() -> None:
    """Whatever a row holds, the command stays one command, and a name is no pattern."""
    nasty = ("a b$(touch x)'.neff", "a;b/[c]*.neff", "../out.neff", "-x.neff")
    for url in (URL, "s3://b/$(touch x)"):
        command = cache.reader_command(url, "neuronxcc", "2.28;reboot", nasty)
        words = shlex.split(command)
        assert words[3] == f"{url}/neuronxcc-2.28%3Breboot"
        assert words[4] == "/tmp/neff_cache"  # noqa: S108
        assert words[-3:] == [
            "--include=-x.neff",
            "--include=a b$(touch x)'.neff",
            "--include=a;b/[[]c][*].neff",
        ]


@pytest.mark.parametrize("keys", [(), (ONE,)])
@pytest.mark.parametrize("exists", [False, True])
def test_a_readers_command_fills_the_directory(
    keys: tuple[str, ...], exists: bool, there: Place, tmp_path: Path
) -> None:
    """For any fsspec URL the command is Python, and does what it says, into a directory or none."""
    there.write("neuronxcc-2.28.7631.0.1/other.neff", b"other")
    url = f"file://{there.store.url}"
    command = cache.reader_command(url, "neuronxcc", "2.28.7631.0", keys)
    words = [str(tmp_path / "into") if w == "/tmp/neff_cache" else w for w in shlex.split(command)]  # noqa: S108
    if exists:
        (tmp_path / "into").mkdir()
    subprocess.run([sys.executable, *words[1:]], check=True)
    assert cache.entries(tmp_path / "into", RUN) == (keys or (ONE, TWO))


@pytest.mark.parametrize("keys", [(), (ONE,)])
def test_the_hubs_own_client_takes_the_command(
    keys: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hf buckets sync` with the command's options fills a directory that is not there yet."""
    with place(Kind.BUCKET, tmp_path, monkeypatch) as there:
        _stock(there, _fill(tmp_path / "first"))
        there.write("neuronxcc-2.28.7631.0.1/other.neff", b"other")
        assert there.store.public_url is not None
        command = cache.reader_command(there.store.public_url, "neuronxcc", "2.28.7631.0", keys)
        words = shlex.split(command)
        assert words[0] == "hf"
        words[4] = str(tmp_path / "into")
        subprocess.run([Path(sys.executable).with_name("hf"), *words[1:]], check=True)
    assert cache.entries(tmp_path / "into", RUN) == (keys or (ONE, TWO))


def test_a_reader_of_inductors_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the cpu target a reader fills Inductor's own default directory."""
    command = cache.reader_command(URL, "inductor", "2.14.0", ())
    assert command == f'hf buckets sync {URL}/inductor-2.14.0 "/tmp/torchinductor_$(id -un)"'
    with pytest.raises(UsageError):
        cache.reader_command(URL, "gcc", "14", ())


@pytest.mark.parametrize(
    ("compiled", "hits", "restored", "state"),
    [
        (2, 0, 0, CacheState.COLD),
        (2, 0, 5, CacheState.COLD),
        (0, 2, 5, CacheState.RESTORED),
        (1, 1, 5, CacheState.PARTIAL),
        (1, 1, 0, CacheState.COLD),  # a neighbour rank compiled it a moment before
        (0, 0, 5, None),
        (0, 2, 0, None),
        (None, 2, 5, None),
        (2, None, 5, None),
    ],
)
def test_state(
    compiled: int | None, hits: int | None, restored: int, state: CacheState | None
) -> None:
    """Counters decide, and what they cannot tell is not guessed."""
    counts = CallCounts(graphs=2, compiled=compiled, restored=hits)
    assert cache.state(counts, restored) is state


def test_nothing_counted_nothing_said() -> None:
    """A run that did not come so far has no cache state."""
    assert cache.state(None, 3) is None


def test_keys_of_a_cold_run_leave_out_what_it_did_not_use(tmp_path: Path) -> None:
    """Entries restored for an older graph do not travel on for ever."""
    folder = _fill(tmp_path / "graphs", **{"ab/new.neff": b"new"})
    keys = cache.used_keys(folder, RUN, RUN.cache_keys, CacheState.COLD)
    assert keys == ("ab/new.neff",)
    assert len(cache.used_keys(folder, RUN, RUN.cache_keys, CacheState.PARTIAL)) == 3


def test_the_benchmark_counts_what_moves(tmp_path: Path) -> None:
    """A re-run moves its own entries and their digests; a sync moves the folder."""
    found = cache_bytes.measure(tmp_path, models=5)
    assert found.rerun_files == 2 * found.rerun_entries
    assert found.sync_files > 4 * 29
    assert found.sync_bytes == sum(
        path.stat().st_size for path in (tmp_path / "store/neuronxcc-0").rglob("*.neff")
    )
    assert 2 < found.sync_bytes / found.rerun_bytes < 20
