"""A publication from artifacts to the commit on origin, with real git and a bare repository."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pipeline import publish as deriving
from pipeline.actions.publishing import Publication, publish, read_plan, tell
from pipeline.actions.workflow import Workflow
from pipeline.cli import main
from pipeline.errors import CatalogError, RecordError, ResultsError
from pipeline.record import Plan, Record, dump, write
from pipeline.results import merge, read_current, read_history
from pipeline.words import Failure, Stage, Target
from tests import golden_files, jobs, papers
from tests.origins import Origin, git
from tests.papers import day

LIST = """\
defaults:
  stacks: [sdk]
  limit_minutes: 60
  margin: {gib: 1.5, fraction: 0.1}
  prompts:
    text-generation: [The sea, A train, My friend]
runners:
  trn2-1: {labels: [trn2], cores: 4, core_gib: 24, host_gib: 128}
stacks:
  sdk:
    target: neuron
    library_version: "5.24.0"
    torch: "2.14.0"
    neuronx_cc: "2.28.7631.0"
    torch_neuronx: "2.14.0.1"
models:
  - {id: a/good, task: text-generation}
"""
NOW = day(50)
URL = "https://github.com/example/campaign/actions/runs/1"


class Campaign:
    """An origin, a checkout of it, and workflow runs that publish."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.origin = Origin.make(folder, {"models.yaml": LIST})
        self.root = self.origin.checkout(folder / "checkout", depth=1)
        self.tree = self.root / "build" / "published"
        self.artifacts = folder / "artifacts"

    def workflow(self, attempt: int = 1, run: int = 1) -> Workflow:
        """The job that publishes."""
        return Workflow(
            repository="example/campaign",
            run_id=str(run),
            attempt=attempt,
            event_name="schedule",
            event={},
            output_path=self.folder / "output",
            summary_path=self.folder / "summary.md",
        )

    def leave(self, plan: Plan, records: Iterable[Record], attempt: int = 1) -> list[Path]:
        """Artifacts of the plan's jobs that hold `records`; their paths."""
        jobs = {run.run_id: job.job_id for job in plan.jobs for run in job.runs}
        paths = []
        for record in records:
            name = record.run.run_id
            folder = self.artifacts / f"records-{jobs[name]}-{attempt}"
            paths.append(folder / name / "1" / "record.json")
            write(record, paths[-1])
        return paths

    def publish(
        self,
        plan: Plan,
        *,
        attempt: int = 1,
        run: int = 1,
        branch: str = "main",
        list_of_branch: bool = True,
        days: int = 0,
    ) -> Publication:
        """Publish what is there."""
        return publish(
            self.root,
            plan,
            self.artifacts,
            list_path=self.root / "models.yaml",
            list_of_branch=list_of_branch,
            branch=branch,
            tree=self.tree,
            workflow=self.workflow(attempt, run),
            now=NOW + timedelta(days=days),
            sleep=lambda seconds: None,
        )

    def told(self, done: Publication, attempt: int = 1, run: int = 1) -> str:
        """The page that is shown, the commit's id made steady."""
        tell(done, self.workflow(attempt, run))
        page = (self.folder / "summary.md").read_text()
        commit = done.pushed.commit
        return page.replace(commit, "0" * 40).replace(commit[:7], "0" * 7) if commit else page


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    """A repository in which nothing was published yet."""
    return Campaign(tmp_path)


def test_one_commit_holds_all_that_is_derived(campaign: Campaign) -> None:
    """Parquet, history, scripts and the page come in one commit after the branch's head."""
    good, bad = papers.run("a/good"), papers.run("b/bad")
    plan = papers.plan(good, bad)
    campaign.leave(plan, [papers.passing(good), papers.failing(bad)])
    before = campaign.origin.head()
    done = campaign.publish(plan)
    done.check()
    assert done.pushed.commit == campaign.origin.head()
    assert campaign.origin.parents() == [before]
    files = campaign.origin.files()
    assert [name for name in files if not name.startswith("results/history/")] == [
        "COMPATIBILITY.md",
        "models.yaml",
        "results/current/neuronxcc-2.28.7631.0/transformers-5.24.0.parquet",
        "results/models.json",
        f"results/scripts/{good.run_id}.py",
        f"results/scripts/{bad.run_id}.py",
    ]
    assert len(files) == 7
    assert campaign.origin.message().splitlines()[0] == "Publish 2 results: 1 PASS, 1 FAIL"
    assert read_current(campaign.tree / "results", ["model_id", "result"]) == [
        {"model_id": "a/good", "result": "PASS"},
        {"model_id": "b/bad", "result": "FAIL"},
    ]


