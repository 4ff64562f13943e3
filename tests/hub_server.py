"""A small HTTP server in the Hub's place, for the real huggingface_hub client.

It answers what the client asks for models, as the Hub does: lists, description, file tree, files at
a commit with HEAD, Range, ETag, X-Repo-Commit and, above all, X-Error-Code, without which the
client takes another branch than with the Hub. It can be told to fail, and it keeps a log. Datasets
are repositories named "datasets/owner/name"; `tests.dataset_server` lets clients write them.

    with HubServer() as hub:
        commit = hub.add("org/model", {"config.json": b"{}"})
        HfApi(endpoint=hub.url).model_info("org/model")
        assert [request.path for request in hub.log] == ["/api/models/org/model"]

`HF_ENDPOINT=hub.url` in a subprocess's environment lets any program that uses the Hub use it.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from tests.local_server import Handler, LocalServer

Content = bytes | Path
"""What a file holds: bytes, or a file of this machine that does."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a commit."""

    content: Content
    etag: str
    """Its SHA-256, as the Hub gives for large files."""
    large: bool = False
    """Whether it is kept as the Hub keeps large files."""

    @classmethod
    def of(cls, content: Content, *, large: bool = False) -> Self:
        with _open(content) as stream:
            return cls(content, hashlib.file_digest(stream, "sha256").hexdigest(), large)

    @property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    @property
    def blob(self) -> str:
        """Git's name of the content; any other name for a file of this machine, whose bytes are
        not read for it."""
        if not isinstance(self.content, bytes):
            return self.etag[:40]
        git = b"blob %d\0" % len(self.content) + self.content
        return hashlib.sha1(git, usedforsecurity=False).hexdigest()

    @property
    def entry(self) -> dict[str, Any]:
        """As trees tell it, beside its path."""
        entry: dict[str, Any] = {"type": "file", "size": self.size, "oid": self.blob}
        if self.large:
            entry["lfs"] = {"oid": self.etag, "size": self.size, "pointerSize": 130}
        return entry


@dataclass
class Listed:
    """What lists of models say of one, beside its id; None = the Hub leaves it out."""

    pipeline_tag: str
    downloads: Any = 0
    likes: Any = 0
    trending_score: Any = 0
    library_name: Any = "transformers"
    safetensors: Any = None
    """{"parameters": {dtype: elements}, "total": elements}."""
    private: Any = False
    gated: Any = False

    def fields(self) -> dict[str, Any]:
        """By the names of the API."""
        known = {
            "pipeline_tag": self.pipeline_tag,
            "downloads": self.downloads,
            "likes": self.likes,
            "trendingScore": self.trending_score,
            "library_name": self.library_name,
            "safetensors": self.safetensors,
            "private": self.private,
            "gated": self.gated,
        }
        return {name: value for name, value in known.items() if value is not None}


