"""The one pull request that proposes models for the list: what it holds, and what people declined.

GitHub keeps the state: the pull requests of the branch `qualify/proposals` that were opened with
our own login, open and closed, and what stands in their bodies. A model is declined by its box, by
closing the pull request, by taking its entry out of the branch, or by taking it off the list later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline import list_edit
from pipeline.actions import candidates, proposal_page
from pipeline.actions.candidates import Look, Missing, Search
from pipeline.actions.git import published_tree, push_derived
from pipeline.actions.github import GitHub, PullRequest, same_text
from pipeline.actions.proposal_page import MOST, Entry, Proposed, Refused, State
from pipeline.actions.workflow import Workflow
from pipeline.catalog import Catalog, InvalidCatalog, Model, parse
from pipeline.errors import HubError, UsageError
from pipeline.rankings import Rankings

BRANCH = "qualify/proposals"

A_WEEK = 5
"""Models of the rankings that are proposed at a time. A person looks at each one's page and licence
before merging, and five of usual size take some two hours of machines. More come once these are
merged or declined: a pull request that nobody reads does not grow."""

MAX_LIST_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class History:
    """What the pull requests so far say.

    open: the one that is open. proposed: what it still proposes; an entry is as the branch has it,
    since people may have given it more fields there. declined: id in lower case -> number of the
    pull request in which it was. here: ids declined in the open one. lost: closed pull requests
    whose state is gone, so that what they proposed is unknown. branch_list: the list on the branch
    of the open one.
    """

    open: PullRequest | None = None
    proposed: tuple[tuple[Model, int | None], ...] = ()
    refused: tuple[Refused, ...] = ()
    declined: Mapping[str, int] = field(default_factory=dict)
    here: tuple[str, ...] = ()
    lost: tuple[int, ...] = ()
    branch_list: bytes | None = None

    def proposes(self, model_id: str) -> bool:
        """Whether the open pull request has that model, letter case aside."""
        return model_id.casefold() in {model.id.casefold() for model, _ in self.proposed}


@dataclass(frozen=True)
class Updated:
    """What became of the pull request. number, url: None = there is none, for want of models.

    changed: whether anything was pushed, opened or edited. proposed: what it holds now, and refused
    what it names as refused; added: ids that were not in it before.
    """

    number: int | None
    url: str | None
    changed: bool
    proposed: tuple[Proposed, ...]
    refused: tuple[Refused, ...]
    added: tuple[str, ...]


@dataclass(frozen=True)
class Desk:
    """Where proposals are made: one repository, its list, and what looks models up.

    root: the checkout. list_name: the list's path in it. base: the branch that proposals are for.
    tree: a folder for the branch, made when needed.
    """

    github: GitHub
    workflow: Workflow
    root: Path
    list_name: str
    base: str
    tree: Path
    catalog: Catalog
    rankings: Rankings
    look: Look

    def history(self) -> History:
        """What the pull requests of our branch and login say, this moment."""
        ours = [
            one
            for one in self.github.pull_requests(head_branch=BRANCH, state="all")
            if one.author.lower() == self.github.login.lower()
        ]
        on_list = candidates.on_list(self.catalog)
        declined: dict[str, int] = {}
        lost = []
        for one in sorted(ours, key=lambda one: one.number):
            state = proposal_page.read_state(one.body)
            if state is None:
                lost.append(one.number)
                continue
            gone = {name.casefold() for name in state.declined}
            proposed = {entry.id.casefold() for entry in state.proposed}
            gone |= proposal_page.unticked(one.body) & proposed
            if one.state == "closed":
                # Of a merged one what is not on the list: it was taken out before, or later.
                gone |= proposed - on_list if one.merged else proposed
            for name in gone:
                declined.setdefault(name, one.number)
        there = [one for one in ours if one.state == "open" and one.base_ref == self.base]
        if not there:
            return History(declined=declined, lost=tuple(lost))
        pull = max(there, key=lambda one: one.number)
        state = proposal_page.read_state(pull.body) or State()
        data = self._branch_list()
        entries = _entries(data, state)
        for entry in state.proposed:
            if entries is not None and entry.id.casefold() not in entries:
                declined.setdefault(entry.id.casefold(), pull.number)
        kept = [
            (_model(entry, entries), entry.asked)
            for entry in state.proposed
            if entry.id.casefold() not in declined and entry.id.casefold() not in on_list
        ]
        names = [*state.declined, *(entry.id for entry in state.proposed)]
        here = [name for name in names if declined.get(name.casefold()) == pull.number]
        return History(
            open=pull,
            proposed=tuple(kept),
            refused=state.refused,
            declined=declined,
            here=tuple(dict.fromkeys(here)),
            lost=tuple(one for one in lost if one != pull.number),
            branch_list=data,
        )

    def _branch_list(self) -> bytes | None:
        """The list as the branch has it; None where it has none."""
        tree = published_tree(self.root, BRANCH, self.tree, workflow=self.workflow)
        path = tree / self.list_name if tree else None
        if path is None or not path.is_file() or path.stat().st_size > MAX_LIST_BYTES:
            return None
        return path.read_bytes()

    def update(
        self, past: History, wanted: Sequence[tuple[Model, int | None]], refused: Sequence[Refused]
    ) -> Updated:
        """Make the pull request hold exactly `wanted`, and say so in its body.

        wanted: models with the issue that asked for each, at most MOST. Those that do not fit any
        more are refused instead. HubError, with nothing changed, when the Hub does not say.
        """
        prospects = self.look([model for model, _ in wanted[:MOST]])
        if unread := [one.model.id for one in prospects if one.unread]:
            raise HubError(
                f"the Hub does not tell about {', '.join(unread)}, proposed already; nothing was "
                "changed",
                remedy="run this again later",
            )
        proposed = tuple(
            Proposed(prospect, asked)
            for prospect, (_, asked) in zip(prospects, wanted, strict=False)
            if prospect.fits
        )
        refused = [
            *proposal_page.refused_of(one for one in prospects if not one.fits),
            *refused,
        ]
        before = {model.id for model, _ in past.proposed}
        added = tuple(one.model.id for one in proposed if one.model.id not in before)
        body = proposal_page.body(proposed, past.here, refused, self.rankings)
        title = proposal_page.title(len(proposed))
        pull = past.open
        if pull is None and not proposed:
            return Updated(None, None, False, (), tuple(refused), ())
        changed = self._push([one.model for one in proposed], past.branch_list, title)
        if pull is None:
            pull = self.github.open_pull_request(
                title=title, body=body, head=BRANCH, base=self.base
            )
            changed = True
        elif pull.title != title or not same_text(pull.body, body):
            self.github.edit_pull_request(pull.number, title=title, body=body)
            changed = True
        return Updated(pull.number, pull.url, changed, proposed, tuple(refused), added)

    def _push(self, models: Sequence[Model], there: bytes | None, title: str) -> bool:
        """Make the branch the base with `models` on the list; whether it had to be pushed.

        there: the list on the branch of an open pull request: while that is what comes out, the
        branch stays, however far the base is in other files.
        """

        def derive(tree: Path) -> str | None:
            path = tree / self.list_name
            data = path.read_bytes()
            on_list = candidates.on_list(parse(data, file=self.list_name))
            new = [model for model in models if model.id.casefold() not in on_list]
            made = list_edit.insert(data, new, file=self.list_name)
            if made == there:
                return None
            path.write_bytes(made)
            return "\n".join([title, "", *(f"- {model.id}" for model in new)])

        pushed = push_derived(
            self.root,
            branch=BRANCH,
            tree=self.tree,
            derive=derive,
            onto=self.base,
            token=self.workflow.token,
            server_url=self.workflow.server_url,
        )
        return pushed.commit is not None


def _entries(data: bytes | None, state: State) -> dict[str, Model] | None:
    """The branch's entries by id in lower case; None where its list cannot be read."""
    if data is None:
        return None
    try:
        return {model.id.casefold(): model for model in parse(data, file=BRANCH).models}
    except InvalidCatalog:
        return None


