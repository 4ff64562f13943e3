"""How near the planner's jobs come to the shortest possible time on N machines of two classes.

    python -m benchmarks.schedule_makespan

No device and no network: 1 000 models are drawn with a fixed seed, placed, estimated, divided over
the machines and simulated with the planner's own code (pipeline.schedule, pipeline.pool). All are
planned as runs that never ran. The sizes are those of the shipped list, whose models were taken
from the popular ones of the Hub, each varied by a log-normal factor; a second mix is of smaller
models, as the Hub's long tail is. The noisy figures execute the same jobs with times that differ
from what was planned.

The lower bound is the largest of: the longest run; the core-seconds of all runs over all cores, and
of those that only the large class can take over its cores; the same for compilation slots and for
host memory. No schedule can be shorter; the best one may be longer. "One model a machine" is what
the same machines take when each executes one model at a time, the longest first. A machine cannot
gain more than its cores allow: four at most on the small class, and with models on 16 cores four on
the large one, so the second goal depends on the fleet, and the bound's own ratio is printed.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import sys
import time
from collections.abc import Mapping, Sequence

from pipeline.asking import Candidate
from pipeline.catalog import Runner
from pipeline.estimate import Durations
from pipeline.placement import CORE_COUNTS, GIB, Margin, host_bytes
from pipeline.record import Placement, Run, StackVersions
from pipeline.schedule import Timed, Work, machine_of, makespan, schedule, simulate
from pipeline.words import Parallelism, Target, Task

# fmt: off
LIST_BILLIONS = (
    7, 1.5, 16, 1.2, 7, 7, 0.27, 1, 2.6, 9, 30, 106, 21, 117, 3.3, 8, 1.2, 1.1, 1.2, 3.2, 8, 70,
    7.2, 24, 47, 1.5, 7, 7.3, 2.8, 3.8, 14.7, 42, 14.3, 30.5, 0.5, 7.6, 72.7, 0.6, 4, 8.2, 32.8,
    0.135, 3, 3, 0.12, 0.56, 1.6, 8.8, 2.9, 4.3, 0.9, 10.7, 109, 0.9, 7, 7.6, 12.7, 24, 2.2,
    4.4, 8.3, 31, 0.26, 8.5,
)
# fmt: on
"""Parameters, in billions, of the models of models.yaml, by their names and cards."""

SMALL_BILLIONS = (0.12, 0.135, 0.27, 0.36, 0.5, 0.5, 0.6, 1, 1.1, 1.2, 1.5, 1.7, 2, 3, 4, 7, 8, 14)
"""An assumption: what people upload and fine-tune most is small."""

MIXES = {"shipped list": LIST_BILLIONS, "smaller": SMALL_BILLIONS}
SIZE_SIGMA = 0.3
NOISE_SIGMA = 0.3
"""Standard deviations of the logarithm: of a size against the list's, and of what a run takes
against what was planned (two thirds within a factor of 1.35). Assumptions."""

SMALL, LARGE = "trn2-3xlarge", "trn2-48xlarge"
CORE_GIB = 24
CAP_S = 240 * 60
MARGIN = Margin()
CACHE_SHARE = 0.02
GOAL_BOUND, GOAL_ALONE = 1.10, 1 / 6


def runners(small: int, large: int) -> dict[str, Runner]:
    """The shipped list's two device classes, with so many machines each."""
    of_class = {
        SMALL: {"cores": 4, "host_gib": 124, "machines": small},
        LARGE: {"cores": 64, "host_gib": 2048, "machines": large},
    }
    return {
        name: Runner.model_validate({"labels": [name], "core_gib": CORE_GIB, **fields})
        for name, fields in of_class.items()
    }


def candidates(count: int, billions: Sequence[float], seed: int) -> list[Candidate]:
    """So many models, each placed on the fewest cores that hold it, on every class with room."""
    draw = random.Random(seed)  # noqa: S311 -- a fixed draw, not a secret
    stack = StackVersions(
        name="sdk",
        target=Target.NEURON,
        library="transformers",
        library_version="5.24.0",
        torch="2.14.0",
        neuronx_cc="2.28.7631.0",
        torch_neuronx="2.14.3.0",
    )
    classes = runners(1, 1)
    durations = Durations()
    found: list[Candidate] = []
    while len(found) < count:
        size = int(draw.choice(billions) * draw.lognormvariate(0, SIZE_SIGMA) * 2e9)
        rungs = [place(size, cores) for cores in CORE_COUNTS]
        fitting = [rung for rung in rungs if rung.core_bytes <= CORE_GIB * GIB]
        if not fitting:  # refused: no machine is needed
            continue
        model_id = f"mix/model-{len(found):04}"
        runs = [
            Run(
                run_id=str(stack.run_id(model_id)),
                model_id=model_id,
                revision=None,
                task=Task.TEXT_GENERATION,
                model_type="llama",
                parameters=size // 2,
                checkpoint_bytes=size,
                stack=stack,
                runner=name,
                core_bytes=CORE_GIB * GIB,
                placement=fitting[0],
                host_bytes=host_bytes(fitting[0], Target.NEURON),
                refusal=None,
                dtype="bfloat16",
                new_tokens=32,
                prompts=("Once upon a time",),
                prefill_chunk=128,
                limit_s=CAP_S,
                estimated_s=1,
                script_sha256="0" * 64,
                reason="never run",
            )
            for name, runner in classes.items()
            if fitting[0].cores <= runner.cores
        ]
        expected = durations.expect(runs[0], CAP_S)
        times = {"estimated_s": expected.run_s, "limit_s": expected.limit_s}
        first, *others = (run.model_copy(update=times) for run in runs)
        found.append(Candidate(first, expected, tuple(others)))
    return found


