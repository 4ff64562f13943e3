"""Many runs side by side on one machine: none disturbed by another, none lost."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pipeline.machine import MOST_TRIES, execute
from pipeline.pool import Lease, device_of
from pipeline.record import Machine, Record, Run
from pipeline.retry import NextTry
from pipeline.words import Failure, Result, TryReason
from tests import papers

GIB = papers.GIB
LONG = 60.0
"""Seconds after which a test that would hang fails instead."""


def machine(cores: int = 16, **changes: Any) -> Machine:
    fields: dict[str, Any] = {"cores": cores, "host_bytes": 2048 * GIB, "compilations": 64}
    return Machine.model_validate(fields | changes)


def asked(name: str, cores: int = 1, **changes: Any) -> Run:
    fields: dict[str, Any] = {"host_bytes": GIB, "placement": papers.placement(cores)}
    return papers.run(f"models/{name}", **(fields | changes))


def record_of(run: Run, lease: Lease, failure: Failure | None = None) -> Record:
    """What a runner leaves: of the lease's failure when it has one, else of `failure`."""
    failure = lease.failure or failure
    facts: dict[str, Any] = {"core_ids": lease.core_ids, "reason": lease.reason}
    if failure:
        return papers.failing(run, failure=failure, error=lease.error or "it failed", **facts)
    return papers.passing(run, **facts)


def name_of(run: Run) -> str:
    return run.model_id.removeprefix("models/")


Act = Callable[[Run, Lease], Record]


