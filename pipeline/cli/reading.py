"""Commands after the runs: publish, show, history, diff."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click

from pipeline.cli.group import main
from pipeline.cli.options import json_option, list_option, path, print_json, results_option
from pipeline.errors import UsageError

if TYPE_CHECKING:
    from pipeline.outside import OutsideRow
    from pipeline.sources import Source


@main.command(short_help="Derive results and page from records; send them to the Hub.")
@click.argument("records", nargs=-1, type=path())
@list_option
@results_option
@click.option(
    "--table",
    type=path(dir_okay=False),
    default=Path("COMPATIBILITY.md"),
    show_default=True,
    help="The Markdown page to derive.",
)
@click.option(
    "--plan",
    "plan_path",
    type=path(dir_okay=False),
    help="What was planned: a run of it without a record becomes an ERROR row.",
)
@click.option(
    "--hub",
    metavar="OWNER/NAME",
    help="Then make this dataset of the Hub hold the results; HF_TOKEN holds a token that may.",
)
@json_option
def publish(
    records: tuple[Path, ...],
    list_path: Path,
    results: Path,
    table: Path,
    plan_path: Path | None,
    hub: str | None,
    as_json: bool,
) -> None:
    """Derive Parquet files, history and the Markdown page from RECORDS (files or folders).

    With --hub and no RECORDS, what is published already is sent as it is.
    """
    from pipeline.errors import UsageError

    if not records and (hub is None or plan_path is not None):
        raise UsageError(
            "there are no RECORDS to publish",
            remedy="name record files or folders; with --hub alone, published results are sent",
        )
    if hub is not None:
        from pipeline import hub_dataset

        # Known before anything is written: a dataset's name, and a token to write to it.
        repo, token = hub_dataset.repo_of(hub), hub_dataset.token()
    told: dict[str, object] = {}
    lines: list[str] = []
    published = None
    if records:
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
        told = {
            "added": published.added,
            "passed": published.passed,
            "failed": published.failed,
            "errors": published.errors,
            "changes": [str(change) for change in published.changes],
            "written": [str(path) for path in published.written],
        }
        lines = [
            f"{published.added} new row{'' if published.added == 1 else 's'}: "
            f"{published.passed} PASS, {published.failed} FAIL, {published.errors} ERROR",
            *(f"  {change}" for change in published.changes),
            *(f"  wrote {path}" for path in published.written),
        ]
    if not as_json:
        for line in lines:
            click.echo(line)
    if hub is not None:
        pushed = hub_dataset.push(results, repo, token=token)
        told["hub"] = pushed.plain()
        if not as_json:
            click.echo(str(pushed))
    if as_json:
        print_json(told)
    if published is not None:
        published.check()


_place_option = click.option(
    "--results",
    default="results",
    show_default=True,
    metavar="PLACE",
    help="Published results: a folder (of results, or a clone that holds them), the https:// "
    "address of a site that qualify site made, or hf://datasets/OWNER/NAME.",
)


@main.command(short_help="Show published results.")
@click.argument("model", required=False)
@_place_option
@click.option(
    "--stack",
    metavar="STACK",
    default="",
    help="Only stacks of these names and versions: neuronxcc-2.28, or more parts, as in "
    "transformers-5.24.0@neuronxcc-2.28*@torch-2.14; a target, neuron or cpu, is one too. "
    "[default: all; for one MODEL the newest it has a result on, on Trainium]",
)
@click.option(
    "--failures", is_flag=True, help="Group what did not pass by its cause, with what to do."
)
@click.option("--full", is_flag=True, help="Every field of every row of MODEL.")
@click.option(
    "--also",
    multiple=True,
    metavar="PLACE",
    help="Beside the answer about one MODEL: what others published of it, a folder of Parquet or "
    "hf://datasets/OWNER/NAME. It does not change the answer. May be repeated.",
)
@json_option
def show(
    model: str | None,
    results: str,
    stack: str,
    failures: bool,
    full: bool,
    also: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the current results, or what is known of MODEL: a model id, a run id, or a glob of them.

    Of one model it is an answer, and the exit code is part of it: 0 for a PASS on the stack asked
    for, 11 for a FAIL, 12 where there is no evidence. Tables and globs end with 0.
    """
    if model is not None and not failures and not set("*?[") & set(model):
        _show_one(model, results, stack, full, also, as_json)
        return
    if also:
        raise UsageError("--also is for the answer about one MODEL")
    if full and model is None:
        raise UsageError("--full is for one MODEL or a glob of them")
    from pipeline import view

    rows = view.rows(_opened(results).results, model, stack)
    if failures and as_json:
        print_json(view.plain_failures(rows))
    elif failures:
        click.echo(view.failures(rows, _width()))
    elif as_json:
        print_json([view.plain(row) for row in rows])
    elif full:
        click.echo("\n\n".join(view.details(row, _width()) for row in rows))
    else:
        click.echo(view.table(rows, _width()))


