"""A machine of the stand-in for one test: its environment, its faults, processes on it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FOREIGN = ("NEURON_", "TORCH_NEURONX_", "TRN_SIMULATOR_", "RANK", "WORLD_SIZE", "LOCAL_")


@dataclass(frozen=True)
class Machine:
    """`directory` is the machine: those who name the same one share its cores.

    python: the simulator's (fixture `simulator`).
    """

    python: Path
    directory: Path

    def environment(
        self, *faults: Mapping[str, Any], cores: int = 4, core_bytes: int | None = None
    ) -> dict[str, str]:
        """The environment of a process on this machine: tools on PATH, caches in `directory`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        made = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        made |= {
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "TRN_SIMULATOR_STATE": str(self.directory),
            "TRN_SIMULATOR_CORES": str(cores),
            "TRN_SIMULATOR_FAULTS": json.dumps(faults),
            "TORCH_NEURONX_NEFF_CACHE_DIR": str(self.directory / "neff"),
            "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR": str(self.directory / "local"),
        }
        if core_bytes is not None:
            made["TRN_SIMULATOR_CORE_BYTES"] = str(core_bytes)
        return made

    def start(
        self, code: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """A process that runs this Python text."""
        return subprocess.Popen(
            [self.python, "-c", code],
            env=environment or self.environment(),
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, code: str, environment: Mapping[str, str] | None = None) -> Ended:
        """Run this Python text to its end."""
        return self.run_ranks(code, 0, environment)[0]

    def run_ranks(
        self, code: str, ranks: int, environment: Mapping[str, str] | None = None
    ) -> list[Ended]:
        """Run this Python text in so many ranks (0: one process that knows of none)."""
        environment = environment or self.environment()
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        started = [
            self.start(
                code,
                {
                    **environment,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "LOCAL_WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                },
            )
            for rank in range(ranks)
        ] or [self.start(code, environment)]
        return [Ended.of(process) for process in started]


@dataclass(frozen=True)
class Ended:
    """What a process left: exit code (negative: a signal), standard output and error."""

    code: int
    out: str
    error: str

    @classmethod
    def of(cls, process: subprocess.Popen[str]) -> Ended:
        out, error = process.communicate()
        return cls(process.returncode, out, error)

    def seen(self) -> Any:
        """The JSON that is the last line of its output."""
        assert self.code == 0, self.error
        return json.loads(self.out.splitlines()[-1])


def wait_for(path: Path) -> None:
    """Until this file is there."""
    while not path.exists():
        time.sleep(0.01)
