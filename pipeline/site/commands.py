"""What a reader types to replay a row: packages, container, compiled graphs. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from math import ceil
from typing import Any

from pydantic import ValidationError

from pipeline import phrases, script
from pipeline.catalog import Runner
from pipeline.errors import UsageError
from pipeline.pool import CORES_PER_DEVICE
from pipeline.record import StackVersions
from pipeline.words import RunId, Target

Row = Mapping[str, Any]

_IMAGE = re.compile(r"[\w./:@+-]+", re.ASCII)
_HOME = "/work"
"""Where the container of `container` sees the reader's folder."""


def stack(row: Row) -> StackVersions | None:
    """The stack that a row ran on, for `script.requirements`; None where the row names none.

    torch, library and compiler as the run was asked for them, the rest as it was installed: a wheel
    has a build number behind the version that release notes name.
    """
    run = RunId.parse(row["run_id"])
    neuron = row["target"] != Target.CPU
    try:
        return StackVersions(
            name="of the row",
            target=Target(row["target"]),
            library=run.library,
            library_version=run.library_version,
            torch=run.torch,
            neuronx_cc=run.compiler_version if neuron else None,
            torch_neuronx=_public(row["torch_neuronx"]) if neuron else None,
            nki=_public(row["nki"]) if neuron else None,
        )
    except (ValidationError, ValueError):
        return None


def install(row: Row) -> str | None:
    """The pip command for all of a row's packages, its extra ones included."""
    on = stack(row)
    return script.install_command(on, row["extra_packages"] or ()) if on else None


def beside_image(row: Row) -> str | None:
    """The pip command for what comes beside the packages of the row's image; None without one."""
    on = stack(row)
    if on is None or on.target is not Target.NEURON or _image(row) is None:
        return None
    packages = script.requirements(on, row["extra_packages"] or (), beside_image=True)
    return " ".join(["python -m pip install", *map(shlex.quote, packages)])


def container(row: Row, runner: Runner | None) -> str | None:
    """The command that opens the row's image with as many devices as its cores need.

    runner: the row's runner class, which says how much memory the host has; None = not known, and
    the size of /dev/shm is left to Docker. None where the row ran without an image or on no core.
    Options as the campaign's own jobs have them (`pipeline.actions.matrix`).
    """
    image, cores = _image(row), row["neuron_cores"]
    if image is None or not cores or row["target"] != Target.NEURON:
        return None
    devices = [f"--device=/dev/neuron{number}" for number in range(ceil(cores / CORES_PER_DEVICE))]
    shared = [f"--shm-size={max(1, int(runner.host_gib / 2))}g"] if runner else []
    folder = [f'--volume "$PWD":{_HOME}', f"--workdir {_HOME}"]
    words = ["docker run --rm --interactive --tty", *devices, "--init", *shared, *folder]
    return " ".join([*words, shlex.quote(image), "bash"])


def graphs(row: Row) -> str | None:
    """The command that fetches the row's compiled graphs, those of exactly its compiler version.

    None where no public store has them.
    """
    try:
        return phrases.fetch_graphs(row)
    except UsageError:
        return None  # a compiler that no cache is known of


def _public(version: str | None) -> str | None:
    """Without a local part, which pip's `==X.*` does not take."""
    return version.partition("+")[0] or None if version else None


def _image(row: Row) -> str | None:
    image = row["image"]
    return image if image and _IMAGE.fullmatch(image) else None
