"""Cores, memory and compilers of a machine: who gets what, and when."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from pipeline.pool import PATIENCE, SIZES, Dispatcher, Pool, device_of
from pipeline.record import Machine, Run
from tests import papers

GIB = papers.GIB

TORUS = {
    4 * row + column: {
        4 * row + (column - 1) % 4,
        4 * row + (column + 1) % 4,
        4 * ((row - 1) % 4) + column,
        4 * ((row + 1) % 4) + column,
    }
    for row in range(4)
    for column in range(4)
}
"""trn2.48xlarge: sixteen devices in a 4x4 torus; device 0 has links to 1, 3, 4 and 12."""


def cores(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))


def machine(count: int = 16, **changes: Any) -> Machine:
    fields: dict[str, Any] = {"cores": count, "host_bytes": 2048 * GIB, "compilations": 64}
    return Machine.model_validate(fields | changes)


def asked(count: int = 1, **changes: Any) -> Run:
    fields: dict[str, Any] = {"host_bytes": GIB, "estimated_s": 600}
    return papers.run(placement=papers.placement(count), **(fields | changes))


def dispatcher(count: int = 16, **changes: Any) -> Dispatcher:
    return Dispatcher(Pool(range(count)), machine(count, **changes))


def start_all(floor: Dispatcher) -> dict[int, tuple[int, ...]]:
    """Everything that can start now."""
    started = {}
    while given := floor.start():
        started[given[0]] = given[1]
    return started


# --- which cores ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", SIZES)
def test_a_set_is_a_block_that_begins_at_a_multiple_of_its_size(count: int) -> None:
    """1, 2 and 4 cores lie inside one device, 8 on an aligned pair, 16 on an aligned four."""
    pool = Pool(range(64))
    taken = [pool.take(count) for _ in range(64 // count)]
    assert sorted(taken, key=str) == sorted(
        (cores(first, count) for first in range(0, 64, count)), key=str
    )
    assert pool.take(count) is None


@pytest.mark.parametrize("count", [0, 3, 6, 12, 32])
def test_no_other_number_of_cores_is_ever_handed_out(count: int) -> None:
    """Groups of 3, 6, 12 ranks do not form on the device; sixteen is the most of a run."""
    pool = Pool(range(64))
    assert pool.sets(count) == ()
    assert pool.take(count) is None
    assert pool.free == frozenset(range(64))


def test_the_ids_are_the_machines_own() -> None:
    """A container that was given the fourth device alone may show its cores as 12 to 15."""
    pool = Pool([12, 13, 14, 15])
    assert pool.sets(8) == ()
    assert pool.take(2) == (12, 13)
    assert pool.take(2) == (14, 15)


def test_a_device_shown_in_part_gives_what_is_aligned_in_it() -> None:
    """Cores 1 to 3 hold one aligned pair, not two, and no four."""
    pool = Pool([1, 2, 3])
    assert pool.sets(2) == ((2, 3),)
    assert pool.sets(4) == ()
    assert pool.take(1) == (1,)


@pytest.mark.parametrize("ids", [[0, 0], [-1, 0]])
def test_impossible_core_ids_are_refused(ids: list[int]) -> None:
    """A repeated id would be handed out twice."""
    with pytest.raises(ValueError, match="core ids"):
        Pool(ids)


def test_small_sets_go_where_something_is_broken_already() -> None:
    """Large holes stay whole: a pair before a device, a device before a pair of devices."""
    pool = Pool(range(32))
    assert pool.take(1) == (0,)
    assert pool.take(1) == (1,), "the rest of the broken pair"
    assert pool.take(1) == (2,), "the rest of the broken device"
    assert pool.take(2) == (4, 5), "no pair is left in the device: the next of its pair of devices"
    assert pool.take(4) == (8, 9, 10, 11)
    assert pool.take(1) == (3,)
    assert pool.take(2) == (6, 7)
    assert pool.take(16) == cores(16, 16), "sixteen cores are still whole"


def test_the_smallest_hole_comes_before_the_lowest_number() -> None:
    """Order of release does not matter: the broken device is used up before a whole one."""
    pool = Pool(range(16))
    assert pool.take(4) == (0, 1, 2, 3)
    assert pool.take(1) == (4,)
    pool.release((0, 1, 2, 3))
    assert pool.take(1) == (5,)
    assert pool.take(2) == (6, 7)
    assert pool.take(1) == (0,), "the rest of a pair of devices before a whole pair"
    assert pool.take(8) == cores(8, 8)


def test_released_cores_are_given_again() -> None:
    """What was released is free; what is not held cannot be released."""
    pool = Pool(range(4))
    assert pool.take(4) == (0, 1, 2, 3)
    assert pool.take(1) is None
    pool.release((0, 1, 2, 3))
    assert pool.take(4) == (0, 1, 2, 3)
    pool.release((0, 1, 2, 3))
    with pytest.raises(ValueError, match="not held"):
        pool.release((0,))


def test_cores_to_be_kept_are_not_touched() -> None:
    """`keep` holds for one call."""
    pool = Pool(range(8))
    assert pool.take(1, keep=range(4)) == (4,)
    assert pool.take(8, keep=(7,)) is None
    assert pool.take(1, keep=range(8)) is None
    assert pool.take(4) == (0, 1, 2, 3)


# --- neighbours -----------------------------------------------------------------------------------


def test_all_aligned_sets_of_a_torus_are_neighbours() -> None:
    """On trn2.48xlarge the links rule nothing out that the numbers allow, and add nothing."""
    plain, linked = Pool(range(64)), Pool(range(64), TORUS)
    for count in SIZES:
        assert plain.sets(count) == linked.sets(count) != ()


def test_devices_without_a_link_are_never_joined() -> None:
    """Eight and sixteen cores need links between the devices; four need none."""
    pool = Pool(range(16), {0: (), 1: (2,), 2: (3,), 3: ()})
    assert pool.sets(4) == tuple(cores(first, 4) for first in (0, 4, 8, 12))
    assert pool.sets(8) == (cores(8, 8),)
    assert pool.sets(16) == ()


def test_neighbours_that_are_not_aligned_serve_when_no_aligned_pair_is_left() -> None:
    """With known links devices 1 and 2 can hold eight cores; without, nothing is assumed."""
    assert Pool(range(4, 12)).sets(8) == ()
    assert Pool(range(4, 12), TORUS).sets(8) == (cores(4, 8),)
    pool = Pool(range(64), TORUS)
    for device in (1, 2, 4, 7, 8, 11, 13, 14):
        pool.retire(device, "sick")
    assert (*cores(0, 4), *cores(48, 4)) in pool.sets(8), "devices 0 and 12 have a link"
    assert all(
        device_of(pair[4]) in TORUS[device_of(pair[0])] and len(pair) == 8 for pair in pool.sets(8)
    )


# --- other cores ----------------------------------------------------------------------------------


def test_a_retry_goes_to_another_device_first() -> None:
    """A fault is the device's more often than one core's."""
    pool = Pool(range(16))
    assert pool.take(1, avoid={0}) == (4,)
    assert pool.take(8, avoid={3}) == cores(8, 8)


def test_a_retry_waits_for_another_device_that_is_only_busy() -> None:
    """Busy is not absent: the same device is no fallback while another one exists."""
    pool = Pool(range(8))
    assert pool.take(4) == (0, 1, 2, 3)
    pool.release((0, 1, 2, 3))
    assert pool.take(4, avoid={0, 1, 2, 3}) == (4, 5, 6, 7)
    assert pool.take(1, avoid={0, 1, 2, 3}) is None


def test_a_retry_on_one_device_goes_to_other_cores_then_to_the_same() -> None:
    """trn2.3xlarge has one device: other cores of it, and the same four where four are needed."""
    pool = Pool(range(4))
    assert pool.take(2, avoid={0, 1}) == (2, 3)
    pool.release((2, 3))
    assert pool.take(4, avoid={0, 1, 2, 3}) == (0, 1, 2, 3)


# --- out of use -----------------------------------------------------------------------------------


def test_a_retired_device_is_not_handed_out_and_breaks_its_larger_sets() -> None:
    """Its free cores go at once; eight and sixteen cores around it exist no more."""
    pool = Pool(range(16))
    pool.retire(1, "NRT_HW_ERROR")
    assert pool.sets(16) == ()
    assert pool.sets(8) == (cores(8, 8),)
    assert pool.sets(4) == (cores(0, 4), cores(8, 4), cores(12, 4))
    assert pool.take(1) == (0,), "what can serve no large run any more serves the small"
    assert pool.retired == {1: "NRT_HW_ERROR"}


def test_cores_that_were_held_when_their_device_was_retired_do_not_come_back() -> None:
    """The neighbour keeps its cores to its end; after that they are out of use too."""
    pool = Pool(range(4))
    assert pool.take(2) == (0, 1)
    pool.retire(0, "sick")
    assert pool.held == {0, 1}
    assert pool.free == frozenset()
    pool.release((0, 1))
    assert pool.held == pool.free == pool.usable == frozenset()
    assert pool.sets(1) == ()


@pytest.mark.parametrize("seed", range(30))
def test_any_sequence_keeps_sets_aligned_and_apart_and_loses_no_core(seed: int) -> None:
    """Random takes, releases, retirements: aligned, disjoint, from healthy devices, none lost."""
    draw = random.Random(seed)  # noqa: S311 -- a fixed choice of cases
    ids = range(4 * draw.choice([1, 2, 4, 16]))
    pool = Pool(ids, TORUS if draw.random() < 0.5 else None)
    held: list[tuple[int, ...]] = []
    for _ in range(300):
        chance = draw.random()
        if chance < 0.55:
            count = draw.choice(SIZES)
            avoid = frozenset(draw.sample(ids, draw.randrange(4)))
            before = pool.free
            got = pool.take(count, avoid=avoid)
            if got is None:
                assert not any(before.issuperset(one) for one in pool.sets(count, avoid))
            else:
                assert len(got) == count
                assert before.issuperset(got)
                assert got in pool.sets(count, avoid)
                if pool.sets(count) == Pool(sorted(pool.usable)).sets(count):
                    assert got == cores(count * (got[0] // count), count)
                held.append(got)
        elif chance < 0.97 and held:
            pool.release(held.pop(draw.randrange(len(held))))
        elif chance >= 0.995:
            pool.retire(device_of(draw.choice(ids)), "sick")
        out = [core for one in held for core in one]
        assert len(out) == len(set(out))
        assert pool.held == set(out)
        assert pool.free == pool.usable - set(out)
        assert pool.usable == {core for core in ids if device_of(core) not in pool.retired}
    for one in held:
        pool.release(one)
    assert pool.free == pool.usable


# --- who is next ----------------------------------------------------------------------------------


def ask(floor: Dispatcher, runs: Iterable[Run]) -> None:
    for ticket, one in enumerate(runs):
        floor.ask(ticket, one)


def test_the_longest_that_can_start_is_next() -> None:
    """Of those that fit now; what is too wide for the moment does not hold up the others."""
    floor = dispatcher(8)
    ask(floor, [asked(1, estimated_s=10), asked(4, estimated_s=90), asked(8, estimated_s=50)])
    assert list(floor.waiting) == [1, 2, 0]
    assert start_all(floor) == {1: cores(0, 4), 0: (4,)}
    assert list(floor.waiting) == [2]
    floor.end(1)
    floor.end(0)
    assert start_all(floor) == {2: cores(0, 8)}


def test_equals_start_in_the_order_they_came() -> None:
    """The same calls give the same decisions."""
    floor = dispatcher(4)
    ask(floor, [asked(1)] * 4)
    assert list(start_all(floor)) == [0, 1, 2, 3]


def test_a_refused_run_is_none_of_its_business() -> None:
    """A run without placement needs no cores."""
    with pytest.raises(ValueError, match="refused"):
        dispatcher().ask(0, papers.refused())


def test_a_wide_run_is_overtaken_only_so_long() -> None:
    """Once shorter ones had the machine's cores `PATIENCE` times, they drain for the wide one."""
    floor = dispatcher(4)
    floor.ask(0, asked(1, estimated_s=900))
    assert start_all(floor) == {0: (0,)}
    floor.ask(1, asked(4, estimated_s=600))
    overtaking = []
    for ticket in range(2, 40):
        floor.ask(ticket, asked(1, estimated_s=300))
        if given := start_all(floor):
            assert list(given) == [ticket]
            overtaking.append(ticket)
            floor.end(ticket)
    assert overtaking == list(range(2, 2 + 4 * PATIENCE))
    floor.end(0)
    assert start_all(floor) == {1: cores(0, 4)}, "alone, though others wait"
    floor.end(1)
    first = 2 + 4 * PATIENCE
    assert start_all(floor) == {first + core: (core,) for core in range(4)}


