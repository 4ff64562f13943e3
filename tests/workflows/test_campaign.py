"""A campaign from the dispatch to the commit on origin, with real models and real compilers; then
the same list again with machines and artifacts that fail in every way."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.record import Plan, read
from tests import golden_files
from tests.workflows.act import Outcome, World
from tests.workflows.lists import entry, listed

pytestmark = pytest.mark.long

TEXT = ("tiny-qwen3", "tiny-gpt-oss", "tiny-gemma3", "tiny-gpt2")
PICTURE = "tiny-qwen2-5-vl"
ON_TWO_CORES = "tiny-qwen3"
"""The model on the machine of another class; the four others share two machines."""

# act starts all jobs of a matrix at once; this machine has room for two.
TWO_AT_A_TIME = """#!/bin/sh
exec flock "$SLOTS/$(( $(printf %s "$4" | cksum | cut -d ' ' -f 1) % 2 ))" "$REAL_QUALIFY" "$@"
"""


@dataclass
class Campaign:
    """A repository with five models, and a machine that keeps compiled graphs."""

    world: World
    outcomes: list[Outcome] = field(default_factory=list)
    before: Path = Path()
    """What was published before the faults."""

    def dispatch(self, **inputs: Any) -> Outcome:
        """Somebody starts the campaign by hand."""
        outcome = self.world.run(
            "workflow_dispatch",
            "qualify.yml",
            inputs=inputs,
            variables={"QUALIFY_FOLDER": str(self.world.folder / "machine")},
            environment={"SLOTS": str(self.world.folder), "WORLD": str(self.world.folder)},
            timeout=1_500,  # compilers on a machine that others use
        )
        self.outcomes.append(outcome)
        return outcome

    def page(self, *names: str) -> str:
        """What these jobs of the newest run show."""
        return self.world.page(self.outcomes[-1], *names)

    def published(self) -> Path:
        """The files on main."""
        return self.world.export(f"published-{len(list(self.world.folder.glob('published-*')))}")


def _rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Name of the model -> its current row."""
    rows = pq.read_table(folder / "results" / "current").to_pylist()
    return {row["model_id"].removeprefix("demo/"): row for row in rows}


def _history(folder: Path) -> list[tuple[str, str, str | None]]:
    rows = pq.read_table(folder / "results" / "history").to_pylist()
    found = [(row["model_id"].removeprefix("demo/"), row["result"], row["failure"]) for row in rows]
    return sorted(found, key=str)


@pytest.fixture(scope="module")
def campaign(
    tmp_path_factory: pytest.TempPathFactory, models: Callable[[str], Path]
) -> Iterator[Campaign]:
    """After its first dispatch: everything ran, from nothing."""
    entries = [
        entry(
            f"demo/{name}",
            source=models(name),
            task="image-text-to-text" if name == PICTURE else "text-generation",
            runner="pair" if name == ON_TWO_CORES else "bench",
        )
        for name in (*TEXT, PICTURE)
    ]
    with World(tmp_path_factory.mktemp("campaign"), models=listed(entries)) as world:
        world.hook("run", TWO_AT_A_TIME)
        campaign = Campaign(world)
        campaign.dispatch(stack="cpu")
        yield campaign


def test_dispatch_ends_in_one_commit(campaign: Campaign) -> None:
    """Five models are planned into three jobs on two classes of machines, run, and published in one
    commit: a PASS each, with graphs compiled, in Parquet, history, scripts and the page."""
    outcome = campaign.outcomes[0]
    assert outcome.exit_code == 0, outcome.text[-10_000:]
    jobs = ("Run bench-1", "Run bench-2", "Run pair-1")
    assert outcome.results == dict.fromkeys(("Plan", *jobs, "Publish"), "success")
    world = campaign.world
    assert len(world.origin.commits()) == 2
    assert world.origin.message().startswith("Publish 5 results: 5 PASS\n")
    published = campaign.published()
    rows = _rows(published)
    assert {name: row["result"] for name, row in rows.items()} == dict.fromkeys(
        (*TEXT, PICTURE), "PASS"
    )
    for row in rows.values():
        assert (row["cache"], row["graphs"]) == ("cold", 2)
        assert row["run_url"] == f"{world.server.url}/example/campaign/actions/runs/1"
        assert (published / "results" / "scripts" / f"{row['run_id']}.py").is_file()
    assert _history(published) == [(name, "PASS", None) for name in sorted(rows)]
    assert all(f"demo/{name}" in (published / "COMPATIBILITY.md").read_text() for name in rows)
    stored = {path.name for path in world.artifacts(outcome).iterdir()}
    of_jobs = {
        f"{kind}-{job}-1"
        for kind in ("records", "logs")
        for job in ("bench-1", "bench-2", "pair-1")
    }
    assert stored == {"plan", *of_jobs}
    assert world.server.refused == 0
    golden_files.check("workflow-campaign.md", campaign.page("Plan", "Publish"))


