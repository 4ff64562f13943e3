"""Commands that find models to qualify: rankings, propose, request."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.actions.group import actions
from pipeline.cli.actions.options import tree_option
from pipeline.cli.options import facts_option, list_option, path

if TYPE_CHECKING:
    from pipeline.actions.proposals import Desk
    from pipeline.actions.workflow import Workflow

_branch_tree_option = click.option(
    "--branch-tree",
    type=path(file_okay=False),
    default=Path("build/proposals"),
    show_default=True,
    help="Folder for the proposal's branch; it is made.",
)


@actions.command(short_help="Take the Hub's rankings into the results.")
@tree_option
def rankings(tree: Path) -> None:
    """Take the Hub's trending and downloads rankings of both tasks, and commit them.

    They go to results/rankings/ on the branch QUALIFY_BRANCH (main), one file each, which the next
    day replaces. A ranking that the Hub does not give, or gives cut, leaves its file as it was, and
    the command ends with 4 after it committed the others. Taken again on the same day, what has not
    changed is not committed.
    """
    from pipeline import rankings as hub_rankings
    from pipeline.actions.git import push_derived
    from pipeline.actions.inputs import branch
    from pipeline.actions.workflow import Workflow
    from pipeline.errors import HubError

    workflow = Workflow.here()
    now = datetime.now(UTC)
    taken, faults = hub_rankings.take(now=now)
    commit = None
    if taken:

        def derive(tree: Path) -> str | None:
            news = hub_rankings.store(tree / "results", taken)
            return f"Rankings of the Hub, {now:%Y-%m-%d}" if news else None

        commit = push_derived(
            Path.cwd(),
            branch=branch(os.environ),
            tree=tree.resolve(),
            derive=derive,
            token=workflow.token,
            server_url=workflow.server_url,
        ).commit
    workflow.summary(hub_rankings.summary(taken, faults, commit))
    if faults:
        raise HubError(
            "\n".join(faults), remedy="the files of these rankings are as they were; run this again"
        )


@actions.command(short_help="Propose the highest-ranked models that the list lacks.")
@list_option
@facts_option
@tree_option
@_branch_tree_option
def propose(list_path: Path, facts_cache: Path, tree: Path, branch_tree: Path) -> None:
    """Open or update the one pull request that proposes models for the list.

    The rankings are those on QUALIFY_BRANCH (main); the pull request is from qualify/proposals to
    QUALIFY_DEFAULT_BRANCH (main). Models once declined are not proposed again.
    """
    from pipeline.actions import proposals
    from pipeline.actions.workflow import Level, Workflow
    from pipeline.errors import ResultsError

    workflow = Workflow.here()
    desk = _desk(workflow, list_path, facts_cache, tree, branch_tree)
    if not list(desk.rankings):
        raise ResultsError(
            "no rankings are published yet, so nothing can be proposed",
            remedy="run `qualify actions rankings` first",
        )
    made = proposals.propose(desk)
    for number in made.history.lost:
        workflow.annotate(
            Level.WARNING,
            f"the hidden first line of pull request {number} is gone: what it proposed is "
            "unknown, and may be proposed again",
        )
    workflow.summary(proposals.summary(made, desk.rankings))


@actions.command(short_help="Answer an issue that asks for a model.")
@list_option
@facts_option
@tree_option
@_branch_tree_option
def request(list_path: Path, facts_cache: Path, tree: Path, branch_tree: Path) -> None:
    """Answer the issue of this event, if it is open and has the label qualify-model.

    One comment, edited when the issue is, says what is known of the model; where it fits it goes
    into the pull request of `qualify actions propose`.
    """
    from pipeline.actions import issue_form
    from pipeline.actions.workflow import Workflow
    from pipeline.errors import UsageError

    workflow = Workflow.here()
    number = workflow.event.get("issue", {}).get("number")
    if not isinstance(number, int):
        raise UsageError("this event is about no issue", remedy="start this on `issues` events")
    desk = _desk(workflow, list_path, facts_cache, tree, branch_tree)
    issue = desk.github.issue(number)
    if issue.state != "open" or issue_form.LABEL not in issue.labels:
        workflow.summary(f"Issue #{number} is closed, or asks for no model: nothing to do.")
        return
    answer = issue_form.answer(desk, issue)
    url = desk.github.comment(number, answer.comment, marker=issue_form.marker(number))
    workflow.summary(
        f"## Issue #{number}: {answer.verdict}\n\n[The comment]({url}) says:\n\n{answer.comment}"
    )


def _desk(
    workflow: Workflow, list_path: Path, facts_cache: Path, tree: Path, branch_tree: Path
) -> Desk:
    """What both commands need, with rankings and earlier results as they are published."""
    from pipeline import known
    from pipeline import rankings as hub_rankings
    from pipeline.actions import candidates, proposals
    from pipeline.actions.git import published_tree
    from pipeline.actions.github import GitHub
    from pipeline.actions.inputs import branch
    from pipeline.catalog import load

    root, tree = Path.cwd(), tree.resolve()
    list_name = proposals.place_of(list_path, root)
    catalog = load(list_path)
    published = published_tree(root, branch(os.environ), tree, workflow=workflow)
    results = (published or tree) / "results"
    look = candidates.looker(
        catalog,
        list_path.resolve().parent,
        known.earlier(results),
        now=datetime.now(UTC),
        cache=facts_cache,
    )
    return proposals.Desk(
        github=GitHub.of(workflow),
        workflow=workflow,
        root=root,
        list_name=list_name,
        base=proposals.default_branch(),
        tree=branch_tree.resolve(),
        catalog=catalog,
        rankings=hub_rankings.read(results),
        look=look,
    )
