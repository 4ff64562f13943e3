"""Executes one try of a run on this machine and leaves a record that is true at every moment.

The script lives in a process group of its own with a time limit. The record is written before
anything starts and again before each stage, so that a killed harness, too, leaves the truth. Later
tries of the same run go on with its record.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from pipeline import cache, device, diagnosis, judge, reference, script, verdict, watch
from pipeline.errors import QualifyError, RecordError
from pipeline.log import Say
from pipeline.pool import Lease
from pipeline.record import (
    OBSERVATION_NAME,
    RECORD_NAME,
    Check,
    Observation,
    Record,
    Run,
    Try,
    read,
    write,
)
from pipeline.retry import INTERRUPTED
from pipeline.store import Store
from pipeline.targets import CACHES, core_environment
from pipeline.watch import LOG_NAME, SCRIPT_NAME
from pipeline.words import CpuMatch, Failure, Result, Stage, Target, TryReason

_BALLAST = 1024 * 1024
"""Bytes set aside in the run's folder: freed when the disk is full, so that the record fits."""


@dataclass(frozen=True)
class Settings:
    """What is the same for all runs of one call.

    records: folder of record folders. store: compiled-graph store; everything: restore all of the
    compiler's entries, not only those that the last row recorded. references: kept answers of the
    CPU reference. judge: model id or directory; judge_id: the id a directory stands for. stop: once
    set, runs end as interrupted.
    """

    records: Path
    store: Store | None
    references: Path | None
    judge: str
    judge_id: str | None = None
    everything: bool = False
    python: str = sys.executable
    provenance: Mapping[str, str | None] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)


def run(asked: Run, settings: Settings, say: Say, lease: Lease | None = None) -> Record:
    """Execute one try of a run and return its record, which also stands in `settings.records`.

    Faults of the run end in the record, never in an exception; so does a stop. KeyboardInterrupt
    and SystemExit end the script, leave a record that says so, and go on upwards.
    """
    lease = lease or Lease(())
    paper = _Paper(asked, settings, lease)
    if lease.failure:
        return paper.end(lease.failure, lease.error, stage=Stage.PLAN)
    if asked.refusal:
        return paper.end(asked.refusal.failure, asked.refusal.reason, stage=Stage.PLAN)
    try:
        return _execute(asked, settings, say, lease, paper)
    except (KeyboardInterrupt, SystemExit):
        paper.end(Failure.KILLED, INTERRUPTED)
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
        lease.compiled()
        paper.tidy()


class _Paper:
    """The record of a run and its folder, while a try is being made.

    records/<run id>/<n>, n counting from 1: the record of an earlier run is never touched. Tries of
    one run share a folder: what an earlier try left there is kept under other names.
    """

    def __init__(self, asked: Run, settings: Settings, lease: Lease) -> None:
        parent = settings.records / asked.run_id
        parent.mkdir(parents=True, exist_ok=True)
        newest = max((int(one.name) for one in parent.iterdir() if one.name.isdigit()), default=0)
        before = lease.previous
        self.folder = parent / str(newest if before else newest + 1)
        self.folder.mkdir(exist_ok=before is not None)
        self.ballast = self.folder / ".ballast"
        self.ballast.write_bytes(b"\0" * _BALLAST)
        self.began = time.monotonic()
        tries = (*before.tries, _ended_try(before, self._put_aside(before))) if before else ()
        self.record = Record(
            run=asked,
            stage=Stage.PLAN,
            reason=lease.reason,
            tries=tries,
            core_ids=lease.core_ids if asked.stack.target is not Target.CPU else (),
            started_at=datetime.now(UTC),
            **dict(settings.provenance),
        )
        write(self.record, self.folder / RECORD_NAME)

    def _put_aside(self, before: Record) -> str | None:
        """Name that the last try's log has from now on; its other files are overwritten."""
        (self.folder / OBSERVATION_NAME).unlink(missing_ok=True)
        if before.log is None or not (self.folder / before.log).is_file():
            return None
        name = f"log-{len(before.tries) + 1}.txt"
        (self.folder / before.log).replace(self.folder / name)
        return name

    def note(self, **facts: Any) -> None:
        self.record = Record.model_validate(self.record.model_copy(update=facts).__dict__)
        write(self.record, self.folder / RECORD_NAME)

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

    def tidy(self) -> None:
        """Remove what only the try itself needed."""
        for left in (self.folder / "work", *self.folder.glob("ranks-*")):
            shutil.rmtree(left, ignore_errors=True)
        for name in (reference.INPUTS_NAME, reference.LOGITS_NAME):
            (self.folder / name).unlink(missing_ok=True)
        self.ballast.unlink(missing_ok=True)


