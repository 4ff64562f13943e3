"""Hardware time for a pull request: who gets it, for what, and what the pull request is told."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import plan as planning
from pipeline import script
from pipeline.actions import on_demand
from pipeline.actions.github import GitHub
from pipeline.actions.on_demand import Ask, Asked
from pipeline.actions.on_demand_answer import CHECK, answer
from pipeline.actions.on_demand_comment import (
    MAX_EARLIER,
    Answer,
    Conversation,
    Line,
    marker,
    post,
    read,
    render,
)
from pipeline.actions.workflow import Workflow
from pipeline.catalog import Catalog, parse
from pipeline.diagnosis import signatures
from pipeline.errors import GitHubError, RecordError, UsageError
from pipeline.hub import CheckpointRef, inspect_all
from pipeline.placement import PlanTable
from pipeline.record import RECORD_NAME, Check, Plan, Record, Run, write
from pipeline.record import read as read_paper
from pipeline.words import CpuMatch, Failure, Result, Stage, Target
from tests import golden_files, jobs, papers
from tests.github_server import BOT, GitHubServer, Pull
from tests.hub_server import HubServer
from tests.papers import day
from tests.test_cli import small_checkpoint

HEAD = "c0ffee00" * 5
KNOWN = next(one for one in signatures() if one.failure is Failure.COMPILER_ERROR)
HEAD_OF_LIST = """\
defaults:
  stacks: [sdk]
  limit_minutes: 60
  margin: {gib: 1, fraction: 0.1}
  prompts:
    text-generation: [Once upon a time, The capital of France is, Water boils at]
runners:
  trn2: {labels: [self-hosted, trn2], cores: 4, core_gib: 24, host_gib: 124, usd_per_hour: 3}
  laptop: {target: cpu, labels: [ubuntu-latest], cores: 2, core_gib: 2, host_gib: 4}
stacks:
  sdk:
    target: neuron
    library_version: "5.24.0"
    torch: "2.14.0"
    neuronx_cc: "2.28.7631.0"
    torch_neuronx: "2.14.3.0"
  cpu: {target: cpu, library_version: "5.24.0", torch: "2.13.0"}
models:
"""
EXCLUDED = """\
excluded:
  - {id: big/one, task: text-generation, reason: not_prioritised, note: later perhaps}
"""


def listed(*entries: str, excluded: str = EXCLUDED) -> bytes:
    """A list of text models: of ids, or of ids with further fields behind a comma."""
    models = "".join(f"  - {{task: text-generation, id: {entry}}}\n" for entry in entries)
    return (HEAD_OF_LIST + models + excluded).encode()


MAIN = parse(listed("good/one", "good/two, extra_packages: [einops==0.8.1]"), file="models.yaml")


@dataclass
class Ground:
    """A repository on GitHub with an open pull request, the Hub, and what a step wrote."""

    github: GitHubServer
    hub: HubServer
    folder: Path
    pull: Pull
    planned: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def client(self) -> GitHub:
        server = self.github
        return GitHub(
            server.repository,
            server.token,
            server.url,
            sleep=lambda _: None,
            seconds_between_writes=0,
        )

    @property
    def comments(self) -> list[str]:
        """What our own comments on the pull request say now."""
        return [one.body for one in self.github.comments if one.author == BOT]

    @property
    def summary(self) -> str:
        path = self.folder / "summary.md"
        return path.read_text() if path.exists() else ""

    def propose(self, *entries: str, excluded: str = EXCLUDED) -> None:
        """The pull request's list is that one now."""
        self.github.files["models.yaml", self.pull.head_sha] = listed(*entries, excluded=excluded)

    def workflow(self, event_name: str, event: dict[str, Any], run_id: str = "7") -> Workflow:
        return Workflow(
            repository=self.github.repository,
            run_id=run_id,
            attempt=1,
            event_name=event_name,
            event=event,
            summary_path=self.folder / "summary.md",
        )

    def comment(
        self, body: str = f"/qualify {HEAD}", by: str = "ann", run_id: str = "7", **changes: Any
    ) -> Workflow:
        """The job that a new comment on the pull request starts."""
        event = {
            "action": "created",
            "issue": {"number": self.pull.number, "pull_request": {"url": "https://x"}},
            "comment": {"body": body, "user": {"login": by}},
            # Who sends an event need not be the comment's author: that is who asks.
            "sender": {"login": "owner"},
        }
        return self.workflow("issue_comment", event | changes, run_id)

    def dispatch(self, number: object, commit: object, by: str = "ann") -> Workflow:
        """The job that a person starts by hand."""
        inputs = {"number": number, "commit": commit}
        return self.workflow("workflow_dispatch", {"inputs": inputs, "sender": {"login": by}})

    def ask(self, workflow: Workflow, main: Catalog = MAIN) -> Asked | None:
        """What `qualify actions ask` does, with the real planner."""
        return on_demand.ask(workflow, self.client, main, self.plan, day(0))

    def plan(self, catalog: Catalog, models: Sequence[str]) -> Plan:
        self.planned.append(tuple(models))
        wished = [catalog.model(name) for name in models]
        refs = [CheckpointRef(model.id, None, model.revision) for model in wished]
        facts = dict(
            zip(
                models,
                inspect_all(refs, endpoint=self.hub.url, sleep=lambda _: None),
                strict=True,
            )
        )
        request = planning.Request(select=tuple(models), force=True)
        table = PlanTable.load()
        return planning.make_plan(catalog, self.folder, facts, {}, {}, table, request, now=day(0))


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    """Pull request of a fork by mallory; ann may write, ro may read; three models on the Hub."""
    small_checkpoint(tmp_path / "checkpoint")
    with GitHubServer() as github, HubServer() as hub:
        github.people |= {"ann": "write", "owner": "admin", "ro": "read", "mallory": "read"}
        pull = github.add_pull(author="mallory", head_sha=HEAD, head_repository="mallory/repo")
        for name in ("good/one", "good/two", "new/three"):
            hub.add(name, tmp_path / "checkpoint")
        made = Ground(github, hub, tmp_path, pull)
        made.propose("good/one", "good/two, extra_packages: [einops==0.8.1]", "new/three")
        yield made


