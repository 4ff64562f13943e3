"""Many runs side by side on one machine, each on cores of its own.

One thread decides (the caller's), one more a try waits for its end; they talk through one queue, so
that nothing is shared and nothing locked. What starts next is pipeline.pool's decision.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count, groupby
from typing import TYPE_CHECKING

from pipeline.pool import Dispatcher, Lease, Pool, device_of
from pipeline.record import Machine, Record, Run
from pipeline.words import Failure, Result, Stage, TryReason

if TYPE_CHECKING:
    from pipeline.retry import NextTry

MOST_TRIES = 9
"""A stop for a `next_try` that never says None. Enough for all there are: the first, one on other
cores, one with a clean cache, one alone, four larger placements, one away from a sick device."""

Attempt = Callable[[Run, Lease], Record]
Say = Callable[[Run, str], None]
Health = Callable[[tuple[int, ...]], str | None]


def execute(
    runs: Sequence[Run],
    machine: Machine,
    attempt: Attempt,
    *,
    next_try: Callable[[Record], NextTry | None],
    health: Health,
    core_ids: Sequence[int] | None = None,
    connected_to: Mapping[int, Collection[int]] | None = None,
    say: Say,
    stop: threading.Event,
) -> list[Record]:
    """Execute all runs and return their records in the order of the runs.

    attempt: one try, ended in time by itself, its record written; called in a thread of its own
    that lives until it returned. When it raises, or returns no ended record of its run, it is
    called once more with `Lease.failure` set, to leave a record of that. next_try: what to do after
    an ended try; None = the record stands. health: called within the try's thread with the cores of
    one device at a time; a reason takes the device out of use. It, too, must end by itself.
    core_ids: the cores that may be used (default: 0, 1, ... of `machine`); connected_to: neighbours
    of each device (pipeline.pool.Pool). say: progress of a run; called by the caller's thread only.

    Once `stop` is set nothing starts and running tries are waited for: `attempt` has to watch it
    too. A run that has no record then is told through `say` and missing in the list; every other
    run has one.
    """
    ids = range(machine.cores) if core_ids is None else core_ids
    floor = _Floor(
        dispatcher=Dispatcher(Pool(ids, connected_to), machine),
        attempt=attempt,
        next_try=next_try,
        health=health,
        say=say,
        stop=stop,
    )
    try:
        floor.open([_Try(index, asked) for index, asked in enumerate(runs)])
    except BaseException:
        # Nobody would wait for the tries any more: end them before going on upwards.
        stop.set()
        floor.wait()
        raise
    return [floor.records[index] for index in sorted(floor.records)]


@dataclass(frozen=True)
class _Try:
    """One try of the run at `index`. moved: it was taken away from a sick device already.

    doubt: why the FAIL of the try before must not stand by itself; "" = it may.
    """

    index: int
    run: Run
    reason: TryReason = TryReason.FIRST
    previous: Record | None = None
    avoid: frozenset[int] = frozenset()
    number: int = 1
    moved: bool = False
    doubt: str = ""


@dataclass(frozen=True)
class _Compiled:
    ticket: int


@dataclass(frozen=True)
class _Ended:
    """sick: device -> reason. notes: what went wrong beside the try itself.

    record: None = the try left none, even of its own fault (`_lost`).
    """

    ticket: int
    record: Record | None
    began: datetime
    sick: Mapping[int, str]
    notes: tuple[str, ...]


class _Floor:
    """The machine at work. Everything but `_work` and what it calls is for the caller's thread."""

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        attempt: Attempt,
        next_try: Callable[[Record], NextTry | None],
        health: Health,
        say: Say,
        stop: threading.Event,
    ) -> None:
        self.dispatcher = dispatcher
        self.attempt = attempt
        self.next_try = next_try
        self.health = health
        self.tell = say
        self.stop = stop
        self.records: dict[int, Record] = {}
        self.waiting: dict[int, _Try] = {}
        self.running: dict[int, tuple[_Try, Lease]] = {}
        self.inbox: queue.SimpleQueue[_Compiled | _Ended] = queue.SimpleQueue()
        self.tickets = count()

    def open(self, tries: Sequence[_Try]) -> None:
        """Work until nothing runs and nothing can start."""
        for one in tries:
            self.add(one)
        self.start()
        while self.running:
            self.take(self.inbox.get())
            self.start()
        for ticket in list(self.waiting):
            self.give_up(self.waiting.pop(ticket), "stopped before it could start")
        self.wait()

    def wait(self) -> None:
        """Wait for what runs, start nothing."""
        while self.running:
            self.take(self.inbox.get())

    def add(self, one: _Try) -> None:
        ticket = next(self.tickets)
        self.waiting[ticket] = one
        if one.run.placement is not None:
            anew = one.reason in (TryReason.CLEAN_CACHE, TryReason.MORE_CORES)
            self.dispatcher.ask(ticket, one.run, one.avoid, anew=anew)

    def start(self) -> None:
        """Start everything that can start now."""
        if self.stop.is_set():
            return
        for ticket, why in self.dispatcher.hopeless():
            self.give_up(self.waiting.pop(ticket), why, Failure.DEVICE_UNAVAILABLE)
        for ticket in [t for t, one in self.waiting.items() if one.run.placement is None]:
            self.launch(ticket, self.waiting.pop(ticket), Lease(()))
        while not self.stop.is_set() and (given := self.dispatcher.start()):
            ticket, cores = given
            one = self.waiting.pop(ticket)
            again = "" if one.reason is TryReason.FIRST else f"; try {one.number}: {one.reason}"
            if one.reason is TryReason.OTHER_CORES and not one.avoid.isdisjoint(cores):
                again += ", though this machine has no others"
            self.say(one.run, f"starts on {_names(cores)}{again}")
            lease = Lease(
                cores,
                reason=one.reason,
                previous=one.previous,
                compiled=partial(self.inbox.put, _Compiled(ticket)),
            )
            self.launch(ticket, one, lease)

    def give_up(self, one: _Try, why: str, failure: Failure | None = None) -> None:
        """End a run that gets no cores: by the record it has, else by one that says why.

        Without `failure` a run that has no record stays without: it was not even refused.
        """
        if one.previous is None and failure is None:
            self.say(one.run, f"has no record: {why}")
            return
        if one.previous is not None:
            self.say(one.run, f"no further try ({one.reason}): {why}")
            if not one.doubt:
                return
            # A FAIL that a sick device gave speaks of the device.
            failure, why = Failure.DEVICE_FAULT, f"{one.doubt}; no try elsewhere: {why}"
        lease = Lease((), reason=one.reason, previous=one.previous, failure=failure, error=why)
        self.launch(next(self.tickets), one, lease)

    def launch(self, ticket: int, one: _Try, lease: Lease) -> None:
        self.running[ticket] = (one, lease)
        # Daemon: a try that never ends must not keep the interpreter from ending, which ends its
        # processes too (they ask the kernel for that).
        thread = threading.Thread(
            target=self._work, args=(ticket, one, lease), name=one.run.run_id, daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the system has no thread to give
            self.inbox.put(_Ended(ticket, None, datetime.now(UTC), {}, (_text(error),)))

    def take(self, message: _Compiled | _Ended) -> None:
        if isinstance(message, _Compiled):
            self.dispatcher.compiled(message.ticket)
            return
        one, lease = self.running.pop(message.ticket)
        self.records[one.index] = message.record or _lost(one, lease, message)
        for note in message.notes:
            self.say(one.run, note)
        for device, reason in message.sick.items():
            if device not in self.dispatcher.pool.retired:
                self.dispatcher.pool.retire(device, reason)
                self.say(one.run, f"device {device} is out of use from now on: {reason}")
        if lease.core_ids:
            self.dispatcher.end(message.ticket)
        if message.record is not None and lease.failure is None:
            # What a neighbour's check found meanwhile on the same device counts for this try too.
            retired = self.dispatcher.pool.retired
            devices = sorted({device_of(core) for core in lease.core_ids} & retired.keys())
            sick = {device: retired[device] for device in devices}
            following = self.following(one, lease, message.record, sick)
            if following:
                self.add(following)

    def following(
        self, one: _Try, lease: Lease, record: Record, sick: Mapping[int, str]
    ) -> _Try | None:
        """The try after one that ended, or None: its record stands."""
        run, reason = one.run, TryReason.OTHER_CORES
        wanted = None
        try:
            if wanted := self.next_try(record):
                run, reason = wanted.run, wanted.reason
        except Exception as error:  # a fault there must not cost the record
            self.say(one.run, f"whether to try again could not be decided: {_text(error)}")
        # At most once for each run: one that itself wedges devices must not go through them all,
        # and what two devices say of it stands.
        away = bool(sick) and record.result is not Result.PASS and not one.moved
        if not away and wanted is None:
            return None
        if one.number >= MOST_TRIES or run.placement is None:
            self.say(one.run, f"no further try ({reason}) after {one.number}")
            return None
        avoid = one.avoid
        if reason is TryReason.OTHER_CORES:
            avoid |= frozenset(lease.core_ids)
        doubt = ""
        if sick and record.result is Result.FAIL:
            found = "; ".join(f"device {device}: {text}" for device, text in sick.items())
            doubt = f"found sick after a try that ended as {record.failure}: {found}"
        return _Try(one.index, run, reason, record, avoid, one.number + 1, one.moved or away, doubt)

    def say(self, run: Run, text: str) -> None:
        with contextlib.suppress(Exception):  # a reader who left must not cost the runs
            self.tell(run, text)

    # --- in the thread of the try ---------------------------------------------------------------

    def _work(self, ticket: int, one: _Try, lease: Lease) -> None:
        """One try from its start to the state of its cores; puts one `_Ended`, whatever happens."""
        began = datetime.now(UTC)
        record: Record | None = None
        sick: dict[int, str] = {}
        notes: list[str] = []
        try:
            record = self._record(one.run, lease, notes)
            if not self.stop.is_set():
                sick = self._sick(lease.core_ids, notes)
        except BaseException as error:  # whatever it is, the run is not to be lost
            notes.append(_text(error))
        finally:
            self.inbox.put(_Ended(ticket, record, began, sick, tuple(notes)))

    def _record(self, run: Run, lease: Lease, notes: list[str]) -> Record:
        """The record of the try; of its own fault when the attempt gave none."""
        try:
            return _checked(self.attempt(run, lease), run)
        except BaseException as error:  # SystemExit and KeyboardInterrupt too end one try only
            if lease.failure is not None:
                raise
            notes.append(f"the attempt failed: {_text(error)}")
            fault = replace(lease, failure=Failure.HARNESS, error=_text(error))
        return _checked(self.attempt(run, fault), run)

    def _sick(self, cores: tuple[int, ...], notes: list[str]) -> dict[int, str]:
        """Devices of these cores that should not be used any more, and why."""
        found = {}
        for device, its_cores in groupby(sorted(cores), key=device_of):
            try:
                reason = self.health(tuple(its_cores))
            except Exception as error:  # not knowing is no reason to take a device out
                notes.append(f"the health of device {device} is not known: {_text(error)}")
                continue
            if reason:
                found[device] = reason
        return found


def _checked(record: object, run: Run) -> Record:
    if not isinstance(record, Record):
        raise TypeError(f"an attempt returned {type(record).__name__}, not a record")
    if record.run.run_id != run.run_id:
        raise ValueError(f"an attempt returned the record of {record.run.run_id}")
    if record.result is None:
        raise ValueError("an attempt returned a record that has not ended")
    return record


def _lost(one: _Try, lease: Lease, ended: _Ended) -> Record:
    """What stands for a record that could not even be written: the one before, else a new one."""
    if lease.failure is None and one.previous is not None and not one.doubt:
        return one.previous
    failure = lease.failure or Failure.HARNESS
    return Record(
        run=one.run,
        stage=Stage.PLAN,
        result=failure.result,
        failure=failure,
        error=(lease.error or " | ".join(ended.notes))[:4000],
        started_at=ended.began,
        tested_at=datetime.now(UTC),
        core_ids=lease.core_ids,
        reason=lease.reason,
    )


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _names(cores: tuple[int, ...]) -> str:
    """ "core 3", "cores 0-7", "cores 0-3, 16-19"."""
    spans: list[list[int]] = []
    for core in cores:
        if spans and core == spans[-1][-1] + 1:
            spans[-1].append(core)
        else:
            spans.append([core])
    text = ", ".join(f"{s[0]}-{s[-1]}" if len(s) > 1 else f"{s[0]}" for s in spans)
    return f"core{'s' if len(cores) > 1 else ''} {text}"
