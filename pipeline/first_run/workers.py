"""What touches torch and the device, each in a process of its own.

`python -m pipeline.first_run.workers NAME ...` prints what it saw as JSON behind `FACTS`. Only
documented calls are made; an exception ends the process, and its text is the result.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.first_run.probing import FACTS, MIB

_PREFIXES = ("NEURON", "NKI", "TORCH_NEURONX", "TORCH_DEVICE", "JAX", "PJRT")


def _tell(facts: dict[str, Any]) -> None:
    print(f"{FACTS}{json.dumps(facts)}", flush=True)


def _named() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}


def _torch() -> Any:
    """torch, with the attribute that type checkers do not know on other machines."""
    import torch

    return torch


def importing() -> None:
    """`import torch`: what it brings, and what it does to the environment."""
    before = _named()
    torch = _torch()

    neuron = getattr(torch, "neuron", None)
    accelerator = torch.accelerator.current_accelerator()
    _tell(
        {
            "torch": torch.__version__,
            "neuron": neuron is not None,
            "available": neuron is not None and neuron.is_available(),
            "count": None if neuron is None else neuron.device_count(),
            "accelerator": None if accelerator is None else str(accelerator),
            "xla": "torch_xla" in sys.modules,
            "before": before,
            "after": _named(),
        }
    )


def compiler() -> None:
    """The compiler's own version beside that of its package."""
    neuronxcc = importlib.import_module("neuronxcc")
    package = importlib.metadata.version("neuronx-cc")
    _tell({"module": neuronxcc.__version__, "package": package})


def counting(marker: str) -> None:
    """device_count() and nothing else; then live until the marker's file is gone."""
    torch = _torch()

    _tell({"count": torch.neuron.device_count()})
    _wait_while(Path(marker))


def _wait_while(marker: Path) -> None:
    while marker.exists():
        time.sleep(0.1)


def graph() -> None:
    """One compiled graph, with everything that counts it."""
    torch = _torch()
    torch_neuronx = importlib.import_module("torch_neuronx")

    torch_neuronx.metrics.set_enabled(True)
    torch.manual_seed(0)
    left, right = torch.randn(64, 64), torch.randn(64, 64)

    def product(a: Any, b: Any) -> Any:
        return torch.relu(a @ b) + 1.0

    compiled = torch.compile(product, backend="neuron", fullgraph=True, dynamic=False)
    with torch.no_grad():
        result = compiled(left.to("neuron"), right.to("neuron"))
        torch.neuron.synchronize()
        wrong = (result.cpu() - product(left, right)).abs().max().item()
    names = torch_neuronx.metrics.get_counter_names()
    listed = torch.neuron.get_dynamo_metrics()
    _tell(
        {
            "largest_difference": wrong,
            "device": str(result.device),
            "counters": {name: torch_neuronx.metrics.get_counter_value(name) for name in names},
            "graphs": len(listed),
            "graph": repr(listed)[:1000],
        }
    )


def broken_graph(kind: str) -> None:
    """A graph that cannot be compiled, for the option it is given or for a sort of integers."""
    torch = _torch()

    def sort(values: Any) -> Any:
        return torch.sort(values).values + 1

    def plain(values: Any) -> Any:
        return values * 3 + 1

    compiled = torch.compile(
        sort if kind == "sort" else plain, backend="neuron", fullgraph=True, dynamic=False
    )
    result = compiled(torch.arange(64, 0, -1).to("neuron"))
    torch.neuron.synchronize()
    _tell({"result": result.cpu().tolist()[:4]})


def holding(marker: str, mebibytes: str) -> None:
    """Hold so many MiB in one tensor until the marker's file is gone; tell the allocator's peak."""
    torch = _torch()

    held = torch.zeros(int(mebibytes) * MIB, dtype=torch.uint8).to("neuron")
    torch.neuron.synchronize()
    _tell(
        {
            "peak": int(torch.neuron.max_memory_allocated()),
            "bytes": held.numel() * held.element_size(),
        }
    )
    _wait_while(Path(marker))