# --- who may ask ----------------------------------------------------------------------------------


def test_asks(ground: Ground) -> None:
    """A person with write access gets the models that the commit adds, and is told that they run.

    Nothing of the pull request is read but its head and the list at that commit.
    """
    asked = ground.ask(ground.comment())
    assert asked is not None
    assert [run.model_id for run in asked.plan.runs] == ["new/three"]
    assert asked.request.models == ("new/three",)
    assert asked.outputs["runs"] == "1"
    assert asked.outputs["number"] == str(ground.pull.number)
    assert asked.outputs["sha"] == HEAD
    (job,) = json.loads(asked.outputs["jobs"])
    assert job["labels"] == ["self-hosted", "trn2"]
    assert ground.github.requests("GET")[:3] == [
        "GET /collaborators/ann/permission",
        f"GET /pulls/{ground.pull.number}",
        "GET /contents/models.yaml",
    ]
    (comment,) = ground.comments
    assert "**Running**" in comment
    assert HEAD in comment
    # The page of the plan has tests of its own.
    ours = ground.summary[ground.summary.index("For pull request") :]
    golden_files.check("on-demand-asked.md", f"{shown(comment)}\n{ours}")


@pytest.mark.parametrize("person", ["stranger", "ro", "mallory", "ann[bot]", "../ann", ""])
def test_strangers(ground: Ground, person: str) -> None:
    """Without write access nothing is read of the pull request and nothing is written to it: a
    comment by anybody must not make us write one."""
    assert ground.ask(ground.comment(by=person)) is None
    assert ground.planned == []
    assert all("/permission" in request for request in ground.github.requests())
    assert "Refused" in ground.summary
    assert "write access is needed" in ground.summary


def test_author_asks(ground: Ground) -> None:
    """The comment's author is who asks, not the sender of the event."""
    assert ground.ask(ground.comment(by="ro")) is None
    assert ground.github.requests() == ["GET /collaborators/ro/permission"]


def test_unknown_permission(ground: Ground) -> None:
    """When GitHub does not say what a person may do, nobody decides in its place."""
    ground.github.fail("/permission", 500, times=99)
    with pytest.raises(GitHubError):
        ground.ask(ground.comment())
    assert ground.planned == []


# --- what asks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"comment": {"body": "Looks good to me.", "user": {"login": "ann"}}},
        {"comment": {"body": f"hm\n/qualify {HEAD}", "user": {"login": "ann"}}},
        {"comment": {"body": None, "user": None}},
        {"comment": {"body": "", "user": {"login": "ann"}}},
        {"action": "edited"},
        {"issue": {"number": 1}},
        {"issue": {"number": "1", "pull_request": {}}},
        {"issue": None},
    ],
    ids=["no command", "not first", "null", "empty", "edited", "an issue", "text", "nothing"],
)
def test_no_ask(ground: Ground, changes: dict[str, Any]) -> None:
    """What asks for nothing is no error, and GitHub is not even asked who it was."""
    assert ground.ask(ground.comment(**changes)) is None
    assert ground.github.log == []


