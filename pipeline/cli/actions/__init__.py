"""`qualify actions`: what the workflows call. Each `run:` of a workflow is one of these."""

from pipeline.cli.actions import discover as discover
from pipeline.cli.actions import issues as issues
from pipeline.cli.actions import on_demand as on_demand
from pipeline.cli.actions import plan
from pipeline.cli.actions import preview as preview
from pipeline.cli.actions import publish as publish

from pipeline.cli.actions import pages  # isort: skip
from pipeline.cli.actions.group import actions

__all__ = ["actions", "pages", "plan"]
