"""`qualify` itself: what every command has in common, and how errors end."""

from __future__ import annotations

import sys
from typing import Any

import click

from pipeline.cli.options import reader_left
from pipeline.errors import QualifyError


class _Group(click.Group):
    """Ends QualifyErrors as a message on standard error and the exit code of their class."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except QualifyError as error:
            click.echo(f"qualify: {error}", err=True)
            ctx.exit(error.exit_code)
        except BrokenPipeError:
            reader_left(sys.stdout)
            ctx.exit(0)
        except OSError as error:
            if error.filename is None:
                raise
            click.echo(f"qualify: {error.filename}: {error.strerror}", err=True)
            ctx.exit(QualifyError.exit_code)


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        click.echo(f"qualify {version('trn-qualify')}")
    except PackageNotFoundError:
        click.echo("qualify of a checkout that is not installed")
    ctx.exit()


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Does a Transformers model run on AWS Trainium2, on which stack, and how to replay it?"""
