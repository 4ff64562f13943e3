"""What was compiled in this process, from the cache or not: TRAINIUM.md 4.4."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class NeuronCompilationMetrics:
    """One graph."""

    graph_id: str
    graph_name: str = ""
    model_name: str = ""
    has_collectives: bool = False
    graph_node_count: int = 0
    timestamp: str = ""
    torch_neuronx_fx_passes_us: int = 0
    torch_neuronx_lower_us: int = 0
    torch_neuronx_compile_us: int = 0


_graphs: list[NeuronCompilationMetrics] = []


def record(graph: NeuronCompilationMetrics) -> None:
    _graphs.append(graph)


def get_dynamo_metrics() -> list[NeuronCompilationMetrics]:
    return list(_graphs)


def reset_dynamo_metrics() -> None:
    _graphs.clear()
