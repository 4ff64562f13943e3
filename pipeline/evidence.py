"""What a record must show before a row is made of it: the verdict is passed again, on a machine
that ran nothing.

Records come from elsewhere, and a false PASS is the worst that could be published.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from fnmatch import fnmatch

from pipeline import verdict
from pipeline.errors import RecordError, ResultsError
from pipeline.record import SCHEMA_VERSION, Observation, Record, StackVersions, Versions
from pipeline.rows import close, row_of
from pipeline.targets import CACHES
from pipeline.words import Result, Stage, Target, same_version

MAX_CLOCK_SKEW = timedelta(days=1)
"""A row dated later than this from now would win against every honest one until then: refused."""


def usable(record: Record, now: datetime, *, where: str) -> Record:
    """The record, ended, of which a row can be made; RecordError naming `where` when none can.

    A simulator's record passes whatever else is wrong with it: see `simulated`.
    """
    record = close(record)
    if simulated(record):
        return record
    if record.schema_version != SCHEMA_VERSION:
        raise RecordError(f"schema version {record.schema_version}", where=where)
    if record.tested_at and record.tested_at > now + MAX_CLOCK_SKEW:
        raise RecordError(f"dated in the future: {record.tested_at}", where=where)
    try:
        row_of(record)
    except ResultsError as error:
        raise RecordError(error.reason, where=where) from error
    if (fault := _unproven(record)) is not None:
        raise RecordError(f"says PASS, which its own evidence does not: {fault}", where=where)
    return record


def simulated(record: Record) -> bool:
    """Whether the tests' stand-in had a part in it: its packages say so in their versions."""
    stack = record.run.stack
    told = [*stack.model_dump(exclude={"name", "target"}).values()]
    if record.observation:
        told += record.observation.versions.model_dump().values()
    return stack.target is Target.SIMULATOR or any(
        "simulator" in version.lower() for version in told if version
    )


def _unproven(record: Record) -> str | None:
    """What a PASS lacks."""
    seen, asked = record.observation, record.run
    if record.result is not Result.PASS or seen is None:
        return None
    told = verdict.decide(asked, seen, record.check, record.findings)
    if told.failure is not None:
        return f"{told.failure}: {told.reason}"
    if record.exit_code != 0 or seen.stage is not Stage.DONE or seen.error_type:
        ended = f"run.py ended at stage {seen.stage} with exit code {record.exit_code}"
        return f"{ended} and {seen.error_type or 'no error'}"
    return (
        _other_stack(asked.stack, seen.versions)
        or other_script(record)
        or (_off_device(record, seen) if asked.stack.target is Target.NEURON else None)
    )


def _other_stack(asked: StackVersions, seen: Versions) -> str | None:
    """Which version is not the one asked for; run.py itself ends where one differs."""
    named = (
        ("python", asked.python, seen.python),
        ("torch", asked.torch, seen.torch),
        ("transformers", asked.library_version, seen.transformers),
        ("neuronx-cc", asked.neuronx_cc, seen.neuronx_cc),
        ("torch-neuronx", asked.torch_neuronx, seen.torch_neuronx),
        ("nki", asked.nki, seen.nki),
        ("runtime", asked.runtime, seen.runtime),
        ("neuron-driver", asked.driver, seen.neuron_driver),
    )
    for name, wanted, found in named:
        if wanted and not same_version(found or "", wanted):
            return f"it is for {name} {wanted} and saw {found}"
    return None


def other_script(record: Record) -> str | None:
    """How run_py is not the script that the run was for, as which readers replay it."""
    asked, text = record.run.script_sha256, record.run_py
    if asked is None or text is None:
        return None
    found = hashlib.sha256(text.encode()).hexdigest()
    return None if found == asked else f"its script is {found}, asked for was {asked}"


def _off_device(record: Record, seen: Observation) -> str | None:
    """What shows that a PASS on Trainium did not have the cores that it is said to have had."""
    versions, keys = seen.versions, record.cache_keys
    cores = record.run.placement.cores if record.run.placement else 0
    for name, found in (
        ("neuronx-cc", versions.neuronx_cc),
        ("torch-neuronx", versions.torch_neuronx),
    ):
        if found is None:
            return f"it saw no {name}, without which there is no device"
    if len(set(record.core_ids)) != cores or len(record.core_ids) != cores:
        ids = ", ".join(map(str, record.core_ids)) or "none"
        return f"cores asked for: {cores}; ids of the cores it had: {ids}"
    if seen.device_peak_bytes is not None:
        if len(seen.device_peak_bytes) != cores:
            counted = len(seen.device_peak_bytes)
            return f"cores asked for: {cores}; cores whose memory it counted: {counted}"
        if not all(seen.device_peak_bytes):
            return "a core held no tensor at any time"
    if keys and not any(fnmatch(key, CACHES[Target.NEURON].entries) for key in keys):
        return f"its compiled graphs are not those of neuronx-cc: {keys[0]}"
    return None
