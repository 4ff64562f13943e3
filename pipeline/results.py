"""results/ on disk: which row is current, what was ever seen, and how both get there.

    current/<compiler>-<version>/<library>-<version>.parquet   the reigning row of each run id
    history/<time of the newest row>-<digest>.parquet          one publication; never changed
    scripts/<run id>.py                                        run_py of each current row

Everything but history is derived from it. Reading and deciding is here; `write` is the only
function, with `migrate` and `rebuild` that call it, that changes the disk.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import phrases
from pipeline.columns import VERSION_KEY
from pipeline.errors import ResultsError
from pipeline.lookup import parquet_files
from pipeline.record import write_atomically
from pipeline.rows import (
    COLUMNS,
    SCHEMA,
    SCHEMA_VERSION,
    Row,
    canonical,
    close,
    digest,
    missing,
    row_of,
    unrecorded,
)
from pipeline.words import Failure, Result, RunId, Stage

__all__ = [
    "COLUMNS",
    "MIGRATIONS",
    "SCHEMA",
    "SCHEMA_VERSION",
    "Attempt",
    "Files",
    "Row",
    "Update",
    "close",
    "last_attempts",
    "load",
    "merge",
    "migrate",
    "missing",
    "prepare",
    "read_current",
    "read_history",
    "rebuild",
    "row_of",
    "unrecorded",
    "write",
]

Lift = Callable[[list[Row]], list[Row]]


def _with_tries(old: list[Row]) -> list[Row]:
    """2: what was not written down before is unknown."""
    new = (
        "runtime_peak_gb",
        "runtime_peak_source",
        "findings",
        "core_ids",
        "backend_graphs",
        "cache_store",
        "try_reason",
        "tries",
    )
    return [row | dict.fromkeys(new) for row in old]


def _with_departures(old: list[Row]) -> list[Row]:
    """3: log-probabilities were not compared; on which evidence a row rests follows from it."""
    lifted = [row | {"departure": None, "noise": None} for row in old]
    return [row | {"check": phrases.evidence(row)} for row in lifted]


MIGRATIONS: dict[int, Lift] = {1: _with_tries, 2: _with_departures}
"""Schema version -> the function that lifts rows of that version to the next one.

Whoever changes the columns raises `rows.SCHEMA_VERSION` and adds the step here; `migrate` then
rewrites every file, since readers of a folder need one schema in all of its files.
"""

ROW_GROUP = 4_096
"""Rows of a group. Groups are what a reader of one model leaves out (`lookup`); each has a part of
the file's footer, which every reader reads."""

_DIGEST_KEY = b"trn_qualify.rows_sha256"

Files = dict[Path, bytes | None]
"""Path -> its new bytes, or None to remove it; in the order in which to write."""


@dataclass(frozen=True)
class Attempt:
    """The newest history row of a run, and how many ERRORs in a row end its history."""

    result: Result
    failure: Failure | None
    stage: Stage
    tested_at: datetime
    errors: int


@dataclass(frozen=True)
class Update:
    """What a publication makes of results/.

    added: the rows that history did not hold yet.
    before, after: the current rows, whole, by model id and run id.
    files: those to write, history first.
    """

    added: tuple[Row, ...]
    before: tuple[Row, ...]
    after: tuple[Row, ...]
    files: Files


def merge(rows: Iterable[Row]) -> list[Row]:
    """The reigning row of each run id, by model id and run id; order and repeats do not matter.

    PASS and FAIL reign over ERROR, which says nothing of the model; then the newest.
    """
    reigning: dict[str, Row] = {}
    for row in rows:
        other = reigning.setdefault(row["run_id"], row)
        if other is not row and _rank(other) < _rank(row):
            reigning[row["run_id"]] = row
    return sorted(reigning.values(), key=_order)


def _rank(row: Row) -> tuple[bool, datetime, str, str]:
    """Total over distinct rows, so that merging is commutative and associative."""
    return (
        row["result"] != Result.ERROR,
        row["tested_at"],
        row["script_sha256"] or "",
        canonical(row),
    )


def _order(row: Row) -> tuple[str, str, datetime, str]:
    return row["model_id"], row["run_id"], row["tested_at"], canonical(row)


def read_current(results: Path, columns: Sequence[str] | None = None) -> list[Row]:
    """The current rows, by model id and run id; [] where nothing was published yet.

    columns: read only these, which is quick; None reads all and holds each file against its digest.
    """
    wanted = None if columns is None else list(dict.fromkeys([*columns, "model_id", "run_id"]))
    rows = [row for path in parquet_files(results / "current") for row in load(path, wanted)]
    rows.sort(key=lambda row: (row["model_id"], row["run_id"]))
    return rows if columns is None else [{name: row[name] for name in columns} for row in rows]


