"""A stand-in for TorchNeuron: device "neuron" on host memory, for tests alone.

Names and behaviour are those of TRAINIUM.md sections 2 to 6; nothing measured here says anything
about a device.
"""

from __future__ import annotations

import os
from typing import Any


def _autoload() -> None:
    """Entry point of torch.backends: importing this module is all it takes."""


# What an import leaves in the environment: TRAINIUM.md 2.1.
for _name, _value in {
    "NEURON_LAUNCH_BLOCKING": "0",
    "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS": "1",
    "TORCH_NEURONX_MLIR_ATEN_OPS": "1",
    "TORCH_NEURONX_RETAIN_DEVICE_MODE": "0",
    "NEURON_RT_ALLOW_LEGACY_NEFF": "1",
    "NEURON_RT_DBG_ZEROCOPY": "1",
    "TORCH_NEURONX_ENABLE_ASYNC_NRT": "1",
    "TORCH_NEURONX_ENABLE_STACK_TRACE": "0",
    "JAX_LOGGING_LEVEL": "WARNING",
}.items():
    os.environ.setdefault(_name, _value)

import torch  # noqa: E402 -- the environment stands before torch and what reads it

from torch_neuronx import _C, _runtime  # noqa: E402

__version__ = "0.1.0"  # a constant, as on the device (TRAINIUM.md 1.8): read the metadata instead

_utils: Any = torch.utils  # its functions have no types
_utils.rename_privateuse1_backend("neuron")
_runtime.prepare()

from torch_neuronx import metrics, neuron  # noqa: E402

_torch: Any = torch
_torch._register_device_module("neuron", neuron)
_utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_storage=True)

from torch_neuronx import distributed  # noqa: E402
from torch_neuronx.memory import (  # noqa: E402
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from torch_neuronx.neuron import synchronize  # noqa: E402

__all__ = [
    "clear_op_tracking",
    "distributed",
    "empty_cache",
    "get_executed_ops",
    "get_fallback_ops",
    "is_neuron_runtime_initialized",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "metrics",
    "neuron",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "synchronize",
]


def is_neuron_runtime_initialized() -> bool:
    return bool(_C.started())


def clear_op_tracking() -> None:
    """Forget which operators ran, on the device and on the CPU."""
    _C.clear_ops()


def get_fallback_ops() -> list[str]:
    """Names of eager operators that ran on the CPU since the last clear, each once."""
    return list(_C.fallback_ops())


def get_executed_ops() -> list[str]:
    """Names of eager operators that ran on the device since the last clear, each once."""
    return list(_C.executed_ops())
