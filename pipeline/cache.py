"""Compiled graphs between runs: restored into a run's fresh directory before, saved after it.

On the store each compiler version has a folder of its own, so that none ever reads another one's
entries: `<compiler>-<version>/<the compiler's own relative paths>`, which a reader can copy as it
is. Beside these folders `.sha256/<the same path>/` has one file for each content that an entry may
have, named by its SHA-256 and size.

A cache, never evidence: anything wrong with an entry means one more compilation, not a failed run.
Stores know no transactions, so several machines may save different bytes under one key at once. An
entry is trusted when it is what *any* of its savers noted before uploading it. Notes have names of
their own, made from what they say, so that none overwrites another: whoever writes an entry last,
it proves right. A reader needs no listing: what it got tells the name of the note to ask for.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from pipeline.errors import UsageError
from pipeline.record import CallCounts, Run
from pipeline.store import Store
from pipeline.targets import CACHES
from pipeline.words import CacheState, Target

_UNFINISHED = (".lock", ".tmp")
_DIGESTS = ".sha256"
"""Folder of the store, beside the compilers' folders, that keeps what each entry may be."""
_MAX_KEY = 900
"""Longest key, in bytes: S3 takes 1 024 with the folders before it
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html)."""
_ENTRY_BYTES = 16 * 1024**2
"""Bytes that an entry may have on average before the store is found too slow: 50 times the average
of a 1B model (https://github.com/dacorvo/hf-mount-cache-examples: 91 files, 28.9 MB)."""
FEW_KEYS = 16
"""Keys that a command for people names one by one: about 1 kB of text."""

_READERS = {
    # Where TorchNeuron and Inductor look when nothing is set: the "shared tier" of the NEFF cache,
    # and torch/_inductor/runtime/cache_dir_utils.py.
    "neuronxcc": "/tmp/neff_cache",  # noqa: S108 (the compiler's own default, in a reader's shell)
    "inductor": '"/tmp/torchinductor_$(id -un)"',
}


@dataclass(frozen=True)
class Restored:
    """What `restore` brought. keys: sorted, arrived; dropped: sorted, not what was saved.

    bytes: of the entries that arrived. problem: None, or one sentence when the store was away.
    """

    keys: tuple[str, ...]
    dropped: tuple[str, ...]
    bytes: int
    problem: str | None


@dataclass(frozen=True)
class Saved:
    """What `save` brought to the store: how many entries, their bytes, what went wrong."""

    new: int
    bytes: int
    problem: str | None


@dataclass(frozen=True)
class _Digest:
    sha256: str
    size: int

    @classmethod
    def of(cls, path: Path) -> _Digest:
        with path.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        return cls(sha256, path.stat().st_size)

    def __str__(self) -> str:
        return f"{self.sha256}-{self.size}"


@dataclass(frozen=True)
class _Standing:
    """What the store holds of some keys.

    good: local copies of the entries that proved right; wrong: those that did not.
    """

    good: Mapping[str, Path]
    wrong: tuple[str, ...]
    problem: str | None


def prefix(run: Run) -> str:
    """The folder of the store that belongs to a run's compiler: "neuronxcc-2.28.7631.0".

    The stand-in of the tests has its own: what it writes is no NEFF.
    """
    if run.stack.target is Target.SIMULATOR:
        return _folder("simulator", run.stack.compiler_version)
    return _folder(run.stack.compiler, run.stack.compiler_version)


def _folder(compiler: str, version: str) -> str:
    return f"{compiler}-{quote(version, safe='+')}"


