"""Rows that other people published, read beside ours as outside evidence and never merged into it.

Made for the public dataset `aws-neuron/torch-neuronx-model-support`; any Parquet that has its
columns `model_id` and `result` is read. What its values mean its authors alone know: they are kept
verbatim, `result` included, and no verdict of ours is derived from them. Other columns may be
missing, and the number of cores may be named `neuron_cores` or `tp`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import words
from pipeline.errors import HubError, QualifyError, ResultsError, UsageError
from pipeline.rows import clean

if TYPE_CHECKING:
    import pyarrow as pa

PUBLIC = "hf://datasets/aws-neuron/torch-neuronx-model-support"
"""Where the public dataset is."""

MAX_TEXT = 2_000
"""Characters of a text that are kept; the longest that a page or a terminal would show."""
MAX_FILES = 1_000
MAX_BYTES = 256 * 1024**2
"""Of the columns that are read, of all files together, as the files themselves tell it. A round
figure: ten thousand rows (the Hub's page calls it 1K to 10K) with 4 kB of text are 40 MB."""
MAX_ROWS = 100_000

_TEXTS = (
    "model_id",
    "result",
    "library",
    "library_version",
    "neuronx_cc",
    "torch_neuronx",
    "torch",
    "target",
    "runner",
    "notes",
    "error",
    "exclusion",
)
_CORES = ("neuron_cores", "tp")
_DATASET = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@([\w./-]+))?/?", re.ASCII)


@dataclass(frozen=True)
class OutsideRow:
    """What somebody else says of one model on one stack; None = their row does not say.

    Texts are theirs but for control characters, and cut to MAX_TEXT characters. result: any word,
    "" where the row has none. cores: None also where their two columns for it disagree. target:
    only datasets of this project say it; a row of "cpu" says nothing of Trainium. tested_at: UTC.
    dataset: "owner/name" on the Hub, or the folder as it was given. revision: the commit of the
    dataset; None for a folder.
    """

    model_id: str
    result: str
    library: str | None
    library_version: str | None
    neuronx_cc: str | None
    torch_neuronx: str | None
    cores: int | None
    runner: str | None
    notes: str | None
    error: str | None
    tested_at: datetime | None
    dataset: str
    exclusion: str | None = None
    revision: str | None = None
    torch: str | None = None
    target: str | None = None

    @property
    def stack(self) -> str:
        """What it ran on, in words, as far as the row says: "neuronx-cc 2.28, torch 2.14"."""
        named = (
            (self.target if self.target != "neuron" else None, ""),
            (self.neuronx_cc, "neuronx-cc "),
            (self.library_version, f"{self.library or 'library'} "),
            (self.torch_neuronx, "torch-neuronx "),
            (self.torch, "torch "),
        )
        return ", ".join(f"{name}{version}" for version, name in named if version)


def read(place: str) -> tuple[OutsideRow, ...]:
    """The rows of a folder of Parquet files (or one file) or of `hf://datasets/OWNER/NAME[@REV]`.

    By model id, newest first; rows that say the same are given once, rows without a model id are
    left out. A dataset of the Hub is kept in huggingface_hub's cache, and where the Hub cannot be
    reached the copy kept there is read (`revision` says which).

    UsageError when `place` is neither; HubError when the Hub does not give it; ResultsError, with
    the file, for what is not Parquet, has not the two columns, or is beyond the limits above.
    """
    if place.startswith("hf://"):
        found = _DATASET.fullmatch(place)
        if found is None:
            raise UsageError(
                f"{clean(place)!r} is no dataset of the Hub",
                remedy="write hf://datasets/OWNER/NAME",
            )
        folder, revision = _download(found[1], found[2])
        return _sorted(_rows(folder, found[1], revision))
    path = Path(place)
    if not path.exists():
        raise UsageError(
            "there is no such folder",
            where=place,
            remedy=f"give a folder of Parquet files, or {PUBLIC}",
        )
    return _sorted(_rows(path, place, None))


def of_model(rows: Sequence[OutsideRow], model_id: str) -> tuple[OutsideRow, ...]:
    """Those of one model, newest first; upper and lower case are one, as on the Hub."""
    return tuple(row for row in rows if row.model_id.lower() == model_id.lower())


def text(rows: Sequence[OutsideRow]) -> str:
    """Lines for a terminal, marked as what others say; "" when there is no row."""
    if not rows:
        return ""
    lines = ["Outside evidence: what others published, in their own words, not checked here"]
    for row in rows:
        when = f"{row.tested_at:%Y-%m-%d}" if row.tested_at else "undated"
        cores = f" on {words.cores(row.cores)}" if row.cores else ""
        result = row.result or "no result"
        lines.append(f"  {result}{cores}, {when}: {row.stack or 'stack not said'} ({row.dataset})")
        said = (("notes", row.notes), ("error", row.error), ("exclusion", row.exclusion))
        lines += [f"    {name}: {' '.join(told.split())[:200]}" for name, told in said if told]
    return "\n".join(lines)


def plain(rows: Sequence[OutsideRow]) -> list[dict[str, Any]]:
    """As JSON holds them: times in ISO 8601."""
    return [
        asdict(row) | {"tested_at": row.tested_at.isoformat() if row.tested_at else None}
        for row in rows
    ]


def _sorted(rows: Iterator[OutsideRow]) -> tuple[OutsideRow, ...]:
    never = datetime.min.replace(tzinfo=UTC)
    newest = sorted(dict.fromkeys(rows), key=lambda row: row.tested_at or never, reverse=True)
    return tuple(sorted(newest, key=lambda row: row.model_id))


