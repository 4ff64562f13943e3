"""What one machine has and who gets it next: cores, host memory, compilers.

No clock and no threads: the same calls give the same decisions, so that a job can be simulated
with the very code that executes it (pipeline.machine).

A trn2 device has four logical cores at LNC=2 and device c owns the ids 4c to 4c+3 (AWS, neuron-ls).
Groups of ranks are said to need contiguous, aligned cores: eight ranks on two devices that are not
neighbours failed where neighbours passed, and only powers of two form (users' reports, no official
table was found). Hence aligned sets alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from pipeline.placement import CORE_COUNTS
from pipeline.record import Machine, Record, Run
from pipeline.words import Failure, TryReason

CORES_PER_DEVICE = 4
"""Logical cores of a trn2 device at LNC=2: docs/TRAINIUM.md."""

SIZES = CORE_COUNTS
"""Numbers of cores that are handed out together."""

UNKNOWN_SHARE = 2
"""A run whose host memory nobody estimated counts as this many times its share by cores: the script
holds the weights once while it loads them, the check on the CPU once more."""

PATIENCE = 4
"""How many times all cores of the machine go to shorter runs before a longer one that waits for
room is made room for. Making room leaves cores idle until the set has drained: with less patience
that happens too often to be worth it, with more the wide runs are left for the very end."""


@dataclass(frozen=True)
class Lease:
    """What one try of a run is given.

    core_ids: ids of the machine's cores, in rank order; () for a run that needs none. previous: the
    record of the try before, which this one goes on with. compiled: to be called once nothing is
    compiled any more; more than one call does no harm. failure, error: when set, nothing is to be
    started: all that is wanted is the record that ends with this class for this reason.
    """

    core_ids: tuple[int, ...]
    reason: TryReason = TryReason.FIRST
    previous: Record | None = None
    compiled: Callable[[], None] = lambda: None
    failure: Failure | None = None
    error: str = ""


def device_of(core: int) -> int:
    """The device that owns a core."""
    return core // CORES_PER_DEVICE


class Pool:
    """The cores of a machine: free, held, or out of use.

    core_ids: those that may be handed out, as the machine shows them (a container may show some
    only); ValueError on a repeated or negative one. connected_to: the neighbours of each device, by
    the device numbers of `device_of`; None = not known: devices next to each other by number are
    taken for neighbours, which they are in the rows of trn2.48xlarge's 4x4 torus.
    """

    def __init__(
        self, core_ids: Iterable[int], connected_to: Mapping[int, Collection[int]] | None = None
    ) -> None:
        ids = list(core_ids)
        if len(set(ids)) < len(ids) or any(core < 0 for core in ids):
            raise ValueError(f"core ids are different and not negative: {ids}")
        self._usable = set(ids)
        self._held: set[int] = set()
        self._connected_to = connected_to
        self._retired: dict[int, str] = {}
        self._existing: dict[int, tuple[tuple[int, ...], ...]] = {}  # by count, until a retirement

    @property
    def usable(self) -> frozenset[int]:
        """All cores but those of retired devices."""
        return frozenset(self._usable)

    @property
    def free(self) -> frozenset[int]:
        """What can be handed out now."""
        return frozenset(self._usable - self._held)

    @property
    def held(self) -> frozenset[int]:
        """What is handed out now; cores of a device that was retired meanwhile are among them."""
        return frozenset(self._held)

    @property
    def retired(self) -> Mapping[int, str]:
        """Devices out of use, each with the reason."""
        return dict(self._retired)

    def sets(self, count: int, avoid: Collection[int] = frozenset()) -> tuple[tuple[int, ...], ...]:
        """The sets that may ever serve a run of `count` cores; () = it can never be placed.

        A fault is the device's more often than one core's: with `avoid` only sets on other devices
        count; where there are none, sets of other cores; where there are none either, all.
        """
        if count not in self._existing:
            self._existing[count] = self._aligned(count) or self._adjacent(count)
        existing = self._existing[count]
        if not avoid:
            return existing
        devices = {device_of(core) for core in avoid}
        elsewhere = tuple(
            cores for cores in existing if devices.isdisjoint(device_of(core) for core in cores)
        )
        return elsewhere or tuple(c for c in existing if set(c).isdisjoint(avoid)) or existing

    def take(
        self, count: int, *, avoid: Collection[int] = frozenset(), keep: Collection[int] = ()
    ) -> tuple[int, ...] | None:
        """`count` free cores for one run, or None: not now.

        Best fit: the set in the smallest hole, so that large holes stay whole; of equals the
        lowest. keep: cores not to be touched this time.
        """
        free = self.free.difference(keep)
        fitting = [cores for cores in self.sets(count, avoid) if free.issuperset(cores)]
        if not fitting:
            return None
        chosen = min(fitting, key=lambda cores: (self._hole(cores), cores))
        self._held.update(chosen)
        return chosen

    def release(self, cores: Collection[int]) -> None:
        """Take cores back; ValueError unless all of them are held."""
        if not self._held.issuperset(cores):
            raise ValueError(f"not held: {sorted(set(cores) - self._held)}")
        self._held.difference_update(cores)

    def retire(self, device: int, reason: str) -> None:
        """Hand out no core of `device` any more; the first reason stays."""
        self._retired.setdefault(device, reason)
        self._usable = {core for core in self._usable if device_of(core) != device}
        self._existing.clear()

    def _aligned(self, count: int) -> tuple[tuple[int, ...], ...]:
        """Whole blocks of `count` cores that begin at a multiple of it, on linked devices."""
        if count not in SIZES:
            return ()
        blocks = (_block(start, count) for start in sorted(self._usable) if start % count == 0)
        return tuple(
            cores for cores in blocks if self._usable.issuperset(cores) and self._row(cores)
        )

    def _adjacent(self, count: int) -> tuple[tuple[int, ...], ...]:
        """Two whole devices that are known to be neighbours, aligned or not.

        For when no aligned pair is left (or the container shows none). There is no such way for
        sixteen cores: nothing is known of four devices that are not a row.
        """
        if count != 2 * CORES_PER_DEVICE or self._connected_to is None:
            return ()
        whole = self._aligned(CORES_PER_DEVICE)
        return tuple(
            (*one, *other)
            for one in whole
            for other in whole
            if one < other and self._linked(device_of(one[0]), device_of(other[0]))
        )

    def _row(self, cores: tuple[int, ...]) -> bool:
        """Whether the devices of a block are neighbours, each of the next."""
        devices = sorted({device_of(core) for core in cores})
        return all(self._linked(one, other) for one, other in pairwise(devices))

    def _linked(self, one: int, other: int) -> bool:
        if self._connected_to is None:
            return True
        return other in self._connected_to.get(one, ()) or one in self._connected_to.get(other, ())

    def _hole(self, cores: tuple[int, ...]) -> int:
        """How many cores the largest free aligned block around `cores` has."""
        size = len(cores)
        while size < SIZES[-1]:
            wider = _block(cores[0] - cores[0] % (2 * size), 2 * size)
            if not self.free.issuperset(wider):
                break
            size *= 2
        return size


def _block(start: int, count: int) -> tuple[int, ...]:
    return tuple(range(start, start + count))


@dataclass(eq=False)
class _Need:
    """What a waiting or running try needs.

    compiles: whether it has graphs to compile. overtaken: cores that shorter ones got meanwhile.
    """

    ticket: int
    cores: int
    host_bytes: int
    estimated_s: int
    avoid: frozenset[int]
    compiles: bool
    overtaken: int = 0
    held: tuple[int, ...] = ()

    @property
    def rank(self) -> tuple[int, int]:
        """Longest first, then the order of the tickets."""
        return (-self.estimated_s, self.ticket)


class Dispatcher:
    """Decides which waiting try starts next, and on which cores.

    The longest that can start goes first. One that cannot is overtaken, but not for ever: after
    `PATIENCE` its cores and its memory are kept for it (for one try at a time, first come first
    served). When nothing runs, something can start.

    Memory: a run that needs more than the machine has runs alone instead of never, since its need
    is an estimate and what happens is evidence. Compilers: a try counts as compiling from its start
    until `compiled`, unless its graphs are expected to come from the store.
    """

    def __init__(self, pool: Pool, machine: Machine) -> None:
        self.pool = pool
        self.machine = machine
        self._capacity = max(1, machine.host_bytes)
        self._waiting: list[_Need] = []
        self._running: dict[int, _Need] = {}
        self._compiling: set[int] = set()
        self._late: list[_Need] = []

    @property
    def waiting(self) -> tuple[int, ...]:
        """Tickets of the waiting tries, the next first."""
        return tuple(need.ticket for need in self._order())

    def ask(
        self, ticket: int, run: Run, avoid: Collection[int] = frozenset(), *, anew: bool = False
    ) -> None:
        """Queue a try of `run`, which is not a refused one, under a ticket of its own.

        anew: it compiles everything, whatever the store has.
        """
        if run.placement is None:
            raise ValueError(f"{run.run_id} is refused and needs no cores")
        self._waiting.append(
            _Need(
                ticket=ticket,
                cores=run.placement.cores,
                host_bytes=self._host_bytes(run),
                estimated_s=run.estimated_s,
                avoid=frozenset(avoid),
                compiles=anew or not run.cache_keys,
            )
        )

    def start(self) -> tuple[int, tuple[int, ...]] | None:
        """The ticket that starts now and its cores; None = nothing can before something ends.

        Ask `hopeless` first: a try that can never be placed is waited for in vain.
        """
        full = len(self._compiling) >= self.machine.compilations
        for need in self._order():
            if full and need.compiles:
                continue
            cores = self._cores_for(need)
            if cores is None:
                continue
            self._leave(need)
            self._overtake(need)
            need.held = cores
            self._running[need.ticket] = need
            if need.compiles:
                self._compiling.add(need.ticket)
            return need.ticket, cores
        return None

    def compiled(self, ticket: int) -> None:
        """The try compiles nothing any more; unknown and ended tickets are let pass."""
        self._compiling.discard(ticket)

    def end(self, ticket: int) -> None:
        """Take back what the try was given; KeyError when it does not run."""
        need = self._running.pop(ticket)
        self._compiling.discard(ticket)
        self.pool.release(need.held)

    def hopeless(self) -> list[tuple[int, str]]:
        """Take out the tries that can never be placed (any more): their tickets and the reason."""
        lost = [need for need in self._waiting if not self.pool.sets(need.cores)]
        for need in lost:
            self._leave(need)
        return [(need.ticket, self._shortage(need.cores)) for need in lost]

    def _leave(self, need: _Need) -> None:
        self._waiting.remove(need)
        if need in self._late:
            self._late.remove(need)

    def _overtake(self, need: _Need) -> None:
        """Count a start against the longer ones that still wait."""
        patience = PATIENCE * len(self.pool.usable)
        for passed in sorted(self._waiting, key=lambda other: other.rank):
            if passed.rank < need.rank:
                passed.overtaken += need.cores
                if passed.overtaken >= patience and passed not in self._late:
                    self._late.append(passed)

    def _order(self) -> list[_Need]:
        """The waiting tries, the next first: the one that is kept for, then by rank."""
        first = self._late[:1]
        rest = [need for need in self._waiting if need not in first]
        return first + sorted(rest, key=lambda need: need.rank)

    def _cores_for(self, need: _Need) -> tuple[int, ...] | None:
        """Cores for `need` when memory allows it too, without touching what is kept for another.

        Kept is the set that lacks the fewest cores: nothing new starts in it, so it drains.
        """
        used = sum(running.host_bytes for running in self._running.values())
        keep: tuple[int, ...] = ()
        if self._late and need is not (late := self._late[0]):
            used += late.host_bytes
            held = self.pool.held
            keep = min(
                self.pool.sets(late.cores, late.avoid),
                key=lambda cores: (len(held.intersection(cores)), cores),
                default=(),
            )
        if used + need.host_bytes > self._capacity:
            return None
        return self.pool.take(need.cores, avoid=need.avoid, keep=keep)

    def _host_bytes(self, run: Run) -> int:
        """Bytes of host memory set aside for a run: at least one, at most all of the machine's."""
        asked = run.host_bytes
        if asked is None:
            cores = run.placement.cores if run.placement else 1
            asked = UNKNOWN_SHARE * self._capacity * cores // self.machine.cores
        return min(max(1, asked), self._capacity)

    def _shortage(self, cores: int) -> str:
        what = "core" if cores == 1 else f"aligned set of {cores} cores"
        retired = "".join(
            f"; device {device} is out of use: {reason}"
            for device, reason in sorted(self.pool.retired.items())
        )
        return f"this machine has no {what} in working order{retired}"
