"""Which row is to be reproduced, and what its script says: read, never executed. Pure but for disk.

A row is untrusted: its script is one only if its digest is the one the row names, and what a row
does not hold (the prompt's padding, a local checkpoint) is read from the script's constants.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline import answers, script, stack_names
from pipeline.columns import COLUMNS
from pipeline.errors import NotTried, ResultsError, UsageError
from pipeline.lookup import Lookup
from pipeline.record import Run, StackVersions
from pipeline.rows import GIB, clean
from pipeline.words import Result, RunId, Stage, Target

Row = Mapping[str, Any]

_COLUMNS = tuple(name for name, _, _ in COLUMNS)

_EXPERTS = "_experts"
"""Among a script's constants: whether it names an implementation of experts. No constant has it, as
theirs are upper case."""

_SAME = (
    ("MODEL_ID", "model_id"),
    ("REVISION", "revision"),
    ("DTYPE", "dtype"),
    ("PARALLELISM", "parallelism"),
    ("PROMPTS", "prompts"),
)
"""(constant, column) of what both a script and its row say."""


@dataclass(frozen=True)
class Chosen:
    """A row, whole. others: run ids of the model's other rows that were asked for, newest first."""

    row: Row
    others: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """What a row asks to be replayed. text: its script, of digest `sha256`; run: what that runs."""

    row: Row
    text: str
    sha256: str
    run: Run


# --- which row ------------------------------------------------------------------------------------


def choose(results: Path, model: str, stack: str | None = None) -> Chosen:
    """The row of a model below results/ on the newest stack: those of the device first.

    model: a model id, letter case aside, a glob that only one fits, or a run id. stack: as in
    `stack_names.matches`, None = any.

    UsageError when there is no such row, ResultsError when there are no results.
    """
    lookup = Lookup(results)
    if not lookup.current:
        raise ResultsError(
            "there are no published results",
            where=str(results),
            remedy="name another --results",
        )
    name, key = _named(lookup, model)
    rows = lookup.of_model(name, ["model_id", "run_id"])
    names = sorted({row["model_id"] for row in rows})
    if not rows:
        near = answers.near(lookup, name)
        raise UsageError(
            f"there is no row of {model!r}", remedy=f"did you mean {near}?" if near else ""
        )
    if len(names) > 1:
        raise _ambiguous(model, names)
    by_key = {stack_names.key(row): str(row["run_id"]) for row in rows}
    keys = stack_names.sort_keys(by_key)
    fitting = [
        one
        for one in keys
        if key in ("", one) and (stack is None or stack_names.matches(one, stack))
    ]
    if not fitting:
        raise UsageError(
            f"{names[0]} has no row of stack {stack or key!r}",
            remedy=f"its stacks: {', '.join(keys)}",
        )
    first, *others = (by_key[one] for one in fitting)
    return Chosen(lookup.of_run(first, _COLUMNS), tuple(others))


def _named(lookup: Lookup, model: str) -> tuple[str, str]:
    """(model id, key of a stack or "") that a person's word for a model stands for."""
    if not set(model) & set("*?["):
        return answers.split(model)
    names = [one for one in lookup.model_ids() if fnmatchcase(one.casefold(), model.casefold())]
    if not names:
        raise UsageError(f"no model with a row fits {model!r}")
    if len(names) > 1:
        raise _ambiguous(model, names)
    return names[0], ""


def _ambiguous(model: str, names: list[str]) -> UsageError:
    more = ", ..." if len(names) > 3 else ""
    return UsageError(
        f"{model!r} names {len(names)} models", remedy=f"name one: {', '.join(names[:3])}{more}"
    )


# --- what it asks for -----------------------------------------------------------------------------


def asked(row: Row) -> Asked:
    """What the row asks to be replayed; NotTried, with the reason, when it cannot be."""
    run_id = row["run_id"]
    if row["neuron_cores"] is None and row["stage"] == Stage.PLAN:
        raise NotTried(
            f"{run_id} was refused while planning: {clean(row['error'] or 'no reason is told')}",
            remedy="there is no script to run; qualify doctor --row holds this machine against it",
        )
    if row["result"] == Result.ERROR:
        raise NotTried(
            f"the row of {run_id} is ERROR ({row['failure']}), which says nothing of the model",
            remedy="there is nothing to reproduce; --stack names another row",
        )
    text = row["run_py"]
    if text is None:
        raise NotTried(f"the row of {run_id} has no script")
    sha256 = script.sha256(text)
    if sha256 != row["script_sha256"]:
        raise NotTried(
            f"the script in the row of {run_id} is not the one that ran: its SHA-256 is {sha256}, "
            f"the row names {row['script_sha256'] or 'none'}",
            remedy="nothing was run; take the results from where they were published",
        )
    constants = read_constants(text)
    if constants is None:
        raise NotTried(f"the script in the row of {row['run_id']} cannot be read as Python")
    stack = stack_of(row)
    _hold(row, constants, stack)
    try:
        run = _run(row, constants, stack)
    except ValueError as error:
        raise NotTried(
            f"the row of {run_id} and its script do not make a run: {_short(error)}"
        ) from error
    return Asked(row, text, sha256, run)


