"""What GitHub tells of people, pull requests and issues, as this project holds it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from github.Issue import Issue as RemoteIssue
    from github.PullRequest import PullRequest as RemotePullRequest

MAX_TEXT = 65_000
"""Characters of a body. GitHub refuses more than 65 536, and 65 535 for a check's summary."""

_CUT = "\n\n*Cut here: GitHub holds no more. All of it is in the summary of the run.*\n"


class Permission(StrEnum):
    """What a person may do in the repository; `maintain` counts as write, `triage` as read."""

    ADMIN = "admin"
    WRITE = "write"
    READ = "read"
    NONE = "none"

    @property
    def writes(self) -> bool:
        """Whether it allows to push."""
        return self in (Permission.ADMIN, Permission.WRITE)


@dataclass(frozen=True)
class PullRequest:
    """A pull request. head_repository: owner/name, None when it was deleted."""

    number: int
    title: str
    body: str
    state: str
    merged: bool
    author: str
    head_sha: str
    head_ref: str
    head_repository: str | None
    base_ref: str
    url: str


@dataclass(frozen=True)
class Issue:
    """An issue. author: "ghost" when the account was deleted."""

    number: int
    title: str
    body: str
    state: str
    author: str
    labels: tuple[str, ...]
    url: str


def pull_request_of(one: RemotePullRequest) -> PullRequest:
    """The pull request in an answer of the API."""
    return PullRequest(
        number=one.number,
        title=one.title,
        body=one.body or "",
        state=one.state,
        merged=one.merged_at is not None,
        author=one.user.login if one.user else "ghost",
        head_sha=one.head.sha,
        head_ref=one.head.ref,
        head_repository=one.head.repo.full_name if one.head.repo else None,
        base_ref=one.base.ref,
        url=one.html_url,
    )


def issue_of(one: RemoteIssue) -> Issue:
    """The issue in an answer of the API."""
    return Issue(
        number=one.number,
        title=one.title,
        body=one.body or "",
        state=one.state,
        author=one.user.login if one.user else "ghost",
        labels=tuple(label.name for label in one.labels),
        url=one.html_url,
    )


def fit(body: str) -> str:
    """`body`, cut at the end of a line with a note where it is longer than GitHub holds."""
    if len(body) <= MAX_TEXT:
        return body
    kept = body[: MAX_TEXT - len(_CUT)]
    return (kept.rpartition("\n")[0] or kept) + _CUT


def same_text(one: str, other: str) -> bool:
    """Whether two bodies show the same: line ends and blanks around them are GitHub's affair."""
    return _plain(one) == _plain(other)


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n").strip()
