"""The preview as Markdown, for the summary of a pull request's job: the answer first.

Pure. Every text that the change or the Hub brought is escaped (markdown.text, markdown.code).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from pydantic import BaseModel

from pipeline.actions.figures import share_s
from pipeline.actions.preview import MOST_MODELS, Preview, Ripple, head_of
from pipeline.actions.preview_table import MAX_REASON, answer, cost, gib, minutes, placements
from pipeline.actions.workflow import Workflow
from pipeline.changes import Alteration, Changes
from pipeline.markdown import code, table, text
from pipeline.phrases import counted

MOST_PROBLEMS = 500
"""Rows of the table of problems: of more, one cause is likelier than so many faults."""

MAX_VALUE = 60
"""Characters of a field's value that are shown; longer ones are not."""


def page(seen: Preview, workflow: Workflow, *, branch: str) -> str:
    """The whole summary. branch: where results are published, for links to what is known."""
    parts = [*_problems(seen, workflow)]
    if seen.trouble:
        parts += [
            f"{'##' if not parts else '###'} The change could not be previewed",
            f"{text(seen.trouble.reason, MAX_REASON)}. {text(seen.trouble.remedy, MAX_REASON)}",
        ]
    elif seen.changes is None or not seen.changes:
        if not seen.listed.problems:
            parts.append(
                f"{text(seen.file)} asks for the same as before: this change adds, alters, removes "
                "and excludes no model, and changes no setting."
            )
    else:
        parts += _change(seen, seen.changes, workflow, branch)
    parts += _next(seen, workflow)
    return "\n\n".join(parts)


# --- an invalid list ------------------------------------------------------------------------------


def _problems(seen: Preview, workflow: Workflow) -> Iterator[str]:
    problems = seen.listed.problems
    if not problems:
        return
    them = "it is" if len(problems) == 1 else "they are"
    number = counted(len(problems), "problem")
    yield f"## {text(seen.file)} has {number}: nothing can be planned until {them} mended"
    url = f"{workflow.server_url}/{workflow.repository}/blob/{seen.commit}/{quote(seen.file)}"
    rows = []
    for one in problems[:MOST_PROBLEMS]:
        what, _, remedy = one.message.rpartition("; ")
        place = f"[line {one.line}, column {one.column}]({url}#L{one.line})"
        rows.append(
            (place, text(what or remedy, MAX_REASON), text(remedy, MAX_REASON) if what else "-")
        )
    yield table(("Place", "Problem", "What to do"), rows)
    if len(problems) > MOST_PROBLEMS:
        yield f"And {len(problems) - MOST_PROBLEMS} more of them below these."
    if seen.listed.catalog is None:
        yield "What the models of this change would do is not known before that."


# --- what the change does -------------------------------------------------------------------------


def _change(seen: Preview, changes: Changes, workflow: Workflow, branch: str) -> Iterator[str]:
    what = _several(
        (changes.added, "model added", "models added"),
        (changes.altered, "model altered", "models altered"),
    ) or _several(
        (changes.removed, "model removed", "models removed"),
        (changes.excluded, "model excluded", "models excluded"),
        (changes.reworded, "exclusion altered", "exclusions altered"),
        (changes.settings, "setting changed", "settings changed"),
    )
    found = answer(seen.forecasts)
    if seen.listed.problems:
        yield f"### The other entries: {what}" + (f" ({found})" if found else "")
    else:
        yield f"## {what}" + (f": {found}" if found else "")
    if seen.base_problems:
        yield (
            f"The list of the base has {counted(seen.base_problems, 'problem')} itself: entries of "
            "it that cannot be read count as new here."
        )
    if seen.forecasts:
        altered = {change.model.id: _alterations(change.fields) for change in changes.altered}
        known = f"{workflow.server_url}/{workflow.repository}/blob/{quote(branch)}/COMPATIBILITY.md"
        yield from placements(seen.forecasts, altered, known)
    if seen.not_shown:
        yield (
            f"{counted(seen.not_shown, 'more model')} of this change are not looked up: "
            f"{MOST_MODELS} at most are. A pull request with fewer models shows all of them."
        )
    yield from _others(seen, changes)