def test_publishing_twice_adds_and_pushes_nothing(campaign: Campaign) -> None:
    """The job run again, another day, with the same artifacts: no commit, no fault."""
    asked, refused = papers.run("a/good"), papers.refused()
    plan = papers.plan(asked, refused)
    campaign.leave(plan, [papers.passing(asked)])
    campaign.publish(plan)
    head = campaign.origin.head()
    again = campaign.publish(plan, days=1)
    again.check()
    assert (again.pushed.commit, again.published.added) == (None, 0)
    assert campaign.origin.head() == head
    assert "Nothing new" in campaign.told(again)


def test_lost_runs_are_told_once_a_workflow_run(campaign: Campaign) -> None:
    """Publishing again adds no second ERROR row for them, though nobody knows when they ended; but
    it stays an error, and another workflow run that loses them adds its own."""
    plan = papers.plan(papers.run("a/lost"))
    first = campaign.publish(plan)
    assert (first.published.errors, len(first.published.lost)) == (1, 1)
    (row,) = read_current(campaign.tree / "results")
    assert (row["failure"], row["run_url"]) == ("lost_runner", URL)
    again = campaign.publish(plan, days=1)
    assert again.pushed.commit is None
    for done in (first, again):
        with pytest.raises(ResultsError, match="planned runs without a usable record: 1"):
            done.check()
    assert campaign.publish(plan, run=2, days=2).published.errors == 1
    assert len(read_history(campaign.tree / "results")) == 2


def test_attempt_after_lost_runs_adds_their_rows(campaign: Campaign) -> None:
    """Failed jobs run again: what they now left is added to what was published before."""
    good, lost = papers.run("a/good"), papers.run("b/lost", runner="trn2-2")
    plan = papers.plan(good, lost)
    campaign.leave(plan, [papers.passing(good)])
    assert campaign.publish(plan).artifacts.missing == ("job-trn2-2",)
    campaign.leave(plan, [papers.passing(lost, day(1))], attempt=2)
    done = campaign.publish(plan, attempt=2)
    done.check()
    assert (done.published.added, done.published.passed) == (1, 1)
    rows = read_history(campaign.tree / "results", ["model_id", "result"])
    assert [tuple(row.values()) for row in rows] == [
        ("a/good", "PASS"),
        ("b/lost", "ERROR"),
        ("b/lost", "PASS"),
    ]


def test_error_then_pass_are_both_history(campaign: Campaign) -> None:
    """Of several attempts the newest that says something of the model is the reading."""
    asked = papers.run("a/good")
    plan = papers.plan(asked)
    campaign.leave(plan, [papers.erring(asked)])
    campaign.leave(plan, [papers.passing(asked, day(1))], attempt=2)
    done = campaign.publish(plan, attempt=2)
    done.check()
    assert (done.published.passed, done.published.errors) == (1, 1)
    assert read_current(campaign.tree / "results", ["result"]) == [{"result": "PASS"}]


def test_refused_record_is_an_error_row_with_its_reason(campaign: Campaign) -> None:
    """Everything good is published first; then it is an error."""
    good, bad = papers.run("a/good"), papers.run("b/bad")
    plan = papers.plan(good, bad)
    _, path = campaign.leave(plan, [papers.passing(good), papers.passing(bad)])
    path.write_text(path.read_text()[:500])
    done = campaign.publish(plan)
    rows = {row["model_id"]: row for row in read_current(campaign.tree / "results")}
    assert rows["a/good"]["result"] == "PASS"
    assert (rows["b/bad"]["result"], rows["b/bad"]["failure"]) == ("ERROR", "harness")
    assert rows["b/bad"]["error"].startswith("its record could not be used: not a valid record: ")
    with pytest.raises(ResultsError, match="refused in the artifacts: 1") as caught:
        done.check()
    assert "b--bad" in str(caught.value)


def test_no_artifact_at_all_publishes_errors(campaign: Campaign) -> None:
    """Absence is data: every planned run ends in a row, and the command in an error."""
    plan = papers.plan(papers.run("a/one"), papers.run("b/two"), papers.refused())
    done = campaign.publish(plan)
    assert (done.published.errors, done.published.failed) == (2, 1)
    with pytest.raises(ResultsError, match="without a usable record: 2"):
        done.check()
    golden_files.check("published-nothing.md", campaign.told(done))


