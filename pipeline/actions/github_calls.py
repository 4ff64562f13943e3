"""Asking GitHub: what is repeated, how long is waited, and what people read when it is in vain.

What is sent twice does the same as sent once, or it is not sent twice: reads and edits are
repeated after a server's failure, creations are not, since nobody knows whether they were done.
Refusals for too many requests are repeated for all, after the time that GitHub asks for.

https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api
https://docs.github.com/en/rest/using-the-rest-api/troubleshooting-the-rest-api
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from pipeline.errors import GitHubError

if TYPE_CHECKING:
    from github.GithubException import GithubException

ATTEMPTS = 4
_FIRST_WAIT_S = 2.0
_UNTOLD_WAIT_S = 60.0
"""GitHub's advice for a limit that does not say when it ends."""
_LONGEST_WAIT_S = 120.0
"""A job pays for waiting by the minute; above this it ends and says when to come back."""

_AGAIN = "githubstatus.com says whether GitHub has trouble; run the job again"
_DOUBT = "nobody knows whether it was done: look, then run the job again"

T = TypeVar("T")


class Absent(GitHubError):
    """There is no such thing, as far as this token can see."""


@dataclass(frozen=True)
class Caller:
    """Asks with one token of one repository."""

    repository: str
    token: str = field(repr=False)
    sleep: Callable[[float], None] = time.sleep

    def ask(self, what: str, needs: str, call: Callable[[], T], *, repeatable: bool = True) -> T:
        """What `call` returns, repeated while that can help; GitHubError in our words.

        what: is asked for. needs: the line under a job's `permissions:` that allows it, "" where
        every job may.
        repeatable: doing it twice is as good as once.
        """
        import github
        import requests

        wait = _FIRST_WAIT_S
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return call()
            except github.GithubException as error:
                limited = _limited(error)
                pause = max(wait, _asked_wait(error)) if limited else wait
                again = limited or (error.status >= 500 and repeatable)
                problem = self._explained(error, what, needs, repeatable)
            except requests.RequestException as error:
                pause, again = wait, repeatable
                problem = GitHubError(
                    f"{what}: no whole answer came from GitHub ({type(error).__name__})",
                    remedy=_AGAIN if repeatable else _DOUBT,
                )
            except (
                # PyGithub's ways to say that an answer is not what the API documents.
                github.BadAttributeException,
                AssertionError,
                AttributeError,
                KeyError,
                RuntimeError,
                TypeError,
                ValueError,
            ) as error:
                raise GitHubError(
                    f"{what}: the answer is not what GitHub's API documents "
                    f"({type(error).__name__})",
                    remedy="does GitHub answer at GITHUB_API_URL, or something between?",
                ) from error
            if not again or attempt == ATTEMPTS or pause > _LONGEST_WAIT_S:
                # Without the cause, whose text is GitHub's whole answer.
                raise problem from None
            self.sleep(pause)
            wait *= 2
        raise AssertionError("the last attempt returns or raises")

    def _explained(
        self, error: GithubException, what: str, needs: str, repeatable: bool
    ) -> GitHubError:
        said = self._said(error)
        if _limited(error):
            return GitHubError(
                f"{what}: GitHub answers no more requests of this token for now",
                remedy=f"run the job again {_later(error)}; all jobs of a repository share 1 000 "
                "requests an hour",
            )
        match error.status:
            case 401:
                return GitHubError(
                    f"{what}: GitHub does not know the token",
                    remedy="a job's token ends with its job; a token from the secrets may have "
                    "expired: renew it",
                )
            case 403 if "create or approve pull requests" in said:
                return GitHubError(
                    f"{what}: no workflow of this repository may open pull requests",
                    remedy="Settings, Actions, General: allow GitHub Actions to create and approve "
                    "pull requests",
                )
            case 403 if "too large" in said or "too_large" in said:
                return GitHubError(f"{what}: larger than what GitHub's API gives")
            case 403:
                return GitHubError(
                    f"{what}: the token may not do this{_quoted(said)}", remedy=_allowed(needs)
                )
            case 404 | 410:
                return Absent(
                    f"{what}: not found in {self.repository}, or the token may not see it",
                    remedy=f"if it is there: {_allowed(needs)}",
                )
            case status if status >= 500:
                return GitHubError(
                    f"{what}: GitHub itself failed (HTTP {status})",
                    remedy=_AGAIN if repeatable else _DOUBT,
                )
            case status:
                return GitHubError(f"{what}: GitHub refused (HTTP {status}){_quoted(said)}")

    def _said(self, error: GithubException) -> str:
        """GitHub's own message, one short line, never with the token."""
        data = error.data if isinstance(error.data, dict) else {}
        errors = data.get("errors")
        details = [
            str(one.get("message") or one.get("code") or "") if isinstance(one, dict) else str(one)
            for one in (errors if isinstance(errors, list) else [])
        ]
        text = "; ".join(part for part in [str(data.get("message") or ""), *details] if part)
        shown = text.replace(self.token, "***") if self.token else text
        return " ".join(shown.split())[:300]


def _allowed(needs: str) -> str:
    if needs:
        return f"the job needs `{needs}` under `permissions:`"
    return "the token of every job may do this; another one needs to read metadata"


def _quoted(said: str) -> str:
    return f": {said}" if said else ""


def _limited(error: GithubException) -> bool:
    """Whether it was refused, undone, for too many requests."""
    headers = error.headers or {}
    data = error.data if isinstance(error.data, dict) else {}
    return error.status == 429 or (
        error.status == 403
        and (
            "retry-after" in headers
            or headers.get("x-ratelimit-remaining") == "0"
            or "rate limit" in str(data.get("message")).lower()
        )
    )


def _asked_wait(error: GithubException) -> float:
    """Seconds that GitHub asks to wait."""
    after = (error.headers or {}).get("retry-after", "")
    if after.isdecimal():
        return float(after)
    reset = _reset(error)
    # One more: the reset's second is not over when it begins.
    return _UNTOLD_WAIT_S if reset is None else max(0.0, reset - time.time() + 1)


def _reset(error: GithubException) -> int | None:
    """When the hour's requests are given anew, seconds since 1970; None = they are not used up."""
    headers = error.headers or {}
    told = headers.get("x-ratelimit-reset", "")
    return int(told) if told.isdecimal() and headers.get("x-ratelimit-remaining") == "0" else None


def _later(error: GithubException) -> str:
    reset = _reset(error)
    if reset is None:
        return f"in {_asked_wait(error):.0f} seconds"
    return f"after {datetime.fromtimestamp(reset, UTC):%Y-%m-%dT%H:%M:%SZ}"
