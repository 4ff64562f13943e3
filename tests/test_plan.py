"""Planning: what is due and why, the order, the budget, where each run goes, and what is refused.

Pure: lists, facts and earlier results are made here, and nothing of disk or network is read but
the plan table of model types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline import catalog as lists
from pipeline import script
from pipeline.catalog import Catalog
from pipeline.errors import UsageError
from pipeline.estimate import Past
from pipeline.placement import GIB, Checkpoint, PlanTable, Tensor
from pipeline.plan import Earlier, Request, kind, make_plan, wanted
from pipeline.record import Plan, Record, Refusal, Run, dump, parse
from pipeline.rows import missing
from pipeline.words import CacheState, Failure, Parallelism, Result, Stage, Target
from tests import papers
from tests.conftest import ROOT
from tests.test_placement import ROWS, checkpoint

NOW = papers.day(0)
REVISION = "a" * 40
FOLDER = Path("/lists")
NEURON_ID = "@transformers-5.24.0@neuronxcc-2.28.7631.0@torch-2.14.0"


@cache
def table() -> PlanTable:
    return PlanTable.load()


def catalog(*models: str | Mapping[str, Any], **changes: Any) -> Catalog:
    """A list of text models; `changes` replace its parts, those of `defaults` one by one."""
    defaults: dict[str, Any] = {
        "stacks": ["neuron"],
        "prompts": {"text-generation": list(papers.PROMPTS)},
        "limit_minutes": 60,
        "margin": {"gib": 1, "fraction": 0},
    }
    data: dict[str, Any] = {
        "runners": {
            "small": {"labels": ["trn2-3"], "cores": 4, "core_gib": 24, "host_gib": 124},
            "large": {"labels": ["trn2-48"], "cores": 16, "core_gib": 24, "host_gib": 2048},
            "laptop": {
                "target": "cpu",
                "labels": ["ubuntu-latest"],
                "cores": 4,
                "core_gib": 8,
                "host_gib": 12,
            },
        },
        "stacks": {
            "neuron": neuron("2.14.0"),
            "older-torch": neuron("2.13.0"),
            "cpu": {"target": "cpu", "library_version": "5.24.0", "torch": "2.13.0"},
        },
    }
    data |= changes
    data["defaults"] = defaults | changes.get("defaults", {})
    data["models"] = [
        {"task": "text-generation", **({"id": model} if isinstance(model, str) else model)}
        for model in models
    ]
    return Catalog.model_validate(data)


def neuron(torch: str) -> dict[str, str]:
    return {
        "target": "neuron",
        "library_version": "5.24.0",
        "torch": torch,
        "neuronx_cc": "2.28.7631.0",
        "torch_neuronx": f"{torch}.1",
    }


def qwen(layers: int = 1, width: int = 128, **changes: Any) -> Checkpoint:
    """A Qwen3 checkpoint; a layer of width 8192 takes 3 GiB, most of it divisible."""
    hidden = width // 2
    shapes = {"model.embed_tokens.weight": (512, hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        start = f"model.layers.{layer}."
        shapes |= {
            f"{start}self_attn.q_proj.weight": (16 * 64, hidden),
            f"{start}self_attn.k_proj.weight": (16 * 64, hidden),
            f"{start}self_attn.v_proj.weight": (16 * 64, hidden),
            f"{start}self_attn.o_proj.weight": (hidden, 16 * 64),
            f"{start}mlp.gate_proj.weight": (16 * width, hidden),
            f"{start}mlp.up_proj.weight": (16 * width, hidden),
            f"{start}mlp.down_proj.weight": (hidden, 16 * width),
        }
    config: dict[str, Any] = {
        "model_type": "qwen3",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": 16 * width,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 64,
        "vocab_size": 512,
        "tie_word_embeddings": True,
    }
    tensors = tuple(Tensor(name, "BF16", shape) for name, shape in shapes.items())
    size = sum(tensor.bytes for tensor in tensors)
    found = Checkpoint("org/model", REVISION, config, tensors, size, remote_code=False)
    return replace(found, **changes)


def of_gib(gib: int) -> Checkpoint:
    """A checkpoint of about so many GiB."""
    found = qwen(layers=gib // 3, width=8192)
    assert abs(found.checkpoint_bytes / GIB - gib) < 0.15 * gib
    return found


def planned(
    found: Catalog,
    facts: Mapping[str, Checkpoint | Refusal] | None = None,
    *,
    earlier: Mapping[str, Earlier] | None = None,
    lost: Mapping[str, Record] | None = None,
    request: Request | None = None,
    now: datetime = NOW,
) -> Plan:
    """`make_plan` with a small checkpoint for each model that `facts` leaves out."""
    known: dict[str, Checkpoint | Refusal] = {model.id: qwen() for model in found.models}
    return make_plan(
        found,
        FOLDER,
        known | dict(facts or {}),
        earlier or {},
        lost or {},
        table(),
        request or Request(),
        now=now,
    )


def one(plan: Plan) -> Run:
    (run,) = plan.runs
    return run


def earlier_of(run: Run, result: Result = Result.PASS, at: datetime = NOW, **changes: Any) -> Any:
    """What results know after `run` ended so, `at`."""
    failed = {Result.PASS: None, Result.FAIL: Failure.COMPILER_ERROR}.get(result, Failure.DOWNLOAD)
    failure = changes.get("failure", failed)
    stage = Stage.COMPILE if failure else Stage.DONE
    fields: dict[str, Any] = {
        "result": result,
        "failure": failure,
        "stage": stage,
        "tested_at": at,
        "revision": run.revision,
        "script_sha256": run.script_sha256,
        "wall_s": 330.0,
        "cache_keys": (),
        "last_result": changes.get("result", result),
        "last_failure": failure,
        "last_stage": changes.get("stage", stage),
        "last_at": changes.get("tested_at", at),
        "errors": 0,
    }
    fields |= changes
    told = ("result", "stage", "failure", "script_sha256", "wall_s")
    row = past(run, tested_at=fields["tested_at"], **{name: fields[name] for name in told})
    return Earlier(**({"past": (row,)} | fields))


def past(run: Run, **changes: Any) -> Past:
    """What the row of a PASS of `run` tells of time."""
    fields: dict[str, Any] = {
        "run_id": run.run_id,
        "tested_at": NOW,
        "result": Result.PASS,
        "stage": Stage.DONE,
        "failure": None,
        "target": run.stack.target,
        "script_sha256": run.script_sha256,
        "checkpoint_bytes": run.checkpoint_bytes,
        "wall_s": 330.0,
        "compile_s": None,
        "cache": None,
    }
    return Past(**(fields | changes))


def again(
    before: Mapping[str, Any] | None = None,
    *,
    facts: Checkpoint | Refusal | None = None,
    first: Checkpoint | Refusal | None = None,
    found: Catalog | None = None,
    **options: Any,
) -> Plan:
    """Plan the one model "a/a" after a run of it (of the facts `first`) that ended as `before`."""
    listed = catalog("a/a")
    run = one(planned(listed, {"a/a": first or qwen()}))
    known = earlier_of(run, **(before or {}))
    now_known = {"a/a": facts or first or qwen()}
    return planned(found or listed, now_known, earlier={run.run_id: known}, **options)


# --- due or not ---------------------------------------------------------------------------------


def test_a_run_that_never_ran_is_due() -> None:
    """Without any result a run is planned for the first time."""
    run = one(planned(catalog("a/a")))
    assert (run.reason, run.attempt, run.cache_keys) == ("never run", 1, ())
    assert run.run_id == f"a--a{NEURON_ID}"


@pytest.mark.parametrize("result", [Result.PASS, Result.FAIL])
def test_a_fresh_result_is_not_due(result: Result) -> None:
    """PASS and FAIL of the same revision and script stand until they are too old."""
    plan = again({"result": result}, now=NOW + timedelta(days=30))
    assert list(plan.runs) == []
    assert [skip.reason for skip in plan.skipped] == [f"up to date: {result} on 2026-11-30"]


def test_the_last_attempt_ended_in_error() -> None:
    """ERROR says nothing of the model: it is tried again, even where an older PASS reigns."""
    failed = {"last_result": Result.ERROR, "last_failure": Failure.KILLED, "errors": 2}
    run = one(again(failed | {"last_stage": Stage.LOAD, "last_at": NOW + timedelta(days=1)}))
    assert run.reason == "last attempt ended in ERROR: killed at load"
    assert run.attempt == 3


INCONCLUSIVE: dict[str, Any] = {
    "last_result": Result.ERROR,
    "last_failure": Failure.INCONCLUSIVE,
    "last_stage": Stage.CHECK,
    "errors": 1,
}


def test_inconclusive_is_not_tried_again() -> None:
    """The same evidence would come again, whether or not another result reigns."""
    assert list(again(INCONCLUSIVE).runs) == []
    alone = {"result": Result.ERROR, "failure": Failure.INCONCLUSIVE, "stage": Stage.CHECK}
    assert list(again(INCONCLUSIVE | alone).runs) == []


def test_inconclusive_counts_as_a_try_of_an_old_result() -> None:
    """Where a result came of age and the new try was inconclusive, its age begins with the try."""
    newer = INCONCLUSIVE | {"last_at": NOW + timedelta(days=40)}
    assert list(again(newer, now=NOW + timedelta(days=50)).runs) == []
    run = one(again(newer, now=NOW + timedelta(days=71)))
    assert (run.reason, run.attempt) == ("too old: 31 days, the limit is 30", 2)


def test_inconclusive_is_tried_again_with_another_script() -> None:
    """What is tried differs, so the evidence may."""
    assert one(again(INCONCLUSIVE | {"script_sha256": "0" * 64})).reason.startswith("other script")


def test_other_revision() -> None:
    """A moved branch is due, and the reason names both commits in short."""
    run = one(again(facts=qwen(revision="b" * 40)))
    assert run.reason == "other revision: aaaaaaaaaaaa then, bbbbbbbbbbbb now"
    assert run.revision == "b" * 40


def test_other_digest_of_a_directory() -> None:
    """The short form of a directory's digest is of the digest, not of its name."""
    first = qwen(revision="sha256:" + "c" * 40)
    run = one(again(first=first, facts=qwen(revision="sha256:" + "d" * 40)))
    assert run.reason == "other revision: cccccccccccc then, dddddddddddd now"