@pytest.mark.parametrize(
    "body",
    [
        "/qualify",
        "/qualify HEAD",
        f"/qualify {HEAD[:12]}",
        f"/qualify {HEAD} please",
        f"/qualify {HEAD}0",
        "/qualify $(id) @everyone",
    ],
)
def test_malformed_ask(ground: Ground, body: str) -> None:
    """An ask that names no full commit is explained, and nothing that it says is repeated."""
    assert ground.ask(ground.comment(body)) is None
    (comment,) = ground.comments
    assert f"/qualify {HEAD}" in comment
    assert "everyone" not in comment
    assert ground.planned == []


@pytest.mark.parametrize("body", [f"/qualify {HEAD}\r\n\r\nthanks", f"  /qualify  {HEAD.upper()} "])
def test_ask_as_people_type(ground: Ground, body: str) -> None:
    """Blanks, GitHub's line ends, capital digits and a second line change nothing."""
    assert ground.ask(ground.comment(body)) is not None


def test_dispatch(ground: Ground) -> None:
    """A dispatch asks as a comment does, and its sender is who asks."""
    assert ground.ask(ground.dispatch(str(ground.pull.number), HEAD, by="ro")) is None
    assert ground.planned == []
    asked = ground.ask(ground.dispatch(str(ground.pull.number), HEAD))
    assert asked is not None
    assert asked.request.asked_by == "ann"


@pytest.mark.parametrize(
    ("number", "commit"),
    [("", HEAD), ("#1", HEAD), ("1", "main"), ("1", ""), (1, HEAD), ("0", HEAD)],
)
def test_dispatch_of_nonsense(ground: Ground, number: object, commit: object) -> None:
    """Who types wrong inputs is told so by a failing command: there is no comment to answer."""
    with pytest.raises(UsageError):
        ground.ask(ground.dispatch(number, commit))


# --- which commit ---------------------------------------------------------------------------------


def test_moved_commit(ground: Ground) -> None:
    """A commit that is not the head any more is refused with the head, before any file is read."""
    ground.pull.head_sha = "b" * 40
    assert ground.ask(ground.comment()) is None
    assert not any("/contents/" in request for request in ground.github.requests())
    (comment,) = ground.comments
    assert "is not the head" in comment
    assert "b" * 40 in comment
    golden_files.check("on-demand-moved.md", shown(comment))


def test_commit_of_elsewhere(ground: Ground) -> None:
    """Another commit of the repository is refused, even one whose list is there to be read."""
    ground.github.files["models.yaml", "d" * 40] = listed("good/one", "other/one")
    assert ground.ask(ground.comment(f"/qualify {'d' * 40}")) is None
    assert ground.planned == []


@pytest.mark.parametrize(("merged", "word"), [(False, "closed"), (True, "merged")])
def test_closed(ground: Ground, merged: bool, word: str) -> None:
    """A closed pull request gets no machine."""
    ground.pull.state, ground.pull.merged = "closed", merged
    assert ground.ask(ground.comment()) is None
    assert f"the pull request is {word}" in ground.comments[0]


def test_not_a_pull_request(ground: Ground) -> None:
    """A number of no pull request fails the command; nothing is written anywhere."""
    issue = ground.github.add_issue()
    with pytest.raises(GitHubError):
        ground.ask(ground.dispatch(str(issue.number), HEAD))
    assert ground.github.writes == []


def test_moves_afterwards(ground: Ground) -> None:
    """The list is read at the commit that was named, whatever is pushed in the meantime."""
    ground.github.files["models.yaml", ground.pull.head_ref] = listed("evil/one")
    asked = ground.ask(ground.comment())
    assert asked is not None
    reads = [one for one in ground.github.log if "/contents/" in one.path]
    assert [one.query["ref"] for one in reads] == [[HEAD]]


# --- what is taken --------------------------------------------------------------------------------


def test_altered(ground: Ground) -> None:
    """Of two models that main has, only the altered one runs, as the pull request wants it."""
    ground.propose("good/one, cores: 2", "good/two, extra_packages: [einops==0.8.1]")
    asked = ground.ask(ground.comment())
    assert asked is not None
    (run,) = asked.plan.runs
    assert run.model_id == "good/one"
    assert run.placement is not None
    assert run.placement.cores == 2


