"""Models that passed and fail now: one issue a cause, which closes itself.

A regression is a row that FAILs today although an earlier row of the same run PASSed (same stack),
or although the model PASSes on an older stack and this is the newest one with a verdict on it.
Infrastructure errors never are: an ERROR takes no PASS's place, and says nothing of a model.

Pure but for `report`: the same rows and list give the same issues, whatever the time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline import diagnosis, phrases
from pipeline import results as store
from pipeline.actions.github import GitHub, Issue
from pipeline.actions.kept_issues import Action, Kept, Wanted, keep
from pipeline.catalog import Catalog
from pipeline.errors import ResultsError
from pipeline.markdown import code, table, text
from pipeline.rows import newness
from pipeline.words import Failure, Result, is_model_id

LABEL = "qualify-regression"
KIND = "regression"

SHOWN = 50
"""Rows of an issue's table. With errors cut as they are, these fit into a body, whatever they say;
who has more regressions of one cause has a cause, not a list, to look at."""

_HISTORY = (
    *("model_id", "run_id", "result", "tested_at", "run_url", "target"),
    *("revision", "script_sha256", "neuron_cores", "parallelism", "dtype", "extra_packages"),
    *("python", "accelerate", "torch_neuronx", "runtime", "neuron_driver", "image"),
)
_COMPARED = {
    "revision": "checkpoint",
    "neuron_cores": "cores",
    "parallelism": "parallelism",
    "dtype": "dtype",
    "extra_packages": "extra packages",
    "python": "Python",
    "accelerate": "accelerate",
    "torch_neuronx": "torch-neuronx",
    "runtime": "runtime",
    "neuron_driver": "driver",
    "image": "image",
}
"""What may differ between two runs besides what their run ids name: column -> word."""

_COLUMNS = ("Model", "Stack", "Fails since", "Error", "Last good", "What differs since then")
_RUN_PAGE = re.compile(r"https://[\w.-]+/[\w.-]+/[\w.-]+/actions/runs/\d+(?:/[\w/]+)?", re.ASCII)
_RUNS = re.compile(r"<!-- runs: ([^\s<>]+(?: [^\s<>]+)*) -->")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Regression:
    """A row that FAILs, and what it is measured against.

    good: the last PASS, of the same run or of the model's next older stack.
    since: the first FAIL of the run after it.
    """

    row: Row
    good: Row
    since: Row

    @property
    def same_stack(self) -> bool:
        """Whether this very run passed before."""
        return bool(self.row["run_id"] == self.good["run_id"])


# --- which there are ------------------------------------------------------------------------------


def find(
    current: Iterable[Row], history: Iterable[Row], wanted: Collection[str]
) -> list[Regression]:
    """All regressions, by model id and newest stack first.

    current: rows of results.read_current. history: of read_history, at least _HISTORY of them.
    wanted: ids of the models that are wanted; rows of others, excluded ones too, do not count.
    """
    ids = {name.casefold() for name in wanted}
    verdicts: dict[tuple[str, str], list[Row]] = {}
    for row in current:
        if row["result"] != Result.ERROR and row["model_id"].casefold() in ids:
            verdicts.setdefault((row["model_id"], row["target"]), []).append(row)
    seen: dict[str, list[Row]] = {}
    for row in history:
        seen.setdefault(row["run_id"], []).append(row)
    found = []
    for _, rows in sorted(verdicts.items()):
        rows.sort(key=_stack_order, reverse=True)
        found += [
            regression
            for place, row in enumerate(rows)
            if row["result"] == Result.FAIL
            and row["failure"] is not None
            and (regression := _regression(row, rows[:place], rows[place + 1 :], seen))
        ]
    return found


def _stack_order(row: Row) -> tuple[Any, ...]:
    return newness(row["run_id"])


def _regression(
    row: Row, newer: Sequence[Row], older: Sequence[Row], seen: Mapping[str, list[Row]]
) -> Regression | None:
    """What `row` is measured against; newer, older: the model's verdicts on other stacks."""
    if _later_pass(row, newer):
        return None
    past = sorted(seen.get(row["run_id"], ()), key=lambda one: one["tested_at"])
    # A PASS of the same run is older than `row`, or it would reign in its place.
    good = next((one for one in reversed(past) if one["result"] == Result.PASS), None)
    after = good["tested_at"] if good else datetime.min.replace(tzinfo=UTC)
    if good is None and not newer:
        good = next((one for one in older if one["result"] == Result.PASS), None)
    if good is None:
        return None
    fails = [one for one in past if one["result"] == Result.FAIL and one["tested_at"] > after]
    return Regression(row, good, fails[0] if fails else row)


