"""What other pages and programs embed of a model: badge.svg and result.json. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from pipeline.markdown import url
from pipeline.phrases import iso
from pipeline.readings import reading
from pipeline.site.gather import Facts, Model
from pipeline.wishes import Wish

SCHEMA_VERSION = 1
"""Of result.json: raised when a field changes its meaning or goes."""

Row = Mapping[str, Any]

_LABEL = "Trainium2"
_COLOURS = {
    "PASS": "#1a7f37",
    "FAIL": "#b42318",
    "ERROR": "#8a5a00",
    "EXCLUDED": "#57606a",
    "UNTESTED": "#57606a",
}
"""Each on white text above the contrast of 4.5 that WCAG 2.2, 1.4.3, asks for."""

_WIDTHS = {" ": 3.9, "i": 3.1, "l": 3.1, "m": 10.7, ",": 4.0, "-": 5.0, "r": 4.7, "t": 4.4}
_WIDTH = 7.0
"""Pixels of a character of Verdana at 11 px, about; textLength makes the text fit them."""

_VERSIONS = (
    "neuronx_cc",
    "torch_neuronx",
    "torch",
    "transformers",
    "accelerate",
    "nki",
    "python",
    "runtime",
    "neuron_driver",
    "image",
)


def badge(facts: Facts, model: Model) -> str:
    """An SVG that says how the model reads on the newest stack of the device that it ran on.

    Results off the device say nothing of Trainium, and so nothing here.
    """
    row = facts.head(model)
    word = str(reading(row, model.wish))
    told = [word]
    if row is not None:
        told += [f"{row['tested_at']:%Y-%m-%d}"]
        told += ["stale"] if facts.stale(row, model.wish) else []
    return _svg(_LABEL, ", ".join(told), _COLOURS[word])


def _svg(label: str, message: str, colour: str) -> str:
    left, right = _pixels(label) + 12, _pixels(message) + 12
    whole = left + right
    title = escape(f"{label}: {message}")

    def text(words: str, start: int, width: int) -> str:
        return (
            f'<text x="{start + width / 2:g}" y="14" textLength="{width - 12}">'
            f"{escape(words)}</text>"
        )

    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="20" role="img" '
        f'aria-label="{title}"><title>{title}</title>'
        f'<clipPath id="r"><rect width="{whole}" height="20" rx="3"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{left}" height="20" fill="#444c56"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/></g>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" '
        f'font-size="11">{text(label, 0, left)}{text(message, left, right)}</g></svg>\n'
    )


def _pixels(words: str) -> int:
    return round(sum(_WIDTHS.get(character, _WIDTH) for character in words))


def result(facts: Facts, model: Model) -> str:
    """result.json: how the model reads on every stack of the site, newest first.

    `as_of` is the time of the site's newest row, which `stale` is measured against. A field that
    is not known is null. `reading` at the top is of Trainium, as the badge's.
    """
    head = facts.head(model)
    told = {
        "schema_version": SCHEMA_VERSION,
        "model_id": model.id,
        "task": model.task,
        "model_type": model.model_type,
        "as_of": facts.generated,
        "max_age_days": facts.max_age_days,
        "reading": str(reading(head, model.wish)),
        "stale": facts.stale(head, model.wish) if head else False,
        "stack": None if head is None else str(head["run_id"]).partition("@")[2],
        "wish": _wish(model.wish),
        "stacks": [
            {
                "stack": stack.key,
                "label": stack.label,
                "target": stack.target,
                "reading": str(facts.reading(model, stack.key)),
                **_seen(facts, model, stack.key),
            }
            for stack in facts.stacks
        ],
    }
    return json.dumps(told, ensure_ascii=False) + "\n"


def _wish(wish: Wish | None) -> dict[str, Any] | None:
    if wish is None:
        return None
    return {
        "wish": str(wish.wish),
        "reason": wish.reason,
        "note": wish.note,
        "issue": wish.issue,
    }


_SEEN = (
    *("result", "stage", "failure", "date", "stale", "versions", "cores", "parallelism"),
    *("revision", "cpu_match", "english", "run_id", "run_url", "script"),
)


def _seen(facts: Facts, model: Model, stack: str) -> dict[str, Any]:
    """What was observed there; every field is there, null without a row."""
    row = model.rows.get(stack)
    if row is None:
        return dict.fromkeys(_SEEN)
    run_id = str(row["run_id"])
    return {
        "result": row["result"],
        "stage": row["stage"],
        "failure": row["failure"],
        "date": iso(row["tested_at"]),
        "stale": facts.stale(row, model.wish),
        "versions": {
            str(row["library"]): row["library_version"],
            **{name: row[name] for name in _VERSIONS if name != row["library"]},
        },
        "cores": row["neuron_cores"],
        "parallelism": row["parallelism"],
        "revision": row["revision"],
        "cpu_match": row["cpu_match"],
        "english": row["english"],
        "run_id": run_id,
        "run_url": row["run_url"],
        "script": (f"../../results/scripts/{url(run_id)}.py" if run_id in facts.scripts else None),
    }
