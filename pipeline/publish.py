"""From records to results/ and COMPATIBILITY.md: everything is derived first, then written.

Records are untrusted input: a file that is not a valid one loses nothing but itself, and is told.
No git here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path

from pipeline import results as store
from pipeline import tables, verdict
from pipeline.errors import QualifyError, RecordError, ResultsError
from pipeline.record import (
    MAX_PAPER_BYTES,
    SCHEMA_VERSION,
    Observation,
    Plan,
    Record,
    Run,
    StackVersions,
    Versions,
    find_records,
    read,
)
from pipeline.rows import Row, newness
from pipeline.targets import CACHES
from pipeline.words import Failure, Result, Stage, Target, same_version

MAX_RECORDS = 20_000
"""Record files in one publication: twenty stacks of a campaign of 1 000 models."""

MAX_CLOCK_SKEW = timedelta(days=1)
"""A row dated later than this from now would win against every honest one until then: refused."""


class ChangeKind(StrEnum):
    """What a publication changed for one run, compared with what was current before."""

    NEW = "new"
    NEWLY_FAILING = "newly_failing"
    FIXED = "fixed"
    STILL_FAILING = "still_failing"
    UNEXPECTED_PASS = "unexpected_pass"  # noqa: S105 -- a word, not a password


@dataclass(frozen=True)
class Seen:
    """One observation in short."""

    run_id: str
    result: Result
    stage: Stage
    failure: Failure | None
    tested_at: datetime

    def __str__(self) -> str:
        return f"{self.result} ({self.failure} at {self.stage})" if self.failure else self.result


@dataclass(frozen=True)
class Change:
    """One run whose current row says PASS or FAIL anew.

    before: the row it replaced, or for a stack's first row that of the newest other stack of the
    same target; None when the model was never seen there. Stages are ordered by progress.
    """

    kind: ChangeKind
    model_id: str
    before: Seen | None
    after: Seen

    def __str__(self) -> str:
        """One line for people: the kind, the run, and what it showed before and now."""
        moved = f"{self.before} -> {self.after}" if self.before else str(self.after)
        return f"{self.kind}: {self.after.run_id}: {moved}"


@dataclass(frozen=True)
class Published:
    """What a publication did.

    added: rows that history did not hold yet; passed, failed, errors: how many of them are which.
    changes: by model id and run id; a model that still passes has none.
    problems: one sentence for each record file that could not be used.
    written: the paths that changed, removed ones included; [] when all was published before.
    """

    added: int
    passed: int
    failed: int
    errors: int
    changes: tuple[Change, ...]
    problems: tuple[str, ...]
    written: tuple[Path, ...]

    def check(self) -> None:
        """ResultsError when a record file could not be used, after the good ones are published."""
        if self.problems:
            raise ResultsError(
                "\n".join(
                    (f"published, but {len(self.problems)} could not be used:", *self.problems)
                ),
                remedy="the runs concerned count as ERROR and are tried again",
            )


def publish(
    record_paths: Sequence[Path],
    *,
    results: Path,
    table: Path,
    catalog_view: tables.Wishes,
    plan: Plan | None,
    now: datetime,
    max_age_days: int | None = None,
) -> Published:
    """Put the records found at `record_paths` into `results` and write the page `table` anew.

    catalog_view: what people want and exclude, for the page and for unexpected passes.
    plan: with it, each planned run ends in a row; one without a record is ERROR (or its refusal).
    now: dates rows that have no date of their own when there is no record to take it from.
    max_age_days: older results are marked stale on the page.

    The same records give the same bytes, and publishing them twice adds nothing. ResultsError when
    there is nothing to publish, or when a record or a planned run is of the simulator, whatever
    target it names: then nothing is written.
    """
    records, problems, broken = _read_all(record_paths, now)
    at = max((record.tested_at or record.started_at for record in records), default=now)
    if plan:
        records += _absent(plan, records, broken, at)
    if any(_simulated(record) for record in records):
        raise ResultsError(
            "a record comes from the simulator, which is a test double",
            remedy="publish records of the targets neuron and cpu only",
        )
    if not records:
        raise ResultsError(
            "\n".join(("there is no record to publish", *problems)),
            remedy="see whether the jobs ran and left their artifacts",
        )
    rows = [store.row_of(record) for record in records]

    migrated = store.migrate(results)
    update = store.prepare(results, rows)
    scripts = {row["run_id"] for row in update.after if row["run_py"]}
    base = Path(os.path.relpath(results / "scripts", table.parent)).as_posix()
    page = tables.compatibility(
        update.after,
        catalog_view,
        max_age_days=max_age_days,
        script_link=lambda run: tables.url(f"{base}/{run}.py") if run in scripts else None,
    ).encode()
    files = dict(update.files)
    if not table.is_file() or table.read_bytes() != page:
        files[table] = page
    written = store.write(files)
    kinds = [row["result"] for row in update.added]
    return Published(
        added=len(update.added),
        passed=kinds.count(Result.PASS),
        failed=kinds.count(Result.FAIL),
        errors=kinds.count(Result.ERROR),
        changes=tuple(_changes(update, catalog_view)),
        problems=tuple(problems),
        written=tuple(dict.fromkeys([*migrated, *written])),
    )


def _read_all(
    paths: Sequence[Path], now: datetime
) -> tuple[list[Record], list[str], dict[str, str]]:
    """Ended records, problems, and run id -> reason of broken files as far as they tell theirs.

    A simulator's record is among the records whatever else is wrong with it.
    """
    files = find_records(list(paths))
    if len(files) > MAX_RECORDS:
        raise ResultsError(f"{len(files)} record files; limit {MAX_RECORDS}")
    records: list[Record] = []
    problems: list[str] = []
    broken: dict[str, str] = {}
    for path in files:
        try:
            records.append(_read(path, now))
        except QualifyError as error:
            problems.append(str(error))
            broken |= dict.fromkeys(_names(path), error.reason)
    return records, problems, broken


def _read(path: Path, now: datetime) -> Record:
    """The record in `path`, ended, and one of which a row can be made."""
    record = store.close(read(Record, path))
    if _simulated(record):
        return record
    if record.schema_version != SCHEMA_VERSION:
        raise RecordError(f"schema version {record.schema_version}", where=str(path))
    if record.tested_at and record.tested_at > now + MAX_CLOCK_SKEW:
        raise RecordError(f"dated in the future: {record.tested_at}", where=str(path))
    try:
        store.row_of(record)
    except ResultsError as error:
        raise RecordError(error.reason, where=str(path)) from error
    if (fault := _unproven(record)) is not None:
        raise RecordError(f"says PASS, which its own evidence does not: {fault}", where=str(path))
    return record


def _simulated(record: Record) -> bool:
    """Whether the tests' stand-in had a part in it: its packages say so in their versions."""
    stack = record.run.stack
    told = [*stack.model_dump(exclude={"name", "target"}).values()]
    if record.observation:
        told += record.observation.versions.model_dump().values()
    return stack.target is Target.SIMULATOR or any(
        "simulator" in version.lower() for version in told if version
    )


