"""The page of a plan: what a maintainer sees of it, and that nothing from outside is markup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pipeline.actions.plan_summary import MAX_ROWS, Cost, summary
from pipeline.catalog import Catalog
from pipeline.plan import OTHER_SCRIPT, Request
from pipeline.record import Job, Machine, Plan, Refusal, Run, Skipped, StackVersions
from pipeline.words import Failure, Target
from tests import golden_files, papers

GIB = papers.GIB
NEURON = papers.stack(name="sdk", image="example.org/neuron:2.33")
OLDER = papers.stack(name="older-torch", torch="2.13.0")
CLASSES: Mapping[str, Any] = {
    "small": {"labels": ["self-hosted", "trn2-3xlarge"], "cores": 4, "host_gib": 124},
    "large": {"labels": ["self-hosted", "trn2-48xlarge"], "cores": 64, "host_gib": 2048},
    "laptop": {"labels": ["ubuntu-latest"], "cores": 4, "host_gib": 16, "target": "cpu"},
}


def catalog(**prices: float) -> Catalog:
    """The three classes, priced by name."""
    stack = {"target": "neuron", "library_version": "5.24.0", "torch": "2.14.0"}
    return Catalog.model_validate(
        {
            "defaults": {
                "stacks": ["sdk"],
                "prompts": {"text-generation": list(papers.PROMPTS)},
                "limit_minutes": 240,
                "margin": {"gib": 1, "fraction": 0},
            },
            "runners": {
                name: {"core_gib": 24, "usd_per_hour": prices.get(name), **fields}
                for name, fields in CLASSES.items()
            },
            "stacks": {"sdk": stack},
            "models": [{"id": "a/a", "task": "text-generation"}],
        }
    )


def asked(
    model_id: str, cores: int = 1, gib: int = 1, on: StackVersions = NEURON, **changes: Any
) -> Run:
    placed = papers.placement(cores, weight_bytes=gib * GIB)
    fields = {"estimated_s": 600 + 120 * gib, "limit_s": 4 * (600 + 120 * gib)}
    return papers.run(model_id, stack=on, placement=placed, **{**fields, **changes})


def job(job_id: str, *runs: Run, estimated_s: int = 3840, limit_s: int = 18_000) -> Job:
    name = job_id.rpartition("-")[0]
    machine = Machine(
        cores=CLASSES[name]["cores"], host_bytes=CLASSES[name]["host_gib"] * GIB, compilations=2
    )
    return papers.job(
        (run.model_copy(update={"runner": name}) for run in runs),
        job_id=job_id,
        labels=tuple(CLASSES[name]["labels"]),
        machine=machine,
        estimated_s=estimated_s,
        limit_s=limit_s,
    )


def skipped(model_id: str, reason: str, on: StackVersions = NEURON) -> Skipped:
    return Skipped(run_id=str(on.run_id(model_id)), reason=reason)


REASONS = (
    "never run",
    "other revision: 0123456789ab then, fedcba987654 now",
    "last attempt ended in ERROR: download at download",
    "too old: 31 days, the limit is 30",
)


def usual(on: StackVersions = NEURON) -> Plan:
    """A scheduled campaign: some runs on two classes, a refusal, some left out."""
    runs = [asked(f"org/model-{n}", gib=n, on=on, reason=why) for n, why in enumerate(REASONS, 1)]
    return Plan(
        jobs=(
            job("small-1", *runs[:2], asked("org/tied-to-four", 4, 20, on=on, reason="never run")),
            job("small-2", *runs[2:], estimated_s=1080, limit_s=7200),
            job("large-1", asked("org/large-one", 16, 18, on=on), estimated_s=2760),
        ),
        refused=(
            papers.refused("org/larger-than-any", stack=on),
            papers.refused(
                "org/gated",
                stack=on,
                refusal=Refusal(
                    failure=Failure.GATED,
                    reason="org/gated is gated and the token of this machine may not read it",
                ),
                reason="last attempt ended in ERROR: gated at plan",
            ),
        ),
        skipped=(
            skipped("org/fine", "up to date: PASS on 2026-11-20", on),
            skipped("org/fails", "up to date: FAIL on 2026-11-21", on),
            skipped(
                "org/no", "excluded, incompatible: The compiler fails on its decode graph.", on
            ),
            skipped("org/other", "its runner class laptop is not of target neuron", on),
            skipped(
                "org/waits",
                "due (never run), but 25 min on 1 core do not fit the 12 left of the budget",
                on,
            ),
        ),
    )


def all_due(count: int = 11) -> Plan:
    """What a push that changes the template asks for: every run of two stacks."""
    runs = [
        asked(f"org/model-{n:02}", on=on, reason=OTHER_SCRIPT if n else "never run")
        for on in (NEURON, OLDER)
        for n in range(count)
    ]
    return Plan(
        jobs=(
            job("small-1", *runs[:count], estimated_s=4300),
            job("small-2", *runs[count:], estimated_s=4200),
        ),
        refused=(),
        skipped=(skipped("org/no", "excluded, not_prioritised: Later."),),
    )


def test_a_usual_plan() -> None:
    """The answer first; every run with its cores, time and reason; refusals with theirs."""
    request = Request(budget_s=9000)
    golden_files.check("plan-summary.md", summary(usual(), catalog(small=2.5, large=20), request))


def test_a_plan_in_which_everything_is_due() -> None:
    """Long tables are folded, and what the reasons have in common stands before them."""
    golden_files.check("plan-summary-all-due.md", summary(all_due(), catalog(), Request()))


def test_a_plan_of_nothing() -> None:
    """It says so, and why."""
    made = Plan(jobs=(), refused=(), skipped=usual().skipped[:3])
    request = Request(select=("org/*",), stacks=("sdk",))
    golden_files.check("plan-summary-nothing.md", summary(made, catalog(), request))


def test_a_plan_of_refused_runs_only() -> None:
    """Refusals are results: the page says that there is nothing to run, not that nothing is due."""
    page = summary(Plan(jobs=(), refused=usual().refused, skipped=()), catalog(), Request())
    assert page.startswith("## Nothing to run\n\n2 runs are refused, which is a result, too.")
    assert "### Refused" in page


@pytest.mark.parametrize(
    ("prices", "headline", "detail"),
    [
        ({"small": 2, "large": 20}, ", about $18.07\n", "At most $114.00, if"),
        ({"small": 2}, ", about $2.73 and what is not stated\n", "`usd_per_hour`) for `large`."),
        ({}, ", price not stated\n", "`usd_per_hour`) for `small`, `large`."),
        ({"small": 0, "large": 0}, ", no cost\n", "Done about"),
    ],
)
def test_the_price(prices: dict[str, float], headline: str, detail: str) -> None:
    """Machine time at the list's prices, expected and at most; what has none is named, never 0."""
    first, _, rest = summary(usual(), catalog(**prices), Request()).partition("\n")
    assert f"{first}\n".endswith(headline)
    assert detail in rest


