"""The backend itself: Dynamo -> AOTAutograd -> text -> neuronx-cc -> NEFF -> execution."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from neuronxcc import neff
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.logging_utils import get_aot_graph_name
from torch._functorch._aot_autograd.utils import make_boxed_func
from trn_simulator import faults

from torch_neuronx import _C, _runtime
from torch_neuronx.neuron_dynamo_backend import cache
from torch_neuronx.neuron_dynamo_backend.graph import (
    describe,
    has_collectives,
    over_host_memory,
    symbols_of,
)
from torch_neuronx.neuron_dynamo_backend.metrics import NeuronCompilationMetrics, record

logger = logging.getLogger(__name__)


def neuron_backend(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: str = "default",
) -> Callable[..., Any]:
    """What torch.compile(backend="neuron") calls for each graph. Edits `options` (3.1)."""
    if mode != "default":
        logger.warning(
            "Neuron backend does not support mode='%s', falling back to default mode.", mode
        )
    if options is None:
        options = {}
    options.setdefault("dynamic", False)
    compile_graph = partial(_compile_graph, options=options)
    made: Callable[..., Any] = aot_autograd(
        fw_compiler=compile_graph, keep_inference_input_mutations=True
    )(graph, example_inputs)
    return made


def _compile_graph(
    graph: fx.GraphModule, example_inputs: Sequence[Any], options: dict[str, Any]
) -> Callable[..., Any]:
    try:
        return _set_up(graph, example_inputs, options)
    except Exception as error:
        raise RuntimeError(
            f"Neuron backend NEFF execution setup failed with unexpected error: {error}"
        ) from error


def _set_up(
    graph: fx.GraphModule, example_inputs: Sequence[Any], options: dict[str, Any]
) -> Callable[..., Any]:
    _refuse_dynamic(graph, example_inputs)
    text = describe(graph)
    key = cache.key_of(text, cache.flags())
    model_name = options.get("model_name", "model_default")
    name = f"{model_name}_{get_aot_graph_name().split('__', 1)[-1]}"
    record(
        NeuronCompilationMetrics(
            graph_id=key,
            graph_name=name,
            model_name=model_name,
            has_collectives=has_collectives(graph),
            graph_node_count=len(graph.graph.nodes),
        )
    )
    execute = _Executable(name, key, text.encode(), graph)
    falls_back = options.get("fallback_execution", _falls_back())

    def run(*inputs: Any) -> Any:
        if faults.told("fallback"):
            return _original(graph, inputs, "the graph was told to fall back")
        try:
            return execute(*inputs)
        except Exception as error:
            if not falls_back:
                raise
            return _original(graph, inputs, error)

    made: Callable[..., Any] = make_boxed_func(run)
    return made


def _falls_back() -> bool:
    """TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION: on by default in the 2.33 documents (2.7)."""
    named = os.environ.get("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "1")
    return named.lower() not in ("1", "true", "yes", "on")


def _original(graph: fx.GraphModule, inputs: Sequence[Any], reason: object) -> Any:
    logger.error("Execution failed: %s", reason)
    logger.warning("Falling back to original GraphModule execution")
    return graph.forward(*inputs)


def _refuse_dynamic(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """Any symbol that tracing made is one too many, wherever it came from: a number read from a
    tensor on the host, a check of the model's that became a part of the graph (3.2)."""
    values = [*example_inputs, *(node.meta.get("val") for node in graph.graph.nodes)]
    symbols = sorted(set().union(*map(symbols_of, values)))
    if symbols:
        raise RuntimeError(
            "\n\nDynamic shapes detected in the model, but torch-neuronx requires static shapes. "
            f"Found {len(symbols)} dynamic dimension(s): [{', '.join(symbols[:3])}]"
            f"{'...' if len(symbols) > 3 else ''}"
        )


class _Executable:
    """A compiled graph: compiled and loaded at its first call, since on the device a compilation's
    error comes out where its result is wanted (3.1)."""

    def __init__(self, name: str, key: str, text: bytes, graph: fx.GraphModule) -> None:
        self.name = name
        self.key = key
        self.text = text
        self.on_host = over_host_memory(graph)
        self.loaded = False

    def __call__(self, *inputs: Any) -> Any:
        if not self.loaded:
            self._load()
        self._misbehave("run")
        on_host = [self._host_input(index, value) for index, value in enumerate(inputs)]
        _C.set_in_graph(True)
        try:
            outputs = self.on_host(*on_host)
        finally:
            _C.set_in_graph(False)
        return [self._device_output(value) for value in outputs]

    def _load(self) -> None:
        try:
            compiled = cache.get_or_compile(self.key, self.text)
        except RuntimeError as error:
            raise RuntimeError(
                "Compilation error occurred on Neuron for operation=torch_compile;\n"
                f'error message="COMPILATION FAILED: {error}"\npython stack trace=\n'
            ) from None
        try:
            neff.unpack(compiled)
        except neff.Damaged:
            # NRT_INVALID: TRAINIUM.md 4.3, 6.1; the words are TorchNeuron's for that status.
            raise self._failed(
                "NRT_INVALID, Failed to load model, Invalid NEFF, instruction, or input"
            ) from None
        self._misbehave("load")
        _runtime.start()
        _runtime.loaded(len(compiled))
        self.loaded = True

    def _misbehave(self, at: str) -> None:
        if faults.told("segv", at=at):
            os.kill(os.getpid(), signal.SIGSEGV)
        if at == "load":
            return
        if faults.told("host_oom_kill", of="rank"):
            os.kill(os.getpid(), signal.SIGKILL)
        if faults.told("out_of_memory", at="run"):
            raise self._failed("lazy::AllocBind: NRT_RESOURCE, Failed to allocate resource")

    def _failed(self, why: str) -> RuntimeError:
        return RuntimeError(
            f"NRT Execution error occurred on Neuron for operation={self.name}\n"
            f'error message="NRT EXECUTION FAILED: {why}"\npython stack trace=\n'
        )

    def _host_input(self, index: int, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.device.type == "neuron":
            return _C.host_view(value.detach())
        if os.environ.get("TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY") == "1":
            raise RuntimeError(
                f"Input tensor at index {index} is on cpu device, expected neuron. "
                "Move tensor to Neuron device first with tensor.to('neuron')"
            )
        return value.detach()

    def _device_output(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="neuron")
        _C.host_view(made).copy_(value)
        return made
