"""Regressions: which rows are some, what their issues say, and how those open, change and close."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import results as store
from pipeline.actions import regressions as module
from pipeline.actions.github import GitHub
from pipeline.actions.kept_issues import Action, Kept
from pipeline.catalog import parse
from pipeline.errors import ResultsError
from pipeline.record import Record, Run
from pipeline.words import Failure, Stage, Target
from tests import golden_files, jobs, papers
from tests.github_server import MAX_BODY, GitHubServer, Issue
from tests.papers import day

OLD, NEW = {"library_version": "5.23.0"}, {"library_version": "5.24.0"}
SIGNATURE: dict[str, Any] = {
    "failure": Failure.UNSUPPORTED_OPERATOR,
    "signature": "neuron-unsupported-operator",
    "error": "RuntimeError: [NCC_EVRF001] operator sort is not supported",
}
LABEL = "qualify-regression"


def run(model: str = "org/one", *, on: dict[str, Any] = NEW, **changes: Any) -> Run:
    return papers.run(model, stack=papers.stack(**on), **changes)


def run_page(number: int) -> str:
    return f"https://github.com/org/repo/actions/runs/{number}"


def passing(day_number: int, *where: str, on: dict[str, Any] = NEW, **changes: Any) -> Record:
    return papers.passing(
        run(*where, on=on), day(day_number), run_url=run_page(day_number), **changes
    )


def failing(day_number: int, *where: str, on: dict[str, Any] = NEW, **changes: Any) -> Record:
    fields = {**SIGNATURE, "run_url": run_page(day_number), **changes}
    return papers.failing(run(*where, on=on), day(day_number), **fields)


def erring(day_number: int, *where: str, on: dict[str, Any] = NEW) -> Record:
    return papers.erring(run(*where, on=on), day(day_number), signature="hub-connection")


class Campaign:
    """Published results, a list, and GitHub."""

    def __init__(self, folder: Path, server: GitHubServer) -> None:
        self.results = folder / "results"
        self.server = server
        self.github = GitHub(server.repository, server.token, server.url, seconds_between_writes=0)
        self.models = ["org/one", "org/two", "org/three"]
        self.excluded: list[str] = []

    def publish(self, *records: Record) -> None:
        rows = [store.row_of(record) for record in records]
        store.write(store.prepare(self.results, rows).files)

    @property
    def list_text(self) -> str:
        wanted = [f"  - {{id: {name}, task: text-generation}}" for name in self.models]
        left = [
            f"  - {{id: {name}, task: text-generation, reason: not_prioritised, note: later}}"
            for name in self.excluded
        ]
        return "\n".join([_HEAD, "models:", *wanted, *(["excluded:", *left] if left else []), ""])

    def report(self) -> list[Kept]:
        catalog = parse(self.list_text.encode(), file="models.yaml")
        return module.report(self.results, catalog, self.github)

    def found(self) -> list[module.Regression]:
        return module.find(
            store.read_current(self.results), store.read_history(self.results), self.models
        )

    @property
    def issue(self) -> Issue:
        """The only one."""
        (issue,) = self.server.issues.values()
        return issue

    @property
    def said(self) -> list[str]:
        return [one.body for one in self.server.comments]


_HEAD = """\
defaults:
  stacks: [sdk]
  limit_minutes: 60
  margin: {gib: 1, fraction: 0.1}
  prompts:
    text-generation: [Once upon a time, The capital of France is, Water boils at]
runners:
  trn2: {labels: [self-hosted, trn2], cores: 4, core_gib: 24, host_gib: 124}
stacks:
  sdk:
    target: neuron
    library_version: "5.24.0"
    torch: "2.14.0"
    neuronx_cc: "2.28.7631.0"
    torch_neuronx: "2.14.3.0\""""


@pytest.fixture
def campaign(tmp_path: Path) -> Iterator[Campaign]:
    with GitHubServer() as server:
        yield Campaign(tmp_path, server)


# --- which rows are regressions -------------------------------------------------------------------


def test_a_pass_that_fails_on_the_same_stack(campaign: Campaign) -> None:
    """A FAIL after a PASS of the same run is one; what counts is the last PASS, and the first FAIL
    after it."""
    campaign.publish(passing(1), failing(2), passing(3), failing(4), failing(5))
    (one,) = campaign.found()
    assert (one.good["tested_at"], one.since["tested_at"]) == (day(3), day(4))
    assert (one.row["tested_at"], one.same_stack) == (day(5), True)


