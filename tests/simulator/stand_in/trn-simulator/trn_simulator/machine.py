"""Logical cores that exclude each other, as the driver of one machine would keep them.

TRN_SIMULATOR_STATE names the directory that is the machine: processes that name the same one share
its cores. TRN_SIMULATOR_CORES is how many there are (4: one chip at LNC=2),
TRN_SIMULATOR_CORE_BYTES what each holds (24 GiB). Sources: TRAINIUM.md 2.5, 2.6.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
from pathlib import Path

CORES_PER_DEVICE = 4
RUNTIME_VERSION = "2.35.30.0+simulator"

_FLOCK = "hhqqi"  # struct flock of fcntl(2) on 64-bit Linux: type, whence, start, length, pid
_held: dict[int, int] = {}  # core -> descriptor whose lock this process holds
_COUNTS = 3 * 8  # bytes now, most bytes so far, bytes of loaded graphs


class Busy(Exception):
    """A core is another process's."""


def state() -> Path:
    named = os.environ.get("TRN_SIMULATOR_STATE")
    path = Path(named or Path(tempfile.gettempdir(), f"trn-simulator-{os.getuid()}"))
    path.mkdir(parents=True, exist_ok=True)
    return path


def cores() -> int:
    return int(os.environ.get("TRN_SIMULATOR_CORES", CORES_PER_DEVICE))


def core_bytes() -> int:
    return int(os.environ.get("TRN_SIMULATOR_CORE_BYTES", 24 * 1024**3))


def visible() -> list[int]:
    """Cores this process would take: those named, else so many free ones, else all."""
    named = os.environ.get("NEURON_RT_VISIBLE_CORES")
    if named:
        found: list[int] = []
        for part in named.split(","):
            first, _, last = part.partition("-")
            found.extend(range(int(first), int(last or first) + 1))
        return found
    many = int(os.environ.get("NEURON_RT_NUM_CORES") or 0)
    if many:
        taken = holders()
        free = [core for core in range(cores()) if core not in taken or core in _held]
        return (free + [core for core in range(cores()) if core not in free])[:many]
    return list(range(cores()))


def take(wanted: list[int]) -> None:
    """Hold these cores until the process ends; Busy, and none held, when one cannot be had."""
    for core in wanted:
        descriptor = os.open(_path(core, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if core >= cores():
                raise OSError
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            release()
            raise Busy(core) from None
        _held[core] = descriptor
        _path(core, "memory").write_bytes(bytes(_COUNTS))


def release() -> None:
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


def held() -> list[int]:
    return sorted(_held)


def holders() -> dict[int, int]:
    """core -> id of the process that holds it. Asks without taking: a take never fails for it."""
    found = {}
    for core in range(cores()):
        if core in _held:
            found[core] = os.getpid()
        elif _path(core, "lock").exists():
            descriptor = os.open(_path(core, "lock"), os.O_RDWR | os.O_CLOEXEC)
            try:
                question = struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0)
                kind, *_, pid = struct.unpack(
                    _FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, question)
                )
            finally:
                os.close(descriptor)
            if kind != fcntl.F_UNLCK:
                found[core] = pid
    return found


def memory_counts(core: int) -> memoryview:
    """The counts of a core that this process holds, shared with the tools."""
    with _path(core, "memory").open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), _COUNTS)).cast("q")


def read_memory(core: int) -> tuple[int, int, int]:
    """Bytes now, most bytes so far, and bytes of loaded graphs, of the process that holds it."""
    now, most, graphs = struct.unpack("3q", _path(core, "memory").read_bytes())
    return now, most, graphs


def _path(core: int, kind: str) -> Path:
    folder = state() / "cores"
    folder.mkdir(exist_ok=True)
    return folder / f"{core}.{kind}"