@pytest.mark.parametrize(
    "entries",
    [
        ["good/one", "good/two, extra_packages: [einops==0.8.1]"],
        ["good/one, note: says more", "good/two, extra_packages: [einops==0.8.1]"],
        ["good/two, extra_packages: [einops==0.8.1]"],
    ],
    ids=["the same", "a note", "one removed"],
)
def test_nothing_new(ground: Ground, entries: list[str]) -> None:
    """A list that adds nothing to run is answered so, and starts nothing."""
    ground.propose(*entries)
    assert ground.ask(ground.comment()) is None
    assert "adds and alters no model" in ground.comments[0]
    assert ground.planned == []


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("new/three, source: ../../home", "its source"),
        ("good/one, source: models/one", "its source"),
        ("new/three, extra_packages: [evil-package]", "evil-package"),
        ("good/two, extra_packages: [einops==0.8.1, evil-package]", "evil-package"),
        ("good/two, extra_packages: [einops==0.9.0]", "einops==0.9.0"),
        ("new/three, limit_minutes: 61", "the longest on the main branch is 60"),
    ],
)
def test_refused_entry(ground: Ground, entry: str, reason: str) -> None:
    """An entry that would bring code, a folder of the machine or days of it is not run, and the
    others are."""
    ground.hub.add("new/four", ground.folder / "checkpoint")
    ground.propose(entry, "new/four")
    asked = ground.ask(ground.comment())
    assert asked is not None
    assert asked.request.models == ("new/four",)
    (declined,) = asked.request.declined
    assert reason in declined.reason
    assert reason in ground.summary


def test_dropped_package(ground: Ground) -> None:
    """An entry may ask for fewer packages than on main: nothing new is installed for that."""
    ground.propose("good/one", "good/two")
    asked = ground.ask(ground.comment())
    assert asked is not None
    assert [run.extra_packages for run in asked.plan.runs] == [()]


def test_settings_are_mains(ground: Ground) -> None:
    """Defaults, runner classes, stacks and prompts of the pull request's list change nothing."""
    proposed = (
        listed("good/one", "good/two, extra_packages: [einops==0.8.1]", "new/three")
        .replace(b"labels: [self-hosted, trn2]", b"labels: [ubuntu-latest]")
        .replace(b"limit_minutes: 60", b"limit_minutes: 7200")
        .replace(b"Once upon a time", b"Say something rude")
        .replace(b'"2.28.7631.0"', b'"2.99.0"')
    )
    ground.github.files["models.yaml", HEAD] = proposed
    plain = ground.ask(ground.comment())
    ground.propose("good/one", "good/two, extra_packages: [einops==0.8.1]", "new/three")
    assert ground.ask(ground.comment()) == plain
    assert plain is not None


@pytest.mark.parametrize(
    ("change", "entry", "told"),
    [
        (("trn2:", "mine:"), "new/three, runner: mine", "unknown runner"),
        (("cores: 4,", "cores: 64,"), "new/three, cores: 16", "16 cores"),
    ],
)
def test_entry_against_main(ground: Ground, change: tuple[str, str], entry: str, told: str) -> None:
    """An entry that is sound in its own list only is refused by main's rules."""
    before, after = change
    proposed = listed("good/one", entry).replace(before.encode(), after.encode())
    ground.github.files["models.yaml", HEAD] = proposed
    assert ground.ask(ground.comment()) is None
    (comment,) = ground.comments
    assert told in comment
    assert "Nothing was run (1 refused)" in comment


def test_exclusion_taken_back(ground: Ground) -> None:
    """A model that main excludes and the pull request wants is run: that is its question."""
    ground.hub.add("big/one", ground.folder / "checkpoint")
    ground.propose("good/one", "good/two, extra_packages: [einops==0.8.1]", "big/one", excluded="")
    asked = ground.ask(ground.comment())
    assert asked is not None
    assert asked.request.models == ("big/one",)
    assert asked.request.declined == ()
    assert [run.model_id for run in asked.plan.runs] == ["big/one"]


def test_too_many(ground: Ground) -> None:
    """More models than one ask takes are refused altogether, with the number and a way out."""
    ground.propose(*(f"new/model-{number}" for number in range(on_demand.MAX_MODELS + 1)))
    assert ground.ask(ground.comment()) is None
    assert f"alters {on_demand.MAX_MODELS + 1} models" in ground.comments[0]
    assert ground.planned == []


