"""The row of a run: its literal schema, and what of a record it says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from pipeline.errors import ResultsError
from pipeline.record import Check, Finding, Generation, Observation, Record, Try
from pipeline.rows import (
    COLUMNS,
    SCHEMA,
    canonical,
    clean,
    close,
    digest,
    missing,
    newness,
    row_of,
    unrecorded,
)
from pipeline.words import (
    CacheState,
    CpuMatch,
    Failure,
    Parallelism,
    Result,
    Stage,
    Target,
    TryReason,
)
from tests import papers
from tests.papers import GIB, START, day

LITERAL = """
model_id: string
library: string
library_version: string
neuron_cores: int32
tp: int32
runner: string
result: string
notes: string
error: string
exclusion: string
wall_s: int32
hbm_peak_gb: double
hbm_capacity_gb: double
cpu_match: string
english: string
neuronx_cc: string
transformers: string
accelerate: string
torch_neuronx: string
torch: string
nki: string
python: string
neuron_driver: string
tested_at: timestamp[ms, tz=UTC]
run_py: string
schema_version: int32
run_id: string
revision: string
task: string
model_type: string
parameters: int64
checkpoint_bytes: int64
estimated_gb: double
runtime_peak_gb: double
runtime_peak_source: string
stage: string
failure: string
signature: string
findings: list<item: string>
runtime: string
image: string
extra_packages: list<item: string>
target: string
instance_type: string
parallelism: string
core_ids: list<item: int32>
dtype: string
prompts: list<item: string>
generated_text: list<item: string>
generated_tokens: list<item: list<item: int32>>
max_gap: double
departure: double
noise: double
check: string
judge: string
judge_score: double
download_s: double
load_s: double
compile_s: double
generate_s: double
tokens_per_s: double
host_peak_gb: double
graphs: int32
backend_graphs: int32
cache: string
cache_keys: list<item: string>
cache_store: string
cpu_fallback_ops: list<item: string>
attempts: int32
try_reason: string
tries: list<item: struct<reason: string, cores: int32, parallelism: string, stage: string, \
result: string, failure: string, signature: string, error: string, wall_s: double, cache: string>>
script_sha256: string
run_url: string
pipeline_commit: string
cost_usd: double
"""


def test_schema_is_literal() -> None:
    """The columns, their order and types change only together with this list and a migration."""
    assert [f"{field.name}: {field.type}" for field in SCHEMA] == LITERAL.split("\n")[1:-1]


def test_every_column_is_documented() -> None:
    """A column is told in one sentence, and one of a size or a time says its unit."""
    units = {"_gb": "GiB", "_s": "second", "_usd": "dollar", "_bytes": "bytes"}
    for name, _, told in COLUMNS:
        assert told.endswith(".") and len(told) > 15, name
        for suffix, unit in units.items():
            assert not name.endswith(suffix) or unit in told, name


def test_row_of_a_pass_says_what_the_record_says() -> None:
    """Each value comes from the record, in the column's unit."""
    asked = papers.run(placement=papers.placement(4), usd_per_hour=9.0, machine_cores=16, attempt=3)
    seen = papers.observation(device_peak_bytes=(GIB, 3 * GIB, 2 * GIB, GIB), backend_graphs=3)
    record = papers.passing(
        asked,
        observation=seen,
        wall_s=1800.4,
        image="neuron:2.33",
        core_ids=(4, 5, 6, 7),
        runtime_peak_bytes=(4 * GIB, 5 * GIB, 4 * GIB, 4 * GIB),
        runtime_peak_source="sysfs",
        cache_store="hf://buckets/example/graphs",
    )
    row = row_of(record)
    expected: dict[str, Any] = {
        "model_id": "Qwen/Qwen3-0.6B",
        "run_id": asked.run_id,
        "result": "PASS",
        "stage": "done",
        "failure": None,
        "error": None,
        "exclusion": None,
        "neuron_cores": 4,
        "tp": 4,
        "parallelism": "tensor",
        "wall_s": 1800,
        "cost_usd": pytest.approx(1800.4 / 3600 * 9.0 * 4 / 16),
        "hbm_peak_gb": 3.0,
        "runtime_peak_gb": 5.0,
        "runtime_peak_source": "sysfs",
        "core_ids": [4, 5, 6, 7],
        "backend_graphs": 3,
        "cache_store": "hf://buckets/example/graphs",
        "try_reason": "first",
        "tries": [],
        "findings": [],
        "hbm_capacity_gb": 24.0,
        "host_peak_gb": 6.0,
        "estimated_gb": 1.5,
        "neuronx_cc": "2.28.7631.0",
        "library_version": "5.24.0",
        "runtime": "2.31.9",
        "nki": None,
        "image": "neuron:2.33",
        "tokens_per_s": 8.0,
        "graphs": 2,
        "cpu_match": "near_tie",
        "max_gap": 0.125,
        "departure": 0.04,
        "noise": 0.03,
        "check": "tokens and logits against the CPU reference",
        "english": "not_run",
        "prompts": list(papers.PROMPTS),
        "generated_text": [" answer 0", " answer 1", " answer 2"],
        "generated_tokens": [[7, 8, 9, last] for last in (100, 101, 102)],
        "cpu_fallback_ops": [],
        "attempts": 3,
        "tested_at": START,
        "schema_version": 3,
        "run_py": papers.SCRIPT,
        "notes": "the smallest number of cores that holds it",
    }
    assert {name: row[name] for name in expected} == expected
    assert list(row) == SCHEMA.names


