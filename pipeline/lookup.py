"""Some rows of results/ without the others: what one model, or one architecture, has there.

A reading command waits for nothing that it does not print. Files are sorted by model id, so that
the statistics of their row groups tell which of them can hold a model; of those only the columns
asked for are read. What is not a file of today's schema goes to `results`, which knows the others
and says what is wrong with a broken one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

# What pyarrow.parquet.ParquetFile is made of. Its module also imports pyarrow's file systems, which
# takes a tenth of the time that a reading command has.
from pyarrow._parquet import ParquetReader

from pipeline import stack_names
from pipeline.columns import SCHEMA_VERSION, VERSION_KEY
from pipeline.errors import ResultsError
from pipeline.words import RunId

Row = dict[str, Any]

_MODEL = "model_id"
_FEW_VALUES = frozenset({"model_type", "result"})
"""Columns that are read as codes and a list of what these stand for, which takes a tenth of the
time. Whatever a column holds the values are the same."""


def parquet_files(folder: Path) -> list[Path]:
    """The Parquet files below `folder`. Any other would break readers of the folder: refused.

    Names with a leading dot are skipped, as those readers do: a write cut short leaves one.
    """
    found = []
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        if path.is_dir() or path.name.startswith("."):
            continue
        if path.suffix != ".parquet":
            raise ResultsError("is not Parquet", where=str(path), remedy="move it out of there")
        found.append(path)
    return found


@dataclass(frozen=True)
class Lookup:
    """The rows below results/. Nothing is read before it is asked for."""

    results: Path

    @cached_property
    def current(self) -> tuple[_File, ...]:
        return tuple(map(_File, parquet_files(self.results / "current")))

    @cached_property
    def history(self) -> tuple[_File, ...]:
        """One publication each, the newest first: names begin with the time."""
        return tuple(map(_File, reversed(parquet_files(self.results / "history"))))

    def of_model(self, model_id: str, columns: Sequence[str]) -> list[Row]:
        """The current rows of a model, letter case aside."""
        found = [row for file in self.current for row in file.of_model(model_id, columns)]
        if found:
            return found
        wanted = model_id.casefold()
        names = [name for name in self.model_ids() if name.casefold() == wanted]
        return [
            row for name in names for file in self.current for row in file.of_model(name, columns)
        ]

    def of_run(self, run_id: str, columns: Sequence[str]) -> Row:
        """More columns of the current row of a run that is there."""
        run = RunId.parse(run_id)
        file = _File(self.results / "current" / run.partition)
        rows = file.of_model(run.model_id, [*columns, "run_id"])
        return next(row for row in rows if row["run_id"] == run_id)

    def where(
        self, column: str, value: str, columns: Sequence[str], *, stack: str | None = None
    ) -> list[Row]:
        """The current rows that hold `value` in `column`, of all stacks or of one, a key."""
        only = self.results / "current" / stack_names.partition(stack) if stack else None
        files = [file for file in self.current if only in (None, file.path)]
        return [row for file in files for row in file.where(column, value, columns)]

    def model_ids(self) -> list[str]:
        """All that have a current row, sorted."""
        return self._model_ids

    @cached_property
    def _model_ids(self) -> list[str]:
        return sorted({name for file in self.current for name in file.values(_MODEL)})

    def rows(self, columns: Sequence[str]) -> list[Row]:
        """All current rows."""
        return [row for file in self.current for row in file.rows(columns)]

    def past(self, model_id: str, columns: Sequence[str], files: int | None = None) -> list[Row]:
        """A model's rows in the newest so many publications, None = all, in no order."""
        return [row for file in self.history[:files] for row in file.of_model(model_id, columns)]


