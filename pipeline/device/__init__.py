"""What the harness asks of a trn2 machine: documented tools and files of the Neuron SDK alone.

Nothing here imports torch or touches a core. What a machine does not tell is None, and what
cannot be asked at all is a DeviceError that says what to install or check.
"""

from pipeline.device.health import Counters, counters, health
from pipeline.device.listing import (
    IDLE_S,
    Device,
    DeviceError,
    Process,
    busy,
    devices,
    free_cores,
    wait_idle,
)
from pipeline.device.peaks import PeakMeter, RuntimePeaks
from pipeline.device.sysfs import SYSFS
from pipeline.device.versions import (
    RUNTIME_PACKAGE,
    driver_version,
    instance,
    runtime_version,
    system_packages,
)

__all__ = [
    "IDLE_S",
    "RUNTIME_PACKAGE",
    "SYSFS",
    "Counters",
    "Device",
    "DeviceError",
    "PeakMeter",
    "Process",
    "RuntimePeaks",
    "busy",
    "counters",
    "devices",
    "driver_version",
    "free_cores",
    "health",
    "instance",
    "runtime_version",
    "system_packages",
    "wait_idle",
]
