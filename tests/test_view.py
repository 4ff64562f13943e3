"""What a person sees of published rows: the table, the details, and nothing a terminal obeys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pipeline import cache, diagnosis, view
from pipeline import results as store
from pipeline.errors import ResultsError, UsageError
from pipeline.record import CallCounts, Check, Finding, Generation, Record, Try
from pipeline.rows import unrecorded
from pipeline.words import (
    CacheState,
    CpuMatch,
    English,
    Failure,
    Parallelism,
    Result,
    Stage,
    Target,
    TryReason,
)
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
    """One line a row, by model id, letter case aside; the cause stands below where it failed."""
    head, *lines = shown(view.table(view.rows(results, None)))
    assert ",".join(head) == (
        "model,result,tested,cores,seconds,GiB tensors/runtime,graphs,cache,check"
    )
    refused, too_large, failed, cause, passed = lines
    assert refused[:5] == ["big/model", "FAIL", "2026-11-30", "-", "-"]
    assert too_large == [
        "too_large at compile: RuntimeError: NCC_EVRF004: operator is not supported"
    ]
    assert failed[:4] == ["meta-llama/Llama-3.2-1B", "FAIL", "2026-12-01", "2 tensor"]
    assert cause == [
        "compiler_error at compile: RuntimeError: NCC_EVRF004: operator is not supported"
    ]
    assert passed == [
        "Qwen/Qwen3-0.6B",
        "PASS",
        "2026-11-30",
        "1",
        "330",
        "1.5/-",
        "2",
        "cold",
        "near_tie",
    ]


def test_table_columns_are_aligned(results: Path) -> None:
    """Every cell begins where its heading does."""
    head, *lines = _lines(view.table(view.rows(results, None)))
    table = [line for line in lines if not line.startswith("    ")]
    assert len(table) == 3
    for name in ("result", "cores", "cache"):
        at = head.index(name)
        assert all(line[at - 1] == " " and line[at] != " " for line in table)


def test_rows_of_several_stacks_are_told_apart(tmp_path: Path) -> None:
    """Rows stand below the name of their stack: Trainium first, of that the newest first."""
    cpu = papers.stack(Target.CPU)
    old = papers.stack(library_version="5.9.0")
    results = publish(
        tmp_path / "results",
        papers.passing(),
        papers.failing(papers.run("b/b", stack=cpu)),
        papers.passing(papers.run(stack=cpu)),
        papers.passing(papers.run(stack=old)),
    )
    _, *lines = _lines(view.table(view.rows(results, None)))
    assert [line.split()[0] if line else "" for line in lines if not line.endswith(":")] == [
        *("", "Qwen/Qwen3-0.6B"),
        *("", "Qwen/Qwen3-0.6B"),
        *("", "b/b", "compiler_error", "Qwen/Qwen3-0.6B"),
    ]
    assert [line for line in lines if line.endswith(":")] == [
        "neuron, neuronx-cc 2.28.7631.0, transformers 5.24.0, torch 2.14.0:",
        "neuron, neuronx-cc 2.28.7631.0, transformers 5.9.0, torch 2.14.0:",
        "cpu, transformers 5.24.0, torch 2.14.0:",
    ]
    assert "6.0 host" in lines[-1]


def tried(**changes: Any) -> Try:
    """An earlier try that ran out of device memory on one core."""
    fields: dict[str, Any] = {
        "reason": TryReason.FIRST,
        "cores": 1,
        "parallelism": Parallelism.NONE,
        "result": Result.FAIL,
        "stage": Stage.LOAD,
        "failure": Failure.DEVICE_OUT_OF_MEMORY,
        "signature": "hbm-full",
        "error": "RuntimeError: no memory",
        "wall_s": 33.5,
        "cache": CacheState.COLD,
    }
    return Try(**(fields | changes))


def after_a_try() -> Record:
    """A PASS on two cores, both counts of memory known, fallback operators not."""
    asked = papers.run(placement=papers.placement(2))
    seen = papers.observation(device_peak_bytes=(2 * papers.GIB,) * 2, cpu_fallback_ops=None)
    return papers.passing(
        asked,
        observation=seen,
        reason=TryReason.MORE_CORES,
        tries=(tried(),),
        core_ids=(2, 3),
        runtime_peak_bytes=(3 * papers.GIB, 4 * papers.GIB),
        runtime_peak_source="sysfs",
        cache_store="hf://buckets/example/graphs",
    )


def test_table_tells_tries_and_unknown_operators_of_a_pass(tmp_path: Path) -> None:
    """A PASS with a history says so, and that nobody knows is not said as none."""
    _, line, *remarks = _lines(view.table(view.rows(publish(tmp_path, after_a_try()), None)))
    assert "2.0/4.0" in line
    assert remarks == ["    after out of memory on 1 core", "    operators on the host: unknown"]


@pytest.mark.parametrize("width", [80, 90, 100, 120, 160])
def test_table_fits_the_terminal(tmp_path: Path, width: int) -> None:
    """No line is wider than the terminal; columns that found no room are named, results never go.

    A cause takes three lines at most, and where it is cut that is visible.
    """
    results = publish(
        tmp_path / "results",
        after_a_try(),
        papers.failing(papers.run("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"), error="word " * 99),
    )
    told = view.table(view.rows(results, None), width)
    lines = told.split("\n")
    assert max(map(len, lines)) <= width
    assert {"model", "result", "cores", "check"} <= set(lines[0].split())
    gone = {"cache", "graphs", "seconds", "tested"} - set(lines[0].split())
    assert ("no room for" in told) == bool(gone)
    for name in gone:
        assert name in told.partition("no room for")[2]
    cause = [line for line in lines if "word" in line]
    assert len(cause) == 3 and cause[-1].endswith(" ...")


def test_narrow_and_wide_tables_say_the_same_results(tmp_path: Path) -> None:
    """Wide enough, every column is there."""
    results = publish(tmp_path / "results", after_a_try())
    assert "no room" in view.table(view.rows(results, None), 50)
    assert "no room" not in view.table(view.rows(results, None), 120)


def test_table_says_both_checks(tmp_path: Path) -> None:
    """A sharded run's judge stands beside the CPU's comparison; what did not run is left out."""
    both = Check(cpu_match=CpuMatch.EXACT, english=English.FLUENT)
    judged = Check(english=English.FLUENT)
    undecided = Check(cpu_match=CpuMatch.INCONCLUSIVE)
    results = publish(
        tmp_path / "results",
        papers.passing(papers.run("a/a"), check=both),
        papers.passing(papers.run("b/b"), check=judged),
        papers.failing(papers.run("c/c"), check=undecided),
        papers.failing(papers.run("d/d"), check=Check(english=English.INCONCLUSIVE)),
    )
    told = [line[-1] for line in shown(view.table(view.rows(results, None))) if "/" in line[0]]
    assert told == ["exact, fluent", "fluent", "tokens inconclusive", "inconclusive"]


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
    assert not names & {"failure", "error", "judge", "run_py", "generated_tokens", "to fetch them"}
    assert "  tries: none" in lines and "  findings: none" in lines
    assert "  hbm_peak_gb: 1.5 (tensors only, by the allocator's count)" in lines
    assert "runtime_peak_gb" not in names


def test_details_of_a_pass_after_a_try(tmp_path: Path) -> None:
    """Tries one a line, both counts of memory under their names, unknown operators as unknown, and
    the command for the row's graphs, whole."""
    (row,) = view.rows(publish(tmp_path, after_a_try()), None)
    lines = view.details(row, 100).split("\n")
    at = lines.index("  tries:")
    assert " ".join(" ".join(lines[at + 1 : at + 3]).split()) == (
        "first, 1 core: FAIL at load, device_out_of_memory (34 s, cache cold, hbm-full): "
        "RuntimeError: no memory"
    )
    assert "  cpu_fallback_ops: unknown" in lines
    assert "  runtime_peak_gb: 4 (code and buffers too, by the runtime's count)" in lines
    assert "  core_ids: 2, 3" in lines
    command = lines[lines.index("  to fetch them:") + 1].strip()
    assert command == cache.reader_command(
        "hf://buckets/example/graphs",
        "neuronxcc",
        "2.28.7631.0",
        ["ab/cd/one.neff", "ab/ef/two.neff"],
    )