def test_simulators_plan_stops_everything(campaign: Campaign) -> None:
    """A test double's runs are no results."""
    plan = papers.plan(papers.run("a/good", stack=papers.stack(Target.SIMULATOR)))
    with pytest.raises(ResultsError, match="simulator"):
        campaign.publish(plan)
    assert len(campaign.origin.commits()) == 1


def test_plan_of_nothing_derives_the_page_anew(campaign: Campaign) -> None:
    """Before there are results there is no page; after that, a changed list changes it."""
    nothing = Plan(jobs=(), refused=(), skipped=())
    done = campaign.publish(nothing)
    done.check()
    assert done.pushed.commit is None
    plan = papers.plan(asked := papers.run("a/good"))
    campaign.leave(plan, [papers.passing(asked)])
    campaign.publish(plan)
    for path in campaign.artifacts.iterdir():
        path.rename(campaign.folder / path.name)
    assert campaign.publish(nothing).pushed.commit is None
    campaign.origin.write({"models.yaml": LIST + "  - {id: new/model, task: text-generation}\n"})
    done = campaign.publish(nothing)
    done.check()
    assert done.pushed.commit == campaign.origin.head()
    assert "new/model" in campaign.origin.text("COMPATIBILITY.md")
    assert campaign.origin.message().startswith("Derive the page anew\n")
    assert "No new result" in campaign.told(done)


@pytest.mark.parametrize(("own", "valid"), [(True, True), (True, False), (False, True)])
def test_list_of_the_branch_counts_where_people_write_to_it(
    campaign: Campaign, own: bool, valid: bool
) -> None:
    """main may have moved on; an invalid list there, or that of a branch of results, does not
    count."""
    plan = papers.plan(asked := papers.run("a/good"))
    campaign.leave(plan, [papers.passing(asked)])
    newer = "  - {id: new/model, task: text-generation}\n" if valid else "  - {id: new/model}\n"
    campaign.origin.write({"models.yaml": LIST + newer})
    campaign.publish(plan, list_of_branch=own)
    page = campaign.origin.text("COMPATIBILITY.md")
    assert ("new/model" in page) is (own and valid)


def test_invalid_list_of_the_checkout_is_an_error(campaign: Campaign) -> None:
    """It is told before anything is pushed."""
    (campaign.root / "models.yaml").write_text("models: 7\n")
    with pytest.raises(CatalogError):
        campaign.publish(papers.plan(papers.run()))
    assert len(campaign.origin.commits()) == 1


def test_another_branch_may_be_published_to(campaign: Campaign) -> None:
    """Where main is protected, results have a branch of their own that starts from the checkout."""
    main_ = campaign.origin.head()
    for number in (1, 2):
        plan = papers.plan(asked := papers.run(f"a/model-{number}"))
        campaign.leave(plan, [papers.passing(asked)])
        campaign.publish(plan, branch="results", list_of_branch=False)
        (campaign.artifacts / "records-job-trn2-1-1").rename(campaign.folder / str(number))
    assert campaign.origin.head() == main_
    assert len(campaign.origin.commits("results")) == 3
    assert len(read_history(campaign.tree / "results")) == 2


