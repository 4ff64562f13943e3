"""COMPATIBILITY.md: what a reader can see, and that no text of a row can break it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from pipeline import cache, tables
from pipeline.errors import ResultsError
from pipeline.markdown import url
from pipeline.record import Check, Finding, Try
from pipeline.rows import Row, close, row_of, unrecorded
from pipeline.tables import compatibility
from pipeline.words import (
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
from tests.papers import Banned, View, Wanted, day

CPU = papers.stack(Target.CPU, torch="2.13.0+cpu")

TOKENS = "tokens near_tie (0.12 nats; logits off by 0.04, own noise 0.03)"
"""What the check of a passing paper found."""


def link(run_id: str) -> str | None:
    """As publish makes it."""
    return url(f"results/scripts/{run_id}.py")


def page(*rows: Row, wishes: View | None = None, **changes: Any) -> str:
    """The page of `rows`."""
    options: dict[str, Any] = {"max_age_days": None, "script_link": link}
    return compatibility(rows, wishes or View(), **(options | changes))


def cells(line: str) -> list[str]:
    """The cells of one table line, as GitHub splits it: at each pipe without a backslash."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def tables_of(page: str) -> list[list[list[str]]]:
    """Every table of a page as its lines' cells; a table is what follows a delimiter line."""
    found: list[list[list[str]]] = []
    lines = page.splitlines()
    for number, line in enumerate(lines):
        if re.fullmatch(r"(\| --- )+\|", line):
            table = [cells(lines[number - 1])]
            for row in lines[number + 1 :]:
                if not row.startswith("|"):
                    break
                table.append(cells(row))
            found.append(table)
    return found


def line_of(page: str, model_id: str, column: str = "result") -> dict[str, str]:
    """The first line of `model_id` in a table that has `column`, by column."""
    for table in tables_of(page):
        for row in table[1:]:
            if column in table[0] and row[0] == f"`{model_id}`":
                return dict(zip(table[0], row, strict=True))
    raise AssertionError(f"no line of {model_id} with {column}")


def test_reader_learns_first_how_to_read() -> None:
    """Before any result stands what PASS says and what it does not, and each other word."""
    made = page(row_of(papers.passing()))
    first = made.index("| model |")
    for word in ("**PASS**", "nothing of throughput", "**FAIL**", "**ERROR**", "**EXCLUDED**"):
        assert made.index(word) < first
    assert made.index("absence of evidence, never evidence of") < first
    assert made.index("says nothing of Trainium") < first


