"""What device machines handed back: from artifacts to the records that may be published.

Untrusted: whoever controls such a machine controls every byte and every name in its artifacts. Only
regular files called record.json are opened, only as JSON, only below limits, and only records of
the very runs that the artifact's job was planned to hold are taken.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pipeline import evidence, retry
from pipeline.errors import RecordError
from pipeline.publish import MAX_RECORDS, Taken, names
from pipeline.record import MAX_PAPER_BYTES, RECORD_NAME, Job, Plan, Record, Run, read
from pipeline.rows import clean, unrecorded
from pipeline.words import Failure

PREFIX = "records-"
MAX_ENTRIES = 50_000
"""Files and folders in one artifact. A run leaves about ten a try, and a job holds some hundred
runs at most; walking through that many takes a second."""
MAX_DEPTH = 8
"""Folders below each other: records stand two deep, and an upload of several paths adds a few."""
MAX_FILES_PER_RUN = 10
"""Records of one run in one artifact: one each time that the job was started on its machine."""
MAX_JOB_BYTES = 256 * 1024 * 1024
"""Of the records of one artifact. Most are below 0.2 MiB, so that a thousand runs fit."""
MAX_BYTES = 1024 * 1024 * 1024
"""Of all records together. In memory they take several times that; a hosted machine has 16 GB."""
MAX_TOLD = 50
"""Sentences that are kept; of more only the number is told."""
MAX_SENTENCE = 400


@dataclass(frozen=True)
class Artifacts:
    """What was found.

    taken: records, and why others could not be used; each of its texts is one line.
    refused: number of things that could not be used, of which the first MAX_TOLD are told.
    aside: what could not be used of earlier attempts: told then, and no fault of this one.
    missing: ids of the jobs that left no artifact. found: job id -> names of its artifacts, the
    newest attempt last.
    """

    taken: Taken
    refused: int
    aside: tuple[str, ...]
    missing: tuple[str, ...]
    found: Mapping[str, tuple[str, ...]]


def collect(
    folder: Path, plan: Plan, *, attempt: int, run_url: str | None, now: datetime
) -> Artifacts:
    """The records in `folder`, where each artifact is a folder `records-<job id>-<attempt>`.

    folder: may be absent, as when no job left anything. attempt: of this workflow run. run_url: of
    this workflow run; a record that names another is not used. now: nor is one dated later.
    Nothing that `folder` holds raises an error, and nothing outside of it is read.
    """
    jobs = {job.job_id: job for job in plan.jobs}
    sieve = _Sieve(attempt, run_url, now)
    found: dict[str, list[tuple[int, str]]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        job_id, of = _named(path.name)
        if job_id not in jobs:
            sieve.refuse(of, Path(path.name), "not an artifact of a planned job")
        elif of > attempt:
            sieve.refuse(of, Path(path.name), f"this is attempt {attempt}")
        elif path.is_symlink() or not path.is_dir():
            sieve.refuse(of, Path(path.name), "not a folder")
        else:
            found.setdefault(job_id, []).append((of, path.name))
            sieve.add(path, jobs[job_id], of)
    return Artifacts(
        Taken(tuple(sieve.records), _bounded(sieve.refused), sieve.broken),
        refused=len(sieve.refused),
        aside=_bounded(sieve.aside),
        missing=tuple(job_id for job_id in jobs if job_id not in found),
        found={job_id: tuple(name for _, name in sorted(has)) for job_id, has in found.items()},
    )


def _named(name: str) -> tuple[str, int]:
    """Job id and attempt; "" and a number that no attempt has where it is no artifact's name."""
    job_id, _, attempt = name.removeprefix(PREFIX).rpartition("-")
    known = name.startswith(PREFIX) and attempt.isascii() and attempt.isdecimal()
    return (job_id, int(attempt)) if known and len(attempt) <= 4 else ("", 10_000)