def _later_pass(row: Row, newer: Sequence[Row]) -> Row | None:
    """A PASS on a newer stack after the failure: nobody will run the old stack again for this."""
    for one in newer:
        if one["result"] == Result.PASS and one["tested_at"] > row["tested_at"]:
            return one
    return None


# --- one issue a cause ----------------------------------------------------------------------------


def issues(regressions: Iterable[Regression]) -> list[Wanted]:
    """The issues that should be open, by key."""
    causes: dict[str, list[Regression]] = {}
    for one in regressions:
        causes.setdefault(cause_key(one.row), []).append(one)
    return [_issue(key, found) for key, found in sorted(causes.items())]


def cause_key(row: Row) -> str:
    """What rows of one cause share: signature, class where no text decided, or kind of error."""
    (group,) = diagnosis.groups([row])
    if diagnosis.known(row["signature"]):
        return f"signature/{group.signature}"
    if row["signature"] is None and group.failure in set(Failure):
        return f"class/{group.failure}"
    told = "\n".join((group.failure, group.signature, group.line))
    return f"error/{hashlib.sha256(told.encode()).hexdigest()[:12]}"


def _issue(key: str, found: Sequence[Regression]) -> Wanted:
    (group, *_) = diagnosis.groups([found[0].row])
    known = diagnosis.known(found[0].row["signature"])
    models = sorted({one.row["model_id"] for one in found})
    who = f"{len(models)} models" if len(models) > 1 else _plain_id(models[0])
    meaning = group.meaning or "a failure that this version does not know"
    unknown = " (no known signature)" if key.startswith("error/") else ""
    shown = found[:SHOWN]
    lines = [
        f"<!-- runs: {' '.join(one.row['run_id'] for one in shown)} -->",
        f"**{_number(models)} passed before and {'fail' if len(models) > 1 else 'fails'} now: "
        f"{text(meaning, 400)}{unknown}.**",
        "",
        table(_COLUMNS, map(_cells, shown)),
    ]
    if len(found) > SHOWN:
        lines += ["", f"And {len(found) - SHOWN} more runs of this cause."]
    lines += ["", "### What to do", *_steps(known, key, shown)]
    lines += ["", _ABOUT]
    title = f"Regression in {who}: {_shortened(meaning + unknown)}"
    return Wanted(KIND, key, title, "\n".join(lines))


_ABOUT = (
    "After each publication this issue is brought up to date, and closed when nothing in it is a "
    "regression any more. Closed by hand it is opened again as long as one is."
)


def _number(models: Sequence[str]) -> str:
    return f"{len(models)} models" if len(models) > 1 else f"{code(models[0])}"


def _plain_id(model_id: str) -> str:
    """A title is no Markdown, and ids need none; what is no id does not get into one."""
    return model_id if is_model_id(model_id) else "a model"


def _shortened(meaning: str) -> str:
    """GitHub takes 256 characters of a title; people read fewer."""
    return meaning if len(meaning) <= 120 else f"{meaning[:117].rstrip()}..."


def _cells(one: Regression) -> tuple[str, ...]:
    return (
        code(one.row["model_id"]),
        text(", ".join(phrases.stack(one.row["run_id"]))),
        f"{_when(one.since)}, at {one.row['stage']}",
        f"{_linked('latest run', one.row['run_url'])}: {text(phrases.cause(one.row), 120)}",
        _when(one.good) + (", same stack" if one.same_stack else ""),
        _difference(one),
    )


def _when(row: Row) -> str:
    return _linked(f"{row['tested_at'].astimezone(UTC):%Y-%m-%d}", row["run_url"])


def _linked(words: str, page: str | None) -> str:
    """A link, where the address is one of a workflow run: rows come from machines."""
    return f"[{words}]({page})" if page and _RUN_PAGE.fullmatch(page) else words


def _difference(one: Regression) -> str:
    """What is another than in the last good row, old to new."""
    old, new = phrases.stack(one.good["run_id"]), phrases.stack(one.row["run_id"])
    told = [
        f"{before} → {after.rpartition(' ')[2]}"
        for before, after in zip(old, new, strict=True)
        if before != after
    ]
    for column, word in _COMPARED.items():
        before, after = _value(one.good[column]), _value(one.row[column])
        # What one of the rows does not tell is no difference.
        if before != after and before and after:
            told.append(f"{word} {before} → {after}")
    changed = {one.good["script_sha256"], one.row["script_sha256"]}
    if not told and len(changed) == 2 and None not in changed:
        told.append("run.py")
    return text("; ".join(told), 300) or "nothing that the rows tell"


