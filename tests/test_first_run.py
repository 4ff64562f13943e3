"""The first run: its list is true to the code, and a session keeps whatever its checks do.

The probes at the end of this file are real checks to the session: it starts them in processes of
their own. On the stand-in for the device all of it runs in tests/simulator/test_first_run.py.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from pipeline import catalog, device, doctor, script
from pipeline.device import sysfs, tools
from pipeline.first_run import (
    CHECKS,
    Check,
    Outcome,
    Place,
    Report,
    Result,
    first_run,
    probes_machine,
)
from pipeline.first_run.checks import table
from pipeline.first_run.probing import Context, NotTried, Seen, signature
from pipeline.first_run.session import choose_cores, installed
from tests import papers

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data" / "neuron"
GUIDE = ROOT / "docs" / "first-device-run.md"
HERE = "tests.test_first_run"
IDS = [check.id for check in CHECKS]


def defined(place: Place) -> bool:
    """Whether the file defines the name: as Python, in the script's template, or as data."""
    text = (ROOT / place.file).read_text("utf-8")
    if place.file.endswith(".py"):
        nodes = list(ast.walk(ast.parse(text)))
        named = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        named |= {node.id for node in nodes if isinstance(node, ast.Name) and _stored(node)}
        return place.name in named
    if place.file.endswith(".jinja"):
        return re.search(rf"^def {place.name}\(", text, re.MULTILINE) is not None
    if place.file.endswith("signatures.yaml"):
        return place.name in [entry["id"] for entry in yaml.safe_load(text)]
    return re.search(rf'(^ *|"){re.escape(place.name)}"?:', text, re.MULTILINE) is not None


def _stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


@pytest.mark.parametrize("check", CHECKS, ids=IDS)
def test_every_assumption_can_be_mended_where_it_says(check: Check) -> None:
    """A person who reads that something does not hold finds the file and the name in it."""
    assert check.places
    assert [str(place) for place in check.places if not defined(place)] == []


def test_a_place_that_is_gone_is_noticed() -> None:
    """The rule above can fail: for each kind of file a name that is not there is not found."""
    for file in {place.file for check in CHECKS for place in check.places}:
        assert not defined(Place(file, "no_such_name")), file


@pytest.mark.parametrize("check", CHECKS, ids=IDS)
def test_every_check_has_a_probe_and_needs_what_came_before(check: Check) -> None:
    """The function named after the id exists; what a check builds on was tried earlier."""
    assert callable(getattr(importlib.import_module(check.module), check.function))
    assert set(check.needs) <= set(IDS[: IDS.index(check.id)])
    assert check.assumption.endswith(".")
    assert check.source
    assert check.limit_s > 0


def test_the_order_is_safe_for_the_device() -> None:
    """No id twice; reading before cores, whole runs after single graphs, breaking at the end."""
    assert len(set(IDS)) == len(IDS)
    probes = [check.probe for check in CHECKS]
    assert list(dict.fromkeys(probes)) == [
        "probes_machine",
        "probes_core",
        "probes_ranks",
        "probes_runs",
        "probes_breaking",
    ]
    assert probes == sorted(probes, key=list(dict.fromkeys(probes)).index)


def test_the_guide_holds_the_table_of_the_checks() -> None:
    """docs/first-device-run.md lists what the code tries; write `table()` there when it changed."""
    text = GUIDE.read_text("utf-8")
    (found,) = re.findall(r"<!-- generated: first-run -->\n\n(.*)\n\n<!-- end -->", text, re.DOTALL)
    assert found == table()


def test_the_guide_installs_the_default_stack() -> None:
    """Its pip line is the one that `qualify doctor` gives for the list's default stack."""
    listed = catalog.load(ROOT / "models.yaml")
    stack = listed.stack_versions(listed.defaults.stacks[0])
    text = GUIDE.read_text("utf-8")
    assert f"    {script.install_command(stack)}\n" in text
    assert stack.python is not None
    assert f"python{stack.python} -m venv" in text


# --- a session ------------------------------------------------------------------------------------


def check(name: str, needs: tuple[str, ...] = (), limit_s: int = 60) -> Check:
    """A check whose probe stands at the end of this file."""
    return Check(
        id=name,
        assumption=f"The assumption of {name}.",
        source="nowhere",
        places=(Place("pipeline/targets.py", "CACHES"),),
        how="in a test",
        probe=HERE,
        needs=needs,
        limit_s=limit_s,
    )


def session(folder: Path, *checks: Check) -> Report:
    """Run `checks` for real; the report stands in folder/report.md."""
    said: list[str] = []
    report = first_run(folder / "report.md", papers.stack(), said.append, checks)
    assert len(said) == len(checks)
    return report


def told(folder: Path, name: str = "report.json") -> dict[str, tuple[str, str]]:
    """id -> (outcome, what was seen) in the JSON of the report."""
    data = json.loads((folder / name).read_text())
    return {entry["id"]: (entry["outcome"], entry["seen"]) for entry in data["checks"]}