def test_line_of_a_pass() -> None:
    """Result, placement, time, memory, check, date, stack and script stand on one line."""
    asked = papers.run(placement=papers.placement(4))
    check = Check(english=English.FLUENT, cpu_match=CpuMatch.NEAR_TIE, max_gap=0.12)
    seen = papers.observation(device_peak_bytes=(3 * papers.GIB // 2,) * 4)
    record = papers.passing(asked, check=check, wall_s=3 * 3600 + 61, observation=seen)
    made = page(row_of(record))
    assert line_of(made, "Qwen/Qwen3-0.6B") == {
        "model": "`Qwen/Qwen3-0.6B`",
        "result": "PASS",
        "cores": "4, tensor",
        "time": "3 h 01 min",
        "peak memory": "tensors 1.5 of 24 GiB a core",
        "check": "tokens near_tie (0.12 nats), text fluent",
        "tested": "2026-11-30",
        "stack": "neuronx-cc 2.28.7631.0, transformers 5.24.0, torch 2.14.0",
        "script": "[run.py](results/scripts/Qwen--Qwen3-0.6B%40transformers-5.24.0"
        "%40neuronxcc-2.28.7631.0%40torch-2.14.0.py)",
        "other stacks": "-",
    }


def test_memory_says_which() -> None:
    """Without device counters the host's peak is shown as the host's."""
    made = page(row_of(papers.passing(papers.run(stack=CPU))))
    assert line_of(made, "Qwen/Qwen3-0.6B")["peak memory"] == "6 GiB host"


def test_both_counts_of_memory_stand_beside_each_other() -> None:
    """The allocator's and the runtime's count never stand for one another."""
    both = papers.passing(papers.run("a/a"), runtime_peak_bytes=(3 * papers.GIB,))
    seen = papers.observation(device_peak_bytes=None)
    one = papers.passing(papers.run("b/b"), observation=seen, runtime_peak_bytes=(2 * papers.GIB,))
    made = page(row_of(both), row_of(one))
    assert line_of(made, "a/a")["peak memory"] == "tensors 1.5, runtime 3 of 24 GiB a core"
    assert line_of(made, "b/b")["peak memory"] == "runtime 2 of 24 GiB a core"
    assert made.index('"runtime"') < made.index("| model |")


@pytest.mark.parametrize(
    ("operators", "told"),
    [
        (None, f"{TOKENS}, operators on the host: unknown"),
        ((), TOKENS),
        (("aten::a",), f"{TOKENS}, operators on the host: aten&#58;&#58;a"),
        (
            ("a", "b", "c", "d"),
            f"{TOKENS}, operators on the host: a, b, c, 1 more",
        ),
    ],
)
def test_operators_on_the_host(operators: tuple[str, ...] | None, told: str) -> None:
    """What ran on the host is named; what nobody knows is unknown, not none."""
    seen = papers.observation(cpu_fallback_ops=operators)
    made = page(row_of(papers.passing(observation=seen)))
    assert line_of(made, "Qwen/Qwen3-0.6B")["check"] == told
    before = page(row_of(papers.failing()))
    assert line_of(before, "Qwen/Qwen3-0.6B")["check"] == "not run"


def tried(**changes: Any) -> Try:
    """An earlier try that ran out of device memory on one core."""
    fields: dict[str, Any] = {
        "reason": TryReason.FIRST,
        "cores": 1,
        "parallelism": Parallelism.NONE,
        "result": Result.FAIL,
        "stage": Stage.LOAD,
        "failure": Failure.DEVICE_OUT_OF_MEMORY,
        "signature": None,
        "error": "no memory",
        "wall_s": 1.0,
        "cache": None,
    }
    return Try(**(fields | changes))


def test_earlier_tries_stand_beside_the_cores() -> None:
    """A reader sees that fewer cores were tried first, or that the first ones were sick."""
    asked = papers.run(placement=papers.placement(2))
    sick = tried(
        reason=TryReason.MORE_CORES,
        cores=2,
        result=Result.ERROR,
        failure=Failure.DEVICE_FAULT,
    )
    record = papers.passing(asked, reason=TryReason.OTHER_CORES, tries=(tried(), sick))
    made = page(row_of(record))
    assert line_of(made, "Qwen/Qwen3-0.6B")["cores"] == (
        "2, tensor (after out of memory on 1 core, then device fault on 2 cores)"
    )
    old = page(row_of(papers.passing(asked)) | {"tries": None})
    assert line_of(old, "Qwen/Qwen3-0.6B")["cores"] == "2, tensor"


def test_findings_stand_in_the_cause() -> None:
    """What the log says against a run is told once, after the error if that is another."""
    found = [
        Finding(signature=name, failure=Failure.CPU_FALLBACK, line=line)
        for name, line in (("fell-back", "Falling back"), ("skipped", "Compilation skipped"))
    ]
    guard = papers.failing(
        papers.run("a/a"),
        failure=Failure.CPU_FALLBACK,
        error="the log says: Falling back",
        findings=tuple(found),
    )
    crash = papers.failing(papers.run("b/b"), error="IndexError: 7", findings=tuple(found[1:]))
    made = page(row_of(guard), row_of(crash))
    also = "the log also says skipped: Compilation skipped"
    assert line_of(made, "a/a", "cause")["cause"] == f"the log says: Falling back; {also}"
    assert line_of(made, "b/b", "cause")["cause"] == f"IndexError: 7; {also}"


def test_readers_command_for_compiled_graphs() -> None:
    """One command a store and compiler version; no store, no section and no promise of one."""
    store = "hf://buckets/example/graphs"
    old = papers.stack(neuronx_cc="2.27.5334.0")
    records = [
        papers.passing(papers.run("a/a"), cache_store=store),
        papers.passing(papers.run("b/b"), cache_store=store),
        papers.passing(papers.run("a/a", stack=old), cache_store=store),
        papers.passing(papers.run("c/c")),
    ]
    made = page(*map(row_of, records))
    block = made[made.index("## Compiled graphs") :].split("```")[1]
    assert block.strip().split("\n")[1:] == [
        cache.reader_command(store, "neuronxcc", version, ())
        for version in ("2.27.5334.0", "2.28.7631.0")
    ]
    without = page(row_of(papers.passing()))
    assert "ompiled-graphs" not in without and "ompiled graphs" not in without


def test_cpu_results_are_kept_apart() -> None:
    """A PASS on a CPU is in a section of its own, and the model stays UNTESTED on Trainium."""
    made = page(
        row_of(papers.passing(papers.run("a/a", stack=CPU))),
        row_of(papers.failing(papers.run("b/b"))),
        wishes=View(models=(Wanted("a/a"), Wanted("b/b"), Wanted("c/c", note="soon"))),
    )
    sections = re.findall(r"^## (.*)$", made, re.MULTILINE)
    assert sections[2:4] == ["text-generation on neuron", "text-generation on cpu"]
    neuron = made[made.index("## text-generation on neuron") : made.index("## text-gen", 1)]
    assert "a/a" not in neuron
    assert line_of(made, "a/a", "why")["why"] == "ran on cpu only"
    assert line_of(made, "c/c", "why") == {
        "model": "`c/c`",
        "reading": "UNTESTED",
        "task": "text-generation",
        "why": "no run yet",
        "note": "soon",
    }
    assert "UNTESTED on Trainium: 2." in made


def test_newest_stack_leads_and_others_follow() -> None:
    """One row a model: its newest stack, then what differed in older ones, by version."""
    rows = [
        row_of(papers.passing(papers.run(stack=papers.stack(neuronx_cc=compiler)), day(5)))
        for compiler in ("2.9.1.0", "2.28.7631.0")
    ]
    newest = papers.run(stack=papers.stack(neuronx_cc="2.100.0.0", library_version="5.24.1"))
    made = page(*rows, row_of(papers.failing(newest, day(0))))
    line = line_of(made, "Qwen/Qwen3-0.6B")
    assert line["result"] == "FAIL"
    assert line["stack"].startswith("neuronx-cc 2.100.0.0, transformers 5.24.1")
    assert line["other stacks"] == (
        "PASS with neuronx-cc 2.28.7631.0, transformers 5.24.0; "
        "PASS with neuronx-cc 2.9.1.0, transformers 5.24.0"
    )


def test_stale_is_measured_against_the_newest_row() -> None:
    """Age changes no byte by itself; `now` measures against another day."""
    rows = [
        row_of(papers.passing(papers.run("a/a"), day(-31))),
        row_of(papers.passing(papers.run("b/b"), day(0))),
    ]
    made = page(*rows, max_age_days=30)
    assert line_of(made, "a/a")["tested"] == "2026-10-30, stale"
    assert line_of(made, "b/b")["tested"] == "2026-11-30"
    assert "more than 30 days older than 2026-11-30" in made
    assert line_of(page(*rows, max_age_days=31), "a/a")["tested"] == "2026-10-30"
    late = page(*rows, max_age_days=30, now=day(0) + timedelta(days=31))
    assert line_of(late, "b/b")["tested"] == "2026-11-30, stale"
    assert "stale" not in page(*rows).split("## Summary")[0]


def test_failures_and_errors_tell_class_stage_and_cause() -> None:
    """FAIL and ERROR are listed apart, with one line of cause, and each class is explained."""
    lost = close(papers.unended(papers.run("c/lost")))
    made = page(
        row_of(papers.failing(papers.run("a/fails"), error="first line\nsecond line")),
        row_of(unrecorded(papers.refused("b/large"), day(0))),
        row_of(lost),
    )
    failures = made[made.index("### Failures") : made.index("### Errors")]
    assert "| `a/fails` | compiler_error | compile | first line |" in failures
    assert "| `b/large` | too_large | plan | needs 900 GiB; the largest holds 384 |" in failures
    assert "lost_runner" not in failures and "second line" not in made
    assert line_of(made, "c/lost", "cause")["stage"] == "compile"
    for failure in (Failure.COMPILER_ERROR, Failure.TOO_LARGE, Failure.LOST_RUNNER):
        assert f"| {failure} | {failure.result} | {failure.meaning} |" in made
    assert Failure.TIMEOUT.meaning not in made


def test_excluded_models_show_their_reason_and_no_result_row() -> None:
    """People's decision stands apart from machines' results; what was seen is still told."""
    banned = Banned("no/no", note="needs a | GPU")
    odd = Banned("no/odd", "not_prioritised", note=None, issue="javascript:alert(1)")
    made = page(
        row_of(papers.passing()),
        row_of(papers.passing(papers.run("no/no"))),
        wishes=View(excluded=(odd, banned)),
    )
    assert line_of(made, "no/no", "reason") == {
        "model": "`no/no`",
        "reading": "EXCLUDED",
        "task": "text-generation",
        "reason": "incompatible",
        "note": "needs a &#124; GPU",
        "issue": "[issue](https://github.com/example/campaign/issues/7)",
        "last result": "PASS on neuron, 2026-11-30",
    }
    assert line_of(made, "no/odd", "reason")["issue"] == "-"
    assert made.count("`no/no`") == 1
    assert "EXCLUDED: 2." in made


def test_summary_counts_models() -> None:
    """Counts are of models by their newest stack, a task and target at a time."""
    made = page(
        row_of(papers.passing(papers.run("a/a"), day(-9))),
        row_of(papers.failing(papers.run("a/a", stack=papers.stack(library_version="5.1.0")))),
        row_of(papers.failing(papers.run("b/b"))),
        row_of(papers.erring(papers.run("c/c"))),
        max_age_days=5,
    )
    assert "| text-generation | neuron | 3 | 1 | 1 | 1 | 1 |" in made


def test_no_rows_is_an_error() -> None:
    """An empty page would read as if nothing ran."""
    with pytest.raises(ResultsError, match="no results"):
        page()


def test_order_of_rows_does_not_matter() -> None:
    """The same rows give the same bytes, and models stand in people's alphabetical order."""
    rows = [row_of(papers.passing(papers.run(model))) for model in ("b/b", "Z/z", "A/a", "a/b")]
    made = page(*rows)
    assert page(*reversed(rows)) == made
    (results,) = [table for table in tables_of(made) if "script" in table[0]]
    assert [row[0] for row in results[1:]] == ["`A/a`", "`a/b`", "`b/b`", "`Z/z`"]


def test_a_store_cannot_leave_its_code_block() -> None:
    """An address that would end the block is not shown, whatever a row holds."""
    row = row_of(papers.passing())
    for store in ("hf://a/```", "hf://a\n```\n# heading", "hf://a/\u202e"):
        assert page(row | {"cache_store": store}) == page(row)


HOSTILE = [
    "a | b || c \\| d \\\\| e",
    "<script>alert(1)</script></details><!--",
    "[click](javascript:alert(1)) ![img](https://evil.example/x.png)",
    "`code` ``more` **bold** _it_ ~~gone~~ $x^2$ :smile: @someone #1",
    "https://evil.example www.evil.example WWW.evil.example &lt;b&gt; &#124;",
    "\x1b[31mred\x00\u202egnp\u2028new\x85line\u200b",
    "- | --- | ---",
    "# heading | --- |",
    "{{ 7 * 7 }} {% raw %}",
    "```\n| a |\n```",
    "\ufeff\\",
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_breaks_nothing(hostile: str) -> None:
    """Whatever an error, a note or a reason holds, the page keeps its lines, cells and links."""
    record = papers.failing(papers.run("a/a"), error=hostile)
    row = row_of(record) | {"failure": hostile, "stage": hostile, "cpu_match": hostile}
    row |= {"english": hostile, "parallelism": hostile, "task": hostile, "error": hostile}
    row |= {"findings": [hostile], "cpu_fallback_ops": [hostile], "result": "FAIL"}
    row |= {"tries": [{"cores": 1, "failure": hostile, "result": "FAIL"}]}
    plain = row_of(record) | dict.fromkeys(["failure", "stage", "cpu_match", "english"], "x")
    plain |= {"parallelism": "x", "task": "x", "error": "x"}
    plain |= {"findings": ["x"], "cpu_fallback_ops": ["x"]}
    plain |= {"tries": [{"cores": 1, "failure": "x", "result": "FAIL"}]}
    wishes = [
        View(models=(Wanted("b/b", note=note), Wanted(name)), excluded=(Banned("c/c", note, note),))
        for note, name in ((hostile, hostile), ("x", "x/x"))
    ]
    made, expected = page(row, wishes=wishes[0]), page(plain, wishes=wishes[1])
    shape = [[len(line) for line in table] for table in tables_of(made)]
    assert shape == [[len(line) for line in table] for table in tables_of(expected)]
    assert len(made.splitlines()) == len(expected.splitlines())
    for mark in ("<", "[", "`", "](", "*", "$", "\\", "~", "@", "{"):
        assert made.count(mark) <= expected.count(mark), mark
    assert not re.search(r"(https?://|www\.)evil", made, re.IGNORECASE)
    assert made.isprintable() or all(c == "\n" or c.isprintable() for c in made)


def test_row_without_script_has_no_link() -> None:
    """What was not published is not linked."""
    made = page(row_of(papers.passing()), script_link=lambda run_id: None)
    assert line_of(made, "Qwen/Qwen3-0.6B")["script"] == "-"


def campaign(count: int, error: str, stacks: int, name: str) -> list[Row]:
    """So many models on so many stacks; a third fails, a sixth errs, or all fail with `error`."""
    factories = [papers.passing, papers.failing, papers.passing, papers.erring]
    factories += [papers.failing, papers.passing]
    templates: dict[tuple[int, int], Row] = {}
    rows = []
    for number in range(count):
        for version in range(stacks):
            on = papers.stack(library_version=f"5.{version}.0")
            model = f"{chr(97 + number % 26)}{name}-{number:04}"
            which = 1 if error else number // 26 % 6
            if (which, version) not in templates:
                record = factories[which](papers.run(model, stack=on))
                templates[which, version] = row_of(record)
            row = templates[which, version] | {
                "model_id": model,
                "run_id": str(on.run_id(model)),
                "parallelism": str(Parallelism.TENSOR),
                "stage": str(Stage.GENERATE),
            }
            rows.append(row | {"error": error} if error else row)
    return rows


def test_thousand_models_are_readable() -> None:
    """1 000 models stay below GitHub's limit, whole, folded by initial with their counts."""
    rows = campaign(1000, "", 2, "cme-labs/Model-7B-Instruct")
    made = page(*rows)
    assert len(made.encode()) <= tables.MAX_BYTES
    assert "cut short" not in made
    assert made.count("<details>") == made.count("</details>") > 26
    assert "<summary>A: 39 models (20 PASS, 13 FAIL, 6 ERROR)</summary>" in made
    listed = [row[0] for table in tables_of(made) if "script" in table[0] for row in table[1:]]
    assert len(listed) == len(set(listed)) == 1000
    for block in re.findall(r"<details>.*?</details>", made, re.DOTALL):
        assert re.match(r"<details><summary>[^<]*</summary>\n\n\| model ", block)


def test_worst_thousand_models_stay_below_the_limit() -> None:
    """Long names, three stacks and a long cause each: details go, no model does, and it is said."""
    rows = campaign(1000, "|" * 500, 3, "n-organisation-name/A-Rather-Long-Model-Name-70B-Instruct")
    made = page(*rows)
    assert len(made.encode()) <= tables.MAX_BYTES
    assert "cut short" in made
    listed = [row[0] for table in tables_of(made) if "script" in table[0] for row in table[1:]]
    assert len(set(listed)) == 1000


def test_few_models_are_not_folded() -> None:
    """A short table is shown as it is."""
    assert "<details>" not in page(*campaign(100, "", 1, "/m"))
    assert "<details>" in page(*campaign(101, "", 1, "/m"))


def test_columns_are_all_that_is_needed() -> None:
    """A caller may read only `COLUMNS`; the page is the same."""
    rows = [row_of(papers.passing()), row_of(papers.failing(papers.run("b/b")))]
    assert page(*[{name: row[name] for name in tables.COLUMNS} for row in rows]) == page(*rows)
