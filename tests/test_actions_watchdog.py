"""The watchdog: what silence is, and the one issue that says so."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipeline import results as store
from pipeline.actions import watchdog as module
from pipeline.actions.github import GitHub
from pipeline.actions.kept_issues import Action, Kept
from pipeline.actions.watchdog import Limit, Seen
from pipeline.record import Record
from pipeline.rows import row_of, unrecorded
from pipeline.words import Failure
from tests import golden_files, jobs, papers
from tests.conftest import ROOT
from tests.github_server import GitHubServer, Issue
from tests.origins import Origin
from tests.papers import day
from tests.test_plan import catalog

HOUR = timedelta(hours=1)


RUN = "Qwen/Qwen3-0.6B"


class Watched:
    """Published results, and GitHub; the list holds a model with results and one never tried."""

    def __init__(self, folder: Path, server: GitHubServer) -> None:
        self.list = catalog(RUN, "org/never-tried")
        self.folder = folder
        self.results = folder / "results"
        self.server = server
        self.github = GitHub(server.repository, server.token, server.url, seconds_between_writes=0)

    def publish(self, *records: Record) -> None:
        write(self.results, *records)

    def watch(self, now: datetime, limit: Limit = Limit()) -> list[Kept]:  # noqa: B008 - frozen
        return module.watch(self.results, self.list, limit, now, self.github, "main")[1]

    @property
    def issue(self) -> Issue:
        """The only one."""
        (issue,) = self.server.issues.values()
        return issue


def write(results: Path, *records: Record) -> None:
    store.write(store.prepare(results, [row_of(record) for record in records]).files)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with GitHubServer() as server:
        yield Watched(tmp_path, server)


def passing(at: datetime) -> Record:
    return papers.passing(at=at)


# --- what silence is ------------------------------------------------------------------------------


def test_within_the_limit_nothing_is_said(watched: Watched) -> None:
    """While results arrive there is no issue, to the last hour of the limit."""
    watched.publish(passing(day(1)))
    assert watched.watch(day(4)) == []
    assert watched.server.writes == []


def test_silence_opens_one_issue(watched: Watched) -> None:
    """Above the limit an issue is opened; while it lasts nobody is told again."""
    watched.publish(passing(day(0)), passing(day(1)))
    assert [one.action for one in watched.watch(day(4) + HOUR)] == [Action.OPENED]
    assert watched.issue.title == "Nothing was published since 2026-12-01 08:00 UTC"
    assert watched.issue.labels == ["qualify-watchdog"]
    assert [one.action for one in watched.watch(day(30))] == [Action.UNCHANGED]
    assert watched.server.writes == ["POST /issues"]


def test_it_closes_itself(watched: Watched) -> None:
    """When results arrive again the issue says which, and is closed; the next silence opens the
    same issue."""
    watched.publish(passing(day(1)))
    watched.watch(day(5))
    watched.publish(passing(day(6)))
    assert [one.action for one in watched.watch(day(7))] == [Action.CLOSED]
    assert watched.issue.state == "closed"
    (said,) = watched.server.comments
    assert said.body == "Over: the newest result that a machine came to is of 2026-12-06 08:00 UTC."
    assert watched.watch(day(8)) == []
    assert [one.action for one in watched.watch(day(20))] == [Action.REOPENED]
    assert watched.issue.title == "Nothing was published since 2026-12-06 08:00 UTC"


def test_nothing_ever(watched: Watched) -> None:
    """A campaign that never published is silent too, and so is one without its branch."""
    (kept,) = watched.watch(day(0))
    assert kept.title == "Nothing was ever published"
    seen, again = module.watch(None, watched.list, Limit(), day(0), watched.github, "main")
    assert (seen, again[0].action) == (Seen(None, None), Action.UNCHANGED)


@pytest.mark.parametrize("what", ["lost", "refused", "download"])
def test_rows_that_no_machine_decided_do_not_count(watched: Watched, what: str) -> None:
    """Runners that are gone leave rows all the same: they are no sign of life."""
    late = day(6)
    record = {
        "lost": unrecorded(papers.run(), late),
        "refused": unrecorded(papers.refused(), late),
        "download": papers.erring(at=late),
    }[what]
    watched.publish(passing(day(1)), record)
    (kept,) = watched.watch(day(7))
    assert kept.title == (
        "Nothing but infrastructure errors was published since 2026-12-01 08:00 UTC"
    )
    # A fail is a result: the machine is there.
    watched.publish(papers.failing(at=day(7)))
    assert [one.action for one in watched.watch(day(8))] == [Action.CLOSED]


def test_nothing_decided_ever(watched: Watched) -> None:
    """A campaign that began with dead runners is told so."""
    watched.publish(unrecorded(papers.run(), day(1)))
    (kept,) = watched.watch(day(2))
    assert kept.title == "Nothing but infrastructure errors was published ever"


def test_a_row_from_the_future_is_no_sign_of_life(watched: Watched) -> None:
    """A machine's wrong clock cannot keep the watchdog quiet; an hour ahead is forgiven."""
    watched.publish(passing(day(1)), passing(day(900)))
    (kept,) = watched.watch(day(5))
    assert kept.title == "Nothing was published since 2026-12-01 08:00 UTC"
    assert "dated in the future" in (watched.issue.body or "")
    watched.publish(passing(day(5) + HOUR / 2))
    assert [one.action for one in watched.watch(day(5))] == [Action.CLOSED]


