"""What one re-run moves, against a sync of all graphs: `python -m benchmarks.cache_bytes`.

A local store is filled with the compiled graphs of 500 models (--models) on one compiler version,
and one of them is run again: the bytes and files that its restore really moves, digests included,
are counted at the store, and held against what a sync of the whole folder into an empty directory
would move (`hf buckets sync hf://.../neuronxcc-<version> /tmp/neff_cache`): every entry once.

Sizes: one 1B model left 28.9 MB of NEFFs in 91 files in a warm-up run on trn2, 63 files in a cold
one, and 29-60 elsewhere, each below a megabyte to some megabytes
(https://github.com/dacorvo/hf-mount-cache-examples, folder neuron/). So every model here has
28.9 MB in 29 to 91 files, sizes rising evenly. Nothing is scaled down: the files of the other
models are sparse, which takes no disk. Assumed, since nobody has published how many NEFFs models
share: none. Entries that many models share make the folder, and the ratio, smaller.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline import cache
from pipeline.record import Placement, Run, StackVersions
from pipeline.store import Moved, Store, open_store
from pipeline.words import Parallelism, Target, Task

MODEL_BYTES = 28_900_000
FEWEST_FILES, MOST_FILES = 29, 91


@dataclass(frozen=True)
class Figures:
    """Bytes and files that one restore moved, and that a sync of the folder would move."""

    rerun_bytes: int
    rerun_files: int
    rerun_entries: int
    sync_bytes: int
    sync_files: int


@dataclass(frozen=True)
class _Counted(Store):
    """A store that counts what is fetched from it."""

    sizes: list[int] = field(default_factory=list)

    def fetch(self, files: Mapping[str, Path], *, size: int = 0) -> Moved:
        moved = super().fetch(files, size=size)
        self.sizes.extend(files[path].stat().st_size for path in moved.paths)
        return moved


def measure(folder: Path, models: int, seed: int = 0) -> Figures:
    """Fill a store below `folder`, restore the model in its middle, count."""
    chance = random.Random(seed)  # noqa: S311 (sizes, no secrets)
    opened = open_store(str(folder / "store"))
    store = _Counted(
        **{each.name: getattr(opened, each.name) for each in dataclasses.fields(opened)}
    )
    blank = _run(())
    shelf = folder / "store" / cache.prefix(blank)
    for number in range(models):
        files = _files(number, chance.randint(FEWEST_FILES, MOST_FILES))
        if number == models // 2:
            mine = folder / "mine"
            for key, size in files.items():
                (mine / key).parent.mkdir(parents=True, exist_ok=True)
                (mine / key).write_bytes(chance.randbytes(size))
            saved = cache.save(mine, blank, files, store)
            if saved.new != len(files):
                raise RuntimeError(f"{saved} of {len(files)}")
            again = _run(tuple(files))
            continue
        for key, size in files.items():
            (shelf / key).parent.mkdir(parents=True, exist_ok=True)
            with (shelf / key).open("wb") as stream:
                stream.truncate(size)
    store.sizes.clear()
    got = cache.restore(store, again, folder / "into")
    if got.keys != tuple(sorted(again.cache_keys)):
        raise RuntimeError(f"{len(got.keys)} of {len(again.cache_keys)} arrived: {got.problem}")
    everything = [path.stat().st_size for path in shelf.rglob("*.neff")]
    return Figures(
        rerun_bytes=sum(store.sizes),
        rerun_files=len(store.sizes),
        rerun_entries=len(got.keys),
        sync_bytes=sum(everything),
        sync_files=len(everything),
    )


def _files(model: int, count: int) -> dict[str, int]:
    """key -> bytes of a model's entries, in TorchNeuron's layout."""
    whole = count * (count + 1) // 2
    sizes = {}
    for number in range(count):
        name = hashlib.sha256(f"{model} {number}".encode()).hexdigest()[:32]
        sizes[f"{name[:2]}/{name[2:4]}/{name}.neff"] = MODEL_BYTES * (number + 1) // whole
    return sizes


def _run(keys: tuple[str, ...]) -> Run:
    stack = StackVersions(
        name="benchmark",
        target=Target.NEURON,
        library="transformers",
        library_version="5.24.0",
        torch="2.14.0",
        neuronx_cc="0",
    )
    return Run(
        run_id=str(stack.run_id("benchmark/model")),
        model_id="benchmark/model",
        revision=None,
        task=Task.TEXT_GENERATION,
        model_type=None,
        parameters=None,
        checkpoint_bytes=None,
        stack=stack,
        runner="none",
        core_bytes=0,
        placement=Placement(
            cores=1,
            parallelism=Parallelism.NONE,
            weight_bytes=0,
            cache_bytes=0,
            margin_bytes=0,
            reason="benchmark",
        ),
        refusal=None,
        dtype="bfloat16",
        new_tokens=32,
        prompts=("none",),
        prefill_chunk=128,
        limit_s=1,
        estimated_s=1,
        script_sha256=None,
        reason="benchmark",
        cache_keys=keys,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), given.models, given.seed)
    lines = [
        ("a sync of the folder moves", found.sync_bytes, found.sync_files),
        ("one re-run's restore moves", found.rerun_bytes, found.rerun_files),
    ]
    print(f"{given.models} models on one compiler, entries at full size")
    for text, size, files in lines:
        print(f"{text:<30}{size:>14} bytes{files:>8} files")
    print(f"{'  of these entries':<30}{found.rerun_entries:>28} files")
    by_bytes = found.sync_bytes / found.rerun_bytes
    by_files = found.sync_files / found.rerun_files
    print(f"{'sync / restore':<30}{by_bytes:>14.1f} x    {by_files:>8.1f} x")


if __name__ == "__main__":
    main()
