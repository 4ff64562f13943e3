"""From placed runs to jobs: full machines, bounded jobs, and true expectations of time."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from benchmarks import schedule_makespan as benchmark
from pipeline.asking import Candidate
from pipeline.catalog import Runner
from pipeline.estimate import Expected
from pipeline.record import Job, Machine, Run
from pipeline.schedule import (
    MAX_JOB_S,
    MOST_JOB_S,
    Load,
    Timed,
    Work,
    machine_time,
    makespan,
    schedule,
    simulate,
)
from tests import papers

GIB = 1024**3
HOUR = 3600


def runner(cores: int = 4, **changes: Any) -> Runner:
    """A class of one machine with a compiler for every core, so that cores alone are scarce."""
    fields = {"labels": ("x",), "cores": cores, "core_gib": 24.0, "host_gib": 2048.0}
    return Runner.model_validate({"compilations": cores, **fields, **changes})


def candidate(
    name: str = "a/a",
    *,
    cores: int = 1,
    seconds: int = HOUR,
    on: Sequence[str] = ("small",),
    compiling_s: int = 0,
    check_s: int = 0,
    host_gib: float = 1,
    limit_s: int | None = None,
    **changes: Any,
) -> Candidate:
    """A run that may go to each class of `on`, the first being its own."""
    runs = [
        papers.run(
            name,
            runner=where,
            placement=papers.placement(cores),
            host_bytes=int(host_gib * GIB),
            estimated_s=seconds,
            limit_s=limit_s or 2 * seconds,
            core_bytes=(24 + number) * GIB,
            usd_per_hour=float(number),
            **changes,
        )
        for number, where in enumerate(on)
    ]
    expected = Expected(seconds, compiling_s, check_s, limit_s or 2 * seconds, "stated")
    return Candidate(runs[0], expected, tuple(runs[1:]))


def many(count: int, **fields: Any) -> list[Candidate]:
    return [candidate(f"m/{number}", **fields) for number in range(count)]


def where(jobs: Iterable[Job]) -> dict[str, str]:
    """Model id -> runner class; each model once."""
    pairs = [(run.model_id, job.runner) for job in jobs for run in job.runs]
    assert len({model for model, _ in pairs}) == len(pairs)
    return dict(pairs)


# --- simulation ---------------------------------------------------------------------------------


def timed(cores: int = 1, held_s: float = 100, compiling_s: float = 0, **fields: Any) -> Timed:
    asked = candidate(cores=cores, seconds=round(held_s), **fields).run
    return Timed(asked, held_s, compiling_s)


@pytest.mark.parametrize(
    ("machine", "runs", "seconds"),
    [
        ((4, 100, 4), [], 0),
        ((4, 100, 4), [timed()], 100),
        ((4, 100, 4), [timed()] * 4, 100),
        ((4, 100, 4), [timed()] * 5, 200),
        ((4, 100, 4), [timed(4), timed(4)], 200),
        ((4, 100, 4), [timed(2), timed(2), timed(1), timed(1)], 200),
        # One compiler: the second starts when the first has compiled.
        ((4, 100, 1), [timed(compiling_s=60), timed(compiling_s=60)], 160),
        ((4, 100, 2), [timed(compiling_s=60)] * 4, 160),
        # 60 of 100 GiB each: one after the other.
        ((4, 100, 4), [timed(host_gib=60), timed(host_gib=60)], 200),
        # More than the machine has: alone, not never.
        ((4, 100, 4), [timed(host_gib=500), timed(host_gib=1)], 200),
        # Longest first: the long one does not come last.
        ((2, 100, 2), [timed(held_s=50), timed(held_s=50), timed(held_s=100)], 100),
    ],
)
def test_simulation_by_hand(
    machine: tuple[int, int, int], runs: list[Timed], seconds: float
) -> None:
    """Cores, compilers and host memory are shared; the longest that can start does."""
    cores, host_gib, compilations = machine
    has = Machine(cores=cores, host_bytes=host_gib * GIB, compilations=compilations)
    assert simulate(has, runs) == seconds


# --- jobs ---------------------------------------------------------------------------------------


def test_nothing_to_schedule() -> None:
    """No run, no job."""
    assert schedule([], {"small": runner()}) == ()
    assert machine_time([], {"small": runner()}) == 0


def test_runs_share_their_machine() -> None:
    """One job for one machine: side by side, the longest first, not one after the other."""
    found = [candidate(f"m/{n}", seconds=n * 600) for n in (1, 4, 2, 3)]
    (job,) = schedule(found, {"small": runner(2)})
    assert [run.model_id for run in job.runs] == ["m/4", "m/3", "m/2", "m/1"]
    assert (job.job_id, job.runner, job.labels) == ("small-1", "small", ("x",))
    assert job.machine == Machine(cores=2, host_bytes=2048 * GIB, compilations=2)
    # 4 and 1 on one core, 3 and 2 on the other.
    assert job.estimated_s == 5 * 600


def test_the_check_holds_the_cores_too() -> None:
    """A job's expectation includes the check of each run, which a run's own does not."""
    (job,) = schedule(many(2, seconds=600, check_s=100), {"small": runner(1)})
    assert job.estimated_s == 2 * 700
    assert [run.estimated_s for run in job.runs] == [600, 600]


def test_runs_are_spread_over_the_machines_of_a_class() -> None:
    """Two machines take half of the work each; jobs have names of their own."""
    jobs = schedule(many(8), {"small": runner(2, machines=2)})
    assert [(job.job_id, len(job.runs)) for job in jobs] == [("small-1", 4), ("small-2", 4)]
    assert all(job.estimated_s == 2 * HOUR for job in jobs)
    where(jobs)


def test_no_more_machines_than_help() -> None:
    """Of many machines those are used that shorten the whole: four runs fill one machine."""
    (job,) = schedule(many(4), {"small": runner(4, machines=8)})
    assert len(job.runs) == 4
    jobs = schedule([*many(4), candidate("long/run", cores=4)], {"small": runner(4, machines=8)})
    assert sorted(len(job.runs) for job in jobs) == [1, 4]


def test_the_largest_class_takes_what_the_small_one_cannot() -> None:
    """A run with one option goes nowhere else, however empty the other class is."""
    classes = {"small": runner(4), "large": runner(16)}
    found = [*many(2, on=("small",)), candidate("big/one", cores=16, on=("large",))]
    assert where(schedule(found, classes)) == {"m/0": "small", "m/1": "small", "big/one": "large"}


BOTH = ("small", "large")


def test_a_run_stays_at_home_where_moving_it_helps_nothing() -> None:
    """The list's first class is preferred: a few runs that fill it do not open a larger machine."""
    classes = {"small": runner(4), "large": runner(64)}
    assert set(where(schedule(many(4, on=BOTH), classes)).values()) == {"small"}


