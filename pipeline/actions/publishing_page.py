"""How a publication is told: the message of its commit, and the page of the workflow run.

Errors, and names inside artifacts, come from device machines: on the page all of it is escaped,
and a commit's message holds none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from pipeline import phrases
from pipeline.actions.artifacts import PREFIX
from pipeline.actions.artifacts import one_line as line
from pipeline.actions.workflow import Workflow
from pipeline.errors import QualifyError
from pipeline.markdown import code, table, text, url
from pipeline.phrases import counted
from pipeline.publish import Change, ChangeKind, Published, Seen
from pipeline.record import Plan
from pipeline.rows import Row
from pipeline.words import Result, RunId, Stage

if TYPE_CHECKING:
    from pipeline.actions.publishing import Publication

__all__ = ["in_vain", "line", "message", "summary"]

KINDS = {
    ChangeKind.NEWLY_FAILING: "Passed before, fails now",
    ChangeKind.FIXED: "Failed before, passes now",
    ChangeKind.UNEXPECTED_PASS: "Excluded as incompatible, yet passes",
    ChangeKind.NEW: "First result",
    ChangeKind.STILL_FAILING: "Still fails",
}
"""Kinds of changes in the order in which people want to know of them, and what they are called."""

LOGS = "logs-"
"""Artifacts that hold run.py and log.txt of a job's runs are named so, as .github/actions/run-job
does: `logs-<job id>-<attempt>`."""
MAX_LINES = 40
"""Lines of a kind in a commit's message."""
MAX_ROWS = 200
"""Rows of a table on the page; all of them are in the results."""

_SCOPE = (
    "PASS means: on this stack the checkpoint loaded, compiled, generated the tokens asked for and "
    "passed its output check. It says nothing of speed, long texts or answer quality. "
    "ERROR says nothing of the model."
)

Cells = tuple[str, ...]


def message(published: Published, workflow: Workflow) -> str:
    """The commit's message: how many results, then what changed, what got worse first."""
    parts = [_count(published, "Publish") if published.added else "Derive the page anew"]
    stacks = {_stack(change.after.run_id) for change in published.changes}
    if len(stacks) == 1:
        parts.append(f"Stack: {stacks.pop()}")
    for kind, changes in _by_kind(published.changes):
        lines = [f"{KINDS[kind]}: {len(changes)}"]
        lines += [f"- {_plain(change, several=bool(stacks))}" for change in changes[:MAX_LINES]]
        if (more := len(changes) - MAX_LINES) > 0:
            lines.append(f"- and {more} more")
        parts.append("\n".join(lines))
    if published.lost:
        parts.append(f"Planned runs without a usable record, now ERROR: {len(published.lost)}")
    parts.append(f"Run: {workflow.run_url}")
    return "\n\n".join(parts)


