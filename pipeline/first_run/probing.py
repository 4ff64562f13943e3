"""What the probes share: what they are given, what they answer, and how they start workers.

A probe never imports torch: what touches it is a worker, a process of its own that prints what it
saw as one line of JSON behind `FACTS`. So a worker that crashes or hangs is seen from outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import diagnosis, processes, script, targets
from pipeline.record import Observation, Placement, Run, StackVersions
from pipeline.targets import CACHES
from pipeline.words import Parallelism, Stage, Target, Task

FACTS = "facts: "
BUSY = "neuron-cores-busy"
"""The signature of a core that another process holds."""

MIB = 2**20


class NotTried(Exception):
    """The check could not be tried here; the text says why."""


@dataclass(frozen=True)
class Seen:
    """What a probe saw. holds: whether the assumption does. text: what was seen, verbatim."""

    holds: bool
    text: str


@dataclass(frozen=True)
class Context:
    """What a probe is given.

    folder: its own, empty. shared: the session's, where checks leave things for later ones. cores:
    ids of the cores it may use, in rank order. stack: what is installed here, as far as it is.
    """

    folder: Path
    shared: Path
    cores: tuple[int, ...]
    stack: StackVersions

    def save(self) -> None:
        """Leave it in its folder for the probe's process."""
        told = {
            "shared": str(self.shared),
            "cores": self.cores,
            "stack": self.stack.model_dump(mode="json"),
        }
        (self.folder / "context.json").write_text(json.dumps(told))

    @classmethod
    def load(cls, folder: Path) -> Context:
        told = json.loads((folder / "context.json").read_text())
        stack = StackVersions.model_validate(told["stack"])
        return cls(folder, Path(told["shared"]), tuple(told["cores"]), stack)


@dataclass(frozen=True)
class Worker:
    """How a worker ended. code: its exit code, negative = a signal; None = it was ended by us."""

    code: int | None
    out: str
    facts: Mapping[str, Any] | None

    @property
    def told(self) -> str:
        """How it ended and its last output, for people."""
        return f"{how_ended(self.code)}; it said:\n{tail(self.out)}"

    def need(self) -> Mapping[str, Any]:
        """Its facts; without them the assumption did not hold, and this says what was seen.

        NotTried when another process had taken the core: that says nothing of the assumption.
        """
        if self.facts is None or self.code != 0:
            if signature(self.out) == BUSY:
                raise NotTried(f"somebody else had the core: {self.told}")
            raise WorkerFailed(self.told)
        return self.facts


class WorkerFailed(Exception):
    """A worker ended without what it was to tell: the assumption did not hold."""


def how_ended(code: int | None) -> str:
    if code is None:
        return "did not end and was killed"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def tail(text: str, limit: int = 4000) -> str:
    """The end of a text, at most `limit` characters of it."""
    return text if len(text) <= limit else f"[...]\n{text[-limit:]}"


def start(
    context: Context,
    name: str,
    *arguments: object,
    environment: Mapping[str, str],
    log: Path,
) -> subprocess.Popen[bytes]:
    """Start worker `name`; what it prints goes to `log`. It ends with the probe's group."""
    with log.open("wb") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline.first_run.workers", name, *map(str, arguments)],
            cwd=context.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )


def finish(process: subprocess.Popen[bytes], log: Path, limit_s: float | None = None) -> Worker:
    """Wait for a worker, `limit_s` seconds at most; then it is killed."""
    code: int | None
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        code = None
    return read(log, code)


def read(log: Path, code: int | None = 0) -> Worker:
    """What a worker has told in its log so far."""
    out = log.read_text(errors="replace")
    lines = [line for line in out.splitlines(keepends=True) if line.startswith(FACTS)]
    whole = [line for line in lines if line.endswith("\n")]
    facts = json.loads(whole[-1].removeprefix(FACTS)) if whole else None
    return Worker(code, out, facts)


