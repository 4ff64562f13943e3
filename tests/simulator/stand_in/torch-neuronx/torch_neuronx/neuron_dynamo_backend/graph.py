"""A graph as text that is the same in every process, and the same graph over host memory."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from torch_neuronx import _C


def describe(graph: fx.GraphModule) -> str:
    """Operators, shapes, constants, in order. No address, no hash() of a string, no device index:
    ranks whose work is the same have the same text."""
    numbers = {node: f"%{number}" for number, node in enumerate(graph.graph.nodes)}
    return "\n".join(
        f"{numbers[node]} = {node.op} {_target(graph, node)} "
        f"{_text(node.args, numbers)} {_text(node.kwargs, numbers)} : {_kind(node.meta.get('val'))}"
        for node in graph.graph.nodes
    )


def _target(graph: fx.GraphModule, node: fx.Node) -> str:
    if node.op == "get_attr":
        held = graph
        for part in str(node.target).split("."):
            held = getattr(held, part)
        if isinstance(held, fx.GraphModule):
            return f"{{{describe(held)}}}"
        return _constant(held) if isinstance(held, torch.Tensor) else type(held).__qualname__
    if node.op == "call_function":
        if isinstance(node.target, torch._ops.OpOverload):
            return str(node.target)
        name = getattr(node.target, "__qualname__", type(node.target).__qualname__)
        return f"{getattr(node.target, '__module__', '')}.{name}"
    return node.op  # names of inputs and outputs say nothing


def _constant(tensor: torch.Tensor) -> str:
    with _disable_current_modes():
        on_host = _C.host_view(tensor) if tensor.device.type == "neuron" else tensor
        raw = on_host.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{_kind(tensor)} {hashlib.sha256(raw).hexdigest()}"


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}{tuple(value.stride())}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_kind, value))}]"
    return type(value).__name__


def _text(value: Any, numbers: dict[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return numbers[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(one, numbers) for one in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}={_text(one, numbers)}' for name, one in value.items())}}}"
    if isinstance(value, slice):
        return _text((value.start, value.stop, value.step), numbers)
    if isinstance(value, torch.device):
        return value.type
    plain = bool | int | float | str | torch.dtype | torch.layout | torch.memory_format | None
    return repr(value) if isinstance(value, plain) else type(value).__qualname__


def symbols_of(value: Any) -> set[str]:
    """Names of the symbols of the tracing that this fake tensor or symbolic number belongs to."""
    environment = getattr(getattr(value, "fake_mode", None), "shape_env", None)
    environment = environment or getattr(getattr(value, "node", None), "shape_env", None)
    return {str(symbol) for symbol in environment.var_to_range} if environment else set()


def has_collectives(graph: fx.GraphModule) -> bool:
    return any(_is_collective(node.target) for node in graph.graph.nodes)


def over_host_memory(graph: fx.GraphModule) -> fx.GraphModule:
    """The same graph for CPU tensors. Its collectives still go through the device's group."""
    made = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    for node in made.graph.nodes:
        if node.op == "get_attr":
            held = getattr(made, str(node.target), None)
            if isinstance(held, fx.GraphModule):
                setattr(made, str(node.target), over_host_memory(held))
            elif isinstance(held, torch.Tensor) and held.device.type == "neuron":
                setattr(made, str(node.target), _C.host_view(held))
        node.args = map_aggregate(node.args, _host_device)
        node.kwargs = map_aggregate(node.kwargs, _host_device)
        if _is_collective(node.target):
            node.target = _collective(node.target)
    made.recompile()
    return made


def _host_device(value: Any) -> Any:
    is_ours = isinstance(value, torch.device) and value.type == "neuron"
    return torch.device("cpu") if is_ours else value


def _is_collective(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target.namespace == "_c10d_functional"


def _collective(operator: torch._ops.OpOverload) -> Callable[..., Any]:
    if operator is torch.ops._c10d_functional.wait_tensor.default:
        return _same

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(_to_device, (args, kwargs))
        return tree_map(_waited_on_host, operator(*args, **kwargs))

    return run


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _to_device(value: Any) -> Any:
    return _C.device_view(value) if isinstance(value, torch.Tensor) else value


def _waited_on_host(tensor: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = _C.host_view(torch.ops._c10d_functional.wait_tensor(tensor))
    return made