def test_other_script() -> None:
    """Other prompts, placement or template give another script, which is due."""
    prompts = {"text-generation": ["One", "Two", "Three"]}
    run = one(again(found=catalog("a/a", defaults={"prompts": prompts})))
    assert run.reason == "other script: its template, prompts, placement or stack changed"


def test_refused_after_a_result() -> None:
    """A model that ran and is refused now is due as a refusal; the reason says what it was."""
    run = one(again({"result": Result.PASS}, facts=qwen(tensors=())))
    assert run.reason == "refused now: unsupported_checkpoint; before: PASS"
    assert run.refusal is not None


def test_refused_for_another_reason() -> None:
    """A new class of refusal is news."""
    refused = {"result": Result.FAIL, "failure": Failure.TOO_LARGE, "stage": Stage.PLAN}
    run = one(again(refused, first=of_gib(900), facts=qwen(tensors=())))
    assert run.reason == "refused now: unsupported_checkpoint; before: too_large"


def test_refused_for_the_same_reason() -> None:
    """A refusal that was published is a result like any other: it stands until it is too old."""
    refused = {"result": Result.FAIL, "failure": Failure.TOO_LARGE, "stage": Stage.PLAN}
    assert list(again(refused, first=of_gib(900)).runs) == []
    run = one(again(refused, first=of_gib(900), now=papers.day(31)))
    assert run.reason == "too old: 31 days, the limit is 30"


