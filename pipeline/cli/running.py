"""Commands on a machine that runs: run."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.group import main
from pipeline.cli.options import (
    count,
    facts_option,
    json_option,
    list_option,
    packages_of_runs,
    path,
    print_json,
    reader_left,
    records_option,
    results_option,
    stack_option,
)
from pipeline.cli.planning import one_plan
from pipeline.errors import EnvironmentFault, RunsFailed, UsageError
from pipeline.lines import plain_line
from pipeline.words import cores

if TYPE_CHECKING:
    from pipeline.catalog import Catalog
    from pipeline.record import Job, Plan, Record, Run
    from pipeline.runner import Settings


def _kept(name: str) -> Path:
    """Where this machine keeps something between jobs: their workspaces are emptied."""
    return Path(os.environ.get("QUALIFY_FOLDER") or "build") / name


@main.command(short_help="Execute runs and leave their records.")
@click.argument("what")
@list_option
@results_option
@records_option
@facts_option
@stack_option
@click.option("--job", "job_id", metavar="ID", help="Of a plan only this job, and nothing refused.")
@click.option(
    "--store",
    "store_url",
    metavar="URL",
    help="Store of compiled graphs: a directory or a URL such as hf://buckets/owner/name. "
    "[default: the list's `store`, else build/graphs, or graphs in the folder that QUALIFY_FOLDER "
    "names]",
)
@click.option("--no-store", is_flag=True, help="Restore and save no compiled graphs.")
@click.option(
    "--whole-store",
    is_flag=True,
    help="Restore all of the compiler's graphs, not only those that the last good row used.",
)
@click.option(
    "--references",
    type=path(file_okay=False),
    default=lambda: _kept("references"),
    show_default="build/references, or references in the folder that QUALIFY_FOLDER names",
    help="Kept answers of the CPU reference.",
)
@click.option("--strict", is_flag=True, help="Exit with an error unless every run is a PASS.")
@json_option
def run(
    what: str,
    list_path: Path,
    results: Path,
    records: Path,
    facts_cache: Path,
    stacks: tuple[str, ...],
    job_id: str | None,
    store_url: str | None,
    no_store: bool,
    whole_store: bool,
    references: Path,
    strict: bool,
    as_json: bool,
) -> None:
    """Execute WHAT: a file with a plan or a job, - for one on standard input, or a model id.

    Runs of a job share the machine side by side, each on cores of its own. Each leaves a folder
    below --records with record.json, run.py and log.txt. QUALIFY_PLAN_SHA256, where it is set, is
    the digest that the file must have.
    """
    from pipeline.catalog import load

    with packages_of_runs("running"):
        from pipeline import job as jobs
        from pipeline import processes
    catalog = load(list_path)
    planned = _jobs(what, list_path, results, facts_cache, stacks)
    if job_id is not None:
        planned = [_one_job(what, job_id, planned)]
    runs = [asked for job in planned for asked in job.runs]
    if no_store:
        store_url = ""
    elif store_url is None:
        store_url = catalog.defaults.store or str(_kept("graphs"))
    settings = _settings(catalog, list_path, records, store_url, references, everything=whole_store)
    say = _progress(runs, to_stderr=as_json)
    for asked in runs:
        say(asked, f"{_how(asked)}; due: {asked.reason}")
    ended: list[Record] = []
    with processes.stopping(settings.stop):
        for job in planned:
            ended += jobs.execute(job, settings, say)
    if as_json:
        print_json([json.loads(record.model_dump_json()) for record in ended])
    elif not runs:
        click.echo(f"{what} holds no run: there is nothing to do")
    bad = [record.run.model_id for record in ended if record.failure]
    if strict and bad:
        raise RunsFailed(f"{len(bad)} of {count(ended, 'run')} did not PASS: {', '.join(bad)}")


def _jobs(
    what: str,
    list_path: Path,
    results: Path,
    facts_cache: Path,
    stacks: tuple[str, ...],
) -> list[Job]:
    """The jobs in a plan or job file, or of a model's run; refused runs in one of their own."""
    from pipeline.errors import RecordError
    from pipeline.record import MAX_PAPER_BYTES, SCHEMA_VERSION, Job, Plan, parse, read_bytes

    if what == "-":
        text, where = sys.stdin.buffer.read(MAX_PAPER_BYTES + 1), "standard input"
        if len(text) > MAX_PAPER_BYTES:
            raise RecordError(f"above the limit of {MAX_PAPER_BYTES} bytes", where=where)
    elif Path(what).is_file() or what.endswith(".json"):
        text, where = read_bytes(Path(what), os.environ.get("QUALIFY_PLAN_SHA256")), what
    else:
        return _all_jobs(one_plan(what, list_path, results, facts_cache, stacks))
    try:
        is_job = "job_id" in json.loads(text)
    except (ValueError, TypeError, RecursionError):
        is_job = False  # parse says what is wrong
    if is_job:
        return [parse(Job, text, where=where)]
    made = parse(Plan, text, where=where)
    if made.schema_version != SCHEMA_VERSION:
        raise RecordError(
            f"is of schema version {made.schema_version}, this checkout reads {SCHEMA_VERSION}",
            where=where,
            remedy="plan and run with the same version",
        )
    return _all_jobs(made)


