"""Options that several of the workflows' commands share."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli.options import path

tree_option = click.option(
    "--tree",
    type=path(file_okay=False),
    default=Path("build/published"),
    show_default=True,
    help="Where the branch with the results is put; its content is replaced.",
)
plan_option = click.option(
    "--plan",
    "plan_path",
    type=path(dir_okay=False),
    default=Path("build/plan.json"),
    show_default=True,
    help="The plan.",
)
artifacts_option = click.option(
    "--artifacts",
    type=path(file_okay=False),
    default=Path("build/artifacts"),
    show_default=True,
    help="Folder with one folder for each artifact: records-<job>-<attempt>.",
)
