"""Artifacts are untrusted: what is taken of them, and that nothing else is touched."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline import retry, script
from pipeline.actions import artifacts as module
from pipeline.actions.artifacts import Artifacts, collect
from pipeline.record import Plan, Record, Run, dump, write
from pipeline.words import Failure, Stage, Target
from tests import papers
from tests.papers import day

URL = "https://github.com/example/campaign/actions/runs/1"
NOW = day(1)
GOOD = papers.run("a/good")
OTHER = papers.run("b/other")
APART = papers.run("c/apart", runner="trn2-2")
PLAN = papers.plan(GOOD, OTHER, APART)
JOB, JOB_APART = "job-trn2-1", "job-trn2-2"


class Machine:
    """A folder of artifacts, as download-artifact leaves it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "artifacts"

    def path(self, run: Run, job: str = JOB, attempt: int = 1, number: int = 1) -> Path:
        """Where a run's record stands."""
        return self.folder / f"records-{job}-{attempt}" / run.run_id / str(number) / "record.json"

    def leave(
        self,
        record: Record,
        job: str = JOB,
        attempt: int = 1,
        number: int = 1,
        changes: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a record, with `changes` at the top of its JSON; its path."""
        path = self.path(record.run, job, attempt, number)
        write(record, path)
        if changes is not None:
            path.write_text(json.dumps(json.loads(path.read_text()) | dict(changes)))
        return path

    def collect(self, plan: Plan = PLAN, attempt: int = 1) -> Artifacts:
        """What is taken."""
        return collect(self.folder, plan, attempt=attempt, run_url=URL, now=NOW)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Artifacts with one good record of job-trn2-1; the other job's too is there."""
    made = Machine(tmp_path)
    made.leave(papers.passing(GOOD))
    made.leave(papers.passing(APART), JOB_APART)
    return made


def taken(found: Artifacts) -> list[str]:
    """Model ids of the records, in order."""
    return sorted(record.run.model_id for record in found.taken.records)


def refused(found: Artifacts) -> str:
    """The only thing that was refused; the good records are there."""
    assert taken(found) == ["a/good", "c/apart"]
    (problem,) = found.taken.problems
    return problem


def test_records_of_planned_jobs_are_taken(machine: Machine) -> None:
    """Other files beside them are left alone, and every job's artifact is known."""
    beside = machine.path(GOOD).parent
    (beside / "log.txt").write_text("{")
    (beside / "run.json").write_text("{")
    found = machine.collect()
    assert taken(found) == ["a/good", "c/apart"]
    assert found.taken.problems == found.aside == found.missing == ()
    assert found.found == {JOB: (f"records-{JOB}-1",), JOB_APART: (f"records-{JOB_APART}-1",)}


@pytest.mark.parametrize("there", [True, False])
def test_no_artifact_at_all(tmp_path: Path, there: bool) -> None:
    """Jobs without one are named, whether there is a folder or not."""
    machine = Machine(tmp_path)
    if there:
        machine.folder.mkdir()
    found = machine.collect()
    assert (found.taken.records, found.missing) == ((), (JOB, JOB_APART))


def test_artifact_without_a_record_is_not_missing(machine: Machine) -> None:
    """Its job left something: what is missing there is told run by run."""
    shutil.rmtree(machine.folder / f"records-{JOB_APART}-1" / APART.run_id)
    (machine.folder / f"records-{JOB_APART}-1" / "log.txt").touch()
    assert machine.collect().missing == ()


@pytest.mark.parametrize(
    "name",
    [
        "plan",
        "records-job-trn2-9-1",
        "records-job-trn2-1",
        "records-job-trn2-1-",
        "records-job-trn2-1-x",
        "records-job-trn2-1--1",
        "records-job-trn2-1-99999",
        "records-job-trn2-1-\u0661",
        "records--1",
        "xrecords-job-trn2-1-1",
        "..records-job-trn2-1-1",
        "records-refused-1",
    ],
)
def test_folders_of_other_names_are_refused(machine: Machine, name: str) -> None:
    """Only jobs of the plan have artifacts that count."""
    shutil.copytree(machine.folder / f"records-{JOB}-1", machine.folder / name)
    assert refused(machine.collect()) == f"{name}: not an artifact of a planned job"


def test_artifact_of_an_attempt_to_come_is_refused(machine: Machine) -> None:
    """Nothing can have been made by an attempt after this one."""
    machine.leave(papers.passing(OTHER), attempt=2)
    assert refused(machine.collect()) == f"records-{JOB}-2: this is attempt 1"


def test_file_in_a_folders_place_is_refused(machine: Machine) -> None:
    """A file with an artifact's name is no artifact."""
    (machine.folder / "records-job-trn2-2-1" / "x").touch()
    shutil.rmtree(machine.folder / f"records-{JOB_APART}-1")
    (machine.folder / f"records-{JOB_APART}-1").write_text("x")
    found = machine.collect()
    assert found.taken.problems == (f"records-{JOB_APART}-1: not a folder",)
    assert found.missing == (JOB_APART,)


def outside(machine: Machine) -> Path:
    """A good record that is not in the artifacts."""
    path = machine.folder.parent / "outside" / OTHER.run_id / "1" / "record.json"
    write(papers.passing(OTHER), path)
    return path


def link_file(machine: Machine) -> None:
    path = machine.path(OTHER)
    path.parent.mkdir(parents=True)
    path.symlink_to(outside(machine))


def link_folder(machine: Machine) -> None:
    machine.path(OTHER).parent.parent.symlink_to(outside(machine).parent.parent)


def link_artifact(machine: Machine) -> None:
    (machine.folder / f"records-{JOB}-0001").symlink_to(outside(machine).parent.parent.parent)


def link_above(machine: Machine) -> None:
    machine.path(OTHER).parent.parent.symlink_to("../..")


def link_nowhere(machine: Machine) -> None:
    path = machine.path(OTHER)
    path.parent.mkdir(parents=True)
    path.symlink_to("/nonexistent")


def pipe(machine: Machine) -> None:
    path = machine.path(OTHER)
    path.parent.mkdir(parents=True)
    os.mkfifo(path)


@pytest.mark.parametrize(
    "make", [link_file, link_folder, link_artifact, link_above, link_nowhere, pipe]
)
def test_only_regular_files_inside_are_read(
    machine: Machine, make: Callable[[Machine], None]
) -> None:
    """No link leads out, no pipe is waited for."""
    make(machine)
    assert refused(machine.collect()).endswith((": not a regular file", ": not a folder"))


def test_device_in_a_records_place_is_an_unusable_record(machine: Machine) -> None:
    """Its run is known by the folder's name, so that its row says what was wrong."""
    pipe(machine)
    assert machine.collect().taken.broken == {OTHER.run_id: "not a regular file"}


def test_folder_that_cannot_be_read(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the file system is told of that folder alone."""
    machine.leave(papers.passing(OTHER))
    real = os.scandir

    def scandir(path: Path) -> Any:
        if path.name == OTHER.run_id:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    told = refused(machine.collect())
    assert told == f"records-{JOB}-1/{OTHER.run_id}: cannot be read: Permission denied"


def test_folders_below_folders_are_left(machine: Machine) -> None:
    """A record that stands too deep is not looked for."""
    deep = machine.folder / f"records-{JOB}-1" / "/".join("d" * (module.MAX_DEPTH + 3))
    write(papers.passing(OTHER), deep / "record.json")
    assert refused(machine.collect()).endswith("d: more than 8 folders deep")


def test_records_a_few_folders_deeper_are_found(tmp_path: Path) -> None:
    """An upload of several paths keeps their common folder above the records."""
    machine = Machine(tmp_path)
    write(papers.passing(GOOD), machine.folder / f"records-{JOB}-1" / "build" / "x" / "record.json")
    assert taken(machine.collect()) == ["a/good"]


def test_huge_file_is_refused_unread(machine: Machine) -> None:
    """A file with nothing in it but its size costs nothing, whatever it claims to hold."""
    path = machine.path(OTHER)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(2**40)
    assert refused(machine.collect()).endswith("1099511627776 bytes; limit 33554432")


def test_too_many_files_refuse_the_artifact(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood is refused as a whole, names the limit, and is no loss to other artifacts."""
    monkeypatch.setattr(module, "MAX_ENTRIES", 20)
    for number in range(30):
        (machine.folder / f"records-{JOB}-1" / f"{number}.txt").touch()
    found = machine.collect()
    assert taken(found) == ["c/apart"]
    told = "more than 20 files and folders"
    assert found.taken.problems == (f"records-{JOB}-1: {told}",)
    assert found.taken.broken == {GOOD.run_id: told, OTHER.run_id: told}


def test_too_many_records_refuse_the_artifact(machine: Machine) -> None:
    """A run leaves one record each time that its job is started: not hundreds."""
    for number in range(2 * module.MAX_FILES_PER_RUN):
        machine.leave(papers.passing(OTHER), number=number)
    found = machine.collect()
    assert taken(found) == ["c/apart"]
    assert found.taken.problems == (f"records-{JOB}-1: 21 record files; limit 20",)


@pytest.mark.parametrize(("limit", "kept"), [("MAX_JOB_BYTES", ["c/apart"]), ("MAX_BYTES", [])])
def test_too_many_bytes_refuse_the_artifact(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, limit: str, kept: list[str]
) -> None:
    """Files that are each below the limit must not fill the memory together."""
    for number in (1, 2, 3):
        machine.leave(papers.passing(OTHER), number=number)
    monkeypatch.setattr(module, limit, 15_000 if kept else 100)
    found = machine.collect()
    assert taken(found) == kept
    assert "bytes of records; limit" in found.taken.problems[0]


def test_honest_sizes_are_below_the_limits() -> None:
    """A full job of records as they are stays far from what refuses it."""
    size = len(dump(papers.passing(GOOD)))
    assert 1_000 * size < module.MAX_JOB_BYTES and 20_000 * size < module.MAX_BYTES


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"run": ', "not a valid record"),
        (b"", "not a valid record"),
        (b"\xff\xfe\x00\x01", "not a valid record"),
        (b'{"schema_version": "\xe4"}', "not a valid record"),
        (b'{"error": "\\ud800"}', "not a valid record"),
        (b"[" * 200_000, "not a valid record"),
        (b'{"a":' * 200_000, "not a valid record"),
        (b"NaN", "not a valid record"),
        (b"\x80\x04\x95\x00\x00\x00\x00", "not a valid record"),  # a pickle's first bytes
    ],
)
def test_what_is_no_record_is_refused(machine: Machine, data: bytes, reason: str) -> None:
    """Cut short, no text, no JSON, folded without end: one sentence, and the run is known."""
    path = machine.path(OTHER)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    found = machine.collect()
    assert reason in refused(found)
    assert found.taken.broken.keys() == {OTHER.run_id}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mood": "good"}, "mood: Extra inputs are not permitted"),
        ({"schema_version": 99}, "schema version 99"),
        ({"tested_at": "2999-01-01T00:00:00Z"}, "dated in the future"),
        ({"wall_s": 1e12}, "less than or equal to 1000000000"),
        ({"check": {}}, "says PASS, which its own evidence does not"),
        ({"run_url": "https://evil.example/"}, "of another workflow run: https://evil.example/"),
        ({"run_py": "import evil"}, "its script is"),
    ],
)
def test_records_must_be_true_to_their_schema_and_evidence(
    machine: Machine, changes: dict[str, Any], reason: str
) -> None:
    """One that is not says why, and which run it would have been of."""
    machine.leave(papers.passing(OTHER), changes=changes)
    found = machine.collect()
    assert reason in refused(found)
    assert found.taken.broken.keys() == {OTHER.run_id}


