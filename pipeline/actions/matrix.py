"""From jobs to what GitHub must know to start them: the outputs that a workflow's matrix reads.

Only ids and GitHub's own business pass here; what a job runs travels in the plan's artifact.
Limits: https://docs.github.com/en/actions/reference/limits
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import ceil

from pipeline import script
from pipeline.catalog import Catalog, Runner
from pipeline.errors import UsageError
from pipeline.pool import CORES_PER_DEVICE
from pipeline.record import Job, Plan, Skipped, dump
from pipeline.words import Target

MAX_MATRIX = 256
"""Jobs of one matrix; above it GitHub starts none. Slices are a matrix, too."""

MAX_MINUTES = 5 * 24 * 60
"""What a job may take on a machine of one's own; on a hosted one GitHub ends it after 6 h."""

MAX_OUTPUT_BYTES = 950_000
"""Outputs of one job, by GitHub's count: 1 MB, in UTF-16. The rest is for other outputs."""

MAX_WAIT_S = 20 * 3600
"""A job that finds no machine of one's own for 24 h is cancelled; expectations may be off."""

SELF_HOSTED = "self-hosted"
"""The label that GitHub gives to every machine of one's own; it ignores the case of letters."""


@dataclass(frozen=True)
class Entry:
    """One job as its matrix has it.

    labels: `runs-on`. image: container image, "" = straight on the machine. options: of `docker
    create`, never empty. minutes: `timeout-minutes`. packages: pip requirements with a space
    between, to be installed beside what the image, or the machine where there is none, has.
    """

    id: str
    labels: tuple[str, ...]
    image: str
    options: str
    minutes: int
    packages: str


def entries(jobs: Iterable[Job], catalog: Catalog) -> list[Entry]:
    """The entries of jobs, in their order; labels and machines are what the list says.

    A job on the device whose stack names no image runs on the machine itself, which must have
    torch, torch-neuronx and the compiler at the stack's versions; runs on another version end in
    ERROR (wrong_stack).
    """
    return [_entry(job, catalog.runners[job.runner]) for job in jobs]


def startable(plan: Plan, catalog: Catalog) -> Plan:
    """The plan without jobs that would wait too long for a machine of one's own.

    All jobs are queued at once, and a class has so many machines. What is left out stays due: a
    cancelled job's runs would end in ERROR instead, and be retried all the same.
    """
    free = {
        name: [0] * runner.machines
        for name, runner in catalog.runners.items()
        if SELF_HOSTED in map(str.casefold, runner.labels)
    }
    kept: list[Job] = []
    left_out: list[Skipped] = []
    for job in plan.jobs:
        begin = min(free.get(job.runner, [0]))
        if begin > MAX_WAIT_S:
            wait = f"no {job.runner} is free for {begin / 3600:.0f} h, and no job can wait so long"
            left_out += (
                Skipped(run_id=run.run_id, reason=f"due ({run.reason}), but {wait}")
                for run in job.runs
            )
            continue
        kept.append(job)
        if job.runner in free:
            heapq.heapreplace(free[job.runner], begin + job.estimated_s)
    return plan.model_copy(update={"jobs": tuple(kept), "skipped": (*plan.skipped, *left_out)})


def _entry(job: Job, runner: Runner) -> Entry:
    first = job.runs[0]
    on_device = first.stack.target is Target.NEURON
    return Entry(
        id=job.job_id,
        labels=runner.labels,
        image=(first.stack.image or "") if on_device else "",
        options=" ".join(_options(runner, on_device=on_device)),
        minutes=min(MAX_MINUTES, ceil(job.limit_s / 60)),
        packages=" ".join(
            script.requirements(first.stack, first.extra_packages, beside_image=True)
        ),
    )


def _options(runner: Runner, *, on_device: bool) -> list[str]:
    """Options of `docker create`: the devices by name, and nothing like --privileged.

    All devices of the machine, the first one first: they have to be neighbours, and a job has the
    machine for itself. A class with fewer cores than a device has still needs the device.
    """
    devices = ceil(runner.cores / CORES_PER_DEVICE) if on_device else 0
    return [
        *(f"--device=/dev/neuron{number}" for number in range(devices)),
        # The runner makes `tail` the first process of a job's container, which reaps no orphans:
        # ranks whose launcher was killed would stay as zombies and look alive to whoever waits.
        "--init",
        # Docker gives /dev/shm 64 MB, too little for collectives that exchange through it; which of
        # the device's do is not documented. Half of the memory is what Linux gives the machine
        # itself (tmpfs(5)), where readers replay: a bound, no reservation. Not --ipc=host: what one
        # job leaves there would meet the next.
        f"--shm-size={max(1, int(runner.host_gib / 2))}g",
    ]


def outputs(plan: Plan, catalog: Catalog) -> dict[str, str]:
    """Step outputs of a plan, by name.

    jobs: JSON list of entries, `[]` when there are none, or more than one matrix holds. slices:
    JSON list of such lists, `[]` unless there are so many. runs: number of runs that must end in a
    row, the refused ones included. digest: SHA-256 of the plan's file: it travels as an artifact,
    which every job of the run may replace, and outputs are written by their own job alone.

    UsageError when GitHub would take so many neither.
    """
    made = [asdict(entry) for entry in entries(plan.jobs, catalog)]
    parts = [made[at : at + MAX_MATRIX] for at in range(0, len(made), MAX_MATRIX)]
    found = {
        "jobs": _json(made if len(parts) <= 1 else []),
        "slices": _json(parts if len(parts) > 1 else []),
        "runs": str(sum(1 for _ in plan.runs)),
        "digest": sha256(dump(plan).encode()).hexdigest(),
    }
    size = sum(2 * (len(name) + len(value)) for name, value in found.items())
    if size > MAX_OUTPUT_BYTES or len(parts) > MAX_MATRIX:
        raise UsageError(
            f"{len(made)} jobs are more than one run of a workflow can start: their entries take "
            f"{size:,} bytes, and {MAX_OUTPUT_BYTES:,} may pass from job to job",
            remedy="set a budget, or select fewer models; what is left out is due again next time",
        )
    return found


def _json(value: Sequence[object]) -> str:
    return json.dumps(value, separators=(",", ":"))
