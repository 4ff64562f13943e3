"""Command of the workflows before any run: plan."""

from __future__ import annotations

import os
from pathlib import Path

import click

from pipeline.cli.actions.group import actions
from pipeline.cli.actions.options import tree_option
from pipeline.cli.options import facts_option, list_option, path


@actions.command(short_help="Decide which runs are due, and in which jobs.")
@list_option
@facts_option
@click.option(
    "--output",
    type=path(dir_okay=False),
    default=Path("build/plan.json"),
    show_default=True,
    help="Where the plan goes.",
)
@tree_option
def plan(list_path: Path, facts_cache: Path, output: Path, tree: Path) -> None:
    """Decide which runs are due by the results on the branch that is published to.

    Reads QUALIFY_SELECT and QUALIFY_STACK (separated by spaces), QUALIFY_FORCE (true or false),
    QUALIFY_BUDGET (minutes of machine time) and QUALIFY_BRANCH (default: main). Gives the outputs
    jobs, slices, runs and digest, and the page of the plan.
    """
    from pipeline.actions import inputs, matrix
    from pipeline.actions.git import published_tree
    from pipeline.actions.plan_summary import summary
    from pipeline.actions.workflow import Workflow
    from pipeline.catalog import load
    from pipeline.cli.planning import make_plan
    from pipeline.plan import wanted
    from pipeline.record import write

    workflow = Workflow.here()
    catalog = load(list_path)
    request = inputs.request(os.environ, workflow.event_name)
    wanted(catalog, request)  # says what is wrong with a request before anything is fetched
    here = Path.cwd()
    published = published_tree(here, inputs.branch(os.environ), here / tree, workflow=workflow)
    # A branch that is not there yet will start from this checkout.
    results = (published or here) / "results"
    made = make_plan(list_path, results, Path(os.devnull), facts_cache, request, catalog=catalog)
    made = matrix.startable(made, catalog)
    outputs = matrix.outputs(made, catalog)
    write(made, output)
    for name, value in outputs.items():
        workflow.output(name, value)
    workflow.summary(summary(made, catalog, request))