def _model(entry: Entry, entries: Mapping[str, Model] | None) -> Model:
    known = (entries or {}).get(entry.id.casefold())
    return known or Model(id=entry.id, task=entry.task, revision=entry.revision)


@dataclass(frozen=True)
class Proposal:
    """What the weekly search came to. searched: None = the pull request was full already."""

    history: History
    missing: Missing
    searched: Search | None
    updated: Updated


def propose(desk: Desk) -> Proposal:
    """Fill the pull request with the highest-ranked models that the list lacks and that fit.

    HubError, with nothing changed, when the Hub told about none of those that were looked up.
    """
    past = desk.history()
    missing = candidates.missing(desk.rankings, desk.catalog, past.declined)
    kept = list(past.proposed)
    wanted = min(A_WEEK - sum(asked is None for _, asked in kept), MOST - len(kept))
    if wanted <= 0:
        return Proposal(past, missing, None, desk.update(past, kept, past.refused))
    new = [model for model in missing.models if not past.proposes(model.id)]
    searched = candidates.search(new, wanted, desk.look)
    if searched.unread and not searched.fits and not searched.refused:
        raise HubError(
            f"the Hub told about none of {searched.unread} models; nothing was changed",
            remedy="run this again later",
        )
    kept += [(one.model, None) for one in searched.fits]
    refused = proposal_page.refused_of(searched.refused)
    return Proposal(past, missing, searched, desk.update(past, kept, refused))