def work(
    context: Context,
    name: str,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    limit_s: float | None = None,
) -> Worker:
    """Run a worker on the context's first core to its end."""
    log = context.folder / f"{name}-{len(list(context.folder.glob('*.log')))}.log"
    given = core_environment(context) if environment is None else environment
    process = start(context, name, *arguments, environment=given, log=log)
    return finish(process, log, limit_s)


def core_environment(
    context: Context, rank: int = 0, world: int = 1, port: int = 0, graphs: Path | None = None
) -> dict[str, str]:
    """The environment of rank `rank` as run.py and the runner make it, caches included.

    graphs: the compiled-graph cache; None = one of the context's own.
    """
    made = own_environment(context, graphs)
    asked = tiny_run(context, "tiny-qwen3", context.folder, world)
    path = context.folder / f"environment-{world}.py"
    path.write_text(script.render(asked))
    with _visible(context.cores):
        made |= runpy.run_path(str(path))["rank_environment"](rank, port)
    return made


def own_environment(context: Context, graphs: Path | None = None) -> dict[str, str]:
    """This process's environment without what Neuron reads, and caches inside the folder."""
    made = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NEURON_RT_", "TORCH_NEURONX_", "NKI_"))
    }
    made["PYTHONPATH"] = processes.python_path()
    directory = graphs or context.folder / "graphs"
    directory.mkdir(parents=True, exist_ok=True)
    return made | CACHES[Target.NEURON].environment(directory, context.folder)


def run_environment(context: Context, graphs: Path) -> dict[str, str]:
    """The environment in which the runner starts run.py on the context's cores."""
    given = targets.core_environment(Target.NEURON, context.cores, None)
    return own_environment(context, graphs) | given


@contextlib.contextmanager
def _visible(cores: Sequence[int]) -> Iterator[None]:
    before = os.environ.get("NEURON_RT_VISIBLE_CORES")
    os.environ["NEURON_RT_VISIBLE_CORES"] = ",".join(map(str, cores))
    try:
        yield
    finally:
        if before is None:
            del os.environ["NEURON_RT_VISIBLE_CORES"]
        else:
            os.environ["NEURON_RT_VISIBLE_CORES"] = before


def tiny_run(
    context: Context,
    name: str,
    source: Path,
    cores: int,
    task: Task = Task.TEXT_GENERATION,
    *,
    experts: bool = False,
) -> Run:
    """A run of a small model of this project on the stack that is installed here."""
    placement = Placement(
        cores=cores,
        parallelism=Parallelism.TENSOR if cores > 1 else Parallelism.NONE,
        weight_bytes=MIB,
        cache_bytes=MIB,
        margin_bytes=MIB,
        reason="the first run",
    )
    model_id = f"first-run/{name}"
    return Run(
        run_id=str(context.stack.run_id(model_id)),
        model_id=model_id,
        source=str(source),
        revision=None,
        task=task,
        model_type=None,
        parameters=None,
        checkpoint_bytes=None,
        stack=context.stack,
        runner="first-run",
        core_bytes=24 * 2**30,
        placement=placement,
        refusal=None,
        dtype="bfloat16",
        new_tokens=16,
        prompts=("The capital of France is", "Water boils at", "Once upon a time"),
        prefill_chunk=32,
        mixture_of_experts=experts,
        limit_s=3600,
        estimated_s=600,
        script_sha256=None,
        reason="the first run",
    )


def entries(graphs: Path) -> tuple[str, ...]:
    """Relative paths of the compiled graphs in a directory, sorted."""
    found = graphs.rglob(CACHES[Target.NEURON].entries)
    return tuple(sorted(path.relative_to(graphs).as_posix() for path in found))


def copy_entries(graphs: Path, into: Path) -> int:
    """Copy the compiled graphs alone, as a store does; how many there were."""
    keys = entries(graphs)
    for key in keys:
        (into / key).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(graphs / key, into / key)
    return len(keys)


def signature(text: str) -> str | None:
    """Id of the known text that decides a run which failed with this output; None = unknown."""
    seen = Observation(stage=Stage.COMPILE)
    found = diagnosis.diagnose(seen, text, exit_code=1, oom_kills=0).signature
    return None if found == diagnosis.UNCLASSIFIED else found
