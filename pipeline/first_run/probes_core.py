"""Probes that take one core, and those that read what compiled-graph left."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline import device
from pipeline.device import sysfs
from pipeline.first_run.probing import (
    BUSY,
    MIB,
    Context,
    NotTried,
    Seen,
    Worker,
    copy_entries,
    core_environment,
    entries,
    own_environment,
    read,
    signature,
    start,
    tail,
    work,
)

_HELD_MIB = 256
_START_S = 240
_NATIVE = (2, 13)
_DEFAULT_PLACES = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 -- the compiler's own defaults
_DEFAULT_NAMES = ("neff_cache*", "local_cache*", "neuron_backend*", "neuron-compile-cache*")


def torch_import(context: Context) -> Seen:
    for name in ("torch", "torch-neuronx"):
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError as error:
            raise NotTried(f"{name} is not installed in this Python") from error
    facts = work(context, "importing").need()
    return Seen(bool(facts["neuron"] and facts["available"]), _shown(facts))


def native_package(context: Context) -> Seen:
    version = importlib.metadata.version("torch-neuronx")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    xla = importlib.util.find_spec("torch_xla") is not None
    text = f"torch-neuronx {version}; torch_xla {'is' if xla else 'is not'} importable"
    return Seen(numbers >= _NATIVE and not xla, text)


def compiler_version(context: Context) -> Seen:
    facts = work(context, "compiler", environment=own_environment(context)).need()
    return Seen(facts["module"] == facts["package"], _shown(facts))


def import_environment(context: Context) -> Seen:
    facts = work(context, "importing").need()
    before, after = facts["before"], facts["after"]
    changed = {name: [value, after.get(name)] for name, value in before.items()}
    changed = {name: pair for name, pair in changed.items() if pair[0] != pair[1]}
    added = {name: value for name, value in sorted(after.items()) if name not in before}
    return Seen(not changed, f"changed: {_shown(changed)}\nadded: {_shown(added)}")


def visible_cores(context: Context) -> Seen:
    with _living(context, "counting") as (facts, process):
        listed = device.busy(context.cores)
        taken = process.pid in [held.pid for held in listed]
    text = f"core {context.cores[0]}: {_shown(facts)}; neuron-ls meanwhile: {listed}"
    return Seen(facts["count"] == 1 and not taken, text)


# --- one compiled graph, and what stands beside it ------------------------------------------------


def compiled_graph(context: Context) -> Seen:
    before = _default_files()
    graphs = context.shared / "graphs"
    environment = core_environment(context, graphs=graphs)
    worker = work(context, "graph", environment=environment)
    (context.shared / "graph.json").write_text(
        json.dumps(
            {
                "facts": worker.facts,
                "elsewhere": sorted(_default_files() - before),
                "scratch": sorted(path.name for path in context.folder.iterdir()),
            }
        )
    )
    facts = worker.need()
    right = facts["largest_difference"] < 0.05  # float32, products of 64 terms of size 1
    return Seen(right and facts["device"].startswith("neuron"), _shown(facts))


def _default_files() -> set[str]:
    """Folders of a compiler in the places where caches stand by default."""
    found: set[str] = set()
    for place in _DEFAULT_PLACES:
        for pattern in _DEFAULT_NAMES:
            for path in place.glob(pattern):
                found.add(str(path))
                with contextlib.suppress(OSError):
                    found.update(str(inside) for inside in path.rglob("*"))
    return found


def _graph(context: Context) -> Mapping[str, Any]:
    try:
        told: dict[str, Any] = json.loads((context.shared / "graph.json").read_text())
    except (OSError, ValueError) as error:
        raise NotTried(f"compiled-graph left nothing ({error})") from error
    return told


def compiler_counters(context: Context) -> Seen:
    counters = _graph(context)["facts"]["counters"]
    count = counters.get("CompilationCache.TotalCompilations")
    return Seen(count is not None and count >= 1, _shown(counters))


def backend_graphs(context: Context) -> Seen:
    facts = _graph(context)["facts"]
    return Seen(facts["graphs"] >= 1, f"{facts['graphs']} graphs: {facts['graph']}")


def cache_entries(context: Context) -> Seen:
    graphs = context.shared / "graphs"
    files = sorted(str(one.relative_to(graphs)) for one in graphs.rglob("*") if one.is_file())
    return Seen(bool(entries(graphs)), "\n".join(files) or "the directory is empty")


def cache_nowhere_else(context: Context) -> Seen:
    told = _graph(context)
    elsewhere = told["elsewhere"]
    own = f"in its own folder: {told['scratch']}"
    text = "\n".join(elsewhere[:50]) or "nothing new in the default places"
    return Seen(not elsewhere, f"{text}\n{own}")


def cache_second_process(context: Context) -> Seen:
    return _warm(context, context.shared / "graphs")


def cache_moved(context: Context) -> Seen:
    copied = context.folder / "copied"
    copied.mkdir()
    if not copy_entries(context.shared / "graphs", copied):
        raise NotTried("there are no entries to copy")
    return _warm(context, copied)


def _warm(context: Context, graphs: Path) -> Seen:
    before = entries(graphs)
    environment = core_environment(context, graphs=graphs)
    facts = work(context, "graph", environment=environment).need()
    counters = facts["counters"]
    compiled = counters.get("CompilationCache.TotalCompilations") or 0
    hits = counters.get("CompilationCache.PersistentHits") or 0
    added = sorted(set(entries(graphs)) - set(before))
    return Seen(compiled == 0 and hits > 0 and not added, f"{_shown(counters)}\nnew files: {added}")


# --- memory ---------------------------------------------------------------------------------------


def memory_peak(context: Context) -> Seen:
    with _living(context, "holding", _HELD_MIB) as (facts, _):
        pass
    least, peak = _HELD_MIB * MIB, facts["peak"]
    return Seen(least <= peak <= 2 * least, _shown(facts))


def core_memory(context: Context) -> Seen:
    facts = work(context, "properties").need()
    return Seen(facts["total"] == 24 * 2**30, _shown(facts))


def driver_peak_moves(context: Context) -> Seen:
    meter = device.PeakMeter.start(context.cores, root=sysfs.SYSFS)
    with _living(context, "holding", _HELD_MIB):
        pass
    measured = meter.stop()
    text = f"core {context.cores[0]}: {measured}"
    if measured is None or measured.source != "sysfs":
        if os.geteuid() == 0:
            return Seen(False, text)
        raise NotTried(f"{text}; it takes root: peaks that are not cleared may be another run's")
    return Seen(measured.bytes_per_core[0] >= _HELD_MIB * MIB, text)


def monitor_cores(context: Context) -> Seen:
    tag = "first-run"
    nowhere = context.folder / "no-sysfs"
    meter = device.PeakMeter.start(context.cores, tag=tag, root=nowhere)
    environment = core_environment(context) | {"NEURON_PROCESS_TAG": tag}
    with _living(context, "holding", _HELD_MIB, environment=environment):
        time.sleep(5)  # a few of its samples
        program = device.busy(context.cores)
    measured = meter.stop()
    text = f"core {context.cores[0]}: {measured}; neuron-ls meanwhile: {program}"
    return Seen(measured is not None and measured.bytes_per_core[0] >= _HELD_MIB * MIB, text)


# --- operators, holders, failures -----------------------------------------------------------------


def fallback_list(context: Context) -> Seen:
    facts = work(context, "eager").need()
    return Seen(bool(facts["executed"]) and facts["finite"], _shown(facts))


def busy_listed(context: Context) -> Seen:
    with _living(context, "holding", 1) as (_, process):
        listed = device.busy(context.cores)
        process.kill()
        process.wait()
        left = device.wait_idle(context.cores, 60)
    seen = process.pid in [one.pid for one in listed]
    text = f"pid {process.pid}; listed: {listed}; 60 s after its end: {left or 'idle'}"
    return Seen(seen and not left, text)


def core_exclusive(context: Context) -> Seen:
    with _living(context, "holding", 1):
        marker = context.folder / "second"
        worker = work(context, "holding", marker, 1, limit_s=120)
    if worker.facts is not None and worker.code == 0:
        return Seen(False, f"the second process got the core, too\n{worker.told}")
    found = signature(worker.out)
    return Seen(found == BUSY, f"signature {found}; {worker.told}")


def compile_failure_raises(context: Context) -> Seen:
    option = {"NEURON_CC_FLAGS": "--this-option-does-not-exist"}
    shown = []
    for kind, extra in (("plain", option), ("sort", {})):
        strict = _broken(context, kind, extra, fallback=None)
        loose = _broken(context, kind, extra, fallback="unset")
        shown.append(f"{kind}, with the variable: {strict.told}\nwithout: {loose.told}")
        if strict.code != 0 or loose.code != 0:
            (context.shared / "failure.txt").write_text(strict.out if strict.code else loose.out)
            return Seen(strict.code not in (0, None), "\n\n".join(shown))
    raise NotTried("nothing that was tried failed to compile:\n" + "\n\n".join(shown))


def _broken(
    context: Context, kind: str, extra: Mapping[str, str], *, fallback: str | None
) -> Worker:
    name = f"{kind}-{'loose' if fallback else 'strict'}"
    environment = core_environment(context, graphs=context.folder / name) | dict(extra)
    if fallback:
        environment.pop("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", None)
    return work(context, "broken_graph", kind, environment=environment)


def compile_failure_text(context: Context) -> Seen:
    path = context.shared / "failure.txt"
    if not path.exists():
        raise NotTried("compile-failure-raises saw no failure")
    text = path.read_text()
    found = signature(text)
    return Seen(found is not None, f"signature {found}; the text:\n{tail(text)}")


# --- a process that lives while something is looked at --------------------------------------------


@contextlib.contextmanager
def _living(
    context: Context,
    name: str,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[Mapping[str, Any], subprocess.Popen[bytes]]]:
    """A worker that told its facts and lives until the block ends; WorkerFailed if it does not."""
    marker = context.folder / f"{name}.marker"
    log = context.folder / f"{name}-living.log"
    marker.touch()
    given = core_environment(context) if environment is None else environment
    process = start(context, name, marker, *arguments, environment=given, log=log)
    try:
        until = time.monotonic() + _START_S
        while process.poll() is None and read(log).facts is None and time.monotonic() < until:
            time.sleep(0.1)
        yield read(log, process.poll() or 0).need(), process
    finally:
        marker.unlink(missing_ok=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()


def _shown(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True, default=str)
