"""Requests to the Hub: through huggingface_hub's own client, with retries and bounded reads.

What cannot be had raises Refused, in our words only: no reason quotes a text of the HTTP client
or of the server, because such texts can repeat request headers, and with them the token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from pipeline.checkpoint_files import MAX_HEADER_BYTES, Refused, unsupported
from pipeline.words import Failure

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

BACKOFF_S = (1.0, 2.0, 4.0, 8.0)
"""Waits between the five attempts of a request."""
MAX_WAIT_S = 300.0
"""Longest single wait that the server can ask for: the Hub counts requests in windows of five
minutes (https://huggingface.co/docs/hub/rate-limits)."""
TIMEOUT_S = 30.0
SHARD_WORKERS = 8
"""Shard headers read at once, over all models together."""

_LISTED: tuple[
    Literal[
        "downloads", "gated", "library_name", "likes", "private", "safetensors", "trendingScore"
    ],
    ...,
] = ("downloads", "gated", "library_name", "likes", "private", "safetensors", "trendingScore")
"""What a listing says of each model, beside its id."""

T = TypeVar("T")


@dataclass(frozen=True)
class RepositoryFiles:
    """The files of a repository on the Hub at one commit: see checkpoint_files.Files."""

    hub: Hub
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
            raise Refused(Failure.DOWNLOAD, f"{self.where}: the Hub did not say how long {name} is")
        return data, size

    def each(self, function: Callable[[str], T], names: Sequence[str]) -> list[T]:
        return list(self.hub.shards.map(function, names))


class Hub:
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

    def ranked(
        self, task: str, sort: Literal["trending_score", "downloads"], limit: int
    ) -> list[ModelInfo]:
        """The first `limit` models of a task in the Hub's own order, the highest first.

        One request a page of the Hub's choice. Here the library has retries of its own, which wait
        with time.sleep; those of this class come on top.
        """
        from huggingface_hub import HfApi

        api = HfApi(endpoint=self._endpoint, library_name="trn-qualify")
        return self._ask(
            lambda: list(
                api.list_models(pipeline_tag=task, sort=sort, limit=limit, expand=[*_LISTED])
            ),
            f"the Hub's {task} models by {sort}",
        )

    def fetch(
        self, files: RepositoryFiles, name: str, part: range | None
    ) -> tuple[bytes, int | None]:
        """(the bytes at `part`, or all up to MAX_HEADER_BYTES + 1; the file's size)."""
        return self._ask(
            lambda: self._fetch(files, name, part), f"{name} of {files.where}", files.gated
        )

    def _fetch(
        self, files: RepositoryFiles, name: str, part: range | None
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
        """`call()`, again while the Hub is busy or away; Refused when it stays so."""
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


def _refused(error: Exception, what: str, attempts: int, gated: bool) -> Refused:
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
        return Refused(
            Failure.GATED, f"{what}: the repository is gated and this machine may not read it"
        )
    if isinstance(error, RepositoryNotFoundError):
        return Refused(
            Failure.MISSING, f"{what} does not exist, or is private and not open to this machine"
        )
    if isinstance(error, RevisionNotFoundError):
        return Refused(Failure.MISSING, f"{what} does not exist: no such revision")
    if isinstance(error, EntryNotFoundError):
        return unsupported(f"{what} is not there")
    if isinstance(error, OfflineModeIsEnabled):
        fault = "HF_HUB_OFFLINE is set"
    elif status == 401:
        fault = "the Hub does not accept this machine's token (HTTP 401)"
    elif status is not None:
        fault = f"the Hub answered HTTP {status}"
    else:
        fault = f"the Hub could not be read ({_kind(error)})"
    tried = f", {attempts} attempts" if attempts > 1 else ""
    return Refused(Failure.DOWNLOAD, f"{what}: {fault}{tried}")


def _kind(error: BaseException) -> str:
    """The error's class, with the operating system's words where it began with an OSError."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno and cause.strerror:
            return f"{type(error).__name__}: {cause.strerror}"
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__
