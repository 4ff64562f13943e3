"""What a pull request is told of the runs that somebody asked for: one comment, one check.

Artifacts are taken and records judged by the code that publishes: the same sieve, a PASS proved
again, ERROR for what is lost. Only the results folder is a temporary one: nothing is published.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline import diagnosis, phrases, publish
from pipeline import results as store
from pipeline.actions.artifacts import collect
from pipeline.actions.github import Conclusion, GitHub
from pipeline.actions.on_demand import Ask, declined_lines, heard
from pipeline.actions.on_demand_comment import Answer, Line, conversation, headline, post, report
from pipeline.actions.workflow import Workflow
from pipeline.errors import RecordError
from pipeline.markdown import text
from pipeline.publish import Taken
from pipeline.record import Plan, Run, StackVersions
from pipeline.rows import clean
from pipeline.words import Failure, Parallelism, Result, Stage

CHECK = "Qualified on demand"
"""Name of the check. It is no gate: a required check that nobody asked for stays open for ever."""

_WHY, _SAID = 300, 160


@dataclass(frozen=True)
class _Nothing:
    """No wishes: what the page of the temporary results says is read by nobody."""

    models: tuple[Any, ...] = ()
    excluded: tuple[Any, ...] = ()


def answer(
    workflow: Workflow, github: GitHub, asked: Ask, plan: Plan, artifacts: Path, now: datetime
) -> str:
    """Judge what is in `artifacts`, and say it on the pull request and its commit; the comment's
    URL.

    RecordError when `asked` is not what this workflow's event asked for, ResultsError when the plan
    is for the simulator.
    """
    _of_event(workflow, asked)
    found = collect(artifacts, plan, attempt=workflow.attempt, run_url=workflow.run_url, now=now)
    told = judged(workflow, asked, plan, found.taken, now)
    summary = "\n".join(report(told))
    parts = [f"### {headline(told)}", summary]
    if found.taken.problems:
        parts += ["Not used of what the machines handed back:"]
        parts += ["\n".join(f"- {text(one, 400)}" for one in found.taken.problems)]
    workflow.summary("\n\n".join(parts))
    url = post(github, asked.number, conversation(github, asked.number).answered(told))
    github.check(
        asked.sha,
        CHECK,
        conclusion=conclusion(told),
        title=headline(told),
        summary=summary,
        details_url=workflow.run_url,
    )
    return url


def _of_event(workflow: Workflow, asked: Ask) -> None:
    """Device machines can write artifacts of this run, and this one says where an answer goes."""
    wish = heard(workflow)
    if wish is None or (wish.number, wish.commit) != (asked.number, asked.sha):
        raise RecordError(
            f"the request is for pull request {asked.number} at {asked.sha}, and that is not what "
            "this run's event asked for",
            remedy="ask again; if this comes back, look who wrote the artifact `plan` of the run",
        )


def judged(workflow: Workflow, asked: Ask, plan: Plan, taken: Taken, now: datetime) -> Answer:
    """What became of every model that was asked for."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        publish.derive(
            taken,
            results=results,
            table=Path(folder) / "page.md",
            catalog_view=_Nothing(),
            plan=plan,
            now=now,
        )
        rows = {row["run_id"]: row for row in store.read_current(results)}
    runs = list(plan.runs)
    stacks = {run.stack.name: run.stack for run in runs}
    return Answer(
        sha=asked.sha,
        asked_by=asked.asked_by,
        asked_at=asked.asked_at,
        run_url=workflow.run_url,
        stacks={name: _in_words(stack) for name, stack in stacks.items()},
        targets=tuple(dict.fromkeys(stack.target for stack in stacks.values())),
        lines=(*(_line(run, rows[run.run_id]) for run in runs), *declined_lines(asked)),
    )


def conclusion(found: Answer) -> Conclusion:
    """success: all that was asked for passed. failure: something FAILed. neutral: neither, since
    ERROR says nothing of a model, nor does what was not run."""
    results = {line.result for line in found.lines}
    if Result.FAIL in results:
        return "failure"
    return "success" if results == {Result.PASS} else "neutral"


def _in_words(stack: StackVersions) -> str:
    named = {
        "neuronx-cc": stack.neuronx_cc,
        "torch-neuronx": stack.torch_neuronx,
        "torch": stack.torch,
        stack.library: stack.library_version,
        "nki": stack.nki,
        "runtime": stack.runtime,
        "driver": stack.driver,
        "Python": stack.python,
        "image": stack.image,
    }
    return ", ".join(f"{name} {version}" for name, version in named.items() if version)


def _line(run: Run, row: Mapping[str, Any]) -> Line:
    if run.refusal:
        return Line(
            model_id=run.model_id,
            revision=run.revision,
            stack=run.stack.name,
            failure=run.refusal.failure,
            why=run.refusal.reason,
        )
    failure = Failure(row["failure"]) if row["failure"] else None
    said = row["generated_text"] or [""]
    return Line(
        model_id=run.model_id,
        revision=run.revision,
        stack=run.stack.name,
        result=Result(row["result"]),
        failure=failure,
        stage=Stage(row["stage"]),
        cores=row["neuron_cores"],
        parallelism=Parallelism(row["parallelism"]) if row["parallelism"] else None,
        wall_s=row["wall_s"],
        check=phrases.check(row),
        why=_line_of(phrases.cause(row) or (failure.meaning if failure else ""), _WHY),
        remedy=_line_of(_remedy(row, failure), _WHY),
        said=_line_of(said[0], _SAID),
    )


def _remedy(row: Mapping[str, Any], failure: Failure | None) -> str:
    if signature := diagnosis.known(row["signature"]):
        return signature.remedy
    if failure is not None and failure.result is Result.ERROR:
        return "ask again once the machines are in order"
    return ""


def _line_of(told: str, length: int) -> str:
    """One line of at most so many characters, none of which steers a terminal or hides others."""
    line = " ".join(clean(told).split())
    return line if len(line) <= length else f"{line[: length - 3].rstrip()}..."
