"""GitHub's REST API, as far as the workflows need it, over PyGithub.

https://docs.github.com/en/rest
How it is asked, and what is said when it is asked in vain, is `github_calls`.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Self

from pipeline.actions.github_calls import Absent, Caller
from pipeline.actions.github_papers import (
    MAX_TEXT,
    Issue,
    Permission,
    PullRequest,
    fit,
    issue_of,
    pull_request_of,
    same_text,
)
from pipeline.errors import EnvironmentFault, GitHubError

if TYPE_CHECKING:
    from github.CheckRun import CheckRun
    from github.IssueComment import IssueComment
    from github.Repository import Repository

    from pipeline.actions.workflow import Workflow

__all__ = [
    "ACTIONS_LOGIN",
    "MAX_TEXT",
    "Conclusion",
    "GitHub",
    "GitHubError",
    "Issue",
    "Permission",
    "PullRequest",
    "State",
    "fit",
    "same_text",
]

ACTIONS_LOGIN = "github-actions[bot]"
"""Who writes with a job's GITHUB_TOKEN. It cannot be asked for: `GET /user` is refused to such
tokens (https://docs.github.com/en/rest/users/users, "Get the authenticated user"). No person can
have it: logins of people hold no brackets."""

_CHECK_ID = "trn-qualify"
"""external_id of our checks; those that Actions makes for jobs have another."""
_COMMENTS = "issues: write"
"""For comments on pull requests `pull-requests: write` does too."""
_TIMEOUT_S = 30
_LOGIN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,99})(?:\[bot\])?", re.ASCII)

State = Literal["open", "closed", "all"]
Conclusion = Literal["success", "failure", "neutral", "cancelled", "skipped", "timed_out"]


class GitHub:
    """One repository on GitHub. Every method raises GitHubError when GitHub does not do it."""

    def __init__(
        self,
        repository: str,
        token: str,
        api_url: str = "https://api.github.com",
        *,
        login: str = ACTIONS_LOGIN,
        sleep: Callable[[float], None] = time.sleep,
        seconds_between_writes: float = 1.0,
    ) -> None:
        """repository: owner/name. login: whose token it is, hence which comments are our own.

        seconds_between_writes: GitHub asks for one, else it takes them for abuse
        (https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api).
        """
        try:
            from github import Auth, Github
        except ImportError:
            raise EnvironmentFault(
                "PyGithub is not installed", remedy="pip install 'trn-qualify[actions]'"
            ) from None
        self.repository = repository
        self.login = login
        self._ask = Caller(repository, token, sleep).ask
        self._repository: Repository = Github(
            auth=Auth.Token(token),
            base_url=api_url,
            timeout=_TIMEOUT_S,
            per_page=100,
            retry=None,
            seconds_between_requests=None,
            seconds_between_writes=seconds_between_writes,
            lazy=True,
        ).get_repo(repository)

    @classmethod
    def of(cls, workflow: Workflow) -> Self:
        """The repository of this job; EnvironmentFault when the step has no token."""
        if workflow.token is None:
            raise EnvironmentFault(
                "GITHUB_TOKEN is not set: this command asks GitHub",
                remedy="give the step the job's token in its `env:`",
            )
        return cls(workflow.repository, workflow.token, workflow.api_url)

    def __repr__(self) -> str:
        return f"GitHub({self.repository!r})"

    # --- people -----------------------------------------------------------------------------------

    def permission(self, user: str) -> Permission:
        """What `user` may do here; NONE for who is unknown, and for what we do not know."""
        if not _LOGIN.fullmatch(user):
            return Permission.NONE
        try:
            told = self._ask(
                f"the permission of {user}",
                "",
                lambda: self._repository.get_collaborator_permission(user),
            )
        except Absent:
            return Permission.NONE
        told = {"maintain": "write", "triage": "read"}.get(told, told)
        return Permission(told) if told in set(Permission) else Permission.NONE

    # --- pull requests and files ------------------------------------------------------------------

    def pull_request(self, number: int) -> PullRequest:
        """The pull request of that number."""
        return self._ask(
            f"pull request {number}",
            "pull-requests: read",
            lambda: pull_request_of(self._repository.get_pull(number)),
        )

    def pull_requests(
        self, *, head_branch: str | None = None, state: State = "open"
    ) -> list[PullRequest]:
        """The pull requests in that state, the newest first.

        head_branch: only those of this branch of this very repository, no fork's.
        """
        owner = self.repository.partition("/")[0]
        head = {"head": f"{owner}:{head_branch}"} if head_branch else {}
        found = self._ask(
            "pull requests",
            "pull-requests: read",
            lambda: [
                pull_request_of(one) for one in self._repository.get_pulls(state=state, **head)
            ],
        )
        if head_branch is None:
            return found
        # GitHub ignores a head that it cannot read, and another repository of the owner may be a
        # fork: what is not of this branch is left out here too.
        mine = self.repository.lower()
        return [
            one
            for one in found
            if one.head_ref == head_branch and (one.head_repository or "").lower() == mine
        ]

    def open_pull_request(self, *, title: str, body: str, head: str, base: str) -> PullRequest:
        """A new pull request from branch `head` to branch `base`."""
        return self._ask(
            f"opening a pull request of {head}",
            "pull-requests: write",
            lambda: pull_request_of(
                self._repository.create_pull(base=base, head=head, title=title, body=fit(body))
            ),
            repeatable=False,
        )

    def edit_pull_request(self, number: int, *, title: str, body: str) -> None:
        """Give a pull request this title and body."""
        self._ask(
            f"editing pull request {number}",
            "pull-requests: write",
            lambda: self._repository.get_pull(number).edit(title=title, body=fit(body)),
        )

    def file(self, path: str, *, ref: str, limit: int) -> bytes:
        """The file `path` at `ref`: a branch, or a commit, be it of a fork's pull request.

        GitHubError above `limit` bytes, and for what is not a file.
        """
        return self._ask(f"{path} at {ref}", "contents: read", lambda: self._file(path, ref, limit))

    def _file(self, path: str, ref: str, limit: int) -> bytes:
        found = self._repository.get_contents(path, ref=ref)
        if isinstance(found, list) or found.type != "file":
            raise GitHubError(f"{path} at {ref} is not a file")
        if found.size > limit:
            raise GitHubError(f"{path} at {ref} has {found.size} bytes; the limit is {limit}")
        content, encoding = found.content, found.encoding
        if encoding == "none":  # above 1 MB the file itself is not in the answer, its hash is
            blob = self._repository.get_git_blob(found.sha)
            content, encoding = blob.content, blob.encoding
        if encoding != "base64":
            raise GitHubError(f"{path} at {ref} came as {encoding!r}, which nobody here reads")
        data = base64.b64decode(content)
        if len(data) != found.size:
            raise GitHubError(f"{path} at {ref}: {len(data)} bytes came of {found.size}")
        return data

    # --- issues -----------------------------------------------------------------------------------

    def issue(self, number: int) -> Issue:
        """The issue of that number; a pull request is one too."""
        return self._ask(
            f"issue {number}",
            "issues: read",
            lambda: issue_of(self._repository.get_issue(number)),
        )

    def issues(self, *, label: str, state: State = "open") -> list[Issue]:
        """The issues with that label in that state, the newest first, without pull requests."""
        return self._ask(
            f"issues with label {label}",
            "issues: read",
            lambda: [
                issue_of(one)
                for one in self._repository.get_issues(labels=[label], state=state)
                # The list holds pull requests too. PyGithub asks again for each issue that has no
                # `pull_request`; the address tells the two apart for nothing.
                if one.html_url.split("/")[-2] != "pull"
            ],
        )

    def open_issue(self, *, title: str, body: str, labels: Iterable[str]) -> Issue:
        """A new issue. GitHub makes labels that do not exist yet."""
        wanted = list(labels)
        made = self._ask(
            f"opening the issue {title!r}",
            "issues: write",
            lambda: issue_of(self._repository.create_issue(title, body=fit(body), labels=wanted)),
            repeatable=False,
        )
        if lost := set(wanted) - set(made.labels):
            # GitHub drops labels in silence where the token may not set them; without its label
            # no later job finds the issue again, and each would open another.
            raise GitHubError(
                f"{made.url} was opened without its label {', '.join(sorted(lost))}",
                remedy="add the label by hand, and give the token write access to the repository",
            )
        return made

    def edit_issue(
        self,
        number: int,
        *,
        title: str | None = None,
        body: str | None = None,
        state: Literal["open", "closed"] | None = None,
    ) -> None:
        """Change what is given, leave the rest."""
        changes: dict[str, Any] = {"title": title, "body": body and fit(body), "state": state}
        changes = {name: value for name, value in changes.items() if value is not None}
        self._ask(
            f"editing issue {number}",
            "issues: write",
            lambda: self._repository.get_issue(number).edit(**changes),
        )

    # --- comments ---------------------------------------------------------------------------------

    def comment(self, number: int, body: str, *, marker: str) -> str:
        """Our one comment with that marker on an issue or pull request now says `body`; its URL.

        A comment of anyone else, whatever marker it begins with, is left alone.
        """
        tag = f"<!-- {marker} -->"
        text = fit(body if body.startswith(tag) else f"{tag}\n{body}")

        def edited() -> str:
            one = self._our_comment(number, tag)
            if one is None:
                return ""
            if not same_text(one.body, text):
                one.edit(text)
            return str(one.html_url)

        return self._ask(f"the comments of {number}", _COMMENTS, edited) or self.say(number, text)

    def our_comment(self, number: int, *, marker: str) -> str:
        """What our comment with that marker says; "" where there is none."""

        def body() -> str:
            one = self._our_comment(number, f"<!-- {marker} -->")
            return one.body or "" if one else ""

        return self._ask(f"the comments of {number}", "issues: read", body)

    def _our_comment(self, number: int, tag: str) -> IssueComment | None:
        for one in self._repository.get_issue(number).get_comments():
            mine = one.user is not None and one.user.login.lower() == self.login.lower()
            if mine and (one.body or "").startswith(tag):
                return one
        return None

    def say(self, number: int, body: str) -> str:
        """A new comment on an issue or pull request; its URL."""
        return self._ask(
            f"a comment on {number}",
            _COMMENTS,
            lambda: str(self._repository.get_issue(number).create_comment(fit(body)).html_url),
            repeatable=False,
        )

    # --- checks -----------------------------------------------------------------------------------

    def check(
        self,
        sha: str,
        name: str,
        *,
        conclusion: Conclusion,
        title: str,
        summary: str,
        details_url: str,
    ) -> None:
        """The check `name` of commit `sha` is completed and says this; one check however often."""
        told: dict[str, Any] = {
            "details_url": details_url,
            "status": "completed",
            "conclusion": conclusion,
            "output": {"title": title, "summary": fit(summary)},
        }

        def edited() -> bool:
            for one in self._checks(sha, name):
                if one.external_id == _CHECK_ID:
                    one.edit(**told)
                    return True
            return False

        if not self._ask(f"the checks of {sha}", "checks: write", edited):
            self._ask(
                f"a check on {sha}",
                "checks: write",
                lambda: self._repository.create_check_run(name, sha, external_id=_CHECK_ID, **told),
                repeatable=False,
            )

    def _checks(self, sha: str, name: str) -> Iterable[CheckRun]:
        return self._repository.get_commit(sha).get_check_runs(check_name=name)
