"""Commands that repeat what was published: reproduce."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.doctoring import beside, notices, results_source_option
from pipeline.cli.group import main
from pipeline.cli.options import json_option, packages_of_runs, path, print_json
from pipeline.errors import QualifyError, UsageError

if TYPE_CHECKING:
    from pipeline.reproduce import Asked
    from pipeline.sources import Source
    from pipeline.store import Store


@main.command(short_help="Run a published row's script again and compare.")
@click.argument("model")
@results_source_option
@click.option(
    "--stack", metavar="GLOB", help="Which of the model's rows.  [default: the newest stack's]"
)
@click.option(
    "--output",
    type=path(file_okay=False),
    help="Folder for the report and what the script leaves; must be new or empty.  [default: one "
    "below build/reproduce]",
)
@click.option(
    "--store",
    "store_url",
    metavar="URL",
    help="Store of compiled graphs.  [default: the one that the row names]",
)
@click.option("--no-store", is_flag=True, help="Compile everything here.")
@click.option(
    "--install", is_flag=True, help="Add missing Python packages with pip instead of naming them."
)
@click.option(
    "--limit-minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="End the script after so long.  [default: three times what the row took, at least 60]",
)
@json_option
def reproduce(
    model: str,
    source: str,
    stack: str | None,
    output: Path | None,
    store_url: str | None,
    no_store: bool,
    install: bool,
    limit_minutes: float | None,
    as_json: bool,
) -> None:
    """Run the script of MODEL's published row on this machine and say whether the same comes out.

    First the machine is held against the row's, then compiled graphs are restored, the script runs
    byte for byte as published, and tokens, times and memory are put beside the row's. The script is
    a program out of those results: take them from where you trust them. Nothing is written to the
    results. Exit code 0: reproduced; others: docs/reproduce.md.
    """
    from pipeline.sources import open_source

    with packages_of_runs("running"):
        from pipeline import processes
        from pipeline import reproduce as replaying
        from pipeline.provenance import provenance
    opened = open_source(source)
    chosen = replaying.choose(opened.results, model, stack)

    def say(line: str) -> None:
        click.echo(line, err=True)

    for line in notices(opened.notice, chosen.others):
        say(line)
    try:
        asked = replaying.read(chosen.row)
        settings = replaying.Settings(
            store=None if no_store else _store(store_url, asked, say),
            limit_s=60 * limit_minutes if limit_minutes else replaying.limit_s(asked.row),
            provenance=provenance(),
        )
        ready = replaying.look(asked.row)
        if ready.missing and install:
            say(f"installing: {ready.command}")
            replaying.install(asked.row, ready)
            ready = replaying.look(asked.row)
        for line in beside(asked.row, ready):
            say(line)
        folder = _folder(output, opened, asked)
        with processes.stopping(settings.stop):
            report = replaying.reproduce(opened.name, asked, ready, folder, settings, say)
    except replaying.NotTried as error:
        if as_json:
            print_json({"outcome": "not tried", "why": str(error)})
        raise
    if as_json:
        print_json(replaying.as_data(report))
    else:
        click.echo(replaying.as_text(report))
        place = os.path.relpath(folder)
        click.echo(f"\nreport: {place}/report.md, {place}/report.json")
    replaying.conclude(report)


def _store(url: str | None, asked: Asked, say: Callable[[str], None]) -> Store | None:
    """The store a person names, else the row's; one of the row's that cannot be used is told."""
    from pipeline.store import open_store

    if url is not None:
        return open_store(url)
    named = asked.row["cache_store"]
    try:
        return open_store(named) if named else None
    except QualifyError as error:
        say(f"compiled graphs: {error}: compiling instead")
        return None


def _folder(output: Path | None, opened: Source, asked: Asked) -> Path:
    """A folder for this replay alone, absolute; UsageError for one that holds something."""
    if output is None:
        base = Path("build/reproduce") / str(asked.row["run_id"])
        taken = [int(one.name) for one in base.glob("*") if one.name.isdigit()]
        output = base / str(max(taken, default=0) + 1)
    folder = output.resolve()
    if folder.is_relative_to(opened.results.resolve()):
        raise UsageError(
            f"{output} is below the results, which a replay never writes to",
            remedy="name a folder elsewhere with --output",
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{output} is not empty", remedy="name a new folder with --output")
    return folder
