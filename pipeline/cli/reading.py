"""Commands after the runs: publish, show."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from shutil import get_terminal_size

import click

from pipeline.cli.group import main
from pipeline.cli.options import json_option, list_option, path, print_json, results_option


@main.command(short_help="Derive results and page from records.")
@click.argument("records", nargs=-1, required=True, type=path())
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
        print_json(
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
@click.option(
    "--failures", is_flag=True, help="Group what did not pass by its cause, with what to do."
)
@json_option
def show(model: str | None, results: Path, failures: bool, as_json: bool) -> None:
    """Show the current results, or everything about MODEL (a model id, run id or glob)."""
    from pipeline import view

    rows = view.rows(results, model)
    if failures and as_json:
        print_json(view.plain_failures(rows))
    elif failures:
        click.echo(view.failures(rows, _width()))
    elif as_json:
        print_json([view.plain(row) for row in rows])
    elif model:
        click.echo("\n\n".join(view.details(row, _width()) for row in rows))
    else:
        click.echo(view.table(rows, _width()))


def _width() -> int:
    """Columns to write for: those of the terminal within what is readable; 120 where none is."""
    return max(80, min(160, get_terminal_size((120, 24)).columns))