def test_only_the_cores_of_the_wide_run_are_kept_for_it() -> None:
    """The set that lacks the fewest cores drains; on the others runs go on starting."""
    floor = dispatcher(16)
    ask(floor, [asked(4, estimated_s=900), asked(4, estimated_s=900), asked(2, estimated_s=800)])
    assert start_all(floor) == {0: cores(0, 4), 1: cores(4, 4), 2: (8, 9)}
    floor.ask(3, asked(8, estimated_s=600))
    for ticket in range(100, 100 + 4 * PATIENCE):
        floor.ask(ticket, asked(4, estimated_s=5))
        assert start_all(floor) == {ticket: cores(12, 4)}
        floor.end(ticket)
    floor.ask(14, asked(1, estimated_s=5))
    assert start_all(floor) == {}, "six cores are free and kept"
    floor.end(0)
    assert start_all(floor) == {14: (0,)}, "that pair of devices lacks more"
    floor.end(2)
    assert start_all(floor) == {3: cores(8, 8)}


def test_the_run_that_was_kept_for_is_next_when_a_place_to_compile_is_free() -> None:
    """Before a longer one, which would take the only place."""
    floor = dispatcher(16, compilations=1)
    for ticket, count in enumerate((8, 4)):
        floor.ask(ticket, asked(count, estimated_s=900))
        assert list(start_all(floor)) == [ticket]
        floor.compiled(ticket)
    floor.ask(2, asked(8, estimated_s=600))
    for ticket in range(100, 100 + 4 * PATIENCE):
        floor.ask(ticket, asked(4, estimated_s=5))
        assert list(start_all(floor)) == [ticket]
        floor.end(ticket)
    floor.ask(3, asked(1, estimated_s=5000))
    floor.end(0)
    floor.end(1)
    assert list(floor.waiting) == [2, 3]
    assert list(start_all(floor)) == [2]
    floor.compiled(2)
    assert list(start_all(floor)) == [3]


