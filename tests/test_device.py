"""The device seen through its tools: documented shapes, and every way in which a tool can fail.

The tools are small programs on PATH that print the fixtures of tests/data/neuron; sysfs is a
folder. Both are real to the code: it starts programs and reads files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import device
from pipeline.device import sysfs, tools
from pipeline.errors import EnvironmentFault, QualifyError

DATA = Path(__file__).parent / "data" / "neuron"
LISTING = DATA / "neuron-ls-trn2-48xlarge-two.json"


class Machine:
    """A folder of programs that is all of PATH, beside a few of the system's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def program(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def listing(self, path: Path = LISTING) -> None:
        self.program("neuron-ls", f'[ "$1" = -j ] && cat {path} || cat {DATA}/neuron-ls-head.txt')


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine without any Neuron tool."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cat", "sleep", "sh", "kill"):
        found = next(Path(p) / name for p in ("/bin", "/usr/bin") if (Path(p) / name).exists())
        (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(tools, "TOOLS", tmp_path / "opt")
    return Machine(folder)


@pytest.fixture
def neighbour() -> Iterator[subprocess.Popen[bytes]]:
    """A living process that leads its own group."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    yield process
    process.kill()
    process.wait()


def listing_with(tmp_path: Path, pid: int) -> Path:
    """The documented listing, its one process being `pid`."""
    path = tmp_path / "listing.json"
    path.write_text(LISTING.read_text().replace("4194305", str(pid)))
    return path


def counter(folder: Path, name: str, value: int) -> Path:
    """Write a counter file below a folder of the tree."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")
    return path


def tree(root: Path, peaks: dict[int, int], index: int = 1) -> dict[int, Path]:
    """The driver's folders of device `index`: physical core -> its peak file, 0 if not given."""
    return {
        core: counter(
            root / f"neuron{index}" / f"neuron_core{core}", sysfs.PEAK, peaks.get(core, 0)
        )
        for core in range(8)
    }


def test_devices_are_read_as_documented(machine: Machine) -> None:
    """Index order, ids as NEURON_RT_VISIBLE_CORES takes them, a NUMA node that is a string."""
    machine.listing()
    first, second = device.devices()
    assert (first.index, second.index) == (0, 1)
    assert second == device.Device(
        index=1,
        core_ids=(4, 5, 6, 7),
        memory_bytes=96 * 2**30,
        numa_node=1,
        connected_to=(13, 0, 5, 2),
        logical_neuroncore_config=2,
        processes=(),
    )
    assert first.processes == (device.Process(4194305, "python3 run.py --rank=0"),)


def test_a_machine_with_one_device_links_to_none(machine: Machine, tmp_path: Path) -> None:
    """As users' machines print it: null for the links, "-1" for a NUMA node, the instance type."""
    path = tmp_path / "one.json"
    path.write_text(
        '[{"instance_type": "trn2.3xlarge", "neuron_device": 0, "numa_node": "-1", '
        '"connected_to": null, "neuroncore_ids": [0, 1, 2, 3], "neuron_processes": []}]'
    )
    machine.listing(path)
    (only,) = device.devices()
    assert (only.connected_to, only.numa_node, only.memory_bytes) == ((), None, None)
    assert device.instance() == "trn2.3xlarge"


def test_the_tools_folder_is_asked_when_path_has_none(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner's service has no /opt/aws/neuron/bin on its PATH; the tools are found there."""
    machine.listing()
    other = machine.folder / "opt"
    other.mkdir()
    (machine.folder / "neuron-ls").rename(other / "neuron-ls")
    with pytest.raises(device.DeviceError, match="neither on PATH nor in"):
        device.devices()
    monkeypatch.setattr(tools, "TOOLS", other)
    assert len(device.devices()) == 2


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'no neuron device found' >&2; exit 1", "exit code 1 and said: no neuron device"),
        ("kill -SEGV $$", "exit code -11"),
        ("echo 'no neuron device found'", "printed no JSON but: no neuron device found"),
        ("", "printed no JSON but: nothing"),
        ("echo '[]'", "lists no device"),
        ("echo '{\"devices\": []}'", "printed a JSON dict, not a list"),
        ("echo '[{\"neuron_device\": 0}]'", "unknown form"),
        ('echo \'[{"neuron_device": 0, "neuroncore_ids": [0]}]\'', "unknown form"),
        ("echo '[7]'", "unknown form"),
    ],
)
def test_whatever_is_not_a_list_of_devices_is_an_error_with_a_remedy(
    machine: Machine, script: str, reason: str
) -> None:
    """What neuron-ls says without a device is not documented: nothing passes for one."""
    machine.program("neuron-ls", script)
    with pytest.raises(device.DeviceError) as caught:
        device.devices()
    assert reason in caught.value.reason
    assert caught.value.remedy
    assert isinstance(caught.value, QualifyError)
    assert caught.value.exit_code == EnvironmentFault.exit_code