def test_a_hub_that_is_away_is_not_another_revision() -> None:
    """Facts that cannot be had refuse the run, and the reason does not speak of commits."""
    run = one(again(facts=Refusal(failure=Failure.DOWNLOAD, reason="no network")))
    assert run.reason == "refused now: download; before: PASS"


def test_age() -> None:
    """A result older than the list's limit is due; at the limit it is not."""
    assert list(again(now=NOW + timedelta(days=30)).runs) == []
    run = one(again(now=NOW + timedelta(days=30, seconds=1)))
    assert run.reason == "too old: 30 days, the limit is 30"
    week = catalog("a/a", defaults={"max_age_days": 7})
    assert one(again(found=week, now=papers.day(8))).reason == "too old: 8 days, the limit is 7"


def test_force() -> None:
    """--force plans what is up to date."""
    assert one(again(request=Request(force=True))).reason == "asked for"


def test_a_lost_record_is_due() -> None:
    """A record of this machine that never ended is named with its start, in UTC, and its stage."""
    run = one(planned(catalog("a/a")))
    began = datetime(2026, 12, 1, 10, 0, 0, 123_456, tzinfo=timezone(timedelta(hours=2)))
    lost = {run.run_id: papers.unended(run, began)}
    expected = (
        "lost: the run started 2026-12-01 08:00:00 UTC was lost at stage compile: "
        "its record never ended"
    )
    assert one(planned(catalog("a/a"), lost=lost)).reason == expected
    assert one(again(lost=lost)).reason == expected
    assert one(again(lost=lost, request=Request(force=True))).reason == expected


def test_a_lost_record_older_than_the_last_attempt_is_history() -> None:
    """What ran after it counts; a published lost record, too, whose row keeps milliseconds."""
    run = one(planned(catalog("a/a")))
    began = NOW + timedelta(microseconds=700)
    lost = {run.run_id: papers.unended(run, began)}
    assert list(again(lost=lost).runs) == []
    published = {"last_result": Result.ERROR, "last_failure": Failure.LOST_RUNNER, "errors": 1}
    reason = one(again(published, lost=lost)).reason
    assert reason == "last attempt ended in ERROR: lost_runner at done"


# --- order, budget, selection -------------------------------------------------------------------


def test_never_run_first_then_the_oldest() -> None:
    """Nothing starves: what a budget takes first goes by the last attempt, whatever it ended in;
    equals keep the list's order."""
    names = ["a/a", "b/b", "c/c", "d/d", "e/e"]
    listed = catalog(*names)
    runs = {run.model_id: run for run in planned(listed).runs}
    known = {
        runs["a/a"].run_id: earlier_of(runs["a/a"], at=papers.day(3), wall_s=600.0),
        runs["b/b"].run_id: earlier_of(runs["b/b"], at=papers.day(1), wall_s=600.0),
        # An old PASS whose retries fail: its turn is by the last retry.
        runs["d/d"].run_id: earlier_of(
            runs["d/d"],
            at=papers.day(0),
            wall_s=600.0,
            last_result=Result.ERROR,
            last_at=papers.day(2),
        ),
    }
    late = papers.day(60)
    # One core and one compiler: each run alone takes 610 s.
    small = {"labels": ["x"], "cores": 1, "core_gib": 24, "host_gib": 64}
    listed = catalog(*names, runners={"small": small})
    taken: list[str] = []
    for count in range(1, 6):
        request = Request(budget_s=count * 611.0)
        plan = planned(listed, earlier=known, now=late, request=request)
        (new,) = {run.model_id for run in plan.runs} - set(taken)
        taken.append(new)
    assert taken == ["c/c", "e/e", "b/b", "d/d", "a/a"]


def test_budget_skips_what_does_not_fit_and_goes_on_with_smaller_ones() -> None:
    """A large run does not block those behind it, and its reason says what was left."""
    listed = catalog("a/a", "big/big", "c/c", defaults={"limit_minutes": 600})
    plan = planned(listed, {"big/big": of_gib(60)}, request=Request(budget_s=25 * 60))
    assert [run.model_id for run in plan.runs] == ["a/a", "c/c"]
    (skip,) = plan.skipped
    assert skip.run_id.startswith("big--big@")
    left = r"due \(never run\), but 1\d\d min on 4 cores do not fit the 15 left of the budget"
    assert re.fullmatch(left, skip.reason), skip.reason


def test_budget_counts_what_machines_are_booked_for() -> None:
    """Runs that share a machine share its time; the jobs together never exceed the budget."""
    names = [f"m/{number}" for number in range(12)]
    listed = catalog(*names, runners={"large": {**LARGE, "labels": ["x"]}})
    # 600 s and a check of 10 s each, eight side by side.
    shared = planned(listed, request=Request(budget_s=20.5 * 60))
    assert len(list(shared.runs)) == 12
    for minutes in (5, 10.5, 15, 20.5):
        plan = planned(listed, request=Request(budget_s=minutes * 60))
        assert sum(job.estimated_s for job in plan.jobs) <= minutes * 60
        assert len(list(plan.runs)) + len(plan.skipped) == 12
    assert len(list(planned(listed, request=Request(budget_s=10.5 * 60)).runs)) == 8


