"""Child processes that never outlive their reason: a limit, a stop, a harness that is gone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.lines import printable

_PR_SET_PDEATHSIG = 1  # https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
# Loaded here: between fork and exec of a process with threads, nothing may be loaded any more.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_POLL_S = 0.25
_SAID = 2_000
"""Bytes of a failed process's standard error, from its end, in which its last line is."""


class Unanswered(Exception):
    """A process gave no answer; the text says why."""


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process as the leader of a session of its own, which `end` kills whole.

    On Linux it gets SIGTERM when the thread that started it is gone, even by SIGKILL: that thread
    must live as long as the process is wanted.
    """
    return subprocess.Popen(
        command,
        start_new_session=True,
        preexec_fn=_end_with_parent if _LIBC else None,
        **options,
    )


def _end_with_parent() -> None:
    assert _LIBC is not None
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the process's group, the leader included, and wait for the leader."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def python_path() -> str:
    """PYTHONPATH with which a process finds this package, wherever it is started."""
    root = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


def module_environment() -> dict[str, str]:
    """Environment of a process that runs a module of this package on the CPU."""
    return {
        **os.environ,
        "PYTHONPATH": python_path(),
        # It must not take a core of the device it is a check of: no torch_neuronx at import.
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }


@dataclass(frozen=True)
class Ended:
    """How a process ended by itself. code: its exit code, negative = ended by that signal."""

    code: int
    out: bytes
    err: bytes


def run(
    command: Sequence[str],
    question: bytes = b"",
    *,
    limit_s: float,
    stop: threading.Event | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run a process to its end, with `question` on its standard input.

    Unanswered when it does not start, takes longer than `limit_s`, or `stop` is set meanwhile;
    nothing of it is left then.
    """
    pipe = subprocess.PIPE
    try:
        process = start(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
    except OSError as error:
        raise Unanswered(f"did not start: {error}") from error
    began = time.monotonic()
    given: bytes | None = question
    try:
        while True:
            try:
                out, err = process.communicate(given, timeout=_POLL_S)
                return Ended(process.returncode, out, err)
            except subprocess.TimeoutExpired:
                given = None  # communicate goes on with what it was given first
                if time.monotonic() - began > limit_s:
                    raise Unanswered(f"did not answer within {limit_s:g} s") from None
                if stop is not None and stop.is_set():
                    raise Unanswered("was stopped") from None
    finally:
        if process.returncode is None:
            end(process)
            process.communicate()


def ask(
    command: Sequence[str],
    question: bytes,
    *,
    limit_s: float,
    stop: threading.Event | None = None,
    environment: Mapping[str, str] | None = None,
) -> bytes:
    """What a process answers on standard output to what it is asked on standard input.

    Unanswered as `run`, and when it fails (with its last line of standard error).
    """
    ended = run(command, question, limit_s=limit_s, stop=stop, environment=environment)
    if ended.code:
        said = ended.err[-_SAID:].decode(errors="replace").strip().splitlines()
        last = printable(said[-1], _SAID) if said else "no message"
        raise Unanswered(f"ended with {ended.code}: {last}")
    return ended.out


@contextlib.contextmanager
def stopping(stop: threading.Event) -> Iterator[None]:
    """Turn SIGTERM (a cancelled workflow job) and SIGINT (Ctrl-C) into `stop` while inside.

    What runs can then end in order and leave its records. Afterwards, when there was such a
    signal, SystemExit with the code a shell gives it; at a second signal, KeyboardInterrupt.
    """
    received: list[int] = []

    def leave(number: int, _: object) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise SystemExit(128 + received[0])