def test_flexible_runs_fill_the_larger_class() -> None:
    """Where the small class would take far longer its runs go to the larger one, as its runs."""
    classes = {"small": runner(4), "large": runner(16, labels=("y",))}
    found = [candidate("big/one", cores=16, on=("large",)), *many(40, on=BOTH)]
    jobs = schedule(found, classes)
    assert makespan(jobs, classes) <= 3 * HOUR + 1
    (large,) = [job for job in jobs if job.runner == "large"]
    assert large.labels == ("y",)
    moved = [run for run in large.runs if run.model_id != "big/one"]
    assert moved
    for run in moved:
        assert (run.runner, run.core_bytes, run.usd_per_hour) == ("large", 25 * GIB, 1.0)


@pytest.mark.parametrize(("price", "moves"), [(2.0, True), (2000.0, False)])
def test_the_price_counts(price: float, moves: bool) -> None:
    """A larger class that costs more than it saves in time is left alone; a cheap one is not."""
    classes = {
        "small": runner(1, usd_per_hour=1.0),
        "large": runner(16, usd_per_hour=price),
    }
    used = set(where(schedule(many(16, on=BOTH), classes)).values())
    assert ("large" in used) is moves


@pytest.mark.parametrize(("cores", "seconds"), [(1, 0), (2, 0), (4, HOUR)])
def test_a_wide_run_leaves_compilers_idle(cores: int, seconds: int) -> None:
    """Two compilers of four cores: beside a run on all four no other can use the second."""
    load = Load(Machine(cores=4, host_bytes=100 * GIB, compilations=2))
    work = Work.of(candidate(cores=cores))
    load.add(work, work.options[0])
    assert load.by_compilers == seconds
    assert load.by_cores == HOUR * cores / 4