def test_a_crash_a_hang_and_a_fault_leave_the_other_checks(tmp_path: Path) -> None:
    """Each way to end is told as what it is; what builds on a failed check is not claimed."""
    os.environ["FIRST_RUN_TEST"] = str(tmp_path)
    try:
        session(
            tmp_path,
            check("good"),
            check("bad"),
            check("crash"),
            check("hang", limit_s=8),
            check("broken"),
            check("elsewhere"),
            check("after-crash", needs=("crash",)),
            check("after-elsewhere", needs=("elsewhere",)),
            check("after-good", needs=("good",)),
        )
    finally:
        del os.environ["FIRST_RUN_TEST"]
    seen = told(tmp_path)
    assert seen["good"] == ("holds", "it is so")
    assert seen["bad"] == ("does not hold", "it is not so")
    assert seen["crash"][0] == "does not hold"
    assert "ended by SIGSEGV" in seen["crash"][1]
    assert "before the crash" in seen["crash"][1]
    assert seen["hang"][0] == "does not hold"
    assert "did not end within 8 s" in seen["hang"][1]
    assert seen["broken"][0] == "could not be tried"
    assert "ZeroDivisionError" in seen["broken"][1]
    assert seen["elsewhere"] == ("could not be tried", "not on this machine")
    reason = "it needs crash, which does not hold"
    assert seen["after-crash"] == ("could not be tried", reason)
    reason = "it needs elsewhere, which could not be tried"
    assert seen["after-elsewhere"] == ("could not be tried", reason)
    assert seen["after-good"] == ("holds", "it is so")
    child = int((tmp_path / "child").read_text())
    assert gone(child)


def gone(pid: int) -> bool:
    """Whether a process has ended, or ends within ten seconds."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_an_interrupted_run_keeps_what_it_had(tmp_path: Path) -> None:
    """The report is written after every check; what was not reached says so, and nothing more."""
    seen: list[str] = []

    def interrupt(line: str) -> None:
        seen.append(line)
        assert told(tmp_path)["good"][0] == "holds"
        raise KeyboardInterrupt

    checks = (check("good"), check("bad"))
    with pytest.raises(KeyboardInterrupt):
        first_run(tmp_path / "report.md", papers.stack(), interrupt, checks)
    assert len(seen) == 1
    assert told(tmp_path) == {
        "good": ("holds", "it is so"),
        "bad": ("could not be tried", "it was not reached"),
    }
    assert "it was not reached" in (tmp_path / "report.md").read_text()


def test_a_machine_without_neuron_gets_a_report_that_claims_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every check says why it could not be tried; none holds, none fails for want of a device."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    chosen = tuple(one for one in CHECKS if one.id != "neuron-ls-without-device")
    report = session(tmp_path, *chosen)
    assert report.of(Outcome.HOLDS) == report.of(Outcome.FAILS) == []
    reasons = {result.check.id: result.text for result in report.of(Outcome.UNTRIED)}
    assert "neuron-ls is neither on PATH" in reasons["neuron-ls"]
    assert reasons["rank-killed"].startswith("it needs ")
    assert all(reasons.values())


def test_the_report_names_the_place_and_takes_secrets_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not hold comes first, unchanged and fenced; tokens and instance ids are gone."""
    monkeypatch.setenv("MY_TOKEN", "s3cr3t-value")
    report = Report(
        "2026-11-30T10:00:00+00:00", "abc", doctor.machine(), (check("bad"), check("good"))
    )
    text = "```\nNRT says s3cr3t-value on i-0123456789abcdef0 with hf_abcdefghijklmnopqrst\n```"
    report.results.append(Result(check("bad"), Outcome.FAILS, text, 1.5, (3,)))
    report.write(tmp_path / "r.md")
    written = (tmp_path / "r.md").read_text()
    assert written.index("## Does not hold") < written.index("## Could not be tried")
    assert "- mended in `pipeline/targets.py: CACHES`" in written
    assert "- tried on cores 3, in 1.5 s: in a test" in written
    assert "````text\n```\nNRT says" in written
    for file in ("r.md", "r.json"):
        found = (tmp_path / file).read_text()
        assert "i-[left out]" in found
        assert not re.search("s3cr3t|0123456789abcdef0|hf_abc", found)


def test_long_texts_are_cut_in_markdown_alone(tmp_path: Path) -> None:
    """The beginning sums up and the end has the error: both stay, and JSON keeps all of it."""
    chosen = dataclasses.replace(check("bad"), whole=True)
    report = Report("now", None, doctor.machine(), (check("good"), chosen))
    text = f"first {'x' * 9_000} last"
    report.results += [Result(one, Outcome.HOLDS, text) for one in report.checks]
    report.write(tmp_path / "r.md")
    short, whole = re.findall(
        r"```text\n(first.*?)\n```", (tmp_path / "r.md").read_text(), re.DOTALL
    )
    assert len(short) < 600
    assert short.startswith("first ")
    assert short.endswith(" last")
    assert whole == text
    assert [seen for _, seen in told(tmp_path, "r.json").values()] == [text, text]


