"""From placed runs to jobs: which machine executes what, so that the machines stay full. Pure.

Runs share a machine (pipeline.pool says who starts next and on which cores), so a job is planned by
what its runs need together: core-seconds, compilers, host memory. What a job will take is simulated
with the very code that executes it.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from pipeline.asking import Candidate
from pipeline.catalog import Runner
from pipeline.placement import GIB
from pipeline.pool import Dispatcher, Pool
from pipeline.record import Job, Machine, Run, StackVersions

MAX_JOB_S = 12 * 3600
"""No job is planned to take longer, unless a single run does. A job's GITHUB_TOKEN lives 24 h at
most (docs.github.com/en/actions/concepts/security/github_token), so a job may take twice what was
planned. Shorter ones would leave machines idle at the end of each: the longest runs take 4 h."""

MOST_JOB_S = 23 * 3600
"""A job's own limit: the token's 24 h, less one for setting up and for handing over the records.
A job that holds a run whose own limit is longer gets that and an hour."""

_AROUND_S = 30 * 60
"""Room in a job's limit for what is not a run: image and packages, checkout, doctor, upload. An
assumption: an image of 20 GB at 50 MB/s takes seven minutes, and is pulled up to three times."""

_COUNTS = 12
"""So many numbers of machines of a class are tried, evenly spaced in powers, beside all of them."""


@dataclass(frozen=True)
class Work:
    """A run as scheduling sees it.

    options: the run on each class that may take it, the preferred first; all have one number of
    cores. held_s: seconds it holds its cores; compiling_s: of them, until nothing is compiled.
    """

    options: tuple[Run, ...]
    held_s: float
    compiling_s: float

    @classmethod
    def of(cls, candidate: Candidate) -> Work:
        """The work of a placed candidate: the script, then its check, on the same cores."""
        expected = candidate.expected
        return cls(
            (candidate.run, *candidate.elsewhere),
            held_s=expected.run_s + expected.check_s,
            compiling_s=expected.compiling_s,
        )

    @property
    def cores(self) -> int:
        """Cores it holds."""
        placement = self.options[0].placement
        assert placement is not None
        return placement.cores


def machine_of(runner: Runner) -> Machine:
    """What one machine of a class has."""
    return Machine(
        cores=runner.cores, host_bytes=int(runner.host_gib * GIB), compilations=runner.slots
    )


def schedule(candidates: Iterable[Candidate], runners: Mapping[str, Runner]) -> tuple[Job, ...]:
    """The jobs for placed candidates: longest run first in each, ids such as `trn2-3xlarge-1`.

    A job is one container with one Python environment, so its runs are of one stack and need the
    same extra packages: each such group is divided by itself, as though the machines were its own.

    Each run goes to its own class, or to another one with room where that shortens the whole by
    more than it adds to its price: of all divisions that were tried the one with the least product
    of makespan and price is taken, of equals the one closest to the list's preference. Price is
    `usd_per_hour` where every class has it, else the number of cores. Classes come in the list's
    order. Jobs of a class are numbered, whatever their group, in the order in which its machines
    should take them. Same input, same jobs.
    """
    machines: dict[str, list[Load]] = {name: [] for name in runners}
    for work in _groups(candidates):
        for name, loads in divide(work, runners).items():
            machines[name] += loads
    return tuple(
        job for name, loads in machines.items() for job in _jobs(name, runners[name], loads)
    )


def machine_time(candidates: Iterable[Candidate], runners: Mapping[str, Runner]) -> float:
    """Seconds of machine time that `schedule` will about need, without simulating: quick."""
    return sum(
        load.length
        for work in _groups(candidates)
        for loads in divide(work, runners).values()
        for load in loads
    )


def _groups(candidates: Iterable[Candidate]) -> list[list[Work]]:
    """The work of those that may share a job, each group in the order given."""
    groups: dict[tuple[StackVersions, frozenset[str]], list[Work]] = {}
    for candidate in candidates:
        run = candidate.run
        key = run.stack, frozenset(run.extra_packages)
        groups.setdefault(key, []).append(Work.of(candidate))
    return list(groups.values())


def least_time(work: Work, machines: Mapping[str, Machine]) -> float:
    """Machine seconds that a run takes at the very least: its share of the machine it shares."""
    loads = []
    for run in work.options:
        load = Load(machines[run.runner])
        load.add(work, run)
        loads.append(load.filled)
    return min(loads)


# --- dividing runs over machines ----------------------------------------------------------------


@dataclass
class Load:
    """What one machine, or one job, has to do. Amounts are seconds at full use of the machine."""

    machine: Machine
    members: list[tuple[Work, Run]] = field(default_factory=list)
    by_cores: float = 0.0
    by_compilers: float = 0.0
    by_memory: float = 0.0
    longest: float = 0.0

    @property
    def filled(self) -> float:
        """Seconds that the scarcest of cores, compilers and host memory is in use."""
        return max(self.by_cores, self.by_compilers, self.by_memory)

    @property
    def length(self) -> float:
        """Seconds that it takes at the least."""
        return max(self.filled, self.longest)

    def add(self, work: Work, run: Run) -> None:
        """Take on a run."""
        self.members.append((work, run))
        cores, compilers, memory = self._amounts(work, run)
        self.by_cores += cores
        self.by_compilers += compilers
        self.by_memory += memory
        self.longest = max(self.longest, work.held_s)

    def filled_with(self, work: Work, run: Run) -> float:
        """`filled` if the run were added."""
        cores, compilers, memory = self._amounts(work, run)
        return max(self.by_cores + cores, self.by_compilers + compilers, self.by_memory + memory)

    def _amounts(self, work: Work, run: Run) -> tuple[float, float, float]:
        machine = self.machine
        needed = min(run.host_bytes or 0, machine.host_bytes)
        # Compilers for which a wide run leaves no cores stand idle for as long as it runs.
        idle = max(0, machine.compilations - (machine.cores - work.cores))
        return (
            work.held_s * work.cores / machine.cores,
            max(work.compiling_s, work.held_s * idle) / machine.compilations,
            work.held_s * needed / max(1, machine.host_bytes),
        )


def divide(work: Sequence[Work], runners: Mapping[str, Runner]) -> dict[str, list[Load]]:
    """What each machine of each class does; classes in the list's order, idle machines left out."""
    used = {run.runner for one in work for run in one.options}
    runners = {name: runner for name, runner in runners.items() if name in used}
    full = {name: runner.machines for name, runner in runners.items()}
    most = {name: sum(1 for one in work if _can(one, name)) for name in runners}
    full = {name: min(count, most[name]) for name, count in full.items()}
    tried: list[tuple[float, dict[str, list[Load]]]] = []

    def attempt(counts: Mapping[str, int], *, flexible: bool) -> float:
        loads = _spread(work, runners, counts, flexible=flexible)
        score = _score(loads, runners)
        tried.append((score, loads))
        return score

    for flexible in (False, True) if any(len(one.options) > 1 for one in work) else (False,):
        counts = dict(full)
        attempt(counts, flexible=flexible)
        for name, count in full.items():
            scores = {
                fewer: attempt({**counts, name: fewer}, flexible=flexible)
                for fewer in _fewer(count)
            }
            scores[count] = attempt(counts, flexible=flexible)
            counts[name] = min(scores, key=lambda fewer: (scores[fewer], fewer))
    # min() takes the first of equals: home classes come before any other division.
    _, best = min(tried, key=lambda pair: pair[0])
    return {name: [load for load in loads if load.members] for name, loads in best.items()}


