"""What planning starts from: facts about checkpoints, and what results know of each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline import results as store
from pipeline.catalog import Catalog
from pipeline.errors import ResultsError
from pipeline.estimate import Past
from pipeline.hub import CheckpointRef, inspect_all
from pipeline.placement import Checkpoint
from pipeline.plan import Earlier
from pipeline.record import Refusal
from pipeline.results import Row
from pipeline.words import CacheState, Failure, Result, Stage, Target


def facts(
    catalog: Catalog, folder: Path, cache: Path, names: Sequence[str]
) -> dict[str, Checkpoint | Refusal]:
    """Model id -> what its repository holds, or why that cannot be had.

    folder: where the list stands. cache: folder of facts that are kept by commit.
    """
    models = [catalog.model(name) for name in dict.fromkeys(names)]
    refs = [CheckpointRef(model.id, model.directory(folder), model.revision) for model in models]
    found = inspect_all(refs, cache=cache)
    return {model.id: told for model, told in zip(models, found, strict=True)}


def earlier(results: Path) -> dict[str, Earlier]:
    """Run id -> what results/ knows of it; ResultsError when history lacks what current/ holds."""
    if not (results / "current").is_dir():
        return {}
    attempts = store.last_attempts(results)
    newest = {}
    past: dict[str, list[Past]] = {}
    history = store.read_history(results, [*_PAST_COLUMNS, "revision"])
    for row in sorted(history, key=lambda row: row["tested_at"]):
        newest[row["run_id"]] = row
        past.setdefault(row["run_id"], []).append(_past(row))
    columns = [*_PAST_COLUMNS, "revision", "cache_keys"]
    known = {}
    for row in store.read_current(results, columns):
        last = attempts.get(row["run_id"])
        if last is None:
            raise ResultsError(
                f"history holds no attempt of {row['run_id']}, which current/ holds",
                where=str(results),
                remedy="restore history/: current/ is derived from it",
            )
        shown = newest[row["run_id"]] if last.failure is Failure.INCONCLUSIVE else row
        known[row["run_id"]] = Earlier(
            result=Result(row["result"]),
            failure=Failure(row["failure"]) if row["failure"] else None,
            stage=Stage(row["stage"]),
            tested_at=row["tested_at"],
            revision=shown["revision"],
            script_sha256=shown["script_sha256"],
            wall_s=row["wall_s"],
            cache_keys=tuple(row["cache_keys"] or ()),
            last_result=last.result,
            last_failure=last.failure,
            last_stage=last.stage,
            last_at=last.tested_at,
            errors=last.errors,
            past=tuple(past[row["run_id"]]),
        )
    return known


_PAST_COLUMNS = (
    "run_id",
    "tested_at",
    "result",
    "stage",
    "failure",
    "target",
    "script_sha256",
    "checkpoint_bytes",
    "wall_s",
    "compile_s",
    "cache",
)
"""What a row tells of time: estimate.Past."""


def _past(row: Row) -> Past:
    return Past(
        run_id=row["run_id"],
        tested_at=row["tested_at"],
        result=Result(row["result"]),
        stage=Stage(row["stage"]),
        failure=Failure(row["failure"]) if row["failure"] else None,
        target=Target(row["target"]) if row["target"] else None,
        script_sha256=row["script_sha256"],
        checkpoint_bytes=row["checkpoint_bytes"],
        wall_s=row["wall_s"],
        compile_s=row["compile_s"],
        cache=CacheState(row["cache"]) if row["cache"] else None,
    )
