"""Whether cores may be used: left-over processes, lost devices, counted hardware faults."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.device.listing import Device, DeviceError, devices, of_cores, users
from pipeline.device.sysfs import HARDWARE, STATUS, SYSFS, core_folders, read
from pipeline.device.tools import NoAnswerError, ask

# Ends of calls that speak of the hardware alone. Timeouts, out-of-bounds accesses and suspected
# hangs of a collective are left out: a model's graph can cause each of them.
# https://awsdocs-neuron.readthedocs-hosted.com/en/v2.33.0/neuron-runtime/nrt-troubleshoot.html
_CORE_FAULTS = (
    "hw_error",
    "hw_hbm_ue_error",
    "hw_nc_ue_error",
    "hw_dma_abort_error",
    "hw_repairable_hbm_ue_error",
)
_DEVICE_FAULTS = ("mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected", "sram_ecc_uncorrected")
_KERNEL_TEXT = re.compile(r"NEURON_HW_ERR=\S+.*?\bnd-id=(\d+)\b.*")


@dataclass(frozen=True)
class Counters:
    """Faults counted so far, to be compared with later ones.

    values: name for people -> count; what cannot be read is not in it. kernel: lines of the kernel
    log that name a hardware error of one of the devices.
    """

    values: dict[str, int] = field(default_factory=dict)
    kernel: frozenset[str] = frozenset()


def counters(core_ids: tuple[int, ...], root: Path = SYSFS) -> Counters:
    """The fault counters of these cores and their devices; empty where nothing can be read."""
    try:
        return _counters(core_ids, of_cores(core_ids, devices()), root)
    except DeviceError:
        return Counters()


def _counters(core_ids: tuple[int, ...], used: tuple[Device, ...], root: Path) -> Counters:
    values = {}
    for device in used:
        home = root / f"neuron{device.index}"
        for name in _DEVICE_FAULTS:
            if (count := read(home / HARDWARE / name)) is not None:
                values[f"{name} of device {device.index}"] = count
        for core in sorted(set(core_ids) & set(device.core_ids)):
            for folder in core_folders(core, device, root):
                for name in _CORE_FAULTS:
                    if (count := read(folder / STATUS / name / "total")) is not None:
                        where = f"{folder.name} of device {device.index}"
                        values[f"{name} of {where} (core {core})"] = count
    return Counters(values, _kernel_faults({device.index for device in used}))


def _kernel_faults(indices: set[int]) -> frozenset[str]:
    """Lines of the kernel log about hardware errors of these devices; none where it is closed."""
    try:
        answer = ask("dmesg")
    except NoAnswerError:
        return frozenset()
    found = (_KERNEL_TEXT.search(line) for line in answer.out.splitlines())
    return frozenset(match[0] for match in found if match and int(match[1]) in indices)


def health(
    core_ids: tuple[int, ...],
    since: Counters | None = None,
    apart_from: Collection[int] = (),
    root: Path = SYSFS,
) -> str | None:
    """One sentence why these cores should not be used now; None = nothing speaks against them.

    since: `counters` of the same cores at an earlier moment; without it no counter is judged,
    since counts of a machine's whole life say nothing of now. apart_from: process groups that may
    be on the same devices, those of the other runs: neuron-ls tells processes by device, so that
    a neighbour would look like a left-over.
    """
    try:
        used = of_cores(core_ids, devices())
    except DeviceError as error:
        return error.reason
    left = users(used, apart_from)
    if left:
        cores = ", ".join(map(str, core_ids))
        names = ", ".join(f"{process.pid} ({process.command[:80]})" for process in left)
        return f"left-over processes are on the devices of cores {cores}: {names}"
    return None if since is None else _grown(since, _counters(core_ids, used, root))


def _grown(since: Counters, now: Counters) -> str | None:
    """One sentence about a hardware fault counted since `since`; None = none was."""
    for name, count in now.values.items():
        before = since.values.get(name)
        if before is not None and count > before:
            return f"the driver counted hardware faults: {name} rose from {before} to {count}"
    for line in sorted(now.kernel - since.kernel):
        return f"the kernel log names a hardware fault: {line}"
    return None
