"""Commands about pages for readers: site."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli.group import main
from pipeline.cli.options import path


@main.command(short_help="Build the site.")
@click.option(
    "--results",
    default="results",
    show_default=True,
    metavar="PLACE",
    help="Published results: a folder, a site's address, or hf://datasets/OWNER/NAME.",
)
@click.option(
    "--list",
    "list_path",
    type=path(dir_okay=False),
    help="The model list.  [default: models.yaml beside the results; where there is none, what "
    "results/models.json says]",
)
@click.option(
    "--output",
    type=path(),
    default=Path("build/site"),
    show_default=True,
    help="Where the site is built; an earlier build there is replaced.",
)
@click.option(
    "--also",
    multiple=True,
    metavar="PLACE",
    help="Results that others published, shown apart from ours: a folder of Parquet files, or "
    "hf://datasets/OWNER/NAME. May be repeated.",
)
def site(results: str, list_path: Path | None, output: Path, also: tuple[str, ...]) -> None:
    """Build the static site of the published results; any web server can serve the folder."""
    from pipeline import outside, sources
    from pipeline import site as sites
    from pipeline.catalog import load
    from pipeline.phrases import counted

    source = sources.open_source(results)
    if source.notice:
        click.echo(source.notice, err=True)
    listed = list_path or source.listed
    said = [row for place in also for row in outside.read(place)]
    built = sites.build_from(source.results, load(listed) if listed else None, output, said)
    counts = (
        counted(built.models, "model"),
        counted(built.rows, "result"),
        counted(built.stacks, "stack"),
    )
    click.echo(f"{output}: {', '.join(counts)}")
    if also:
        left = f"; {built.left_out:,} are of models that are not here" if built.left_out else ""
        click.echo(f"  beside them {counted(built.outside, 'row')} of others{left}")
