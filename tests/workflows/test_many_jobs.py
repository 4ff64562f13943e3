"""More jobs than one matrix holds: each runs once, and none is lost on the way to the branch."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest

from tests.workflows.act import World
from tests.workflows.lists import HEAD, entry

JOBS = 600
CLASSES = 6

# In place of a run, which would take minutes: the job's records, made beforehand. Its line is
# among the artifacts, which are gone when act has to be started again.
RUN_JOB = """#!/bin/sh
mkdir -p "${2%/*}" && echo "$1" >> "${2%/*}/ran" && cp -r "$READY/$1" "$2"
"""
PLAN = """#!/bin/sh
"$REAL_QUALIFY" "$@" && PYTHONPATH="$PACKAGE" "$STAND_IN_PYTHON" -c '
import os
from datetime import UTC, datetime
from pathlib import Path
from pipeline.record import Plan, read
from tests.papers import erring, passing, save
for job in read(Plan, Path("build/plan.json")).jobs:
    records = [erring(run, run_url=None) for run in job.runs]
    save(Path(os.environ["READY"]) / job.job_id, records)
'
"""


def _list(checkpoint: Path) -> str:
    head, _, stacks = HEAD.partition("runners:\n")
    classes = "".join(
        f"  rack{number}: {{target: cpu, labels: [self-hosted, rack{number}], cores: 1,"
        " core_gib: 2, host_gib: 4, machines: 100}\n"
        for number in range(CLASSES)
    )
    models = (
        entry(f"many/model-{number}", source=checkpoint, runner=f"rack{number % CLASSES}")
        for number in range(JOBS)
    )
    return f"{head}runners:\n{classes}stacks:{stacks.partition('stacks:')[2]}{''.join(models)}"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be: 600 jobs make and remove some 30 000 files, of which a disk
    keeps account."""
    memory = Path("/dev/shm")  # noqa: S108 - a directory of its own in it, removed at the end
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=memory) as made:
        yield Path(made)


def test_600_jobs_run_once_each_and_end_in_rows(
    folder: Path, models: Callable[[str], Path]
) -> None:
    """A plan of 600 jobs goes through the nested matrix in slices of 256 at most; every job runs
    once, publish sees an artifact of each, and every planned run has its row."""
    with World(folder, models=_list(models("tiny-gpt2")), many=True) as world:
        world.hook("actions-plan", PLAN)
        run_job = folder / "run-job"
        run_job.write_text(RUN_JOB)
        run_job.chmod(0o755)
        outcome = world.run(
            "workflow_dispatch",
            "qualify.yml",
            inputs={"stack": "cpu"},
            environment={
                "READY": str(folder / "ready"),
                "RUN_JOB": str(run_job),
            },
        )
        assert outcome.exit_code == 0, outcome.text[-5_000:]
        ids = {f"rack{rack}-{number}" for rack in range(CLASSES) for number in range(1, 101)}
        artifacts = world.artifacts(outcome)
        assert Counter((artifacts / "ran").read_text().split()) == dict.fromkeys(ids, 1)
        stored = {path.name for path in artifacts.glob("records-*")}
        assert stored == {f"records-{job_id}-1" for job_id in ids}
        rows = pq.read_table(
            world.export("published") / "results" / "current",
            columns=["model_id", "result", "failure"],
        ).to_pylist()
        assert len({row["model_id"] for row in rows}) == JOBS == len(rows)
        # What the records say; a job of which none arrived would have a row of another failure.
        assert {(row["result"], row["failure"]) for row in rows} == {("ERROR", "download")}
        assert world.origin.message().startswith("Publish 600 results")
