"""The Hub's stand-in, with datasets that the real huggingface_hub client can write.

What create_commit of huggingface_hub 2.4.0 asks for: POST validate-yaml (a card), preupload (which
files are large), the LFS batch and PUT of those (without hf_xet), and commit (lines of JSON).

    with DatasetServer() as hub:
        hub.open("org/results", "t0ken")
        api = HfApi(endpoint=hub.url, token="t0ken")
        api.create_commit("org/results", ..., repo_type="dataset")
        assert hub.files("org/results")["README.md"]
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.hub_server import Answer, HubHandler, HubServer, Repository, StoredFile
from tests.local_server import Handler


class DatasetServer(HubServer):
    """Tokens that may write stand in `writers`, by dataset; any other that exists may read."""

    def __init__(self) -> None:
        self.writers: dict[str, set[str]] = {}
        self.large: Callable[[str], bool] = lambda path: path.endswith(".parquet")
        """Which files are kept as large ones; the Hub's own .gitattributes names *.parquet."""
        self.uploaded: dict[str, bytes] = {}
        """Large files by SHA-256."""
        self.cas: Path | None = None
        """hf_xet's store, where the client is to upload through it. Its bytes stay there: a file
        uploaded so can be listed, not read."""
        self.before_commit: Callable[[], None] | None = None
        """Called once, when a commit arrives and before it is looked at."""
        self.committing = threading.Lock()
        super().__init__()

    def _handler(self) -> type[Handler]:
        return _Handler

    def open(self, dataset: str, *tokens: str, files: dict[str, bytes] | None = None) -> str:
        """A dataset that `tokens` may write, with what a new one holds; its head."""
        self.tokens |= set(tokens)
        self.writers[f"datasets/{dataset}"] = set(tokens)
        return self.add(
            f"datasets/{dataset}", {".gitattributes": b"*.parquet lfs\n", **(files or {})}
        )

    def head(self, dataset: str) -> str:
        """The commit that main is at."""
        return self.repositories[f"datasets/{dataset}"].refs["main"]

    def stored_files(self, dataset: str) -> dict[str, StoredFile]:
        """Those of the head, .gitattributes left out."""
        repository = self.repositories[f"datasets/{dataset}"]
        files = repository.commits[repository.refs["main"]]
        return {name: file for name, file in files.items() if name != ".gitattributes"}

    def files(self, dataset: str) -> dict[str, bytes]:
        """Their contents."""
        found = {name: file.content for name, file in self.stored_files(dataset).items()}
        return {name: data for name, data in found.items() if isinstance(data, bytes)}

    def commits(self) -> list[int]:
        """The status that each commit was answered with, in order."""
        return [one.status for one in self.log if "/commit/" in one.path]


class _Handler(HubHandler):
    def do_PUT(self) -> None:
        self._serve()

    @property
    def datasets(self) -> DatasetServer:
        assert isinstance(self.hub, DatasetServer)
        return self.hub

    def _write(self, path: str, token: str) -> bool:
        if path == "/api/validate-yaml":
            self._validate_yaml()
        elif found := re.fullmatch(r"/api/(datasets/.+?)/(preupload|commit)/([^/]+)", path):
            dataset, route, branch = found.groups()
            repository = self._writable(dataset, token)
            if route == "preupload":
                self._preupload(repository)
            else:
                self._commit_to(repository, dataset, unquote(branch))
        elif found := re.fullmatch(r"/(datasets/.+?)\.git/info/lfs/objects/batch", path):
            self._writable(found[1], token)
            self._batch()
        elif found := re.fullmatch(r"/api/(datasets/.+?)/xet-write-token/([^/]+)", path):
            self._writable(found[1], token)
            in_an_hour = int(time.time()) + 3600
            self._send_json(
                {"casUrl": f"local://{self.datasets.cas}", "exp": in_an_hour, "accessToken": "x"}
            )
        else:
            return False
        return True

    def _route(self, path: str) -> None:
        # Storage is another service, which the client shows no token.
        if self.command == "PUT" and (found := re.fullmatch(r"/upload/([0-9a-f]{64})", path)):
            if hashlib.sha256(self.body).hexdigest() != found[1]:
                raise Answer(400, message="not what was announced")
            self.datasets.uploaded[found[1]] = self.body
            self._send(200, {}, b"")
        else:
            super()._route(path)

    def _writable(self, dataset: str, token: str) -> Repository:
        repository = self._repository(dataset, token)
        if token not in self.datasets.writers.get(dataset, ()):
            raise Answer(403, message="you need write access")
        return repository

    def _validate_yaml(self) -> None:
        import yaml

        content = json.loads(self.body)["content"]
        head = re.match(r"---\n(.*?)\n---\n", content, re.DOTALL)
        known = yaml.safe_load(head[1]) if head else None
        if not isinstance(known, dict) or not known.get("license"):
            self._send(400, {}, b'{"errors": [{"message": "no metadata"}], "warnings": []}')
        else:
            self._send_json({"errors": [], "warnings": []})

    def _preupload(self, repository: Repository) -> None:
        there = repository.commits[repository.refs["main"]]

        def told(path: str) -> dict[str, Any]:
            large = self.datasets.large(path)
            said = {"path": path, "uploadMode": "lfs" if large else "regular"}
            old = there.get(path)
            if old is not None:
                said["oid"] = old.etag if old.large else old.blob
            return said | {"shouldIgnore": False}

        asked = json.loads(self.body)["files"]
        self._send_json({"files": [told(one["path"]) for one in asked]})

    def _batch(self) -> None:
        objects = []
        for one in json.loads(self.body)["objects"]:
            href = f"{self.hub.url}/upload/{one['oid']}"
            new = one["oid"] not in self.datasets.uploaded
            objects.append(one | ({"actions": {"upload": {"href": href}}} if new else {}))
        self._send_json({"transfer": "basic", "objects": objects})

    def _commit_to(self, repository: Repository, dataset: str, branch: str) -> None:
        call, self.datasets.before_commit = self.datasets.before_commit, None
        if call is not None:
            call()
        with self.datasets.committing:
            commit = self._committed(repository, dataset, branch)
        url = f"{self.hub.url}/{dataset}/commit/{commit}"
        self._send_json({"success": True, "commitOid": commit, "commitUrl": url})

    def _committed(self, repository: Repository, dataset: str, branch: str) -> str:
        lines = [json.loads(line) for line in self.body.splitlines()]
        parent = lines[0]["value"].get("parentCommit")
        if parent is not None and parent != repository.refs[branch]:
            raise Answer(412, message="A commit has happened since. Please refresh and try again.")
        files = dict(repository.commits[repository.refs[branch]])
        for line in lines[1:]:
            self._apply(files, line["key"], line["value"])
        names = [f"{name}:{files[name].etag}" for name in sorted(files)]
        text = "\n".join([dataset, str(len(repository.commits)), *names])
        commit = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        repository.commits[commit] = files
        repository.refs[branch] = commit
        return commit

    def _apply(self, files: dict[str, StoredFile], key: str, value: dict[str, Any]) -> None:
        path = value["path"]
        if key == "file":
            assert value["encoding"] == "base64"
            files[path] = StoredFile.of(base64.b64decode(value["content"]))
        elif key == "lfsFile":
            if self.datasets.cas is None and value["oid"] not in self.datasets.uploaded:
                raise Answer(400, message="a large file that was not uploaded")
            data = self.datasets.uploaded.get(value["oid"], b"")
            files[path] = StoredFile(data, value["oid"], large=True)
        elif key == "deletedFile" and path in files:
            del files[path]
        else:
            raise Answer(400, message=f"{key} of {path}")
