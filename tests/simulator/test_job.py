"""A job of eight mixed models on the stand-in, from the list to rows: two of them are sick, each in
its own way, and the others never notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.record import Plan, Record, find_records, read
from pipeline.rows import row_of
from pipeline.words import Failure, Result, Stage, Target
from tests.simulator.commands import qualify, write_list
from tests.simulator.machine import Machine

pytestmark = pytest.mark.long

MODELS: dict[str, dict[str, Any]] = {
    "tiny-qwen3": {"cores": 2},
    "tiny-llama-3-kv-heads": {},
    "tiny-gemma3": {},
    "tiny-gpt2": {},
    "tiny-mixtral": {"cores": 2, "parallelism": "expert"},
    "tiny-qwen3-moe": {},
    "tiny-gpt-oss": {"cores": 2},
    "tiny-qwen2-5-vl": {"task": "image-text-to-text"},
}
FAULTS = (
    {"fault": "unsupported_operator", "code": "NCC_EVRF013", "where": "tiny-qwen3-moe@"},
    {"fault": "segv", "rank": 1, "where": "tiny-gpt-oss@"},
)
SICK = {
    "tiny-qwen3-moe": (Stage.COMPILE, Failure.UNSUPPORTED_OPERATOR),
    "tiny-gpt-oss": (Stage.COMPILE, Failure.CRASH),
}


@pytest.fixture(scope="module")
def records(
    simulator: Path, models: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Record]:
    """model name -> record, planned and run with the command line on eight cores."""
    folder = tmp_path_factory.mktemp("job")
    entries = []
    for name, wishes in MODELS.items():
        wish: dict[str, Any] = {
            "id": f"tiny/{name}",
            "task": "text-generation",
            "source": str(models(name)),
        }
        entries.append(wish | wishes)
    write_list(folder, models("SmolLM2-135M-Instruct"), 8, *entries)
    machine = Machine(simulator, folder / "machine")
    environment = machine.environment(*FAULTS, cores=8)

    def done(*arguments: str) -> None:
        ended = qualify(machine.python, folder, environment, *arguments)
        assert ended.returncode == 0, (ended.stdout + ended.stderr)[-5000:]

    done("plan", "--output", "plan.json")
    plan = read(Plan, folder / "plan.json")
    assert len(plan.jobs) == 1 and not plan.refused
    done("run", "plan.json", "--store", "graphs", "--records", "records")
    found = [read(Record, path) for path in find_records([folder / "records"])]
    return {record.run.model_id.removeprefix("tiny/"): record for record in found}


def test_eight_true_rows(records: dict[str, Record]) -> None:
    """Every model has one record and one row; six pass, two fail each for its own reason."""
    assert set(records) == set(MODELS)
    for name, record in records.items():
        row = row_of(record)
        said = f"{name}: {record.stage} {record.failure} {record.error}"
        if name in SICK:
            assert (record.stage, record.failure) == SICK[name], said
            assert (row["result"], row["failure"]) == ("FAIL", str(SICK[name][1]))
        else:
            assert (record.result, record.stage) == (Result.PASS, Stage.DONE), said
            assert row["graphs"] == 2 and row["backend_graphs"] == 2
            assert row["cpu_match"] in ("exact", "near_tie")
        assert (row["target"], row["try_reason"], row["tries"]) == ("simulator", "first", [])


def test_the_rows_say_how_they_came_about(records: dict[str, Record]) -> None:
    """Versions are the stand-in's, and what ran beside the graphs is named."""
    for name, record in records.items():
        seen = record.observation
        assert seen is not None and seen.versions.torch_neuronx == "2.13.3.0+simulator", name
        assert record.run.stack.target is Target.SIMULATOR
    picture = row_of(records["tiny-qwen2-5-vl"])
    assert "operator by operator: get_image_features" in picture["notes"]
    assert "operator by operator" not in (row_of(records["tiny-gemma3"])["notes"] or "")


def test_runs_shared_the_machine(records: dict[str, Record]) -> None:
    """At some moment several ran at once, and never two on one core."""
    spans: list[tuple[Any, Any, set[int]]] = [
        (record.started_at, record.tested_at, set(record.core_ids)) for record in records.values()
    ]
    together = [
        (one, other)
        for number, one in enumerate(spans)
        for other in spans[number + 1 :]
        if one[0] < other[1] and other[0] < one[1]
    ]
    assert together
    assert not any(one[2] & other[2] for one, other in together)
