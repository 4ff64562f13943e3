"""Papers on disk: read as untrusted input, written in one step."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from pipeline.errors import RecordError
from pipeline.lines import printable
from pipeline.record.base import Paper
from pipeline.record.seen import Record

RECORD_NAME = "record.json"
OBSERVATION_NAME = "run.json"

MAX_PAPER_BYTES = 32 * 1024 * 1024
"""A plan or record file above this size is refused unread: the largest honest one, a plan of
1 000 models with their cache keys, is below 16 MiB."""

P = TypeVar("P", bound=Paper)


def read_bytes(path: Path, sha256: str | None = None) -> bytes:
    """The content of a paper's file; RecordError naming it when it is unreadable or too large.

    sha256: what its content must have, hexadecimal; None or "" = unknown. A plan reaches a job as
    an artifact, which every job of a workflow run may replace, those on device machines too; its
    digest comes by way of a job's outputs, which only that job writes.
    """
    try:
        data = at_most(path, MAX_PAPER_BYTES)
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    if data is None:
        raise RecordError(f"is above the limit of {MAX_PAPER_BYTES} bytes", where=str(path))
    found = hashlib.sha256(data).hexdigest()
    if sha256 and sha256 != found:
        raise RecordError(
            f"is not the file that was made: its SHA-256 is {found}, that one's was {sha256}",
            where=str(path),
            remedy="see who else wrote an artifact of that name, and plan anew",
        )
    return data


def at_most(path: Path, limit: int) -> bytes | None:
    """The content of a file; None when it has more than `limit` bytes.

    OSError when it cannot be read or is no file: a pipe would be waited for, and a device never
    ends, whatever size it claims.
    """
    # Without O_NONBLOCK, opening a pipe waits for its other end.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(f"{path.name} is no regular file")
        data = stream.read(limit + 1)
    return data if len(data) <= limit else None


def read(kind: type[P], path: Path) -> P:
    """The `kind` in the JSON file `path`; RecordError naming the file and every fault in it."""
    return parse(kind, read_bytes(path), where=str(path))


def parse(kind: type[P], text: bytes | str, *, where: str) -> P:
    """The `kind` in a JSON text; RecordError naming `where` and every fault in it."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise RecordError(
            f"not a valid {kind.__name__.lower()}: {'; '.join(faults_of(error)[:5])}",
            where=where,
            remedy="it was written by another version, cut short, or edited: make it again",
        ) from error


def faults_of(error: ValidationError) -> list[str]:
    """One line a fault: where it is, and what. Names of fields that no schema knows are shortened
    and freed of control characters: they are whatever somebody wrote there."""
    return [
        f"{'.'.join(printable(str(part), 80) for part in fault['loc'][:6]) or 'file'}: "
        f"{printable(fault['msg'], 400)}"
        for fault in error.errors(include_url=False, include_input=False)
    ]


def dump(paper: Paper) -> str:
    """The JSON text of a paper: same paper, same bytes."""
    return paper.model_dump_json(indent=1) + "\n"


def write(paper: Paper, path: Path) -> None:
    """Write `paper` to `path` in one step: a reader sees the old file or the new one whole."""
    write_atomically(path, dump(paper).encode())


def write_atomically(path: Path, data: bytes) -> None:
    """Write bytes to a temporary sibling, flush them to the disk, rename it to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def find_records(paths: list[Path]) -> list[Path]:
    """record.json files named by `paths` or found below those that are directories, sorted."""
    found: set[Path] = set()
    for path in paths:
        if path.is_dir():
            found.update(path.rglob(RECORD_NAME))
        elif path.exists():
            found.add(path)
        else:
            raise RecordError("no such file or directory", where=str(path))
    return sorted(found)


def unfinished(records: Path) -> dict[str, Record]:
    """run id -> its newest record that has no result: a run whose harness was lost."""
    lost: dict[str, Record] = {}
    newest: dict[str, datetime] = {}
    for path in sorted(records.glob(f"*/*/{RECORD_NAME}")):
        try:
            record = read(Record, path)
        except RecordError:
            continue
        run_id = record.run.run_id
        if run_id in newest and newest[run_id] >= record.started_at:
            continue
        newest[run_id] = record.started_at
        lost.pop(run_id, None)
        if record.result is None:
            lost[run_id] = record
    return lost
