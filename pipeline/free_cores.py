"""The machine's cores as jobs, replays and measurements take them: by the pool's rules, from
devices whose cores are those that placement counts with."""

from __future__ import annotations

from pipeline import device
from pipeline.pool import Pool, device_of
from pipeline.record import Run
from pipeline.words import Target, cores


def usable(devices: tuple[device.Device, ...]) -> tuple[device.Device, ...]:
    """The devices, when each has the logical cores that placement counts with; else DeviceError."""
    for one in devices:
        if (
            one.logical_neuroncore_config == 1
            or len({device_of(core) for core in one.core_ids}) > 1
        ):
            raise device.DeviceError(
                f"device {one.index} shows {len(one.core_ids)} cores; placement counts with four a "
                "device, two physical cores each",
                remedy="set NEURON_LOGICAL_NC_CONFIG=2, which is the default on trn2",
            )
    return devices


def links(devices: tuple[device.Device, ...]) -> dict[int, list[int]]:
    """Neighbours of each device by the pool's numbers, which a container may not share."""
    numbers = {one.index: device_of(one.core_ids[0]) for one in devices if one.core_ids}
    return {
        numbers[one.index]: [numbers[to] for to in one.connected_to if to in numbers]
        for one in devices
        if one.index in numbers
    }


def take(run: Run) -> tuple[int, ...]:
    """Cores for a run that has the machine to itself but for what others hold, in rank order.

    () off the device. DeviceError where none of the size are free.
    """
    if run.stack.target is Target.CPU or run.placement is None:
        return ()
    devices = usable(device.devices())
    pool = Pool(device.free_cores(devices), links(devices) or None)
    taken = pool.take(run.placement.cores)
    if taken is None:
        raise device.DeviceError(
            f"no aligned set of {cores(run.placement.cores)} is free on this machine",
            remedy="neuron-ls and qualify doctor show who holds the devices",
        )
    return taken
