"""`qualify actions pages`: the site, on the branch that GitHub Pages shows."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli.actions.group import actions
from pipeline.cli.options import path

BRANCH = "gh-pages"


@actions.command(short_help="Bring the site up to date.")
@click.option("--branch", envvar="QUALIFY_BRANCH", default="main", show_default=True)
@click.option(
    "--tree",
    type=path(file_okay=False),
    default=Path("build/site"),
    show_default=True,
    help="Folder for the site's branch; it is made.",
)
def pages(branch: str, tree: Path) -> None:
    """Make the site from what is published on --branch, and push it to the branch gh-pages."""
    import shutil

    from pipeline import site
    from pipeline.actions.git import published_tree, push_derived
    from pipeline.actions.workflow import Workflow
    from pipeline.errors import ResultsError

    workflow = Workflow.here()
    root = Path.cwd()
    published = published_tree(root, branch, Path("build/published"), workflow=workflow)
    if published is None:
        raise ResultsError(
            f"origin has no branch {branch}", remedy="set QUALIFY_BRANCH to the branch of results"
        )

    def derive(folder: Path) -> str:
        for old in folder.iterdir():
            if old.name != ".git":
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        site.build(published, folder)
        return f"Site from {branch}"

    pushed = push_derived(
        root,
        branch=BRANCH,
        tree=tree,
        derive=derive,
        token=workflow.token,
        server_url=workflow.server_url,
    )
    told = f"is now {pushed.commit[:12]}" if pushed.commit else "was up to date"
    workflow.summary(f"The site, branch `{BRANCH}`, {told}.")
