"""Results of other places as folders here: copies of sites and of datasets of the Hub.

A file of a site is fetched once for each content and held against its SHA-256. What was fetched
last time stands in, and is said to, when nothing can be reached.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from pipeline.errors import ResultsError, UsageError
from pipeline.phrases import moment
from pipeline.wishes import FILE

INDEX = "files.json"
"""Below a site's results/: what can be fetched, made by `listing`."""

MAX_INDEX_BYTES = 16 * 1024**2
MAX_FILE_BYTES = 1024**3
"""Of one file; a campaign of 20 000 models on one stack has about 100 MB."""

TIMEOUT_S = 30.0
WAITS_S = (0.5, 2.0)
"""Between the tries to get a file; one more follows the last."""

_PARALLEL = 8

_FETCHED = re.compile(
    r"models\.json"
    r"|(?:current|history)/(?:[0-9A-Za-z][0-9A-Za-z.+_!-]*/)*[0-9A-Za-z][0-9A-Za-z.+_!-]*\.parquet"
)
"""What readers of rows need; such a path leads nowhere else."""

_DATASET = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?/?", re.ASCII)


@dataclass(frozen=True)
class Copy:
    """A folder of results. notice: what a reader must know of it; "" = it is up to date."""

    folder: Path
    notice: str = ""


