"""What a replay showed: for the terminal, to share as Markdown, and as JSON. Secrets taken out."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline import markdown, phrases, script, stack_names
from pipeline.answers import jsonable
from pipeline.lines import columns
from pipeline.log import redact
from pipeline.record import write_atomically
from pipeline.reproduce.asked import Asked
from pipeline.reproduce.components import Component, Match
from pipeline.reproduce.replay import Replay
from pipeline.reproduce.verdicts import (
    Figure,
    Tokens,
    Verdict,
    figures,
    tokens,
    verdict,
)
from pipeline.rows import Row, clean, row_of

REPORT, DATA = "report.md", "report.json"

VERSION = 1
"""Of the JSON report."""

_INSTANCE_ID = re.compile(r"\bi-[0-9a-f]{8,17}\b")
_TEXT, _ERROR = 160, 2000

_KEPT = (
    *("run_id", "model_id", "revision", "result", "stage", "failure", "signature", "error"),
    *("tested_at", "target", "instance_type", "neuron_cores", "parallelism", "cpu_match"),
    *("max_gap", "departure", "noise", "check", "english", "cache", "pipeline_commit", "run_url"),
)
"""Fields of either row that the JSON report repeats."""


@dataclass(frozen=True)
class Report:
    """source: where the row came from, as it was named. here: the row the replay would make."""

    source: str
    asked: Asked
    replay: Replay
    here: Row
    verdict: Verdict
    tokens: tuple[Tokens, ...]
    figures: tuple[Figure, ...]
    components: tuple[Component, ...]
    limit_s: float


def make(
    source: str,
    asked: Asked,
    replayed: Replay,
    components: tuple[Component, ...],
    limit_s: float,
) -> Report:
    """The replay held against its row."""
    here = row_of(replayed.record)
    row = asked.row
    return Report(
        source=source,
        asked=asked,
        replay=replayed,
        here=here,
        verdict=verdict(row, here),
        tokens=tokens(row, here),
        figures=figures(row, here),
        components=components,
        limit_s=limit_s,
    )


def write(report: Report, folder: Path) -> None:
    """Leave both reports in `folder`."""
    write_atomically(folder / REPORT, _safe(as_markdown(report)).encode())
    text = json.dumps(as_data(report), indent=1, ensure_ascii=False) + "\n"
    write_atomically(folder / DATA, _safe(text).encode())


def _safe(text: str) -> str:
    """Without secrets, instance ids and the home folder's name: reports are there to be shared."""
    home = str(Path.home())
    text = text.replace(home, "~") if len(home) > 1 else text
    return _INSTANCE_ID.sub("i-[left out]", redact(text, os.environ))


# --- sentences --------------------------------------------------------------------------------


def headline(report: Report) -> str:
    """ "REPRODUCED: PASS, as the row is; the same tokens for all of 3 prompts"."""
    told = f"{report.verdict.outcome.upper()}: {report.verdict.why}"
    agreement = same_tokens(report.tokens)
    return f"{told}; {agreement}" if agreement else told


def same_tokens(found: tuple[Tokens, ...]) -> str:
    """Whether the answers are the row's; "" where there are none on both sides."""
    if not found:
        return ""
    same = sum(one.first is None for one in found)
    if same == len(found):
        return (
            f"the same tokens for {'all of ' if same > 1 else ''}{phrases.counted(same, 'prompt')}"
        )
    return f"the same tokens for {same} of {phrases.counted(len(found), 'prompt')}"


def differing(report: Report) -> str:
    """Components that are others than the row's, by name; "none that the row names"."""
    names = [one.name for one in report.components if one.match is Match.DIFFERS]
    return ", ".join(names) or "none of those that both tell"


def _about(report: Report) -> list[tuple[str, str]]:
    row, here = report.asked.row, report.here
    return [
        ("model", f"{row['model_id']} at {row['revision'] or 'no pinned revision'}"),
        ("stack", stack_names.label(row)),
        (
            "row",
            f"{row['result']}, tested {phrases.moment(row['tested_at'])}, from {report.source}",
        ),
        ("replayed", phrases.moment(here["tested_at"])),
        ("script", f"the row's own, byte for byte, SHA-256 {report.asked.sha256}"),
        ("output check", report.replay.judged or "not reached"),
        (
            "compiled graphs",
            f"row {row['cache'] or '-'}, here {here['cache'] or '-'}: {report.replay.graphs}",
        ),
        ("differs here", differing(report)),
        ("machine here", report.replay.machine),
    ]


