"""`qualify actions`: what the workflows call. Each `run:` of a workflow is one of these."""

from pipeline.cli.actions.group import actions

__all__ = ["actions"]
