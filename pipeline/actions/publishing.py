"""One publication: from artifacts and their plan to one commit on the branch that is published to.

Here is the order of things. What may be read of the artifacts is decided in `artifacts`, what
becomes of it in `pipeline.publish`, how it gets to the branch in `git`, and how it is told in
`publishing_page`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pipeline import catalog
from pipeline import publish as deriving
from pipeline.actions import publishing_page
from pipeline.actions.artifacts import Artifacts, collect
from pipeline.actions.git import Pushed, push_derived
from pipeline.actions.workflow import Level, Workflow
from pipeline.errors import CatalogError, RecordError, ResultsError
from pipeline.publish import Published
from pipeline.record import SCHEMA_VERSION, Plan, parse, read_bytes

ATTEMPTS = 20
"""Pushes that are tried. Each rejected one means that another writer's went through, and of those
no more than some wait for their turn (`concurrency` in the workflow)."""

MAX_WARNINGS = 4
"""Annotations of a kind. GitHub shows ten a step, and each kind has one more for all others."""

_NOTHING = Published(0, 0, 0, 0, (), (), ())


@dataclass(frozen=True)
class Publication:
    """What was published. artifacts: what was found; pushed: where the branch is now."""

    plan: Plan
    artifacts: Artifacts
    published: Published
    pushed: Pushed
    branch: str

    def check(self) -> None:
        """ResultsError when a planned run left no record that can be used, or one was refused."""
        lost = [f"{one.run.run_id}: {one.error}" for one in self.published.lost]
        refused, number = self.artifacts.taken.problems, self.artifacts.refused
        if not lost and not refused:
            return
        told = [f"planned runs without a usable record: {len(lost)}"] if lost else []
        told += [f"refused in the artifacts: {number}"] if number else []
        # A line that began with what a machine named a file could be a command to GitHub's runner.
        lines = [f"- {publishing_page.line(one)}" for one in [*lost[:20], *refused[:20]]]
        raise ResultsError(
            "\n  ".join((f"published, but not all is as planned; {', '.join(told)}", *lines)),
            remedy="runs without a record count as ERROR, and the next plan holds them again",
        )


def read_plan(path: Path, sha256: str | None = None) -> Plan:
    """The plan in a file. RecordError when it is not the one whose digest is `sha256`."""
    plan = parse(Plan, read_bytes(path, sha256), where=str(path))
    if plan.schema_version != SCHEMA_VERSION:
        raise RecordError(
            f"is of schema version {plan.schema_version}, this checkout reads {SCHEMA_VERSION}",
            where=str(path),
            remedy="plan and publish with the same version",
        )
    return plan


def publish(
    root: Path,
    plan: Plan,
    folder: Path,
    *,
    list_path: Path,
    list_of_branch: bool,
    branch: str,
    tree: Path,
    workflow: Workflow,
    now: datetime,
    sleep: Callable[[float], object] = time.sleep,
) -> Publication:
    """Publish what the artifacts in `folder` hold of `plan`, in one commit on origin's `branch`.

    root: the checkout. list_path: its model list. list_of_branch: use the list on the branch
    instead, unless that is invalid: for a branch that people, too, write to. now: one moment, so
    that deriving again after a rejected push gives the same rows.

    Everything that can be published is, also when `Publication.check` then finds fault.
    """
    here = catalog.load(list_path)
    found = collect(folder, plan, attempt=workflow.attempt, run_url=workflow.run_url, now=now)
    published = _NOTHING

    def derive(tree: Path) -> str | None:
        nonlocal published
        published = _NOTHING
        nothing = not found.taken.records and not any(plan.runs)
        if nothing and not any((tree / "results" / "current").rglob("*.parquet")):
            return None  # no page before there is anything to say
        wishes = _list_in(tree, root, list_path, here) if list_of_branch else here
        published = deriving.derive(
            found.taken,
            results=tree / "results",
            table=tree / "COMPATIBILITY.md",
            catalog_view=wishes,
            plan=plan,
            now=now,
            max_age_days=wishes.defaults.max_age_days,
            run_url=workflow.run_url,
        )
        return publishing_page.message(published, workflow) if published.written else None

    pushed = push_derived(
        root,
        branch=branch,
        tree=tree,
        derive=derive,
        attempts=ATTEMPTS,
        token=workflow.token,
        server_url=workflow.server_url,
        sleep=sleep,
    )
    return Publication(plan, found, published, pushed, branch)


def tell(publication: Publication, workflow: Workflow) -> None:
    """Say what was published: the page of the run, its annotations, and the output `commit`."""
    workflow.output("commit", publication.pushed.commit or "")
    workflow.summary(publishing_page.summary(publication, workflow))
    lost = [f"{one.run.run_id}: {one.error}" for one in publication.published.lost]
    found = publication.artifacts
    for title, told, number in (
        ("No record", lost, len(lost)),
        ("Refused artifact", found.taken.problems, found.refused),
    ):
        for one in told[:MAX_WARNINGS]:
            workflow.annotate(Level.WARNING, publishing_page.line(one), title=title)
        if (more := number - MAX_WARNINGS) > 0:
            workflow.annotate(Level.WARNING, f"{more} more: see the summary", title=title)


def _list_in(tree: Path, root: Path, list_path: Path, here: catalog.Catalog) -> catalog.Catalog:
    """The model list of the tree, which may be newer; the checkout's when that cannot be used."""
    try:
        inside = list_path.resolve().relative_to(root.resolve())
        return catalog.load(tree / inside)
    except (CatalogError, ValueError):
        return here
