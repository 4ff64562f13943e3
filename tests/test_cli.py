"""The command line from end to end: what a person types, what is printed, and the exit code."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import prod
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pipeline import errors, script
from pipeline.calibration import load_calibrations
from pipeline.catalog import load
from pipeline.cli import main
from pipeline.cli.running import _kept, _settings
from pipeline.errors import UsageError
from pipeline.judge import DEFAULT_JUDGE
from pipeline.provenance import provenance
from pipeline.record import MAX_PAPER_BYTES, RECORD_NAME, Plan, Record, Run, dump, read, write
from pipeline.runner import Settings
from pipeline.words import Failure, Result, Stage
from tests import papers
from tests.conftest import ROOT
from tests.hub_server import HubServer

STACK = "@transformers-5.24.0@inductor-2.13.0@torch-2.13.0"
NEURON = "@transformers-5.24.0@neuronxcc-2.28.7631.0@torch-2.14.0"

HEAD = """\
defaults:
  stacks: [cpu]
  limit_minutes: 20
  margin: {gib: 0.1, fraction: 0.2}
  prompts:
    text-generation: [Once upon a time, The capital of France is, Water boils at]
runners:
  laptop: {target: cpu, labels: [ubuntu-latest], cores: 2, core_gib: 2, host_gib: 4}
  trn2: {labels: [self-hosted, trn2], cores: 4, core_gib: 24, host_gib: 124}
stacks:
  cpu: {target: cpu, library_version: "5.24.0", torch: "2.13.0"}
  neuron:
    target: neuron
    library_version: "5.24.0"
    torch: "2.14.0"
    neuronx_cc: "2.28.7631.0"
    torch_neuronx: "2.14.3.0"
models:
"""
EXCLUDED = """\
excluded:
  - {id: big/one, task: text-generation, reason: not_prioritised, note: later perhaps}
"""


def listed(*models: str, excluded: str = EXCLUDED) -> str:
    """A list whose text models stand in directories of their names below models/."""
    return (
        HEAD
        + "".join(
            f"  - {{id: {name}, task: text-generation, source: models/{name}}}\n" for name in models
        )
        + excluded
    )


def small_checkpoint(folder: Path, **config: Any) -> None:
    """A Qwen3 of one layer: config.json, and weights of zeros."""
    known: dict[str, Any] = {
        "model_type": "qwen3",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 32,
        "vocab_size": 64,
        "tie_word_embeddings": True,
    }
    layer = "model.layers.0"
    shapes = {
        "model.embed_tokens.weight": [64, 16],
        "model.norm.weight": [16],
        f"{layer}.input_layernorm.weight": [16],
        f"{layer}.post_attention_layernorm.weight": [16],
        **{f"{layer}.self_attn.{name}_proj.weight": [16, 16] for name in "qkvo"},
        **{f"{layer}.self_attn.{name}_norm.weight": [8] for name in "qk"},
        **{f"{layer}.mlp.{name}_proj.weight": [32, 16] for name in ("gate", "up")},
        f"{layer}.mlp.down_proj.weight": [16, 32],
    }
    header: dict[str, Any] = {}
    at = 0
    for name, shape in shapes.items():
        end = at + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(known | config))
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))


@pytest.fixture
def campaign(in_tmp: Path) -> Path:
    """A working directory: models good/one and good/two, cut/one that is no checkpoint."""
    for name in ("good/one", "good/two", "cut/one"):
        small_checkpoint(in_tmp / "models" / name)
    weights = in_tmp / "models/cut/one/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    (in_tmp / "models.yaml").write_text(listed("good/one", "good/two", "cut/one"))
    return in_tmp


@dataclass(frozen=True)
class Ended:
    """How a command ended. Whatever it was, it showed no traceback."""

    code: int
    out: str
    err: str

    def __post_init__(self) -> None:
        assert "Traceback" not in self.out + self.err, self.err

    def json(self) -> Any:
        return json.loads(self.out)


def qualify(*arguments: str | Path, typed: str | bytes | None = None) -> Ended:
    """The command in this process."""
    words = [str(argument) for argument in arguments]
    result = CliRunner().invoke(main, words, input=typed)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(result.exit_code, result.stdout, result.stderr)


def process(*arguments: str, typed: str = "", **environment: str) -> Ended:
    """The command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *arguments],
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def planned(*arguments: str) -> Plan:
    ended = qualify("plan", "--json", *arguments)
    assert (ended.code, ended.err) == (0, "")
    return Plan.model_validate_json(ended.out)


def run_of(model_id: str, *arguments: str) -> Run:
    (run,) = [run for run in planned("--force", *arguments).runs if run.model_id == model_id]
    return run


def published(*records: Record) -> None:
    """Publish records from a new folder."""
    folder = Path(f"artifacts/{len(list(Path().glob('artifacts/*')))}")
    assert qualify("publish", papers.save(folder, records)).code == 0


