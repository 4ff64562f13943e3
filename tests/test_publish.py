"""Publishing: records in, rows and page out, and nothing lost on the way."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline import publish as module
from pipeline import results as store
from pipeline.errors import RecordError, ResultsError
from pipeline.publish import Change, ChangeKind, Published, Taken, publish
from pipeline.record import Plan, Record, Try, write_atomically
from pipeline.results import read_current, read_history, row_of
from pipeline.rows import digest
from pipeline.words import (
    Failure,
    Parallelism,
    Result,
    Stage,
    Target,
    TryReason,
)
from tests import papers
from tests.papers import Banned, View, Wanted, day
from tests.test_evidence import passed

NOW = day(100)


class Campaign:
    """A repository's results/ and page, and publications into them."""

    def __init__(self, root: Path, wishes: View | None = None) -> None:
        self.root = root
        self.results = root / "results"
        self.table = root / "COMPATIBILITY.md"
        self.wishes = wishes or View()
        self.count = 0

    def publish(self, *records: Record, **options: Any) -> Published:
        """Publish `records` from a fresh folder of artifacts."""
        self.count += 1
        folder = papers.save(self.root / "artifacts" / str(self.count), records)
        folder.mkdir(parents=True, exist_ok=True)
        return self.publish_from(folder, **options)

    def publish_from(self, *paths: Path, **options: Any) -> Published:
        """Publish whatever is at `paths`."""
        fixed: dict[str, Any] = {"plan": None, "now": NOW, "catalog_view": self.wishes}
        return publish(list(paths), results=self.results, table=self.table, **(fixed | options))

    def snapshot(self) -> dict[str, bytes]:
        """What is published, by path."""
        found = [path for path in self.results.rglob("*") if path.is_file()]
        found += [self.table] if self.table.exists() else []
        return {str(path.relative_to(self.root)): path.read_bytes() for path in found}


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    """An empty campaign."""
    return Campaign(tmp_path)


def test_records_become_rows_scripts_and_page(campaign: Campaign) -> None:
    """One publication leaves history, current rows, scripts and the page, and counts them."""
    lost = papers.unended(papers.run("c/c"))
    done = campaign.publish(papers.passing(), papers.failing(papers.run("b/b")), lost)
    assert (done.added, done.passed, done.failed, done.errors) == (3, 1, 1, 1)
    assert done.problems == ()
    done.check()
    rows = read_current(campaign.results, ["model_id", "result", "failure", "stage"])
    assert [tuple(row.values()) for row in rows] == [
        ("Qwen/Qwen3-0.6B", "PASS", None, "done"),
        ("b/b", "FAIL", "compiler_error", "compile"),
        ("c/c", "ERROR", "lost_runner", "compile"),
    ]
    page = campaign.table.read_text()
    for name in ("Qwen--Qwen3-0.6B", "b--b"):
        target = f"results/scripts/{name}%40transformers-5.24.0%40neuronxcc-2.28.7631.0"
        assert f"({target}%40torch-2.14.0.py)" in page
        script = f"{name}@transformers-5.24.0@neuronxcc-2.28.7631.0@torch-2.14.0.py"
        assert (campaign.results / "scripts" / script).read_text() == papers.SCRIPT
    assert "c--c" not in page
    assert set(done.written) == {campaign.root / path for path in campaign.snapshot()}


def test_links_lead_from_the_page_to_the_scripts(tmp_path: Path) -> None:
    """The page may stand elsewhere than beside results/: links stay relative to it."""
    campaign = Campaign(tmp_path)
    campaign.table = tmp_path / "docs" / "deep" / "page.md"
    campaign.publish(papers.passing())
    assert "(../../results/scripts/Qwen--Qwen3-0.6B%40" in campaign.table.read_text()


