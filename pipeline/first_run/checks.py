"""Every assumption this code makes about the device, in an order that is safe for the device.

What reads only comes first, then what uses one core, then ranks and whole runs; what breaks
things on purpose comes last. Sources name sections of TRAINIUM.md, the project's notes on what is
publicly known of the device.
"""

from __future__ import annotations

from pipeline.first_run.check import (
    ENVIRONMENT,
    GRAPH,
    RUN,
    SIGNATURES,
    TORCH,
    WORK,
    Check,
    Place,
)
from pipeline.first_run.checks_single import ONE_CORE, READING

_RUNS = ("compiled-graph", "run-one-core")

_RANKS = (
    Check(
        "process-group",
        'Ranks with one core each form a group of backend "neuron", and all_reduce adds.',
        "5.1",
        (WORK, ENVIRONMENT),
        "two ranks, the group before anything touches the device",
        "probes_ranks",
        cores=2,
        needs=TORCH,
        limit_s=900,
    ),
    Check(
        "set-device-before-group",
        "Before the group exists, set_device_index(1) fails on a rank that sees one core.",
        "2.4, 3.6 (why run.py makes the group itself)",
        (WORK,),
        "calls it in a process whose LOCAL_RANK is 1",
        "probes_ranks",
        cores=2,
        needs=TORCH,
    ),
    Check(
        "ranks-without-pin",
        "Without NEURON_RT_VISIBLE_CORES each rank takes the core of its LOCAL_RANK.",
        "5.1",
        (Place(RUN, "visible_core"),),
        "two ranks without the variable, if the machine's cores 0 and 1 are free",
        "probes_ranks",
        cores=2,
        needs=("process-group",),
        limit_s=900,
    ),
    Check(
        "gloo-beside",
        "A gloo group beside the neuron group carries CPU tensors.",
        "3.7, 5.1, 9.3 (not found)",
        (WORK,),
        "a sub-group of backend gloo, a broadcast and a barrier in it",
        "probes_ranks",
        cores=2,
        needs=("process-group",),
        limit_s=900,
    ),
)

_WHOLE_RUNS = (
    Check(
        "run-one-core",
        "run.py on one core: two graphs, nothing new on the second call, the CPU's tokens.",
        "3.4, 9.1",
        (WORK, Place(RUN, "generate"), Place(RUN, "empty_cache")),
        "a small trained Qwen3 through the rendered script",
        "probes_runs",
        cores=1,
        needs=GRAPH,
        limit_s=3600,
    ),
    Check(
        "run-restored",
        "The same run with the graphs that the first one left compiles nothing.",
        "4.3, 4.4",
        (Place("pipeline/cache.py", "restore"), Place("pipeline/cache.py", "used_keys")),
        "runs again with a copy of the *.neff files that the first run left",
        "probes_runs",
        cores=1,
        needs=("run-one-core",),
        limit_s=1800,
    ),
    Check(
        "run-two-cores",
        "run.py on two cores, tensor parallel: the CPU's tokens on both ranks.",
        "3.6, 5.1",
        (WORK, Place("pipeline/data/parallel_plans.json", "qwen3")),
        "the same model over two ranks",
        "probes_runs",
        cores=2,
        needs=("run-one-core", "process-group"),
        limit_s=3600,
    ),
    Check(
        "run-experts",
        'A mixture of experts compiles with experts_implementation="batched_mm".',
        "3.4, 8.1",
        (WORK, Place(SIGNATURES, "neuron-unsupported-operator")),
        "a small trained Qwen3-MoE on one core",
        "probes_runs",
        cores=1,
        needs=_RUNS,
        limit_s=3600,
    ),
    Check(
        "run-picture",
        "A model that looks at a picture runs through the same script.",
        "8.1",
        (Place(RUN, "prepare"), WORK),
        "a small trained Qwen2.5-VL on one core",
        "probes_runs",
        cores=1,
        needs=_RUNS,
        limit_s=3600,
    ),
)

_BREAKING = (
    Check(
        "bad-token",
        "An index outside an embedding raises; it does not read something else in silence.",
        "6.1 (1006), 8.1",
        (Place(RUN, "prepare"), Place(SIGNATURES, "neuron-out-of-bounds")),
        "looks up row 1000 of an embedding with 16 rows, compiled",
        "probes_breaking",
        cores=1,
        needs=GRAPH,
        limit_s=900,
    ),
    Check(
        "out-of-memory",
        "Too large a tensor fails with a text known as neuron-out-of-memory.",
        "6.2",
        (Place(SIGNATURES, "neuron-out-of-memory"),),
        "asks for twice a core's memory in tensors of 1 GiB",
        "probes_breaking",
        cores=1,
        needs=TORCH,
        limit_s=900,
    ),
    Check(
        "three-ranks",
        "Three ranks form no group (world sizes are powers of two).",
        "5.3 (one user's report)",
        (Place("pipeline/catalog.py", "Cores"),),
        "three ranks",
        "probes_breaking",
        cores=3,
        needs=("process-group",),
        limit_s=600,
    ),
    Check(
        "rank-killed",
        "After a rank is killed, ending the process group frees the cores for the next run.",
        "5.4, 6.3",
        (Place("pipeline/processes.py", "end"), Place("pipeline/device/listing.py", "wait_idle")),
        "kills one of two ranks inside a collective, ends the group, forms a new one",
        "probes_breaking",
        cores=2,
        needs=("process-group",),
        limit_s=900,
    ),
)

CHECKS: tuple[Check, ...] = (*READING, *ONE_CORE, *_RANKS, *_WHOLE_RUNS, *_BREAKING)


def table() -> str:
    """The checks as a Markdown table, in order."""
    rows = [("check", "cores", "what is assumed", "how it is tried", "mended in"), ("---",) * 5]
    for check in CHECKS:
        places = "<br>".join(f"`{place}`" for place in check.places)
        cores = str(check.cores or "none")
        rows.append((f"`{check.id}`", cores, check.assumption, check.how, places))
    escaped = ([cell.replace("|", r"\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)
