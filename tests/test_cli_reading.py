"""`qualify publish` and `qualify show` as people call them: what they print, and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import diagnosis, wishes
from pipeline import results as store
from pipeline.record import Finding
from pipeline.words import Failure
from tests import papers
from tests.conftest import ROOT
from tests.hub_server import HubServer
from tests.papers import Banned, View
from tests.test_outside import public, write


def qualify(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in the working directory."""
    return subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


@pytest.fixture
def published(in_tmp: Path) -> Path:
    """results/ with a PASS whose graphs others can fetch, two failures of one cause, and one of
    another that no signature knows."""
    known = diagnosis.signatures()[0]
    rows = [
        papers.passing(cache_store="hf://buckets/example/graphs"),
        *(
            papers.failing(papers.run(name), failure=known.failure, signature=known.id)
            for name in ("same/a", "same/b")
        ),
        papers.failing(
            papers.run("odd/one"),
            failure=Failure.CRASH,
            signature=None,
            error="never seen before",
            findings=(Finding(signature="s", failure=Failure.CPU_FALLBACK, line="ran eager"),),
        ),
    ]
    results = in_tmp / "results"
    store.write(store.prepare(results, map(store.row_of, rows)).files)
    return results


def test_failures_are_shown_by_cause(published: Path) -> None:
    """The largest group comes first and says what to do; one without a signature wants one."""
    ended = qualify("show", "--failures")
    assert (ended.returncode, ended.stderr) == (0, "")
    head, first, second = ended.stdout.rstrip().split("\n\n")
    assert head == "3 of 4 results did not pass; causes: 2"
    assert first.startswith("2 x ") and "models: same/a, same/b" in first
    assert f"do: {diagnosis.signatures()[0].remedy}" in " ".join(first.split())
    assert "unclassified" in second and "docs/failures.md" in second


def test_failures_of_some_models(published: Path) -> None:
    """MODEL chooses rows here too, and where none failed that is said."""
    assert "2 x " in qualify("show", "same/*", "--failures").stdout
    assert qualify("show", "Qwen/*", "--failures").stdout == "all of 1 results passed\n"
    assert qualify("show", "none/such", "--failures").returncode == 2


def test_failures_as_json(published: Path) -> None:
    """--json gives every group with all that is known of it."""
    found = json.loads(qualify("show", "--failures", "--json").stdout)
    assert [group["count"] for group in found] == [2, 1]
    assert found[0]["remedy"] == diagnosis.signatures()[0].remedy
    assert json.loads(qualify("show", "Qwen/*", "--failures", "--json").stdout) == []


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_show_fits_the_terminal(published: Path, columns: int) -> None:
    """Tables and failures keep to the terminal's columns, and to 80 where it has fewer."""
    for arguments in (["show"], ["show", "--failures"]):
        for told in (columns, 20):
            ended = qualify(*arguments, COLUMNS=str(told))
            lines = [line for line in ended.stdout.split("\n") if "see: " not in line]
            assert max(map(len, lines)) <= max(80, told)


def test_show_tells_how_to_fetch_the_graphs(published: Path) -> None:
    """The details of a row end with the command for its graphs; rows without a store have none."""
    told = qualify("show", "Qwen/*", "--full").stdout
    assert "  to fetch them:\n    hf buckets sync hf://buckets/example/graphs/" in told
    assert "to fetch them" not in qualify("show", "same/a", "--full").stdout
    short = " ".join(qualify("show", "Qwen/Qwen3-0.6B").stdout.split())
    assert "compiled graphs are in hf://buckets/example/graphs: --full prints the command" in short


def test_show_tells_findings(published: Path) -> None:
    """What the log says against a run stands in its cause and among its details."""
    assert "the log also says s: ran eager" in " ".join(qualify("show").stdout.split())
    assert "  findings:\n    s: ran eager\n" in qualify("show", "odd/one", "--full").stdout


# --- one model ----------------------------------------------------------------------------------


