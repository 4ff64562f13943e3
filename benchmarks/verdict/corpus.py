"""The corpus and the written texts: where they lie, how they are read, and their halves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
CORPUS: Final = HERE / "corpus.jsonl"
"""One continuation a line; generate.py says what is in it."""
TRAINING: Final = "training"
HELD_OUT: Final = "held_out"
HALVES: Final = (TRAINING, HELD_OUT)


def read_lines(path: Path = CORPUS) -> list[dict[str, Any]]:
    """Every line of a corpus."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def written(name: str) -> list[dict[str, str]]:
    """A file of texts/: prompts.json, right.json or foreign.json."""
    found: list[dict[str, str]] = json.loads((HERE / "texts" / name).read_text(encoding="utf-8"))
    return found