def test_a_pass_that_fails_on_the_newest_stack(campaign: Campaign) -> None:
    """A model's first FAIL on its newest stack is one if an older stack PASSes, the next older."""
    oldest = {"library_version": "5.9.0"}
    campaign.publish(passing(1, on=oldest), passing(2, on=OLD), failing(3), failing(4))
    (one,) = campaign.found()
    assert one.good["run_id"] == run(on=OLD).run_id
    assert (one.since["tested_at"], one.same_stack) == (day(3), False)


@pytest.mark.parametrize(
    "records",
    [
        pytest.param((passing(1), passing(2)), id="it passes"),
        pytest.param((failing(1),), id="it never passed"),
        pytest.param((failing(1), passing(2)), id="it was fixed"),
        pytest.param((failing(1, on=OLD), passing(2)), id="only the older stack fails"),
        pytest.param((passing(1, on=OLD), failing(2, "org/two")), id="another model passed"),
        pytest.param((passing(1), erring(2)), id="an ERROR after a PASS"),
        pytest.param((passing(1, on=OLD), erring(2)), id="an ERROR on the newest stack"),
        pytest.param((failing(1, on=OLD), erring(2)), id="no PASS at all"),
        pytest.param((passing(1, "org/other"), failing(2, "org/other")), id="not in the list"),
    ],
)
def test_what_is_no_regression(campaign: Campaign, records: tuple[Record, ...]) -> None:
    """Nothing but a FAIL that took a PASS's place is one."""
    campaign.publish(*records)
    assert campaign.found() == []


@pytest.mark.parametrize("errors", [(), (3,), (3, 4, 5)])
def test_errors_hide_no_regression(campaign: Campaign, errors: tuple[int, ...]) -> None:
    """ERRORs after a FAIL, or on a stack that is newer still, change nothing."""
    newer = {"library_version": "5.25.0"}
    campaign.publish(passing(1), failing(2), *(erring(at) for at in errors))
    campaign.publish(*(erring(at, on=newer) for at in errors))
    (one,) = campaign.found()
    assert (one.row["tested_at"], one.since["tested_at"]) == (day(2), day(2))


def test_an_error_on_a_newer_stack_is_no_verdict(campaign: Campaign) -> None:
    """The newest stack is the newest with a PASS or FAIL: what a lost machine left on a newer one
    does not make a regression old."""
    campaign.publish(passing(1, on=OLD), failing(2), erring(3, on={"library_version": "5.25.0"}))
    (one,) = campaign.found()
    assert one.row["run_id"] == run().run_id


def test_a_pass_of_another_target_is_none(campaign: Campaign) -> None:
    """What runs on a CPU says nothing of Trainium."""
    cpu = papers.stack(Target.CPU, library_version="5.23.0")
    campaign.publish(papers.passing(papers.run("org/one", stack=cpu), day(1)), failing(2))
    assert campaign.found() == []


def test_an_older_stack_counts_when_it_passed_itself(campaign: Campaign) -> None:
    """PASS, then FAIL on an older stack is one unless a newer stack PASSed after it: nobody would
    run the older one again for that, and its issue would stay for ever."""
    campaign.publish(passing(1, on=OLD), passing(2), failing(3, on=OLD))
    assert [one.row["run_id"] for one in campaign.found()] == [run(on=OLD).run_id]
    campaign.publish(passing(4))
    assert campaign.found() == []


def test_versions_are_compared_as_versions(campaign: Campaign) -> None:
    """5.10 is newer than 5.9."""
    campaign.publish(passing(1, on={"library_version": "5.9.0"}))
    campaign.publish(failing(2, on={"library_version": "5.10.0"}))
    assert len(campaign.found()) == 1


# --- one issue a cause ----------------------------------------------------------------------------