def test_deriving_again_gives_the_same_rows_beside_the_others(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rejected push loses neither writer's rows, and changes are told against the newest tree."""
    theirs, ours = papers.run("a/theirs"), papers.run("b/ours")
    other = Campaign(campaign.folder / "other")
    git(other.root, "remote", "set-url", "origin", str(campaign.origin.path))
    plan = papers.plan(theirs)
    other.leave(plan, [papers.passing(theirs)])
    real = deriving.derive
    calls: list[object] = []

    def derive(*arguments: Any, **options: Any) -> deriving.Published:
        done = real(*arguments, **options)
        calls.append(done)
        if len(calls) == 1:
            other.publish(plan)
        return done

    monkeypatch.setattr(deriving, "derive", derive)
    plan_ = papers.plan(ours, papers.run("c/lost"))
    campaign.leave(plan_, [papers.passing(ours)])
    done = campaign.publish(plan_)
    assert (done.pushed.attempts, len(calls)) == (2, 3)
    rows = read_current(campaign.tree / "results", ["model_id", "result"])
    assert [row["model_id"] for row in rows] == ["a/theirs", "b/ours", "c/lost"]
    assert len(campaign.origin.commits()) == 3
    assert "at attempt 2, since others pushed meanwhile" in campaign.told(done)


def eventful(campaign: Campaign) -> Plan:
    """A publication in which everything happens that can, after an earlier one."""
    older = papers.stack(library_version="5.23.0")
    before = {
        "a/was-good": papers.passing,
        "b/was-bad": papers.failing,
        "d/still-bad": papers.failing,
    }
    runs = {name: papers.run(name) for name in before}
    runs["e/older-stack"] = papers.run("e/older-stack", stack=older)
    first = papers.plan(*runs.values())
    campaign.leave(
        first,
        [
            *(make(runs[name]) for name, make in before.items()),
            papers.passing(runs["e/older-stack"]),
        ],
    )
    campaign.publish(first)
    (campaign.artifacts / "records-job-trn2-1-1").rename(campaign.folder / "first")
    campaign.origin.write(
        {
            "models.yaml": LIST
            + "excluded:\n  - {id: c/excluded, task: text-generation, reason: incompatible, "
            "note: no kernels, issue: 'https://github.com/example/campaign/issues/7'}\n"
        }
    )
    names = ("a/was-good", "b/was-bad", "c/excluded", "d/still-bad", "e/older-stack", "f/new")
    asked = {name: papers.run(name) for name in (*names, "g/erring", "h/hostile", "i/cut-short")}
    lost = papers.run("j/lost", runner="trn2-2")
    plan = papers.plan(*asked.values(), papers.run("k/cut-off"), lost, papers.refused())
    at = day(2)
    paths = campaign.leave(
        plan,
        [
            papers.failing(asked["a/was-good"], at),
            papers.passing(asked["b/was-bad"], at),
            papers.passing(asked["c/excluded"], at),
            papers.failing(asked["d/still-bad"], at, Failure.TIMEOUT, error="no end in 60 min"),
            papers.failing(asked["e/older-stack"], at, Failure.LOAD_ERROR, Stage.LOAD),
            papers.passing(asked["f/new"], at),
            papers.erring(asked["g/erring"], at),
            papers.failing(
                asked["h/hostile"],
                at,
                error="<img src=x> @everyone | see #1 ](https://evil.example) `x`\n::error::x",
            ),
            papers.passing(asked["i/cut-short"], at),
        ],
    )
    paths[-1].write_bytes(paths[-1].read_bytes()[:700])
    (campaign.artifacts / "records-@everyone <b>-1").mkdir()
    return plan


def test_page_and_message_as_they_are_read(campaign: Campaign) -> None:
    """The answer first, what got worse first, every cause with its log, nothing from outside as
    markup; the message holds only words of ours."""
    done = campaign.publish(eventful(campaign))
    golden_files.check("published.md", campaign.told(done))
    golden_files.check("published-message.txt", campaign.origin.message() + "\n")
    with pytest.raises(ResultsError) as caught:
        done.check()
    golden_files.check("published-error.txt", f"{caught.value}\n")


def test_page_of_a_good_day(campaign: Campaign) -> None:
    """Short where there is nothing to act on."""
    runs = [papers.run(name) for name in ("a/good", "b/good")]
    plan = papers.plan(*runs)
    campaign.leave(plan, [papers.passing(run) for run in runs])
    golden_files.check("published-good.md", campaign.told(campaign.publish(plan)))


def test_annotations_are_few(campaign: Campaign, capsys: pytest.CaptureFixture[str]) -> None:
    """GitHub shows ten a step: lost runs and refused artifacts get five each at most."""
    plan = papers.plan(*(papers.run(f"a/lost-{number}") for number in range(9)))
    for number in range(9):
        (campaign.artifacts / f"other-{number}").mkdir(parents=True)
    tell(campaign.publish(plan), campaign.workflow())
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]
    assert len(lines) == 10 and all(line.startswith("::warning title=") for line in lines)
    assert lines[4] == "::warning title=No record::5 more: see the summary"
    assert "other-0: not an artifact of a planned job" in lines[5]


def test_message_of_very_many_changes_is_bounded(campaign: Campaign) -> None:
    """Forty lines of a kind, and how many more there are."""
    runs = [papers.run(f"a/model-{number:03}") for number in range(50)]
    plan = papers.plan(*runs)
    campaign.leave(plan, [papers.passing(run) for run in runs])
    campaign.publish(plan)
    lines = campaign.origin.message().splitlines()
    assert lines[:2] == ["Publish 50 results: 50 PASS", ""]
    assert lines[4] == "First result: 50" and lines[45] == "- and 10 more"
    assert len(lines) == 48


