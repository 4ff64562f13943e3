"""The stack of a row by its names: a key for machines, a label for people, the order of newness.

All of it comes from the run id, which holds what tells stacks apart: library, compiler, torch. Pure
and light: a reading command that only needs names must not wait for a table library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from pipeline.words import RunId, Target, same_version

Row = Mapping[str, Any]

_COMPILERS = {"neuronx-cc": "neuronxcc", "neuronx_cc": "neuronxcc"}
"""Other spellings of a compiler's name in a run id: its package and its column have these."""


def key(row: Row) -> str:
    """What is left of a row's run id without the model.

    "transformers-5.24.0@neuronxcc-2.28.7631.0@torch-2.14.0", the same for every model of a stack.
    """
    return str(row["run_id"]).partition("@")[2]


def label(row: Row) -> str:
    """A row's stack for people: "neuronx-cc 2.28.7631.0, transformers 5.24.0, torch 2.14.0".

    Off the device the target comes first: "cpu, transformers 5.24.0, torch 2.13.0".
    """
    return label_of(key(row))


def label_of(stack: str) -> str:
    """The label of a key; ValueError when it is not one."""
    run = _parsed(stack)
    off = [] if _compiler(run) else [str(Target.CPU)]
    return ", ".join([*off, *words(str(run))])


def words(run_id: str) -> list[str]:
    """The names and versions that a run id holds: compiler, library, torch."""
    run = RunId.parse(run_id)
    return [*_compiler(run), f"{run.library} {run.library_version}", f"torch {run.torch}"]


def on_device(stack: str) -> bool:
    """Whether a key is of a stack of the device: only such a row says anything of Trainium."""
    return bool(_compiler(_parsed(stack)))


def newest_first(rows: Iterable[Row]) -> list[str]:
    """The keys of the rows' stacks, each once: those of the device first, then by `newness`."""
    return sort_keys({key(row) for row in rows})


def sort_keys(stacks: Iterable[str]) -> list[str]:
    """Keys in the order of `newest_first`."""
    newest = sorted(set(stacks), key=lambda stack: newness(_PREFIX + stack), reverse=True)
    return sorted(newest, key=lambda stack: not on_device(stack))


def is_key(text: str) -> bool:
    """Whether `text` is a key, and so names one stack."""
    try:
        _parsed(text)
    except ValueError:
        return False
    return True


def partition(stack: str) -> str:
    """The Parquet file below results/current that holds a key's rows."""
    return _parsed(stack).partition


def matches(stack: str, pattern: str) -> bool:
    """Whether a key is one that `pattern` names, letter case aside.

    pattern: the whole key or some of its parts, joined by "@" or commas, each of them a glob, a
    name with the beginning of a version ("torch-2.14" is also torch 2.14.0, not 2.140), or a
    target, "neuron" or "cpu". A space may stand for the dash, and "neuronx-cc" for "neuronxcc".
    """
    have = [*stack.casefold().split("@"), str(Target.NEURON if on_device(stack) else Target.CPU)]
    wanted = _parts(pattern)
    return bool(wanted) and all(any(_fits(part, one) for part in have) for one in wanted)


def shared(stack: str, pattern: str) -> set[str]:
    """Which of "compiler", "library" and "torch" of a key are as `pattern` names them."""
    library, compiler, torch = stack.casefold().split("@")
    held = {"compiler": compiler, "library": library, "torch": torch}
    wanted = [one for one in _parts(pattern) if one not in (Target.NEURON, Target.CPU)]
    return {name for name, part in held.items() if any(_fits(part, one) for one in wanted)}


def asks_for_device(pattern: str) -> bool:
    """Whether a pattern asks for stacks of the device: it does unless it names another target."""
    return not any(one == Target.CPU or one.startswith("inductor") for one in _parts(pattern))


def _parts(pattern: str) -> list[str]:
    """The parts of a pattern, spelt as in a key."""
    parts = [part.strip() for part in re.split("[@,]", pattern.casefold())]
    return [_spelt(part) for part in parts if part]


def _spelt(part: str) -> str:
    part = re.sub(r"\s+", "-", part)
    for other, name in _COMPILERS.items():
        if part.startswith(other):
            return name + part.removeprefix(other)
    return part


def _fits(part: str, wanted: str) -> bool:
    if fnmatchcase(part, wanted):
        return True
    name, _, version = part.partition("-")
    wanted_name, _, wanted_version = wanted.partition("-")
    return name == wanted_name and (not wanted_version or same_version(version, wanted_version))


def newness(run_id: str) -> tuple[Any, ...]:
    """Sorts run ids of one target by their stack: compiler, then library, then torch."""
    run = RunId.parse(run_id)
    versions = (run.compiler_version, run.library_version, run.torch)
    return (*(_version_key(version) for version in versions), run.library)


_PARTS = re.compile(r"\d+|[A-Za-z]+").findall
_PREFIX = "x@"
"""With any model in front, a key is a run id."""


def _version_key(version: str) -> tuple[Any, ...]:
    """Numbers as numbers; a word after a number is a pre-release; a local part (+cpu) is newer."""
    public, _, local = version.partition("+")
    parts = [(2, int(part), "") if part.isdigit() else (0, 0, part) for part in _PARTS(public)]
    return (*parts, (1, 0, "")), local


def _parsed(stack: str) -> RunId:
    return RunId.parse(_PREFIX + stack)


def _compiler(run: RunId) -> Sequence[str]:
    """The compiler in words; nothing for Inductor, which is a part of torch, without a version."""
    return [] if run.compiler == "inductor" else [f"neuronx-cc {run.compiler_version}"]