def test_a_failure_too_must_hold_the_planned_script(machine: Machine) -> None:
    """What is shown as run.py of a FAIL is replayed as well."""
    machine.leave(papers.failing(OTHER), changes={"run_py": "import evil"})
    assert "its script is" in refused(machine.collect())


def test_a_script_where_none_was_planned(tmp_path: Path) -> None:
    """Nothing vouches for it."""
    asked = papers.run("a/good", script_sha256=None)
    machine = Machine(tmp_path)
    machine.leave(papers.failing(asked, run_py="import evil"))
    (problem,) = machine.collect(papers.plan(asked)).taken.problems
    assert "holds a script where none was planned" in problem


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"revision": "f" * 40}, "revision"),
        ({"stack": papers.stack(torch_neuronx="2.14.0.2")}, "stack"),
        ({"prompts": ("Say something nice",)}, "prompts"),
        ({"dtype": "float32", "new_tokens": 1}, "dtype, new_tokens"),
        ({"placement": papers.placement(4)}, "the placement or its script"),
        ({"script_sha256": "0" * 64}, "the placement or its script"),
        ({"source": "/etc"}, "source"),
        ({"attempt": 7}, "attempt"),
    ],
)
def test_records_must_be_of_what_was_planned(
    machine: Machine, changes: dict[str, Any], named: str
) -> None:
    """Another stack, revision, script or placement is another run, and it is said what differs."""
    machine.leave(papers.failing(papers.run("b/other", **changes), run_py=None))
    found = machine.collect()
    assert refused(found).endswith(f"not as planned: {named}")
    assert found.taken.broken.keys() == {OTHER.run_id}