def _can(work: Work, name: str) -> bool:
    return any(run.runner == name for run in work.options)


def _fewer(count: int) -> list[int]:
    """Numbers of machines below `count` to try, the smallest first."""
    if count <= _COUNTS:
        return list(range(1, count))
    return sorted({round(count ** (step / _COUNTS)) for step in range(_COUNTS)} - {count})


def _spread(
    work: Sequence[Work],
    runners: Mapping[str, Runner],
    counts: Mapping[str, int],
    *,
    flexible: bool,
) -> dict[str, list[Load]]:
    """Each run on the machine that is least filled with it, the largest run first.

    By amounts alone, though a long run may outlast them: so every machine gets short ones, too,
    which fill the gaps at its end.

    flexible: runs may go to every class with room; those that cannot choose go first.
    """
    loads = {
        name: [Load(machine_of(runners[name])) for _ in range(count)]
        for name, count in counts.items()
    }
    choices = [(one, one.options if flexible else one.options[:1]) for one in work]
    choices.sort(key=lambda pair: (len(pair[1]), -pair[0].held_s * pair[0].cores))
    for one, options in choices:
        load, run = min(
            ((load, run) for run in options for load in loads[run.runner]),
            key=lambda pair: pair[0].filled_with(one, pair[1]),
        )
        load.add(one, run)
    return loads


def _score(loads: Mapping[str, Sequence[Load]], runners: Mapping[str, Runner]) -> float:
    """Makespan times price."""
    priced = all(runners[name].usd_per_hour for name in loads)
    makespan = price = 0.0
    for name, machines in loads.items():
        hourly = (runners[name].usd_per_hour or 0.0) if priced else float(runners[name].cores)
        makespan = max([makespan, *(load.length for load in machines)])
        price += hourly * sum(load.length for load in machines)
    return makespan * price


# --- jobs of a machine --------------------------------------------------------------------------


