"""Runs the measuring script on this machine: bounded in time, killed whole, nothing left behind."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pipeline import cache, device, diagnosis, free_cores, script, watch
from pipeline.errors import RecordError, UsageError
from pipeline.log import Say, redact
from pipeline.measure.gate import Qualification
from pipeline.measure.points import Point, PointSeen, Rules, Seen, judged
from pipeline.record import OBSERVATION_NAME, Finding, Observation, Run, parse, read_bytes
from pipeline.store import Store
from pipeline.targets import CACHES, core_environment
from pipeline.watch import LOG_NAME, SCRIPT_NAME
from pipeline.words import Stage, Target, Task

TEMPLATE = "measure.py.jinja"
SCRIPT = "measure.py"
"""Name of the script where it is kept; it runs under the name that `watch` gives to all."""

WARM_UPS = 2
"""Calls before the measured ones: the first compiles, the second finds all compiled."""

MOST_SIZES = 64
"""Lengths of prompts times sizes of batches: each compiles two graphs, minutes on the device."""


@dataclass(frozen=True)
class Request:
    """What is to be measured: every length with every batch, in this order."""

    prompt_tokens: tuple[int, ...]
    new_tokens: int
    batches: tuple[int, ...]
    repeats: int
    usd_per_hour: float | None
    limit_s: int

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(prompt tokens, batch) of each point."""
        return tuple((tokens, batch) for tokens in self.prompt_tokens for batch in self.batches)


@dataclass(frozen=True)
class Places:
    """Where things are. output: a folder that does not exist yet or is empty.

    store: of compiled graphs, None = none is used; everything: restore all that the compiler has.
    """

    output: Path
    store: Store | None = None
    everything: bool = False
    python: str = sys.executable
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Measurement:
    """What was asked and what came of it.

    error: why the script did not come to its end, None = it did; points may be there all the same.
    host_peak_bytes: all processes together, warm-up included; runtime_peak_bytes: of each core as
    the driver counts, warm-up and code included. Both None where nobody counted.
    """

    asked: Run
    request: Request
    qualification: Qualification
    points: tuple[Point, ...]
    seen: Seen | None
    error: str | None
    measured_at: datetime
    wall_s: float
    host_peak_bytes: int | None = None
    core_ids: tuple[int, ...] = ()
    runtime_peak_bytes: tuple[int, ...] | None = None
    runtime_peak_source: str | None = None
    findings: tuple[Finding, ...] = ()
    cache_keys: tuple[str, ...] = ()
    provenance: Mapping[str, str | None] = field(default_factory=dict)


def free_folder(parent: Path) -> Path:
    """The first of parent/1, parent/2, ... that is above all there are."""
    names = [one.name for one in parent.iterdir()] if parent.is_dir() else []
    return parent / str(max((int(name) for name in names if name.isdigit()), default=0) + 1)


def render(asked: Run, request: Request) -> str:
    """The script of a run with a placement: run.py's loading and sharding, and the clocks."""
    return script.render(
        asked.model_copy(update={"new_tokens": request.new_tokens}),
        TEMPLATE,
        prompt_tokens=request.prompt_tokens,
        batches=request.batches,
        repeats=request.repeats,
        warm_ups=WARM_UPS,
    )


def measure(
    asked: Run,
    request: Request,
    qualification: Qualification,
    places: Places,
    say: Say,
    provenance: Mapping[str, str | None] | None = None,
) -> Measurement:
    """Measure a run that is not refused, in `qualification.placement`.

    Leaves the script and its log in `places.output`. What the script does wrong is in the
    measurement; UsageError when nothing can be measured as asked, DeviceError when this machine has
    not the cores.
    """
    if asked.task is not Task.TEXT_GENERATION:
        raise UsageError(
            f"{asked.model_id} is for {asked.task}: only text generation can be measured, since "
            "prompts are counted in tokens of text"
        )
    if len(request.sizes) > MOST_SIZES:
        raise UsageError(
            f"{len(request.sizes)} sizes are too many, {MOST_SIZES} at most",
            remedy="each compiles graphs of its own: name fewer lengths or batches",
        )
    if places.output.exists() and (not places.output.is_dir() or any(places.output.iterdir())):
        raise UsageError(
            f"{places.output} is there already and not an empty folder",
            remedy="name another --output: no measurement overwrites an earlier one",
        )
    asked = asked.model_copy(update={"placement": qualification.placement})
    core_ids = free_cores.take(asked)
    text = render(asked, request)
    places.output.mkdir(parents=True, exist_ok=True)
    work = places.output / "work"
    (work / "graphs").mkdir(parents=True)
    try:
        (places.output / SCRIPT).write_text(text)
        (work / SCRIPT_NAME).write_text(text)
        return _measured(asked, request, qualification, places, say, provenance or {}, core_ids)
    finally:
        with suppress(OSError):
            (work / LOG_NAME).replace(places.output / LOG_NAME)
        shutil.rmtree(work, ignore_errors=True)


