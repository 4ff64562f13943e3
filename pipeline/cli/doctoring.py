"""Commands about the machine: doctor."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.group import main
from pipeline.cli.options import count, json_option, list_option, path, print_json, stack_option
from pipeline.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from pipeline.doctor import Machine, Problem
    from pipeline.record import StackVersions
    from pipeline.reproduce import Ready, Row

results_source_option = click.option(
    "--results",
    "source",
    metavar="SOURCE",
    default="results",
    show_default=True,
    help="Published results: a folder, a site's address, or hf://datasets/OWNER/NAME.",
)


@main.command(short_help="Say what this machine is and lacks.")
@list_option
@stack_option
@click.option(
    "--row",
    "model",
    metavar="MODEL",
    help="Hold the machine against the published row of MODEL instead; --stack then names, as a "
    "glob, which of its rows.  [default: the newest stack's]",
)
@results_source_option
@click.option(
    "--first-run",
    is_flag=True,
    help="Try on the device what this code assumes of it; takes up to hours.",
)
@click.option(
    "--output",
    type=path(dir_okay=False),
    help="With --first-run: the report (Markdown; JSON beside it).  [default: first-run.md]",
)
@json_option
def doctor(
    list_path: Path,
    stacks: tuple[str, ...],
    model: str | None,
    source: str,
    first_run: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Say what this machine is, and what keeps it from running a stack of the list, or from
    reproducing a row.

    Ends with an error when something would stop a run, or an assumption does not hold.
    """
    from pipeline.catalog import load

    if model is not None:
        if first_run or output:
            raise UsageError("--first-run is of a stack of the list, not of a row")
        _beside_row(model, source, stacks, as_json=as_json)
        return
    catalog = load(list_path)
    wanted = [catalog.stack_versions(name) for name in stacks or catalog.defaults.stacks]
    if output is not None and not first_run:
        raise UsageError("--output belongs to --first-run")
    if output is not None and output.suffix == ".json":
        raise UsageError("--output names the Markdown file; the JSON stands beside it")
    if first_run:
        _first_run(wanted, output or Path("first-run.md"), as_json=as_json)
    else:
        _examine(wanted, as_json=as_json)


def _examine(wanted: list[StackVersions], *, as_json: bool) -> None:
    from pipeline import doctor as examining

    found = examining.machine()
    problems = {stack.name: examining.problems(found, stack) for stack in wanted}
    if as_json:
        told = {
            name: [{"what": one.what, "remedy": one.remedy} for one in made]
            for name, made in problems.items()
        }
        print_json({"machine": asdict(found), "problems": told})
    else:
        click.echo("\n".join(_told(found)))
        for name, made in problems.items():
            click.echo(f"\nstack {name}: {count(made, 'problem') if made else 'ready'}")
            for line in _advice(made):
                click.echo(f"  {line}")
    stopped = [name for name, made in problems.items() if made]
    if stopped:
        raise EnvironmentFault(f"this machine cannot run {', '.join(stopped)} as it is")


def _beside_row(model: str, source: str, stacks: tuple[str, ...], *, as_json: bool) -> None:
    from pipeline import reproduce
    from pipeline.sources import open_source

    if len(stacks) > 1:
        raise UsageError("a row is of one stack", remedy="name one with --stack")
    opened = open_source(source)
    chosen = reproduce.choose(opened.results, model, *stacks)
    ready = reproduce.look(chosen.row)
    run_id = str(chosen.row["run_id"])
    if as_json:
        print_json(
            {
                "machine": asdict(ready.machine),
                "row": run_id,
                "source": opened.name,
                "components": [asdict(one) for one in ready.components],
                "problems": {run_id: [asdict(one) for one in ready.stops]},
            }
        )
    else:
        click.echo("\n".join(_told(ready.machine)))
        click.echo(
            "\n".join(["", *notices(opened.notice, chosen.others), *beside(chosen.row, ready)])
        )
    if ready.stops:
        raise EnvironmentFault(f"this machine cannot reproduce {run_id} as it is")


def notices(notice: str, others: tuple[str, ...]) -> list[str]:
    """What a reader must know of the results, and that the model has rows on other stacks."""
    lines = [f"note: {notice}"] if notice else []
    if others:
        stacks = ", ".join(run_id.partition("@")[2] for run_id in others[:3])
        more = ", ..." if len(others) > 3 else ""
        lines.append(f"note: there are rows of other stacks (--stack): {stacks}{more}")
    return lines