def summary(made: Proposal, rankings: Rankings) -> str:
    """The job's summary."""
    updated = made.updated
    count = len(updated.proposed)
    models = "1 model" if count == 1 else f"{count} models"
    if updated.number is None:
        parts = ["## No model to propose"]
    else:
        news = f"{len(updated.added)} of them new" if updated.added else "none of them new"
        state = "new" if made.history.open is None else "up to date again"
        state = state if updated.changed else "as it was"
        parts = [
            f"## {models} proposed in #{updated.number}, {news}",
            f"[The pull request]({updated.url}) is {state}; merging it would take "
            f"{proposal_page.total(updated.proposed)}."
            if count
            else f"[The pull request]({updated.url}) is {state}, and can be closed.",
        ]
    parts += proposal_page.figures(updated.proposed, rankings)
    missing, searched = made.missing, made.searched
    taken = max(one.taken_at for one in rankings)
    facts = [
        f"{count} {what}"
        for count, what in (
            (missing.listed, "on the list"),
            (missing.declined, "declined"),
            (missing.passed_over, "without safetensors by the Hub's listing"),
            (len(missing.models), "missing"),
        )
        if count
    ]
    told = f"Models in the rankings of {taken:%Y-%m-%d}: {', '.join(facts)}."
    if searched is None:
        told += " None was looked up: the pull request proposes as many as it may."
    elif looked := len(searched.fits) + len(searched.refused) + searched.unread:
        of = [f"{len(searched.fits)} fit", f"{len(searched.refused)} would not run"]
        of += [f"of {searched.unread} the Hub told nothing"] if searched.unread else []
        told += f" Looked up for this: {looked}; {', '.join(of)}."
    parts.append(told)
    parts += proposal_page.folded(updated.refused)
    return "\n\n".join(parts)


def place_of(list_path: Path, root: Path) -> str:
    """The list's path in the checkout, with "/"; UsageError when it is outside."""
    try:
        return list_path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        raise UsageError(
            "is not in this checkout",
            where=str(list_path),
            remedy="run this in the checkout that holds the list",
        ) from None


def default_branch(environment: Mapping[str, str] = os.environ) -> str:
    """The branch that proposals are for: QUALIFY_DEFAULT_BRANCH, else main."""
    return environment.get("QUALIFY_DEFAULT_BRANCH", "").strip() or "main"
