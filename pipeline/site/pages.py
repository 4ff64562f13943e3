"""Templates of the site's pages. Everything that they are given is escaped unless they say so."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.script import template_folder


@cache
def environment() -> Environment:
    """Jinja for HTML: autoescape on, undefined names are errors, blocks leave no line.

    Apart from `script.environment`, whose templates are Python and Markdown.
    """
    return Environment(
        loader=FileSystemLoader(template_folder()),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(name: str, *, root: str, generated: str, **values: Any) -> str:
    """The page of templates/site/<name>.html.jinja. root: relative path to the site's top."""
    template = environment().get_template(f"site/{name}.html.jinja")
    return template.render(page=name, root=root, generated=generated, **values)