ALIASES = "".join(
    f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9) if n else 'a'}]\n" for n in range(12)
)
MERGES = "x0: &x0 {k: v}\n" + "".join(
    f"x{n}: &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * 9)}]}}\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (listed("new/one", "new/one"), "is here twice"),
        (listed("new/one, task: text-generation"), "key &quot;task&quot; is here twice"),
        (listed("new/one, trust_remote_code: true"), "unknown key"),
        (ALIASES.encode() + listed("new/one"), "unknown key"),
        (MERGES.encode() + listed("new/one"), "unknown key"),
        (b"models: !!python/object/apply:os.system [id]\n", "unknown tag"),
        (b"\xff\xfe", "not UTF-8"),
        (b"models: [" * 5000, "nested too deeply"),
        (b"# " + b"x" * on_demand.MAX_LIST_BYTES + b"\n", "the limit is"),
        (b"", "the file is empty"),
    ],
    ids=["twice", "key", "field", "aliases", "merges", "tag", "bytes", "deep", "huge", "empty"],
)
def test_hostile_list(ground: Ground, data: bytes, told: str) -> None:
    """A list that is not valid, or would eat the machine that reads it, is refused with why."""
    ground.github.files["models.yaml", HEAD] = data
    assert ground.ask(ground.comment()) is None
    assert ground.planned == []
    (comment,) = ground.comments
    assert told.replace("&quot;", '"') in comment


def test_no_list(ground: Ground) -> None:
    """A commit without the list is refused."""
    del ground.github.files["models.yaml", HEAD]
    assert ground.ask(ground.comment()) is None
    assert "cannot be taken" in ground.comments[0]


def test_prompts_stay_data(ground: Ground) -> None:
    """Prompts of a stranger's list reach the script as text, whatever they look like."""
    prompts = ['"""', "{{ 7 * 7 }}\n'''", "\\N{DIGIT ONE}\u2028\u202e') + exit('"]
    ground.propose("good/one", f"new/three, prompts: {json.dumps(prompts)}")
    asked = ground.ask(ground.comment())
    assert asked is not None
    run = next(run for run in asked.plan.runs if run.model_id == "new/three")
    tree = ast.parse(script.render(run))
    values = {
        target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id == "PROMPTS"
    }
    assert list(values["PROMPTS"]) == prompts


def test_missing_on_the_hub(ground: Ground) -> None:
    """A model that is not on the Hub becomes a refused run of the plan, and no job."""
    ground.propose("good/one", "new/nowhere")
    asked = ground.ask(ground.comment())
    assert asked is not None
    assert asked.outputs["jobs"] == "[]"
    assert asked.outputs["runs"] == "1"


# --- what is answered -----------------------------------------------------------------------------


def shown(comment: str) -> str:
    """A comment as golden files keep it: without its data, which the code reads again."""
    return re.sub(r"<!-- trn-qualify: data .*\n", "", comment)


def asked_for(ground: Ground, *models: str, sha: str = HEAD) -> tuple[Ask, Plan]:
    """An ask of these models and its plan; `big/...` does not fit."""
    runs = [
        papers.refused(name) if name.startswith("big/") else papers.run(name) for name in models
    ]
    request = Ask(
        number=ground.pull.number, sha=sha, asked_by="ann", asked_at=day(0), models=models
    )
    return request, papers.plan(*runs)


RUNS = "https://github.com/org/repo/actions/runs"


def handed_over(ground: Ground, *records: Record, run_id: str = "7") -> Path:
    """Records as their job's artifact arrives."""
    folder = ground.folder / f"artifacts-{run_id}"
    for number, record in enumerate(records):
        record = record.model_copy(update={"run_url": f"{RUNS}/{run_id}"})
        path = folder / "records-job-trn2-1-1" / str(number) / record.run.run_id / RECORD_NAME
        write(record, path)
    return folder


def answered(ground: Ground, request: Ask, plan: Plan, *records: Record, run_id: str = "7") -> str:
    """The comment after the answer to an ask for `request`."""
    workflow = ground.comment(f"/qualify {request.sha}", run_id=run_id)
    folder = handed_over(ground, *records, run_id=run_id)
    answer(workflow, ground.client, request, plan, folder, day(1))
    return ground.comments[-1]


def run_of(plan: Plan, model_id: str) -> Run:
    """The run of that model."""
    return next(run for run in plan.runs if run.model_id == model_id)


def test_all_pass(ground: Ground) -> None:
    """When all passed the check is a success, and the comment says so first."""
    request, plan = asked_for(ground, "a/one", "a/two")
    comment = answered(ground, request, plan, *(papers.passing(run) for run in plan.runs))
    assert comment.startswith(f"<!-- {marker(ground.pull.number)} -->")
    assert "### 2 of 2 models passed on Trainium2\n" in comment
    (check,) = ground.github.checks
    assert (check.head_sha, check.name) == (HEAD, CHECK)
    assert check.told["conclusion"] == "success"
    assert check.told["output"]["title"] == "2 of 2 models passed on Trainium2"
    assert check.told["details_url"] == f"{RUNS}/7"
    assert ground.summary.startswith("### 2 of 2 models passed on Trainium2")