def restore(store: Store, run: Run, into: Path, *, everything: bool = False) -> Restored:
    """Bring the entries that the run's last good row recorded, or everything its compiler has.

    An entry that is gone, has no digest, is empty, or is not what was saved (size and SHA-256) is
    left out. Entries are checked in a directory of their own and renamed into `into`, so that a
    compiler never sees one that is not whole. Nothing that the store does, or does not do, raises.
    """
    keys: Iterable[str] = run.cache_keys
    if everything:
        folder = prefix(run)
        found = store.find(folder)
        if found.problem:
            return Restored((), (), 0, found.problem)
        keys = (path.removeprefix(f"{folder}/") for path in found.paths)
    keys = [key for key in sorted(set(keys)) if _is_entry(key, run)]
    arrived: dict[str, int] = {}
    wrong: tuple[str, ...] = ()
    try:
        with _staging(into) as staging:
            standing = _standing(store, run, keys, staging)
            wrong, problem = standing.wrong, standing.problem
            for key, path in standing.good.items():
                target = into / key
                target.parent.mkdir(parents=True, exist_ok=True)
                path.chmod(0o644)
                size = path.stat().st_size
                path.replace(target)
                arrived[key] = size
    except OSError as error:
        problem = f"this machine cannot take entries: {error.strerror}"
    return Restored(tuple(sorted(arrived)), wrong, sum(arrived.values()), problem)


def entries(directory: Path, run: Run) -> tuple[str, ...]:
    """Keys of the finished entries in a run's own cache directory, sorted."""
    root = directory.resolve()
    found = []
    for path in root.rglob(CACHES[run.stack.target].entries):
        key = path.relative_to(root).as_posix()
        # A link, or anything below one, resolves elsewhere.
        if is_key(key) and path.is_file() and path.resolve() == path and path.stat().st_size:
            found.append(key)
    return tuple(sorted(found))


def save(
    directory: Path,
    run: Run,
    keys: Iterable[str],
    store: Store,
    *,
    proven: Collection[str] = (),
    replace: bool = False,
) -> Saved:
    """Bring the entries of `directory` among `keys` to the store, where it lacks them.

    An entry that stands there already is read back: it stays when it proves right, and is replaced
    when it does not. `proven`: keys that this run restored, and which therefore need no proof.
    replace: what stands there is not trusted, although it may be what was saved; for a run that
    came to its end only with a clean cache.

    The digests go first: an entry without its digest is trusted by nobody.
    """
    try:
        with _staging(directory) as staging:
            asked = set(keys) - (set() if replace else set(proven))
            mine = [key for key in entries(directory, run) if key in asked]
            read_back = [] if replace else mine
            standing = _standing(store, run, read_back, staging / "there")
            if standing.problem and not standing.good:
                return Saved(0, 0, standing.problem)
            digests: dict[str, _Digest] = {}
            for key in mine:
                if key in standing.good:
                    continue
                # What is hashed is what is sent, whatever becomes of the compiler's file.
                copy = staging / "entries" / key
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(directory / key, copy)
                digests[key] = _Digest.of(copy)
            if not digests:
                return Saved(0, 0, standing.problem)
            return _upload(store, run, digests, staging)
    except OSError as error:
        return Saved(0, 0, f"this machine cannot give entries: {error.strerror}")


def _upload(store: Store, run: Run, digests: Mapping[str, _Digest], staging: Path) -> Saved:
    """Note what the staged entries are, then send those that are noted."""
    notes = {}
    for key, digest in digests.items():
        note = staging / "notes" / key / str(digest)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"{digest}\n")
        notes[_note_path(run, key, digest)] = note
    noted = store.put(notes)
    sendable = {
        f"{prefix(run)}/{key}": key
        for key, digest in digests.items()
        if _note_path(run, key, digest) in set(noted.paths)
    }
    sent = store.put({path: staging / "entries" / key for path, key in sendable.items()})
    size = sum(digests[sendable[path]].size for path in sent.paths)
    return Saved(len(sent.paths), size, noted.problem or sent.problem)


def _note_path(run: Run, key: str, digest: _Digest) -> str:
    return f"{_DIGESTS}/{prefix(run)}/{key}/{digest}"


