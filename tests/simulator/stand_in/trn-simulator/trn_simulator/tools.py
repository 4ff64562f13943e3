"""neuron-ls and neuron-monitor, in the forms of TRAINIUM.md 6.4 and 6.6."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from trn_simulator import machine

_PER_DEVICE = machine.CORES_PER_DEVICE


def neuron_ls() -> int:
    parser = argparse.ArgumentParser(prog="neuron-ls")
    parser.add_argument("-w", "--wide", action="store_true")
    parser.add_argument("-a", "--show-all-procs", action="store_true")
    parser.add_argument("-t", "--topology", action="store_true")
    parser.add_argument("-j", "--json-output", action="store_true")
    asked = parser.parse_args()
    devices = _devices()
    if not devices:
        # Users report this line; the exact text and the exit code are not known (6.4).
        print("no neuron device found", file=sys.stderr)
        return 1
    if asked.json_output:
        print(json.dumps(devices, indent=4))
        return 0
    print("instance-type: simulator\ninstance-id: simulator\nlogical-neuroncore-config: 2")
    for device in devices:
        pids = ", ".join(str(one["pid"]) for one in device["neuron_processes"])
        print(f"{device['neuron_device']:>3} {device['nc_count']} cores  {device['bdf']}  {pids}")
    return 0


def _devices() -> list[dict[str, Any]]:
    taken = machine.holders()
    made = []
    for index in range(machine.cores() // _PER_DEVICE):
        own = list(range(index * _PER_DEVICE, (index + 1) * _PER_DEVICE))
        pids = dict.fromkeys(taken[core] for core in own if core in taken)
        made.append(
            {
                "neuron_device": index,
                "bdf": f"{index:02x}:00.0",
                "cpu_affinity": "0",
                "numa_node": "0",
                "connected_to": [],
                "nc_count": _PER_DEVICE,
                "logical_neuroncore_config": 2,
                "memory_size": machine.core_bytes() * _PER_DEVICE,
                "neuroncore_ids": own,
                "neuron_processes": [
                    {
                        "pid": pid,
                        "command": _command(pid),
                        "neuron_runtime_version": machine.RUNTIME_VERSION,
                    }
                    for pid in pids
                ],
            }
        )
    return made


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def neuron_monitor() -> int:
    parser = argparse.ArgumentParser(prog="neuron-monitor")
    parser.add_argument("-c", "--config-file", type=Path)
    asked = parser.parse_args()
    wanted = json.loads(asked.config_file.read_text()) if asked.config_file else {}
    period = wanted.get("period", "5s")
    tags = [one.get("tag_filter", ".*") for one in wanted.get("neuron_runtimes", [{}])]
    seconds = float(period.removesuffix("s"))
    try:
        while True:
            print(json.dumps(_report(seconds, tags)), flush=True)
            time.sleep(seconds)
    except (BrokenPipeError, KeyboardInterrupt):
        return 0


def _tag(pid: int) -> str:
    """What a process says of itself in NEURON_PROCESS_TAG, else its id."""
    try:
        told = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return str(pid)
    values = (
        entry.partition(b"=")[2] for entry in told if entry.startswith(b"NEURON_PROCESS_TAG=")
    )
    return next(values, b"").decode() or str(pid)


def _report(period: float, tags: list[str]) -> dict[str, Any]:
    by_process: dict[int, list[int]] = {}
    for core, pid in machine.holders().items():
        if any(re.search(tag, _tag(pid)) for tag in tags):
            by_process.setdefault(pid, []).append(core)
    return {
        "neuron_runtime_data": [_process(pid, own, period) for pid, own in by_process.items()],
        "system_data": {},
        "instance_info": {"instance_type": "simulator", "error": ""},
        "neuron_hardware_info": {
            "neuron_device_type": "trainium2",
            "neuron_device_version": "v4",
            "neuroncore_version": "v3d",
            "neuron_device_count": machine.cores() // _PER_DEVICE,
            "neuron_device_memory_size": machine.core_bytes() * _PER_DEVICE,
            "neuroncore_per_device_count": _PER_DEVICE,
            "logical_neuroncore_config": 2,
            "error": "",
        },
    }


def _process(pid: int, cores: list[int], period: float) -> dict[str, Any]:
    usage = {}
    for core in cores:
        tensors, _, graphs = machine.read_memory(core)
        usage[str(core)] = {
            "constants": 0,
            "model_code": graphs,
            "model_shared_scratchpad": 0,
            "runtime_memory": 0,
            "tensors": tensors,
        }
    return {
        "pid": pid,
        "address": "",
        "neuron_runtime_tag": _tag(pid),
        "error": "",
        "report": {
            "memory_used": {
                "period": period,
                "neuron_runtime_used_bytes": {
                    "host": 0,
                    "neuron_device": sum(sum(parts.values()) for parts in usage.values()),
                    "usage_breakdown": {
                        "host": {},
                        "neuroncore_memory_usage": usage,
                    },
                },
                "loaded_models": [],
                "error": "",
            },
            "neuroncore_counters": {
                "period": period,
                "neuroncores_in_use": {
                    str(core): {"neuroncore_utilization": 0.0, "flops": 0} for core in cores
                },
                "error": "",
            },
        },
    }