def test_the_exit_code_is_the_answer(published: Path) -> None:
    """0 for PASS, 11 for FAIL, 12 for no evidence, 2 and 6 where there is no answer; a table and a
    glob end with 0 whatever they show."""
    for arguments, code in (
        (["Qwen/Qwen3-0.6B"], 0),
        (["qwen/qwen3-0.6b"], 0),
        (["Qwen/Qwen3-0.6B", "--json"], 0),
        (["Qwen/Qwen3-0.6B", "--stack", "neuronxcc-2.28"], 0),
        (["odd/one"], 11),
        (["odd/one", "--full"], 11),
        (["odd/one", "--json"], 11),
        (["same/a"], 12),
        (["Qwen/Qwen3-0.6B", "--stack", "neuronxcc-2.29"], 12),
        (["Qwen/Qwen3-0.6B", "--stack", "cpu"], 12),
        (["none/such"], 12),
        (["none/such", "--full"], 12),
        (["two words"], 2),
        ([""], 2),
        (["same/*"], 0),
        (["same/*", "--stack", "neuron"], 0),
        ([], 0),
        (["--stack", "cpu"], 2),
        (["Qwen/Qwen3-0.6B", "--results", "nowhere"], 6),
    ):
        ended = qualify("show", *arguments)
        assert ended.returncode == code, (arguments, ended.stdout, ended.stderr)
        assert "Traceback" not in ended.stderr


def test_an_excluded_model_is_told_from_results_alone(published: Path) -> None:
    """models.json is all that it needs."""
    view = View(excluded=(Banned("left/out"),))
    (published / wishes.FILE).write_bytes(wishes.dump(wishes.of(view), 30))
    ended = qualify("show", "left/out")
    assert ended.returncode == 12
    assert ended.stdout.startswith("left/out: EXCLUDED\n  left out as incompatible: ")
    (published / wishes.FILE).write_text("{")
    assert qualify("show", "left/out").returncode == 6


def test_json_of_one_model(published: Path) -> None:
    """One object, with the row and the evidence, on standard output alone."""
    ended = qualify("show", "odd/one", "--json")
    found = json.loads(ended.stdout)
    assert (found["evidence"], found["row"]["model_id"]) == ("FAIL", "odd/one")
    assert ended.stderr.startswith("qualify: odd/one fails on neuronx-cc 2.28.7631.0")


def test_what_others_published_stands_beside_and_changes_nothing(published: Path) -> None:
    """A PASS of others is shown, marked as theirs, and the answer and its exit code stay ours."""
    write(Path("theirs") / "a.parquet", [public("odd/one", result="PASS", notes="it works")])
    ended = qualify("show", "odd/one", "--also", "theirs")
    assert ended.returncode == 11 and ended.stdout.startswith("odd/one: FAIL\n")
    ours, _, theirs = ended.stdout.partition("\nOutside evidence: what others published")
    assert "it works" in theirs and "it works" not in ours
    told = json.loads(qualify("show", "odd/one", "--also", "theirs", "--json").stdout)
    assert [row["result"] for row in told["also"]] == ["PASS"] and told["evidence"] == "FAIL"
    none = qualify("show", "Qwen/Qwen3-0.6B", "--also", "theirs")
    assert none.returncode == 0
    assert none.stdout.endswith("\nOutside evidence: nothing of this model there\n")
    assert qualify("show", "Qwen/*", "--also", "theirs").returncode == 2


