"""A process that is waited for, and told apart when it never ends: does it stand still itself, or
does something that it started?"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from pipeline import processes

_LOOK = 1.0
"""Seconds between two looks at it."""
_DUMP = 10.0
"""Seconds that a stuck process has to say where it stands."""


@dataclass(frozen=True)
class Ended:
    """out and err: what it wrote. stuck: it was ended from here, since it stood still by itself;
    err then ends with where its threads stood, if it is a program in Go."""

    exit_code: int
    out: str
    err: str
    stuck: bool


def execute(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str],
    log: Path,
    timeout: float,
    still: float,
) -> Ended:
    """Run a command to its end. log: its output, beside it <log>.err; both stay.

    AssertionError: it took longer than `timeout` seconds, with what it said last and which
    processes it waits for. A process that says nothing for `still` seconds, nor waits for another
    one, is ended before. Neither leaves a process behind.
    """
    errors = log.with_name(f"{log.name}.err")
    with (
        log.open("wb") as out,
        errors.open("wb") as err,
        processes.start(
            [str(part) for part in command], cwd=cwd, env=env, stdout=out, stderr=err
        ) as process,
    ):
        try:
            stuck = _wait(process, log, timeout, still)
            if stuck:
                process.send_signal(signal.SIGQUIT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_DUMP)
        finally:
            _end(process)
    return Ended(process.returncode, _text(log), _text(errors), stuck)


def _wait(process: subprocess.Popen[bytes], log: Path, timeout: float, still: float) -> bool:
    """Whether it stands still; False as soon as it ended."""
    # Counted by looks, not by the clock: a machine that is halted for a while loses nothing.
    looks = quiet = size = 0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK)
            return False
        looks, quiet = looks + 1, quiet + 1
        below = _below(process.pid)
        if below or log.stat().st_size != size:
            size, quiet = log.stat().st_size, 0
        if quiet * _LOOK >= still:
            return process.poll() is None  # it may have ended since it was looked at
        if looks * _LOOK >= timeout:
            names = "\n".join(f"{one.pid} {' '.join(_command(one))}" for one in below)
            raise AssertionError(
                f"no end after {timeout:g} s; it waits for:\n{names or 'nothing'}\n"
                f"and said last:\n{_text(log)[-3_000:]}"
            )


def _below(pid: int) -> list[psutil.Process]:
    """What it started and what these started, as far as they run."""
    try:
        found = psutil.Process(pid).children(recursive=True)
        return [one for one in found if one.status() != psutil.STATUS_ZOMBIE]
    except psutil.Error:
        return []  # ended in between: the next look shows more


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    below = _below(process.pid)  # in sessions of their own: a signal to the group misses them
    processes.end(process)
    for one in below:
        with contextlib.suppress(psutil.Error):
            one.kill()


def _text(path: Path) -> str:
    return path.read_text(errors="replace")