def _jobs(name: str, runner: Runner, machines: Sequence[Load]) -> Iterator[Job]:
    """The jobs of a class, in the order in which its machines should take them: long ones first."""
    made = [part for machine in machines for part in _parts(machine)]
    made.sort(key=lambda pair: -pair[1])
    for number, (load, estimated_s) in enumerate(made, 1):
        yield Job(
            job_id=f"{name}-{number}",
            runner=name,
            labels=runner.labels,
            machine=load.machine,
            estimated_s=max(1, ceil(estimated_s)),
            limit_s=_limit(load),
            runs=tuple(run for _, run in load.members),
        )


def _parts(load: Load) -> list[tuple[Load, float]]:
    """A machine's work in jobs of bounded length, each with what it is simulated to take."""
    count = max(1, ceil(load.filled / MAX_JOB_S))
    while True:
        parts = [Load(load.machine) for _ in range(count)]
        for one, run in sorted(load.members, key=lambda member: -member[0].held_s):
            best = min(parts, key=lambda part: part.filled_with(one, run))
            best.add(one, run)
        for part in parts:
            part.members.sort(key=lambda member: -member[1].estimated_s)
        timed = [(part, simulate(part.machine, _timed(part))) for part in parts if part.members]
        if all(took <= max(MAX_JOB_S, part.longest) for part, took in timed):
            return timed
        count += 1


def _limit(load: Load) -> int:
    """Seconds after which the job may be ended: every run had its own limit, and one was retried.

    Simulated with every run at its limit. No more than MOST_JOB_S while no single run needs more.
    """
    longest = max(run.limit_s + _check_s(one) for one, run in load.members)
    timed = [
        Timed(run, run.limit_s + _check_s(one), run.limit_s + _check_s(one))
        for one, run in load.members
    ]
    worst = simulate(load.machine, timed) + longest + _AROUND_S
    return ceil(min(worst, max(MOST_JOB_S, longest + 3600)))


def _check_s(work: Work) -> float:
    return work.held_s - work.options[0].estimated_s


def _timed(load: Load) -> list[Timed]:
    return [Timed(run, one.held_s, one.compiling_s) for one, run in load.members]


# --- simulation ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timed:
    """A run with what it takes: seconds it holds its cores, and of them until it has compiled."""

    run: Run
    held_s: float
    compiling_s: float


class _QuickPool(Pool):
    """A pool whose cores all work: what cannot change is kept, and no question is put twice."""

    def __init__(self, cores: int) -> None:
        super().__init__(range(cores))
        self._sets: dict[int, tuple[tuple[int, ...], ...]] = {}
        self._in_vain: set[tuple[int, tuple[int, ...]]] = set()

    def sets(self, count: int, avoid: Collection[int] = frozenset()) -> tuple[tuple[int, ...], ...]:
        if avoid:
            return super().sets(count, avoid)
        if count not in self._sets:
            self._sets[count] = super().sets(count)
        return self._sets[count]

    def take(
        self, count: int, *, avoid: Collection[int] = frozenset(), keep: Collection[int] = ()
    ) -> tuple[int, ...] | None:
        question = (count, tuple(keep))
        if question in self._in_vain:
            return None
        cores = super().take(count, avoid=avoid, keep=keep)
        if cores is None and not avoid:
            self._in_vain.add(question)
        return cores

    def release(self, cores: Collection[int]) -> None:
        super().release(cores)
        self._in_vain.clear()


def simulate(machine: Machine, runs: Sequence[Timed]) -> float:
    """Seconds until the last of `runs` has ended on the machine, as pool.Dispatcher decides.

    A run that can never be placed takes no time, as in execution. Nothing fails and no health check
    takes time.
    """
    dispatcher = Dispatcher(_QuickPool(machine.cores), machine)
    for ticket, one in enumerate(runs):
        dispatcher.ask(ticket, one.run)
    list(dispatcher.hopeless())
    events: list[tuple[float, int, bool]] = []
    now = 0.0
    while True:
        while started := dispatcher.start():
            ticket = started[0]
            compiled = min(runs[ticket].compiling_s, runs[ticket].held_s)
            heapq.heappush(events, (now + compiled, ticket, False))
            heapq.heappush(events, (now + runs[ticket].held_s, ticket, True))
        if not events:
            return now
        now, ticket, ended = heapq.heappop(events)
        if ended:
            dispatcher.end(ticket)
        else:
            dispatcher.compiled(ticket)


def makespan(jobs: Sequence[Job], runners: Mapping[str, Runner]) -> int:
    """Seconds until the last job has ended when every free machine takes its class's next one."""
    done = 0
    for name, runner in runners.items():
        free = [0] * runner.machines
        for job in jobs:
            if job.runner == name:
                done = max(done, free[0] + job.estimated_s)
                heapq.heapreplace(free, free[0] + job.estimated_s)
    return done
