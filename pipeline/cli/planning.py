"""Commands before any run: validate, plan, script."""

from __future__ import annotations

import os
import sys
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
    from pipeline.plan import Request
    from pipeline.record import Plan, Run


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
    "--budget",
    type=click.FloatRange(min=0),
    metavar="MINUTES",
    help="Machine time to stay within: the sum of what all jobs are expected to take.",
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


def make_plan(
    list_path: Path,
    results: Path,
    records: Path,
    facts_cache: Path,
    request: Request,
    *,
    catalog: Catalog | None = None,
) -> Plan:
    """What is due of the list in a file; `catalog`: its content, where the caller has it."""
    from pipeline import known
    from pipeline import plan as planning
    from pipeline.catalog import load
    from pipeline.placement import PlanTable
    from pipeline.record import unfinished

    catalog = catalog or load(list_path)
    folder = list_path.resolve().parent
    chosen, _ = planning.wanted(catalog, request)
    return planning.make_plan(
        catalog,
        folder,
        known.facts(catalog, folder, facts_cache, [model.id for model, _ in chosen]),
        known.earlier(results),
        unfinished(records),
        PlanTable.load(),
        request,
        now=datetime.now(UTC),
    )


def one_run(
    what: str, list_path: Path, results: Path, facts_cache: Path, stacks: tuple[str, ...]
) -> Run:
    """The one run that a run id, a glob or a model id names."""
    (run,) = one_plan(what, list_path, results, facts_cache, stacks).runs
    return run


def one_plan(
    what: str, list_path: Path, results: Path, facts_cache: Path, stacks: tuple[str, ...]
) -> Plan:
    """The plan of that one run."""
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
    return made


def _plan_table(made: Plan) -> str:
    """Jobs with their runs, what is refused, what is left out; models by id if of one stack."""
    from pipeline.view import columns
    from pipeline.words import RunId, cores

    ids = [*(run.run_id for run in made.runs), *(skip.run_id for skip in made.skipped)]
    stacks = {run_id.partition("@")[2] for run_id in ids}
    alone = len(stacks) == 1

    def name(run_id: str) -> str:
        return RunId.parse(run_id).model_id if alone else run_id

    lines = []
    if made.jobs:
        whole = sum(job.estimated_s for job in made.jobs)
        runs = [run for job in made.jobs for run in job.runs]
        lines.append(
            f"{count(runs, 'run')} in {count(made.jobs, 'job')}, about {_minutes(whole)} min of "
            "machine time"
        )
    else:
        lines.append("nothing is planned" if not made.refused else "nothing to run")
    if alone:
        lines.append(f"stack: {RunId.parse(ids[0]).stack}")
    for job in made.jobs:
        machine = job.machine
        lines += [
            "",
            f"job {job.job_id} on {', '.join(job.labels)}: {count(job.runs, 'run')}, "
            f"about {_minutes(job.estimated_s)} min, {_minutes(job.limit_s)} at most",
            f"  machine: {cores(machine.cores)}, {machine.host_bytes / 2**30:.0f} GiB of host "
            f"memory, {machine.compilations} compiling at once",
        ]
        cells = [("run", "cores", "GiB/core", "host GiB", "minutes", "limit", "why")]
        for run in job.runs:
            placed = run.placement
            assert placed is not None
            cells.append(
                (
                    name(run.run_id),
                    f"{placed.cores} {placed.parallelism}" if placed.cores > 1 else "1",
                    f"{placed.core_bytes / 2**30:.1f}",
                    "?" if run.host_bytes is None else f"{run.host_bytes / 2**30:.0f}",
                    _minutes(run.estimated_s),
                    _minutes(run.limit_s),
                    run.reason,
                )
            )
        lines += [f"  {line}" for line in columns(cells)]
    refused = [
        (name(run.run_id), f"{r.failure}: {r.reason}") for run in made.refused if (r := run.refusal)
    ]
    skipped = [(name(skip.run_id), skip.reason) for skip in made.skipped]
    for title, pairs in (("refused", refused), ("not planned", skipped)):
        if pairs:
            lines += ["", f"{title}: {len(pairs)}"]
            lines += [f"  {line}" for line in columns(pairs)]
    return "\n".join(lines)


def _minutes(seconds: float) -> str:
    """Whole minutes, "<1" for what would read as none."""
    return f"{seconds / 60:.0f}" if seconds >= 30 else "<1"
