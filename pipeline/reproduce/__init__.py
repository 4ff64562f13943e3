"""Replays a published row on this machine and says whether the same came out.

    chosen = choose(results, "Qwen/Qwen3-0.6B")
    asked = read(chosen.row)                        what its script is, and that it is the row's
    ready = look(asked)                             this machine beside the row's
    report = reproduce(source, asked, ready, ...)   the script, watched, then the comparison

Nothing is written but into the folder given, and never anything below results/.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import device, doctor, hub, processes, script
from pipeline.errors import NotReproduced, NotTried
from pipeline.log import Say
from pipeline.record import Run
from pipeline.reproduce.asked import Asked, Chosen, Row, choose, stack_of
from pipeline.reproduce.asked import asked as read
from pipeline.reproduce.components import (
    FREE_CORES,
    LOGICAL_CORES,
    Component,
    Match,
    compare,
    is_requirement,
)
from pipeline.reproduce.replay import Replay, Settings, limit_s, replay
from pipeline.reproduce.report import (
    Report,
    as_data,
    as_text,
    component_cells,
    headline,
    make,
    write,
)
from pipeline.reproduce.verdicts import Outcome, Verdict

__all__ = [
    "Asked",
    "Chosen",
    "Component",
    "Match",
    "NotReproduced",
    "NotTried",
    "Outcome",
    "Ready",
    "Replay",
    "Report",
    "Row",
    "Settings",
    "Verdict",
    "as_data",
    "as_text",
    "check_source",
    "choose",
    "compare",
    "component_cells",
    "conclude",
    "headline",
    "install",
    "limit_s",
    "look",
    "read",
    "replay",
    "reproduce",
    "stack_of",
]

_INSTALL_LIMIT_S = 3600.0


@dataclass(frozen=True)
class Ready:
    """This machine beside that of a row.

    components: part by part. stops: what keeps the row's script from running here, in the order in
    which to mend it. missing: pip requirements that would have to be added, of the kind that may
    be: on the device torch, the compiler and nki come with the image. command: the pip line that
    adds them, "" when there are none.
    """

    machine: doctor.Machine
    components: tuple[Component, ...]
    stops: tuple[doctor.Problem, ...]
    missing: tuple[str, ...]
    command: str


def look(row: Row) -> Ready:
    """Hold this machine against a row, script or none; NotTried when the row names no stack."""
    stack = stack_of(row)
    extras = _extras(row)
    found = doctor.machine()
    components = compare(found, row, stack, os.environ.get("QUALIFY_IMAGE") or None)
    beside = script.requirements(stack, extras, beside_image=True)
    missing = tuple(_missing(beside, components))
    stops = (*doctor.problems(found, stack), *_stops(found, components, extras))
    command = " ".join(script.pip_words(stack, missing)) if missing else ""
    return Ready(found, components, stops, missing, command)


def _extras(row: Row) -> tuple[str, ...]:
    """What the row needs beside its stack; NotTried for what pip could take for anything else."""
    for text in (extras := tuple(row["extra_packages"] or ())):
        if not is_requirement(text):
            raise NotTried(f"the row asks for {text!r} beside its stack, which is no package")
    return extras


def _missing(requirements: Iterable[str], components: Sequence[Component]) -> Iterable[str]:
    """Those that are not here. What the stack names has its rule in `same_version`, not in pip."""
    stopped = {one.name for one in components if one.match is Match.STOPS}
    for text in requirements:
        if text in stopped or text.partition("==")[0] in stopped:
            yield text


def _stops(
    found: doctor.Machine, components: Sequence[Component], extras: Sequence[str]
) -> Iterable[doctor.Problem]:
    """What the doctor does not know of, since it asks for a stack and not for a run."""
    own = {LOGICAL_CORES, *extras}
    if device.free_cores(found.devices):  # it tells when there are none at all
        own.add(FREE_CORES)
    for one in components:
        if one.match is Match.STOPS and one.name in own:
            what = f"{one.name}: {one.row} asked for, {one.here or 'none'} here"
            yield doctor.Problem(what, one.remedy)


def install(row: Row, ready: Ready) -> None:
    """Add `ready.missing` to the Python that runs this; NotTried when pip does not."""
    _extras(row)
    if not ready.missing:
        return
    _, *words = shlex.split(ready.command)
    try:
        processes.ask([sys.executable, *words], b"", limit_s=_INSTALL_LIMIT_S)
    except processes.Unanswered as error:
        raise NotTried(f"pip {error}", remedy=f"install them yourself: {ready.command}") from error
    importlib.invalidate_caches()


def check_source(run: Run) -> None:
    """NotTried unless a local checkpoint is there and is the one that the row is of."""
    if run.source is None:
        return
    folder = Path(run.source)
    if not folder.is_dir():
        raise NotTried(
            f"the checkpoint of the row, the directory {run.source}, is not on this machine",
            remedy="make it there, with the very files that the row was made with",
        )
    try:
        found = hub.directory_revision(folder)
    except OSError as error:
        raise NotTried(f"the checkpoint {run.source} cannot be read: {error.strerror}") from error
    if run.revision not in (None, found):
        raise NotTried(
            f"the checkpoint {run.source} is another one by now: {found}, the row's is "
            f"{run.revision}",
            remedy="bring back the files that the row was made with",
        )


def reproduce(
    source: str, asked: Asked, ready: Ready, folder: Path, settings: Settings, say: Say
) -> Report:
    """Run the row's script in `folder`, which is made, and leave both reports there.

    source: where the row came from, as it was named. NotTried, with nothing run, when something
    would stop it.
    """
    if ready.stops:
        first, *others = ready.stops
        more = f" (and {len(others)} more)" if others else ""
        raise NotTried(f"this machine cannot run it: {first.what}{more}", remedy=first.remedy)
    check_source(asked.run)
    try:
        replayed = replay(asked, folder, settings, say)
    except device.DeviceError as error:
        raise NotTried(error.reason, where=error.where, remedy=error.remedy) from error
    report = make(source, asked, replayed, ready.components, settings.limit_s)
    write(report, folder)
    return report


def conclude(report: Report) -> None:
    """Raise what the report's outcome ends a command with; nothing when the row is reproduced."""
    told = headline(report)
    match report.verdict.outcome:
        case Outcome.REPRODUCED:
            return
        case Outcome.NOT_REPRODUCED:
            raise NotReproduced(told)
        case Outcome.UNDECIDED:
            raise NotTried(told)
