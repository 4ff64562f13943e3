"""Probes with several ranks, started as run.py starts them: one process and one core each."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from pipeline import device
from pipeline.first_run.probing import (
    Context,
    NotTried,
    Seen,
    Worker,
    core_environment,
    finish,
    start,
    work,
)


def process_group(context: Context) -> Seen:
    return judge_ranks(group(context, 2))


def set_device_before_group(context: Context) -> Seen:
    worker = work(context, "set_device", environment=core_environment(context, 1, 2))
    return Seen(worker.code != 0 and worker.facts is None, worker.told)


def ranks_without_pin(context: Context) -> Seen:
    listed = device.devices()
    if not {0, 1} <= set(device.free_cores(listed)):
        raise NotTried("the machine's cores 0 and 1 are not free")
    return judge_ranks(group(context, 2, pinned=False))


def gloo_beside(context: Context) -> Seen:
    workers = group(context, 2, "gloo")
    seen = judge_ranks(workers)
    told = [worker.facts.get("broadcast") if worker.facts else None for worker in workers]
    return Seen(seen.holds and told == [[7], [7]], seen.text)


def judge_ranks(workers: Sequence[Worker]) -> Seen:
    """Whether every rank told the sum over all, from its own core."""
    text = "\n\n".join(f"rank {rank} {worker.told}" for rank, worker in enumerate(workers))
    right = all(
        worker.code == 0
        and worker.facts is not None
        and worker.facts["sum"] == worker.facts["expected"]
        for worker in workers
    )
    return Seen(right, text)


def group(
    context: Context, world: int, gloo: str = "none", *, pinned: bool = True, limit_s: float = 400
) -> list[Worker]:
    """A group of `world` ranks; what each told, all ended after `limit_s` seconds.

    Once a rank has failed the others wait in a collective: they get a few seconds more.
    """
    ranks = start_ranks(context, world, "rank", gloo, pinned=pinned)
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        codes = [process.poll() for process, _ in ranks]
        if None not in codes:
            break
        if any(codes):
            until = min(until, time.monotonic() + 20)
        time.sleep(0.1)
    return [finish(process, log, 0.0) for process, log in ranks]


def start_ranks(
    context: Context, world: int, name: str, *arguments: object, pinned: bool = True
) -> list[tuple[subprocess.Popen[bytes], Path]]:
    """Start `world` ranks of worker `name`: each process with its log."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    ranks = []
    for rank in range(world):
        environment = core_environment(context, rank, world, port)
        if not pinned:
            del environment["NEURON_RT_VISIBLE_CORES"]
        log = context.folder / f"{name}-{port}-{rank}.log"
        process = start(context, name, *arguments, environment=environment, log=log)
        ranks.append((process, log))
    return ranks