# --- what holds for all commands ----------------------------------------------------------------


def test_exit_codes_are_told_apart() -> None:
    """Each class of error has a code of its own, none of them 0, and a meaning."""
    codes = errors.exit_codes()
    numbers = [code for code, _ in codes]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 0
    assert len(codes) == 2 + len(errors.QualifyError.__subclasses__())
    assert all(meaning for _, meaning in codes)
    assert len({meaning for _, meaning in codes}) == len(codes)


COMMANDS = [
    *("actions", "diff", "doctor", "history", "measure", "plan", "publish", "reproduce", "run"),
    *("script", "show", "site", "validate"),
]


def test_help_lists_the_commands() -> None:
    """Every command stands in --help with a whole sentence, none cut off."""
    ended = qualify("--help")
    assert ended.code == 0
    assert sorted(main.commands) == COMMANDS
    for name in COMMANDS:
        (line,) = [line for line in ended.out.split("\n") if line.startswith(f"  {name} ")]
        assert line.endswith(".") and not line.endswith("...")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name: str) -> None:
    """--help names every argument and option, each option with a sentence."""
    ended = qualify(name, "--help")
    assert ended.code == 0
    shown = " ".join(ended.out.split())
    for parameter in main.commands[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[0] in shown
            assert parameter.help
            assert " ".join(parameter.help.split()) in shown
        else:
            assert parameter.human_readable_name in shown
    assert qualify(name, "-h").out == ended.out


def test_version_of_a_checkout() -> None:
    """--version answers whether or not the package is installed."""
    ended = process("--version")
    assert ended.code == 0
    assert ended.out.startswith("qualify ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plna"], "No such command 'plna'"),
        (["plan", "--force-all"], "--force-all"),
        (["plan", "--budget", "-3"], "-3.0 is not in the range"),
        (["plan", "--budget", "soon"], "'soon' is not a valid float"),
        (["script"], "Missing argument 'RUN'"),
        (["publish"], "there are no RECORDS to publish"),
    ],
)
def test_wrong_command_lines(arguments: list[str], message: str) -> None:
    """What no command understands ends with exit code 2 and says which word it was."""
    ended = qualify(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


@pytest.mark.parametrize("command", ["validate", "plan", "script x", "run x", "publish ."])
def test_no_list(in_tmp: Path, command: str) -> None:
    """Without models.yaml each command says what it misses and how to name it."""
    ended = qualify(*command.split())
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.startswith("qualify: models.yaml: cannot be read: No such file or directory\n")


def test_files_that_cannot_be_written(campaign: Path) -> None:
    """A place that takes no file ends with its name, not with a traceback."""
    ended = qualify("plan", "--output", "models.yaml/plan.json")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("qualify: models.yaml")
    plan = campaign / "plan.json"
    qualify("plan", "--select", "cut/one", "--output", plan)
    ended = qualify("run", plan, "--records", "models.yaml")
    assert ended.code == 1
    assert "models.yaml" in ended.err


def test_start_is_light() -> None:
    """Importing the command line, and --help, load none of the large packages."""
    heavy = ["pyarrow", "huggingface_hub", "pydantic", "yaml", "jinja2", "torch", "transformers"]
    code = (
        "import sys, pipeline.cli\n"
        "try: pipeline.cli.main(['plan', '--help'])\n"
        f"finally: print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]\n"


CONTROL = """\
import json, sys
for name in ("torch", "transformers", "accelerate", "safetensors", "psutil", "PIL"):
    sys.modules[name] = None
from pipeline.cli import main
codes = []
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as end:
        codes.append(end.code)
print(codes, file=sys.stderr)
"""


def without_run_packages(*commands: Sequence[str]) -> tuple[str, str]:
    """What the commands print where the extra `run` is not installed: out and err."""
    done = subprocess.run(
        [sys.executable, "-c", CONTROL, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return done.stdout, done.stderr


def test_control_plane_needs_no_torch(campaign: Path) -> None:
    """All commands but run work without torch, Transformers and psutil."""
    record = papers.passing(run_of("good/one"), datetime.now(UTC) - timedelta(hours=1))
    folder = papers.save(campaign / "artifacts", [record])
    out, err = without_run_packages(
        ["validate"],
        ["plan", "--output", "plan.json"],
        ["script", "good/one"],
        ["publish", str(folder), "--plan", "plan.json"],
        ["show"],
        ["show", "good/one", "--stack", "cpu"],
    )
    assert err == "[0, 0, 0, 0, 0, 0]\n"
    assert "good/one: PASS" in out


def test_run_without_its_packages(campaign: Path) -> None:
    """Where the extra is not installed, run says which package is missing and how to get it."""
    _, err = without_run_packages(["run", "good/one"])
    assert err == (
        "qualify: running needs the Python package psutil, which is not installed\n"
        "  pip install 'trn-qualify[run]'\n[7]\n"
    )


def closed_pipe(*arguments: str) -> tuple[int, str]:
    """Exit code and standard error of a command whose reader went away before it spoke."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *arguments],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", ["plan", "plan --json", "script good/one", "validate"])
def test_a_reader_that_goes_away(campaign: Path, command: str) -> None:
    """`qualify plan | head -1` ends quietly."""
    assert closed_pipe(*command.split()) == (0, "")


def test_a_reader_that_goes_away_costs_no_run(campaign: Path) -> None:
    """Runs go on when nobody reads what they say: every one leaves its record."""
    small_checkpoint(campaign / "models/no/type", model_type="unheard-of")
    (campaign / "models.yaml").write_text(listed("cut/one", "no/type"))
    qualify("plan", "--output", "plan.json")
    assert closed_pipe("run", "plan.json") == (0, "")
    failures = {read(Record, path).failure for path in records(campaign)}
    assert failures == {Failure.UNSUPPORTED_CHECKPOINT}
    assert len(records(campaign)) == 2


def records(campaign: Path) -> list[Path]:
    return sorted(campaign.glob(f"build/records/*/*/{RECORD_NAME}"))


# --- validate -----------------------------------------------------------------------------------


def test_validate_a_good_list(campaign: Path) -> None:
    """A good list is counted; --json has no problem."""
    ended = qualify("validate")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        "models.yaml: 3 models, 1 excluded, 2 stacks, 2 runner classes: no problem found\n"
    )
    assert qualify("validate", "--json").json() == {"problems": []}


def test_validate_counts_one_as_one(campaign: Path) -> None:
    """One model is no "1 models"."""
    (campaign / "one.yaml").write_text(listed("a/a", excluded=""))
    assert "one.yaml: 1 model, 0 excluded, " in qualify("validate", "--list", "one.yaml").out


def test_validate_the_lists_that_ship() -> None:
    """The list of the repository and that of the demo are valid."""
    for name in ("models.yaml", "demo/models.yaml"):
        assert qualify("validate", "--list", ROOT / name).code == 0


def test_validate_a_bad_list(campaign: Path) -> None:
    """Every problem has its line and column, near misses are offered, and nothing is planned."""
    text = listed("good/one").replace("limit_minutes", "limit_minute").replace("[cpu]", "[cpus]")
    (campaign / "models.yaml").write_text(text)
    ended = qualify("validate")
    assert (ended.code, ended.out) == (3, "")
    assert "models.yaml:2:12:" in ended.err
    assert 'did you mean "cpu"?' in ended.err
    assert "models.yaml:3:3:" in ended.err
    assert 'did you mean "limit_minutes"?' in ended.err
    for command in ("plan", "script good/one", "run good/one", "publish ."):
        again = qualify(*command.split())
        assert (again.code, again.err) == (3, ended.err)


def test_validate_a_bad_list_as_json(campaign: Path) -> None:
    """--json gives the same problems as data, on standard output, with the same exit code."""
    (campaign / "models.yaml").write_text(listed("good/one").replace("[cpu]", "[cpus]"))
    ended = qualify("validate", "--json")
    assert (ended.code, ended.err) == (3, "")
    (problem,) = ended.json()["problems"]
    assert (problem["file"], problem["line"], problem["column"]) == ("models.yaml", 2, 12)
    assert 'did you mean "cpu"?' in problem["message"]


# --- plan ---------------------------------------------------------------------------------------


def test_plan_for_people(campaign: Path) -> None:
    """The table says where runs go, what they need and why, what is refused, what is left out."""
    ended = qualify("plan")
    assert (ended.code, ended.err) == (0, "")
    summary, _, rest = ended.out.partition("\n")
    assert summary.startswith("2 runs in 1 job, about ")
    assert "\njob laptop-1 on ubuntu-latest" in rest
    placed, _, rest = rest.partition("refused: 1\n")
    rows = [line.split() for line in placed.splitlines()]
    assert next(row for row in rows if row[:1] == ["good/one"])[-2:] == ["never", "run"]
    assert [row for row in rows if row[:1] == ["good/two"]]
    refused, _, left = rest.partition("not planned: 1\n")
    assert refused.split()[:2] == ["cut/one", "unsupported_checkpoint:"]
    assert "model.safetensors is cut" in refused
    assert left == "  big/one  excluded, not_prioritised: later perhaps\n"


def test_plan_for_machines(campaign: Path) -> None:
    """--json prints a valid plan and nothing else; --output writes the same bytes."""
    ended = qualify("plan", "--json", "--output", "out/plan.json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == Path("out/plan.json").read_text()
    plan = read(Plan, Path("out/plan.json"))
    assert dump(plan) == ended.out
    assert [run.model_id for run in plan.runs] == ["good/one", "good/two", "cut/one"]
    (job,) = plan.jobs
    assert job.runs[0].source == str(campaign / "models/good/one")
    assert job.runs[0].revision is not None
    assert job.runs[0].revision.startswith("sha256:")
    assert qualify("plan", "--output", "again.json").code == 0
    assert Path("again.json").read_text() == ended.out


def test_plan_options(campaign: Path) -> None:
    """--select, --stack and --budget narrow the plan."""
    assert [run.model_id for run in planned("--select", "GOOD/*").runs] == ["good/one", "good/two"]
    both = planned("--select", "good/one", "--stack", "cpu", "--stack", "neuron")
    assert [run.run_id for run in both.runs] == [f"good--one{STACK}", f"good--one{NEURON}"]
    assert [job.runner for job in both.jobs] == ["laptop", "trn2"]
    tight = planned("--budget", "15")
    assert [run.model_id for job in tight.jobs for run in job.runs] == ["good/one"]
    assert "5 left of the budget" in tight.skipped[-1].reason
    ended = qualify("plan", "--budget", "0", "--select", "good/*")
    assert ended.out.startswith("nothing is planned\n")
    assert "\nnot planned: 2\n" in ended.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stack", "cpus"], 'unknown stack "cpus"; did you mean "cpu"?'),
        (["--select", "good/on"], 'unknown model "good/on"; did you mean "good/one"?'),
        (["--select", "*nothing*"], "no run id matches '*nothing*'"),
        (["--select", ""], 'unknown model ""'),
        (["--budget", "nan"], "--budget is not a number"),
    ],
)
def test_plan_near_misses(campaign: Path, arguments: list[str], message: str) -> None:
    """A name that is nearly right ends with exit code 2 and the right one."""
    ended = qualify("plan", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


def test_plan_from_another_folder(campaign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories of checkpoints are relative to the list, not to where one stands."""
    (campaign / "elsewhere").mkdir()
    monkeypatch.chdir(campaign / "elsewhere")
    assert len(planned("--list", "../models.yaml").jobs) == 1


def test_plan_after_results(campaign: Path) -> None:
    """What is up to date is not planned; a changed checkpoint, an ERROR and --force are."""
    earlier = datetime.now(UTC) - timedelta(days=1)
    one, two = run_of("good/one"), run_of("good/two")
    keys = ("ab/one", "cd/two")
    published(papers.passing(one, earlier, cache_keys=keys, wall_s=77.0))
    published(papers.erring(two, earlier))
    plan = planned()
    assert {run.model_id: run.reason for run in plan.runs} == {
        "cut/one": "never run",
        "good/two": "last attempt ended in ERROR: download at download",
    }
    (run,) = [run for job in plan.jobs for run in job.runs]
    assert (run.model_id, run.attempt) == ("good/two", 2)
    up_to_date = f"up to date: PASS on {earlier:%Y-%m-%d}"
    assert up_to_date in [skip.reason for skip in plan.skipped]
    forced = run_of("good/one")
    assert (forced.reason, forced.cache_keys, forced.estimated_s) == (
        "asked for",
        keys,
        77,
    )
    small_checkpoint(campaign / "models/good/one", rms_norm_eps=1e-5)
    assert "good/one" in [run.model_id for run in planned().runs]
    assert run_of("good/one", "--results", "elsewhere").reason == "asked for"


def test_plan_does_not_repeat_what_was_inconclusive(campaign: Path) -> None:
    """A new revision whose try was inconclusive is not tried again, though an old PASS reigns."""
    then = datetime.now(UTC)
    published(papers.passing(run_of("good/one"), then - timedelta(days=2)))
    small_checkpoint(campaign / "models/good/one", rms_norm_eps=1e-5)
    new = run_of("good/one")
    assert [run.model_id for run in planned("--select", "good/one").runs] == ["good/one"]
    unsure: dict[str, Any] = {
        "failure": Failure.INCONCLUSIVE,
        "stage": Stage.CHECK,
        "error": "in doubt",
    }
    published(papers.failing(new, then - timedelta(days=1), **unsure))
    assert list(planned("--select", "good/one").runs) == []
    small_checkpoint(campaign / "models/good/one", rms_norm_eps=1e-4)
    (run,) = planned("--select", "good/one").runs
    assert run.reason.startswith(f"other revision: {(new.revision or '')[7:19]} then")


def test_plan_sees_lost_records(campaign: Path) -> None:
    """A record of this machine that never ended is why a run is due, until it is published."""
    run = run_of("good/one")
    began = datetime.now(UTC)
    lost = papers.save(campaign / "build/records", [papers.unended(run, began)])
    (again,) = planned("--select", "good/one").runs
    assert again.reason.endswith("was lost at stage compile: its record never ended")
    assert qualify("publish", lost).code == 0
    (again,) = planned("--select", "good/one").runs
    assert again.reason == "last attempt ended in ERROR: lost_runner at compile"
    assert again.attempt == 2


def test_plan_with_a_damaged_history(campaign: Path) -> None:
    """Results whose history is gone are an error with a remedy."""
    published(papers.passing(run_of("good/one"), datetime.now(UTC)))
    shutil.rmtree("results/history")
    ended = qualify("plan")
    assert (ended.code, ended.out) == (6, "")
    assert "restore history/" in ended.err


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda folder: (folder / "config.json").write_text("{no JSON"), "is not JSON"),
        (lambda folder: (folder / "config.json").write_text("[" * 50_000), "is not JSON"),
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "model.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 99), "safetensors"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no safetensors weights"),
        (lambda folder: small_checkpoint(folder, model_type="new"), "does not know the type new"),
        (lambda folder: small_checkpoint(folder, model_type="x" * 5000), "breaks planning"),
        (lambda folder: small_checkpoint(folder, num_key_value_heads=-2), "breaks planning"),
        (shutil.rmtree, "does not exist"),
    ],
)
def test_plan_with_a_hostile_directory(
    campaign: Path, break_it: Callable[[Path], object], reason: str
) -> None:
    """Whatever a directory holds, its run is refused with a reason and the others are planned."""
    break_it(campaign / "models/good/two")
    ended = qualify("plan")
    assert ended.code == 0
    assert "  good/one " in ended.out.split("refused:")[0]
    (line,) = [line for line in ended.out.split("\n") if line.startswith("  good/two ")]
    assert line in ended.out.split("refused:")[1]
    plan = planned()
    (refused,) = [run for run in plan.refused if run.model_id == "good/two"]
    assert refused.refusal is not None
    assert reason in refused.refusal.reason or reason in line


