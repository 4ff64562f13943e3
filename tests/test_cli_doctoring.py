"""`qualify doctor`: what a person reads, what a program reads, how it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipeline import doctor
from pipeline.cli import doctoring
from pipeline.cli.group import main
from pipeline.device import tools
from pipeline.errors import EnvironmentFault
from pipeline.rows import row_of
from tests import papers
from tests.conftest import ROOT
from tests.test_reproduce import REFUSED, publish_rows, row

assert doctoring.doctor.name in main.commands


@pytest.fixture(autouse=True)
def _nothing_of_neuron(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without the Neuron tools, whatever the one that runs the tests has."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(tools, "TOOLS", tmp_path)


def qualify(*arguments: str) -> Result:
    """Run the command on the shipped list."""
    return CliRunner().invoke(main, ["doctor", "--list", str(ROOT / "models.yaml"), *arguments])


def test_a_machine_without_neuron_hears_it_plainly() -> None:
    """What is missing and what to install, once for what one command mends; no traceback."""
    done = qualify()
    assert done.exit_code == EnvironmentFault.exit_code
    assert "Neuron devices none: neuron-ls is neither on PATH nor in" in done.stdout
    assert "torch-neuronx 2.14.3.0 is asked for, nothing is installed" in done.stdout
    assert done.stdout.count("python -m pip install torch==") == 1
    assert "Traceback" not in done.output
    assert done.stderr == "qualify: this machine cannot run sdk-2.33-torch-2.14 as it is\n"


def test_a_stack_that_is_ready_ends_well() -> None:
    """The stack of this very machine: no problem, exit code 0."""
    done = qualify("--stack", "cpu")
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith("stack cpu: ready\n")


def test_json_holds_all_of_it_and_nothing_else_is_printed() -> None:
    """Several stacks at once; standard output is one JSON document, come what may."""
    done = qualify("--stack", "cpu", "--stack", "sdk-2.33-torch-2.13", "--json")
    assert done.exit_code == EnvironmentFault.exit_code
    told = json.loads(done.stdout)
    assert told["problems"]["cpu"] == []
    assert any("nki" in one["what"] for one in told["problems"]["sdk-2.33-torch-2.13"])
    assert told["machine"]["devices"] == []
    assert told["machine"]["no_devices"]


def test_a_first_run_is_of_one_stack_and_leaves_a_report(tmp_path: Path) -> None:
    """Here nothing can be tried: the report says why for each check, and the command ends so."""
    report = tmp_path / "report.md"
    done = qualify("--first-run", "--stack", "cpu", "--stack", "sdk-2.33-torch-2.14")
    assert done.exit_code == 2
    assert "a first run is of one stack" in done.stderr
    done = qualify("--first-run", "--stack", "cpu")
    assert done.exit_code == 2
    assert "is of target cpu" in done.stderr
    done = qualify("--output", str(report))
    assert done.exit_code == 2
    done = qualify("--first-run", "--output", str(report.with_suffix(".json")))
    assert done.exit_code == 2
    done = qualify("--first-run", "--stack", "sdk-2.33-torch-2.14", "--output", str(report))
    assert done.exit_code == EnvironmentFault.exit_code, done.output
    assert "nothing could be tried on this machine" in done.stderr
    assert "0 of " in done.stdout
    assert report.exists()
    assert report.with_suffix(".json").exists()


def test_an_unknown_stack_gets_a_near_miss() -> None:
    """As everywhere: a wrong name ends as a wrong command line."""
    done = qualify("--stack", "sdk-2.33-torch-2.1")
    assert done.exit_code == 2
    assert "sdk-2.33-torch-2.1" in done.stderr


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """results/ with a row of this machine's CPU and one of a device; torch is not imported."""
    monkeypatch.setattr(doctor, "_import", lambda *, neuron: [])
    device = row_of(papers.passing(papers.run("demo/on-device", placement=papers.placement(4))))
    return publish_rows(tmp_path / "results", row("pass"), device)


def test_a_row_of_this_machines_stack_is_ready(results: Path) -> None:
    """Component by component, and what merely differs stops nothing."""
    done = qualify("--row", "demo/fake", "--results", str(results))
    assert done.exit_code == 0, done.output
    assert "demo/fake, PASS on cpu, " in done.stdout
    assert re.search(r"python +3\.14\.2 +3\.\S+ +differs", done.stdout)
    assert done.stdout.endswith("to run its script: ready\n")


def test_a_row_of_a_device_says_what_this_machine_lacks(results: Path) -> None:
    """What the row had stands beside what is here, and each stop has its remedy."""
    arguments = ("--row", "demo/on-device", "--results", str(results))
    done = qualify(*arguments)
    assert done.exit_code == EnvironmentFault.exit_code
    assert re.search(r"neuronx-cc +2\.28\.7631\.0 +none +stops", done.stdout)
    assert re.search(r"free cores +4 +0 +stops", done.stdout)
    assert re.search(r"Neuron driver +2\.31\.4 +- ", done.stdout)
    assert "neuron-ls is neither on PATH nor in" in done.stdout
    assert "cannot reproduce demo--on-device@" in done.stderr
    told = json.loads(qualify(*arguments, "--json").stdout)
    parts = {one["name"]: one for one in told["components"]}
    assert parts["free cores"] == {
        "name": "free cores",
        "row": "4",
        "here": "0",
        "match": "stops",
        "remedy": parts["free cores"]["remedy"],
    }
    assert told["problems"][told["row"]]


def test_a_refused_row_can_be_held_against_a_machine(results: Path) -> None:
    """It has no script, but its run id names the stack."""
    refused = row_of(papers.failing(papers.refused("demo/fake"), **REFUSED))
    folder = publish_rows(results.parent / "refused", refused)
    done = qualify("--row", "demo/fake", "--results", str(folder))
    assert done.exit_code == EnvironmentFault.exit_code
    assert "torch 2.14.0 is asked for" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--row", "demo/fak"), "did you mean demo/fake?"),
        (("--row", "demo/fake", "--first-run"), "not of a row"),
        (("--row", "demo/fake", "--stack", "cpu", "--stack", "neuron"), "a row is of one stack"),
        (("--row", "demo/fake", "--stack", "neuron"), "its stacks: "),
    ],
)
def test_wrong_words_about_a_row(results: Path, arguments: tuple[str, ...], told: str) -> None:
    """A wrong command line, with what would be right."""
    done = qualify(*arguments, "--results", str(results))
    assert done.exit_code == 2
    assert told in done.stderr
