"""The runner: whatever a script does, its record says where it ended and why.

Real processes throughout; only what run.py contains is replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline import cache, judge, log, reference, runner, script
from pipeline.pool import Lease
from pipeline.record import Record, Run, read, unfinished
from pipeline.retry import INTERRUPTED
from pipeline.store import open_store
from pipeline.words import CpuMatch, English, Failure, Result, Stage, Target, TryReason
from tests import papers
from tests.conftest import ROOT, SEEN

CPU = papers.stack(Target.CPU)

# What every script of these tests begins with: run.py's own way of telling its stage.
JOURNAL = (
    """
import json, os, signal, subprocess, sys, time
from pathlib import Path
def tell(**facts):
    facts = {"schema_version": 1, **facts}
    Path("run.json").write_text(json.dumps(facts))
"""
    + SEEN
)


def _asked(**changes: Any) -> Run:
    return papers.run(
        "demo/fake", **{"stack": CPU, "script_sha256": None, "limit_s": 30, **changes}
    )


class Execute:
    """Runs a script's text as if the template had rendered it; keeps what the harness said."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = open_store(str(tmp_path / "store"))
        self.settings = runner.Settings(tmp_path / "records", store, None, "nobody")
        self.monkeypatch = monkeypatch
        self.said: list[str] = []

    def __call__(self, text: str, lease: Lease | None = None, **changes: Any) -> Record:
        self.monkeypatch.setattr(script, "render", lambda _: JOURNAL + textwrap.dedent(text))
        return runner.run(_asked(**changes), self.settings, self.said.append, lease)


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Execute:
    """See Execute."""
    return Execute(tmp_path, monkeypatch)


def _left(tmp_path: Path) -> Record:
    (path,) = (tmp_path / "records").glob("*/*/record.json")
    return read(Record, path)


@pytest.mark.parametrize(
    ("text", "stage", "failure"),
    [
        ("tell(stage='download'); sys.exit(1)", Stage.DOWNLOAD, Failure.DOWNLOAD),
        ("tell(stage='load'); raise ValueError('no')", Stage.LOAD, Failure.LOAD_ERROR),
        ("tell(stage='compile'); raise ValueError('no')", Stage.COMPILE, Failure.RUNTIME_ERROR),
        ("tell(stage='compile'); os.kill(os.getpid(), 11)", Stage.COMPILE, Failure.CRASH),
        ("tell(stage='generate'); os.abort()", Stage.GENERATE, Failure.CRASH),
        ("tell(stage='load'); os.kill(os.getpid(), 9)", Stage.LOAD, Failure.KILLED),
        (
            "tell(stage='load', error_type='SIGKILL', error_message='rank 1 died'); sys.exit(137)",
            Stage.LOAD,
            Failure.KILLED,
        ),
        (
            "tell(stage='generate', error_type='SIGSEGV', error_message='rank 1 died', "
            "error_rank=1); sys.exit(139)",
            Stage.GENERATE,
            Failure.CRASH,
        ),
        ("print('No space left on device'); sys.exit(1)", Stage.DOWNLOAD, Failure.DISK_FULL),
        ("tell(stage='load'); sys.exit(0)", Stage.LOAD, Failure.LOAD_ERROR),
        ("pass", Stage.DOWNLOAD, Failure.DOWNLOAD),
        ("Path('run.json').write_text('{'); sys.exit(1)", Stage.DOWNLOAD, Failure.HARNESS),
        ("tell(stage='load', alien=1); sys.exit(1)", Stage.LOAD, Failure.HARNESS),
        ("tell(stage='done')", Stage.CHECK, Failure.HARNESS),
    ],
)
def test_how_a_script_ends(
    execute: Execute, tmp_path: Path, text: str, stage: Stage, failure: Failure
) -> None:
    """Stage and class are those of the end, and the record on disk is the one returned."""
    record = execute(text)
    assert (record.stage, record.failure, record.result) == (stage, failure, failure.result)
    assert record.error
    assert _left(tmp_path) == record
    assert record.wall_s is not None
    assert record.run_py and "tell" in record.run_py


def test_a_hang_is_ended_with_all_its_processes(execute: Execute, tmp_path: Path) -> None:
    """At its limit the whole process group goes, children of children included."""
    record = execute(
        """
        tell(stage="compile")
        sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
        subprocess.Popen([sys.executable, "-c", f"import subprocess; subprocess.run({sleeper})"])
        Path("pid").write_text(str(os.getpid()))
        time.sleep(600)
        """,
        limit_s=5,
    )
    assert (record.stage, record.failure) == (Stage.COMPILE, Failure.TIMEOUT)
    assert record.result is Result.FAIL
    (path,) = (tmp_path / "records").glob("*/*/pid")
    assert _alive_in_group(int(path.read_text())) == []


