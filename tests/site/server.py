"""A server for a folder of files, as GitHub Pages is one: below a path, with a page for 404."""

from __future__ import annotations

import mimetypes
from dataclasses import dataclass
from pathlib import Path

from tests.local_server import Handler, LocalServer


class StaticServer(LocalServer):
    """Serves the files of `folder` below the path `below`; `damage` answers paths otherwise."""

    def __init__(self, folder: Path, below: str = "") -> None:
        super().__init__(_Files)
        self.folder = folder
        self.below = below
        self.damage: dict[str, tuple[int, bytes]] = {}


@dataclass(frozen=True)
class Served:
    """A site that is served; `url` ends in a slash."""

    server: StaticServer

    @property
    def url(self) -> str:
        return f"{self.server.url}{self.server.below}/"


class _Files(Handler):
    def do_GET(self) -> None:
        owner = self.server.owner
        assert isinstance(owner, StaticServer)
        path, _, _ = self.asked()
        inside = path.removeprefix(owner.below + "/")
        if inside in owner.damage:
            self._answer(*owner.damage[inside], path)
            return
        file = owner.folder / inside
        if file.is_dir():
            file = file / "index.html"
        if path.startswith(owner.below + "/") and ".." not in path and file.is_file():
            self._answer(200, file.read_bytes(), str(file))
        else:
            self._answer(404, (owner.folder / "404.html").read_bytes(), "404.html")

    def _answer(self, status: int, body: bytes, name: str) -> None:
        self.send_response(status)
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
