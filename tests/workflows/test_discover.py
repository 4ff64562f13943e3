"""What people use on the Hub, as the workflows follow it: rankings every day, one pull request of
proposals every week, an answer to each issue that asks for a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.catalog import parse
from pipeline.rankings import FEWEST, Rankings, read
from tests.discovery import BRANCH, LIST
from tests.github_server import BOT, Issue, Pull
from tests.hub_server import HubServer, Listed
from tests.test_actions_issue_form import asking
from tests.workflows.act import Outcome, World

DAILY, WEEKLY = "47 4 * * *", "7 6 * * 1"
ENABLED = {"QUALIFY_ENABLED": "true"}
GOOD = [f"good/model-{number}" for number in range(8)]
FILES = [
    f"results/rankings/{task}-{ranking}.json"
    for task in ("image-text-to-text", "text-generation")
    for ranking in ("downloads", "trending")
]


@dataclass
class Followed:
    """A campaign, and a Hub whose rankings move."""

    world: World
    hub: HubServer

    def rank(self, names: Sequence[str]) -> None:
        """The Hub's text models rank like this; behind them, and for pictures, are many that have
        no safetensors."""
        others = {
            task: [f"{task}/{number}" for number in range(FEWEST)]
            for task in ("text-generation", "image-text-to-text")
        }
        self.hub.listed.clear()
        for task, rest in others.items():
            leading = names if task == "text-generation" else []
            for rank, name in enumerate([*leading, *rest], 1):
                self.hub.listed[name] = Listed(
                    task,
                    downloads=1_000_000 // rank,
                    trending_score=1_000 - rank,
                    safetensors={"parameters": {"BF16": 600_000}, "total": 600_000}
                    if name in leading
                    else None,
                )

    def start(self, cron: str) -> Outcome:
        """The workflow as that line of its schedule starts it."""
        outcome = self.world.run(
            "schedule", "discover.yml", payload={"schedule": cron}, variables=ENABLED
        )
        assert outcome.exit_code == 0, outcome.text
        return outcome

    def request(self, model: str) -> tuple[Outcome, Issue]:
        """Somebody sends the issue form."""
        issue = self.world.github.add_issue(
            title=f"Qualify: {model}",
            body=asking(model),
            author="somebody",
            labels=["qualify-model"],
        )
        told = {"number": issue.number, "labels": [{"name": label} for label in issue.labels]}
        outcome = self.world.run(
            "issues", "request.yml", payload={"action": "opened", "issue": told}, actor="somebody"
        )
        assert outcome.results == {"Request": "success"}, outcome.text
        return outcome, issue

    def answer(self, issue: Issue) -> str:
        """The one comment on that issue."""
        (said,) = [one for one in self.world.github.comments if one.issue == issue.number]
        assert said.author == BOT
        return said.body

    @property
    def pull(self) -> Pull:
        """The only pull request."""
        (pull,) = self.world.github.pulls.values()
        return pull

    @property
    def proposed(self) -> list[str]:
        """What the list on its branch has and main's has not."""
        ids = [
            [one.id for one in parse(text.encode(), file="models.yaml").models]
            for text in (
                self.world.origin.text("models.yaml", ref) for ref in ("main", self.pull.head_ref)
            )
        ]
        return [name for name in ids[1] if name not in ids[0]]

    def untick(self, name: str) -> None:
        """A person takes the tick out of a model's box."""
        body = self.pull.body or ""
        assert f"- [x] `{name}`" in body
        self.pull.body = body.replace(f"- [x] `{name}`", f"- [ ] `{name}`")

    def rankings(self, name: str) -> Rankings:
        """Those on main, read from a folder of that name."""
        return read(self.world.export(name) / "results")


@pytest.fixture
def followed(tmp_path: Path, models: Callable[[str], Path]) -> Iterator[Followed]:
    small = models("tiny-qwen3")
    with HubServer() as hub:
        for name in GOOD:
            hub.add(name, small)
        with World(tmp_path, models=LIST, hub_url=hub.url) as world:
            yield Followed(world, hub)