def _alive_in_group(group: int) -> list[int]:
    alive = []
    for process in psutil.process_iter(["pid", "status"]):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            ours = os.getpgid(process.pid) == group
            if ours and process.info["status"] != psutil.STATUS_ZOMBIE:
                alive.append(process.pid)
    return alive


def test_memory_of_the_whole_tree(execute: Execute) -> None:
    """The peak counts children, shared pages once."""
    record = execute(
        """
        tell(stage="load")
        code = "b = bytearray(96 * 2**20); import time; time.sleep(3)"
        both = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
        [one.wait() for one in both]
        sys.exit(1)
        """
    )
    assert record.host_peak_bytes is not None
    assert 192 * 2**20 < record.host_peak_bytes < 320 * 2**20


def test_log_is_bounded_and_keeps_both_ends(execute: Execute, tmp_path: Path) -> None:
    """However much is printed, a log keeps its beginning and its end, and says what is missing."""
    execute(
        """
        print("the beginning")
        for number in range(60000):
            print(f"line {number} " + "x" * 50)
        print("x" * 3_000_000)
        print("the end")
        sys.exit(1)
        """
    )
    (path,) = (tmp_path / "records").glob("*/*/log.txt")
    kept = path.read_text()
    assert len(kept) <= log.LOG_HEAD + log.LOG_TAIL + 100
    assert kept.startswith("the beginning")
    assert kept.endswith("the end\n")
    assert "bytes left out" in kept