def test_same_records_same_bytes(tmp_path: Path) -> None:
    """Neither the day of publishing, nor the order of files, nor doing it twice changes a byte."""
    one, two = Campaign(tmp_path / "one"), Campaign(tmp_path / "two")
    records = [papers.passing(), papers.failing(papers.run("b/b")), papers.unended()]
    plan = papers.plan(*(record.run for record in records), papers.run("lost/lost"))
    one.publish(*records, plan=plan, max_age_days=30)
    two.publish(*reversed(records), plan=plan, max_age_days=30, now=NOW + timedelta(days=1))
    assert one.snapshot() == two.snapshot()
    again = one.publish(*records, plan=plan, max_age_days=30)
    assert (again.added, again.written, again.changes) == (0, (), ())
    assert one.snapshot() == two.snapshot()


def test_one_publication_or_several_give_the_same_state(tmp_path: Path) -> None:
    """Current rows, scripts and page do not depend on how records were grouped."""
    records = [
        papers.passing(at=day(0)),
        papers.failing(at=day(1)),
        papers.erring(at=day(2)),
        papers.passing(papers.run("b/b", script_sha256=None), day(3), run_py="print(2)\n"),
    ]
    together, apart = Campaign(tmp_path / "together"), Campaign(tmp_path / "apart")
    together.publish(*records)
    for record in (records[3], records[1], records[0], records[2]):
        apart.publish(record)
    kept = [
        {path: data for path, data in campaign.snapshot().items() if "/history/" not in path}
        for campaign in (together, apart)
    ]
    assert kept[0] == kept[1]
    assert len(read_history(apart.results)) == 4


def test_planned_runs_without_a_record_become_rows(campaign: Campaign) -> None:
    """Absence is data: lost runs are ERROR, refusals their own class, all dated by the records."""
    plan = papers.plan(papers.run(), papers.run("b/lost"), papers.refused("c/large"))
    done = campaign.publish(papers.passing(at=day(3)), plan=plan)
    assert (done.passed, done.failed, done.errors) == (1, 1, 1)
    rows = {row["model_id"]: row for row in read_current(campaign.results)}
    assert (rows["b/lost"]["failure"], rows["b/lost"]["stage"]) == ("lost_runner", "plan")
    assert (rows["c/large"]["failure"], rows["c/large"]["result"]) == ("too_large", "FAIL")
    assert {row["tested_at"] for row in rows.values()} == {day(3)}
    assert done.problems == ()


def test_a_workflow_run_tells_its_lost_runs_once(campaign: Campaign) -> None:
    """Nobody knows when they ended: the workflow run they are of makes their rows one and the same,
    and another class of failure, or another workflow run, another one."""
    plan = papers.plan(papers.run("b/lost"), papers.refused("c/large"))

    def derive(url: str | None, taken: Taken | None = None, now: int = 100) -> Published:
        return module.derive(
            taken or Taken(()),
            results=campaign.results,
            table=campaign.table,
            catalog_view=View(),
            plan=plan,
            now=day(now),
            run_url=url,
        )

    first = derive("https://example.com/1")
    assert (first.added, [record.run.model_id for record in first.lost]) == (2, ["b/lost"])
    assert {row["run_url"] for row in first.rows} == {"https://example.com/1"}
    again = derive("https://example.com/1", now=101)
    assert (again.added, again.written, len(again.lost)) == (0, (), 1)
    broken = Taken((), ("x/record.json: not JSON",), {papers.run("b/lost").run_id: "not JSON"})
    (row,) = derive("https://example.com/1", broken).rows
    assert (row["failure"], row["error"]) == ("harness", "its record could not be used: not JSON")
    assert derive("https://example.com/2").added == 2
    assert derive(None, now=102).added == derive(None, now=103).added == 2


def test_plan_of_nothing_derives_the_page(campaign: Campaign) -> None:
    """Nothing was due, so nothing is missing; but no page is made of nothing."""
    nothing = Plan(jobs=(), refused=(), skipped=())
    with pytest.raises(ResultsError, match="no results to make a page of"):
        campaign.publish(plan=nothing)
    campaign.publish(papers.passing())
    assert campaign.publish(plan=nothing).written == ()
    campaign.wishes = View(models=(Wanted("new/model"),))
    wishes = campaign.results / "models.json"
    assert campaign.publish(plan=nothing).written == (wishes, campaign.table)


