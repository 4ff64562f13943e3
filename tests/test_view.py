"""What a person sees of published rows: the table, the details, and nothing a terminal obeys."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from pipeline import results as store
from pipeline import view
from pipeline.errors import ResultsError, UsageError
from pipeline.record import CallCounts, Check, Generation, Record
from pipeline.words import CpuMatch, English, Failure, Target
from tests import papers


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A PASS, a FAIL on two cores, and a refusal."""
    two = papers.run("meta-llama/Llama-3.2-1B", placement=papers.placement(2))
    return publish(
        tmp_path / "results",
        papers.passing(),
        papers.failing(two, papers.day(1)),
        papers.failing(papers.refused(), failure=Failure.TOO_LARGE, observation=None, wall_s=None),
    )


def publish(folder: Path, *records: Record) -> Path:
    store.write(store.prepare(folder, map(store.row_of, records)).files)
    return folder


def shown(lines: str) -> list[list[str]]:
    """The cells of a table, which are two spaces or more apart."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in _lines(lines)]


def _lines(text: str) -> Iterable[str]:
    return text.split("\n")


def test_table(results: Path) -> None:
    """One line a row, by model id, with dates; the cause stands where it failed."""
    head, *lines = shown(view.table(view.rows(results, None)))
    assert ",".join(head) == ("model,result,tested,cores,seconds,memory,graphs,cache,check,cause")
    passed, refused, failed = lines
    assert passed == [
        "Qwen/Qwen3-0.6B",
        "PASS",
        "2026-11-30",
        "1",
        "330",
        "1.5 GiB/core",
        "2",
        "cold",
        "CPU near_tie",
    ]
    assert refused[:4] == ["big/model", "FAIL", "2026-11-30", "-"]
    assert refused[4] == "-"
    assert failed[:4] == ["meta-llama/Llama-3.2-1B", "FAIL", "2026-12-01", "2 tensor"]
    cause = "compile, compiler_error: RuntimeError: NCC_EVRF004: operator is not supported"
    assert failed[-1] == cause


def test_table_columns_are_aligned(results: Path) -> None:
    """Every cell begins where its heading does."""
    head, *lines = _lines(view.table(view.rows(results, None)))
    for name in ("result", "cores", "cache"):
        at = head.index(name)
        assert all(line[at - 1] == " " and line[at] != " " for line in lines)


def test_rows_of_several_stacks_are_told_apart(tmp_path: Path) -> None:
    """One model on two stacks gives two lines, named by their run ids."""
    cpu = papers.stack(Target.CPU)
    results = publish(tmp_path / "results", papers.passing(), papers.passing(papers.run(stack=cpu)))
    head, *lines = shown(view.table(view.rows(results, None)))
    assert head[0] == "run"
    assert [line[0] for line in lines] == [
        "Qwen--Qwen3-0.6B@transformers-5.24.0@inductor-2.14.0@torch-2.14.0",
        "Qwen--Qwen3-0.6B@transformers-5.24.0@neuronxcc-2.28.7631.0@torch-2.14.0",
    ]
    assert lines[0][5] == "6.0 GiB host"


def test_table_says_both_checks(tmp_path: Path) -> None:
    """A sharded run's judge stands beside the CPU's comparison; what did not run is left out."""
    both = Check(cpu_match=CpuMatch.EXACT, english=English.FLUENT)
    judged = Check(english=English.FLUENT)
    results = publish(
        tmp_path / "results",
        papers.passing(papers.run("a/a"), check=both),
        papers.passing(papers.run("b/b"), check=judged),
    )
    _, first, second = shown(view.table(view.rows(results, None)))
    assert (first[-1], second[-1]) == ("CPU exact, judge fluent", "judge fluent")


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-0.6B",
        "qwen/QWEN3-0.6b",
        "Qwen/*",
        "*qwen3*",
        "Qwen--Qwen3-0.6B@transformers-5.24.0@neuronxcc-2.28.7631.0@torch-2.14.0",
        "qwen--*@torch-2.14.0",
    ],
)
def test_rows_of_a_model(results: Path, name: str) -> None:
    """A model id, a run id or a glob of either chooses, letter case aside."""
    assert [row["model_id"] for row in view.rows(results, name)] == ["Qwen/Qwen3-0.6B"]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Qwen/Qwen3-0.6", "Qwen/Qwen3-0.6B"),
        ("QWEN/QWEN3-06B", "Qwen/Qwen3-0.6B"),
        ("Llama-3.2-1B", "meta-llama/Llama-3.2-1B"),
        ("big--model@transformers-5.24.0@neuronxcc-1@torch-2", "big/model"),
    ],
)
def test_unknown_model(results: Path, name: str, near: str) -> None:
    """No result is absence of evidence, and the error says so, with what comes near."""
    with pytest.raises(UsageError, match="untested, which says nothing of the model") as caught:
        view.rows(results, name)
    assert caught.value.remedy == f"did you mean {near}?"


def test_unknown_model_with_nothing_near(results: Path) -> None:
    """Nothing is offered where nothing is alike."""
    with pytest.raises(UsageError) as caught:
        view.rows(results, "zzz")
    assert caught.value.remedy == ""


def test_no_results(tmp_path: Path) -> None:
    """Nothing published, or a folder without a row, is an error and not a blank page."""
    with pytest.raises(ResultsError, match="no published results"):
        view.rows(tmp_path, None)
    (tmp_path / "current").mkdir()
    with pytest.raises(ResultsError, match="no published results"):
        view.rows(tmp_path, "a/a")


def test_details(results: Path) -> None:
    """Every known field, and the prompts with their answers; unknown ones are left out."""
    (row,) = view.rows(results, "Qwen/*")
    lines = view.details(row).split("\n")
    assert lines[0] == "Qwen/Qwen3-0.6B: PASS"
    assert "  tested_at: 2026-11-30T08:00:00Z" in lines
    assert "  neuronx_cc: 2.28.7631.0" in lines
    assert "  max_gap: 0.125" in lines
    assert "  cpu_fallback_ops: none" in lines
    assert "  cache_keys: 2 entries" in lines
    assert lines[-2:] == ["  'Once upon a time'", "    ' answer 2'"]
    names = {line.strip().partition(":")[0] for line in lines[1:]}
    assert not names & {"failure", "error", "judge", "run_py", "generated_tokens"}


def test_details_of_a_refusal(results: Path) -> None:
    """A row without generated text has no answers to show."""
    (row,) = view.rows(results, "big/model")
    text = view.details(row)
    assert "  failure: too_large" in text
    assert "answer" not in text


HOSTILE = "bad\x1b]0;title\x07\x1b[31mred\u202egnp\r\nnew line\x00"


def hostile_row(folder: Path) -> view.Row:
    """A row that holds what a terminal would obey, past what publishing takes out."""
    answers = tuple(
        Generation(prompt=prompt, tokens=(1, 2, 3, 4), text=HOSTILE) for prompt in papers.PROMPTS
    )
    asked = papers.run("a/a")
    record = papers.passing(asked, observation=papers.observation(generations=answers))
    (row,) = view.rows(publish(folder, record), None)
    return {**row, "error": HOSTILE, "failure": "crash", "notes": HOSTILE, "signature": HOSTILE}


def test_control_characters_never_reach_the_terminal(tmp_path: Path) -> None:
    """Rows come from machines that nobody vouches for; neither view lets a terminal obey them."""
    row = hostile_row(tmp_path)
    for text in (view.table([row]), view.details(row)):
        assert all(character.isprintable() or character == "\n" for character in text)
        assert "red" in text
    assert len(view.table([row]).split("\n")) == 2


def test_long_values_are_cut_visibly(tmp_path: Path) -> None:
    """What is left out of a line is marked; --json has it whole."""
    row = {**hostile_row(tmp_path), "error": "x" * 5000}
    cause = view.table([row]).split("\n")[1]
    assert cause.endswith("xxx...")
    assert len(cause) < 500
    (line,) = [line for line in view.details(row).split("\n") if line.startswith("  error:")]
    assert line.endswith("xxx...")
    assert view.plain(row)["error"] == "x" * 5000


def test_plain_is_json(results: Path) -> None:
    """A row as JSON: times in ISO 8601, UTC, and all columns."""
    for row in view.rows(results, None):
        again = json.loads(json.dumps(view.plain(row), allow_nan=False))
        assert list(again) == list(store.SCHEMA.names)
        assert again["tested_at"].endswith("Z")


def test_unknown_counts_are_dashes(tmp_path: Path) -> None:
    """What was not seen is a dash, and zero is a zero."""
    none = papers.observation(all_calls=CallCounts(graphs=0, compiled=None, restored=None))
    results = publish(
        tmp_path / "results",
        papers.failing(papers.run("a/a"), failure=Failure.CPU_FALLBACK, observation=none),
        papers.failing(papers.run("b/b"), cache=None),
    )
    head, first, second = view.table(view.rows(results, None)).split("\n")
    at = head.index("graphs")
    assert (first[at], second[at]) == ("0", "-")
    at = head.index("cache")
    assert (first[at : at + 4], second[at]) == ("cold", "-")