def _rows(path: Path, dataset: str, revision: str | None) -> Iterator[OutsideRow]:
    files = _files(path)
    if not files:
        raise ResultsError("there is no Parquet file", where=dataset)
    if len(files) > MAX_FILES:
        raise ResultsError(f"{len(files)} Parquet files; limit {MAX_FILES}", where=dataset)
    left = _Budget(MAX_BYTES, MAX_ROWS)
    for file in files:
        yield from _load(file, dataset, revision, left)


def _files(path: Path) -> list[Path]:
    """The Parquet files at or below `path`; hidden ones are no part of a dataset."""
    if path.is_file():
        return [path]
    return sorted(
        file
        for file in path.rglob("*.parquet")
        if not any(part.startswith(".") for part in file.relative_to(path).parts)
    )


@dataclass
class _Budget:
    """What may still be read."""

    size: int
    rows: int


def _load(path: Path, dataset: str, revision: str | None, left: _Budget) -> Iterator[OutsideRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(path).names
        # Texts stay dictionaries: one long text that a million rows share is held, and cut, once.
        kept = [name for name in _TEXTS if name in names]
        with pq.ParquetFile(path, read_dictionary=kept) as file:
            lost = [name for name in ("model_id", "result") if name not in names]
            if lost:
                raise ResultsError(
                    f"has no column {' and no '.join(lost)}",
                    where=str(path),
                    remedy=f"the columns wanted are those of {PUBLIC}",
                )
            wanted = [name for name in (*_TEXTS, *_CORES, "tested_at") if name in names]
            left.rows -= file.metadata.num_rows
            left.size -= _size(file.metadata, set(wanted))
            if left.rows < 0 or left.size < 0:
                raise ResultsError(
                    f"more than {MAX_ROWS} rows or {MAX_BYTES} bytes of text in all",
                    where=str(path),
                    remedy="this is not the dataset that was meant, or it has outgrown the limits",
                )
            table = file.read(columns=wanted)
    except (pa.ArrowException, OSError) as error:
        raise ResultsError(f"cannot be read as Parquet: {error}", where=str(path)) from error
    columns = {name: _texts(table[name]) for name in _TEXTS if name in wanted}
    cores = [_values(table, name) for name in _CORES]
    tested_at = _values(table, "tested_at")
    nothing: list[str | None] = [None] * table.num_rows
    for index in range(table.num_rows):
        said = {name: columns.get(name, nothing)[index] for name in _TEXTS}
        model_id, result = said.pop("model_id"), said.pop("result")
        if model_id:
            counts = {_count(column[index]) for column in cores} - {None}
            yield OutsideRow(
                model_id=model_id,
                result=result or "",
                cores=counts.pop() if len(counts) == 1 else None,
                tested_at=_moment(tested_at[index]),
                dataset=dataset,
                revision=revision,
                **said,
            )


def _size(metadata: Any, wanted: set[str]) -> int:
    """Bytes of the wanted columns, unpacked, by the file's own account."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    return sum(
        column.total_uncompressed_size
        for group in groups
        for column in (group.column(number) for number in range(group.num_columns))
        if column.path_in_schema.split(".")[0] in wanted
    )


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    """Cleaned and cut; what is no text is written as Python writes it."""
    import pyarrow as pa

    texts: list[str | None] = []
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            known = [_text(value) for value in chunk.dictionary.to_pylist()]
            texts += [None if at is None else known[at] for at in chunk.indices.to_pylist()]
        else:
            texts += [_text(value) for value in chunk.to_pylist()]
    return texts


def _text(value: object) -> str | None:
    """None where nothing is left: an empty text says no more than null."""
    if value is None:
        return None
    # Cut before cleaning, as cleaning reads every character.
    return clean(str(value)[: 2 * MAX_TEXT])[:MAX_TEXT] or None


def _values(table: pa.Table, name: str) -> list[object]:
    column = table[name].to_pylist() if name in table.column_names else [None] * table.num_rows
    return list(column)


def _count(value: object) -> int | None:
    """A number of cores; a whole float is one, as pandas writes a column with gaps."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _moment(value: object) -> datetime | None:
    """UTC; a time without a zone could be any hour's, so it is unknown."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return None


def _download(repo_id: str, revision: str | None) -> tuple[Path, str]:
    """The Parquet files of a dataset in huggingface_hub's cache, and their commit."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    from pipeline.hub_faults import explained

    api = HfApi(library_name="trn-qualify")
    what = f"dataset {repo_id}"
    try:
        info = api.dataset_info(repo_id, revision=revision, files_metadata=True, timeout=30.0)
        files = [one for one in info.siblings or () if one.rfilename.endswith(".parquet")]
        size = sum(one.size or 0 for one in files)
        if size > MAX_BYTES or len(files) > MAX_FILES:
            raise HubError(f"{what}: {len(files)} Parquet files of {size} bytes in all")
    except QualifyError:
        raise
    # The client documents no closed set of errors for a connection that fails.
    except Exception as error:
        if isinstance(error, HfHubHTTPError) and error.response.status_code < 500:
            raise explained(error, what) from error
        try:
            kept = api.snapshot_download(
                repo_id,
                repo_type="dataset",
                revision=revision,
                allow_patterns="*.parquet",
                local_files_only=True,
            )
        except LocalEntryNotFoundError:
            raise explained(error, what) from error
        return Path(kept), Path(kept).name
    try:
        # By the branch, not the commit: only then can the copy be found when the Hub is away.
        path = api.snapshot_download(
            repo_id, repo_type="dataset", revision=revision, allow_patterns="*.parquet"
        )
    except Exception as error:
        raise explained(error, what) from error
    return Path(path), Path(path).name
