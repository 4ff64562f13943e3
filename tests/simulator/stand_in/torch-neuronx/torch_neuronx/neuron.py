"""The module torch.neuron: the list of TRAINIUM.md 2.2, and no mem_get_info."""

from __future__ import annotations

from types import SimpleNamespace, TracebackType
from typing import Any

import torch
from trn_simulator import machine

from torch_neuronx import _C, _runtime
from torch_neuronx.memory import (  # noqa: F401 -- torch.neuron.memory_allocated and the others
    empty_cache,
    index_of,
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)

Stream = torch.Stream
Event = torch.Event


def is_available() -> bool:
    try:
        return device_count() > 0
    except Exception:
        return False


def is_initialized() -> bool:
    return bool(_C.started())


def init() -> None:
    _runtime.start()


def device_count() -> int:
    """Cores this process sees; the local world size once there is a process group (2.4)."""
    _runtime.look()
    return int(_C.device_count())


def current_device() -> int:
    return int(_C.current_device())


def set_device(device: int | torch.device) -> None:
    """Two checks, as on the device: the number of devices, then the range of this process."""
    index = index_of(device)
    if not 0 <= index < device_count():
        raise ValueError(f"Invalid device id: {index}. Valid range is 0 to {device_count() - 1}")
    _C.set_device(index)


class device:
    """Another device for the length of a block."""

    def __init__(self, device: int | str | torch.device) -> None:
        self.index = index_of(device)
        self.before = self.index

    def __enter__(self) -> None:
        self.before = current_device()
        if self.before != self.index:
            set_device(self.index)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self.before != self.index:
            set_device(self.before)


def get_device_name(device: int | torch.device = 0) -> str:
    return str(device) if isinstance(device, torch.device) else f"neuron:{device}"


def get_device_properties(device: int | str | torch.device | None = None) -> SimpleNamespace:
    """Takes the cores, as on the device."""
    _runtime.start()
    return SimpleNamespace(name="trn2", total_memory=machine.core_bytes())


def synchronize(device: int | str | torch.device | None = None) -> None:
    """Everything here has ended when its call returns."""


def _is_in_bad_fork() -> bool:
    return _runtime.is_forked()


def manual_seed(seed: int) -> None:
    _C.default_generator(current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        _C.default_generator(index).manual_seed(int(seed))


def seed() -> None:
    _C.default_generator(current_device()).seed()


seed_all = seed


def initial_seed() -> int:
    return int(_C.default_generator(current_device()).initial_seed())


def get_rng_state(device: int | str | torch.device | None = None) -> torch.Tensor:
    state: torch.Tensor = _C.default_generator(index_of(device)).get_state()
    return state


def set_rng_state(state: torch.Tensor, device: int | str | torch.device | None = None) -> None:
    _C.default_generator(index_of(device)).set_state(state)


def stream(stream: Any) -> Any:
    return stream  # torch.Stream is its own context manager


def current_stream(device: Any = None) -> torch.Stream:
    return torch.accelerator.current_stream(device)


def default_stream(device: Any = None) -> torch.Stream:
    return torch.accelerator.current_stream(device)


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)


def wait_stream(stream: torch.Stream) -> None:
    current_stream().wait_stream(stream)


def wait_event(event: torch.Event) -> None:
    current_stream().wait_event(event)


def record_event(event: torch.Event | None = None) -> torch.Event:
    return current_stream().record_event(event)


def query() -> bool:
    return bool(current_stream().query())


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float32, torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    return True


def get_dynamo_metrics() -> list[Any]:
    """One object a compiled graph, those from the cache too (4.4)."""
    from torch_neuronx.neuron_dynamo_backend.metrics import get_dynamo_metrics

    return get_dynamo_metrics()


def reset_dynamo_metrics() -> None:
    from torch_neuronx.neuron_dynamo_backend.metrics import reset_dynamo_metrics

    reset_dynamo_metrics()