def test_second_dispatch_finds_nothing_due(campaign: Campaign) -> None:
    """What was published is not due again: no job starts, nothing is committed, and the page says
    so."""
    head = campaign.world.origin.head()
    outcome = campaign.dispatch(stack="cpu")
    assert outcome.results == {"Plan": "success", "Publish": "success"}, outcome.text[-10_000:]
    assert campaign.world.origin.head() == head
    golden_files.check(
        "workflow-nothing-due.md",
        re.sub(r"\d{4}-\d\d-\d\d", "2026-11-30", campaign.page("Plan", "Publish")),
    )


def test_a_plan_that_cannot_be_made_runs_nothing(campaign: Campaign) -> None:
    """A stack that the list does not have ends the plan, and with it the run: no job starts, no
    publication follows, and the run is red."""
    head = campaign.world.origin.head()
    outcome = campaign.dispatch(stack="no-such-stack")
    assert outcome.results == {"Plan": "failure"}
    assert outcome.exit_code != 0
    assert "no-such-stack" in outcome.job("Plan").text
    assert campaign.world.origin.head() == head


# --- the same list, with everything that can go wrong ---------------------------------------------

# By the model of the job: killed while it runs; gone with all it had; back with half a record; or
# back with what an attacker likes. The good one restores its graphs from the first dispatch.
FAULTS = """#!{python}
import os, pathlib, signal, subprocess, sys, time
import psutil
sys.path.insert(0, os.environ["PACKAGE"])
from pipeline.record import Plan, read

plan = read(Plan, pathlib.Path("build/plan.json"))
(job,) = [job for job in plan.jobs if job.job_id == sys.argv[4]]
name = job.runs[0].model_id.removeprefix("demo/")
command = [os.environ["REAL_QUALIFY"], *sys.argv[1:]]
folder = pathlib.Path("build/records") / job.runs[0].run_id / "1"
if name == "tiny-qwen3":
    os.execv(command[0], command)
elif name == "tiny-gemma3":
    # A machine that goes away: nobody ends its processes in order.
    started = subprocess.Popen(command)
    record = folder / "record.json"
    while not record.exists() or '"download"' not in record.read_text():
        time.sleep(0.05)
    family = psutil.Process(started.pid)
    for process in [family, *family.children(recursive=True)]:
        process.kill()
    sys.exit(137)
elif name == "tiny-gpt2":
    kept = next(pathlib.Path(os.environ["WORLD"], "artifacts", "1").glob(
        "records-*/**/demo--tiny-gpt2@*/1/record.json"))
    folder.mkdir(parents=True)
    (folder / "record.json").write_bytes(kept.read_bytes()[:3_000])
elif name == "tiny-gpt-oss":
    folder.mkdir(parents=True)
    (folder / "record.json").write_text('{{"schema_version": 10000}}')
"""

