"""data/index.json and data/figures.json: the rows as columns, for the pages that a script draws.

One is fetched by every reader, once, so it holds only what the first view and its selectors need;
the other is for charts and comparisons. Same models and rows, in the same order, in both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from pipeline.outside import OutsideRow
from pipeline.rankings import Ranking
from pipeline.readings import stale
from pipeline.site.gather import Facts, Model
from pipeline.wishes import Wish

VERSION = 1
BASE_DAY = date(2020, 1, 1)
"""Days are counted from here: no result of this project is older."""

_WISHES = {"not_prioritised": "n", "incompatible": "i"}
_SPLITS = {"none": "n", "tensor": "t", "expert": "e"}
_RESULTS = {"PASS": "P", "FAIL": "F", "ERROR": "E"}

Row = Mapping[str, Any]


def index(facts: Facts) -> bytes:
    """data/index.json. Numbers stand for what is in the lists; -1, or 0 for cores: not known."""
    tasks = sorted({model.task for model in facts.models})
    types = sorted({model.model_type for model in facts.models if model.model_type})
    failures = sorted({row["failure"] for row in facts.rows if row["failure"]})
    runs = sorted({row["run_url"] for row in facts.rows if row["run_url"]})
    at_task, at_type, at_failure, at_run = map(_places, (tasks, types, failures, runs))
    at_stack = _places([stack.key for stack in facts.stacks])
    notes = {
        str(place): model.wish.note
        for place, model in enumerate(facts.models)
        if model.wish and model.wish.note
    }
    lines = [
        (place, at_stack[stack], row)
        for place, model in enumerate(facts.models)
        for stack, row in model.rows.items()
    ]
    rows = [row for _, _, row in lines]
    first = _first_days(rows)
    return _json(
        {
            "version": VERSION,
            "generated": facts.generated,
            "max_age_days": facts.max_age_days,
            "base_day": BASE_DAY.isoformat(),
            "stacks": [
                {
                    "key": stack.key,
                    "label": stack.label,
                    "target": stack.target,
                    "compiler": stack.compiler,
                    "compiler_version": stack.compiler_version,
                    "library": stack.library,
                    "library_version": stack.library_version,
                    "torch": stack.torch,
                }
                for stack in facts.stacks
            ],
            "tasks": tasks,
            "types": types,
            "failures": failures,
            "runs": runs,
            "run_days": [first[run] for run in runs],
            "models": {
                "id": [model.id for model in facts.models],
                "task": [at_task[model.task] for model in facts.models],
                "type": [at_type.get(model.model_type or "", -1) for model in facts.models],
                "wish": "".join(_wish(model.wish) for model in facts.models),
                "note": notes,
                "trending": [model.rank(Ranking.TRENDING) for model in facts.models],
                "downloads": [model.rank(Ranking.DOWNLOADS) for model in facts.models],
            },
            "rows": {
                "model": [place for place, _, _ in lines],
                "stack": [stack for _, stack, _ in lines],
                "result": "".join(_RESULTS[row["result"]] for row in rows),
                "failure": [at_failure.get(row["failure"], -1) for row in rows],
                "cores": [row["neuron_cores"] or 0 for row in rows],
                "split": "".join(_SPLITS.get(row["parallelism"] or "", "-") for row in rows),
                "day": [day(row["tested_at"]) - first.get(row["run_url"], 0) for row in rows],
                "wall": [_shown(row["wall_s"]) for row in rows],
                "run": [at_run.get(row["run_url"], -1) for row in rows],
                **_moved(lines, facts),
            },
            **_also(facts.models),
        }
    )


def _first_days(rows: Iterable[Row]) -> dict[str, int]:
    """Workflow run -> the day of its first row: what the days of its rows are counted from.

    Nearly all of them are then 0, which is an eighth of what such an index costs over the wire.
    """
    first: dict[str, int] = {}
    for row in rows:
        if row["run_url"]:
            at = day(row["tested_at"])
            first[row["run_url"]] = min(at, first.get(row["run_url"], at))
    return first


def _shown(seconds: int | None) -> int:
    """Seconds as finely as the first view shows them: from 100 s on whole minutes; -1: not known.

    What nobody sees would be a tenth of the index. data/figures.json has them exactly.
    """
    if seconds is None:
        return -1
    return seconds if seconds < 100 else (seconds + 30) // 60 * 60


def _moved(lines: Iterable[tuple[int, int, Row]], facts: Facts) -> dict[str, list[int]]:
    """Places of the rows whose revision is not the wanted one; nothing where there is none."""
    found = [
        at
        for at, (model, _, row) in enumerate(lines)
        if stale(row, facts.now, None, wish=facts.models[model].wish)
    ]
    return {"moved": found} if found else {}


def figures(facts: Facts) -> bytes:
    """data/figures.json. parameters: millions. *_s: seconds; memory: GiB; -1: not known."""
    rows = [row for model in facts.models for row in model.rows.values()]
    sizes = [_parameters(model.rows.values()) for model in facts.models]
    return _json(
        {
            "version": VERSION,
            "models": {"parameters": sizes},
            "rows": {
                "wall": [_number(row["wall_s"], 0) for row in rows],
                "download": [_number(row["download_s"], 1) for row in rows],
                "load": [_number(row["load_s"], 1) for row in rows],
                "compile": [_number(row["compile_s"], 1) for row in rows],
                "generate": [_number(row["generate_s"], 3) for row in rows],
                "tokens_per_s": [_number(row["tokens_per_s"], 1) for row in rows],
                "hbm": [_number(row["hbm_peak_gb"], 2) for row in rows],
                "runtime": [_number(row["runtime_peak_gb"], 2) for row in rows],
            },
        }
    )


def day(at: datetime) -> int:
    """Days from BASE_DAY to the day, UTC, of a moment."""
    return (at.astimezone(UTC).date() - BASE_DAY).days


def _also(models: Sequence[Model]) -> dict[str, Any]:
    """What others say of the same models, apart from the rows: their words, their versions."""
    said = [(place, one) for place, model in enumerate(models) for one in model.outside]
    if not said:
        return {}
    results = sorted({one.result for _, one in said})
    stacks = sorted({outside_stack(one) for _, one in said})
    datasets = sorted({one.dataset for _, one in said})
    at_result, at_stack, at_dataset = map(_places, (results, stacks, datasets))
    return {
        "also_results": results,
        "also_stacks": stacks,
        "also_datasets": datasets,
        "also": {
            "model": [place for place, _ in said],
            "stack": [at_stack[outside_stack(one)] for _, one in said],
            "result": [at_result[one.result] for _, one in said],
            "dataset": [at_dataset[one.dataset] for _, one in said],
            "cores": [one.cores or 0 for _, one in said],
            "day": [day(one.tested_at) if one.tested_at else -1 for _, one in said],
        },
    }


def outside_stack(row: OutsideRow) -> str:
    """The versions that somebody else's row names, in our order; "" when it names none."""
    named = (
        ("neuronx-cc", row.neuronx_cc),
        (row.library or "library", row.library_version),
        ("torch-neuronx", row.torch_neuronx),
    )
    return ", ".join(f"{name} {version}" for name, version in named if version)


def _wish(wish: Wish | None) -> str:
    if wish is None:
        return "-"
    return _WISHES.get(wish.reason or "", "n") if wish.excluded else "w"


def _parameters(rows: Iterable[Row]) -> float:
    """Of the first row that says it."""
    known = (row["parameters"] for row in rows if row["parameters"] is not None)
    return next((_rounded(number / 1e6, 1) for number in known), -1)


def _number(value: float | None, digits: int) -> float:
    return -1 if value is None else _rounded(value, digits)


def _rounded(value: float, digits: int) -> float:
    """Without a useless ".0", which would be a third of such a file."""
    short = round(value, digits)
    return int(short) if short == int(short) else short


def _places(values: Sequence[str]) -> dict[str, int]:
    return {value: place for place, value in enumerate(values)}


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