def test_plan_from_the_hub(campaign: Path) -> None:
    """Models of the Hub: a readable one is placed at its commit, gated and missing are refused.

    Refusals for infrastructure end in ERROR rows and are due again.
    """
    names = ["org/open", "org/gated", "org/missing"]
    (campaign / "models.yaml").write_text(
        HEAD + "".join(f"  - {{id: {name}, task: text-generation}}\n" for name in names)
    )
    with HubServer() as hub:
        commit = hub.add("org/open", campaign / "models/good/one")
        hub.add("org/gated", campaign / "models/good/two", gated="manual", readers=("hf_other",))
        environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(campaign / "hf"), "HF_TOKEN": ""}
        ended = process("plan", "--output", "plan.json", **environment)
        assert (ended.code, ended.err) == (0, "")
        plan = read(Plan, Path("plan.json"))
        (run,) = plan.jobs[0].runs
        assert (run.model_id, run.revision, run.source) == ("org/open", commit, None)
        assert {run.model_id: run.refusal and run.refusal.failure for run in plan.refused} == {
            "org/gated": Failure.GATED,
            "org/missing": Failure.MISSING,
        }
        only_refused = Plan(jobs=(), refused=plan.refused, skipped=())
        write(only_refused, Path("refused.json"))
        assert qualify("run", "refused.json").code == 0
        ended = qualify("publish", "build/records", "--plan", "refused.json")
        assert ended.out.startswith("2 new rows: 0 PASS, 0 FAIL, 2 ERROR\n")
        ended = process("plan", "--json", **environment)
        reasons = {run["model_id"]: run["reason"] for run in ended.json()["refused"]}
        assert reasons["org/gated"] == "last attempt ended in ERROR: gated at plan"


