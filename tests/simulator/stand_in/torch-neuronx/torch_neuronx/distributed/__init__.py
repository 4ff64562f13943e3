"""Process group backend "neuron" over gloo: TRAINIUM.md 5.1."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from trn_simulator import faults

from torch_neuronx import _C, _runtime

_INVALID = 2  # NRT_INVALID, TRAINIUM.md 6.1
_is_default = True


def _create(store: Store, rank: int, size: int, timeout: timedelta) -> object:
    global _is_default
    is_default, _is_default = _is_default, False
    if is_default:
        _set_up(store, rank, size)
    gloo_kind: Any = dist.ProcessGroupGloo  # its options have no types
    options = gloo_kind._Options()
    options._timeout = timeout
    # All ranks are on this machine; its name may not resolve.
    options._devices = [gloo_kind.create_device(hostname="127.0.0.1")]
    gloo = gloo_kind(PrefixStore("gloo", store), rank, size, options)
    wrong = faults.told("wrong_tokens")
    hang = faults.told("collective_hang")
    return _C.NeuronBackend(
        gloo,
        whole=is_default,
        wrong=wrong.get("part", "local") if wrong else "",
        hang=hang.get("collective", 1) if hang else 0,
    )


def _set_up(store: Store, rank: int, size: int) -> None:
    if _C.started():
        raise AssertionError(
            "Neuron runtime should not be initialized before the init_process_group."
        )
    local_rank, local_size = _local_place(store, rank, size)
    _runtime.join(local_rank, local_size)
    if size & (size - 1):  # 5.3: only powers of two form
        raise RuntimeError(f"Failed to execute the device barrier {_INVALID}")


def _local_place(store: Store, rank: int, size: int) -> tuple[int, int]:
    """Rank and number of ranks on this machine: from the environment, else through the store."""
    if "LOCAL_RANK" in os.environ and "LOCAL_WORLD_SIZE" in os.environ:
        return int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    here = socket.gethostname()
    store.set(f"worker_{rank}", here)
    hosts = [store.get(f"worker_{other}").decode() for other in range(size)]
    own = [other for other in range(size) if hosts[other] == here]
    return own.index(rank), len(own)


if dist.is_available():
    dist.Backend.register_backend("neuron", _create, devices=["neuron"])
