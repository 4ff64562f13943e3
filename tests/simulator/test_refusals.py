"""A machine that is not the one the script was made for ends at once, with what to install."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from pipeline.diagnosis import diagnose
from pipeline.record import Observation, StackVersions
from pipeline.script import render
from pipeline.words import Failure, Stage
from tests import papers
from tests.simulator.machine import Ended, Machine
from tests.simulator.test_misbehaviour import STACK


def _launch(
    machine: Machine,
    environment: dict[str, str],
    *,
    cores: int = 1,
    stack: StackVersions = STACK,
) -> tuple[Ended, Observation]:
    """Run the script of a checkpoint that the offline Hub does not give: who comes to need it fails
    on that."""
    asked = papers.run(
        "tiny/absent",
        stack=stack,
        placement=papers.placement(cores),
        extra_packages=("einops>=0.8",),
    )
    machine.directory.mkdir(exist_ok=True)
    (machine.directory / "run.py").write_text(render(asked))
    done = subprocess.run(
        [machine.python, "run.py", "--record", "."],
        cwd=machine.directory,
        env=environment | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(machine.directory)},
        capture_output=True,
        text=True,
        check=False,
    )
    seen = Observation.model_validate_json((machine.directory / "run.json").read_text())
    return Ended(done.returncode, done.stdout, done.stderr), seen


def _class(ended: Ended, seen: Observation) -> Failure:
    return diagnose(seen, ended.out + ended.error, exit_code=ended.code, oom_kills=0).failure


@pytest.mark.parametrize(
    ("package", "wanted"),
    [("torch_neuronx", "2.14.3.0"), ("neuronx_cc", "2.29.1.0"), ("nki", "0.8.0")],
)
def test_another_version_ends_at_once(machine: Machine, package: str, wanted: str) -> None:
    """A mismatch names both versions and the whole pip line of the stack, indexes and all."""
    other = STACK.model_copy(update={package: wanted})
    ended, seen = _launch(machine, machine.environment(), stack=other)
    assert (ended.code, seen.stage, seen.error_type) == (1, Stage.DOWNLOAD, "WrongStackError")
    name = package.replace("_", "-")
    assert f"{name} {wanted} is asked for, {getattr(STACK, package)}+simulator is" in ended.error
    assert "python -m pip install torch==2.13.0 transformers==5.24.0" in ended.error
    assert f"'{name}=={wanted}.*'" in ended.error and "'einops>=0.8'" in ended.error
    assert "--extra-index-url https://pip.repos.neuron.amazonaws.com" in ended.error
    assert "Traceback" not in ended.error
    assert _class(ended, seen) is Failure.WRONG_STACK


def test_the_xla_package_is_refused(machine: Machine, tmp_path: Path) -> None:
    """torch_xla beside TorchNeuron, whatever the versions: never both in one environment."""
    (tmp_path / "old" / "torch_xla").mkdir(parents=True)
    (tmp_path / "old" / "torch_xla" / "__init__.py").touch()
    environment = machine.environment() | {"PYTHONPATH": str(tmp_path / "old")}
    ended, seen = _launch(machine, environment)
    assert seen.error_type == "WrongStackError"
    assert "PyTorch/XLA" in ended.error and "in a fresh virtual environment: python" in ended.error
    assert _class(ended, seen) is Failure.WRONG_STACK


def test_too_few_cores_end_before_the_download(machine: Machine) -> None:
    """Cores are counted before the checkpoint is fetched, by a process that takes none of them."""
    ended, seen = _launch(machine, machine.environment(cores=4), cores=8)
    assert (ended.code, seen.stage, seen.error_type) == (1, Stage.DOWNLOAD, "NoDeviceError")
    assert "8 NeuronCores are needed and torch.neuron shows 4" in ended.error
    assert "neuron-ls" in ended.error and "Traceback" not in ended.error
    assert _class(ended, seen) is Failure.DEVICE_UNAVAILABLE


def test_given_cores_are_those_that_count(machine: Machine) -> None:
    """NEURON_RT_VISIBLE_CORES says which cores there are; enough of them let the run go on."""
    environment = machine.environment(cores=8) | {"NEURON_RT_VISIBLE_CORES": "4-5"}
    ended, seen = _launch(machine, environment, cores=4)
    assert "4 cores are needed, NEURON_RT_VISIBLE_CORES gives '4-5'" in ended.error
    assert _class(ended, seen) is Failure.DEVICE_UNAVAILABLE
    _, seen = _launch(machine, environment, cores=2)
    assert seen.error_type == "LocalEntryNotFoundError"


def test_a_device_package_that_does_not_load_is_told(machine: Machine) -> None:
    """What breaks in `import torch` is named as that, with its own error above."""
    broken = machine.directory.parent / "broken"
    (broken / "trn_simulator").mkdir(parents=True)
    (broken / "trn_simulator" / "__init__.py").write_text("raise ImportError('libnrt.so.1')")
    environment = machine.environment() | {"PYTHONPATH": str(broken)}
    ended, seen = _launch(machine, environment)
    assert seen.error_type == "NoDeviceError"
    assert "libnrt.so.1" in ended.error and "import torch with the Neuron package" in ended.error
    assert json.loads((machine.directory / "run.json").read_text())["stage"] == "download"