def test_cost_by_hand() -> None:
    """Hours of each job on a machine of its class, times the class's price."""
    jobs = [
        job("small-1", asked("a/a"), estimated_s=1800, limit_s=3600),
        job("large-1", asked("b/b"), estimated_s=7200, limit_s=36_000),
    ]
    assert Cost.of(jobs, catalog(small=2, large=20)) == Cost(41, 202, ())
    assert Cost.of(jobs, catalog(large=20)) == Cost(40, 200, ("small",))
    assert Cost.of([], catalog()) == Cost(0, 0, ())


def test_reasons_in_common() -> None:
    """Reasons that differ in their particulars count together, those that do not are told whole."""
    runs = [asked(f"m/{n}", reason=f"too old: {n + 31} days, the limit is 30") for n in range(10)]
    runs += [asked(f"n/{n}", reason="needs more cores: 2 cores are next") for n in range(14)]
    page = summary(
        Plan(jobs=(job("small-1", *runs),), refused=(), skipped=()), catalog(), Request()
    )
    assert "| 14 | needs more cores: 2 cores are next |\n| 10 | too old |\n" in page
    assert (
        "**14 of 24 runs are due for the same reason:** needs more cores: 2 cores are next." in page
    )
    assert "run.py.jinja" not in page


def test_text_from_outside_is_no_markup() -> None:
    """Whatever a reason, a refusal or a note holds: no mention, no link, no tag, no new column."""
    evil = "a | b\n@someone <img src=x> [x](https://e.org) #12 `c` </details>"
    refusal = Refusal(failure=Failure.HARNESS, reason=evil)
    made = Plan(
        jobs=(job("small-1", asked("a/a", reason=evil)),),
        refused=(papers.refused("b/b", refusal=refusal, stack=NEURON, reason=evil),),
        skipped=(skipped("c/c", f"excluded, incompatible: {evil}"),),
    )
    page = summary(made, catalog(), Request(select=(evil,), stacks=(evil,)))
    for mark in ("@", "<img", "](", " #12 ", "`c`", "a | b", "https:"):
        assert mark not in page
    assert page.count("</details>") == page.count("<details>") == 1


def test_a_large_plan_stays_within_githubs_limit() -> None:
    """5 000 runs that are not due, and 3 000 that are: below 1 MiB, and what is cut is said."""
    runs = [asked(f"organisation/model-{n}", reason=OTHER_SCRIPT) for n in range(3000)]
    made = Plan(
        jobs=tuple(job(f"small-{n}", *runs[n * 5 : n * 5 + 5]) for n in range(600)),
        refused=(),
        skipped=tuple(
            skipped(f"org/other-{n}", "up to date: PASS on 2026-11-20") for n in range(5000)
        ),
    )
    page = summary(made, catalog(), Request())
    assert len(page.encode()) < 1024 * 1024
    assert f"{3000 - MAX_ROWS:,} more are in the plan's artifact." in page
    assert f"{5000 - MAX_ROWS:,} more are in the plan's artifact." in page
    assert page.startswith("## 3,000 runs in 600 jobs, about ")


def test_a_stack_without_image() -> None:
    """Its jobs run straight on the machine; the page says what must be there. Not on the CPU."""
    made = Plan(jobs=(job("small-1", asked("a/a", on=OLDER)),), refused=(), skipped=())
    assert "Stack older-torch names no image" in summary(made, catalog(), Request())
    cpu = papers.stack(Target.CPU)
    made = Plan(jobs=(job("laptop-1", asked("a/a", on=cpu)),), refused=(), skipped=())
    page = summary(made, catalog(), Request())
    assert "no image" not in page
    assert "Stack: transformers 5.24.0, torch 2.14.0." in page
