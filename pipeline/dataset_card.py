"""The card (README.md) of the dataset of results: made from the schema, the words and the rows.

The same rows give the same card. What is configured in its head decides what the Hub's viewer
shows, and which rows a reader gets who names no file: those of Trainium and those of the CPU are
apart, since the second say nothing of the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import pyarrow as pa

from pipeline import stack_names
from pipeline.markdown import table
from pipeline.rows import COLUMNS, Row
from pipeline.words import (
    CacheState,
    CpuMatch,
    English,
    Failure,
    Parallelism,
    Result,
    Stage,
    Target,
    TryReason,
)

LICENCE = "apache-2.0"
"""The project's own (pyproject.toml): each row holds the script that ran, which is made from the
project's template, so that another licence for the rows would part a row from its own script. It
is also that of the public dataset whose columns come first."""

_TRAINIUM = "neuronxcc"
"""How run ids and folders name the compiler of the target neuron."""

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
"""Upper bounds of the Hub's size categories, of rows."""

MEANINGS: Mapping[str, Mapping[StrEnum, str]] = {
    "result": {
        Result.PASS: "the checkpoint loaded, compiled, generated and passed its output check",
        Result.FAIL: "it did not, and the failure class speaks of the model on this stack",
        Result.ERROR: "something else broke, or the output check could not decide: says nothing "
        "of the model",
    },
    "stage": {
        Stage.PLAN: "before anything ran: the run was refused, or left no record",
        Stage.DOWNLOAD: "installed versions are checked and the checkpoint is downloaded",
        Stage.LOAD: "from_pretrained loads the checkpoint",
        Stage.COMPILE: "the first call of generate(), which compiles the graphs or takes them "
        "from the cache",
        Stage.GENERATE: "the same call again, then one call for each other prompt",
        Stage.CHECK: "the output check, on the machine's CPU",
        Stage.DONE: "the end: only a PASS gets here",
    },
    "failure": {failure: f"{failure.result}: {failure.meaning}" for failure in Failure},
    "cpu_match": {
        CpuMatch.EXACT: "every token is the first choice of the same checkpoint on the CPU, "
        "without compilation, and all differences are those of rounding",
        CpuMatch.NEAR_TIE: "the same, but some tokens are ties: as close to the first choice as "
        "rounding",
        CpuMatch.INCONCLUSIVE: "the differences are too large for rounding and too small for a "
        "certain fault",
        CpuMatch.MISMATCH: "a token, or the log-probabilities, are further off than rounding "
        "explains",
        CpuMatch.NOT_RUN: "there was no comparison",
    },
    "english": {
        English.FLUENT: "a small language model finds the text to be fluent English; it sees "
        "gross faults only, so this is weaker evidence than exact or near_tie",
        English.NOT_FLUENT: "it does not",
        English.INCONCLUSIVE: "it could not decide",
        English.NOT_RUN: "it was not needed, or could not run",
    },
    "cache": {
        CacheState.COLD: "no compiled graph came from the cache",
        CacheState.RESTORED: "all came from the cache; nothing was compiled, so that compile_s and "
        "wall_s are short",
        CacheState.PARTIAL: "some came from the cache, some were compiled",
    },
    "parallelism": {
        Parallelism.NONE: "one core holds the model",
        Parallelism.TENSOR: "each core holds a part of every layer",
        Parallelism.EXPERT: "experts are spread over the cores, and the rest as in tensor",
    },
    "target": {
        Target.NEURON: "a Trainium device, through torch.compile(backend='neuron')",
        Target.CPU: "the same script with PyTorch's own compiler on a CPU: says nothing of "
        "Trainium",
    },
    "try_reason": {
        TryReason.FIRST: "it was the only try",
        TryReason.OTHER_CORES: "the one before failed for the machine's sake, or might have",
        TryReason.MORE_CORES: "the one before ran out of a core's memory",
        TryReason.CLEAN_CACHE: "a compiled graph or the compiler failed in a way that may pass",
        TryReason.ALONE: "the host's memory did not hold the one before beside other runs",
    },
}
"""Column -> each of its values -> what it means. `simulator` is no value: such rows are refused."""


def of_trainium(run_id: str) -> bool:
    """Whether a run is of the target neuron, by the folder that its run id puts its row in."""
    return stack_names.on_device(run_id.partition("@")[2])


def configs(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The Hub's `configs` for these current rows; the first is the one shown unasked.

    A pattern that matches nothing would break the viewer, so each stands only where it has files.
    """
    here = {of_trainium(row["run_id"]) for row in rows}
    found = []
    if True in here:
        found.append({"config_name": "current", "data_files": f"current/{_TRAINIUM}-*/*.parquet"})
    if False in here:
        found.append({"config_name": "cpu", "data_files": "current/inductor-*/*.parquet"})
    found.append({"config_name": "history", "data_files": "history/*.parquet"})
    return [{**config, "default": True} if config is found[0] else config for config in found]


def card(rows: Sequence[Row], repo_id: str, publications: int) -> str:
    """README.md. rows: the current ones, at least one; publications: files of history."""
    import yaml

    from pipeline.script import environment

    head = {
        "license": LICENCE,
        "language": ["en"],
        "pretty_name": "Transformers models on AWS Trainium2",
        "size_categories": [_size(len(rows))],
        "tags": ["trainium", "neuron", "transformers", "compatibility"],
        "configs": configs(rows),
    }
    targets = [target for target in Target if any(row["target"] == target for row in rows)]
    return (
        environment()
        .get_template("dataset_card.md.jinja")
        .render(
            head=yaml.safe_dump(head, sort_keys=False, allow_unicode=True).rstrip(),
            repo_id=repo_id,
            url=f"hf://datasets/{repo_id}",
            target=targets[0],
            has_trainium=Target.NEURON in targets,
            has_cpu=Target.CPU in targets,
            configs=[config["config_name"] for config in configs(rows)],
            publications=publications,
            state=_state(rows, targets),
            newest=f"{max(row['tested_at'] for row in rows):%Y-%m-%d}",
            columns=_columns(),
            values=[(name, _values(meanings)) for name, meanings in MEANINGS.items()],
        )
    )


def _size(rows: int) -> str:
    return next((name for bound, name in SIZES if rows < bound), "n>1M")


def _state(rows: Sequence[Row], targets: Sequence[Target]) -> str:
    """How many rows there are of each target and stack, by result."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    labels = {}
    for row in rows:
        key = (row["target"], stack_names.key(row))
        counts.setdefault(key, Counter())[row["result"]] += 1
        labels[key] = stack_names.label(row)
    order = {stack: at for at, stack in enumerate(stack_names.newest_first(rows))}
    lines = [
        (f"`{key[0]}`", labels[key], *(str(counts[key][result]) for result in Result))
        for target in targets
        for key in sorted(counts, key=lambda key: order[key[1]])
        if key[0] == target
    ]
    return table(("target", "stack", *Result), lines)


def _columns() -> str:
    return table(
        ("column", "type", "meaning"),
        ((f"`{name}`", _kind(kind), text.replace("|", r"\|")) for name, kind, text in COLUMNS),
    )


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_kind(kind.value_type)}"
    if pa.types.is_struct(kind):
        return "struct of " + ", ".join(field.name for field in kind)
    return str(kind)


def _values(meanings: Mapping[StrEnum, str]) -> str:
    return table(("value", "meaning"), ((f"`{value}`", text) for value, text in meanings.items()))
