"""Commands on a machine that runs: run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
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
    reader_left,
    records_option,
    results_option,
    stack_option,
)
from pipeline.cli.planning import one_run
from pipeline.errors import EnvironmentFault, RunsFailed

if TYPE_CHECKING:
    from pipeline.catalog import Catalog
    from pipeline.record import Record, Run
    from pipeline.runner import Settings


@main.command(short_help="Execute runs and leave their records.")
@click.argument("what")
@list_option
@results_option
@records_option
@facts_option
@stack_option
@click.option(
    "--store",
    type=path(file_okay=False),
    default=Path("build/graphs"),
    show_default=True,
    help="Store of compiled graphs.",
)
@click.option("--no-store", is_flag=True, help="Restore and save no compiled graphs.")
@click.option(
    "--references",
    type=path(file_okay=False),
    default=Path("build/references"),
    show_default=True,
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
    store: Path,
    no_store: bool,
    references: Path,
    strict: bool,
    as_json: bool,
) -> None:
    """Execute WHAT: a file with a plan or a job, - for one on standard input, or a model id.

    Each run leaves a folder below --records with record.json, run.py and log.txt.
    """
    from pipeline.catalog import load

    try:
        from pipeline import runner
    except ModuleNotFoundError as error:
        raise EnvironmentFault(
            f"running needs the Python package {error.name}, which is not installed",
            remedy="pip install 'trn-qualify[run]'",
        ) from error
    catalog = load(list_path)
    runs = _runs(what, list_path, results, facts_cache, stacks)
    settings = _settings(catalog, list_path, records, None if no_store else store, references)
    ended: list[Record] = []
    for number, asked in enumerate(runs, 1):
        note = _progress(f"[{number}/{len(runs)}] {asked.model_id}", to_stderr=as_json)
        note(f"{_how(asked)}; due: {asked.reason}")
        record = runner.run(asked, settings, note)
        note(runner.summary(record))
        ended.append(record)
    if as_json:
        print_json([json.loads(record.model_dump_json()) for record in ended])
    elif not runs:
        click.echo(f"{what} holds no run: there is nothing to do")
    bad = [record.run.model_id for record in ended if record.failure]
    if strict and bad:
        raise RunsFailed(f"{len(bad)} of {count(ended, 'run')} did not PASS: {', '.join(bad)}")


def _runs(
    what: str, list_path: Path, results: Path, facts_cache: Path, stacks: tuple[str, ...]
) -> list[Run]:
    """The runs in a plan or job file, or the one of a model."""
    from pipeline.errors import RecordError
    from pipeline.record import MAX_PAPER_BYTES, SCHEMA_VERSION, Job, Plan, parse, read_bytes

    if what == "-":
        text, where = sys.stdin.buffer.read(MAX_PAPER_BYTES + 1), "standard input"
        if len(text) > MAX_PAPER_BYTES:
            raise RecordError(f"above the limit of {MAX_PAPER_BYTES} bytes", where=where)
    elif Path(what).is_file() or what.endswith(".json"):
        text, where = read_bytes(Path(what)), what
    else:
        return [one_run(what, list_path, results, facts_cache, stacks)]
    try:
        is_job = "job_id" in json.loads(text)
    except (ValueError, TypeError, RecursionError):
        is_job = False  # parse says what is wrong
    if is_job:
        return list(parse(Job, text, where=where).runs)
    made = parse(Plan, text, where=where)
    if made.schema_version != SCHEMA_VERSION:
        raise RecordError(
            f"is of schema version {made.schema_version}, this checkout reads {SCHEMA_VERSION}",
            where=where,
            remedy="plan and run with the same version",
        )
    return list(made.runs)


def _settings(
    catalog: Catalog, list_path: Path, records: Path, store: Path | None, references: Path
) -> Settings:
    """What all runs share; a judge that is not there or not calibrated is refused beforehand."""
    from pipeline.judge import find_calibration
    from pipeline.provenance import provenance
    from pipeline.runner import Settings
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
        store=store.resolve() if store else None,
        references=references.resolve(),
        judge=judge,
        provenance=provenance(),
    )


def _progress(name: str, *, to_stderr: bool) -> Callable[[str], None]:
    def note(text: str) -> None:
        try:
            click.echo(f"{name}: {text}", err=to_stderr)
        except BrokenPipeError:
            reader_left(sys.stderr if to_stderr else sys.stdout)  # which must not cost the run

    return note


def _how(asked: Run) -> str:
    if asked.refusal or asked.placement is None:
        return "refused without running"
    placed = asked.placement
    cores = f"{placed.cores} core{'s' if placed.cores > 1 else ''}"
    return cores if placed.cores == 1 else f"{cores}, {placed.parallelism} parallel"