def test_plan_is_held_against_its_digest(tmp_path: Path) -> None:
    """A plan comes as an artifact, which device machines could write; its digest does not."""
    plan = papers.plan(papers.run())
    path = tmp_path / "plan.json"
    write(plan, path)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert read_plan(path) == read_plan(path, "") == read_plan(path, sha256) == plan
    path.write_text(dump(papers.plan(papers.run("evil/model"))))
    with pytest.raises(RecordError, match="not the file that was made") as caught:
        read_plan(path, sha256)
    assert caught.value.where == str(path)


def test_plan_of_another_version_is_refused(tmp_path: Path) -> None:
    """Its fields may mean something else."""
    path = tmp_path / "plan.json"
    write(papers.plan(papers.run()).model_copy(update={"schema_version": 99}), path)
    with pytest.raises(RecordError, match="is of schema version 99"):
        read_plan(path)


@pytest.fixture
def job(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    """A process that is a job of GitHub Actions, in the checkout."""
    told = jobs.variables(
        campaign.folder,
        GITHUB_REPOSITORY="example/campaign",
        GITHUB_RUN_ID="1",
        GITHUB_RUN_ATTEMPT="1",
        GITHUB_SERVER_URL="https://github.com",
        GITHUB_REF_NAME="main",
    )
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    for name in ("GITHUB_TOKEN", "QUALIFY_BRANCH", "QUALIFY_PLAN_SHA256"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(campaign.root)
    return campaign


def invoke(job: Campaign, plan: Plan) -> tuple[int, str]:
    """The command's exit code and all that it says."""
    write(plan, job.root / "build" / "plan.json")
    done = CliRunner().invoke(main, ["actions", "publish", "--artifacts", str(job.artifacts)])
    return done.exit_code, done.output


def test_command_publishes(job: Campaign) -> None:
    """Exit 0 when every planned run has its record; the commit is a step output."""
    asked = papers.run("a/good")
    plan = papers.plan(asked)
    job.leave(plan, [papers.passing(asked)])
    assert invoke(job, plan)[0] == 0
    assert job.origin.head() in (job.folder / "output").read_text()
    assert (job.folder / "summary.md").read_text().startswith("## Published 1 result: 1 PASS\n")
    assert invoke(job, plan)[0] == 0
    assert len(job.origin.commits()) == 2


def test_command_publishes_and_then_finds_fault(job: Campaign) -> None:
    """A run without a record ends the command with the code for results, after the push."""
    code, output = invoke(job, papers.plan(papers.run("a/lost")))
    assert code == ResultsError.exit_code
    assert len(job.origin.commits()) == 2
    assert "::warning title=No record::a--lost@" in output


def test_nothing_in_the_log_is_a_command_of_a_machine(job: Campaign) -> None:
    """GitHub's runner obeys lines that begin with "::", and "##[" anywhere: names of files and
    texts of errors give it none."""
    asked = papers.run("a/a")
    plan = papers.plan(asked, papers.run("b/b"))
    evil = "::add-mask::a\n::add-mask::a ##[add-mask]a"
    (path, _) = job.leave(
        plan, [papers.failing(asked, error=evil), papers.failing(papers.run("b/b"))]
    )
    path.with_name(evil).symlink_to("x")
    (job.artifacts / evil).mkdir()
    code, output = invoke(job, plan)
    assert code == ResultsError.exit_code and "add-mask" in output
    lines = [line.strip() for line in output.splitlines() if "add-mask" in line]
    assert not [line for line in lines if line.startswith("::") and "::warning " not in line]
    assert "##[" not in output


def test_command_that_publishes_nothing_says_so(
    job: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of the run has the reason, not only the log."""
    monkeypatch.setenv("QUALIFY_PLAN_SHA256", "0" * 64)
    code, output = invoke(job, papers.plan(papers.run()))
    assert code == RecordError.exit_code
    assert "::error title=Not published::is not the file that was made" in output
    page = (job.folder / "summary.md").read_text()
    assert page.startswith("## Nothing was published to main\n")
    assert len(job.origin.commits()) == 1


def test_command_publishes_to_the_branch_that_is_named(
    job: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QUALIFY_BRANCH, and there the checkout's list."""
    monkeypatch.setenv("QUALIFY_BRANCH", "results")
    asked = papers.run("a/good")
    plan = papers.plan(asked)
    job.leave(plan, [papers.passing(asked)])
    assert invoke(job, plan)[0] == 0
    (job.root / "models.yaml").write_text(LIST + "  - {id: b/b, task: text-generation}\n")
    assert invoke(job, plan)[0] == 0
    assert "b/b" in job.origin.text("COMPATIBILITY.md", "results")
    assert len(job.origin.commits()) == 1


WRITERS = """
import multiprocessing, sys, time
from datetime import datetime
from pathlib import Path
from pipeline.actions.publishing import publish, read_plan
from pipeline.actions.workflow import Workflow

def write(root, run, now, begin, told):
    begin.wait()
    done = publish(
        root, read_plan(root / "plan.json"), root / "artifacts", list_path=root / "models.yaml",
        list_of_branch=True, branch="main", tree=root / "build" / "published",
        workflow=Workflow("example/campaign", run, 1, "schedule", {}), now=now,
        sleep=lambda seconds: time.sleep(seconds / 4),
    )
    done.check()
    told.put((done.pushed.commit, done.pushed.attempts))

folder, now = Path(sys.argv[1]), datetime.fromisoformat(sys.argv[2])
forking = multiprocessing.get_context("fork")  # what they import is imported once
begin, told = forking.Barrier(10), forking.Queue()
writers = [
    forking.Process(target=write, args=(folder / str(number), str(number), now, begin, told))
    for number in range(10)
]
for writer in writers:
    writer.start()
for writer in writers:
    writer.join()
for writer in writers:
    print(*(told.get() if writer.exitcode == 0 else ("failed", 0)))
"""


def test_ten_publishers_on_one_branch_lose_nothing(tmp_path: Path) -> None:
    """Ten processes publish at once: ten commits in one line, each whole in itself, no row lost.

    Each publishes a model of its own and a newer result of one that all of them have.
    """
    origin = Origin.make(tmp_path, {"models.yaml": LIST})
    for number in range(10):
        root = origin.checkout(tmp_path / str(number), depth=1)
        shared, own = papers.run("shared/model"), papers.run(f"own/model-{number}")
        plan = papers.plan(shared, own)
        write(plan, root / "plan.json")
        url = f"https://github.com/example/campaign/actions/runs/{number}"
        for record in (
            papers.passing(shared, day(number), run_url=url),
            papers.passing(own, run_url=url),
        ):
            folder = root / "artifacts" / "records-job-trn2-1-1" / record.run.run_id / "1"
            write(record, folder / "record.json")
    done = subprocess.run(
        [sys.executable, "-c", WRITERS, str(tmp_path), NOW.isoformat()],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    pushed = [line.split() for line in done.stdout.splitlines()]
    assert "failed" not in {commit for commit, _ in pushed}, done.stderr

    commits = origin.commits()
    assert sorted(commits[:-1]) == sorted(commit for commit, _ in pushed)
    assert sum(int(attempts) for _, attempts in pushed) > 10, "nobody met anybody"
    assert all(len(origin.parents(commit)) == 1 for commit in commits[:-1])
    tree = tmp_path / "tree"
    git(origin.path, "worktree", "add", "--quiet", "--detach", str(tree), "main")
    for age, commit in enumerate(commits[:-1]):
        git(tree, "checkout", "--quiet", "--detach", commit)
        history = read_history(tree / "results")
        assert len(history) == 2 * (10 - age)
        current = read_current(tree / "results")
        assert current == merge(history)
        page = (tree / "COMPATIBILITY.md").read_text()
        assert all(f"`{row['model_id']}`" in page for row in current)
    git(tree, "checkout", "--quiet", "--detach", "main")
    rows = {row["model_id"]: row for row in read_current(tree / "results")}
    assert len(rows) == 11 and rows["shared/model"]["tested_at"] == day(9)


def test_import_is_light() -> None:
    """The publisher is a hosted machine without torch: neither it nor PyGithub is loaded."""
    code = textwrap.dedent(
        """
        import json, sys, pipeline.actions.publishing
        heavy = ("torch", "transformers", "pandas", "huggingface_hub", "fsspec", "github")
        print(json.dumps([name for name in heavy if name in sys.modules]))
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