def test_every_outcome(ground: Ground) -> None:
    """PASS, FAIL, lost and refused stand side by side, each with its cause and what to do."""
    request, plan = asked_for(ground, "a/pass", "a/fail", "a/lost", "big/one")
    request = request.model_copy(
        update={
            "declined": (on_demand.Declined(model_id="a/odd", reason="its source is a folder"),)
        }
    )
    comment = answered(
        ground,
        request,
        plan,
        papers.passing(run_of(plan, "a/pass")),
        papers.failing(run_of(plan, "a/fail"), signature=KNOWN.id),
    )
    assert ground.github.checks[0].told["conclusion"] == "failure"
    golden_files.check("on-demand-answer.md", shown(comment))
    assert "lost_runner" in shown(comment)


@pytest.mark.parametrize(
    ("models", "records", "conclusion"),
    [
        (["a/one"], ["pass"], "success"),
        (["a/one", "a/two"], ["pass", "fail"], "failure"),
        (["a/one", "a/two"], ["error", "fail"], "failure"),
        (["a/one", "a/two"], ["pass", "error"], "neutral"),
        (["a/one", "big/two"], ["pass"], "neutral"),
        (["a/one"], [], "neutral"),
        (["big/one"], [], "neutral"),
    ],
)
def test_conclusions(
    ground: Ground, models: list[str], records: list[str], conclusion: str
) -> None:
    """Success is for all passed alone, failure for a FAIL; what says nothing of a model is
    neutral."""
    request, plan = asked_for(ground, *models)
    made = {"pass": papers.passing, "fail": papers.failing, "error": papers.erring}
    runs = [run_of(plan, name) for name in models if not name.startswith("big/")]
    answered(
        ground,
        request,
        plan,
        *(made[kind](run) for kind, run in zip(records, runs, strict=False)),
    )
    assert ground.github.checks[0].told["conclusion"] == conclusion


def test_unproven_pass(ground: Ground) -> None:
    """A PASS that its own evidence does not carry is none, here as where results are published."""
    request, plan = asked_for(ground, "a/one")
    (run,) = plan.runs
    mismatch = Check(cpu_match=CpuMatch.MISMATCH, max_gap=4.0)
    comment = answered(ground, request, plan, papers.passing(run, check=mismatch))
    assert "0 of 1 model passed" in comment
    assert ground.github.checks[0].told["conclusion"] == "neutral"


def test_record_of_another_model(ground: Ground) -> None:
    """A record of what nobody asked for is not shown, and stands for nothing that was."""
    request, plan = asked_for(ground, "a/one")
    comment = answered(ground, request, plan, papers.passing(papers.run("a/other")))
    assert "a/other" not in comment
    assert "0 of 1 model passed" in comment


def test_record_of_another_revision(ground: Ground) -> None:
    """A PASS of another revision, or with another script, is not one of what was planned."""
    request, plan = asked_for(ground, "a/one")
    (run,) = plan.runs
    other = run.model_copy(update={"revision": "f" * 40})
    comment = answered(ground, request, plan, papers.passing(other))
    assert "0 of 1 model passed" in comment


def test_simulator(ground: Ground) -> None:
    """What the tests' stand-in for a device left is never a result of Trainium."""
    request, plan = asked_for(ground, "a/one")
    (run,) = plan.runs
    on = papers.stack(Target.SIMULATOR)
    comment = answered(ground, request, plan, papers.passing(run.model_copy(update={"stack": on})))
    assert "0 of 1 model passed" in comment


def test_hostile_artifacts(ground: Ground) -> None:
    """Artifacts that are no records, lead elsewhere or are huge cost their own runs only."""
    request, plan = asked_for(ground, "a/one", "a/two")
    folder = handed_over(ground, papers.passing(run_of(plan, "a/one")))
    bad = folder / "records-job-trn2-1-1" / "9" / run_of(plan, "a/two").run_id
    bad.mkdir(parents=True)
    (bad / RECORD_NAME).write_text('{"run": ' * 50_000)
    (bad / "link").symlink_to("/etc")
    (folder / "records-job-trn2-1-8").symlink_to(ground.folder / "secret")
    (folder / "records-job-other-1").mkdir()
    (folder / "logs-..-1").mkdir()
    workflow = ground.comment()
    answer(workflow, ground.client, request, plan, folder, day(1))
    assert "1 of 2 models passed" in ground.comments[0]


def test_no_artifacts(ground: Ground) -> None:
    """When nothing came back every run is ERROR, and the pull request is told."""
    request, plan = asked_for(ground, "a/one")
    answer(ground.comment(), ground.client, request, plan, ground.folder / "none", day(1))
    assert "0 of 1 model passed on Trainium2 (1 ERROR)" in ground.comments[0]


