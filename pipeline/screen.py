"""The answer about one model as one screen of a terminal: 80 columns, 24 lines, or more of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pipeline import phrases, readings, stack_names
from pipeline.answers import Answer, shared_weight
from pipeline.lines import columns, wrapped
from pipeline.readings import Evidence, Reading
from pipeline.words import Failure, cores

Row = Mapping[str, Any]

_LINES = 23
"""Of a terminal of 24, since the prompt takes one."""

_ROWS = 4
"""Rows of other stacks, and as many of history, where all that is said before leaves room."""

RAN_SAYS = (
    "It loaded, compiled, generated and passed its output check. This says nothing of "
    "throughput, long generations or answer quality."
)
UNTESTED_SAYS = "No result is absence of evidence, not evidence of failure."


def screen(answer: Answer, now: datetime, width: int = 80, *, near: str | None = None) -> str:
    """The answer as text.

    near: a name that was perhaps meant, for a model that nobody knows.
    """
    first = [*wrapped(f"{answer.model_id}: {_head(answer)}", width, "", 2)]
    for part in _first(answer, now, near):
        first += wrapped(part, width, "  ", 3)
    last = _about_others(answer, width)
    for most in range(_ROWS, 0, -1):
        rows = _nearest(answer, width) + _others(answer, width, most) + _past(answer, width, most)
        if len(first) + len(rows) + len(last) <= _LINES:
            break
    return "\n".join([*first, *rows, *last])


def _head(answer: Answer) -> str:
    """ "PASS, stale", "UNTESTED on neuronx-cc 2.30.1.0, ..."."""
    told = [str(answer.reading)]
    if answer.is_stale:
        told.append("stale")
    if answer.row is not None and (excluded := readings.excluded_as(answer.wish)):
        told.append(f"EXCLUDED ({excluded})")
    head = ", ".join(told)
    if answer.row is None and answer.reading is Reading.UNTESTED:
        stack = stack_names.label_of(answer.stack) if answer.stack else answer.asked
        head += f" on {stack}" if stack else " on Trainium"
    return head


def _first(answer: Answer, now: datetime, near: str | None) -> Iterator[str]:
    """What the reading rests on."""
    row, wish = answer.row, answer.wish
    if row is not None:
        yield f"on {stack_names.label(row)}"
        yield _measured(row, now)
        if checked := phrases.check(row):
            yield f"check: {checked}"
        if row["failure"]:
            yield f"{row['failure']} at {row['stage']}: {phrases.cause(row)}"
            yield f"means: {Failure(row['failure']).meaning}"
            yield from _remedy(row)
    if wish is not None and wish.excluded:
        yield f"left out as {readings.excluded_as(wish)}: {wish.note or 'no note'}"
        if wish.issue:
            yield f"see {wish.issue}"
    if answer.reading is Reading.PASS:
        yield RAN_SAYS
        if row is not None and not _of_device(row):
            yield "It is of another target, which says nothing of Trainium."
        if row is not None and row["cache_store"]:
            yield f"Its compiled graphs are in {row['cache_store']}: --full prints the command."
    if answer.reading is Reading.UNTESTED:
        if answer.others and not any(_of_device(row) for row in answer.others):
            yield "It ran on another target only, which says nothing of Trainium."
        yield UNTESTED_SAYS
        if wish is not None:
            yield f"The list wants it{_noted(wish.note)}"
        elif not answer.known:
            yield "Neither the results nor the list name it." + (
                f" Did you mean {near}?" if near else ""
            )
    if answer.row is not None and answer.evidence is Evidence.NONE:
        yield f"counts as no evidence: {_why_none(answer, now)}"
    if answer.row is not None and answer.waiting:
        labels = "; ".join(stack_names.label_of(key) for key in answer.waiting)
        yield f"no result yet on what the list wants too: {labels}"


def _remedy(row: Row) -> Iterator[str]:
    """What is known to help against the row's signature."""
    if row["signature"]:
        from pipeline import diagnosis

        if known := diagnosis.known(row["signature"]):
            yield f"do: {known.remedy}"


def _of_device(row: Row) -> bool:
    return stack_names.on_device(stack_names.key(row))