def test_an_issue_for_each_cause(campaign: Campaign) -> None:
    """Models that fail for one reason share an issue: by signature, by class where a run ended
    without any text, and by the kind of error where nobody knows the text."""
    names = [f"org/m{number}" for number in range(8)]
    campaign.models = names
    campaign.publish(*(passing(1, name) for name in names))
    wrong: dict[str, Any] = {
        "failure": Failure.WRONG_TOKENS,
        "signature": None,
        "stage": Stage.CHECK,
    }
    odd: dict[str, Any] = {"failure": Failure.RUNTIME_ERROR, "signature": "unclassified"}
    campaign.publish(
        failing(2, names[0]),
        failing(2, names[1], error="RuntimeError: [NCC_EVRF001] operator topk is not supported"),
        failing(2, names[2], **wrong, error="prompt 1, token 3"),
        failing(2, names[3], **wrong, error="prompt 2, token 30"),
        failing(2, names[4], **odd, error=f"ValueError: {names[4]} has 3 odd heads"),
        failing(2, names[5], **odd, error=f"ValueError: {names[5]} has 12 odd heads"),
        failing(2, names[6], **odd, error="ValueError: something else"),
        failing(2, names[7], **(odd | {"failure": Failure.COMPILER_ERROR}), error="ValueError: x"),
    )
    kept = campaign.report()
    assert [one.action for one in kept] == [Action.OPENED] * 5
    bodies = {(issue.body or "").split("\n")[0]: issue for issue in campaign.server.issues.values()}
    assert {"signature/neuron-unsupported-operator", "class/wrong_tokens"} <= {
        line.split(" ")[3] for line in bodies
    }
    counts = sorted(
        sum(f"`{name}`" in (one.body or "") for name in names) for one in bodies.values()
    )
    assert counts == [1, 1, 2, 2, 2]
    assert {label for one in bodies.values() for label in one.labels} == {LABEL}


def test_rows_in_any_order_give_the_same_issues(campaign: Campaign) -> None:
    """The text depends on the rows alone, not on their order nor on the time."""
    campaign.publish(*(passing(1, name) for name in campaign.models))
    campaign.publish(*(failing(2, name) for name in campaign.models))
    current = store.read_current(campaign.results)
    history = store.read_history(campaign.results)
    expected = module.issues(module.find(current, history, campaign.models))
    for seed in range(5):
        random.Random(seed).shuffle(current)  # noqa: S311 - no secret depends on it
        random.Random(seed).shuffle(history)  # noqa: S311 - as above
        assert module.issues(module.find(current, history, campaign.models)) == expected


def test_the_issue_as_people_see_it(campaign: Campaign) -> None:
    """What fails, since when, what differs, and what to do; kept whole."""
    campaign.publish(
        passing(1, "org/one", on=OLD),
        passing(2, "org/two"),
        passing(2, "org/three", on={"neuronx_cc": "2.27.1.0", "torch_neuronx": "2.14.0.0"}),
    )
    again = run("org/two", revision="89abcdef" * 5)
    campaign.publish(
        failing(3, "org/one"),
        failing(3, "org/three"),
        papers.failing(again, day(4), run_url=run_page(4), **SIGNATURE),
        failing(5, "org/one"),
    )
    campaign.report()
    issue = campaign.issue
    golden_files.check("regression-issue.md", f"# {issue.title}\n\n{issue.body}\n")


def test_an_unknown_error_as_people_see_it(campaign: Campaign) -> None:
    """Without signature the issue says what is known, the class, and how to get further."""
    error = "ValueError: <b>odd</b> | @ann see #3 `x` ![](http://evil.example/x.png)\nmore"
    campaign.publish(passing(1))
    campaign.publish(
        failing(
            2,
            failure=Failure.RUNTIME_ERROR,
            signature="unclassified",
            error=error,
            stage=Stage.GENERATE,
            run_url="https://evil.example/org/repo/actions/runs/1) <img src=x>",
        )
    )
    campaign.report()
    issue = campaign.issue
    body = issue.body or ""
    for live in ("<b>", "@ann", "see #3", "![", "evil.example/org", "<img", "`x`"):
        assert live not in body + issue.title
    golden_files.check("regression-issue-unknown.md", f"# {issue.title}\n\n{body}\n")


def test_many_regressions_of_one_cause_fit(campaign: Campaign) -> None:
    """However many models and however hostile their errors, the steps at the end are there."""
    names = [f"org/{'long' * 20}-{number:03d}" for number in range(60)]
    campaign.models = names
    campaign.publish(*(passing(1, name) for name in names))
    campaign.publish(*(failing(2, name, error="<@#|" * 200) for name in names))
    campaign.report()
    issue = campaign.issue
    body = issue.body or ""
    assert len(body) <= MAX_BODY
    assert issue.title.startswith("Regression in 60 models: ")
    assert "And 10 more runs of this cause." in body
    assert body.rstrip().endswith("opened again as long as one is.")


