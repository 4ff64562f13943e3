"""From a wish and facts to what is asked: the run on each runner class that can take it.

Pure. The run that `Candidate.run` holds is on the first class of the list with room for it; on the
others it is the same run, with the same script.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline import script
from pipeline.catalog import Catalog, Model, Runner
from pipeline.estimate import Durations, Expected, of_refused
from pipeline.placement import CORE_COUNTS, GIB, Checkpoint, Margin, PlanTable, host_bytes, ladder
from pipeline.record import Placement, Refusal, Run, StackVersions
from pipeline.words import Failure, Target, Task

IMAGE_POSITIONS = 4096
"""Cache positions that placement sets aside for a prompt with a picture: most processors make 256
to 3 000 of one. What a run really needs is known only to the processor, which planning never
loads."""


@dataclass(frozen=True)
class Tried:
    """What the reigning row tells of placement: the script it ran, and why it failed if it did."""

    script_sha256: str | None
    failure: Failure | None


@dataclass(frozen=True)
class Candidate:
    """A run that may be planned.

    elsewhere: the same run on the other runner classes with room for its placement, in the list's
    order. outgrown: number of cores on which it ran out of device memory, None = it did not.
    """

    run: Run
    expected: Expected
    elsewhere: tuple[Run, ...] = ()
    outgrown: int | None = None


@dataclass(frozen=True)
class _Room:
    """A runner class that can take the run, and the placements it allows, smallest first."""

    name: str
    runner: Runner
    rungs: tuple[Placement, ...]


Rooms = tuple[list[_Room], tuple[str, Refusal]]
"""The classes with room, and (class, refusal) of the last without: the largest says most."""


class Places:
    """Where each model has room: found once for all stacks of a target, since most of planning is
    this. For one list and one set of facts."""

    def __init__(self, catalog: Catalog, plans: PlanTable) -> None:
        self.catalog = catalog
        self.plans = plans
        self._found: dict[tuple[str, Target], Rooms] = {}

    def of(self, model: Model, target: Target, facts: Checkpoint | Refusal) -> Rooms:
        """The rooms of a model, of which `facts` says what its repository holds."""
        key = model.id, target
        if key not in self._found:
            self._found[key] = _rooms(self.catalog, model, target, facts, self.plans)
        return self._found[key]


def ask(
    places: Places,
    folder: Path,
    model: Model,
    stack: StackVersions,
    facts: Checkpoint | Refusal,
    durations: Durations,
    *,
    tried: Tried | None = None,
    attempt: int = 1,
    cache_keys: tuple[str, ...] = (),
) -> Candidate:
    """The run of a model on a stack: placed, or refused with the reason.

    The smallest placement is taken, or the larger one that the reigning row was made with, since
    a larger one is only ever tried where a smaller ran out of device memory; where that row ran
    out of it, too, the next.
    """
    catalog, plans = places.catalog, places.plans
    rooms, refusal = places.of(model, stack.target, facts)
    checkpoint = facts if isinstance(facts, Checkpoint) else None
    source = model.directory(folder)
    kind = plans.find(model.task, checkpoint.config) if checkpoint else None
    name = rooms[0].name if rooms else refusal[0]
    asked = Run(
        run_id=str(stack.run_id(model.id)),
        model_id=model.id,
        source=str(source) if source else None,
        revision=checkpoint.revision if checkpoint else model.revision,
        task=model.task,
        model_type=checkpoint.model_type if checkpoint else None,
        parameters=checkpoint.parameters if checkpoint and checkpoint.tensors else None,
        checkpoint_bytes=checkpoint.checkpoint_bytes if checkpoint else None,
        stack=stack,
        runner=name,
        core_bytes=int(catalog.runners[name].core_gib * GIB),
        machine_cores=catalog.runners[name].cores,
        usd_per_hour=catalog.runners[name].usd_per_hour,
        placement=rooms[0].rungs[0] if rooms else None,
        refusal=None if rooms else refusal[1],
        dtype=catalog.dtype_for(model),
        new_tokens=catalog.defaults.new_tokens,
        prompts=catalog.prompts_for(model),
        prefill_chunk=catalog.defaults.prefill_chunk,
        mixture_of_experts=bool(
            kind and any("experts" in rule for rule in {**kind.tensor, **kind.expert})
        ),
        extra_packages=model.extra_packages,
        limit_s=catalog.limit_s(model),
        estimated_s=1,
        script_sha256=None,
        reason="",
        attempt=attempt,
        cache_keys=cache_keys,
    )
    if not rooms:
        return Candidate(asked, of_refused())
    room, rung, outgrown = _choose(asked, rooms, tried)
    asked = _placed(asked, room, rung)
    asked = asked.model_copy(update={"script_sha256": script.sha256(script.render(asked))})
    expected = durations.expect(asked, catalog.limit_s(model))
    asked = asked.model_copy(update={"estimated_s": expected.run_s, "limit_s": expected.limit_s})
    same = (rung.cores, rung.parallelism)
    elsewhere = tuple(
        _placed(asked, other, found)
        for other in rooms
        for found in other.rungs
        if other is not room and (found.cores, found.parallelism) == same
    )
    return Candidate(asked, expected, elsewhere, outgrown)


def _rooms(
    catalog: Catalog,
    model: Model,
    target: Target,
    facts: Checkpoint | Refusal,
    plans: PlanTable,
) -> Rooms:
    runners = catalog.runners_for(model, target)
    margin = catalog.defaults.margin
    rooms: list[_Room] = []
    refusal = Refusal(failure=Failure.HARNESS, reason="no runner class")
    name = next(iter(runners))
    if isinstance(facts, Refusal):
        return [], (name, facts)
    for name, runner in runners.items():
        found = ladder(
            facts,
            task=model.task,
            dtype=catalog.dtype_for(model),
            sequence_length=_positions(catalog, model),
            core_bytes=int(runner.core_gib * GIB),
            max_cores=min(runner.cores, CORE_COUNTS[-1]),
            margin=Margin(int(margin.gib * GIB), margin.fraction),
            plans=plans,
            cores=model.cores,
            parallelism=model.parallelism,
            host_bytes=int(runner.host_gib * GIB) if target is Target.CPU else None,
        )
        if isinstance(found, Refusal):
            refusal = found
        else:
            rooms.append(_Room(name, runner, found))
    return rooms, (name, refusal)


def _choose(
    asked: Run, rooms: list[_Room], tried: Tried | None
) -> tuple[_Room, Placement, int | None]:
    """(class, placement, cores that ran out of device memory)."""
    home, first = rooms[0], rooms[0].rungs[0]
    if tried is None or tried.script_sha256 is None:
        return home, first, None
    rungs = {(p.cores, p.parallelism): (room, p) for room in reversed(rooms) for p in room.rungs}
    for room, rung in sorted(rungs.values(), key=lambda pair: pair[1].cores):
        if script.sha256(script.render(_placed(asked, room, rung))) == tried.script_sha256:
            break
    else:
        return home, first, None
    if tried.failure is not Failure.DEVICE_OUT_OF_MEMORY:
        return room, rung, None
    larger = [(other, p) for other in rooms for p in other.rungs if p.cores > rung.cores]
    if not larger:
        return room, rung, None
    room, wider = min(larger, key=lambda pair: (pair[1].cores, pair[0] is not room))
    return room, wider, rung.cores


def _placed(asked: Run, room: _Room, rung: Placement) -> Run:
    return asked.model_copy(
        update={
            "runner": room.name,
            "core_bytes": int(room.runner.core_gib * GIB),
            "machine_cores": room.runner.cores,
            "usd_per_hour": room.runner.usd_per_hour,
            "placement": rung,
            "larger": tuple(p for p in room.rungs if p.cores > rung.cores),
            "host_bytes": host_bytes(rung, asked.stack.target),
        }
    )


def _positions(catalog: Catalog, model: Model) -> int:
    """Length of the static cache, in positions, before a tokenizer has seen the prompts.

    No tokenizer makes more tokens of a text than it has bytes, a few special ones apart.
    """
    chunk = catalog.defaults.prefill_chunk
    longest = 8 + max(len(prompt.encode()) for prompt in catalog.prompts_for(model))
    if model.task is Task.IMAGE_TEXT_TO_TEXT:
        longest += IMAGE_POSITIONS
    return -(-longest // chunk) * chunk + catalog.defaults.new_tokens


def broken(error: Exception) -> Refusal:
    """The refusal for a checkpoint that breaks planning: one of these must not cost the others."""
    said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    text = f"the model or its checkpoint breaks planning: {said}"
    return Refusal(
        failure=Failure.HARNESS, reason=text.encode("utf-8", "backslashreplace").decode()
    )
