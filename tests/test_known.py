"""What planning starts from, as results tell it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pipeline import known
from pipeline import results as store
from pipeline.record import Record
from pipeline.words import CacheState, Failure, Stage, Target
from tests import papers


def published(folder: Path, records: Iterable[Record]) -> Path:
    """A results folder that holds the rows of `records`."""
    store.write(store.prepare(folder, map(store.row_of, records)).files)
    return folder


def test_nothing_is_known_without_results(tmp_path: Path) -> None:
    """A campaign begins with an empty or absent folder."""
    assert known.earlier(tmp_path / "results") == {}


def test_every_row_of_a_run_tells_of_time(tmp_path: Path) -> None:
    """The planner sees the reigning row, and of all rows what they say of durations."""
    run = papers.run()
    rows = [
        papers.passing(run, papers.day(0), wall_s=900.0),
        papers.erring(run, papers.day(1), wall_s=7.0),
        papers.passing(run, papers.day(2), wall_s=60.0, cache=CacheState.RESTORED),
    ]
    found = known.earlier(published(tmp_path, rows))[run.run_id]
    assert (found.wall_s, found.last_at, found.errors) == (60.0, papers.day(2), 0)
    assert found.cache_keys == rows[-1].cache_keys
    assert [(row.wall_s, row.cache, row.failure) for row in found.past] == [
        (900, CacheState.COLD, None),
        (7, CacheState.COLD, Failure.DOWNLOAD),
        (60, CacheState.RESTORED, None),
    ]
    row = found.past[0]
    assert (row.run_id, row.target, row.stage) == (run.run_id, Target.NEURON, Stage.DONE)
    assert (row.script_sha256, row.checkpoint_bytes) == (run.script_sha256, run.checkpoint_bytes)
    assert row.compile_s == 310.0
