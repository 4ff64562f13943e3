"""Lines for a terminal: aligned, wrapped, and with nothing in them that a terminal obeys."""

from __future__ import annotations

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
