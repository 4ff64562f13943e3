"""The parts of the documentation that are made from code, and whether they are what code says.

README.md, CONTRIBUTING.md and the pages of docs/ are written by people, except between the lines
`<!-- generated: NAME -->` and `<!-- end -->`: what stands there is what GENERATORS[NAME] returns.
`python -m pipeline.docs` compares, with `--write` it replaces. Inside a fenced code block such
lines are text like any other, so that a page can show them.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from pydantic import TypeAdapter

from pipeline import catalog, diagnosis, markdown
from pipeline.cli import main as qualify
from pipeline.errors import QualifyError, exit_codes
from pipeline.first_run import checks
from pipeline.record import write_atomically
from pipeline.rows import COLUMNS
from pipeline.words import CacheState, CpuMatch, English, Failure, Result, Stage, TryReason

ROOT = Path(__file__).parents[1]
COMMAND = "python -m pipeline.docs --write"
VALUES: Mapping[str, type[StrEnum]] = {
    "result": Result,
    "stage": Stage,
    "failure": Failure,
    "cpu_match": CpuMatch,
    "english": English,
    "cache": CacheState,
    "try_reason": TryReason,
}
"""Columns of the results that hold one word of a closed set; docs/results.md explains each."""

HELP_WIDTH = 88
"""Columns of the help texts, whatever the terminal; wide enough that few lines are broken."""

_BEGIN = re.compile(r"\s*<!--\s*generated:\s*(.*?)\s*-->\s*")
_END = re.compile(r"\s*<!--\s*end\s*-->\s*")
_FENCE = re.compile(r"\s*(```|~~~)")


def stale(root: Path) -> dict[Path, str]:
    """Path -> new text of each page below `root` that is not what code says; absent ones are not.

    QualifyError, with file and line, for a region without end or of an unknown name.
    """
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted(root.glob("docs/*.md"))]
    old = {path: path.read_text(encoding="utf-8") for path in pages if path.exists()}
    new = {path: renew(text, path.relative_to(root).as_posix()) for path, text in old.items()}
    return {path: text for path, text in new.items() if text != old[path]}


def renew(text: str, where: str) -> str:
    """A page's text with all of its regions made anew. where: the page's name, for errors."""
    kept: list[str] = []
    name, begun, fenced = "", 0, False  # begun: line of the open region, 0 = none is open
    for number, line in enumerate(text.split("\n"), 1):
        if not begun and _FENCE.match(line):
            fenced = not fenced
        begin, end = (None, None) if fenced else (_BEGIN.fullmatch(line), _END.fullmatch(line))
        place = f"{where}:{number}"
        if begin and begun:
            break
        if begin:
            name, begun = begin[1], number
            if name not in GENERATORS:
                known = ", ".join(GENERATORS)
                raise QualifyError(f'no region "{name}"', where=place, remedy=f"known: {known}")
            kept += [line, "", GENERATORS[name](), ""]
        elif end and not begun:
            remedy = "remove it, or put a line <!-- generated: NAME --> before it"
            raise QualifyError("the end of no region", where=place, remedy=remedy)
        elif end or not begun:
            kept.append(line)
            begun = 0
    if begun:
        remedy = "put a line <!-- end --> where it ends"
        raise QualifyError(f'region "{name}" has no end', where=f"{where}:{begun}", remedy=remedy)
    return "\n".join(kept)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a bar inside a cell is escaped, as it must be even inside code."""
    return markdown.table(head, ([cell.replace("|", r"\|") for cell in row] for row in rows))


