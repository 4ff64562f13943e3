"""From records to results/ and COMPATIBILITY.md: everything is derived first, then written.

Records are untrusted input: a file that is not a valid one loses nothing but itself, and is told.
No git here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from pipeline import evidence, tables, wishes
from pipeline import results as store
from pipeline.errors import QualifyError, ResultsError
from pipeline.markdown import url
from pipeline.record import MAX_PAPER_BYTES, Plan, Record, Run, find_records, read
from pipeline.rows import Row, newness
from pipeline.words import Failure, Result, Stage

MAX_RECORDS = 20_000
"""Record files in one publication: twenty stacks of a campaign of 1 000 models."""

_TOLD_BY = ("run_id", "run_url", "failure")


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
class Taken:
    """Records to publish, all ended, and what else was there.

    problems: one sentence for each file that could not be used. broken: run id -> why a record that
    may be of that run could not be used; it counts when the run has no other.
    """

    records: tuple[Record, ...]
    problems: tuple[str, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """What a publication did.

    added: rows that history did not hold yet; passed, failed, errors: how many of them are which.
    changes: by model id and run id; a model that still passes has none.
    problems: one sentence for each record file that could not be used.
    written: the paths that changed, removed ones included; [] when all was published before.
    rows: those that were added. lost: ERROR records of the planned runs that left none that can be
    used, those included that an earlier publication told.
    """

    added: int
    passed: int
    failed: int
    errors: int
    changes: tuple[Change, ...]
    problems: tuple[str, ...]
    written: tuple[Path, ...]
    rows: tuple[Row, ...] = ()
    lost: tuple[Record, ...] = ()

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
    catalog_view: wishes.Listed,
    plan: Plan | None,
    now: datetime,
    max_age_days: int | None = None,
) -> Published:
    """`take` what is at `record_paths` and `derive` results and page from it."""
    return derive(
        take(record_paths, now),
        results=results,
        table=table,
        catalog_view=catalog_view,
        plan=plan,
        now=now,
        max_age_days=max_age_days,
    )


def take(record_paths: Sequence[Path], now: datetime) -> Taken:
    """The records in the files, or in the record.json files of the folders, `record_paths`.

    ResultsError when there are more than MAX_RECORDS; RecordError for a path that is not there.
    """
    files = find_records(list(record_paths))
    if len(files) > MAX_RECORDS:
        raise ResultsError(f"{len(files)} record files; limit {MAX_RECORDS}")
    records: list[Record] = []
    problems: list[str] = []
    broken: dict[str, str] = {}
    for path in files:
        try:
            records.append(evidence.usable(read(Record, path), now, where=str(path)))
        except QualifyError as error:
            problems.append(str(error))
            broken |= dict.fromkeys(names(path), error.reason)
    return Taken(tuple(records), tuple(problems), broken)


def derive(
    taken: Taken,
    *,
    results: Path,
    table: Path,
    catalog_view: wishes.Listed,
    plan: Plan | None,
    now: datetime,
    max_age_days: int | None = None,
    run_url: str | None = None,
) -> Published:
    """Put the records and wishes into `results` and write the page `table` anew.

    catalog_view: what people want and exclude, for the page and for unexpected passes.
    plan: with it, each planned run ends in a row; one without a record is ERROR (or its refusal).
    With a plan of nothing and no record, the page alone is written anew.
    now: dates rows that have no date of their own when there is no record to take it from.
    max_age_days: older results are marked stale on the page.
    run_url: the workflow run that was to leave the records. A run without a record then gets its
    row once, however often this is published.

    The same records give the same bytes, and publishing them twice adds nothing. ResultsError when
    there is nothing to publish, or when a record or a planned run is of the simulator, whatever
    target it names: then nothing is written.
    """
    records = list(taken.records)
    at = max((record.tested_at or record.started_at for record in records), default=now)
    absent = _absent(plan, records, taken.broken, at, run_url) if plan else []
    if any(evidence.simulated(record) for record in [*records, *absent]):
        raise ResultsError(
            "a record comes from the simulator, which is a test double",
            remedy="publish records of the targets neuron and cpu only",
        )
    if not records and not absent and (plan is None or taken.problems):
        raise ResultsError(
            "\n".join(("there is no record to publish", *taken.problems)),
            remedy="see whether the jobs ran and left their artifacts",
        )
    migrated = store.migrate(results)
    records += _not_told_yet(absent, results)
    update = store.prepare(results, [store.row_of(record) for record in records])
    scripts = {row["run_id"] for row in update.after if row["run_py"]}
    base = Path(os.path.relpath(results / "scripts", table.parent)).as_posix()
    page = tables.compatibility(
        update.after,
        catalog_view,
        max_age_days=max_age_days,
        script_link=lambda run: url(f"{base}/{run}.py") if run in scripts else None,
    ).encode()
    files = dict(update.files)
    wanted = wishes.dump(wishes.of(catalog_view), max_age_days)
    for path, content in ((results / wishes.FILE, wanted), (table, page)):
        if not path.is_file() or path.read_bytes() != content:
            files[path] = content
    written = store.write(files)
    kinds = [row["result"] for row in update.added]
    return Published(
        added=len(update.added),
        passed=kinds.count(Result.PASS),
        failed=kinds.count(Result.FAIL),
        errors=kinds.count(Result.ERROR),
        changes=tuple(_changes(update, catalog_view)),
        problems=taken.problems,
        written=tuple(dict.fromkeys([*migrated, *written])),
        rows=update.added,
        lost=tuple(record for record in absent if record.run.refusal is None),
    )


def names(path: Path) -> set[str]:
    """Run ids that a broken record file may be of: its folders' names, and what it says itself."""
    told = {path.parent.name, path.parent.parent.name}
    try:
        if path.stat().st_size <= MAX_PAPER_BYTES:
            told.add(str(json.loads(path.read_bytes())["run"]["run_id"]))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass  # the folder's name has to do
    return told


def _absent(
    plan: Plan,
    records: Sequence[Record],
    broken: Mapping[str, str],
    at: datetime,
    run_url: str | None,
) -> list[Record]:
    """Records for the planned runs that left none, or none that can be used."""

    def unusable(run: Run) -> Record:
        reason = f"its record could not be used: {broken[run.run_id]}"
        return store.unrecorded(run, at, Failure.HARNESS, reason[:4_000])

    found = [
        unusable(record.run) if record.run.run_id in broken else record
        for record in store.missing(plan, records, at)
    ]
    return [record.model_copy(update={"run_url": run_url}) for record in found]


def _not_told_yet(absent: Sequence[Record], results: Path) -> list[Record]:
    """Those of which history has no row of the same workflow run.

    Nobody knows when a lost run ended, so that its row would be another one at each publication.
    """
    if not any(record.run_url for record in absent):
        return list(absent)
    told = {tuple(row.values()) for row in store.read_history(results, list(_TOLD_BY))}
    return [
        record
        for record, row in ((record, store.row_of(record)) for record in absent)
        if tuple(row[name] for name in _TOLD_BY) not in told
    ]


def _changes(update: store.Update, listed: wishes.Listed) -> Iterable[Change]:
    """What is new among PASS and FAIL; ERROR says nothing of a model, so it changes nothing."""
    impossible = {model.id for model in listed.excluded if model.reason == "incompatible"}
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
