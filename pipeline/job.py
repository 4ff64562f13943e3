"""Executes a job on this machine: which cores there are, and whether they are in health."""

from __future__ import annotations

import threading

from pipeline import device, machine, retry, runner, watch
from pipeline.errors import RecordError
from pipeline.free_cores import links, usable
from pipeline.pool import Lease
from pipeline.record import Job, Record, Run
from pipeline.words import Failure, Target


def execute(job: Job, settings: runner.Settings, say: machine.Say) -> list[Record]:
    """Execute the job's runs side by side; their records in the order of the runs.

    Every run ends in a record; on a machine without a usable device each says so, and the
    DeviceError is raised after that. Once `settings.stop` is set, runs that have not started stay
    without a record. RecordError when a record could not be kept in `settings.records`.
    """
    settings.records.mkdir(parents=True, exist_ok=True)

    def attempt(run: Run, lease: Lease) -> Record:
        record = runner.run(run, settings, lambda text: say(run, text), lease)
        say(run, runner.summary(record))
        return record

    if all(run.refusal or run.stack.target is Target.CPU for run in job.runs):
        return _execute(job, attempt, _Health(()), say, settings)
    try:
        devices = usable(device.devices())
    except device.DeviceError as error:
        lease = Lease((), failure=Failure.DEVICE_UNAVAILABLE, error=str(error))
        for run in job.runs:
            attempt(run, lease if run.placement else Lease(()))
        raise
    return _execute(job, attempt, _Health(devices), say, settings)


def _execute(
    job: Job,
    attempt: machine.Attempt,
    health: _Health,
    say: machine.Say,
    settings: runner.Settings,
) -> list[Record]:
    has = job.machine
    cores = [core for one in health.devices for core in one.core_ids][: has.cores]
    records = machine.execute(
        job.runs,
        has if not cores else has.model_copy(update={"cores": len(cores)}),
        attempt,
        next_try=retry.next_try,
        health=health,
        core_ids=cores or None,
        connected_to=links(health.devices) or None,
        say=say,
        stop=settings.stop,
    )
    lost = [record.run.run_id for record in records if not runner.is_kept(record, settings)]
    if lost:
        raise RecordError(
            f"records could not be kept: {', '.join(lost)}",
            where=str(settings.records),
            remedy="free space there or name another --records, and run these again",
        )
    return records


class _Health:
    """Says what speaks against cores, by what was counted since the job began."""

    def __init__(self, devices: tuple[device.Device, ...]) -> None:
        self.devices = devices
        # Of the whole machine at once; each device is held against its own part of it.
        self._since = device.counters(tuple(core for one in devices for core in one.core_ids))
        self._sick: dict[int, str] = {}
        self._lock = threading.Lock()

    def __call__(self, core_ids: tuple[int, ...]) -> str | None:
        for one in self.devices:
            if not set(core_ids) & set(one.core_ids):
                continue
            device.wait_idle(one.core_ids, apart_from=watch.groups())
            with self._lock:
                # Neighbours on one device all have to hear of a fault, whoever asks first.
                known = self._sick.get(one.index)
                found = known or device.health(one.core_ids, self._since, watch.groups())
                if found:
                    self._sick[one.index] = found
                    return found
        return None
