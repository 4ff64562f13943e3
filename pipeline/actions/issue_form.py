"""The issue form "Qualify this model": what was asked, and the one comment that answers it.

Whoever can open an issue writes its body, with or without the form, so it is read strictly: what
is not as the form makes it is told, not guessed at. What GitHub makes of a form:
https://docs.github.com/en/communities/using-templates-to-encourage-useful-issues-and-pull-requests/syntax-for-githubs-form-schema
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from pipeline.actions import proposal_page
from pipeline.actions.candidates import Prospect
from pipeline.actions.github import Issue
from pipeline.actions.proposal_page import MOST, link
from pipeline.actions.proposals import Desk, History, Updated
from pipeline.catalog import Excluded, Model
from pipeline.errors import HubError, UsageError
from pipeline.markdown import table, text
from pipeline.words import Failure, Task, is_model_id

LABEL = "qualify-model"
FIELDS = ("Model id", "Task", "Revision", "Before you send")
"""The form's labels that are read, in its order; the free text behind them is not."""
LAST = "Why"

_NO_ANSWER = "_No response_"
_MAX_BODY = 65_536
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}")
_URL = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/?#\s]+/[^/?#\s]+)")


@dataclass(frozen=True)
class Form:
    """What an issue asks for."""

    model: Model


def read(body: str) -> Form:
    """The form in an issue's body; UsageError, with a remedy, for anything else."""
    if len(body) > _MAX_BODY:
        raise UsageError("the text of this issue is too long to be the form's", remedy=_AGAIN)
    answers = _answers(body)
    model_id, task, revision = (answers[name] for name in FIELDS[:3])
    if not is_model_id(model_id):
        raise UsageError(
            f"{_quoted(model_id)} is no model id" if model_id else "the model id is missing",
            remedy=_id_remedy(model_id),
        )
    if task not in set(Task):
        raise UsageError(
            f"{_quoted(task)} is no task of this project" if task else "the task is missing",
            remedy=f"Edit this issue and write {' or '.join(Task)} below the heading Task.",
        )
    if revision and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise UsageError(
            f"{_quoted(revision)} is no revision",
            remedy="Edit this issue: name a commit, a tag or a branch, or leave it empty.",
        )
    return Form(Model(id=model_id, task=Task(task), revision=revision or None))


_AGAIN = 'Open a new issue with the form "Qualify this model", or edit this one to look like it.'


def _answers(body: str) -> dict[str, str]:
    """Heading -> the one line below it, "" for no answer; of all headings in the form's order."""
    lines = body.replace("\r\n", "\n").split("\n")
    headings = [f"### {name}" for name in (*FIELDS, LAST)]
    found: list[int] = []
    for heading in headings:
        start = found[-1] + 1 if found else 0
        if heading not in lines[start:]:
            raise UsageError(
                f"the heading {heading.removeprefix('### ')!r} of the form is missing, or not in "
                "its place",
                remedy=_AGAIN,
            )
        found.append(lines.index(heading, start))
    if any(line.strip() for line in lines[: found[0]]):
        raise UsageError("there is text above the form's first heading", remedy=_AGAIN)
    answers = {}
    for name, start, end in zip(FIELDS, found, found[1:], strict=False):
        told = [line.strip() for line in lines[start + 1 : end] if line.strip()]
        if name != FIELDS[-1] and len(told) > 1:
            raise UsageError(f"{name} has more than one line", remedy="Edit this issue: one line.")
        answers[name] = "" if told in ([], [_NO_ANSWER], ["None"]) else told[0]
    return answers


def _quoted(value: str) -> str:
    return repr(value if len(value) <= 80 else f"{value[:77]}...")


def _id_remedy(value: str) -> str:
    found = _URL.fullmatch(value.rstrip("/"))
    if found and is_model_id(found[1]):
        return f"Edit this issue and write {found[1]} instead of the address."
    return "Edit this issue and write the id as the Hub does, such as Qwen/Qwen3-0.6B."


# --- the answer -----------------------------------------------------------------------------------


class Verdict(StrEnum):
    """What became of a request."""

    UNREADABLE = "unreadable"
    LISTED = "listed"
    EXCLUDED = "excluded"
    DECLINED = "declined"
    MISSING = "missing"
    GATED = "gated"
    REFUSED = "refused"
    UNREAD = "unread"
    FULL = "full"
    PROPOSED = "proposed"


@dataclass(frozen=True)
class Answer:
    """A verdict, the comment that tells it, and the model; model_id "" = it could not be read."""

    verdict: Verdict
    comment: str
    model_id: str = ""


def marker(number: int) -> str:
    """What our one comment on that issue begins with, hidden."""
    return f"trn-qualify: request {number}"


def answer(desk: Desk, issue: Issue) -> Answer:
    """Read a request, look the model up, and propose it where it fits and nothing is against it.

    Of several models that an issue asks for one after the other, the last that fits stays.
    """
    try:
        model = read(issue.body).model
    except UsageError as error:
        told = f"**This request could not be read:** {text(error.reason, 300)}.\n\n"
        return Answer(Verdict.UNREADABLE, told + text(error.remedy, 300))
    known = _known(desk, model)
    if known:
        return known
    past = desk.history()
    if number := past.declined.get(model.id.casefold()):
        return _declined(model, number)
    (prospect,) = desk.look([model])
    if not prospect.fits:
        return _refused(model, prospect)
    kept = [pair for pair in past.proposed if pair[1] != issue.number or _same(pair[0], model)]
    if past.proposes(model.id):
        kept = [
            _asked(other, asked, model, issue.number) if _same(other, model) else (other, asked)
            for other, asked in kept
        ]
    elif len(kept) >= MOST:
        assert past.open is not None
        return _full(model, prospect, past.open.number)
    else:
        kept.append((model, issue.number))
    try:
        updated = desk.update(past, kept, past.refused)
    except HubError:
        return _unread(model)
    return _proposed(desk, model, past, updated)


