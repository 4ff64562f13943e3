"""The store of compiled graphs: filled into a run's fresh directory before, saved from it after.

A store is a directory with one prefix per compiler version, so that no compiler ever reads another
one's entries: `<store>/<compiler>-<version>/<the compiler's own relative paths>`. A cache, never
evidence: anything wrong with an entry means one more compilation, not a failed run.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from pipeline.record import CallCounts, Run, write_atomically
from pipeline.targets import CACHES
from pipeline.words import CacheState

_UNFINISHED = (".lock", ".tmp")
_DIGESTS = ".sha256"
"""Folder of the store, beside the prefixes, that keeps each entry's digest under the same path."""


def prefix(run: Run) -> str:
    """The folder of the store that belongs to a run's compiler: "neuronxcc-2.28.7631.0"."""
    return f"{run.stack.compiler}-{run.stack.compiler_version}"


def restore(store: Path, run: Run, into: Path) -> tuple[str, ...]:
    """Copy the entries that the run's last good row recorded; the keys that arrived, sorted.

    An entry that is gone, unreadable, empty, or not what was saved (SHA-256) is left out.
    """
    folder = store / prefix(run)
    arrived = []
    for key in sorted(set(run.cache_keys)):
        if not is_key(key):
            continue
        try:
            data = (folder / key).read_bytes()
            expected = (store / _DIGESTS / prefix(run) / key).read_text()
            if not data or hashlib.sha256(data).hexdigest() != expected:
                continue
            target = into / key
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            shutil.copymode(folder / key, target)
        except OSError:
            continue
        arrived.append(key)
    return tuple(arrived)


def entries(directory: Path, run: Run) -> tuple[str, ...]:
    """Keys of the finished entries in a run's own cache directory, sorted."""
    pattern = CACHES[run.stack.target].entries
    found = []
    for path in directory.rglob(pattern):
        key = path.relative_to(directory).as_posix()
        if path.is_file() and not path.is_symlink() and is_key(key) and path.stat().st_size:
            found.append(key)
    return tuple(sorted(found))


def save(directory: Path, run: Run, keys: Iterable[str], store: Path) -> int:
    """Copy entries that the store lacks, each in one step; how many were new.

    The digest goes first: an entry without its digest is never restored.
    """
    folder = store / prefix(run)
    saved = 0
    for key in keys:
        target = folder / key
        if target.exists():
            continue
        data = (directory / key).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        write_atomically(store / _DIGESTS / prefix(run) / key, digest.encode())
        write_atomically(target, data)
        target.chmod((directory / key).stat().st_mode & 0o777)
        saved += 1
    return saved


def is_key(key: str) -> bool:
    """Whether a key stays inside its folder and names a finished entry."""
    path = PurePosixPath(key)
    return bool(
        key
        and not path.is_absolute()
        and ".." not in path.parts
        and not path.name.startswith(".")
        and not path.name.endswith(_UNFINISHED)
        and "locks" not in path.parts
    )


def state(counts: CallCounts | None, restored_keys: int) -> CacheState | None:
    """cold, restored or partial, by the compiler's counters; None when they could not be read.

    Ranks read what a neighbour compiled a moment before, and that counts as a hit too: hits
    without a single entry from the store therefore still mean cold.
    """
    if counts is None or counts.compiled is None or counts.restored is None:
        return None
    if counts.compiled == 0:
        return CacheState.RESTORED if counts.restored and restored_keys else None
    return CacheState.PARTIAL if counts.restored and restored_keys else CacheState.COLD


def used_keys(
    directory: Path, run: Run, restored: tuple[str, ...], found: CacheState | None
) -> tuple[str, ...]:
    """The keys worth recording: what a cold run left behind without what it did not use."""
    keys = entries(directory, run)
    if found is CacheState.COLD:
        unused = set(restored)
        keys = tuple(key for key in keys if key not in unused)
    return keys