def _show_one(
    model: str, results: str, stack: str, full: bool, also: tuple[str, ...], as_json: bool
) -> None:
    """Print the answer about one model and end with its exit code."""
    if not (full or also):
        from pipeline import light_arrow

        light_arrow.load()
    from pipeline import answers, screen
    from pipeline.lookup import Lookup
    from pipeline.readings import Evidence
    from pipeline.wishes import published

    source = _opened(results)
    lookup, now = Lookup(source.results), datetime.now(UTC)
    name, key = answers.split(model)
    answer = answers.answer(lookup, published(source.results), name, stack=stack or key, now=now)
    said: tuple[OutsideRow, ...] = ()
    if also:
        from pipeline import outside

        rows_of_others = [row for place in also for row in outside.read(place)]
        said = outside.of_model(rows_of_others, answer.model_id)
    if as_json:
        told = answers.plain(answer, source.name)
        print_json(told | {"also": outside.plain(said)} if also else told)
    elif full and (answer.row or answer.others):
        from pipeline import view

        rows = view.rows(source.results, answer.model_id, stack or key)
        click.echo("\n\n".join(view.details(row, _width()) for row in rows))
    else:
        near = None if answer.known else answers.near(lookup, name)
        click.echo(screen.screen(answer, now, _width(), near=near))
    if also and not as_json:
        click.echo("\n" + (outside.text(said) or "Outside evidence: nothing of this model there"))
    if answer.evidence is not Evidence.PASS:
        raise answers.ending(answer)


@main.command(short_help="Every result of a model, newest first.")
@click.argument("model")
@_place_option
@click.option("--stack", metavar="STACK", default="", help="As for qualify show.")
@json_option
def history(model: str, results: str, stack: str, as_json: bool) -> None:
    """Show every result that was ever published of MODEL, a model id or run id, newest first."""
    from pipeline import answers, screen
    from pipeline.lookup import Lookup

    lookup = Lookup(_opened(results).results)
    name, key = answers.split(model)
    rows = answers.history(lookup, name, stack or key)
    if as_json:
        print_json([answers.plain_row(row) for row in rows])
    else:
        click.echo(screen.history(rows, _width()))


@main.command(short_help="Compare two stacks.")
@click.argument("before", metavar="STACK")
@click.argument("after", metavar="STACK")
@_place_option
@click.option(
    "--least",
    type=click.FloatRange(0),
    default=25.0,
    show_default=True,
    metavar="PERCENT",
    help="Tell a time, rate or memory that moved by so much.",
)
@json_option
def diff(before: str, after: str, results: str, least: float, as_json: bool) -> None:
    """Compare the models that ran on both stacks: newly failing, fixed, then changed figures.

    A STACK is named as for qualify show --stack; of several that fit it is the newest.
    """
    from dataclasses import asdict

    from pipeline import answers, comparison
    from pipeline.lookup import Lookup

    rows = Lookup(_opened(results).results).rows(comparison.COLUMNS)
    found = comparison.compare(
        rows, comparison.stack_of(rows, before), comparison.stack_of(rows, after), least
    )
    if as_json:
        print_json(answers.jsonable(asdict(found)))
    else:
        click.echo(comparison.text(found, _width()))


def _opened(results: str) -> Source:
    """The results that an option names; what a reader must know of them goes to standard error."""
    from pipeline.sources import open_source

    source = open_source(results)
    if source.notice:
        click.echo(f"qualify: {source.notice}", err=True)
    return source


def _width() -> int:
    """Columns to write for: those of the terminal within what is readable; 120 where none is."""
    return max(80, min(160, get_terminal_size((120, 24)).columns))
