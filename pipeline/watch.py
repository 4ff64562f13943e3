"""One script on this machine, watched from its first second to the end of its process group."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from pipeline import processes
from pipeline.log import Log, Say, redact
from pipeline.record import OBSERVATION_NAME, Finding, Observation, Told, read_told
from pipeline.words import Stage

SCRIPT_NAME = "run.py"
LOG_NAME = "log.txt"
_SAMPLE_S = 0.25


@dataclass(frozen=True)
class Ended:
    """How a script ended.

    group: its process group, known to `groups` until `forget`. code: its exit code, negative =
    ended by that signal. timed_out, stopped: why it was killed. wall_s: seconds. peak_bytes: its
    largest memory on the host, all processes together. findings: lines that speak against the run.
    oom_kills: processes that the kernel's out-of-memory killer ended on this machine meanwhile;
    None where that cannot be read, as peak_bytes. observation: what run.json told last, without
    what could not be used; None when it never told anything. faults: why something could not.
    """

    group: int
    code: int
    timed_out: bool
    stopped: bool
    wall_s: float
    peak_bytes: int | None
    log: str
    findings: tuple[Finding, ...]
    oom_kills: int | None
    observation: Observation | None = None
    faults: tuple[str, ...] = ()


def watch(
    folder: Path,
    *,
    python: str,
    environment: Mapping[str, str],
    limit_s: float,
    stop: threading.Event,
    say: Say,
    on_stage: Callable[[Stage], None],
) -> Ended:
    """Run the folder's run.py there: echo and keep what it prints, sample its memory, end it.

    It ends by itself, after `limit_s` seconds, or once `stop` is set; its whole process group with
    it. on_stage is called with each stage it tells, possibly more than once.
    """
    before = _oom_kills()
    began = time.monotonic()
    process = processes.start(
        [python, SCRIPT_NAME, "--record", "."],
        cwd=folder,
        env={**environment, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    _groups.add(process.pid)
    log, journal = Log(folder / LOG_NAME, say), _Journal(folder)
    assert process.stdout is not None
    reader = threading.Thread(target=log.follow, args=(process.stdout,), daemon=True)
    reader.start()
    peak: int | None = None
    timed_out = stopped = False
    try:
        while process.poll() is None and not timed_out and not stopped:
            peak = max(filter(None, (peak, _resident_bytes(process.pid))), default=None)
            if (seen := journal.read()) is not None:
                on_stage(seen.stage)
            stopped = stop.wait(_SAMPLE_S)
            timed_out = time.monotonic() - began > limit_s
    finally:
        running = process.poll() is None
        processes.end(process)
        reader.join(timeout=10)
        log.close()
    after = _oom_kills()
    seen = journal.read()
    return Ended(
        group=process.pid,
        code=process.returncode,
        timed_out=timed_out and running,
        stopped=stopped and running,
        wall_s=time.monotonic() - began,
        peak_bytes=peak,
        log=log.text(),
        findings=log.findings,
        oom_kills=None if before is None or after is None else after - before,
        observation=seen,
        faults=journal.faults,
    )


class _Journal:
    """run.json while its script lives: read when it was written anew, remembered when it is broken.

    faults: what is wrong with the file as it is now.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / OBSERVATION_NAME
        self._version: tuple[int, ...] = ()
        self._last: Observation | None = None
        self.faults: tuple[str, ...] = ()

    def read(self) -> Observation | None:
        """What the file tells, or the last that could be used told; None before there was any."""
        try:
            found = self._path.stat()
        except OSError:
            self.faults = ("it is gone",) if self._version else ()
            return self._last
        version = (found.st_ino, found.st_size, found.st_mtime_ns)
        if version != self._version:
            self._version = version
            told = _told(self._path)
            self.faults = told.faults
            self._last = told.observation or self._last
        return self._last


def _told(path: Path) -> Told:
    return read_told(path, lambda text: redact(text, os.environ))


_groups: set[int] = set()


def groups() -> frozenset[int]:
    """Process groups of this harness's scripts: those that run, and those not yet forgotten."""
    return frozenset(_groups)


def forget(group: int) -> None:
    """From now on what is left of an ended script's group is a left-over like any other."""
    _groups.discard(group)


def _resident_bytes(pid: int) -> int | None:
    """Memory of a process and all below it; shared pages count once where the system can say so."""
    total = 0
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return None
    for process in family:
        with contextlib.suppress(psutil.Error):
            memory = process.memory_full_info()
            total += getattr(memory, "pss", 0) or memory.rss
    return total or None


def _oom_kills() -> int | None:
    """How many processes the kernel has ended for want of memory since the machine started."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