# --- script -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["good/one", "Good/One", "good--one", f"good--one{STACK}", "*ne@*"]
)
def test_script(campaign: Path, name: str) -> None:
    """script prints the bytes of run.py that the plan names, each time the same, nothing else."""
    (campaign / "models.yaml").write_text(listed("good/one", "good/two"))
    first, second = qualify("script", name), qualify("script", name)
    assert (first.code, first.err) == (0, "")
    assert first.out == second.out
    assert script.sha256(first.out) == run_of("good/one").script_sha256
    compile(first.out, "run.py", "exec")


def test_script_in_a_process(campaign: Path) -> None:
    """A process prints the same bytes as another."""
    first = process("script", "good/one", PYTHONHASHSEED="1")
    assert (first.code, first.err) == (0, "")
    assert first.out == process("script", "good/one", PYTHONHASHSEED="2").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["good/*"], f"good/* names 2 runs:\n    good--one{STACK}\n    good--two{STACK}\n"),
        (["good/one", "--stack", "cpu", "--stack", "neuron"], "or one --stack"),
        (["good/on"], 'unknown model "good/on"; did you mean "good/one"?'),
        (["one"], "'*one*' stands for every run id with one in it"),
        ([f"good--on{STACK}"], f"did you mean good--one{STACK}?"),
        (["big/one"], f"big--one{STACK}: excluded, not_prioritised: later perhaps"),
        (["cut/one"], "so there is no script: unsupported_checkpoint: "),
        (["cut/one"], "model.safetensors is cut"),
    ],
)
def test_script_of_no_run(campaign: Path, arguments: list[str], message: str) -> None:
    """A name of several runs, of none or of a refused one prints no script and says why."""
    ended = qualify("script", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


# --- run ----------------------------------------------------------------------------------------


def test_run_a_refused_model(campaign: Path) -> None:
    """A refused run leaves a record that says why, and exit code 0: the command worked."""
    ended = qualify("run", "cut/one")
    assert (ended.code, ended.err) == (0, "")
    begin, end = ended.out.rstrip().split("\n")
    assert begin == "[1/1] cut/one: refused without running; due: asked for"
    assert end.startswith("[1/1] cut/one: FAIL at plan: unsupported_checkpoint: ")
    (path,) = records(campaign)
    assert path.parent.parent.name == f"cut--one{STACK}"
    record = read(Record, path)
    assert (record.result, record.stage, record.run_py) == (Result.FAIL, Stage.PLAN, None)


def test_run_a_model_after_a_lost_run(campaign: Path) -> None:
    """Who names a model asks for its run: earlier records of this machine change nothing."""
    lost = papers.unended(run_of("cut/one"), datetime.now(UTC))
    papers.save(campaign / "build/records", [lost])
    assert qualify("run", "cut/one").out.split("\n")[0].endswith("due: asked for")


def test_run_settings(campaign: Path) -> None:
    """Folders are absolute, --no-store leaves no store, a judge without calibration is refused."""
    text = (campaign / "models.yaml").read_text()
    (campaign / "judge").mkdir()
    (campaign / "list").mkdir()
    path = campaign / "list" / "models.yaml"

    def settings(judge: str, store: str) -> Settings:
        path.write_text(text.replace("defaults:\n", f"defaults:\n  judge: {judge}\n"))
        return _settings(load(path), path, Path("records"), store, Path("references"))

    (known,) = load_calibrations().judges.values()
    (campaign / "judge" / "config.json").write_text(known.architecture.model_dump_json())
    found = settings("../judge", "graphs")
    assert Path(found.judge).samefile(campaign / "judge")
    assert (found.records, found.references) == (campaign / "records", campaign / "references")
    assert found.store is not None and found.store.url == "graphs"
    assert found.provenance == provenance()
    found = settings(DEFAULT_JUDGE, "")
    assert (found.judge, found.store) == (DEFAULT_JUDGE, None)
    with pytest.raises(UsageError, match="nor a calibrated judge"):
        settings("org/judge", "")


def test_run_without_the_judge(campaign: Path) -> None:
    """A directory that should hold the judge and does not ends the command before any run."""
    text = (campaign / "models.yaml").read_text()
    (campaign / "models.yaml").write_text(
        text.replace("defaults:\n", "defaults:\n  judge: ../judge\n")
    )
    ended = qualify("run", "cut/one")
    assert (ended.code, ended.out) == (7, "")
    assert "the judge of the list is not there" in ended.err
    assert records(campaign) == []


@pytest.mark.parametrize("kind", ["plan", "job"])
@pytest.mark.parametrize("way", ["file", "stdin"])
def test_run_a_paper(campaign: Path, kind: str, way: str) -> None:
    """A plan and a job are taken from a file and from standard input alike."""
    plan = planned("--select", "cut/one")
    job = papers.job(tuple(plan.runs))
    text = dump(plan) if kind == "plan" else dump(job)
    Path("paper").write_text(text)
    ended = qualify("run", "paper") if way == "file" else qualify("run", "-", typed=text)
    assert ended.code == 0
    assert read(Record, *records(campaign)).run == plan.refused[0]


def test_run_as_json(campaign: Path) -> None:
    """--json prints the records; what is said meanwhile goes to standard error."""
    ended = qualify("run", "cut/one", "--json")
    (record,) = ended.json()
    assert Record.model_validate(record) == read(Record, *records(campaign))
    assert ended.err.startswith("[1/1] cut/one: refused without running")


def test_run_strict(campaign: Path) -> None:
    """--strict ends with exit code 10 after all runs, naming those that did not PASS."""
    ended = qualify("run", "cut/one", "--strict")
    assert ended.code == errors.RunsFailed.exit_code == 10
    assert ended.err == "qualify: 1 of 1 run did not PASS: cut/one\n"
    assert len(records(campaign)) == 1
    both = qualify("run", "cut/one", "--strict", "--json")
    assert (both.code, len(both.json())) == (10, 1)


def test_run_nothing(campaign: Path) -> None:
    """A plan without runs is done at once, and says so."""
    text = dump(Plan(jobs=(), refused=(), skipped=()))
    ended = qualify("run", "-", "--strict", typed=text)
    assert (ended.code, ended.out) == (0, "- holds no run: there is nothing to do\n")
    assert qualify("run", "-", "--json", typed=text).json() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"jobs": [', "Invalid JSON"),
        ("", "Invalid JSON"),
        ("7", "not a valid plan"),
        ("null", "not a valid plan"),
        ("[" * 100_000, "not a valid plan"),
        ("\xff", "not a valid plan"),
        ("{}", "jobs: Field required"),
        ('{"job_id": "x"}', "not a valid job: runner: Field required"),
        ('{"schema_version": 99, "jobs": [], "refused": [], "skipped": []}', "schema version 99"),
    ],
)
def test_run_a_broken_paper(campaign: Path, text: str, message: str) -> None:
    """What is no plan and no job ends with exit code 5 and the name of where it came from."""
    data = text.encode("latin-1")
    (campaign / "bad.json").write_bytes(data)
    ended = qualify("run", "bad.json")
    assert (ended.code, ended.out) == (5, "")
    assert ended.err.startswith("qualify: bad.json: ")
    assert message in ended.err
    piped = qualify("run", "-", typed=data)
    assert piped.code == 5
    assert piped.err.startswith("qualify: standard input: ")