def _unproven(record: Record) -> str | None:
    """What a PASS lacks: the verdict is passed again here, on a machine that ran nothing.

    Records come from elsewhere, and a false PASS is the worst that could be published.
    """
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
        or _other_script(record)
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


def _other_script(record: Record) -> str | None:
    """Readers replay run_py as what passed, so it is the script that the run was for."""
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


def _names(path: Path) -> set[str]:
    """Run ids that a broken record file may be of: its folders' names, and what it says itself."""
    names = {path.parent.name, path.parent.parent.name}
    try:
        if path.stat().st_size <= MAX_PAPER_BYTES:
            names.add(str(json.loads(path.read_bytes())["run"]["run_id"]))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass  # the folder's name has to do
    return names


def _absent(
    plan: Plan, records: Sequence[Record], broken: dict[str, str], at: datetime
) -> list[Record]:
    """Records for the planned runs that left none, or none that can be read."""

    def unreadable(run: Run) -> Record:
        reason = f"its record cannot be read: {broken[run.run_id]}"
        return store.unrecorded(run, at, Failure.HARNESS, reason[:4_000])

    return [
        unreadable(record.run) if record.run.run_id in broken else record
        for record in store.missing(plan, records, at)
    ]


def _changes(update: store.Update, wishes: tables.Wishes) -> Iterable[Change]:
    """What is new among PASS and FAIL; ERROR says nothing of a model, so it changes nothing."""
    impossible = {model.id for model in wishes.excluded if model.reason == "incompatible"}
    before = {row["run_id"]: row for row in update.before}
    others: dict[tuple[str, str], list[Row]] = {}
    for row in update.before:
        if row["result"] != Result.ERROR:
            others.setdefault((row["model_id"], row["target"]), []).append(row)
    for row in update.after:
        old = before.get(row["run_id"])
        if row["result"] == Result.ERROR or row == old:
            continue
        if old is None or old["result"] == Result.ERROR:
            old = max(
                others.get((row["model_id"], row["target"]), []),
                key=lambda other: newness(other["run_id"]),
                default=None,
            )
        kind = _kind(old, row, unexpected=row["model_id"] in impossible)
        if kind:
            yield Change(kind, row["model_id"], _seen(old) if old else None, _seen(row))


def _kind(old: Row | None, row: Row, *, unexpected: bool) -> ChangeKind | None:
    passes = row["result"] == Result.PASS
    if passes and unexpected:
        return ChangeKind.UNEXPECTED_PASS
    if old is None:
        return ChangeKind.NEW
    match old["result"] == Result.PASS, passes:
        case True, False:
            return ChangeKind.NEWLY_FAILING
        case False, True:
            return ChangeKind.FIXED
        case False, False:
            return ChangeKind.STILL_FAILING
    return None


def _seen(row: Row) -> Seen:
    return Seen(
        run_id=row["run_id"],
        result=Result(row["result"]),
        stage=Stage(row["stage"]),
        failure=Failure(row["failure"]) if row["failure"] else None,
        tested_at=row["tested_at"],
    )