def read_history(results: Path, columns: Sequence[str] | None = None) -> list[Row]:
    """Every row that was ever published, file by file in order of time; `columns` as above."""
    wanted = None if columns is None else list(columns)
    return [row for path in parquet_files(results / "history") for row in load(path, wanted)]


def last_attempts(results: Path) -> dict[str, Attempt]:
    """Run id -> its newest attempt, for the planner that decides what to try again."""
    columns = ["run_id", "tested_at", "result", "failure", "stage"]
    rows = read_history(results, columns)
    rows.sort(key=lambda row: (row["run_id"], row["tested_at"], row["result"], row["stage"]))
    attempts: dict[str, Attempt] = {}
    for row in rows:
        before = attempts.get(row["run_id"])
        result = Result(row["result"])
        failed = Failure(row["failure"]) if row["failure"] else None
        errors = (before.errors if before else 0) + 1 if result is Result.ERROR else 0
        attempts[row["run_id"]] = Attempt(
            result, failed, Stage(row["stage"]), row["tested_at"], errors
        )
    return attempts


def prepare(results: Path, rows: Iterable[Row]) -> Update:
    """What publishing `rows` changes below `results`. Reads the disk, changes nothing.

    Rows that history holds already are not added again; what is derived from them is derived again
    all the same, so that a publication cut short is completed by repeating it.
    """
    incoming = sorted({canonical(row): row for row in rows}.values(), key=_order)
    known = _known(results, {(row["run_id"], row["tested_at"]) for row in incoming})
    added = [row for row in incoming if canonical(row) not in known]
    files: Files = {}
    if added:
        newest = max(row["tested_at"] for row in added).astimezone(UTC)
        name = f"{newest:%Y%m%dT%H%M%SZ}-{digest(added)[:12]}.parquet"
        files[results / "history" / name] = serialise(added)
    before = read_current(results)
    after = merge([*before, *incoming])
    files |= _current(results, after) | _scripts(results, after)
    return Update(tuple(added), tuple(before), tuple(after), files)


def rebuild(results: Path) -> list[Path]:
    """Derive current/ and scripts/ from history alone; the paths that changed."""
    rows = merge(read_history(results))
    if not rows:
        raise ResultsError("there is no history to rebuild from", where=str(results))
    return write(_current(results, rows) | _scripts(results, rows))


def migrate(results: Path) -> list[Path]:
    """Rewrite every file of an older schema in today's; the paths that changed.

    History files keep their names: a name stands for a publication, not for bytes.
    ResultsError, before anything is written, for a file of a newer schema or of other columns.
    """
    files: Files = {}
    for path in [*parquet_files(results / "history"), *parquet_files(results / "current")]:
        if _version(path) == SCHEMA_VERSION:
            load(path, ["run_id"])
        else:
            files[path] = serialise(load(path))
    return write(files)


def write(files: Files) -> list[Path]:
    """Carry out `files`, each in one step, in order; the paths."""
    for path, data in files.items():
        if data is None:
            path.unlink(missing_ok=True)
        else:
            write_atomically(path, data)
    return list(files)


def _current(results: Path, rows: Sequence[Row]) -> Files:
    """The files below current/ that `rows` change. A file whose rows stay keeps its bytes, since
    another version of pyarrow would write other bytes for the same rows."""
    partitions: dict[Path, list[Row]] = {}
    for row in rows:
        path = results / "current" / _run_id(row).partition
        partitions.setdefault(path, []).append(row)
    files: Files = {
        path: serialise(kept) for path, kept in sorted(partitions.items()) if not _holds(path, kept)
    }
    return files | {
        path: None for path in parquet_files(results / "current") if path not in partitions
    }


def _holds(path: Path, rows: Sequence[Row]) -> bool:
    """Whether the file is whole, of today's schema, and holds exactly `rows`."""
    try:
        return path.exists() and _version(path) == SCHEMA_VERSION and load(path) == list(rows)
    except ResultsError:
        return False


