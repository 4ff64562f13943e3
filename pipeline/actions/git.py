"""The branch that is published to: a tree of it, and pushes that lose nothing of other writers.

The tree is a repository of its own, at depth 1: histories of results get long, and the checkout
that this command was started in stays as it is. On a rejected push everything is fetched, derived
and committed again; nothing is ever rebased, merged by content, or forced.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline import processes
from pipeline.actions.workflow import Workflow
from pipeline.errors import EnvironmentFault, QualifyError, UsageError

AUTHOR = ("github-actions[bot]", "41898282+github-actions[bot]@users.noreply.github.com")
"""Name and address under which GitHub shows its own bot, whose token a job has."""

MAX_MESSAGE = 20_000
"""Characters of a commit message: some hundred lines, more than anybody reads."""

_LIMIT_S = 900.0
"""Seconds for one call of git: a tree of results is small, a hung network is not waited for."""
_FETCHES = 3
_WAIT_S = 0.5
_LONGEST_WAIT_S = 20.0
_MARK = "trn-qualify-tree"
"""Name of a file in the tree's .git: a folder without it is not ours to empty."""

# What else in the environment names a repository, an index or an author would lead astray: inside
# a git hook, git sets such variables for every process it starts.
_KEPT = re.compile(r"GIT_(SSL_|SSH|PROXY_|HTTP_|CONFIG_(GLOBAL|SYSTEM|NOSYSTEM)$|EXEC_PATH$)")
_OVERRIDES = (
    # A person's settings must not change what is committed, nor start anything.
    ("core.hooksPath", os.devnull),
    ("core.autocrlf", "false"),
    ("core.attributesFile", os.devnull),
    ("core.fsmonitor", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("push.gpgSign", "false"),
    ("push.recurseSubmodules", "no"),
    ("fetch.recurseSubmodules", "false"),
    # Commits are fetched by their id, which older protocols refuse.
    ("protocol.version", "2"),
    # A container's user often does not own the checkout.
    ("safe.directory", "*"),
)
# What a server says that says the same at the next try.
_FINAL = re.compile(
    r"declined|denied|prohibited|shallow update|\b40[134]\b|Authentication failed"
    r"|could not read (Username|Password)|not found|does not (appear to be|exist)"
    r"|couldn't find remote ref|not our ref",
    re.IGNORECASE,
)

Derive = Callable[[Path], "str | None"]
Sleep = Callable[[float], object]


@dataclass(frozen=True)
class Pushed:
    """What a push did. commit: now the branch's head, None = there was nothing to do.

    attempts: how often the branch was fetched and derived from, 1 where nobody else wrote.
    """

    commit: str | None
    attempts: int


def published_tree(
    root: Path, branch: str, tree: Path, *, workflow: Workflow | None = None
) -> Path | None:
    """The folder `tree`, holding exactly what origin's `branch` holds; None = no such branch.

    root: a checkout, whose `origin` is meant; it is not changed. workflow: its token is used.
    What was in `tree` before is removed if this function or `push_derived` made it, else it is a
    UsageError. QualifyError when git or origin does not do its part.
    """
    git = _Git.at(root, tree, branch, workflow.token if workflow else None, _server(workflow))
    git.begin()
    for attempt in range(1, _FETCHES + 1):
        try:
            head = git.fetch(branch)
        except _Failed as failed:
            if failed.final or attempt == _FETCHES:
                raise failed.told() from failed
            _wait(attempt, time.sleep)
        else:
            break
    if head is None:
        return None
    git.show(head)
    return tree


def push_derived(
    root: Path,
    *,
    branch: str,
    tree: Path,
    derive: Derive,
    start: str | None = None,
    onto: str | None = None,
    attempts: int = 10,
    token: str | None = None,
    server_url: str = "https://github.com",
    sleep: Sleep = time.sleep,
) -> Pushed:
    """Push one commit to origin's `branch`: what `derive` makes of the tree that it is given.

    derive(tree) writes files below `tree`, which holds the branch's head, and returns the commit
    message, or None when there is nothing to do. It is called anew each time that somebody else
    pushed in between, so it must not depend on what an earlier call wrote.

    start: branch or commit of origin that an absent branch starts from; None = the commit that
    `root` is at. onto: the tree is that branch's instead, and the commit's parents are the branch's
    head, if there is one, and that branch's: so a proposal is brought up to date without force.
    token: for origin at `server_url`; None = origin's own way. sleep: takes seconds.

    The tree ends as what is published. EnvironmentFault without git; QualifyError when origin
    refuses, or the attempts are used up; what `derive` raises goes through.
    """
    git = _Git.at(root, tree, branch, token, server_url)
    git.begin()
    tried: set[str] = set()
    for attempt in range(1, attempts + 1):
        try:
            commit = _attempt(git, derive, start, onto, tried)
        except _Failed as failed:
            if failed.final:
                raise failed.told() from failed
            last = failed
            if attempt < attempts:
                _wait(attempt, sleep)
        else:
            return Pushed(commit, attempt)
    raise QualifyError(
        f"nothing was pushed to {branch} in {attempts} attempts; the last: {last}",
        remedy="see who else writes to that branch, then run this again; nothing is lost",
    ) from last


def _attempt(
    git: _Git, derive: Derive, start: str | None, onto: str | None, tried: set[str]
) -> str | None:
    """The commit that was pushed. tried: commits of earlier attempts; this one is added."""
    head = git.fetch(git.branch)
    if head in tried:  # it had arrived; only the answer was lost
        git.show(head)
        return head
    below = head or git.fetch_start(start or onto)
    parents = [below]
    if onto is not None and head is not None:
        newest = git.fetch(onto)
        if newest is None:
            raise _Failed(f"origin has no branch {onto}", final=True)
        below, parents = newest, [head, newest]
    git.show(below)
    message = derive(git.tree)
    commit = None if message is None else git.commit(message, parents, unless=head or below)
    if commit is not None:
        tried.add(commit)
        git.push(commit)
    return commit


class _Failed(Exception):
    """A call of git failed. final: it would fail again."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final

    def told(self) -> QualifyError:
        return QualifyError(
            str(self),
            remedy="see that origin can be reached and that the job may write to the branch: "
            "permissions `contents: write`, and no rule that protects it",
        )


@dataclass(frozen=True)
class _Git:
    """Git in the tree's repository.

    secret: never told in an error. root: the checkout beside it.
    """

    program: str
    tree: Path
    branch: str
    environment: dict[str, str] = field(repr=False)
    secret: str | None = field(repr=False)
    root: Path

    @classmethod
    def at(cls, root: Path, tree: Path, branch: str, token: str | None, server: str) -> _Git:
        program = shutil.which("git")
        if program is None:
            raise EnvironmentFault("git is not installed", remedy="install git")
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GIT_") or _KEPT.match(name)
        }
        name, email = AUTHOR
        plain = kept | {
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C",  # what it says is read here
            "GIT_AUTHOR_NAME": name,
            "GIT_AUTHOR_EMAIL": email,
            "GIT_COMMITTER_NAME": name,
            "GIT_COMMITTER_EMAIL": email,
        }
        here = cls(program, root, branch, plain | _settings(_OVERRIDES), token, root)
        # By the environment alone: arguments are seen by every process of the machine, and .git
        # is what people pack up and send.
        settings = [*_OVERRIDES, ("remote.origin.url", here.origin())]
        if token:
            basic = base64.b64encode(f"x-access-token:{token}".encode()).decode()
            settings.append((f"http.{server}/.extraheader", f"AUTHORIZATION: basic {basic}"))
        try:
            here("check-ref-format", f"refs/heads/{branch}")
        except _Failed:
            raise UsageError(f"{branch!r} cannot be the name of a branch") from None
        return cls(program, tree.absolute(), branch, plain | _settings(settings), token, root)

    def __call__(self, *arguments: str, question: bytes = b"", remote: bool = False) -> str:
        """What git says in the tree, or for a checkout in that; _Failed with its last words.

        remote: another machine has a part in it, so that the next try may go better.
        """
        where = ["-C", str(self.tree)]
        ours = self.tree / ".git" / _MARK
        if ours.exists():  # never a repository that happens to be around the tree
            where += [f"--git-dir={self.tree / '.git'}", f"--work-tree={self.tree}"]
        try:
            ended = processes.run(
                [self.program, *where, *arguments],
                question,
                limit_s=_LIMIT_S,
                environment=self.environment,
            )
        except processes.Unanswered as error:
            raise _Failed(f"git {arguments[0]} {error}", final=not remote) from error
        said = self._hide((ended.out + b"\n" + ended.err).decode(errors="replace"))
        if ended.code:
            lines = [line.strip() for line in said.splitlines() if line.strip()]
            lines = [line for line in lines if not line.startswith(("hint:", "To ", "Done"))]
            words = "; ".join(lines[-4:])[:1_000] or f"exit code {ended.code}"
            final = not remote or _FINAL.search(words) is not None
            raise _Failed(f"git {arguments[0]}: {words}", final=final)
        return ended.out.decode(errors="replace").strip()

    def _hide(self, said: str) -> str:
        """Without the token and without what stands before the @ of an address."""
        said = re.sub(r"(\w://)[^/@\s]+@", r"\1", said)
        return said.replace(self.secret, "***") if self.secret else said

    def checkout(self, *arguments: str) -> str:
        """What git says in the checkout."""
        return replace(self, tree=self.root)(*arguments)

    def origin(self) -> str:
        """The address of the checkout's origin; a relative path made absolute."""
        try:
            address = self("remote", "get-url", "origin")
        except _Failed as failed:
            raise QualifyError(
                f"this checkout has no origin to publish to: {failed}",
                where=str(self.tree),
                remedy="run this in a clone of the repository",
            ) from failed
        local = self.tree / address
        return str(local.resolve()) if local.exists() else address

    def begin(self) -> None:
        """An empty repository at `tree`; UsageError for a folder that is not ours to empty."""
        ours = self.tree / ".git" / _MARK
        if self.tree.is_symlink() or (self.tree.exists() and not self.tree.is_dir()):
            raise UsageError("is not a folder", where=str(self.tree), remedy="name another --tree")
        if self.tree.is_dir() and any(self.tree.iterdir()) and not ours.is_file():
            raise UsageError(
                "is a folder with other things in it",
                where=str(self.tree),
                remedy="name another --tree, or empty it",
            )
        # Whatever an earlier attempt left, changes, locks, half a repository: all but the mark, so
        # that a folder half emptied is still known.
        ours.parent.mkdir(parents=True, exist_ok=True)
        ours.touch()
        for path in (*self.tree.iterdir(), *ours.parent.iterdir()):
            if path not in (ours.parent, ours):
                _remove(path)
        try:
            self("init", "--quiet", "--template=", f"--initial-branch={self.branch}")
        except _Failed as failed:
            raise failed.told() from failed

    def fetch(self, branch: str) -> str | None:
        """The newest commit of origin's `branch`, fetched without its past; None = no branch."""
        name = f"refs/heads/{branch}"
        try:
            self(*_FETCH, f"+{name}:refs/remotes/origin/{branch}", remote=True)
        except _Failed as failed:
            if f"couldn't find remote ref {name}" in str(failed):
                return None
            raise
        return self._fetched()

    def fetch_start(self, start: str | None) -> str:
        """The commit that a new branch starts from."""
        if start and (head := self.fetch(start)):
            return head
        named = start or self.checkout("rev-parse", "--verify", "HEAD^{commit}")
        try:
            self(*_FETCH, named, remote=True)
        except _Failed as failed:
            told = f"{self.branch} cannot start from {named} of origin: {failed}"
            raise _Failed(told, final=failed.final) from failed
        return self._fetched()

    def _fetched(self) -> str:
        """What the last fetch brought: https://git-scm.com/docs/git-fetch, "FETCH_HEAD"."""
        return (self.tree / ".git" / "FETCH_HEAD").read_text(encoding="utf-8").split()[0]

    def show(self, commit: str) -> None:
        """Make the tree hold exactly `commit`: what else is there is in the index by now."""
        self("reset", "--quiet", "--hard", commit)

    def commit(self, message: str, parents: list[str], *, unless: str) -> str | None:
        """Commit all that is in the tree; None where that is what the commit `unless` holds."""
        # What is derived is published, whatever somebody's list of ignored files says.
        self("add", "--all", "--force", "--", ".")
        tree = self("write-tree")
        if tree == self("rev-parse", f"{unless}^{{tree}}"):
            return None
        above = [word for parent in parents for word in ("-p", parent)]
        return self("commit-tree", tree, *above, question=_bounded(message).encode())

    def push(self, commit: str) -> None:
        """Make it the branch's head, which is refused unless it comes after that."""
        to = f"{commit}:refs/heads/{self.branch}"
        self("push", "--porcelain", "--no-verify", "origin", to, remote=True)
        self("update-ref", "HEAD", commit)


_FETCH = ("fetch", "--quiet", "--no-tags", "--depth=1", "origin")


def _settings(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Settings of git as environment variables: https://git-scm.com/docs/git-config."""
    told = {"GIT_CONFIG_COUNT": str(len(pairs))}
    for index, (key, value) in enumerate(pairs):
        told |= {f"GIT_CONFIG_KEY_{index}": key, f"GIT_CONFIG_VALUE_{index}": value}
    return told


def _bounded(message: str) -> str:
    """Of printable lines, and no longer than MAX_MESSAGE; git refuses NUL characters."""
    lines = ["".join(c for c in line if c.isprintable()) for line in message.strip().splitlines()]
    text = "\n".join(line.rstrip() for line in lines)
    if len(text) > MAX_MESSAGE:
        text = text[:MAX_MESSAGE].rpartition("\n")[0] + "\n(cut here)"
    return text + "\n"


def _wait(attempt: int, sleep: Sleep) -> None:
    """Longer each time, and never as long as the other who was rejected."""
    longest = min(_LONGEST_WAIT_S, _WAIT_S * 2**attempt)
    sleep(secrets.SystemRandom().uniform(longest / 4, longest))


def _server(workflow: Workflow | None) -> str:
    return workflow.server_url if workflow else Workflow.server_url


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