def test_a_run_that_waits_for_memory_is_not_starved_of_it() -> None:
    """Its memory is kept as its cores are: small ones cannot eat it up for ever."""
    floor = dispatcher(4, host_bytes=100 * GIB)
    floor.ask(0, asked(1, host_bytes=60 * GIB, estimated_s=900))
    assert start_all(floor) == {0: (0,)}
    floor.ask(1, asked(1, host_bytes=90 * GIB, estimated_s=600))
    for ticket in range(2, 2 + 2 * PATIENCE):
        floor.ask(ticket, asked(2, host_bytes=40 * GIB, estimated_s=300))
        assert list(start_all(floor)) == [ticket]
        floor.end(ticket)
    floor.ask(100, asked(1, host_bytes=20 * GIB, estimated_s=300))
    floor.ask(101, asked(1, host_bytes=10 * GIB, estimated_s=300))
    assert start_all(floor) == {}, "40 GiB are free and kept"
    floor.end(0)
    assert list(start_all(floor)) == [1, 101], "and what fits beside it"


# --- memory and compilers -------------------------------------------------------------------------


def test_memory_limits_what_runs_side_by_side() -> None:
    """The sum of what the running ones need stays within the machine's memory."""
    floor = dispatcher(4, host_bytes=100 * GIB)
    ask(floor, [asked(host_bytes=50 * GIB), asked(host_bytes=50 * GIB), asked(host_bytes=1)])
    assert list(start_all(floor)) == [0, 1]
    floor.end(0)
    assert list(start_all(floor)) == [2]