def _asked(there: Model, asked: int | None, model: Model, number: int) -> tuple[Model, int | None]:
    """An entry that is proposed already, now asked for: by whom first, and that issue's revision.

    Whatever else people gave it on the branch stays.
    """
    if asked in (None, number) and there.revision != model.revision:
        there = there.model_copy(update={"revision": model.revision or there.revision})
    return there, asked or number


def _same(one: Model, other: Model) -> bool:
    return one.id.casefold() == other.id.casefold()


def _known(desk: Desk, model: Model) -> Answer | None:
    wanted = model.id.casefold()
    for listed in desk.catalog.models:
        if listed.id.casefold() == wanted:
            told = (
                f"**{link(listed.id)} is on the list already** (task {listed.task}). What came of "
                "it stands in COMPATIBILITY.md, as soon as it has run."
            )
            return Answer(Verdict.LISTED, told, listed.id)
    for entry in desk.catalog.excluded:
        if entry.id.casefold() == wanted:
            return Answer(Verdict.EXCLUDED, _excluded(entry), entry.id)
    return None


def _excluded(entry: Excluded) -> str:
    reason = entry.reason.replace("_", " ")
    told = f"**{link(entry.id)} is excluded, {reason}:** {text(entry.note, 500)}"
    if entry.issue and "`" not in entry.issue:
        # As code: a link would show up in that other repository's issue.
        told += f"\n\nIt is discussed at `{entry.issue}`."
    return told + (
        "\n\nIf that is no longer so, say here what changed; a maintainer can move its entry."
    )


def _declined(model: Model, number: int) -> Answer:
    told = (
        f"**{link(model.id)} was proposed and declined in #{number}**, so it is not proposed "
        "again. Ask there why; a maintainer who wants it adds it to the list by hand."
    )
    return Answer(Verdict.DECLINED, told, model.id)


def _refused(model: Model, prospect: Prospect) -> Answer:
    refusal = prospect.refusal
    assert refusal is not None
    at = f" at revision `{model.revision}`" if model.revision else ""
    match refusal.failure:
        case Failure.DOWNLOAD:
            return _unread(model)
        case Failure.MISSING:
            told = (
                f"**{link(model.id)}{at} does not exist on the Hub, or is private.** Edit this "
                "issue and correct it letter by letter: its page must open without signing in."
            )
            return Answer(Verdict.MISSING, told, model.id)
        case Failure.GATED:
            told = (
                f"**{link(model.id)} is gated, and this project's account may not read it**, so "
                "nothing is known of its size. A maintainer who accepts its terms on the Hub for "
                "that account can edit this issue to have it looked at again."
            )
            return Answer(Verdict.GATED, told, model.id)
    run = prospect.runs[0] if prospect.runs else None
    size = f" ({proposal_page.size(run)})" if run and run.parameters else ""
    meaning = refusal.failure.meaning
    parts = [
        f"**{link(model.id)}{size} would not run, so it is not proposed.** {meaning[0].upper()}"
        f"{meaning[1:]}: {text(refusal.reason, 1_000)}."
    ]
    parts += _figures(prospect) if len(prospect.runs) > 1 else []
    return Answer(Verdict.REFUSED, "\n\n".join(parts), model.id)


def _unread(model: Model) -> Answer:
    told = (
        f"**The Hub did not answer, so nothing is decided about {link(model.id)}.** That says "
        "nothing of the model. Edit this issue, its title for one, to have it looked at again."
    )
    return Answer(Verdict.UNREAD, told, model.id)


def _full(model: Model, prospect: Prospect, number: int) -> Answer:
    told = [
        f"**{link(model.id)} fits, but #{number} proposes {MOST} models already**, and holds no "
        "more. Once these are merged or declined, edit this issue to have it proposed.",
        *_figures(prospect),
    ]
    return Answer(Verdict.FULL, "\n\n".join(told), model.id)


def _proposed(desk: Desk, model: Model, past: History, updated: Updated) -> Answer:
    mine = next((one for one in updated.proposed if _same(one.model, model)), None)
    if mine is None:  # looked up twice, and the Hub told two things
        return _unread(model)
    how = "is proposed already" if past.proposes(model.id) else "is proposed"
    told = [
        f"**{link(model.id)} fits and {how} in #{updated.number}**, where a maintainer decides. "
        f"It has not run yet; its run would take {proposal_page.total([mine])}.",
        *proposal_page.figures([mine], desk.rankings),
    ]
    return Answer(Verdict.PROPOSED, "\n\n".join(told), model.id)


def _figures(prospect: Prospect) -> list[str]:
    """What is known of a model that is not proposed: its size, and where each run would go."""
    head = ("Stack", "Checkpoint", *proposal_page.PLACED)
    rows = [
        (text(run.stack.name), proposal_page.size(run), *proposal_page.placed(run))
        for run in prospect.runs
        if run.checkpoint_bytes is not None
    ]
    return [table(head, rows)] if rows else []