def test_run_a_paper_that_is_no_file(campaign: Path) -> None:
    """The name of a JSON file that is not there is not taken for a model's."""
    ended = qualify("run", "plan.json")
    assert (ended.code, ended.out) == (5, "")
    assert ended.err == "qualify: plan.json: cannot be read: No such file or directory\n"


def test_run_too_large_a_paper(campaign: Path) -> None:
    """Standard input has the limit that files have."""
    ended = qualify("run", "-", typed=b" " * (MAX_PAPER_BYTES + 1))
    assert ended.code == 5
    assert "above the limit" in ended.err


@pytest.fixture
def three_jobs(campaign: Path) -> Path:
    """A plan file of three jobs of one run each and a refused one. No run comes to anything: there
    is no device here, and each says so in its record."""
    runs = [papers.run(f"m/{n}") for n in (1, 2, 3)]
    jobs = [papers.job([run], job_id=f"trn2-{n}") for n, run in enumerate(runs, 1)]
    made = Plan(jobs=tuple(jobs), refused=(papers.refused("no/no"),), skipped=())
    write(made, campaign / "plan.json")
    return campaign


def test_run_one_job_of_a_plan(three_jobs: Path) -> None:
    """--job runs that job alone: neither the others nor what is refused, whose rows publish makes
    from the plan."""
    qualify("run", "plan.json", "--job", "trn2-2")
    assert [path.parent.parent.name for path in records(three_jobs)] == [f"m--2{NEURON}"]


