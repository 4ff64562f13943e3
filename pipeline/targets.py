"""What differs between the targets outside run.py: where their compilers keep compiled graphs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.words import Target


@dataclass(frozen=True)
class CompilerCache:
    """A compiler's cache on disk.

    directory: the environment variable that names the directory of finished entries.
    scratch: further variables that must point away from places shared between runs.
    entries: glob of the files worth keeping.
    """

    directory: str
    scratch: tuple[str, ...]
    entries: str

    def environment(self, cache: Path, scratch: Path) -> dict[str, str]:
        """Variables that keep all of a run's compiler files below its own two directories."""
        made = {self.directory: str(cache)}
        for name in self.scratch:
            made[name] = str(scratch / name.lower())
        return made


CACHES = {
    # Names and defaults of TorchNeuron's caches: read at import or at the first compilation, so
    # they stand in the environment before any process starts.
    Target.NEURON: CompilerCache(
        directory="TORCH_NEURONX_NEFF_CACHE_DIR",
        scratch=(
            "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR",
            "TORCH_NEURONX_HLO_CACHE_DIR",
            "TORCH_NEURONX_DEBUG_DIR",
            "NKI_COMPILE_CACHE_URL",
        ),
        entries="*.neff",
    ),
    # https://docs.pytorch.org/tutorials/recipes/torch_compile_caching_configuration_tutorial.html
    Target.CPU: CompilerCache(directory="TORCHINDUCTOR_CACHE_DIR", scratch=(), entries="*"),
}
CACHES[Target.SIMULATOR] = CACHES[Target.NEURON]


def core_environment(
    target: Target, core_ids: Sequence[int], machine_cores: int | None
) -> dict[str, str]:
    """Variables that tell run.py what of the machine is its own.

    core_ids: its cores, in rank order. machine_cores: how many the machine is counted with; on the
    cpu, where a core is a process, each gets its share of the processors as threads, since threads
    of processes that wait for each other by spinning cost more than they give. Whoever has set
    another number knows why.
    """
    if target is Target.CPU:
        if machine_cores is None or "OMP_NUM_THREADS" in os.environ:
            return {}
        return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // machine_cores))}
    if not core_ids:
        return {}
    first, last = core_ids[0], core_ids[-1]
    together = tuple(core_ids) == tuple(range(first, last + 1))
    # The documented forms are one id and a range; run.py gives each of its processes one id.
    told = f"{first}-{last}" if together and first != last else ",".join(map(str, core_ids))
    return {"NEURON_RT_VISIBLE_CORES": told}
