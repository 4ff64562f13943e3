"""From a graph's text to its NEFF: memory, disk, compiler, in this order (TRAINIUM.md 4.3)."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from neuronxcc import neff
from trn_simulator import faults

from torch_neuronx import metrics

_FLAGS = ["--framework", "XLA", "--target", "trn2", "--lnc", "2"]
_in_memory: dict[str, bytes] = {}
_directories: tuple[Path, Path] | None = None


def flags() -> list[str]:
    """Options of the compiler, all of them part of the key: TRAINIUM.md 3.1."""
    level = os.environ.get("NEURON_COMPILER_OPT_LEVEL", "-O2")
    extra = os.environ.get("NEURON_CC_FLAGS", "").split()
    return [*_FLAGS, level, "--model-type", "transformer", "--auto-cast=none", *extra]


def key_of(text: str, options: Sequence[str]) -> str:
    """32 hex digits of a graph's text, the compiler's version and its options."""
    parts = (text, importlib.metadata.version("neuronx-cc"), *options)
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def compile_operator(text: str) -> None:
    """An eager operator has a NEFF of its own, for each combination of shapes: the files in the
    cache outnumber the graphs (3.5). Its "compiler" is no process here, for speed."""
    get_or_compile(key_of(text, ["-O1"]), text.encode(), neff.pack)


def get_or_compile(
    key: str, text: bytes, compiler: Callable[[bytes], bytes] | None = None
) -> bytes:
    """The NEFF of this key; RuntimeError when the compiler fails.

    A failure is not kept: the next call compiles again.
    """
    if key in _in_memory:
        metrics.count("CompilationCache.InMemoryHits")
        return _in_memory[key]
    metrics.count("CompilationCache.InMemoryMisses")
    found = _read(key)
    if found is None and _on_disk():
        metrics.count("CompilationCache.PersistentMisses")
    if found is None:
        with _locked(key):
            found = _read(key)  # another process may have been first
            if found is None:
                found = (compiler or _compile)(text)
                metrics.count("CompilationCache.TotalCompilations")
                _write(key, found)
    _in_memory[key] = found
    return found


def _on_disk() -> bool:
    switches = ("TORCH_NEURONX_NEFF_DISABLE_CACHE", "TORCH_NEURONX_DISABLE_NEFF_CACHE")
    return not any(os.environ.get(name) == "1" for name in switches)


def _places() -> tuple[Path, Path]:
    """The shared and the local directory, read from the environment once (2.1, 4.1)."""
    global _directories
    if _directories is None:
        _directories = (
            Path(os.environ.get("TORCH_NEURONX_NEFF_CACHE_DIR") or "/tmp/neff_cache"),  # noqa: S108
            Path(os.environ.get("TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR") or "/tmp/local_cache"),  # noqa: S108
        )
    return _directories


def _path(key: str) -> Path:
    return _places()[0] / key[:2] / key[2:4] / f"{key}.neff"


def _read(key: str) -> bytes | None:
    """What the disk holds; None for nothing, or an empty file. The content is not checked."""
    if not _on_disk():
        return None
    try:
        found = _path(key).read_bytes()
    except OSError:
        return None
    if found:
        metrics.count("CompilationCache.PersistentHits")
    return found or None


def _write(key: str, neff: bytes) -> None:
    if not _on_disk():
        return
    path = _path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".tmp.", dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(neff)
    Path(temporary).rename(path)
    if faults.told("corrupt_cache_entry"):  # as a killed synchronisation leaves it (4.3)
        os.truncate(path, len(neff) // 2)


@contextmanager
def _locked(key: str) -> Iterator[None]:
    """One compilation of a key at a time on this machine."""
    limit = float(os.environ.get("TORCH_NEURONX_NEFF_CACHE_LOCK_TIMEOUT", 1200))
    path = _places()[1] / "locks" / f"{key}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        began = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - began > limit:
                    raise RuntimeError(f"Compilation failed for cache key '{key}'") from None
                time.sleep(0.02)
        yield


def _compile(text: bytes) -> bytes:
    """Run the compiler as it is found on PATH, in a directory of its own; its words are in the
    error (3.2)."""
    with tempfile.TemporaryDirectory(prefix="neuron_compile_") as directory:
        module, neff = Path(directory, "module.mlir"), Path(directory, "module.neff")
        module.write_bytes(text)
        command = ["neuronx-cc", "compile", str(module), *flags(), "--output", str(neff)]
        try:
            ended = subprocess.run(
                command,
                cwd=directory,
                env=os.environ | {"TRN_SIMULATOR_STARTED_IN": faults.started_in()},
                capture_output=True,
                text=True,
            )
            code, words = ended.returncode, ended.stderr
        except FileNotFoundError:
            code, words = 127, ""  # what a failed execvp leaves
        if code > 0:
            said = f": {words}" if words else ""
            raise RuntimeError(
                "StableHLO to NEFF compilation failed for torch.compile: Command failed "
                f"(neuronx-cc compilation) with exit code {code}{said}"
            )
        # TorchNeuron asks WEXITSTATUS alone, which is 0 for a compiler that a signal ended: what
        # it then misses is the file.
        if not neff.exists():
            raise RuntimeError(
                "StableHLO to NEFF compilation failed for torch.compile: Failed to read compiled "
                f"NEFF file: {neff}"
            )
        return neff.read_bytes()