def _code(values: Iterable[object]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _exit_codes() -> str:
    return _table(("exit code", "meaning"), ((str(code), text) for code, text in exit_codes()))


def _failures() -> str:
    rows = ((_code([failure]), failure.result.value, failure.meaning) for failure in Failure)
    return _table(("class", "result", "meaning"), rows)


def _commands() -> str:
    """The help of `qualify` and of each of its commands, in the order of their definition."""
    settings: dict[str, Any] = {**qualify.context_settings, "terminal_width": HELP_WIDTH}
    top = click.Context(qualify, info_name="qualify", **settings)
    return "\n\n".join(
        f"## {context.command_path}\n\n```text\n{context.get_help()}\n```"
        for context in _below(top)
    )


def _below(context: click.Context) -> Iterator[click.Context]:
    """A command's context, and those of the commands below it, in the order of their definition."""
    yield context
    if isinstance(context.command, click.Group):
        for name, command in context.command.commands.items():
            yield from _below(click.Context(command, info_name=name, parent=context))


def _columns() -> str:
    rows = ((_code([name]), _arrow_type(kind), text) for name, kind, text in COLUMNS)
    return _table(("column", "type", "meaning"), rows)


def _values() -> str:
    rows = ((_code([name]), _code(kind)) for name, kind in VALUES.items())
    return _table(("column", "values"), rows)


def _arrow_type(kind: pa.DataType) -> str:
    return f"list of {_arrow_type(kind.value_type)}" if pa.types.is_list(kind) else str(kind)


_SCHEMA: dict[str, Any] = catalog.Catalog.model_json_schema()["$defs"]
_PATTERNS: dict[str, str] = {
    TypeAdapter(kind).json_schema()["pattern"]: words
    for kind, words in {
        catalog.Text: "text",
        catalog.Word: "text without spaces",
        catalog.Version: "version, in quotes",
        catalog.ModelId: "model id, such as `Qwen/Qwen3-0.6B`",
        catalog.Package: "package, such as `einops==0.8.1`",
    }.items()
}


def _keys(part: str) -> str:
    """What the schema says of a section of models.yaml, and a table of its keys."""
    head = ("key", "type", "default", "description")
    return f"{_SCHEMA[part]['description']}\n\n{_table(head, _key_rows(part))}"


def _key_rows(part: str, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    for name, field in _SCHEMA[part]["properties"].items():
        kind = next(kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null")
        target = _SCHEMA.get(kind.get("$ref", "").rpartition("/")[2], {})
        said = (field.get("description"), target.get("description"))
        text = " ".join(next(filter(None, said), "").split())
        default = _code([field["default"]]) if "default" in field else "required"
        yield _code([prefix + name]), _yaml_type(kind), default.replace("None", "null"), text
        if "properties" in target:
            yield from _key_rows(target["title"], f"{prefix}{name}.")


def _yaml_type(kind: Mapping[str, Any]) -> str:
    """A JSON Schema in words."""
    match kind:
        case {"$ref": path}:
            return _yaml_type(_SCHEMA[path.rpartition("/")[2]])
        case {"enum": options}:
            return _code(options)
        case {"const": value}:
            return _code([value])
        case {"type": "string"}:
            pattern = kind.get("pattern")
            return _PATTERNS.get(pattern, f"text like `{pattern}`") if pattern else "text"
        case {"type": "array", "items": item}:
            limits = _limits(kind.get("minItems"), kind.get("maxItems"))
            return f"list{limits and f' of {limits}'}: {_yaml_type(item)}"
        case {"propertyNames": names, "additionalProperties": values}:
            return f"mapping: {_yaml_type(names)} to {_yaml_type(values)}"
        case {"type": "object"}:
            return "mapping"
        case {"exclusiveMinimum": bound}:
            return f"number above {bound}"
    limits = _limits(kind.get("minimum"), kind.get("maximum"))
    return f"{'whole ' * (kind['type'] == 'integer')}number{limits and f', {limits}'}"


def _limits(least: int | None, most: int | None) -> str:
    if least is None:
        return ""
    return f"{least} or more" if most is None else f"{least} to {most}"


GENERATORS: Mapping[str, Callable[[], str]] = {
    "exit-codes": _exit_codes,
    "failures": _failures,
    "signatures": diagnosis.table,
    "first-run": checks.table,
    "commands": _commands,
    "columns": _columns,
    "values": _values,
    "defaults": partial(_keys, "Defaults"),
    "runners": partial(_keys, "Runner"),
    "stacks": partial(_keys, "Stack"),
    "models": partial(_keys, "Model"),
    "excluded": partial(_keys, "Excluded"),
}
"""Name of a region -> what makes its content."""


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """0 = every page is what code says, or was made so; 1 = some are not, or a region is broken."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.docs", description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace what is stale")
    write = parser.parse_args(arguments).write
    try:
        found = stale(root)
    except QualifyError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for path, text in found.items():
        if write:
            write_atomically(path, text.encode())
        print(f"{path.relative_to(root).as_posix()}: {'written' if write else 'stale'}")
    if found and not write:
        print(f"these pages are not what the code says; make them so: {COMMAND}", file=sys.stderr)
    return 1 if found and not write else 0


if __name__ == "__main__":
    sys.exit(main())
