"""`qualify actions` itself."""

from __future__ import annotations

from pipeline.cli.group import main


@main.group(short_help="What the workflows of GitHub Actions call.")
def actions() -> None:
    """What the workflows of GitHub Actions call; they read its variables and its event."""