def test_budget_with_runs_that_cannot_share_a_job() -> None:
    """Runs of two stacks and of other packages book machines apart: the budget counts each job."""
    models = [{"id": f"m/{n}", "extra_packages": ["timm"] if n == 3 else []} for n in range(4)]
    listed = catalog(*models, runners={"large": {**LARGE, "labels": ["x"]}})
    stacks = ("neuron", "older-torch")
    whole = planned(listed, request=Request(stacks=stacks))
    assert [len(job.runs) for job in whole.jobs] == [3, 1, 3, 1]
    # One job takes about 610 s, however many of the four are in it.
    for jobs, minutes in ((0, 10), (1, 10.5), (2, 20.5), (3, 31), (4, 41)):
        plan = planned(listed, request=Request(stacks=stacks, budget_s=minutes * 60))
        assert len(plan.jobs) == jobs
        assert sum(job.estimated_s for job in plan.jobs) <= minutes * 60
        assert len(list(plan.runs)) + len(plan.skipped) == 8


@pytest.mark.parametrize(
    ("before", "days", "common"),
    [
        (None, 31, "too old"),
        ({"revision": "b" * 40}, 0, "other revision"),
        ({"script_sha256": "0" * 64}, 0, "other script"),
        (
            {"last_result": Result.ERROR, "last_failure": Failure.KILLED},
            0,
            "last attempt ended in ERROR",
        ),
    ],
)
def test_what_reasons_have_in_common(before: dict[str, Any] | None, days: int, common: str) -> None:
    """A reason begins with what other runs share; what is particular stands after a colon."""
    reason = one(again(before, now=papers.day(days))).reason
    assert kind(reason) == common
    assert reason.startswith(f"{common}: ")


LARGE = {"labels": ["trn2-48"], "cores": 16, "core_gib": 24, "host_gib": 2048}


def test_budget_of_nothing_plans_refusals_only() -> None:
    """Refused runs need no machine, so they stand outside the budget."""
    listed = catalog("a/a", "none/none")
    plan = planned(listed, {"none/none": qwen(tensors=())}, request=Request(budget_s=0))
    assert plan.jobs == ()
    assert [run.model_id for run in plan.refused] == ["none/none"]
    assert len(plan.skipped) == 1


@pytest.mark.parametrize(
    "wish",
    ["org--Model-A@*", "ORG--model-a@*", "*model-a@*torch-2.14.0", "org/Model-A", "org--model-a"],
)
def test_select(wish: str) -> None:
    """Globs on run ids, letter case aside, and model ids as the list writes them."""
    plan = planned(catalog("org/Model-A", "org/Model-AB"), request=Request(select=(wish,)))
    assert one(plan).model_id == "org/Model-A"
    assert plan.skipped == ()


def test_select_several() -> None:
    """Any of the globs selects."""
    listed = catalog("a/a", "b/b", "c/c")
    plan = planned(listed, request=Request(select=("a/a", "c--*")))
    assert [run.model_id for run in plan.runs] == ["a/a", "c/c"]


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ("org/Model", 'unknown model "org/Model"; did you mean "org/Model-A"?'),
        ("Mod", "'*Mod*' stands for every run id with Mod in it"),
        ("*nothing*", "no run id matches '*nothing*'"),
        (f"org--Model-B{NEURON_ID}", f"did you mean org--Model-A{NEURON_ID}?"),
        ("org--Model-A@transformers-4*", "no run id matches"),
    ],
)
def test_select_that_fits_nothing(wish: str, message: str) -> None:
    """A wish that fits no run is an error with what comes near, beside wishes that fit, too."""
    for select in ((wish,), ("org/Model-A", wish)):
        with pytest.raises(UsageError) as caught:
            wanted(catalog("org/Model-A"), Request(select=select))
        assert message in str(caught.value)


def test_excluded_models_are_told_and_not_planned() -> None:
    """People's reason stands with the run id; --force does not overrule it."""
    entry = {"id": "x/x", "task": "text-generation", "reason": "not_prioritised", "note": "later"}
    listed = catalog("a/a", excluded=[entry])
    plan = planned(listed, request=Request(force=True))
    assert one(plan).model_id == "a/a"
    (skip,) = plan.skipped
    assert (skip.run_id, skip.reason) == (f"x--x{NEURON_ID}", "excluded, not_prioritised: later")
    chosen, skipped = wanted(listed, Request(select=("x/x",)))
    assert (chosen, len(skipped)) == ([], 1)


def test_a_long_note_is_cut_not_refused() -> None:
    """A note may be as long as a reason, to which a few words are added."""
    entry = {
        "id": "x/x",
        "task": "text-generation",
        "reason": "not_prioritised",
        "note": "n" * 4000,
    }
    (skip,) = planned(catalog("a/a", excluded=[entry])).skipped
    assert len(skip.reason) == 4000


# --- jobs and runner classes --------------------------------------------------------------------


def test_the_smallest_class_that_holds_it() -> None:
    """Classes are tried in the list's order; a model goes to the larger only where it must."""
    listed = catalog("a/a", "b/b", "c/c")
    facts = {"b/b": of_gib(30), "c/c": of_gib(120)}
    runs = {run.model_id: run for run in planned(listed, facts).runs}
    seen = {
        name: (run.runner, run.placement.cores, run.placement.parallelism)
        for name, run in runs.items()
        if run.placement
    }
    assert seen == {
        "a/a": ("small", 1, Parallelism.NONE),
        "b/b": ("small", 2, Parallelism.TENSOR),
        "c/c": ("large", 8, Parallelism.TENSOR),
    }
    assert runs["a/a"].core_bytes == 24 * GIB


