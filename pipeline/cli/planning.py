"""Commands before any run: validate, plan, script."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.group import main
from pipeline.cli.options import (
    count,
    facts_option,
    json_option,
    list_option,
    path,
    print_json,
    records_option,
    results_option,
    stack_option,
)
from pipeline.errors import UsageError

if TYPE_CHECKING:
    from pipeline.catalog import Catalog
    from pipeline.placement import Checkpoint
    from pipeline.plan import Earlier, Request
    from pipeline.record import Plan, Refusal, Run


@main.command(short_help="Check the model list.")
@list_option
@json_option
def validate(list_path: Path, as_json: bool) -> None:
    """Check the model list and say every problem with its line and column."""
    from pipeline.catalog import InvalidCatalog, load

    try:
        catalog = load(list_path)
    except InvalidCatalog as error:
        if not as_json:
            raise
        print_json(
            {
                "problems": [
                    {
                        "file": problem.file,
                        "line": problem.line,
                        "column": problem.column,
                        "message": problem.message,
                    }
                    for problem in error.problems
                ]
            }
        )
        sys.exit(error.exit_code)
    if as_json:
        print_json({"problems": []})
        return
    counts = (
        count(catalog.models, "model"),
        f"{len(catalog.excluded)} excluded",
        count(catalog.stacks, "stack"),
        count(catalog.runners, "runner class", "runner classes"),
    )
    click.echo(f"{list_path}: {', '.join(counts)}: no problem found")


@main.command(short_help="Decide which runs are due, and why.")
@list_option
@results_option
@records_option
@facts_option
@stack_option
@click.option(
    "--select",
    multiple=True,
    metavar="GLOB",
    help="Only run ids like this, or this model's; may be repeated.",
)
@click.option("--force", is_flag=True, help="Plan what is selected whether it is due or not.")
@click.option(
    "--budget", type=click.FloatRange(min=0), metavar="MINUTES", help="Machine time to stay within."
)
@click.option("--output", type=path(dir_okay=False), help="Write the plan to this file, too.")
@json_option
def plan(
    list_path: Path,
    results: Path,
    records: Path,
    facts_cache: Path,
    stacks: tuple[str, ...],
    select: tuple[str, ...],
    force: bool,
    budget: float | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Decide which runs are due, and say why; --json prints the jobs that `qualify run` takes."""
    from pipeline.plan import Request
    from pipeline.record import dump, write

    if budget is not None and isnan(budget):
        raise UsageError("--budget is not a number")
    request = Request(stacks, select, force, None if budget is None else budget * 60)
    made = make_plan(list_path, results, records, facts_cache, request)
    if output:
        write(made, output)
    if as_json:
        click.echo(dump(made), nl=False)
    else:
        click.echo(_plan_table(made))


@main.command(short_help="Print a run's run.py.")
@click.argument("run")
@list_option
@results_option
@facts_option
@stack_option
def script(
    run: str, list_path: Path, results: Path, facts_cache: Path, stacks: tuple[str, ...]
) -> None:
    """Print the run.py of RUN, a run id, a glob that fits one, or a model id."""
    from pipeline import script as scripts

    asked = one_run(run, list_path, results, facts_cache, stacks)
    if asked.refusal:
        raise UsageError(
            f"{asked.run_id} is refused, so there is no script: "
            f"{asked.refusal.failure}: {asked.refusal.reason}"
        )
    click.echo(scripts.render(asked), nl=False)


def _facts(
    catalog: Catalog, folder: Path, cache: Path, names: Sequence[str]
) -> dict[str, Checkpoint | Refusal]:
    from pipeline.hub import CheckpointRef, inspect_all

    models = [catalog.model(name) for name in dict.fromkeys(names)]
    refs = [CheckpointRef(model.id, model.directory(folder), model.revision) for model in models]
    found = inspect_all(refs, cache=cache)
    return {model.id: facts for model, facts in zip(models, found, strict=True)}


def make_plan(
    list_path: Path, results: Path, records: Path, facts_cache: Path, request: Request
) -> Plan:
    from pipeline import plan as planning
    from pipeline.catalog import load
    from pipeline.placement import PlanTable
    from pipeline.record import unfinished

    catalog = load(list_path)
    folder = list_path.resolve().parent
    chosen, _ = planning.wanted(catalog, request)
    return planning.make_plan(
        catalog,
        folder,
        _facts(catalog, folder, facts_cache, [model.id for model, _ in chosen]),
        _earlier(results),
        unfinished(records),
        PlanTable.load(),
        request,
        now=datetime.now(UTC),
    )