def test_request_of_another_event(ground: Ground) -> None:
    """A request that this run's event did not make is refused before anything is written."""
    request, plan = asked_for(ground, "a/one")
    forged = request.model_copy(update={"number": request.number + 1})
    other = request.model_copy(update={"sha": "f" * 40})
    for one in (forged, other):
        with pytest.raises(RecordError):
            answer(ground.comment(), ground.client, one, plan, ground.folder / "none", day(1))
    assert ground.github.writes == []


# --- the one comment ------------------------------------------------------------------------------


def test_one_comment(ground: Ground) -> None:
    """The second answer edits the comment: the newest commit on top, earlier ones in one line."""
    request, plan = asked_for(ground, "a/one", "a/two")
    records = [papers.passing(run_of(plan, "a/one")), papers.failing(run_of(plan, "a/two"))]
    answered(ground, request, plan, *records)
    later, plan = asked_for(ground, "a/one", sha="b" * 40)
    comment = answered(ground, later, plan, papers.passing(run_of(plan, "a/one")), run_id="8")
    assert len(ground.comments) == 1
    assert comment.index("b" * 40) < comment.index("Earlier asks: 1") < comment.rindex(HEAD)
    assert "`a/one` PASS; `a/two` FAIL (compiler_error at compile)" in comment
    assert [check.head_sha for check in ground.github.checks] == [HEAD, "b" * 40]
    golden_files.check("on-demand-second-answer.md", shown(comment))


def test_same_commit_again(ground: Ground) -> None:
    """An answer for the same commit replaces the earlier one, in the comment and in the check."""
    request, plan = asked_for(ground, "a/one")
    answered(ground, request, plan)
    comment = answered(ground, request, plan, papers.passing(run_of(plan, "a/one")), run_id="8")
    assert "Earlier asks" not in comment
    (check,) = ground.github.checks
    assert check.told["conclusion"] == "success"


def test_refused_ask_keeps_answers(ground: Ground) -> None:
    """An ask that is turned down adds a line, and takes no answer away; the next answer ends it."""
    request, plan = asked_for(ground, "a/one")
    answered(ground, request, plan, papers.passing(run_of(plan, "a/one")))
    ground.ask(ground.comment("/qualify head"))
    (comment,) = ground.comments
    assert "**Not run**" in comment
    assert "1 of 1 model passed" in comment
    comment = answered(ground, request, plan, papers.passing(run_of(plan, "a/one")))
    assert "**Not run**" not in comment


def test_earlier_asks_are_bounded(ground: Ground) -> None:
    """The comment does not grow without end."""
    for number in range(MAX_EARLIER + 3):
        request, plan = asked_for(ground, "a/one", sha=f"{number:040x}")
        answered(ground, request, plan)
    assert f"Earlier asks: {MAX_EARLIER}<" in ground.comments[-1]
    assert f"{0:040x}" not in ground.comments[-1]


def test_stranger_with_our_marker(ground: Ground) -> None:
    """A comment of somebody else with our marker is neither read nor edited."""
    lie = Answer(
        sha="d" * 40,
        asked_by="mallory",
        asked_at=day(0),
        run_url=f"{RUNS}/1",
        lines=(Line(model_id="evil/model", result=Result.PASS, stage=Stage.DONE),),
    )
    forged = Conversation(answers=(lie,))
    theirs = ground.github.add_comment(
        ground.pull.number, render(ground.pull.number, forged), author="mallory"
    )
    before = theirs.body
    request, plan = asked_for(ground, "a/one")
    comment = answered(ground, request, plan)
    assert theirs.body == before
    assert "evil/model" not in comment
    assert "Earlier asks" not in comment


@pytest.mark.parametrize(
    "data",
    [
        "{",
        '{"answers": 7}',
        '{"notice": {"running": true}}',
        '{"extra": 1}',
        '{"notice": {"running": false, "asked_by": "x", "asked_at": "2026-11-30T08:00:00Z", '
        '"run_url": "javascript:alert(1)", "told": "x"}}',
    ],
)
def test_unreadable_data(ground: Ground, data: str) -> None:
    """Data that somebody spoilt in our comment are dropped, and the answer is given."""
    body = f"<!-- {marker(ground.pull.number)} -->\n<!-- trn-qualify: data {data} -->\n"
    ground.github.add_comment(ground.pull.number, body)
    assert read(body) == Conversation()
    request, plan = asked_for(ground, "a/one")
    assert "0 of 1 model passed" in answered(ground, request, plan)
    assert len(ground.comments) == 1


HOSTILE = (
    "--> <!-- trn-qualify: data {} --> @everyone #1 org/repo#2 </details> | `x` "
    "[click](https://evil.example) ![](https://evil.example/x.png)\n\n# Heading\n```\n"
)


