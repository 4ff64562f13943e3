"""Real stores of every kind for tests, with a back door: what others wrote there, or damaged.

    with place(Kind.BUCKET, tmp_path, monkeypatch) as there:
        there.write("neuronxcc-1/ab/cd/one.neff", b"...")
        there.store.fetch(...)

A bucket is one of the real Hub client (tests/bucket_server.py), an object store one of the real
s3fs against moto, both of this machine alone.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import fsspec
import pytest

from pipeline.store import Store, open_store
from tests.bucket_server import BucketServer


class Kind(StrEnum):
    """Where a store is."""

    LOCAL = "local"
    MEMORY = "memory"
    BUCKET = "bucket"
    OBJECTS = "objects"


class Place(Protocol):
    """A store and its back door."""

    @property
    def store(self) -> Store: ...
    def write(self, path: str, data: bytes) -> None: ...
    def read(self, path: str) -> bytes: ...
    def delete(self, path: str) -> None: ...


@dataclass(frozen=True)
class _Files:
    store: Store
    fs: Any
    root: str

    def write(self, path: str, data: bytes) -> None:
        self.fs.pipe_file(f"{self.root}/{path}", data)

    def read(self, path: str) -> bytes:
        data: bytes = self.fs.cat_file(f"{self.root}/{path}")
        return data

    def delete(self, path: str) -> None:
        self.fs.rm_file(f"{self.root}/{path}")


@dataclass(frozen=True)
class _InBucket:
    store: Store
    hub: BucketServer

    def write(self, path: str, data: bytes) -> None:
        self.hub.write(f"graphs/{path}", data)

    def read(self, path: str) -> bytes:
        return self.hub.read(f"graphs/{path}")

    def delete(self, path: str) -> None:
        del self.hub.files[f"graphs/{path}"]


@contextlib.contextmanager
def place(kind: Kind, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """An empty store of a kind."""
    if kind is Kind.BUCKET:
        with BucketServer(folder / "hub", "org/store") as hub:
            monkeypatch.setenv("HF_ENDPOINT", hub.url)
            monkeypatch.setenv("HF_HOME", str(folder / "home"))
            yield _InBucket(open_store("hf://buckets/org/store/graphs"), hub)
        return
    if kind is Kind.OBJECTS:
        with _objects(monkeypatch) as url:
            fs, root = fsspec.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
            fs.mkdir(root.partition("/")[0])
            yield _Files(open_store(url), fs, root)
        return
    url = f"memory://{uuid.uuid4()}" if kind is Kind.MEMORY else str(folder / "store")
    options = {"auto_mkdir": True} if kind is Kind.LOCAL else {}
    fs, root = fsspec.url_to_fs(url, **options)
    yield _Files(open_store(url), fs, root)


@contextlib.contextmanager
def _objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    at_objects(f"http://{host}:{port}", monkeypatch)
    try:
        yield f"s3://campaign-{uuid.uuid4()}/graphs"  # what moto holds outlives its servers
    finally:
        server.stop()


def at_objects(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let S3's address be `url` for this process and those it starts."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


class Trouble(StrEnum):
    """How a server can be away."""

    REFUSED = "refused"
    BROKEN = "broken"
    SILENT = "silent"


@contextlib.contextmanager
def away(trouble: Trouble) -> Iterator[str]:
    """The address of a server that refuses connections, answers 503, or never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        if trouble is Trouble.SILENT:
            listening.listen()
            yield url
            return
        if trouble is Trouble.REFUSED:
            yield url
            return
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Broken)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class _Broken(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = do_POST = do_PUT = _answer

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on standard error."""