def test_a_run_that_goes_to_a_larger_class_is_a_run_of_that_class() -> None:
    """Where the small class would take far longer, runs go to the large one with its cores, its
    price and its larger placements, and with the script they have anyway; a named class holds."""
    names = [f"m/{number}" for number in range(40)]
    runners: dict[str, Any] = {
        "small": {"labels": ["a"], "cores": 4, "core_gib": 24, "host_gib": 124, "usd_per_hour": 1},
        "large": {**LARGE, "core_gib": 25, "usd_per_hour": 4},
    }
    listed = catalog({"id": "b/b", "runner": "small"}, *names, runners=runners)
    alone = one(planned(catalog("m/0", runners=runners)))
    plan = planned(listed)
    assert sorted(run.model_id for run in plan.runs) == sorted(["b/b", *names])
    assert {job.runner for job in plan.jobs} == {"small", "large"}
    for job in plan.jobs:
        for run in job.runs:
            cores = 16 if run.runner == "large" else 4
            assert run.runner == job.runner
            assert run.usd_per_hour == runners[job.runner]["usd_per_hour"]
            assert run.core_bytes == runners[job.runner]["core_gib"] * GIB
            assert [placed.cores for placed in run.larger][-1] == cores
            assert run.reason == "never run"
            if run.model_id == "m/0":
                assert run.script_sha256 == alone.script_sha256
    (home,) = [run.runner for run in plan.runs if run.model_id == "b/b"]
    assert home == "small"


def test_a_result_on_another_class_stands() -> None:
    """Which class a run goes to changes from plan to plan; its script stays, so nothing is due."""
    listed = catalog("a/a")
    run = one(planned(listed))
    elsewhere = one(planned(catalog({"id": "a/a", "runner": "large"})))
    assert (run.runner, elsewhere.runner) == ("small", "large")
    plan = planned(listed, earlier={run.run_id: earlier_of(elsewhere)})
    assert [skip.reason for skip in plan.skipped] == ["up to date: PASS on 2026-11-30"]


def test_the_named_class_is_obeyed() -> None:
    """A model that names its class goes there, though a smaller one would do, or is refused."""
    listed = catalog({"id": "a/a", "runner": "large"}, {"id": "b/b", "runner": "small"})
    runs = {run.model_id: run for run in planned(listed, {"b/b": of_gib(120)}).runs}
    assert (runs["a/a"].runner, runs["b/b"].runner) == ("large", "small")
    refusal = runs["b/b"].refusal
    assert refusal is not None
    assert refusal.failure is Failure.TOO_LARGE


def test_asked_cores_and_parallelism_reach_placement() -> None:
    """What the list asks for is what is planned."""
    run = one(planned(catalog({"id": "a/a", "cores": 4, "parallelism": "tensor"})))
    assert run.placement is not None
    assert (run.placement.cores, run.placement.parallelism) == (4, Parallelism.TENSOR)


def test_jobs_by_runner_class() -> None:
    """Each job is of one class, in the list's order of classes, its labels and machine with it.

    Refused runs stand apart: no job waits for a machine to refuse them.
    """
    listed = catalog("l/1", "s/1", "no/no", "s/2", "l/2")
    facts = {"l/1": of_gib(120), "l/2": of_gib(120), "no/no": qwen(tensors=())}
    plan = planned(listed, facts)
    assert [(job.job_id, job.runner, job.labels) for job in plan.jobs] == [
        ("small-1", "small", ("trn2-3",)),
        ("large-1", "large", ("trn2-48",)),
    ]
    machines = [(job.machine.cores, job.machine.compilations) for job in plan.jobs]
    assert machines == [(4, 2), (16, 8)]
    assert plan.jobs[0].machine.host_bytes == 124 * GIB
    assert [[run.model_id for run in job.runs] for job in plan.jobs] == [
        ["s/1", "s/2"],
        ["l/1", "l/2"],
    ]
    assert [run.model_id for run in plan.refused] == ["no/no"]


def test_too_large_for_every_class() -> None:
    """The refusal is the largest class's, which says what would have been needed."""
    run = one(planned(catalog("a/a"), {"a/a": of_gib(900)}))
    assert run.refusal is not None
    assert run.refusal.failure is Failure.TOO_LARGE
    assert "16 cores have 384.0 GiB" in run.refusal.reason
    assert (run.placement, run.script_sha256, run.estimated_s) == (None, None, 1)


def test_targets_never_mix() -> None:
    """A neuron stack plans for classes of its target alone, as a cpu stack does."""
    listed = catalog("a/a", "b/b")
    request = Request(stacks=("neuron", "cpu"))
    plan = planned(listed, {"b/b": of_gib(120)}, request=request)
    for run in plan.runs:
        target = listed.runners[run.runner].target
        assert target is run.stack.target
        assert (run.runner == "laptop") == (target is Target.CPU)
    assert len(list(plan.runs)) == 4


def test_cpu_cores_share_the_machines_memory() -> None:
    """On target cpu the whole machine must hold all cores: 12 GiB hold no 15."""
    run = one(planned(catalog("a/a"), {"a/a": of_gib(15)}, request=Request(stacks=("cpu",))))
    assert run.refusal is not None
    assert "12.0 GiB" in run.refusal.reason


def test_a_class_of_another_target_skips_the_model_alone() -> None:
    """A model bound to a device class does not hinder planning the others for the CPU."""
    listed = catalog("a/a", {"id": "b/b", "runner": "large"})
    plan = planned(listed, request=Request(stacks=("cpu",)))
    assert one(plan).model_id == "a/a"
    reason = "its runner class large is not of target cpu"
    assert [skip.reason for skip in plan.skipped] == [reason]


def test_a_stack_without_any_class() -> None:
    """A stack that no class can run is an error that says what to add."""
    runners = {"small": {"labels": ["trn2-3"], "cores": 4, "core_gib": 24, "host_gib": 124}}
    with pytest.raises(UsageError, match="stack cpu is of target cpu, and no runner class is"):
        wanted(catalog("a/a", runners=runners), Request(stacks=("cpu",)))


# --- stacks -------------------------------------------------------------------------------------