def _hold(row: Row, constants: Mapping[str, Any], stack: StackVersions) -> None:
    """NotTried when the script says another thing than the row, so that it would prove another."""
    script_of = f"the script in the row of {row['run_id']} is"
    for name, column in _SAME:
        if (there := constants.get(name)) != row[column]:
            raise NotTried(f"{script_of} of {name} {there!r:.200}, the row of {row[column]!r:.200}")
    if (cores := constants.get("CORES")) != row["neuron_cores"]:
        raise NotTried(
            f"{script_of} for another number of cores, {cores!r:.200}, than the row, "
            f"{row['neuron_cores']}"
        )
    made_for = _made_for(constants)
    for name, version in (
        ("torch", stack.torch),
        (stack.library, stack.library_version),
        ("neuronx-cc", stack.neuronx_cc),
    ):
        if (there := made_for.get(name)) != version:
            raise NotTried(f"{script_of} made for {name} {there!r:.200}, the row for {version!r}")


def stack_of(row: Row) -> StackVersions:
    """The versions that a row's script insists on: what its run id names, and MADE_FOR beside that.

    Of a row without its script, what the run id names. NotTried when that is no stack.
    """
    text = row["run_py"]
    its_own = text is not None and script.sha256(text) == row["script_sha256"]
    made_for = _made_for((its_own and read_constants(text)) or {})
    try:
        run = RunId.parse(row["run_id"])
        target = Target(row["target"])
        fields = {
            "name": stack_names.key(row)[:200],  # the list's own name is in no row
            "target": target,
            "library": run.library,
            "library_version": run.library_version,
            "torch": run.torch,
            "neuronx_cc": None if target is Target.CPU else run.compiler_version,
            "torch_neuronx": made_for.get("torch-neuronx"),
            "nki": made_for.get("nki"),
            "runtime": made_for.get("runtime"),
            "driver": made_for.get("neuron-driver"),
            "python": made_for.get("python"),
        }
        return StackVersions.model_validate(fields)
    except ValueError as error:
        raise NotTried(f"the row of {row['run_id']} names no stack: {_short(error)}") from error


def _run(row: Row, constants: Mapping[str, Any], stack: StackVersions) -> Run:
    """The run that a script is of; ValueError when row and script do not make one.

    What only planning knew and nothing of a replay reads stands at the least there can be.
    """
    estimated = 0 if row["estimated_gb"] is None else round(row["estimated_gb"] * GIB)
    seconds = max(1, row["wall_s"] or 1)
    fields = {
        "run_id": row["run_id"],
        "model_id": row["model_id"],
        "source": constants.get("SOURCE"),
        "revision": row["revision"],
        "task": row["task"],
        "model_type": row["model_type"],
        "parameters": row["parameters"],
        "checkpoint_bytes": row["checkpoint_bytes"],
        "stack": stack,
        "runner": row["runner"],
        "core_bytes": round((row["hbm_capacity_gb"] or 0) * GIB),
        "placement": {
            "cores": row["neuron_cores"],
            "parallelism": row["parallelism"],
            # Rows hold the sum alone.
            "weight_bytes": estimated,
            "cache_bytes": 0,
            "margin_bytes": 0,
            "reason": "as in the row",
        },
        "refusal": None,
        "dtype": row["dtype"],
        "new_tokens": constants.get("NEW_TOKENS"),
        "prompts": constants.get("PROMPTS"),
        "prefill_chunk": constants.get("PREFILL_CHUNK"),
        "mixture_of_experts": constants[_EXPERTS],
        "extra_packages": row["extra_packages"] or (),
        "limit_s": seconds,
        "estimated_s": seconds,
        "script_sha256": row["script_sha256"],
        "reason": "a row is reproduced",
        "cache_keys": row["cache_keys"] or (),
    }
    return Run.model_validate(fields)


# --- what a script says ---------------------------------------------------------------------------


def read_constants(text: str) -> dict[str, Any] | None:
    """The upper-case names that a script assigns literals to, and to which it does nothing else at
    its top level, in a branch or otherwise; and `_experts`.

    `_experts` is whether an implementation of experts is named, which a check on the CPU needs to
    know. None when the text is not Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    found: dict[str, Any] = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.isupper():
                try:
                    found[name] = ast.literal_eval(value)
                except (SyntaxError, TypeError, ValueError, MemoryError, RecursionError):
                    found.pop(name, None)  # what counts is the last, and it is not known
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                pass  # names of their own
            case _:
                for node in ast.walk(statement):
                    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                        found.pop(node.id, None)
    found[_EXPERTS] = any(
        isinstance(node, ast.keyword) and node.arg == "experts_implementation"
        for node in ast.walk(tree)
    )
    return found


def _made_for(constants: Mapping[str, Any]) -> Mapping[str, Any]:
    made_for = constants.get("MADE_FOR")
    return made_for if isinstance(made_for, dict) else {}


def _short(error: Exception) -> str:
    if isinstance(error, ValidationError):
        faults = error.errors(include_url=False, include_input=False)
        return "; ".join(f"{fault['loc'][-1:]}: {fault['msg']}" for fault in faults[:3])
    return f"{type(error).__name__}: {error}"[:300]