def test_jobs_are_of_bounded_length() -> None:
    """Work for longer than a job may take becomes several jobs, in the order to take them."""
    jobs = schedule(many(100), {"small": runner(4)})
    assert [job.job_id for job in jobs] == [f"small-{n}" for n in range(1, len(jobs) + 1)]
    assert len(jobs) >= 3
    assert all(job.estimated_s <= MAX_JOB_S for job in jobs)
    assert sum(len(job.runs) for job in jobs) == 100
    assert makespan(jobs, {"small": runner(4)}) <= 1.1 * 25 * HOUR


def test_a_run_longer_than_a_job_may_be_is_not_refused() -> None:
    """It cannot be divided: its job is as long as it is, and what ends meanwhile goes with it."""
    found = [candidate("long/run", seconds=MAX_JOB_S + HOUR), *many(4)]
    (job,) = schedule(found, {"small": runner(4)})
    assert (job.estimated_s, len(job.runs)) == (MAX_JOB_S + HOUR, 5)
    jobs = schedule([*found, candidate("other/run", cores=4)], {"small": runner(4)})
    assert jobs[0].estimated_s == MAX_JOB_S + HOUR
    assert sum(len(job.runs) for job in jobs) == 6


# --- one environment a job ----------------------------------------------------------------------


def test_a_job_is_of_one_stack() -> None:
    """Two stacks never share a job, however empty the machine: a job has one image."""
    found = [
        candidate(f"m/{n}", seconds=(n + 1) * 600, stack=papers.stack(torch=torch))
        for n, torch in enumerate(("2.14.0", "2.13.0", "2.14.0", "2.13.0"))
    ]
    jobs = schedule(found, {"small": runner(4)})
    assert [[run.model_id for run in job.runs] for job in jobs] == [["m/3", "m/1"], ["m/2", "m/0"]]
    assert [job.job_id for job in jobs] == ["small-1", "small-2"]
    assert [job.estimated_s for job in jobs] == [2400, 1800]
    assert machine_time(found, {"small": runner(4)}) == 2400 + 1800


def test_a_job_is_of_one_set_of_packages() -> None:
    """What one model needs beside its stack is not put into another's environment; the order in
    which the list names packages makes no other set."""
    both = ("einops==0.8.1", "timm")
    found = [
        candidate("plain/one"),
        candidate("both/one", extra_packages=both),
        candidate("both/two", extra_packages=tuple(reversed(both))),
        candidate("older/one", extra_packages=("einops==0.8.0", "timm")),
    ]
    jobs = schedule(found, {"small": runner(4)})
    assert [{run.model_id for run in job.runs} for job in jobs] == [
        {"plain/one"},
        {"both/one", "both/two"},
        {"older/one"},
    ]
    assert [job.job_id for job in jobs] == ["small-1", "small-2", "small-3"]