def test_two_stacks_of_one_compiler_give_two_run_ids() -> None:
    """torch is part of the run id: one SDK serves one compiler under two torch versions."""
    plan = planned(catalog("a/a"), request=Request(stacks=("neuron", "older-torch")))
    ids = [run.run_id for run in plan.runs]
    assert ids == [
        "a--a@transformers-5.24.0@neuronxcc-2.28.7631.0@torch-2.14.0",
        "a--a@transformers-5.24.0@neuronxcc-2.28.7631.0@torch-2.13.0",
    ]
    scripts = {run.script_sha256 for run in plan.runs}
    assert len(scripts) == 2


def test_stacks_planned_together_are_planned_as_each_alone() -> None:
    """What is found out once for several stacks is what each would have found, targets apart."""
    listed = catalog("a/a", "big/big", "none/none")
    facts = {"big/big": of_gib(30), "none/none": qwen(tensors=())}
    stacks = ("neuron", "cpu", "older-torch")

    def runs(*names: str) -> dict[str, Run]:
        plan = planned(listed, facts, request=Request(stacks=names))
        return {run.run_id: run for run in plan.runs}

    alone: dict[str, Run] = {}
    for name in stacks:
        alone |= runs(name)
    together = runs(*stacks)
    assert len(together) == 9
    assert together == alone


def test_a_stack_named_twice_counts_once() -> None:
    """--stack cpu --stack cpu plans each run once."""
    plan = planned(catalog("a/a"), request=Request(stacks=("cpu", "cpu")))
    assert len(list(plan.runs)) == 1


def test_default_stacks_and_asked_ones() -> None:
    """--stack takes the place of the list's defaults."""
    listed = catalog("a/a", defaults={"stacks": ["neuron", "cpu"]})
    assert [run.stack.name for run in planned(listed).runs] == ["neuron", "cpu"]
    asked = planned(listed, request=Request(stacks=("older-torch",)))
    assert one(asked).stack.name == "older-torch"


def test_unknown_stack() -> None:
    """A stack that is not on the list is an error with a near miss."""
    with pytest.raises(UsageError, match='unknown stack "neurom"; did you mean "neuron"'):
        wanted(catalog("a/a"), Request(stacks=("neurom",)))


# --- what a run carries -------------------------------------------------------------------------


def test_estimate_and_limit_of_a_run_that_never_ran() -> None:
    """By size, within the list's limit; the run's own limit is four times that, half an hour at
    least."""
    run = one(planned(catalog("a/a", defaults={"limit_minutes": 600})))
    assert run.estimated_s == 600
    assert abs(run.limit_s - 2400) <= 4
    listed = catalog("a/a", defaults={"limit_minutes": 600})
    run = one(planned(listed, {"a/a": of_gib(30)}))
    assert abs(run.estimated_s - (600 + 30 * 120)) < 600
    assert abs(run.limit_s - 4 * run.estimated_s) <= 4
    run = one(planned(catalog("a/a"), {"a/a": of_gib(120)}))
    assert (run.estimated_s, run.limit_s) == (3600, 3600)


@pytest.mark.parametrize(
    ("before", "seconds"),
    [
        ({"wall_s": 123.4}, 123),
        ({"wall_s": 0.2}, 1),
        ({"wall_s": 5000.0}, 3600),
        ({"result": Result.FAIL, "wall_s": 50.0}, 50),
        ({"wall_s": None}, 600),
        # What an infrastructure fault or a refusal took says nothing of the run.
        ({"result": Result.ERROR, "wall_s": 5.0}, 600),
        ({"result": Result.FAIL, "stage": Stage.PLAN, "wall_s": 0.004}, 600),
    ],
)
def test_estimate_from_the_last_run(before: dict[str, Any], seconds: int) -> None:
    """What it took is what it is expected to take, at most its time limit."""
    assert one(again(before, request=Request(force=True))).estimated_s == seconds


def test_estimate_with_restored_graphs() -> None:
    """The same script with its cache keys is expected to take what it took with them, another one
    what it took cold; the limit is the cold run's, since the store may be away."""
    listed = catalog("a/a", defaults={"limit_minutes": 600})
    run = one(planned(listed))
    rows = (
        past(run, wall_s=900.0, compile_s=800.0, cache=CacheState.COLD),
        past(run, wall_s=60.0, compile_s=30.0, cache=CacheState.RESTORED, tested_at=papers.day(1)),
    )
    known = earlier_of(run, past=rows, cache_keys=("ab/one.neff",))
    request = Request(force=True)
    same = one(planned(listed, earlier={run.run_id: known}, request=request))
    assert (same.estimated_s, same.limit_s) == (60, 3600)
    other = catalog("a/a", defaults={"limit_minutes": 600, "new_tokens": 16})
    changed = one(planned(other, earlier={run.run_id: known}, request=request))
    assert (changed.estimated_s, changed.limit_s) == (900, 3600)


# --- larger placements after device_out_of_memory -----------------------------------------------


def ladder_of(run: Run) -> list[tuple[int, Parallelism]]:
    assert run.placement is not None
    return [(placed.cores, placed.parallelism) for placed in (run.placement, *run.larger)]


def test_a_run_carries_the_larger_placements_of_its_class() -> None:
    """What comes after device_out_of_memory: all larger counts that fit and divide, in order."""
    tensor = Parallelism.TENSOR
    run = one(planned(catalog("a/a")))
    assert ladder_of(run) == [(1, Parallelism.NONE), (2, tensor), (4, tensor)]
    run = one(planned(catalog({"id": "a/a", "runner": "large"}), {"a/a": of_gib(30)}))
    assert ladder_of(run) == [(2, tensor), (4, tensor), (8, tensor), (16, tensor)]
    assert run.larger[0].core_bytes < run.core_bytes
    assert "2 cores ran out of device memory" in run.larger[0].reason
    asked = one(planned(catalog({"id": "a/a", "cores": 2})))
    assert ladder_of(asked) == [(2, tensor)]


