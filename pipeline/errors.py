"""Errors that people see: what is wrong, where, and what to do about it.

Each class carries the process exit code that `qualify` ends with; the table of exit codes in
README.md is generated from here (`exit_codes`).
"""

from __future__ import annotations

from typing import ClassVar


class QualifyError(Exception):
    """An error with a remedy. `str()` of it is the whole message for a person.

    where: the file, with line and column where they are known ("models.yaml:12:5"), or "".
    remedy: one sentence that says what to do, or "".
    """

    exit_code: ClassVar[int] = 1
    meaning: ClassVar[str] = "something else went wrong; the message says what"

    def __init__(self, reason: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        text = f"{self.where}: {self.reason}" if self.where else self.reason
        return f"{text}\n  {self.remedy}" if self.remedy else text


class UsageError(QualifyError):
    """A command was called with arguments that make no sense together."""

    exit_code = 2
    meaning = "the command line is wrong"


class CatalogError(QualifyError):
    """models.yaml cannot be used; every problem found is in the message."""

    exit_code = 3
    meaning = "the model list is invalid"


class HubError(QualifyError):
    """The Hub, or a local directory standing for it, did not give or take what was asked."""

    exit_code = 4
    meaning = "the Hub did not give or take what was asked"


class RecordError(QualifyError):
    """A record, a job or a plan file is not what its schema says."""

    exit_code = 5
    meaning = "a plan, job or record file is invalid"


class ResultsError(QualifyError):
    """results/ cannot be read or written as its schema says, or there is nothing to publish."""

    exit_code = 6
    meaning = "results cannot be read or derived"


class EnvironmentFault(QualifyError):
    """This machine lacks something that the command needs (torch, a compiler, disk, a device)."""

    exit_code = 7
    meaning = "this machine lacks what the command needs"


class GitHubError(QualifyError):
    """GitHub's API refused, failed or could not be reached."""

    exit_code = 8
    meaning = "GitHub did not answer as needed"


class RunsFailed(QualifyError):
    """The command worked; at least one run ended in FAIL or ERROR (only with --strict)."""

    exit_code = 10
    meaning = "the command worked, and at least one run did not PASS (with --strict)"


class ModelFails(QualifyError):
    """`qualify show MODEL`: the newest result on the stack asked for is FAIL."""

    exit_code = 11
    meaning = "qualify show MODEL: it was tried on the stack asked for, and fails"


class NoEvidence(QualifyError):
    """`qualify show MODEL`: nothing that could be acted on, neither a PASS nor a FAIL."""

    exit_code = 12
    meaning = (
        "qualify show MODEL: no evidence: untested, excluded, stale, or an ERROR, which says "
        "nothing of the model"
    )


class NotReproduced(QualifyError):
    """The row's script came to its end here, and to another result than the row's."""

    exit_code = 13
    meaning = "qualify reproduce: the row was tried and not reproduced"


class NotTried(QualifyError):
    """A row could not be tried here, or what was seen does not decide: nothing is claimed."""

    exit_code = 14
    meaning = (
        "qualify reproduce: the row could not be tried on this machine, or what was seen does not "
        "decide"
    )


def exit_codes() -> list[tuple[int, str]]:
    """(code, meaning) of every way a command ends, by code; 0 first."""
    kinds: list[type[QualifyError]] = [QualifyError, *QualifyError.__subclasses__()]
    return [(0, "done"), *sorted((kind.exit_code, kind.meaning) for kind in kinds)]
