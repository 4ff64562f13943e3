"""results/ on disk: merging, bytes, history, migrations, and the way readers open it."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import results, rows
from pipeline.errors import ResultsError
from pipeline.record import Check, Record, Run, Try, write_atomically
from pipeline.results import (
    SCHEMA,
    Row,
    last_attempts,
    merge,
    migrate,
    prepare,
    read_current,
    read_history,
    rebuild,
    row_of,
    write,
)
from pipeline.words import (
    CpuMatch,
    English,
    Failure,
    Parallelism,
    Result,
    Stage,
    Target,
    TryReason,
)
from tests import papers
from tests.papers import day

OLD = papers.stack(library_version="5.23.0")
CPU = papers.stack(Target.CPU, torch="2.13.0+cpu")


def publish(folder: Path, *records: Record) -> list[Path]:
    """What publish does with good records, without the page."""
    return write(prepare(folder, [row_of(record) for record in records]).files)


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def many(seed: int, count: int = 40) -> list[Row]:
    """Rows of few models on two stacks, of all results, on few days: merging has ties."""
    chance = random.Random(seed)  # noqa: S311 -- test data
    made = []
    for _ in range(count):
        asked = papers.run(
            chance.choice(["a/a", "a/A", "b/b"]),
            stack=chance.choice([None, OLD]),
            script_sha256=chance.choice([None, "0" * 64, "f" * 64]),
        )
        factory = chance.choice([papers.passing, papers.failing, papers.erring])
        at = day(chance.randrange(3))
        made.append(row_of(factory(asked, at, wall_s=chance.choice([1.0, 2.0]))))
    return made


@pytest.mark.parametrize("seed", range(20))
def test_merge_ignores_order_grouping_and_repeats(seed: int) -> None:
    """Merging is commutative, associative and idempotent, ties included."""
    given = many(seed)
    expected = merge(given)
    chance = random.Random(seed)  # noqa: S311 -- test data
    shuffled = chance.sample(given, len(given))
    cut = chance.randrange(len(given))
    assert merge(shuffled) == expected
    assert merge([*merge(shuffled[:cut]), *merge(shuffled[cut:])]) == expected
    assert merge([*expected, *shuffled, *expected]) == expected
    assert [(row["model_id"], row["run_id"]) for row in expected] == sorted(
        {(row["model_id"], row["run_id"]) for row in given}
    )


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_error_never_replaces_a_result(order: Sequence[int]) -> None:
    """The newest PASS or FAIL reigns, however many ERRORs came later."""
    given = [
        row_of(papers.passing(at=day(1))),
        row_of(papers.failing(at=day(2))),
        row_of(papers.erring(at=day(3))),
        row_of(papers.erring(at=day(0))),
    ]
    (row,) = merge(given[index] for index in order)
    assert (row["result"], row["tested_at"]) == ("FAIL", day(2))


def test_newest_error_reigns_where_there_is_nothing_else() -> None:
    """A run that never worked shows its last trouble."""
    (row,) = merge([row_of(papers.erring(at=day(1))), row_of(papers.erring(at=day(0)))])
    assert row["tested_at"] == day(1)


def test_pandas_reads_the_folder(tmp_path: Path) -> None:
    """The query that readers copy from the page works on the folder, whatever files are in it."""
    folder = tmp_path / "results"
    sharded = papers.passing(papers.run("z/z", placement=papers.placement(4)))
    publish(folder, papers.passing(), papers.failing(papers.run(stack=OLD)), sharded)
    publish(folder, papers.passing(papers.run("c/c", stack=CPU)))
    columns = ["model_id", "neuronx_cc", "library", "library_version", "neuron_cores", "result"]
    frame = pd.read_parquet(folder / "current")[columns]
    known = frame.astype(object).where(frame.notna(), None)
    assert list(known.itertuples(index=False, name=None)) == [
        ("c/c", None, "transformers", "5.24.0", 1, "PASS"),
        ("Qwen/Qwen3-0.6B", "2.28.7631.0", "transformers", "5.23.0", 1, "FAIL"),
        ("Qwen/Qwen3-0.6B", "2.28.7631.0", "transformers", "5.24.0", 1, "PASS"),
        ("z/z", "2.28.7631.0", "transformers", "5.24.0", 4, "PASS"),
    ]
    whole = pd.read_parquet(folder / "current")
    assert list(whole.columns) == SCHEMA.names
    assert (whole["tp"] == whole["neuron_cores"]).all()


def after_a_try() -> Record:
    """A PASS on two cores after the device's memory was full on one."""
    earlier = Try(
        reason=TryReason.FIRST,
        cores=1,
        parallelism=Parallelism.NONE,
        result=Result.FAIL,
        stage=Stage.LOAD,
        failure=Failure.DEVICE_OUT_OF_MEMORY,
        signature=None,
        error="no memory",
        wall_s=12.5,
        cache=None,
    )
    asked = papers.run(placement=papers.placement(2))
    return papers.passing(asked, reason=TryReason.MORE_CORES, tries=(earlier,), core_ids=(2, 3))