def _noted(note: str | None) -> str:
    return f": {note}" if note else "."


def _measured(row: Row, now: datetime) -> str:
    split = f" {row['parallelism']}-parallel" if row["parallelism"] not in (None, "none") else ""
    parts = [
        f"tested {phrases.moment(row['tested_at'])}, {age(row, now)}",
        f"{cores(row['neuron_cores'])}{split}" if row["neuron_cores"] else "",
        phrases.duration(row["wall_s"]) if row["wall_s"] is not None else "",
        phrases.memory(row) if phrases.memory(row) != "-" else "",
        phrases.tries(row),
    ]
    return "; ".join(filter(None, parts))


def age(row: Row, now: datetime) -> str:
    """ "today", "1 day ago", "40 days ago"."""
    days = (now - row["tested_at"]).days
    return "today" if days <= 0 else f"{phrases.counted(days, 'day')} ago"


def _why_none(answer: Answer, now: datetime) -> str:
    row = answer.row
    assert row is not None
    if answer.reading is Reading.ERROR:
        return Reading.ERROR.meaning
    if answer.is_stale:
        days, most = (now - row["tested_at"]).days, answer.max_age_days
        if most is not None and days >= most:
            return f"{days} days old, the campaign's limit is {most}"
        return "the list asks for another revision of the checkpoint now"
    return "people hold it to be incompatible all the same"


def _nearest(answer: Answer, width: int) -> list[str]:
    """Where nothing answers: the tested stack that has most in common with the asked one."""
    row = answer.nearest
    if row is None:
        return []
    asked = answer.stack or answer.asked
    weight = shared_weight(row, asked) if asked else ()
    names = zip(("compiler", "library", "torch"), weight, strict=False)
    same = [name for name, held in names if held]
    shares = f"same {' and '.join(same)}" if same else "the newest, nothing in common"
    head = f"Nearest tested stack ({shares if asked else 'the newest'}); it stands for itself only:"
    return ["", *wrapped(head, width, ""), *_rows([row], None, width)]


def _others(answer: Answer, width: int, most: int) -> list[str]:
    rows = [row for row in answer.others if row is not answer.nearest]
    if not rows:
        return []
    lines = ["", "Other stacks:", *_rows(rows[:most], answer.row, width)]
    more = len(rows) - most
    return [*lines, f"  and {more} more: --full shows them"] if more > 0 else lines


def _past(answer: Answer, width: int, most: int) -> list[str]:
    if not answer.past:
        return []
    more = len(answer.past) - most
    left = f" (and {more} more: qualify history)" if more > 0 else ""
    title = f"In the last {phrases.counted(answer.publications, 'publication')}{left}:"
    return ["", title, *_rows(answer.past[:most], answer.row, width)]


def _rows(rows: Sequence[Row], beside: Row | None, width: int) -> list[str]:
    """A line a row: when, result, what came of it, and the stack.

    beside: the row that is told above; of the stacks, only that in which they differ.
    """
    some_failed = any(row["failure"] for row in rows)
    told = columns(
        [
            f"{row['tested_at'].astimezone(UTC):%Y-%m-%d}",
            str(row["result"]),
            *([str(row["failure"] or "")] if some_failed else []),
            _stack(row, beside),
        ]
        for row in rows
    )
    return [_cut(f"  {line}", width) for line in told]


def _stack(row: Row, beside: Row | None) -> str:
    if beside is None:
        return stack_names.label(row)
    here, there = (stack_names.label(one).split(", ") for one in (row, beside))
    return ", ".join(part for part in here if part not in there) or "the same stack"


def _about_others(answer: Answer, width: int) -> list[str]:
    told = str(answer.relatives)
    if not told:
        return []
    if answer.row is None:
        told = told.replace("this stack", stack_names.label_of(answer.relatives.stack))
    return ["", *wrapped(f"About others: {told}.", width, "")]


def history(rows: Sequence[Row], width: int = 80) -> str:
    """All of a model's history: one line a row, the newest first."""
    return "\n".join(line[2:] for line in _rows(rows, None, width + 2))


def _cut(line: str, width: int) -> str:
    """What is cut off is marked."""
    return line if len(line) <= width else f"{line[: width - 3]}..."
