"""What GitHub is told of the jobs of a plan, within GitHub's limits."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.actions.matrix import (
    MAX_MATRIX,
    MAX_MINUTES,
    MAX_OUTPUT_BYTES,
    MAX_WAIT_S,
    Entry,
    entries,
    outputs,
    startable,
)
from pipeline.actions.publishing import read_plan
from pipeline.catalog import Catalog, load
from pipeline.errors import RecordError, UsageError
from pipeline.record import Job, Plan, StackVersions, write
from pipeline.words import Target
from tests import papers
from tests.conftest import ROOT

IMAGE = "example.org/neuron:2.33"
NEURON = papers.stack(image=IMAGE, nki="0.7.0")
CPU = papers.stack(Target.CPU, torch="2.13.0", image=IMAGE)
HOUR = 3600


def catalog(**runners: Mapping[str, Any]) -> Catalog:
    """A list with the classes `small`, `large` and `laptop`; `runners` add or replace some."""
    classes = {
        "small": {"labels": ["self-hosted", "trn2-3"], "cores": 4, "host_gib": 124},
        "large": {"labels": ["self-hosted", "trn2-48"], "cores": 64, "host_gib": 2048},
        "laptop": {"labels": ["ubuntu-latest"], "cores": 4, "host_gib": 16, "target": "cpu"},
        **runners,
    }
    return Catalog.model_validate(
        {
            "defaults": {
                "stacks": ["sdk"],
                "prompts": {"text-generation": list(papers.PROMPTS)},
                "limit_minutes": 240,
                "margin": {"gib": 1, "fraction": 0},
            },
            "runners": {name: {"core_gib": 24, **fields} for name, fields in classes.items()},
            "stacks": {"sdk": {"target": "neuron", "library_version": "5.24.0", "torch": "2.14.0"}},
            "models": [{"id": "a/a", "task": "text-generation"}],
        }
    )


def job(runner: str = "small", number: int = 1, on: StackVersions = NEURON, **changes: Any) -> Job:
    packages = changes.pop("extra_packages", ())
    run = papers.run(f"m/{number}", stack=on, runner=runner, extra_packages=packages)
    return papers.job([run], job_id=f"{runner}-{number}", **changes)


def plan(*jobs: Job, refused: int = 0) -> Plan:
    return Plan(
        jobs=jobs,
        refused=tuple(papers.refused(f"r/{number}") for number in range(refused)),
        skipped=(),
    )


def entry(made: Job, **runners: Mapping[str, Any]) -> Entry:
    (found,) = entries([made], catalog(**runners))
    return found


# --- one entry ----------------------------------------------------------------------------------


def test_a_job_on_the_device() -> None:
    """The stack's image with the machine's devices by name; its limit in whole minutes, never less;
    only what the image lacks to be installed."""
    assert entry(job(limit_s=5401, extra_packages=("einops==0.8.1", "timm"))) == Entry(
        id="small-1",
        labels=("self-hosted", "trn2-3"),
        image=IMAGE,
        options="--device=/dev/neuron0 --init --shm-size=62g",
        minutes=91,
        packages="transformers==5.24.0 einops==0.8.1 timm",
    )


def test_a_job_on_the_cpu() -> None:
    """No container, whatever the stack names, and torch is installed, since nothing is there."""
    found = entry(job("laptop", on=CPU))
    assert (found.image, found.packages) == ("", "torch==2.13.0 transformers==5.24.0")
    assert found.options == "--init --shm-size=8g"
    assert found.labels == ("ubuntu-latest",)


def test_a_device_stack_without_image() -> None:
    """The machine itself has the device's packages: none is installed over them."""
    found = entry(job(on=papers.stack()))
    assert (found.image, found.packages) == ("", "transformers==5.24.0")
    assert "--device=/dev/neuron0" in found.options


@pytest.mark.parametrize(
    ("cores", "devices"), [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4), (32, 8), (64, 16)]
)
def test_all_devices_of_the_machine(cores: int, devices: int) -> None:
    """Four cores a device, the first device first, without a gap; a part of one needs all of it."""
    found = entry(job(), small={"labels": ["x"], "cores": cores, "host_gib": 124})
    words = [word for word in found.options.split() if word.startswith("--device")]
    assert words == [f"--device=/dev/neuron{number}" for number in range(devices)]


@pytest.mark.parametrize("runner", ["small", "large", "laptop"])
def test_options_are_never_empty_nor_privileged(runner: str) -> None:
    """GitHub refuses empty options; a container gets devices, and no rights over the host."""
    options = entry(job(runner, on=CPU if runner == "laptop" else NEURON)).options
    assert options.split()[-2] == "--init"
    assert not [word for word in ("--privileged", "host", "--cap-add") if word in options]


def test_a_small_host_has_shared_memory() -> None:
    """At least 1 GiB: `--shm-size=0g` would be Docker's 64 MB."""
    fields = {"labels": ["x"], "cores": 1, "host_gib": 1, "target": "cpu"}
    assert entry(job("laptop", on=CPU), laptop=fields).options == "--init --shm-size=1g"


@pytest.mark.parametrize(
    ("limit_s", "minutes"), [(1, 1), (60, 1), (61, 2), (10**7, MAX_MINUTES), (432_000, MAX_MINUTES)]
)
def test_minutes(limit_s: int, minutes: int) -> None:
    """Rounded up, and five days at most, which is all that GitHub gives a job."""
    assert entry(job(limit_s=limit_s)).minutes == minutes


def test_labels_are_the_lists() -> None:
    """Where a job goes is what the list says now, not what a plan's file says."""
    assert entry(job(labels=("elsewhere",))).labels == ("self-hosted", "trn2-3")