def listing(results: Path) -> bytes:
    """The file `INDEX` of a site: path below results/, size and SHA-256 of what readers fetch."""
    files = [
        {
            "path": path.relative_to(results).as_posix(),
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(results.rglob("*"))
        if path.is_file() and _FETCHED.fullmatch(path.relative_to(results).as_posix())
    ]
    lines = ",\n".join(json.dumps(one) for one in files)
    return f'{{"version": 1, "files": [\n{lines}\n]}}\n'.encode()


# --- sites --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _File:
    path: str
    bytes: int
    sha256: str


class _Unreachable(Exception):
    """No answer, or one that another moment may change: a copy may stand in."""


class _Refused(Exception):
    """An answer that says no, or is not what it says it is."""


def site(url: str, cache: Path) -> Copy:
    """A copy of the site's results, brought up to date; ResultsError when it cannot be had."""
    folder = cache / "sites" / f"{_slug(url)}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    try:
        try:
            _update(url, folder)
        except _Refused:  # it may have been replaced in the middle of this
            _update(url, folder)
        return Copy(folder)
    except _Refused as error:
        raise ResultsError(
            str(error),
            where=url,
            remedy=f"is it the address of a site that qualify site made? It has results/{INDEX}",
        ) from error
    except _Unreachable as error:
        at = _kept_at(folder)
        if at is None:
            raise ResultsError(
                f"could not be reached: {error}",
                where=url,
                remedy="see whether the address and this machine's network are right; "
                "a clone's folder or hf://datasets/OWNER/NAME can be named instead",
            ) from error
        told = f"{url} could not be reached: {error}; this is the copy of {moment(at)}"
        return Copy(folder, told)


def _slug(url: str) -> str:
    """Something of the address, for people who look into the cache."""
    return re.sub(r"[^0-9A-Za-z.]+", "-", url.partition("://")[2])[:60].strip("-.")


def _update(url: str, folder: Path) -> None:
    """Make `folder` hold exactly what the site lists now.

    All is fetched before anything is replaced, and the list is written last: a copy that was cut
    short is not what its list says, and not used.
    """
    data = _get(f"{url}/results/{INDEX}", MAX_INDEX_BYTES)
    files = _listed(data)
    with tempfile.TemporaryDirectory(dir=_made(folder), prefix=".incoming-") as name:
        incoming = Path(name)

        def fetch(numbered: tuple[int, _File]) -> tuple[Path, Path]:
            number, file = numbered
            content = _get(f"{url}/results/{quote(file.path)}", file.bytes)
            if not _is(file, content):
                raise _Refused(f"{file.path} is not the file that {INDEX} lists")
            (incoming / str(number)).write_bytes(content)
            return incoming / str(number), folder / file.path

        missing = [file for file in files if not _has(folder, file)]
        with ThreadPoolExecutor(_PARALLEL) as pool:
            fetched = list(pool.map(fetch, enumerate(missing)))
        for source, target in fetched:
            source.replace(_made(target.parent) / target.name)
        _remove_others(folder, {file.path for file in files})
        (incoming / INDEX).write_bytes(data)
        (incoming / INDEX).replace(folder / INDEX)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _remove_others(folder: Path, paths: set[str]) -> None:
    for name in ("current", "history", FILE):
        for path in [folder / name, *(folder / name).rglob("*")]:
            if path.is_file() and path.relative_to(folder).as_posix() not in paths:
                path.unlink()


def _kept_at(folder: Path) -> datetime | None:
    """When the copy was made; None when there is none, or it is not whole."""
    try:
        files = _listed((folder / INDEX).read_bytes())
        at = (folder / INDEX).stat().st_mtime
    except (OSError, _Refused):
        return None
    return datetime.fromtimestamp(at, UTC) if all(_has(folder, file) for file in files) else None


def _has(folder: Path, file: _File) -> bool:
    path = folder / file.path
    return path.is_file() and path.stat().st_size == file.bytes and _is(file, path.read_bytes())


def _is(file: _File, content: bytes) -> bool:
    return len(content) == file.bytes and hashlib.sha256(content).hexdigest() == file.sha256


def _listed(data: bytes) -> list[_File]:
    """The files that a list names; _Refused when it is none, or names one that is not ours."""
    try:
        told = json.loads(data)
        if told["version"] != 1:
            raise ValueError(f"version {told['version']!r}, expected 1")
        files = [_File(one["path"], one["bytes"], one["sha256"]) for one in told["files"]]
        for file in files:
            if not _FETCHED.fullmatch(file.path):
                raise ValueError(f"{file.path!r} is no file of results")
            if type(file.bytes) is not int or not 0 <= file.bytes <= MAX_FILE_BYTES:
                raise ValueError(f"{file.path}: {file.bytes!r} bytes; limit {MAX_FILE_BYTES}")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _Refused(f"results/{INDEX} is not a list of files: {error}") from error
    return files


def _get(url: str, most: int) -> bytes:
    """The content at an address, of at most so many bytes; more tries while it is out of reach."""
    for wait in (*WAITS_S, None):
        try:
            return _get_once(url, most)
        except _Unreachable:
            if wait is None:
                raise
            time.sleep(wait)
    raise AssertionError("unreachable")


def _get_once(url: str, most: int) -> bytes:
    request = Request(url, headers={"User-Agent": "trn-qualify"})  # noqa: S310 -- http(s) only
    try:
        with urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 -- as above
            if url.startswith("https:") and not answer.url.startswith("https:"):
                raise _Refused("it leads to an address without encryption")
            content: bytes = answer.read(most + 1)
    except HTTPError as error:
        told = f"HTTP {error.code} for {url}"
        if error.code == 429 or error.code >= 500:
            raise _Unreachable(told) from error
        raise _Refused(told) from error
    except (OSError, HTTPException) as error:  # URLError is an OSError
        reason = getattr(error, "reason", None) or error
        raise _Unreachable(str(reason) or type(error).__name__) from error
    if len(content) > most:
        raise _Refused(f"{url} is larger than {most} bytes")
    return content


# --- datasets of the Hub ------------------------------------------------------------------------


def dataset(text: str) -> Copy:
    """The newest snapshot of a dataset that `qualify publish --hub` made, or the one kept.

    ResultsError when neither can be had.
    """
    match = _DATASET.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is no dataset of the Hub", remedy="write hf://datasets/OWNER/NAME"
        )
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name, revision = match[1], match[2]
    wanted = ["current/**", "history/**", FILE]
    try:
        # What is fetched next would silently be the copy where the Hub is away.
        HfApi().dataset_info(name, revision=revision, timeout=TIMEOUT_S)
        folder = snapshot_download(
            name, repo_type="dataset", revision=revision, allow_patterns=wanted
        )
        return Copy(Path(folder))
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ResultsError(
            "there is no such dataset or revision, or this machine may not read it",
            where=text,
            remedy="see https://huggingface.co/datasets, and hf auth login for a private one",
        ) from error
    except Exception as error:
        # The client's HTTP library changed between its versions; only its own errors are named.
        status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
        kinds = (*HfHubHTTPError.__bases__, OSError, OfflineModeIsEnabled)
        if not isinstance(error, kinds) or isinstance(error, ResultsError):
            raise
        fault = (
            "HF_HUB_OFFLINE is set"
            if isinstance(error, OfflineModeIsEnabled)
            else (f"HTTP {status}" if status else type(error).__name__)
        )
        try:
            kept = Path(
                snapshot_download(
                    name,
                    repo_type="dataset",
                    revision=revision,
                    allow_patterns=wanted,
                    local_files_only=True,
                )
            )
        except LocalEntryNotFoundError:
            raise ResultsError(
                f"the Hub could not be read: {fault}",
                where=text,
                remedy="see whether this machine reaches the Hub; a clone's folder or a site's "
                "address can be named instead",
            ) from error
        return Copy(kept, f"the Hub could not be read: {fault}; this is an earlier copy")
