"""Hardware time for an open pull request: who asks for what, and what is taken from it.

The order is the guard. The event is data of whoever sent it. The asker's permission is read before
anything of the pull request, the commit that the asker named is held against the pull request's
head before a file is read, and of that commit nothing but the list is read, as text. Of the list
nothing but model entries is taken; runner classes, stacks, prompts and all else stay those of this
checkout, and so does every line of code. Only the plan goes on from here, so what is pushed to the
pull request afterwards changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import yaml
from pydantic import AwareDatetime, Field

from pipeline import catalog as lists
from pipeline.actions import matrix, plan_summary
from pipeline.actions.github import GitHub
from pipeline.actions.on_demand_comment import (
    Answer,
    Commit,
    Line,
    Notice,
    conversation,
    headline,
    post,
    report,
)
from pipeline.actions.workflow import Workflow
from pipeline.catalog import Catalog, InvalidCatalog, Model
from pipeline.catalog_problems import Problem
from pipeline.changes import compare
from pipeline.errors import GitHubError, UsageError
from pipeline.markdown import code, text
from pipeline.plan import Request
from pipeline.record import SCHEMA_VERSION, Plan
from pipeline.record.base import Name, Paper, ShortText
from pipeline.words import RunId

COMMAND = "/qualify"
LIST = "models.yaml"

MAX_LIST_BYTES = 512 * 1024
"""Bytes of the list that is read: a thousand entries with notes are below 200 kB, and the loader
needs seconds for hostile YAML of this size."""

MAX_MODELS = 10
"""Entries of one ask: it is for a look at a change, and holds machines that the campaign waits for.
More of them are better merged, planned by age and held to a budget."""

Planner = Callable[[Catalog, Sequence[str]], Plan]

NO_RUNS = {"jobs": "[]", "slices": "[]", "runs": "0", "digest": "", "number": "", "sha": ""}
"""Outputs of the step when nothing is to be run."""

_MAX_PROBLEMS = 5
_NOTHING = Plan(jobs=(), refused=(), skipped=())
_COMMAND = re.compile(rf"{COMMAND}\s+([0-9a-f]{{40}})", re.ASCII | re.IGNORECASE)
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Declined(Paper):
    """An entry of the pull request's list that is not run, and why."""

    model_id: Name
    reason: ShortText


class Ask(Paper):
    """What was asked for and taken: build/request.json. models: ids of the entries to run."""

    schema_version: int = SCHEMA_VERSION
    number: Annotated[int, Field(ge=1)]
    sha: Commit
    asked_by: Name
    asked_at: AwareDatetime
    models: tuple[Name, ...]
    declined: tuple[Declined, ...] = ()


@dataclass(frozen=True)
class Wish:
    """Who asks for a commit of which pull request; commit None: the command names none."""

    number: int
    commit: str | None
    asker: str


@dataclass(frozen=True)
class Taken:
    """catalog: this checkout's list with the entries taken; models: their ids."""

    catalog: Catalog
    models: tuple[str, ...]
    declined: tuple[Declined, ...]


