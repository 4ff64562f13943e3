"""`qualify actions preview`: what a pull request's change of the list would do."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.actions.group import actions
from pipeline.cli.options import facts_option, list_option, results_option

if TYPE_CHECKING:
    from pipeline.plan import Earlier


@actions.command(short_help="Show what a change of the model list would do.")
@list_option
@results_option
@facts_option
@click.option(
    "--base",
    default="HEAD^1",
    show_default=True,
    metavar="FILE_OR_REF",
    help="The list to compare with, or the commit that holds it.",
)
@click.pass_context
def preview(
    context: click.Context, list_path: Path, results: Path, facts_cache: Path, base: str
) -> None:
    """Show, in the job's summary, what a change of the model list would do: which models it adds
    or alters, where each would run and for how long, or why it would not; with annotations on the
    lines of the list. It needs no secret and writes nothing else.

    In a pull request it needs GitHub's merge commit, checked out with `fetch-depth: 2`; HEAD^1 is
    the base then. Elsewhere HEAD^1 is the commit before, or say --base.

    It ends with 3 where the list has problems (the other entries are shown nevertheless), and with
    4 where a model or its revision does not exist, or is private: no merge mends that. It ends
    with 0 where a model is refused or gated, with a warning on its line: that would become a row
    of the results, and people decide whether they want it. It also ends with 0, and warns, where
    the Hub did not answer: that says nothing of the change, and the campaign plans anew.

    With QUALIFY_BRANCH, earlier results are those of that branch of origin instead of --results.
    """
    from pipeline import known
    from pipeline.actions.git import published_tree
    from pipeline.actions.preview import Checkout, annotate, look
    from pipeline.actions.preview_page import page
    from pipeline.actions.workflow import Workflow

    workflow = Workflow.here()
    checkout = Checkout.of(list_path)
    branch = os.environ.get("QUALIFY_BRANCH")

    def earlier() -> dict[str, Earlier]:
        if not branch:
            return known.earlier(results)
        tree = Path("build/published").absolute()
        published = published_tree(checkout.root, branch, tree, workflow=workflow)
        return known.earlier(published / "results") if published else {}

    seen = look(
        list_path,
        checkout,
        base,
        workflow.event,
        lambda catalog, folder, names: known.facts(catalog, folder, facts_cache, names),
        earlier,
        now=datetime.now(UTC),
    )
    annotate(seen, workflow)
    workflow.summary(page(seen, workflow, branch=branch or "main"))
    context.exit(seen.exit_code)