def test_record_of_another_jobs_run_is_refused(machine: Machine) -> None:
    """A machine speaks of its own runs only, and says nothing against those of others."""
    machine.leave(papers.failing(APART))
    machine.leave(papers.passing(papers.run("un/planned")), number=2)
    found = machine.collect()
    assert taken(found) == ["a/good", "c/apart"]
    assert len(found.taken.problems) == 2
    assert all(told.endswith(f"is no run of job {JOB}") for told in found.taken.problems)
    assert found.taken.broken == {}


def test_broken_file_speaks_against_runs_of_its_job_only(machine: Machine) -> None:
    """Neither the name of its folder nor what it says can touch another job's run."""
    path = machine.path(APART)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"run": {"run_id": APART.run_id}}))
    found = machine.collect()
    assert "not a valid record" in refused(found)
    assert found.taken.broken == {}


def larger() -> tuple[Run, Run]:
    """A run that may go on to two and four cores, and that run as its machine moved it to four."""
    planned = papers.run(
        "a/good", larger=(papers.placement(2), papers.placement(4)), host_bytes=papers.GIB
    )
    text = script.render(planned)
    planned = planned.model_copy(update={"script_sha256": script.sha256(text)})
    moved = planned
    for _ in (2, 4):
        record = papers.failing(moved, failure=Failure.DEVICE_OUT_OF_MEMORY, stage=Stage.LOAD)
        step = retry.next_try(record)
        assert step is not None
        moved = step.run
    return planned, moved


