"""Commands of the workflows that keep issues: regressions, watch."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import click

from pipeline.cli.actions.group import actions
from pipeline.cli.actions.options import tree_option
from pipeline.cli.options import list_option, path


@actions.command(short_help="Keep one issue for each cause of regressions.")
@click.option(
    "--results",
    type=path(file_okay=False),
    default=Path("build/published/results"),
    show_default=True,
    help="Folder of published results.",
)
@list_option
def regressions(results: Path, list_path: Path) -> None:
    """Open, edit and close issues so that they are the regressions of the published results.

    A regression is a FAIL of a model that passed before: on the same stack, or on an older one
    while this is its newest. Infrastructure errors and excluded models never are.
    """
    from pipeline.actions import regressions as reporting
    from pipeline.actions.github import GitHub
    from pipeline.actions.workflow import Workflow
    from pipeline.catalog import load

    workflow = Workflow.here()
    kept = reporting.report(results, load(list_path), GitHub.of(workflow))
    workflow.summary(reporting.summary(kept))


@actions.command(short_help="Raise an alarm when results stop to arrive.")
@click.option(
    "--limit-hours",
    envvar="QUALIFY_SILENCE_HOURS",
    show_envvar=True,
    type=click.FloatRange(min=1),
    metavar="HOURS",
    help="How long silence may last.  [default: 72]",
)
@tree_option
@list_option
@click.pass_context
def watch(
    context: click.Context,
    limit_hours: float | None,
    tree: Path,
    list_path: Path,
) -> None:
    """Open or update one issue when nothing is published for too long; close it when it is over.

    Reads QUALIFY_BRANCH (default: main), the branch that is published to. Silence counts only while
    a run of the list's default stacks has been due for as long.

    Exit code 0 in both cases: the alarm is the issue.
    """
    from math import isfinite

    from pipeline.actions import inputs, watchdog
    from pipeline.actions.git import published_tree
    from pipeline.actions.github import GitHub
    from pipeline.actions.workflow import Workflow
    from pipeline.catalog import load
    from pipeline.errors import UsageError

    limit = watchdog.Limit()
    if limit_hours is not None:
        if not isfinite(limit_hours):
            raise UsageError("the limit is not a number of hours")
        source = context.get_parameter_source("limit_hours")
        of_variable = source is click.core.ParameterSource.ENVIRONMENT
        limit = watchdog.Limit(
            limit_hours, "QUALIFY_SILENCE_HOURS" if of_variable else "--limit-hours"
        )
    workflow = Workflow.here()
    github = GitHub.of(workflow)
    branch = inputs.branch(os.environ)
    published = published_tree(Path.cwd(), branch, tree, workflow=workflow)
    results = published / "results" if published else None
    catalog = load(list_path)
    seen, kept = watchdog.watch(results, catalog, limit, datetime.now(UTC), github, branch)
    workflow.summary(watchdog.summary(seen, limit, kept))
