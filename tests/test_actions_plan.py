"""`qualify actions plan` from end to end: a checkout with an origin, variables in, outputs out."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.record import Plan, read
from tests import papers
from tests.test_cli import Ended, listed, planned, published, qualify, run_of, small_checkpoint


def git(*words: str, at: Path) -> None:
    identity = ("-c", "user.name=tester", "-c", "user.email=tester@example.org")
    subprocess.run(["git", *identity, *words], cwd=at, check=True, capture_output=True)


@dataclass(frozen=True)
class Step:
    """How one step of a job ended, and what GitHub would read after it."""

    ended: Ended
    outputs: dict[str, str]
    summary: str
    plan: Plan | None

    @property
    def models(self) -> list[str]:
        assert self.plan is not None, self.ended.err
        return sorted(run.model_id for run in self.plan.runs)


Call = Callable[..., Step]


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call the command in a checkout of a list of good/one, good/two and cut/one, which is no
    checkpoint; its keywords are the QUALIFY_ variables, `event` is what started the workflow."""
    checkout = tmp_path / "checkout"
    for name in ("good/one", "good/two", "cut/one"):
        small_checkpoint(checkout / "models" / name)
    weights = checkout / "models/cut/one/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    (checkout / "models.yaml").write_text(listed("good/one", "good/two", "cut/one"))
    git("init", "-q", "--bare", "-b", "main", str(tmp_path / "origin.git"), at=tmp_path)
    git("init", "-q", "-b", "main", at=checkout)
    git("remote", "add", "origin", str(tmp_path / "origin.git"), at=checkout)
    push(checkout, "main")
    monkeypatch.chdir(checkout)
    (tmp_path / "event.json").write_text("{}")

    def call(event: str = "workflow_dispatch", **inputs: str) -> Step:
        files = {name: tmp_path / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for name, file in files.items():
            file.unlink(missing_ok=True)
            monkeypatch.setenv(name, str(file))
        monkeypatch.setenv("GITHUB_REPOSITORY", "example/campaign")
        monkeypatch.setenv("GITHUB_RUN_ID", "7")
        monkeypatch.setenv("GITHUB_EVENT_NAME", event)
        monkeypatch.setenv("GITHUB_EVENT_PATH", str(tmp_path / "event.json"))
        for name in ("SELECT", "STACK", "FORCE", "BUDGET", "BRANCH"):
            monkeypatch.setenv(f"QUALIFY_{name}", inputs.get(name.lower(), ""))
        path = checkout / "build/plan.json"
        path.unlink(missing_ok=True)
        ended = qualify("actions", "plan")
        told = {name: file.read_text() if file.exists() else "" for name, file in files.items()}
        outputs = re.findall(r"(\w+)<<(\w+)\n(.*)\n\2\n", told["GITHUB_OUTPUT"])
        return Step(
            ended,
            {name: value for name, _, value in outputs},
            told["GITHUB_STEP_SUMMARY"],
            read(Plan, path) if path.exists() else None,
        )

    return call


def push(checkout: Path, branch: str) -> None:
    git("add", "-A", at=checkout)
    git("commit", "-q", "--allow-empty", "-m", "a change", at=checkout)
    git("push", "-q", "origin", f"HEAD:{branch}", at=checkout)


def test_a_first_campaign(step: Call) -> None:
    """No result yet: everything is due, the broken checkpoint is refused, and GitHub is told."""
    done = step("schedule")
    assert (done.ended.code, done.ended.err) == (0, "")
    assert done.models == ["cut/one", "good/one", "good/two"]
    (job,) = json.loads(done.outputs["jobs"])
    assert (job["id"], job["labels"], job["image"]) == ("laptop-1", ["ubuntu-latest"], "")
    assert job["packages"] == "torch==2.13.0 transformers==5.24.0"
    assert (done.outputs["slices"], done.outputs["runs"]) == ("[]", "3")
    assert done.summary.startswith("## 2 runs in 1 job, about ")
    assert "| `cut/one` | FAIL: unsupported_checkpoint |" in done.summary
    assert "excluded, not_prioritised: later perhaps" in done.summary


def test_outputs_are_what_the_plans_jobs_are(step: Call) -> None:
    """An id of the matrix is one that `qualify run --job` takes."""
    done = step()
    assert done.plan is not None
    ids = [job["id"] for job in json.loads(done.outputs["jobs"])]
    assert ids == [job.job_id for job in done.plan.jobs]


@pytest.mark.parametrize("branch", ["main", "results"])
def test_results_come_from_the_branch_that_is_published_to(
    step: Call, tmp_path: Path, branch: str
) -> None:
    """What the checkout holds is not what counts: another run may have published meanwhile."""
    checkout = Path.cwd()
    published(papers.passing(run_of("good/one"), datetime.now(UTC), cache_keys=()))
    push(checkout, branch)
    git("reset", "-q", "--hard", "HEAD~1", at=checkout)
    assert not (checkout / "results").exists()
    done = step(branch=branch)
    assert (done.ended.code, done.models) == (0, ["cut/one", "good/two"])
    assert "1 up to date" in done.summary
    assert (checkout / "build/published/results/current").is_dir()


def test_a_branch_that_is_not_there_yet(step: Call) -> None:
    """It will start from this checkout, whose results count until then."""
    published(papers.passing(run_of("good/one"), datetime.now(UTC), cache_keys=()))
    assert step(branch="results").models == ["cut/one", "good/two"]


def test_what_is_asked_for(step: Call) -> None:
    """Select, force, budget and stack reach the planner, and the page says so."""
    done = step(select="good/*\n*cut*", force="true", budget="1", stack="cpu")
    assert done.models == ["cut/one"]  # which needs no machine
    assert "only good/&#42;, &#42;cut&#42;; stack cpu; due or not; within 1 min" in done.summary
    assert "**2 runs that are due must wait for another time:**" in done.summary
    assert json.loads(done.outputs["jobs"]) == []
    assert step(select="good/two", force="true").models == ["good/two"]


def test_a_push_forces_nothing(step: Call) -> None:
    """What is up to date stays so, even if an input came along."""
    published(papers.passing(run_of("good/one"), datetime.now(UTC), cache_keys=()))
    push(Path.cwd(), "main")
    assert "good/one" not in step("push", force="true").models
    assert "good/one" in step("workflow_dispatch", force="true").models


def test_a_changed_template_is_the_reason(step: Call) -> None:
    """After a push that changes scripts the reason stands beside every run that is due for it."""
    old = run_of("good/one").model_copy(update={"script_sha256": papers.run().script_sha256})
    published(papers.passing(old, datetime.now(UTC), cache_keys=()))
    push(Path.cwd(), "main")
    done = step("push")
    assert "other script: its template, prompts, placement or stack changed" in done.summary


def test_nothing_is_due(step: Call) -> None:
    """No job, no run: the workflow ends here, and the page says why."""
    done = step("push", select="big/one")
    assert (done.outputs["jobs"], done.outputs["slices"], done.outputs["runs"]) == ("[]", "[]", "0")
    assert done.summary.startswith("## Nothing is due")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"budget": "soon"}, "QUALIFY_BUDGET is 'soon'"),
        ({"force": "maybe"}, "QUALIFY_FORCE is 'maybe'"),
        ({"stack": "cpuu"}, 'unknown stack "cpuu"; did you mean "cpu"?'),
        ({"select": "good/thre"}, 'unknown model "good/thre"; did you mean "good/two"?'),
        ({"select": "*none*"}, "no run id matches '*none*'"),
    ],
)
def test_inputs_that_cannot_be_meant(step: Call, inputs: dict[str, Any], message: str) -> None:
    """Exit code 2 and what is wrong; no plan, no output and no summary that looks like one."""
    done = step(**inputs)
    assert done.ended.code == 2
    assert message in done.ended.err
    assert (done.outputs, done.summary, done.plan) == ({}, "", None)
    assert not Path("build").exists()


def test_outside_of_github(step: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who calls it learns which commands are theirs."""
    monkeypatch.delenv("GITHUB_RUN_ID", raising=False)
    ended = qualify("actions", "plan")
    assert ended.code == 7
    assert "qualify --help" in ended.err
    assert planned("--select", "good/one").jobs
