"""Git's own HTTP protocol for a bare repository: everyone fetches, a token pushes, as on GitHub."""

from __future__ import annotations

import base64
import os
import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from tests.local_server import Handler, LocalServer


class GitServer(LocalServer):
    """Serves the bare repository `path` as /<name> and /<name>.git until the `with` block ends.

    writers: tokens that may push, as that of a job may whose permissions say `contents: write`.
    refused: how many requests to push came without one.
    """

    def __init__(self, path: Path, name: str, *, writers: tuple[str, ...]) -> None:
        self.path = path
        self.name = name
        self.writers = writers
        self.refused = 0
        super().__init__(_Handler)


class _Handler(Handler):
    @property
    def git(self) -> GitServer:
        owner = self.server.owner
        assert isinstance(owner, GitServer)
        return owner

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self._body()
        parts = urlsplit(self.path)
        git = self.git
        found = re.fullmatch(rf"/{re.escape(git.name)}(?:\.git)?(/.*)", parts.path)
        if found is None:
            self._send(404, {}, b"no such repository\n")
            return
        if "git-receive-pack" in self.path and not self._may_write():
            git.refused += 1
            self._send(401, {"WWW-Authenticate": 'Basic realm="GitHub"'}, b"no token that may\n")
            return
        environment = os.environ | {
            "GIT_PROJECT_ROOT": str(git.path.parent),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": f"/{git.path.name}{found[1]}",
            "QUERY_STRING": parts.query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_USER": "x-access-token",
        }
        done = subprocess.run(
            ["git", "http-backend"], input=body, capture_output=True, check=True, env=environment
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        status = headers.pop("Status", "200 OK")
        self._send(int(status[:3]), headers, content)

    def _may_write(self) -> bool:
        kind, _, value = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "basic":
            return False
        return base64.b64decode(value).decode().partition(":")[2] in self.git.writers

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
