"""The stand-in behaves as TRAINIUM.md says the device does.

Starting PyTorch takes seconds: each test asks one process as much as belongs together.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.simulator.machine import Ended, Machine, wait_for

_START = """
import json, os, sys
import torch
from pathlib import Path

def told(call):
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""
_COMPILED = (
    _START
    + """
import torch_neuronx
torch_neuronx.metrics.set_enabled(True)
options = {"model_name": "small"}

def compiled(*, fullgraph=True, **keywords):
    torch._dynamo.reset()
    keywords = {"dynamic": False, "options": options} | keywords
    keywords |= {"backend": "neuron", "fullgraph": fullgraph}
    return torch.compile(lambda a: (a * 2).relu(), **keywords)

def counters():
    return torch_neuronx.metrics.get_compilation_metrics()

x = torch.ones(2, 3).to("neuron")
"""
)
_GROUP = (
    _START
    + """
import torch.distributed as dist
dist.init_process_group("neuron")
rank = dist.get_rank()
"""
)
_COMPILATIONS = "CompilationCache.TotalCompilations"
_HITS = "CompilationCache.PersistentHits"


@pytest.fixture(scope="module")
def device(simulator: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """What one process on the second core sees of the device."""
    machine = Machine(simulator, tmp_path_factory.mktemp("machine"))
    code = """
import torch_neuronx
neuron = torch.neuron
seen = {"before": [neuron.is_available(), neuron.is_initialized(), neuron.device_count()]}
seen["far"] = told(lambda: torch.accelerator.set_device_index(2))
seen["accelerator"] = str(torch.accelerator.current_accelerator())
x = torch.ones(256, 4).to("neuron")
seen["after"] = [neuron.is_initialized(), str(x.device), neuron.memory_allocated()]
torch_neuronx.clear_op_tracking()
y = (x.mul(2) + 1)[:, 1].cpu()
x.sum()
neuron.synchronize()
seen["value"] = y[0].item()
seen["executed"] = sorted(torch_neuronx.get_executed_ops())
seen["fell_back"] = torch_neuronx.get_fallback_ops()
seen["peak"] = neuron.max_memory_allocated()
del x
seen["left"] = neuron.memory_allocated()
seen["mixed"] = told(lambda: torch.ones(2).to("neuron") + torch.ones(2))
seen["counter"] = torch_neuronx.metrics.get_counter_value("CompilationCache.PersistentHits")
seen["mem_get_info"] = hasattr(neuron, "mem_get_info")
seen["properties"] = neuron.get_device_properties(0).total_memory
seen["name"] = neuron.get_device_name(0)
seen["full"] = told(lambda: torch.empty(6000, device="neuron"))
seen["ooms"] = neuron.memory_stats()["num_ooms"]
print(json.dumps(seen))
"""
    fallback = {"fault": "eager_cpu_fallback", "operators": ["aten::sum"]}
    environment = machine.environment(fallback, core_bytes=20_000)
    return machine.run(_START + code, environment | {"NEURON_RT_VISIBLE_CORES": "1"})


def test_the_runtime_starts_with_the_first_tensor(device: Ended) -> None:
    """Asking for devices takes no core, a tensor does (2.4)."""
    seen = device.seen()
    assert seen["before"] == [True, False, 1]
    assert seen["accelerator"] == "neuron"
    assert seen["after"] == [True, "neuron:0", 256 * 4 * 4]
    assert "out of range. Valid range is 0 to 0 for this process" in seen["far"]


def test_eager_operators_are_listed_and_memory_is_counted_per_core(device: Ended) -> None:
    """Names of operators, current and peak bytes; no mem_get_info; what falls back is said and
    listed apart (2.2, 2.3, 2.8)."""
    seen = device.seen()
    assert seen["value"] == 3
    assert {"aten::add", "aten::mul"} <= set(seen["executed"])
    assert seen["fell_back"] == ["aten::sum"]
    assert "WARNING: Operator 'aten::sum' executed via CPU fallback" in device.error
    assert seen["peak"] > seen["after"][2]
    assert seen["left"] < seen["after"][2]
    assert seen["mem_get_info"] is False
    assert (seen["properties"], seen["name"]) == (20_000, "neuron:0")
    assert seen["counter"] is None
    assert seen["mixed"].startswith("RuntimeError: Expected all tensors to be on the same device")


def test_a_full_core_refuses_with_the_documented_words(device: Ended) -> None:
    """The runtime's line on standard error and PyTorch's exception (6.2)."""
    seen = device.seen()
    assert seen["full"] == "RuntimeError: NRT allocation failed for size 24000 (OOM)"
    assert seen["ooms"] == 1
    assert "usage: tensors) on ND 0:NC 1" in device.error


def test_a_graph_is_compiled_once_and_then_found(machine: Machine) -> None:
    """A cold process compiles, the next reads; a truncated entry is loaded and fails at its first
    execution, an empty one is a miss (4.1, 4.3, 4.4)."""
    code = """
run = compiled()
torch_neuronx.clear_op_tracking()
seen = {"value": run(x).sum().item(), "again": run(x).sum().item(), "counters": counters()}
seen["graphs"] = len(torch.neuron.get_dynamo_metrics())
seen["executed"] = torch_neuronx.get_executed_ops()
seen["options"] = options
"""
    tell = "print(json.dumps(seen))"
    cold = machine.run(_COMPILED + code + tell).seen()
    assert (cold["value"], cold["again"], cold["graphs"]) == (12, 12, 1)
    assert cold["options"] == {"model_name": "small", "dynamic": False}
    assert not {"aten::mul", "aten::relu"} & set(cold["executed"])
    # The graph, and the eager sum after it.
    assert cold["counters"][_COMPILATIONS] == 2
    entries = {path.stat().st_size: path for path in (machine.directory / "neff").rglob("*.neff")}
    assert len(entries) == 2
    for path in entries.values():
        assert path.parent.parent.name + path.parent.name == path.stem[:4]
        assert len(path.stem) == 32

    code += f"""
from torch_neuronx.neuron_dynamo_backend import cache
for size in (100, 0):
    os.truncate({str(entries[max(entries)])!r}, size)
    cache._in_memory.clear()
    seen[size] = told(lambda: compiled()(x).sum().item())
seen["then"] = counters()
"""
    warm = machine.run(_COMPILED + code + tell).seen()
    assert (warm["value"], warm["graphs"]) == (12, 1)
    assert _COMPILATIONS not in warm["counters"]
    assert warm["counters"][_HITS] == 2
    assert "NRT EXECUTION FAILED: NRT_INVALID" in warm["100"]
    assert (warm["0"], warm["then"][_COMPILATIONS]) == (12, 1)


def test_what_the_backend_refuses(machine: Machine) -> None:
    """Dynamic shapes, and tensors on the host when they are forbidden; another mode is only
    remarked upon (3.1, 3.2)."""
    code = """
seen = {"dynamic": told(lambda: compiled(dynamic=True)(x))}
os.environ["TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY"] = "1"
seen["host"] = told(lambda: compiled()(torch.ones(2, 3)))
del os.environ["TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY"]
seen["copied"] = str(compiled()(torch.ones(2, 3)).device)
seen["mode"] = compiled(mode="reduce-overhead", options=None)(x).sum().item()
print(json.dumps(seen))
"""
    ended = machine.run(_COMPILED + code)
    seen = ended.seen()
    assert "torch-neuronx requires static shapes. Found" in seen["dynamic"]
    assert "Input tensor at index 0 is on cpu device, expected neuron" in seen["host"]
    assert seen["copied"] == "neuron:0"
    assert seen["mode"] == 12
    assert "does not support mode='reduce-overhead', falling back to default mode" in ended.error


def test_failures_of_a_graph(machine: Machine) -> None:
    """Each kind says what the device says, no more often than asked; without permission to fall
    back it is an exception, with it a line and an eager result (2.8, 3.2, 6.2)."""
    code = """
def with_fault(**fault):
    os.environ["TRN_SIMULATOR_FAULTS"] = json.dumps([fault])
    return told(lambda: compiled()(x).sum().item())

seen = {
    "operator": with_fault(fault="unsupported_operator"),
    "internal": with_fault(fault="compiler_error", code="NCC_ITIN902"),
    "silent": with_fault(fault="compiler_exit_70"),
    "killed": with_fault(fault="host_oom_kill", of="compiler"),
    "elsewhere": with_fault(fault="compiler_exit_70", where="another run"),
}
seen["memory"] = with_fault(fault="out_of_memory", at="run", times=1)
seen["memory again"] = with_fault(fault="out_of_memory", at="run", times=1)
seen["told to"] = with_fault(fault="fallback")
os.environ["TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION"] = "0"
os.environ["TORCH_NEURONX_NEFF_DISABLE_CACHE"] = "1"
from torch_neuronx.neuron_dynamo_backend import cache
cache._in_memory.clear()
seen["allowed"] = with_fault(fault="compiler_exit_70")
print(json.dumps(seen))
"""
    ended = machine.run(_COMPILED + code)
    seen = ended.seen()
    for kind, words in {
        "operator": "exit code 70: [NCC_EVRF001] An unsupported operator was used.",
        "internal": "exit code 70: [INTERNAL_ERROR] [NCC_ITIN902]",
        "silent": "(neuronx-cc compilation) with exit code 70",
        "killed": "Failed to read compiled NEFF file",
    }.items():
        assert "COMPILATION FAILED: StableHLO to NEFF compilation failed" in seen[kind]
        assert words in seen[kind]
    assert "NRT_RESOURCE, Failed to allocate resource" in seen["memory"]
    for kind in ("elsewhere", "memory again", "told to", "allowed"):
        assert seen[kind] == 12
    assert ended.error.count("Falling back to original GraphModule execution") == 2


def test_deaths_and_hangs(machine: Machine) -> None:
    """A process that dies says nothing of it; one whose compiler hangs goes with its group."""
    code = _COMPILED + "compiled()(x)"
    faults: list[dict[str, Any]] = [
        {"fault": "compile_hang"},  # first: the others leave an entry in the cache
        {"fault": "segv"},
        {"fault": "host_oom_kill", "of": "rank"},
    ]
    ended = []
    for core, fault in enumerate(faults):
        own = {"NEURON_RT_VISIBLE_CORES": str(core)}
        process = machine.start(code, machine.environment(fault) | own)
        if fault["fault"] == "compile_hang":
            wait_for(machine.directory / "local" / "locks")
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(3)
            os.killpg(process.pid, signal.SIGKILL)
        ended.append(Ended.of(process))
    assert [one.code for one in ended] == [-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGKILL]
    assert [one.error for one in ended] == ["", "", ""]


def test_cores_belong_to_one_process(machine: Machine) -> None:
    """By default a process takes all; another then fails as documented, and neuron-ls and
    neuron-monitor name the holder until it ends (2.6, 6.2, 6.4, 6.6)."""
    mark = machine.directory / "holding"
    environment = machine.environment()
    holder = machine.start(
        _START
        + f"x = torch.ones(1000).to('neuron')\nPath({str(mark)!r}).touch()\n"
        + "import time\ntime.sleep(600)",
        environment,
    )
    wait_for(mark)
    one = environment | {"NEURON_RT_VISIBLE_CORES": "1"}
    code = _START + "print(json.dumps(told(lambda: str(torch.ones(1).to('neuron').device))))"
    refused = machine.run(code, one)
    assert refused.seen() == "RuntimeError: Failed to initialize Neuron Runtime: status code 1"
    assert "NeuronCore(s) not available - Requested:nc1-nc1 Available:0" in refused.error

    (chip,) = _listed(machine, environment)
    assert (chip["nc_count"], chip["neuroncore_ids"]) == (4, [0, 1, 2, 3])
    assert [process["pid"] for process in chip["neuron_processes"]] == [holder.pid]
    (report,) = _monitored(machine, environment)["neuron_runtime_data"]
    used = report["report"]["memory_used"]["neuron_runtime_used_bytes"]
    assert (report["pid"], used["neuron_device"]) == (holder.pid, 4000)

    holder.kill()
    holder.communicate()
    assert _listed(machine, environment)[0]["neuron_processes"] == []
    assert machine.run(code, one).seen() == "neuron:0"


def _listed(machine: Machine, environment: dict[str, str]) -> list[Any]:
    command = [str(machine.python.parent / "neuron-ls"), "-j"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    listed: list[Any] = json.loads(ended.stdout)
    return listed


def _monitored(machine: Machine, environment: dict[str, str]) -> Any:
    config = machine.directory / "monitor.json"
    config.write_text('{"period": "0.1s"}')
    command = [str(machine.python.parent / "neuron-monitor"), "-c", str(config)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        line = process.stdout.readline()
        process.kill()
    return json.loads(line)


def test_tools_without_a_device(machine: Machine) -> None:
    """No core: neuron-ls fails, and the versions all carry the mark that publish refuses."""
    environment = machine.environment(cores=0)
    command = [str(machine.python.parent / "neuron-ls"), "-j"]
    assert subprocess.run(command, env=environment, capture_output=True).returncode
    compiler = [str(machine.python.parent / "neuronx-cc"), "--version"]
    assert b"2.28.7631.0+simulator" in subprocess.check_output(compiler, env=environment)
    code = """
import importlib.metadata, neuronxcc
names = ["torch-neuronx", "neuronx-cc", "nki"]
versions = [*map(importlib.metadata.version, names), neuronxcc.__version__]
print(json.dumps([torch.neuron.is_available(), versions]))
"""
    available, versions = machine.run(_START + code, environment).seen()
    assert not available
    assert versions == [
        "2.13.3.0+simulator",
        "2.28.7631.0+simulator",
        "0.7.0+simulator",
        "2.28.7631.0+simulator",
    ]


def test_the_group_of_two(machine: Machine) -> None:
    """Each rank is the device of its local rank on one core; the collectives of 5.2 work, the
    others raise. Told so, a sum is one rank's part alone, or a rank never comes."""
    code = """
others = dist.new_group([0, 1])
x = torch.full((2,), rank + 1.0, device="neuron")
core = os.environ["NEURON_RT_VISIBLE_CORES"]
seen = {"device": [str(x.device), torch.neuron.device_count(), core]}
dist.all_reduce(x)
seen["sum"] = x.tolist()
parts = torch.empty(4, device="neuron")
dist.all_gather_into_tensor(parts, torch.full((2,), float(rank), device="neuron"))
seen["gathered"] = parts.tolist()
out = torch.empty(2, device="neuron")
own = torch.tensor([10.0 * rank, 10.0 * rank + 1]).to("neuron")
dist.all_to_all_single(out, own)
seen["exchanged"] = out.tolist()
uneven = [1, 2] if rank == 0 else [2, 1]
three = torch.zeros(3, device="neuron")
seen["uneven"] = told(lambda: dist.all_to_all_single(three, three.clone(), uneven, uneven))
seen["barriers"] = [told(dist.barrier), told(lambda: dist.barrier(others))]
seen["host"] = told(lambda: dist.all_reduce(torch.ones(1)))
seen["other device"] = told(lambda: torch.neuron.set_device(1 - rank))
for part in ("local", "first"):
    os.environ["TRN_SIMULATOR_FAULTS"] = json.dumps([{"fault": "wrong_tokens", "part": part}])
    own = torch.tensor([rank + 1.0]).to("neuron")
    dist.all_reduce(own, group=dist.new_group([0, 1]))
    seen[part] = own.item()
os.environ["TRN_SIMULATOR_FAULTS"] = '[{"fault": "collective_hang", "rank": 1}]'
never = dist.new_group([0, 1])
print(json.dumps(seen), flush=True)
dist.barrier()
if rank == 0:
    os._exit(0)
import threading
x = torch.ones(1, device="neuron")
late = threading.Thread(target=lambda: dist.all_reduce(x, group=never), daemon=True)
late.start()
late.join(1)
os._exit(0 if late.is_alive() else 1)
"""
    first, second = (ended.seen() for ended in machine.run_ranks(_GROUP + code, 2))
    assert (first["device"], second["device"]) == (["neuron:0", 2, "0"], ["neuron:1", 2, "1"])
    for seen in (first, second):
        assert seen["sum"] == [3, 3]
        assert seen["gathered"] == [0, 0, 1, 1]
        assert seen["uneven"].startswith("NotImplementedError: ")
        assert seen["barriers"][0] is None
        assert "Barrier is implemented only for default group" in seen["barriers"][1]
        assert "No backend type associated with device type cpu" in seen["host"]
        assert "is out of range. Valid range is" in seen["other device"]
    assert (first["exchanged"], second["exchanged"]) == ([0, 10], [1, 11])
    assert [(seen["local"], seen["first"]) for seen in (first, second)] == [(1, 1), (2, 1)]


def test_the_group_comes_first(machine: Machine) -> None:
    """The runtime must not run yet, one core is all a rank may have, and a pinned rank cannot set
    its device before (2.4, 5.1)."""
    code = """
import torch.distributed as dist
seen = {"trap": told(lambda: torch.accelerator.set_device_index(1))}
store = dist.HashStore()

def group():
    dist.init_process_group("neuron", store=store, rank=0, world_size=1)

"""
    environment = machine.environment() | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    two_cores = environment | {"NEURON_RT_VISIBLE_CORES": "2-3"}
    first = "group()\n"
    many = machine.run(_START + code + first, two_cores)
    assert "Attempted to have more than one device per process" in many.error
    last = "torch.neuron.init()\nseen['late'] = told(group)\nprint(json.dumps(seen))"
    one_core = environment | {"NEURON_RT_VISIBLE_CORES": "1"}
    seen = machine.run(_START + code + last, one_core).seen()
    assert "Device index 1 is out of range. Valid range is 0 to 0" in seen["trap"]
    assert "Neuron runtime should not be initialized before the init_process_group." in seen["late"]


def test_three_ranks_do_not_form(machine: Machine) -> None:
    """Only powers of two do (5.3)."""
    code = """
import torch.distributed as dist
dist.init_process_group("neuron", store=dist.HashStore(), rank=0, world_size=3)
"""
    environment = machine.environment() | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3"}
    ended = machine.run(_START + code, environment)
    assert "RuntimeError: Failed to execute the device barrier 2" in ended.error
