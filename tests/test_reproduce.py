"""Reproducing: a row's own script is run, and what is said of the row follows from what was seen.

Scripts here are real processes. Most tell what a test wants told; one real model compiles for real.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline import doctor, hub, publish, reproduce, runner, script
from pipeline import results as stored
from pipeline.errors import ResultsError, UsageError
from pipeline.record import Observation, Run
from pipeline.reproduce import verdicts
from pipeline.reproduce.asked import read_constants
from pipeline.rows import Row, row_of
from pipeline.store import open_store
from pipeline.words import Failure, Parallelism, Result, Stage, Target
from tests import papers

CPU = papers.stack(
    Target.CPU,
    torch=importlib.metadata.version("torch").partition("+")[0],
    library_version=importlib.metadata.version("transformers"),
)
READY = reproduce.Ready(doctor.machine(), (), (), (), "")


def text_of(asked: Run, does: str) -> str:
    """A script with run.py's constants that does this instead of running a model."""
    assert asked.placement is not None
    constants = {
        "MODEL_ID": asked.model_id,
        "REVISION": asked.revision,
        "DTYPE": asked.dtype,
        "CORES": asked.placement.cores,
        "PARALLELISM": asked.placement.parallelism.value,
        "NEW_TOKENS": asked.new_tokens,
        "PREFILL_CHUNK": asked.prefill_chunk,
        "PROMPTS": list(asked.prompts),
        "MADE_FOR": {"torch": asked.stack.torch, "transformers": asked.stack.library_version},
    }
    if asked.source:
        constants["SOURCE"] = asked.source
    lines = [f"{name} = {value!r}" for name, value in constants.items()]
    head = ["import os, subprocess, sys, time", "from pathlib import Path", *lines]
    return "\n".join([*head, does, ""])


def telling(seen: Observation) -> str:
    """Code of a script that leaves this observation."""
    return f"Path('run.json').write_text({seen.model_dump_json()!r})"


def observed(**changes: Any) -> Observation:
    """A run on the CPU that came to its end with the answers of `papers`."""
    return papers.observation(CPU, **changes)


def row(does: str, *, passed: bool = True, asked: dict[str, Any] | None = None, **told: Any) -> Row:
    """The row of a run on the CPU whose script does this. told: fields of its record."""
    run = papers.run("demo/fake", **{"stack": CPU, "script_sha256": None, **(asked or {})})
    text = text_of(run, does)
    run = run.model_copy(update={"script_sha256": script.sha256(text)})
    make = papers.passing if passed else papers.failing
    return row_of(make(run, **{"run_py": text, "cache_keys": (), **told}))


def replay(found: Row, folder: Path, limit_s: float = 60) -> reproduce.Report:
    """Reproduce the row on a machine that is ready."""
    settings = reproduce.Settings(store=None, limit_s=limit_s)
    asked = reproduce.read(found)
    return reproduce.reproduce("here", asked, READY, folder, settings, lambda _: None)


# --- what came out --------------------------------------------------------------------------------


def test_the_same_tokens_reproduce_a_pass(tmp_path: Path) -> None:
    """The check that the row passed was of these very tokens: it is not asked again, and said."""
    found = row(telling(observed()))
    report = replay(found, tmp_path / "out")
    assert report.verdict.outcome is reproduce.Outcome.REPRODUCED
    assert "not asked again" in report.replay.judged
    assert "near_tie" in report.replay.judged
    assert (
        "REPRODUCED: PASS, as the row is; the same tokens for all of 3 prompts"
        in (reproduce.as_text(report).splitlines()[0])
    )
    assert [one.first for one in report.tokens] == [None, None, None]
    reproduce.conclude(report)


def test_a_row_without_a_revision_says_what_that_means(tmp_path: Path) -> None:
    """Nobody knows whether the weights are those of the row: told beside the answer."""
    report = replay(row(telling(observed()), asked={"revision": None}), tmp_path / "out")
    assert report.verdict.outcome is reproduce.Outcome.REPRODUCED
    assert "pins no revision" in reproduce.as_text(report)
    assert "pins no revision" in (tmp_path / "out" / "report.md").read_text()


