"""The row's own script on this machine: byte for byte, watched, ended in time.

It runs in the runner's own way (`pipeline.watch`): what a reader would type, `python run.py
--record .`, in a process group of its own with a time limit, its memory sampled as the row's was,
its log searched for the same signatures. `pipeline.runner` itself renders a script anew, from the
template of today, which may be another one than the row's.

What it leaves is a Record in memory, of which a row can be made to hold beside the published one.
It is never written as one: its placement is not a planner's, so it must not be published.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from pipeline import cache, device, diagnosis, free_cores, reference, verdict, watch
from pipeline.log import Say
from pipeline.record import Check, Observation, Record, Run
from pipeline.reproduce.asked import Asked, Row
from pipeline.store import Store
from pipeline.targets import CACHES, core_environment
from pipeline.words import CpuMatch, Failure, Result, Stage

LEAST_LIMIT_S = 3600.0
"""Seconds that a replay has at least: its graphs may have to be compiled where the row's were not.
A round figure; a cold 1B model took 576 s on trn2
(https://github.com/dacorvo/hf-mount-cache-examples)."""

_BY_OUTPUT = (None, Failure.WRONG_TOKENS, Failure.NOT_FLUENT)
"""Failure classes (None = PASS) of rows whose result the output check gave."""


@dataclass(frozen=True)
class Settings:
    """store: of compiled graphs, None = compile. limit_s: after it the script is ended."""

    store: Store | None
    limit_s: float
    python: str = sys.executable
    provenance: Mapping[str, str | None] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Replay:
    """What happened here. judged: how the output was held against the row or the CPU.

    graphs: one sentence on the restored compiled graphs. machine: what else may explain the times.
    """

    record: Record
    judged: str
    graphs: str
    machine: str


def limit_s(row: Row) -> float:
    """Seconds that a replay is given unless a person says otherwise."""
    return max(LEAST_LIMIT_S, 3.0 * (row["wall_s"] or 0))


def replay(asked: Asked, folder: Path, settings: Settings, say: Say) -> Replay:
    """Run the script in `folder`, which is made, and judge what it did.

    Leaves run.py, run.json and log.txt there. DeviceError where it has not the cores.
    """
    run = asked.run
    work = folder / "work"
    graphs = work / "graphs"
    graphs.mkdir(parents=True)
    # Bytes, so that no system changes the ends of lines.
    (folder / watch.SCRIPT_NAME).write_bytes(asked.text.encode())
    busy = _busy()
    try:
        restored, told = _restore(run, graphs, settings, say)
        cores = free_cores.take(run)
        say(f"run.py: ended after {settings.limit_s:.0f} s at the latest")
        began = datetime.now(UTC)
        ended, peaks = _watch(run, folder, (graphs, work), cores, settings, say)
        seen = ended.observation
        state = cache.state(seen.all_calls if seen else None, len(restored))
        facts: dict[str, Any] = {
            "run": run,
            "started_at": began,
            "tested_at": datetime.now(UTC),
            "stage": _stage(seen),
            "wall_s": round(ended.wall_s, 3),
            "host_peak_bytes": ended.peak_bytes,
            "runtime_peak_bytes": peaks.bytes_per_core if peaks else None,
            "runtime_peak_source": peaks.source if peaks else None,
            "exit_code": ended.code,
            "core_ids": cores,
            "cache": state,
            "cache_keys": cache.used_keys(graphs, run, restored, state),
            "observation": seen,
            "findings": ended.findings,
            "run_py": asked.text,
            **settings.provenance,
        }
        judged = _judge(asked, seen, ended, len(restored), folder, settings, say)
        return Replay(_close(facts, judged), judged.how, told, busy)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        for left in folder.glob("ranks-*"):
            shutil.rmtree(left, ignore_errors=True)
        for name in (reference.INPUTS_NAME, reference.LOGITS_NAME):
            (folder / name).unlink(missing_ok=True)


def _busy() -> str:
    """Processors, and how much they had to do beside the replay."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{count} processors, load average {os.getloadavg()[0]:.1f} before it began"


def _stage(seen: Observation | None) -> Stage:
    if seen is None:
        return Stage.DOWNLOAD
    return Stage.CHECK if seen.stage is Stage.DONE else seen.stage


def _restore(run: Run, graphs: Path, settings: Settings, say: Say) -> tuple[tuple[str, ...], str]:
    """(keys that arrived in `graphs`, one sentence about it)."""
    if settings.store is None:
        return (), "no store was named: compiled here"
    if not run.cache_keys:
        return (), "the row names no entries: compiled here"
    got = cache.restore(settings.store, run, graphs)
    told = f"{len(got.keys)} of {len(run.cache_keys)} entries of {cache.prefix(run)} restored"
    if got.dropped:
        told += f", {len(got.dropped)} were not what was saved and were dropped"
    if got.problem:
        told += f"; {got.problem}"
    say(f"compiled graphs: {told}")
    return got.keys, told


def _watch(
    run: Run,
    folder: Path,
    caches: tuple[Path, Path],
    cores: tuple[int, ...],
    settings: Settings,
    say: Say,
) -> tuple[watch.Ended, device.RuntimePeaks | None]:
    tag = folder.name
    meter = device.PeakMeter.start(cores, tag) if cores else None
    environment = {
        **os.environ,
        **CACHES[run.stack.target].environment(*caches),
        # How many share the machine is not on the row: the script counts with all processors.
        **core_environment(run.stack.target, cores, None),
        "NEURON_PROCESS_TAG": tag,
    }
    try:
        ended = watch.watch(
            folder,
            python=settings.python,
            environment=environment,
            limit_s=settings.limit_s,
            stop=settings.stop,
            say=say,
            on_stage=lambda _: None,
        )
    finally:
        peaks = meter.stop() if meter else None
    watch.forget(ended.group)
    return ended, peaks


# --- what it showed ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Judged:
    """failure None = PASS. how: what the output was held against, "" = it was not reached."""

    failure: Failure | None
    error: str
    signature: str | None = None
    check: Check = field(default_factory=Check)
    how: str = ""


def _close(facts: dict[str, Any], judged: _Judged) -> Record:
    failure = judged.failure
    return Record(
        **facts
        | {
            "stage": facts["stage"] if failure else Stage.DONE,
            "result": failure.result if failure else Result.PASS,
            "failure": failure,
            "error": judged.error[:4000] or None,
            "signature": judged.signature,
            "check": judged.check,
        }
    )


def _judge(
    asked: Asked,
    seen: Observation | None,
    ended: watch.Ended,
    restored: int,
    folder: Path,
    settings: Settings,
    say: Say,
) -> _Judged:
    """The same rules as for a run of the campaign, the CPU reference being asked only if needed."""
    run = asked.run
    if ended.stopped:
        return _Judged(Failure.KILLED, "it was interrupted")
    whole = seen is not None and seen.stage is Stage.DONE and not ended.faults
    if seen is None or not whole or ended.timed_out or ended.code != 0:
        why = diagnosis.diagnose(
            seen or Observation(stage=Stage.DOWNLOAD),
            ended.log,
            exit_code=ended.code,
            oom_kills=ended.oom_kills,
            timed_out=ended.timed_out,
            cores=run.placement.cores if run.placement else None,
            restored=restored,
            faults=ended.faults,
        )
        error = why.error
        if ended.timed_out and why.failure is Failure.TIMEOUT:
            error = f"no end within {settings.limit_s:.0f} s; it was at stage {_stage(seen)}"
        return _Judged(why.failure, error, why.signature)
    if (broken := verdict.guards(run, seen, ended.findings)) is not None:
        assert broken.failure is not None
        return _Judged(broken.failure, broken.reason, _signature(broken.failure, ended))
    return _of_output(asked, seen, folder, settings, say)


def _signature(failure: Failure, ended: watch.Ended) -> str | None:
    return next((one.signature for one in ended.findings if one.failure is failure), None)


def _of_output(
    asked: Asked, seen: Observation, folder: Path, settings: Settings, say: Say
) -> _Judged:
    """The tokens against the row's; where they are others, or the row has none, against the CPU.

    The same tokens of the same checkpoint got their verdict when the row was made: nothing that
    the CPU could say of them would differ but by its own versions.
    """
    row, run = asked.row, asked.run
    same = [list(one.tokens) for one in seen.generations] == row["generated_tokens"]
    failed = Failure(row["failure"]) if row["failure"] else None
    if same and failed in _BY_OUTPUT:
        how = f"the tokens are the row's, whose check found: {_found(row)}; not asked again"
        if run.revision is None:
            how += "; the row pins no revision, so the weights may be others"
        return _Judged(failed, row["error"] or "", check=Check(cpu_reason=how[:4000]), how=how)
    say("check: the tokens against the CPU")
    compared = reference.compare(
        run,
        seen,
        folder / reference.INPUTS_NAME,
        kept=None,
        python=settings.python,
        limit_s=settings.limit_s,
        available_bytes=psutil.virtual_memory().available,
        stop=settings.stop,
    )
    match = verdict.match(compared, routed=run.mixture_of_experts)
    check = match.check()
    others = "other tokens than the row's" if row["generated_tokens"] else "the row has no tokens"
    if match.cpu_match is CpuMatch.NOT_RUN:
        how = f"{others}, and no CPU reference to hold them against: {match.reason}"
        return _Judged(Failure.INCONCLUSIVE, how, check=check, how=how)
    told = f" ({match.reason})" if match.reason else ""
    how = f"{others}; teacher-forced through the same checkpoint on the CPU: "
    how += f"{match.cpu_match}{told}"
    decided = verdict.decide(run, seen, check)
    return _Judged(decided.failure, decided.reason, check=check, how=how)


def _found(row: Row) -> str:
    """What the row's own output check said."""
    parts = [f"tokens {row['cpu_match']}", f"text {row['english']}"]
    return ", ".join(part for part in parts if not part.endswith("not_run")) or "nothing"