def test_packages_are_words() -> None:
    """Split at spaces they are pip's requirements, bounds and extras included."""
    asked = ("einops>=0.8,<1", "timm[all]==1.*")
    words = entry(job(extra_packages=asked)).packages.split()
    assert words == ["transformers==5.24.0", *asked]
    assert shlex.join(words) != " ".join(words)  # so never through a shell unquoted


def test_the_shipped_list() -> None:
    """Every stack that ships has an entry on every class of its target."""
    shipped = load(ROOT / "models.yaml")
    for name in shipped.stacks:
        stack = shipped.stack_versions(name)
        for runner, has in shipped.runners.items():
            if has.target is stack.target:
                (found,) = entries([job(runner, on=stack)], shipped)
                assert found.image == (stack.image or "" if stack.target is not Target.CPU else "")
                assert found.packages.endswith(f"transformers=={stack.library_version}")


# --- outputs ------------------------------------------------------------------------------------


def told(made: Plan) -> tuple[list[Any], list[list[Any]], int]:
    found = outputs(made, catalog())
    assert sorted(found) == ["digest", "jobs", "runs", "slices"]
    return json.loads(found["jobs"]), json.loads(found["slices"]), int(found["runs"])


def test_outputs_of_nothing() -> None:
    """The very text that workflows compare with: `[]`."""
    found = outputs(plan(), catalog())
    assert (found["jobs"], found["slices"], found["runs"]) == ("[]", "[]", "0")


def test_the_digest_is_that_of_the_plans_file(tmp_path: Path) -> None:
    """Whoever reads the plan's artifact can tell whether it is the one that was made."""
    made = plan(job())
    write(made, tmp_path / "plan.json")
    digest = outputs(made, catalog())["digest"]
    assert read_plan(tmp_path / "plan.json", digest) == made
    with pytest.raises(RecordError, match="not the file that was made"):
        read_plan(tmp_path / "plan.json", outputs(plan(job(), job("large")), catalog())["digest"])


def test_outputs_of_refused_runs() -> None:
    """They need no machine, and must end in rows all the same."""
    assert told(plan(refused=3)) == ([], [], 3)


def test_outputs_of_a_few_jobs() -> None:
    """A list of entries; runs count those that are refused, too."""
    jobs, slices, runs = told(plan(job(), job("large"), refused=1))
    assert [one["id"] for one in jobs] == ["small-1", "large-1"]
    assert sorted(jobs[0]) == ["id", "image", "labels", "minutes", "options", "packages"]
    assert (slices, runs) == ([], 3)


@pytest.mark.parametrize(("count", "sizes"), [(256, []), (257, [256, 1]), (600, [256, 256, 88])])
def test_more_jobs_than_a_matrix_holds(count: int, sizes: list[int]) -> None:
    """Above 256 they come in slices, each job in one, in order; `jobs` is empty then."""
    made = plan(*(job("small", number) for number in range(count)))
    jobs, slices, runs = told(made)
    assert [len(one) for one in slices] == sizes
    assert len(jobs) == (0 if sizes else count)
    ids = [one["id"] for part in [jobs, *slices] for one in part]
    assert ids == [one.job_id for one in made.jobs]
    assert max(map(len, [jobs, *slices])) <= MAX_MATRIX
    assert runs == count


def test_six_hundred_jobs_of_the_largest_class_pass() -> None:
    """Their entries, the longest there are, are below what GitHub lets pass between jobs."""
    made = plan(*(job("large", number) for number in range(600)))
    found = outputs(made, catalog())
    # GitHub counts UTF-16.
    assert sum(len(value.encode("utf-16-le")) for value in found.values()) < 1_000_000


def test_too_many_jobs() -> None:
    """What GitHub would drop is an error with a way out, not an empty matrix."""
    made = plan(*(job("large", number) for number in range(2000)))
    with pytest.raises(UsageError) as raised:
        outputs(made, catalog())
    assert "2000 jobs are more than one run of a workflow can start" in str(raised.value)
    assert f"{MAX_OUTPUT_BYTES:,} may pass" in str(raised.value)
    assert "set a budget, or select fewer models" in raised.value.remedy


# --- waiting for a machine ----------------------------------------------------------------------


def test_jobs_that_would_wait_too_long_are_left_out() -> None:
    """GitHub cancels what waits a day; left out, its runs are due again and say why."""
    jobs = [job("small", number, estimated_s=11 * HOUR) for number in range(1, 5)]
    kept = startable(plan(*jobs, job("large")), catalog())
    assert [one.job_id for one in kept.jobs] == ["small-1", "small-2", "large-1"]
    assert [skip.run_id for skip in kept.skipped] == [
        run.run_id for one in jobs[2:] for run in one.runs
    ]
    assert kept.skipped[0].reason == (
        "due (never run), but no small is free for 22 h, and no job can wait so long"
    )


def test_every_machine_of_a_class_takes_jobs() -> None:
    """Two machines start twice as many before the limit; a job at the limit itself still starts."""
    jobs = [job("small", number, estimated_s=MAX_WAIT_S) for number in range(1, 7)]
    two = {"labels": ["self-hosted", "x"], "cores": 4, "host_gib": 124, "machines": 2}
    kept = startable(plan(*jobs), catalog(small=two))
    assert [one.job_id for one in kept.jobs] == ["small-1", "small-2", "small-3", "small-4"]


def test_hosted_machines_are_never_short() -> None:
    """GitHub's own machines are not counted by the list."""
    jobs = [job("laptop", number, CPU, estimated_s=11 * HOUR) for number in range(9)]
    made = plan(*jobs, refused=1)
    assert startable(made, catalog()) == made