def test_an_answer_needs_no_heavy_library(published: Path) -> None:
    """A reading command starts fast: no table library but pyarrow, no schema library, no torch."""
    code = (
        "import sys\nfrom pipeline.cli import main\n"
        "try: main(['show', 'Qwen/Qwen3-0.6B'])\nexcept SystemExit as end: assert not end.code\n"
        "print(sorted({'numpy', 'pandas', 'pydantic', 'torch', 'transformers', 'yaml', "
        "'huggingface_hub', 'pyarrow.parquet', 'pyarrow.compute', 'pyarrow.dataset'} "
        "& set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.stdout.startswith("Qwen/Qwen3-0.6B: PASS\n")
    assert ended.stdout.endswith("\n[]\n")


def test_history_and_diff(published: Path) -> None:
    """All that was published of a model; two stacks on what ran on both."""
    newer = papers.stack(neuronx_cc="2.29.5")
    rows = [
        papers.failing(papers.run(stack=newer), papers.day(3)),
        papers.passing(papers.run("odd/one", stack=newer), papers.day(3)),
    ]
    store.write(store.prepare(published, map(store.row_of, rows)).files)
    told = qualify("history", "Qwen/Qwen3-0.6B").stdout.split("\n")
    assert [line.split()[:2] for line in told if line] == [
        ["2026-12-03", "FAIL"],
        ["2026-11-30", "PASS"],
    ]
    listed = json.loads(qualify("history", "odd/one", "--json").stdout)
    assert [row["result"] for row in listed] == ["PASS", "FAIL"]
    assert qualify("history", "none/such").returncode == 2
    ended = qualify("diff", "neuronxcc-2.28", "neuronxcc-2.29", COLUMNS="80")
    assert ended.returncode == 0
    lines = ended.stdout.split("\n")
    assert "Newly failing: 1" in lines and "Fixed: 1" in lines
    found = json.loads(qualify("diff", "neuronxcc-2.28", "neuronxcc-2.29", "--json").stdout)
    assert [pair["model_id"] for pair in found["newly_failing"]] == ["Qwen/Qwen3-0.6B"]
    assert qualify("diff", "cpu", "neuronxcc-2.29").returncode == 2


# --- other places -------------------------------------------------------------------------------


def test_a_dataset_of_the_hub(published: Path, tmp_path: Path) -> None:
    """The same answer from the Hub, and from its copy when the Hub is away."""
    files: dict[str, bytes | Path] = {
        path.relative_to(published).as_posix(): path.read_bytes()
        for path in published.rglob("*")
        if path.is_file()
    }
    arguments = ("show", "Qwen/Qwen3-0.6B", "--results", "hf://datasets/org/rows")
    here = qualify("show", "Qwen/Qwen3-0.6B").stdout
    with HubServer() as hub:
        hub.add("datasets/org/rows", files)
        place = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub")}
        ended = qualify(*arguments, **place)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, here, "")
        assert not any("scripts" in path for path in hub.paths())
        missing = qualify("show", "a/b", "--results", "hf://datasets/org/none", **place)
        assert missing.returncode == 6 and "there is no such dataset" in missing.stderr
    away = qualify(*arguments, **place)
    assert (away.returncode, away.stdout) == (0, here)
    assert "the Hub could not be read" in away.stderr and "an earlier copy" in away.stderr
    never = qualify(*arguments, **place | {"HF_HOME": str(tmp_path / "empty")})
    assert never.returncode == 6 and "the Hub could not be read" in never.stderr


# --- the action for other repositories ----------------------------------------------------------


def gate(folder: Path, **inputs: str) -> tuple[int, str]:
    """(how the action's step ended, the output `evidence`), the package being installed already."""
    program = folder / "runner" / "qualify-gate" / "bin" / "qualify"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m pipeline.cli "$@"\n')
    program.chmod(0o755)
    output = folder / "output"
    output.unlink(missing_ok=True)
    action = ROOT / ".github" / "actions" / "gate"
    asked = {"RESULTS": "results", "STACK": "", "WITHOUT_EVIDENCE": "fail", **inputs}
    ended = subprocess.run(
        [action / "gate.sh"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "GITHUB_ACTION_PATH": str(action),
            "RUNNER_TEMP": str(folder / "runner"),
            "GITHUB_OUTPUT": str(output),
            **asked,
        },
    )
    told = output.read_text() if output.exists() else ""
    return ended.returncode, told.removeprefix("evidence=").strip()


def test_the_gate(published: Path, in_tmp: Path) -> None:
    """It lets a PASS through, and absence of evidence where that was asked for: never a FAIL, and
    never what could not be read."""
    assert gate(in_tmp, MODEL="Qwen/Qwen3-0.6B") == (0, "PASS")
    assert gate(in_tmp, MODEL="odd/one") == (11, "FAIL")
    assert gate(in_tmp, MODEL="odd/one", WITHOUT_EVIDENCE="pass") == (11, "FAIL")
    assert gate(in_tmp, MODEL="same/a") == (12, "none")
    assert gate(in_tmp, MODEL="none/such") == (12, "none")
    assert gate(in_tmp, MODEL="none/such", WITHOUT_EVIDENCE="pass") == (0, "none")
    assert gate(in_tmp, MODEL="Qwen/Qwen3-0.6B", STACK="neuronxcc-2.29") == (12, "none")
    assert gate(in_tmp, MODEL="a/b", RESULTS="nowhere", WITHOUT_EVIDENCE="pass") == (6, "")
    assert gate(in_tmp, MODEL="--help", WITHOUT_EVIDENCE="pass") == (2, "")
    for model in ("Qwen/*", "Qwen/Qwen3-0.6?", "", "[Q]wen/Qwen3-0.6B"):
        assert gate(in_tmp, MODEL=model, WITHOUT_EVIDENCE="pass") == (2, "")
    assert gate(in_tmp, MODEL="Qwen/Qwen3-0.6B", WITHOUT_EVIDENCE="no") == (2, "")
