"""Runs one rendered script on this machine and leaves a record that is true at every moment.

The script lives in a process group of its own with a time limit. The record is written before
anything starts and again before each stage, so that a killed harness, too, leaves the truth.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from pipeline import cache, diagnosis, judge, reference, script, verdict
from pipeline.errors import QualifyError, RecordError
from pipeline.record import (
    OBSERVATION_NAME,
    RECORD_NAME,
    Check,
    Observation,
    Record,
    Run,
    parse,
    read_bytes,
    write,
)
from pipeline.targets import CACHES
from pipeline.words import Failure, Result, Stage

LOG_NAME = "log.txt"
SCRIPT_NAME = "run.py"
LOG_HEAD, LOG_TAIL = 256 * 1024, 768 * 1024
"""Bytes of a log that are kept, from its beginning and its end: with both, a log stays under the
size at which GitHub's viewer gives up (1 MiB), whatever a compiler prints."""

_SAMPLE_S = 0.25
_PR_SET_PDEATHSIG = 1  # https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
_BALLAST = 1024 * 1024
"""Bytes set aside in the run's folder: freed when the disk is full, so that the record fits."""

_SECRET_NAMES = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|API_?KEY|ACCESS_?KEY", re.IGNORECASE)
_SECRET_SHAPES = re.compile(
    r"hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|AKIA[0-9A-Z]{16}"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """What is the same for all runs of one call.

    records: folder of record folders. store: compiled-graph store. references: kept answers of
    the CPU reference. judge: model id or directory; judge_id: the id a directory stands for.
    """

    records: Path
    store: Path | None
    references: Path | None
    judge: str
    judge_id: str | None = None
    python: str = sys.executable
    provenance: Mapping[str, str | None] = field(default_factory=dict)


def run(asked: Run, settings: Settings, say: Say) -> Record:
    """Execute one run and return its record, which also stands in `settings.records`.

    Faults of the run end in the record, never in an exception; KeyboardInterrupt and SIGTERM end
    the script, leave a record that says so, and go on upwards.
    """
    folder = _fresh_folder(settings.records, asked.run_id)
    paper = _Paper(folder, asked, settings.provenance)
    if asked.refusal:
        return paper.end(asked.refusal.failure, asked.refusal.reason, stage=Stage.PLAN)
    try:
        with _sigterm_as_exit():
            return _execute(asked, settings, say, folder, paper)
    except (KeyboardInterrupt, SystemExit):
        paper.end(Failure.KILLED, "the harness was interrupted")
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        failure = Failure.DISK_FULL if full else Failure.HARNESS
        return paper.end(failure, f"{type(error).__name__}: {error}")
    except QualifyError as error:
        return paper.end(Failure.HARNESS, str(error))
    except Exception as error:  # a fault of ours must not cost the runs that follow
        say(traceback.format_exc())
        return paper.end(Failure.HARNESS, f"{type(error).__name__}: {error}")
    finally:
        for left in (folder / "work", *folder.glob("ranks-*")):
            shutil.rmtree(left, ignore_errors=True)
        (folder / "inputs.safetensors").unlink(missing_ok=True)
        paper.ballast.unlink(missing_ok=True)


@contextlib.contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """SIGTERM (a cancelled workflow job) unwinds like Ctrl-C, so that the script is ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _fresh_folder(records: Path, run_id: str) -> Path:
    """records/<run id>/<n>, n counting from 1: an earlier record is never touched."""
    parent = records / run_id
    parent.mkdir(parents=True, exist_ok=True)
    numbers = [int(path.name) for path in parent.iterdir() if path.name.isdigit()]
    folder = parent / str(max(numbers, default=0) + 1)
    folder.mkdir()
    return folder


class _Paper:
    """The record while it is being made."""

    def __init__(self, folder: Path, asked: Run, provenance: Mapping[str, str | None]) -> None:
        self.path = folder / RECORD_NAME
        self.ballast = folder / ".ballast"
        self.began = time.monotonic()
        self.ballast.write_bytes(b"\0" * _BALLAST)
        self.record = Record(
            run=asked, stage=Stage.PLAN, started_at=datetime.now(UTC), **dict(provenance)
        )
        write(self.record, self.path)

    def note(self, **facts: Any) -> None:
        self.record = Record.model_validate(self.record.model_copy(update=facts).__dict__)
        write(self.record, self.path)

    def end(self, failure: Failure | None, error: str, **facts: Any) -> Record:
        """Close the record; on a full disk with the space that was set aside."""
        self.ballast.unlink(missing_ok=True)
        facts = {
            "wall_s": round(time.monotonic() - self.began, 3),
            **facts,
            "result": failure.result if failure else Result.PASS,
            "failure": failure,
            "error": error[:4000] or None,
            "tested_at": datetime.now(UTC),
        }
        try:
            self.note(**facts)
        except OSError:
            self.note(**facts | {"run_py": None})
        return self.record


def _execute(asked: Run, settings: Settings, say: Say, folder: Path, paper: _Paper) -> Record:
    work = folder / "work"
    graphs = work / "graphs"
    graphs.mkdir(parents=True)
    text = script.render(asked)
    paper.note(run_py=text, log=LOG_NAME, stage=Stage.DOWNLOAD)
    if asked.script_sha256 and asked.script_sha256 != script.sha256(text):
        return paper.end(
            Failure.HARNESS, "this checkout renders another script than the plan was made with"
        )
    (folder / SCRIPT_NAME).write_text(text)
    restored = cache.restore(settings.store, asked, graphs) if settings.store else ()

    def on_stage(stage: Stage) -> None:
        if stage.order > paper.record.stage.order and stage is not Stage.DONE:
            paper.note(stage=stage)

    ended = _watch(asked, settings, say, folder, on_stage)
    seen = _observation(folder)
    counts = seen.all_calls if seen else None
    found = cache.state(counts, len(restored))
    paper.note(
        observation=seen,
        host_peak_bytes=ended.peak_bytes,
        exit_code=ended.code,
        stage=seen.stage if seen and seen.stage is not Stage.DONE else paper.record.stage,
        cache=found,
        cache_keys=cache.used_keys(graphs, asked, restored, found),
    )
    facts = {"wall_s": round(ended.wall_s, 3)}
    if ended.timed_out:
        reason = f"no end within {asked.limit_s} s; it was at stage {paper.record.stage}"
        return paper.end(Failure.TIMEOUT, reason, **facts)
    if ended.code != 0 or seen is None or seen.stage is not Stage.DONE:
        fallback = seen or Observation(stage=paper.record.stage)
        why = diagnosis.diagnose(
            fallback, ended.log, exit_code=ended.code, oom_kills=ended.oom_kills
        )
        return paper.end(why.failure, why.error, signature=why.signature, **facts)
    if settings.store:
        with contextlib.suppress(OSError):
            cache.save(graphs, asked, paper.record.cache_keys, settings.store)
    paper.note(stage=Stage.CHECK)
    say("check: the tokens against the CPU")
    check = _check(asked, settings, seen, folder, say)
    told = verdict.decide(asked, seen, check)
    if told.failure:
        return paper.end(told.failure, told.reason, check=check, **facts)
    return paper.end(None, "", check=check, stage=Stage.DONE, **facts)


def _check(asked: Run, settings: Settings, seen: Observation, folder: Path, say: Say) -> Check:
    """Evidence about the output: the CPU reference where it fits, the judge where it is due."""
    broken = verdict.guards(asked, seen)
    if broken:
        return Check(cpu_reason=f"not tried: {broken.reason}"[:4000])
    compared = reference.compare(
        asked,
        seen,
        folder / "inputs.safetensors",
        kept=settings.references,
        python=settings.python,
        limit_s=asked.limit_s,
        available_bytes=psutil.virtual_memory().available,
    )
    cpu_match, gap, reason = verdict.match(compared)
    check = Check(
        cpu_match=cpu_match,
        cpu_reason=reason,
        max_gap=gap,
        reference_cached=compared.cached if isinstance(compared, reference.Reference) else None,
    )
    sharded = asked.placement is not None and asked.placement.cores > 1
    if not sharded and not isinstance(compared, reference.NoReference):
        return check
    say("check: the judge of fluent English")
    judged = judge.judge(
        [judge.Continuation(one.prompt, one.text) for one in seen.generations],
        model=settings.judge,
        declared_id=settings.judge_id,
        python=settings.python,
        timeout=asked.limit_s,
    )
    return check.model_copy(
        update={
            "english": judged.english,
            "judge": judged.judge,
            "judge_score": judged.score,
            "judge_reason": judged.reason,
        }
    )


def _observation(folder: Path) -> Observation | None:
    """What run.py has told so far, secrets taken out; None when there is nothing usable."""
    path = folder / OBSERVATION_NAME
    try:
        text = redact(read_bytes(path).decode(errors="replace"), os.environ)
        return parse(Observation, text, where=str(path))
    except RecordError:
        return None


# --- one process group, watched -----------------------------------------------------------------


@dataclass(frozen=True)
class _Ended:
    code: int
    timed_out: bool
    wall_s: float
    peak_bytes: int | None
    log: str
    oom_kills: int | None


def _watch(
    asked: Run, settings: Settings, say: Say, folder: Path, on_stage: Callable[[Stage], None]
) -> _Ended:
    """Start run.py, echo and keep what it prints, sample its memory, end it in time."""
    work = folder / "work"
    environment = dict(os.environ)
    environment |= CACHES[asked.stack.target].environment(work / "graphs", work)
    environment["PYTHONUNBUFFERED"] = "1"
    before = _oom_kills()
    began = time.monotonic()
    process = subprocess.Popen(
        [settings.python, SCRIPT_NAME, "--record", "."],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,
    )
    log = _Log(folder / LOG_NAME, say)
    assert process.stdout is not None
    reader = threading.Thread(target=log.follow, args=(process.stdout,), daemon=True)
    reader.start()
    peak: int | None = None
    timed_out = False
    try:
        while process.poll() is None:
            if time.monotonic() - began > asked.limit_s:
                timed_out = True
                break
            peak = max(filter(None, (peak, _resident_bytes(process.pid))), default=None)
            if (seen := _observation(folder)) is not None:
                on_stage(seen.stage)
            time.sleep(_SAMPLE_S)
    finally:
        _end_group(process)
        reader.join(timeout=10)
        log.close()
    after = _oom_kills()
    return _Ended(
        code=process.returncode,
        timed_out=timed_out,
        wall_s=time.monotonic() - began,
        peak_bytes=peak,
        log=log.text(),
        oom_kills=None if before is None or after is None else after - before,
    )


def _end_with_parent() -> None:
    """In the child: ask the kernel for SIGTERM when the harness is gone, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the group, the leader included, and wait for the leader."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


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


class _Log:
    """What a script prints: echoed line by line, redacted, kept within bounds."""

    def __init__(self, path: Path, say: Say) -> None:
        self.path = path
        self.say = say
        self.stream = path.open("wb")
        self.head = 0
        self.tail: deque[bytes] = deque()
        self.tail_bytes = 0
        self.dropped = 0

    def follow(self, source: Any) -> None:
        for raw in iter(lambda: source.readline(64 * 1024), b""):
            line = redact(raw.decode(errors="replace"), os.environ)
            with contextlib.suppress(OSError):
                self.keep(line.encode())
            self.say(line.rstrip("\n"))

    def keep(self, data: bytes) -> None:
        if self.head + len(data) <= LOG_HEAD and not self.tail:
            self.head += len(data)
            self.stream.write(data)
            self.stream.flush()
            return
        self.tail.append(data)
        self.tail_bytes += len(data)
        while self.tail_bytes > LOG_TAIL:
            gone = len(self.tail.popleft())
            self.tail_bytes -= gone
            self.dropped += gone

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self.dropped:
                self.stream.write(f"[... {self.dropped} bytes left out ...]\n".encode())
            self.stream.writelines(self.tail)
            self.stream.flush()
        with contextlib.suppress(OSError):
            self.stream.close()

    def text(self) -> str:
        try:
            return self.path.read_text(errors="replace")
        except OSError:
            return b"".join(self.tail).decode(errors="replace")


def redact(text: str, environment: Mapping[str, str]) -> str:
    """`text` without what looks like a token, and without the values of variables that hold one."""
    secrets = [
        value
        for name, value in environment.items()
        if _SECRET_NAMES.search(name) and len(value) >= 8
    ]
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "[redacted]")
    return _SECRET_SHAPES.sub("[redacted]", text)


def summary(record: Record) -> str:
    """One line for a person: result, and how or why."""
    seen, check = record.observation, record.check
    if record.result is Result.PASS and seen:
        graphs = seen.all_calls.graphs if seen.all_calls else None
        word = record.cache.value if record.cache else "cache unknown"
        evidence = check.cpu_match.value if check.cpu_match != "not_run" else check.english.value
        return f"PASS in {record.wall_s:.0f} s: {graphs} graphs ({word}), check {evidence}"
    return f"{record.result} at {record.stage}: {record.failure}: {record.error}"