def _figure_cells(report: Report) -> list[tuple[str, str, str, str]]:
    cells = [("", "row", "here", "here / row")]
    for one in report.figures:
        ratio = "-" if one.ratio is None else f"{one.ratio:.2f}"
        unit = f" {one.unit}" if one.unit else ""
        cells.append((one.name, _number(one.row, unit), _number(one.here, unit), ratio))
    return cells


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.3g}{unit}"


def component_cells(found: tuple[Component, ...]) -> list[tuple[str, str, str, str]]:
    """A table of components, with its head."""
    head = ("", "row", "here", "")
    return [head, *((one.name, one.row or "-", one.here or "-", str(one.match)) for one in found)]


NOTE = (
    "A replay repeats the row's claim and no more: the checkpoint loads, compiles and generates a "
    "few tokens on this stack. Times of one run on one machine are no benchmark."
)


def _shown(text: str) -> str:
    """For a terminal: one line, control characters escaped."""
    return repr(text if len(text) <= _TEXT else f"{text[:_TEXT]}...")


# --- the three forms --------------------------------------------------------------------------


def as_text(report: Report) -> str:
    """For a terminal; the answer first."""
    row = report.asked.row
    lines = [f"{row['model_id']}: {headline(report)}", ""]
    lines += columns(_about(report))
    for one in report.tokens:
        if one.first is not None:
            lines += [
                "",
                f"{one.prompt!r}: token {one.first} of {one.of} is the first that differs",
                f"    row   {_shown(one.row)}",
                f"    here  {_shown(one.here)}",
            ]
    if report.figures:
        lines += ["", *columns(_figure_cells(report))]
    lines += ["", *columns(component_cells(report.components))]
    return "\n".join(lines)


def as_markdown(report: Report) -> str:
    """To be put into an issue."""
    row, here = report.asked.row, report.here
    parts = [
        f"# Replay of {markdown.code(row['model_id'])}: {report.verdict.outcome}",
        markdown.text(headline(report), 1000) + ".",
        markdown.table(("", ""), [(k, markdown.text(v, 1000)) for k, v in _about(report)]),
        "## Tokens",
    ]
    if report.tokens:
        parts.append(
            markdown.table(
                ("prompt", "same tokens", "row, from the first difference on", "here"),
                [
                    (
                        markdown.text(one.prompt),
                        f"{one.same} of {one.of}",
                        markdown.text(one.row) or "-",
                        markdown.text(one.here) or "-",
                    )
                    for one in report.tokens
                ],
            )
        )
    else:
        parts.append("Nothing was generated on both sides.")
    parts.append("## Time and memory")
    head, *cells = _figure_cells(report)
    parts.append(markdown.table(head, cells) if cells else "Neither side has any figure.")
    parts += [NOTE, "## Stack"]
    head, *cells = component_cells(report.components)
    parts.append(markdown.table(head, [[markdown.text(c) for c in line] for line in cells]))
    if here["error"]:
        parts += ["## Error here", _fenced(clean(here["error"])[:_ERROR])]
    if row["error"]:
        parts += ["## Error in the row", _fenced(clean(row["error"])[:_ERROR])]
    parts += ["## To do the same", _fenced("\n".join(_commands(report)))]
    return "\n\n".join(parts) + "\n"


def _commands(report: Report) -> list[str]:
    """What a reader types without this project."""
    run = report.asked.run
    name = f"{report.asked.row['run_id']}.py"
    fetch = phrases.fetch_graphs(report.asked.row)
    return [
        script.install_command(run.stack, run.extra_packages),
        *([fetch] if fetch else []),
        f"python3 '{name}'  # results/scripts/ has it",
    ]


def _fenced(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def as_data(report: Report) -> dict[str, Any]:
    """Everything, as JSON types."""
    row, here = jsonable(report.asked.row), jsonable(report.here)
    return {
        "version": VERSION,
        "outcome": str(report.verdict.outcome),
        "why": report.verdict.why,
        "source": report.source,
        "run_id": row["run_id"],
        "script_sha256": report.asked.sha256,
        "judged": report.replay.judged or None,
        "graphs": report.replay.graphs,
        "machine": report.replay.machine,
        "limit_s": report.limit_s,
        "row": {name: row[name] for name in _KEPT},
        "here": {name: here[name] for name in _KEPT},
        "tokens": [asdict(one) for one in report.tokens],
        "figures": [asdict(one) | {"ratio": one.ratio} for one in report.figures],
        "stack": [asdict(one) for one in report.components],
        "note": NOTE,
    }
