"""Probes that ask the machine's files and tools; none of them takes a core."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from pipeline import device, processes
from pipeline.device import peaks, sysfs, tools
from pipeline.device.versions import DRIVER_VERSION
from pipeline.first_run.probing import Context, NotTried, Seen, tail

_MONITOR_S = 20
_LISTING = 30_000
"""Characters kept of a listing: that of sixteen devices is whole."""


def driver_version(context: Context) -> Seen:
    found = device.driver_version()
    if found is None and not _nodes():
        raise NotTried("no driver is loaded: there is no /dev/neuron*")
    if found is None:
        told = sorted(str(path) for path in Path("/sys/module").glob("neuron*"))
        return Seen(False, f"{DRIVER_VERSION} is not readable; /sys/module has {told}")
    return Seen(True, found)


def runtime_version(context: Context) -> Seen:
    packages = device.system_packages()
    if not packages and not _nodes():
        raise NotTried("nothing of the Neuron SDK is installed, and there is no /dev/neuron*")
    text = "\n".join(f"{name} {version}" for name, version in sorted(packages.items()))
    return Seen(device.RUNTIME_PACKAGE in packages, text or "dpkg-query lists no aws-neuronx-*")


def _nodes() -> list[str]:
    """The driver's device files."""
    return sorted(str(path) for path in Path("/dev").glob("neuron*"))


def neuron_ls(context: Context) -> Seen:
    try:
        answer = tools.ask("neuron-ls", "-j")
    except tools.NoAnswerError as error:
        raise NotTried(str(error)) from error
    printed = f"exit code {answer.code}\n{tail(answer.out, _LISTING)}\n{tail(answer.err)}"
    try:
        found = device.devices()
    except device.DeviceError as error:
        return Seen(False, f"{error}\n{printed}")
    whole = all(one.core_ids and one.logical_neuroncore_config for one in found)
    return Seen(whole, printed)


def instance_type(context: Context) -> Seen:
    listing = tools.ask("neuron-ls", "-j").out
    table = tools.ask("neuron-ls").out
    told = f"{device.instance()}\n{tail(listing, 1500)}\n{tail(table, 2500)}"
    return Seen(device.instance() is not None, told)


def neuron_ls_without_device(context: Context) -> Seen:
    nodes = _nodes()
    program = tools.find("neuron-ls")
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        raise NotTried("it takes root and the program unshare")
    if not nodes or program is None:
        raise NotTried("there is no /dev/neuron* to hide")
    hide = " && ".join(f"mount --bind /dev/null {node}" for node in nodes)
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"{hide} || exit 99; exec {program} -j"],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 99:
        raise NotTried(f"the devices could not be hidden: {done.stderr}")
    try:
        listed = json.loads(done.stdout)
    except ValueError:
        listed = None
    text = f"exit code {done.returncode}\nout: {tail(done.stdout)}\nerr: {tail(done.stderr)}"
    return Seen(done.returncode != 0 or not isinstance(listed, list) or not listed, text)


def driver_counters(context: Context) -> Seen:
    found = []
    for one in device.devices():
        for core in one.core_ids:
            folders = sysfs.core_folders(core, one, sysfs.SYSFS)
            values = [sysfs.read(folder / sysfs.PEAK) for folder in folders]
            found.append((core, [folder.name for folder in folders], values))
    holds = all(folders and None not in values for _, folders, values in found)
    rows = [f"core {core}: {folders} peaks {values}" for core, folders, values in found]
    return Seen(holds, "\n".join((*rows, f"below {sysfs.SYSFS}/neuron0:", *_tree())))


def _tree() -> list[str]:
    """Paths below the first device, those of all cores as one; symbolic links not followed."""
    home = sysfs.SYSFS / "neuron0"
    if not home.is_dir():
        return ["nothing is there"]
    paths = {
        re.sub(r"(core)\d+", r"\1*", str(Path(folder, name).relative_to(home)))
        for folder, _, names in os.walk(home)
        for name in names
    }
    return sorted(paths)


def driver_peak_clears(context: Context) -> Seen:
    listed = device.devices()
    free = set(device.free_cores(listed))
    paths = [
        folder / sysfs.PEAK
        for one in listed
        for core in one.core_ids
        if core in free
        for folder in sysfs.core_folders(core, one, sysfs.SYSFS)
    ]
    before = {path: sysfs.read(path) for path in paths}
    raised = {path: value for path, value in before.items() if value}
    if not raised:
        raise NotTried("no idle core has a peak above 0; run it again after a run")
    if not all(os.access(path, os.W_OK) for path in raised):
        raise NotTried("it takes the right to write there: run it as root")
    cleared = {path: sysfs.clear(path) for path in raised}
    rows = [f"{path}: {before[path]}, then {sysfs.read(path)}" for path in raised]
    return Seen(all(cleared.values()), "\n".join(rows))


def monitor_lines(context: Context) -> Seen:
    program = tools.find("neuron-monitor")
    if program is None:
        raise NotTried(f"neuron-monitor is neither on PATH nor in {tools.TOOLS}")
    path = context.folder / "monitor.json"
    path.write_text(json.dumps(peaks.configuration(None)))
    out, err = context.folder / "monitor.out", context.folder / "monitor.err"
    with out.open("wb") as told, err.open("wb") as said:
        process = processes.start(
            [program, "-c", str(path)], stdin=subprocess.DEVNULL, stdout=told, stderr=said
        )
        try:
            _await_lines(out, process)
        finally:
            processes.end(process)
    lines = out.read_text(errors="replace").splitlines()[:2]
    text = "\n".join((*lines, tail(err.read_text(errors="replace"), 1000)))
    try:
        known = [json.loads(line)["neuron_runtime_data"] for line in lines]
    except (ValueError, TypeError, KeyError):
        return Seen(False, tail(text))
    return Seen(len(known) == 2, tail(text))


def _await_lines(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until two whole lines are there, the process ended, or it took too long."""
    until = time.monotonic() + _MONITOR_S
    while time.monotonic() < until and process.poll() is None:
        if path.read_bytes().count(b"\n") >= 2:
            return
        time.sleep(0.1)