def _value(value: object) -> str:
    """A value of a row, short: of a commit its first digits."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    shown = "" if value is None else str(value)
    return shown[:12] if re.fullmatch(r"[0-9a-f]{40}", shown) else shown


def _steps(known: diagnosis.Signature | None, key: str, shown: Sequence[Regression]) -> list[str]:
    first = next((one.row for one in shown if one.row["run_py"]), None)
    steps = []
    if known:
        steps.append(f"Known remedy: {text(known.remedy, 400)} ([source]({known.source})).")
    elif key.startswith("error/"):
        steps.append(
            "Read the log of the run. Nobody has described this text yet: `docs/failures.md` says "
            "how to add a signature, which gives this issue a meaning and a remedy."
        )
    else:
        steps.append("Read the row and the log: `qualify show` and the link above.")
    if first:
        name = first["run_id"]
        steps.append(
            "Replay it on a machine with that stack, in a checkout of the branch with the results: "
            "first the script that failed, then today's."
            f"\n   ```\n   python3 'results/scripts/{name}.py' --record replay\n"
            f"   qualify script '{name}' > run.py && python3 run.py --record replay-today\n   ```"
        )
    steps.append(
        "If it is to stay so, say it in `models.yaml`: an entry under `excluded` with its reason "
        "and a link takes the model off this list."
    )
    return [f"{number}. {step}" for number, step in enumerate(steps, start=1)]


# --- when it is over ------------------------------------------------------------------------------


def farewell(body: str, current: Iterable[Row], wanted: Collection[str]) -> str:
    """Why none of the runs that an issue named is a regression of its cause any more."""
    rows = {row["run_id"]: row for row in current}
    ids = {name.casefold() for name in wanted}
    listed = _RUNS.search(body)
    told = [_settled(name, rows, ids) for name in (listed[1].split(" ") if listed else [])]
    told = list(dict.fromkeys(told))[:SHOWN]
    if len(told) == 1:
        return f"Over: {told[0]}"
    return "\n".join(["Over:", *(f"- {one}" for one in told)]) if told else "Over."


def _settled(run_id: str, rows: Mapping[str, Row], wanted: Collection[str]) -> str:
    row = rows.get(run_id)
    if row is None:
        return f"{text(run_id)} has no result any more."
    model, on = code(row["model_id"]), text(", ".join(phrases.stack(run_id)))
    if row["model_id"].casefold() not in wanted:
        return f"{model} is excluded or not in the list any more."
    if row["result"] == Result.PASS:
        return f"{model} passes again on {on} ({_when(row)})."
    newer = [
        one
        for one in rows.values()
        if (one["model_id"], one["target"]) == (row["model_id"], row["target"])
        and one["result"] != Result.ERROR
        and _stack_order(one) > _stack_order(row)
    ]
    if passed := _later_pass(row, newer):
        newest = text(", ".join(phrases.stack(passed["run_id"])))
        return f"{model} passes on a newer stack, {newest} ({_when(passed)})."
    if newer:
        newest_row = max(newer, key=_stack_order)
        newest = text(", ".join(phrases.stack(newest_row["run_id"])))
        return (
            f"{model} has a newer result on {newest} ({newest_row['result']}, {_when(newest_row)})."
        )
    failure = text(str(row["failure"]))
    return f"{model} fails on {on} for another cause now: {failure} ({_when(row)})."


# --- the edge -------------------------------------------------------------------------------------


def report(results: Path, catalog: Catalog, github: GitHub) -> list[Kept]:
    """Make the open issues be those of the published results.

    ResultsError when there are none: no evidence is no reason to close anything.
    """
    current = store.read_current(results)
    if not current:
        raise ResultsError(
            "there are no published results, so no issue was touched",
            where=str(results),
            remedy="publish first, or name another --results",
        )
    wanted = {model.id for model in catalog.models} - {model.id for model in catalog.excluded}
    found = find(current, store.read_history(results, _HISTORY), wanted)

    def over(issue: Issue) -> str:
        return farewell(issue.body, current, wanted)

    return keep(github, kind=KIND, label=LABEL, wanted=issues(found), farewell=over)


def summary(kept: Sequence[Kept]) -> str:
    """The page of the run: how many causes there are, then what was done with each issue."""
    lasting = [one for one in kept if one.action is not Action.CLOSED]
    if not lasting:
        head = "## No regression"
    else:
        head = f"## Regressions: {len(lasting)} {'cause' if len(lasting) == 1 else 'causes'}"
    lines = [f"- {one.action}: [{text(one.title, 256)}]({one.url})" for one in kept]
    return "\n".join([head, *(["", *lines] if lines else [])])