@dataclass
class Repository:
    """One repository: files of each commit, and what branches and tags point to."""

    commits: dict[str, dict[str, StoredFile]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: str | bool = False
    """False, "auto" or "manual": files are for `readers` only, the description for all."""
    private: bool = False
    """For anyone but `readers` the repository does not exist."""
    readers: set[str] = field(default_factory=set)
    """Tokens that may read it."""


@dataclass
class Request:
    """One request as it arrived, and what was sent for it."""

    method: str
    path: str
    """Without the query."""
    query: dict[str, list[str]]
    headers: dict[str, str]
    """By lower-case name."""
    status: int = 0
    sent: int = 0
    """Bytes of the body that were handed to the network."""


@dataclass
class Fault:
    """What goes wrong with requests whose path contains `match`."""

    match: str
    times: int
    status: int | None
    """The status to answer; None: begin the right answer and cut the connection in its body."""
    headers: dict[str, str]
    body: bytes


class HubServer(LocalServer):
    """Serves the repositories that were added until the `with` block ends."""

    def __init__(self, *, redirect: bool = False, ranges: bool = True) -> None:
        """redirect: files other than JSON are answered from `storage_url`, as the Hub's large
        files are. ranges: whether Range is honoured."""
        self.redirect = redirect
        self.ranges = ranges
        self.repositories: dict[str, Repository] = {}
        self.listed: dict[str, Listed] = {}
        """What `GET /api/models` lists, by id; such a model need not have a repository."""
        self.page = 100
        """The most models that one page of a list holds."""
        self.tokens: set[str] = set()
        """Tokens that exist; any other one is answered with 401."""
        self.log: list[Request] = []
        self.most_at_once = 0
        """The largest number of requests that were served at the same time."""
        self._faults: list[Fault] = []
        self._running = 0
        self._lock = threading.Lock()
        super().__init__(self._handler())

    def _handler(self) -> type[Handler]:
        return HubHandler

    @property
    def storage_url(self) -> str:
        """Where `redirect` leads: this server by another name, hence another site to a client,
        which therefore must not show its token there."""
        return self.url.replace("127.0.0.1", "localhost")

    def stored(self, etag: str) -> StoredFile:
        """The file of any repository that has this SHA-256."""
        for repository in self.repositories.values():
            for files in repository.commits.values():
                for file in files.values():
                    if file.etag == etag:
                        return file
        raise Answer(404, message="no such file")

    def add(
        self,
        model_id: str,
        files: dict[str, Content] | Path,
        *,
        ref: str = "main",
        gated: str | bool = False,
        private: bool = False,
        readers: tuple[str, ...] = (),
    ) -> str:
        """A commit of `model_id` with these files (or those of a directory), to which `ref`
        moves; its hash, 40 hex digits."""
        if isinstance(files, Path):
            files = {
                str(path.relative_to(files)): path for path in files.rglob("*") if path.is_file()
            }
        repository = self.repositories.setdefault(model_id, Repository())
        stored = {name: StoredFile.of(content) for name, content in files.items()}
        names = [f"{name}:{stored[name].etag}" for name in sorted(stored)]
        text = "\n".join([model_id, str(len(repository.commits)), *names])
        commit = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        repository.commits[commit] = stored
        repository.refs[ref] = commit
        repository.gated = gated
        repository.private = private
        repository.readers = set(readers)
        self.tokens.update(readers)
        return commit

    def fail(
        self,
        match: str,
        status: int,
        *,
        times: int = 1,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        """Answer the next `times` requests whose path contains `match` with `status`."""
        self._faults.append(Fault(match, times, status, headers or {}, body))

    def cut(self, match: str, *, times: int = 1) -> None:
        """Cut the connection in the body of the next `times` answers to paths with `match`."""
        self._faults.append(Fault(match, times, None, {}, b""))

    def paths(self) -> list[str]:
        """The paths asked for so far, in order of arrival."""
        return [request.path for request in self.log]

    def begin(self, request: Request) -> Fault | None:
        """Log a request; the fault that it shall meet."""
        with self._lock:
            self.log.append(request)
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
            for fault in self._faults:
                if fault.times > 0 and fault.match in request.path:
                    fault.times -= 1
                    return fault
            return None

    def end(self) -> None:
        """A request was answered."""
        with self._lock:
            self._running -= 1


def _open(content: Content) -> io.BufferedIOBase:
    return io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")


class Answer(Exception):
    """Ends a request with an error."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"X-Error-Code": code} if code else {}
        if message:
            self.headers["X-Error-Message"] = message


class HubHandler(Handler):
    @property
    def hub(self) -> HubServer:
        owner = self.server.owner
        assert isinstance(owner, HubServer)
        return owner

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        self.request_log = Request(self.command, *self.asked())
        # Read whatever becomes of it, or it would be taken for the next request.
        self.body = self._body()
        self.fault = self.hub.begin(self.request_log)
        try:
            if self.fault is not None and self.fault.status is not None:
                self._send(self.fault.status, self.fault.headers, self.fault.body)
            else:
                self._route(urlsplit(self.path).path)
        except Answer as answer:
            body = json.dumps({"error": str(answer)}).encode()
            self._send(answer.status, answer.headers, body)
        finally:
            self.hub.end()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _route(self, path: str) -> None:
        if found := re.fullmatch(r"/storage/([0-9a-f]{64})", path):
            self._content(self.hub.stored(found[1]), {})
            return
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self.hub.tokens:
            raise Answer(401, message="Invalid credentials in Authorization header")
        if self._write(path, token):
            return
        if path == "/api/models":
            self._list()
        elif found := re.fullmatch(
            r"/api/(?:models/|(datasets/))(.+?)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.*))?)?",
            path,
        ):
            kind, model_id, route, revision, below = found.groups()
            repository = self._repository((kind or "") + model_id, token)
            commit = self._commit(repository, unquote(revision or "main"))
            if route == "tree":
                self._tree(repository.commits[commit], unquote(below or ""))
            elif route == "paths-info":
                self._paths_info(repository.commits[commit])
            else:
                self._model_info(model_id, repository, commit)
        elif found := re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path):
            model_id, revision, name = found.groups()
            repository = self._repository(model_id, token)
            if repository.gated and token not in repository.readers:
                raise Answer(403 if token else 401, "GatedRepo", "Access to model is restricted")
            self._file(repository, self._commit(repository, unquote(revision)), unquote(name))
        else:
            raise Answer(404, message="no such page")

    def _write(self, path: str, token: str) -> bool:
        """Whether it was a request that changes something, and is answered: none here."""
        return False

    def _repository(self, model_id: str, token: str) -> Repository:
        repository = self.hub.repositories.get(model_id)
        if repository is None or (repository.private and token not in repository.readers):
            # The Hub does not tell an anonymous client which of the two it is.
            raise Answer(404 if token else 401, "RepoNotFound", "Repository not found")
        return repository

    def _commit(self, repository: Repository, revision: str) -> str:
        commit = repository.refs.get(revision, revision)
        if commit not in repository.commits:
            raise Answer(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def _model_info(self, model_id: str, repository: Repository, commit: str) -> None:
        info: dict[str, Any] = {
            "id": model_id,
            "modelId": model_id,
            "sha": commit,
            "gated": repository.gated,
            "private": repository.private,
            "tags": ["transformers", "safetensors"],
            "siblings": [{"rfilename": name} for name in sorted(repository.commits[commit])],
        }
        if "blobs" in self.request_log.query:
            files = repository.commits[commit]
            info["siblings"] = [
                {"rfilename": name, "size": files[name].size, "blobId": files[name].blob}
                for name in sorted(files)
            ]
        if wanted := self.request_log.query.get("expand"):
            info = {name: info[name] for name in ("id", *wanted) if name in info}
        self._send_json(info)

    def _list(self) -> None:
        """One page of the models of a task, the highest first, and a link to the next."""
        query = {name: values[0] for name, values in self.request_log.query.items()}
        sort = query.get("sort", "trendingScore")
        if sort not in ("downloads", "likes", "trendingScore"):
            raise Answer(400, message=f"no such sort: {sort}")
        found = [
            {"id": model_id, **listed.fields()}
            for model_id, listed in self.hub.listed.items()
            if listed.pipeline_tag == query.get("pipeline_tag", listed.pipeline_tag)
        ]
        numbers = {one["id"]: one.get(sort) for one in found}
        found.sort(
            key=lambda one: n if isinstance(n := numbers[one["id"]], int) else 0, reverse=True
        )
        start = int(query.get("cursor", "0"))
        stop = start + min(int(query.get("limit", "1000")), self.hub.page)
        wanted = ("id", *self.request_log.query.get("expand", []))
        headers = {}
        if stop < len(found):
            rest = self.request_log.query | {"cursor": [str(stop)]}
            url = f"{self.hub.url}/api/models?{urlencode(rest, doseq=True)}"
            headers["Link"] = f'<{url}>; rel="next"'
        self._send_json(
            [{name: one[name] for name in wanted if name in one} for one in found[start:stop]],
            headers,
        )

    def _tree(self, files: dict[str, StoredFile], below: str) -> None:
        prefix = f"{below}/" if below else ""
        names = [name for name in sorted(files) if name.startswith(prefix)]
        if not names:
            raise Answer(404, "EntryNotFound", f"{below} does not exist")
        if self.request_log.query.get("recursive", ["false"])[0].lower() not in ("true", "1"):
            inside = dict.fromkeys(
                prefix + name.removeprefix(prefix).split("/")[0] for name in names
            )
            names = list(inside)
        self._send_json([self._entry(files, name) for name in names])

    def _entry(self, files: dict[str, StoredFile], name: str) -> dict[str, Any]:
        """As trees tell a file, or a folder."""
        if name in files:
            return {"path": name, **files[name].entry}
        oid = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
        return {"type": "directory", "path": name, "size": 0, "oid": oid}

    def _paths_info(self, files: dict[str, StoredFile]) -> None:
        """What is at the paths of a form; those where nothing is are left out."""
        names = [unquote(name) for name in parse_qs(self.body.decode()).get("paths", [])]
        there = [name for name in names if any(f"{one}/".startswith(f"{name}/") for one in files)]
        self._send_json([self._entry(files, name) for name in there])

    def _file(self, repository: Repository, commit: str, name: str) -> None:
        file = repository.commits[commit].get(name)
        if file is None:
            raise Answer(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": commit, "ETag": f'"{file.etag}"'}
        if self.hub.redirect and not name.endswith(".json"):
            headers |= {
                "X-Linked-ETag": headers["ETag"],
                "X-Linked-Size": str(file.size),
                "Location": f"{self.hub.storage_url}/storage/{file.etag}",
            }
            self._send(302, headers, b"")
        else:
            self._content(file, headers)

    def _content(self, file: StoredFile, headers: dict[str, str]) -> None:
        start, stop, status = 0, file.size, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and self.hub.ranges:
            start, stop = int(asked[1]), min(stop, int(asked[2]) + 1 if asked[2] else stop)
            if start >= file.size:
                self._send(416, headers | {"Content-Range": f"bytes */{file.size}"}, b"")
                return
            headers = headers | {"Content-Range": f"bytes {start}-{stop - 1}/{file.size}"}
            status = 206
        self._begin(status, headers | {"Accept-Ranges": "bytes"}, stop - start)
        if self.command == "HEAD":
            return
        if self.fault is not None:
            stop = start + (stop - start) // 2
        with _open(file.content) as stream:
            stream.seek(start)
            while data := stream.read(min(65536, stop - stream.tell())):
                self.wfile.write(data)
                self.request_log.sent += len(data)
        if self.fault is not None:
            self.close_connection = True

    def _send_json(self, value: object, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        headers = {"Content-Type": "application/json"} | (headers or {})
        if self.fault is not None:
            self._begin(200, headers, len(body))
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        else:
            self._send(200, headers, body)

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self._begin(status, headers, len(body))
        if self.command != "HEAD":
            self.wfile.write(body)
            self.request_log.sent += len(body)

    def _begin(self, status: int, headers: dict[str, str], length: int) -> None:
        self.request_log.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