def test_secrets_are_never_kept(
    execute: Execute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens by shape and by variable name go neither to the log nor to the terminal nor on."""
    monkeypatch.setenv("HF_TOKEN", "plain-looking-secret")
    record = execute(
        """
        tell(stage="load")
        print("token", os.environ["HF_TOKEN"], "hf_" + "a" * 30, "https://me:" + "pass@host/x")
        raise RuntimeError("refused " + os.environ["HF_TOKEN"])
        """
    )
    kept = "".join(path.read_text() for path in (tmp_path / "records").glob("*/*/log.txt"))
    kept += record.model_dump_json() + "".join(execute.said)
    assert "plain-looking-secret" not in kept
    assert "hf_aaaa" not in kept
    assert "me:pass" not in kept


def test_secrets_in_the_error_are_redacted(
    execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error message that run.py recorded is redacted too."""
    monkeypatch.setenv("HF_TOKEN", "plain-looking-secret")
    record = execute(
        """
        tell(stage="load", error_type="OSError", error_message=os.environ["HF_TOKEN"])
        sys.exit(1)
        """
    )
    assert "plain-looking-secret" not in record.model_dump_json()


def test_broken_text_is_kept_as_text(execute: Execute, tmp_path: Path) -> None:
    """Bytes that are no UTF-8 do not stop the log."""
    execute("sys.stdout.buffer.write(b'\\xff\\xfe broken\\n'); sys.exit(1)")
    (path,) = (tmp_path / "records").glob("*/*/log.txt")
    assert "broken" in path.read_text()


def test_each_attempt_has_its_own_folder(execute: Execute, tmp_path: Path) -> None:
    """Running again never touches an earlier record."""
    first = execute("sys.exit(1)")
    second = execute("tell(stage='load'); sys.exit(1)")
    folder = tmp_path / "records" / first.run.run_id
    assert read(Record, folder / "1" / "record.json") == first
    assert read(Record, folder / "2" / "record.json") == second


def test_tries_of_one_run_share_a_record(execute: Execute, tmp_path: Path) -> None:
    """A second try goes on with the record: it keeps the first one, and the first one's log."""
    first = execute("tell(stage='load'); print('the first'); sys.exit(1)")
    lease = Lease((), reason=TryReason.OTHER_CORES, previous=first)
    second = execute("print('the second'); os.kill(os.getpid(), 11)", lease)
    third = execute("pass", Lease((), reason=TryReason.CLEAN_CACHE, previous=second))
    assert _left(tmp_path) == third
    assert third.reason is TryReason.CLEAN_CACHE
    assert [(one.reason, one.stage, one.failure, one.log) for one in third.tries] == [
        (TryReason.FIRST, Stage.LOAD, Failure.LOAD_ERROR, "log-1.txt"),
        (TryReason.OTHER_CORES, Stage.DOWNLOAD, Failure.CRASH, "log-2.txt"),
    ]
    (folder,) = (tmp_path / "records").glob("*/*")
    assert (folder / "log-1.txt").read_text() == "the first\n"
    assert (folder / "log-2.txt").read_text() == "the second\n"
    # What the first try told is not taken for the third one's.
    assert third.observation is None


def test_a_machine_without_cores_leaves_a_record(execute: Execute) -> None:
    """What the pool cannot place is recorded with its reason, and nothing is started."""
    lease = Lease((), failure=Failure.DEVICE_UNAVAILABLE, error="no device")
    record = execute("raise SystemExit('it was started')", lease)
    assert (record.stage, record.failure) == (Stage.PLAN, Failure.DEVICE_UNAVAILABLE)
    assert (record.error, record.log) == ("no device", None)


def test_a_telling_line_is_found_wherever_it_stands(execute: Execute) -> None:
    """A line that speaks against the run is found in the part of a log that is not kept, too."""
    record = execute(
        """
        tell(stage="load")
        print("x" * 300_000)
        print("y" * 70_000 + "Falling back to original GraphModule execution" + "y" * 70_000)
        for number in range(30000):
            print(f"line {number} " + "x" * 50)
        sys.exit(1)
        """
    )
    (finding,) = record.findings
    assert finding.failure is Failure.CPU_FALLBACK
    assert "Falling back to original GraphModule execution" in finding.line


def test_compiling_ends_with_the_stage(execute: Execute) -> None:
    """The pool learns that a run compiles no more once it generates, at the latest at its end."""
    calls: list[Stage] = []
    lease = Lease((), compiled=lambda: calls.append(Stage.DONE))
    execute("tell(stage='generate'); seen('generate'); sys.exit(1)", lease)
    assert len(calls) >= 2
    calls.clear()
    execute("tell(stage='compile'); seen('compile'); sys.exit(1)", lease)
    assert len(calls) == 1


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group of 64 MiB: a process that joins it and takes more is killed by the kernel."""
    base = Path("/sys/fs/cgroup")
    first = (base / "memory").is_dir()  # version 1 has a tree for memory
    group = base / ("memory/trn-qualify-test" if first else "trn-qualify-test")
    try:
        group.mkdir()
        limits = ("memory.limit_in_bytes",) if first else ("memory.max", "memory.swap.max")
        for limit in limits:
            (group / limit).write_text("64M" if limit != "memory.swap.max" else "0")
    except OSError as error:
        pytest.skip(f"this machine lets us make no control group: {error}")
    yield group
    group.rmdir()


def test_the_out_of_memory_killer_is_told_from_others(execute: Execute, small_memory: Path) -> None:
    """SIGKILL by the kernel for want of memory is host_out_of_memory, on the kernel's own word."""
    record = execute(
        f"""
        tell(stage="load")
        Path({str(small_memory)!r}, "cgroup.procs").write_text(str(os.getpid()))
        held = bytearray(256 * 2**20)
        """
    )
    assert (record.stage, record.failure) == (Stage.LOAD, Failure.HOST_OUT_OF_MEMORY)
    assert record.exit_code == -signal.SIGKILL


def test_a_stop_ends_the_script(execute: Execute, tmp_path: Path) -> None:
    """A stop of the harness ends what runs; the record says that it was interrupted."""

    def stop() -> None:
        _wait(lambda: _reached_compile(tmp_path))
        execute.settings.stop.set()

    threading.Thread(target=stop).start()
    record = execute("tell(stage='compile'); time.sleep(600)")
    assert (record.stage, record.failure) == (Stage.COMPILE, Failure.KILLED)
    assert record.error == INTERRUPTED


def test_a_refusal_becomes_a_record(tmp_path: Path) -> None:
    """What planning refused needs no device: its record is the refusal."""
    settings = runner.Settings(tmp_path, None, None, "nobody")
    record = runner.run(papers.refused(), settings, print)
    assert (record.stage, record.failure, record.result) == (
        Stage.PLAN,
        Failure.TOO_LARGE,
        Result.FAIL,
    )
    assert record.run_py is None


def test_another_script_than_planned(execute: Execute) -> None:
    """A plan made with one template is not carried out with another."""
    record = execute("pass", script_sha256="0" * 64)
    assert (record.failure, record.result) == (Failure.HARNESS, Result.ERROR)


def test_a_fault_of_ours_is_recorded(execute: Execute, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the harness costs this run, not the next ones, and is named."""

    def broken(*_: object, **__: object) -> None:
        raise KeyError("our own mistake")

    monkeypatch.setattr(cache, "restore", broken)
    record = execute("pass")
    assert record.failure is Failure.HARNESS
    assert record.error and "our own mistake" in record.error


HARNESS = """
import sys
from pathlib import Path
from pipeline import cache, processes, runner, script
from tests import papers
from tests.test_runner import JOURNAL, _asked
script.render = lambda _: JOURNAL + Path(sys.argv[1]).read_text()
settings = runner.Settings(Path(sys.argv[2]), None, None, "nobody")
with processes.stopping(settings.stop):
    runner.run(_asked(), settings, print)
"""


def _start_harness(tmp_path: Path, text: str) -> subprocess.Popen[bytes]:
    (tmp_path / "script").write_text(textwrap.dedent(text))
    return subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(tmp_path / "script"), str(tmp_path / "records")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )


def _wait(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


SLEEPER = """
tell(stage="compile")
Path("pid").write_text(str(os.getpid()))
time.sleep(600)
"""


def _reached_compile(tmp_path: Path) -> bool:
    paths = list((tmp_path / "records").glob("*/*/record.json"))
    return bool(paths) and read(Record, paths[0]).stage is Stage.COMPILE


def test_a_killed_harness_leaves_the_truth(tmp_path: Path) -> None:
    """SIGKILL of the harness: the record says the stage, and the script does not live on."""
    harness = _start_harness(tmp_path, SLEEPER)
    _wait(lambda: _reached_compile(tmp_path))
    (pid,) = (tmp_path / "records").glob("*/*/pid")
    harness.kill()
    harness.wait()
    record = _left(tmp_path)
    assert record.result is None
    assert record.stage is Stage.COMPILE
    assert unfinished(tmp_path / "records") == {record.run.run_id: record}
    _wait(lambda: _alive_in_group(int(pid.read_text())) == [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_harness_ends_its_script(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C or a cancelled job: the script goes at once, the record ends as KILLED."""
    harness = _start_harness(tmp_path, SLEEPER)
    _wait(lambda: _reached_compile(tmp_path))
    (pid,) = (tmp_path / "records").glob("*/*/pid")
    harness.send_signal(number)
    harness.wait(timeout=60)
    record = _left(tmp_path)
    assert (record.stage, record.failure) == (Stage.COMPILE, Failure.KILLED)
    assert unfinished(tmp_path / "records") == {}
    _wait(lambda: _alive_in_group(int(pid.read_text())) == [])


def test_a_full_disk_leaves_a_record(tmp_path: Path) -> None:
    """When nothing can be written any more, the record still says disk_full and the stage."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], check=True)
    try:
        (tmp_path / "script").write_text(
            textwrap.dedent(
                """
                tell(stage="load")
                seen("load")
                with open("filler", "wb") as stream:
                    while True:
                        stream.write(b"x" * 4096)
                        stream.flush()
                """
            )
        )
        subprocess.run(
            [sys.executable, "-c", HARNESS, str(tmp_path / "script"), str(disk / "records")],
            cwd=ROOT,
            check=True,
            timeout=60,
            stdout=subprocess.DEVNULL,
        )
        (path,) = (disk / "records").glob("*/*/record.json")
        record = read(Record, path)
        assert (record.stage, record.failure) == (Stage.LOAD, Failure.DISK_FULL)
        assert record.result is Result.ERROR
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_unfinished_is_only_the_newest(tmp_path: Path) -> None:
    """A run that was lost once and ended later is not lost; broken files are passed over."""
    lost, ended = papers.unended(at=papers.day(0)), papers.passing(at=papers.day(1))
    for number, record in enumerate((lost, ended), 1):
        path = tmp_path / lost.run.run_id / str(number) / "record.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(json.loads(record.model_dump_json())))
    assert unfinished(tmp_path) == {}
    (tmp_path / lost.run.run_id / "2" / "record.json").write_text("{")
    assert list(unfinished(tmp_path)) == [lost.run.run_id]


@pytest.mark.parametrize("noisy", [False, True])
def test_judge_is_asked_where_the_comparison_cannot_tell(
    execute: Execute, monkeypatch: pytest.MonkeyPatch, noisy: bool
) -> None:
    """A reference that ran and says nothing, as the model's own rounding is too coarse, is none."""
    asked = _asked()
    seen = papers.observation(CPU, generations=papers.answers(asked))
    exact = (tuple(reference.Step(0.0, 0, (0.0,) * 5) for _ in range(4)),) * 3
    rounded = (tuple(reference.Step(0.0, 0, (9.0 * noisy,) * 5) for _ in range(4)),) * 3
    found = reference.Reference(rounded, cached=False, exact=exact, noise=9.0 * noisy)
    told = judge.Judgement(English.FLUENT, "", "judge@1", 2.5)
    monkeypatch.setattr(reference, "compare", lambda *_, **__: found)
    monkeypatch.setattr(judge, "judge", lambda *_, **__: told)
    record = execute(f"Path('run.json').write_text({seen.model_dump_json()!r})")
    check = record.check
    assert (check.max_gap, check.departure, check.noise) == (0.0, 0.0, 9.0 * noisy)
    assert check.cpu_match is (CpuMatch.NOT_RUN if noisy else CpuMatch.EXACT)
    assert check.english is (English.FLUENT if noisy else English.NOT_RUN)
    assert record.result is Result.PASS
