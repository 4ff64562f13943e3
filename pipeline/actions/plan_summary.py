"""The page of a plan: how much will run, why, what it costs, and what will not run. Markdown.

Reasons name revisions and errors, refusals what a repository holds: all of it is escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline import phrases, schedule
from pipeline.catalog import Catalog
from pipeline.markdown import code, fold, table, text
from pipeline.phrases import counted
from pipeline.placement import GIB
from pipeline.plan import OTHER_SCRIPT, Request, kind
from pipeline.record import Job, Plan, Skipped
from pipeline.words import Parallelism, Result, RunId, Target, cores

FOLD_ABOVE = 20
"""A table with more rows is folded: a screen holds about so many."""

MAX_ROWS = 1_000
"""Rows of one table; GitHub shows 1 MiB of a summary. The plan's artifact has them all."""

Row = tuple[str, ...]


@dataclass(frozen=True)
class Cost:
    """What jobs cost by the list's prices, US dollars.

    about: for the time they are expected to take; most: when each uses all of its limit.
    unstated: classes of machines without a price, in the list's order.
    """

    about: float
    most: float
    unstated: tuple[str, ...]

    @classmethod
    def of(cls, jobs: Iterable[Job], catalog: Catalog) -> Cost:
        """The cost of jobs, each on a machine of its class."""
        about = most = 0.0
        unstated = set()
        for job in jobs:
            price = catalog.runners[job.runner].usd_per_hour
            if price is None:
                unstated.add(job.runner)
            else:
                about += price * job.estimated_s / 3600
                most += price * job.limit_s / 3600
        return cls(about, most, tuple(name for name in catalog.runners if name in unstated))


@dataclass(frozen=True)
class _Names:
    """How runs are called: by model, and where there are several stacks by what tells them apart.

    common: what all stacks have in common; each: the rest of every stack, in words.
    """

    common: tuple[str, ...]
    each: tuple[str, ...]

    @classmethod
    def of(cls, run_ids: Iterable[str]) -> _Names:
        stacks = list(dict.fromkeys(tuple(phrases.stack(run_id)) for run_id in run_ids))
        common = (
            tuple(part for part in stacks[0] if all(part in stack for stack in stacks))
            if stacks
            else ()
        )
        apart = (", ".join(part for part in stack if part not in common) for stack in stacks)
        return cls(common, tuple(apart))

    @property
    def several(self) -> bool:
        return len(self.each) > 1

    def stacks(self) -> str:
        """One line that names every version once; "" where there is no run."""
        shared = text(", ".join(self.common))
        if not self.several:
            return f"Stack: {shared}." if shared else ""
        each = "; ".join(text(one) for one in self.each)
        return f"{len(self.each)} stacks: {shared + ' with ' if shared else ''}{each}."

    def head(self, *columns: str) -> Row:
        return ("Model", "Stack", *columns) if self.several else ("Model", *columns)

    def row(self, run_id: str, *cells: str) -> Row:
        model = code(RunId.parse(run_id).model_id)
        if not self.several:
            return (model, *cells)
        apart = (part for part in phrases.stack(run_id) if part not in self.common)
        return (model, text(", ".join(apart)), *cells)


