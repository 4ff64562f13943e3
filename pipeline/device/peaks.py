"""Peak of device memory of a run's cores, as the driver or the runtime counts it.

The driver's figure is better (it misses nothing), yet its peaks are kept until a write as root
clears them: a peak that could neither be cleared nor moved may be another run's. Then, and where
the driver's counters are not at their place, neuron-monitor is sampled once a second.
https://awsdocs-neuron.readthedocs-hosted.com/en/v2.33.0/tools/neuron-sys-tools/neuron-monitor-user-guide.html
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pipeline import processes
from pipeline.device.listing import DeviceError, devices, of_cores
from pipeline.device.sysfs import PEAK, SYSFS, clear, core_folders, read
from pipeline.device.tools import find


@dataclass(frozen=True)
class RuntimePeaks:
    """Most device memory that each core held, bytes, in rank order.

    source: "sysfs", where two physical cores make up one the sum of their peaks, which is never
    below the true figure; or "neuron-monitor", the largest of samples, which may miss a short peak.
    """

    bytes_per_core: tuple[int, ...]
    source: str


class PeakMeter:
    """Measures from `start` to `stop`, both called by one thread that lives in between.

    Neither raises for what a machine lacks.
    """

    def __init__(self, driver: _Driver | None, monitor: _Monitor | None) -> None:
        self._driver = driver
        self._monitor = monitor

    @classmethod
    def start(
        cls, core_ids: tuple[int, ...], tag: str | None = None, root: Path = SYSFS
    ) -> PeakMeter:
        """Begin for a run that is about to start on these cores, in rank order.

        tag: the run's NEURON_PROCESS_TAG; with it neuron-monitor counts that run's processes
        alone. Without it the cores must be the run's own.
        """
        driver = _Driver.begin(core_ids, root)
        needed = driver is None or not driver.cleared
        return cls(driver, _Monitor.begin(core_ids, tag) if needed else None)

    def stop(self) -> RuntimePeaks | None:
        """The peaks since `start`; None = nobody counted, or the count may be another run's."""
        seen = self._driver.end() if self._driver else None
        sampled = self._monitor.end() if self._monitor else None
        if seen:
            return RuntimePeaks(seen, "sysfs")
        return RuntimePeaks(sampled, "neuron-monitor") if sampled else None


@dataclass(frozen=True)
class _Driver:
    """The driver's peak files, one group of physical cores for each core.

    before: each file's value at the start, 0 where it was cleared.
    """

    groups: tuple[tuple[Path, ...], ...]
    before: Mapping[Path, int]
    cleared: bool

    @classmethod
    def begin(cls, core_ids: tuple[int, ...], root: Path) -> _Driver | None:
        try:
            used = of_cores(core_ids, devices())
        except DeviceError:
            return None
        home = {core: device for device in used for core in device.core_ids}
        groups = tuple(
            tuple(folder / PEAK for folder in core_folders(core, home[core], root))
            for core in core_ids
        )
        before, cleared = {}, True
        for path in (path for group in groups for path in group):
            if (value := read(path)) is None:
                return None
            if value and clear(path):
                value = 0
            before[path] = value
            cleared = cleared and value == 0
        return cls(groups, before, cleared) if before and all(groups) else None

    def end(self) -> tuple[int, ...] | None:
        """None when a file's peak is not known to be of this run, or nothing was counted."""
        peaks = []
        for group in self.groups:
            values = [(self.before[path], read(path)) for path in group]
            if any(after is None or after < old or (old and after == old) for old, after in values):
                return None
            peaks.append(sum(after or 0 for _, after in values))
        return tuple(peaks) if all(peaks) else None


@dataclass
class _Monitor:
    """neuron-monitor, read line by line. peaks: core -> most bytes seen in one sample."""

    core_ids: tuple[int, ...]
    tagged: bool
    process: subprocess.Popen[bytes]
    reader: threading.Thread = field(init=False)
    peaks: dict[int, int] = field(default_factory=dict)
    foreign: set[int] = field(default_factory=set)

    @classmethod
    def begin(cls, core_ids: tuple[int, ...], tag: str | None) -> _Monitor | None:
        program = find("neuron-monitor")
        if program is None:
            return None
        with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
            json.dump(configuration(tag), file)
        try:
            process = processes.start(
                [program, "-c", file.name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            return None
        made = cls(core_ids, tag is not None, process)
        made.reader = threading.Thread(
            target=made._follow, args=(process.stdout, Path(file.name)), daemon=True
        )
        made.reader.start()
        return made

    def _follow(self, lines: IO[bytes], config: Path) -> None:
        try:
            for line in lines:
                self._take(line)
        finally:
            lines.close()
            config.unlink(missing_ok=True)

    def _take(self, line: bytes) -> None:
        for core, size in core_bytes(line).items():
            if core in self.core_ids:
                self.peaks[core] = max(self.peaks.get(core, 0), size)
            else:
                self.foreign.add(core)

    def end(self) -> tuple[int, ...] | None:
        """None when a core was never seen, or the run's own processes name cores it was not given:
        then the numbers are not those of NEURON_RT_VISIBLE_CORES."""
        processes.end(self.process)
        self.reader.join(timeout=10)
        if self.tagged and self.foreign:
            return None
        found = [self.peaks.get(core, 0) for core in self.core_ids]
        return tuple(found) if all(found) else None


def configuration(tag: str | None) -> dict[str, Any]:
    """neuron-monitor's configuration: memory of the processes with that tag, once a second."""
    runtime: dict[str, Any] = {
        "tag_filter": f"^{re.escape(tag)}$" if tag else ".*",
        "metrics": [{"type": "memory_used"}],
    }
    return {"period": "1s", "neuron_runtimes": [runtime], "system_metrics": []}


def core_bytes(line: str | bytes) -> dict[int, int]:
    """Core -> bytes of device memory on it, over all processes of one line of neuron-monitor."""
    try:
        told = json.loads(line)
        runtimes = [
            runtime["report"]["memory_used"]["neuron_runtime_used_bytes"]["usage_breakdown"]
            for runtime in told["neuron_runtime_data"]
        ]
        total: dict[int, int] = {}
        for runtime in runtimes:
            for core, kinds in runtime["neuroncore_memory_usage"].items():
                total[int(core)] = total.get(int(core), 0) + sum(kinds.values())
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
    return total