def properties() -> None:
    """What the device says of its memory."""
    torch = _torch()

    properties = torch.neuron.get_device_properties(0)
    ask = getattr(torch.neuron, "mem_get_info", None)
    _tell(
        {
            "name": getattr(properties, "name", None),
            "total": getattr(properties, "total_memory", None),
            "mem_get_info": None if ask is None else [int(one) for one in ask()],
        }
    )


def eager() -> None:
    """Eager operators, and the lists of what ran where."""
    torch = _torch()
    torch_neuronx = importlib.import_module("torch_neuronx")

    torch_neuronx.clear_op_tracking()
    values = torch.randn(16, 16).to("neuron")
    result = torch.softmax(values @ values, dim=-1)
    order = torch.arange(16, 0, -1).to("neuron").sort().values
    torch.neuron.synchronize()
    _tell(
        {
            "executed": sorted(map(str, torch_neuronx.get_executed_ops())),
            "fallback": sorted(map(str, torch_neuronx.get_fallback_ops())),
            "finite": bool(torch.isfinite(result.cpu()).all()),
            "sorted": order.cpu().tolist()[:3],
        }
    )


def rank(gloo: str) -> None:
    """One rank of a group: a sum over all of them, with gloo beside it if asked."""
    torch = _torch()
    import torch.distributed as dist

    dist.init_process_group("neuron")
    own, world = dist.get_rank(), dist.get_world_size()
    values = torch.full((8,), float(own + 1)).to("neuron")
    dist.all_reduce(values)
    torch.neuron.synchronize()
    facts: dict[str, Any] = {
        "sum": values.cpu().tolist()[0],
        "expected": world * (world + 1) / 2,
        "device": str(values.device),
        "cores": os.environ.get("NEURON_RT_VISIBLE_CORES"),
    }
    if gloo == "gloo":
        group = dist.new_group(backend="gloo")
        told = torch.tensor([own + 7])
        dist.broadcast(told, src=0, group=group)
        dist.barrier(group=group)
        facts["broadcast"] = told.tolist()
    dist.barrier()
    _tell(facts)
    os._exit(0)  # a group's teardown may crash after its results, which says nothing of them


def set_device() -> None:
    """What Transformers does before it makes a group."""
    torch = _torch()

    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    _tell({"current": torch.accelerator.current_device_index()})


def stuck_rank(marker: str) -> None:
    """Join the group, say so by a file, then reduce for ever."""
    torch = _torch()
    import torch.distributed as dist

    dist.init_process_group("neuron")
    values = torch.ones(8).to("neuron")
    dist.all_reduce(values)
    torch.neuron.synchronize()
    Path(f"{marker}-{dist.get_rank()}").touch()
    while True:
        dist.all_reduce(values)
        torch.neuron.synchronize()


def bad_index() -> None:
    """Row 1000 of an embedding with 16 rows."""
    torch = _torch()

    table = torch.nn.Embedding(16, 8).to("neuron")
    look = torch.compile(table, backend="neuron", fullgraph=True, dynamic=False)
    with torch.no_grad():
        result = look(torch.tensor([[1000]]).to("neuron"))
        torch.neuron.synchronize()
    _tell({"row": result.cpu().flatten().tolist()})


def too_much(gibibytes: str) -> None:
    """Tensors of 1 GiB until there are that many, or no more fit."""
    torch = _torch()

    held = []
    for number in range(int(gibibytes)):
        held.append(torch.empty(1024 * MIB, dtype=torch.uint8, device="neuron"))
        torch.neuron.synchronize()
        print(f"{number + 1} GiB are held", flush=True)
    _tell({"held": len(held)})


_WORKERS: dict[str, Callable[..., None]] = {
    one.__name__: one
    for one in (
        importing,
        compiler,
        counting,
        graph,
        broken_graph,
        holding,
        properties,
        eager,
        rank,
        set_device,
        stuck_rank,
        bad_index,
        too_much,
    )
}

if __name__ == "__main__":
    _WORKERS[sys.argv[1]](*sys.argv[2:])
