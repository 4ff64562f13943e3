"""The Hub's rankings of models, as snapshots in results/rankings/: taken, written, read.

One current file for each task and ranking, `<task>-<ranking>.json`; git keeps what was before. The
ranks are the Hub's own, over all of its models of a task, so that they are what a person sees on
its pages: models that no stack can run are part of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AwareDatetime, Field, ValidationError

from pipeline.checkpoint_files import Refused
from pipeline.errors import HubError, RecordError
from pipeline.hub_client import Hub
from pipeline.markdown import code, table
from pipeline.record import parse, write_atomically
from pipeline.record.base import Paper
from pipeline.words import Task, is_model_id

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

FOLDER = "rankings"
"""Below results/."""

TOP = 200
"""Rows of a ranking. Of what leads one, much is on the list already, and much cannot run here
(GGUF files, quantised copies, gated repositories); five proposals a week leave a year's room."""

FEWEST = TOP // 2
"""An answer of fewer rows is a cut one: the Hub has tens of thousands of models for each task."""

MAX_BYTES = 1024 * 1024
"""A snapshot of 200 rows has about 40 KiB."""

_MOST = 2**53
"""Numbers above are no counts; JSON readers hold them inexactly, too."""

Count = Annotated[int, Field(ge=0, le=_MOST)]


class Ranking(StrEnum):
    """An order of the Hub's."""

    TRENDING = "trending"
    DOWNLOADS = "downloads"

    @property
    def sort(self) -> Literal["trending_score", "downloads"]:
        """What huggingface_hub's list_models calls it."""
        return "trending_score" if self is Ranking.TRENDING else "downloads"


class Ranked(Paper):
    """One model of a ranking. What the Hub did not say is null.

    downloads: of the last 30 days, by the Hub's count. parameters: elements of all tensors that the
    repository's safetensors files hold; null also where it has none. gated: false, "auto" or
    "manual".
    """

    rank: Annotated[int, Field(ge=1, le=TOP)]
    id: Annotated[str, Field(max_length=200)]
    downloads: Count | None
    likes: Count | None
    trending_score: Annotated[float, Field(ge=0, le=_MOST, allow_inf_nan=False)] | None
    library_name: Annotated[str, Field(max_length=100)] | None
    gated: Literal["auto", "manual", False] | None
    parameters: Count | None


class Snapshot(Paper):
    """One ranking of one task at one time, the highest first. Ranks that are left out were of ids
    that are no model ids, of private models, or of a model named before."""

    schema_version: Literal[1] = 1
    task: Task
    ranking: Ranking
    taken_at: AwareDatetime
    rows: Annotated[tuple[Ranked, ...], Field(min_length=1, max_length=TOP)]

    @property
    def name(self) -> str:
        """The name of its file."""
        return file_name(self.task, self.ranking)


@dataclass(frozen=True)
class Rankings:
    """The snapshots there are."""

    snapshots: Mapping[tuple[Task, Ranking], Snapshot] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Snapshot]:
        """In the order of tasks, and of rankings in each."""
        return iter(self.snapshots[key] for key in _keys() if key in self.snapshots)

    def of(self, task: Task, ranking: Ranking) -> Snapshot | None:
        """That snapshot; None when it was never taken."""
        return self.snapshots.get((task, ranking))

    def ranks(self, model_id: str) -> dict[tuple[Task, Ranking], Ranked]:
        """A model's row in each snapshot that has it, letter case aside."""
        wanted = model_id.casefold()
        return {
            (snapshot.task, snapshot.ranking): row
            for snapshot in self
            for row in snapshot.rows
            if row.id.casefold() == wanted
        }


def file_name(task: Task, ranking: Ranking) -> str:
    """`text-generation-trending.json`."""
    return f"{task}-{ranking}.json"


def _keys() -> list[tuple[Task, Ranking]]:
    return [(task, ranking) for task in Task for ranking in Ranking]


# --- the Hub ------------------------------------------------------------------------------------


