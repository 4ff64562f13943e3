"""Published rows in a terminal of 80 columns and more: as a table, by cause, with all fields."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pipeline import diagnosis, phrases, stack_names
from pipeline import results as store
from pipeline.answers import jsonable
from pipeline.errors import ResultsError, UsageError
from pipeline.lines import columns as columns  # other commands print tables with it, too
from pipeline.lines import plain_line, printable, wrapped
from pipeline.stack_names import newness
from pipeline.words import CpuMatch, Failure, Target

Row = Mapping[str, Any]

_LEFT_OUT = (
    *("run_py", "cache_keys", "generated_tokens", "prompts", "generated_text"),
    *("model_id", "result", "tp", "exclusion"),
)
"""Fields that the details tell otherwise or leave to --json; tp is neuron_cores again."""

_LISTED = ("findings", "tries", "cpu_fallback_ops")
_VALUE = 300
"""Characters shown of a field among a row's details."""

_TEXT = 4_000
"""Characters shown of a prompt or a text: 32 tokens of prose are about 150."""

_LINES = 3
"""Lines that a cause may take below its row."""


def rows(results: Path, model: str | None, stack: str = "") -> list[Row]:
    """Current rows, all or those that `model` names: a model id, run id or glob, case aside.

    stack: only those of stacks that it names (`stack_names.matches`); "" = of any. UsageError when
    there are none.
    """
    found = store.read_current(results)
    if not found:
        raise ResultsError(
            "there are no published results", where=str(results), remedy="name another --results"
        )
    if stack:
        keys = stack_names.newest_first(found)
        found = [row for row in found if stack_names.matches(stack_names.key(row), stack)]
        if not found:
            raise UsageError(
                f"no result is of a stack {stack!r}",
                remedy="\n  ".join(("there are results of:", *keys)),
            )
    if model is None:
        return list(found)
    wanted = model.casefold()
    chosen: list[Row] = [
        row
        for row in found
        if any(fnmatchcase(str(row[name]).casefold(), wanted) for name in ("model_id", "run_id"))
    ]
    if not chosen:
        from difflib import get_close_matches

        names = {str(row["model_id"]).casefold(): str(row["model_id"]) for row in found}
        near = get_close_matches(wanted.split("@")[0].replace("--", "/"), names, n=1, cutoff=0.5)
        raise UsageError(
            f"no result for {model!r}: untested, which says nothing of the model",
            remedy=f"did you mean {names[near[0]]}?" if near else "",
        )
    return chosen


def plain(row: Row) -> dict[str, Any]:
    """A row as JSON types: times in ISO 8601, UTC."""
    return {name: jsonable(value) for name, value in row.items()}


# --- the table ----------------------------------------------------------------------------------

_MEMORY = "GiB tensors/runtime"
_CELLS: dict[str, Callable[[Row], str]] = {
    "model": lambda row: str(row["model_id"]),
    "result": lambda row: str(row["result"]),
    "tested": lambda row: f"{row['tested_at']:%Y-%m-%d}",
    "cores": lambda row: _cores(row),
    "seconds": lambda row: "-" if row["wall_s"] is None else f"{row['wall_s']:.0f}",
    _MEMORY: lambda row: _memory(row),
    "graphs": lambda row: "-" if row["graphs"] is None else str(row["graphs"]),
    "cache": lambda row: str(row["cache"] or "-"),
    "check": lambda row: _check(row),
}
_FIRST_TO_GO = ("cache", "graphs", "seconds", _MEMORY, "tested")
"""Columns that a narrow terminal does without, in this order."""


def table(found: Sequence[Row], width: int = 120) -> str:
    """A line of at most `width` characters a row: what happened, when, on what.

    Below it stands what needs words: earlier tries, operators that the host ran, and the cause
    where it did not pass. Rows of several stacks are grouped by stack, the newest first. Columns
    that find no room are named at the end.
    """
    names = list(_CELLS)
    lines = columns([names, *([_CELLS[name](row) for name in names] for row in found)])
    for dropped in _FIRST_TO_GO:
        if max(map(len, lines)) <= width:
            break
        names.remove(dropped)
        lines = columns([names, *([_CELLS[name](row) for name in names] for row in found)])
    below = dict(zip(map(id, found), lines[1:], strict=True))
    told = [lines[0]]
    stacks = _by_stack(found)
    for stack, group in stacks.items():
        told += ["", f"{stack}:"] if len(stacks) > 1 else []
        for row in group:
            told += [below[id(row)], *_remarks(row, width)]
    missing = [name for name in _CELLS if name not in names]
    if missing:
        hint = f"no room for {', '.join(missing)}: see a wider terminal, one model, or --json"
        told += ["", *textwrap.wrap(hint, width)]
    return "\n".join(told)


