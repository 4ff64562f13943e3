"""The doctor: every difference that would stop a run is named with what to install for it."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline import catalog, device, doctor, script
from pipeline.words import Target
from tests import papers
from tests.conftest import ROOT

STACK = catalog.load(ROOT / "models.yaml").stack_versions("sdk-2.33-torch-2.14")
DEVICE = device.Device(0, (0, 1, 2, 3), 96 * 2**30, None, (), 2, ())
HELPERS = {"accelerate": "1.15.0", "safetensors": "0.8.0", "pillow": "13.0.0", "psutil": "7.2.2"}


def machine(packages: Mapping[str, str | None] = {}, **changes: Any) -> doctor.Machine:
    """A machine that has what STACK names; packages: other versions, None = not installed."""
    found = HELPERS | {
        "torch": "2.14.0+cpu",
        "transformers": "5.24.0",
        "torch-neuronx": "2.14.3.0.1278",
        "neuronx-cc": "2.28.7631.0+d6eb0ecd",
        "nki": "0.7.0",
    }
    kept = {name: version for name, version in (found | dict(packages)).items() if version}
    fields: dict[str, Any] = {
        "python": "3.14.2",
        "packages": kept,
        "driver": "2.31.7.0",
        "runtime": "2.35.30.0-dd5879008",
        "devices": (DEVICE,),
        "no_devices": None,
        "no_devices_remedy": None,
        "compiler": "/usr/bin/g++",
    }
    return dataclasses.replace(doctor.machine(), **(fields | changes))


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """No torch is started: what the import says is another test's matter."""
    monkeypatch.setattr(doctor, "_import", lambda *, neuron: [])


@pytest.mark.usefixtures("imports")
def test_build_numbers_and_local_parts_are_no_difference() -> None:
    """Wheels and Debian packages carry parts behind the version that release notes name."""
    assert doctor.problems(machine(), STACK) == ()


@pytest.mark.usefixtures("imports")
@pytest.mark.parametrize(
    ("there", "what", "remedy"),
    [
        (machine(python="3.11.7"), "python 3.14 is asked for, 3.11.7 runs", "python3.14 -m venv"),
        (machine({"torch": "2.13.0"}), "torch 2.14.0 is asked for, 2.13.0", "torch==2.14.0"),
        (machine({"nki": None}), "nki 0.7.0 is asked for, nothing is installed", "'nki==0.7.0.*'"),
        (
            machine({"neuronx-cc": "2.28.7631.01"}),
            "neuronx-cc 2.28.7631.0 is asked",
            "neuronx-cc==",
        ),
        (machine({"psutil": None}), "psutil is not installed", ".[run]"),
        (
            machine(driver="2.30.2.0"),
            "Neuron driver 2.31.7.0 is asked for, 2.30.2.0",
            "dkms=2.31.7.0*",
        ),
        (machine(runtime=None), "Neuron runtime 2.35.30.0 is asked for, none", "lib=2.35.30.0*"),
        (
            machine({"torch-xla": "2.9.0"}),
            "PyTorch/XLA or a placeholder",
            "fresh virtual environment",
        ),
        (
            machine(devices=(), no_devices="no such thing", no_devices_remedy="do it"),
            "no such",
            "do it",
        ),
        (
            machine(devices=(dataclasses.replace(DEVICE, processes=(device.Process(7, "x"),)),)),
            "every device is in use",
            "7",
        ),
    ],
)
def test_each_difference_is_named_with_its_remedy(
    there: doctor.Machine, what: str, remedy: str
) -> None:
    """One thing is wrong: one problem, which says what was found and what to install."""
    (problem,) = doctor.problems(there, STACK)
    assert what in problem.what
    assert remedy in problem.remedy


@pytest.mark.usefixtures("imports")
@pytest.mark.parametrize("version", ["2.9.0.2.15.32035", "1.0"])
def test_the_older_package_of_the_same_name_is_named_first(version: str) -> None:
    """PyTorch/XLA and PyPI's placeholder are no version of what is wanted."""
    first, *_ = doctor.problems(machine({"torch-neuronx": version}), STACK)
    assert f"torch-neuronx {version}" in first.what
    assert "fresh virtual environment" in first.remedy


@pytest.mark.usefixtures("imports")
def test_what_a_stack_does_not_name_is_not_asked_for() -> None:
    """null in models.yaml means any: neither Python, nor driver, nor runtime, nor nki."""
    there = machine({"nki": None}, python="3.12.1", driver=None, runtime=None)
    open_stack = papers.stack(torch_neuronx="2.14.3.0")
    assert doctor.problems(there, open_stack) == ()


@pytest.mark.usefixtures("imports")
def test_a_cpu_stack_needs_a_compiler_and_no_device() -> None:
    """Nothing of Neuron is asked for; Inductor's C++ compiler is."""
    cpu = papers.stack(Target.CPU, torch="2.14.0")
    there = machine(devices=(), no_devices="none", driver=None, runtime=None)
    assert doctor.problems(there, cpu) == ()
    (problem,) = doctor.problems(dataclasses.replace(there, compiler=None), cpu)
    assert "no C++ compiler" in problem.what


def test_an_import_that_brings_no_core_is_a_problem() -> None:
    """Metadata alone proves nothing: torch is imported, and here it has no torch.neuron."""
    (problem,) = doctor.problems(machine(), STACK)
    assert "torch shows no NeuronCore (none)" in problem.what


def test_an_import_that_fails_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    """An autoload that breaks `import torch` is a finding, not a traceback of ours."""
    monkeypatch.setattr(doctor, "_IMPORT", "import sys; sys.exit('libnrt.so.1: not found')")
    (problem,) = doctor.problems(machine(), STACK)
    assert "libnrt.so.1: not found" in problem.what
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in problem.remedy


def test_the_install_command_is_one_a_shell_and_pip_take() -> None:
    """Every package pinned, both indexes; pip parses all of it."""
    words = shlex.split(script.install_command(STACK))
    assert words[:4] == ["python", "-m", "pip", "install"]
    pins = [word for word in words[4:] if not word.startswith(("--", "https://"))]
    assert len(pins) == 5
    assert all("==" in pin for pin in pins)
    assert words.count("--extra-index-url") == 2
    check = "import sys, packaging.requirements as r; list(map(r.Requirement, sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", check, *pins], check=True)


def test_this_machine_is_told_without_guessing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Real figures where there are some, None where there is nothing to read."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "not" / "yet"))
    there = doctor.machine()
    assert there.python == sys.version.split()[0]
    assert there.memory_bytes is not None
    assert there.available_bytes is not None
    assert 0 < there.available_bytes <= there.memory_bytes
    assert there.disks[0].path == str(tmp_path / "not" / "yet")
    assert there.disks[0].free_bytes > 0
    assert there.caches["HF_HOME"] == str(tmp_path / "not" / "yet")
    assert doctor._memory(tmp_path / "nothing") == {}