def _ended_try(record: Record, log: str | None) -> Try:
    placement = record.run.placement
    if placement is None or record.result is None:
        raise ValueError(
            f"{record.run.run_id}: only a try that ran and ended is followed by another"
        )
    return Try(
        reason=record.reason,
        cores=placement.cores,
        parallelism=placement.parallelism,
        core_ids=record.core_ids,
        result=record.result,
        stage=record.stage,
        failure=record.failure,
        signature=record.signature,
        error=record.error,
        wall_s=record.wall_s,
        cache=record.cache,
        log=log,
    )


def _execute(asked: Run, settings: Settings, say: Say, lease: Lease, paper: _Paper) -> Record:
    folder = paper.folder
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
    on_device = asked.stack.target is not Target.CPU
    if on_device and (taken := _not_free(lease.core_ids)):
        return paper.end(Failure.DEVICE_UNAVAILABLE, taken)
    restored = _restore(asked, settings, say, lease, graphs)

    def on_stage(stage: Stage) -> None:
        if stage.order > paper.record.stage.order and stage is not Stage.DONE:
            paper.note(stage=stage)
        if stage.order >= Stage.GENERATE.order:
            lease.compiled()

    caches = CACHES[asked.stack.target].environment(graphs, work)
    cores = core_environment(asked.stack.target, lease.core_ids, asked.machine_cores)
    tag = f"{folder.parent.name}#{folder.name}"
    meter = device.PeakMeter.start(lease.core_ids, tag) if paper.record.core_ids else None
    try:
        ended = watch.watch(
            folder,
            python=settings.python,
            environment={**os.environ, **caches, **cores, "NEURON_PROCESS_TAG": tag},
            limit_s=asked.limit_s,
            stop=settings.stop,
            say=say,
            on_stage=on_stage,
        )
    finally:
        peaks = meter.stop() if meter else None
    if paper.record.core_ids:
        with contextlib.suppress(device.DeviceError):  # the machine's health is asked for next
            device.wait_idle(lease.core_ids, apart_from=watch.groups() - {ended.group})
    watch.forget(ended.group)
    seen = ended.observation
    found = cache.state(seen.all_calls if seen else None, len(restored))
    paper.note(
        observation=seen,
        findings=ended.findings,
        host_peak_bytes=ended.peak_bytes,
        runtime_peak_bytes=peaks.bytes_per_core if peaks else None,
        runtime_peak_source=peaks.source if peaks else None,
        exit_code=ended.code,
        stage=seen.stage if seen and seen.stage is not Stage.DONE else paper.record.stage,
        cache=found,
        cache_keys=cache.used_keys(graphs, asked, restored, found),
    )
    facts: dict[str, Any] = {"wall_s": round(ended.wall_s, 3)}
    if seen is not None and seen.stage is Stage.DONE:
        facts["stage"] = Stage.CHECK  # what fails from here on fails what it left
    if ended.stopped:
        return paper.end(Failure.KILLED, INTERRUPTED, **facts)
    whole = seen is not None and seen.stage is Stage.DONE and not ended.faults
    if seen is None or not whole or ended.timed_out or ended.code != 0:
        why = diagnosis.diagnose(
            seen or Observation(stage=paper.record.stage),
            ended.log,
            exit_code=ended.code,
            oom_kills=ended.oom_kills,
            timed_out=ended.timed_out,
            cores=asked.placement.cores if asked.placement else None,
            restored=len(restored),
            faults=ended.faults,
        )
        if ended.timed_out and why.failure is Failure.TIMEOUT:
            reason = f"no end within {asked.limit_s} s; it was at stage {paper.record.stage}"
            return paper.end(Failure.TIMEOUT, reason, signature=why.signature, **facts)
        return paper.end(why.failure, why.error, signature=why.signature, **facts)
    if settings.store:
        paper.note(cache_store=_save(settings.store, say, lease, paper.record, graphs, restored))
    paper.note(stage=Stage.CHECK)
    say("check: the tokens against the CPU")
    check = _check(asked, settings, seen, paper, say)
    if settings.stop.is_set():
        return paper.end(Failure.KILLED, INTERRUPTED, check=check, **facts)
    told = verdict.decide(asked, seen, check, paper.record.findings)
    if told.failure:
        signature = next(
            (one.signature for one in paper.record.findings if one.failure is told.failure), None
        )
        return paper.end(told.failure, told.reason, check=check, signature=signature, **facts)
    return paper.end(None, "", check=check, **facts | {"stage": Stage.DONE})