def test_numbers_go_on_over_groups() -> None:
    """By class, then the longest job first, whatever its stack: the order to take them in."""
    classes = {"small": runner(4), "large": runner(16)}
    found = [
        candidate(f"m/{torch}-{cores}", cores=cores, seconds=seconds, on=on, stack=stack)
        for torch, hours in (("2.14.0", (1, 4)), ("2.13.0", (2, 3)))
        for stack in [papers.stack(torch=torch)]
        for cores, on, seconds in (
            (1, ("small",), hours[0] * HOUR),
            (16, ("large",), hours[1] * HOUR),
        )
    ]
    jobs = schedule(found, classes)
    assert [(job.job_id, job.runs[0].stack.torch, job.estimated_s // HOUR) for job in jobs] == [
        ("small-1", "2.13.0", 2),
        ("small-2", "2.14.0", 1),
        ("large-1", "2.14.0", 4),
        ("large-2", "2.13.0", 3),
    ]


# --- limits of jobs -----------------------------------------------------------------------------


def test_a_jobs_limit_has_room_for_every_runs_limit() -> None:
    """Even when each run uses all of its time, one after the other, and one is tried twice."""
    (job,) = schedule(many(3, seconds=600, limit_s=1800), {"small": runner(1)})
    assert job.limit_s >= 4 * 1800
    assert job.limit_s <= MOST_JOB_S


def test_a_jobs_limit_ends_before_its_token() -> None:
    """A day at most; a single run that may take longer is not cut short."""
    (job,) = schedule(many(4, limit_s=10 * HOUR), {"small": runner(1)})
    assert job.limit_s == MOST_JOB_S
    (job,) = schedule([candidate(limit_s=48 * HOUR)], {"small": runner(1)})
    assert job.limit_s == 49 * HOUR


# --- any mix ------------------------------------------------------------------------------------


def mix(seed: int) -> tuple[list[Candidate], Mapping[str, Runner]]:
    draw = random.Random(seed)  # noqa: S311 -- a fixed choice of cases
    torches = ("2.14.0", "2.13.0")[: 1 + seed % 2]
    packages: list[tuple[str, ...]] = [(), (), ("timm",)][: 2 + seed % 3 // 2]
    classes = {
        "small": runner(4, machines=draw.randint(1, 4), compilations=2, host_gib=124.0),
        "large": runner(draw.choice([16, 64]), machines=draw.randint(1, 2), compilations=8),
        "idle": runner(1),
    }
    found = []
    for number in range(draw.randint(1, 60)):
        cores = draw.choice([1, 1, 1, 2, 4, 8, 16])
        seconds = draw.randint(1, 5 * HOUR)
        found.append(
            candidate(
                f"m/{number}",
                cores=cores,
                seconds=seconds,
                on=BOTH if cores <= 4 and draw.random() < 0.8 else ("large",),
                compiling_s=seconds * draw.randint(0, 95) // 100,
                check_s=draw.randint(0, 300),
                host_gib=draw.choice([1, 20, 60, 200]),
                stack=papers.stack(torch=draw.choice(torches)),
                extra_packages=draw.choice(packages),
            )
        )
    return found, classes


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_mix(seed: int) -> None:
    """Every run is in one job, of a class that may take it and of its environment; ids are unique;
    expectations are what the simulation says; the same input gives the same jobs."""
    found, classes = mix(seed)
    jobs = schedule(found, classes)
    assert schedule(found, classes) == jobs
    names = [job.job_id for job in jobs]
    assert len(set(names)) == len(names)
    placed = where(jobs)
    assert sorted(placed) == sorted(one.run.model_id for one in found)
    expected = {one.run.run_id: one.expected for one in found}
    options = {one.run.model_id: (one.run, *one.elsewhere) for one in found}
    for job in jobs:
        assert job.runs == tuple(sorted(job.runs, key=lambda run: -run.estimated_s))
        assert len({(run.stack, run.extra_packages) for run in job.runs}) == 1
        for run in job.runs:
            assert run in options[run.model_id]
            assert run.runner == job.runner
        assert job.estimated_s <= MAX_JOB_S
        assert job.estimated_s <= job.limit_s
        assert simulate(job.machine, [as_planned(run, expected) for run in job.runs]) == (
            job.estimated_s
        )
    booked = sum(job.estimated_s for job in jobs)
    assert machine_time(found, classes) <= booked + len(jobs)


def as_planned(run: Run, expected: Mapping[str, Expected]) -> Timed:
    found = expected[run.run_id]
    return Timed(run, found.run_s + found.check_s, found.compiling_s)


@pytest.mark.parametrize("name", benchmark.MIXES)
def test_a_campaign_comes_near_the_bound(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The benchmark's goals hold on a fleet of three for 400 models: within a tenth of the lower
    bound, and at most a sixth of what one model a machine takes."""
    assert benchmark.report(name, 400, 1, 2, seed=5), capsys.readouterr().out