def test_a_run_larger_than_the_machine_runs_alone_rather_than_never() -> None:
    """Its need is an estimate; what happens is evidence."""
    floor = dispatcher(4, host_bytes=100 * GIB)
    ask(floor, [asked(host_bytes=500 * GIB, estimated_s=900), asked(host_bytes=0)])
    assert list(start_all(floor)) == [0]
    floor.end(0)
    assert list(start_all(floor)) == [1]
    floor.ask(2, asked(host_bytes=500 * GIB))
    assert start_all(floor) == {}
    floor.end(1)
    assert list(start_all(floor)) == [2]


def test_an_unknown_need_counts_as_twice_the_share_by_cores() -> None:
    """So at most half of the machine's cores are taken by runs of which nothing is known."""
    floor = dispatcher(16, host_bytes=160 * GIB)
    ask(floor, [asked(1, host_bytes=None)] * 16)
    assert len(start_all(floor)) == 8
    alone = dispatcher(16)
    ask(alone, [asked(16, host_bytes=None)])
    assert len(start_all(alone)) == 1


def test_only_so_many_compile_at_a_time() -> None:
    """A run holds its place among the compiling from its start until it says it compiled, once."""
    floor = dispatcher(8, compilations=2)
    ask(floor, [asked()] * 5)
    assert list(start_all(floor)) == [0, 1]
    floor.compiled(0)
    floor.compiled(0)
    assert list(start_all(floor)) == [2]
    floor.end(1)
    assert list(start_all(floor)) == [3]
    floor.compiled(0)
    floor.compiled(1)
    floor.compiled(99)
    assert start_all(floor) == {}, "what ended or told before frees no second place"


