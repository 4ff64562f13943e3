"""Probes that break things on purpose; they come last."""

from __future__ import annotations

import time

from pipeline import device
from pipeline.first_run.probes_ranks import group, judge_ranks, start_ranks
from pipeline.first_run.probing import Context, Seen, finish, signature, work

_JOIN_S = 300


def bad_token(context: Context) -> Seen:
    worker = work(context, "bad_index")
    text = f"signature {signature(worker.out)}; {worker.told}"
    return Seen(worker.code not in (0, None), text)


def out_of_memory(context: Context) -> Seen:
    worker = work(context, "too_much", 48)
    found = signature(worker.out)
    return Seen(found == "neuron-out-of-memory", f"signature {found}; {worker.told}")


def three_ranks(context: Context) -> Seen:
    seen = judge_ranks(group(context, 3, limit_s=300))
    return Seen(not seen.holds, seen.text)


def rank_killed(context: Context) -> Seen:
    marker = context.folder / "joined"
    ranks = start_ranks(context, 2, "stuck_rank", marker)
    until = time.monotonic() + _JOIN_S
    while len(list(context.folder.glob("joined-*"))) < 2 and time.monotonic() < until:
        if any(process.poll() is not None for process, _ in ranks):
            break
        time.sleep(0.1)
    joined = len(list(context.folder.glob("joined-*")))
    ranks[1][0].kill()
    time.sleep(5)
    alone = "had ended" if ranks[0][0].poll() is not None else "still ran"
    workers = [finish(process, log, 0.0) for process, log in ranks]
    left = device.wait_idle(context.cores)
    again = judge_ranks(group(context, 2))
    text = (
        f"{joined} of 2 ranks were in the collective; 5 s after rank 1 was killed rank 0 {alone}: "
        f"{workers[0].told}\n60 s after both were ended: {left or 'idle'}\nthe next group: "
        f"{'formed' if again.holds else 'failed'}\n{again.text}"
    )
    return Seen(joined == 2 and not left and again.holds, text)