def test_placement_may_have_grown(tmp_path: Path) -> None:
    """A run that memory did not suffice for is still the planned one, with the script for it."""
    planned, moved = larger()
    machine = Machine(tmp_path)
    machine.leave(papers.passing(moved))
    found = machine.collect(papers.plan(planned))
    # The factory counts the memory of one core, where the record has four: a fault of its evidence
    # alone, so the placement was accepted.
    assert [told.partition("record.json: ")[2] for told in found.taken.problems] == [
        "says PASS, which its own evidence does not: cores asked for: 4; "
        "cores whose memory it counted: 1"
    ]
    machine.leave(papers.failing(moved))
    (record,) = machine.collect(papers.plan(planned)).taken.records
    assert record.run.placement is not None and record.run.placement.cores == 4


@pytest.mark.parametrize(
    "change",
    [
        {"placement": papers.placement(8)},
        {"larger": (papers.placement(16),)},
        {"script_sha256": "0" * 64},
    ],
)
def test_placement_may_grow_only_as_planned(tmp_path: Path, change: dict[str, Any]) -> None:
    """Cores that planning did not allow, and another script for those it did, are refused."""
    planned, moved = larger()
    machine = Machine(tmp_path)
    forged = moved.model_copy(update=change)
    machine.leave(papers.failing(moved).model_copy(update={"run": forged, "run_py": None}))
    (problem,) = machine.collect(papers.plan(planned)).taken.problems
    assert problem.endswith("not as planned: the placement or its script")


def test_a_run_that_was_tried_alone_is_the_planned_one(tmp_path: Path) -> None:
    """It asked for all of the host's memory, so as to have no neighbours."""
    planned = papers.run("a/good", host_bytes=papers.GIB)
    machine = Machine(tmp_path)
    machine.leave(papers.passing(planned.model_copy(update={"host_bytes": 2**60})))
    assert len(machine.collect(papers.plan(planned)).taken.records) == 1


