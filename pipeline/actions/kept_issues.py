"""Issues that say what is so: opened when it begins, edited while it lasts, closed when it is over.

Ours are those with our label, of our own login, whose first line is the marker of what they are
about. Anyone else's issue, label and marker notwithstanding, is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pipeline.actions.github import GitHub, Issue, fit, same_text

_MARKER = re.compile(r"<!-- trn-qualify: ([a-z]+) ([a-z0-9/_-]+) -->")
_BACK = "It is back: see above what is so now."


class Action(StrEnum):
    """What was done with an issue."""

    OPENED = "opened"
    REOPENED = "opened again"
    EDITED = "edited"
    UNCHANGED = "still open"
    CLOSED = "closed"


@dataclass(frozen=True)
class Wanted:
    """An issue that should be open. key: what it is about; one issue each."""

    kind: str
    key: str
    title: str
    text: str

    @property
    def body(self) -> str:
        """The whole body: the marker, then the text."""
        return fit(f"<!-- trn-qualify: {self.kind} {self.key} -->\n{self.text}")


@dataclass(frozen=True)
class Kept:
    """One issue after `keep`. why: what was said when it was closed, else ""."""

    action: Action
    title: str
    url: str
    why: str = ""


def keep(
    github: GitHub,
    *,
    kind: str,
    label: str,
    wanted: Sequence[Wanted],
    farewell: Callable[[Issue], str],
) -> list[Kept]:
    """Make the open issues of `kind` be those `wanted`; what was done, the wanted ones first.

    farewell: the comment under which an issue that is not wanted any more is closed.
    Repeating it does nothing; what was left half done is completed by repeating it.
    """
    ours = _ours(github, kind, github.issues(label=label, state="all"))
    kept = [_kept(github, label, one, ours.pop(one.key, [])) for one in wanted]
    for found in ours.values():
        kept += [_closed(github, issue, farewell(issue)) for issue in found if _is_open(issue)]
    return kept


def _ours(github: GitHub, kind: str, issues: Iterable[Issue]) -> dict[str, list[Issue]]:
    """Key -> our issues about it: open ones first, then the newest."""
    ours: dict[str, list[Issue]] = {}
    for issue in issues:
        marker = _MARKER.fullmatch(issue.body.partition("\n")[0].strip())
        if issue.author.lower() == github.login.lower() and marker and marker[1] == kind:
            ours.setdefault(marker[2], []).append(issue)
    for found in ours.values():
        found.sort(key=lambda issue: (not _is_open(issue), -issue.number))
    return ours


def _is_open(issue: Issue) -> bool:
    return issue.state == "open"


def _kept(github: GitHub, label: str, one: Wanted, found: list[Issue]) -> Kept:
    if not found:
        made = github.open_issue(title=one.title, body=one.body, labels=[label])
        return Kept(Action.OPENED, one.title, made.url)
    issue, *others = found
    for other in others:  # two writers opened both at once; one is enough
        if _is_open(other):
            _closed(github, other, f"The same as #{issue.number}.")
    same = issue.title == one.title and same_text(issue.body, one.body)
    if _is_open(issue) and same:
        return Kept(Action.UNCHANGED, one.title, issue.url)
    github.edit_issue(issue.number, title=one.title, body=one.body, state="open")
    if _is_open(issue):
        return Kept(Action.EDITED, one.title, issue.url)
    github.say(issue.number, _BACK)
    return Kept(Action.REOPENED, one.title, issue.url)


def _closed(github: GitHub, issue: Issue, why: str) -> Kept:
    github.say(issue.number, why)
    github.edit_issue(issue.number, state="closed")
    return Kept(Action.CLOSED, issue.title, issue.url, why)