# What no upload of GitHub's would take, but a store could hold: links, holes, and odd names.
HOSTILE = """#!{python}
import os, pathlib, sys

artifacts = pathlib.Path("build/artifacts")
world = pathlib.Path(os.environ["WORLD"])
(victim,) = artifacts.glob("records-*/demo--tiny-gpt-oss@*/1")
(victim / "link").mkdir()
(victim / "link" / "record.json").symlink_to(world / "secret")
(victim / "folder").symlink_to(world)
(victim / "huge").mkdir()
with (victim / "huge" / "record.json").open("wb") as file:
    file.truncate(5 * 2**30)
(victim / "::error::owned").mkdir()
(victim / "::error::owned" / "record.json").write_text(
    '{{"run": {{"run_id": "../../../../pwned@a@b@c", "model_id": "../../pwned"}}}}')
(artifacts / "records-nobody-1").mkdir()
(artifacts / "records-nobody-1" / "record.json").write_text("{{}}")
(artifacts / "records-bench-1-9").mkdir()
os.execv(os.environ["REAL_QUALIFY"], [os.environ["REAL_QUALIFY"], *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def faulty(campaign: Campaign) -> Campaign:
    """The same list once more, with a job for each model, and a fault for four of them."""
    world = campaign.world
    text = world.origin.text("models.yaml").replace("machines: 2", "machines: 4")
    world.origin.write({"models.yaml": text})
    (world.folder / "secret").write_text("the-secret-of-the-machine")
    world.hook("run", FAULTS.format(python=sys.executable))
    world.hook("actions-publish", HOSTILE.format(python=sys.executable))
    campaign.before = campaign.published()
    campaign.dispatch(stack="cpu", force=True)
    world.unhook()
    return campaign


def test_faults_cost_nothing_but_themselves(faulty: Campaign) -> None:
    """One job killed, one that left nothing, one record cut short, one artifact hostile: each ends
    in an ERROR in history with its reason, no row is lost, what passed still stands, and the job
    that published is red and says which."""
    outcome = faulty.outcomes[-1]
    plan = read(Plan, faulty.world.artifacts(outcome) / "plan" / "plan.json")
    job_of = {job.runs[0].model_id.removeprefix("demo/"): job.job_id for job in plan.jobs}
    assert len(job_of) == 5
    results = {name: outcome.results[f"Run {job_id}"] for name, job_id in job_of.items()}
    assert [name for name, result in results.items() if result != "success"] == ["tiny-gemma3"]
    assert outcome.results["Publish"] == "failure"
    published = faulty.published()
    rows = _rows(published)
    assert set(rows) == {*TEXT, PICTURE}
    assert {row["result"] for row in rows.values()} == {"PASS"}
    good = rows["tiny-qwen3"]
    assert good["cache"] == "restored"
    assert good["run_url"].endswith(f"/runs/{outcome.number}")
    news = _history(published)
    for old in _history(faulty.before):
        news.remove(old)  # a ValueError: history lost a row
    assert [(name, result) for name, result, _ in news] == [
        *((name, "ERROR") for name in ("tiny-gemma3", "tiny-gpt-oss", "tiny-gpt2", PICTURE)),
        ("tiny-qwen3", "PASS"),
    ]
    page = outcome.job("Publish").summary
    assert page.startswith("## Published 5 results: 1 PASS, 4 ERROR\n")
    assert "**3 of 5 runs left no usable record**: ERROR, and due again." in page
    assert "| `demo/tiny-gemma3` | ERROR | lost runner at download |" in page
    said = " ".join(found.message for found in outcome.job("Publish").annotations)
    for name in ("tiny-gpt-oss", "tiny-gpt2", PICTURE):
        assert f"demo/{name}" in page
        assert f"demo--{name}@" in said


def test_hostile_artifacts_write_and_tell_nothing(faulty: Campaign) -> None:
    """What an artifact names outside of itself is neither read nor written, and what it says is no
    command to GitHub."""
    world, outcome = faulty.world, faulty.outcomes[-1]
    published = faulty.published()
    everything = b"".join(path.read_bytes() for path in published.rglob("*") if path.is_file())
    assert b"the-secret-of-the-machine" not in everything
    assert "the-secret-of-the-machine" not in outcome.text
    assert not list(world.folder.rglob("*pwned*"))
    before = {path.relative_to(faulty.before) for path in faulty.before.rglob("*")}
    added = {path.relative_to(published) for path in published.rglob("*")} - before
    assert {path.parts[:2] for path in added} == {("results", "history")}
    assert not [
        one for one in outcome.job("Publish").annotations if one.message.startswith("owned")
    ]
