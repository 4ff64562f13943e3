"""Facts about checkpoints, from the Hub or a local directory, without reading any weights.

`inspect` says what a checkpoint holds (commit, config.json, name, dtype and shape of each stored
tensor), or why that cannot be known. Which file holds the weights is decided as
`from_pretrained` does: the config's `transformers_weights`, else model.safetensors, else
model.safetensors.index.json. Of shards only the tensors in the index's weight_map count, so that
second copies (`original/`, `consolidated.safetensors`) do not.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from pydantic import TypeAdapter

from pipeline.placement import Checkpoint, Tensor
from pipeline.record import Failure, Refusal, is_model_id, write_atomically

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

FIRST_BYTES = 128 * 1024
"""Read of every safetensors file at once. huggingface_hub reads 100 kB, which held the header of
97 % of files (https://github.com/huggingface/huggingface_hub/pull/1855)."""
MAX_HEADER_BYTES = 100_000_000
"""Longest header that the safetensors library reads; here also the limit of a JSON file."""
BACKOFF_S = (1.0, 2.0, 4.0, 8.0)
"""Waits between the five attempts of a request."""
MAX_WAIT_S = 300.0
"""Longest single wait that the server can ask for: the Hub counts requests in windows of five
minutes (https://huggingface.co/docs/hub/rate-limits)."""
TIMEOUT_S = 30.0
SHARD_WORKERS = 8
"""Shard headers read at once, over all models together."""

_CACHE_FORMAT = 1
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MAX_REASON = 1_000

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
    with _Hub(endpoint, sleep) as hub, ThreadPoolExecutor(workers) as pool:
        outcomes = pool.map(lambda ref: _inspect(ref, hub, cache), unique)
        found = dict(zip(unique, outcomes, strict=True))
    return [found[ref] for ref in refs]


class _Refused(Exception):
    """Ends the inspection of one checkpoint; `refusal` is its outcome."""

    def __init__(self, failure: Failure, reason: str) -> None:
        super().__init__(reason)
        # File names may hold bytes that are not UTF-8, and names in headers may be of any length.
        text = reason[:_MAX_REASON].encode("utf-8", "backslashreplace").decode()
        self.refusal = Refusal(failure=failure, reason=text)


def _unsupported(reason: str) -> _Refused:
    return _Refused(Failure.UNSUPPORTED_CHECKPOINT, reason)


def _inspect(ref: CheckpointRef, hub: _Hub, cache: Path | None) -> Checkpoint | Refusal:
    try:
        if ref.source is not None:
            return _inspect_directory(ref.model_id, ref.source, ref.revision)
        return _inspect_repository(ref.model_id, ref.revision, hub, cache)
    except _Refused as refused:
        return refused.refusal


class _Files(Protocol):
    """The files of one checkpoint at one revision, wherever they are."""

    @property
    def where(self) -> str:
        """Repository or directory, for reasons."""

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""

    def text(self, name: str) -> bytes:
        """A whole small file, cut above MAX_HEADER_BYTES."""

    def read(self, name: str, start: int, length: int) -> tuple[bytes, int]:
        """(at most `length` bytes from `start`, size of the whole file)."""

    def each(self, function: Callable[[str], T], names: Sequence[str]) -> list[T]:
        """`function` of every name, in order."""


# What the files say


def _checkpoint(files: _Files, model_id: str, revision: str) -> Checkpoint:
    if not files.has(CONFIG):
        raise _unsupported(f"{files.where} has no {CONFIG}")
    config = _json_object(files, CONFIG)
    tensors = _stored_tensors(files, config)
    return Checkpoint(
        model_id=model_id,
        revision=revision,
        config=config,
        tensors=tensors,
        checkpoint_bytes=sum(tensor.bytes for tensor in tensors),
        remote_code=bool(config.get("auto_map")),
    )


def _json_object(files: _Files, name: str) -> dict[str, Any]:
    text = files.text(name)
    if len(text) > MAX_HEADER_BYTES:
        raise _unsupported(f"{files.where}: {name} is longer than {MAX_HEADER_BYTES} bytes")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unsupported(f"{files.where}: {name} is not JSON") from error
    if not isinstance(value, dict):
        raise _unsupported(f"{files.where}: {name} is not a JSON object")
    return value


def _stored_tensors(files: _Files, config: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The tensors that from_pretrained would find, by name; () without safetensors."""
    weights = config.get("transformers_weights")
    if weights is None:
        weights = next((name for name in (SINGLE, INDEX) if files.has(name)), None)
        if weights is None:
            return ()
    elif not _is_inside(weights) or not files.has(weights):
        raise _unsupported(
            f"{files.where}: {CONFIG} names {weights!r} (transformers_weights), which is not there"
        )
    elif not weights.endswith((".safetensors", ".safetensors.index.json")):
        return ()
    if weights.endswith(".index.json"):
        found = _indexed_tensors(files, weights)
    else:
        found = _header(files, weights)
    return tuple(found[name] for name in sorted(found))


def _indexed_tensors(files: _Files, index: str) -> dict[str, Tensor]:
    weight_map = _json_object(files, index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(map(_is_inside, weight_map.values())):
        raise _unsupported(f"{files.where}: {index} has no weight_map of tensor names to files")
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not files.has(shard)]
    if missing:
        raise _unsupported(
            f"{files.where}: {len(missing)} of {len(shards)} files that {index} names are not "
            f"there, {missing[0]!r} first"
        )
    found = files.each(lambda shard: _header(files, shard), shards)
    headers = dict(zip(shards, found, strict=True))
    for name, shard in weight_map.items():
        if name not in headers[shard]:
            raise _unsupported(
                f"{files.where}: {index} places {name[:200]!r} in {shard!r}, which does not hold it"
            )
    return {name: headers[shard][name] for name, shard in weight_map.items()}


def _is_inside(name: object) -> bool:
    """Whether `name` is a file name that cannot leave the checkpoint's directory."""
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


# Safetensors headers: https://huggingface.co/docs/safetensors/index#format


def _header(files: _Files, name: str) -> dict[str, Tensor]:
    """The tensors of one safetensors file by name."""
    where = f"{files.where}: {name}"
    head, size = files.read(name, 0, FIRST_BYTES)
    if head.startswith(b"version https://git-lfs"):
        raise _unsupported(f"{where} is a Git LFS pointer, not the weights")
    if len(head) < 8:
        raise _unsupported(f"{where} is cut: {size} bytes hold no safetensors header")
    length = int.from_bytes(head[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise _unsupported(
            f"{where} is not safetensors: its header would be {length} bytes long, above the "
            f"format's limit of {MAX_HEADER_BYTES}"
        )
    end = 8 + length
    if end > len(head) and end <= size:
        head += files.read(name, len(head), end - len(head))[0]
    if end > len(head):
        raise _unsupported(f"{where} is cut: its header ends at byte {end} of {size}")
    return _parse_header(head[8:end], size - end, where)


def _parse_header(text: bytes, data_bytes: int, where: str) -> dict[str, Tensor]:
    """text: the JSON header; data_bytes: what follows it in the file."""
    try:
        header = json.loads(text.decode(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise _unsupported(f"{where}: the safetensors header is not JSON") from error
    if not isinstance(header, dict):
        raise _unsupported(f"{where}: the safetensors header is not a JSON object")
    header.pop("__metadata__", None)
    tensors = {}
    spans = []
    for name, entry in header.items():
        tensors[name], span = _parse_entry(name, entry, where)
        spans.append((*span, name))
    position = 0
    for begin, end, name in sorted(spans):
        if end > data_bytes:
            raise _unsupported(
                f"{where}: the data of {name[:200]!r} ends at byte {end} of {data_bytes}: the "
                "file is cut or its header is wrong"
            )
        if begin != position:
            fault = "overlaps the tensor before it" if begin < position else "follows a gap"
            raise _unsupported(f"{where}: the data of {name[:200]!r} {fault}")
        position = end
    if position != data_bytes:
        raise _unsupported(f"{where}: {data_bytes - position} bytes at the end belong to no tensor")
    return tensors


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value


def _parse_entry(name: str, entry: object, where: str) -> tuple[Tensor, tuple[int, int]]:
    """(tensor, its data_offsets), the two in agreement."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end]} if all(
            type(number) is int and 0 <= number < 2**63 for number in (*shape, begin, end)
        ):
            tensor = Tensor(name, dtype, tuple(shape))
        case _:
            raise _unsupported(f"{where}: the header's entry {name[:200]!r} is malformed")
    try:
        expected = tensor.bytes
    except KeyError as error:
        raise _unsupported(f"{where}: {name[:200]!r} has unknown dtype {dtype[:50]!r}") from error
    if end - begin != expected:
        raise _unsupported(
            f"{where}: {name[:200]!r} spans {end - begin} bytes, but its dtype and shape take "
            f"{expected if expected < 2**63 else 'far more'}"
        )
    return tensor, (begin, end)


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
            raise _Refused(Failure.MISSING, f"the local checkpoint {root} {fault}")
        checkpoint = _checkpoint(_DirectoryFiles(root), model_id, "")
        found = directory_revision(root)
    except OSError as error:
        raise _Refused(
            Failure.DOWNLOAD,
            f"{error.filename or root} cannot be read: {error.strerror or type(error).__name__}",
        ) from error
    if revision not in (None, found):
        raise _Refused(
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


@dataclass(frozen=True)
class _RepositoryFiles:
    hub: _Hub
    model_id: str
    commit: str
    names: frozenset[str]
    gated: bool

    @property
    def where(self) -> str:
        return f"{self.model_id} at {self.commit[:12]}"

    def has(self, name: str) -> bool:
        return name in self.names

    def text(self, name: str) -> bytes:
        return self.hub.fetch(self, name, None)[0]

    def read(self, name: str, start: int, length: int) -> tuple[bytes, int]:
        data, size = self.hub.fetch(self, name, range(start, start + length))
        if size is None:
            raise _Refused(
                Failure.DOWNLOAD, f"{self.where}: the Hub did not say how long {name} is"
            )
        return data, size

    def each(self, function: Callable[[str], T], names: Sequence[str]) -> list[T]:
        return list(self.hub.shards.map(function, names))


def _inspect_repository(
    model_id: str, revision: str | None, hub: _Hub, cache: Path | None
) -> Checkpoint:
    if not is_model_id(model_id):
        raise _Refused(Failure.MISSING, f"{model_id[:200]!r} is not a repository id of the Hub")
    pinned = revision is not None and _COMMIT.fullmatch(revision) is not None
    if pinned and (known := _recall(cache, model_id, str(revision))):
        return known
    info = hub.model_info(model_id, revision)
    commit = info.sha or ""
    if not _COMMIT.fullmatch(commit) or info.siblings is None or (pinned and commit != revision):
        raise _Refused(
            Failure.DOWNLOAD,
            f"the Hub's description of {model_id} names no commit, another commit than the one "
            "asked for, or no files",
        )
    if known := _recall(cache, model_id, commit):
        return known
    names = frozenset(sibling.rfilename for sibling in info.siblings)
    files = _RepositoryFiles(hub, model_id, commit, names, bool(info.gated))
    checkpoint = _checkpoint(files, model_id, commit)
    _remember(cache, checkpoint)
    return checkpoint


class _Hub:
    """The Hub through huggingface_hub's own client: its token, proxies and redirects.

    The library's get_safetensors_metadata is not used: it spends two to five requests more a
    model, neither retries nor bounds what it reads, and takes offsets unchecked.
    """

    def __init__(self, endpoint: str | None, sleep: Callable[[float], None]) -> None:
        self._endpoint = endpoint.rstrip("/") if endpoint else None
        self._sleep = sleep
        self._in_reach = True
        self.shards = ThreadPoolExecutor(SHARD_WORKERS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shards.shutdown(cancel_futures=True)

    def model_info(self, model_id: str, revision: str | None) -> ModelInfo:
        """Commit, file names and gate of a repository: one request."""
        from huggingface_hub import HfApi

        api = HfApi(endpoint=self._endpoint, library_name="trn-qualify")
        what = f"repository {model_id}" + (f" at revision {revision!r}" if revision else "")
        return self._ask(
            lambda: api.model_info(
                model_id,
                revision=revision,
                timeout=TIMEOUT_S,
                expand=["sha", "gated", "siblings"],
            ),
            what,
        )

    def fetch(
        self, files: _RepositoryFiles, name: str, part: range | None
    ) -> tuple[bytes, int | None]:
        """(the bytes at `part`, or all up to MAX_HEADER_BYTES + 1; the file's size)."""
        return self._ask(
            lambda: self._fetch(files, name, part), f"{name} of {files.where}", files.gated
        )

    def _fetch(
        self, files: _RepositoryFiles, name: str, part: range | None
    ) -> tuple[bytes, int | None]:
        from huggingface_hub import get_session, hf_hub_url, hf_raise_for_status

        # Public, but exported lazily, which mypy does not follow.
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        url = hf_hub_url(files.model_id, name, revision=files.commit, endpoint=self._endpoint)
        headers = build_hf_headers(library_name="trn-qualify")
        if part is not None:
            headers["Range"] = f"bytes={part.start}-{part.stop - 1}"
            headers["Accept-Encoding"] = "identity"
        # Streamed, so that a server that ignores Range does not send the weights.
        with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S) as response:
            if response.status_code == 416:  # an empty file has no bytes to range over
                return b"", _total(response.headers.get("Content-Range"))
            hf_raise_for_status(response)
            if response.status_code not in (200, 206):
                raise ValueError(f"HTTP {response.status_code}")
            whole = response.status_code == 200
            start = part.start if part and whole else 0
            stop = start + (len(part) if part else MAX_HEADER_BYTES + 1)
            data = bytearray()
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) >= stop:
                    break
            size = response.headers.get("Content-Length" if whole else "Content-Range")
            return bytes(data[start:stop]), _total(size)

    def _ask(self, call: Callable[[], T], what: str, gated: bool = False) -> T:
        """`call()`, again while the Hub is busy or away; _Refused when it stays so."""
        waits = iter(BACKOFF_S if self._in_reach else ())
        attempts = 0
        while True:
            attempts += 1
            try:
                answer = call()
            # The client documents no closed set: its HTTP library's errors, OSError, and
            # ValueError, KeyError or TypeError on an answer that is not what it expects.
            except Exception as error:
                wait = _wait(error)
                pause = next(waits, None)
                if wait is None or pause is None:
                    self._in_reach = wait is None
                    raise _refused(error, what, attempts, gated) from error
            else:
                self._in_reach = True
                return answer
            self._sleep(max(pause, min(wait, MAX_WAIT_S)))


def _total(header: str | None) -> int | None:
    """The size in "bytes 0-99/1234" or "1234"; None when it is not there."""
    size = (header or "").rpartition("/")[2]
    return int(size) if re.fullmatch(r"[0-9]{1,18}", size) else None


def _wait(error: Exception) -> float | None:
    """Seconds that the server asks to wait before another attempt, 0 = does not say.

    None: another attempt would not help.
    """
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if isinstance(error, HfHubHTTPError):
        headers = error.response.headers
        if error.response.status_code < 500 and error.response.status_code != 429:
            return None
        asked = re.fullmatch(r"([0-9]{1,9})", headers.get("Retry-After", "").strip())
        # The Hub's own: `"api";r=0;t=55`, r requests left in this window, which ends in t seconds.
        asked = asked or re.search(r";r=0;t=([0-9]{1,9})", headers.get("RateLimit", ""))
        return float(asked[1]) + 1.0 if asked else 0.0  # 1 s, since both are whole seconds
    # Refused and cut connections reach us as errors of the HTTP library (httpx in 1.x, httpx2 in
    # 2.x), which are no OSError; HfHubHTTPError derives from their common class in both.
    if isinstance(error, HfHubHTTPError.__bases__) and not isinstance(error, OfflineModeIsEnabled):
        return 0.0
    return None


def _refused(error: Exception, what: str, attempts: int, gated: bool) -> _Refused:
    """The outcome that `error` stands for, in our words only: see the module's docstring."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    # GatedRepoError is a RepositoryNotFoundError: it comes first.
    if isinstance(error, GatedRepoError) or (gated and status == 403):
        return _Refused(
            Failure.GATED, f"{what}: the repository is gated and this machine may not read it"
        )
    if isinstance(error, RepositoryNotFoundError):
        return _Refused(
            Failure.MISSING, f"{what} does not exist, or is private and not open to this machine"
        )
    if isinstance(error, RevisionNotFoundError):
        return _Refused(Failure.MISSING, f"{what} does not exist: no such revision")
    if isinstance(error, EntryNotFoundError):
        return _unsupported(f"{what} is not there")
    if isinstance(error, OfflineModeIsEnabled):
        fault = "HF_HUB_OFFLINE is set"
    elif status == 401:
        fault = "the Hub does not accept this machine's token (HTTP 401)"
    elif status is not None:
        fault = f"the Hub answered HTTP {status}"
    else:
        fault = f"the Hub could not be read ({_kind(error)})"
    tried = f", {attempts} attempts" if attempts > 1 else ""
    return _Refused(Failure.DOWNLOAD, f"{what}: {fault}{tried}")


def _kind(error: BaseException) -> str:
    """The error's class, with the operating system's words where it began with an OSError."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno and cause.strerror:
            return f"{type(error).__name__}: {cause.strerror}"
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


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