def _all_jobs(made: Plan) -> list[Job]:
    return [*made.jobs, *([_refused(made.refused)] if made.refused else [])]


def _one_job(what: str, job_id: str, planned: Sequence[Job]) -> Job:
    """The job of that id. Its machine leaves records of its runs alone: of refused ones, whoever
    publishes makes the rows from the plan."""
    from pipeline.catalog_problems import unknown

    known = {job.job_id: job for job in planned if any(run.placement for run in job.runs)}
    if not known:
        raise UsageError(f"{what} holds no job: there is nothing for --job to choose from")
    if job_id not in known:
        raise UsageError(unknown("job", job_id, known))
    return known[job_id]


def _refused(runs: Sequence[Run]) -> Job:
    """Runs that no machine takes part in, as a job of their own."""
    from pipeline.record import Job, Machine

    return Job(
        job_id="refused",
        runner=runs[0].runner,
        labels=(),
        machine=Machine(cores=1, host_bytes=0, compilations=1),
        estimated_s=sum(run.estimated_s for run in runs),
        limit_s=sum(run.limit_s for run in runs),
        runs=tuple(runs),
    )


def _settings(
    catalog: Catalog,
    list_path: Path,
    records: Path,
    store: str,
    references: Path,
    *,
    everything: bool = False,
) -> Settings:
    """What all runs share; a judge that is not there or not calibrated is refused beforehand."""
    from pipeline.judge import find_calibration
    from pipeline.provenance import provenance
    from pipeline.runner import Settings
    from pipeline.store import open_store
    from pipeline.words import is_model_id

    directory = list_path.resolve().parent / catalog.defaults.judge
    if not directory.is_dir() and not is_model_id(catalog.defaults.judge):
        raise EnvironmentFault(
            f"{directory}: the judge of the list is not there",
            remedy="make it before hours of runs end without a verdict, or name another `judge`",
        )
    judge = str(directory) if directory.is_dir() else catalog.defaults.judge
    find_calibration(judge)
    return Settings(
        records=records.resolve(),
        store=open_store(store) if store else None,
        references=references.resolve(),
        judge=judge,
        everything=everything,
        provenance=provenance(),
    )


def _progress(runs: Sequence[Run], *, to_stderr: bool) -> Callable[[Run, str], None]:
    places = {asked.run_id: number for number, asked in enumerate(runs, 1)}
    lock = threading.Lock()  # lines of runs side by side stay whole

    def say(asked: Run, text: str) -> None:
        head = f"[{places[asked.run_id]}/{len(runs)}] {asked.model_id}: "
        lines = [head + plain_line(line) for line in text.splitlines() or [""]]
        try:
            with lock:
                click.echo("\n".join(lines), err=to_stderr)
        except BrokenPipeError:
            reader_left(sys.stderr if to_stderr else sys.stdout)  # which must not cost the run

    return say


def _how(asked: Run) -> str:
    if asked.refusal or asked.placement is None:
        return "refused without running"
    placed = asked.placement
    told = cores(placed.cores)
    return told if placed.cores == 1 else f"{told}, {placed.parallelism} parallel"
