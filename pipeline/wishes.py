"""What the list wants, beside the results: results/models.json, for readers that have no list.

Written with each publication, so that a site, a dataset or another repository's CI knows what is
excluded, why, and from which age on a result is stale.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from pipeline.errors import ResultsError
from pipeline.stack_names import sort_keys

FILE = "models.json"
"""Below results/, beside the folders of Parquet files."""

VERSION = 1
MAX_BYTES = 64 * 1024**2
"""A list of 100 000 models has about 30 MiB."""


class Kind(StrEnum):
    """What people want of a model."""

    WANTED = "wanted"
    EXCLUDED = "excluded"


@dataclass(frozen=True)
class Wish:
    """One model of the list.

    reason: why it is excluded, `incompatible` or `not_prioritised`; None when it is wanted.
    note: for people. issue: where the exclusion is discussed, a URL.
    stacks: keys (`stack_names.key`) of the stacks that it is wanted on; () when it is excluded.
    revision: what of the checkpoint is wanted; None = whatever is newest.
    """

    id: str
    task: str
    wish: Kind
    reason: str | None = None
    note: str | None = None
    issue: str | None = None
    stacks: tuple[str, ...] = ()
    revision: str | None = None

    @property
    def excluded(self) -> bool:
        return self.wish is Kind.EXCLUDED


@dataclass(frozen=True)
class Published:
    """results/models.json. max_age_days: older results are stale; None = none is."""

    models: Mapping[str, Wish] = field(default_factory=dict)
    max_age_days: int | None = None

    def find(self, model_id: str) -> Wish | None:
        """The wish for a model, letter case aside."""
        if found := self.models.get(model_id):
            return found
        wanted = model_id.casefold()
        return next((wish for wish in self.models.values() if wish.id.casefold() == wanted), None)


class Wanted(Protocol):
    """A model of models.yaml that is wanted."""

    @property
    def id(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def note(self) -> str | None: ...


class Unwanted(Wanted, Protocol):
    """A model of models.yaml that is excluded, and why."""

    @property
    def reason(self) -> str: ...
    @property
    def issue(self) -> str | None: ...


class Listed(Protocol):
    """What models.yaml says, as far as readers need it; `catalog.Catalog` is one."""

    @property
    def models(self) -> Sequence[Wanted]: ...
    @property
    def excluded(self) -> Sequence[Unwanted]: ...


def of(listed: Listed) -> dict[str, Wish]:
    """Model id -> wish, by model id. Stacks and revisions are known of a Catalog only."""
    stacks, revisions = _asked(listed)
    found = [
        Wish(
            id=model.id,
            task=str(model.task),
            wish=Kind.WANTED,
            note=model.note,
            stacks=stacks,
            revision=revisions.get(model.id),
        )
        for model in listed.models
    ] + [
        Wish(
            id=model.id,
            task=str(model.task),
            wish=Kind.EXCLUDED,
            reason=str(model.reason),
            note=model.note,
            issue=model.issue,
        )
        for model in listed.excluded
    ]
    return {wish.id: wish for wish in sorted(found, key=lambda wish: wish.id)}


def _asked(listed: Listed) -> tuple[tuple[str, ...], Mapping[str, str | None]]:
    """(keys of the stacks that every model is wanted on, model id -> wanted revision)."""
    from pipeline.catalog import Catalog  # readers of models.json do without its libraries

    if not isinstance(listed, Catalog):
        return (), {}
    names = listed.defaults.stacks
    keys = {str(listed.stack_versions(name).run_id("x")).partition("@")[2] for name in names}
    return tuple(sort_keys(keys)), {model.id: model.revision for model in listed.models}


def dump(models: Mapping[str, Wish], max_age_days: int | None) -> bytes:
    """The file: sorted, a line a model, the same bytes for the same wishes."""
    head = f'{{"version": {VERSION}, "max_age_days": {json.dumps(max_age_days)}, "models": ['
    lines = [json.dumps(asdict(models[name]), ensure_ascii=False) for name in sorted(models)]
    return "\n".join([head, ",\n".join(lines), "]}", ""]).encode()


def read(results: Path) -> dict[str, Wish]:
    """Model id -> wish, of results/models.json; {} where a publication was made without it."""
    return dict(published(results).models)


def published(results: Path) -> Published:
    """What results/models.json says; nothing where there is none.

    ResultsError for a file that is too large, or not what this module writes.
    """
    path = results / FILE
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return Published()
    except OSError as error:
        raise ResultsError(f"cannot be read: {error.strerror}", where=str(path)) from error
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES} bytes")
        return _parsed(json.loads(data))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ResultsError(
            f"is not a list of wishes as this version writes it: {error}",
            where=str(path),
            remedy="publish again, or use the version of this project that wrote it",
        ) from error


def _parsed(told: Any) -> Published:
    if told["version"] != VERSION:
        raise ValueError(f"version {told['version']!r}, expected {VERSION}")
    age = told["max_age_days"]
    if not (age is None or (type(age) is int and age > 0)):
        raise ValueError(f"max_age_days is {age!r}")
    return Published({one["id"]: _wish(one) for one in told["models"]}, age)


def _wish(told: Mapping[str, Any]) -> Wish:
    texts = {name: told[name] for name in ("id", "task", "reason", "note", "issue", "revision")}
    stacks = told["stacks"]
    if not all(value is None or type(value) is str for value in (*texts.values(), *stacks)):
        raise ValueError(f"the entry of {told['id']!r} holds what is no text")
    return Wish(wish=Kind(told["wish"]), stacks=tuple(stacks), **texts)