def _several(*parts: tuple[Sequence[object], str, str]) -> str:
    return ", ".join(
        f"{len(ones)} {one if len(ones) == 1 else many}" for ones, one, many in parts if ones
    )


# --- what else the change does --------------------------------------------------------------------


def _others(seen: Preview, changes: Changes) -> Iterator[str]:
    lines = []
    lines += [
        f"excludes {code(entry.id)}, {text(entry.reason.replace('_', ' '))}: {text(entry.note)}"
        for entry in changes.excluded
    ]
    lines += [
        f"alters the exclusion of {code(change.entry.id)}: {_alterations(change.fields)}"
        for change in changes.reworded
    ]
    lines += [f"removes {code(name)}; rows that it has stay published" for name in changes.removed]
    if changes.settings:
        lines.append(f"changes settings: {_alterations(changes.settings)}")
    if lines:
        shown = lines[:MOST_MODELS]
        more = [f"and {len(lines) - len(shown)} more"] if len(lines) > len(shown) else []
        also = "This change also:\n\n" if seen.forecasts else ""
        yield also + "\n".join(f"- {line}" for line in (*shown, *more))
    if seen.ripple:
        yield _rippled(seen.ripple)


def _rippled(ripple: Ripple) -> str:
    number = counted(len(ripple.runs), "other run")
    told = (
        f"The changed settings make {number} due"
        if ripple.runs
        else "The changed settings make no other run due"
    )
    if ripple.runs:
        share = minutes(sum(map(share_s, ripple.runs)))
        told += f": about {share} machine-minutes, {cost(ripple.runs)}"
    if ripple.due_before:
        told += f"; {ripple.due_before} {'was' if ripple.due_before == 1 else 'were'} due before"
    if ripple.unknown:
        told += (
            f"; {counted(ripple.unknown, 'model')} that could not be looked up here (gated, "
            "not read, refused) not counted"
        )
    return f"{told}."


def _alterations(fields: Sequence[Alteration]) -> str:
    return "; ".join(map(_alteration, fields))


def _alteration(change: Alteration) -> str:
    """A field, with its values where both are short enough to read."""
    name = text(change.name)
    before, after = _value(change.before), _value(change.after)
    if change.after is None:
        return f"{name} removed"
    if change.before is None:
        return f"{name} set to {after}" if after else f"{name} new"
    return f"{name}: {before} → {after}" if before and after else name


def _value(value: object) -> str | None:
    """A value in words; None = no short ones."""
    if value is None or isinstance(value, BaseModel | Mapping):
        return None
    shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text(shown or "none") if len(shown) <= MAX_VALUE else None


# --- what comes next ------------------------------------------------------------------------------


def _list(seen: Preview) -> str:
    """The option that a command needs where the list is not where commands look for it."""
    plain = re.fullmatch(r"[\w./-]+", seen.file)
    return f" --list {seen.file}" if plain and seen.file != "models.yaml" else ""


def _next(seen: Preview, workflow: Workflow) -> Iterator[str]:
    if seen.listed.problems:
        yield (
            f"**Next:** correct the list and push; `qualify validate{_list(seen)}` checks it on "
            "your machine before that."
        )
        return
    if seen.trouble or not seen.changes:
        return
    steps = []
    if any(one.mistaken for one in seen.forecasts):
        steps.append("Correct what was not found, and push: this check fails until then.")
    if seen.trial:
        needs = (
            ""
            if seen.trial.host_bytes is None
            else f" (about {gib(seen.trial.host_bytes)} GiB of memory)"
        )
        steps.append(
            f"Try it on your own machine's CPU{needs}: "
            f"`qualify run {seen.trial.model_id} --stack {seen.trial.stack.name}{_list(seen)}`."
        )
    sha = head_of(workflow.event)
    if sha and any(one.run and one.run.placement for one in seen.forecasts):
        steps.append(
            "Before the merge a maintainer can have it run on the hardware, with this comment:\n\n"
            f"   ```\n   /qualify {sha}\n   ```\n"
        )
    steps.append(
        "After the merge the campaign runs what is due; the rows appear in COMPATIBILITY.md."
    )
    yield "### Next\n\n" + "\n".join(f"{index}. {step}" for index, step in enumerate(steps, 1))