def test_plan_of_refusals_needs_no_device(campaign: Campaign) -> None:
    """Where nothing was to run, no record is missing: the refusals are published."""
    done = campaign.publish(plan=papers.plan(papers.refused()))
    assert (done.added, done.failed) == (1, 1)
    (row,) = read_current(campaign.results)
    assert row["tested_at"] == NOW


def test_nothing_to_publish_is_an_error(campaign: Campaign) -> None:
    """No record and no plan must not leave a page that says nothing."""
    with pytest.raises(ResultsError, match="no record to publish"):
        campaign.publish()
    assert campaign.snapshot() == {}


def test_only_broken_records_is_an_error_that_names_them(campaign: Campaign) -> None:
    """The reason is told even if there is nothing good beside it."""
    path = campaign.root / "in" / "record.json"
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(ResultsError, match=r"in/record\.json: not a valid record"):
        campaign.publish_from(path)
    assert campaign.snapshot() == {}


def test_missing_path_is_an_error(campaign: Campaign) -> None:
    """A mistyped path is not an empty set of records."""
    with pytest.raises(RecordError, match="no such file"):
        campaign.publish_from(campaign.root / "nowhere")


def damage(text: str, how: str) -> bytes:
    """A record's JSON, broken."""
    data = json.loads(text)
    match how:
        case "cut short":
            return text[: len(text) // 2].encode()
        case "not text":
            return b"\xff\xfe\x00"
        case "unknown field":
            data["mood"] = "good"
        case "pass without tokens":
            data["observation"]["generations"] = []
        case "another schema":
            data["schema_version"] = 99
        case "from the future":
            data["tested_at"] = "2999-01-01T00:00:00Z"
        case "fits no column":
            data["wall_s"] = 1e12
        case "deep":
            return b"[" * 100_000
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    "how",
    [
        "cut short",
        "not text",
        "unknown field",
        "pass without tokens",
        "another schema",
        "from the future",
        "fits no column",
        "deep",
    ],
)
def test_broken_record_loses_only_itself(campaign: Campaign, how: str) -> None:
    """The others are published, its planned run is ERROR / harness, and the end is an error."""
    good, bad = papers.passing(), papers.passing(papers.run("b/b"))
    folder = papers.save(campaign.root / "in", [good, bad])
    path = folder / "1" / bad.run.run_id / "record.json"
    path.write_bytes(damage(path.read_text(), how))
    done = campaign.publish_from(folder, plan=papers.plan(good.run, bad.run))
    assert (done.passed, done.failed, done.errors) == (1, 0, 1)
    row = next(row for row in read_current(campaign.results) if row["model_id"] == "b/b")
    assert (row["result"], row["failure"], row["stage"]) == ("ERROR", "harness", "plan")
    assert row["error"].startswith("its record could not be used: ")
    (problem,) = done.problems
    assert str(path) in problem
    with pytest.raises(ResultsError, match="1 could not be used") as caught:
        done.check()
    assert str(path) in str(caught.value)


def test_broken_record_is_known_by_what_it_says(campaign: Campaign) -> None:
    """Where the folder's name tells nothing, the run id inside the file does."""
    asked = papers.run("b/b")
    path = campaign.root / "in" / "record.json"
    path.parent.mkdir()
    path.write_bytes(damage(papers.passing(asked).model_dump_json(), "unknown field"))
    campaign.publish_from(path, plan=papers.plan(asked))
    (row,) = read_current(campaign.results)
    assert row["failure"] == "harness"


def test_good_record_beats_a_broken_copy(campaign: Campaign) -> None:
    """A second, broken file of the same run is told and changes no row."""
    good = papers.passing()
    folder = papers.save(campaign.root / "in", [good, good])
    (folder / "0" / good.run.run_id / "record.json").write_text("{")
    done = campaign.publish_from(folder, plan=papers.plan(good.run))
    assert (done.passed, done.errors, len(done.problems)) == (1, 0, 1)