def test_the_limit_is_told_with_its_source(watched: Watched) -> None:
    """Whoever reads the alarm sees how long the limit is and where to change it."""
    watched.publish(passing(day(1)))
    assert watched.watch(day(5), Limit(120, "QUALIFY_SILENCE_HOURS")) == []
    watched.watch(day(5), Limit(1.5, "QUALIFY_SILENCE_HOURS"))
    assert "The limit is 1.5 hours (QUALIFY_SILENCE_HOURS)." in (watched.issue.body or "")


def test_issues_of_others_are_left_alone(watched: Watched) -> None:
    """An issue of a person with our label and marker neither counts as the alarm nor is closed."""
    body = "<!-- trn-qualify: watchdog silence -->\nmine"
    other = watched.server.add_issue(author="mallory", labels=["qualify-watchdog"], body=body)
    watched.publish(passing(day(1)))
    assert watched.watch(day(2)) == []
    assert [one.action for one in watched.watch(day(5))] == [Action.OPENED]
    assert (other.body, other.state, len(watched.server.issues)) == (body, "open", 2)


# --- rest is not silence --------------------------------------------------------------------------


def due(watched: Watched, *records: Record, now: datetime) -> datetime | None:
    """Since when the one model of a list is due."""
    rows = [row_of(record) for record in records]
    return module.due_since(catalog(RUN), rows, now)


def test_nothing_due_is_no_silence(watched: Watched) -> None:
    """When every row is young enough nobody waits for anything; age makes a run due, and only when
    it has been so for the limit is there an alarm."""
    watched.list = catalog(RUN)
    watched.publish(passing(day(1)))
    assert watched.watch(day(20)) == []
    assert watched.watch(day(33)) == []
    assert [one.action for one in watched.watch(day(34) + HOUR)] == [Action.OPENED]
    watched.list = catalog(RUN, defaults={"max_age_days": 90})
    (kept,) = watched.watch(day(35))
    assert kept.action is Action.CLOSED
    assert watched.server.comments[-1].body == "Over: no run has been due for as long as the limit."


def test_since_when_a_run_is_due(watched: Watched) -> None:
    """Never tried: ever. Errors that a machine cures: since the first of those at the end. What a
    token, the list or a script must cure waits for no machine."""
    lost, gated = unrecorded(papers.run(), day(4)), papers.erring(at=day(4), failure=Failure.GATED)
    assert due(watched, now=day(5)) == datetime.min.replace(tzinfo=UTC)
    assert due(watched, passing(day(1)), now=day(5)) is None
    assert due(watched, passing(day(1)), lost, now=day(5)) == day(4)
    assert due(watched, papers.erring(at=day(3)), lost, now=day(5)) == day(3)
    assert due(watched, lost, passing(day(4) + HOUR), now=day(5)) is None
    assert due(watched, passing(day(1)), gated, now=day(5)) is None
    assert due(watched, passing(day(1)), gated, now=day(40)) == day(34)
    assert due(watched, passing(day(900)), now=day(5)) == datetime.min.replace(tzinfo=UTC)