def test_pandas_reads_tries(tmp_path: Path) -> None:
    """The column of structs is one among the others for a reader of the folder."""
    publish(tmp_path, after_a_try(), papers.passing(papers.run("z/z", stack=CPU)))
    frame = pd.read_parquet(tmp_path / "current").set_index("model_id")
    (earlier,) = frame.loc["Qwen/Qwen3-0.6B", "tries"]
    assert (earlier["failure"], earlier["cores"]) == ("device_out_of_memory", 1)
    assert len(frame.loc["z/z", "tries"]) == 0
    assert list(frame.loc["Qwen/Qwen3-0.6B", "core_ids"]) == [2, 3]


def test_tries_count_for_the_digest(tmp_path: Path) -> None:
    """A row that differs in an earlier try alone is another row, in memory and from the disk."""
    row = row_of(after_a_try())
    other = {**row, "tries": [row["tries"][0] | {"cores": 4}]}
    assert rows.digest([row]) != rows.digest([other])
    write(prepare(tmp_path, [row]).files)
    assert rows.digest(read_current(tmp_path)) == rows.digest([row])
    assert len(prepare(tmp_path, [other]).added) == 1
    assert prepare(tmp_path, [row]).added == ()


def test_partitions_are_named_by_stack(tmp_path: Path) -> None:
    """One file a compiler and library version, each with the one schema, sorted by model id."""
    runs = [papers.run(model) for model in ("b/b", "a/a", "c/c")]
    cpu = papers.passing(papers.run(stack=CPU))
    publish(tmp_path, *map(papers.passing, runs), papers.passing(papers.run(stack=OLD)), cpu)
    files = sorted((tmp_path / "current").rglob("*.parquet"))
    assert [str(path.relative_to(tmp_path / "current")) for path in files] == [
        "inductor-2.13.0+cpu/transformers-5.24.0.parquet",
        "neuronxcc-2.28.7631.0/transformers-5.23.0.parquet",
        "neuronxcc-2.28.7631.0/transformers-5.24.0.parquet",
    ]
    for path in files:
        assert pq.read_schema(path).remove_metadata().equals(SCHEMA)
        compressions = pq.read_metadata(path).row_group(0).column(0).compression
        assert compressions == "ZSTD"
    assert pq.read_table(files[2], columns=["model_id"]).column(0).to_pylist() == [
        "a/a",
        "b/b",
        "c/c",
    ]


@pytest.mark.parametrize("seed", range(3))
def test_same_rows_give_the_same_bytes(tmp_path: Path, seed: int) -> None:
    """Neither order nor the machine's process changes a byte of a publication."""
    given = many(seed)
    shuffled = random.Random(seed).sample(given, len(given))  # noqa: S311 -- test data
    write(prepare(tmp_path / "one", given).files)
    write(prepare(tmp_path / "two", shuffled).files)
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")


def test_publishing_twice_writes_nothing(tmp_path: Path) -> None:
    """The same records again, alone or among new ones, are not added again."""
    first, second = papers.passing(), papers.failing(papers.run("b/b"))
    publish(tmp_path, first)
    before = snapshot(tmp_path)
    assert publish(tmp_path, first) == []
    assert snapshot(tmp_path) == before
    publish(tmp_path, first, second)
    models = [row["model_id"] for row in read_history(tmp_path)]
    assert sorted(models) == ["Qwen/Qwen3-0.6B", "b/b"]