@dataclass
class Floor:
    """A machine under test: what the attempts do, and what was seen of them.

    acts: by name and number of the try; otherwise a run passes at once.
    """

    acts: dict[tuple[str, int], Act] = field(default_factory=dict)
    sick: dict[int, str] = field(default_factory=dict)
    again: Callable[[Record], NextTry | None] = lambda record: None
    stop: threading.Event = field(default_factory=threading.Event)
    leases: dict[str, list[Lease]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    said: list[tuple[str, str]] = field(default_factory=list)
    checked: list[tuple[int, ...]] = field(default_factory=list)
    busy: set[int] = field(default_factory=set)
    clashes: list[tuple[int, ...]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def attempt(self, run: Run, lease: Lease) -> Record:
        name = name_of(run)
        with self.lock:
            tries = self.leases.setdefault(name, [])
            tries.append(lease)
            number = len(tries)
            self.order.append(name)
            if not self.busy.isdisjoint(lease.core_ids):
                self.clashes.append(lease.core_ids)
            self.busy.update(lease.core_ids)
        try:
            return self.acts.get((name, number), record_of)(run, lease)
        finally:
            with self.lock:
                self.busy.difference_update(lease.core_ids)

    def health(self, cores: tuple[int, ...]) -> str | None:
        self.checked.append(cores)
        return self.sick.get(device_of(cores[0]))

    def run(self, runs: Sequence[Run], on: Machine | None = None, **changes: Any) -> list[Record]:
        """Execute and return the records; fails when that does not end."""
        fields: dict[str, Any] = {
            "next_try": self.again,
            "health": self.health,
            "say": lambda run, text: self.said.append((name_of(run), text)),
            "stop": self.stop,
        }
        outcome: queue.Queue[list[Record] | BaseException] = queue.Queue()

        def work() -> None:
            try:
                outcome.put(execute(runs, on or machine(), self.attempt, **(fields | changes)))
            except BaseException as error:
                outcome.put(error)

        threading.Thread(target=work, daemon=True).start()
        ended = outcome.get(timeout=LONG)
        assert self.clashes == [], "two tries had the same core at the same time"
        if isinstance(ended, BaseException):
            raise ended
        return ended

    def texts(self, name: str) -> str:
        return "\n".join(text for who, text in self.said if who == name)


def failing(failure: Failure) -> Act:
    return lambda run, lease: record_of(run, lease, failure)


def raising(error: BaseException) -> Act:
    """Raises when it is to run something; leaves the record when that is all that is wanted."""

    def act(run: Run, lease: Lease) -> Record:
        if lease.failure:
            return record_of(run, lease)
        raise error

    return act


def outcomes(records: Sequence[Record]) -> dict[str, str]:
    return {name_of(one.run): str(one.failure or one.result) for one in records}


# --- side by side ---------------------------------------------------------------------------------


def test_runs_are_side_by_side_and_results_in_the_order_given() -> None:
    """Eight runs meet at a barrier: all are running at the same moment, each on its own cores."""
    names = "hgfedcba"
    meeting = threading.Barrier(8)

    def meet(run: Run, lease: Lease) -> Record:
        meeting.wait(LONG)
        return record_of(run, lease)

    floor = Floor(acts={(name, 1): meet for name in names})
    records = floor.run([asked(name, 2, estimated_s=ord(name)) for name in names])
    assert [name_of(one.run) for one in records] == list(names)
    assert {one.result for one in records} == {Result.PASS}
    assert sorted(one.core_ids for one in records) == [(c, c + 1) for c in range(0, 16, 2)]


def test_the_longest_starts_first_and_the_next_when_cores_are_free() -> None:
    """One core: strictly by estimated length."""
    floor = Floor()
    floor.run([asked(name, estimated_s=ord(name)) for name in "bdac"], machine(1))
    assert floor.order == ["d", "c", "b", "a"]
    assert floor.said[0] == ("d", "starts on core 0")


def test_the_ids_of_the_machine_are_used() -> None:
    """What the caller found on the device goes into the leases, in rank order."""
    floor = Floor()
    [record] = floor.run([asked("a", 4)], machine(4), core_ids=[15, 12, 14, 13])
    assert record.core_ids == (12, 13, 14, 15)


def test_links_between_devices_are_obeyed() -> None:
    """Devices 1 and 2 alone are linked: they hold eight cores, and nothing holds sixteen."""
    floor = Floor()
    links: dict[int, tuple[int, ...]] = {0: (), 1: (2,), 2: (1,), 3: ()}
    records = floor.run([asked("a", 8), asked("b", 16)], connected_to=links)
    assert outcomes(records) == {"a": "PASS", "b": "device_unavailable"}
    assert records[0].core_ids == tuple(range(4, 12))


def test_a_refused_run_needs_no_cores() -> None:
    """It gets its record while all cores are taken, and its cores' health is nobody's business."""
    refused = threading.Event()

    def wait(run: Run, lease: Lease) -> Record:
        assert refused.wait(LONG)
        return record_of(run, lease)

    def refuse(run: Run, lease: Lease) -> Record:
        refused.set()
        assert run.refusal
        return papers.failing(run, failure=run.refusal.failure, core_ids=lease.core_ids)

    floor = Floor(acts={("wide", 1): wait, ("no", 1): refuse})
    records = floor.run([asked("wide", 4), papers.refused("models/no")], machine(4))
    assert outcomes(records) == {"wide": "PASS", "no": "too_large"}
    assert floor.leases["no"] == [Lease(())]
    assert floor.checked == [(0, 1, 2, 3)]


def test_nothing_to_do_is_no_fault() -> None:
    """No runs, no records."""
    assert Floor().run([]) == []


def test_each_try_lives_in_a_thread_of_its_own() -> None:
    """The kernel ends a child when the thread that started it ends: no thread serves two tries."""
    seen: list[threading.Thread] = []

    def note(run: Run, lease: Lease) -> Record:
        seen.append(threading.current_thread())
        return record_of(run, lease)

    names = "abcdef"
    floor = Floor(acts={(name, 1): note for name in names})
    floor.run([asked(name) for name in names], machine(2))
    assert len({id(thread) for thread in seen}) == 6
    assert threading.main_thread() not in seen


def test_progress_is_told_by_the_callers_thread_alone() -> None:
    """Lines of two runs never mix, and `say` needs no lock."""
    tellers = set()

    def say(run: Run, text: str) -> None:
        tellers.add(threading.get_ident())

    names = "abcd"
    floor = Floor(acts={(name, 1): raising(ValueError("x")) for name in names})
    execute(
        [asked(name) for name in names],
        machine(),
        floor.attempt,
        next_try=lambda record: None,
        health=floor.health,
        say=say,
        stop=floor.stop,
    )
    assert tellers == {threading.get_ident()}


# --- memory and compilers -------------------------------------------------------------------------


def test_the_next_compiles_when_one_says_it_compiled() -> None:
    """One place to compile: the second run starts while the first still runs, not before."""
    second = threading.Event()
    before: list[bool] = []

    def first_acts(run: Run, lease: Lease) -> Record:
        before.append(second.is_set())
        lease.compiled()
        lease.compiled()
        assert second.wait(LONG)
        return record_of(run, lease)

    def second_acts(run: Run, lease: Lease) -> Record:
        second.set()
        return record_of(run, lease)

    floor = Floor(acts={("a", 1): first_acts, ("b", 1): second_acts})
    runs = [asked("a", estimated_s=9), asked("b", estimated_s=5)]
    assert outcomes(floor.run(runs, machine(compilations=1))) == {"a": "PASS", "b": "PASS"}
    assert before == [False]


def test_a_run_larger_than_the_machines_memory_runs_alone() -> None:
    """Neither before its neighbours ended nor beside them, but it runs."""
    floor = Floor()
    beside: list[int] = []

    def look(run: Run, lease: Lease) -> Record:
        beside.append(len(floor.busy))
        return record_of(run, lease)

    floor.acts = {("huge", 1): look}
    runs = [asked("a"), asked("b"), asked("huge", host_bytes=4096 * GIB, estimated_s=1)]
    assert set(outcomes(floor.run(runs)).values()) == {"PASS"}
    assert beside == [1]


# --- faults stay where they are -------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ValueError("boom"), SystemExit(3), KeyboardInterrupt(), MemoryError()]
)
def test_an_attempt_that_raises_loses_nothing_but_its_own_try(error: BaseException) -> None:
    """It is called once more to leave a record of the fault; its neighbour passes."""
    floor = Floor(acts={("bad", 1): raising(error), ("bad", 2): raising(error)})
    records = floor.run([asked("bad"), asked("good")])
    assert outcomes(records) == {"bad": "harness", "good": "PASS"}
    assert records[0].error == f"{type(error).__name__}: {error}"
    first, second = floor.leases["bad"]
    assert second == replace(first, failure=Failure.HARNESS, error=records[0].error)
    assert "the attempt failed" in floor.texts("bad")


def test_an_attempt_that_cannot_even_write_still_has_a_record() -> None:
    """A lost record is the worst fault: the result holds one that was made on the spot."""

    def broken(run: Run, lease: Lease) -> Record:
        raise OSError("no space left")

    floor = Floor(acts={("bad", number): broken for number in (1, 2)})
    records = floor.run([asked("bad"), asked("good")])
    assert outcomes(records) == {"bad": "harness", "good": "PASS"}
    assert "OSError: no space left" in (records[0].error or "")
    assert records[0].core_ids == floor.leases["bad"][0].core_ids


@pytest.mark.parametrize(
    "wrong",
    [
        lambda run, lease: None,
        lambda run, lease: papers.unended(run),
        lambda run, lease: papers.passing(asked("other")),
    ],
)
def test_what_is_no_ended_record_of_the_run_counts_as_a_fault(wrong: Act) -> None:
    """Nothing, an unfinished record, another run's record: none is passed on as a result."""
    floor = Floor(acts={("bad", 1): wrong})
    floor.acts["bad", 2] = record_of
    [record] = floor.run([asked("bad")])
    assert record.failure is Failure.HARNESS
    assert record.run.model_id == "models/bad"
    assert "an attempt returned" in (record.error or "")


def test_a_hanging_run_holds_its_own_cores_only() -> None:
    """Twelve runs pass on the other two cores while one hangs."""
    names = [f"m{number}" for number in range(12)]
    left = threading.Semaphore(0)

    def hang(run: Run, lease: Lease) -> Record:
        for _ in names:
            assert left.acquire(timeout=LONG)
        return record_of(run, lease, Failure.TIMEOUT)

    def done(run: Run, lease: Lease) -> Record:
        left.release()
        return record_of(run, lease)

    floor = Floor(acts={(name, 1): done for name in names})
    floor.acts["hangs", 1] = hang
    runs = [asked("hangs", 2, estimated_s=9000), *(asked(name) for name in names)]
    found = outcomes(floor.run(runs, machine(4, compilations=2)))
    assert found.pop("hangs") == "timeout"
    assert list(found.values()) == ["PASS"] * 12
    assert {lease.core_ids for name in names for lease in floor.leases[name]} <= {(2,), (3,)}


def test_a_reader_who_left_costs_no_run() -> None:
    """Progress that cannot be told is dropped."""

    def say(run: Run, text: str) -> None:
        raise BrokenPipeError

    assert outcomes(Floor().run([asked("a"), asked("b")], say=say)) == {"a": "PASS", "b": "PASS"}


def test_an_undecided_next_try_costs_no_record() -> None:
    """A fault in `next_try` is told; the record stands."""

    def again(record: Record) -> NextTry | None:
        raise KeyError("signature")

    floor = Floor(acts={("a", 1): failing(Failure.COMPILER_ERROR)}, again=again)
    assert outcomes(floor.run([asked("a")])) == {"a": "compiler_error"}
    assert "could not be decided: KeyError" in floor.texts("a")


def test_the_system_having_no_thread_costs_one_run_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that could not be started has a record that says so; the rest goes on."""
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if "unlucky" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    records = Floor().run([asked("unlucky"), asked("good")])
    assert outcomes(records) == {"unlucky": "harness", "good": "PASS"}
    assert "can't start new thread" in (records[0].error or "")


def test_a_fault_of_the_caller_ends_what_runs_and_goes_on_upwards() -> None:
    """Ctrl-C without a handler: running tries are told to stop and waited for, not left behind."""
    floor = Floor()
    ended: list[str] = []
    running = threading.Event()

    def until_stopped(run: Run, lease: Lease) -> Record:
        running.set()
        assert floor.stop.wait(LONG)
        ended.append(name_of(run))
        return record_of(run, lease, Failure.KILLED)

    def interrupt(record: Record) -> NextTry | None:
        assert running.wait(LONG)
        raise KeyboardInterrupt

    floor.acts = {("slow", 1): until_stopped}
    with pytest.raises(KeyboardInterrupt):
        floor.run([asked("slow"), asked("quick")], next_try=interrupt)
    assert ended == ["slow"]


# --- tries ----------------------------------------------------------------------------------------


def once(reason: TryReason, **changes: Any) -> Callable[[Record], NextTry | None]:
    """One further try after a first one that did not pass."""

    def again(record: Record) -> NextTry | None:
        if record.result is Result.PASS or record.reason is not TryReason.FIRST:
            return None
        return NextTry(reason, record.run.model_copy(update=changes))

    return again


def test_a_retry_gets_other_cores_and_goes_on_with_the_record_before() -> None:
    """Infrastructure fault: another device, and the earlier record in the lease."""
    floor = Floor(acts={("a", 1): failing(Failure.DEVICE_FAULT)}, again=once(TryReason.OTHER_CORES))
    [record] = floor.run([asked("a")])
    assert record.result is Result.PASS
    first, second = floor.leases["a"]
    assert (first.core_ids, second.core_ids) == ((0,), (4,))
    assert second.reason is TryReason.OTHER_CORES
    assert second.previous is not None
    assert second.previous.failure is Failure.DEVICE_FAULT
    assert "starts on core 4; try 2: other_cores" in floor.texts("a")


def test_a_retry_on_the_same_cores_says_so() -> None:
    """A machine with nothing else: the retry takes place and is not dressed up."""
    floor = Floor(acts={("a", 1): failing(Failure.DEVICE_FAULT)}, again=once(TryReason.OTHER_CORES))
    assert outcomes(floor.run([asked("a", 4)], machine(4))) == {"a": "PASS"}
    assert "starts on cores 0-3; try 2: other_cores, though this machine has no others" in (
        floor.texts("a")
    )


def test_out_of_device_memory_goes_on_with_more_cores() -> None:
    """The grown placement decides how many cores the next try gets."""
    floor = Floor(
        acts={("a", 1): failing(Failure.DEVICE_OUT_OF_MEMORY)},
        again=once(TryReason.MORE_CORES, placement=papers.placement(8)),
    )
    [record] = floor.run([asked("a", 4)])
    assert record.result is Result.PASS
    assert record.run.placement == papers.placement(8)
    assert record.core_ids == tuple(range(8))


def test_more_cores_than_the_machine_has_leave_the_record_as_it_was() -> None:
    """What was seen stays true; that there was no room for more says nothing of the model."""
    floor = Floor(
        acts={("a", 1): failing(Failure.DEVICE_OUT_OF_MEMORY)},
        again=once(TryReason.MORE_CORES, placement=papers.placement(16)),
    )
    assert outcomes(floor.run([asked("a", 4)], machine(4))) == {"a": "device_out_of_memory"}
    assert "no further try (more_cores): this machine has no aligned set of 16" in floor.texts("a")
    assert len(floor.leases["a"]) == 1


def test_a_retry_that_raises_and_cannot_write_leaves_the_record_before() -> None:
    """The last thing that is known to be true, not an empty record over it."""

    def broken(run: Run, lease: Lease) -> Record:
        raise OSError("no space left")

    floor = Floor(
        acts={("a", 1): failing(Failure.COMPILER_ERROR), ("a", 2): broken, ("a", 3): broken},
        again=once(TryReason.CLEAN_CACHE),
    )
    assert outcomes(floor.run([asked("a")])) == {"a": "compiler_error"}
    assert "no space left" in floor.texts("a")


def test_tries_come_to_an_end_whatever_next_try_says() -> None:
    """A rule that never says None must not hold a machine for ever."""
    floor = Floor(again=lambda record: NextTry(TryReason.CLEAN_CACHE, record.run))
    assert outcomes(floor.run([asked("a")])) == {"a": "PASS"}
    assert len(floor.leases["a"]) == MOST_TRIES


# --- sick devices ---------------------------------------------------------------------------------


def test_each_device_of_a_try_is_checked_after_it() -> None:
    """Health is asked for one device at a time, with the cores that the run had there."""
    floor = Floor()
    floor.run([asked("a", 8)])
    assert floor.checked == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_a_sick_device_is_out_of_use_and_its_run_goes_elsewhere() -> None:
    """The run fails on it, runs elsewhere, and nothing is started there again."""
    floor = Floor(acts={("a", 1): failing(Failure.RUNTIME_ERROR)}, sick={0: "left-over processes"})
    runs = [asked("a", 4, estimated_s=900), *(asked(name, 4) for name in "bcd")]
    assert outcomes(floor.run(runs, machine(8))) == dict.fromkeys("abcd", "PASS")
    assert floor.leases["a"][0].core_ids == (0, 1, 2, 3)
    assert floor.leases["a"][1].core_ids == (4, 5, 6, 7)
    assert floor.leases["a"][1].reason is TryReason.OTHER_CORES
    assert all(floor.leases[name][0].core_ids == (4, 5, 6, 7) for name in "bcd")
    assert "device 0 is out of use from now on: left-over processes" in floor.texts("a")


def test_a_neighbour_on_a_device_found_sick_keeps_its_cores_and_is_not_blamed_for_a_fail() -> None:
    """A fault may be told to the first who asks only: it counts for all who were there."""
    left = threading.Event()

    def stay(run: Run, lease: Lease) -> Record:
        assert left.wait(LONG)
        return record_of(run, lease, Failure.RUNTIME_ERROR)

    told = iter(["NRT_HW_ERROR"])

    def say(run: Run, text: str) -> None:
        if "is out of use" in text:
            left.set()

    floor = Floor(acts={("b", 1): stay})
    runs = [asked("a", 2, estimated_s=9), asked("b", 2, estimated_s=5)]
    records = floor.run(runs, machine(8), health=lambda cores: next(told, None), say=say)
    assert outcomes(records) == {"a": "PASS", "b": "PASS"}
    assert [lease.core_ids for lease in floor.leases["b"]] == [(2, 3), (4, 5)]


def test_a_pass_on_a_device_that_turns_out_sick_stands() -> None:
    """It passed its checks; the device is out of use for those that come."""
    floor = Floor(sick={0: "hardware"})
    assert outcomes(floor.run([asked("a", 4)], machine(8))) == {"a": "PASS"}
    assert len(floor.leases["a"]) == 1


def test_a_run_that_makes_devices_sick_does_not_go_through_them_all() -> None:
    """It is moved once; what two devices say of it stands, and two are left for the others."""
    floor = Floor(sick={0: "wedged", 1: "wedged"})
    floor.acts = {("bad", number): failing(Failure.RUNTIME_ERROR) for number in range(1, 5)}
    runs = [asked("bad", 4, estimated_s=900), *(asked(name, 4, estimated_s=5) for name in "abc")]
    found = outcomes(floor.run(runs, machine(16, compilations=1)))
    assert found["bad"] == "runtime_error"
    assert len(floor.leases["bad"]) == 2
    assert {found[name] for name in "abc"} == {"PASS"}


def test_when_the_last_device_is_out_of_use_every_run_still_has_a_record() -> None:
    """Those that wait end as ERROR device_unavailable, with what is out of use and why."""
    floor = Floor(acts={("a", 1): failing(Failure.DEVICE_FAULT)}, sick={0: "NRT_HW_ERROR"})
    floor.again = once(TryReason.OTHER_CORES)
    runs = [asked("a", 4, estimated_s=900), asked("b"), asked("c", 4)]
    records = floor.run(runs, machine(4))
    assert outcomes(records) == {
        "a": "device_fault",
        "b": "device_unavailable",
        "c": "device_unavailable",
    }
    assert "device 0 is out of use: NRT_HW_ERROR" in (records[1].error or "")
    assert records[1].core_ids == ()
    assert [len(floor.leases[name]) for name in "abc"] == [1, 1, 1], "and no retry of that"
    assert "no further try" not in floor.texts("b")


@pytest.mark.parametrize("stopped", [False, True])
def test_a_fail_from_a_sick_device_with_no_try_elsewhere_is_an_error(stopped: bool) -> None:
    """A FAIL that the hardware gave is not told of the model, stopped or not."""
    floor = Floor(acts={("a", 1): failing(Failure.RUNTIME_ERROR)}, sick={0: "NRT_HW_ERROR"})

    def health(cores: tuple[int, ...]) -> str | None:
        if stopped:
            floor.stop.set()
        return floor.health(cores)

    [record] = floor.run([asked("a", 4)], machine(8 if stopped else 4), health=health)
    assert record.failure is Failure.DEVICE_FAULT
    assert record.result is Result.ERROR
    assert "found sick after a try that ended as runtime_error" in (record.error or "")
    assert "NRT_HW_ERROR" in (record.error or "")
    last = floor.leases["a"][-1]
    assert last.core_ids == ()
    assert last.previous is not None
    assert last.previous.failure is Failure.RUNTIME_ERROR


def test_a_doubtful_fail_is_no_record_to_fall_back_on() -> None:
    """Even when nothing can be written any more, the result is not the sick device's FAIL."""

    def broken(run: Run, lease: Lease) -> Record:
        raise OSError("no space left")

    floor = Floor(acts={("a", 1): failing(Failure.RUNTIME_ERROR)}, sick={0: "wedged"})
    floor.acts |= {("a", number): broken for number in (2, 3)}
    assert outcomes(floor.run([asked("a", 4)], machine(8))) == {"a": "harness"}
    floor = Floor(acts={("a", 1): failing(Failure.RUNTIME_ERROR)}, sick={0: "wedged"})
    floor.acts |= {("a", number): broken for number in (2, 3)}
    assert outcomes(floor.run([asked("a", 4)], machine(4))) == {"a": "device_fault"}


def test_a_health_check_that_fails_takes_nothing_out_of_use() -> None:
    """Not knowing is not being sick; it is told."""

    def health(cores: tuple[int, ...]) -> str | None:
        raise OSError("neuron-ls is not there")

    floor = Floor()
    records = floor.run([asked("a", 4), asked("b", 4)], machine(4), health=health)
    assert outcomes(records) == {"a": "PASS", "b": "PASS"}
    assert "the health of device 0 is not known: OSError" in floor.texts("a")


# --- stop -----------------------------------------------------------------------------------------


def test_once_stopped_nothing_starts_and_what_runs_comes_back() -> None:
    """Running tries end with their records, the waiting run is named, no retry begins."""
    floor = Floor(again=once(TryReason.OTHER_CORES))
    both = threading.Barrier(2, action=floor.stop.set)

    def until_stopped(run: Run, lease: Lease) -> Record:
        both.wait(LONG)
        assert floor.stop.wait(LONG)
        return record_of(run, lease, Failure.KILLED)

    floor.acts = {(name, 1): until_stopped for name in "ab"}
    runs = [asked("a", 2), asked("late", 4, estimated_s=5), asked("b", 2)]
    records = floor.run(runs, machine(4))
    assert outcomes(records) == {"a": "killed", "b": "killed"}
    assert sorted(floor.said[-3:]) == [
        ("a", "no further try (other_cores): stopped before it could start"),
        ("b", "no further try (other_cores): stopped before it could start"),
        ("late", "has no record: stopped before it could start"),
    ]
    assert floor.checked == [], "nobody waits for a health check then"


def test_stopped_between_two_starts_the_second_does_not_happen() -> None:
    """There are cores for both; the word comes while the first is being started."""
    floor = Floor()

    def say(run: Run, text: str) -> None:
        floor.said.append((name_of(run), text))
        floor.stop.set()

    assert outcomes(floor.run([asked("a"), asked("b")], say=say)) == {"a": "PASS"}
    assert floor.said[-1] == ("b", "has no record: stopped before it could start")


def test_stopped_from_the_start_nothing_is_tried() -> None:
    """Every run is named."""
    floor = Floor()
    floor.stop.set()
    assert floor.run([asked("a"), papers.refused("models/no"), asked("b", 16)]) == []
    assert [who for who, _ in floor.said] == ["a", "no", "b"]
    assert floor.leases == {}


# --- all together ---------------------------------------------------------------------------------


def test_eight_mixed_runs_two_of_them_sick_in_different_ways() -> None:
    """Sizes 1 to 8 on sixteen cores: one raises, one wedges its device; eight true records."""
    floor = Floor(again=once(TryReason.OTHER_CORES))
    wedged = threading.Event()

    def wedge(run: Run, lease: Lease) -> Record:
        floor.sick[device_of(lease.core_ids[0])] = "left-over processes"
        wedged.set()
        return record_of(run, lease, Failure.DEVICE_FAULT)

    def after_that(run: Run, lease: Lease) -> Record:
        assert wedged.wait(LONG)
        return record_of(run, lease)

    floor.acts = {
        ("wedges", 1): wedge,
        ("raises", 1): raising(RuntimeError("boom")),
        ("raises", 2): raising(RuntimeError("boom")),
        ("raises", 3): raising(RuntimeError("boom")),
        ("raises", 4): raising(RuntimeError("boom")),
        ("eight", 1): after_that,
    }
    runs = [
        asked("wedges", 1, estimated_s=100),
        asked("raises", 2, estimated_s=90),
        asked("eight", 8, estimated_s=80),
        asked("four", 4, estimated_s=70),
        papers.refused("models/refused"),
        asked("two", 2, estimated_s=60),
        asked("one", 1, estimated_s=50),
        asked("last", 4, estimated_s=40),
    ]
    floor.acts["refused", 1] = lambda run, lease: papers.failing(run, failure=Failure.TOO_LARGE)
    records = floor.run(runs, machine(16, compilations=3))
    assert [name_of(one.run) for one in records] == [name_of(run) for run in runs]
    assert outcomes(records) == {
        "wedges": "PASS",
        "raises": "harness",
        "eight": "PASS",
        "four": "PASS",
        "refused": "too_large",
        "two": "PASS",
        "one": "PASS",
        "last": "PASS",
    }
    first, second = (device_of(lease.core_ids[0]) for lease in floor.leases["wedges"])
    assert first != second


@pytest.mark.parametrize("seed", range(10))
def test_any_job_ends_with_one_record_a_run(seed: int) -> None:
    """Random sizes, faults, retries and sick devices, on real threads: nobody is lost."""
    draw = random.Random(seed)  # noqa: S311 -- a fixed choice of cases
    faults = (None, None, Failure.DEVICE_FAULT, Failure.COMPILER_ERROR, Failure.TIMEOUT)
    floor = Floor(again=once(TryReason.OTHER_CORES))
    runs = []
    for number in range(30):
        name = f"m{number}"
        runs.append(
            asked(
                name,
                draw.choice([1, 1, 2, 4, 8, 16]),
                estimated_s=draw.randint(1, 900),
                host_bytes=draw.choice([None, GIB, 700 * GIB, 9000 * GIB]),
            )
        )
        fault = draw.choice(faults)
        floor.acts[name, 1] = failing(fault) if fault else record_of
        if draw.random() < 0.2:
            floor.acts[name, 1] = floor.acts[name, 2] = raising(ValueError("boom"))
    if draw.random() < 0.5:
        floor.sick[draw.randrange(4)] = "sick"
    records = floor.run(runs, machine(16, compilations=draw.randint(1, 4)))
    assert [one.run.run_id for one in records] == [run.run_id for run in runs]
    assert all(one.result for one in records)