def _earlier(results: Path) -> dict[str, Earlier]:
    """What results/ knows of each run, for the planner."""
    if not (results / "current").is_dir():
        return {}
    from pipeline import results as store
    from pipeline.errors import ResultsError
    from pipeline.plan import Earlier
    from pipeline.words import Failure, Result, Stage

    columns = [
        "run_id",
        "result",
        "failure",
        "stage",
        "tested_at",
        "revision",
        "script_sha256",
        "wall_s",
        "cache_keys",
    ]
    attempts = store.last_attempts(results)
    inconclusive = any(last.failure is Failure.INCONCLUSIVE for last in attempts.values())
    tried = ["run_id", "tested_at", "revision", "script_sha256"]
    history = store.read_history(results, tried) if inconclusive else []
    history.sort(key=lambda row: row["tested_at"])
    newest = {row["run_id"]: row for row in history}
    earlier = {}
    for row in store.read_current(results, columns):
        last = attempts.get(row["run_id"])
        if last is None:
            raise ResultsError(
                f"history holds no attempt of {row['run_id']}, which current/ holds",
                where=str(results),
                remedy="restore history/: current/ is derived from it",
            )
        shown = newest[row["run_id"]] if last.failure is Failure.INCONCLUSIVE else row
        earlier[row["run_id"]] = Earlier(
            result=Result(row["result"]),
            failure=Failure(row["failure"]) if row["failure"] else None,
            stage=Stage(row["stage"]),
            tested_at=row["tested_at"],
            revision=shown["revision"],
            script_sha256=shown["script_sha256"],
            wall_s=row["wall_s"],
            cache_keys=tuple(row["cache_keys"] or ()),
            last_result=last.result,
            last_failure=last.failure,
            last_stage=last.stage,
            last_at=last.tested_at,
            errors=last.errors,
        )
    return earlier


def one_run(
    what: str, list_path: Path, results: Path, facts_cache: Path, stacks: tuple[str, ...]
) -> Run:
    """The one run that a run id, a glob or a model id names."""
    from pipeline.plan import Request

    request = Request(stacks, (what,), force=True)
    nowhere = Path(os.devnull)
    made = make_plan(list_path, results, nowhere, facts_cache, request)
    found = list(made.runs)
    if len(found) > 1:
        names = "\n".join(f"    {run.run_id}" for run in found)
        raise UsageError(
            f"{what} names {len(found)} runs:\n{names}", remedy="name one of them, or one --stack"
        )
    if not found:
        raise UsageError("; ".join(f"{skip.run_id}: {skip.reason}" for skip in made.skipped))
    return found[0]


def _plan_table(made: Plan) -> str:
    from pipeline.view import columns

    lines = []
    for job in made.jobs:
        minutes = sum(run.estimated_s for run in job.runs) / 60
        lines.append(
            f"job {job.job_id} on {', '.join(job.labels)}: {count(job.runs, 'run')}, "
            f"about {minutes:.0f} machine-minutes"
        )
        cells = [("run", "cores", "GiB/core", "minutes", "why")]
        for run in job.runs:
            placed = run.placement
            assert placed is not None
            cells.append(
                (
                    run.run_id,
                    f"{placed.cores} {placed.parallelism}" if placed.cores > 1 else "1",
                    f"{placed.core_bytes / 2**30:.1f}",
                    f"{run.estimated_s / 60:.0f}",
                    run.reason,
                )
            )
        lines += [f"  {line}" for line in columns(cells)]
    for title, pairs in (
        (
            "refused",
            [
                (run.run_id, f"{r.failure}: {r.reason}")
                for run in made.refused
                if (r := run.refusal)
            ],
        ),
        ("not planned", [(skip.run_id, skip.reason) for skip in made.skipped]),
    ):
        if pairs:
            lines.append(f"{title}: {len(pairs)}")
            lines += [f"  {line}" for line in columns(pairs)]
    if not made.jobs and not made.refused:
        lines.insert(0, "nothing is planned")
    return "\n".join(lines)
