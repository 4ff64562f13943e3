"""The nightly watchdog as it runs: one issue while results stay away, closed when they are back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipeline import results as store
from pipeline.rows import row_of
from pipeline.words import Target
from tests import golden_files, papers
from tests.origins import git
from tests.workflows.act import Outcome, World
from tests.workflows.lists import entry, listed

MODEL = "org/model"
LONG_AGO = datetime(2024, 5, 6, 7, 8, tzinfo=UTC)
ENABLED = {"QUALIFY_ENABLED": "true"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A campaign of one model, whose only result is from long ago."""
    with World(tmp_path, models=listed([entry(MODEL)])) as world:
        _publish(world, LONG_AGO)
        yield world


def _publish(world: World, at: datetime) -> None:
    """Results of that time arrive on main."""
    checkout = world.origin.checkout(world.folder / f"publisher-{at:%Y%m%d%H%M}")
    run = papers.run(MODEL, stack=papers.stack(Target.CPU, torch="2.13.0"), runner="bench")
    rows = [row_of(papers.passing(run, at))]
    store.write(store.prepare(checkout / "results", rows).files)
    git(checkout, "add", "results")
    git(checkout, "commit", "--quiet", "--message", "Publish 1 result")
    git(checkout, "push", "--quiet", "origin", "main")


def _watch(world: World, **variables: str) -> Outcome:
    outcome = world.run("schedule", "schedule.yml", job="watch", variables=ENABLED | variables)
    assert outcome.results == {"Watchdog": "success"}, outcome.text
    return outcome


def test_silence_is_one_issue_until_results_arrive(world: World) -> None:
    """The first night without results opens an issue, the next one writes nothing, and the night
    after results arrived closes it and says why; nothing is pushed."""
    github, before = world.github, world.origin.head()
    golden_files.check("watchdog-summary.md", _watch(world).summary)
    (issue,) = github.issues.values()
    assert issue.title == "Nothing was published since 2024-05-06 07:08 UTC"
    assert (issue.state, issue.labels) == ("open", ["qualify-watchdog"])
    assert world.origin.head() == before

    written = list(github.writes)
    assert "issue still open" in _watch(world).summary
    assert github.writes == written

    _publish(world, datetime.now(UTC) - timedelta(hours=1))
    summary = _watch(world).summary
    assert summary.startswith("## No alarm\n")
    assert f"issue closed: [{issue.title}]" in summary
    assert [one.state for one in github.issues.values()] == ["closed"]
    (said,) = github.comments
    assert said.body.startswith("Over: the newest result that a machine came to is of ")


def test_the_owner_sets_where_and_how_long(world: World) -> None:
    """The repository's variables say which branch is published to, and how long it may rest."""
    summary = _watch(world, QUALIFY_SILENCE_HOURS="100", QUALIFY_BRANCH="results").summary
    assert "- limit: 100 hours (QUALIFY_SILENCE_HOURS)" in summary
    (issue,) = world.github.issues.values()
    assert issue.title == "Nothing was ever published"
    assert "Branch `results` holds no result." in (issue.body or "")


def test_a_repository_that_was_not_enabled_is_not_watched(world: World) -> None:
    """No alarm, in a fork for one, before the owner says that there is something to watch."""
    outcome = world.run("schedule", "schedule.yml", job="watch")
    assert (outcome.exit_code, outcome.results) == (0, {}), outcome.text
    assert world.github.log == []