def beside(row: Row, ready: Ready) -> list[str]:
    """This machine beside that of a row: a table, then what to do."""
    from pipeline.lines import columns
    from pipeline.reproduce import component_cells
    from pipeline.stack_names import label

    lines = [f"{row['model_id']}, {row['result']} on {label(row)}, beside this machine:"]
    lines += [f"  {line}" for line in columns(component_cells(ready.components))]
    hints = [one for one in ready.components if one.remedy and one.match != "stops"]
    lines += [f"  {one.name}: {one.remedy}" for one in hints]
    if ready.command:
        lines.append(f"  packages to add: {ready.command}")
    lines.append(f"to run its script: {count(ready.stops, 'problem') if ready.stops else 'ready'}")
    return [*lines, *(f"  {line}" for line in _advice(ready.stops))]


def _told(found: Machine) -> list[str]:
    """What the machine says of itself, a line each."""
    from pipeline.device import free_cores

    lines = [
        f"system         {found.system}",
        f"python         {found.python} ({found.executable})",
        f"memory         {_gib(found.available_bytes)} of {_gib(found.memory_bytes)} available, "
        f"swap {_gib(found.swap_bytes)}",
    ]
    lines += [
        f"disk           {_gib(one.free_bytes)} free for {one.use}, {one.path}"
        for one in found.disks
    ]
    lines += [f"package        {name} {version}" for name, version in found.packages.items()]
    lines += [f"system package {name} {version}" for name, version in found.system_packages.items()]
    lines += [f"environment    {name}={value}" for name, value in found.caches.items()]
    lines += [
        f"compiler       {found.compiler or 'no C++ compiler'}",
        f"Neuron driver  {found.driver or 'none'}",
        f"Neuron runtime {found.runtime or 'none'}",
    ]
    if not found.devices:
        return [*lines, f"Neuron devices none: {found.no_devices}"]
    free = free_cores(found.devices)
    cores = sum(len(one.core_ids) for one in found.devices)
    configs = {one.logical_neuroncore_config for one in found.devices}
    lines.append(
        f"Neuron devices {len(found.devices)} ({found.instance or 'instance type not told'}), "
        f"{cores} cores at logical configuration {', '.join(map(str, configs))}; "
        f"no process is on the devices of {len(free)} of them"
    )
    for one in found.devices:
        lines += [
            f"in use         device {one.index}: {held.pid} {held.command}"
            for held in one.processes
        ]
    return lines


def _advice(made: tuple[Problem, ...]) -> list[str]:
    """Problems in order, those with one remedy together before it."""
    lines: list[str] = []
    for place, one in enumerate(made):
        lines.append(one.what)
        if one.remedy and (place + 1 == len(made) or made[place + 1].remedy != one.remedy):
            lines.append(f"    {one.remedy}")
    return lines


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"


def _first_run(wanted: list[StackVersions], output: Path, *, as_json: bool) -> None:
    from pipeline import first_run as trying
    from pipeline.words import Target

    if len(wanted) != 1:
        names = ", ".join(stack.name for stack in wanted)
        raise UsageError("a first run is of one stack", remedy=f"name one with --stack: {names}")
    if wanted[0].target is Target.CPU:
        raise UsageError(
            f"stack {wanted[0].name} is of target cpu", remedy="name a neuron stack with --stack"
        )
    report = trying.first_run(output, wanted[0], lambda line: click.echo(line, err=as_json))
    fails = report.of(trying.Outcome.FAILS)
    holds = report.of(trying.Outcome.HOLDS)
    if as_json:
        print_json(report.data())
    else:
        for result in fails:
            places = ", ".join(map(str, result.check.places))
            click.echo(f"does not hold: {result.check.id}: {result.check.assumption}")
            click.echo(f"    mended in {places}")
        click.echo(
            f"{len(holds)} of {count(report.checks, 'assumption')} hold, {len(fails)} do not, "
            f"{len(report.of(trying.Outcome.UNTRIED))} could not be tried: {output}"
        )
    sys.stdout.flush()
    if fails:
        raise EnvironmentFault(
            f"{count(fails, 'assumption')} of this code do not hold on this machine",
            remedy=f"{output} says what was seen and where each is mended; post it in an issue",
        )
    if not holds:
        raise EnvironmentFault("nothing could be tried on this machine", remedy=str(output))
