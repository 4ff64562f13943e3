"""A bare repository in GitHub's place, and checkouts of it as a workflow's job has them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_PERSON = {
    "GIT_AUTHOR_NAME": "A Person",
    "GIT_AUTHOR_EMAIL": "person@example.com",
    "GIT_COMMITTER_NAME": "A Person",
    "GIT_COMMITTER_EMAIL": "person@example.com",
}


def git(folder: Path, *arguments: str) -> str:
    """What git says in `folder`; CalledProcessError when it fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env=kept | _PERSON | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"},
        capture_output=True,
        check=True,
    )
    return done.stdout.decode().strip()


@dataclass(frozen=True)
class Origin:
    """A bare repository with the branch main."""

    path: Path

    @classmethod
    def make(cls, folder: Path, files: Mapping[str, str] | None = None) -> Origin:
        """One in `folder`/origin.git, with one commit of `files`."""
        path = folder / "origin.git"
        path.mkdir(parents=True)
        git(path, "init", "--quiet", "--bare", "--initial-branch=main")
        # On one machine, the settings of the person who pushes would be the server's too.
        git(path, "config", "core.hooksPath", str(path / "hooks"))
        origin = cls(path)
        origin.write(files or {"README.md": "A campaign.\n"})
        return origin

    def write(self, files: Mapping[str, str], *, branch: str = "main", start: str = "main") -> str:
        """Somebody else pushes a commit of `files` to `branch`; the commit."""
        person = self.path.parent / "person"
        if not person.exists():
            git(self.path.parent, "init", "--quiet", "--initial-branch=main", str(person))
            git(person, "remote", "add", "origin", str(self.path))
        git(person, "fetch", "--quiet", "origin")
        for name in (branch, start):
            if self.has(name):
                git(person, "checkout", "--quiet", "--force", "--detach", f"origin/{name}")
                break
        for name, text in files.items():
            path = person / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        git(person, "add", "--all")
        git(person, "commit", "--quiet", "--message", "by a person")
        git(person, "push", "--quiet", "origin", f"HEAD:refs/heads/{branch}")
        return git(person, "rev-parse", "HEAD")

    def checkout(self, folder: Path, *, depth: int | None = None, branch: str = "main") -> Path:
        """A clone in `folder`, as actions/checkout leaves one."""
        deep = [f"--depth={depth}"] if depth else []
        address = f"file://{self.path}"
        git(self.path, "clone", "--quiet", *deep, f"--branch={branch}", address, str(folder))
        return folder

    def has(self, branch: str) -> bool:
        """Whether there is such a branch."""
        return bool(git(self.path, "for-each-ref", f"refs/heads/{branch}"))

    def head(self, branch: str = "main") -> str:
        """The branch's newest commit."""
        return git(self.path, "rev-parse", f"refs/heads/{branch}")

    def commits(self, branch: str = "main") -> list[str]:
        """Its commits and those of its parents, newest first."""
        return git(self.path, "rev-list", branch).splitlines()

    def parents(self, commit: str = "main") -> list[str]:
        """The commits that this one comes after."""
        return git(self.path, "log", "-1", "--format=%P", commit).split()

    def message(self, commit: str = "main") -> str:
        """What its commit says."""
        return git(self.path, "log", "-1", "--format=%B", commit)

    def files(self, commit: str = "main") -> list[str]:
        """Paths of all that a commit holds."""
        return git(self.path, "ls-tree", "-r", "-z", "--name-only", commit).rstrip("\0").split("\0")

    def text(self, path: str, commit: str = "main") -> str:
        """What a file of a commit holds."""
        return git(self.path, "show", f"{commit}:{path}")

    def hook(self, name: str, lines: Iterable[str]) -> None:
        """A hook of the server."""
        path = self.path / "hooks" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(("#!/bin/sh", *lines, "")))
        path.chmod(0o755)