# --- never, and always ----------------------------------------------------------------------------


def test_what_can_never_be_placed_is_told_and_leaves_the_queue() -> None:
    """At once when the machine is too small; after a retirement with what was retired and why."""
    floor = dispatcher(8)
    ask(floor, [asked(16), asked(8), asked(4)])
    assert floor.hopeless() == [(0, "this machine has no aligned set of 16 cores in working order")]
    floor.pool.retire(0, "left-over processes")
    [(ticket, why)] = floor.hopeless()
    assert ticket == 1
    assert why.endswith("8 cores in working order; device 0 is out of use: left-over processes")
    assert start_all(floor) == {2: cores(4, 4)}
    assert floor.waiting == ()


def test_a_hopeless_run_keeps_nothing_from_the_others() -> None:
    """What was kept for it is free again."""
    floor = dispatcher(8)
    floor.ask(0, asked(1, estimated_s=900))
    start_all(floor)
    floor.ask(1, asked(8, estimated_s=600))
    for ticket in range(100, 100 + 2 * PATIENCE):
        floor.ask(ticket, asked(4, estimated_s=5))
        assert list(start_all(floor)) == [ticket]
        floor.end(ticket)
    floor.ask(2, asked(1, estimated_s=5))
    assert start_all(floor) == {}
    floor.pool.retire(1, "sick")
    assert [ticket for ticket, _ in floor.hopeless()] == [1]
    assert start_all(floor) == {2: (1,)}


@pytest.mark.parametrize("seed", range(40))
def test_any_mix_of_runs_comes_to_its_end(seed: int) -> None:
    """Random sizes, memory, compilers, ends and sick devices: no deadlock, no limit broken.

    Whenever nothing runs, something starts; each run starts exactly once or is told.
    """
    draw = random.Random(seed)  # noqa: S311 -- a fixed choice of cases
    count = 4 * draw.choice([1, 2, 4, 8])
    memory, compilations = 100 * GIB, draw.randint(1, 4)
    floor = dispatcher(count, host_bytes=memory, compilations=compilations)
    need: dict[int, Run] = {}
    running: dict[int, tuple[int, ...]] = {}
    compiling: set[int] = set()
    told: list[int] = []
    for ticket in range(60):
        need[ticket] = asked(
            draw.choice(SIZES),
            estimated_s=draw.randint(1, 1000),
            host_bytes=draw.choice([None, 0, GIB, 30 * GIB, 100 * GIB, 300 * GIB]),
        )
        avoid = draw.sample(range(count), draw.choice([0, 0, 3]))
        floor.ask(ticket, need[ticket], avoid)
    while True:
        told += [ticket for ticket, _ in floor.hopeless()]
        started = start_all(floor)
        told += started
        running |= started
        compiling |= started.keys()
        used = sum(need[ticket].host_bytes or 0 for ticket in running)
        assert used <= memory or len(running) == 1
        assert len(compiling) <= compilations
        held = [core for one in running.values() for core in one]
        assert len(held) == len(set(held))
        for ticket, given in started.items():
            placed = need[ticket].placement
            assert placed is not None
            assert len(given) == placed.cores
        if not running:
            break
        ticket = draw.choice(sorted(running))
        if draw.random() < 0.5:
            floor.compiled(ticket)
            compiling.discard(ticket)
        else:
            floor.end(ticket)
            compiling.discard(ticket)
            device = device_of(running.pop(ticket)[0])
            if draw.random() < 0.05:
                floor.pool.retire(device, "sick")
    assert floor.waiting == ()
    assert sorted(told) == list(range(60))
    assert floor.pool.held == frozenset()
    assert floor.pool.free == floor.pool.usable
