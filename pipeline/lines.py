"""Lines for a terminal: aligned, wrapped, and with nothing in them that a terminal obeys."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

CELL = 200
"""Characters shown of a cell of a table."""


def columns(cells: Iterable[Sequence[str]]) -> list[str]:
    """Cells as lines with aligned columns; control characters never reach the terminal."""
    clean = [[printable(cell) for cell in line] for line in cells]
    widths = [max(len(line[i]) for line in clean) for i in range(len(clean[0]))] if clean else []
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in clean
    ]


def wrapped(text: str, width: int, indent: str, most: int | None = None) -> list[str]:
    """`text` as lines of at most `width` characters, what follows the first one further in."""
    return textwrap.wrap(
        printable(text, 10_000),
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        max_lines=most,
        placeholder=" ...",
        break_on_hyphens=False,
    )


def printable(text: str, limit: int = CELL) -> str:
    folded = " ".join(text.split())
    shown = folded if len(folded) <= limit else f"{folded[: limit - 3]}..."
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown)


_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def plain_line(text: str) -> str:
    """A process's line as one that a terminal shows and neither it nor a workflow's log obeys.

    Colours go; tabs and indentation stay. GitHub's runner takes "##[" for a command wherever in a
    line it stands, and begins a new line at a carriage return:
    https://github.com/actions/runner/blob/main/src/Runner.Common/ActionCommand.cs
    """
    text = text.rstrip()
    if not text.isprintable():
        text = "".join(_printable(character) for character in _SEQUENCES.sub("", text))
    return text.replace("##[", "## [")


def _printable(character: str) -> str:
    if character.isprintable() or character == "\t":
        return character
    return " " if character in "\r\n" else "\N{REPLACEMENT CHARACTER}"
