"""The checks, one by one, each in a process of its own with a time limit."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from pipeline import device, doctor, processes
from pipeline.first_run.check import Check
from pipeline.first_run.checks import CHECKS
from pipeline.first_run.probe import VERDICT
from pipeline.first_run.probing import Context, how_ended, tail
from pipeline.first_run.report import Outcome, Report, Result
from pipeline.provenance import provenance
from pipeline.record import StackVersions


def first_run(
    output: Path,
    wanted: StackVersions,
    say: Callable[[str], None],
    checks: tuple[Check, ...] = CHECKS,
) -> Report:
    """Try every check and keep the report at `output` (JSON beside it) after each.

    wanted: the stack of the list that stands in for versions of packages that are not installed.
    say: gets one line for each check. KeyboardInterrupt leaves the report as far as it came.
    """
    found = doctor.machine()
    report = Report(
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=provenance()["pipeline_commit"],
        machine=found,
        checks=checks,
    )
    report.write(output)
    with tempfile.TemporaryDirectory(prefix="first-run-", ignore_cleanup_errors=True) as made:
        shared = Path(made) / "shared"
        shared.mkdir()
        for number, check in enumerate(checks, 1):
            result = _try(check, report, Path(made), shared, installed(found, wanted))
            report.results.append(result)
            report.write(output)
            took = "" if result.seconds is None else f" ({result.seconds:.0f} s)"
            say(f"[{number}/{len(checks)}] {check.id}: {result.outcome}{took}")
    return report


def installed(found: doctor.Machine, wanted: StackVersions) -> StackVersions:
    """The stack that is installed here, so that run.py finds what it was made for."""

    def version(package: str, otherwise: str | None) -> str | None:
        return found.packages.get(package) or otherwise

    changes = {
        "name": "installed",
        "library_version": version(wanted.library, wanted.library_version),
        "torch": version("torch", wanted.torch),
        "torch_neuronx": version("torch-neuronx", wanted.torch_neuronx),
        "neuronx_cc": version("neuronx-cc", wanted.neuronx_cc),
        "nki": version("nki", None),
        "python": None,
        "runtime": None,
        "driver": None,
        "image": None,
    }
    return StackVersions.model_validate(wanted.model_dump() | changes)


def _try(check: Check, report: Report, folder: Path, shared: Path, stack: StackVersions) -> Result:
    told = {result.check.id: result for result in report.results}
    for need in check.needs:
        if need in told and told[need].outcome is not Outcome.HOLDS:
            reason = f"it needs {need}, which {told[need].outcome}"
            return Result(check, Outcome.UNTRIED, reason)
    cores: tuple[int, ...] = ()
    if check.cores:
        try:
            cores = choose_cores(check.cores)
        except device.DeviceError as error:
            return Result(check, Outcome.UNTRIED, error.reason)
        if not cores:
            reason = f"it takes {check.cores} cores of one device that no process uses"
            return Result(check, Outcome.UNTRIED, f"{reason}; neuron-ls lists none such")
    context = Context(folder / check.id, shared, cores, stack)
    context.folder.mkdir()
    context.save()
    began = time.monotonic()
    outcome, text = _run(check, context)
    return Result(check, outcome, text, round(time.monotonic() - began, 1), cores)


def choose_cores(count: int, wait_s: float = device.IDLE_S) -> tuple[int, ...]:
    """Cores of a device that is idle, or becomes so in time; () = there is none.

    One core is the device's last, so that its id tells it from a count; several are its first.
    """
    until = time.monotonic() + wait_s
    while True:
        for one in device.devices():
            if len(one.core_ids) >= count and not one.processes:
                cores = sorted(one.core_ids)
                return (cores[-1],) if count == 1 else tuple(cores[:count])
        if time.monotonic() >= until:
            return ()
        time.sleep(1)


def _run(check: Check, context: Context) -> tuple[Outcome, str]:
    """Start the probe, wait for it, end what is left of it; a missing verdict is a result."""
    log = context.folder / "probe.log"
    command = [sys.executable, "-m", "pipeline.first_run.probe"]
    command += [check.module, check.function, str(context.folder)]
    environment = processes.module_environment()
    # The probe itself stays away from torch; its workers are to load it as run.py does.
    del environment["TORCH_DEVICE_BACKEND_AUTOLOAD"]
    code: int | None
    with log.open("wb") as stream:
        process = processes.start(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait(check.limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            processes.end(process)
    try:
        told = json.loads((context.folder / VERDICT).read_text())
    except (OSError, ValueError):
        ended = f"did not end within {check.limit_s} s" if code is None else how_ended(code)
        return Outcome.FAILS, f"the check {ended}; its output:\n{_output(context.folder)}"
    if told["holds"] is None:
        return Outcome.UNTRIED, told["text"]
    return Outcome.HOLDS if told["holds"] else Outcome.FAILS, told["text"]


def _output(folder: Path) -> str:
    """The ends of all logs in a check's folder."""
    logs = sorted(folder.glob("*.log"))
    texts = (f"{log.name}:\n{tail(log.read_text(errors='replace'), 1500)}" for log in logs)
    return "\n".join(texts)
