"""What a workflow run came to, read from act's log of JSON lines."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Annotation:
    """A message that GitHub shows on the run's page and beside a line of the diff."""

    level: str
    message: str
    title: str = ""
    file: str = ""
    line: int | None = None


@dataclass(frozen=True)
class JobRun:
    """A job as it ran. name: as the page shows it, "caller/called" in a called workflow.

    result: "success" or "failure". text: what its steps printed. summary: its part of the run's
    page, Markdown. outputs: step id -> name -> value. steps: name -> result, of those that ran.
    """

    name: str
    result: str
    text: str
    summary: str
    outputs: Mapping[str, Mapping[str, str]]
    annotations: tuple[Annotation, ...]
    steps: Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """A workflow run that ended. jobs: those that ran; what a condition skipped is not there."""

    number: int
    exit_code: int
    jobs: tuple[JobRun, ...]
    text: str
    """Everything act said, for the message of a failed assertion."""

    @property
    def results(self) -> dict[str, str]:
        """Name of each job that ran -> its result."""
        return {job.name: job.result for job in self.jobs}

    def job(self, name: str) -> JobRun:
        """The job of that name."""
        (found,) = [job for job in self.jobs if job.name == name]
        return found

    @property
    def summary(self) -> str:
        """The page of the run: the summaries of its jobs."""
        return "\n".join(job.summary for job in self.jobs if job.summary)


@dataclass
class _Growing:
    """A job while act's log is read."""

    name: str
    result: str = ""
    text: list[str] = field(default_factory=list)
    summary: list[str] = field(default_factory=list)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    annotations: list[Annotation] = field(default_factory=list)
    steps: dict[str, str] = field(default_factory=dict)


def read_log(number: int, code: int, out: str, err: str) -> Outcome:
    """The outcome of run `number`: act's exit code and what it wrote."""
    jobs: dict[str, _Growing] = {}
    said = [err]
    for line in out.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            said.append(line)
            continue
        said.append(f"[{entry.get('job', '').strip()}] {entry['msg'].rstrip()}")
        if "job" in entry:
            # "workflow/job", filled with spaces.
            name = entry["job"].partition("/")[2].strip()
            _read(entry, jobs.setdefault(name, _Growing(_shown(name, entry))))
    return Outcome(
        number,
        code,
        tuple(
            JobRun(
                job.name,
                job.result,
                "".join(job.text),
                "".join(job.summary),
                job.outputs,
                tuple(job.annotations),
                job.steps,
            )
            for job in jobs.values()
            if job.result
        ),
        "\n".join(said),
    )


def _shown(name: str, entry: Mapping[str, Any]) -> str:
    """The job's name without the number that act adds to each leg of a matrix, where it has an
    id in it already."""
    leg = (entry.get("matrix") or {}).get("id")
    return re.sub(rf"({re.escape(str(leg))})-\d+$", r"\1", name) if leg else name


def _read(entry: Mapping[str, Any], job: _Growing) -> None:
    """One line of act's log."""
    if entry.get("raw_output"):
        job.text.append(entry["msg"])
    if "stepResult" in entry and entry.get("stage") == "Main" and len(entry["stepID"]) == 1:
        job.steps[entry["step"]] = entry["stepResult"]
    if "jobResult" in entry:
        # One leg's failure is every later leg's result for act: of a leg, its steps tell.
        steps = set(job.steps.values())
        told = entry["jobResult"]
        leg_is_good = entry.get("matrix") and steps and "failure" not in steps
        job.result = "success" if leg_is_good else told
    match entry.get("command"):
        case "summary":
            job.summary.append(entry["content"])
        case "set-output":
            step = entry["stepID"][0]
            job.outputs.setdefault(step, {})[entry["name"]] = entry["arg"]
        case "error" | "warning" | "notice" as level:
            place = entry.get("kvPairs") or {}
            job.annotations.append(
                Annotation(
                    level,
                    entry["arg"],
                    title=place.get("title", ""),
                    file=place.get("file", ""),
                    line=int(place["line"]) if "line" in place else None,
                )
            )