def _not_free(core_ids: tuple[int, ...]) -> str | None:
    """Why the device cannot be used now; None = it can."""
    try:
        others = device.busy(core_ids, watch.groups())
    except device.DeviceError as error:
        return str(error)
    if others:
        held = ", ".join(f"{one.pid} ({one.command[:100]})" for one in others)
        return f"the device of cores {', '.join(map(str, core_ids))} is held by process {held}"
    return None


def _restore(
    asked: Run, settings: Settings, say: Say, lease: Lease, graphs: Path
) -> tuple[str, ...]:
    """Keys that were taken from the store into `graphs`."""
    if settings.store is None or lease.reason is TryReason.CLEAN_CACHE:
        return ()
    got = cache.restore(settings.store, asked, graphs, everything=settings.everything)
    if got.dropped:
        say(f"compiled graphs: {len(got.dropped)} entries were not what was saved: dropped")
    if got.problem:
        say(f"compiled graphs: {got.problem}: compiling instead")
    return got.keys


def _save(
    store: Store, say: Say, lease: Lease, record: Record, graphs: Path, restored: tuple[str, ...]
) -> str | None:
    """URL under which others find the run's entries; None when they are not there."""
    # What made an earlier try fail may be an entry that is just what somebody saved.
    anew = lease.reason is TryReason.CLEAN_CACHE
    keys = record.cache_keys
    saved = cache.save(graphs, record.run, keys, store, proven=restored, replace=anew)
    if saved.problem:
        say(f"compiled graphs: {saved.problem}: not all are saved")
        return None
    return store.public_url


def _check(asked: Run, settings: Settings, seen: Observation, paper: _Paper, say: Say) -> Check:
    """Evidence about the output: the CPU reference where it fits, the judge where it is due."""
    broken = verdict.guards(asked, seen, paper.record.findings)
    if broken:
        return Check(cpu_reason=f"not tried: {broken.reason}"[:4000])
    compared = reference.compare(
        asked,
        seen,
        paper.folder / reference.INPUTS_NAME,
        kept=settings.references,
        python=settings.python,
        limit_s=asked.limit_s,
        available_bytes=psutil.virtual_memory().available,
        stop=settings.stop,
    )
    match = verdict.match(compared, routed=asked.mixture_of_experts)
    check = match.check(
        compared.cached if isinstance(compared, reference.Reference) else None,
    )
    sharded = asked.placement is not None and asked.placement.cores > 1
    if not sharded and match.cpu_match is not CpuMatch.NOT_RUN:
        return check
    say("check: the judge of fluent English")
    judged = judge.judge(
        [judge.Continuation(one.prompt, one.text) for one in seen.generations],
        model=settings.judge,
        declared_id=settings.judge_id,
        python=settings.python,
        timeout=asked.limit_s,
        stop=settings.stop,
    )
    return check.model_copy(
        update={
            "english": judged.english,
            "judge": judged.judge,
            "judge_score": judged.score,
            "judge_reason": judged.reason,
        }
    )


def is_kept(record: Record, settings: Settings) -> bool:
    """Whether the newest record of the run in `settings.records` is this one."""
    folder = settings.records / record.run.run_id
    try:
        newest = max(int(one.name) for one in folder.iterdir() if one.name.isdigit())
        return read(Record, folder / str(newest) / RECORD_NAME) == record
    except (OSError, ValueError, RecordError):
        return False


def summary(record: Record) -> str:
    """One line for a person: result, and how or why."""
    seen, check = record.observation, record.check
    if record.result is Result.PASS and seen:
        graphs = seen.all_calls.graphs if seen.all_calls else None
        word = record.cache.value if record.cache else "cache unknown"
        compared = check.cpu_match is not CpuMatch.NOT_RUN
        evidence = check.cpu_match.value if compared else check.english.value
        text = f"PASS in {record.wall_s:.0f} s: {graphs} graphs ({word}), check {evidence}"
    else:
        text = f"{record.result} at {record.stage}: {record.failure}: {record.error}"
    return text if not record.tries else f"{text} (try {len(record.tries) + 1})"
