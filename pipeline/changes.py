"""What one list says otherwise than another: the models it adds, alters, removes, excludes. Pure.

Order and comments of models and exclusions are no change; the order of runner classes is one, since
placement tries them in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from pipeline.catalog import Catalog, Excluded, Model


@dataclass(frozen=True)
class Alteration:
    """A field that says something else now, by its name in the list; None = null or not there."""

    name: str
    before: object
    after: object


@dataclass(frozen=True)
class Altered:
    """A model, as it is now, that was wanted before, too."""

    model: Model
    fields: tuple[Alteration, ...]


@dataclass(frozen=True)
class Reworded:
    """An exclusion, as it is now, that was one before, too."""

    entry: Excluded
    fields: tuple[Alteration, ...]


@dataclass(frozen=True)
class Changes:
    """What a list says otherwise, each in the order of the list that holds it.

    added: wanted now and not before; one that was excluded is among them. removed: ids that the
    list names no more, wanted or excluded. settings: what concerns every model: defaults, runner
    classes, stacks.
    """

    added: tuple[Model, ...]
    altered: tuple[Altered, ...]
    removed: tuple[str, ...]
    excluded: tuple[Excluded, ...]
    reworded: tuple[Reworded, ...]
    settings: tuple[Alteration, ...]

    def __bool__(self) -> bool:
        """Whether there is any."""
        return any(vars(self).values())

    @property
    def models(self) -> tuple[Model, ...]:
        """Those added or altered."""
        return (*self.added, *(change.model for change in self.altered))


def compare(before: Catalog | None, after: Catalog) -> Changes:
    """What `after` says otherwise than `before`; None = there was no list.

    A model is the same one whatever the letter case of its id, as for the list's own rules.
    """
    wished = {model.id.casefold(): model for model in before.models} if before else {}
    unwished = {entry.id.casefold(): entry for entry in before.excluded} if before else {}
    added, altered = [], []
    for model in after.models:
        known = wished.get(model.id.casefold())
        if known is None:
            added.append(model)
        elif known != model:
            altered.append(Altered(model, tuple(_fields(known, model))))
    excluded, reworded = [], []
    for entry in after.excluded:
        other = unwished.get(entry.id.casefold())
        if other is None:
            excluded.append(entry)
        elif other != entry:
            reworded.append(Reworded(entry, tuple(_fields(other, entry))))
    named = {*_ids(after.models), *_ids(after.excluded)}
    known_ids = {**_ids(before.models), **_ids(before.excluded)} if before else {}
    gone = [name for key, name in known_ids.items() if key not in named]
    return Changes(
        tuple(added),
        tuple(altered),
        tuple(gone),
        tuple(excluded),
        tuple(reworded),
        tuple(_settings(before, after)) if before else (),
    )


def _ids(entries: Sequence[Model] | Sequence[Excluded]) -> dict[str, str]:
    return {entry.id.casefold(): entry.id for entry in entries}


def _fields(before: BaseModel, after: BaseModel, prefix: str = "") -> Iterator[Alteration]:
    for name in type(after).model_fields:
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield Alteration(prefix + name, old, new)


def _settings(before: Catalog, after: Catalog) -> Iterator[Alteration]:
    yield from _fields(before.defaults, after.defaults, "defaults.")
    yield from _entries(before.runners, after.runners, "runners")
    yield from _entries(before.stacks, after.stacks, "stacks")
    names = [name for name in before.runners if name in after.runners]
    order = [name for name in after.runners if name in before.runners]
    if names != order:
        yield Alteration("order of runners", ", ".join(names), ", ".join(order))


def _entries(
    before: Mapping[str, BaseModel], after: Mapping[str, BaseModel], section: str
) -> Iterator[Alteration]:
    for name in dict.fromkeys((*after, *before)):
        old, new = before.get(name), after.get(name)
        if old is not None and new is not None:
            yield from _fields(old, new, f"{section}.{name}.")
        else:
            yield Alteration(f"{section}.{name}", old, new)