# --- as people see it -----------------------------------------------------------------------------


def test_the_issue_as_people_see_it(watched: Watched) -> None:
    """Since when, the limit, and what to look at; kept whole."""
    watched.publish(passing(day(1)))
    watched.watch(day(5))
    issue = watched.issue
    golden_files.check("watchdog-issue.md", f"# {issue.title}\n\n{issue.body}")


def test_the_issue_about_dead_runners_as_people_see_it(watched: Watched) -> None:
    """That rows arrive and say nothing is told as what it is; kept whole."""
    watched.publish(passing(day(1)), unrecorded(papers.run(), day(6)))
    watched.watch(day(7))
    issue = watched.issue
    golden_files.check("watchdog-issue-errors.md", f"# {issue.title}\n\n{issue.body}")


def test_summary() -> None:
    """The page of the run answers first whether results arrive."""
    seen = Seen(day(1), day(0))
    assert module.summary(seen, Limit(), []) == (
        "## No alarm\n\n"
        "- newest row: 2026-12-01 08:00 UTC\n"
        "- newest PASS or FAIL of a machine: 2026-11-30 08:00 UTC\n"
        "- limit: 72 hours (the default)"
    )
    kept = Kept(Action.OPENED, "Nothing was published", "https://github.com/org/repo/issues/1")
    silent = module.summary(Seen(None, None), Limit(24, "--limit-hours"), [kept])
    assert silent.startswith("## Silent for too long\n\n- newest row: none\n")
    assert silent.endswith(
        "- limit: 24 hours (--limit-hours)\n"
        "- issue opened: [Nothing was published](https://github.com/org/repo/issues/1)"
    )


# --- the command ----------------------------------------------------------------------------------


def qualify(
    root: Path, server: GitHubServer, *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """`qualify actions watch` as a job runs it, in a checkout."""
    shutil.copy(ROOT / "models.yaml", root)
    told = jobs.variables(root.parent, github=server, **more)
    return jobs.qualify(root, "watch", *arguments, variables=told)


def test_command(watched: Watched) -> None:
    """The command reads the published branch, not the checkout, and ends well with the alarm
    raised; a variable that is set to nothing is not set."""
    origin = Origin.make(watched.folder)
    root = origin.checkout(watched.folder / "checkout")
    write(root / "results", passing(day(1)))  # of the checkout: not what is published
    ended = qualify(root, watched.server, QUALIFY_BRANCH="", QUALIFY_SILENCE_HOURS="")
    assert (ended.stderr, ended.returncode) == ("", 0)
    assert watched.issue.title == "Nothing was ever published"
    assert "The limit is 72 hours (the default)." in (watched.issue.body or "")
    summary = (watched.folder / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith("## Silent for too long\n\n- newest row: none\n")


def test_command_with_another_branch(watched: Watched) -> None:
    """Branch and limit come from their variables; the alarm names the variable."""
    origin = Origin.make(watched.folder)
    write(watched.folder / "person" / "results", passing(day(-300)))
    origin.write({"note.txt": "x"}, branch="published")
    root = origin.checkout(watched.folder / "checkout")
    ended = qualify(root, watched.server, QUALIFY_BRANCH="published", QUALIFY_SILENCE_HOURS="48")
    assert (ended.stderr, ended.returncode) == ("", 0)
    assert watched.issue.title == "Nothing was published since 2026-02-03 08:00 UTC"
    assert "The limit is 48 hours (QUALIFY_SILENCE_HOURS)." in (watched.issue.body or "")


@pytest.mark.parametrize("value", ["soon", "0", "-3", "nan"])
def test_a_limit_that_is_none(watched: Watched, value: str) -> None:
    """A limit that cannot be meant ends the command before anything is asked."""
    origin = Origin.make(watched.folder)
    root = origin.checkout(watched.folder / "checkout")
    ended = qualify(root, watched.server, QUALIFY_SILENCE_HOURS=value)
    assert ended.returncode == 2
    assert watched.server.log == []