def test_history_is_immutable_and_dated(tmp_path: Path) -> None:
    """Each publication is one new file named by its newest row; older ones keep their bytes."""
    publish(tmp_path, papers.passing(at=day(1)), papers.passing(papers.run("b/b"), day(0)))
    before = snapshot(tmp_path / "history")
    (name,) = before
    assert (
        name.startswith("20261201T080000Z-") and len(name) == len("20261201T080000Z-.parquet") + 12
    )
    publish(tmp_path, papers.failing(at=day(2)))
    after = snapshot(tmp_path / "history")
    assert before.items() < after.items() and len(after) == 2


def test_unchanged_partition_keeps_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose rows stay is not written, even if this pyarrow would write other bytes."""
    publish(tmp_path, papers.passing(), papers.passing(papers.run(stack=OLD)))
    before = snapshot(tmp_path)
    original = pq.write_table

    def other_version(table: pa.Table, sink: object, **options: object) -> None:
        original(table, sink, **(options | {"compression_level": 19, "use_dictionary": False}))

    monkeypatch.setattr(pq, "write_table", other_version)
    written = publish(tmp_path, papers.failing(papers.run("b/b", stack=OLD), day(1)))
    assert [path.name for path in written if "current" in path.parts] == [
        "transformers-5.23.0.parquet"
    ]
    kept = "current/neuronxcc-2.28.7631.0/transformers-5.24.0.parquet"
    assert snapshot(tmp_path)[kept] == before[kept]


@pytest.mark.parametrize("seed", range(3))
def test_rebuild_equals_increments(tmp_path: Path, seed: int) -> None:
    """current/ and scripts/ derived from history alone are byte for byte what was published."""
    given = many(seed)
    for start in range(0, len(given), 10):
        write(prepare(tmp_path, given[start : start + 7]).files)
    before = snapshot(tmp_path)
    assert rebuild(tmp_path) == []
    for path in [*(tmp_path / "current").rglob("*.parquet"), *(tmp_path / "scripts").glob("*")]:
        path.unlink()
    rebuild(tmp_path)
    assert snapshot(tmp_path) == before


def test_rebuild_mends_what_is_damaged_or_alien(tmp_path: Path) -> None:
    """A damaged file below current/ is derived anew, one that history does not know is removed."""
    publish(tmp_path, papers.passing())
    before = snapshot(tmp_path)
    (current,) = (tmp_path / "current").rglob("*.parquet")
    stray = current.with_name("transformers-0.0.0.parquet")
    stray.write_bytes(current.read_bytes())
    current.write_bytes(b"PAR1 damaged PAR1")
    rebuild(tmp_path)
    assert snapshot(tmp_path) == before


def test_rebuild_without_history_is_an_error(tmp_path: Path) -> None:
    """Nothing to derive from must not empty what is published."""
    with pytest.raises(ResultsError, match="no history"):
        rebuild(tmp_path)


def test_scripts_follow_the_current_rows(tmp_path: Path) -> None:
    """Each script is its row's run_py byte for byte; one whose row has none any more is removed."""
    text = "print('\u00e9')\r\nprint(2)\n"
    publish(tmp_path, papers.passing(run_py=text), papers.erring(papers.run("b/b")))
    folder = tmp_path / "scripts"
    first = f"{papers.run().run_id}.py"
    assert (folder / first).read_bytes() == text.encode()
    assert {path.name for path in folder.iterdir()} == {first, f"{papers.run('b/b').run_id}.py"}
    publish(tmp_path, papers.failing(at=day(1), run_py=None))
    assert {path.name for path in folder.iterdir()} == {f"{papers.run('b/b').run_id}.py"}


def test_reading_before_the_first_publication(tmp_path: Path) -> None:
    """A campaign that never published has no rows; that is no error for the planner."""
    assert read_current(tmp_path) == read_history(tmp_path) == []
    assert last_attempts(tmp_path) == {}


def test_columns_limit_what_is_read(tmp_path: Path) -> None:
    """Readers that need few columns get exactly those, in the rows' order."""
    publish(
        tmp_path, papers.passing(papers.run("b/b")), papers.passing(papers.run("a/a", stack=CPU))
    )
    assert read_current(tmp_path, ["result", "model_id"]) == [
        {"result": "PASS", "model_id": "a/a"},
        {"result": "PASS", "model_id": "b/b"},
    ]
    assert [list(row) for row in read_history(tmp_path, ["run_id"])] == [["run_id"], ["run_id"]]


