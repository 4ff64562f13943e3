"""Counters of the Neuron driver below /sys: where they stand, read and cleared.

The tree is that of the drivers before 2.31, counters of a core in a folder of that core:
https://awsdocs-neuron.readthedocs-hosted.com/en/v2.31.0/tools/neuron-sys-tools/neuron-sysfs-user-guide.html
Driver 2.31 moved several of them, its guide says
(https://awsdocs-neuron.readthedocs-hosted.com/en/v2.33.0/tools/neuron-sys-tools/neuron-sysfs-user-guide.html);
which ones and where to is to be seen on a machine. Until then a counter that does not stand at its
path is unknown, never guessed: `qualify doctor --first-run` prints the tree.
"""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.device.listing import Device

SYSFS = Path("/sys/devices/virtual/neuron_device")

PEAK = "stats/memory_usage/device_mem/peak"
"""Below a core's folder: most device memory it has held, bytes. Kept until someone writes to it."""

STATUS = "stats/status"
"""Below a core's folder: one folder for each way in which a call of the runtime ended."""

HARDWARE = "stats/hardware"
"""Below a device's folder: memory errors that were found and not corrected."""


def core_folders(core: int, device: Device, root: Path = SYSFS) -> tuple[Path, ...]:
    """The folders of the physical cores that make up core `core` of `device`; () = not known.

    The driver numbers physical cores within a device. Core i of a machine at
    logical_neuroncore_config 2 is made of the physical cores 2i and 2i+1, as neuron-monitor's
    guide shows ("nc_v3.2" and "nc_v3.3" make up core 1). A tree with as many folders as the device
    has cores is taken to number those; any other count is not understood.
    """
    home = root / f"neuron{device.index}"
    numbers = sorted(
        int(match[1])
        for path in home.glob("neuron_core*")
        if (match := re.fullmatch(r"neuron_core(\d+)", path.name))
    )
    place = sorted(device.core_ids).index(core)
    cores, config = len(device.core_ids), device.logical_neuroncore_config
    if config and numbers == list(range(cores * config)):
        chosen = range(place * config, (place + 1) * config)
    elif numbers == list(range(cores)):
        chosen = range(place, place + 1)
    else:
        return ()
    return tuple(home / f"neuron_core{number}" for number in chosen)


def read(path: Path) -> int | None:
    """A counter's value; None where it is not there, not readable or no number."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def clear(path: Path) -> bool:
    """Set a counter to 0, as any write does; False without the right, or where it did not help."""
    try:
        path.write_text("0\n")
    except OSError:
        return False
    return read(path) == 0