def place(size: int, cores: int) -> Placement:
    """Weights of `size` bytes over so many cores, evenly."""
    held = size // cores
    return Placement(
        cores=cores,
        parallelism=Parallelism.TENSOR if cores > 1 else Parallelism.NONE,
        weight_bytes=held,
        cache_bytes=int(CACHE_SHARE * held),
        margin_bytes=MARGIN.of(held),
        reason="by size",
    )


Times = Mapping[str, tuple[float, float]]
"""Run id -> seconds it holds its cores, and of them until it has compiled."""


def lower_bounds(found: Sequence[Candidate], times: Times, classes: Mapping[str, Runner]) -> Bounds:
    """Seconds that no schedule goes below, by what says so."""
    machines = {name: machine_of(runner) for name, runner in classes.items()}
    bounds = {"longest run": max(held for held, _ in times.values())}
    for where in ((LARGE,), (SMALL, LARGE)):
        inside = [
            (work, *times[work.options[0].run_id])
            for work in map(Work.of, found)
            if {run.runner for run in work.options} <= set(where)
        ]
        name = "large class" if len(where) == 1 else "all machines"

        def total(what: str, where: tuple[str, ...] = where) -> int:
            return sum(classes[key].machines * getattr(machines[key], what) for key in where)

        bounds[f"cores, {name}"] = sum(work.cores * held for work, held, _ in inside) / total(
            "cores"
        )
        bounds[f"compilers, {name}"] = sum(until for *_, until in inside) / total("compilations")
        bounds[f"host memory, {name}"] = sum(
            held * min(work.options[0].host_bytes or 0, machines[where[-1]].host_bytes)
            for work, held, _ in inside
        ) / total("host_bytes")
    return bounds


Bounds = dict[str, float]


def one_a_machine(found: Sequence[Candidate], times: Times, classes: Mapping[str, Runner]) -> float:
    """Makespan when a machine executes one model at a time: the longest first, to whichever machine
    that may take it is free first; those that need the large class before the others."""
    free = {name: [0.0] * runner.machines for name, runner in classes.items()}
    work = sorted(
        map(Work.of, found), key=lambda one: (len(one.options), -times[one.options[0].run_id][0])
    )
    for one in work:
        name = min((run.runner for run in one.options), key=lambda key: free[key][0])
        heapq.heapreplace(free[name], free[name][0] + times[one.options[0].run_id][0])
    return max(max(hours) for hours in free.values())


def report(mix: str, count: int, small: int, large: int, seed: int) -> bool:
    """Print one mix's figures; whether both goals hold as planned."""
    classes = runners(small, large)
    found = candidates(count, MIXES[mix], seed)
    began = time.perf_counter()
    jobs = schedule(found, classes)
    took = time.perf_counter() - began
    planned: dict[str, tuple[float, float]] = {}
    noisy: dict[str, tuple[float, float]] = {}
    draw = random.Random(seed + 1)  # noqa: S311 -- a fixed draw, not a secret
    for work in map(Work.of, found):
        run_id = work.options[0].run_id
        factor = draw.lognormvariate(0, NOISE_SIGMA)
        planned[run_id] = work.held_s, work.compiling_s
        noisy[run_id] = work.held_s * factor, work.compiling_s * factor
    print(
        f"{mix}: {count} models on {small} x {SMALL} and {large} x {LARGE}, seed {seed}: "
        f"{len(jobs)} jobs, planned in {took:.1f} s"
    )
    cores = [work.cores for work in map(Work.of, found)]
    print("  models by cores: " + ", ".join(f"{n}: {cores.count(n)}" for n in CORE_COUNTS))
    holds = True
    for name, times in (("as planned", planned), (f"noise {NOISE_SIGMA}", noisy)):
        executed = [
            job.model_copy(
                update={
                    "estimated_s": math.ceil(
                        simulate(job.machine, [Timed(run, *times[run.run_id]) for run in job.runs])
                    )
                }
            )
            for job in jobs
        ]
        whole = makespan(executed, classes)
        bounds = lower_bounds(found, times, classes)
        which, bound = max(bounds.items(), key=lambda pair: pair[1])
        alone = one_a_machine(found, times, classes)
        print(
            f"  {name}: makespan {whole / 3600:.2f} h; lower bound {bound / 3600:.2f} h ({which}), "
            f"ratio {whole / bound:.3f}; one model a machine {alone / 3600:.2f} h, "
            f"ratio {whole / alone:.3f} (1/{alone / whole:.1f}; the bound: 1/{alone / bound:.1f})"
        )
        if name == "as planned":
            print(
                "    bounds, h: "
                + ", ".join(f"{what} {value / 3600:.2f}" for what, value in bounds.items())
            )
            holds = whole <= GOAL_BOUND * bound and whole <= GOAL_ALONE * alone
    return holds


def main() -> int:
    """0 = the goals hold for planned durations of every mix."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--small", type=int, default=2, help=f"machines of class {SMALL}")
    parser.add_argument("--large", type=int, default=4, help=f"machines of class {LARGE}")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    good = [report(mix, asked.models, asked.small, asked.large, asked.seed) for mix in MIXES]
    said = (f"{mix} {'met' if ok else 'MISSED'}" for mix, ok in zip(MIXES, good, strict=True))
    print(
        f"goals as planned, at most {GOAL_BOUND} of the bound and 1/6 of one model a machine: "
        + ", ".join(said)
    )
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