@dataclass(frozen=True)
class _File:
    path: Path

    def of_model(self, model_id: str, columns: Sequence[str]) -> list[Row]:
        """The model's rows."""
        if self._reader is None:
            return self._slowly(_MODEL, model_id, columns)
        found = []
        for group in self._groups(model_id):
            table = self._read(group, [_MODEL, *columns])
            names = table[_MODEL].to_pylist()
            places = [place for place, name in enumerate(names) if name == model_id]
            found += _rows(table, places, columns)
        return found

    def where(self, column: str, value: str, columns: Sequence[str]) -> list[Row]:
        """The rows that hold `value` in `column`."""
        if self._reader is None:
            return self._slowly(column, value, columns)
        found = []
        for group in range(self._reader.num_row_groups):
            held = _values(self._read(group, [column])[column])
            places = [place for place, one in enumerate(held) if one == value]
            if places:
                found += _rows(self._read(group, columns), places, columns)
        return found

    def rows(self, columns: Sequence[str]) -> list[Row]:
        """All rows."""
        if self._reader is None:
            return [{name: row[name] for name in columns} for row in self._all]
        groups = range(self._reader.num_row_groups)
        return [row for group in groups for row in _rows(self._read(group, columns), None, columns)]

    def values(self, column: str) -> list[Any]:
        """All of a column."""
        if self._reader is None:
            return [row[column] for row in self._all]
        groups = range(self._reader.num_row_groups)
        return [one for group in groups for one in _values(self._read(group, [column])[column])]

    @cached_property
    def _reader(self) -> ParquetReader | None:
        """None for a file that `results` has to read, or to complain of."""
        reader = ParquetReader()
        try:
            reader.open(str(self.path), use_memory_map=True, read_dictionary=sorted(_FEW_VALUES))
        except (pa.ArrowException, OSError):
            return None
        marks = reader.metadata.metadata or {}
        return reader if marks.get(VERSION_KEY) == str(SCHEMA_VERSION).encode() else None

    @cached_property
    def _leaves(self) -> dict[str, list[int]]:
        """Column -> its places in the file: a list of records has one for each of their fields."""
        assert self._reader is not None
        schema = self._reader.metadata.schema
        found: dict[str, list[int]] = {}
        for place in range(self._reader.metadata.num_columns):
            found.setdefault(schema.column(place).path.partition(".")[0], []).append(place)
        return found

    @cached_property
    def _all(self) -> Sequence[Row]:
        from pipeline import results

        return results.load(self.path)

    def _slowly(self, column: str, value: str, columns: Sequence[str]) -> list[Row]:
        return [{name: row[name] for name in columns} for row in self._all if row[column] == value]

    def _groups(self, model_id: str) -> Iterator[int]:
        """Row groups that may hold the model."""
        assert self._reader is not None
        (place,) = self._leaves[_MODEL]
        for group in range(self._reader.num_row_groups):
            told = self._reader.metadata.row_group(group).column(place).statistics
            if told is None or not told.has_min_max or told.min <= model_id <= told.max:
                yield group

    def _read(self, group: int, columns: Sequence[str]) -> pa.Table:
        assert self._reader is not None
        try:
            places = [place for name in dict.fromkeys(columns) for place in self._leaves[name]]
            return self._reader.read_row_group(group, column_indices=places, use_threads=False)
        except KeyError as error:
            raise ResultsError(
                f"has no column {error}, which every file of its schema has", where=str(self.path)
            ) from error
        except (pa.ArrowException, OSError) as error:
            raise ResultsError(
                f"cannot be read as Parquet: {error}", where=str(self.path)
            ) from error


def _rows(table: pa.Table, places: Sequence[int] | None, columns: Sequence[str]) -> list[Row]:
    """The rows at some places of a table; None = all of them."""
    if places is not None and not places:
        return []
    values = [_values(table[name], places) for name in columns]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


_MANY = 100
"""Places from which on a whole column is converted at once: one by one takes ten times as long."""


def _values(column: pa.ChunkedArray, places: Sequence[int] | None = None) -> list[Any]:
    """The values at some places of a column; None = all of it."""
    if pa.types.is_timestamp(column.type):
        # pyarrow's own way to a datetime begins with importing pandas, where that is installed.
        whole = [chunk.view(pa.int64()) for chunk in column.chunks]
        numbers = _values(pa.chunked_array(whole, pa.int64()), places)
        return [None if ms is None else datetime.fromtimestamp(ms / 1000, UTC) for ms in numbers]
    if places is not None and len(places) < _MANY:
        return [column[place].as_py() for place in places]
    if pa.types.is_dictionary(column.type):
        values = [value for chunk in column.chunks for value in _decoded(chunk)]
    else:
        values = column.to_pylist()
    return values if places is None else [values[place] for place in places]


def _decoded(chunk: pa.DictionaryArray) -> list[Any]:
    words = chunk.dictionary.to_pylist()
    return [None if code is None else words[code] for code in chunk.indices.to_pylist()]
