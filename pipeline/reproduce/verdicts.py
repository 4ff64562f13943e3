"""A replay beside its row: the same result? the same tokens? the same figures? Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pipeline.diagnosis import UNCLASSIFIED
from pipeline.words import Failure, Result

Row = Mapping[str, Any]

_OF_THE_MACHINE = (Failure.TIMEOUT, Failure.HOST_OUT_OF_MEMORY)
"""Failures of a replay that its own limit, or a smaller machine, can give: no evidence against a
row that did not fail so itself."""

_AROUND = 24
"""Characters of common text shown before the first difference."""


class Outcome(StrEnum):
    """What a replay says of its row."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    UNDECIDED = "not decided"
    """The script ran, or began to, and neither holds of what was seen."""


@dataclass(frozen=True)
class Verdict:
    """why: one sentence."""

    outcome: Outcome
    why: str


@dataclass(frozen=True)
class Tokens:
    """One prompt's answers. first: the first token that differs, from 1; None = none does.

    row, here: the texts from a little before their first difference on; "" when none differs.
    """

    prompt: str
    same: int
    of: int
    first: int | None
    row: str
    here: str


@dataclass(frozen=True)
class Figure:
    """A measured value. ratio: here / row; None where either is unknown or the row's is 0."""

    name: str
    unit: str
    row: float | None
    here: float | None

    @property
    def ratio(self) -> float | None:
        if self.row is None or self.here is None or self.row == 0:
            return None
        return self.here / self.row


def verdict(row: Row, here: Row) -> Verdict:
    """here: the row that the replay's record makes. The same result for the same reason?"""
    was, now = _result(row), _result(here)
    failure = Failure(here["failure"]) if here["failure"] else None
    if here["result"] == Result.ERROR or (
        failure in _OF_THE_MACHINE and here["failure"] != row["failure"]
    ):
        return Verdict(Outcome.UNDECIDED, f"the row is {was}; here: {now}: {here['error']}")
    if (here["result"], here["failure"]) != (row["result"], row["failure"]):
        error = f": {here['error']}" if here["error"] else ""
        return Verdict(Outcome.NOT_REPRODUCED, f"the row is {was}; here it is {now}{error}")
    signatures = {row["signature"], here["signature"]} - {None, UNCLASSIFIED}
    if len(signatures) > 1:
        why = (
            f"{now} as in the row, for another cause: {row['signature']}, here {here['signature']}"
        )
        return Verdict(Outcome.NOT_REPRODUCED, why)
    told = f"{now}, as the row is"
    if here["stage"] != row["stage"]:
        told += f" ({was})"
    return Verdict(Outcome.REPRODUCED, told)


def _result(row: Row) -> str:
    if row["result"] == Result.PASS:
        return str(row["result"])
    return f"{row['result']} ({row['failure']} at {row['stage']})"


def tokens(row: Row, here: Row) -> tuple[Tokens, ...]:
    """Each prompt's answers; () where either has none."""
    return tuple(
        _tokens(*answers)
        for answers in zip(
            here["prompts"] or (),
            row["generated_tokens"] or (),
            here["generated_tokens"] or (),
            row["generated_text"] or (),
            here["generated_text"] or (),
            strict=False,
        )
    )


def _tokens(
    prompt: str, was: Sequence[int], now: Sequence[int], text: str, text_here: str
) -> Tokens:
    length = max(len(was), len(now))
    same = next(
        (place for place in range(length) if was[place : place + 1] != now[place : place + 1]),
        length,
    )
    if same == length:
        return Tokens(prompt, same, length, None, "", "")
    common = next(
        (
            place
            for place, pair in enumerate(zip(text, text_here, strict=False))
            if len(set(pair)) > 1
        ),
        min(len(text), len(text_here)),
    )
    begin = max(0, common - _AROUND)
    mark = "..." if begin else ""
    return Tokens(prompt, same, length, same + 1, mark + text[begin:], mark + text_here[begin:])


def figures(row: Row, here: Row) -> tuple[Figure, ...]:
    """Times and memory that either has, in the order in which they came about."""
    made = [Figure(name, unit, row[column], here[column]) for column, name, unit in _FIGURES]
    return tuple(one for one in made if one.row is not None or one.here is not None)


_FIGURES = (
    ("download_s", "download", "s"),
    ("load_s", "load", "s"),
    ("compile_s", "first call, compilation included", "s"),
    ("generate_s", "second call", "s"),
    ("tokens_per_s", "tokens a second in it", "1/s"),
    ("wall_s", "the whole script", "s"),
    ("hbm_peak_gb", "device memory, tensors", "GiB"),
    ("runtime_peak_gb", "device memory, runtime's count", "GiB"),
    ("host_peak_gb", "host memory", "GiB"),
    ("graphs", "graphs", ""),
)
"""(column, what it is, unit)."""
