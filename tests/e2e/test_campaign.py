"""From a list to published rows on this machine, with real models, compiler and ranks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.record import Record, read
from pipeline.words import Stage
from tests.conftest import ROOT
from tests.e2e.conftest import Campaign, environment

REAL = "demo/SmolLM2-135M-Instruct"
REFUSED = "demo/SmolLM2-135M-Instruct-on-2-cores"
DENSE = "demo/tiny-qwen3"
EXPERTS = "demo/tiny-gpt-oss"
SLIDING = "demo/tiny-gemma3"
PICTURE = "demo/tiny-qwen2-5-vl"
PASSING = (REAL, DENSE, EXPERTS, SLIDING, PICTURE)


@pytest.fixture(scope="session")
def rows(campaign: Campaign) -> dict[str, dict[str, Any]]:
    """The rows of the first campaign, read before any later run replaces them."""
    return campaign.rows()


def _records(campaign: Campaign, model_id: str) -> list[Record]:
    slug = model_id.replace("/", "--")
    paths = campaign.records.glob(f"{slug}@*/*/record.json")
    return [read(Record, path) for path in sorted(paths)]


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
    rows: dict[str, dict[str, Any]], model: str, campaign: Campaign
) -> None:
    """No field of a PASS is guessed: each is checked against the record or the machine."""
    row = rows[model]
    record = _records(campaign, model)[0]
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
    assert len(row["prompts"]) == len(row["generated_text"]) == 3
    assert all(len(tokens) == 32 for tokens in row["generated_tokens"])
    assert row["run_py"] == record.run_py
    assert row["revision"].startswith("sha256:")


def test_the_check_is_the_strongest_there_is(rows: dict[str, dict[str, Any]]) -> None:
    """Every model that fits is held against the CPU; sharded ones are judged beside it."""
    for model in PASSING:
        assert rows[model]["cpu_match"] in ("exact", "near_tie")
        assert rows[model]["max_gap"] <= 0.25
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
    assert len(set(rows[REAL]["generated_text"])) == 3


def test_the_folder_reads_as_one_table(campaign: Campaign, rows: dict[str, Any]) -> None:
    """The query that people already use works on results/current."""
    frame = pd.read_parquet(campaign.results / "current")[
        ["model_id", "neuronx_cc", "library", "library_version", "neuron_cores", "result"]
    ]
    assert sorted(frame["model_id"]) == sorted(rows)


def test_the_page_tells_both_kinds(campaign: Campaign, rows: dict[str, Any]) -> None:
    """The page names each model with its result, and the failure with its class and cause."""
    page = (campaign.folder / "COMPATIBILITY.md").read_text()
    for model in rows:
        assert model in page
    assert "unsupported_parallelism" in page


def test_nothing_is_due_again(campaign: Campaign, rows: dict[str, Any]) -> None:
    """What was just published is up to date, the refusal included."""
    told = campaign.plan()
    assert "nothing is planned" in told
    assert told.count("up to date") == len(rows)


def test_publishing_again_changes_no_byte(campaign: Campaign, rows: dict[str, Any]) -> None:
    """The same records give the same files."""
    files = [path for path in campaign.results.rglob("*") if path.is_file()]
    files.append(campaign.folder / "COMPATIBILITY.md")
    before = {path: path.read_bytes() for path in files}
    campaign.publish("--plan", "plan.json")
    assert {path: path.read_bytes() for path in before} == before


def test_the_second_run_compiles_nothing(
    campaign: Campaign, rows: dict[str, dict[str, Any]]
) -> None:
    """Sharded, which is the harder case: graphs are restored, the reference is not asked again."""
    model = DENSE
    slug = model.replace("/", "--")
    campaign.plan("--force", "--select", f"{slug}@*", "--output", "again.json")
    campaign.run("again.json")
    record = _records(campaign, model)[-1]
    assert record.observation and record.observation.all_calls
    assert record.cache == "restored"
    assert record.observation.all_calls.compiled == 0
    assert record.check.reference_cached is True
    tokens = [list(one.tokens) for one in record.observation.generations]
    assert tokens == rows[model]["generated_tokens"]
    assert record.result == "PASS"


def test_a_rows_script_replays_by_hand(
    campaign: Campaign, rows: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Saved and run with nothing of this project in sight, it prints the row's text."""
    model = SLIDING
    (tmp_path / "run.py").write_text(rows[model]["run_py"])
    graphs = tmp_path / "graphs"
    store = campaign.folder / "store" / "inductor-2.13.0"
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


def test_a_killed_harness_makes_its_run_due(campaign: Campaign, rows: dict[str, Any]) -> None:
    """SIGKILL in the middle of a run: the next plan says that it was lost, where, and when."""
    (campaign.folder / "lost").mkdir()
    harness = subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli", "run", SLIDING, "--records", "lost", "--no-store"],
        cwd=campaign.folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not (record := _latest(campaign.folder / "lost")) or record.stage is not Stage.COMPILE:
        assert time.monotonic() < deadline and harness.poll() is None
        time.sleep(0.1)
    harness.send_signal(signal.SIGKILL)
    harness.wait()
    told = campaign.qualify("plan", "--records", "lost")
    (line,) = [line for line in told.splitlines() if SLIDING in line]
    assert "was lost at stage compile" in line

    # Published, the lost run is an ERROR attempt that never replaces the PASS.
    campaign.qualify("publish", "lost")
    assert campaign.rows()[SLIDING]["result"] == "PASS"
    assert "ERROR: lost_runner" in campaign.qualify("plan", "--records", "nothing")


def _latest(records: Path) -> Record | None:
    paths = sorted(records.glob("*/*/record.json"))
    return read(Record, paths[-1]) if paths else None


def test_show_reads_what_was_published(campaign: Campaign, rows: dict[str, Any]) -> None:
    """`qualify show` prints every model, and all that is known of one."""
    told = campaign.qualify("show")
    for model in rows:
        assert model in told
    one = campaign.qualify("show", REAL)
    assert rows[REAL]["generated_text"][0] in one.encode().decode("unicode_escape") or (
        repr(rows[REAL]["generated_text"][0]) in one
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


def test_a_damaged_checkpoint_fails_where_it_should(
    campaign: Campaign, models: Callable[[str], Path], tmp_path: Path
) -> None:
    """Weights that do not fit their config: FAIL at load, with the library's own words."""
    broken = tmp_path / "broken"
    shutil.copytree(models("tiny-qwen3"), broken)
    config = broken / "config.json"
    config.write_text(
        config.read_text().replace('"intermediate_size": 128', '"intermediate_size": 96')
    )
    assert '"intermediate_size": 96' in config.read_text()
    text = (campaign.folder / "models.yaml").read_text()
    head, _, _ = text.partition("models:\n  - id")
    entry = f"models:\n  - id: demo/broken\n    task: text-generation\n    source: {broken}\n"
    (tmp_path / "models.yaml").write_text(head + entry)
    other = Campaign(tmp_path)
    told = other.run("demo/broken")
    record = _latest(tmp_path / "records")
    assert record is not None, told
    assert (record.stage, record.failure) == (Stage.LOAD, "load_error")
    assert record.error and "size" in record.error