def summary(publication: Publication, workflow: Workflow) -> str:
    """The page: the answer, what changed, what did not pass, what is missing."""
    page = _Page(publication, workflow)
    parts = [
        f"## {_headline(publication)}",
        " ".join(_sentences(publication)),
        _where(publication, workflow),
        page.stack(),
        *page.changed(),
        *page.failed(),
        *page.lost(),
        *_refused(publication),
        _SCOPE if publication.published.passed else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def in_vain(error: QualifyError, branch: str) -> str:
    """The page when nothing was published at all."""
    told = [f"## Nothing was published to {text(branch)}", text(error.reason, 1_000)]
    return "\n\n".join([*told, *([text(error.remedy, 1_000)] if error.remedy else [])]) + "\n"


def _headline(publication: Publication) -> str:
    published, plan = publication.published, publication.plan
    asked = len(_jobs(plan))
    if asked and len(published.lost) == asked:
        return f"No run left a usable record: {counted(asked, 'run')}, all ERROR"
    if published.added:
        return _count(published, "Published")
    if publication.pushed.commit:
        return "No new result; the page was derived anew"
    return "Nothing new: all of this was published before" if any(plan.runs) else "Nothing was due"


def _sentences(publication: Publication) -> Iterable[str]:
    published = publication.published
    models: dict[ChangeKind, set[str]] = {kind: set() for kind in KINDS}
    for change in published.changes:
        models[change.kind].add(change.model_id)
    if worse := len(models[ChangeKind.NEWLY_FAILING]):
        fail = "fails" if worse == 1 else "fail"
        yield f"**{counted(worse, 'model')} that passed before {fail} now.**"
    elif any(
        row["result"] != Result.ERROR and row["stage"] != Stage.PLAN for row in published.rows
    ):
        yield "Nothing that passed before fails now."
    if fixed := len(models[ChangeKind.FIXED]):
        passes = "passes" if fixed == 1 else "pass"
        yield f"{counted(fixed, 'model')} that failed before {passes} now."
    if odd := len(models[ChangeKind.UNEXPECTED_PASS]):
        passes = "passes" if odd == 1 else "pass"
        yield f"{counted(odd, 'model')} excluded as incompatible {passes}."
    planned = len(_jobs(publication.plan))
    if lost := len(published.lost):
        of = counted(planned, "run")
        yield f"**{lost} of {of} left no usable record**: ERROR, and due again."
    elif planned:
        yield "Every planned run has its result."
    if refused := publication.artifacts.refused:
        was = "thing in the artifacts was" if refused == 1 else "things in the artifacts were"
        yield f"**{refused} {was} refused.**"


def _where(publication: Publication, workflow: Workflow) -> str:
    commit, branch = publication.pushed.commit, text(publication.branch)
    if commit is None:
        return f"The branch {branch} stays as it is."
    base = f"{workflow.server_url}/{workflow.repository}"
    page = f"{base}/blob/{url(publication.branch)}/COMPATIBILITY.md"
    attempts = publication.pushed.attempts
    again = f", at attempt {attempts}, since others pushed meanwhile" if attempts > 1 else ""
    return (
        f"On branch {branch}: commit [{commit[:7]}]({base}/commit/{commit}){again}; "
        f"[COMPATIBILITY.md]({page})."
    )


@dataclass(frozen=True)
class _Page:
    """The tables; with a column for the stack where there are several."""

    publication: Publication
    workflow: Workflow

    @cached_property
    def stacks(self) -> frozenset[str]:
        published = self.publication.published
        ids = {row["run_id"] for row in published.rows}
        ids |= {record.run.run_id for record in published.lost}
        return frozenset(_stack(run_id) for run_id in ids)

    @cached_property
    def jobs(self) -> dict[str, str]:
        return _jobs(self.publication.plan)

    def stack(self) -> str:
        """The stack, where there is one only."""
        return f"Stack: {text(', '.join(self.stacks))}." if len(self.stacks) == 1 else ""

    def changed(self) -> Iterable[str]:
        rows = {
            change.after.run_id: (
                f"**{KINDS[kind]}**" if kind is ChangeKind.NEWLY_FAILING else KINDS[kind],
                _told(change.before, beside=change.after) if change.before else "-",
                _told(change.after),
            )
            for kind, found in _by_kind(self.publication.published.changes)
            for change in found
        }
        return self._table("What changed", ("Change", "Before", "Now"), rows)

    def failed(self) -> Iterable[str]:
        """What ended in FAIL or ERROR; runs without a record have a table of their own."""
        lost = {record.run.run_id for record in self.publication.published.lost}
        rows = {
            row["run_id"]: (
                text(row["result"]),
                _cause(row),
                text(phrases.cause(row), 240) or "-",
                "-" if row["stage"] == Stage.PLAN else self._artifact(row["run_id"], LOGS),
            )
            for row in sorted(self.publication.published.rows, key=_by_result)
            if row["result"] != Result.PASS
            and not (row["run_id"] in lost and row["stage"] == Stage.PLAN)
        }
        head = ("Result", "Cause", "What was said", "Log")
        return self._table("What did not pass", head, rows)

    def lost(self) -> Iterable[str]:
        rows = {
            record.run.run_id: (
                text(self.jobs.get(record.run.run_id, "")),
                self._artifact(record.run.run_id),
                text(record.error or "", 240),
            )
            for record in self.publication.published.lost
        }
        yield from self._table(
            "Planned runs without a usable record", ("Job", "Artifact", "Why"), rows
        )
        if rows:
            yield f"What became of the jobs: [this run]({self.workflow.run_url})."

    def _artifact(self, run_id: str, prefix: str = PREFIX) -> str:
        """The artifact of the run's job, of its newest attempt that left records."""
        job = self.jobs.get(run_id, "")
        names = self.publication.artifacts.found.get(job)
        if not names:
            return "none"
        name = prefix + names[-1].removeprefix(PREFIX)
        return f"[{text(name)}]({self.workflow.run_url}#artifacts)"

    def _table(self, title: str, head: Cells, rows: Mapping[str, Cells]) -> Iterable[str]:
        """A titled table, a row for each run id."""
        if not rows:
            return
        several = len(self.stacks) > 1
        lines = []
        for run_id, cells in islice(rows.items(), MAX_ROWS):
            stack = (text(_stack(run_id)),) if several else ()
            lines.append((code(RunId.parse(run_id).model_id), *stack, *cells))
        yield f"### {title}"
        yield table(("Model", *(("Stack",) if several else ()), *head), lines)
        if (more := len(rows) - MAX_ROWS) > 0:
            yield f"and {more} more"


def _by_result(row: Row) -> tuple[bool, str, str]:
    return row["result"] == Result.ERROR, row["model_id"].lower(), row["run_id"]


def _cause(row: Row) -> str:
    failure = text((row["failure"] or "-").replace("_", " "))
    plain = row["stage"] in (Stage.PLAN, row["failure"])  # "download at download" says it twice
    return failure if plain else f"{failure} at {text(row['stage'])}"


def _refused(publication: Publication) -> Iterable[str]:
    if problems := publication.artifacts.taken.problems:
        yield "### Refused in the artifacts"
        yield "\n".join(f"- {text(one, 400)}" for one in problems)
    if aside := publication.artifacts.aside:
        yield f"Left aside of earlier attempts, which told it: {len(aside)}."


def _jobs(plan: Plan) -> dict[str, str]:
    """Run id -> the job that holds it."""
    return {run.run_id: job.job_id for job in plan.jobs for run in job.runs}


def _by_kind(changes: Sequence[Change]) -> list[tuple[ChangeKind, list[Change]]]:
    found = [(kind, [one for one in changes if one.kind is kind]) for kind in KINDS]
    return [(kind, has) for kind, has in found if has]


def _plain(change: Change, *, several: bool) -> str:
    """One line of a message: closed words and checked names only. several: name the stack."""
    after, before = change.after, change.before
    moved = str(after)
    if before:
        there = f" on {_apart(before, after)}" if before.run_id != after.run_id else ""
        moved = f"{before}{there} -> {moved}"
    return f"{change.model_id}: {moved}" + (f" [{_stack(after.run_id)}]" if several else "")


def _told(seen: Seen, beside: Seen | None = None) -> str:
    """Result and cause; with `beside`, the versions in which it differs from that run's stack."""
    told = str(seen.result)
    if seen.failure:
        told += f": {str(seen.failure).replace('_', ' ')}"
        told += "" if seen.stage is Stage.PLAN else f" at {seen.stage}"
    if beside and beside.run_id != seen.run_id:
        told += f" on {_apart(seen, beside)}"
    return text(told)


def _apart(seen: Seen, other: Seen) -> str:
    """What tells its stack from the other's."""
    same = phrases.stack(other.run_id)
    return ", ".join(part for part in phrases.stack(seen.run_id) if part not in same)


def _stack(run_id: str) -> str:
    return ", ".join(phrases.stack(run_id))


def _count(published: Published, verb: str) -> str:
    kinds = (
        (published.passed, Result.PASS),
        (published.failed, Result.FAIL),
        (published.errors, Result.ERROR),
    )
    told = ", ".join(f"{number} {result}" for number, result in kinds if number)
    return f"{verb} {counted(published.added, 'result')}: {told}"
