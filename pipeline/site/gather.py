"""Everything the site is made of, read once and put together by model. Reads, changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from pipeline import rankings, relatives, stack_names, wishes
from pipeline import results as store
from pipeline.catalog import Catalog, Runner
from pipeline.columns import COLUMNS
from pipeline.errors import ResultsError
from pipeline.outside import OutsideRow
from pipeline.phrases import iso
from pipeline.rankings import Ranked, Ranking, Snapshot
from pipeline.readings import Reading, reading, stale
from pipeline.relatives import Relatives
from pipeline.wishes import Wish
from pipeline.words import Result, RunId, Target, is_model_id

Row = Mapping[str, Any]
T = TypeVar("T")

_LEFT_OUT = ("run_py", "generated_tokens", "tp", "exclusion")
"""Columns that no page shows: scripts are files of their own."""
_CURRENT = tuple(name for name, _, _ in COLUMNS if name not in _LEFT_OUT)
_HISTORY = (
    "model_id",
    "run_id",
    "target",
    "tested_at",
    "result",
    "stage",
    "failure",
    "error",
    "findings",
    "signature",
    "neuron_cores",
    "parallelism",
    "wall_s",
    "compile_s",
    "generate_s",
    "hbm_peak_gb",
    "hbm_capacity_gb",
    "runtime_peak_gb",
    "host_peak_gb",
    "cpu_match",
    "max_gap",
    "departure",
    "noise",
    "english",
    "cpu_fallback_ops",
    "cache",
    "revision",
    "attempts",
    "run_url",
    "pipeline_commit",
)
"""What a line of a model's history is made of; details are shown of current rows only."""


@dataclass(frozen=True)
class Stack:
    """One stack that results are of. key, label: `stack_names`."""

    key: str
    label: str
    target: str
    compiler: str
    compiler_version: str
    library: str
    library_version: str
    torch: str


@dataclass(frozen=True)
class Rank:
    """A model's place in a ranking of the Hub's, and the snapshot that says so."""

    snapshot: Snapshot
    row: Ranked


@dataclass(frozen=True)
class Model:
    """All that is known of one model.

    rows: stack key -> current row, the newest stack first. history: stack key -> every published
    row, newest first. ranks, outside: see `Rank` and `pipeline.outside`.
    """

    id: str
    task: str
    model_type: str | None
    wish: Wish | None
    rows: Mapping[str, Row]
    history: Mapping[str, Sequence[Row]]
    ranks: tuple[Rank, ...]
    outside: tuple[OutsideRow, ...]

    @property
    def slug(self) -> str:
        """The name of its folder: `owner--name`. No other id gives the same (`is_model_id`)."""
        return self.id.replace("/", "--")

    def rank(self, ranking: Ranking) -> int:
        """Its rank among models of its task; 0 = none."""
        for one in self.ranks:
            if one.snapshot.ranking is ranking and one.snapshot.task == self.task:
                return one.row.rank
        return 0


class Facts:
    """What the pages are made of. `models` by id; `stacks` in the order of `sort_keys`.

    now: the time of the newest row, which ages are measured against, so that the same results give
    the same bytes. max_age_days: older rows are stale; None = none is. runners: the list's classes,
    by name. local: ids of models whose checkpoint is no repository of the Hub. scripts: run ids of
    which there is a script.
    """

    def __init__(
        self,
        models: Sequence[Model],
        *,
        max_age_days: int | None,
        runners: Mapping[str, Runner],
        local: Iterable[str],
        scripts: Iterable[str],
    ) -> None:
        rows = [row for model in models for row in model.rows.values()]
        published = [row for model in models for line in model.history.values() for row in line]
        self.models = tuple(models)
        self.rows = tuple(rows)
        self.now: datetime = max(row["tested_at"] for row in [*rows, *published])
        self.max_age_days = max_age_days
        self.runners = runners
        self.local = frozenset(local)
        self.scripts = frozenset(scripts)
        self.stacks = _stacks(rows)
        self._relatives = _relatives(rows)

    @property
    def generated(self) -> str:
        """ISO time of the newest row."""
        return iso(self.now)

    def stale(self, row: Row, wish: Wish | None) -> bool:
        """Whether a row is too old, or of a revision that is not wanted any more."""
        return stale(row, self.now, self.max_age_days, wish=wish)

    def reading(self, model: Model, stack: str) -> Reading:
        """How a model reads on a stack."""
        return reading(model.rows.get(stack), model.wish)

    def head(self, model: Model) -> Row | None:
        """The row that says most of Trainium: of the newest stack of the device that has one."""
        for row in model.rows.values():
            if row["target"] == Target.NEURON:
                return row
        return None

    def relatives(self, model: Model, stack: str) -> Relatives:
        """How other models of the same architecture did on a stack."""
        kind, row = model.model_type or "", model.rows.get(stack)
        group = self._relatives.get((kind, stack)) or relatives.relatives((), kind, stack)
        if model.id not in group.model_ids or row is None:
            return group
        others = tuple(name for name in group.model_ids if name != model.id)
        passed = group.passed - (row["result"] == Result.PASS)
        return replace(group, passed=passed, of=len(others), model_ids=others)


