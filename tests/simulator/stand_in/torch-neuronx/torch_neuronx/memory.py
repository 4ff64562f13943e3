"""Memory statistics: TRAINIUM.md 2.3. They count tensors alone, as on the device."""

from __future__ import annotations

from typing import Any

import torch

from torch_neuronx import _C

Device = int | str | torch.device | None


def index_of(device: Device = None) -> int:
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        device = device.index
    return int(_C.current_device()) if device is None else int(device)


def memory_stats(device: Device = None) -> dict[str, Any]:
    counts = _C.statistics(index_of(device))
    # Nothing is kept back here: reserved, active and allocated are the same.
    bytes_ = {name: counts[name] for name in ("current", "peak", "allocated", "freed")}
    return {
        "allocated_bytes": dict(bytes_),
        "reserved_bytes": dict(bytes_),
        "active_bytes": dict(bytes_),
        "num_alloc_retries": 0,
        "num_ooms": counts["failures"],
        "num_tensor_frees": counts["frees"],
        "allocation_requests": counts["requests"],
    }


def memory_allocated(device: Device = None) -> int:
    return int(_C.statistics(index_of(device))["current"])


def max_memory_allocated(device: Device = None) -> int:
    return int(_C.statistics(index_of(device))["peak"])


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    return "\n".join(f"{name}: {value}" for name, value in memory_stats(device).items())


def reset_peak_memory_stats(device: Device = None) -> None:
    _C.reset_peak(index_of(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    _C.reset_accumulated(index_of(device))


def empty_cache() -> None:
    """Nothing is kept back here."""