@dataclass
class _Sieve:
    """Takes what may be published, folder by folder, and says of the rest why not."""

    attempt: int
    run_url: str | None
    now: datetime
    records: list[Record] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    files: int = 0
    bytes: int = 0

    def refuse(self, of: int, where: Path, why: str, runs: Iterable[str] = ()) -> None:
        """Say it of attempt `of`; it is what is wrong with the records of `runs`."""
        (self.aside if of < self.attempt else self.refused).append(one_line(f"{where}: {why}"))
        self.broken |= dict.fromkeys(runs, one_line(why))

    def add(self, folder: Path, job: Job, of: int) -> None:
        """Take what one artifact holds."""
        planned = {run.run_id: run for run in job.runs}
        try:
            paths = self._paths(folder, of, planned)
        except _Flood as flood:
            self.refuse(of, Path(folder.name), str(flood), planned)
            return
        for path in paths:
            told = path.relative_to(folder.parent)
            try:
                record = read(Record, path)
            except RecordError as error:
                self.refuse(of, told, error.reason, planned.keys() & names(path))
                continue
            name = record.run.run_id
            if name not in planned:
                self.refuse(of, told, f"{name} is no run of job {job.job_id}")
            elif (other := self._other(record, planned[name])) is not None:
                # An earlier attempt may have had another plan: then it says nothing of this run.
                self.refuse(of, told, other, [name] if of == self.attempt else ())
            else:
                try:
                    self.records.append(evidence.usable(record, self.now, where=""))
                except RecordError as error:
                    self.refuse(of, told, error.reason, [name])

    def _paths(self, folder: Path, of: int, planned: Mapping[str, Run]) -> list[Path]:
        """The record files that may be read; _Flood when there is too much of anything."""
        paths, size = [], 0
        for path, odd in _walk(folder):
            told = path.relative_to(folder.parent)
            runs = planned.keys() & {path.parent.name, path.parent.parent.name}
            if odd:
                self.refuse(of, told, odd, runs if path.name == RECORD_NAME else ())
            elif path.name == RECORD_NAME:
                if (length := path.lstat().st_size) > MAX_PAPER_BYTES:
                    self.refuse(of, told, f"{length} bytes; limit {MAX_PAPER_BYTES}", runs)
                    continue
                paths.append(path)
                size += length
        most = min(MAX_FILES_PER_RUN * len(planned), MAX_RECORDS - self.files)
        if len(paths) > most:
            raise _Flood(f"{len(paths)} record files; limit {most}")
        if size > (limit := min(MAX_JOB_BYTES, MAX_BYTES - self.bytes)):
            raise _Flood(f"{size} bytes of records; limit {limit}")
        self.files += len(paths)
        self.bytes += size
        return sorted(paths)

    def _other(self, record: Record, planned: Run) -> str | None:
        """How it is not a record of the planned run, made in this workflow run."""
        asked = record.run
        if not any(_same(asked, form) for form in _forms(planned, self.now)):
            odd = [
                name
                for name in Run.model_fields
                if name not in _GROWS and getattr(asked, name) != getattr(planned, name)
            ]
            return f"not as planned: {', '.join(odd) or 'the placement or its script'}"
        if self.run_url and record.run_url not in (None, self.run_url):
            return f"of another workflow run: {record.run_url}"
        if asked.script_sha256 is None and record.run_py is not None:
            return "holds a script where none was planned"
        if (fault := evidence.other_script(record)) is not None:
            return fault
        return "made with the simulator, a test double" if evidence.simulated(record) else None


class _Flood(Exception):
    """An artifact holds more than any honest one."""


_GROWS = ("placement", "larger", "host_bytes", "script_sha256")
"""Fields of a run that its machine may change, and only as `retry` changes them."""


def _forms(planned: Run, at: datetime) -> Iterator[Run]:
    """The run as planned, then in each larger placement that its machine may have gone on to."""
    form: Run | None = planned
    while form is not None:
        yield form
        # By the rule that the machine goes by, asked for a run that memory did not suffice for.
        moved = retry.next_try(unrecorded(form, at, Failure.DEVICE_OUT_OF_MEMORY))
        form = moved.run if moved else None


def _same(asked: Run, form: Run) -> bool:
    """Equal, but for the host memory, of which a run gets all when it is tried alone."""
    return asked.model_copy(update={"host_bytes": form.host_bytes}) == form


def _walk(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every file below `folder`, and what is odd about it or about a folder that is not entered.

    _Flood above MAX_ENTRIES. Links are never followed.
    """
    waiting, count = [(folder, 1)], 0
    while waiting:
        here, depth = waiting.pop()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    count += 1
                    if count > MAX_ENTRIES:
                        raise _Flood(f"more than {MAX_ENTRIES} files and folders")
                    path = Path(entry.path)
                    mode = entry.stat(follow_symlinks=False).st_mode
                    if not stat.S_ISDIR(mode):
                        yield path, "" if stat.S_ISREG(mode) else "not a regular file"
                    elif depth == MAX_DEPTH:
                        yield path, f"more than {MAX_DEPTH} folders deep"
                    else:
                        waiting.append((path, depth + 1))
        except OSError as error:
            yield here, f"cannot be read: {error.strerror}"


def one_line(told: str) -> str:
    """One printable line of bounded length, in which no program that reads a log finds a command.

    GitHub's runner takes "##[" anywhere in a line for one: it is told apart.
    """
    text = " ".join(clean(told.encode(errors="replace").decode()).split())
    text = text.replace("##[", "## [")
    return text if len(text) <= MAX_SENTENCE else f"{text[: MAX_SENTENCE - 3]}..."


def _bounded(lines: list[str]) -> tuple[str, ...]:
    more = len(lines) - MAX_TOLD
    return (*lines[:MAX_TOLD], *([f"and {more} more"] if more > 0 else ()))
