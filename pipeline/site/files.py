"""Writing the site: into a folder of its own, which then takes the old one's place."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import UsageError

MARK = ".qualify-site"
"""A file of every site that was built: a folder that has it may be replaced."""

_ASSETS = (".css", ".js", ".svg", ".png", ".ico")
_COPIED = ("current", "history", "scripts", "rankings")
"""Folders of results/ that are part of the site."""


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `out` when the block ends without an error.

    UsageError, before anything is written, when `out` holds what no earlier build made. Until the
    end the old site stays as it is, and after an error, too.
    """
    refuse_foreign(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        made, old = Path(scratch, "new"), Path(scratch, "old")
        made.mkdir()
        yield made
        (made / MARK).write_text("made by qualify site; its next build replaces this folder\n")
        if out.exists():
            out.rename(old)
        try:
            made.rename(out)
        except OSError:
            if old.exists():
                old.rename(out)
            raise


def refuse_foreign(out: Path) -> None:
    """UsageError when `out` is not absent, empty, or a site that was built before."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UsageError("is not a folder", where=str(out), remedy="name another --output")
    if out.exists() and any(out.iterdir()) and not (out / MARK).is_file():
        raise UsageError(
            "the folder holds files that no earlier build of the site made",
            where=str(out),
            remedy="name another --output, or empty the folder yourself",
        )


def copy_results(results: Path, site: Path) -> None:
    """What of `results` belongs to the site, below `site`/results."""
    target = site / "results"
    target.mkdir()
    for name in _COPIED:
        if (results / name).is_dir():
            shutil.copytree(results / name, target / name, ignore=_hidden, copy_function=_copy)
    if (results / "models.json").is_file():
        _copy(results / "models.json", target / "models.json")


def copy_assets(templates: Path, site: Path) -> None:
    """Style, scripts and pictures that stand beside the templates."""
    for path in sorted(templates.iterdir()):
        if path.suffix in _ASSETS:
            _copy(path, site / path.name)


def _hidden(_: str, names: list[str]) -> list[str]:
    """Names with a leading dot: a write cut short leaves one."""
    return [name for name in names if name.startswith(".")]


def _copy(source: str | Path, target: str | Path) -> None:
    """Content alone: times and rights of the original are no part of the site."""
    shutil.copyfile(source, target)


def writer(site: Path) -> Callable[[str, str | bytes], None]:
    """A function that writes a file of the site; its folder is made where it is not there."""

    def write(name: str, content: str | bytes) -> None:
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def move_into(built: Path, folder: Path, *, keep: str = ".git") -> None:
    """Make `folder` hold exactly what `built` holds, but for `keep`; `built` is emptied."""
    for old in folder.iterdir():
        if old.name != keep:
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    for new in built.iterdir():
        new.rename(folder / new.name)
