"""Two stacks on the models that ran on both: what fails newly, what was fixed, what moved.

Pure. ERROR says nothing of a model, so a pair with one is counted and not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline import phrases, stack_names
from pipeline.errors import UsageError
from pipeline.lines import wrapped
from pipeline.words import Result, cores

Row = Mapping[str, Any]

COLUMNS = (
    "model_id",
    "run_id",
    "target",
    "result",
    "stage",
    "failure",
    "error",
    "findings",
    "tested_at",
    "neuron_cores",
    "parallelism",
    "wall_s",
    "tokens_per_s",
    "hbm_peak_gb",
)

LEAST = 25.0
"""Percent by which a figure must move to be told, unless one says otherwise; the site's page of
comparisons begins with the same. One run's time is one measurement."""

_FIGURES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("wall_s", "time", phrases.duration),
    ("tokens_per_s", "tokens per second", lambda value: f"{value:.3g}"),
    ("hbm_peak_gb", "tensors", lambda value: f"{value:.3g} GiB"),
)


@dataclass(frozen=True)
class Pair:
    """One model on both stacks. moved: the figures that differ, in words."""

    model_id: str
    before: Row
    after: Row
    moved: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """Two stacks, by their keys. Pairs are in the order of model ids.

    same: pairs of which nothing moved. errors: pairs with an ERROR. single: models that have a
    result on one of the two only.
    """

    before: str
    after: str
    newly_failing: tuple[Pair, ...]
    fixed: tuple[Pair, ...]
    changed: tuple[Pair, ...]
    same: int
    errors: int
    single: int

    @property
    def common(self) -> int:
        """Pairs that are compared."""
        return len(self.newly_failing) + len(self.fixed) + len(self.changed) + self.same


def stack_of(rows: Iterable[Row], pattern: str) -> str:
    """The key of the newest stack of the rows that `pattern` names.

    UsageError, with the stacks that there are, when it names none.
    """
    keys = stack_names.newest_first(rows)
    if pattern in keys:
        return pattern
    for key in keys:
        if stack_names.matches(key, pattern):
            return key
    raise UsageError(
        f"no result is of a stack {pattern!r}",
        remedy="\n  ".join(("there are results of:", *keys)),
    )


def compare(rows: Iterable[Row], before: str, after: str, least: float = LEAST) -> Comparison:
    """Hold the stack `after` against `before`, both keys. least: percent, see LEAST."""
    sides: dict[str, dict[str, Row]] = {before: {}, after: {}}
    for row in rows:
        if (key := stack_names.key(row)) in sides:
            sides[key][row["model_id"]] = row
    left, right = sides[before], sides[after]
    common = sorted(left.keys() & right.keys(), key=lambda name: (name.casefold(), name))
    pairs = [
        Pair(name, left[name], right[name], tuple(_moved(left[name], right[name], least)))
        for name in common
        if Result.ERROR not in (left[name]["result"], right[name]["result"])
    ]
    alike = [pair for pair in pairs if pair.before["result"] == pair.after["result"]]
    changed = tuple(pair for pair in alike if pair.moved)
    return Comparison(
        before,
        after,
        newly_failing=_turned(pairs, Result.PASS, Result.FAIL),
        fixed=_turned(pairs, Result.FAIL, Result.PASS),
        changed=changed,
        same=len(alike) - len(changed),
        errors=len(common) - len(pairs),
        single=len(left.keys() ^ right.keys()),
    )


def _turned(pairs: Sequence[Pair], old: Result, new: Result) -> tuple[Pair, ...]:
    return tuple(
        pair for pair in pairs if (pair.before["result"], pair.after["result"]) == (old, new)
    )


def _moved(before: Row, after: Row, least: float) -> Iterable[str]:
    """What differs between two rows of one model, in words. Figures count where both passed."""
    if before["failure"] and after["failure"] and before["failure"] != after["failure"]:
        yield f"{before['failure']} to {after['failure']}"
    if _placed(before) != _placed(after):
        yield f"{_placed(before)} to {_placed(after)}"
    if not before["result"] == after["result"] == Result.PASS:
        return
    for column, name, words in _FIGURES:
        old, new = before[column], after[column]
        if old and new is not None:
            percent = 100 * (new - old) / old
            if abs(percent) >= least:
                yield f"{name} {words(old)} to {words(new)} ({percent:+.0f} %)"


def _placed(row: Row) -> str:
    if row["neuron_cores"] is None:
        return "no cores"
    split = row["parallelism"]
    return cores(row["neuron_cores"]) + (f" {split}" if split not in (None, "none") else "")


def text(found: Comparison, width: int = 80) -> str:
    """What moved from one stack to another: newly failing first, then fixed, then figures."""
    lines = [
        *wrapped(f"from {stack_names.label_of(found.before)}", width, ""),
        *wrapped(f"to {stack_names.label_of(found.after)}", width, ""),
        "",
        *wrapped(_counts(found), width, ""),
    ]
    for title, pairs, told in (
        ("Newly failing", found.newly_failing, _failure_told),
        ("Fixed", found.fixed, lambda pair: f"was {_failure_told(pair, before=True)}"),
        ("Changed figures", found.changed, lambda pair: "; ".join(pair.moved)),
    ):
        if pairs:
            lines += ["", f"{title}: {len(pairs)}"]
            for pair in pairs:
                lines += wrapped(f"{pair.model_id}: {told(pair)}", width, "  ", 3)
    return "\n".join(lines)


def _counts(found: Comparison) -> str:
    told = [f"{phrases.counted(found.common, 'model')} with a result on both, {found.same} alike"]
    if found.errors:
        told.append(f"{found.errors} not compared, since an ERROR says nothing of a model")
    if found.single:
        told.append(f"{found.single} on one of the two only")
    return "; ".join(told)


def _failure_told(pair: Pair, *, before: bool = False) -> str:
    row = pair.before if before else pair.after
    return f"{row['failure']} at {row['stage']}: {phrases.cause(row)}"