def _measured(
    asked: Run,
    request: Request,
    qualification: Qualification,
    places: Places,
    say: Say,
    provenance: Mapping[str, str | None],
    core_ids: tuple[int, ...],
) -> Measurement:
    work = places.output / "work"
    graphs = work / "graphs"
    restored: tuple[str, ...] = ()
    if places.store:
        got = cache.restore(places.store, asked, graphs, everything=places.everything)
        restored = got.keys
        if got.problem:
            say(f"compiled graphs: {got.problem}: compiling instead")
    tag = f"measure-{os.getpid()}-{asked.run_id}"
    began = time.monotonic()
    meter = device.PeakMeter.start(core_ids, tag) if core_ids else None
    try:
        ended = watch.watch(
            work,
            python=places.python,
            environment={
                **os.environ,
                **CACHES[asked.stack.target].environment(graphs, work),
                **core_environment(asked.stack.target, core_ids, asked.machine_cores),
                "NEURON_PROCESS_TAG": tag,
            },
            limit_s=request.limit_s,
            stop=places.stop,
            say=say,
            on_stage=lambda _: None,  # the log tells each stage
        )
    finally:
        peaks = meter.stop() if meter else None
    watch.forget(ended.group)
    seen = _seen(work / OBSERVATION_NAME)
    error = _error(asked, request, seen, ended, len(restored))
    keys = cache.used_keys(graphs, asked, restored, None)
    if places.store and error is None:
        saved = cache.save(graphs, asked, keys, places.store, proven=restored)
        if saved.problem:
            say(f"compiled graphs: {saved.problem}: not all are saved")
    rules = Rules(
        cores=qualification.placement.cores,
        new_tokens=request.new_tokens,
        backend_counts=asked.stack.target is not Target.CPU,
        machine_cores=asked.machine_cores,
        usd_per_hour=request.usd_per_hour,
    )
    return Measurement(
        asked=asked,
        request=request,
        qualification=qualification,
        points=_points(request, seen, rules, ended.findings),
        seen=seen,
        error=error,
        measured_at=datetime.now(UTC),
        wall_s=time.monotonic() - began,
        host_peak_bytes=ended.peak_bytes,
        core_ids=core_ids,
        runtime_peak_bytes=peaks.bytes_per_core if peaks else None,
        runtime_peak_source=peaks.source if peaks else None,
        findings=ended.findings,
        cache_keys=keys,
        provenance=provenance,
    )


def _points(
    request: Request, seen: Seen | None, rules: Rules, findings: tuple[Finding, ...]
) -> tuple[Point, ...]:
    """A point for every size that was asked for, whether or not the script came to it."""
    told = {(one.prompt_tokens, one.batch): one for one in (seen.points if seen else ())}
    return tuple(
        judged(
            told.get(size)
            or PointSeen(prompt_tokens=size[0], batch=size[1], refused=None, calls=(), ranks=()),
            rules,
            findings,
        )
        for size in request.sizes
    )


def _seen(path: Path) -> Seen | None:
    """What the script told last, secrets taken out; None when there is nothing usable."""
    try:
        text = redact(read_bytes(path).decode(errors="replace"), os.environ)
        return parse(Seen, text, where=str(path))
    except RecordError:
        return None


def _error(
    asked: Run, request: Request, seen: Seen | None, ended: watch.Ended, restored: int
) -> str | None:
    """Why the script did not come to its end; None when it did."""
    if ended.stopped:
        return "interrupted"
    if not ended.timed_out and ended.code == 0 and seen is not None and seen.stage is Stage.DONE:
        return None
    stage = seen.stage if seen else Stage.DOWNLOAD
    if ended.timed_out:
        return f"no end within {request.limit_s} s; it was at stage {stage}"
    why = diagnosis.diagnose(
        Observation(
            stage=stage,
            error_type=seen.error_type if seen else None,
            error_message=seen.error_message if seen else None,
        ),
        ended.log,
        exit_code=ended.code,
        oom_kills=ended.oom_kills,
        cores=asked.placement.cores if asked.placement else None,
        restored=restored,
    )
    return f"{why.failure} at stage {stage}: {why.error}"
