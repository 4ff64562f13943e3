"""Facts about checkpoints, from the Hub or a local directory, without reading any weights.

`inspect` says what a checkpoint holds (commit, config.json, name, dtype and shape of each stored
tensor), or why that cannot be known. What the files say is read by checkpoint_files, the Hub is
asked by hub_client.

Requests per model on the Hub: 1 for commit and file list, 1 for config.json, 1 for the head of
model.safetensors, or 1 for the index and 1 for each shard's head; 1 more for every header above
128 KiB, and whatever redirects and retries add. A commit never changes, so with a cache directory
a known model costs 1 request, and none when the revision asked for is a commit hash. (Beside
that, huggingface_hub asks its default endpoint once a day for a list of agent names to put into
its user agent, unless HF_HUB_DISABLE_TELEMETRY is set.)

The token is the machine's (HF_TOKEN or what `hf auth login` left) and no reason quotes a text of
the HTTP client or of the server, because such texts can repeat request headers.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from pipeline.checkpoint_files import MAX_HEADER_BYTES, Refused, read_checkpoint
from pipeline.hub_client import Hub, RepositoryFiles
from pipeline.placement import Checkpoint
from pipeline.record import Refusal, write_atomically
from pipeline.words import Failure, is_model_id

_CACHE_FORMAT = 1
_COMMIT = re.compile(r"[0-9a-f]{40}")

T = TypeVar("T")


@dataclass(frozen=True)
class CheckpointRef:
    """Which checkpoint: a repository on the Hub, or with `source` a local directory."""

    model_id: str
    source: Path | None = None
    revision: str | None = None
    """Branch, tag or commit; for a directory its digest. None = whatever is there now."""


def inspect(
    model_id: str,
    *,
    source: Path | None = None,
    revision: str | None = None,
    endpoint: str | None = None,
    cache: Path | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Checkpoint | Refusal:
    """The facts of one checkpoint, or the reason why there are none; never an exception for it.

    source: a directory that holds the checkpoint. Its revision is "sha256:" and 40 hex digits
    over the relative name, size and content of all its files, hidden ones (a path part that
    begins with ".") and those behind linked directories apart.
    endpoint: the Hub's address; None = HF_ENDPOINT or the public Hub.
    cache: directory for facts of commits; None = none. A broken entry is read anew.
    sleep: how to wait between attempts, in seconds.

    Refusals: `gated`; `missing` (repository, revision or directory); `download` (no network,
    HTTP 5xx or 429 to the end, token refused, unreadable file); `unsupported_checkpoint` (no
    config.json, or config, index or safetensors header not what the format says). A repository
    without safetensors gives a Checkpoint without tensors.
    """
    ref = CheckpointRef(model_id, source, revision)
    return inspect_all([ref], workers=1, endpoint=endpoint, cache=cache, sleep=sleep)[0]


def inspect_all(
    refs: Sequence[CheckpointRef],
    *,
    workers: int = 8,
    endpoint: str | None = None,
    cache: Path | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Checkpoint | Refusal]:
    """`inspect` of every ref, in their order, `workers` at a time; equal refs are asked once.

    After one request failed to its last attempt, others get a single attempt until one succeeds:
    a Hub that is away costs minutes, not minutes a model.
    """
    unique = list(dict.fromkeys(refs))
    with Hub(endpoint, sleep) as hub, ThreadPoolExecutor(workers) as pool:
        outcomes = pool.map(lambda ref: _inspect(ref, hub, cache), unique)
        found = dict(zip(unique, outcomes, strict=True))
    return [found[ref] for ref in refs]


def _inspect(ref: CheckpointRef, hub: Hub, cache: Path | None) -> Checkpoint | Refusal:
    try:
        if ref.source is not None:
            return _inspect_directory(ref.model_id, ref.source, ref.revision)
        return _inspect_repository(ref.model_id, ref.revision, hub, cache)
    except Refused as refused:
        return refused.refusal


# A local directory


@dataclass(frozen=True)
class _DirectoryFiles:
    root: Path

    @property
    def where(self) -> str:
        return str(self.root)

    def has(self, name: str) -> bool:
        return (self.root / name).is_file()

    def text(self, name: str) -> bytes:
        return self.read(name, 0, MAX_HEADER_BYTES + 1)[0]

    def read(self, name: str, start: int, length: int) -> tuple[bytes, int]:
        with (self.root / name).open("rb") as stream:
            stream.seek(start)
            return stream.read(length), os.fstat(stream.fileno()).st_size

    def each(self, function: Callable[[str], T], names: Sequence[str]) -> list[T]:
        return [function(name) for name in names]


def _inspect_directory(model_id: str, root: Path, revision: str | None) -> Checkpoint:
    try:
        if not root.is_dir():
            fault = "is not a directory" if root.exists() else "does not exist"
            raise Refused(Failure.MISSING, f"the local checkpoint {root} {fault}")
        checkpoint = read_checkpoint(_DirectoryFiles(root), model_id, "")
        found = directory_revision(root)
    except OSError as error:
        raise Refused(
            Failure.DOWNLOAD,
            f"{error.filename or root} cannot be read: {error.strerror or type(error).__name__}",
        ) from error
    if revision not in (None, found):
        raise Refused(
            Failure.MISSING, f"the local checkpoint {root} is {found}, not the pinned {revision!r}"
        )
    return replace(checkpoint, revision=found)


def directory_revision(root: Path) -> str:
    """`sha256:` and 40 hex digits (the length of a commit) over all visible files of `root`.

    Reads every file whole. OSError when one cannot be read.
    """
    digest = hashlib.sha256()
    for name, path in sorted(_visible_files(root)):
        with path.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").digest()
            size = stream.tell()
        digest.update(b"%s\0%d\0%s" % (name, size, content))
    return f"sha256:{digest.hexdigest()[:40]}"


def _visible_files(root: Path) -> Iterator[tuple[bytes, Path]]:
    """(relative name, path) of each regular file or link to one; names begin with no "."."""

    def fail(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(root, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(folder, name)
            if not name.startswith(".") and path.is_file():
                yield os.fsencode(path.relative_to(root).as_posix()), path


# The Hub


def _inspect_repository(
    model_id: str, revision: str | None, hub: Hub, cache: Path | None
) -> Checkpoint:
    if not is_model_id(model_id):
        raise Refused(Failure.MISSING, f"{model_id[:200]!r} is not a repository id of the Hub")
    pinned = revision is not None and _COMMIT.fullmatch(revision) is not None
    if pinned and (known := _recall(cache, model_id, str(revision))):
        return known
    info = hub.model_info(model_id, revision)
    commit = info.sha or ""
    if not _COMMIT.fullmatch(commit) or info.siblings is None or (pinned and commit != revision):
        raise Refused(
            Failure.DOWNLOAD,
            f"the Hub's description of {model_id} names no commit, another commit than the one "
            "asked for, or no files",
        )
    if known := _recall(cache, model_id, commit):
        return known
    names = frozenset(sibling.rfilename for sibling in info.siblings)
    files = RepositoryFiles(hub, model_id, commit, names, bool(info.gated))
    checkpoint = read_checkpoint(files, model_id, commit)
    _remember(cache, checkpoint)
    return checkpoint


# Facts of commits on disk


@functools.cache
def _checkpoint_type() -> TypeAdapter[Checkpoint]:
    return TypeAdapter(Checkpoint)


def _cache_path(cache: Path, model_id: str, commit: str) -> Path:
    return cache / f"{model_id.replace('/', '--')}@{commit}.json"


def _recall(cache: Path | None, model_id: str, commit: str) -> Checkpoint | None:
    """The facts kept of that commit; None when there are none, or not whole."""
    if cache is None:
        return None
    try:
        stored = json.loads(_cache_path(cache, model_id, commit).read_bytes())
        known = _checkpoint_type().validate_python(stored["checkpoint"])
        whole = known.checkpoint_bytes == sum(tensor.bytes for tensor in known.tensors)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    same = (stored.get("format"), known.model_id, known.revision)
    return known if whole and same == (_CACHE_FORMAT, model_id, commit) else None


def _remember(cache: Path | None, checkpoint: Checkpoint) -> None:
    if cache is None:
        return
    # json and not pydantic: configs hold Infinity (state-space models), which pydantic nulls.
    text = json.dumps({"format": _CACHE_FORMAT, "checkpoint": asdict(checkpoint)})
    path = _cache_path(cache, checkpoint.model_id, checkpoint.revision)
    try:
        write_atomically(path, text.encode())
    except OSError:
        return  # the facts are at hand; only the next plan's requests are not saved
