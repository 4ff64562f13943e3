"""The machine's Neuron devices and who uses them, as `neuron-ls -j` tells.

https://awsdocs-neuron.readthedocs-hosted.com/en/v2.33.0/tools/neuron-sys-tools/neuron-ls.html
What the program says on a machine without device or driver is not documented, so everything that
is not a list with at least one device counts as "no device".
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from pipeline.device.tools import Answer, NoAnswerError, ask
from pipeline.errors import EnvironmentFault

IDLE_S = 60.0
"""Seconds that a device may need to let go of processes that were killed; an assumption."""

_POLL_S = 0.5
_JSON_ENDS = (
    "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/announcements/"
    "neuron2.x/announce-intent-eos-neuron-ls-json.html"
)


class DeviceError(EnvironmentFault):
    """The machine's Neuron devices cannot be asked, or it has none."""


@dataclass(frozen=True)
class Process:
    """A process that uses a device."""

    pid: int
    command: str


@dataclass(frozen=True)
class Device:
    """One Trainium2 chip (/dev/neuron<index>).

    core_ids: its cores by the ids that NEURON_RT_VISIBLE_CORES takes. memory_bytes: HBM of the
    whole device. numa_node: None where there is but one. connected_to: indices of the devices it
    has links to. logical_neuroncore_config: physical cores to a core, 1 or 2; None where neuron-ls
    does not say. instance_type: as users' listings have it, the guide's does not.
    """

    index: int
    core_ids: tuple[int, ...]
    memory_bytes: int | None
    numa_node: int | None
    connected_to: tuple[int, ...]
    logical_neuroncore_config: int | None
    processes: tuple[Process, ...]
    instance_type: str | None = None


def devices() -> tuple[Device, ...]:
    """All devices by index, never empty; DeviceError when there is none or none can be seen."""
    try:
        answer = ask("neuron-ls", "-j")
    except NoAnswerError as error:
        raise DeviceError(
            str(error),
            remedy="install aws-neuronx-tools, check that the driver is loaded (lsmod | grep "
            "neuron), and in a container that it was given /dev/neuron*",
        ) from error
    found = sorted(_parse(answer), key=lambda device: device.index)
    if not found:
        raise DeviceError("neuron-ls -j lists no device", remedy=_NO_DEVICE)
    return tuple(found)


_NO_DEVICE = (
    "check that this is a trn2 instance, that aws-neuronx-dkms is installed and loaded "
    "(cat /sys/module/neuron/version), and in a container that it was given /dev/neuron*"
)


def _parse(answer: Answer) -> list[Device]:
    if answer.code != 0:
        reason = f"{answer.command} ended with exit code {answer.code} and said: {answer.told}"
        raise DeviceError(reason, remedy=_NO_DEVICE)
    try:
        told = json.loads(answer.out)
    except ValueError as error:
        reason = f"{answer.command} printed no JSON but: {answer.told}"
        raise DeviceError(reason, remedy=_NO_DEVICE) from error
    if not isinstance(told, list):
        raise DeviceError(
            f"{answer.command} printed a JSON {type(told).__name__}, not a list of devices",
            remedy=f"Neuron tools from 2.34 on print another format ({_JSON_ENDS}); "
            "use those of the stack, or teach it to pipeline/device/listing.py",
        )
    try:
        return [_device(entry) for entry in told]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DeviceError(
            f"{answer.command} lists a device in an unknown form ({type(error).__name__}: {error})",
            remedy="use the Neuron tools of the stack, or teach it to pipeline/device/listing.py",
        ) from error


def _device(entry: dict[str, Any]) -> Device:
    """One entry. Index, core ids and processes must be there: without them nothing is safe."""
    node = _number(entry.get("numa_node"))  # a string; "-1" where the machine has no such nodes
    return Device(
        index=int(entry["neuron_device"]),
        core_ids=tuple(int(core) for core in entry["neuroncore_ids"]),
        memory_bytes=_number(entry.get("memory_size")),
        numa_node=None if node is None or node < 0 else node,
        connected_to=tuple(int(index) for index in entry.get("connected_to") or ()),
        logical_neuroncore_config=_number(entry.get("logical_neuroncore_config")),
        processes=tuple(
            Process(int(process["pid"]), str(process.get("command", "")))
            for process in entry["neuron_processes"] or ()
        ),
        instance_type=entry.get("instance_type") or None,
    )


def _number(value: object) -> int | None:
    try:
        return int(value) if isinstance(value, int | str) else None
    except ValueError:
        return None


def of_cores(core_ids: Iterable[int], listed: tuple[Device, ...]) -> tuple[Device, ...]:
    """The devices that hold these cores, by index; DeviceError names cores that none holds."""
    wanted = set(core_ids)
    missing = wanted - {core for device in listed for core in device.core_ids}
    if missing:
        names = ", ".join(map(str, sorted(missing)))
        raise DeviceError(f"no device holds the cores {names}", remedy="neuron-ls lists them")
    return tuple(device for device in listed if wanted & set(device.core_ids))


def busy(core_ids: tuple[int, ...], apart_from: Collection[int] = ()) -> tuple[Process, ...]:
    """Processes on the devices of these cores, by pid.

    neuron-ls tells processes by device, not by core: a neighbour on another core of the same
    device is listed too. apart_from: process groups that are known to run there (those of the
    harness's other runs); their processes are left out. Ids are those that this process sees:
    neuron-ls and the runs must share its namespace of process ids.
    """
    return users(of_cores(core_ids, devices()), apart_from)


def users(used: tuple[Device, ...], apart_from: Collection[int] = ()) -> tuple[Process, ...]:
    """Processes on these devices, by pid, without those of the groups `apart_from`."""
    found = {process.pid: process for device in used for process in device.processes}
    return tuple(found[pid] for pid in sorted(found) if _group(pid) not in apart_from)


def _group(pid: int) -> int | None:
    """The process group of a process; None when it has gone or cannot be seen from here."""
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def free_cores(listed: tuple[Device, ...]) -> tuple[int, ...]:
    """Cores of the devices that no process uses, ascending."""
    return tuple(sorted(core for one in listed if not one.processes for core in one.core_ids))


def wait_idle(
    core_ids: tuple[int, ...], timeout_s: float = IDLE_S, apart_from: Collection[int] = ()
) -> tuple[Process, ...]:
    """Wait until no process is on the devices of these cores, the groups `apart_from` left out.

    The processes that are still there after `timeout_s`; empty = idle.
    """
    until = time.monotonic() + timeout_s
    while True:
        left = busy(core_ids, apart_from)
        if not left or time.monotonic() >= until:
            return left
        time.sleep(_POLL_S)
