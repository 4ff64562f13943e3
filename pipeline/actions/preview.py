"""What a pull request's change of the list would do: looked up, annotated, and told as one page.

No secret is needed, nothing is written, and no device is touched: what the Hub shows to everybody
goes through the real planner. The page itself is pipeline.actions.preview_page.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline import git
from pipeline import plan as planning
from pipeline.actions.workflow import Level, Workflow
from pipeline.catalog import Catalog, Model, parse
from pipeline.catalog_problems import Document, InvalidCatalog, Problem, rule_problems
from pipeline.changes import Changes, compare
from pipeline.errors import CatalogError, EnvironmentFault, HubError, QualifyError, UsageError
from pipeline.placement import Checkpoint, PlanTable
from pipeline.plan import Earlier, Request
from pipeline.record import Plan, Refusal, Run
from pipeline.words import Failure, Target

MOST_MODELS = 200
"""So many models of one change are looked up: without a token the Hub answers 500 requests in five
minutes, and settings that changed may ask for the whole list once more."""

MOST_ANNOTATIONS = 10
"""Of errors as of warnings GitHub shows so many a step, and drops the others silently."""

FactsOf = Callable[[Catalog, Path, Sequence[str]], dict[str, Checkpoint | Refusal]]
"""(list, its folder, model ids) -> what the repositories hold, by model id."""


# --- the two lists --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listed:
    """A list, as far as it can be used.

    catalog: all of it, or with problems the entries without any; None = nothing of it.
    places: model id -> line and column of its entry.
    """

    catalog: Catalog | None
    problems: tuple[Problem, ...] = ()
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def read(data: bytes, file: str) -> Listed:
    """The list in a text; `file` is its name in problems."""
    try:
        catalog = parse(data, file=file)
    except InvalidCatalog as error:
        return _sound_part(data, file, error.problems)
    document = Document(data, file, Catalog.model_fields)
    return Listed(catalog, (), _places(document, catalog))


def _sound_part(data: bytes, file: str, problems: tuple[Problem, ...]) -> Listed:
    """What is left without the models and exclusions that have problems, if that is a list."""
    try:
        rest = Document(data, file, Catalog.model_fields).without(problems)
        if rest is None or any(rule_problems(rest)):
            return Listed(None, problems)
        catalog = Catalog.model_validate(rest.data)
    except (InvalidCatalog, ValidationError):
        return Listed(None, problems)
    return Listed(catalog, problems, _places(rest, catalog))


def _places(document: Document, catalog: Catalog) -> dict[str, tuple[int, int]]:
    return {
        model.id: document.place(("models", index)) for index, model in enumerate(catalog.models)
    }


@dataclass(frozen=True)
class Checkout:
    """A git checkout that holds the list. file: the list's path in it, with "/"."""

    root: Path
    file: str

    @classmethod
    def of(cls, list_path: Path) -> Checkout:
        """The checkout around a list; EnvironmentFault where there is none."""
        path = list_path.absolute()
        folder = next(parent for parent in path.parents if parent.is_dir())
        told = _git(folder, "rev-parse", "--show-prefix", "--show-toplevel")
        if told is None:
            raise EnvironmentFault(
                f"{list_path} is in no git repository",
                remedy="check the repository out before this step",
            )
        # The rest of a path whose folder is not there belongs to the list's name.
        prefix, root = told.decode().split("\n")[:2]
        return cls(Path(root), prefix + path.relative_to(folder).as_posix())

    @property
    def head(self) -> str:
        """The commit that is checked out."""
        return (_git(self.root, "rev-parse", "HEAD") or b"").decode().strip()

    def before(self, base: str, event: Mapping[str, Any]) -> bytes | None:
        """The list as the base has it, None where it has none.

        base: a file, else anything that git takes for a commit. In a pull request HEAD^1 is the
        base only while HEAD is GitHub's merge of both:
        https://docs.github.com/en/actions/reference/workflows-and-actions/events-that-trigger-workflows#pull_request
        (The event's own base commit is not used: it can be older than the one merged with.)
        """
        if Path(base).is_file():
            return Path(base).read_bytes()
        commit = self._commit(base)
        if commit is None:
            raise EnvironmentFault(
                f"this checkout has no commit {base} to compare with",
                remedy="check out with `fetch-depth: 2`, or name a commit or a file with --base",
            )
        merged = self._commit("HEAD^2") is not None and self.head != head_of(event)
        if base == "HEAD^1" and "pull_request" in event and not merged:
            raise EnvironmentFault(
                "HEAD is not the merge of the pull request with its base, so that HEAD^1 is not "
                "the base",
                remedy="check out without `ref`, or name the base's commit with --base",
            )
        return _git(self.root, "cat-file", "blob", f"{commit}:{self.file}")

    def _commit(self, name: str) -> str | None:
        found = _git(self.root, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
        return found.decode().strip() if found else None


def head_of(event: Mapping[str, Any]) -> str | None:
    """The newest commit of the pull request that an event is about; None = about none."""
    head = event.get("pull_request", {}).get("head", {}).get("sha")
    return head if isinstance(head, str) and head.isalnum() else None


def _git(folder: Path, *arguments: str) -> bytes | None:
    """What git prints; None where it refuses. EnvironmentFault without git."""
    try:
        return git.ask(folder, *arguments)
    except FileNotFoundError as error:
        raise EnvironmentFault("git is not installed", remedy="install git") from error
    except subprocess.CalledProcessError:
        return None


# --- what would happen ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Forecast:
    """One run of a model that the change adds or alters.

    run: placed or refused, as the planner would ask for it today; None = the stack has none for
    this model, and `reason` says why. earlier: what results know of it. due: whether the planner
    would ask for it now; reason: why, or why not.
    """

    model: Model
    run_id: str
    run: Run | None
    earlier: Earlier | None
    due: bool
    reason: str

    @property
    def refusal(self) -> Refusal | None:
        """Why it would not run."""
        return self.run.refusal if self.run else None

    @property
    def unread(self) -> bool:
        """Whether the Hub did not answer: that says nothing of the model."""
        return self.refusal is not None and self.refusal.failure is Failure.DOWNLOAD

    @property
    def mistaken(self) -> bool:
        """Whether the entry names what is not there."""
        return self.refusal is not None and self.refusal.failure is Failure.MISSING


@dataclass(frozen=True)
class Ripple:
    """What changed settings mean for the models that are otherwise as they were.

    runs: those that become due by it. due_before: how many were due anyway. unknown: how many
    could not be looked up, so that they are in neither.
    """

    runs: tuple[Run, ...]
    due_before: int
    unknown: int


@dataclass(frozen=True)
class Preview:
    """All that the page tells.

    changes: None = what changed cannot be told. not_shown: how many models are beyond
    MOST_MODELS. trial: the smallest model's run on the list's cpu stack, where it has one that
    takes it. trouble: what kept the rest from being looked up.
    """

    listed: Listed
    file: str
    commit: str
    changes: Changes | None = None
    base_problems: int = 0
    forecasts: tuple[Forecast, ...] = ()
    not_shown: int = 0
    ripple: Ripple | None = None
    trial: Run | None = None
    trouble: QualifyError | None = None

    @property
    def exit_code(self) -> int:
        """How the command ends.

        An invalid list is an error, and so is an id that the Hub does not know: nothing that is
        merged mends it. A refused model is not: it would become a row that readers can use, and
        whether it is wanted is for people to say. A Hub that did not answer is not, either: it
        says nothing of the change, and the campaign plans anew.
        """
        if self.listed.problems:
            return CatalogError.exit_code
        if self.trouble:
            return self.trouble.exit_code
        if any(forecast.mistaken for forecast in self.forecasts):
            return HubError.exit_code
        return 0


def look(
    list_path: Path,
    checkout: Checkout,
    base: str,
    event: Mapping[str, Any],
    facts_of: FactsOf,
    earlier: Callable[[], Mapping[str, Earlier]],
    *,
    now: datetime,
) -> Preview:
    """Compare the list with the base's and plan what the change adds or alters."""
    try:
        listed = read(list_path.read_bytes(), checkout.file)
    except OSError as error:
        reason = f"cannot be read: {error.strerror}; keep the list in the repository"
        listed = Listed(None, (Problem(checkout.file, 1, 1, reason),))
    seen = Preview(listed, checkout.file, checkout.head)
    try:
        return _planned(seen, list_path, checkout.before(base, event), facts_of, earlier, now)
    except QualifyError as error:
        return replace(seen, trouble=error)


def _planned(
    seen: Preview,
    list_path: Path,
    before: bytes | None,
    facts_of: FactsOf,
    earlier: Callable[[], Mapping[str, Earlier]],
    now: datetime,
) -> Preview:
    catalog, folder = seen.listed.catalog, list_path.resolve().parent
    if catalog is None:
        return seen
    old = Listed(None) if before is None else read(before, f"{seen.file} of the base")
    changes = compare(old.catalog, catalog)
    if seen.listed.problems:
        # An entry that is left out for its problems is not gone.
        changes = replace(changes, removed=())
    seen = replace(seen, changes=changes, base_problems=len(old.problems))
    models = changes.models[:MOST_MODELS]
    known = earlier() if models or changes.settings else {}
    facts = facts_of(catalog, folder, [model.id for model in models])
    planner = _Planner(folder, facts, known, now)
    forecasts = tuple(planner.forecasts(catalog, models))
    ripple = None
    if changes.settings and old.catalog:
        changed = {model.id.casefold() for model in changes.models}
        names = [model.id for model in catalog.models if model.id.casefold() not in changed]
        facts = facts_of(catalog, folder, names)
        ripple = _Planner(folder, facts, known, now).ripple(old.catalog, catalog, names)
    return replace(
        seen,
        forecasts=forecasts,
        not_shown=len(changes.models) - len(models),
        ripple=ripple,
        trial=planner.trial(catalog, models),
    )


@dataclass(frozen=True)
class _Planner:
    folder: Path
    facts: Mapping[str, Checkpoint | Refusal]
    earlier: Mapping[str, Earlier]
    now: datetime
    plans: PlanTable = field(default_factory=PlanTable.load)

    def plan(self, catalog: Catalog, request: Request) -> Plan:
        return planning.make_plan(
            catalog, self.folder, self.facts, self.earlier, {}, self.plans, request, now=self.now
        )

    def forecasts(self, catalog: Catalog, models: Sequence[Model]) -> list[Forecast]:
        """Each model's runs on the default stacks, in the order of the list's stacks."""
        if not models:
            return []
        names = tuple(model.id for model in models)
        forced = self.plan(catalog, Request(select=names, force=True))
        runs = {run.run_id: run for run in forced.runs}
        none = {skip.run_id: skip.reason for skip in forced.skipped}
        made = self.plan(catalog, Request(select=names))
        due = {run.run_id: run.reason for run in made.runs}
        current = {skip.run_id: skip.reason for skip in made.skipped}
        found = []
        for model in models:
            for stack in dict.fromkeys(catalog.defaults.stacks):
                name = str(catalog.stack_versions(stack).run_id(model.id))
                reason = due.get(name) or none.get(name) or current[name]
                run, before = runs.get(name), self.earlier.get(name)
                found.append(Forecast(model, name, run, before, name in due, reason))
        return found

    def ripple(self, before: Catalog, after: Catalog, names: Sequence[str]) -> Ripple:
        """What other settings make due of `names`, models that both lists have unaltered."""
        if not names:
            return Ripple((), 0, 0)
        request = Request(select=tuple(names))
        runs = {run.run_id: run for run in self.plan(after, request).runs}
        try:
            old = {run.run_id for run in self.plan(before, request).runs}
        except UsageError:  # no runner class for one of its stacks: it could plan nothing
            old = set()
        unknown = {name for name in names if isinstance(self.facts[name], Refusal)}
        known = [run for run in runs.values() if run.model_id not in unknown]
        return Ripple(
            tuple(run for run in known if run.run_id not in old),
            sum(run.run_id in old for run in known),
            len(unknown),
        )

    def trial(self, catalog: Catalog, models: Sequence[Model]) -> Run | None:
        """The run of the smallest of the models on the list's first cpu stack."""
        stacks = [name for name, stack in catalog.stacks.items() if stack.target is Target.CPU]
        if not models or not stacks:
            return None
        names = tuple(model.id for model in models)
        try:
            made = self.plan(catalog, Request((stacks[0],), names, force=True))
        except UsageError:  # the list has no cpu runner class
            return None
        placed = [run for run in made.runs if run.placement]
        return min(placed, key=lambda run: run.host_bytes or 0, default=None)


# --- annotations ----------------------------------------------------------------------------------


def annotate(seen: Preview, workflow: Workflow) -> None:
    """Problems and refusals on their lines of the list."""
    errors = [(one.line, one.column, "model list", one.message) for one in seen.listed.problems]
    warnings: list[tuple[int, int, str, str]] = []
    told = set()
    for one in seen.forecasts:
        if one.refusal is None or (one.model.id, one.refusal) in told:
            continue
        told.add((one.model.id, one.refusal))  # several stacks refuse it alike
        title = "could not be read now" if one.unread else f"refused: {one.refusal.failure}"
        where = seen.listed.places[one.model.id]
        note = (*where, title, f"{one.model.id}: {one.refusal.reason}")
        (errors if one.mistaken else warnings).append(note)
    if seen.trouble:
        text = f"{seen.trouble.reason}. {seen.trouble.remedy}"
        errors.append((1, 1, "the change could not be previewed", text))
    for level, notes in ((Level.ERROR, errors), (Level.WARNING, warnings)):
        more = len(notes) - MOST_ANNOTATIONS
        for index, (line, column, title, text) in enumerate(notes[:MOST_ANNOTATIONS]):
            if more > 0 and index == MOST_ANNOTATIONS - 1:
                text += f" (and {more} more: the job's summary lists them all)"
            workflow.annotate(level, text, title=title, file=seen.file, line=line, column=column)