def test_hostile_texts(ground: Ground) -> None:
    """What a model or a machine says ends no marker, opens no markup and addresses nobody."""
    request, plan = asked_for(ground, "a/one", "a/two")
    one, two = plan.runs
    passed = papers.passing(one)
    assert passed.observation is not None
    said = tuple(
        part.model_copy(update={"text": HOSTILE}) for part in passed.observation.generations
    )
    seen = passed.observation.model_copy(update={"generations": said})
    comment = answered(
        ground,
        request,
        plan,
        passed.model_copy(update={"observation": seen}),
        papers.failing(two, error=HOSTILE),
    )
    summary = ground.github.checks[0].told["output"]["summary"]
    for page in (shown(comment), summary):
        for sign in (r"@every", r"(?<!&)#\d", r"\]\(https://evil", r"!\[", "# Heading", "```"):
            assert not re.search(sign, page)
    assert not re.search(r"@|(?<!&)#\d", comment)
    assert comment.count("-->") == 2
    assert comment.count("</details>") == comment.count("<details>") == 1
    earlier = read(comment)
    assert [line.result for line in earlier.answers[0].lines] == [Result.PASS, Result.FAIL]


def test_fits(ground: Ground) -> None:
    """However many runs and however long their texts, the comment is one that GitHub takes, and
    can be read again."""
    line = Line(
        model_id="a/one",
        stack="sdk",
        result=Result.FAIL,
        failure=Failure.COMPILER_ERROR,
        stage=Stage.COMPILE,
        why="<" * 300,
        remedy="@" * 300,
        said="<" * 160,
    )
    newest = Answer(
        sha=HEAD,
        asked_by="ann",
        asked_at=day(0),
        run_url=f"{RUNS}/7",
        stacks={"sdk": "torch 2.14.0"},
        targets=(Target.NEURON,),
        lines=(line,) * 20,
    )
    talk = Conversation(
        answers=(
            newest,
            *(newest.model_copy(update={"sha": f"{n:040x}"}) for n in range(MAX_EARLIER)),
        )
    )
    post(ground.client, ground.pull.number, talk)
    assert read(ground.comments[0]).answers[0].sha == HEAD
    assert len(read(ground.comments[0]).answers[0].lines) == 20


# --- the commands ---------------------------------------------------------------------------------


def test_commands(ground: Ground) -> None:
    """Both commands from the event of a comment to the answer, as the workflow calls them."""
    folder = ground.folder / "work"
    folder.mkdir()
    main = listed("good/one").replace(b"stacks: [sdk]", b"stacks: [cpu]")
    (folder / "models.yaml").write_bytes(main)
    ground.propose("good/one", "new/three")
    variables = jobs.variables(
        folder,
        ground.comment().event,
        event_name="issue_comment",
        github=ground.github,
        HF_ENDPOINT=ground.hub.url,
        HF_HOME=str(folder / "hf"),
        HF_TOKEN="",
    )
    output = Path(variables["GITHUB_OUTPUT"])

    def qualify(*arguments: str) -> None:
        done = jobs.qualify(folder, *arguments, variables=variables)
        assert done.returncode == 0, done.stdout + done.stderr

    qualify("ask")
    told = dict(re.findall(r"^(\w+)<<(?:end_\w+)\n(.*)\nend_", output.read_text(), re.MULTILINE))
    assert told["number"] == str(ground.pull.number)
    assert told["sha"] == HEAD
    assert told["runs"] == "1"
    plan = read_paper(Plan, folder / "build/plan.json")
    (run,) = plan.runs
    assert run.model_id == "new/three"
    assert [job["id"] for job in json.loads(told["jobs"])] == [plan.jobs[0].job_id]

    record = papers.passing(run, run_url=f"{RUNS}/7")
    write(
        record,
        folder / f"build/artifacts/records-{plan.jobs[0].job_id}-1/0/{run.run_id}/{RECORD_NAME}",
    )
    qualify("answer")
    (comment,) = ground.comments
    assert "### 1 of 1 model passed\n" in comment
    assert ground.github.checks[0].told["conclusion"] == "success"
    assert not (folder / "results").exists()


def test_command_for_a_stranger(ground: Ground) -> None:
    """A refused stranger's job ends well and hands over nothing: outputs start no job."""
    workflow = replace(ground.comment(by="ro"), output_path=None)
    assert ground.ask(workflow) is None
    assert on_demand.NO_RUNS["runs"] == "0"
    assert on_demand.NO_RUNS["jobs"] == "[]"
    assert not (ground.folder / "build").exists()
