"""A small HTTP server in the Hub's place, for the buckets of the real huggingface_hub client.

Names, listings and tokens come from here. The bytes never do: the client moves them through hf_xet,
which accepts the address `local:///directory` of a content-addressed store on this disk instead of
the Hub's. That address is undocumented; hf_xet 1.8.0 is the version it was tried with.

    with BucketServer(folder, "org/graphs") as hub:
        # a process with HF_ENDPOINT=hub.url and HF_HOME=<an empty directory> uses this Hub
        hub.write("neuronxcc-1/ab/cd/one.neff", b"...")
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import hf_xet

from tests.local_server import Handler, LocalServer

_TOKEN = "t"  # noqa: S105 (opens nothing)
_DATE = "2026-11-30T08:00:00.000Z"


class BucketServer(LocalServer):
    """One bucket. refuse_writes: answer every change of it with 403, as to a read-only token."""

    def __init__(self, folder: Path, bucket: str) -> None:
        self.bucket = bucket
        self.files: dict[str, tuple[str, int | None]] = {}
        """path -> (xet hash, size in bytes or None while nobody has asked for it)"""
        self.log: list[str] = []
        """Requests: "POST /api/buckets/org/graphs/batch"."""
        self.refuse_writes = False
        self.fail_path = ""
        """A path that batches report as failed."""
        self.cas = folder / "cas"
        self.cas.mkdir(parents=True)
        self._lock = threading.Lock()
        super().__init__(_Handler)

    @property
    def _endpoint(self) -> str:
        return f"local://{self.cas}"

    def write(self, path: str, data: bytes) -> None:
        """Put bytes under a path, as some other client would."""
        if not data:
            self.files[path] = ("0" * 64, 0)
            return
        session = hf_xet.XetSession()
        with session.new_upload_commit(
            endpoint=self._endpoint, token=_TOKEN, token_expiry_unix_secs=_in_an_hour()
        ) as commit:
            handle = commit.start_upload_bytes(data, sha256=hf_xet.SKIP_SHA256)
        self.files[path] = (handle.result().xet_info.hash, len(data))

    def read(self, path: str) -> bytes:
        """The bytes under a path."""
        return self._content(self.files[path][0])

    def describe(self, path: str) -> tuple[str, int]:
        """Hash and size of a file.

        The size is looked up late: a client that has just uploaded still holds the store of bytes,
        which one process at a time can open.
        """
        with self._lock:
            xet_hash, size = self.files[path]
            if size is None:
                size = len(self._content(xet_hash))
                self.files[path] = (xet_hash, size)
            return xet_hash, size

    def _content(self, xet_hash: str) -> bytes:
        group = hf_xet.XetSession().new_download_stream_group(
            endpoint=self._endpoint, token=_TOKEN, token_expiry_unix_secs=_in_an_hour()
        )
        return b"".join(group.download_stream(hf_xet.XetFileInfo(xet_hash)))

    def token(self) -> tuple[bytes, dict[str, str]]:
        """Body and headers of an answer that sends a client to the bytes."""
        told = {"casUrl": self._endpoint, "accessToken": _TOKEN, "exp": _in_an_hour()}
        headers = {
            "X-Xet-Cas-Url": self._endpoint,
            "X-Xet-Access-Token": _TOKEN,
            "X-Xet-Token-Expiration": str(_in_an_hour()),
        }
        return json.dumps(told).encode(), headers


def _in_an_hour() -> int:
    return int(time.time()) + 3600


class _Handler(Handler):
    @property
    def hub(self) -> BucketServer:
        owner = self.server.owner
        assert isinstance(owner, BucketServer)
        return owner

    def do_GET(self) -> None:
        path = self._path()
        base = f"/api/buckets/{self.hub.bucket}"
        if path.startswith(f"{base}/xet-") and path.endswith("-token"):
            if path.endswith("write-token") and self.hub.refuse_writes:
                return self._send(403, b"{}", {"X-Error-Message": "read-only token"})
            body, headers = self.hub.token()
            return self._send(200, body, headers)
        if path.startswith(f"{base}/tree"):
            prefix = path.removeprefix(f"{base}/tree").lstrip("/")
            return self._json(
                [self._file(name) for name in sorted(self.hub.files) if name.startswith(prefix)]
            )
        return self._missing()

    def do_HEAD(self) -> None:
        name = self._path().removeprefix(f"/buckets/{self.hub.bucket}/resolve/")
        if name not in self.hub.files:
            return self._missing()
        xet_hash, size = self.hub.describe(name)
        route = f"{self.hub.url}/api/buckets/{self.hub.bucket}/xet-read-token"
        headers = {"X-Xet-Hash": xet_hash, "X-Xet-Refresh-Route": route}
        return self._send(200, b"", headers | {"X-Linked-Size": str(size)})

    def do_POST(self) -> None:
        path = self._path()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if path == f"/api/buckets/{self.hub.bucket}/paths-info":
            names = json.loads(body)["paths"]
            return self._json([self._file(name) for name in names if name in self.hub.files])
        if path == f"/api/buckets/{self.hub.bucket}/batch":
            return self._batch([json.loads(line) for line in body.splitlines()])
        return self._missing()

    def _batch(self, operations: list[dict[str, Any]]) -> None:
        if self.hub.refuse_writes:
            return self._send(403, b"{}", {"X-Error-Message": "read-only token"})
        failed = []
        for one in operations:
            if one["path"] == self.hub.fail_path:
                failed.append({"path": one["path"], "error": "quota"})
            elif one["type"] == "addFile":
                self.hub.files[one["path"]] = (one["xetHash"], None)
            else:
                self.hub.files.pop(one["path"], None)
        return self._json({"success": not failed, "failed": failed})

    def _file(self, name: str) -> dict[str, Any]:
        xet_hash, size = self.hub.describe(name)
        return {
            "type": "file",
            "path": name,
            "size": size,
            "xetHash": xet_hash,
            "mtime": _DATE,
            "uploadedAt": _DATE,
        }

    def _path(self) -> str:
        path = unquote(urlsplit(self.path).path)
        self.hub.log.append(f"{self.command} {path}")
        return path

    def _missing(self) -> None:
        # The client chooses its error by this header; a bucket that is not there is a RepoNotFound.
        self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _json(self, told: Any) -> None:
        self._send(200, json.dumps(told).encode(), {})

    def _send(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in (headers | {"Content-Type": "application/json"}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
