"""COMPATIBILITY.md: the current rows and the wishes as one page for readers.

Pure: the same rows and wishes give the same text. The layout is templates/COMPATIBILITY.md.jinja;
here is what a cell says, and every text of a row is escaped here, since error texts come from
device machines and may hold anything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote

from pipeline import phrases
from pipeline.errors import ResultsError
from pipeline.markdown import code, text
from pipeline.readings import Reading, stale
from pipeline.script import environment
from pipeline.stack_names import newness
from pipeline.wishes import Listed, Unwanted, Wanted
from pipeline.words import Failure, Result, Target, Task

COLUMNS = (
    "model_id",
    "run_id",
    "task",
    "target",
    "result",
    "stage",
    "failure",
    "error",
    "findings",
    "tries",
    "neuron_cores",
    "parallelism",
    "wall_s",
    "hbm_peak_gb",
    "hbm_capacity_gb",
    "runtime_peak_gb",
    "host_peak_gb",
    "cpu_match",
    "max_gap",
    "departure",
    "noise",
    "english",
    "cpu_fallback_ops",
    "cache_store",
    "tested_at",
)
"""The columns of a row that the page is made of."""

MAX_BYTES = 500_000
"""GitHub does not render a Markdown file above 512 kB; the rest is room for its own counting."""

GROUP_ABOVE = 100
"""A table with more rows is folded by initial: some screens of rows still scroll well."""

_DETAILS = ((3, 160), (1, 100), (0, 60), (0, 0))
"""(other stacks a row, characters a cause), tried in turn until the page is below MAX_BYTES."""


W = TypeVar("W", bound=Wanted)

Cells = tuple[str, ...]
"""One row of a table, every cell escaped; the first is the model."""


@dataclass(frozen=True)
class _Group:
    """Rows that are shown together; title "" = not folded."""

    title: str
    rows: list[Cells]


@dataclass(frozen=True)
class _Section:
    """The models of one task on one target, by model id."""

    task: str
    target: str
    counts: Mapping[str, int]
    stale: int
    results: list[_Group]
    failures: list[_Group]
    errors: list[_Group]


def compatibility(
    rows: Iterable[Mapping[str, Any]],
    wishes: Listed,
    *,
    now: datetime | None = None,
    max_age_days: int | None,
    script_link: Callable[[str], str | None],
) -> str:
    """The page. ResultsError when there are no rows: an empty page would read as "nothing runs".

    rows: current rows, at least COLUMNS of them.
    now: what age is measured against; None = the newest row, so that time changes no byte.
    max_age_days: older results are marked stale; None = none is.
    script_link: run id -> relative URL of its script, escaped (`url`), or None.
    """
    rows = list(rows)
    if not rows:
        raise ResultsError("there are no results to make a page of")
    now = now or max(row["tested_at"] for row in rows)
    fetch = [command for command in phrases.fetch_all_graphs(rows) if _stays_in_its_block(command)]
    template = environment().get_template("COMPATIBILITY.md.jinja")
    for others, cause in _DETAILS:
        page = template.render(
            sections=_sections(rows, wishes, now, max_age_days, script_link, others, cause),
            excluded=_groups([_excluded(model, rows) for model in _by_id(wishes.excluded)]),
            untested=_groups(_untested(rows, wishes)),
            failures=_meanings(rows),
            fetch=fetch,
            max_age_days=max_age_days,
            now=f"{now.astimezone(UTC):%Y-%m-%d}",
            cut=(others, cause) != _DETAILS[0],
        )
        page = re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"
        if len(page.encode()) <= MAX_BYTES:
            break
    return page


def _sections(
    rows: Sequence[Mapping[str, Any]],
    wishes: Listed,
    now: datetime,
    max_age_days: int | None,
    script_link: Callable[[str], str | None],
    others: int,
    cause: int,
) -> list[_Section]:
    excluded = {model.id for model in wishes.excluded}
    found: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        if row["model_id"] not in excluded:
            models = found.setdefault((row["task"], row["target"]), {})
            models.setdefault(row["model_id"], []).append(row)
    sections = []
    for task, target in sorted(found, key=_section_order):
        newest_first = [
            sorted(readings, key=lambda row: newness(row["run_id"]), reverse=True)
            for _, readings in sorted(found[task, target].items(), key=_by_name)
        ]
        heads = [readings[0] for readings in newest_first]
        too_old = [stale(row, now, max_age_days) for row in heads]
        cells = [
            _cells(readings, old, script_link(readings[0]["run_id"]), others)
            for readings, old in zip(newest_first, too_old, strict=True)
        ]
        why = {
            result: [_why(row, cause) for row in heads if row["result"] == result]
            for result in (Result.FAIL, Result.ERROR)
        }
        sections.append(
            _Section(
                task=text(task),
                target=text(target),
                counts=Counter(text(row["result"]) for row in heads),
                stale=sum(too_old),
                results=_groups(cells, [text(row["result"]) for row in heads]),
                failures=_groups(why[Result.FAIL]),
                errors=_groups(why[Result.ERROR]),
            )
        )
    return sections


def _section_order(key: tuple[str, str]) -> tuple[int, str, bool, str]:
    task, target = key
    known = [str(task) for task in Task]
    return known.index(task) if task in known else len(known), task, target != Target.NEURON, target


def _groups(rows: Sequence[Cells], results: Sequence[str] = ()) -> list[_Group]:
    """One group, or one for each initial where that would be long; `results` are counted."""
    if len(rows) <= GROUP_ABOVE:
        return [_Group("", list(rows))] if rows else []
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        first = row[0].strip("`")[:1].upper()
        groups.setdefault(first if "A" <= first <= "Z" else "0-9", []).append(index)
    titled = []
    for initial, indices in sorted(groups.items()):
        counts = Counter(results[index] for index in indices) if results else Counter()
        told = ", ".join(f"{counts[result]} {result}" for result in sorted(counts, key=_severity))
        plural = "model" if len(indices) == 1 else "models"
        title = f"{initial}: {len(indices)} {plural}" + (f" ({told})" if told else "")
        titled.append(_Group(title, [rows[index] for index in indices]))
    return titled


def _severity(result: str) -> tuple[int, str]:
    known = [str(result) for result in Result]
    return (known.index(result) if result in known else len(known)), result


def _cells(
    readings: Sequence[Mapping[str, Any]], too_old: bool, script: str | None, others: int
) -> Cells:
    """Model, result, cores, time, memory, check, tested, stack, script, other stacks."""
    row = readings[0]
    cores = "-" if row["neuron_cores"] is None else str(row["neuron_cores"])
    if row["parallelism"] not in (None, "none"):
        cores += f", {text(row['parallelism'])}"
    if tries := phrases.tries(row):
        cores += f" ({text(tries)})"
    tested = f"{row['tested_at'].astimezone(UTC):%Y-%m-%d}" + (", stale" if too_old else "")
    older = [
        f"{text(other['result'])} with {_stack(other, beside=row)}"
        for other in readings[1 : 1 + others]
    ]
    if len(readings) - 1 > len(older):
        older.append(f"{len(readings) - 1 - len(older)} more")
    return (
        code(row["model_id"]),
        text(row["result"]),
        cores,
        phrases.duration(row["wall_s"]),
        phrases.memory(row),
        text(phrases.check(row), 300) or "not run",
        tested,
        _stack(row),
        f"[run.py]({script})" if script else "-",
        "; ".join(older) or "-",
    )


def _why(row: Mapping[str, Any], length: int) -> Cells:
    """Model, failure class, stage, cause."""
    told = phrases.cause(row)
    cause = text(told, length) if told and length else "-"
    return code(row["model_id"]), text(row["failure"] or "-"), text(row["stage"] or "-"), cause


def _excluded(model: Unwanted, rows: Iterable[Mapping[str, Any]]) -> Cells:
    """Model, reading, task, reason, note, issue, newest result that there is all the same."""
    seen = [row for row in rows if row["model_id"] == model.id]
    last = "-"
    if seen:
        row = max(seen, key=lambda row: (row["tested_at"], row["run_id"]))
        last = f"{text(row['result'])} on {text(row['target'])}, {row['tested_at']:%Y-%m-%d}"
    reason, note = text(model.reason), text(model.note or "-", 300)
    return (
        code(model.id),
        Reading.EXCLUDED,
        text(model.task),
        reason,
        note,
        _issue(model.issue),
        last,
    )


def _untested(rows: Iterable[Mapping[str, Any]], wishes: Listed) -> list[Cells]:
    """Model, reading, task, why, note: of each wanted model without a row on the device."""
    targets: dict[str, set[str]] = {}
    for row in rows:
        targets.setdefault(row["model_id"], set()).add(row["target"])
    return [
        (
            code(model.id),
            Reading.UNTESTED,
            text(model.task),
            f"ran on {text(', '.join(sorted(seen)))} only" if seen else "no run yet",
            text(model.note or "-", 300),
        )
        for model in _by_id(wishes.models)
        if Target.NEURON not in (seen := targets.get(model.id, set()))
    ]


def _meanings(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """(class, result, meaning) of the failure classes that occur, in the order of the enum."""
    seen = {row["failure"] for row in rows}
    return [(failure, failure.result, failure.meaning) for failure in Failure if failure in seen]


def _by_id(models: Iterable[W]) -> list[W]:
    return sorted(models, key=lambda model: (model.id.lower(), model.id))


def _by_name(item: tuple[str, object]) -> tuple[str, str]:
    """As people look names up: upper and lower case side by side."""
    return item[0].lower(), item[0]


def _stack(row: Mapping[str, Any], beside: Mapping[str, Any] | None = None) -> str:
    """The stack's names and versions; with `beside`, only those in which it differs."""
    other = phrases.stack(beside["run_id"]) if beside else []
    return ", ".join(text(part) for part in phrases.stack(row["run_id"]) if part not in other)


_URL_SAFE = "/:?#=&%+,;@~-._"


def _stays_in_its_block(command: str) -> bool:
    """Whether a command is no more than that between the fences of a code block."""
    return "```" not in command and all(line.isprintable() for line in command.split("\n"))


def _issue(link: str | None) -> str:
    """A link for an address of the web, nothing for any other text."""
    if link is None or not re.match(r"https?://[A-Za-z0-9]", link):
        return "-"
    return f"[issue]({quote(link, safe=_URL_SAFE)})"