def test_what_was_not_seen_is_null() -> None:
    """Absence stays absence: no zero, no guess, and an unknown list is not an empty one."""
    row = row_of(papers.failing())
    unknown = ["hbm_peak_gb", "generate_s", "tokens_per_s", "graphs", "generated_text"]
    unknown += ["generated_tokens", "cpu_fallback_ops", "max_gap", "judge", "cost_usd"]
    unknown += ["runtime_peak_gb", "runtime_peak_source", "cache_store"]
    unknown += ["departure", "noise", "check"]
    assert {name: row[name] for name in unknown} == dict.fromkeys(unknown)
    assert row["prompts"] == list(papers.PROMPTS)


def test_a_run_without_observation_still_belongs_to_its_stack() -> None:
    """Library and compiler are those asked for; other versions were not seen and stay null."""
    row = row_of(papers.erring())
    assert (row["library_version"], row["neuronx_cc"]) == ("5.24.0", "2.28.7631.0")
    assert (row["transformers"], row["torch"], row["torch_neuronx"]) == (None, None, None)


def test_observed_versions_win_over_those_asked_for() -> None:
    """The row says what was installed, also where the stack names something else."""
    seen = papers.observation(versions=papers.versions(transformers="5.23.1", neuronx_cc="2.27.0"))
    row = row_of(papers.failing(failure=Failure.WRONG_STACK, observation=seen))
    assert (row["library_version"], row["transformers"]) == ("5.23.1", "5.23.1")
    assert row["neuronx_cc"] == "2.27.0"


def test_cpu_rows_show_no_device() -> None:
    """A CPU run never looks like one of Trainium: neither its memory nor its compiler."""
    asked = papers.run(stack=papers.stack(Target.CPU))
    installed = papers.versions(asked.stack, neuronx_cc="2.28.7631.0")
    seen = papers.observation(asked.stack, versions=installed)
    row = row_of(papers.passing(asked, observation=seen))
    assert (row["target"], row["neuronx_cc"]) == ("cpu", None)
    assert (row["hbm_peak_gb"], row["hbm_capacity_gb"]) == (None, None)


def test_refused_run_has_no_cores() -> None:
    """A refusal is a row of stage plan, of its own class, with no placement."""
    row = row_of(unrecorded(papers.refused(), START))
    assert (row["result"], row["stage"], row["failure"]) == ("FAIL", "plan", "too_large")
    assert (row["neuron_cores"], row["tp"], row["parallelism"], row["notes"]) == (None,) * 4
    assert row["error"] == "needs 900 GiB; the largest holds 384"


def test_downgrade_is_noted() -> None:
    """That the graph was not captured whole stands beside the reason of the placement."""
    seen = papers.observation(downgrade="graph break\nin the router")
    row = row_of(papers.passing(observation=seen))
    assert row["notes"] == (
        "the smallest number of cores that holds it; graph break\nin the router"
    )


def test_time_is_utc_milliseconds() -> None:
    """tested_at is cut to the column's resolution, whatever zone the record speaks."""
    zone = timezone(timedelta(hours=9))
    at = datetime(2026, 11, 30, 17, 0, 0, 123_999, tzinfo=zone)
    row = row_of(papers.passing(at=at))
    assert row["tested_at"] == datetime(2026, 11, 30, 8, 0, 0, 123_000, tzinfo=UTC)


def test_error_texts_are_cleaned() -> None:
    """Terminal sequences, control characters and reading-direction tricks do not reach a row."""
    hostile = "\x1b[31mred\x1b[0m\x00 a\x07b\r\nnext\x1b]0;title\x07 \u202egnp.exe\u200b\x9b"
    assert row_of(papers.failing(error=hostile))["error"] == "red ab\nnext gnp.exe"
    assert clean("tab\tstays\n") == "tab\tstays"


