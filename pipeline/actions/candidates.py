"""Which models of the Hub's rankings the list lacks, and which of them could run: looked up.

Order is fair and the same for the same snapshots: each ranking of each task in turn gives its next
model that is missing and that no other ranking gave before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pipeline import plan as planning
from pipeline.catalog import Catalog, Model
from pipeline.hub import CheckpointRef, inspect_all
from pipeline.placement import PlanTable
from pipeline.plan import Earlier, Request
from pipeline.rankings import Rankings, Snapshot
from pipeline.record import Refusal, Run
from pipeline.words import Failure

MOST_LOOKED_AT = 120
"""Models that are looked up in search of some that fit: about four requests each, and without a
token the Hub answers 500 in five minutes. Above it the rest waits for the next time."""

_AT_ONCE = 10
"""Looked up together; the search ends with the batch that holds enough."""


@dataclass(frozen=True)
class Prospect:
    """A model and its run on each of the list's default stacks, placed or refused."""

    model: Model
    runs: tuple[Run, ...]

    @property
    def placed(self) -> tuple[Run, ...]:
        """The runs that have a place."""
        return tuple(run for run in self.runs if run.placement)

    @property
    def fits(self) -> bool:
        """Whether it would run on one of the stacks at least."""
        return bool(self.placed)

    @property
    def refusal(self) -> Refusal | None:
        """Why it would run on none of them: the first stack's reason."""
        if self.fits:
            return None
        if not self.runs:  # its entry names a runner class of another target
            reason = f"no default stack is of the target of its runner class {self.model.runner}"
            return Refusal(failure=Failure.UNSUPPORTED_PARALLELISM, reason=reason)
        return self.runs[0].refusal

    @property
    def unread(self) -> bool:
        """Whether the Hub did not answer, which says nothing of the model."""
        return self.refusal is not None and self.refusal.failure is Failure.DOWNLOAD


Look = Callable[[Sequence[Model]], list[Prospect]]
"""Looks models up, in their order."""


def looker(
    catalog: Catalog,
    folder: Path,
    earlier: Mapping[str, Earlier],
    *,
    now: datetime,
    cache: Path | None = None,
    endpoint: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Look:
    """Looks models up on the Hub and plans them with the real planner, as if they were the list.

    folder: where the list stands. earlier: what results know, for estimates. cache: kept facts of
    commits. endpoint: the Hub's address; None = HF_ENDPOINT or the public Hub.
    """
    plans = PlanTable.load()

    def look(models: Sequence[Model]) -> list[Prospect]:
        if not models:
            return []
        refs = [
            CheckpointRef(model.id, model.directory(folder), model.revision) for model in models
        ]
        found = inspect_all(refs, cache=cache, endpoint=endpoint, sleep=sleep)
        facts = {model.id: fact for model, fact in zip(models, found, strict=True)}
        alone = catalog.model_copy(update={"models": tuple(models), "excluded": ()})
        request = Request(force=True)
        made = planning.make_plan(alone, folder, facts, earlier, {}, plans, request, now=now)
        runs: dict[str, list[Run]] = {model.id: [] for model in models}
        order = [str(alone.stack_versions(name).run_id("x")) for name in alone.defaults.stacks]
        for run in sorted(made.runs, key=lambda run: order.index(str(run.stack.run_id("x")))):
            runs[run.model_id].append(run)
        return [Prospect(model, tuple(runs[model.id])) for model in models]

    return look


@dataclass(frozen=True)
class Missing:
    """The models of the rankings that are not on the list.

    models: in the order in which to look at them. listed: how many are on the list, wanted or
    excluded. passed_over: how many have no safetensors by the Hub's listing, so that they are not
    looked at. declined: how many people declined.
    """

    models: tuple[Model, ...]
    listed: int
    passed_over: int
    declined: int


def missing(rankings: Rankings, catalog: Catalog, declined: Collection[str]) -> Missing:
    """declined: ids in lower case (casefold)."""
    on_it = on_list(catalog)
    counts = {"listed": 0, "passed_over": 0, "declined": 0}
    seen: set[str] = set()

    def rest(snapshot: Snapshot) -> Iterator[Model]:
        for row in snapshot.rows:
            name = row.id.casefold()
            if name in seen:
                continue
            seen.add(name)
            if name in on_it:
                counts["listed"] += 1
            elif name in declined:
                counts["declined"] += 1
            elif not row.parameters:
                counts["passed_over"] += 1
            else:
                yield Model(id=row.id, task=snapshot.task)

    models = []
    queues = [rest(snapshot) for snapshot in rankings]
    while queues:
        for queue in list(queues):
            found = next(queue, None)
            if found is None:
                queues.remove(queue)
            else:
                models.append(found)
    return Missing(tuple(models), **counts)


def on_list(catalog: Catalog) -> set[str]:
    """The ids that the list has, wanted or excluded, in lower case."""
    return {model.id.casefold() for model in catalog.models} | {
        entry.id.casefold() for entry in catalog.excluded
    }


@dataclass(frozen=True)
class Search:
    """What a search for models that fit came to.

    fits: as many as asked for, or fewer. refused: those on the way that would not run. unread: how
    many the Hub did not tell about. left: how many were not looked at.
    """

    fits: tuple[Prospect, ...]
    refused: tuple[Prospect, ...]
    unread: int
    left: int


def search(models: Sequence[Model], wanted: int, look: Look) -> Search:
    """The first `wanted` of `models` that fit, among the first MOST_LOOKED_AT."""
    fits: list[Prospect] = []
    refused: list[Prospect] = []
    unread = at = 0
    while len(fits) < wanted and at < min(len(models), MOST_LOOKED_AT):
        batch = models[at : min(at + _AT_ONCE, MOST_LOOKED_AT)]
        for prospect in look(batch):
            if len(fits) == wanted:
                break
            at += 1
            if prospect.fits:
                fits.append(prospect)
            elif prospect.unread:
                unread += 1
            else:
                refused.append(prospect)
    return Search(tuple(fits), tuple(refused), unread, len(models) - at)
