"""Which runs are due, why, and in what order: pure, from list, facts and earlier results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

from pipeline import script
from pipeline.catalog import Catalog, Model, Runner
from pipeline.errors import UsageError
from pipeline.placement import GIB, Checkpoint, Margin, PlanTable, place
from pipeline.record import (
    Job,
    Machine,
    Placement,
    Plan,
    Record,
    Refusal,
    Run,
    Skipped,
    StackVersions,
)
from pipeline.words import Failure, Result, Stage, Target, Task

IMAGE_POSITIONS = 4096
"""Cache positions that placement sets aside for a prompt with a picture: most processors make 256
to 3 000 of one. What a run really needs is known only to the processor, which planning never
loads."""

_ROW_CLOCK = timedelta(milliseconds=1)
_MAX_REASON = 4_000
"""Characters of a reason: the papers' limit (record.ShortText)."""

_COLD_S = 600
_COLD_S_PER_GIB = 120
"""Expected seconds of a run that never ran: a user measured 576 s cold for a model of 1.2 B
parameters (2.3 GiB) on trn2.3xlarge; the share by size is an assumption until rows refit it."""


@dataclass(frozen=True)
class Earlier:
    """What results know of a run: its reigning row, and its newest attempt.

    stage, wall_s: of the reigning row. revision, script_sha256: of the reigning row too, or of the
    newest attempt where that was inconclusive, which does not reign and is not to be repeated.
    errors: how many ERRORs in a row end its history.
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


@dataclass(frozen=True)
class Request:
    """What a person asks of planning.

    stacks: names, empty = the list's default ones. select: globs on run ids, or model ids; empty =
    all. force: due or not. budget_s: machine time to stay within, None = no limit.
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
    due: list[tuple[datetime | None, Run]] = []
    for model, stack in chosen:
        before = earlier.get(str(stack.run_id(model.id)))
        asked = _ask(catalog, folder, model, stack, facts[model.id], before, plans)
        why = _due(asked, before, lost.get(asked.run_id), request, catalog, now)
        if why is None:
            assert before is not None
            reason = f"up to date: {before.result} on {before.tested_at:%Y-%m-%d}"
            skipped.append(Skipped(run_id=asked.run_id, reason=reason))
        else:
            last = before.last_at if before else None
            due.append((last, asked.model_copy(update={"reason": why})))
    # Never run stands before every date; equal ages keep the list's order.
    due.sort(key=lambda pair: (pair[0] is not None, pair[0] or now))
    refused = tuple(run for _, run in due if run.refusal)
    placed = []
    spent = 0.0
    for _, run in due:
        if run.refusal:
            continue
        if request.budget_s is not None and spent + run.estimated_s > request.budget_s:
            left = (request.budget_s - spent) / 60
            reason = f"{run.estimated_s / 60:.0f} min do not fit the {left:.0f} left of the budget"
            skipped.append(Skipped(run_id=run.run_id, reason=f"due ({run.reason}), but {reason}"))
            continue
        spent += run.estimated_s
        placed.append(run)
    return Plan(jobs=_jobs(catalog, placed), refused=refused, skipped=tuple(skipped))


def _selected(run_id: str, wishes: Sequence[str]) -> bool:
    """Whether run id, model id or glob asks for a run, letter case aside; no wish asks for all."""
    name = run_id.casefold()
    return not wishes or any(fnmatchcase(name, _glob(wish).casefold()) for wish in wishes)


def _glob(wish: str) -> str:
    slug = wish.replace("/", "--")
    return f"{slug}@*" if _names_model(wish) else slug


def _names_model(wish: str) -> bool:
    return not set(wish) & set("@*?[")


def _jobs(catalog: Catalog, runs: Iterable[Run]) -> tuple[Job, ...]:
    """One job a runner class, in the list's order of classes, runs in the order of the plan."""
    by_class: dict[str, list[Run]] = {name: [] for name in catalog.runners}
    for run in runs:
        by_class[run.runner].append(run)
    return tuple(
        Job(
            job_id=name,
            runner=name,
            labels=catalog.runners[name].labels,
            machine=Machine(
                cores=catalog.runners[name].cores,
                host_bytes=int(catalog.runners[name].host_gib * GIB),
                compilations=1,
            ),
            estimated_s=sum(run.estimated_s for run in runs),
            limit_s=sum(run.limit_s for run in runs),
            runs=tuple(runs),
        )
        for name, runs in by_class.items()
        if runs
    )


def _ask(
    catalog: Catalog,
    folder: Path,
    model: Model,
    stack: StackVersions,
    facts: Checkpoint | Refusal,
    before: Earlier | None,
    plans: PlanTable,
) -> Run:
    """The run of a model on a stack: placed, or refused with the reason."""
    try:
        return _asked(catalog, folder, model, stack, facts, before, plans)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # What a repository holds is anybody's: one that breaks us must not cost the others' runs.
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        text = f"the model or its checkpoint breaks planning: {said}"
        broken = Refusal(
            failure=Failure.HARNESS, reason=text.encode("utf-8", "backslashreplace").decode()
        )
        return _asked(catalog, folder, model, stack, broken, before, plans)