def test_rows_come_back_as_they_went_in(tmp_path: Path) -> None:
    """Parquet loses nothing: nulls, empty lists, nested lists, structs, times."""
    given = [row_of(after_a_try()), row_of(papers.failing(papers.run("b/b")))]
    write(prepare(tmp_path, given).files)
    assert read_current(tmp_path) == given
    assert read_history(tmp_path) == given


def test_last_attempts_count_trailing_errors(tmp_path: Path) -> None:
    """The planner sees the newest attempt and the ERRORs since the last PASS or FAIL."""
    asked, other = papers.run(), papers.run("b/b")
    publish(tmp_path, papers.erring(asked, day(0)), papers.passing(other, day(5)))
    publish(tmp_path, papers.passing(asked, day(1)))
    publish(tmp_path, papers.erring(asked, day(3)), papers.erring(asked, day(2)))
    attempts = last_attempts(tmp_path)
    last = attempts[asked.run_id]
    assert (last.result, last.failure, last.stage) == (
        Result.ERROR,
        Failure.DOWNLOAD,
        Stage.DOWNLOAD,
    )
    assert (last.tested_at, last.errors) == (day(3), 2)
    assert attempts[other.run_id].errors == 0


@pytest.mark.parametrize("name", ["README.md", "neuronxcc-1.0/notes.txt"])
def test_only_parquet_below_current(tmp_path: Path, name: str) -> None:
    """A stray file would break every reader of the folder, so it is named and refused."""
    publish(tmp_path, papers.passing())
    stray = tmp_path / "current" / name
    stray.parent.mkdir(exist_ok=True)
    stray.write_text("hello")
    with pytest.raises(ResultsError, match=str(stray)):
        publish(tmp_path, papers.passing(at=day(1)))


def test_remains_of_an_interrupted_write_do_no_harm(tmp_path: Path) -> None:
    """A hidden temporary file, as a killed write leaves it, disturbs neither us nor pandas."""
    publish(tmp_path, papers.passing())
    (tmp_path / "current" / "neuronxcc-2.28.7631.0" / ".x.parquet.abc").write_bytes(b"half")
    assert len(read_current(tmp_path)) == len(pd.read_parquet(tmp_path / "current")) == 1


def test_edited_file_is_refused(tmp_path: Path) -> None:
    """Rows changed by hand do not match the file's digest: the file is named, nothing is lost."""
    publish(tmp_path, papers.failing())
    (path,) = (tmp_path / "current").rglob("*.parquet")
    table = pq.read_table(path)
    passed = table.set_column(
        SCHEMA.get_field_index("result"), SCHEMA.field("result"), pa.array(["PASS"])
    )
    pq.write_table(passed.replace_schema_metadata(table.schema.metadata), path)
    with pytest.raises(ResultsError, match="not those it was written with") as caught:
        publish(tmp_path, papers.passing(at=day(1)))
    assert caught.value.where == str(path)


@pytest.mark.parametrize("damage", ["garbage", "alien column", "newer version", "odd version"])
def test_alien_files_are_named(tmp_path: Path, damage: str) -> None:
    """A file that is not of this schema is an error naming it, before anything is written."""
    publish(tmp_path, papers.passing())
    (path,) = (tmp_path / "history").glob("*.parquet")
    table = pq.read_table(path)
    metadata = dict(table.schema.metadata)
    version = b"trn_qualify.schema_version"
    if damage == "garbage":
        path.write_bytes(b"not parquet")
    elif damage == "alien column":
        pq.write_table(table.append_column("mood", pa.array(["good"])), path)
    else:
        metadata[version] = b"99" if damage == "newer version" else b"x"
        pq.write_table(table.replace_schema_metadata(metadata), path)
    before = snapshot(tmp_path)
    actions: list[Callable[[], object]] = [
        lambda: migrate(tmp_path),
        lambda: read_history(tmp_path),
        lambda: read_history(tmp_path, ["run_id"]),
        lambda: publish(tmp_path, papers.passing(at=day(1))),
    ]
    for action in actions:
        with pytest.raises(ResultsError) as caught:
            action()
        assert caught.value.where == str(path)
    assert snapshot(tmp_path) == before