def test_several_attempts_and_records_are_all_taken(machine: Machine) -> None:
    """ERROR at first, PASS when tried again, a record cut off between: all are history."""
    machine.leave(papers.erring(OTHER, day(0)))
    machine.leave(papers.unended(OTHER, day(0) + timedelta(hours=1)), number=2)
    machine.leave(papers.passing(OTHER, day(1)), attempt=2)
    found = machine.collect(attempt=2)
    ours = [record for record in found.taken.records if record.run == OTHER]
    assert [record.failure for record in ours] == [Failure.DOWNLOAD, Failure.LOST_RUNNER, None]
    assert found.taken.problems == found.aside == ()
    assert found.found[JOB] == (f"records-{JOB}-1", f"records-{JOB}-2")


def test_tenth_attempt_is_newer_than_the_ninth(machine: Machine) -> None:
    """Attempts are numbers."""
    for attempt in (10, 9):
        machine.leave(papers.passing(GOOD), attempt=attempt)
    found = machine.collect(attempt=10).found[JOB]
    assert found == tuple(f"records-{JOB}-{number}" for number in (1, 9, 10))


def test_faults_of_earlier_attempts_are_no_faults_of_this_one(machine: Machine) -> None:
    """All jobs run again have a new plan: what the old one's left is put aside."""
    machine.leave(papers.passing(papers.run("b/other", attempt=3)))
    shutil.copytree(machine.folder / f"records-{JOB}-1", machine.folder / "records-gone-1")
    machine.leave(papers.passing(GOOD), attempt=2)
    found = machine.collect(attempt=2)
    assert found.taken.problems == ()
    assert [told.partition(": ")[2] for told in found.aside] == [
        "not an artifact of a planned job",
        "not as planned: attempt",
    ]
    assert found.taken.broken == {}


def test_simulators_record_is_refused_alone(machine: Machine) -> None:
    """Where a person's publication stops, a hostile machine must not stop that of others."""
    record = papers.passing(OTHER)
    assert record.observation is not None
    versions = record.observation.versions.model_copy(update={"runtime": "2.0+simulator"})
    seen = record.observation.model_copy(update={"versions": versions})
    machine.leave(record.model_copy(update={"observation": seen}))
    assert refused(machine.collect()).endswith("made with the simulator, a test double")


def test_sentences_are_bounded(machine: Machine) -> None:
    """In number and in length; of more only the number is told."""
    for number in range(70):
        (machine.folder / f"{number:03}-{'x' * 240}").touch()
    found = machine.collect()
    told = found.taken.problems
    assert found.refused == 70
    assert len(told) == module.MAX_TOLD + 1 and told[-1] == "and 20 more"
    machine.leave(papers.passing(OTHER), changes={"k" * 3_000: 1})
    assert all(len(one) <= module.MAX_SENTENCE for one in machine.collect().taken.problems)


@pytest.mark.parametrize(
    "key", ["a\n::add-mask::x", "a\r::error::x", "##[error]x", "\x1b[31mred", "\u202eabc"]
)
def test_sentences_are_one_plain_line(machine: Machine, key: str) -> None:
    """No log takes what a machine named a field or a file for a command."""
    machine.leave(papers.passing(OTHER), changes={key: 1})
    (machine.folder / key.replace("/", "")).touch()
    for told in machine.collect().taken.problems:
        assert told.isprintable() and "##[" not in told and not told.startswith("::")


def test_names_that_are_no_text(machine: Machine) -> None:
    """A file's name may be any bytes."""
    (machine.folder / f"records-{JOB}-1" / os.fsdecode(b"\xff\xfe\n")).symlink_to("nowhere")
    told = refused(machine.collect())
    told.encode()
    assert told.endswith("not a regular file")


def test_cpu_runs_are_taken_too(tmp_path: Path) -> None:
    """A campaign on the cpu target goes the same way."""
    asked = papers.run("a/good", stack=papers.stack(Target.CPU), runner="cpu")
    machine = Machine(tmp_path)
    machine.leave(papers.passing(asked), "job-cpu")
    assert taken(machine.collect(papers.plan(asked))) == ["a/good"]
