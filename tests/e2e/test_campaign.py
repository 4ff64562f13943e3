"""From the dispatch of the workflow to rows on the branch, with real models, compiler and ranks; by
hand on what it left; and once more with machines and artifacts that fail in every way.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from pipeline.record import Plan, Record, read
from pipeline.words import Stage
from tests import golden_files
from tests.conftest import ROOT
from tests.e2e import faults
from tests.e2e.conftest import Campaign, Folder, environment
from tests.e2e.conftest import rows as rows_of

PLAIN = "demo/tiny-llama-3-kv-heads"
REFUSED = "demo/tiny-llama-3-kv-heads-on-2-cores"
DENSE = "demo/tiny-qwen3"
EXPERTS = "demo/tiny-gpt-oss"
SLIDING = "demo/tiny-gemma3"
PICTURE = "demo/tiny-qwen2-5-vl"
PASSING = (PLAIN, DENSE, EXPERTS, SLIDING, PICTURE)


JOBS = ("laptop-1", "laptop-2")


@pytest.fixture(scope="module")
def rows(folder: Folder) -> dict[str, dict[str, Any]]:
    """The rows of the first dispatch, read before any later run replaces them."""
    return rows_of(folder.path)


def _records(folder: Folder, model_id: str) -> list[Record]:
    slug = model_id.replace("/", "--")
    paths = folder.records.glob(f"{slug}@*/*/record.json")
    return [read(Record, path) for path in sorted(paths)]


def _history(path: Path) -> list[tuple[str, str, str | None]]:
    read_rows = pq.read_table(path / "results" / "history").to_pylist()
    found = [(row["model_id"], row["result"], row["failure"]) for row in read_rows]
    return sorted(found, key=str)


def test_dispatch_ends_in_one_commit(campaign: Campaign) -> None:
    """What is due is planned into a job for each machine, run, and published in one commit, with
    history, scripts and the page; a plan, records and logs are all that the jobs leave."""
    outcome, world = campaign.outcomes[0], campaign.world
    assert outcome.exit_code == 0, outcome.text[-10_000:]
    names = ("Plan", *(f"Run {job}" for job in JOBS), "Publish")
    assert outcome.results == dict.fromkeys(names, "success")
    assert len(world.origin.commits()) == 2
    assert world.origin.message().startswith("Publish 6 results: 5 PASS, 1 FAIL\n")
    published = campaign.published()
    rows = rows_of(published)
    for row in rows.values():
        assert row["run_url"] == f"{world.server.url}/example/campaign/actions/runs/1"
        if row["result"] == "PASS":
            script = published / "results" / "scripts" / f"{row['run_id']}.py"
            assert script.read_text() == row["run_py"]
    assert _history(published) == sorted(
        ((name, row["result"], row["failure"]) for name, row in rows.items()), key=str
    )
    stored = {path.name for path in world.artifacts(outcome).iterdir()}
    assert stored == {"plan", *(f"{kind}-{job}-1" for kind in ("records", "logs") for job in JOBS)}
    assert world.server.refused == 0
    golden_files.check("workflow-campaign.md", campaign.page("Plan", "Publish"))


def test_the_list_ends_in_the_results_it_states(rows: dict[str, dict[str, Any]]) -> None:
    """Five models pass; the one that its heads do not let divide fails, with stage and class."""
    assert {model: row["result"] for model, row in rows.items()} == {
        **dict.fromkeys(PASSING, "PASS"),
        REFUSED: "FAIL",
    }
    refused = rows[REFUSED]
    assert (refused["stage"], refused["failure"]) == ("plan", "unsupported_parallelism")
    assert "3 key/value heads cannot be divided over 2 cores" in refused["error"]
    assert refused["run_py"] is None and refused["generated_text"] is None


@pytest.mark.parametrize("model", PASSING)
def test_every_field_is_what_was_seen(
    rows: dict[str, dict[str, Any]], model: str, folder: Folder
) -> None:
    """No field of a PASS is guessed: each is checked against the record or the machine."""
    row = rows[model]
    record = _records(folder, model)[0]
    seen = record.observation
    assert seen is not None and seen.all_calls and seen.second_call and record.run.placement
    assert row["stage"] == "done" and row["error"] is None and row["failure"] is None
    assert row["target"] == "cpu"
    assert row["torch"] == version("torch")
    assert row["transformers"] == row["library_version"] == version("transformers")
    assert row["accelerate"] == version("accelerate")
    assert row["python"] == ".".join(map(str, sys.version_info[:3]))
    for absent in ("neuronx_cc", "torch_neuronx", "nki", "neuron_driver", "runtime", "image"):
        assert row[absent] is None, absent
    for device in ("hbm_peak_gb", "hbm_capacity_gb", "cpu_fallback_ops", "cost_usd"):
        assert row[device] is None, device
    assert row["graphs"] == seen.all_calls.graphs == 2
    assert (seen.second_call.graphs, seen.second_call.compiled) == (0, 0)
    assert seen.graph_breaks == 0 and seen.fullgraph is True and seen.downgrade is None
    assert row["cache"] == "cold" and row["cache_keys"]
    assert row["neuron_cores"] == row["tp"] == record.run.placement.cores
    assert seen.compile_s and row["wall_s"] >= seen.compile_s and row["compile_s"] == seen.compile_s
    assert row["tokens_per_s"] == pytest.approx(32 / row["generate_s"])
    assert 0.1 < row["host_peak_gb"] < 8
    assert row["tested_at"] <= datetime.now(UTC)
    assert row["tested_at"] - record.started_at < timedelta(minutes=15)
    assert len(row["prompts"]) == len(row["generated_text"]) == (3 if model == PICTURE else 4)
    assert all(len(tokens) == 32 for tokens in row["generated_tokens"])
    assert row["run_py"] == record.run_py
    assert row["revision"].startswith("sha256:")


def test_the_check_is_the_strongest_there_is(rows: dict[str, dict[str, Any]]) -> None:
    """Every model that fits is held against the CPU; sharded ones are judged beside it."""
    for model in PASSING:
        assert rows[model]["cpu_match"] in ("exact", "near_tie")
        assert 0 < rows[model]["departure"] <= 1.6 * max(rows[model]["noise"], 0.01)
        assert rows[model]["check"] == "tokens and logits against the CPU reference"
    for model in (DENSE, EXPERTS):
        assert rows[model]["neuron_cores"] == 2
        assert rows[model]["english"] == "fluent"
        assert rows[model]["judge"].startswith("HuggingFaceTB/SmolLM2-135M-Instruct")
    assert rows[DENSE]["parallelism"] == "tensor"
    assert rows[EXPERTS]["parallelism"] == "expert"


def test_what_the_models_say(rows: dict[str, dict[str, Any]]) -> None:
    """The text is the model's own: learnt sentences, and a caption of the drawn picture."""
    assert rows[DENSE]["generated_text"][0].startswith(" by the sea, there lived an old man")
    assert rows[SLIDING]["generated_text"] == rows[DENSE]["generated_text"]
    assert all("red circle" in text for text in rows[PICTURE]["generated_text"])
    assert len(set(rows[PLAIN]["generated_text"])) == 4