SINCE_2 = [
    "runtime_peak_gb",
    "runtime_peak_source",
    "findings",
    "core_ids",
    "backend_graphs",
    "cache_store",
    "try_reason",
    "tries",
]
"""Columns that version 2 brought."""

SINCE_3 = ["departure", "noise", "check"]
"""Columns that version 3 brought."""


def file_of_version(version: int, path: Path, given: list[Row], *, told: str | None = None) -> None:
    """`given` as an older version wrote them, with its marks; `told`: another digest."""
    newer = [*(SINCE_2 if version < 2 else []), *SINCE_3]
    schema = pa.schema([field for field in SCHEMA if field.name not in newer])
    old = [
        {name: row[name] for name in schema.names} | {"schema_version": version} for row in given
    ]
    marks = {
        b"trn_qualify.schema_version": str(version).encode(),
        b"trn_qualify.rows_sha256": (told or rows.digest(old, version, schema.names)).encode(),
    }
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(old, schema.with_metadata(marks)), path)


def test_migration_rewrites_every_file(tmp_path: Path) -> None:
    """Version 1 is read as today's rows at once, and rewritten so that all files have one schema.

    What it did not write down is unknown, not none.
    """
    given = [row_of(papers.passing()), row_of(papers.failing(papers.run("b/b")))]
    unknown = dict.fromkeys([*SINCE_2, "departure", "noise"])
    checks = ("tokens against the CPU reference, without logits: a small fault may pass", None)
    expected = [row | unknown | {"check": told} for row, told in zip(given, checks, strict=True)]
    assert all(row["tries"] == [] for row in given)
    history = tmp_path / "history" / "20261130T080000Z-0123456789ab.parquet"
    partition = papers.run().stack.run_id("a").partition
    file_of_version(1, history, given)
    file_of_version(1, tmp_path / "current" / partition, given)
    assert read_history(tmp_path) == expected
    assert read_current(tmp_path, ["tries", "result"]) == [
        {"tries": None, "result": "PASS"},
        {"tries": None, "result": "FAIL"},
    ]
    assert migrate(tmp_path) == [history, tmp_path / "current" / partition]
    assert migrate(tmp_path) == []
    for path in tmp_path.rglob("*.parquet"):
        assert pq.read_schema(path).remove_metadata().equals(SCHEMA)
    assert read_current(tmp_path) == expected
    assert {row["schema_version"] for row in read_history(tmp_path)} == {rows.SCHEMA_VERSION}
    assert rebuild(tmp_path) == [
        tmp_path / "scripts" / f"{row['run_id']}.py" for row in sorted(expected, key=run_id)
    ]


def run_id(row: Row) -> str:
    """Its run id."""
    return str(row["run_id"])


def test_older_versions_have_the_columns_they_had() -> None:
    """A row of version 1 is today's but for the columns that came since, whatever comes next."""
    assert len(SCHEMA.names) - len(SINCE_2) - len(SINCE_3) == 64


def test_rows_of_version_2_keep_what_they_said(tmp_path: Path) -> None:
    """Log-probabilities were not compared then; on which evidence a row rests follows from it."""
    judged = papers.passing(papers.run("b/b"), check=Check(english=English.FLUENT))
    given = [row_of(after_a_try()), row_of(judged)]
    file_of_version(2, tmp_path / "history" / "20261130T080000Z-0123456789ab.parquet", given)
    tokens, judge = read_history(tmp_path)
    assert tokens == given[0] | {
        "departure": None,
        "noise": None,
        "check": "tokens against the CPU reference, without logits: a small fault may pass",
    }
    assert judge == given[1]
    assert judge["check"].startswith("judge of fluent English alone; ")


def test_a_record_published_before_is_not_added_again(tmp_path: Path) -> None:
    """A record of before makes the row that a migration makes of its published one."""
    check = Check(cpu_match=CpuMatch.NEAR_TIE, max_gap=0.125)
    row = row_of(papers.passing(check=check))
    file_of_version(2, tmp_path / "history" / "20261130T080000Z-0123456789ab.parquet", [row])
    assert prepare(tmp_path, [row]).added == ()