def _scripts(results: Path, rows: Sequence[Row]) -> Files:
    """The files below scripts/ that `rows` change: run_py byte for byte, stale ones removed."""
    folder = results / "scripts"
    scripts = {
        folder / f"{_run_id(row)}.py": row["run_py"].encode() for row in rows if row["run_py"]
    }
    files: Files = {
        path: text
        for path, text in sorted(scripts.items())
        if not path.is_file() or path.read_bytes() != text
    }
    return files | {path: None for path in sorted(folder.glob("*.py")) if path not in scripts}


def _run_id(row: Row) -> RunId:
    """Parsed, so that no text of a row becomes a path unchecked."""
    try:
        return RunId.parse(row["run_id"])
    except ValueError as error:
        raise ResultsError(str(error)) from error


def _known(results: Path, keys: set[tuple[str, datetime]]) -> set[str]:
    """History rows under any of the `keys` (run id, tested_at), as canonical texts."""
    known: set[str] = set()
    for path in parquet_files(results / "history"):
        light = load(path, ["run_id", "tested_at"])
        if any((row["run_id"], row["tested_at"]) in keys for row in light):
            known.update(canonical(row) for row in load(path))
    return known


def serialise(rows: Sequence[Row]) -> bytes:
    """Parquet bytes of `rows`: the same for the same rows under one version of pyarrow.

    Every option that a version of pyarrow could default otherwise is written down.
    """
    marks = {VERSION_KEY: str(SCHEMA_VERSION).encode(), _DIGEST_KEY: digest(rows).encode()}
    table = pa.Table.from_pylist(list(rows), SCHEMA.with_metadata(marks))
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=3,
        use_dictionary=True,
        write_statistics=True,
        row_group_size=ROW_GROUP,
        store_schema=True,
    )
    return sink.getvalue()


def load(path: Path, columns: Sequence[str] | None = None) -> list[Row]:
    """The rows of a file, lifted to today's schema; whole reads are held against their digest.

    So are older files: a row changed by hand must not become one of ours by a migration. Version 0
    is a file without marks.
    """
    version = _version(path)
    try:
        with pq.ParquetFile(path) as file:
            schema, marks = file.schema_arrow.remove_metadata(), file.metadata.metadata or {}
            if version == SCHEMA_VERSION:
                _same_columns(path, schema)
                if columns is not None:
                    rows: list[Row] = file.read(columns=list(columns)).to_pylist()
                    return rows
            rows = file.read().to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    told = marks.get(_DIGEST_KEY, b"").decode(errors="replace")
    if version and told != digest(rows, version, schema.names):
        raise ResultsError(
            "its rows are not those it was written with",
            where=str(path),
            remedy="take it back from git; a file below current/ may be removed and rebuilt",
        )
    return rows if version == SCHEMA_VERSION else _lift(path, rows, version)


def _version(path: Path) -> int:
    """The schema version in the file's metadata; 0 where there is none."""
    try:
        marks = pq.read_metadata(path).metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    text = marks.get(VERSION_KEY, b"0").decode(errors="replace")
    version = int(text) if text.isdecimal() else -1
    steps = range(version, SCHEMA_VERSION)
    if not 0 <= version <= SCHEMA_VERSION or any(step not in MIGRATIONS for step in steps):
        raise ResultsError(
            f"schema version {text!r} cannot be read here; this is version {SCHEMA_VERSION}",
            where=str(path),
            remedy="a newer version of this project wrote it, or it is not one of its files",
        )
    return version


def _lift(path: Path, rows: list[Row], version: int) -> list[Row]:
    for step in range(version, SCHEMA_VERSION):
        rows = MIGRATIONS[step](rows)
    for row in rows:
        row["schema_version"] = SCHEMA_VERSION
        if set(row) != set(SCHEMA.names):
            odd = sorted(set(row) ^ set(SCHEMA.names))
            raise ResultsError(f"lifted rows have other columns: {odd}", where=str(path))
    lifted: list[Row] = pa.Table.from_pylist(rows, SCHEMA).to_pylist()
    return lifted


def _same_columns(path: Path, schema: pa.Schema) -> None:
    if schema.equals(SCHEMA):
        return
    found = {(field.name, str(field.type)) for field in schema}
    expected = {(field.name, str(field.type)) for field in SCHEMA}
    odd = ", ".join(f"{name} {kind}" for name, kind in sorted(found ^ expected)) or "their order"
    raise ResultsError(
        f"columns that differ from schema version {SCHEMA_VERSION}: {odd}",
        where=str(path),
        remedy="columns change by raising the schema version and adding a migration",
    )


def _unreadable(path: Path, error: Exception) -> ResultsError:
    return ResultsError(f"cannot be read as Parquet: {error}", where=str(path))