# --- opening, editing, closing --------------------------------------------------------------------


def test_reporting_twice_changes_nothing(campaign: Campaign) -> None:
    """Without new results nothing is written, so nobody is told the same again."""
    campaign.publish(passing(1), failing(2))
    campaign.report()
    written = len(campaign.server.writes)
    assert [one.action for one in campaign.report()] == [Action.UNCHANGED]
    assert len(campaign.server.writes) == written


def test_a_second_model_is_an_edit(campaign: Campaign) -> None:
    """A cause that reaches another model changes its issue, and opens none."""
    campaign.publish(passing(1), failing(2), passing(1, "org/two"))
    campaign.report()
    campaign.publish(failing(3, "org/two"))
    assert [one.action for one in campaign.report()] == [Action.EDITED]
    assert campaign.issue.title.startswith("Regression in 2 models: ")
    assert "`org/two`" in (campaign.issue.body or "")
    assert campaign.said == []


def test_fixed_closes(campaign: Campaign) -> None:
    """When the model passes again its issue is closed, with the row that says so."""
    campaign.publish(passing(1), failing(2))
    campaign.report()
    campaign.publish(passing(3))
    (kept,) = campaign.report()
    assert (kept.action, campaign.issue.state) == (Action.CLOSED, "closed")
    (said,) = campaign.said
    assert said == (
        "Over: `org/one` passes again on neuronx-cc 2.28.7631.0, transformers 5.24.0, "
        f"torch 2.14.0 ([2026-12-03]({run_page(3)}))."
    )
    written = len(campaign.server.writes)
    assert campaign.report() == []
    assert len(campaign.server.writes) == written


def test_it_comes_back(campaign: Campaign) -> None:
    """The same cause opens its old issue again, so that its story stays in one place."""
    campaign.publish(passing(1), failing(2))
    campaign.report()
    campaign.publish(passing(3))
    campaign.report()
    campaign.publish(failing(4))
    assert [one.action for one in campaign.report()] == [Action.REOPENED]
    assert campaign.issue.state == "open"
    assert campaign.said[-1] == "It is back: see above what is so now."


@pytest.mark.parametrize(
    ("then", "words"),
    [
        ("newer stack", "`org/one` passes on a newer stack, neuronx-cc 2.28.7631.0, transformers"),
        ("newer failure", "`org/one` has a newer result on neuronx-cc 2.28.7631.0, transformers"),
        ("another cause", "for another cause now: timeout ([2026-12-03]("),
        ("excluded", "`org/one` is excluded or not in the list any more."),
        ("removed", "`org/one` is excluded or not in the list any more."),
    ],
)
def test_why_it_is_over(campaign: Campaign, then: str, words: str) -> None:
    """What ends a regression other than a PASS of the same run is said as what it is."""
    older = {"library_version": "5.22.0"}
    campaign.publish(passing(1, on=older), failing(2, on=OLD))
    campaign.report()
    match then:
        case "newer stack":
            campaign.publish(passing(3))
        case "newer failure":
            campaign.publish(failing(3, failure=Failure.TIMEOUT, signature=None))
        case "another cause":
            campaign.publish(failing(3, on=OLD, failure=Failure.TIMEOUT, signature=None))
        case "excluded":
            campaign.models, campaign.excluded = ["org/two"], ["org/one"]
        case _:
            campaign.models = ["org/two"]
    kept = campaign.report()
    assert kept[-1].action is Action.CLOSED
    assert campaign.server.issues[1].state == "closed"
    assert words in campaign.said[-1]


def test_errors_close_nothing(campaign: Campaign) -> None:
    """A lost machine after a FAIL is no fix."""
    campaign.publish(passing(1), failing(2))
    campaign.report()
    campaign.publish(erring(3), erring(4, on={"library_version": "5.25.0"}))
    assert [one.action for one in campaign.report()] == [Action.UNCHANGED]


def test_no_results_close_nothing(campaign: Campaign) -> None:
    """A publication that left nothing behind must not look like a world without failures."""
    campaign.publish(passing(1), failing(2))
    campaign.report()
    campaign.results = campaign.results / "elsewhere"
    with pytest.raises(ResultsError, match="no issue was touched"):
        campaign.report()
    assert campaign.issue.state == "open"