def _asked(
    catalog: Catalog,
    folder: Path,
    model: Model,
    stack: StackVersions,
    facts: Checkpoint | Refusal,
    before: Earlier | None,
    plans: PlanTable,
) -> Run:
    runners = catalog.runners_for(model, stack.target)
    checkpoint = facts if isinstance(facts, Checkpoint) else None
    source = model.directory(folder)
    name, runner, decided = _place(catalog, model, stack, facts, runners, plans)
    kind = plans.find(model.task, checkpoint.config) if checkpoint else None
    placed = decided if isinstance(decided, Placement) else None
    asked = Run(
        run_id=str(stack.run_id(model.id)),
        model_id=model.id,
        source=str(source) if source else None,
        revision=checkpoint.revision if checkpoint else model.revision,
        task=model.task,
        model_type=checkpoint.model_type if checkpoint else None,
        parameters=checkpoint.parameters if checkpoint and checkpoint.tensors else None,
        checkpoint_bytes=checkpoint.checkpoint_bytes if checkpoint else None,
        stack=stack,
        runner=name,
        core_bytes=int(runner.core_gib * GIB),
        usd_per_hour=runner.usd_per_hour,
        placement=placed,
        refusal=None if isinstance(decided, Placement) else decided,
        dtype=catalog.dtype_for(model),
        new_tokens=catalog.defaults.new_tokens,
        prompts=catalog.prompts_for(model),
        prefill_chunk=catalog.defaults.prefill_chunk,
        mixture_of_experts=bool(
            kind and any("experts" in rule for rule in {**kind.tensor, **kind.expert})
        ),
        extra_packages=model.extra_packages,
        limit_s=catalog.limit_s(model),
        estimated_s=_estimate_s(catalog.limit_s(model), placed, before),
        script_sha256=None,
        reason="",
        attempt=(before.errors if before else 0) + 1,
        cache_keys=before.cache_keys if before else (),
    )
    if placed is None:
        return asked
    return asked.model_copy(update={"script_sha256": script.sha256(script.render(asked))})


def _place(
    catalog: Catalog,
    model: Model,
    stack: StackVersions,
    facts: Checkpoint | Refusal,
    runners: Mapping[str, Runner],
    plans: PlanTable,
) -> tuple[str, Runner, Placement | Refusal]:
    """The first runner class with a placement; without one the last class's refusal."""
    margin = catalog.defaults.margin
    tried: list[tuple[str, Runner, Placement | Refusal]] = []
    for name, runner in runners.items():
        if isinstance(facts, Refusal):
            return name, runner, facts
        decided = place(
            facts,
            task=model.task,
            dtype=catalog.dtype_for(model),
            sequence_length=_positions(catalog, model),
            core_bytes=int(runner.core_gib * GIB),
            max_cores=min(runner.cores, 16),
            margin=Margin(int(margin.gib * GIB), margin.fraction),
            plans=plans,
            cores=model.cores,
            parallelism=model.parallelism,
            host_bytes=int(runner.host_gib * GIB) if stack.target is Target.CPU else None,
        )
        tried.append((name, runner, decided))
        if isinstance(decided, Placement):
            break
    return tried[-1]


def _positions(catalog: Catalog, model: Model) -> int:
    """Length of the static cache, in positions, before a tokenizer has seen the prompts.

    No tokenizer makes more tokens of a text than it has bytes, a few special ones apart.
    """
    chunk = catalog.defaults.prefill_chunk
    longest = 8 + max(len(prompt.encode()) for prompt in catalog.prompts_for(model))
    if model.task is Task.IMAGE_TEXT_TO_TEXT:
        longest += IMAGE_POSITIONS
    return -(-longest // chunk) * chunk + catalog.defaults.new_tokens


def _estimate_s(limit_s: int, placed: Placement | None, before: Earlier | None) -> int:
    """Seconds a run is expected to take: what it took, else by its size, within its limit."""
    if placed is None:
        return 1
    expected = _COLD_S + _COLD_S_PER_GIB * placed.weight_bytes * placed.cores / GIB
    # A refused run ended at once, which says nothing of one that is placed now.
    ran = before and before.result is not Result.ERROR and before.stage is not Stage.PLAN
    if before and ran and before.wall_s:
        expected = before.wall_s
    return max(1, min(limit_s, round(expected)))


def _due(
    asked: Run,
    before: Earlier | None,
    lost: Record | None,
    request: Request,
    catalog: Catalog,
    now: datetime,
) -> str | None:
    """Why the run is due; None when it is not."""
    # Rows keep milliseconds: a lost run that was published counts by its row.
    if lost and (before is None or lost.started_at - before.last_at > _ROW_CLOCK):
        return (
            f"the run started {lost.started_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC was lost at "
            f"stage {lost.stage}: its record never ended"
        )
    if request.force:
        return "asked for"
    if before is None:
        return "never run"
    # The same inconclusive evidence would come again; a new script or age brings it back.
    if before.last_result is Result.ERROR and before.last_failure is not Failure.INCONCLUSIVE:
        return f"the last attempt ended in ERROR ({before.last_failure}) at {before.last_stage}"
    if asked.refusal and before.failure is not asked.refusal.failure:
        return f"refused now: {asked.refusal.failure}; before: {before.failure or before.result}"
    if before.revision != asked.revision:
        return f"other revision: {_short(before.revision)} then, {_short(asked.revision)} now"
    if before.script_sha256 != asked.script_sha256:
        return "other script: its template, prompts, placement or stack changed"
    age = now - before.last_at
    if age > timedelta(days=catalog.defaults.max_age_days):
        return f"{age.days} days old, the limit is {catalog.defaults.max_age_days}"
    return None


def _short(revision: str | None) -> str:
    return (revision or "none").removeprefix("sha256:")[:12]
