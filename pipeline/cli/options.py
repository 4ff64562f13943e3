"""Options and small things that several commands share."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click

from pipeline.errors import EnvironmentFault


def path(**rules: Any) -> Any:
    return click.Path(path_type=Path, **rules)


list_option = click.option(
    "--list",
    "list_path",
    type=path(),
    default=Path("models.yaml"),
    show_default=True,
    help="The model list.",
)
results_option = click.option(
    "--results",
    type=path(),
    default=Path("results"),
    show_default=True,
    help="Folder of published results.",
)
records_option = click.option(
    "--records",
    type=path(),
    default=Path("build/records"),
    show_default=True,
    help="Folder that runs leave their records in.",
)
facts_option = click.option(
    "--facts-cache",
    type=path(),
    default=Path("build/facts"),
    show_default=True,
    help="Kept facts about checkpoints, by commit.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
stack_option = click.option(
    "--stack", "stacks", multiple=True, metavar="NAME", help="Instead of the list's default stacks."
)


@contextmanager
def packages_of_runs(what: str) -> Iterator[None]:
    """Where modules of runs are imported: a package that lacks is told, with how it comes here.

    what: what needs it, as "running".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise EnvironmentFault(
            f"{what} needs the Python package {error.name}, which is not installed",
            remedy="pip install 'trn-qualify[run]'",
        ) from error


def reader_left(stream: TextIO) -> None:
    """The reader of our output went away, as `| head` does: no fault of ours, and no more said."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_json(value: object) -> None:
    """Letters as they are; what steers a terminal or hides what a text holds as escapes."""
    for line in json.dumps(value, indent=1, ensure_ascii=False).split("\n"):
        click.echo(line if line.isprintable() else "".join(map(_escaped, line)))


def _escaped(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


def count(things: Sized, noun: str, plural: str = "") -> str:
    number = len(things)
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