def test_values_that_fit_no_column_are_left_out() -> None:
    """A number beyond its column is null in the row, never wrapped, and the row is not lost."""
    wide = Generation(prompt="p", tokens=(2**40,), text="t")
    row = row_of(papers.passing(observation=papers.observation(generations=(wide,))))
    assert row["generated_tokens"] is None
    assert row["generated_text"] == ["t"]


def test_oversized_rows_are_refused() -> None:
    """One record cannot blow up the files that everybody downloads."""
    with pytest.raises(ResultsError, match="limit"):
        row_of(papers.passing(run_py="#" * 5_000_000))


def test_largest_honest_row_is_taken() -> None:
    """A run at every limit of its papers is below the limit of a row."""
    asked = papers.run(prompts=("x" * 400,) * 64, new_tokens=4096)
    tokens = tuple(range(147_840, 151_936))
    answers = tuple(
        Generation(prompt=prompt, tokens=tokens, text="token " * 4096) for prompt in asked.prompts
    )
    earlier = tried(error="e" * 4000)
    found = Finding(signature="s" * 40, failure=Failure.CPU_FALLBACK, line="l" * 4000)
    record = papers.failing(
        asked,
        failure=Failure.CPU_FALLBACK,
        stage=Stage.CHECK,
        error="e" * 4000,
        observation=papers.observation(generations=answers),
        tries=(earlier,) * 5,
        findings=(found,) * 100,
        run_py="#" * 60_000,
    )
    assert len(canonical(row_of(record))) > 3 * 1024**2


def tried(**changes: Any) -> Try:
    """An earlier try that ran out of device memory on one core."""
    fields: dict[str, Any] = {
        "reason": TryReason.FIRST,
        "cores": 1,
        "parallelism": Parallelism.NONE,
        "core_ids": (3,),
        "result": Result.FAIL,
        "stage": Stage.LOAD,
        "failure": Failure.DEVICE_OUT_OF_MEMORY,
        "signature": "hbm-full",
        "error": "\x1b[31mRuntimeError: no memory",
        "wall_s": 33.5,
        "cache": CacheState.COLD,
        "log": "log-1.txt",
    }
    return Try(**(fields | changes))


def test_earlier_tries_stand_on_the_row() -> None:
    """A PASS after a try that failed stays a PASS and says what came before, oldest first."""
    asked = papers.run(placement=papers.placement(2))
    second = tried(reason=TryReason.OTHER_CORES, failure=None, signature=None, error=None)
    record = papers.passing(asked, reason=TryReason.MORE_CORES, tries=(tried(), second))
    row = row_of(record)
    assert row["result"] == "PASS"
    first, then = row["tries"]
    assert first == {
        "reason": "first",
        "cores": 1,
        "parallelism": "none",
        "stage": "load",
        "result": "FAIL",
        "failure": "device_out_of_memory",
        "signature": "hbm-full",
        "error": "RuntimeError: no memory",
        "wall_s": 33.5,
        "cache": "cold",
    }
    assert then == first | {
        "reason": "other_cores",
        "failure": None,
        "signature": None,
        "error": None,
    }


def test_findings_stand_on_the_row() -> None:
    """Each with the signature that found it; a log that nobody read is not one without findings."""
    found = Finding(signature="fell-back", failure=Failure.CPU_FALLBACK, line="\x1b[1mran eager")
    row = row_of(papers.failing(findings=(found,)))
    assert row["findings"] == ["fell-back: ran eager"]
    assert row_of(papers.failing())["findings"] == []
    unread = [close(papers.unended()), unrecorded(papers.run(), START)]
    assert [row_of(record)["findings"] for record in unread] == [None, None]


@pytest.mark.parametrize("cores", [1, 3])
def test_peak_of_the_fullest_core_needs_all_cores(cores: int) -> None:
    """Where a core was not counted, the fullest one is not known, and neither is its source."""
    asked = papers.run(placement=papers.placement(2))
    counted = (GIB,) * cores
    seen = papers.observation(device_peak_bytes=counted)
    row = row_of(
        papers.passing(
            asked, observation=seen, runtime_peak_bytes=counted, runtime_peak_source="sysfs"
        )
    )
    names = ("hbm_peak_gb", "runtime_peak_gb", "runtime_peak_source")
    assert [row[name] for name in names] == [None, None, None]