def test_cores_are_taken_from_an_idle_device_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One core is the device's last, several its first; a device in use gives none."""
    put(tmp_path, monkeypatch, "neuron-ls", f"cat {DATA}/neuron-ls-trn2-48xlarge-two.json")
    assert choose_cores(1, 0) == (7,)
    assert choose_cores(2, 0) == (4, 5)
    assert choose_cores(5, 0) == ()
    put(tmp_path, monkeypatch, "neuron-ls", "exit 1")
    with pytest.raises(device.DeviceError):
        choose_cores(1, 0)


def put(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """Put a program of that name on PATH."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(tools, "TOOLS", folder)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """What a probe that takes no core is given."""
    folder = tmp_path / "check"
    folder.mkdir()
    return Context(folder, tmp_path, (), papers.stack())


def test_the_drivers_counters_are_looked_for_on_every_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: Context
) -> None:
    """All there: it holds; one gone: it does not, and the tree is told, all cores as one."""
    put(tmp_path, monkeypatch, "neuron-ls", f"cat {DATA}/neuron-ls-trn2-48xlarge-two.json")
    monkeypatch.setattr(sysfs, "SYSFS", tmp_path / "sysfs")
    assert not probes_machine.driver_counters(context).holds
    for index in range(2):
        for core in range(8):
            path = tmp_path / "sysfs" / f"neuron{index}" / f"neuron_core{core}" / sysfs.PEAK
            path.parent.mkdir(parents=True)
            path.write_text("7\n" if (index, core) == (1, 3) else "0\n")
    seen = probes_machine.driver_counters(context)
    assert seen.holds
    assert "core 5: ['neuron_core2', 'neuron_core3'] peaks [0, 7]" in seen.text
    assert seen.text.endswith(f":\nneuron_core*/{sysfs.PEAK}")
    seen = probes_machine.driver_peak_clears(context)
    assert seen.holds
    assert seen.text == f"{tmp_path}/sysfs/neuron1/neuron_core3/{sysfs.PEAK}: 7, then 0"
    with pytest.raises(NotTried, match="no idle core has a peak"):
        probes_machine.driver_peak_clears(context)
    path.unlink()
    assert not probes_machine.driver_counters(context).holds


def test_the_tools_are_held_against_what_the_code_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: Context
) -> None:
    """The documented forms hold; another form, as of SDK 2.34, is told with what was printed."""
    listing = f"cat {DATA}/neuron-ls-trn2-48xlarge-two.json"
    put(tmp_path, monkeypatch, "neuron-ls", listing)
    put(tmp_path, monkeypatch, "neuron-monitor", f"cat {DATA}/neuron-monitor.jsonl; sleep 60")
    assert probes_machine.neuron_ls(context).holds
    assert probes_machine.monitor_lines(context).holds
    put(tmp_path, monkeypatch, "neuron-ls", "echo '{\"devices\": [1]}'")
    put(tmp_path, monkeypatch, "neuron-monitor", "echo 'unknown metric' >&2; exit 1")
    seen = probes_machine.neuron_ls(context)
    assert not seen.holds
    assert '{"devices": [1]}' in seen.text
    seen = probes_machine.monitor_lines(context)
    assert not seen.holds
    assert "unknown metric" in seen.text


def test_run_py_is_made_for_what_is_installed() -> None:
    """Versions of this machine, else those of the list's stack; nothing that would refuse it."""
    found = dataclasses.replace(doctor.machine(), packages={"torch": "2.14.0+cpu"})
    wanted = papers.stack(python="3.14", driver="2.31.7.0", runtime="2.35.30.0", nki="0.7.0")
    stack = installed(found, wanted)
    assert (stack.torch, stack.library_version) == ("2.14.0+cpu", wanted.library_version)
    assert (stack.python, stack.driver, stack.runtime, stack.nki) == (None, None, None, None)


def test_texts_of_the_device_are_read_as_a_run_would_read_them() -> None:
    """The probes ask the diagnosis itself which known text decides."""
    assert signature("NRT allocation failed for size 1073741824 (OOM)") == "neuron-out-of-memory"
    busy = "NeuronCore(s) not available - Requested:nc1-nc1 Available:0"
    assert signature(f"{busy}\nFailed to initialize Neuron Runtime: status code 1") == (
        "neuron-cores-busy"
    )
    assert signature("everything went well") is None


# --- probes ---------------------------------------------------------------------------------------


def good(context: Context) -> Seen:
    return Seen(True, "it is so")


after_good = after_crash = after_elsewhere = good


def bad(context: Context) -> Seen:
    return Seen(False, "it is not so")


def crash(context: Context) -> Seen:
    print("before the crash", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def hang(context: Context) -> Seen:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    Path(os.environ["FIRST_RUN_TEST"], "child").write_text(str(child.pid))
    time.sleep(300)
    raise AssertionError


def broken(context: Context) -> Seen:
    return Seen(bool(1 / 0), "")


def elsewhere(context: Context) -> Seen:
    raise NotTried("not on this machine")
