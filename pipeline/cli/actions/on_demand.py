"""Commands of hardware time for a pull request: ask and answer."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.actions.group import actions
from pipeline.cli.actions.options import artifacts_option, plan_option
from pipeline.cli.options import facts_option, list_option, path, results_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.catalog import Catalog
    from pipeline.record import Plan


_request_option = click.option(
    "--request",
    type=path(dir_okay=False),
    default=Path("build/request.json"),
    show_default=True,
    help="Who asked for it, and for what.",
)


@actions.command(short_help="Take what a person asks to be run for a pull request.")
@list_option
@results_option
@facts_option
@plan_option
@_request_option
def ask(list_path: Path, results: Path, facts_cache: Path, plan_path: Path, request: Path) -> None:
    """Plan the models that an open pull request adds or alters, for a person with write access.

    The person comments `/qualify COMMIT` on it, or dispatches the workflow with the inputs number
    and commit; COMMIT is the full head commit as reviewed. Nothing of the pull request is checked
    out: model entries of that commit's list are taken as data. Gives the outputs jobs, slices,
    runs, digest, number and sha; runs is 0 when there is nothing to run, and who has write access
    finds the reason on the pull request. It ends with 0 then: that is an answer, and strangers'
    comments must not make a workflow fail.
    """
    from pipeline.actions import on_demand
    from pipeline.actions.github import GitHub
    from pipeline.actions.workflow import Workflow
    from pipeline.catalog import load
    from pipeline.cli.planning import make_plan
    from pipeline.plan import Request
    from pipeline.record import write

    def planner(catalog: Catalog, models: Sequence[str]) -> Plan:
        wanted = Request(select=tuple(models), force=True)
        nowhere = Path(os.devnull)
        return make_plan(list_path, results, nowhere, facts_cache, wanted, catalog=catalog)

    workflow = Workflow.here()
    asked = on_demand.ask(
        workflow, GitHub.of(workflow), load(list_path), planner, datetime.now(UTC)
    )
    if asked is not None:
        write(asked.plan, plan_path)
        write(asked.request, request)
    for name, value in (on_demand.NO_RUNS if asked is None else asked.outputs).items():
        workflow.output(name, value)


@actions.command(short_help="Tell a pull request what came of the runs asked for.")
@plan_option
@_request_option
@artifacts_option
def answer(plan_path: Path, request: Path, artifacts: Path) -> None:
    """Judge what came back, and say it in one comment and one check of the commit asked for.

    Nothing is published in the results: the models are not on the main branch yet. Reads
    QUALIFY_PLAN_SHA256, the plan's digest by the job that made it.
    """
    from pipeline.actions import on_demand_answer
    from pipeline.actions.github import GitHub
    from pipeline.actions.on_demand import Ask
    from pipeline.actions.publishing import read_plan
    from pipeline.actions.workflow import Workflow
    from pipeline.record import read

    workflow = Workflow.here()
    on_demand_answer.answer(
        workflow,
        GitHub.of(workflow),
        read(Ask, request),
        read_plan(plan_path, os.environ.get("QUALIFY_PLAN_SHA256")),
        artifacts,
        datetime.now(UTC),
    )