def on_rung(run: Run, rung: int) -> Run:
    """The run as it is after `rung` escalations: another placement, and hence another script."""
    wider = run.model_copy(update={"placement": run.larger[rung - 1], "larger": run.larger[rung:]})
    return wider.model_copy(update={"script_sha256": script.sha256(script.render(wider))})


@pytest.mark.parametrize("rung", [1, 2])
def test_a_result_of_a_larger_placement_stands(rung: int) -> None:
    """A run that escalated is planned with the placement of its row: up to date, whatever the
    smaller one's script is, and due with that placement when it is too old."""
    run = one(planned(catalog("a/a")))
    wider = on_rung(run, rung)
    known = {run.run_id: earlier_of(wider)}
    plan = planned(catalog("a/a"), earlier=known)
    assert [skip.reason for skip in plan.skipped] == ["up to date: PASS on 2026-11-30"]
    due = one(planned(catalog("a/a"), earlier=known, now=papers.day(31)))
    assert due.reason == "too old: 31 days, the limit is 30"
    assert (due.placement, due.larger) == (wider.placement, wider.larger)
    assert due.script_sha256 == wider.script_sha256


def test_out_of_memory_goes_on_with_the_next_placement() -> None:
    """A row that still ran out of device memory is no last word while a larger placement exists."""
    listed = catalog("a/a")
    run = one(planned(listed))
    oom: dict[str, Any] = {"result": Result.FAIL, "failure": Failure.DEVICE_OUT_OF_MEMORY}
    due = one(planned(listed, earlier={run.run_id: earlier_of(run, **oom)}))
    assert due.reason == "needs more cores: ran out of device memory on 1 core, 2 cores are next"
    assert due.placement == run.larger[0]
    # The small class ends at 4 cores; the large one has 8.
    due = one(planned(listed, earlier={run.run_id: earlier_of(on_rung(run, 2), **oom)}))
    assert due.reason == "needs more cores: ran out of device memory on 4 cores, 8 cores are next"
    assert due.placement is not None
    assert (due.runner, due.placement.cores) == ("large", 8)


def test_an_inconclusive_try_of_a_larger_placement_is_not_out_of_memory() -> None:
    """What ran out of memory is the reigning row's placement, not that of the try after it."""
    listed = catalog("a/a")
    run = one(planned(listed))
    known = earlier_of(
        on_rung(run, 1),
        **INCONCLUSIVE | {"result": Result.FAIL, "failure": Failure.DEVICE_OUT_OF_MEMORY},
    )
    plan = planned(listed, earlier={run.run_id: known})
    assert [skip.reason for skip in plan.skipped] == ["up to date: FAIL on 2026-11-30"]


def test_out_of_memory_on_the_largest_placement_stands() -> None:
    """Where nothing larger exists the FAIL is a result like any other."""
    listed = catalog({"id": "a/a", "runner": "small"})
    run = one(planned(listed))
    oom: dict[str, Any] = {"result": Result.FAIL, "failure": Failure.DEVICE_OUT_OF_MEMORY}
    plan = planned(listed, earlier={run.run_id: earlier_of(on_rung(run, 2), **oom)})
    assert [skip.reason for skip in plan.skipped] == ["up to date: FAIL on 2026-11-30"]


def test_a_new_revision_starts_small_again() -> None:
    """Another checkpoint or template may need less: it is tried on the smallest placement."""
    run = one(planned(catalog("a/a")))
    known = {run.run_id: earlier_of(on_rung(run, 2))}
    due = one(planned(catalog("a/a"), {"a/a": qwen(revision="b" * 40)}, earlier=known))
    assert due.reason.startswith("other revision")
    assert ladder_of(due) == ladder_of(run)


# --- limits that ended a run --------------------------------------------------------------------


def test_a_timeout_below_the_lists_limit_is_tried_with_all_of_it() -> None:
    """The run's own limit was an estimate: its timeout is no result before the list's is used."""
    listed = catalog("a/a", defaults={"limit_minutes": 240})
    run = one(planned(listed))
    ended: dict[str, Any] = {"result": Result.FAIL, "failure": Failure.TIMEOUT}
    known = earlier_of(run, wall_s=2400.0, **ended)
    due = one(planned(listed, earlier={run.run_id: known}))
    assert due.reason == "timed out: after 40 min, its limit then; the list allows 240"
    assert (due.estimated_s, due.limit_s) == (2400, 240 * 60)
    final = earlier_of(run, wall_s=240 * 60.0, **ended)
    plan = planned(listed, earlier={run.run_id: final})
    assert [skip.reason for skip in plan.skipped] == ["up to date: FAIL on 2026-11-30"]


def test_cache_keys_are_handed_over() -> None:
    """The device machine restores what the last good row recorded."""
    keys = ("ab/one.neff", "cd/two.neff")
    assert one(again({"cache_keys": keys}, request=Request(force=True))).cache_keys == keys


