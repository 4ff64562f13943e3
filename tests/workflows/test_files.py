"""What the workflow files say, without running them: who may do what, and what may run where."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.catalog import load
from pipeline.words import Target
from tests.workflows.act import ROOT, STAND_INS, copied_files, pinned_actions, workflow_files

WORKFLOWS = sorted(path for path in workflow_files() if "/workflows/" in path)
ACTIONS = sorted(path for path in workflow_files() if path.endswith("/action.yml"))
HOSTED = "ubuntu-latest"
READ_TOKEN = "HF_READ_TOKEN"  # noqa: S105 -- the secret's name

OTHER_RUNS = {
    "make lint": "what a contributor runs; it is a target of the Makefile, not shell logic",
    "make test-fast": "as lint",
    "make wheel": "as lint",
    "$GITHUB_ACTION_PATH/install.sh": "puts `qualify` on PATH, so it cannot be one of its commands",
    "$GITHUB_ACTION_PATH/gate.sh": "installs `qualify` where another repository's job has none",
    'gh release create "$TAG" --repo "$GITHUB_REPOSITORY" --verify-tag --generate-notes'
    " wheel/*.whl": "one call of a program that hosted machines have",
}


class _Loader(yaml.SafeLoader):
    """YAML as GitHub reads it: `on` is a word."""


_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:bool"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@cache
def _read(path: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.load(workflow_files()[path], _Loader)  # noqa: S506 -- a SafeLoader
    return read


def _triggers(path: str) -> set[str]:
    on = _read(path)["on"]
    return {on} if isinstance(on, str) else set(on)


def _jobs(path: str) -> dict[str, dict[str, Any]]:
    jobs: dict[str, dict[str, Any]] = _read(path)["jobs"]
    return jobs


def _all_jobs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in _jobs(path).items():
            yield path, name, job


def _steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, _, job in _all_jobs():
        yield from ((path, step) for step in job.get("steps", ()))
    for path in ACTIONS:
        yield from ((path, step) for step in _read(path)["runs"]["steps"])


def _on_device(job: dict[str, Any]) -> bool:
    """Whether the job may run on a machine that is not GitHub's own."""
    return "runs-on" in job and job["runs-on"] != HOSTED


def _called(path: str) -> set[str]:
    """The file and all that its jobs call."""
    found = {path}
    for job in _jobs(path).values():
        if "uses" in job:
            found |= _called(job["uses"].removeprefix("$/").removeprefix("./"))
    return found


@pytest.mark.parametrize("path", WORKFLOWS)
def test_nothing_is_permitted_but_what_a_job_asks_for(path: str) -> None:
    """The file permits nothing; each job says what it needs, callers of other files too."""
    assert _read(path)["permissions"] == {}
    for name, job in _jobs(path).items():
        assert isinstance(job.get("permissions"), dict), name
        if "uses" not in job:
            assert "timeout-minutes" in job, name


def test_actions_are_pinned() -> None:
    """Every action is a local one, or pinned to a commit with its version beside it, and one
    action has one commit everywhere: whoever moves a tag changes nothing here."""
    pins = defaultdict(set)
    for path, content in workflow_files().items():
        for line in content.decode().splitlines():
            if not (found := re.match(r"\s*(?:- )?uses: (.*)", line)):
                continue
            if found[1].startswith(("$/", "./")):
                assert (ROOT / found[1].partition("/")[2]).exists(), (path, line)
                continue
            pinned = re.fullmatch(r"([\w-]+/[\w-]+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+", found[1])
            assert pinned, (path, line)
            pins[pinned[1]].add(found[1])
    assert pins
    assert all(len(commits) == 1 for commits in pins.values()), pins


def test_steps_run_one_command_and_no_text_from_outside() -> None:
    """A script is one line, a `qualify` command or one of the listed others, and what it is told
    comes as variables: an expression inside of it would be code."""
    runs = [(path, step["run"]) for path, step in _steps() if "run" in step]
    assert runs
    for path, run in runs:
        assert "${{" not in run, path
        assert "\n" not in run.strip(), path
        assert run.startswith("qualify ") or run in OTHER_RUNS, (path, run)
    assert {run for _, run in runs} >= set(OTHER_RUNS), "an exception that nothing needs"


def test_pull_requests_reach_no_machine_of_ours() -> None:
    """No file that a pull request starts names a label of a device's machines, takes labels from a
    matrix, or calls a file that does."""
    labels = {
        label
        for runner in load(ROOT / "models.yaml").runners.values()
        if runner.target is Target.NEURON
        for label in runner.labels
    }
    assert labels
    started = [
        path
        for path in WORKFLOWS
        if any(trigger.startswith("pull_request") for trigger in _triggers(path))
    ]
    assert started
    for path in set().union(*map(_called, started)):
        text = workflow_files()[path].decode()
        assert "matrix.labels" not in text
        assert not [label for label in labels if re.search(rf"\b{re.escape(label)}\b", text)]
        assert not [name for name, job in _jobs(path).items() if _on_device(job)]
        assert "secrets" not in text