def take(
    *,
    now: datetime,
    endpoint: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[list[Snapshot], list[str]]:
    """(the snapshots of all rankings that the Hub gave, why it did not give the others).

    endpoint: the Hub's address; None = HF_ENDPOINT or the public Hub. sleep: how to wait between
    attempts, in seconds.
    """
    taken: list[Snapshot] = []
    faults: list[str] = []
    with Hub(endpoint, sleep) as hub:
        for task, ranking in _keys():
            try:
                listed = hub.ranked(task.value, ranking.sort, TOP)
                taken.append(_snapshot(task, ranking, listed, now))
            except Refused as refused:
                faults.append(refused.refusal.reason)
            except HubError as error:
                faults.append(error.reason)
    return taken, faults


def _snapshot(task: Task, ranking: Ranking, listed: list[ModelInfo], now: datetime) -> Snapshot:
    """HubError for an answer that is too short to be the Hub's ranking."""
    rows: dict[str, Ranked] = {}
    for rank, info in enumerate(listed[:TOP], 1):
        row = _row(rank, info)
        if row is not None:
            rows.setdefault(row.id.casefold(), row)
    if len(rows) < FEWEST:
        raise HubError(
            f"the Hub's {task} models by {ranking}: {len(rows)} rows came, expected about {TOP}"
        )
    taken_at = now.astimezone(UTC).replace(microsecond=0)
    return Snapshot(task=task, ranking=ranking, taken_at=taken_at, rows=tuple(rows.values()))


def _row(rank: int, info: ModelInfo) -> Ranked | None:
    """None for what is no model that everybody can see: a token may see its owner's private ones.

    A value of a kind that the Hub does not document is null.
    """
    if not is_model_id(str(info.id)) or info.private:
        return None
    known = {
        "downloads": info.downloads,
        "likes": info.likes,
        "trending_score": info.trending_score,
        "library_name": info.library_name,
        "gated": info.gated,
        "parameters": info.safetensors.total if info.safetensors else None,
    }
    nothing = dict.fromkeys(known)
    row = Ranked.model_validate({"rank": rank, "id": info.id, **nothing})
    for name, value in known.items():
        try:
            checked = Ranked.model_validate({"rank": rank, "id": info.id, **nothing, name: value})
        except ValidationError:
            continue
        row = row.model_copy(update={name: getattr(checked, name)})
    return row


# --- results/rankings/ --------------------------------------------------------------------------


def dump(snapshot: Snapshot) -> bytes:
    """Its file: one line a row, so that a day's difference is the rows that moved."""
    head = snapshot.model_dump(mode="json", exclude={"rows"})
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    rows = [f"  {json.dumps(row.model_dump(mode='json'))}" for row in snapshot.rows]
    text = "\n".join(["{", *lines, ' "rows": [', ",\n".join(rows), " ]", "}", ""])
    return text.encode()


def store(results: Path, snapshots: list[Snapshot]) -> list[Snapshot]:
    """Write those that are news below `results`; they are returned.

    Not news: one taken before the one that is there; and one of the same day (UTC) with the same
    rows, so that a job that is repeated commits nothing.
    """
    there = read(results)
    news = [one for one in snapshots if _is_news(one, there.of(one.task, one.ranking))]
    for one in news:
        write_atomically(results / FOLDER / one.name, dump(one))
    return news


def _is_news(one: Snapshot, before: Snapshot | None) -> bool:
    if before is None:
        return True
    same_day = before.taken_at.date() == one.taken_at.date()
    return one.taken_at > before.taken_at and not (same_day and before.rows == one.rows)


def read(results: Path) -> Rankings:
    """The snapshots below `results`; none where none was taken yet.

    RecordError for a file that is too large, or not what its schema and its name say.
    """
    found = {}
    for key in _keys():
        path = results / FOLDER / file_name(*key)
        try:
            with path.open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise RecordError(f"cannot be read: {error.strerror}", where=str(path)) from error
        if len(data) > MAX_BYTES:
            raise RecordError(f"is larger than {MAX_BYTES} bytes", where=str(path))
        snapshot = parse(Snapshot, data, where=str(path))
        if (snapshot.task, snapshot.ranking) != key:
            raise RecordError(
                f"holds the ranking {snapshot.name.removesuffix('.json')}",
                where=str(path),
                remedy="take it back from git, or remove it: the next day makes it again",
            )
        if odd := [row.id for row in snapshot.rows if not is_model_id(row.id)]:
            raise RecordError(f"{odd[0][:80]!r} is no model id", where=str(path))
        found[key] = snapshot
    return Rankings(found)


def _first(one: Snapshot) -> str:
    return ", ".join(code(row.id) for row in one.rows[:3])


def summary(taken: list[Snapshot], faults: list[str], commit: str | None) -> str:
    """What taking them came to, for a job's page. commit: the one they went into, None = none."""
    if not taken:
        title = "The Hub gave no ranking; those that are published stay"
    elif commit is None:
        title = "The rankings are as they were; nothing to commit"
    else:
        title = f"{len(taken)} rankings of the Hub, in commit {commit[:12]}"
    parts = [f"## {title}"]
    if taken:
        rows = [(one.task, one.ranking, str(len(one.rows)), _first(one)) for one in taken]
        parts.append(table(("Task", "Ranking", "Models", "The first three"), rows))
    if faults:
        parts.append("Not taken:")
        parts.append("\n".join(f"- {fault}" for fault in faults))
    return "\n\n".join(parts)
