"""Which runs are due, why, and in what order: pure, from list, facts and earlier results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

from pipeline import schedule
from pipeline.asking import Candidate, Places, Tried, ask, broken
from pipeline.catalog import Catalog, Model
from pipeline.errors import UsageError
from pipeline.estimate import Durations, Past
from pipeline.placement import Checkpoint, PlanTable
from pipeline.record import Job, Plan, Record, Refusal, Run, Skipped, StackVersions
from pipeline.words import Failure, Result, Stage, cores

_ROW_CLOCK = timedelta(milliseconds=1)
_MAX_REASON = 4_000
"""Characters of a reason: the papers' limit (record.ShortText)."""

OTHER_SCRIPT = "other script: its template, prompts, placement or stack changed"
"""The reason of a run that did not change while what is run did: of all, after a new template."""

_MISSES = 8
"""So many runs in a row may exceed what is left of a budget before the search for smaller ones
ends: each costs a division of all runs over the machines."""


@dataclass(frozen=True)
class Earlier:
    """What results know of a run: its reigning row, and its newest attempt.

    stage, wall_s: of the reigning row. revision, script_sha256: of the reigning row too, or of the
    newest attempt where that was inconclusive, which does not reign and is not to be repeated.
    errors: how many ERRORs in a row end its history. past: its rows, as far as they tell of time.
    """

    result: Result
    failure: Failure | None
    stage: Stage
    tested_at: datetime
    revision: str | None
    script_sha256: str | None
    wall_s: float | None
    cache_keys: tuple[str, ...]
    last_result: Result
    last_failure: Failure | None
    last_stage: Stage
    last_at: datetime
    errors: int
    past: tuple[Past, ...] = ()


@dataclass(frozen=True)
class Request:
    """What a person asks of planning.

    stacks: names, empty = the list's default ones. select: globs on run ids, or model ids; empty =
    all. force: due or not. budget_s: machine time to stay within, None = no limit: what all jobs
    are expected to take, each on a machine that its runs share.
    """

    stacks: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    force: bool = False
    budget_s: float | None = None


def wanted(
    catalog: Catalog, request: Request
) -> tuple[list[tuple[Model, StackVersions]], list[Skipped]]:
    """The runs a request names, before any fact is known, and which of them cannot be planned:
    those of excluded models, and of models whose runner class is of another target.

    UsageError for a part of `select` that fits no run id, and for a stack without runner class.
    """
    chosen = []
    skipped = []
    known = []
    for name in dict.fromkeys(request.stacks or catalog.defaults.stacks):
        stack = catalog.stack_versions(name)
        if not any(runner.target is stack.target for runner in catalog.runners.values()):
            raise UsageError(
                f"stack {name} is of target {stack.target}, and no runner class is",
                remedy=f"give `runners` a class with `target: {stack.target}`, or ask for another "
                "stack with --stack",
            )
        for model in catalog.models:
            run_id = str(stack.run_id(model.id))
            known.append(run_id)
            if not _selected(run_id, request.select):
                continue
            if catalog.runners_for(model, stack.target):
                chosen.append((model, stack))
            else:
                reason = f"its runner class {model.runner} is not of target {stack.target}"
                skipped.append(Skipped(run_id=run_id, reason=reason))
        for entry in catalog.excluded:
            run_id = str(stack.run_id(entry.id))
            known.append(run_id)
            if _selected(run_id, request.select):
                reason = f"excluded, {entry.reason.value}: {entry.note}"[:_MAX_REASON]
                skipped.append(Skipped(run_id=run_id, reason=reason))
    for wish in request.select:
        if not any(_selected(run_id, (wish,)) for run_id in known):
            raise _unknown(catalog, wish, known)
    return chosen, skipped


def _unknown(catalog: Catalog, wish: str, known: Sequence[str]) -> UsageError:
    """The error for a wish that fits no run id, with what comes near it."""
    if _names_model(wish):
        try:
            catalog.model(wish.replace("--", "/"))
        except UsageError as error:
            fits = wish and any(_selected(run_id, (f"*{wish}*",)) for run_id in known)
            remedy = f"'*{wish}*' stands for every run id with {wish} in it" if fits else ""
            return UsageError(error.reason, remedy=remedy)
    near = get_close_matches(wish.replace("/", "--"), known, n=1)
    return UsageError(
        f"no run id matches {wish!r}",
        remedy=f"did you mean {near[0]}?"
        if near
        else f"a run id looks like {known[0]}; '*Qwen3*' selects every one with Qwen3 in it",
    )


