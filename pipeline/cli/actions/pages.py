"""`qualify actions pages`: the site, on the branch that GitHub Pages shows."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from pipeline.cli.actions.group import actions
from pipeline.cli.actions.options import tree_option
from pipeline.cli.options import path

BRANCH = "gh-pages"


@actions.command(short_help="Bring the site up to date.")
@tree_option
@click.option(
    "--site-tree",
    type=path(file_okay=False),
    default=Path("build/site"),
    show_default=True,
    help="Where the branch with the site is put; its content is replaced.",
)
def pages(tree: Path, site_tree: Path) -> None:
    """Make the site from what is published, and push it to the branch gh-pages.

    Reads QUALIFY_BRANCH (default: main), the branch that is published to.
    """
    from pipeline import site
    from pipeline.actions import inputs
    from pipeline.actions.git import published_tree, push_derived
    from pipeline.actions.workflow import Workflow
    from pipeline.errors import ResultsError
    from pipeline.site import files

    workflow = Workflow.here()
    branch = inputs.branch(os.environ)
    published = published_tree(Path.cwd(), branch, tree, workflow=workflow)
    if published is None:
        raise ResultsError(
            f"origin has no branch {branch}",
            remedy="publish first, or name the branch of the results in QUALIFY_BRANCH",
        )

    def derive(folder: Path) -> str:
        # Built apart: a build that fails must leave the tree as it is. On the same disk, to move.
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            built = Path(scratch) / "site"
            site.build(published, built)
            files.move_into(built, folder)
        return f"Site of {branch}"

    pushed = push_derived(
        Path.cwd(),
        branch=BRANCH,
        tree=site_tree,
        derive=derive,
        token=workflow.token,
        server_url=workflow.server_url,
    )
    told = f"is now at {pushed.commit[:12]}" if pushed.commit else "is up to date"
    workflow.summary(f"## The site {told}\n\nBranch `{BRANCH}`, made from branch `{branch}`.")
