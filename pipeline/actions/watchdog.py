"""Silence: nothing was published for longer than the limit, or nothing that says anything.

Machines that are gone do not report. Their runs still become rows, by the hundred: ERROR, the run
left no record. So that a campaign does not look alive by them alone, the newest row that a machine
really decided (PASS or FAIL, beyond planning) must be young as well. And so that rest is not taken
for silence, some run must have been due for as long as the limit.

Pure but for `watch`: rows, a limit and the time give the alarm; its text does not change while it
lasts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any

from pipeline import results as store
from pipeline.actions.github import GitHub, Issue
from pipeline.actions.kept_issues import Action, Kept, Wanted, keep
from pipeline.catalog import Catalog
from pipeline.phrases import moment
from pipeline.plan import Request, wanted
from pipeline.words import Failure, Result, Stage

LABEL = "qualify-watchdog"
KIND = "watchdog"

LIMIT_HOURS = 72.0
"""Three daily schedules in a row without a row: one lost night is weather, three are not."""

_AHEAD = timedelta(hours=1)
"""How far a machine's clock may be ahead. A row from further in the future tells no time: it would
keep the watchdog quiet until then."""

_COLUMNS = ("run_id", "tested_at", "result", "stage", "failure")

_EVER = datetime.min.replace(tzinfo=UTC)
"""Since when a run is due that was never tried: the list does not tell when it was asked for."""

_NOT_DUE = {Failure.GATED, Failure.MISSING, Failure.INCONCLUSIVE}
"""Errors that no machine cures: a token, the list, or a new script does."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Limit:
    """How long silence may last, and who said so."""

    hours: float = LIMIT_HOURS
    source: str = "the default"

    @property
    def words(self) -> str:
        """For people: "72 hours (the default)"."""
        return f"{self.hours:g} hours ({self.source})"


@dataclass(frozen=True)
class Seen:
    """The newest row of all, and the newest that a machine decided; None = there is none.

    future: rows that tell no time, since they are dated in the future.
    """

    published: datetime | None
    decided: datetime | None
    future: int = 0


def newest(history: Iterable[Row], now: datetime) -> Seen:
    """What history holds up to now; of each row _COLUMNS are read."""
    every = list(history)
    rows = [row for row in every if row["tested_at"] <= now + _AHEAD]
    decided = [
        row["tested_at"]
        for row in rows
        if row["result"] != Result.ERROR and row["stage"] != Stage.PLAN
    ]
    published = max((row["tested_at"] for row in rows), default=None)
    return Seen(published, max(decided, default=None), len(every) - len(rows))


def due_since(catalog: Catalog, history: Iterable[Row], now: datetime) -> datetime | None:
    """Since when a run on the list's default stacks has been due; None = none is.

    A run is due when it was never tried, from the first of the errors that end its rows, and when
    its newest row is older than the list's limit. What only the Hub or a script would tell (a new
    revision, a new template) is not looked for.
    """
    rows: dict[str, list[Row]] = {}
    for row in sorted(history, key=lambda row: row["tested_at"]):
        if row["tested_at"] <= now + _AHEAD:
            rows.setdefault(row["run_id"], []).append(row)
    age = timedelta(days=catalog.defaults.max_age_days)
    since: list[datetime] = []
    for model, stack in wanted(catalog, Request())[0]:
        known = rows.get(str(stack.run_id(model.id)), [])
        errors = list(takewhile(_cured_by_a_machine, reversed(known)))
        if not known:
            since.append(_EVER)
        elif errors:
            since.append(errors[-1]["tested_at"])
        elif known[-1]["tested_at"] + age < now:
            since.append(known[-1]["tested_at"] + age)
    return min(since, default=None)


def _cured_by_a_machine(row: Row) -> bool:
    return row["result"] == Result.ERROR and row["failure"] not in _NOT_DUE


def alarm(
    seen: Seen, due: datetime | None, limit: Limit, now: datetime, branch: str
) -> Wanted | None:
    """The issue that should be open; None = the campaign is alive, or nothing was due so long."""
    oldest = now - timedelta(hours=limit.hours)
    if due is None or due > oldest:
        return None
    if seen.published is None:
        title, what = "Nothing was ever published", f"Branch `{branch}` holds no result."
    elif seen.published < oldest:
        title = f"Nothing was published since {moment(seen.published)}"
        what = f"The newest row on branch `{branch}` is of {moment(seen.published)}."
    elif seen.decided is None or seen.decided < oldest:
        since = f"since {moment(seen.decided)}" if seen.decided else "ever"
        title = f"Nothing but infrastructure errors was published {since}"
        what = (
            f"Rows do arrive on branch `{branch}`, but in none of them did a machine come to a "
            f"PASS or a FAIL {since}."
        )
    else:
        return None
    if seen.future:
        what += " Rows that are dated in the future do not count: the clock of a machine is wrong."
    return Wanted(KIND, "silence", title, _TEXT.format(what=what, limit=limit.words))


_TEXT = """\
**{what} The limit is {limit}.**

What to look at, in this order:

1. **The runners.** Under Settings, Actions, Runners: is one with the labels of the runner class \
online? A job that finds none waits for a day or two, then GitHub ends it. `qualify show` names \
the cause of each ERROR; `qualify doctor` on the machine says what it lacks.
2. **The workflows.** Under Actions: where is the newest run of `schedule` red? In Publish, the \
rules of the branch may refuse the push. When there is no run at all, somebody set the variable \
`QUALIFY_ENABLED` to something other than `true`, or GitHub disabled the schedule: it does so in a \
public repository after 60 days without activity, and in every fork. This watchdog sleeps then, too.
3. **The work.** At least one run has been due for as long as the limit: `qualify plan` says of \
each model why it runs or does not. When the budget makes it wait, raise the budget, or set the \
variable `QUALIFY_SILENCE_HOURS` higher.

`docs/operations.md` says how each of them is set up. This issue is closed when results arrive \
again.
"""


def watch(
    results: Path | None,
    catalog: Catalog,
    limit: Limit,
    now: datetime,
    github: GitHub,
    branch: str,
) -> tuple[Seen, list[Kept]]:
    """Open, update or close the one issue; results: None = the branch is not there yet."""
    history = store.read_history(results, _COLUMNS) if results else []
    seen = newest(history, now)
    alarmed = alarm(seen, due_since(catalog, history, now), limit, now, branch)

    def over(_: Issue) -> str:
        if seen.decided is None or seen.decided < now - timedelta(hours=limit.hours):
            return "Over: no run has been due for as long as the limit."
        return f"Over: the newest result that a machine came to is of {moment(seen.decided)}."

    kept = keep(github, kind=KIND, label=LABEL, wanted=[alarmed] if alarmed else [], farewell=over)
    return seen, kept


def summary(seen: Seen, limit: Limit, kept: list[Kept]) -> str:
    """The page of the run: alive or silent first."""
    lines = [
        f"- newest row: {moment(seen.published) if seen.published else 'none'}",
        f"- newest PASS or FAIL of a machine: {moment(seen.decided) if seen.decided else 'none'}",
        f"- limit: {limit.words}",
    ]
    lines += [f"- issue {one.action}: [{one.title}]({one.url})" for one in kept]
    silent = any(one.action is not Action.CLOSED for one in kept)
    head = "## Silent for too long" if silent else "## No alarm"
    return "\n".join([head, "", *lines])