def test_rankings_are_committed_daily_and_fill_one_pull_request_weekly(followed: Followed) -> None:
    """Each day's rankings are a commit on main. Each week one pull request is brought up to date
    from them: a declined model is gone and does not come back, not even by an issue; others do
    come. An issue's model joins it, and the issue is told."""
    world, origin = followed.world, followed.world.origin
    followed.rank(["listed/one", *GOOD[:6]])
    first = origin.head()
    daily = followed.start(DAILY)
    assert daily.results == {"Rankings": "success"}
    assert origin.parents() == [first]
    assert [path for path in origin.files() if path.startswith("results/")] == FILES
    rows = followed.rankings("day-1").ranks(GOOD[0]).values()
    assert {(row.rank, row.downloads) for row in rows} == {(2, 500_000)}
    assert daily.summary.startswith(f"## 4 rankings of the Hub, in commit {origin.head()[:12]}\n")

    weekly = followed.start(WEEKLY)
    assert weekly.results == {"Proposal": "success"}
    pull = followed.pull
    assert (pull.title, pull.head_ref, pull.base_ref) == ("Qualify 5 more models", BRANCH, "main")
    assert followed.proposed == GOOD[:5]
    assert origin.files(BRANCH) == origin.files()
    assert "## 5 models proposed in #1, 5 of them new" in weekly.summary

    followed.untick(GOOD[1])
    followed.rank(["listed/one", GOOD[6], *GOOD[:6]])
    both = world.run("workflow_dispatch", "discover.yml", variables=ENABLED)
    assert both.results == {"Rankings": "success", "Proposal": "success"}, both.text
    assert {row.rank for row in followed.rankings("day-2").ranks(GOOD[6]).values()} == {2}
    assert (followed.pull.number, followed.pull.state) == (pull.number, "open")
    assert followed.proposed == [GOOD[0], *GOOD[2:5], GOOD[6]]
    body = followed.pull.body or ""
    assert f"- [x] `{GOOD[1]}`" not in body
    assert f"Declined here, and not proposed again: [`{GOOD[1]}`]" in body

    _, issue = followed.request(GOOD[7])
    assert f"fits and is proposed in #{pull.number}**" in followed.answer(issue)
    assert followed.proposed == [GOOD[0], *GOOD[2:5], GOOD[6], GOOD[7]]
    assert followed.pull.title == "Qualify 6 more models"

    _, issue = followed.request(GOOD[1])
    assert f"was proposed and declined in #{pull.number}**" in followed.answer(issue)
    written, branch = list(world.github.writes), origin.head(BRANCH)
    assert "none of them new" in followed.start(WEEKLY).summary
    assert GOOD[1] not in followed.proposed
    assert (world.github.writes, origin.head(BRANCH)) == (written, branch)


def test_after_a_cut_ranking_nothing_is_proposed(followed: Followed) -> None:
    """A ranking that came cut leaves its file as it was, and the others are committed; the job is
    red and says so, and started by hand no proposal is made of them."""
    followed.rank(GOOD)
    for number in range(FEWEST // 2):
        del followed.hub.listed[f"image-text-to-text/{number}"]
    outcome = followed.world.run("workflow_dispatch", "discover.yml", variables=ENABLED)
    assert outcome.results == {"Rankings": "failure"}, outcome.text
    assert [path for path in followed.world.origin.files() if path in FILES] == FILES[2:]
    assert "50 rows came, expected about 200" in outcome.summary
    assert followed.world.github.log == []


def test_nothing_is_asked_of_the_hub_before_the_owner_enables_it(followed: Followed) -> None:
    """In a fork the schedule does nothing; an issue without the form's label is let be."""
    outcome = followed.world.run("schedule", "discover.yml", payload={"schedule": DAILY})
    assert (outcome.exit_code, outcome.results) == (0, {}), outcome.text
    told = {"action": "opened", "issue": {"number": 1, "labels": [{"name": "bug"}]}}
    outcome = followed.world.run("issues", "request.yml", payload=told)
    assert (outcome.exit_code, outcome.results) == (0, {}), outcome.text
    assert followed.hub.log == []
