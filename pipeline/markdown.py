"""Markdown that pages, summaries, comments and issues are made of. Pure.

What comes from outside goes through `text` or `code` before it becomes a cell or a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from pipeline.rows import clean
from pipeline.words import is_model_id

_SPECIAL = re.compile(
    r"""[\\`*{}\[\]<>&|~$#@]
    | (?<![A-Za-z0-9])_ | _(?![A-Za-z0-9])  # inside a word it is no markup
    | :(?=\S)  # before a space it is no link and no short code
    | (?<=www)\.""",
    re.VERBOSE | re.IGNORECASE,
)


def text(value: str, length: int = 200) -> str:
    """`value` as one line of plain text in a Markdown table, cut to `length` characters.

    Every character that Markdown, HTML or GitHub's additions (bare links, maths, short codes)
    could take for markup becomes a character reference, which is never markup:
    https://spec.commonmark.org/0.31.2/#entity-and-numeric-character-references
    (An e-mail address still becomes a link: GitHub looks for those after decoding.)
    """
    line = " ".join(clean(value).split())
    if len(line) > length:
        line = line[: max(length - 3, 0)].rstrip() + "..."
    return _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", line)


def code(model_id: str) -> str:
    """A model id in code type; anything else as plain text."""
    return f"`{model_id}`" if is_model_id(model_id) else text(model_id)


def url(path: str) -> str:
    """A relative path as a link's target: "+", "@" and all else but "/" and [\\w.~-] escaped."""
    return quote(path, safe="/")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are escaped already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def fold(title: str, content: str) -> str:
    """`content` behind a line that opens it."""
    # GitHub reads Markdown inside of HTML only after an empty line.
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"