def test_the_folder_reads_as_one_table(folder: Folder, rows: dict[str, Any]) -> None:
    """The query that people already use works on results/current."""
    frame = pd.read_parquet(folder.results / "current")[
        ["model_id", "neuronx_cc", "library", "library_version", "neuron_cores", "result"]
    ]
    assert sorted(frame["model_id"]) == sorted(rows)


def test_the_page_tells_both_kinds(folder: Folder, rows: dict[str, Any]) -> None:
    """The page names each model with its result, and the failure with its class and cause."""
    page = (folder.path / "COMPATIBILITY.md").read_text()
    for model in rows:
        assert model in page
    assert "unsupported_parallelism" in page


def test_nothing_is_due_again(folder: Folder, rows: dict[str, Any]) -> None:
    """What was just published is up to date, the refusal included."""
    told = folder.plan()
    assert "nothing is planned" in told
    assert told.count("up to date") == len(rows)


def test_publishing_again_changes_no_byte(folder: Folder, rows: dict[str, Any]) -> None:
    """The same records give the same files."""
    files = [path for path in folder.results.rglob("*") if path.is_file()]
    files.append(folder.path / "COMPATIBILITY.md")
    before = {path: path.read_bytes() for path in files}
    folder.qualify("publish", "records")
    assert {path: path.read_bytes() for path in before} == before


