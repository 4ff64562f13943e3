"""Probes that execute run.py itself, on small models built on the spot."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from pipeline import processes, reference, script, verdict
from pipeline.first_run.probing import (
    Context,
    NotTried,
    Seen,
    copy_entries,
    how_ended,
    run_environment,
    tail,
    tiny_run,
)
from pipeline.watch import SCRIPT_NAME, watch
from pipeline.words import CpuMatch, Stage, Task

_BUILD_S = 600
_RUN_S = 3000
_REFERENCE_S = 600


def run_one_core(context: Context) -> Seen:
    return _run(context, "tiny-qwen3", context.shared / "run-graphs")


def run_restored(context: Context) -> Seen:
    copied = context.folder / "copied"
    copied.mkdir()
    if not copy_entries(context.shared / "run-graphs", copied):
        raise NotTried("run-one-core left no compiled graphs")
    return _run(context, "tiny-qwen3", copied, restored=True)


def run_two_cores(context: Context) -> Seen:
    return _run(context, "tiny-qwen3", context.folder / "graphs")


def run_experts(context: Context) -> Seen:
    return _run(context, "tiny-qwen3-moe", context.folder / "graphs", experts=True)


def run_picture(context: Context) -> Seen:
    task = Task.IMAGE_TEXT_TO_TEXT
    return _run(context, "tiny-qwen2-5-vl", context.folder / "graphs", task=task)


def _run(
    context: Context,
    name: str,
    graphs: Path,
    *,
    task: Task = Task.TEXT_GENERATION,
    experts: bool = False,
    restored: bool = False,
) -> Seen:
    """Render, execute, hold the tokens against the CPU; every guard of the verdict applies."""
    asked = tiny_run(
        context, name, _model(context, name), len(context.cores), task, experts=experts
    )
    (context.folder / SCRIPT_NAME).write_text(script.render(asked))
    ended = watch(
        context.folder,
        python=sys.executable,
        environment=run_environment(context, graphs),
        limit_s=_RUN_S,
        stop=threading.Event(),
        say=lambda _: None,
        on_stage=lambda _: None,
    )
    told = tail(ended.log)
    how = how_ended(None if ended.timed_out else ended.code)
    seen = ended.observation
    if seen is None:
        return Seen(False, f"run.py {how} and left nothing:\n{told}")
    shown = json.dumps(seen.model_dump(mode="json", exclude={"generations"}), indent=1)
    if ended.code or seen.stage is not Stage.DONE:
        return Seen(False, f"run.py {how}\n{shown}\n{told}")
    wrong = []
    broken = verdict.guards(asked, seen, ended.findings)
    if broken:
        wrong.append(f"{broken.failure}: {broken.reason}")
    compared = reference.compare(
        asked,
        seen,
        context.folder / "inputs.safetensors",
        kept=None,
        limit_s=_REFERENCE_S,
        available_bytes=None,
    )
    match = verdict.match(compared)
    if match.cpu_match not in (CpuMatch.EXACT, CpuMatch.NEAR_TIE):
        wrong.append(f"tokens: {match.cpu_match}: {match.reason}")
    calls = seen.all_calls
    if restored and (calls is None or calls.compiled != 0 or not calls.restored):
        wrong.append(f"not restored: {calls}")
    if seen.cpu_fallback_ops is None:
        wrong.append("operators on the CPU: unknown")
    head = "; ".join(wrong) or (
        f"as the verdict wants it; tokens {match.cpu_match}; in nats: largest gap {match.max_gap}, "
        f"logits off by {match.departure}, the model's own noise {match.noise}"
    )
    return Seen(not wrong, f"{head}\n{shown}\n{told}")


def _model(context: Context, name: str) -> Path:
    """A small trained checkpoint, built on the CPU once a session."""
    out = context.shared / "models"
    command = [sys.executable, "-m", "demo.build_models", str(out), "--only", name]
    try:
        processes.ask(command, b"", limit_s=_BUILD_S, environment=processes.module_environment())
    except processes.Unanswered as error:
        raise NotTried(f"the small model {name} could not be built here: {error}") from error
    return out / name