def gather(results: Path, catalog: Catalog | None, outside: Iterable[OutsideRow] = ()) -> Facts:
    """Read results/ and put it together with the list and with what others published.

    catalog: the list; None = what results/models.json says of it. ResultsError where there are no
    results: an empty site would read as "nothing runs".
    """
    current = store.read_current(results, _CURRENT)
    if not current:
        raise ResultsError(
            "there are no results to make a site of",
            where=str(results),
            remedy="qualify publish makes them from records; or name another --results",
        )
    listed = wishes.of(catalog) if catalog else wishes.read(results)
    age = catalog.defaults.max_age_days if catalog else wishes.published(results).max_age_days
    return Facts(
        _models(
            current,
            store.read_history(results, _HISTORY),
            listed,
            rankings.read(results),
            outside,
        ),
        max_age_days=age,
        runners=catalog.runners if catalog else {},
        local=(model.id for model in catalog.models if model.source) if catalog else (),
        scripts=(path.stem for path in (results / "scripts").glob("*.py")),
    )


def _models(
    current: Iterable[Row],
    history: Iterable[Row],
    listed: Mapping[str, Wish],
    ranked: rankings.Rankings,
    outside: Iterable[OutsideRow],
) -> list[Model]:
    """By id. Ids are compared letter case aside, as the Hub does; the spelling is that of a row,
    else of the list, else of a ranking."""
    ids: dict[str, str] = {}
    rows: dict[str, dict[str, Row]] = {}
    lines: dict[str, dict[str, list[Row]]] = {}
    for row in current:
        name = ids.setdefault(row["model_id"].casefold(), _checked(row))
        rows.setdefault(name, {})[stack_names.key(row)] = row
    for row in history:
        name = ids.setdefault(row["model_id"].casefold(), _checked(row))
        lines.setdefault(name, {}).setdefault(stack_names.key(row), []).append(row)
    wanted = {
        ids.setdefault(wish.id.casefold(), wish.id): wish
        for wish in listed.values()
        if is_model_id(wish.id)
    }
    ranks: dict[str, list[Rank]] = {}
    for snapshot in ranked:
        for place in snapshot.rows:
            name = ids.setdefault(place.id.casefold(), place.id)
            ranks.setdefault(name, []).append(Rank(snapshot, place))
    others: dict[str, list[OutsideRow]] = {}
    for said in outside:
        if said.model_id.casefold() in ids:
            others.setdefault(ids[said.model_id.casefold()], []).append(said)
    order = _order([*rows.values(), *lines.values()])
    return [
        _model(
            name,
            wanted.get(name),
            _sorted(rows.get(name, {}), order),
            {
                stack: _newest_first(found)
                for stack, found in _sorted(lines.get(name, {}), order).items()
            },
            tuple(ranks.get(name, ())),
            tuple(others.get(name, ())),
        )
        for name in sorted(ids.values())
    ]


def _model(
    name: str,
    wish: Wish | None,
    rows: Mapping[str, Row],
    history: Mapping[str, Sequence[Row]],
    ranks: tuple[Rank, ...],
    outside: tuple[OutsideRow, ...],
) -> Model:
    newest = max(rows.values(), key=lambda row: row["tested_at"], default=None)
    tasks = [wish.task] if wish else []
    tasks += [newest["task"]] if newest and newest["task"] else []
    tasks += [str(rank.snapshot.task) for rank in ranks]
    types = [row["model_type"] for row in rows.values() if row["model_type"]]
    task = tasks[0] if tasks else "unknown"
    return Model(name, task, types[0] if types else None, wish, rows, history, ranks, outside)


def _checked(row: Row) -> str:
    """The model's id, which becomes a folder's name."""
    name = str(row["model_id"])
    if not is_model_id(name) or RunId.parse(row["run_id"]).model_id != name:
        raise ResultsError(f"{name[:80]!r} is no model id, or not that of {row['run_id'][:200]!r}")
    return name


def _order(found: Iterable[Mapping[str, object]]) -> dict[str, int]:
    keys = {stack for each in found for stack in each}
    return {stack: place for place, stack in enumerate(stack_names.sort_keys(keys))}


def _sorted(by_stack: Mapping[str, T], order: Mapping[str, int]) -> dict[str, T]:
    return {stack: by_stack[stack] for stack in sorted(by_stack, key=order.__getitem__)}


def _newest_first(rows: Iterable[Row]) -> list[Row]:
    """Newest first; of one moment, in an order that does not depend on the files'."""
    told = ("result", "stage", "run_url", "error")
    return sorted(
        rows, key=lambda row: (-row["tested_at"].timestamp(), *(str(row[name]) for name in told))
    )


def _relatives(rows: Iterable[Row]) -> dict[tuple[str, str], Relatives]:
    """(model type, stack key) -> all models of it there, once for all pages."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["model_type"]:
            groups.setdefault((row["model_type"], stack_names.key(row)), []).append(row)
    return {
        (kind, stack): relatives.relatives(group, kind, stack)
        for (kind, stack), group in groups.items()
    }


def _stacks(rows: Sequence[Row]) -> tuple[Stack, ...]:
    targets = {stack_names.key(row): str(row["target"]) for row in rows}
    made = []
    for key in stack_names.sort_keys(targets):
        run = RunId.parse(f"x@{key}")
        made.append(
            Stack(
                key,
                stack_names.label_of(key),
                targets[key],
                run.compiler,
                run.compiler_version,
                run.library,
                run.library_version,
                run.torch,
            )
        )
    return tuple(made)
