"""The command line: thin. Each command reads its papers, calls one module, prints, exits.

Modules are imported inside the commands, so that `qualify --help` and `qualify validate` start
fast and no reading command ever needs torch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence, Sized
from datetime import UTC, datetime
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from pipeline.errors import EnvironmentFault, QualifyError, RunsFailed, UsageError

if TYPE_CHECKING:
    from pipeline.catalog import Catalog
    from pipeline.placement import Checkpoint
    from pipeline.plan import Earlier, Request
    from pipeline.record import Plan, Record, Refusal, Run
    from pipeline.runner import Settings

Command = Callable[..., None]


def _path(**rules: Any) -> Any:
    return click.Path(path_type=Path, **rules)


list_option = click.option(
    "--list",
    "list_path",
    type=_path(),
    default=Path("models.yaml"),
    show_default=True,
    help="The model list.",
)
results_option = click.option(
    "--results",
    type=_path(),
    default=Path("results"),
    show_default=True,
    help="Folder of published results.",
)
records_option = click.option(
    "--records",
    type=_path(),
    default=Path("build/records"),
    show_default=True,
    help="Folder that runs leave their records in.",
)
facts_option = click.option(
    "--facts-cache",
    type=_path(),
    default=Path("build/facts"),
    show_default=True,
    help="Kept facts about checkpoints, by commit.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
stack_option = click.option(
    "--stack", "stacks", multiple=True, metavar="NAME", help="Instead of the list's default stacks."
)


class _Group(click.Group):
    """Ends QualifyErrors as a message on standard error and the exit code of their class."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except QualifyError as error:
            click.echo(f"qualify: {error}", err=True)
            ctx.exit(error.exit_code)
        except BrokenPipeError:
            _reader_left(sys.stdout)
            ctx.exit(0)
        except OSError as error:
            if error.filename is None:
                raise
            click.echo(f"qualify: {error.filename}: {error.strerror}", err=True)
            ctx.exit(QualifyError.exit_code)