class NotTaken(Exception):
    """An ask is turned down. told: whether the pull request gets an answer to it.

    Who may not ask gets none there: anybody can comment, and no comment is to make us write one.
    """

    def __init__(self, reason: str, *, told: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.told = told


# --- who asks -----------------------------------------------------------------------------------


def heard(workflow: Workflow) -> Wish | None:
    """The wish that the event holds; None: it asks for nothing.

    A comment counts when it is new, on a pull request, and its first line begins with `/qualify`.
    UsageError for a dispatch whose inputs are no number and no commit.
    """
    event = workflow.event
    if workflow.event_name == "workflow_dispatch":
        number, commit = (_text(event, "inputs", name).strip() for name in ("number", "commit"))
        if not re.fullmatch(r"[1-9][0-9]{0,9}", number, re.ASCII):
            raise UsageError("the input `number` is not that of a pull request")
        if not _COMMIT.fullmatch(commit.lower()):
            raise UsageError("the input `commit` is not a full commit of 40 hexadecimal digits")
        return Wish(int(number), commit.lower(), _text(event, "sender", "login"))
    number_of, pull = _at(event, "issue", "number"), _at(event, "issue", "pull_request")
    body = _text(event, "comment", "body")
    first = body.splitlines()[0].strip() if body.strip() else ""
    if (
        workflow.event_name != "issue_comment"
        or event.get("action") != "created"
        or pull is None
        or type(number_of) is not int
        or not first.startswith(COMMAND)
    ):
        return None
    found = _COMMAND.fullmatch(first)
    asker = _text(event, "comment", "user", "login")
    return Wish(number_of, found[1].lower() if found else None, asker)


def _at(event: Mapping[str, Any], *keys: str) -> object:
    found: object = event
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _text(event: Mapping[str, Any], *keys: str) -> str:
    found = _at(event, *keys)
    return found if isinstance(found, str) else ""


# --- what is taken ------------------------------------------------------------------------------


def take(wish: Wish, github: GitHub, catalog: Catalog) -> Taken:
    """The entries that the wish's commit adds or alters, compared with `catalog`, this checkout's.

    NotTaken when the asker may not ask, the commit is not the head of an open pull request, its
    list is not valid, or adds and alters nothing, or more than MAX_MODELS. GitHubError when the
    permission or the pull request cannot be read.
    """
    allowed = github.permission(wish.asker)
    if not allowed.writes:
        raise NotTaken(
            f"{wish.asker} may not ask for hardware time: write access is needed, and GitHub says "
            f"{allowed}",
            told=False,
        )
    pull = github.pull_request(wish.number)
    if pull.state != "open":
        raise NotTaken(f"the pull request is {'merged' if pull.merged else pull.state}")
    again = f"look at what it holds, then ask for it: {COMMAND} {pull.head_sha}"
    if wish.commit is None:
        raise NotTaken(
            f"an ask is {COMMAND} and the full commit that was reviewed, on the first line of a "
            f"comment. The head is {pull.head_sha} now; {again}"
        )
    if wish.commit != pull.head_sha:
        raise NotTaken(
            f"{wish.commit} is not the head of the pull request. That is {pull.head_sha} now; "
            f"{again}"
        )
    try:
        data = github.file(LIST, ref=wish.commit, limit=MAX_LIST_BYTES)
    except GitHubError as error:
        raise NotTaken(f"its list cannot be taken: {error.reason}") from error
    try:
        proposed = lists.parse(data, file=LIST)
    except InvalidCatalog as error:
        raise NotTaken(f"its list is not valid: {_problems(error.problems)}") from error
    return merge(catalog, proposed)


def merge(main: Catalog, proposed: Catalog) -> Taken:
    """`main` with the models that `proposed` adds or alters; nothing else of it. NotTaken as above.

    An entry whose only change is its note runs nothing new, so it counts as unchanged. A model that
    main excludes and the pull request wants is taken: whether it runs now is what such a change
    asks, and no exclusion is a matter of safety.
    """
    changes = compare(main, proposed)
    wanted = [
        *changes.added,
        *(
            change.model
            for change in changes.altered
            if {field.name for field in change.fields} != {"note"}
        ),
    ]
    if not wanted:
        raise NotTaken("its list adds and alters no model, so there is nothing to run")
    if len(wanted) > MAX_MODELS:
        raise NotTaken(
            f"its list adds or alters {len(wanted)} models, and one ask takes {MAX_MODELS}: "
            "machines are shared with the campaign. Split it, or merge it: the schedule runs what "
            "is new"
        )
    known = {model.id.casefold(): model for model in main.models}
    declined: list[Declined] = []
    taken: dict[str, Model] = {}
    for model in wanted:
        reason = _reason_against(main, known.get(model.id.casefold()), model)
        if reason:
            declined.append(Declined(model_id=model.id, reason=reason[:4_000]))
        else:
            taken[model.id.casefold()] = model
    merged = main.model_copy(
        update={
            "models": tuple({**known, **taken}.values()),
            "excluded": tuple(one for one in main.excluded if one.id.casefold() not in taken),
        }
    )
    return Taken(merged, tuple(model.id for model in taken.values()), tuple(declined))


def _reason_against(main: Catalog, before: Model | None, model: Model) -> str | None:
    """Why an entry is not taken; None: it is."""
    if model.source is not None:
        return "its source is a folder of the machine; only checkpoints on the Hub are run on ask"
    if new := [one for one in model.extra_packages if one not in _packages(before)]:
        return (
            f"its extra_packages ask for {', '.join(new)}: packages are code, and code comes from "
            "the main branch only"
        )
    limits = [main.defaults.limit_minutes, *(one.limit_minutes or 0 for one in main.models)]
    if (model.limit_minutes or 0) > max(limits):
        return (
            f"its limit_minutes are {model.limit_minutes}; the longest on the main branch is "
            f"{max(limits)}"
        )
    alone = main.model_copy(update={"models": (model,), "excluded": ()})
    try:
        lists.parse(text_of(alone), file=LIST)
    except InvalidCatalog as error:
        told = "; ".join(dict.fromkeys(problem.message for problem in error.problems))
        return f"with what the main branch has it is not valid: {told}"
    return None


def _packages(model: Model | None) -> tuple[str, ...]:
    return model.extra_packages if model else ()


def text_of(catalog: Catalog) -> bytes:
    """A list as YAML that the loader reads back to the same list."""
    plain = catalog.model_dump(mode="json", exclude_none=True)
    dumped: str = yaml.safe_dump(plain, allow_unicode=True, sort_keys=False)
    return dumped.encode()


def _problems(problems: Sequence[Problem]) -> str:
    told = "; ".join(f"line {one.line}: {one.message}" for one in problems[:_MAX_PROBLEMS])
    more = len(problems) - _MAX_PROBLEMS
    return f"{told}; {more} more" if more > 0 else told


# --- what is done about it ----------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What is to be run. outputs: of the step, for the jobs that run it."""

    request: Ask
    plan: Plan
    outputs: Mapping[str, str]


def ask(
    workflow: Workflow, github: GitHub, catalog: Catalog, planner: Planner, now: datetime
) -> Asked | None:
    """What is to be run for this event; None: nothing, and who may be told has been told.

    planner: the plan of these models of a list, due or not. The summary of the step says what will
    run; on the pull request the comment says that it does, or why not.
    """
    wish = heard(workflow)
    if wish is None:
        workflow.summary("Nothing was asked for.")
        return None
    try:
        taken = take(wish, github, catalog)
    except NotTaken as refused:
        workflow.summary(f"### Refused\n\n{text(refused.reason, 2_000)}")
        if refused.told:
            _notice(workflow, github, wish, refused.reason, now, running=False)
        return None
    assert wish.commit is not None
    plan = planner(taken.catalog, taken.models) if taken.models else _NOTHING
    plan = matrix.startable(plan, taken.catalog)
    skipped = (
        Declined(model_id=RunId.parse(one.run_id).model_id, reason=one.reason)
        for one in plan.skipped
    )
    asked = Ask(
        number=wish.number,
        sha=wish.commit,
        asked_by=wish.asker,
        asked_at=now,
        models=taken.models,
        declined=(*taken.declined, *skipped),
    )
    if not any(plan.runs):
        answer = Answer(
            sha=asked.sha,
            asked_by=asked.asked_by,
            asked_at=now,
            run_url=workflow.run_url,
            lines=declined_lines(asked),
        )
        told = conversation(github, wish.number).answered(answer)
        post(github, wish.number, told)
        workflow.summary("\n".join([f"### {headline(answer)}", "", *report(answer)]))
        return None
    outputs = matrix.outputs(plan, taken.catalog)
    workflow.summary(_planned(asked, plan, taken.catalog))
    _notice(workflow, github, wish, _in_short(asked, plan, taken.catalog), now, running=True)
    return Asked(asked, plan, outputs | {"number": str(asked.number), "sha": asked.sha})


def _notice(
    workflow: Workflow, github: GitHub, wish: Wish, told: str, now: datetime, *, running: bool
) -> None:
    notice = Notice(
        running=running,
        asked_by=wish.asker,
        asked_at=now,
        run_url=workflow.run_url,
        told=told[:4_000],
    )
    post(github, wish.number, conversation(github, wish.number).noticed(notice))


def declined_lines(asked: Ask) -> tuple[Line, ...]:
    """The entries that were not run, as lines of the answer."""
    return tuple(Line(model_id=one.model_id, why=one.reason) for one in asked.declined)


def _planned(asked: Ask, plan: Plan, catalog: Catalog) -> str:
    """The page of the plan, and what is not in it: Markdown for the summary of the step."""
    request = Request(select=asked.models, force=True)
    parts = [
        plan_summary.summary(plan, catalog, request),
        f"For pull request {asked.number} at commit {asked.sha}, asked for by "
        f"{text(asked.asked_by)}. Code, templates, runner classes and stacks are those of the main "
        "branch, and nothing of this is published in the results: the comment on the pull request "
        "will say what came of it.",
    ]
    if asked.declined:
        told = (f"- {code(one.model_id)}: {text(one.reason, 500)}" for one in asked.declined)
        parts += ["### Entries that are not run", "\n".join(told)]
    return "\n\n".join(part.strip() for part in parts)


def _in_short(asked: Ask, plan: Plan, catalog: Catalog) -> str:
    """How many models run, for how long, and what that costs; plain text."""
    models = len({run.model_id for job in plan.jobs for run in job.runs})
    refused = len({*asked.models, *(one.model_id for one in asked.declined)}) - models
    minutes = max(1, round(sum(job.estimated_s for job in plan.jobs) / 60))
    cost = plan_summary.Cost.of(plan.jobs, catalog)
    price = f", about {cost.about:.2f} USD" if cost.about and not cost.unstated else ""
    told = f"{models} model{'' if models == 1 else 's'} of {asked.sha}"
    if plan.jobs:
        told += f", about {minutes} min of machine time{price}"
    return f"{told}; {refused} refused" if refused else told