def test_device_jobs_can_write_nothing() -> None:
    """A job on a machine of ours may read the repository and one token of the Hub, and no more;
    neither may it run for another branch."""
    jobs = [(path, job) for path, _, job in _all_jobs() if _on_device(job)]
    assert jobs
    for path, job in jobs:
        assert job["permissions"] == {"contents": "read"}, path
        told = yaml.safe_dump(job)
        assert set(re.findall(r"secrets\.(\w+)", told)) <= {READ_TOKEN}, path
        assert "github.token" not in told, path
        assert "github.ref == 'refs/heads/main'" in job["if"], path
    action = workflow_files()[".github/actions/run-job/action.yml"].decode()
    assert "secrets" not in action
    assert "token" not in action


def test_checkouts_keep_no_token() -> None:
    """The job's token is for the steps that name it: no checkout leaves it in a file."""
    checkouts = [step for _, step in _steps() if "/checkout@" in step.get("uses", "")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] == "false" for step in checkouts)


def test_publishers_wait_for_each_other() -> None:
    """Of runs that wait for the same, none is dropped: GitHub would cancel the older one, and what
    it had measured with it."""
    groups = [
        (path, group)
        for path in WORKFLOWS
        for group in [_read(path).get("concurrency"), *map(_group, _jobs(path).values())]
        if group and group["group"] in ("campaign", "publish", "proposal")
    ]
    assert {group["group"] for _, group in groups} == {"campaign", "publish", "proposal"}
    for path, group in groups:
        assert group["queue"] == "max", path
        assert group["cancel-in-progress"] == "false", path


def _group(job: dict[str, Any]) -> dict[str, Any] | None:
    return job.get("concurrency")


def test_schedules_stand_apart() -> None:
    """GitHub disables a file with a schedule, whole, when its repository has been quiet: campaigns
    by hand and checks of pull requests must not be in one."""
    scheduled = {Path(path).name for path in WORKFLOWS if "schedule" in _triggers(path)}
    assert scheduled == {"schedule.yml", "discover.yml"}
    crons = [
        entry["cron"]
        for path in WORKFLOWS
        if "schedule" in _triggers(path)
        for entry in _read(path)["on"]["schedule"]
    ]
    # At full hours everybody's start, and GitHub drops some.
    assert all(cron.split()[0] not in ("0", "30") for cron in crons)
    assert len(set(crons)) == len(crons)


def test_conditions_name_schedules_that_exist() -> None:
    """A job that is for one of several schedules names it as `on` does."""
    for path in WORKFLOWS:
        text = workflow_files()[path].decode()
        named = set(re.findall(r"github\.event\.schedule [!=]= '([^']+)'", text))
        listed = (
            {entry["cron"] for entry in _read(path)["on"].get("schedule", ())} if named else set()
        )
        assert named <= listed, path


def test_stand_ins_know_every_input() -> None:
    """A stand-in takes the inputs that the workflows give to its action: an unknown one would have
    no effect here, and some on GitHub."""
    names = pinned_actions(workflow_files().values())
    for path, step in _steps():
        name = names.get(step.get("uses", ""))
        if name is None:
            continue
        stand_in = STAND_INS / name.replace("-", "_") / "action.yml"
        inputs = yaml.safe_load(stand_in.read_text())["inputs"]
        assert set(step.get("with", ())) <= set(inputs), (path, name)
    real = _read(".github/actions/install/action.yml")["inputs"]
    stand_in_inputs = yaml.safe_load((STAND_INS / "install" / "action.yml").read_text())["inputs"]
    assert set(real) == set(stand_in_inputs)


def test_copies_for_act_are_the_files() -> None:
    """What act executes is what GitHub does, line for line, but for keys that act does not know
    and the action that installs from a package index."""
    files, copies = workflow_files(), copied_files()
    install = ".github/actions/install/"
    assert {path for path in files if not path.startswith(install)} == {
        path for path in copies if not path.startswith(install)
    }
    for path, copy in copies.items():
        if path.startswith(install):
            continue
        kept = [
            line.replace("uses: $/", "uses: ./")
            for line in files[path].decode().splitlines()
            if line.strip() not in ("queue: max", "deployment: false", "cache-mode: none")
        ]
        assert copy.decode().splitlines() == kept, path


def test_every_exception_has_a_reason() -> None:
    """Where a linter is told to look away, the line says why."""
    for path, content in workflow_files().items():
        for line in content.decode().splitlines():
            for comment in re.findall(r"#\s*(?:zizmor|actionlint|shellcheck)\b.*", line):
                assert re.search(r"ignore\[[\w,-]+\] \w.{10,}", comment), (path, line)


@pytest.mark.parametrize(
    "command",
    [
        ("actionlint", *WORKFLOWS),
        ("zizmor", "--quiet", "--offline", "--persona", "pedantic", ".github"),
        ("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS),
        ("check-jsonschema", "--builtin-schema", "vendor.github-actions", *ACTIONS),
    ],
    ids=["actionlint", "zizmor", "schema of workflows", "schema of actions"],
)
def test_linters_find_nothing(command: tuple[str, ...]) -> None:
    """Neither syntax, nor types of expressions, nor what is known to be exploited."""
    program, *arguments = command
    done = subprocess.run(
        [Path(sys.executable).with_name(program), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