@pytest.mark.parametrize("where", ["record", "plan"])
def test_simulator_is_never_published(campaign: Campaign, where: str) -> None:
    """A test double's result among real ones stops the publication before anything is written."""
    asked = papers.run("b/b", stack=papers.stack(Target.SIMULATOR))
    with pytest.raises(ResultsError, match="simulator"):
        if where == "record":
            campaign.publish(papers.passing(), papers.passing(asked))
        else:
            campaign.publish(papers.passing(), plan=papers.plan(asked))
    assert campaign.snapshot() == {}


@pytest.mark.parametrize("target", [Target.NEURON, Target.CPU])
@pytest.mark.parametrize("name", ["torch_neuronx", "neuronx_cc", "runtime", "neuron_driver"])
@pytest.mark.parametrize("result", [Result.PASS, Result.FAIL])
def test_simulator_is_known_by_its_versions(
    campaign: Campaign, target: Target, name: str, result: Result
) -> None:
    """Whatever target a record names and whatever else is wrong with it, its packages betray the
    stand-in: nothing is written."""
    asked = papers.run("b/b", stack=papers.stack(target))
    honest = papers.passing(asked) if result is Result.PASS else papers.failing(asked)
    seen = honest.observation
    assert seen is not None
    versions = seen.versions.model_copy(update={name: "2.14.0.1+Simulator"})
    forged = honest.model_copy(
        update={"observation": seen.model_copy(update={"versions": versions})}
    )
    with pytest.raises(ResultsError, match="simulator"):
        campaign.publish(papers.passing(), forged)
    assert campaign.snapshot() == {}


def test_simulator_is_known_by_the_stack_asked_for(campaign: Campaign) -> None:
    """A stack that names the stand-in's versions is the stand-in's, before anything was seen."""
    asked = papers.run(stack=papers.stack(torch_neuronx="2.14.0.1+simulator"))
    with pytest.raises(ResultsError, match="simulator"):
        campaign.publish(papers.erring(asked))
    assert campaign.snapshot() == {}