def test_the_script_runs_byte_for_byte_as_published(tmp_path: Path) -> None:
    """What stands in the folder, and what ran, is what the digest is of; a record is not left."""
    found = row(telling(observed()) + "\nPath('ran').write_bytes(Path('run.py').read_bytes())")
    report = replay(found, tmp_path / "out")
    ran = (tmp_path / "out" / "ran").read_bytes()
    assert ran == found["run_py"].encode()
    assert report.asked.sha256 == found["script_sha256"]
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {"run.py", "ran", "run.json", "log.txt", "report.md", "report.json"}


def test_other_tokens_without_a_reference_decide_nothing(tmp_path: Path) -> None:
    """Other tokens may be a tie: without the CPU's word for it nothing is claimed."""
    other = list(papers.answers())
    other[1] = other[1].model_copy(update={"tokens": (7, 8, 90, 101), "text": " answer one"})
    found = row(telling(observed(generations=tuple(other))))
    report = replay(found, tmp_path / "out")
    assert report.verdict.outcome is reproduce.Outcome.UNDECIDED
    assert "no CPU reference" in report.verdict.why
    second = report.tokens[1]
    assert (second.first, second.same, second.of) == (3, 2, 4)
    assert (second.row, second.here) == (" answer 1", " answer one")
    shown = reproduce.as_text(report)
    assert "token 3 of 4 is the first that differs" in shown
    assert "' answer one'" in shown
    with pytest.raises(reproduce.NotTried):
        reproduce.conclude(report)


@pytest.mark.parametrize(
    ("does", "outcome", "why"),
    [
        (
            telling(observed(stage=Stage.COMPILE)) + "\nsys.exit('RuntimeError: no')",
            reproduce.Outcome.NOT_REPRODUCED,
            "here it is FAIL (runtime_error at compile)",
        ),
        ("sys.exit('No space left on device')", reproduce.Outcome.UNDECIDED, "disk_full"),
        (
            telling(observed(stage=Stage.LOAD)) + "\nos.kill(os.getpid(), 9)",
            reproduce.Outcome.UNDECIDED,
            "killed",
        ),
        (
            telling(observed(repeatable=False)),
            reproduce.Outcome.NOT_REPRODUCED,
            "other tokens the second time",
        ),
        (
            telling(observed(logits_finite=False)),
            reproduce.Outcome.NOT_REPRODUCED,
            "NaN or infinite",
        ),
    ],
)
def test_what_ends_otherwise_is_told_by_whose_fault_it_is(
    tmp_path: Path, does: str, outcome: reproduce.Outcome, why: str
) -> None:
    """A PASS is not reproduced where the model failed, and undecided where the machine did."""
    report = replay(row(does), tmp_path / "out")
    assert report.verdict.outcome is outcome
    assert why in report.verdict.why


