"""Build the virtual environment in which the stand-in for TorchNeuron is installed.

    python -m tests.simulator.venv DIR

It sees the packages of the interpreter that builds it, so torch is not installed twice, and is
apart from it because the stand-in loads itself with torch. Needs a C++ compiler, no network; takes
half a minute, or no time when DIR holds what the sources would give.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

_SOURCES = Path(__file__).parent / "stand_in"
_PROJECTS = ("trn-simulator", "neuronx-cc", "nki", "torch-neuronx")
_SEAL = "stand-in.sha256"


def build(directory: Path) -> Path:
    """The environment's python; builds it unless it is there and made of the same sources.

    Safe when several processes call it at once. RuntimeError with pip's words when it fails.
    """
    directory = directory.absolute()
    directory.parent.mkdir(parents=True, exist_ok=True)
    python = directory / "bin" / "python"
    with _alone(directory):
        wanted = _digest()
        seal = directory / _SEAL
        if not (seal.exists() and seal.read_text() == wanted):
            _build(directory, python)
            seal.write_text(wanted)
    return python


def _build(directory: Path, python: Path) -> None:
    venv.EnvBuilder(clear=True, symlinks=True).create(directory)
    (site_packages,) = directory.glob("lib/python*/site-packages")
    (site_packages / "parent.pth").write_text("\n".join(_parent_packages()))
    with tempfile.TemporaryDirectory() as copied:  # building leaves files beside the sources
        projects = [shutil.copytree(_SOURCES / name, Path(copied, name)) for name in _PROJECTS]
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        command += ["--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
        command += ["--disable-pip-version-check", "--ignore-installed"]
        ended = subprocess.run(
            [*command, *map(str, projects)],
            capture_output=True,
            text=True,
            # torch.utils.cpp_extension asks torch, which must not load what is being built.
            env=os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        )
    if ended.returncode:
        raise RuntimeError(f"the stand-in cannot be built:\n{ended.stdout}{ended.stderr}")


def _parent_packages() -> list[str]:
    names = ("site-packages", "dist-packages")
    return [entry for entry in sys.path if Path(entry).name in names]


def _digest() -> str:
    """Of all that the environment is made of."""
    made = hashlib.sha256()
    for part in (sys.version, sys.prefix, version("torch"), *_parent_packages()):
        made.update(part.encode() + b"\0")
    made.update(Path(__file__).read_bytes())
    for path in sorted(_SOURCES.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            made.update(f"{path.relative_to(_SOURCES)}\0".encode() + path.read_bytes() + b"\0")
    return made.hexdigest()


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    with directory.with_name(f"{directory.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
