"""Commands that time a model: measure."""

from __future__ import annotations

import os
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click

from pipeline.cli.group import main
from pipeline.cli.options import (
    facts_option,
    json_option,
    list_option,
    packages_of_runs,
    path,
    print_json,
    stack_option,
)
from pipeline.cli.planning import one_run
from pipeline.errors import QualifyError, ResultsError, UsageError

if TYPE_CHECKING:
    from pipeline.measure import Request
    from pipeline.record import Run
    from pipeline.store import Store

MOST_TOKENS, MOST_BATCH, MOST_VALUES = 131_072, 1024, 16


def _numbers(most: int) -> Callable[[click.Context, click.Parameter, str], tuple[int, ...]]:
    """Reads different whole numbers from 1 to `most`, joined by commas: "32,128"."""

    def read(_: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
        words = [word.strip() for word in value.split(",")]
        for word in words:
            if not (word.isascii() and word.isdecimal() and 1 <= int(word[:12]) <= most):
                raise click.BadParameter(
                    f"{word!r} is not a whole number from 1 to {most}", param=param
                )
        numbers = tuple(map(int, words))
        if len(set(numbers)) < len(numbers):
            raise click.BadParameter(f"{value} names a number twice", param=param)
        if len(numbers) > MOST_VALUES:
            raise click.BadParameter(f"{len(numbers)} numbers, {MOST_VALUES} at most", param=param)
        return numbers

    return read


@main.command(short_help="Time a qualified model; no result comes of it.")
@click.argument("model")
@list_option
@click.option(
    "--results",
    metavar="SOURCE",
    help="Where the PASS stands: a folder, the address of a site, or hf://datasets/OWNER/NAME.  "
    "[default: results]",
)
@facts_option
@stack_option
@click.option(
    "--prompt-tokens",
    callback=_numbers(MOST_TOKENS),
    default="32,128",
    metavar="N,N",
    show_default=True,
    help="Lengths of the prompt.",
)
@click.option(
    "--new-tokens",
    type=click.IntRange(1, 4096),
    default=32,
    metavar="N",
    show_default=True,
    help="Tokens that each call generates.",
)
@click.option(
    "--batch",
    "batches",
    callback=_numbers(MOST_BATCH),
    default="1,4",
    metavar="N,N",
    show_default=True,
    help="Prompts of one call; each number with each length.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1, 1000),
    default=5,
    metavar="N",
    show_default=True,
    help="Measured calls of each size, after two that only warm up.",
)
@click.option(
    "--usd-per-hour",
    type=click.FloatRange(min=0),
    metavar="USD",
    help="Price of the whole machine.  [default: that of the runner class in the list, if any]",
)
@click.option(
    "--unqualified",
    is_flag=True,
    help="Measure without a PASS; the report says that there is none.",
)
@click.option(
    "--store",
    "store_url",
    metavar="URL",
    help="Store of compiled graphs, as of `qualify run`.",
)
@click.option("--no-store", is_flag=True, help="Restore and save no compiled graphs.")
@click.option(
    "--whole-store",
    is_flag=True,
    help="Restore all of the compiler's graphs: also those of an earlier measurement.",
)
@click.option(
    "--limit-minutes",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MINUTES",
    help="End it after so long, all sizes together.  [default: the list's limit for the model]",
)
@click.option(
    "--output",
    type=path(file_okay=False),
    metavar="DIR",
    help="A new folder for report, JSON, chart, script and log.  [default: the next number below "
    "build/measure/RUN_ID]",
)
@json_option
def measure(
    model: str,
    list_path: Path,
    results: str | None,
    facts_cache: Path,
    stacks: tuple[str, ...],
    prompt_tokens: tuple[int, ...],
    new_tokens: int,
    batches: tuple[int, ...],
    repeats: int,
    usd_per_hour: float | None,
    unqualified: bool,
    store_url: str | None,
    no_store: bool,
    whole_store: bool,
    limit_minutes: float | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Time how MODEL generates on this machine: first token, later tokens, throughput, cost.

    The step after qualification and clearly apart from it: a measurement is never a result and
    never published. Only a model with a PASS on the stack is measured. MODEL is a run id, a glob
    that fits one, or a model id.
    """
    for name, number in (("--usd-per-hour", usd_per_hour), ("--limit-minutes", limit_minutes)):
        if number is not None and not isfinite(number):
            raise UsageError(f"{name} is not a finite number")
    if store_url is not None and no_store:
        raise UsageError("--store and --no-store exclude each other")
    found = _results(results, unqualified=unqualified)
    asked = one_run(model, list_path, found or Path(os.devnull), facts_cache, stacks)
    with packages_of_runs("measuring"):
        from pipeline import measure as measuring
        from pipeline import processes
        from pipeline.provenance import provenance
    if asked.refusal:
        raise UsageError(
            f"{asked.run_id} is refused, so there is nothing to measure: "
            f"{asked.refusal.failure}: {asked.refusal.reason}"
        )
    qualification = measuring.qualification(asked, found)
    if qualification.reason is not None and not unqualified:
        raise UsageError(
            f"{asked.run_id} is not qualified: {qualification.reason}",
            remedy="`qualify run` qualifies it; --unqualified measures all the same and says so",
        )
    request = measuring.Request(
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        batches=batches,
        repeats=repeats,
        usd_per_hour=asked.usd_per_hour if usd_per_hour is None else usd_per_hour,
        limit_s=asked.limit_s if limit_minutes is None else max(1, round(limit_minutes * 60)),
    )
    folder = output or measuring.free_folder(_kept("measure") / asked.run_id)
    places = measuring.Places(
        output=folder.resolve(),
        store=None if no_store else _store(list_path, store_url),
        everything=whole_store,
    )
    click.echo(_begin(asked, request), err=True)
    with processes.stopping(places.stop):
        made = measuring.measure(
            asked,
            request,
            qualification,
            places,
            lambda line: click.echo(line, err=True),
            provenance(),
        )
        written = measuring.write(made, places.output)
    if as_json:
        print_json(measuring.data(made))
    else:
        width = max(80, min(160, get_terminal_size((120, 24)).columns))
        click.echo(measuring.table(made, width))
        click.echo(f"\nreport: {folder / written[-1].name}")
    if made.error:
        raise QualifyError(
            f"the measurement did not come to its end: {made.error}",
            remedy=f"the log is {folder / 'log.txt'}",
        )


def _results(named: str | None, *, unqualified: bool) -> Path | None:
    """The folder of results; None when there are none, which only an unqualified one bears."""
    from pipeline.sources import open_source

    try:
        source = open_source(named or "results")
    except ResultsError:
        if named is not None or not unqualified:
            raise
        return None
    if source.notice:
        click.echo(source.notice, err=True)
    return source.results


def _store(list_path: Path, url: str | None) -> Store:
    from pipeline.catalog import load
    from pipeline.store import open_store

    return open_store(url or load(list_path).defaults.store or str(_kept("graphs")))


def _kept(name: str) -> Path:
    """Where this machine keeps something between jobs: their workspaces are emptied."""
    return Path(os.environ.get("QUALIFY_FOLDER") or "build") / name


def _begin(asked: Run, request: Request) -> str:
    sizes = len(request.sizes)
    return (
        f"{asked.run_id}: {sizes} size{'s' if sizes > 1 else ''}, {request.repeats} measured calls "
        f"each, at most {request.limit_s / 60:g} min"
    )
