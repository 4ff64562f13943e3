"""Where compiled graphs are kept: a directory, a bucket of the Hub, any other fsspec file system.

A store moves files under paths and knows nothing of what they mean; `pipeline.cache` does. It may
be away, slow or wrong at any time, so none of its calls raises or outlasts its limit: each says
what it moved and, in one sentence, what went wrong. Sentences name classes and codes, and never
quote a text of a client or server, because such texts can repeat request headers.

Local stores are worked on here. Remote ones are worked on by a process of its own (`python -m
pipeline.store`), which can be ended: a thread in foreign native code (hf_xet) cannot.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypedDict
from urllib.parse import urlsplit, urlunsplit

from pipeline.errors import EnvironmentFault, UsageError
from pipeline.processes import Unanswered, ask, module_environment

LIMIT_S = 60.0
"""Seconds that one transfer may take beside the time for its bytes. huggingface_hub itself retries
a server that is away for half of it; a small model's cold compilation took 576 s on trn2
(https://github.com/dacorvo/hf-mount-cache-examples), so waiting much longer gains nothing."""
SLOW_BYTES_PER_S = 8 * 1024**2
"""A store below this rate is not waited for. A round figure, far below any cloud's network."""
WORKERS = 8
"""Files moved at once from or to a remote store. A round figure: the most of a small model's files
are below a megabyte, so requests wait for each other, not for bandwidth."""

_BUCKETS = "hf://buckets/"
_LOCAL = ("file", "local", "memory")
_GIVE_UP = 8
"""Files that fail before the rest of a transfer is not tried any more."""
_EXTRAS = {"s3": "s3", "s3a": "s3"}
"""Schemes whose driver is an extra of this package: versions that were tried together."""


@dataclass(frozen=True)
class Moved:
    """What a call did. paths: the files that were moved or found; problem: what went wrong."""

    paths: tuple[str, ...]
    problem: str | None


class _Answer(TypedDict):
    paths: list[str]
    problem: str | None


@dataclass(frozen=True)
class Store:
    """A store that `open_store` has checked the name of. Paths in it are relative, with "/".

    public_url: under what others reach it, without credentials; None for a store of this machine.
    limit_s: see LIMIT_S.
    """

    url: str
    public_url: str | None
    limit_s: float = LIMIT_S

    def fetch(self, files: Mapping[str, Path], *, size: int = 0) -> Moved:
        """Bring store path -> local path; paths that are not there do not arrive, and that is all.

        `size`: expected bytes, which the time allowed grows with. After a problem, a file that
        arrived may be cut short.
        """
        problem = self._call("fetch", files, size)["problem"]
        return Moved(tuple(path for path, local in files.items() if local.is_file()), problem)

    def put(self, files: Mapping[str, Path]) -> Moved:
        """Write store path <- local path, each in one step where the file system has one."""
        size = sum(local.stat().st_size for local in files.values())
        answer = self._call("put", files, size)
        return Moved(tuple(answer["paths"]), answer["problem"])

    def find(self, folder: str) -> Moved:
        """Paths of all files below a folder, sorted; none when it is not there."""
        answer = self._call("find", {folder: Path()}, 0)
        inside = sorted(path for path in answer["paths"] if path.startswith(f"{folder}/"))
        return Moved(tuple(inside), answer["problem"])

    def _call(self, work: str, files: Mapping[str, Path], size: int) -> _Answer:
        if not files:
            return _Answer(paths=[], problem=None)
        limit_s = self.limit_s + size / SLOW_BYTES_PER_S
        asked = {path: str(local.absolute()) for path, local in files.items()}
        if _scheme(self.url) in _LOCAL:
            answer = _in_thread(lambda: _work(self.url, work, asked), limit_s)
        else:
            answer = _in_process({"url": self.url, "work": work, "files": asked}, limit_s)
        if answer["problem"]:
            answer["problem"] = f"the store {self.public_url or self.url}: {answer['problem']}"
        return answer


def open_store(url: str, *, limit_s: float = LIMIT_S) -> Store:
    """The store at a path or URL. Nothing is reached yet.

    A local path, file://, memory:// (this process only), hf://buckets/<owner>/<name>[/<folder>],
    s3://<bucket>[/<folder>], or any other URL fsspec has a driver for. UsageError for a URL that
    cannot be a store, EnvironmentFault when the driver's package is not installed.
    """
    scheme = _scheme(url)
    if scheme == "hf":
        if not url.startswith(_BUCKETS) or len(list(filter(None, _bucket_parts(url)[:2]))) < 2:
            raise UsageError(
                f"{_without_secrets(url)} is no store: of the Hub only buckets are",
                remedy="write hf://buckets/<owner>/<name> or hf://buckets/<owner>/<name>/<folder>",
            )
        _need("hf_xet", "hf-xet", url)
    else:
        _need_driver(scheme, url)
    return Store(url, None if scheme in _LOCAL else _without_secrets(url), limit_s)


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme if separator else "file"


def _without_secrets(url: str) -> str:
    """A URL that may stand on a page: no user, no password, no query, no slash at the end."""
    if _scheme(url) == "file":
        return url
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def _need(module: str, package: str, url: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise EnvironmentFault(
            f"{_without_secrets(url)} needs the package {package}, which is not installed",
            remedy=f'pip install "{package}"',
        )


def _need_driver(scheme: str, url: str) -> None:
    import fsspec
    from fsspec.registry import known_implementations

    try:
        fsspec.get_filesystem_class(scheme)
    except ValueError as error:
        raise UsageError(
            f"{_without_secrets(url)} is no store: nothing is known of {scheme}://",
            remedy="use a local path, hf://buckets/..., s3://... or another URL of fsspec",
        ) from error
    except ImportError as error:
        driver = str(known_implementations.get(scheme, {}).get("class", scheme)).split(".")[0]
        cause = error.__cause__
        if driver == "fsspec" and isinstance(cause, ImportError) and cause.name:
            driver = cause.name
        extra = _EXTRAS.get(scheme)
        raise EnvironmentFault(
            f"{_without_secrets(url)} needs the package {driver}, which is not installed",
            remedy=f'pip install "{f"trn-qualify[{extra}]" if extra else driver}"',
        ) from error


def _in_thread(call: Callable[[], _Answer], limit_s: float) -> _Answer:
    """What `call` gives within the limit; its thread is left behind when it hangs in the disk."""
    answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
    threading.Thread(target=lambda: answers.put(call()), daemon=True).start()
    try:
        return answers.get(timeout=limit_s)
    except queue.Empty:
        return _Answer(paths=[], problem=f"did not answer within {limit_s:.3g} s")


def _in_process(question: Mapping[str, Any], limit_s: float) -> _Answer:
    try:
        told = json.loads(
            ask(
                [sys.executable, "-m", "pipeline.store"],
                json.dumps(question).encode(),
                limit_s=limit_s,
                environment=module_environment(),
            )
        )
        return _Answer(paths=told["paths"], problem=told["problem"])
    except Unanswered as error:
        # What follows the colon is the last line a client wrote, and is not repeated.
        return _Answer(paths=[], problem=f"its client {str(error).partition(':')[0]}")
    except (ValueError, KeyError, TypeError):
        return _Answer(paths=[], problem="its client gave no answer")


class _Client(Protocol):
    def fetch(self, files: Mapping[str, str]) -> _Answer: ...
    def put(self, files: Mapping[str, str]) -> _Answer: ...
    def find(self, folder: str) -> _Answer: ...


def _work(url: str, work: str, files: Mapping[str, str]) -> _Answer:
    """Do one call of a store here and now, whatever it takes."""
    try:
        client: _Client = _Bucket(url) if url.startswith(_BUCKETS) else _FileSystem(url)
        if work == "fetch":
            return client.fetch(files)
        if work == "put":
            return client.put(files)
        return client.find(next(iter(files)))
    except Exception as error:  # the classes of every client there may be
        return _Answer(paths=[], problem=_told(error))


def _told(error: Exception) -> str:
    """An error in words that are ours: its class, and its code where it has one."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int) and status >= 400:
        return f"{type(error).__name__}, HTTP status {status}"
    if isinstance(error, OSError) and error.errno:
        return f"{type(error).__name__}, {os.strerror(error.errno)}"
    return type(error).__name__


class _FileSystem:
    """A store through fsspec, file by file."""

    def __init__(self, url: str) -> None:
        import fsspec

        # A listing remembered from before another machine saved is worth nothing.
        self._fs, root = fsspec.url_to_fs(url, use_listings_cache=False)
        self._root = root.rstrip("/")
        self._local = _scheme(url) in ("file", "local")
        self._workers = 1 if _scheme(url) in _LOCAL else WORKERS

    def fetch(self, files: Mapping[str, str]) -> _Answer:
        return self._each(self._fetch, files.items())

    def put(self, files: Mapping[str, str]) -> _Answer:
        return self._each(self._put, files.items())

    def find(self, folder: str) -> _Answer:
        found = self._fs.find(f"{self._root}/{folder}")
        paths = [str(path).removeprefix(f"{self._root}/") for path in found]
        return _Answer(paths=paths, problem=None)

    def _fetch(self, path: str, local: str) -> bool:
        """Whether it arrived: under its own name only when it is there to the last byte."""
        target = Path(local)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        try:
            self._fs.get_file(f"{self._root}/{path}", str(part))
        except FileNotFoundError:
            return False
        if not part.is_file():
            return False
        part.replace(target)
        return True

    def _put(self, path: str, local: str) -> bool:
        from fsspec.asyn import AsyncFileSystem

        target = f"{self._root}/{path}"
        if self._local:
            from pipeline.record import write_atomically  # not in the process of a remote store

            write_atomically(Path(target), Path(local).read_bytes())
            return True
        # Object stores, all of them asynchronous, have no folders, write in one step, and would
        # make a missing bucket here.
        if not isinstance(self._fs, AsyncFileSystem):
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        self._fs.put_file(local, target)
        return True

    def _each(self, move: Callable[[str, str], bool], files: Iterable[tuple[str, str]]) -> _Answer:
        moved: list[str] = []
        errors: list[Exception] = []

        def one(file: tuple[str, str]) -> None:
            if len(errors) >= _GIVE_UP and self._workers > 1:
                return
            try:
                if move(*file):
                    moved.append(file[0])
            except Exception as error:  # the classes of every driver there may be
                errors.append(error)

        if self._workers == 1:
            for file in files:
                one(file)
        else:
            with ThreadPoolExecutor(self._workers) as pool:
                list(pool.map(one, files))
        return _Answer(paths=moved, problem=_told(errors[0]) if errors else None)


def _bucket_parts(url: str) -> tuple[str, str, str]:
    """(owner, name, folder) of hf://buckets/<owner>/<name>[/<folder>]; missing parts are ""."""
    parts = url.removeprefix(_BUCKETS).rstrip("/").split("/", 2)
    owner, name, folder = (*parts, "", "")[:3]
    return owner, name, folder.strip("/")


class _Bucket:
    """A bucket of the Hub, many files a request.

    HfApi's calls rather than HfFileSystem: that one lists a folder for every file it reads, and
    sends a request for every file it writes, against a limit of 1 000 in five minutes
    (https://huggingface.co/docs/hub/rate-limits).
    """

    def __init__(self, url: str) -> None:
        from huggingface_hub import HfApi

        owner, name, folder = _bucket_parts(url)
        self._api = HfApi()
        self._id = f"{owner}/{name}"
        self._root = f"{folder}/" if folder else ""

    @cached_property
    def _failed(self) -> type[Exception]:
        from huggingface_hub.errors import BucketBatchError

        return BucketBatchError

    def fetch(self, files: Mapping[str, str]) -> _Answer:
        wanted = {f"{self._root}{path}": path for path in files}
        found = list(self._api.get_bucket_paths_info(self._id, list(wanted)))
        for file in found:
            Path(files[wanted[file.path]]).parent.mkdir(parents=True, exist_ok=True)
        # Raised by the whole group for one file that cannot be had; the others may be cut short.
        try:
            self._api.download_bucket_files(
                self._id, [(file, files[wanted[file.path]]) for file in found]
            )
        except Exception as error:  # RuntimeError from hf_xet, the client's own, the HTTP client's
            lost = 0
            for file in found:
                local = Path(files[wanted[file.path]])
                if lost >= _GIVE_UP or (local.is_file() and local.stat().st_size == file.size):
                    continue
                try:
                    self._api.download_bucket_files(self._id, [(file, local)])
                except Exception:
                    lost += 1
                    local.unlink(missing_ok=True)
            return _Answer(paths=[], problem=_told(error))
        return _Answer(paths=[wanted[file.path] for file in found], problem=None)

    def put(self, files: Mapping[str, str]) -> _Answer:
        add: list[tuple[str | Path | bytes, str]] = [
            (local, f"{self._root}{path}") for path, local in files.items()
        ]
        try:
            self._api.batch_bucket_files(self._id, add=add)
        except self._failed as error:
            lost = {failure["path"] for failure in getattr(error, "failures", [])}
            kept = [path for path in files if f"{self._root}{path}" not in lost]
            return _Answer(paths=kept if lost else [], problem=_told(error))
        return _Answer(paths=list(files), problem=None)

    def find(self, folder: str) -> _Answer:
        tree = self._api.list_bucket_tree(self._id, f"{self._root}{folder}", recursive=True)
        paths = [file.path.removeprefix(self._root) for file in tree if file.type == "file"]
        return _Answer(paths=paths, problem=None)


def _main() -> None:
    asked = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):  # the answer alone stands on standard output
        answer = _work(asked["url"], asked["work"], asked["files"])
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    _main()