def make_plan(
    catalog: Catalog,
    folder: Path,
    facts: Mapping[str, Checkpoint | Refusal],
    earlier: Mapping[str, Earlier],
    lost: Mapping[str, Record],
    plans: PlanTable,
    request: Request,
    *,
    now: datetime,
) -> Plan:
    """Decide what is due, oldest first, and into which jobs it goes.

    folder: where the list stands. facts: model id -> what its repository holds. earlier: run id ->
    what results know. lost: run id -> a record of this machine that never ended.
    """
    chosen, skipped = wanted(catalog, request)
    places = Places(catalog, plans)
    durations = Durations(row for known in earlier.values() for row in known.past)
    due: list[tuple[datetime | None, Candidate]] = []
    for model, stack in chosen:
        before = earlier.get(str(stack.run_id(model.id)))
        found = _ask(places, folder, model, stack, facts[model.id], before, durations)
        why = _due(found, before, lost.get(found.run.run_id), request, catalog.limit_s(model))
        why = why or _too_old(before, catalog, now)
        if why is None:
            assert before is not None
            reason = f"up to date: {before.result} on {before.tested_at:%Y-%m-%d}"
            skipped.append(Skipped(run_id=found.run.run_id, reason=reason))
        else:
            due.append((before.last_at if before else None, _because(found, why)))
    # Never run stands before every date; equal ages keep the list's order.
    due.sort(key=lambda pair: (pair[0] is not None, pair[0] or now))
    refused = tuple(found.run for _, found in due if found.run.refusal)
    placed = [found for _, found in due if not found.run.refusal]
    if request.budget_s is None:
        return Plan(
            jobs=schedule.schedule(placed, catalog.runners), refused=refused, skipped=tuple(skipped)
        )
    jobs, left_out = _within(request.budget_s, placed, catalog)
    return Plan(jobs=jobs, refused=refused, skipped=(*skipped, *left_out))


def kind(reason: str) -> str:
    """What a run's reason has in common with those of other runs: "other script", "too old"."""
    return reason.partition(": ")[0]


def _because(found: Candidate, why: str) -> Candidate:
    """The candidate with the reason why it is due on all of its runs."""
    reason = {"reason": why}
    return replace(
        found,
        run=found.run.model_copy(update=reason),
        elsewhere=tuple(run.model_copy(update=reason) for run in found.elsewhere),
    )


def _within(
    budget_s: float, due: Sequence[Candidate], catalog: Catalog
) -> tuple[tuple[Job, ...], list[Skipped]]:
    """The jobs of what a budget of machine seconds allows, in the order given, and what it leaves.

    A run that does not fit does not stop smaller ones behind it. Runs are tried many at once, and
    by an estimate that simulates nothing; in the end the simulated jobs keep the budget.
    """
    machines = {name: schedule.machine_of(runner) for name, runner in catalog.runners.items()}
    least = {
        found.run.run_id: schedule.least_time(schedule.Work.of(found), machines) for found in due
    }
    taken: list[Candidate] = []
    left_out: list[tuple[Candidate, float]] = []
    queue, spent, floor = list(due), 0.0, 0.0
    step, misses = max(1, len(queue)), 0
    while queue:
        some = queue[:step]
        share = floor + sum(least[found.run.run_id] for found in some)
        need = max(found.expected.run_s + found.expected.check_s for found in some)
        fits = max(share, need) <= budget_s and misses < _MISSES
        if fits:
            total = schedule.machine_time([*taken, *some], catalog.runners)
            fits = total <= budget_s
            misses = 0 if fits or len(some) > 1 else misses + 1
        if fits:
            taken += some
            spent, floor = total, share
            queue = queue[len(some) :]
            step = 2 * len(some)
        elif len(some) > 1:
            step = len(some) // 2
        else:
            left_out.append((queue.pop(0), budget_s - spent))
    jobs = schedule.schedule(taken, catalog.runners)
    while taken and (total := sum(job.estimated_s for job in jobs)) > budget_s:
        # Several at once while much is too much: simulating each step would take long.
        for _ in range(max(1, int(len(taken) * (total - budget_s) / total / 2))):
            left_out.append((taken.pop(), 0.0))
        jobs = schedule.schedule(taken, catalog.runners)
    return jobs, [_left_out(found.run, max(0.0, left)) for found, left in left_out]