def test_a_tool_that_hangs_is_ended_with_what_it_started(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A driver in trouble may never answer: the harness goes on, and no process stays behind."""
    machine.program("neuron-ls", f"sleep 60 & echo $! > {tmp_path}/child; wait")
    monkeypatch.setattr(tools.ask, "__kwdefaults__", {"limit_s": 3})
    with pytest.raises(device.DeviceError, match="did not answer within"):
        device.devices()
    child = int((tmp_path / "child").read_text())
    until = time.monotonic() + 10
    while Path(f"/proc/{child}/stat").exists() and time.monotonic() < until:
        if Path(f"/proc/{child}/stat").read_text().split(")")[1].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{child}").exists()


def test_busy_tells_the_processes_of_the_cores_devices_alone(machine: Machine) -> None:
    """Cores 4 to 7 are another device's: its processes are not theirs."""
    machine.listing()
    assert [process.pid for process in device.busy((2,))] == [4194305]
    assert device.busy((4, 5)) == ()
    assert [process.pid for process in device.busy((3, 4))] == [4194305]
    assert device.free_cores(device.devices()) == (4, 5, 6, 7)
    with pytest.raises(device.DeviceError, match="no device holds the cores 9"):
        device.busy((3, 9))


def test_a_neighbouring_run_is_no_leftover(
    machine: Machine, tmp_path: Path, neighbour: subprocess.Popen[bytes]
) -> None:
    """Processes of the harness's other runs, known by their group, are not held against a core."""
    machine.listing(listing_with(tmp_path, neighbour.pid))
    assert [process.pid for process in device.busy((0,))] == [neighbour.pid]
    assert device.busy((0,), apart_from={neighbour.pid}) == ()
    assert device.health((0,), root=tmp_path, apart_from=[neighbour.pid]) is None
    reason = device.health((0,), root=tmp_path)
    assert reason is not None
    assert f"{neighbour.pid} (python3 run.py --rank=0)" in reason


def test_waiting_ends_when_the_processes_are_gone(machine: Machine, tmp_path: Path) -> None:
    """wait_idle asks again until nobody is listed, and tells who is left when its time is up."""
    machine.program(
        "neuron-ls",
        f"n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n+1)) > {tmp_path}/n\n"
        f"[ $n -lt 2 ] && cat {LISTING} || echo "
        '\'[{"neuron_device": 0, "neuroncore_ids": [0, 1, 2, 3], "neuron_processes": []}]\'',
    )
    assert device.wait_idle((0,), 30) == ()
    assert (tmp_path / "n").read_text() == "3\n"
    machine.listing()
    assert [process.pid for process in device.wait_idle((0,), 0)] == [4194305]


def test_a_lost_device_is_unhealthy(machine: Machine, tmp_path: Path) -> None:
    """A device gone from the list, or a list that is gone, speaks against its cores."""
    machine.listing()
    assert device.health((4,), root=tmp_path) is None
    assert device.health((8,), root=tmp_path) == "no device holds the cores 8"
    machine.program("neuron-ls", "exit 3")
    assert "exit code 3" in (device.health((4,), root=tmp_path) or "")


@pytest.mark.parametrize(
    "name",
    [
        "neuron1/stats/hardware/mem_ecc_uncorrected",
        "neuron1/stats/hardware/sram_ecc_uncorrected",
        "neuron1/neuron_core3/stats/status/hw_error/total",
        "neuron1/neuron_core2/stats/status/hw_dma_abort_error/total",
    ],
)
def test_counted_hardware_faults_take_a_core_out_once_they_grow(
    machine: Machine, tmp_path: Path, name: str
) -> None:
    """Core 5 is physical 2 and 3 of device 1. A count of the machine's past is no fault of now."""
    machine.listing()
    tree(tmp_path, {})
    counter(tmp_path, name, 4)
    before = device.counters((5,), tmp_path)
    assert device.health((5,), before, root=tmp_path) is None
    counter(tmp_path, name, 5)
    assert "rose from 4 to 5" in (device.health((5,), before, root=tmp_path) or "")
    assert device.health((5,), root=tmp_path) is None


@pytest.mark.parametrize(
    "name",
    [
        "neuron1/neuron_core3/stats/status/timeout/total",
        "neuron1/neuron_core3/stats/status/oob_error/total",
        "neuron1/neuron_core0/stats/status/hw_error/total",
        "neuron0/stats/hardware/mem_ecc_uncorrected",
    ],
)
def test_what_a_model_can_cause_or_another_core_counts_is_no_sickness(
    machine: Machine, tmp_path: Path, name: str
) -> None:
    """Timeouts and bad indices are results of a model; other cores' faults are theirs."""
    machine.listing()
    tree(tmp_path, {})
    counter(tmp_path, name, 0)
    before = device.counters((5,), tmp_path)
    counter(tmp_path, name, 9)
    assert device.health((5,), before, root=tmp_path) is None


def test_the_kernel_log_speaks_for_its_device(machine: Machine, tmp_path: Path) -> None:
    """A new line of the documented shape counts, an old one or another device's does not."""
    machine.listing()
    line = "NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-0 nd-id={} nc-id=0 action=X"
    machine.program("dmesg", f"echo '[ 1.0] {line.format(1)}'")
    before = device.counters((4,), tmp_path)
    assert device.health((4,), before, root=tmp_path) is None
    machine.program("dmesg", f"echo '[ 1.0] {line.format(1)}'; echo '[ 2.0] {line.format(0)}'")
    assert device.health((4,), before, root=tmp_path) is None
    assert "SRAM_UNCORRECTABLE" in (device.health((4,), device.Counters(), root=tmp_path) or "")


def test_cores_are_found_in_the_drivers_tree(machine: Machine, tmp_path: Path) -> None:
    """Two physical cores to a core at configuration 2; a tree of unknown size is not guessed at."""
    machine.listing()
    second = device.devices()[1]
    tree(tmp_path, {})
    names = [path.name for path in sysfs.core_folders(6, second, tmp_path)]
    assert names == ["neuron_core4", "neuron_core5"]
    for core in range(4, 8):
        (tmp_path / "neuron1" / f"neuron_core{core}").rename(tmp_path / f"gone{core}")
    assert [path.name for path in sysfs.core_folders(6, second, tmp_path)] == ["neuron_core2"]
    (tmp_path / "neuron1" / "neuron_core3").rename(tmp_path / "gone3")
    assert sysfs.core_folders(6, second, tmp_path) == ()
    assert sysfs.core_folders(6, second, tmp_path / "nothing") == ()


def test_a_cleared_peak_is_the_runs_own(machine: Machine, tmp_path: Path) -> None:
    """An earlier run's peak is cleared before, and both physical cores of a core add up."""
    machine.listing()
    files = tree(tmp_path, {0: 900, 1: 900, 2: 900})
    meter = device.PeakMeter.start((5, 4), root=tmp_path)
    assert [files[core].read_text() for core in range(3)] == ["0\n", "0\n", "0\n"]
    for core, value in {0: 70, 1: 7, 2: 50, 3: 0}.items():
        files[core].write_text(f"{value}\n")
    assert meter.stop() == device.RuntimePeaks((50, 77), "sysfs")


def test_somebody_elses_peak_is_never_reported(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peak that cannot be cleared counts only where it moved: then it is this run's."""
    machine.listing()
    # As for one who is not root: a write changes nothing.
    monkeypatch.setattr("pipeline.device.peaks.clear", lambda path: False)
    files = tree(tmp_path, {0: 900, 1: 900})
    assert device.PeakMeter.start((4,), root=tmp_path).stop() is None
    meter = device.PeakMeter.start((4,), root=tmp_path)
    files[0].write_text("950\n")
    assert meter.stop() is None
    meter = device.PeakMeter.start((4,), root=tmp_path)
    files[0].write_text("960\n")
    files[1].write_text("910\n")
    assert meter.stop() == device.RuntimePeaks((1870,), "sysfs")


def test_nothing_counted_is_unknown_not_zero(machine: Machine, tmp_path: Path) -> None:
    """A run held memory on each of its cores: a core without any was not measured."""
    machine.listing()
    files = tree(tmp_path, {})
    meter = device.PeakMeter.start((4, 5), root=tmp_path)
    files[0].write_text("70\n")
    assert meter.stop() is None
    assert device.PeakMeter.start((4,), root=tmp_path / "nothing").stop() is None
    assert device.PeakMeter.start((99,), root=tmp_path).stop() is None
    machine.program("neuron-ls", "exit 1")
    assert device.PeakMeter.start((4,), root=tmp_path).stop() is None


def monitor(machine: Machine, tmp_path: Path, then: str = "sleep 60") -> Path:
    """neuron-monitor that keeps its configuration, prints the fixture, then lives on; a marker."""
    machine.program(
        "neuron-monitor",
        f"cat $2 > {tmp_path}/config.json; cat {DATA}/neuron-monitor.jsonl\n"
        f"echo > {tmp_path}/told; {then}",
    )
    return tmp_path / "told"


def told(marker: Path) -> None:
    """Wait until the stand-in has printed everything."""
    until = time.monotonic() + 30
    while not marker.exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    time.sleep(0.1)


def test_the_monitor_is_sampled_where_the_driver_says_nothing(
    machine: Machine, tmp_path: Path
) -> None:
    """All kinds of memory of one sample add up, the largest sample counts, rank order is kept."""
    machine.listing()
    marker = monitor(machine, tmp_path)
    meter = device.PeakMeter.start((5, 4), tag="run-7", root=tmp_path / "nothing")
    told(marker)
    assert meter.stop() == device.RuntimePeaks((1001, 5111), "neuron-monitor")
    asked = (tmp_path / "config.json").read_text()
    assert '"period": "1s"' in asked
    assert '"tag_filter": "^run\\\\-7$"' in asked


def test_a_monitor_with_other_core_numbers_is_not_believed(
    machine: Machine, tmp_path: Path
) -> None:
    """A run's own processes on cores it was not given: the numbers mean something else."""
    machine.listing()
    marker = monitor(machine, tmp_path)
    meter = device.PeakMeter.start((4,), tag="run-7", root=tmp_path / "nothing")
    told(marker)
    assert meter.stop() is None


def test_a_monitor_that_ends_or_prints_nonsense_costs_nothing(
    machine: Machine, tmp_path: Path
) -> None:
    """Whatever neuron-monitor does, a run goes on; its figure is then unknown."""
    machine.listing()
    for script in (
        "exit 1",
        "echo nonsense; echo '{}'; echo '[1]'; echo '{\"neuron_runtime_data\": 3}'",
    ):
        machine.program("neuron-monitor", script)
        assert device.PeakMeter.start((4,), root=tmp_path / "nothing").stop() is None


def test_versions_are_told_or_unknown(machine: Machine, tmp_path: Path) -> None:
    """Driver from its file, packages from dpkg as installed ones only, instance from the head."""
    assert device.driver_version(tmp_path / "version") is None
    (tmp_path / "version").write_text("2.31.7.0\n")
    assert device.driver_version(tmp_path / "version") == "2.31.7.0"
    assert device.runtime_version() is None
    assert device.instance() is None
    machine.listing()
    machine.program(
        "dpkg-query",
        r"""printf 'aws-neuronx-runtime-lib\t2.35.30.0-dd5879008\tinstalled\n'
printf 'aws-neuronx-tools\t2.33.38.0\tconfig-files\n'; exit 1""",
    )
    assert device.system_packages() == {"aws-neuronx-runtime-lib": "2.35.30.0-dd5879008"}
    assert device.runtime_version() == "2.35.30.0-dd5879008"
    assert device.instance() == "trn2.48xlarge"


def test_a_machine_without_neuron_is_told_plainly(machine: Machine) -> None:
    """What to install stands in the error; nothing else is raised."""
    with pytest.raises(device.DeviceError) as caught:
        device.devices()
    assert "aws-neuronx-tools" in caught.value.remedy
    assert "/dev/neuron" in caught.value.remedy
    assert os.environ["PATH"] == str(machine.folder)
