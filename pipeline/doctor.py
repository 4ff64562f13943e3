"""What this machine is, and what keeps it from running a stack of the model list.

Nothing here touches a device: versions come from package metadata, files and the Neuron tools, and
torch is imported in a process of its own, since an import that fails or hangs is a finding.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import device, processes, script
from pipeline.record import StackVersions
from pipeline.targets import CACHES
from pipeline.words import Target, same_version

PACKAGES = (*script.RECORDED_PACKAGES, "torch-xla")
"""Packages whose versions are told; the last is there to be absent."""

_IMPORT_LIMIT_S = 300
_IMPORT = (
    "import torch\n"
    "neuron = getattr(torch, 'neuron', None)\n"
    "print('cores', 'none' if neuron is None else neuron.device_count())\n"
)


@dataclass(frozen=True)
class Disk:
    """Free bytes of the file system that holds `path`, which stands for `use`."""

    use: str
    path: str
    free_bytes: int


@dataclass(frozen=True)
class Machine:
    """What a machine says of itself; None = not told.

    packages: Python packages of `PACKAGES` and of the run's helpers that are installed.
    system_packages: Debian packages of the Neuron SDK. no_devices: why `devices` is empty.
    caches: variables of this environment that move caches. compiler: the host's C++ compiler.
    """

    system: str
    python: str
    executable: str
    packages: Mapping[str, str]
    driver: str | None
    runtime: str | None
    system_packages: Mapping[str, str]
    instance: str | None
    devices: tuple[device.Device, ...]
    no_devices: str | None
    no_devices_remedy: str | None
    memory_bytes: int | None
    available_bytes: int | None
    swap_bytes: int | None
    disks: tuple[Disk, ...]
    caches: Mapping[str, str]
    compiler: str | None


@dataclass(frozen=True)
class Problem:
    """Something that would stop a run of the stack, and what to do about it."""

    what: str
    remedy: str


def machine() -> Machine:
    """Ask this machine; takes seconds, longer only where a Neuron tool hangs."""
    listed: tuple[device.Device, ...] = ()
    reason = remedy = None
    try:
        listed = device.devices()
    except device.DeviceError as error:
        reason, remedy = error.reason, error.remedy
    memory = _memory()
    system = device.system_packages()
    return Machine(
        system=_system(),
        python=platform.python_version(),
        executable=sys.executable,
        packages=_packages(),
        driver=device.driver_version(),
        runtime=device.runtime_version(),
        system_packages=system,
        instance=device.instance() if listed else None,
        devices=listed,
        no_devices=reason,
        no_devices_remedy=remedy,
        memory_bytes=memory.get("MemTotal"),
        available_bytes=memory.get("MemAvailable"),
        swap_bytes=memory.get("SwapTotal"),
        disks=_disks(),
        caches={name: os.environ[name] for name in _cache_variables() if name in os.environ},
        compiler=os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++"),
    )


def problems(found: Machine, stack: StackVersions) -> tuple[Problem, ...]:
    """What would stop a run of `stack` on this machine, in the order in which to mend it."""
    neuron = stack.target is not Target.CPU
    made = [*_python(found, stack)]
    if neuron:
        made += _old_stack(found, stack)
    made += _versions(found, stack)
    if neuron:
        made += _system_versions(found, stack)
        if not found.devices:
            made.append(Problem(found.no_devices or "no device", found.no_devices_remedy or ""))
        elif not device.free_cores(found.devices):
            pids = sorted({one.pid for held in found.devices for one in held.processes})
            remedy = f"end what is left over there: {', '.join(map(str, pids))}"
            made.append(Problem("every device is in use", remedy))
    elif found.compiler is None:
        remedy = "install one (on Debian, apt-get install g++): Inductor needs it"
        made.append(Problem("no C++ compiler is installed", remedy))
    if not made:
        made += _import(neuron=neuron)
    return tuple(made)


def _python(found: Machine, stack: StackVersions) -> list[Problem]:
    if stack.python is None or same_version(found.python, stack.python):
        return []
    what = f"python {stack.python} is asked for, {found.python} runs ({found.executable})"
    return [Problem(what, f"python{stack.python} -m venv NAME, and install the stack there")]


def _old_stack(found: Machine, stack: StackVersions) -> list[Problem]:
    """PyTorch/XLA and the placeholders of PyPI carry the names of what is wanted."""
    fresh = f"in a fresh virtual environment: {script.install_command(stack)}"
    version = found.packages.get("torch-neuronx", "")
    if "torch-xla" in found.packages or re.match(r"(1|2\.[0-9])(\.|$)", version):
        named = ", ".join(
            f"{name} {found.packages[name]}"
            for name in ("torch-neuronx", "torch-xla")
            if name in found.packages
        )
        what = f"PyTorch/XLA or a placeholder is installed where TorchNeuron is needed ({named})"
        return [Problem(what, fresh)]
    return []


def _versions(found: Machine, stack: StackVersions) -> list[Problem]:
    wanted = {
        "torch": stack.torch,
        stack.library: stack.library_version,
        "torch-neuronx": stack.torch_neuronx,
        "neuronx-cc": stack.neuronx_cc,
        "nki": stack.nki,
    }
    made = [
        f"{name} {version} is asked for, {found.packages.get(name, 'nothing')} is installed"
        for name, version in wanted.items()
        if version and not same_version(found.packages.get(name, ""), version)
    ]
    return [Problem(what, script.install_command(stack)) for what in made] + [
        Problem(f"{name} is not installed", "python -m pip install -e '.[run]' in the checkout")
        for name in ("accelerate", "safetensors", "pillow", "psutil")
        if name not in found.packages
    ]


def _system_versions(found: Machine, stack: StackVersions) -> list[Problem]:
    made = []
    for name, package, told, wanted in (
        ("driver", "aws-neuronx-dkms", found.driver, stack.driver),
        ("runtime", device.RUNTIME_PACKAGE, found.runtime, stack.runtime),
    ):
        if wanted and not same_version(told or "", wanted):
            what = f"Neuron {name} {wanted} is asked for, {told or 'none'} is installed"
            where = " on the host, then sudo modprobe neuron" if name == "driver" else ""
            made.append(Problem(what, f"sudo apt-get install '{package}={wanted}*'{where}"))
    return made


def _import(*, neuron: bool) -> list[Problem]:
    """Whether `import torch` works; with the Neuron package it loads that, too."""
    try:
        told = processes.ask(
            [sys.executable, "-c", _IMPORT],
            b"",
            limit_s=_IMPORT_LIMIT_S,
            environment=None if neuron else processes.module_environment(),
        )
    except processes.Unanswered as error:
        remedy = "TORCH_DEVICE_BACKEND_AUTOLOAD=0 tells whether torch or the Neuron package fails"
        return [Problem(f"import torch {error}", remedy if neuron else "install torch again")]
    cores = re.search(rb"^cores (\w+)", told, re.MULTILINE)
    if neuron and (cores is None or cores[1] in (b"none", b"0")):
        shown = cores[1].decode() if cores else "nothing"
        remedy = (
            "see NEURON_RT_VISIBLE_CORES, the driver, and that the runtime library is installed"
        )
        return [Problem(f"torch shows no NeuronCore ({shown})", remedy)]
    return []


def _system() -> str:
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        name = platform.system()
    return f"{name}, {platform.system()} {platform.release()}, {platform.machine()}"


def _packages() -> dict[str, str]:
    found = {}
    for name in (*PACKAGES, "pillow", "psutil", "trn-qualify"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if name == "torch-xla" and importlib.util.find_spec("torch_xla"):
                found[name] = "of unknown version"
    return found


def _memory(path: Path = Path("/proc/meminfo")) -> dict[str, int]:
    """Fields of /proc/meminfo in bytes; empty where there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    rows = (re.match(r"(\w+): +(\d+) kB", line) for line in lines)
    return {row[1]: int(row[2]) * 1024 for row in rows if row}


def _disks() -> tuple[Disk, ...]:
    """Where runs write: checkpoints, records and graphs, compilers' scratch files."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    places = (("checkpoints", home), ("records and graphs", Path.cwd()), ("scratch", Path("/tmp")))  # noqa: S108 -- where compilers write unless told otherwise
    found = []
    for use, path in places:
        there = next((one for one in (path, *path.parents) if one.exists()), None)
        if there is not None:
            found.append(Disk(use, str(path), shutil.disk_usage(there).free))
    return tuple(found)


def _cache_variables() -> Sequence[str]:
    neuron = CACHES[Target.NEURON]
    return ("HF_HOME", "HF_HUB_CACHE", neuron.directory, *neuron.scratch)
