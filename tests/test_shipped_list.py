"""The list that ships, planned against a Hub server that holds real configurations and headers.

The server has those models of models.yaml whose published config.json and tensor shapes stand in
tests/data; the weights behind the headers are holes in sparse files. It does not know the others.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha1
from pathlib import Path

import pytest

from pipeline import catalog as lists
from pipeline.calibration import load_calibrations
from pipeline.judge import DEFAULT_JUDGE, MIN_PROMPTS
from pipeline.record import Plan, parse
from pipeline.schedule import MAX_JOB_S
from pipeline.words import Failure
from tests.conftest import ROOT
from tests.hub_server import HubServer, Repository, StoredFile
from tests.test_placement import ROWS, Row, checkpoint, config_of

LIST = lists.load(ROOT / "models.yaml")
HELD = [model.id for model in LIST.models if model.id in ROWS]


def sparse(row: Row, path: Path) -> StoredFile:
    """A safetensors file with the row's header and as much behind it, none of which is stored."""
    header = {}
    at = 0
    for tensor in checkpoint(row).tensors:
        span = [at, at + tensor.bytes]
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": span,
        }
        at = span[1]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + at)
    # Its true digest would have every hole read; nothing here downloads it.
    return StoredFile(path, "0" * 64)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    folder = tmp_path_factory.mktemp("weights")
    with HubServer() as running:
        for number, name in enumerate(HELD):
            commit = sha1(name.encode(), usedforsecurity=False).hexdigest()
            files = {
                "config.json": StoredFile.of(json.dumps(config_of(name)).encode()),
                "model.safetensors": sparse(ROWS[name], folder / f"{number}.safetensors"),
            }
            running.repositories[name] = Repository({commit: files}, {"main": commit})
        yield running


def qualify_plan(hub: HubServer, folder: Path, *options: str) -> str:
    """What `qualify plan` prints for the shipped list; it ends with exit code 0 and no error."""
    arguments = ["--list", str(ROOT / "models.yaml"), "--facts-cache", str(folder / "facts")]
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "plan", *arguments, *options],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_TOKEN": "",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def printed(hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Plan]:
    """The table, and the plan that was written beside it."""
    folder = tmp_path_factory.mktemp("plan")
    table = qualify_plan(hub, folder, "--output", "plan.json")
    return table, parse(Plan, (folder / "plan.json").read_bytes(), where="plan.json")


def test_every_model_has_prompts_enough_for_its_judge() -> None:
    """With as many the judge errs in one run of a hundred at most, either way (held-out texts)."""
    report = load_calibrations().judges[DEFAULT_JUDGE].held_out
    assert LIST.defaults.judge == DEFAULT_JUDGE
    assert report is not None
    enough = min(
        int(prompts)
        for prompts, errors in report.errors.items()
        if max(errors.drawn_false_fail, errors.drawn_false_pass) <= 0.01
    )
    assert enough == MIN_PROMPTS  # with fewer the judge passes no run
    assert all(len(prompts) >= enough for prompts in LIST.defaults.prompts.values())
    assert all(len(LIST.prompts_for(model)) >= enough for model in LIST.models)


def test_no_model_is_lost(printed: tuple[str, Plan]) -> None:
    """Every model of the list is in a job or refused, every excluded one is named, each once."""
    table, plan = printed
    assert sorted(run.model_id for run in plan.runs) == sorted(model.id for model in LIST.models)
    (stack,) = map(LIST.stack_versions, LIST.defaults.stacks)
    excluded = {str(stack.run_id(entry.id)) for entry in LIST.excluded}
    assert {skip.run_id for skip in plan.skipped} == excluded
    names = [*(run.model_id for run in plan.runs), *(entry.id for entry in LIST.excluded)]
    for name in names:
        assert len(re.findall(rf"^  {re.escape(name)} ", table, re.MULTILINE)) == 1, name


def test_known_models_are_placed_or_refused_for_what_they_are(printed: tuple[str, Plan]) -> None:
    """Of models that the server holds no refusal is about the network or about our own code."""
    _, plan = printed
    refused = {run.model_id: run.refusal for run in plan.refused}
    placed = {run.model_id: run for job in plan.jobs for run in job.runs}
    assert len(HELD) >= 25
    assert len(placed) >= 20
    for name in HELD:
        refusal = refused.get(name)
        assert (refusal is None) == (name in placed)
        if refusal:
            assert refusal.failure in (
                Failure.UNSUPPORTED_CHECKPOINT,
                Failure.UNSUPPORTED_PARALLELISM,
                Failure.TOO_LARGE,
            )
            assert refusal.reason
    for name in set(refused) - set(HELD):
        refusal = refused[name]
        assert refusal is not None
        assert (refusal.failure, bool(refusal.reason)) == (Failure.MISSING, True)


def test_placed_runs_fit_their_machine(printed: tuple[str, Plan]) -> None:
    """A run fits the cores and the memory of the machine that its job is for, and may go larger."""
    _, plan = printed
    for job in plan.jobs:
        runner = LIST.runners[job.runner]
        assert job.machine.cores == runner.cores
        assert job.estimated_s <= MAX_JOB_S
        for run in job.runs:
            assert run.placement is not None
            assert run.placement.cores <= job.machine.cores
            assert run.placement.core_bytes <= run.core_bytes
            assert run.host_bytes is not None
            assert run.host_bytes <= job.machine.host_bytes
            assert run.estimated_s <= run.limit_s <= 60 * LIST.defaults.limit_minutes
            cores = [placement.cores for placement in (run.placement, *run.larger)]
            assert cores == sorted(set(cores))


def test_the_table_says_what_a_person_asks(printed: tuple[str, Plan]) -> None:
    """How much is planned; of each job its machine and time; of each run cores, GiB, minutes."""
    table, plan = printed
    assert re.match(r"\d+ runs in \d+ jobs?, about \d+ min of machine time\n", table)
    for job in plan.jobs:
        assert f"\njob {job.job_id} on {', '.join(job.labels)}: {len(job.runs)} runs" in table
        assert f"  machine: {job.machine.cores} cores, " in table
    heads = re.findall(r"^  run +cores +GiB/core +host GiB +minutes +limit +why$", table, re.M)
    assert len(heads) == len(plan.jobs)
    assert f"refused: {len(plan.refused)}\n" in table
    assert f"not planned: {len(plan.skipped)}\n" in table