def _standing(store: Store, run: Run, keys: Sequence[str], staging: Path) -> _Standing:
    """Fetch the entries of keys, and ask for the note that each, as it came, must have."""
    files = {f"{prefix(run)}/{key}": (key, staging / "entries" / key) for key in keys}
    moved = store.fetch(
        {path: local for path, (_, local) in files.items()}, size=len(keys) * _ENTRY_BYTES
    )
    came = dict(files[path] for path in moved.paths)
    notes = {}
    for key, local in came.items():
        digest = _Digest.of(local)
        if digest.size:
            notes[_note_path(run, key, digest)] = (key, staging / "notes" / key / str(digest))
    noted = store.fetch({path: local for path, (_, local) in notes.items()})
    proven = {notes[path][0] for path in noted.paths}
    good = {key: local for key, local in sorted(came.items()) if key in proven}
    problem = moved.problem or noted.problem
    # After a problem an entry may just be cut short, or its note not have been asked for.
    wrong = () if problem else tuple(sorted(set(came) - proven))
    return _Standing(good, wrong, problem)


@contextlib.contextmanager
def _staging(beside: Path) -> Iterator[Path]:
    """A directory on the same disk as `beside`, gone afterwards."""
    beside.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=beside.parent, prefix=".graphs-", ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def _is_entry(key: str, run: Run) -> bool:
    return is_key(key) and PurePosixPath(key).match(CACHES[run.stack.target].entries)


def is_key(key: str) -> bool:
    """Whether a key stays inside its folder on every system, and names a finished entry.

    Rows and stores are not trusted: no "..", no absolute path or drive, no backslash, nothing
    hidden, no second spelling of the same path ("a//b"), nothing unprintable.
    """
    path = PurePosixPath(key)
    return bool(
        path.name
        and str(path) == key
        and key.isprintable()
        and len(key.encode(errors="replace")) <= _MAX_KEY
        and not path.is_absolute()
        and not any(part.startswith(".") for part in path.parts)
        and not set(key) & {"\\", ":"}
        and not path.name.endswith(_UNFINISHED)
        and "locks" not in path.parts
    )


def reader_command(
    store_url: str, compiler: str, compiler_version: str, keys: Sequence[str]
) -> str:
    """The shell command with which a reader fills the directory that compiler looks in.

    It names the entries while they are few (FEW_KEYS), and else takes all that this compiler
    version has; so without keys it is short. It needs `hf` (huggingface_hub) for hf://, the AWS
    CLI for s3://, and Python with fsspec and its driver for every other URL.
    """
    if compiler not in _READERS:
        raise UsageError(f"no compiler {compiler} has a cache that readers could fill")
    url = f"{store_url.rstrip('/')}/{_folder(compiler, compiler_version)}"
    into = _READERS[compiler]
    named = sorted(key for key in set(keys) if is_key(key))
    if len(named) > FEW_KEYS:
        named = []
    # A name that reads like a pattern stands for itself; both programs match as fnmatch does.
    includes = [shlex.quote(f"--include={escape(key)}") for key in named]
    scheme = store_url.partition("://")[0]
    if scheme == "hf":
        return " ".join(["hf buckets sync", shlex.quote(url), into, *includes])
    if scheme == "s3":
        if len(named) == 1:
            key = shlex.quote(named[0])
            return f"aws s3 cp {shlex.quote(f'{url}/{named[0]}')} {into}/{key}"
        # The last filter that matches decides.
        only = [shlex.quote("--exclude=*"), *includes] if named else []
        return " ".join(["aws s3 sync", shlex.quote(url), into, *only])
    code = (
        "import sys, fsspec; from pathlib import Path; _, url, into, *keys = sys.argv; "
        "fs, at = fsspec.url_to_fs(url); "
    )
    if named:
        code += (
            "[(Path(into, key).parent.mkdir(parents=True, exist_ok=True), "
            "fs.get_file(f'{at}/{key}', str(Path(into, key)))) for key in keys]"
        )
    else:
        code += "fs.get(f'{at}/', f'{into}/', recursive=True)"
    quoted = [shlex.quote(key) for key in named]
    return " ".join(["python3 -c", shlex.quote(code), shlex.quote(url), into, *quoted])


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
