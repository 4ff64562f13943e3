"""This machine beside the one of a row, component by component: what differs, and what to do.

`pipeline.doctor` says what would stop a run of a stack; here stands also what would not stop it but
may explain other figures or other tokens.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pipeline import device, script
from pipeline.doctor import Machine
from pipeline.record import StackVersions
from pipeline.rows import GIB
from pipeline.words import Target, same_version

Row = Mapping[str, Any]

FREE_CORES = "free cores"
LOGICAL_CORES = "physical cores to a core (LNC)"
"""Names of components."""


class Match(StrEnum):
    """How a component of this machine stands beside that of a row."""

    SAME = "same"
    ENOUGH = "enough"
    DIFFERS = "differs"
    """The row's script runs all the same; figures, or tokens, may come out otherwise."""
    SHORT = "short"
    """There is less of it than the row used."""
    STOPS = "stops"
    """The row's script refuses it, or cannot run on it."""
    UNKNOWN = "not told"
    """The row or the machine does not say."""


@dataclass(frozen=True)
class Component:
    """One part of a row's stack and of this machine. remedy: what to do, "" = nothing."""

    name: str
    row: str | None
    here: str | None
    match: Match
    remedy: str = ""


def compare(
    found: Machine, row: Row, stack: StackVersions, image: str | None = None
) -> tuple[Component, ...]:
    """How this machine differs from what a row says of its own.

    stack: what the row's script insists on, which may be less than what the row saw. image: the
    container image that this process runs in, None = not known.
    """
    neuron = stack.target is not Target.CPU
    fresh = f"python{stack.python} -m venv NAME, and install the stack there"
    made = [_version("python", row["python"], found.python, stack.python, fresh)]
    made += _packages(found, row, stack, neuron=neuron)
    if neuron:
        made += _system(found, row, stack)
        made += _devices(found, row)
    elif found.compiler is None:
        remedy = "install one (on Debian, apt-get install g++): Inductor needs it"
        made.append(Component("C++ compiler", None, "none", Match.STOPS, remedy))
    if row["image"]:
        made.append(_version("image", row["image"], image, None, "start that container"))
    made += [_extra(text) for text in row["extra_packages"] or ()]
    return (*made, *_room(found, row))


def _packages(found: Machine, row: Row, stack: StackVersions, *, neuron: bool) -> list[Component]:
    """Python packages. What another one brings along (accelerate) stops nothing."""
    parts = [
        ("torch", "torch", stack.torch),
        (stack.library, "library_version", stack.library_version),
        ("accelerate", "accelerate", None),
    ]
    if neuron:
        parts += [
            ("torch-neuronx", "torch_neuronx", stack.torch_neuronx),
            ("neuronx-cc", "neuronx_cc", stack.neuronx_cc),
            ("nki", "nki", stack.nki),
        ]
    return [
        _version(
            name,
            row[column],
            found.packages.get(name) or ("none" if row[column] else None),
            wanted,
            script.install_command(stack) if wanted else f"pip install {name}=={row[column]}",
        )
        for name, column, wanted in parts
    ]


def _system(found: Machine, row: Row, stack: StackVersions) -> list[Component]:
    """What is below Python on a machine with Neuron devices."""
    driver = row["neuron_driver"] or stack.driver
    runtime = row["runtime"] or stack.runtime
    install = "sudo apt-get install '{}={}*'"
    return [
        _version(
            "Neuron driver",
            row["neuron_driver"],
            found.driver,
            stack.driver,
            f"on the host: {install.format('aws-neuronx-dkms', driver)}, then sudo modprobe neuron",
        ),
        _version(
            "Neuron runtime",
            row["runtime"],
            found.runtime,
            stack.runtime,
            install.format(device.RUNTIME_PACKAGE, runtime),
        ),
        _version(
            "instance type",
            row["instance_type"],
            found.instance,
            None,
            "its figures are those of another machine",
        ),
    ]