def test_edited_file_of_an_older_version_is_refused(tmp_path: Path) -> None:
    """A migration does not make a row that was changed by hand one of ours."""
    path = tmp_path / "history" / "20261130T080000Z-0123456789ab.parquet"
    file_of_version(1, path, [row_of(papers.passing())], told="0" * 64)
    before = path.read_bytes()
    with pytest.raises(ResultsError, match="not those it was written with"):
        migrate(tmp_path)
    assert path.read_bytes() == before


def old_file(path: Path, given: list[Row]) -> None:
    """`given` in a schema that never was, and without marks: version 0."""
    fields = [field for field in SCHEMA if field.name not in ("neuron_cores", "tp", "attempts")] + [
        pa.field("cores", pa.int32())
    ]
    old = [{**row, "cores": row["neuron_cores"], "schema_version": 0} for row in given]
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(old, pa.schema(fields)), path)


def test_migrations_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file several versions old is lifted step by step."""

    def lift(old: list[Row]) -> list[Row]:
        lifted = []
        for row in old:
            row = dict(row)
            cores = row.pop("cores")
            lifted.append(row | {"neuron_cores": cores, "tp": cores, "attempts": None})
        return lifted

    monkeypatch.setitem(results.MIGRATIONS, 0, lift)
    old_file(tmp_path / "history" / "old.parquet", [row_of(papers.passing())])
    (row,) = read_history(tmp_path)
    assert (row["neuron_cores"], row["tp"], row["attempts"], row["tries"]) == (1, 1, None, None)


def test_migration_that_forgets_a_column_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong migration loses no column silently."""
    monkeypatch.setitem(results.MIGRATIONS, 0, lambda old: old)
    path = tmp_path / "history" / "20261130T080000Z-0123456789ab.parquet"
    old_file(path, [row_of(papers.passing())])
    with pytest.raises(ResultsError, match=r"attempts.*cores.*neuron_cores.*tp"):
        migrate(tmp_path)


def test_file_without_version_and_migration_is_refused(tmp_path: Path) -> None:
    """A Parquet file that this project did not write is not taken for one of its own."""
    path = tmp_path / "history" / "stranger.parquet"
    old_file(path, [row_of(papers.passing())])
    with pytest.raises(ResultsError, match="schema version '0'"):
        read_history(tmp_path)


def test_no_text_of_a_row_becomes_a_path(tmp_path: Path) -> None:
    """A run id that is none is refused before anything is written."""
    row = row_of(papers.passing()) | {"run_id": "../../evil@transformers-1@x-1@torch-1"}
    with pytest.raises(ResultsError, match="not a run id"):
        prepare(tmp_path / "results", [row])
    assert list(tmp_path.iterdir()) == []


def test_write_cut_short_is_completed_by_repeating(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash between any two files, the same publication again gives the same results/."""
    given = [row_of(papers.passing()), row_of(papers.failing(papers.run("b/b", stack=OLD)))]
    write(prepare(tmp_path / "whole", given).files)
    expected = snapshot(tmp_path / "whole")
    for survive in range(len(expected)):
        folder = tmp_path / str(survive)
        done: list[Path] = []

        def crash(path: Path, data: bytes, done: list[Path] = done, limit: int = survive) -> None:
            if len(done) == limit:
                raise OSError("disk full")
            done.append(path)
            write_atomically(path, data)

        with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
            patch.setattr(results, "write_atomically", crash)
            write(prepare(folder, given).files)
        partial = snapshot(folder) if folder.exists() else {}
        assert partial.items() <= expected.items()
        assert not partial or any(name.startswith("history/") for name in partial)
        write(prepare(folder, given).files)
        assert snapshot(folder) == expected


def test_import_is_light() -> None:
    """results needs pyarrow, and neither pandas nor anything of the run extra."""
    code = (
        "import sys, pipeline.results; "
        "print([m for m in ('torch', 'transformers', 'pandas', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_runs_of_one_model_on_two_torches_share_a_file(tmp_path: Path) -> None:
    """torch is part of the run id and not of the file name: both rows are kept."""
    runs: list[Run] = [
        papers.run(stack=papers.stack(torch=version)) for version in ("2.13.0", "2.14.0")
    ]
    publish(tmp_path, *map(papers.passing, runs))
    assert len(read_current(tmp_path)) == 2
    assert len(list((tmp_path / "current").rglob("*.parquet"))) == 1
