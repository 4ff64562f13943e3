"""Misbehaviour on request.

TRN_SIMULATOR_FAULTS holds a JSON list of objects. Each has "fault", a name that the place where it
happens knows, and may have
    "where"   only if this stands in the working directory that the process started in,
    "rank"    only in the rank of this number (0 where there are no ranks),
    "core"    only in a process that has this logical core,
    "times"   only so often on this machine,
and further fields that belong to the fault.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from trn_simulator import machine

# The compiler runs in a directory of its own; whoever starts it says where it came from.
_STARTED_IN = os.environ.get("TRN_SIMULATOR_STARTED_IN") or str(Path.cwd())


def started_in() -> str:
    return _STARTED_IN


def told(fault: str, **fields: str) -> dict[str, Any] | None:
    """What was asked of `fault` here, counted as once; None when nothing was.

    An entry without one of `fields` is taken for any value of it.
    """
    for entry in json.loads(os.environ.get("TRN_SIMULATOR_FAULTS") or "[]"):
        if entry["fault"] != fault or entry.get("where", "") not in _STARTED_IN:
            continue
        if any(entry.get(name, value) != value for name, value in fields.items()):
            continue
        if entry.get("rank", rank()) != rank():
            continue
        if "core" in entry and entry["core"] not in (machine.held() or machine.visible()):
            continue
        if "times" in entry and not _once_more(entry):
            continue
        return dict(entry)
    return None


def rank() -> int:
    return int(os.environ.get("RANK", 0))


def _once_more(entry: dict[str, Any]) -> bool:
    folder = machine.state() / "faults"
    folder.mkdir(exist_ok=True)
    name = hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:16]
    with (folder / name).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        count = len(file.read())
        if count >= entry["times"]:
            return False
        file.write(".")
    return True