def test_a_run_carries_its_list_entry() -> None:
    """Own prompts, number format, packages and time limit win over the defaults."""
    entry = {
        "id": "a/a",
        "dtype": "float32",
        "prompts": ["1", "2", "3"],
        "extra_packages": ["einops==0.8.1"],
        "limit_minutes": 7,
        "source": "models/a",
    }
    run = one(planned(catalog(entry)))
    assert (run.dtype, run.prompts, run.extra_packages, run.limit_s) == (
        "float32",
        ("1", "2", "3"),
        ("einops==0.8.1",),
        420,
    )
    assert run.source == str(FOLDER / "models/a")
    assert (run.model_type, run.revision) == ("qwen3", REVISION)
    assert run.parameters == sum(tensor.bytes // 2 for tensor in qwen().tensors)
    assert run.script_sha256 == script.sha256(script.render(run))


def test_mixture_of_experts_is_told_to_the_script() -> None:
    """A type whose plan divides experts is rendered as such; a dense one is not."""
    assert one(planned(catalog("a/a"))).mixture_of_experts is False
    listed = catalog("mistralai/Mixtral-8x7B-v0.1")
    row = ROWS["mistralai/Mixtral-8x7B-v0.1"]
    assert one(planned(listed, {row.id: checkpoint(row)})).mixture_of_experts is True


def test_room_for_the_longest_prompt() -> None:
    """The static cache is planned for the longest prompt in bytes, padded, and the new tokens."""
    short = one(planned(catalog("a/a"), {"a/a": qwen(layers=2)}))
    long = {"id": "a/a", "prompts": ["a", "b", "c" * 1000]}
    longer = one(planned(catalog(long), {"a/a": qwen(layers=2)}))
    assert short.placement is not None
    assert longer.placement is not None
    # 2 layers x keys and values x 16 heads x 64 x 2 bytes a position.
    position = 2 * 2 * 16 * 64 * 2
    assert short.placement.cache_bytes == (128 + 32) * position
    assert longer.placement.cache_bytes == (1024 + 32) * position


def test_a_plan_survives_its_file() -> None:
    """What is planned can be written and read back whole, and twice gives the same bytes."""
    listed = catalog("a/a", "b/b", "c/c")
    facts = {"b/b": of_gib(120), "c/c": qwen(tensors=())}
    plan = planned(listed, facts)
    assert parse(Plan, dump(plan), where="plan") == plan
    assert dump(planned(listed, facts)) == dump(plan)


# --- facts that are not there, or hostile -------------------------------------------------------


@pytest.mark.parametrize("failure", [Failure.GATED, Failure.MISSING, Failure.DOWNLOAD])
def test_facts_that_cannot_be_had_end_in_error(failure: Failure) -> None:
    """The run is refused, its record is ERROR at stage plan, and the next planning retries it."""
    facts = {"a/a": Refusal(failure=failure, reason="said why")}
    plan = planned(catalog({"id": "a/a", "revision": "v1"}), facts)
    run = one(plan)
    assert (run.refusal, run.revision, run.runner) == (facts["a/a"], "v1", "small")
    assert (run.model_type, run.parameters, run.checkpoint_bytes) == (None, None, None)
    (record,) = missing(plan, [], NOW)
    assert (record.result, record.stage, record.failure) == (Result.ERROR, Stage.PLAN, failure)
    assert record.error == "said why"
    known = earlier_of(run, Result.ERROR, failure=failure, stage=Stage.PLAN, errors=1)
    retried = one(planned(catalog("a/a"), facts, earlier={run.run_id: known}))
    assert retried.reason == f"last attempt ended in ERROR: {failure} at plan"
    assert retried.attempt == 2


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "x" * 300},
        {"model_type": "x" * 5000},
        {"model_type": "\ud800"},
        {"num_key_value_heads": -1},
        {"num_hidden_layers": -7},
        {"head_dim": "wide"},
        {"num_hidden_layers": 10**30},
        {"layer_types": [["full"]]},
        {"quantization_config": "fp8"},
        {"text_config": []},
    ],
    ids=lambda config: next(iter(config)) + str(config)[:40],
)
def test_one_hostile_config_does_not_cost_the_others(config: dict[str, Any]) -> None:
    """Whatever a repository's config.json says, its run is planned or refused with a reason."""
    bad = qwen(config={**qwen().config, **config})
    plan = planned(catalog("bad/bad", "a/a"), {"bad/bad": bad})
    runs = {run.model_id: run for run in plan.runs}
    assert runs["a/a"].placement is not None
    refusal = runs["bad/bad"].refusal
    assert refusal is None or refusal.reason
    assert parse(Plan, dump(plan), where="plan") == plan


# --- the list that ships ------------------------------------------------------------------------


@pytest.mark.parametrize("stack", ["sdk-2.33-torch-2.14", "cpu"])
def test_the_shipped_list_is_planned(stack: str) -> None:
    """Each model of models.yaml whose headers are known here is placed, or refused for a cause."""
    listed = lists.load(ROOT / "models.yaml")
    unknown = Refusal(failure=Failure.DOWNLOAD, reason="no data in this test")
    facts = {
        model.id: checkpoint(ROWS[model.id]) if model.id in ROWS else unknown
        for model in listed.models
    }
    plan = make_plan(listed, ROOT, facts, {}, {}, table(), Request(stacks=(stack,)), now=NOW)
    runs = {run.model_id: run for run in plan.runs}
    assert len(runs) == len(listed.models)
    known = [run for name, run in runs.items() if name in ROWS]
    assert len(known) >= 25
    for run in known:
        runner = listed.runners[run.runner]
        assert runner.target is run.stack.target
        if run.placement:
            assert run.placement.core_bytes <= run.core_bytes
            assert run.placement.cores <= runner.cores
            assert script.render(run).startswith("#!")
        else:
            assert run.refusal is not None
            assert run.refusal.failure.result is Result.FAIL, run.refusal
            assert run.refusal.reason
    if stack != "cpu":
        assert {run.runner for run in known} == {"trn2-3xlarge", "trn2-48xlarge"}
        assert sum(run.placement is not None for run in known) > len(known) / 2


def test_times_in_reasons_are_utc() -> None:
    """The dates that planning prints come from rows, which keep UTC."""
    plan = again({"tested_at": datetime(2026, 11, 30, 23, 59, tzinfo=UTC)})
    assert plan.skipped[0].reason.endswith("on 2026-11-30")
