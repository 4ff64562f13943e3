"""Child processes: none outlives its reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from pipeline import processes
from tests.conftest import ROOT


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def _gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_question_is_answered() -> None:
    """What goes in on standard input is answered on standard output, of any size."""
    echo = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])"
    assert processes.ask(_python(echo), b"ab" * 300_000, limit_s=30) == b"ba" * 300_000


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; sys.exit('no such thing')", "ended with 1: no such thing"),
        ("import os; os._exit(3)", "ended with 3: no message"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended with -9: no message"),
        ("import time; time.sleep(600)", "did not answer within 0.5 s"),
    ],
)
def test_no_answer_has_a_reason(code: str, reason: str) -> None:
    """However a process fails to answer, the caller is told how."""
    with pytest.raises(processes.Unanswered) as told:
        processes.ask(_python(code), b"", limit_s=0.5 if "sleep" in code else 30)
    assert str(told.value) == reason


def test_a_program_that_is_not_there() -> None:
    """A missing program is a reason too."""
    with pytest.raises(processes.Unanswered, match=r"did not start: .*no-such-program"):
        processes.ask(["no-such-program"], b"", limit_s=5)


def test_a_stop_ends_the_whole_group(tmp_path: Path) -> None:
    """A stop is noticed while a process is asked, and its children go with it."""
    stop = threading.Event()
    note = tmp_path / "pid"
    code = (
        "import subprocess, sys, time; from pathlib import Path\n"
        f"child = subprocess.Popen({_python('import time; time.sleep(600)')!r})\n"
        f"Path({str(note)!r}).write_text(str(child.pid))\n"
        "time.sleep(600)"
    )

    def stop_later() -> None:
        while not (note.is_file() and note.read_text()):
            time.sleep(0.02)
        stop.set()

    threading.Thread(target=stop_later).start()
    with pytest.raises(processes.Unanswered, match="was stopped"):
        processes.ask(_python(code), b"", limit_s=60, stop=stop)
    child = int(note.read_text())
    deadline = time.monotonic() + 10
    while not _gone(child):
        assert time.monotonic() < deadline, "the child lives on"
        time.sleep(0.02)


def test_many_threads_start_processes_at_once() -> None:
    """Starting from threads neither hangs nor mixes answers up."""
    echo = "import sys; print(sys.stdin.read())"
    answers: dict[int, bytes] = {}

    def ask(number: int) -> None:
        answers[number] = processes.ask(_python(echo), str(number).encode(), limit_s=60)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert answers == {number: f"{number}\n".encode() for number in range(8)}


def test_a_model_process_stays_away_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of a device run loads no device package, and finds this package from anywhere."""
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    environment = processes.module_environment()
    assert environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(ROOT), "elsewhere"]


STOPPING = """
import sys, threading, time
from pipeline import processes
stop = threading.Event()
with processes.stopping(stop):
    print("ready", flush=True)
    stop.wait(60)
    print("in order", flush=True)
    if "--slow" in sys.argv:
        time.sleep(60)
print("never reached")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_things_end_in_order(number: signal.Signals) -> None:
    """The first signal only sets the stop; afterwards the exit code is the shell's."""
    process = subprocess.Popen(_python(STOPPING), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=30)[0] == "in order\n"
    assert process.returncode == 128 + number


def test_a_second_signal_breaks_off() -> None:
    """Whoever presses Ctrl-C twice does not want to wait."""
    process = subprocess.Popen(
        [*_python(STOPPING), "--slow"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "in order\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in stderr
