"""The harness itself: what a test of a workflow believes must be what the run did."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from tests.workflows import act
from tests.workflows.act import Outcome, World, action
from tests.workflows.process import execute

LIST = "models: []\n"


def _run(folder: Path, jobs: str, *, event: str = "push") -> Outcome:
    """What a workflow of these jobs does."""
    names = {name: action(name) for name in ("checkout", "upload-artifact", "download-artifact")}
    for name, pinned in names.items():
        jobs = jobs.replace(f"uses: {name}\n", f"uses: {pinned}\n")
    text = f"name: Trial\non: [{event}]\njobs:\n{jobs}"
    workflows = {".github/workflows/trial.yml": text.encode()}
    with World(folder, models=LIST, workflows=workflows) as world:
        return world.run(event, "trial.yml")


def _job(name: str, *steps: str, more: str = "") -> str:
    listed = "".join(f"      - {step}\n" for step in steps)
    return f"  {name}:\n    runs-on: ubuntu-latest\n{more}    steps:\n{listed}"


def test_outcome_tells_results_summaries_annotations_and_outputs(tmp_path: Path) -> None:
    """Each leg of a matrix has its own result, a skipped job has none, and what a step gave to the
    page, to the diff and to later steps is told for its job."""
    outcome = _run(
        tmp_path,
        _job(
            "legs",
            'run: echo "::error file=models.yaml,line=7,title=Oh::one%25%0Atwo"',
            'run: echo "# page" >> "$GITHUB_STEP_SUMMARY"',
            'id: given\n        run: echo "word=$LEG" >> "$GITHUB_OUTPUT"\n'
            "        env: {LEG: '${{ matrix.leg }}'}",
            "run: test \"$LEG\" != bad\n        env: {LEG: '${{ matrix.leg }}'}",
            more="    strategy: {fail-fast: false, matrix: {leg: [good, bad]}}\n",
        )
        + _job("after", "run: echo no", more="    needs: legs\n")
        + _job("always", "run: echo yes", more="    needs: legs\n    if: always()\n"),
    )
    results = outcome.results
    assert sorted(results.values()) == ["failure", "success", "success"]
    assert "after" not in results
    assert outcome.exit_code != 0
    bad = next(job for job in outcome.jobs if job.result == "failure")
    assert bad.summary == "# page\n"
    assert bad.outputs == {"given": {"word": "bad"}}
    (annotation,) = bad.annotations
    assert (annotation.file, annotation.line, annotation.title) == ("models.yaml", 7, "Oh")
    assert annotation.message == "one%\ntwo"
    assert outcome.job("always").text == "yes\n"


def test_artifacts_keep_trees_as_the_real_actions_do(tmp_path: Path) -> None:
    """A tree stands below the least common ancestor of the searched paths, which end before the
    first wildcard; hidden files stay behind; each artifact has a folder of its own; no match of a
    pattern is no error."""
    upload = "uses: upload-artifact\n        with: "
    download = "uses: download-artifact\n        with: "
    outcome = _run(
        tmp_path,
        _job(
            "give",
            "run: mkdir -p b/r/x/1 b/r/x/.h && touch b/plan b/ask b/r/x/1/record b/r/x/1/log",
            "run: touch b/r/x/1/.b b/r/x/.h/record",
            upload + "{name: one, path: b/plan}",
            upload + '{name: two, path: "b/plan\\nb/ask"}',
            upload + '{name: deep, path: "b/r/**/record"}',
            upload + '{name: whole, path: "b\\n!b/**/log"}',
            upload + "{name: none, path: c, if-no-files-found: warn}",
            upload + "{name: one, path: b/ask, overwrite: true}",
        )
        + _job(
            "take",
            download + "{name: two, path: named}",
            download + '{pattern: "[dw]*", path: all}',
            download + '{pattern: "nothing-*", path: empty}',
            download + '{pattern: "one", path: flat, merge-multiple: true}',
            "run: find . -type f | sort",
            more="    needs: give\n",
        ),
    )
    assert outcome.exit_code == 0, outcome.text
    assert outcome.job("take").text.splitlines()[-7:] == [
        "./all/deep/x/1/record",
        "./all/whole/ask",
        "./all/whole/plan",
        "./all/whole/r/x/1/record",
        "./flat/ask",
        "./named/ask",
        "./named/plan",
    ]
    (warning,) = outcome.job("give").annotations
    assert warning.level == "warning"


def test_artifacts_are_refused_as_by_the_real_actions(tmp_path: Path) -> None:
    """A name is unique within a run, both names are fit for every file system, and a name that is
    asked for exists."""
    upload = "uses: upload-artifact\n        with: "
    refused = {
        "twice": (upload + "{name: same, path: f}", "(409) Conflict"),
        "name": (upload + "{name: a/b, path: f}", "name is not valid"),
        "path": (upload + "{name: a, path: 'f:1'}", "path for one of the files"),
        "empty": (upload + "{path: no, if-no-files-found: error}", "No files were found"),
        "absent": (
            "uses: download-artifact\n        with: {name: no}",
            "Artifact not found for name: no",
        ),
    }
    # One after another: act may miss a stand-in when several jobs look for theirs at once.
    for name, (step, message) in refused.items():
        before = [step] if name == "twice" else []
        outcome = _run(tmp_path / name, _job(name, "run: touch f f:1", *before, step))
        assert outcome.job(name).result == "failure"
        assert outcome.job(name).annotations, outcome.text
        assert message in outcome.job(name).annotations[-1].message


def test_checkout_is_the_commit_that_started_the_run(tmp_path: Path) -> None:
    """Of a pull request that is the merge commit, with as much history as asked for; the token
    stays in the clone only where it is to persist, and nobody pushes without it."""
    show = (
        "run: git rev-list --count HEAD && git show --no-patch --format=%s &&"
        " git config --get-regexp extraheader"
    )
    push = (
        "run: git -c user.name=n -c user.email=e commit -q --allow-empty -m mine &&"
        " git push -q origin HEAD:refs/heads/pushed"
    )
    workflow = (
        "name: Trial\non: [pull_request]\njobs:\n"
        + _job(
            "shallow",
            f"uses: {action('checkout')}\n        with: {{persist-credentials: false}}",
            f"{show} || true",  # git config ends with 1 where there is no such setting: wanted
            push,
        )
        + _job(
            "deep",
            f"uses: {action('checkout')}\n        with: {{fetch-depth: 2}}",
            show,
            push,
        )
    )
    workflows = {".github/workflows/trial.yml": workflow.encode()}
    with World(tmp_path, models=LIST, workflows=workflows) as world:
        head = world.origin.write({"a": "1"}, branch="topic")
        main = world.origin.write({"b": "1"})
        merged = world.merge(5, head)
        outcome = world.run(
            "pull_request",
            "trial.yml",
            ref="refs/pull/5/merge",
            payload={"number": 5, "pull_request": {"number": 5, "head": {"sha": head}}},
        )
        assert outcome.results == {"shallow": "failure", "deep": "success"}, outcome.text
        shallow = outcome.job("shallow").text.splitlines()
        assert shallow[:2] == ["1", f"Merge {head} into {main}"]
        deep = outcome.job("deep").text.splitlines()
        assert deep[0] == "3"
        assert "AUTHORIZATION: basic" in deep[2]
        assert world.github.token not in outcome.text
        assert world.server.refused == 1
        assert world.origin.parents("pushed") == [merged]


def test_what_stands_still_is_ended_and_what_waits_is_not(tmp_path: Path) -> None:
    """A process that neither says anything nor waits for another one is stuck; one whose child is
    as silent is waited for; with no end in time the child is named and gone."""
    around = dict(os.environ)
    log = tmp_path / "log"
    stuck = execute(
        ["sh", "-c", "echo begun; exec sleep 60"],
        cwd=tmp_path,
        env=around,
        log=log,
        timeout=60,
        still=5,
    )
    assert (stuck.stuck, stuck.exit_code, stuck.out) == (True, -3, "begun\n")
    # Its child is waited for longer than the looks that it has to start one and to end.
    waits = ["sh", "-c", "setsid sleep 8; echo end >&2; exit 7"]
    done = execute(waits, cwd=tmp_path, env=around, log=log, timeout=60, still=5)
    assert (done.stuck, done.exit_code, done.err) == (False, 7, "end\n")
    endless = ["sh", "-c", "echo begun; setsid sleep 4321; true"]
    with pytest.raises(AssertionError, match=r"(?s)no end after 5 s.*sleep 4321.*begun"):
        execute(endless, cwd=tmp_path, env=around, log=log, timeout=5, still=60)
    until = time.monotonic() + 20
    while _running("sleep", "4321") and time.monotonic() < until:
        time.sleep(0.1)
    assert not _running("sleep", "4321")


def _running(*command: str) -> bool:
    return any(one.info["cmdline"] == [*command] for one in psutil.process_iter(["cmdline"]))


def test_act_is_started_again_when_it_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run begins from the same main, without the artifacts of the first start."""
    started = tmp_path / "started"
    stands = tmp_path / "act"
    stands.write_text(
        f"""#!/bin/sh
echo start >> {started}
[ $(wc -l < {started}) = 1 ] || exec {act._ACT} "$@"
mkdir -p "$ARTIFACTS/1/left"
git --git-dir={tmp_path}/world/server/origin.git update-ref -d refs/heads/main
exec sleep 60
"""
    )
    stands.chmod(0o755)
    monkeypatch.setattr(act, "_ACT", stands)
    monkeypatch.setattr(act, "_STILL", 8.0)  # the second start is act itself, with pauses
    outcome = _run(tmp_path / "world", _job("one", "run: echo yes"))
    assert outcome.results == {"one": "success"}
    assert started.read_text() == "start\nstart\n"
    assert not (tmp_path / "world" / "artifacts" / "1" / "left").exists()