def _left_out(run: Run, left_s: float) -> Skipped:
    what = f"{run.estimated_s / 60:.0f} min on {_cores(run)} do not fit the {left_s / 60:.0f} left"
    return Skipped(run_id=run.run_id, reason=f"due ({run.reason}), but {what} of the budget")


def _cores(run: Run) -> str:
    return cores(run.placement.cores if run.placement else 0)


def _selected(run_id: str, wishes: Sequence[str]) -> bool:
    """Whether run id, model id or glob asks for a run, letter case aside; no wish asks for all."""
    name = run_id.casefold()
    return not wishes or any(fnmatchcase(name, _glob(wish).casefold()) for wish in wishes)


def _glob(wish: str) -> str:
    slug = wish.replace("/", "--")
    return f"{slug}@*" if _names_model(wish) else slug


def _names_model(wish: str) -> bool:
    return not set(wish) & set("@*?[")


def _ask(
    places: Places,
    folder: Path,
    model: Model,
    stack: StackVersions,
    facts: Checkpoint | Refusal,
    before: Earlier | None,
    durations: Durations,
) -> Candidate:
    """The run of a model on a stack: placed, or refused with the reason."""
    tried = None
    if before:
        # An inconclusive attempt's script is not the one that the reigning row failed with.
        other = before.last_failure is Failure.INCONCLUSIVE
        tried = Tried(before.script_sha256, None if other else before.failure)

    def asked(places: Places, facts: Checkpoint | Refusal) -> Candidate:
        return ask(
            places,
            folder,
            model,
            stack,
            facts,
            durations,
            tried=tried,
            attempt=(before.errors if before else 0) + 1,
            cache_keys=before.cache_keys if before else (),
        )

    try:
        return asked(places, facts)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # What a repository holds is anybody's: one that breaks us must not cost the others' runs.
        return asked(Places(places.catalog, places.plans), broken(error))


def _due(
    found: Candidate,
    before: Earlier | None,
    lost: Record | None,
    request: Request,
    cap_s: int,
) -> str | None:
    """Why the run is due, its age apart; None when it is not. cap_s: the list's limit.

    What runs have in common comes first and what is particular after a colon (`kind`).
    """
    asked = found.run
    # Rows keep milliseconds: a lost run that was published counts by its row.
    if lost and (before is None or lost.started_at - before.last_at > _ROW_CLOCK):
        began = f"{lost.started_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        return (
            f"lost: the run started {began} was lost at stage {lost.stage}: its record never ended"
        )
    if request.force:
        return "asked for"
    if before is None:
        return "never run"
    # The same inconclusive evidence would come again; a new script or age brings it back.
    if before.last_result is Result.ERROR and before.last_failure is not Failure.INCONCLUSIVE:
        return f"last attempt ended in ERROR: {before.last_failure} at {before.last_stage}"
    if asked.refusal and before.failure is not asked.refusal.failure:
        return f"refused now: {asked.refusal.failure}; before: {before.failure or before.result}"
    if before.revision != asked.revision:
        return f"other revision: {_short(before.revision)} then, {_short(asked.revision)} now"
    if found.outgrown is not None:
        ran_out = f"ran out of device memory on {cores(found.outgrown)}"
        return f"needs more cores: {ran_out}, {_cores(asked)} are next"
    if before.script_sha256 != asked.script_sha256:
        return OTHER_SCRIPT
    if before.failure is Failure.TIMEOUT and before.wall_s and before.wall_s < cap_s:
        took, cap = before.wall_s / 60, cap_s / 60
        return f"timed out: after {took:.0f} min, its limit then; the list allows {cap:.0f}"
    return None


def _too_old(before: Earlier | None, catalog: Catalog, now: datetime) -> str | None:
    """Why the run is due by age; None when it is not."""
    age = now - before.last_at if before else timedelta()
    if age > timedelta(days=catalog.defaults.max_age_days):
        return f"too old: {age.days} days, the limit is {catalog.defaults.max_age_days}"
    return None


def _short(revision: str | None) -> str:
    return (revision or "none").removeprefix("sha256:")[:12]
