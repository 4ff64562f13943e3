"""How long `qualify show MODEL` takes to start and answer, beside a bare `import pyarrow`.

    python -m benchmarks.show_startup [--rows 100000] [--stacks 5] [--times 15]

Both are processes of their own, started in turn, so that whatever else the machine does falls on
both; of each the best wall time counts. The results are synthetic: as many rows as asked for, on so
many stacks, each row with a script of its own of 8 kB and what else a PASS has, written by this
project's own writer, and a history of 60 publications. Bytecode is kept, as for an installed
package; the first start, which makes it, is not counted.

`import pyarrow` imports NumPy where it is installed; the command does without (`light_arrow`), so
that the second line is a part of the third. Where NumPy is not installed the first two are one.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pipeline import results as store
from pipeline import wishes
from pipeline.results import Row
from pipeline.words import RunId

GOAL_S, GOAL_RATIO = 0.35, 1.5
TYPES = ("qwen3", "llama", "mistral", "gemma3", "gpt_oss", "phi3", "mixtral", "qwen2")
PUBLICATIONS, PUBLISHED_ROWS = 60, 300
ROOT = Path(__file__).parents[1]


def rows_of(stack: int, models: int, now: datetime) -> Iterator[Row]:
    """A row of each model on one stack."""
    chosen = random.Random(stack)  # noqa: S311 -- the same rows every time
    compiler = f"2.{20 + stack}.7631.0"
    for number in range(models):
        model = f"owner-{number % 500:03}/model-{number:05}"
        run = RunId(model, "transformers", "5.24.0", "neuronxcc", compiler, "2.14.0")
        row: Row = dict.fromkeys(store.SCHEMA.names)
        yield row | {
            "schema_version": store.SCHEMA_VERSION,
            "model_id": model,
            "run_id": str(run),
            "library": "transformers",
            "library_version": "5.24.0",
            "neuronx_cc": compiler,
            "torch": "2.14.0",
            "target": "neuron",
            "task": "text-generation",
            "model_type": chosen.choice(TYPES),
            "revision": f"{chosen.getrandbits(160):040x}",
            "result": "PASS",
            "stage": "done",
            "tested_at": now - timedelta(minutes=chosen.randrange(20_000)),
            "neuron_cores": 1,
            "tp": 1,
            "parallelism": "none",
            "wall_s": chosen.randrange(60, 9_000),
            "compile_s": chosen.uniform(50, 8_000),
            "generate_s": chosen.uniform(0.1, 9),
            "tokens_per_s": chosen.uniform(1, 90),
            "hbm_peak_gb": chosen.uniform(1, 22),
            "hbm_capacity_gb": 24.0,
            "host_peak_gb": chosen.uniform(4, 60),
            "cpu_match": "near_tie",
            "max_gap": chosen.uniform(0, 0.25),
            "cpu_fallback_ops": [],
            "findings": [],
            "tries": [],
            "prompts": ["The capital of France is"] * 3,
            "generated_text": [f" answer {chosen.random()}" for _ in range(3)],
            "run_py": f'MODEL = "{model}"\n' + 'print("one line of a script")\n' * 270,
        }


def write_results(folder: Path, rows: int, stacks: int) -> None:
    """Synthetic results of `rows` current rows on `stacks` stacks."""
    now = datetime.now(UTC).replace(microsecond=0)
    newest: Sequence[Row] = ()
    for stack in range(stacks):
        newest = sorted(rows_of(stack, rows // stacks, now), key=lambda row: str(row["model_id"]))
        path = folder / "current" / RunId.parse(newest[0]["run_id"]).partition
        store.write({path: store.serialise(newest)})
    for number in range(PUBLICATIONS):
        start = number * PUBLISHED_ROWS % max(1, len(newest))
        at = now - timedelta(days=number)
        name = f"{at:%Y%m%dT%H%M%SZ}-{number:012x}.parquet"
        part = newest[start : start + PUBLISHED_ROWS]
        store.write({folder / "history" / name: store.serialise(part)})
    store.write({folder / wishes.FILE: wishes.dump({}, 30)})


def best_of(
    commands: dict[str, list[str]], times: int, environment: dict[str, str]
) -> dict[str, float]:
    """Name -> best wall time, seconds, of each command, run in turn."""
    best = dict.fromkeys(commands, float("inf"))
    for turn in range(times + 1):
        for name, command in commands.items():
            begun = time.perf_counter()
            subprocess.run(
                command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
            )
            taken = time.perf_counter() - begun
            if turn:  # the first one makes the bytecode and fills the file cache
                best[name] = min(best[name], taken)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--stacks", type=int, default=5)
    parser.add_argument("--times", type=int, default=15)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_results(folder / "results", asked.rows, asked.stacks)
        size = sum(path.stat().st_size for path in (folder / "results").rglob("*.parquet"))
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        model = f"owner-{123:03}/model-{623:05}"
        show = [sys.executable, "-m", "pipeline.cli", "show", model]
        bare = "import pyarrow"
        light = "from pipeline import light_arrow; light_arrow.load()"
        best = best_of(
            {
                bare: [sys.executable, "-c", bare],
                "the same without NumPy": [sys.executable, "-c", light],
                "qualify show MODEL": [*show, "--results", str(folder / "results")],
            },
            asked.times,
            environment,
        )
    print(
        f"{asked.rows:,} rows on {asked.stacks} stacks, {size / 1e6:.0f} MB; best of {asked.times}"
    )
    for command, seconds in best.items():
        print(f"{seconds:7.3f} s  {seconds / best[bare]:5.2f} x  {command}")
    print(f"goal: {GOAL_S} s, and {GOAL_RATIO} x the bare import")


if __name__ == "__main__":
    main()