def _version(
    name: str, row: str | None, here: str | None, wanted: str | None, remedy: str
) -> Component:
    """row: the version seen; wanted: the one that the script insists on, None = it takes any."""
    if wanted and not same_version(here or "", wanted):
        return Component(name, row or wanted, here, Match.STOPS, remedy)
    told = row or wanted
    if told is None or here is None:
        return Component(name, told, here, Match.UNKNOWN)
    if here == told or (row is None and wanted):
        return Component(name, told, here, Match.SAME)
    return Component(name, told, here, Match.DIFFERS, "" if wanted else remedy)


def _devices(found: Machine, row: Row) -> list[Component]:
    """Cores that are free, what makes a core, and its memory."""
    cores = row["neuron_cores"] or 1
    if not found.devices:
        remedy = f"{found.no_devices}: {found.no_devices_remedy or 'use a trn2 machine'}"
        return [Component(FREE_CORES, str(cores), "0", Match.STOPS, remedy)]
    free = len(device.free_cores(found.devices))
    pids = sorted({one.pid for held in found.devices for one in held.processes})
    remedy = f"end what is left over: {', '.join(map(str, pids))}" if pids else "a larger machine"
    enough = free >= cores
    made = [
        Component(
            FREE_CORES,
            str(cores),
            str(free),
            Match.ENOUGH if enough else Match.STOPS,
            "" if enough else remedy,
        ),
        _logical_cores(found),
    ]
    if row["hbm_capacity_gb"] is not None:
        sizes = [one.memory_bytes / len(one.core_ids) for one in found.devices if one.memory_bytes]
        least = min(sizes) / GIB if sizes else None
        made.append(_amount("memory of a core", row["hbm_capacity_gb"], least, ""))
    return made


def _logical_cores(found: Machine) -> Component:
    """Rows do not hold it: every placement counts with two physical cores to a core."""
    configs = sorted({one.logical_neuroncore_config or 0 for one in found.devices})
    shown = ", ".join(str(config) if config else "not told" for config in configs)
    if any(config not in (0, 2) for config in configs):
        remedy = "set NEURON_LOGICAL_NC_CONFIG=2, which is the default on trn2"
        return Component(LOGICAL_CORES, "2", shown, Match.STOPS, remedy)
    return Component(LOGICAL_CORES, "2", shown, Match.UNKNOWN if 0 in configs else Match.SAME)


def _extra(text: str) -> Component:
    here, good = installed(text)
    if good:
        return Component(text, text, here, Match.SAME)
    return Component(text, text, here, Match.STOPS, f"python -m pip install '{text}'")


def installed(requirement: str) -> tuple[str | None, bool]:
    """(version that is here, whether it is what is required); ValueError when it names nothing."""
    from packaging.requirements import Requirement

    asked = Requirement(requirement)
    try:
        version = importlib.metadata.version(asked.name)
    except importlib.metadata.PackageNotFoundError:
        return None, False
    return version, asked.specifier.contains(version, prereleases=True)


def is_requirement(text: str) -> bool:
    """Whether pip takes it for a package of an index: no option, no address, no path."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text).url is None
    except InvalidRequirement:
        return False


def _room(found: Machine, row: Row) -> Sequence[Component]:
    """Host memory and disk, where the row says what it took."""
    made = []
    if row["host_peak_gb"] is not None:
        free = None if found.available_bytes is None else found.available_bytes / GIB
        made.append(_amount("free host memory", row["host_peak_gb"], free, "end other programs"))
    local = str(row["revision"] or "").startswith("sha256:")  # hub: the digest of a directory
    if row["checkpoint_bytes"] and found.disks and not local:
        remedy = f"free space at {found.disks[0].path}, unless the checkpoint is there already"
        size, free = row["checkpoint_bytes"] / GIB, found.disks[0].free_bytes / GIB
        made.append(_amount("free disk for the checkpoint", size, free, remedy))
    return made


def _amount(name: str, used: float, here: float | None, remedy: str) -> Component:
    """GiB that the row used or had, and GiB that there are."""
    if here is None:
        return Component(name, f"{used:.3g} GiB", None, Match.UNKNOWN)
    short = here < used
    match = Match.SHORT if short else Match.ENOUGH
    return Component(name, f"{used:.3g} GiB", f"{here:.3g} GiB", match, remedy if short else "")
