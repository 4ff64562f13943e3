"""What the Neuron runtime does in a process: take cores, know which device it is, fail as told."""

from __future__ import annotations

import os
import sys

from trn_simulator import faults, machine

from torch_neuronx import _C
from torch_neuronx.neuron_dynamo_backend import cache

_FAILURE = 1  # NRT_FAILURE, TRAINIUM.md 6.1
_forked = False


def prepare() -> None:
    """At import: the cores this process sees, and what calls back from C++. Takes no core."""
    _C.on_start(start)
    _C.on_allocation_failed(_say_allocation_failed)
    _C.on_new_operator(cache.compile_operator)
    look()
    if told := faults.told("eager_cpu_fallback"):
        _C.set_unsupported(set(told.get("operators", ["*"])))
    os.register_at_fork(after_in_child=_after_fork)


def look() -> None:
    """Read the visible cores again, unless they are taken (nrt_get_visible_vnc_count, 2.4)."""
    if not _C.started():
        many = len(machine.visible())
        _C.set_devices(0, many, many)


def is_forked() -> bool:
    return _forked


def start() -> None:
    """nrt_init: take the visible cores (by default all, 2.6), once; RuntimeError if they are not
    to be had (6.2, "device busy")."""
    if _C.started():
        return
    if _forked:
        raise RuntimeError(
            "Cannot re-initialize Neuron runtime in forked subprocess. To use Neuron with "
            "multiprocessing, use the 'spawn' start method"
        )
    wanted = machine.visible()
    if not wanted:
        raise RuntimeError("No Neuron devices available")
    try:
        if faults.told("busy_cores"):
            raise machine.Busy
        machine.take(wanted)
    except machine.Busy:
        taken = machine.holders()
        free = sum(core < machine.cores() and core not in taken for core in wanted)
        print(
            "ERROR   NRT:nrt_allocate_neuron_cores               NeuronCore(s) not available - "
            f"Requested:nc{wanted[0]}-nc{wanted[-1]} Available:{min(free, len(wanted) - 1)}",
            file=sys.stderr,
            flush=True,
        )
        raise RuntimeError(f"Failed to initialize Neuron Runtime: status code {_FAILURE}") from None
    look()
    _C.set_limit(machine.core_bytes())
    if faults.told("out_of_memory", at="load"):
        _C.fail_next_allocation()
    _C.set_started(True)
    share_counts(0)


def share_counts(first: int) -> None:
    """Let neuron-monitor see how much memory the devices from index `first` on have in use."""
    for offset, core in enumerate(machine.held()):
        _C.share_memory_counts(first + offset, machine.memory_counts(core))


def loaded(bytes_: int) -> None:
    """A compiled graph of this size lies in this process's cores."""
    for core in machine.held():
        machine.memory_counts(core)[2] += bytes_


def join(local_rank: int, local_world_size: int) -> None:
    """Become the device `local_rank` of so many: its core is the only one this process has."""
    os.environ.setdefault("NEURON_RT_VISIBLE_CORES", str(local_rank))
    start()
    if len(machine.held()) != 1:
        # An AssertionError on the device too (5.1).
        raise AssertionError(
            "Attempted to have more than one device per process in distributed setup"
        )
    _C.set_devices(local_rank, 1, local_world_size)
    _C.adopt_device(local_rank)
    share_counts(local_rank)


def _say_allocation_failed(index: int, bytes_: int) -> None:
    """The runtime's own line before PyTorch's exception: TRAINIUM.md 6.2, "HBM at run time"."""
    core = machine.held()[0]
    print(
        f"ERROR  Failed to allocate {bytes_ / 1e9:.3f}GB (usage: tensors) on "
        f"ND {core // machine.CORES_PER_DEVICE}:NC {core % machine.CORES_PER_DEVICE}",
        file=sys.stderr,
        flush=True,
    )


def _after_fork() -> None:
    global _forked
    if _C.started():
        _C.set_started(False)
        _forked = True
