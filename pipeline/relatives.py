"""Evidence about others: how models of the same architecture did on a stack. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline import stack_names
from pipeline.words import Result

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Relatives:
    """`passed` `of` so many models of one architecture pass on a stack; ERRORs are not counted.

    model_ids: all that are counted, sorted. stack: the key of the stack.
    """

    model_type: str
    passed: int
    of: int
    model_ids: tuple[str, ...]
    stack: str = ""

    def __str__(self) -> str:
        """ "5 of 6 qwen3 models pass on this stack"; "" when there are none."""
        if not self.of:
            return ""
        noun = "model" if self.of == 1 else "models"
        verb = "passes" if 1 in (self.passed, self.of) else "pass"
        return f"{self.passed} of {self.of} {self.model_type} {noun} {verb} on this stack"


def relatives(
    rows: Iterable[Row], model_type: str | None, stack: str, *, but: str | None = None
) -> Relatives:
    """The models of an architecture on a stack.

    rows: current ones, of any models and stacks. model_type: None or "" = unknown, which has no
    relatives. stack: a key. but: the model that the evidence is shown beside, which is not counted.
    """
    seen = {
        row["model_id"]: row["result"]
        for row in rows
        if model_type
        and row["model_type"] == model_type
        and row["result"] in (Result.PASS, Result.FAIL)
        and row["model_id"] != but
        and stack_names.key(row) == stack
    }
    passed = sum(result == Result.PASS for result in seen.values())
    return Relatives(model_type or "", passed, len(seen), tuple(sorted(seen)), stack)