def test_a_hang_ends_with_all_its_processes_and_decides_nothing(tmp_path: Path) -> None:
    """The limit is ours, not the row's; nothing of the script is left when the answer comes."""
    does = (
        telling(observed(stage=Stage.COMPILE))
        + "\nchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
        + "\nPath('pid').write_text(str(child.pid))\ntime.sleep(600)"
    )
    report = replay(row(does), tmp_path / "out", limit_s=5)
    assert report.verdict.outcome is reproduce.Outcome.UNDECIDED
    assert "no end within 5 s" in report.verdict.why
    child = int((tmp_path / "out" / "pid").read_text())
    until = time.monotonic() + 10
    while _alive(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _alive(child)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_failure_is_reproduced_by_the_same_failure(tmp_path: Path) -> None:
    """FAIL is a claim as well: the same class again reproduces it, a good end does not."""
    does = telling(observed(stage=Stage.COMPILE)) + "\nsys.exit('RuntimeError: no')"
    told: dict[str, Any] = {"failure": Failure.RUNTIME_ERROR, "signature": None}
    again = replay(row(does, passed=False, **told), tmp_path / "again")
    assert again.verdict.outcome is reproduce.Outcome.REPRODUCED
    assert again.tokens == ()
    assert "FAIL (runtime_error at compile), as the row is" in again.verdict.why
    other = replay(row(does, passed=False, failure=Failure.COMPILER_ERROR), tmp_path / "other")
    assert other.verdict.outcome is reproduce.Outcome.NOT_REPRODUCED


def test_wrong_tokens_that_come_again_reproduce_the_failure(tmp_path: Path) -> None:
    """The row's tokens failed its check; the same ones do not pass here for want of asking."""
    found = row(
        telling(observed()),
        passed=False,
        failure=Failure.WRONG_TOKENS,
        stage=Stage.CHECK,
        error="prompt 1, token 2: 4.00 nats below",
        observation=observed(),
        exit_code=0,
    )
    report = replay(found, tmp_path / "out")
    assert report.verdict.outcome is reproduce.Outcome.REPRODUCED
    assert report.here["result"] == Result.FAIL


def test_secrets_do_not_reach_the_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are there to be shared."""
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 30)
    does = (
        telling(observed(stage=Stage.LOAD)) + "\nsys.exit('ValueError: ' + os.environ['HF_TOKEN'])"
    )
    replay(row(does), tmp_path / "out")
    for name in ("report.md", "report.json", "log.txt"):
        text = (tmp_path / "out" / name).read_text()
        assert "xxxxxx" not in text
    assert json.loads((tmp_path / "out" / "report.json").read_text())["outcome"] == "not reproduced"


# --- the pure comparison --------------------------------------------------------------------------


def test_another_known_cause_is_no_reproduction() -> None:
    """One class with two signatures is two causes; text that nobody knows is no other cause."""
    was = row("pass", passed=False, signature="ncc-evrf004")
    other = verdicts.verdict(was, was | {"signature": "ncc-ebvf030"})
    assert other.outcome is reproduce.Outcome.NOT_REPRODUCED
    unknown = verdicts.verdict(was, was | {"signature": "unclassified"})
    assert unknown.outcome is reproduce.Outcome.REPRODUCED


def test_a_machine_with_less_memory_says_nothing_of_the_row() -> None:
    """Host memory and time are this machine's, unless the row failed so itself."""
    was = row("pass")
    for failure in ("timeout", "host_out_of_memory"):
        now = was | {"result": "FAIL", "failure": failure, "error": "it did", "stage": "load"}
        assert verdicts.verdict(was, now).outcome is reproduce.Outcome.UNDECIDED
        assert verdicts.verdict(now, now).outcome is reproduce.Outcome.REPRODUCED
        assert verdicts.verdict(now, was).outcome is reproduce.Outcome.NOT_REPRODUCED


def test_ratios_are_of_known_values_only() -> None:
    """here / row; absent where either is."""
    was = row("pass")
    now = was | {"compile_s": was["compile_s"] * 2, "generate_s": None, "load_s": 1.0}
    told = {one.name: one for one in verdicts.figures(was | {"load_s": 0.0}, now)}
    assert told["first call, compilation included"].ratio == 2
    assert told["second call"].ratio is None
    assert told["load"].ratio is None
    assert "device memory, tensors" not in told


def test_answers_of_other_lengths_differ_where_one_ends() -> None:
    """A cut answer is no same answer, even when its text is a beginning of the other's."""
    was, now = {"generated_text": ["ab cd"]}, {"generated_text": ["ab"], "prompts": ["x"]}
    (one,) = verdicts.tokens(
        was | {"generated_tokens": [[1, 2]]}, now | {"generated_tokens": [[1]]}
    )
    assert (one.first, one.row, one.here) == (2, "ab cd", "ab")


# --- rows that cannot be tried --------------------------------------------------------------------


def test_rows_that_cannot_be_tried_say_why() -> None:
    """Refused, ERROR, without a script, altered, or of another model: nothing is run."""
    good = row(telling(observed()))
    text = good["run_py"].replace("demo/fake", "demo/other")
    other = good | {"run_py": text, "script_sha256": script.sha256(text)}
    broken = good | {"run_py": "print(", "script_sha256": script.sha256("print(")}
    for bad, why in (
        (row_of(papers.failing(papers.refused(), **REFUSED)), "refused while planning: needs 900"),
        (row("pass", passed=False, failure=Failure.DOWNLOAD, stage=Stage.DOWNLOAD), "is ERROR"),
        (good | {"run_py": None}, "has no script"),
        (good | {"run_py": good["run_py"] + "#"}, "is not the one that ran"),
        (good | {"script_sha256": None}, "the row names none"),
        (other, "is of MODEL_ID 'demo/other'"),
        (broken, "cannot be read as Python"),
        (good | {"neuron_cores": 2}, "another number of cores"),
    ):
        with pytest.raises(reproduce.NotTried, match=why):
            reproduce.read(bad)


REFUSED: dict[str, Any] = {
    "failure": Failure.TOO_LARGE,
    "stage": Stage.PLAN,
    "error": "needs 900 GiB; the largest holds 384",
    "observation": None,
    "exit_code": None,
    "run_py": None,
}


def test_what_a_script_says_is_read_and_never_executed(tmp_path: Path) -> None:
    """Constants are literals; a call is no literal, and none is made."""
    mark = tmp_path / "executed"
    text = f"A = [1, 'x']\nB = open({str(mark)!r}, 'w')\nlower = 1\nC = __import__('os')\n"
    found = read_constants(text)
    assert found == {"A": [1, "x"], "_experts": False}
    assert not mark.exists()
    assert read_constants("(" * 100_000) is None


def test_the_run_is_rebuilt_from_row_and_script() -> None:
    """What the template renders is read back: every constant that a check depends on."""
    asked = papers.run(
        "mistral/moe",
        stack=papers.stack(python="3.14", nki="0.7.0", runtime="2.35", driver="2.31"),
        placement=papers.placement(2, parallelism=Parallelism.EXPERT),
        mixture_of_experts=True,
        extra_packages=("einops>=0.8",),
        new_tokens=7,
        script_sha256=None,
    )
    text = script.render(asked)
    asked = asked.model_copy(update={"script_sha256": script.sha256(text)})
    run = reproduce.read(row_of(papers.passing(asked))).run
    for name in ("new_tokens", "prefill_chunk", "prompts", "mixture_of_experts", "extra_packages"):
        assert getattr(run, name) == getattr(asked, name)
    unknown = {"name": "", "image": None}
    assert run.stack.model_copy(update=unknown) == asked.stack.model_copy(update=unknown)
    assert run.placement is not None
    assert (run.placement.cores, run.placement.parallelism) == (2, Parallelism.EXPERT)


def test_a_local_checkpoint_must_be_there_and_be_the_rows(tmp_path: Path) -> None:
    """Absent, or changed since: the reason is told, and nothing is run."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    asked = {"source": str(folder), "revision": hub.directory_revision(folder)}
    found = row(telling(observed()), asked=asked)
    assert replay(found, tmp_path / "1").verdict.outcome is reproduce.Outcome.REPRODUCED
    (folder / "config.json").write_text("{ }")
    with pytest.raises(reproduce.NotTried, match="another one by now"):
        replay(found, tmp_path / "2")
    shutil.rmtree(folder)
    with pytest.raises(reproduce.NotTried, match="not on this machine"):
        replay(found, tmp_path / "3")
    assert not (tmp_path / "3").exists()


# --- which row ------------------------------------------------------------------------------------


def publish_rows(folder: Path, *rows: Row) -> Path:
    """results/ with these rows."""
    stored.write(stored.prepare(folder, rows).files)
    return folder


def test_the_row_of_the_newest_stack_is_chosen(tmp_path: Path) -> None:
    """Trainium before the CPU, then the newest; the others are named; --stack chooses."""
    model = "Qwen/Qwen3-0.6B"
    rows = [
        row_of(papers.passing(papers.run(model, stack=stack)))
        for stack in (
            papers.stack(Target.CPU, torch="2.15.0"),
            papers.stack(neuronx_cc="2.9.1.0"),
            papers.stack(neuronx_cc="2.28.7631.0"),
        )
    ]
    results = publish_rows(tmp_path / "results", *rows, row("pass"))
    chosen = reproduce.choose(results, "qwen/qwen3-0.6b")
    assert chosen.row == rows[2]
    assert [name.split("@")[2] for name in chosen.others] == [
        "neuronxcc-2.9.1.0",
        "inductor-2.15.0",
    ]
    assert reproduce.choose(results, model, "cpu").row == rows[0]
    assert reproduce.choose(results, model, "neuronxcc-2.9*").row == rows[1]
    assert reproduce.choose(results, rows[1]["run_id"]).row == rows[1]
    for words, told in (
        (("Qwen/Qwen3-0.6",), "did you mean Qwen"),
        ((model, "torch-1.0"), "its stacks: "),
        (("*",), "names 2 models"),
    ):
        with pytest.raises(UsageError, match=told):
            reproduce.choose(results, *words)
    with pytest.raises(ResultsError, match="no published results"):
        reproduce.choose(tmp_path / "none", model)


# --- this machine ---------------------------------------------------------------------------------


def components(found: doctor.Machine, of: Row) -> dict[str, reproduce.Component]:
    """By name."""
    return {one.name: one for one in reproduce.compare(found, of, reproduce.stack_of(of))}


def test_each_component_stands_beside_the_rows() -> None:
    """Refused by the script: stops. Other, but taken: differs. Said by one of them: not told."""
    of = row("pass")
    packages = {"torch": CPU.torch, "transformers": "5.0.0", "accelerate": "1.0.0"}
    found = dataclasses.replace(
        READY.machine, packages=packages, python="3.12.1", available_bytes=2**30
    )
    told = components(found, of | {"python": "3.11.7"})
    assert told["python"].match == "differs"
    assert told["torch"].match == "same"
    assert told["transformers"].match == "stops"
    assert "pip install" in told["transformers"].remedy
    assert told["accelerate"].match == "differs"
    assert (told["accelerate"].row, told["accelerate"].here) == ("1.15.0", "1.0.0")
    assert told["free host memory"].match == "short"
    bare = dataclasses.replace(found, packages={})
    assert components(bare, of)["accelerate"].match == "differs"
    assert components(bare, of)["torch"].here == "none"
    assert components(found, of | {"accelerate": None})["accelerate"].match == "not told"
    assert (
        components(dataclasses.replace(found, compiler=None), of)["C++ compiler"].match == "stops"
    )


def test_a_device_row_needs_free_cores_of_two_physical_ones() -> None:
    """No device, too few free cores, or cores split otherwise: each stops, with what to do."""
    from pipeline import device

    of = row_of(papers.passing(papers.run(placement=papers.placement(4))))
    one = device.Device(0, (0, 1, 2, 3), 96 * 2**30, None, (), 2, ())
    absent = dataclasses.replace(
        READY.machine, devices=(), no_devices="no neuron-ls", no_devices_remedy="install it"
    )
    told = components(absent, of)["free cores"]
    assert (told.match, told.remedy) == ("stops", "no neuron-ls: install it")
    there = dataclasses.replace(READY.machine, devices=(one,), instance="trn2.48xlarge")
    told = components(there, of)["free cores"]
    assert (told.match, told.here) == ("enough", "4")
    assert components(there, of)["memory of a core"].match == "enough"
    assert components(there, of)["instance type"].match == "differs"
    busy = dataclasses.replace(one, processes=(device.Process(7, "x"),))
    told = components(dataclasses.replace(there, devices=(busy,)), of)["free cores"]
    assert (told.match, told.here, told.remedy) == ("stops", "0", "end what is left over: 7")
    split = dataclasses.replace(one, core_ids=tuple(range(8)), logical_neuroncore_config=1)
    lnc = components(dataclasses.replace(there, devices=(split,)), of)[
        "physical cores to a core (LNC)"
    ]
    assert lnc.match == "stops"
    assert "NEURON_LOGICAL_NC_CONFIG=2" in lnc.remedy


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """No torch is started: what the import says is another test's matter."""
    monkeypatch.setattr(doctor, "_import", lambda *, neuron: [])


@pytest.mark.usefixtures("imports")
def test_a_machine_without_the_device_ends_before_anything_runs(tmp_path: Path) -> None:
    """What the doctor says is the reason, and no folder is made."""
    found = row_of(
        papers.passing(
            papers.run(script_sha256=script.sha256(script.render(papers.run()))),
            run_py=script.render(papers.run()),
        )
    )
    asked = reproduce.read(found)
    ready = reproduce.look(found)
    settings = reproduce.Settings(store=None, limit_s=60)
    with pytest.raises(reproduce.NotTried, match=r"this machine cannot run it: .*more"):
        reproduce.reproduce("here", asked, ready, tmp_path / "out", settings, lambda _: None)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("imports")
def test_missing_packages_are_named_and_installed_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package of the model alone is a stop with its pip line; the real pip adds it."""
    of = row(telling(observed()), asked={"extra_packages": ("trn-qualify-absent==1.0",)})
    ready = reproduce.look(of)
    assert ready.missing == ("trn-qualify-absent==1.0",)
    assert ready.command.startswith("python -m pip install trn-qualify-absent==1.0 ")
    assert [one.what for one in ready.stops] == [
        "trn-qualify-absent==1.0: trn-qualify-absent==1.0 asked for, none here"
    ]
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(reproduce.NotTried, match="pip ended with 1"):
        reproduce.install(of, ready)
    _wheel(tmp_path / "wheels")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    reproduce.install(of, ready)
    ready = reproduce.look(of)
    assert ready.missing == ()
    assert ready.stops == ()


def _wheel(folder: Path) -> None:
    """The smallest package there is."""
    folder.mkdir()
    info = "trn_qualify_absent-1.0.dist-info"
    with zipfile.ZipFile(folder / "trn_qualify_absent-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: trn-qualify-absent\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def test_an_option_in_a_rows_packages_never_reaches_pip() -> None:
    """Rows are untrusted: what is no requirement is refused."""
    of = row("pass", asked={"extra_packages": ("--index-url=http://evil",)})
    with pytest.raises(reproduce.NotTried, match="no package"):
        reproduce.look(of)


# --- a real model ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Real:
    """A published row of a real run, and where its graphs are kept."""

    row: Row
    results: Path
    store: str


@pytest.fixture(scope="module")
def real(models: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Real:
    """tiny-gpt2 run by the runner and published."""
    folder = tmp_path_factory.mktemp("real")
    checkpoint = models("tiny-gpt2")
    asked = papers.run(
        "tiny/tiny-gpt2",
        stack=CPU,
        source=str(checkpoint),
        revision=hub.directory_revision(checkpoint),
        model_type="gpt2",
        parameters=200_000,
        checkpoint_bytes=400_000,
        new_tokens=8,
        prefill_chunk=32,
        script_sha256=None,
        limit_s=600,
    )
    text = script.render(asked)
    asked = asked.model_copy(update={"script_sha256": script.sha256(text)})
    store = str(folder / "store")
    settings = runner.Settings(folder / "records", open_store(store), None, "nobody")
    record = runner.run(asked, settings, lambda _: None)
    assert record.result is Result.PASS, record.error
    publish.publish(
        [folder / "records"],
        results=folder / "results",
        table=folder / "COMPATIBILITY.md",
        catalog_view=papers.View(),
        plan=None,
        now=papers.day(3650),
    )
    (found,) = stored.read_current(folder / "results")
    return Real(found, folder / "results", store)


@pytest.mark.long
def test_a_real_row_is_reproduced_with_its_own_graphs(real: Real, tmp_path: Path) -> None:
    """The same tokens out of restored graphs; times, memory and versions of both are there."""
    asked = reproduce.read(real.row)
    ready = reproduce.look(real.row)
    assert ready.stops == ()
    settings = reproduce.Settings(store=open_store(real.store), limit_s=600)
    report = reproduce.reproduce("here", asked, ready, tmp_path / "o", settings, lambda _: None)
    assert report.verdict.outcome is reproduce.Outcome.REPRODUCED, report.verdict.why
    assert (real.row["cache"], report.here["cache"]) == ("cold", "restored")
    count = len(real.row["cache_keys"])
    assert report.replay.graphs.startswith(f"{count} of {count} entries of inductor-")
    told = json.loads((tmp_path / "o" / "report.json").read_text())
    ratios = {one["name"]: one["ratio"] for one in told["figures"]}
    assert ratios["first call, compilation included"] > 0
    assert ratios["host memory"] > 0
    assert {one["match"] for one in told["stack"]} <= {"same", "enough"}


@pytest.mark.long
def test_other_real_tokens_are_held_against_the_cpu(real: Real, tmp_path: Path) -> None:
    """The row says other tokens than the model gives: the CPU decides, and the place is shown."""
    tokens = [list(answer) for answer in real.row["generated_tokens"]]
    texts = list(real.row["generated_text"])
    tokens[0][5] += 1
    texts[0] = texts[0][:-3] + "???"
    altered = real.row | {"generated_tokens": tokens, "generated_text": texts}
    settings = reproduce.Settings(store=open_store(real.store), limit_s=600)
    asked = reproduce.read(altered)
    report = reproduce.reproduce("here", asked, READY, tmp_path / "o", settings, lambda _: None)
    assert report.verdict.outcome is reproduce.Outcome.REPRODUCED, report.verdict.why
    assert "teacher-forced through the same checkpoint on the CPU: " in report.replay.judged
    assert report.here["cpu_match"] in ("exact", "near_tie")
    assert [one.first for one in report.tokens] == [6, None, None]
    assert "??? " not in report.tokens[0].here
    assert "the same tokens for 2 of 3 prompts" in reproduce.headline(report)