def test_too_many_records_are_refused(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of files is refused unread."""
    monkeypatch.setattr(module, "MAX_RECORDS", 1)
    with pytest.raises(ResultsError, match="2 record files; limit 1"):
        campaign.publish(papers.passing(), papers.passing(papers.run("b/b")))


def test_unreadable_results_stop_before_anything_is_written(campaign: Campaign) -> None:
    """A damaged history file is named; the publication leaves everything as it was."""
    campaign.publish(papers.passing())
    (path,) = (campaign.results / "history").iterdir()
    path.write_bytes(b"damaged")
    before = campaign.snapshot()
    with pytest.raises(ResultsError) as caught:
        campaign.publish(papers.failing(at=day(1)))
    assert caught.value.where == str(path)
    assert campaign.snapshot() == before


def test_files_are_written_history_first_and_page_last(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is derived never speaks of what history does not hold."""
    order: list[str] = []

    def noting(path: Path, data: bytes) -> None:
        order.append(path.relative_to(campaign.root).as_posix())
        write_atomically(path, data)

    monkeypatch.setattr(store, "write_atomically", noting)
    campaign.publish(papers.passing(), papers.passing(papers.run("b/b")))
    kinds = ["COMPATIBILITY.md" if "/" not in path else path.split("/")[1] for path in order]
    assert kinds == ["history", "current", "scripts", "scripts", "models.json", "COMPATIBILITY.md"]


def changes(done: Published) -> list[tuple[ChangeKind, str, Result | None, Result]]:
    """Kind, model, result before and after."""
    return [
        (
            change.kind,
            change.model_id,
            change.before.result if change.before else None,
            change.after.result,
        )
        for change in done.changes
    ]


def test_changes_tell_what_is_new(campaign: Campaign) -> None:
    """New, newly failing, fixed and still failing are told; still passing is not."""
    names = ("a/breaks", "b/mends", "c/stays-bad", "d/stays-good")
    runs = [papers.run(name) for name in names]
    first = campaign.publish(
        papers.passing(runs[0]),
        papers.failing(runs[1]),
        papers.failing(runs[2], stage=Stage.LOAD, failure=Failure.LOAD_ERROR),
        papers.passing(runs[3]),
    )
    assert {change.kind for change in first.changes} == {ChangeKind.NEW}
    assert all(change.before is None for change in first.changes)
    second = campaign.publish(
        papers.failing(runs[0], day(1)),
        papers.passing(runs[1], day(1)),
        papers.failing(runs[2], day(1)),
        papers.passing(runs[3], day(1)),
        papers.failing(papers.run("e/new"), day(1)),
    )
    assert changes(second) == [
        (ChangeKind.NEWLY_FAILING, "a/breaks", Result.PASS, Result.FAIL),
        (ChangeKind.FIXED, "b/mends", Result.FAIL, Result.PASS),
        (ChangeKind.STILL_FAILING, "c/stays-bad", Result.FAIL, Result.FAIL),
        (ChangeKind.NEW, "e/new", None, Result.FAIL),
    ]
    still: Change = second.changes[2]
    assert still.before is not None
    assert (still.before.stage, still.after.stage) == (Stage.LOAD, Stage.COMPILE)
    assert still.after.failure is Failure.COMPILER_ERROR
    assert str(still) == (
        "still_failing: c--stays-bad@transformers-5.24.0@neuronxcc-2.28.7631.0@torch-2.14.0: "
        "FAIL (load_error at load) -> FAIL (compiler_error at compile)"
    )
    assert str(second.changes[3]).endswith("torch-2.14.0: FAIL (compiler_error at compile)")
    assert "FAIL (compiler_error at compile) -> PASS" in str(second.changes[1])


def test_new_stack_is_compared_with_the_newest_older_one(campaign: Campaign) -> None:
    """A model that worked on the stack before and fails on the new one is newly failing."""
    for version, factory in (("5.9.0", papers.failing), ("5.23.0", papers.passing)):
        campaign.publish(factory(papers.run(stack=papers.stack(library_version=version))))
    cpu = papers.run(stack=papers.stack(Target.CPU))
    done = campaign.publish(papers.failing(at=day(1)), papers.passing(cpu, day(1)))
    assert changes(done) == [
        (ChangeKind.NEW, "Qwen/Qwen3-0.6B", None, Result.PASS),
        (ChangeKind.NEWLY_FAILING, "Qwen/Qwen3-0.6B", Result.PASS, Result.FAIL),
    ]
    before = done.changes[1].before
    assert before is not None and "transformers-5.23.0" in before.run_id


def test_errors_change_nothing(campaign: Campaign) -> None:
    """ERROR says nothing of the model: neither it nor the result after it is a change of one."""
    campaign.publish(papers.passing())
    assert campaign.publish(papers.erring(at=day(1))).changes == ()
    assert campaign.publish(papers.passing(at=day(2))).changes == ()
    asked = papers.run("b/b")
    assert campaign.publish(papers.erring(asked)).changes == ()
    assert changes(campaign.publish(papers.failing(asked, day(1)))) == [
        (ChangeKind.NEW, "b/b", None, Result.FAIL)
    ]


def test_late_record_of_an_older_run_is_no_change(campaign: Campaign) -> None:
    """A record that arrives after a newer one goes to history and changes no reading."""
    campaign.publish(papers.passing(at=day(5)))
    done = campaign.publish(papers.failing(at=day(1)))
    assert (done.added, done.failed, done.changes) == (1, 1, ())


def test_pass_of_an_excluded_model_is_unexpected(tmp_path: Path) -> None:
    """A model excluded as incompatible that passes is told; one not prioritised is just new."""
    wishes = View(
        models=(Wanted("c/c"),), excluded=(Banned("a/a"), Banned("b/b", "not_prioritised"))
    )
    campaign = Campaign(tmp_path, wishes)
    done = campaign.publish(*(papers.passing(papers.run(name)) for name in ("a/a", "b/b")))
    assert [change.kind for change in done.changes] == [
        ChangeKind.UNEXPECTED_PASS,
        ChangeKind.NEW,
    ]
    page = campaign.table.read_text()
    assert "PASS on neuron" in page and "UNTESTED on Trainium: 1." in page


def test_older_results_are_migrated_by_the_next_publication(campaign: Campaign) -> None:
    """Files of an older schema are rewritten before new ones stand beside them."""
    campaign.publish(papers.passing())
    since = ["runtime_peak_gb", "runtime_peak_source", "findings", "core_ids"]
    since += ["backend_graphs", "cache_store", "tries"]
    for path in campaign.results.rglob("*.parquet"):
        old = pq.read_table(path).drop_columns(since)
        told = digest(old.to_pylist(), 1, old.column_names)
        marks = {"trn_qualify.schema_version": "1", "trn_qualify.rows_sha256": told}
        pq.write_table(old.replace_schema_metadata(marks), path)
    done = campaign.publish(papers.passing(papers.run("b/b")))
    assert done.added == 1
    for path in campaign.results.rglob("*.parquet"):
        assert pq.read_schema(path).remove_metadata().equals(store.SCHEMA)
    assert len(read_current(campaign.results)) == 2


def test_results_are_a_relative_path_too(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is run in the repository: relative paths give the same page."""
    campaign.publish(papers.passing())
    expected = campaign.snapshot()
    monkeypatch.chdir(campaign.root)
    other = Path("elsewhere")
    publish(
        [Path("artifacts")],
        results=other / "results",
        table=other / "COMPATIBILITY.md",
        catalog_view=View(),
        plan=None,
        now=NOW,
    )
    found = [path for path in other.rglob("*") if path.is_file()]
    assert {str(path.relative_to(other)): path.read_bytes() for path in found} == expected


def test_rows_of_a_whole_campaign_come_back(campaign: Campaign) -> None:
    """What is read from the folder is row for row what the records say."""
    records = [papers.passing(papers.run(f"org/model-{number:03}")) for number in range(120)]
    campaign.publish(*records)
    assert read_current(campaign.results) == [row_of(record) for record in records]


def test_import_is_light() -> None:
    """Publishing needs neither torch nor transformers nor pandas."""
    code = (
        "import sys, pipeline.publish, pipeline.view, pipeline.tables; "
        "heavy = ('torch', 'transformers', 'pandas', 'huggingface_hub', 'fsspec'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_device_run_without_core_ids_is_no_pass(campaign: Campaign) -> None:
    """The runner writes down which cores it gave; a record without any was not made on a device."""
    folder = papers.save(campaign.root / "in", [papers.passing(core_ids=())])
    with pytest.raises(ResultsError, match="asked for: 1; ids of the cores it had: none"):
        campaign.publish_from(folder)


def test_a_pass_after_other_tries_keeps_them(campaign: Campaign) -> None:
    """What came before it in the same attempt stands in history and on the page; it is a PASS."""
    earlier = Try(
        reason=TryReason.FIRST,
        cores=1,
        parallelism=Parallelism.NONE,
        result=Result.FAIL,
        stage=Stage.LOAD,
        failure=Failure.DEVICE_OUT_OF_MEMORY,
        signature=None,
        error="no memory",
        wall_s=30.0,
        cache=None,
    )
    again = earlier.model_copy(update={"reason": TryReason.MORE_CORES, "cores": 2})
    changes = {"reason": TryReason.OTHER_CORES, "tries": (earlier, again)}
    done = campaign.publish(passed(changes))
    assert (done.passed, done.failed, done.problems) == (1, 0, ())
    assert [change.kind for change in done.changes] == [ChangeKind.NEW]
    for rows in (read_current(campaign.results), read_history(campaign.results)):
        (row,) = rows
        assert [(one["reason"], one["cores"]) for one in row["tries"]] == [
            ("first", 1),
            ("more_cores", 2),
        ]
    assert "after out of memory on 1 core, then out of memory on 2 cores" in (
        campaign.table.read_text()
    )