def summary(plan: Plan, catalog: Catalog, request: Request) -> str:
    """The page of a plan that was made for `request`."""
    ids = [*(run.run_id for run in plan.runs), *(skip.run_id for skip in plan.skipped)]
    names = _Names.of(ids)
    parts = [
        _headline(plan, catalog),
        _details(plan, catalog),
        _asked(request),
        names.stacks(),
        *_without_image(plan),
        *_why(plan),
        *_jobs(plan),
        *_runs(plan, names),
        *_refused(plan, names),
        *_skipped(plan.skipped, names, catalog.defaults.new_tokens),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _headline(plan: Plan, catalog: Catalog) -> str:
    if not plan.jobs:
        return "## Nothing to run" if plan.refused else "## Nothing is due"
    runs = [run for job in plan.jobs for run in job.runs]
    whole = sum(job.estimated_s for job in plan.jobs)
    return (
        f"## {counted(len(runs), 'run')} in {counted(len(plan.jobs), 'job')}, about {_time(whole)} "
        f"of machine time, {_price(Cost.of(plan.jobs, catalog))}"
    )


def _price(cost: Cost) -> str:
    if not cost.about:
        return "price not stated" if cost.unstated else "no cost"
    return f"about {_usd(cost.about)}" + (" and what is not stated" if cost.unstated else "")


def _details(plan: Plan, catalog: Catalog) -> str:
    """What the first look needs beside the headline, in one paragraph."""
    told = []
    if plan.jobs:
        span = schedule.makespan(plan.jobs, catalog.runners)
        told.append(f"Done about {_time(span)} after its machines are free.")
        cost = Cost.of(plan.jobs, catalog)
        if cost.most:
            told.append(f"At most {_usd(cost.most)}, if every job uses all of its time limit.")
        if cost.unstated:
            names = ", ".join(f"`{name}`" for name in cost.unstated)
            told.append(f"`models.yaml` states no price (`usd_per_hour`) for {names}.")
    if plan.refused:
        told.append(
            f"{counted(len(plan.refused), 'run is', 'runs are')} refused, which is a result, too."
        )
    if waiting := [skip for skip in plan.skipped if _is_waiting(skip)]:
        told.append(
            f"**{counted(len(waiting), 'run that is', 'runs that are')} due must wait for another "
            "time:** what is not planned says why."
        )
    return " ".join(told)


def _asked(request: Request) -> str:
    told = []
    if request.select:
        told.append(f"only {', '.join(text(wish) for wish in request.select)}")
    if request.stacks:
        told.append(f"stack {', '.join(text(name) for name in request.stacks)}")
    if request.force:
        told.append("due or not")
    if request.budget_s is not None:
        told.append(f"within {_time(request.budget_s)} of machine time")
    return f"Asked for: {'; '.join(told)}." if told else ""


def _without_image(plan: Plan) -> list[str]:
    names = {
        run.stack.name
        for job in plan.jobs
        for run in job.runs
        if run.stack.target is Target.NEURON and not run.stack.image
    }
    return [
        f"Stack {text(name)} names no image: its jobs run on the machine itself, which must have "
        "the stack's torch, torch-neuronx and neuronx-cc. With other versions its runs end in "
        "ERROR (`wrong_stack`)."
        for name in sorted(names)
    ]


def _why(plan: Plan) -> list[str]:
    """Why so many are due, by what their reasons have in common; nothing where each is shown."""
    runs = [run for job in plan.jobs for run in job.runs]
    if len(runs) <= FOLD_ABOVE:
        return []
    kinds = Counter(kind(run.reason) for run in runs)
    reasons = {name: {run.reason for run in runs if kind(run.reason) == name} for name in kinds}
    words = {
        name: text(name if len(found) > 1 else found.pop(), 300) for name, found in reasons.items()
    }
    rows = [(str(number), words[name]) for name, number in kinds.most_common()]
    name, most = kinds.most_common(1)[0]
    told = ""
    if most >= len(runs) / 2:
        told = f"**{most} of {len(runs)} runs are due for the same reason:** {words[name]}."
    if told and name == kind(OTHER_SCRIPT):
        told += (
            " A change of `templates/run.py.jinja` or of the default prompts does that to every "
            "run; a budget spreads them over several campaigns."
        )
    return [told, _table(("Runs", "Why due"), rows)]


def _jobs(plan: Plan) -> list[str]:
    rows = []
    for job in plan.jobs:
        machine = job.machine
        rows.append(
            (
                f"`{job.job_id}`",
                text(", ".join(job.labels)),
                f"{cores(machine.cores)}, {machine.host_bytes / GIB:.0f} GiB of host memory",
                str(len(job.runs)),
                _time(job.estimated_s),
                _time(job.limit_s),
            )
        )
    head = ("Job", "Runs on", "Machine", "Runs", "Expected", "Limit")
    return [_foldable("jobs", head, rows)] if rows else []


def _runs(plan: Plan, names: _Names) -> list[str]:
    rows = []
    for job in plan.jobs:
        for run in job.runs:
            placed = run.placement
            assert placed is not None
            sharded = placed.parallelism is not Parallelism.NONE
            rows.append(
                names.row(
                    run.run_id,
                    f"`{job.job_id}`",
                    f"{placed.cores}{f', {placed.parallelism}' if sharded else ''}",
                    f"{placed.core_bytes / GIB:.1f} of {run.core_bytes / GIB:.0f}",
                    _time(run.estimated_s),
                    _time(run.limit_s),
                    text(run.reason, 300),
                )
            )
    head = names.head("Job", "Cores", "GiB per core", "Expected", "Limit", "Why due")
    return [_foldable("runs", head, rows)] if rows else []


def _refused(plan: Plan, names: _Names) -> list[str]:
    rows = []
    for run in plan.refused:
        refusal = run.refusal
        assert refusal is not None
        failure = f"{refusal.failure.result}: {text(refusal.failure)}"
        reason = text(refusal.reason, 300)
        rows.append(names.row(run.run_id, failure, reason, text(run.reason, 300)))
    if not rows:
        return []
    shown = _foldable("refused runs", names.head("Class", "Why refused", "Why due"), rows)
    told = "Each becomes a row of stage `plan`, without a machine; an ERROR is due again next time."
    return ["### Refused", told, shown]


def _skipped(skipped: Sequence[Skipped], names: _Names, new_tokens: int) -> list[str]:
    if not skipped:
        return []
    waiting = sum(1 for skip in skipped if _is_waiting(skip))
    excluded = sum(1 for skip in skipped if skip.reason.startswith("excluded,"))
    current = sum(1 for skip in skipped if kind(skip.reason) == "up to date")
    counts = [
        (waiting, "due but left for another time"),
        (current, "up to date"),
        (excluded, "excluded"),
        (len(skipped) - waiting - excluded - current, "without a machine of their target"),
    ]
    told = ", ".join(f"{number:,} {what}" for number, what in counts if number)
    rows = [
        names.row(skip.run_id, text(skip.reason, 300))
        for skip in sorted(skipped, key=lambda skip: not _is_waiting(skip))
    ]
    content = _table(names.head("Why not"), rows)
    if any(Result.PASS in skip.reason for skip in skipped):
        content += (
            f"\n\nA PASS says that the model generated {new_tokens} tokens a prompt that held "
            "their check; nothing of speed, long texts or the quality of answers."
        )
    return [fold(f"Not planned: {told}", content)]


def _is_waiting(skip: Skipped) -> bool:
    return skip.reason.startswith("due (")


def _foldable(what: str, head: Row, rows: Sequence[Row]) -> str:
    shown = _table(head, rows)
    return fold(f"All {len(rows)} {what}", shown) if len(rows) > FOLD_ABOVE else shown


def _table(head: Row, rows: Sequence[Row]) -> str:
    made = table(head, rows[:MAX_ROWS])
    left = len(rows) - MAX_ROWS
    return f"{made}\n\n{left:,} more are in the plan's artifact." if left > 0 else made


def _time(seconds: float) -> str:
    if seconds < 30:
        return "0 min" if not seconds else "less than a minute"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 180 else f"{minutes // 60} h {minutes % 60:02} min"


def _usd(amount: float) -> str:
    return f"${amount:,.2f}"