@pytest.mark.parametrize(
    ("store", "public"),
    [
        ("hf://buckets/org/graphs", True),
        ("s3://bucket/pre.fix/x_1", True),
        ("http://localhost:8080/graphs/", True),
        ("https://user:secret@example.org/graphs", False),
        ("https://example.org/graphs?sig=secret", False),
        ("/var/cache/graphs", False),
        ("file:///var/cache/graphs", False),
        ("hf://x; rm -rf ~", False),
        ("hf://x\nhf://y", False),
        ("hf://x`", False),
        ("", False),
    ],
)
def test_only_a_public_address_of_a_store_is_kept(store: str, public: bool) -> None:
    """Rows are public: no password, no signed address, nothing that a shell would take apart."""
    assert row_of(papers.passing(cache_store=store))["cache_store"] == (store if public else None)


def test_off_the_device_there_are_no_core_ids() -> None:
    """A run without cores of a device has none, which is not the empty set of them."""
    assert row_of(papers.passing(papers.run(stack=papers.stack(Target.CPU))))["core_ids"] is None


def test_unended_record_has_no_row() -> None:
    """A record without a result must be closed first."""
    with pytest.raises(ResultsError, match="not ended"):
        row_of(papers.unended())


def test_close_makes_a_lost_run_an_error() -> None:
    """A record that was never finished is ERROR / lost_runner at its stage, dated at its start."""
    closed = close(papers.unended(at=day(2)))
    assert (closed.result, closed.failure) == (Result.ERROR, Failure.LOST_RUNNER)
    assert (closed.stage, closed.tested_at) == (Stage.COMPILE, day(2))
    assert close(papers.unended(), now=day(5)).tested_at == day(5)
    assert closed == close(papers.unended(at=day(2)))


def test_close_takes_the_furthest_stage() -> None:
    """What the script noted after the harness's last word counts."""
    record = papers.unended(observation=Observation(stage=Stage.GENERATE))
    assert close(record).stage is Stage.GENERATE


@pytest.mark.parametrize("record", [papers.passing(), papers.failing(), papers.erring()])
def test_close_leaves_ended_records_alone(record: Record) -> None:
    """An outcome is never rewritten."""
    assert close(record) is record


def test_missing_gives_every_planned_run_a_record() -> None:
    """Absence is data: no record is ERROR / lost_runner, and a refusal is its own record."""
    came, lost, refused = papers.run("a/came"), papers.run("b/lost"), papers.refused("c/refused")
    made = missing(papers.plan(came, lost, refused), [papers.passing(came)], day(1))
    assert [(record.run, record.failure, record.result) for record in made] == [
        (lost, Failure.LOST_RUNNER, Result.ERROR),
        (refused, Failure.TOO_LARGE, Result.FAIL),
    ]
    assert all(record.stage is Stage.PLAN and record.tested_at == day(1) for record in made)


def test_digest_depends_on_every_column_and_on_order() -> None:
    """Rows that differ anywhere have different digests."""
    row, other = row_of(papers.passing()), row_of(papers.failing())
    digests = {digest([row]), digest([row, other]), digest([other, row])}
    changed: dict[str, object] = {"tested_at": day(9), "prompts": ["x"], "generated_tokens": [[1]]}
    changed["tries"] = [{"reason": "first"}]
    for name in SCHEMA.names:
        digests.add(digest([row | {name: changed.get(name, "other")}]))
    assert len(digests) == 3 + len(SCHEMA.names)
    assert canonical(row) == canonical(row_of(papers.passing()))


def test_newness_orders_versions_as_people_do() -> None:
    """Numbers count as numbers, pre-releases come first, and the compiler weighs most."""
    stacks = [
        ("2.9.0", "5.24.0", "2.14.0"),
        ("2.28.0", "5.9.0", "2.14.0"),
        ("2.28.0", "5.24.0.dev0", "2.14.0"),
        ("2.28.0", "5.24.0rc1", "2.14.0"),
        ("2.28.0", "5.24.0", "2.13.0"),
        ("2.28.0", "5.24.0", "2.13.0+cpu"),
        ("2.28.0", "5.24.0.1", "2.13.0"),
    ]
    ids = [
        str(papers.stack(neuronx_cc=cc, library_version=lib, torch=torch).run_id("a/a"))
        for cc, lib, torch in stacks
    ]
    assert sorted(ids[3:] + ids[:3], key=newness) == ids


def test_check_evidence_is_on_the_row() -> None:
    """Judge, score and gap stand beside the verdict they gave."""
    check = Check(
        cpu_match=CpuMatch.MISMATCH,
        max_gap=3.5,
        departure=0.5,
        judge="judge@1",
        judge_score=2.25,
    )
    row = row_of(papers.failing(failure=Failure.WRONG_TOKENS, stage=Stage.CHECK, check=check))
    assert (row["cpu_match"], row["max_gap"]) == ("mismatch", 3.5)
    assert (row["departure"], row["noise"]) == (0.5, None)
    assert (row["judge"], row["judge_score"]) == ("judge@1", 2.25)
