"""The store of compiled graphs: what is restored, what is saved, what is never trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import cache
from pipeline.record import CallCounts
from pipeline.words import CacheState, Target
from tests import papers

RUN = papers.run(cache_keys=("ab/cd/one.neff", "ab/ef/two.neff"))


def _fill(folder: Path, **files: bytes) -> Path:
    for name, data in {"ab/cd/one.neff": b"one", "ab/ef/two.neff": b"two", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    saved = cache.save(_fill(tmp_path / "first"), RUN, RUN.cache_keys, made)
    assert saved == 2
    return made


def test_round_trip(store: Path, tmp_path: Path) -> None:
    """What one run saved, the next one finds, byte for byte, in its own empty directory."""
    into = tmp_path / "second"
    assert cache.restore(store, RUN, into) == RUN.cache_keys
    assert (into / "ab/cd/one.neff").read_bytes() == b"one"
    assert cache.entries(into, RUN) == RUN.cache_keys


def test_saving_again_changes_nothing(store: Path, tmp_path: Path) -> None:
    """An entry in the store is never rewritten."""
    other = _fill(tmp_path / "other", **{"ab/cd/one.neff": b"changed"})
    assert cache.save(other, RUN, RUN.cache_keys, store) == 0
    assert (store / cache.prefix(RUN) / "ab/cd/one.neff").read_bytes() == b"one"


@pytest.mark.parametrize("damage", [b"", b"on", b"onE", None])
def test_damaged_entries_are_left_out(store: Path, tmp_path: Path, damage: bytes | None) -> None:
    """An empty, cut, altered or missing entry costs a compilation, nothing else."""
    entry = store / cache.prefix(RUN) / "ab/cd/one.neff"
    if damage is None:
        entry.unlink()
    else:
        entry.write_bytes(damage)
    assert cache.restore(store, RUN, tmp_path / "into") == ("ab/ef/two.neff",)


def test_another_compiler_reads_another_prefix(store: Path, tmp_path: Path) -> None:
    """No compiler version can read what another one wrote."""
    newer = papers.run(stack=papers.stack(neuronx_cc="2.29.0.0"), cache_keys=RUN.cache_keys)
    assert cache.restore(store, newer, tmp_path / "into") == ()


@pytest.mark.parametrize(
    "key", ["../../etc/passwd", "/etc/passwd", "", "a/.hidden", "x.lock", "locks/a", "x.tmp"]
)
def test_keys_stay_inside(store: Path, tmp_path: Path, key: str) -> None:
    """A key from a row cannot name a file outside the prefix, nor an unfinished one."""
    outside = store / "etc" / "passwd"
    outside.parent.mkdir()
    outside.write_text("secret")
    asked = papers.run(cache_keys=(key,))
    assert cache.restore(store, asked, tmp_path / "into") == ()


def test_only_finished_entries_are_kept(tmp_path: Path) -> None:
    """Locks, temporary, hidden, empty and foreign files, and links, are no entries."""
    folder = _fill(
        tmp_path / "graphs",
        **{
            "ab/cd/.tmp.123": b"x",
            "ab/cd/half.neff.tmp": b"x",
            "locks/one.neff": b"x",
            "ab/cd/empty.neff": b"",
            "ab/cd/notes.txt": b"x",
        },
    )
    (folder / "link.neff").symlink_to(folder / "ab/cd/one.neff")
    assert cache.entries(folder, RUN) == RUN.cache_keys
    cpu = papers.run(stack=papers.stack(Target.CPU))
    assert "ab/cd/notes.txt" in cache.entries(folder, cpu)


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