def _reader_left(stream: TextIO) -> None:
    """The reader of our output went away, as `| head` does: no fault of ours, and no more said."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        click.echo(f"qualify {version('trn-qualify')}")
    except PackageNotFoundError:
        click.echo("qualify of a checkout that is not installed")
    ctx.exit()


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Does a Transformers model run on AWS Trainium2, on which stack, and how to replay it?"""


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
        _print_json(
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
        _print_json({"problems": []})
        return
    counts = (
        _count(catalog.models, "model"),
        f"{len(catalog.excluded)} excluded",
        _count(catalog.stacks, "stack"),
        _count(catalog.runners, "runner class", "runner classes"),
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
@click.option("--output", type=_path(dir_okay=False), help="Write the plan to this file, too.")
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
    made = _plan(list_path, results, records, facts_cache, request)
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

    asked = _one(run, list_path, results, facts_cache, stacks)
    if asked.refusal:
        raise UsageError(
            f"{asked.run_id} is refused, so there is no script: "
            f"{asked.refusal.failure}: {asked.refusal.reason}"
        )
    click.echo(scripts.render(asked), nl=False)


@main.command(short_help="Execute runs and leave their records.")
@click.argument("what")
@list_option
@results_option
@records_option
@facts_option
@stack_option
@click.option(
    "--store",
    type=_path(file_okay=False),
    default=Path("build/graphs"),
    show_default=True,
    help="Store of compiled graphs.",
)
@click.option("--no-store", is_flag=True, help="Restore and save no compiled graphs.")
@click.option(
    "--references",
    type=_path(file_okay=False),
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
        _print_json([json.loads(record.model_dump_json()) for record in ended])
    elif not runs:
        click.echo(f"{what} holds no run: there is nothing to do")
    bad = [record.run.model_id for record in ended if record.failure]
    if strict and bad:
        raise RunsFailed(f"{len(bad)} of {_count(ended, 'run')} did not PASS: {', '.join(bad)}")


@main.command(short_help="Derive results and page from records.")
@click.argument("records", nargs=-1, required=True, type=_path())
@list_option
@results_option
@click.option(
    "--table",
    type=_path(dir_okay=False),
    default=Path("COMPATIBILITY.md"),
    show_default=True,
    help="The Markdown page to derive.",
)
@click.option(
    "--plan",
    "plan_path",
    type=_path(dir_okay=False),
    help="What was planned: a run of it without a record becomes an ERROR row.",
)
@json_option
def publish(
    records: tuple[Path, ...],
    list_path: Path,
    results: Path,
    table: Path,
    plan_path: Path | None,
    as_json: bool,
) -> None:
    """Derive Parquet files, history and the Markdown page from RECORDS (files or folders)."""
    from pipeline import publish as publishing
    from pipeline.catalog import load
    from pipeline.record import Plan, read

    catalog = load(list_path)
    published = publishing.publish(
        records,
        results=results,
        table=table,
        catalog_view=catalog,
        plan=read(Plan, plan_path) if plan_path else None,
        now=datetime.now(UTC),
        max_age_days=catalog.defaults.max_age_days,
    )
    if as_json:
        _print_json(
            {
                "added": published.added,
                "passed": published.passed,
                "failed": published.failed,
                "errors": published.errors,
                "changes": [str(change) for change in published.changes],
                "written": [str(path) for path in published.written],
            }
        )
    else:
        click.echo(
            f"{published.added} new row{'' if published.added == 1 else 's'}: "
            f"{published.passed} PASS, {published.failed} FAIL, {published.errors} ERROR"
        )
        for change in published.changes:
            click.echo(f"  {change}")
        for path in published.written:
            click.echo(f"  wrote {path}")
    published.check()


@main.command(short_help="Show published results.")
@click.argument("model", required=False)
@results_option
@json_option
def show(model: str | None, results: Path, as_json: bool) -> None:
    """Show the current results, or everything about MODEL (a model id, run id or glob)."""
    from pipeline import view

    rows = view.rows(results, model)
    if as_json:
        _print_json([view.plain(row) for row in rows])
    elif model:
        click.echo("\n\n".join(view.details(row) for row in rows))
    else:
        click.echo(view.table(rows))


# --- what the commands share --------------------------------------------------------------------


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=1, ensure_ascii=False))


def _count(things: Sized, noun: str, plural: str = "") -> str:
    number = len(things)
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def _facts(
    catalog: Catalog, folder: Path, cache: Path, names: Sequence[str]
) -> dict[str, Checkpoint | Refusal]:
    from pipeline.hub import CheckpointRef, inspect_all

    models = [catalog.model(name) for name in dict.fromkeys(names)]
    refs = [CheckpointRef(model.id, model.directory(folder), model.revision) for model in models]
    found = inspect_all(refs, cache=cache)
    return {model.id: facts for model, facts in zip(models, found, strict=True)}


def _plan(
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


def _one(
    what: str, list_path: Path, results: Path, facts_cache: Path, stacks: tuple[str, ...]
) -> Run:
    """The one run that a run id, a glob or a model id names."""
    from pipeline.plan import Request

    request = Request(stacks, (what,), force=True)
    nowhere = Path(os.devnull)
    made = _plan(list_path, results, nowhere, facts_cache, request)
    found = list(made.runs)
    if len(found) > 1:
        names = "\n".join(f"    {run.run_id}" for run in found)
        raise UsageError(
            f"{what} names {len(found)} runs:\n{names}", remedy="name one of them, or one --stack"
        )
    if not found:
        raise UsageError("; ".join(f"{skip.run_id}: {skip.reason}" for skip in made.skipped))
    return found[0]


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
        return [_one(what, list_path, results, facts_cache, stacks)]
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
            _reader_left(sys.stderr if to_stderr else sys.stdout)  # which must not cost the run

    return note


def _how(asked: Run) -> str:
    if asked.refusal or asked.placement is None:
        return "refused without running"
    placed = asked.placement
    cores = f"{placed.cores} core{'s' if placed.cores > 1 else ''}"
    return cores if placed.cores == 1 else f"{cores}, {placed.parallelism} parallel"


def _plan_table(made: Plan) -> str:
    from pipeline.view import columns

    lines = []
    for job in made.jobs:
        minutes = sum(run.estimated_s for run in job.runs) / 60
        lines.append(
            f"job {job.job_id} on {', '.join(job.labels)}: {_count(job.runs, 'run')}, "
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


if __name__ == "__main__":
    main()
