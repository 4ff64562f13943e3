"""The table that planning prints on the command line."""

from __future__ import annotations

from pipeline.cli.planning import _plan_table
from pipeline.record import Plan, Skipped
from tests import papers

GIB = papers.GIB


def test_the_table_of_one_stack_names_models() -> None:
    """The versions stand once above; what a person can select by stands in each line."""
    run = papers.run("a/a", host_bytes=20 * GIB, estimated_s=20)
    table = _plan_table(papers.plan(run, papers.refused("b/b"))).split("\n")
    assert table[:2] == [
        "1 run in 1 job, about <1 min of machine time",
        "stack: transformers 5.24.0, neuronxcc 2.28.7631.0, torch 2.14.0",
    ]
    assert table[3:] == [
        "job job-trn2-1 on self-hosted, trn2-1: 1 run, about <1 min, 60 at most",
        "  machine: 16 cores, 2048 GiB of host memory, 4 compiling at once",
        "  run  cores  GiB/core  host GiB  minutes  limit  why",
        "  a/a  1      1.5       20        <1       60     never run",
        "",
        "refused: 1",
        "  b/b  too_large: needs 900 GiB; the largest holds 384",
    ]


def test_the_table_of_two_stacks_names_runs() -> None:
    """Where a model is planned twice its lines differ by the whole run id."""
    runs = [papers.run("a/a"), papers.run("a/a", stack=papers.stack(torch="2.13.0"))]
    table = _plan_table(papers.plan(*runs))
    assert "stack:" not in table
    assert all(f"\n  {run.run_id}  1 " in table for run in runs)


def test_the_table_of_nothing() -> None:
    """It says so, and why."""
    run_id = papers.run("a/a").run_id
    made = Plan(jobs=(), refused=(), skipped=(Skipped(run_id=run_id, reason="up to date: PASS"),))
    assert _plan_table(made).split("\n") == [
        "nothing is planned",
        "stack: transformers 5.24.0, neuronxcc 2.28.7631.0, torch 2.14.0",
        "",
        "not planned: 1",
        "  a/a  up to date: PASS",
    ]
    assert _plan_table(Plan(jobs=(), refused=(), skipped=())) == "nothing is planned"