def test_the_second_run_compiles_nothing(folder: Folder, rows: dict[str, dict[str, Any]]) -> None:
    """Sharded, which is the harder case: graphs are restored, the reference is not asked again."""
    model = DENSE
    slug = model.replace("/", "--")
    folder.plan("--force", "--select", f"{slug}@*", "--output", "again.json")
    folder.run("again.json")
    record = _records(folder, model)[-1]
    assert record.observation and record.observation.all_calls
    assert record.cache == "restored"
    assert record.observation.all_calls.compiled == 0
    assert record.check.reference_cached is True
    tokens = [list(one.tokens) for one in record.observation.generations]
    assert tokens == rows[model]["generated_tokens"]
    assert record.result == "PASS"


def test_a_rows_script_replays_by_hand(
    folder: Folder, rows: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Saved and run with nothing of this project in sight, it prints the row's text."""
    model = SLIDING
    (tmp_path / "run.py").write_text(rows[model]["run_py"])
    graphs = tmp_path / "graphs"
    store = folder.path / "store" / "inductor-2.13.0"
    for key in rows[model]["cache_keys"]:
        (graphs / key).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(store / key, graphs / key)
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-P", "run.py"],
        cwd=tmp_path,
        env={**outside, "TORCHINDUCTOR_CACHE_DIR": str(graphs)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for text in rows[model]["generated_text"]:
        assert repr(text) in done.stdout
    assert not list(tmp_path.glob("run.json"))


def test_a_killed_harness_makes_its_run_due(folder: Folder, rows: dict[str, Any]) -> None:
    """SIGKILL in the middle of a run: the next plan says that it was lost, where, and when."""
    (folder.path / "lost").mkdir()
    harness = subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli", "run", SLIDING, "--records", "lost", "--no-store"],
        cwd=folder.path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not (record := _latest(folder.path / "lost")) or record.stage is not Stage.COMPILE:
        assert time.monotonic() < deadline and harness.poll() is None
        time.sleep(0.1)
    harness.send_signal(signal.SIGKILL)
    harness.wait()
    told = folder.qualify("plan", "--records", "lost")
    (line,) = [line for line in told.splitlines() if SLIDING in line]
    assert "was lost at stage compile" in line

    # Published, the lost run is an ERROR attempt that never replaces the PASS.
    folder.qualify("publish", "lost")
    assert rows_of(folder.path)[SLIDING]["result"] == "PASS"
    assert "ERROR: lost_runner" in folder.qualify("plan", "--records", "nothing")


def _latest(records: Path) -> Record | None:
    paths = sorted(records.glob("*/*/record.json"))
    return read(Record, paths[-1]) if paths else None


def test_show_reads_what_was_published(folder: Folder, rows: dict[str, Any]) -> None:
    """`qualify show` prints every model, and all that is known of one."""
    told = folder.qualify("show")
    for model in rows:
        assert model in told
    one = folder.qualify("show", PLAIN, "--full", "--stack", "cpu")
    assert rows[PLAIN]["generated_text"][0] in one.encode().decode("unicode_escape") or (
        repr(rows[PLAIN]["generated_text"][0]) in one
    )


def test_the_demo_is_this_list() -> None:
    """`make demo` builds every model that its list names."""
    text = (ROOT / "Makefile").read_text()
    built = text.split("MODELS :=")[1].splitlines()[0].split()
    listed = {
        line.split("/")[-1]
        for line in (ROOT / "demo" / "models.yaml").read_text().splitlines()
        if line.strip().startswith(("source:", "judge:"))
    }
    assert set(built) == listed


# --- the workflow again ---------------------------------------------------------------------------


def test_second_dispatch_finds_nothing_due(campaign: Campaign) -> None:
    """What was published is not due again: no job starts, nothing is committed, and the page says
    so."""
    head = campaign.world.origin.head()
    outcome = campaign.dispatch(stack="cpu")
    assert outcome.results == {"Plan": "success", "Publish": "success"}, outcome.text[-10_000:]
    assert campaign.world.origin.head() == head
    page = re.sub(r"\d{4}-\d\d-\d\d", "2026-11-30", campaign.page("Plan", "Publish"))
    golden_files.check("workflow-nothing-due.md", page)


def test_a_plan_that_cannot_be_made_runs_nothing(campaign: Campaign) -> None:
    """A stack that the list does not have ends the plan, and with it the run: no job starts, no
    publication follows, and the run is red."""
    head = campaign.world.origin.head()
    outcome = campaign.dispatch(stack="no-such-stack")
    assert outcome.results == {"Plan": "failure"}
    assert outcome.exit_code != 0
    assert "no-such-stack" in outcome.job("Plan").text
    assert campaign.world.origin.head() == head


@pytest.fixture(scope="module")
def before(campaign: Campaign) -> Path:
    """What was on main before the faults."""
    return campaign.published()


def _a_class_for_each(text: str) -> str:
    """The list with a runner class for each model, so that none shares its job."""
    models = re.findall(r"- id: demo/(\S+)", text)
    (laptop,) = re.findall(r"(?<=  laptop:\n)(?:    .*\n)+", text)
    classes = "".join(f"  {model}:\n{laptop}" for model in models)
    text = text.replace(f"  laptop:\n{laptop}", classes)
    return re.sub(r"(- id: demo/(\S+)\n)", r"\1    runner: \2\n", text)


@pytest.fixture(scope="module")
def faulty(campaign: Campaign, before: Path) -> Campaign:
    """The same list once more, with a job for each model, and a fault for four of them."""
    world = campaign.world
    world.origin.write({"models.yaml": _a_class_for_each(world.origin.text("models.yaml"))})
    (world.folder / "secret").write_text(faults.SECRET)
    world.hook("run", faults.IN_JOBS)
    world.hook("actions-publish", faults.HOSTILE)
    campaign.dispatch(force=True)
    world.unhook()
    return campaign


def test_faults_cost_nothing_but_themselves(faulty: Campaign, before: Path) -> None:
    """One job killed, one that left nothing, one record cut short, one artifact hostile: each ends
    in an ERROR in history with its reason, no row is lost, what passed still stands, and the job
    that published is red and says which."""
    outcome = faulty.outcomes[-1]
    plan = read(Plan, faulty.world.artifacts(outcome) / "plan" / "plan.json")
    job_of = {job.runs[0].model_id: job.job_id for job in plan.jobs}
    assert set(job_of) == set(PASSING)
    results = {name: outcome.results[f"Run {job_id}"] for name, job_id in job_of.items()}
    assert [name for name, result in results.items() if result != "success"] == [DENSE]
    assert outcome.results["Publish"] == "failure"
    published = faulty.published()
    rows = rows_of(published)
    assert {name: row["result"] for name, row in rows.items()} == {
        **dict.fromkeys(PASSING, "PASS"),
        REFUSED: "FAIL",
    }
    good = rows[SLIDING]
    assert good["cache"] == "restored"
    assert good["run_url"].endswith(f"/runs/{outcome.number}")
    news = _history(published)
    for old in _history(before):
        news.remove(old)  # a ValueError: history lost a row
    assert {name: result for name, result, _ in news} == {
        **dict.fromkeys((PLAIN, DENSE, EXPERTS, PICTURE), "ERROR"),
        REFUSED: "FAIL",
        SLIDING: "PASS",
    }
    assert len(news) == 6
    page = outcome.job("Publish").summary
    assert page.startswith("## Published 6 results: 1 PASS, 1 FAIL, 4 ERROR\n")
    assert "**3 of 5 runs left no usable record**: ERROR, and due again." in page
    assert f"| `{DENSE}` | ERROR | lost runner at download |" in page
    said = " ".join(found.message for found in outcome.job("Publish").annotations)
    for name in (PLAIN, EXPERTS, PICTURE):
        assert name in page
        assert f"{name.replace('/', '--')}@" in said


def test_hostile_artifacts_write_and_tell_nothing(faulty: Campaign, before: Path) -> None:
    """What an artifact names outside of itself is neither read nor written, and what it says is no
    command to GitHub."""
    world, outcome = faulty.world, faulty.outcomes[-1]
    published = faulty.published()
    everything = b"".join(path.read_bytes() for path in published.rglob("*") if path.is_file())
    assert faults.SECRET.encode() not in everything
    assert faults.SECRET not in outcome.text
    assert not list(world.folder.rglob("*pwned*"))
    there = {path.relative_to(before) for path in before.rglob("*")}
    added = {path.relative_to(published) for path in published.rglob("*")} - there
    assert {path.parts[:2] for path in added} == {("results", "history")}
    assert not [
        one for one in outcome.job("Publish").annotations if one.message.startswith("owned")
    ]