def test_details_of_rows_from_before(tmp_path: Path) -> None:
    """What older rows did not write down is left out, not told as none."""
    (row,) = view.rows(publish(tmp_path, papers.passing()), None)
    text = view.details({**row, "tries": None, "findings": None, "core_ids": None})
    assert not re.search(r"^  (tries|findings|core_ids)", text, re.MULTILINE)


def test_details_tell_findings_and_what_the_signature_means(tmp_path: Path) -> None:
    """Each finding has a line of its own; a known signature brings its meaning and remedy."""
    known = diagnosis.signatures()[0]
    found = Finding(signature=known.id, failure=known.failure, line="the line of the log")
    record = papers.failing(failure=known.failure, signature=known.id, findings=(found,))
    (row,) = view.rows(publish(tmp_path, record), None)
    text = " ".join(view.details(row).split())
    assert f"findings: {known.id}: the line of the log" in text
    assert f"means: {known.meaning}" in text and f"do: {known.remedy}" in text


def failed_rows(folder: Path) -> list[view.Row]:
    """Three models with one known cause, one with an unknown one, a refusal, and a PASS."""
    known = diagnosis.signatures()[0]
    same = [
        papers.failing(papers.run(f"same/{name}"), failure=known.failure, signature=known.id)
        for name in "abc"
    ]
    odd = papers.failing(
        papers.run("odd/one"), failure=Failure.CRASH, signature=None, error="never seen before"
    )
    large = unrecorded(papers.refused(), papers.START)
    return view.rows(publish(folder, *same, odd, large, papers.passing()), None)