@pytest.mark.parametrize(
    ("job_id", "message"),
    [
        ("trn2-22", 'unknown job "trn2-22"; did you mean "trn2-2"?'),
        ("zzz", 'expected one of "trn2-1", "trn2-2", "trn2-3"'),
        ("refused", "unknown job"),
        ("", 'unknown job ""'),
    ],
)
def test_run_an_unknown_job(three_jobs: Path, job_id: str, message: str) -> None:
    """A job that the plan does not hold ends with exit code 2 and a near miss, and runs nothing."""
    ended = qualify("run", "plan.json", "--job", job_id)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert records(three_jobs) == []


def test_run_a_job_of_a_plan_without_jobs(campaign: Path) -> None:
    """Where everything is refused there is no job to choose."""
    write(planned("--select", "cut/one"), campaign / "plan.json")
    ended = qualify("run", "plan.json", "--job", "laptop-1")
    assert (ended.code, records(campaign)) == (2, [])
    assert "plan.json holds no job" in ended.err


def test_run_a_plan_that_is_another(three_jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that somebody replaced on its way is not run; the one that was made is."""
    text = (three_jobs / "plan.json").read_bytes()
    monkeypatch.setenv("QUALIFY_PLAN_SHA256", hashlib.sha256(text + b" ").hexdigest())
    ended = qualify("run", "plan.json", "--job", "trn2-2")
    assert (ended.code, records(three_jobs)) == (5, [])
    assert "plan.json: is not the file that was made" in ended.err
    monkeypatch.setenv("QUALIFY_PLAN_SHA256", hashlib.sha256(text).hexdigest())
    qualify("run", "plan.json", "--job", "trn2-2")
    assert len(records(three_jobs)) == 1


def test_what_a_machine_keeps(three_jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs and references go to the folder that outlives jobs, where one is named."""
    monkeypatch.setenv("QUALIFY_FOLDER", str(three_jobs / "kept"))
    assert _kept("graphs") == three_jobs / "kept" / "graphs"
    monkeypatch.setenv("QUALIFY_FOLDER", "")
    assert _kept("references") == Path("build/references")


def test_run_a_run_that_names_jobs(campaign: Path) -> None:
    """A job is told from a plan by its fields, whatever words stand in its runs."""
    run = run_of("cut/one").model_copy(update={"model_type": "jobs"})
    text = dump(papers.job((run,)))
    assert qualify("run", "-", typed=text).code == 0


# --- publish and show ---------------------------------------------------------------------------


def test_publish_and_show(campaign: Path) -> None:
    """From records to results, page, script and back to the terminal; twice changes nothing."""
    at = datetime.now(UTC) - timedelta(days=1)
    one, two = run_of("good/one"), run_of("good/two")
    folder = papers.save(campaign / "artifacts", [papers.passing(one, at), papers.failing(two, at)])
    ended = qualify("publish", folder)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.rstrip().split("\n")
    assert lines[0] == "2 new rows: 1 PASS, 1 FAIL, 0 ERROR"
    assert f"good--two{STACK}" in lines[2] and "compiler_error" in lines[2]
    assert "Change(" not in ended.out
    wrote = [line.removeprefix("  wrote ") for line in lines if line.startswith("  wrote ")]
    assert all(Path(path).is_file() for path in wrote)
    assert "COMPATIBILITY.md" in wrote
    assert f"results/scripts/good--one{STACK}.py" in wrote
    again = qualify("publish", folder)
    assert again.out == "0 new rows: 0 PASS, 0 FAIL, 0 ERROR\n"

    table = qualify("show").out.split("\n")
    assert table[0].split()[:3] == ["model", "result", "tested"]
    assert table[1].split()[:3] == ["good/one", "PASS", f"{at:%Y-%m-%d}"]
    assert table[2].split()[:2] == ["good/two", "FAIL"]
    passing = qualify("show", "good/one", "--stack", "cpu")
    assert passing.out.startswith("good/one: PASS\n") and passing.code == 0
    assert qualify("show", "good/*", "--full").out.count("\n\n") == 1
    rows = qualify("show", "--json").json()
    assert [row["result"] for row in rows] == ["PASS", "FAIL"]
    failing = qualify("show", "good/two", "--stack", "cpu", "--json")
    assert (failing.code, json.loads(failing.out)["row"]["result"]) == (11, "FAIL")


def test_publish_as_json(campaign: Path) -> None:
    """--json counts rows, and tells changes and written files as text."""
    folder = papers.save(campaign / "artifacts", [papers.passing(run_of("good/one"))])
    found = qualify("publish", folder, "--json").json()
    assert (found["added"], found["passed"], found["failed"], found["errors"]) == (1, 1, 0, 0)
    assert len(found["changes"]) == 1
    assert "COMPATIBILITY.md" in found["written"]


def test_publish_what_was_planned(campaign: Path) -> None:
    """With --plan a run without a record becomes an ERROR row, and a refused one its refusal."""
    qualify("plan", "--output", "plan.json")
    (campaign / "none").mkdir()
    ended = qualify("publish", "none", "--plan", "plan.json")
    assert ended.out.startswith("3 new rows: 0 PASS, 1 FAIL, 2 ERROR\n")
    rows = {row["model_id"]: row["failure"] for row in qualify("show", "--json").json()}
    assert rows == {
        "good/one": "lost_runner",
        "good/two": "lost_runner",
        "cut/one": "unsupported_checkpoint",
    }
    assert [run.model_id for run in planned().runs] == ["good/one", "good/two"]


def test_publish_keeps_the_good_among_broken_records(campaign: Path) -> None:
    """A broken record is named with its file after the others are published; exit code 6."""
    folder = papers.save(campaign / "artifacts", [papers.passing(run_of("good/one"))])
    broken = folder / "9" / "x" / RECORD_NAME
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    ended = qualify("publish", folder)
    assert ended.code == 6
    assert str(broken) in ended.err
    assert ended.out.startswith("1 new row: 1 PASS, 0 FAIL, 0 ERROR\n")
    assert qualify("show", "good/one", "--stack", "cpu").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 5, "nowhere: no such file or directory"),
        (["models"], 6, "there is no record to publish"),
        (["models", "--plan", "nowhere.json"], 5, "nowhere.json: cannot be read"),
        (["models", "--plan", "models.yaml"], 5, "models.yaml: not a valid plan"),
    ],
)
def test_publish_nothing(campaign: Path, arguments: list[str], code: int, message: str) -> None:
    """Nothing to publish is an error and leaves no page."""
    ended = qualify("publish", *arguments)
    assert (ended.code, ended.out) == (code, "")
    assert message in ended.err
    assert not Path("COMPATIBILITY.md").exists()


def test_show_without_results(in_tmp: Path) -> None:
    """Nothing published is an error that says where it was looked for."""
    ended = qualify("show")
    assert (ended.code, ended.out) == (6, "")
    assert ended.err == (
        "qualify: results: there are no published results\n"
        "  name another --results: a folder, the address of a site, or hf://datasets/OWNER/NAME\n"
    )


def test_show_an_unknown_model(campaign: Path) -> None:
    """A model without a result is untested; a near miss is offered."""
    published(papers.passing(run_of("good/one")))
    ended = qualify("show", "good/uno")
    assert ended.code == 12
    assert ended.out.startswith("good/uno: UNTESTED on Trainium\n")
    assert "Did you mean good/one?" in ended.out
