"""Hardware time for a pull request as it runs: the ask, the plan, a machine, and the one answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.record import Plan, Record, read
from pipeline.words import Result
from tests import golden_files
from tests.github_server import BOT, Pull
from tests.hub_server import HubServer
from tests.origins import git
from tests.workflows.act import Outcome, World
from tests.workflows.lists import HEAD, entry, listed

FIRST, SECOND = "c0ffee00" * 5, "decade00" * 5
KNOWN = entry("org/known", runner="bench")
MODEL = "org/tiny"
TOKEN = "hf_reads_gated_models"  # noqa: S105 - of the test's own Hub

# In place of `qualify run`: a machine that went away before it wrote anything.
LOST = """#!/bin/sh
echo "$4" >> "$HOOKS/../lost"
"""


@dataclass
class Asked:
    """A repository with an open pull request of a stranger's, which adds a gated model."""

    world: World
    pull: Pull
    revision: str

    def comment(self, body: str, by: str = "maintainer") -> Outcome:
        """What the workflow does about a new comment on the pull request."""
        payload = {
            "action": "created",
            "issue": {"number": self.pull.number, "pull_request": {"url": "https://x"}},
            "comment": {"body": body, "user": {"login": by}},
        }
        return self._run("issue_comment", actor=by, payload=payload)

    def dispatch(self, commit: str) -> Outcome:
        """What it does when a person starts it by hand."""
        inputs = {"number": str(self.pull.number), "commit": commit}
        return self._run("workflow_dispatch", inputs=inputs)

    def _run(self, event: str, **told: Any) -> Outcome:
        return self.world.run(
            event,
            "on-demand.yml",
            variables={"QUALIFY_FOLDER": str(self.world.folder / "machine")},
            secrets={"HF_READ_TOKEN": TOKEN},
            timeout=600,
            **told,
        )

    def push(self, commit: str, text: str) -> None:
        """The pull request's head is that commit now, with that list."""
        self.pull.head_sha = commit
        self.world.github.files["models.yaml", commit] = text.encode()

    @property
    def comments(self) -> list[str]:
        """Those on the pull request that are ours."""
        return [one.body for one in self.world.github.comments if one.author == BOT]

    @property
    def refs(self) -> str:
        """All branches of the repository, with their commits."""
        return git(self.world.origin.path, "for-each-ref")


@pytest.fixture
def asked(tmp_path: Path, models: Callable[[str], Path]) -> Iterator[Asked]:
    with HubServer() as hub:
        revision = hub.add(MODEL, models("tiny-gpt2"), gated="manual", readers=(TOKEN,))
        with World(tmp_path, models=listed([KNOWN]), hub_url=hub.url) as world:
            world.github.people |= {"maintainer": "write", "stranger": "read"}
            pull = world.github.add_pull(author="stranger", head_repository="stranger/campaign")
            asked = Asked(world, pull, revision)
            asked.push(FIRST, listed([KNOWN, entry(MODEL, runner="bench")]))
            yield asked


def test_who_may_not_ask_gets_no_machine_and_no_word(asked: Asked) -> None:
    """A stranger's ask ends in green with nothing planned, run or written, and what is no ask
    starts nothing at all."""
    github = asked.world.github
    outcome = asked.comment(f"/qualify {FIRST}", by="stranger")
    assert outcome.results == {"Ask": "success"}, outcome.text
    given = outcome.job("Ask").outputs["ask"]
    assert (given["jobs"], given["slices"], given["runs"]) == ("[]", "[]", "0")
    assert outcome.summary.startswith("### Refused\n\nstranger may not ask for hardware time")
    assert github.writes == []
    assert not asked.world.artifacts(outcome).exists()
    # Of the pull request nothing was read.
    assert github.requests() == ["GET /collaborators/stranger/permission"]
    assert asked.comment("Would you /qualify this?").results == {}


def test_a_commit_that_moved_is_not_run(asked: Asked) -> None:
    """The pull request was pushed to after it was read: one line in the comment says so, and how to
    ask for what it holds now."""
    asked.push(SECOND, listed([KNOWN, entry(MODEL, runner="pair")]))
    outcome = asked.comment(f"/qualify {FIRST}")
    assert outcome.results == {"Ask": "success"}, outcome.text
    (body,) = asked.comments
    (line,) = [line for line in body.splitlines() if line and not line.startswith("<!--")]
    assert line.startswith("> **Not run** (maintainer, ")
    assert line.endswith(
        f"That is {SECOND} now; look at what it holds, then ask for it: /qualify {SECOND}"
    )
    assert asked.world.github.checks == []


def test_an_ask_is_planned_run_and_answered(asked: Asked) -> None:
    """The model runs on a machine of the main branch's list, with the token that reads it; one
    comment and a check of the commit say what came of it. The next ask edits that comment, and has
    a check of its own. Nothing of it goes into the repository."""
    github, before = asked.world.github, asked.refs
    outcome = asked.comment(f"/qualify {FIRST}")
    assert outcome.results == {"Ask": "success", "Jobs/bench-1": "success", "Answer": "success"}, (
        outcome.text
    )
    artifacts = asked.world.artifacts(outcome)
    (job,) = read(Plan, artifacts / "plan" / "plan.json").jobs
    assert [run.model_id for run in job.runs] == [MODEL]
    (path,) = (artifacts / "records-bench-1-1").rglob("record.json")
    record = read(Record, path)
    assert (record.result, record.run.revision) == (Result.PASS, asked.revision)
    (first,) = asked.comments
    assert "\n### 1 of 1 model passed\n" in first
    assert TOKEN not in outcome.text + first
    (check,) = github.checks
    assert (check.head_sha, check.told["conclusion"]) == (FIRST, "success")

    # More than the entry changed: a runner class with labels of the pull request's choice.
    mine = HEAD.replace("[self-hosted, bench]", "[self-hosted, theirs]")
    asked.push(SECOND, mine + KNOWN + entry(MODEL, runner="bench", limit_minutes="9"))
    asked.world.hook("run", LOST)
    outcome = asked.dispatch(SECOND)
    assert outcome.results == {"Ask": "success", "Jobs/bench-1": "success", "Answer": "success"}, (
        outcome.text
    )
    (planned,) = read(Plan, asked.world.artifacts(outcome) / "plan" / "plan.json").jobs
    assert planned.labels == ("self-hosted", "bench")
    (second,) = asked.comments
    golden_files.check("on-demand-lost.md", _readable(asked, second))
    (comment,) = github.comments
    # In each ask: that it runs, and what came of it.
    assert comment.edits == 3
    assert [(one.head_sha, one.told["conclusion"]) for one in github.checks] == [
        (FIRST, "success"),
        (SECOND, "neutral"),
    ]
    assert asked.refs == before


def _readable(asked: Asked, body: str) -> str:
    """A comment without its data, and with what differs from run to run fixed."""
    fixed = {
        r"^<!-- trn-qualify: data .*\n": "",
        r"\d{4}-\d\d-\d\d \d\d:\d\d UTC": "2026-11-30 08:00 UTC",
        re.escape(asked.world.server.url): "https://github.com",
        asked.revision[:12]: "0123456789ab",
    }
    for pattern, text in fixed.items():
        body = re.sub(pattern, text, body, flags=re.MULTILINE)
    return body