def test_issues_of_others_are_left_alone(campaign: Campaign) -> None:
    """Whoever copies label and marker, or writes an issue of their own, keeps it as it is."""
    marker = "<!-- trn-qualify: regression signature/neuron-unsupported-operator -->"
    server = campaign.server
    others = [
        server.add_issue(author="mallory", labels=[LABEL], body=f"{marker}\nmine"),
        server.add_issue(labels=[LABEL], body="by the bot, about something else"),
        server.add_issue(labels=[LABEL], body="<!-- trn-qualify: watchdog silence -->\nsilence"),
        server.add_issue(labels=["bug"], body=f"{marker}\nwithout the label"),
        server.add_issue(labels=[LABEL], body=f"quoted:\n{marker}"),
    ]
    before = [(one.title, one.body, one.state) for one in others]
    campaign.publish(passing(1), failing(2))
    (kept,) = campaign.report()
    assert (kept.action, kept.url[-9:]) == (Action.OPENED, "/issues/6")
    campaign.publish(passing(3))
    campaign.report()
    assert [(one.title, one.body, one.state) for one in others] == before
    assert server.issues[6].state == "closed"


def test_one_of_two_issues_of_one_cause_is_enough(campaign: Campaign) -> None:
    """Should two writers have opened the same, one of them is kept and the other points to it."""
    campaign.publish(passing(1), failing(2))
    campaign.report()
    first = campaign.server.issues[1]
    second = campaign.server.add_issue(title=first.title, body=first.body, labels=[LABEL])
    campaign.report()
    assert sorted([first.state, second.state]) == ["closed", "open"]
    assert campaign.said == [f"The same as #{second.number}."]
    assert [one.action for one in campaign.report()] == [Action.UNCHANGED]


def test_half_done_is_completed_by_repeating(campaign: Campaign) -> None:
    """When GitHub fails between two writes, the next report finishes what was begun."""
    campaign.publish(passing(1), failing(2), passing(1, "org/two"))
    campaign.publish(failing(2, "org/two", failure=Failure.TIMEOUT, signature=None))
    campaign.server.fail("/issues", 422, method="POST", message="spam?")
    with pytest.raises(Exception, match="GitHub refused"):
        campaign.report()
    assert [one.action for one in campaign.report()] == [Action.OPENED, Action.OPENED]
    assert len(campaign.server.issues) == 2


# --- the command ----------------------------------------------------------------------------------


def qualify(campaign: Campaign, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`qualify actions ...` as a job runs it, in the folder of the campaign."""
    folder = campaign.results.parent
    (folder / "models.yaml").write_text(campaign.list_text, encoding="utf-8")
    told = jobs.variables(folder, github=campaign.server)
    return jobs.qualify(folder, *arguments, variables=told)


def test_command(campaign: Campaign) -> None:
    """The command reports, says what it did on the page of the run, and ends well: the issue is
    the alarm."""
    campaign.publish(passing(1), failing(2))
    ended = qualify(campaign, "regressions", "--results", "results")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert campaign.issue.state == "open"
    summary = campaign.results.parent / "summary.md"
    assert summary.read_text() == (
        "## Regressions: 1 cause\n\n- opened: [Regression in org/one: the compiler does not take "
        "an operator of the model](https://github.com/org/repo/issues/1)\n"
    )


def test_summary() -> None:
    """The page of the run says first how many causes there are, escapes what it links, and names
    what was closed."""
    closed = Kept(
        Action.CLOSED, "Regression in a/b: [x](y)", "https://github.com/org/repo/issues/1"
    )
    lasting = Kept(Action.EDITED, "Regression in 2 models", "https://github.com/org/repo/issues/2")
    assert module.summary([]) == "## No regression"
    assert module.summary([lasting, closed]) == (
        "## Regressions: 1 cause\n\n"
        "- edited: [Regression in 2 models](https://github.com/org/repo/issues/2)\n"
        "- closed: [Regression in a/b: &#91;x&#93;(y)](https://github.com/org/repo/issues/1)"
    )


def test_command_without_results(campaign: Campaign) -> None:
    """Where publishing left nothing the command fails, so that the job is red."""
    ended = qualify(campaign, "regressions")
    assert ended.returncode == ResultsError.exit_code
    assert ended.stderr.startswith("qualify: build/published/results: there are no published")
    assert campaign.server.log == []