def _by_stack(found: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by the name of their stack and target: Trainium first, then the newest."""
    newest = sorted(found, key=lambda row: newness(str(row["run_id"])), reverse=True)
    newest.sort(key=lambda row: row["target"] != Target.NEURON)
    stacks: dict[str, list[Row]] = {}
    for row in newest:
        stacks.setdefault(_stack(row), [])
    for row in sorted(found, key=lambda row: str(row["model_id"]).casefold()):
        stacks[_stack(row)].append(row)
    return stacks


def _stack(row: Row) -> str:
    return f"{row['target']}, {', '.join(phrases.stack(str(row['run_id'])))}"


def _remarks(row: Row, width: int) -> Iterator[str]:
    """What stands below a row's line, each remark in at most `_LINES` lines."""
    why = phrases.cause(row)
    host = phrases.host_operators(row)
    for remark in (
        phrases.tries(row),
        f"operators on the host: {host}" if host not in ("-", "none") else "",
        f"{row['failure']} at {row['stage']}: {why}" if row["failure"] else "",
    ):
        yield from wrapped(remark, width, "    ", _LINES)


def _cores(row: Row) -> str:
    cores = row["neuron_cores"]
    return "-" if cores is None else f"{cores} {row['parallelism']}" if cores > 1 else "1"


def _memory(row: Row) -> str:
    """The device's by both counts; the host's where nobody counted on a device."""
    counts = (row["hbm_peak_gb"], row["runtime_peak_gb"])
    if counts == (None, None):
        return "-" if row["host_peak_gb"] is None else f"{row['host_peak_gb']:.1f} host"
    return "/".join("-" if peak is None else f"{peak:.1f}" for peak in counts)


def _check(row: Row) -> str:
    """The words of both columns; the one that both have says of which it is."""
    tokens, english = row["cpu_match"], row["english"]
    if tokens == CpuMatch.INCONCLUSIVE:
        tokens = f"tokens {tokens}"
    found = (tokens, english)
    return ", ".join(str(word) for word in found if word not in (None, "not_run")) or "-"


# --- one row ------------------------------------------------------------------------------------

_FIRST = (
    "run_id",
    "stage",
    "failure",
    "error",
    "signature",
    "findings",
    "tries",
    "cpu_match",
    "max_gap",
    "departure",
    "noise",
    "check",
    "english",
    "cpu_fallback_ops",
    "target",
    "neuron_cores",
    "parallelism",
    "core_ids",
    "notes",
    "hbm_peak_gb",
    "runtime_peak_gb",
    "runtime_peak_source",
    "hbm_capacity_gb",
    "estimated_gb",
)
"""Fields that people look for come first, then the others in the order of the schema."""

_ASIDE = {
    "hbm_peak_gb": "tensors only, by the allocator's count",
    "runtime_peak_gb": "code and buffers too, by the runtime's count",
    "host_peak_gb": "the machine's own memory",
    "estimated_gb": "what the plan expected",
}


def details(row: Row, width: int = 120) -> str:
    """Every field that is known, long ones shortened or left to --json; then prompts and texts."""
    lines = [f"{row['model_id']}: {row['result']}"]
    fields = plain(row)
    for name in dict.fromkeys((*_FIRST, *fields)):
        value = fields[name]
        if name in _LISTED:
            lines += _listed(row, name, width)
        elif value is not None and name not in _LEFT_OUT:
            aside = f" ({_ASIDE[name]})" if name in _ASIDE else ""
            lines += wrapped(f"{name}: {printable(_text(value), _VALUE)}{aside}", width, "  ")
        if name == "signature":
            lines += _advice(row, width)
    keys = row["cache_keys"]
    lines.append(f"  cache_keys: {len(keys) if keys else 0} entries")
    if command := phrases.fetch_graphs(row):
        # Not wrapped: it is there to be copied.
        lines += ["  to fetch them:", f"    {printable(command, len(command))}"]
    for prompt, text in zip(row["prompts"] or (), row["generated_text"] or (), strict=False):
        lines.append(plain_line(f"  {prompt[:_TEXT]!r}"))
        lines.append(plain_line(f"    {text[:_TEXT]!r}"))
    return "\n".join(lines)


def _advice(row: Row, width: int) -> Iterator[str]:
    """What is known of the row's signature."""
    if signature := diagnosis.known(row["signature"]):
        yield from wrapped(f"means: {signature.meaning}", width, "    ")
        yield from wrapped(f"do: {signature.remedy}", width, "    ")


def _listed(row: Row, name: str, width: int) -> Iterator[str]:
    """A list of which absence means "nobody knows" and emptiness "none"."""
    values = row[name]
    if name == "cpu_fallback_ops":
        told = phrases.host_operators(row)
        if told != "-":
            told = ", ".join(values) if values else told
            yield from wrapped(f"{name}: {printable(told, _VALUE)}", width, "  ")
    elif not values:
        if values is not None:
            yield f"  {name}: none"
    else:
        yield f"  {name}:"
        for value in values:
            told = value if name == "findings" else _try(value)
            yield from wrapped(printable(told, _VALUE), width, "    ")


def _try(earlier: Row) -> str:
    """An earlier try in one line: why it was made, on what, and what it ended in."""
    cores = earlier["cores"]
    split = f" {earlier['parallelism']}" if cores > 1 else ""
    known = [
        f"{earlier['wall_s']:.0f} s" if earlier["wall_s"] is not None else "",
        f"cache {earlier['cache']}" if earlier["cache"] else "",
        str(earlier["signature"] or ""),
    ]
    told = ", ".join(filter(None, known))
    return (
        f"{earlier['reason']}, {cores}{split} core{'' if cores == 1 else 's'}: {earlier['result']} "
        f"at {earlier['stage']}, {earlier['failure']}{f' ({told})' if told else ''}: "
        f"{earlier['error']}"
    )


# --- failures -----------------------------------------------------------------------------------

_NOT_BY_TEXT = frozenset(
    {
        Failure.TOO_LARGE,
        Failure.UNSUPPORTED_PARALLELISM,
        Failure.UNSUPPORTED_CHECKPOINT,
        Failure.LOST_RUNNER,
        Failure.WRONG_TOKENS,
        Failure.NOT_FLUENT,
        Failure.INCONCLUSIVE,
    }
)
"""Classes that the planner, the output check or absence gives: there no signature is missing."""


def failures(found: Sequence[Row], width: int = 120) -> str:
    """One line for each cause of what did not pass, the most frequent first; below it what to do.

    Where no signature knows the cause, that is to write one.
    """
    groups = diagnosis.groups(found)
    if not groups:
        return f"all of {len(found)} results passed"
    failed = sum(group.count for group in groups)
    lines = [f"{failed} of {len(found)} results did not pass; causes: {len(groups)}"]
    for group in groups:
        lines += ["", *_group(group, width)]
    return "\n".join(lines)


def _group(group: diagnosis.FailureGroup, width: int) -> Iterator[str]:
    failure = Failure(group.failure)
    known = diagnosis.known(group.signature) is not None
    wanted = not known and failure not in _NOT_BY_TEXT
    name = f", {group.signature}" if known or wanted else ""
    line = f": {group.line}" if group.line else ""
    head = f"{group.count} x {failure.result} {failure}{name}{line}"
    yield from wrapped(head, width, "", _LINES)
    for head, told in (
        ("models", ", ".join(group.models)),
        ("stacks", ", ".join(group.stacks)),
        ("means", group.meaning),
        ("do", diagnosis.ASK if wanted else group.remedy),
    ):
        yield from wrapped(f"{head}: {told}" if told else "", width, "    ", _LINES)
    if group.source:  # not wrapped: it is there to be followed
        yield f"    see: {printable(group.source, _VALUE)}"


def plain_failures(found: Sequence[Row]) -> list[dict[str, Any]]:
    """The same groups as JSON types, each with its result."""
    return [
        {**asdict(group), "result": str(Failure(group.failure).result)}
        for group in diagnosis.groups(found)
    ]


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
