"""Command of the workflows after the runs: publish."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from pipeline.cli.actions.group import actions
from pipeline.cli.actions.options import artifacts_option, plan_option, tree_option
from pipeline.cli.options import list_option


@actions.command(short_help="Publish what the runs left, in one commit.")
@plan_option
@artifacts_option
@list_option
@tree_option
def publish(plan_path: Path, artifacts: Path, list_path: Path, tree: Path) -> None:
    """Publish the planned runs' records: results, history, scripts and page, in one commit.

    Reads QUALIFY_BRANCH (default: main), the branch to publish to, and QUALIFY_PLAN_SHA256, the
    plan's digest by the job that made it. A planned run without a record becomes an ERROR row;
    then, and when something in the artifacts was refused, this ends in an error after publishing.
    """
    from pipeline.actions import inputs, publishing, publishing_page
    from pipeline.actions.workflow import Level, Workflow
    from pipeline.errors import QualifyError

    workflow = Workflow.here()
    branch = inputs.branch(os.environ)
    try:
        publication = publishing.publish(
            Path.cwd(),
            publishing.read_plan(plan_path, os.environ.get("QUALIFY_PLAN_SHA256")),
            artifacts,
            list_path=list_path,
            # On another branch than this job's, the list is that of the day the branch was made.
            list_of_branch=os.environ.get("GITHUB_REF_NAME", branch) == branch,
            branch=branch,
            tree=tree,
            workflow=workflow,
            now=datetime.now(UTC),
        )
    except QualifyError as error:
        workflow.summary(publishing_page.in_vain(error, branch))
        workflow.annotate(Level.ERROR, publishing_page.line(error.reason), title="Not published")
        raise
    publishing.tell(publication, workflow)
    publication.check()
