"""How a step answers: outputs, summary and annotations in the forms that GitHub Actions reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.actions.workflow import MAX_SUMMARY_BYTES, Level, Workflow
from pipeline.errors import EnvironmentFault

TOKEN = "the-secret-token"  # noqa: S105 - nobody's


def _environment(folder: Path, **more: str) -> dict[str, str]:
    event = folder / "event.json"
    event.write_text(json.dumps({"inputs": {"select": "org/*"}}), encoding="utf-8")
    return {
        "GITHUB_REPOSITORY": "org/repo",
        "GITHUB_RUN_ID": "42",
        "GITHUB_EVENT_NAME": "workflow_dispatch",
        "GITHUB_EVENT_PATH": str(event),
        "GITHUB_OUTPUT": str(folder / "output"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "GITHUB_TOKEN": TOKEN,
        **more,
    }


@pytest.fixture
def workflow(tmp_path: Path) -> Workflow:
    return Workflow.here(_environment(tmp_path))


def _read_outputs(path: Path) -> dict[str, str]:
    """The file as the runner reads it: NAME<<END, lines, END."""
    found: dict[str, str] = {}
    lines = path.read_text(encoding="utf-8").split("\n")
    while lines and (head := lines.pop(0)):
        name, _, end = head.partition("<<")
        value = []
        while (line := lines.pop(0)) != end:
            value.append(line)
        found[name] = "\n".join(value)
    return found


def test_here(tmp_path: Path) -> None:
    """What the job was told is read from its variables; GitHub itself where they do not say."""
    environment = _environment(
        tmp_path,
        GITHUB_RUN_ATTEMPT="3",
        GITHUB_SERVER_URL="https://github.example.org",
        GITHUB_API_URL="https://api.example.org",
    )
    told = Workflow.here(environment)
    assert (told.repository, told.attempt, told.event["inputs"]["select"]) == (
        "org/repo",
        3,
        "org/*",
    )
    assert told.run_url == "https://github.example.org/org/repo/actions/runs/42"
    assert told.api_url == "https://api.example.org"
    plain = Workflow.here(_environment(tmp_path))
    assert (plain.attempt, plain.api_url) == (1, "https://api.github.com")


@pytest.mark.parametrize(
    "name", ["GITHUB_REPOSITORY", "GITHUB_RUN_ID", "GITHUB_EVENT_NAME", "GITHUB_EVENT_PATH"]
)
def test_outside_of_a_job(tmp_path: Path, name: str) -> None:
    """A person who calls such a command hears which variable is missing."""
    environment = _environment(tmp_path)
    del environment[name]
    with pytest.raises(EnvironmentFault, match=f"{name} is not set"):
        Workflow.here(environment)


def test_no_token_in_repr(workflow: Workflow) -> None:
    """A traceback or a log line that shows the job does not show its token."""
    assert workflow.token == TOKEN
    assert TOKEN not in repr(workflow) + str(workflow)


def test_an_empty_token_is_none(tmp_path: Path) -> None:
    """Actions gives an empty text for a secret that is not there."""
    assert Workflow.here(_environment(tmp_path, GITHUB_TOKEN="")).token is None


@pytest.mark.parametrize(
    "value",
    [
        "plain",
        "",
        "two\nlines",
        "EOF\nevil=1",
        "end_0\nother<<EOF\n1\nEOF",
        "end_",
        "ends with a line end\n",
        "a=b\nc<<d",
    ],
)
def test_no_output_sets_another(workflow: Workflow, tmp_path: Path, value: str) -> None:
    """A value with line ends arrives as it is and cannot end itself and begin another output."""
    workflow.output("jobs", value)
    workflow.output("runs", "3")
    assert _read_outputs(tmp_path / "output") == {"jobs": value, "runs": "3"}


def test_outputs_end_at_a_word_of_their_own(workflow: Workflow, tmp_path: Path) -> None:
    """The word that ends a value is new each time: knowing one does not help with the next."""
    workflow.output("a", "1")
    workflow.output("b", "1")
    heads = [line for line in (tmp_path / "output").read_text().split("\n") if "<<" in line]
    ends = {line.partition("<<")[2] for line in heads}
    assert len(ends) == 2
    assert all(len(end) >= 32 for end in ends)


def test_without_files_everything_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the runner gave no file to write to, people still see what was said."""
    environment = _environment(tmp_path, GITHUB_OUTPUT="", GITHUB_STEP_SUMMARY="")
    workflow = Workflow.here(environment)
    workflow.output("runs", "3")
    workflow.summary("# Done")
    assert capsys.readouterr().out == "runs=3\n# Done\n"


def test_summary(workflow: Workflow, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Summaries follow one another, and the log holds them too."""
    workflow.summary("# One")
    workflow.summary("# Two: ä")
    assert (tmp_path / "summary.md").read_text(encoding="utf-8") == "# One\n# Two: ä\n"
    assert capsys.readouterr().out == "# One\n# Two: ä\n"


@pytest.mark.parametrize("before", [0, 5_000])
def test_a_long_summary_is_cut(workflow: Workflow, tmp_path: Path, before: int) -> None:
    """Above 1 MiB GitHub shows nothing of it: what fits stays, whole lines and a note."""
    path = tmp_path / "summary.md"
    path.write_bytes(b"x" * before)
    workflow.summary("\n".join(f"row {number:07d} ä" for number in range(100_000)))
    text = path.read_bytes()[before:].decode()
    assert MAX_SUMMARY_BYTES - 200 < before + len(text.encode()) <= MAX_SUMMARY_BYTES
    *rows, empty, note = text.rstrip("\n").split("\n")
    assert (empty, "Cut here" in note) == ("", True)
    assert [row for row in rows if len(row) != len("row 0000000 ä")] == []
    workflow.summary("more")
    assert path.stat().st_size <= MAX_SUMMARY_BYTES


@pytest.mark.parametrize(
    ("message", "places", "line"),
    [
        ("plain", {}, "::error::plain"),
        ("100% of\r\ntwo: lines, so", {}, "::error::100%25 of%0D%0Atwo: lines, so"),
        ("%0A", {}, "::error::%250A"),
        (
            "m",
            {"file": "a,b:c%\n.yaml", "line": 3, "column": 5, "title": "x::y"},
            "::error file=a%2Cb%3Ac%25%0A.yaml,line=3,col=5,title=x%3A%3Ay::m",
        ),
    ],
)
def test_annotations(
    workflow: Workflow,
    capsys: pytest.CaptureFixture[str],
    message: str,
    places: dict[str, str | int],
    line: str,
) -> None:
    """An annotation is one line whatever it says, and no text in it begins another command."""
    workflow.annotate(Level.ERROR, message, **places)  # type: ignore[arg-type] # as parametrized
    assert capsys.readouterr().out == line + "\n"
