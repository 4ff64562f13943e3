"""What the tests' own HTTP servers have in common: on this machine, until a `with` block ends."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit


class _Server(ThreadingHTTPServer):
    owner: object

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silence: clients that hang up in the middle of an answer are part of the tests."""


class LocalServer:
    """Answers with a handler of its subclass, whose `server.owner` is this."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Handler(BaseHTTPRequestHandler):
    """Keeps connections open, as clients expect, and nothing is printed."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def asked(self) -> tuple[str, dict[str, list[str]], dict[str, str]]:
        """Path, query, and headers by lower-case name, of the request that is served."""
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        return unquote(parts.path), parse_qs(parts.query), headers

    def log_message(self, format: str, *args: object) -> None:
        """Silence: the servers keep logs of their own."""
