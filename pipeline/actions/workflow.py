"""The workflow job that this process runs in: what it was told, and how it answers.

https://docs.github.com/en/actions/reference/workflows-and-actions/variables
https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import click

from pipeline.errors import EnvironmentFault

MAX_SUMMARY_BYTES = 1024 * 1024
"""GitHub drops a step's summary above this, while the job stays green."""
_CUT = "\n\n*Cut here: GitHub shows 1 MiB of a summary. All of it is in the log.*\n"


class Level(StrEnum):
    """How an annotation is shown; GitHub shows ten a step of each."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


@dataclass(frozen=True)
class Workflow:
    """One job of one workflow run.

    repository: owner/name. event: the payload of what started the run. token: of the job, never
    printed; None = none was given to this step. output, summary: files that GitHub reads after the
    step; None where the variable is not set, then both go to standard output alone.
    """

    repository: str
    run_id: str
    attempt: int
    event_name: str
    event: Mapping[str, Any]
    server_url: str = "https://github.com"
    api_url: str = "https://api.github.com"
    token: str | None = field(default=None, repr=False)
    output_path: Path | None = None
    summary_path: Path | None = None

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """The job of this process; EnvironmentFault outside of GitHub Actions."""
        try:
            repository = environment["GITHUB_REPOSITORY"]
            run_id = environment["GITHUB_RUN_ID"]
            event_name = environment["GITHUB_EVENT_NAME"]
            event = Path(environment["GITHUB_EVENT_PATH"])
        except KeyError as error:
            raise EnvironmentFault(
                f"{error.args[0]} is not set: this command is for a job of GitHub Actions",
                remedy="the commands for people are those of `qualify --help`",
            ) from None
        return cls(
            repository=repository,
            run_id=run_id,
            attempt=int(environment.get("GITHUB_RUN_ATTEMPT", "1")),
            event_name=event_name,
            event=json.loads(event.read_text(encoding="utf-8") or "{}"),
            server_url=environment.get("GITHUB_SERVER_URL", cls.server_url),
            api_url=environment.get("GITHUB_API_URL", cls.api_url),
            token=environment.get("GITHUB_TOKEN") or None,
            output_path=_path(environment, "GITHUB_OUTPUT"),
            summary_path=_path(environment, "GITHUB_STEP_SUMMARY"),
        )

    @property
    def run_url(self) -> str:
        """The page of this workflow run."""
        return f"{self.server_url}/{self.repository}/actions/runs/{self.run_id}"

    def output(self, name: str, value: str) -> None:
        """Give `value` to the jobs and steps that come after this step."""
        if self.output_path is None:
            click.echo(f"{name}={value}")
            return
        # A delimiter that no value can know, so that none can end itself and set another output.
        end = f"end_{secrets.token_hex(16)}"
        with self.output_path.open("a", encoding="utf-8") as file:
            file.write(f"{name}<<{end}\n{value}\n{end}\n")

    def summary(self, markdown: str) -> None:
        """Add to the page of the run, and print it; cut at GitHub's limit, with a note."""
        click.echo(markdown)
        if self.summary_path is None:
            return
        there = self.summary_path.stat().st_size if self.summary_path.exists() else 0
        data = markdown.encode() + b"\n"
        left = MAX_SUMMARY_BYTES - there
        if len(data) > left:
            cut = data[: max(0, left - len(_CUT.encode()))].decode(errors="ignore")
            data = (cut.rpartition("\n")[0] + _CUT).encode() if cut else b""
        with self.summary_path.open("ab") as file:
            file.write(data)

    def annotate(
        self,
        level: Level,
        message: str,
        *,
        title: str = "",
        file: str = "",
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        """Show a message on the page of the run, and beside the line of a pull request's diff."""
        places = {"file": file, "line": line, "col": column, "title": title}
        told = ",".join(f"{key}={_property(str(v))}" for key, v in places.items() if v)
        click.echo(f"::{level}{' ' if told else ''}{told}::{_data(message)}")


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    return Path(environment[name]) if environment.get(name) else None


def _data(text: str) -> str:
    """A workflow command is one line: https://github.com/actions/toolkit, packages/core."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
