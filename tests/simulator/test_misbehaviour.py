"""What a device does to a run when something is wrong: every misbehaviour of the stand-in ends in
the stage and class that are true of it, through the real harness, side by side on one machine.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipeline import rows
from pipeline.errors import ResultsError
from pipeline.publish import publish
from pipeline.record import Job, Placement, Record, Run, dump, find_records, read
from pipeline.record import Machine as Has
from pipeline.words import Failure, Parallelism, Result, Stage, Target, Task, TryReason
from tests import papers
from tests.simulator.commands import qualify, write_list
from tests.simulator.machine import Machine

pytestmark = pytest.mark.long

STACK = papers.stack(
    Target.SIMULATOR,
    torch="2.13.0",
    torch_neuronx="2.13.3.0",
    neuronx_cc="2.28.7631.0",
    nki="0.7.0",
)
CORES = 16


@dataclass(frozen=True)
class Case:
    """A misbehaviour, and what the record has to say. tries: reasons of the tries after the first,
    with the failure class of the one before each."""

    fault: dict[str, Any]
    stage: Stage
    failure: Failure | None
    tries: tuple[tuple[Failure, TryReason], ...] = ()
    source: str = "tiny-qwen3"
    task: Task = Task.TEXT_GENERATION
    cores: int = 1
    larger: tuple[int, ...] = ()
    limit_s: int = 600
    signature: str | None = None
    also: Callable[[Record], bool] = field(default=lambda _: True)


HANG_S = 150
"""Long enough to come to the hang on a busy machine, since loading counts."""

CASES = {
    "unsupported-operator": Case(
        {"fault": "unsupported_operator"}, Stage.COMPILE, Failure.UNSUPPORTED_OPERATOR
    ),
    "compiler-bug": Case(
        {"fault": "compiler_error"},
        Stage.COMPILE,
        Failure.COMPILER_ERROR,
        signature="ncc-ibcg901",
    ),
    "passing-exit-70": Case(
        {"fault": "compiler_exit_70", "times": 1},
        Stage.DONE,
        None,
        ((Failure.COMPILER_ERROR, TryReason.CLEAN_CACHE),),
    ),
    "lasting-exit-70": Case(
        {"fault": "compiler_exit_70"},
        Stage.COMPILE,
        Failure.COMPILER_ERROR,
        ((Failure.COMPILER_ERROR, TryReason.CLEAN_CACHE),),
    ),
    "hang-in-compile": Case(
        {"fault": "compile_hang"}, Stage.COMPILE, Failure.TIMEOUT, limit_s=HANG_S
    ),
    "hang-in-collective": Case(
        {"fault": "collective_hang", "rank": 1},
        Stage.COMPILE,
        Failure.TIMEOUT,
        cores=2,
        limit_s=HANG_S,
    ),
    "segv-in-a-rank": Case(
        {"fault": "segv", "rank": 1},
        Stage.COMPILE,
        Failure.CRASH,
        cores=2,
        also=lambda record: record.observation is not None and record.observation.error_rank == 1,
    ),
    "out-of-memory-at-load": Case(
        {"fault": "out_of_memory", "at": "load", "times": 1},
        Stage.DONE,
        None,
        ((Failure.DEVICE_OUT_OF_MEMORY, TryReason.MORE_CORES),),
        larger=(2,),
        also=lambda record: (
            record.tries[0].stage is Stage.LOAD
            and len(record.core_ids) == 2
            and record.run.placement is not None
            and record.run.placement.cores == 2
        ),
    ),
    "out-of-memory-at-run": Case(
        {"fault": "out_of_memory", "at": "run"}, Stage.COMPILE, Failure.DEVICE_OUT_OF_MEMORY
    ),
    "busy-cores": Case(
        {"fault": "busy_cores"},
        Stage.LOAD,
        Failure.DEVICE_UNAVAILABLE,
        ((Failure.DEVICE_UNAVAILABLE, TryReason.OTHER_CORES),),
        also=lambda record: not set(record.core_ids) & set(record.tries[0].core_ids),
    ),
    "fallback": Case(
        {"fault": "fallback"},
        Stage.CHECK,
        Failure.CPU_FALLBACK,
        also=lambda record: "Falling back to original GraphModule" in record.findings[0].line,
    ),
    "wrong-tokens": Case(
        {"fault": "wrong_tokens", "part": "first"}, Stage.CHECK, Failure.WRONG_TOKENS, cores=2
    ),
    "killed-rank": Case(
        # Without the kernel's word for it, a kill is not a want of memory (tests/test_runner.py).
        {"fault": "host_oom_kill", "of": "rank"},
        Stage.COMPILE,
        Failure.KILLED,
        ((Failure.KILLED, TryReason.OTHER_CORES),),
    ),
    "operators-on-the-host": Case(
        {"fault": "eager_cpu_fallback"},
        Stage.DONE,
        None,
        source="tiny-qwen2-5-vl",  # its encoder runs operator by operator
        task=Task.IMAGE_TEXT_TO_TEXT,
        also=lambda record: (
            record.observation is not None and bool(record.observation.cpu_fallback_ops)
        ),
    ),
}


def asked(name: str, source: Path, case: Case, **changes: Any) -> Run:
    """A run of a tiny model under the name of a misbehaviour."""

    def placed(cores: int) -> Placement:
        split = Parallelism.TENSOR if cores > 1 else Parallelism.NONE
        return papers.placement(cores, parallelism=split)

    fields: dict[str, Any] = {
        "stack": STACK,
        "source": str(source),
        "task": case.task,
        "revision": None,
        "parameters": None,
        "checkpoint_bytes": None,
        "runner": "simulated",
        "placement": placed(case.cores),
        "larger": tuple(placed(cores) for cores in case.larger),
        "host_bytes": 2**30,
        "new_tokens": 4,
        "prefill_chunk": 32,
        "limit_s": case.limit_s,
        # Those that take their whole limit first: nothing waits for them at the end.
        "estimated_s": case.limit_s if case.failure is Failure.TIMEOUT else 60,
        "script_sha256": None,
    }
    return papers.run(f"sick/{name}", **(fields | changes))


class Bench:
    """A simulated machine, and `qualify run` on it."""

    def __init__(self, simulator: Path, folder: Path, judge: Path) -> None:
        self.folder = folder
        self.machine = Machine(simulator, folder / "machine")
        folder.mkdir(exist_ok=True)
        write_list(folder, judge, CORES, {"id": "sick/any", "task": "text-generation"})

    def run(self, name: str, runs: list[Run], *faults: dict[str, Any]) -> dict[str, Record]:
        """model id -> record of a job of `runs`, all on this machine at once."""
        job: Job = papers.job(runs, machine=Has(cores=CORES, host_bytes=16 * 2**30, compilations=4))
        (self.folder / f"{name}.json").write_text(dump(job))
        done = qualify(
            self.machine.python,
            self.folder,
            self.machine.environment(*faults, cores=CORES),
            *("run", f"{name}.json", "--records", f"{name}-records"),
            *("--store", "graphs", "--references", "answers"),
        )
        (self.folder / f"{name}.txt").write_text(done.stdout + done.stderr)
        assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
        paths = find_records([self.folder / f"{name}-records"])
        found = {record.run.model_id: record for record in (read(Record, path) for path in paths)}
        assert len(found) == len(paths) == len(runs)
        return found


@pytest.fixture(scope="module")
def bench(
    simulator: Path, models: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Bench:
    """One machine for all tests here."""
    judge = models("SmolLM2-135M-Instruct")
    return Bench(simulator, tmp_path_factory.mktemp("bench"), judge)


@pytest.fixture(scope="module")
def records(bench: Bench, models: Callable[[str], Path]) -> dict[str, Record]:
    """Every misbehaviour in one job, each in a run of its own."""
    faults = [{**case.fault, "where": f"sick--{name}@"} for name, case in CASES.items()]
    runs = [asked(name, models(case.source), case) for name, case in CASES.items()]
    return bench.run("sick", runs, *faults)


@pytest.mark.parametrize("name", CASES)
def test_a_misbehaviour_ends_in_its_class(records: dict[str, Record], name: str) -> None:
    """Stage, class and tries are those of the fault, whatever its neighbours suffered."""
    case, record = CASES[name], records[f"sick/{name}"]
    said = f"{record.stage} {record.failure} {record.signature} {record.error}"
    assert (record.stage, record.failure) == (case.stage, case.failure), said
    assert record.result is (case.failure.result if case.failure else Result.PASS)
    before = [one.failure for one in record.tries]
    reasons = [one.reason for one in record.tries[1:]] + [record.reason]
    assert before == [failure for failure, _ in case.tries], said
    assert reasons[-len(case.tries) or len(reasons) :] == [reason for _, reason in case.tries]
    if case.signature:
        assert record.signature == case.signature
    assert case.also(record), said


def test_neighbours_had_cores_of_their_own(records: dict[str, Record]) -> None:
    """A run has exactly the cores of its placement, aligned, and they are on its record."""
    for record in records.values():
        placement = record.run.placement
        assert placement is not None
        assert len(record.core_ids) == placement.cores
        first = record.core_ids[0]
        assert record.core_ids == tuple(range(first, first + placement.cores))
        assert first % placement.cores == 0


def test_memory_is_told_by_allocator_and_runtime(records: dict[str, Record]) -> None:
    """A PASS has the allocator's peak of each core, and beside it the runtime's where it told."""
    for name, cores in (("passing-exit-70", 1), ("out-of-memory-at-load", 2)):
        record = records[f"sick/{name}"]
        seen = record.observation
        assert seen is not None and seen.device_peak_bytes is not None
        assert len(seen.device_peak_bytes) == cores and min(seen.device_peak_bytes) > 0
        assert record.runtime_peak_source == "neuron-monitor"
        # Sampled once a second, compiled graphs included: near the allocator's peak, not equal.
        assert record.runtime_peak_bytes is not None
        assert len(record.runtime_peak_bytes) == cores and min(record.runtime_peak_bytes) > 0


def test_a_damaged_graph_is_compiled_again(
    bench: Bench, records: dict[str, Record], models: Callable[[str], Path]
) -> None:
    """An entry that was saved broken costs one try with an empty cache, and is repaired."""
    assert records
    source = models("tiny-llama-3-kv-heads")
    case = Case({}, Stage.DONE, None)
    spoil = {"fault": "corrupt_cache_entry"}
    spoiled = bench.run("spoiled", [asked("any", source, case)], spoil)["sick/any"]
    assert spoiled.result is Result.PASS and spoiled.cache_keys
    again = asked("any", source, case, cache_keys=spoiled.cache_keys)
    mended = bench.run("mended", [again])["sick/any"]
    assert mended.result is Result.PASS, mended.error
    (first,) = mended.tries
    assert (first.failure, mended.reason) == (Failure.CACHE, TryReason.CLEAN_CACHE)
    last = bench.run("last", [again])["sick/any"]
    assert (last.result, last.tries, last.cache) == (Result.PASS, (), "restored")


def test_nothing_of_it_can_be_published(
    bench: Bench, records: dict[str, Record], tmp_path: Path
) -> None:
    """Records of the stand-in are refused, under their own name and under a real target's."""
    from pipeline.catalog import load

    record = records["sick/operators-on-the-host"]
    assert rows.row_of(record)["target"] == "simulator"
    real = record.run.stack.model_copy(update={"target": Target.NEURON})
    posing = record.model_copy(update={"run": record.run.model_copy(update={"stack": real})})
    for number, one in enumerate((record, posing)):
        folder = papers.save(tmp_path / str(number), [one])
        with pytest.raises(ResultsError, match="simulator"):
            publish(
                [folder],
                results=tmp_path / "results",
                table=tmp_path / "page.md",
                catalog_view=load(bench.folder / "models.yaml"),
                plan=None,
                now=papers.day(30),
            )
    assert not (tmp_path / "results").exists() and not (tmp_path / "page.md").exists()


def test_a_sick_device_is_left_alone(bench: Bench, models: Callable[[str], Path]) -> None:
    """A process that nobody knows holds a core: its device is taken out, the run goes elsewhere."""
    take = "import sys, torch; torch.zeros(1, device='neuron'); print('taken', flush=True); input()"
    environment = bench.machine.environment(cores=CORES) | {"NEURON_RT_VISIBLE_CORES": "1"}
    stranger = subprocess.Popen(
        [bench.machine.python, "-c", take],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert stranger.stdout is not None and stranger.stdout.readline() == "taken\n"
        case = Case({}, Stage.DONE, None)
        record = bench.run("stranger", [asked("any", models("tiny-qwen3"), case)])["sick/any"]
    finally:
        stranger.communicate("")
    assert record.result is Result.PASS, record.error
    (first,) = record.tries
    assert (first.failure, first.core_ids) == (Failure.DEVICE_UNAVAILABLE, (0,))
    assert first.error is not None and str(stranger.pid) in first.error
    assert record.core_ids[0] // 4 != 0
    said = (bench.folder / "stranger.txt").read_text()
    assert "device 0 is out of use from now on" in said
