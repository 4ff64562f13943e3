"""What run.py tells in run.json, read for all that is usable in it.

A process that crashed, or that a device misled, leaves files of any shape. What run.py never writes
is left out and told as a fault; the rest of the file stays. Nothing here raises.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.record.files import at_most, faults_of
from pipeline.record.seen import Observation

MAX_TOLD_BYTES = 8 * 1024 * 1024
"""A run.json above this size is not read: the largest honest one, 64 prompts with 4 096 tokens each
(the limits of `Run`), is below 6 MiB."""

MAX_TEXT = 32_768
"""Characters kept of a text: 4 096 tokens of prose are about 20 000."""

MAX_GENERATIONS = 3 * 1024 * 1024
"""Bytes of all answers as JSON: with more, the row that they are a part of would be refused
(rows.MAX_ROW_BYTES)."""

MAX_FAULTS = 5
"""Faults that are told one by one."""

_CUT = {"error_type": 200, "error_message": 4_000, "downgrade": 4_000}
"""Characters kept of what is there for people alone: taking secrets out can make a text longer."""

_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Told:
    """observation: None = there is none yet, or nothing of it can be used.

    faults: one line each, what in the file is not as run.py writes it; () = nothing.
    """

    observation: Observation | None
    faults: tuple[str, ...] = ()


def read_told(path: Path, redact: Callable[[str], str]) -> Told:
    """What the run.json at `path` tells; `redact` takes secrets out of its text."""
    try:
        data = at_most(path, MAX_TOLD_BYTES)
    except FileNotFoundError:
        return Told(None)
    except OSError as error:
        return Told(None, (f"it cannot be read: {error.strerror or error}",))
    if data is None:
        return Told(None, (f"it is larger than {MAX_TOLD_BYTES} bytes",))
    faults: list[str] = []
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        text = data.decode(errors="replace")
        faults.append(f"byte {error.start} is no UTF-8")
    try:
        facts = json.loads(redact(text), parse_int=_integer)
    except ValueError as error:
        return Told(None, (*faults, f"it is no JSON: {error}"))
    except RecursionError:
        return Told(None, (*faults, "it is nested too deeply"))
    if not isinstance(facts, dict):
        return Told(None, (*faults, "it is not an object"))
    observation, more = _usable(facts)
    faults += more
    if len(faults) > MAX_FAULTS:
        faults[MAX_FAULTS:] = [f"{len(faults) - MAX_FAULTS} more faults"]
    return Told(observation, tuple(faults))


def _integer(digits: str) -> int | float:
    """The integer; NaN, which no field is, for what no column of integers holds (64 bits)."""
    return int(digits) if len(digits) < 20 and abs(int(digits)) < 2**63 else math.nan


def _usable(facts: dict[str, Any]) -> tuple[Observation | None, list[str]]:
    """The observation without the fields that are not as they should be, and what is wrong."""
    try:
        kept: dict[str, Any] = {"stage": _valid("stage", facts.get("stage"), {})}
    except ValueError as error:  # without it nothing says what the rest is about
        return None, [str(error)]
    faults: list[str] = []
    for name in Observation.model_fields:
        if name not in facts:
            continue
        try:
            value = _cut(facts[name], name, faults)
            kept[name] = _valid(name, value, {"stage": kept["stage"]})
        except ValueError as error:
            faults.append(str(error))
        except RecursionError:
            faults.append(f"{name}: nested too deeply")
    unknown = len(facts.keys() - Observation.model_fields.keys())
    if unknown:
        faults.append(f"fields that are none of its own: {unknown}")
    try:
        return _observation(kept), faults
    except ValidationError as error:
        return None, [*faults, *faults_of(error)]


def _valid(name: str, value: Any, others: dict[str, Any]) -> Any:
    """`value` if an observation can have it as its field `name`; ValueError saying why not."""
    try:
        _observation({**others, name: value})
    except ValidationError as error:
        raise ValueError("; ".join(faults_of(error)[:1])) from error
    return value


def _observation(facts: dict[str, Any]) -> Observation:
    # Strict: a token id that is 1.0, "1" or true is no id. Through JSON, whose arrays and words are
    # tuples and enumerations there, which they are not in Python.
    return Observation.model_validate_json(json.dumps(facts), strict=True)


def _cut(value: Any, name: str, faults: list[str]) -> Any:
    """The value of a field with no text in it that is too long or cannot be encoded."""
    length = _CUT.get(name)
    if length is not None and isinstance(value, str):
        value = value[:length]
    longest, halves = 0, 0

    def mended(part: Any) -> Any:
        nonlocal longest, halves
        if isinstance(part, str):
            longest = max(longest, len(part))
            whole, found = _SURROGATES.subn("\N{REPLACEMENT CHARACTER}", part[:MAX_TEXT])
            halves += found
            return whole
        if isinstance(part, list):
            return [mended(one) for one in part]
        if isinstance(part, dict):
            return {key: mended(one) for key, one in part.items()}
        return part

    whole = mended(value)
    if longest > MAX_TEXT:
        faults.append(f"{name}: a text of {longest} characters, cut to {MAX_TEXT}")
    if halves:
        faults.append(f"{name}: half a character (a lone surrogate)")
    if name == "generations" and (size := len(json.dumps(whole))) > MAX_GENERATIONS:
        raise ValueError(f"{name}: {size} bytes, which no row holds")
    return whole