@pytest.mark.parametrize("width", [80, 120])
def test_failures_are_grouped_by_cause(tmp_path: Path, width: int) -> None:
    """One cause that hits three models is one line, the largest first, with what to do below it."""
    known = diagnosis.signatures()[0]
    told = view.failures(failed_rows(tmp_path), width)
    head, first, *others = told.split("\n\n")
    assert head == "5 of 6 results did not pass; causes: 3"
    assert first.startswith(f"3 x {known.failure.result} {known.failure}, {known.id}")
    flat = " ".join(first.split())
    assert "models: same/a, same/b, same/c" in flat
    assert f"do: {known.remedy}" in flat and f"see: {known.source}" in flat
    assert len(others) == 2
    assert max(len(line) for line in told.split("\n") if "://" not in line) <= width


def test_an_unknown_cause_wants_a_signature(tmp_path: Path) -> None:
    """It says so and where; a refusal was never read from a log, so nothing is missing there."""
    groups = view.failures(failed_rows(tmp_path)).split("\n\n")[1:]
    (odd,) = [group for group in groups if "odd/one" in group]
    (large,) = [group for group in groups if "big/model" in group]
    assert "unclassified" in odd and "docs/failures.md" in odd
    assert "unclassified" not in large and "docs/failures.md" not in large
    assert Failure.TOO_LARGE.meaning in large


def test_failures_as_json(tmp_path: Path) -> None:
    """The same groups, in the same order."""
    found = view.plain_failures(failed_rows(tmp_path))
    again = json.loads(json.dumps(found))
    assert (again[0]["count"], again[0]["result"]) == (3, diagnosis.signatures()[0].failure.result)
    assert {group["failure"] for group in again} >= {"crash", "too_large"}
    assert again[0]["models"] == ["same/a", "same/b", "same/c"]


def test_no_failures(tmp_path: Path) -> None:
    """Where all passed that is said, and not nothing."""
    rows = view.rows(publish(tmp_path, papers.passing()), None)
    assert view.failures(rows) == "all of 1 results passed"
    assert view.plain_failures(rows) == []


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
    row = {**row, "result": "FAIL", "findings": [HOSTILE], "cache_store": "hf://buckets/a/b"}
    row |= {"tries": [dict.fromkeys(("reason", "parallelism", "stage", "result"), HOSTILE)]}
    row["tries"][0] |= {"cores": 2, "failure": HOSTILE, "signature": HOSTILE, "error": HOSTILE}
    row["tries"][0] |= {"wall_s": None, "cache": HOSTILE}
    row |= {"cpu_fallback_ops": [HOSTILE], "cache_keys": ["a\x1b[31mred.neff"]}
    for text in (view.table([row]), view.details(row), view.failures([row])):
        assert all(character.isprintable() or character == "\n" for character in text)
        assert "red" in text
    assert len(view.table([row]).split("\n")) <= 2 + 3 * 3


def test_long_values_are_cut_visibly(tmp_path: Path) -> None:
    """What is left out of a line is marked; --json has it whole."""
    row = {**hostile_row(tmp_path), "error": "x" * 5000}
    row["result"] = "FAIL"
    *_, cause = view.table([row]).split("\n")
    assert cause.endswith(" ...")
    assert len(view.table([row])) < 1000
    lines = [line for line in view.details(row).split("\n") if "xxx" in line]
    assert lines[-1].endswith("xxx...")
    assert sum(map(len, lines)) < 500
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
    head, first, _, second, _ = view.table(view.rows(results, None)).split("\n")
    at = head.index("graphs")
    assert (first[at], second[at]) == ("0", "-")
    at = head.index("cache")
    assert (first[at : at + 4], second[at]) == ("cold", "-")
