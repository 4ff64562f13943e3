"""`qualify reproduce`: what a person reads, what a program reads, how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pipeline import doctor
from pipeline.cli import reproducing
from pipeline.cli.group import main
from pipeline.device import tools
from pipeline.reproduce import NotReproduced, NotTried
from pipeline.rows import Row, row_of
from pipeline.words import Stage, Target
from tests import papers
from tests.test_reproduce import (
    CPU,
    REFUSED,
    observed,
    publish_rows,
    row,
    telling,
)

assert reproducing.reproduce.name in main.commands


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, in_tmp: Path) -> None:
    """No import of torch, no Neuron tools, and a folder of its own to work in."""
    monkeypatch.setattr(doctor, "_import", lambda *, neuron: [])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(tools, "TOOLS", tmp_path)


def qualify(*arguments: str) -> Result:
    """Run the command on results/ of the working directory."""
    return CliRunner().invoke(main, ["reproduce", *arguments])


def _failing() -> Row:
    return row(telling(observed(stage=Stage.LOAD)) + "\nsys.exit('ValueError: no')")


def _refused() -> Row:
    refused = papers.refused("demo/fake", stack=CPU)
    return row_of(papers.failing(refused, **REFUSED))


def _of_another() -> Row:
    return row_of(papers.passing(papers.run("demo/fake")))


@pytest.mark.parametrize(
    ("make", "code", "out", "error"),
    [
        (lambda: row(telling(observed())), 0, "demo/fake: REPRODUCED: PASS", ""),
        (_failing, NotReproduced.exit_code, "demo/fake: NOT REPRODUCED", "here it is FAIL"),
        (lambda: row("sys.exit('No space left on device')"), 14, "NOT DECIDED", "disk_full"),
        (lambda: row("pass") | {"run_py": "x = 1\n"}, 14, "", "is not the one that ran"),
        (_refused, NotTried.exit_code, "", "refused while planning"),
        (_of_another, NotTried.exit_code, "", "is of MODEL_ID None"),
    ],
)
def test_the_exit_code_tells_what_came_out(
    make: Callable[[], Row], code: int, out: str, error: str
) -> None:
    """0 reproduced, 13 not, 14 not tried or not decided; the answer is the first line."""
    publish_rows(Path("results"), make())
    done = qualify("demo/fake")
    assert done.exit_code == code, done.output
    assert out in (done.stdout.splitlines() or [""])[0]
    assert error in done.stderr
    assert "Traceback" not in done.output


def test_a_row_of_a_device_ends_with_what_the_doctor_says(tmp_path: Path) -> None:
    """No device: the difference is shown, nothing is run, nothing is left."""
    from pipeline import script

    text = script.render(papers.run("demo/fake"))
    asked = papers.run("demo/fake", script_sha256=script.sha256(text))
    publish_rows(Path("results"), row_of(papers.passing(asked)))
    done = qualify("demo/fake")
    assert done.exit_code == NotTried.exit_code
    assert "free cores" in done.stderr
    assert "neuron-ls is neither on PATH nor in" in done.stderr
    assert "this machine cannot run it" in done.stderr
    assert not Path("build").exists()


def test_nothing_is_written_to_the_results() -> None:
    """Before and after: the same files with the same bytes; the reports stand elsewhere."""
    publish_rows(Path("results"), row(telling(observed())))

    def content() -> dict[str, bytes]:
        found = (path for path in Path("results").rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in found}

    before = content()
    assert qualify("demo/fake").exit_code == 0
    assert qualify("demo/fake").exit_code == 0
    assert content() == before
    folders = sorted(path.name for path in Path("build/reproduce").glob("*/*"))
    assert folders == ["1", "2"]
    inside = qualify("demo/fake", "--output", "results/current/mine")
    assert inside.exit_code == 2
    assert "below the results" in inside.stderr
    assert content() == before


def test_a_report_is_never_written_over() -> None:
    """What somebody may want to share stays: --output must be new or empty."""
    publish_rows(Path("results"), row(telling(observed())))
    done = qualify("demo/fake", "--output", "mine")
    assert done.exit_code == 0, done.output
    assert "report: mine/report.md, mine/report.json" in done.stdout
    assert "# Replay of `demo/fake`: reproduced" in Path("mine/report.md").read_text()
    again = qualify("demo/fake", "--output", "mine")
    assert again.exit_code == 2
    assert "is not empty" in again.stderr


def test_json_is_one_document_however_it_ends() -> None:
    """Standard output is JSON, what happens meanwhile goes to standard error."""
    publish_rows(Path("results"), row(telling(observed())))
    told = json.loads(qualify("demo/fake", "--json").stdout)
    assert told["outcome"] == "reproduced"
    assert [one["first"] for one in told["tokens"]] == [None] * 3
    assert told == json.loads(next(Path("build").rglob("report.json")).read_text())
    publish_rows(Path("other"), _refused())
    done = qualify("demo/fake", "--json", "--results", "other")
    assert json.loads(done.stdout)["outcome"] == "not tried"
    assert done.exit_code == NotTried.exit_code


def test_wrong_words_end_as_a_wrong_command_line() -> None:
    """A model without a row, a stack it has no row of, results that are not there."""
    publish_rows(Path("results"), row(telling(observed())))
    for arguments, code, told in (
        (("demo/fak",), 2, "did you mean demo/fake?"),
        (("demo/fake", "--stack", "torch-0.1"), 2, "its stacks: "),
        (("demo/fake", "--store", "hf://models/x"), 2, "is no store"),
        (("demo/fake", "--limit-minutes", "0"), 2, "--limit-minutes"),
        (("demo/fake", "--results", "nowhere"), 6, "nowhere: "),
    ):
        done = qualify(*arguments)
        assert done.exit_code == code, done.output
        assert told in done.stderr


def test_other_stacks_are_told_and_a_store_that_cannot_be_used_costs_nothing() -> None:
    """The newest stack is taken, and the others are named; without a store it compiles."""
    older = papers.run("demo/fake", stack=papers.stack(Target.CPU, torch="2.0.0"))
    found = row(telling(observed())) | {"cache_store": "nosuch://place"}
    publish_rows(Path("results"), found, row_of(papers.passing(older)))
    done = qualify("demo/fake")
    assert done.exit_code == 0, done.output
    assert "rows of other stacks (--stack): transformers-5.24.0@inductor-2.0.0" in done.stderr
    assert "nothing is known of nosuch://" in done.stderr
    assert "compiling instead" in done.stderr


def test_a_time_limit_of_a_persons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """--limit-minutes ends a script that would go on, and the answer says so."""
    does = telling(observed(stage=Stage.COMPILE)) + "\ntime.sleep(600)"
    publish_rows(Path("results"), row(does))
    done = qualify("demo/fake", "--limit-minutes", "0.03")
    assert done.exit_code == NotTried.exit_code
    assert "no end within 2 s" in done.stdout


def test_packages_to_add_are_named() -> None:
    """Told with the pip line, not installed."""
    asked: dict[str, Any] = {"extra_packages": ("trn-qualify-absent",)}
    publish_rows(Path("results"), row(telling(observed()), asked=asked))
    done = qualify("demo/fake")
    assert done.exit_code == NotTried.exit_code
    assert "packages to add: python -m pip install trn-qualify-absent" in done.stderr
