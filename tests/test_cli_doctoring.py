"""`qualify doctor`: what a person reads, what a program reads, how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipeline.cli import doctoring
from pipeline.cli.group import main
from pipeline.device import tools
from pipeline.errors import EnvironmentFault
from tests.conftest import ROOT

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
