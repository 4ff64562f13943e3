"""Versions and kind of the machine, as its own files and tools tell them; None = not told."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from pipeline.device.listing import DeviceError, devices
from pipeline.device.tools import NoAnswerError, ask

DRIVER_VERSION = Path("/sys/module/neuron/version")
RUNTIME_PACKAGE = "aws-neuronx-runtime-lib"
_PACKAGES = "aws-neuronx-*"


def driver_version(path: Path = DRIVER_VERSION) -> str | None:
    """Version of the loaded Neuron driver: "2.31.7.0"; inside a container that of the host."""
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def system_packages() -> dict[str, str]:
    """Installed Debian packages of the Neuron SDK and their versions; empty where dpkg is not.

    A version may carry a suffix behind a dash ("2.28.23.0-dd5879008").
    """
    try:
        answer = ask(
            "dpkg-query", "-W", "-f", r"${Package}\t${Version}\t${db:Status-Status}\n", _PACKAGES
        )
    except NoAnswerError:
        return {}
    rows = (line.split("\t") for line in answer.out.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}


def runtime_version() -> str | None:
    """Version of the Neuron runtime, from its Debian package."""
    return system_packages().get(RUNTIME_PACKAGE)


def instance() -> str | None:
    """The instance type, such as "trn2.48xlarge": from the listing, else its table's head."""
    with contextlib.suppress(DeviceError):
        if told := devices()[0].instance_type:
            return told
    try:
        answer = ask("neuron-ls")
    except NoAnswerError:
        return None
    match = re.search(r"^instance-type: *(\S+)", answer.out, re.MULTILINE)
    return match[1] if match and answer.code == 0 else None
