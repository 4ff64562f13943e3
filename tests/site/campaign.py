"""What the tests' site is made of: every result, reading and list, on two stacks and a CPU's."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pipeline import rankings
from pipeline.outside import OutsideRow
from pipeline.publish import publish
from pipeline.rankings import Ranked, Ranking, Snapshot
from pipeline.record import Record, Run, StackVersions
from pipeline.words import Failure, Parallelism, Stage, Target, Task
from tests import papers

NEW = papers.stack()
OLD = papers.stack(neuronx_cc="2.27.5121.0", library_version="5.23.0", torch="2.13.0")
CPU = papers.stack(Target.CPU, torch="2.13.0")

FILLERS = 42
"""Wanted models without a result, so that the list has more than one page."""

WANTED = (
    papers.Wanted("Qwen/Qwen3-0.6B"),
    papers.Wanted("Qwen/Qwen3-32B"),
    papers.Wanted("meta-llama/Llama-3.1-8B"),
    papers.Wanted("mistralai/Mistral-7B-v0.3"),
    papers.Wanted("openai/gpt-oss-20b"),
    papers.Wanted("old/stale-model"),
    papers.Wanted("only/on-cpu"),
    papers.Wanted("google/gemma-3-4b-it", "image-text-to-text"),
    *(papers.Wanted(f"filler/model-{number:02}") for number in range(FILLERS)),
)
EXCLUDED = (
    papers.Banned("microsoft/gpu-only"),
    papers.Banned(
        "tired/superseded", "not_prioritised", note="its successor is listed", issue=None
    ),
)


OUTSIDE = (
    OutsideRow(
        model_id="Qwen/Qwen3-0.6B",
        result="WORKS <b>fine</b>",
        library="transformers",
        library_version="5.1.0",
        neuronx_cc="2.26.0",
        torch_neuronx=None,
        cores=8,
        runner=None,
        notes=None,
        error=None,
        tested_at=papers.day(-90),
        dataset="somebody/else",
    ),
)
"""What others say of one of them."""


def _passing(
    model: str, at: datetime, on: StackVersions = NEW, cores: int = 1, **run: str
) -> Record:
    """PASS on so many cores."""
    return _spread(papers.run(model, stack=on, placement=papers.placement(cores), **run), at)


def _spread(asked: Run, at: datetime) -> Record:
    """PASS of a run, with the memory of each of its cores counted."""
    record = papers.passing(asked, at)
    if record.observation is None or asked.placement is None or asked.stack.target is Target.CPU:
        return record
    peaks = (3 * papers.GIB // 2,) * asked.placement.cores
    counted = record.observation.model_copy(update={"device_peak_bytes": peaks})
    return record.model_copy(update={"observation": counted})


def _slower(record: Record, seconds: float) -> Record:
    return record.model_copy(update={"wall_s": record.wall_s + seconds if record.wall_s else None})


def records() -> list[Record]:
    """One for each result that the site shows."""
    now, before = papers.day(0), papers.day(-20)
    experts = papers.run(
        "openai/gpt-oss-20b",
        model_type="gpt_oss",
        placement=papers.placement(4, parallelism=Parallelism.EXPERT),
    )
    llama = papers.run("meta-llama/Llama-3.1-8B", model_type="llama")
    return [
        _passing("Qwen/Qwen3-0.6B", now),
        _slower(_passing("Qwen/Qwen3-0.6B", before, OLD), 400),
        _passing("Qwen/Qwen3-32B", now, cores=8),
        papers.failing(
            papers.run("Qwen/Qwen3-32B", stack=OLD),
            before,
            Failure.DEVICE_OUT_OF_MEMORY,
            Stage.LOAD,
        ),
        papers.failing(llama, now),
        _passing("meta-llama/Llama-3.1-8B", before, OLD, model_type="llama"),
        papers.erring(papers.run("mistralai/Mistral-7B-v0.3", model_type="mistral"), now),
        _passing("mistralai/Mistral-7B-v0.3", before, OLD, model_type="mistral"),
        _spread(experts, now),
        _passing("old/stale-model", papers.day(-60)),
        _passing("only/on-cpu", now, CPU),
        _passing("gone/from-the-list", before),
        papers.passing(
            papers.run("google/gemma-3-4b-it", task=Task.IMAGE_TEXT_TO_TEXT, model_type="gemma3"),
            now,
        ),
    ]


def _ranked(rank: int, model: str) -> Ranked:
    nothing = dict.fromkeys(
        ("likes", "trending_score", "library_name", "gated", "parameters"), None
    )
    return Ranked.model_validate({"rank": rank, "id": model, "downloads": 1000 - rank, **nothing})


def _snapshot(ranking: Ranking, *models: str) -> Snapshot:
    rows = tuple(_ranked(rank, model) for rank, model in enumerate(models, 1))
    return Snapshot(task=Task.TEXT_GENERATION, ranking=ranking, taken_at=papers.day(0), rows=rows)


def publish_campaign(folder: Path) -> None:
    """Publish it into `folder`: results/ with rankings and wishes, and COMPATIBILITY.md."""
    publish(
        [papers.save(folder.with_name("records"), records())],
        results=folder / "results",
        table=folder / "COMPATIBILITY.md",
        catalog_view=papers.View(WANTED, EXCLUDED),
        plan=None,
        now=papers.day(0),
        max_age_days=30,
    ).check()
    rankings.store(
        folder / "results",
        [
            _snapshot(Ranking.TRENDING, "hub/only-ranked", "Qwen/Qwen3-32B", "Qwen/Qwen3-0.6B"),
            _snapshot(Ranking.DOWNLOADS, "Qwen/Qwen3-0.6B", "microsoft/gpu-only", "hub/downloaded"),
        ],
    )
