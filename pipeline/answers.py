"""What is known of one model: the answer that `qualify show MODEL` prints and others gate on.

Which stack answers: the newest of those asked for that the model has a row on. Where nobody names
one, these are the device's only, since a row of another target says nothing of Trainium.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pipeline import readings, stack_names
from pipeline.errors import ModelFails, NoEvidence, QualifyError, UsageError
from pipeline.lookup import Lookup
from pipeline.readings import Evidence, Reading
from pipeline.relatives import Relatives, relatives
from pipeline.wishes import Published, Wish
from pipeline.words import RunId, is_model_id

Row = Mapping[str, Any]

COLUMNS = (
    "model_id",
    "run_id",
    "task",
    "model_type",
    "target",
    "revision",
    "result",
    "stage",
    "failure",
    "signature",
    "error",
    "findings",
    "tested_at",
    "neuron_cores",
    "parallelism",
    "tries",
    "wall_s",
    "compile_s",
    "generate_s",
    "tokens_per_s",
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
    "cache_store",
    "run_url",
)
"""The columns of the row that an answer is about."""

_OF_OTHERS = ("model_id", "run_id", "model_type", "result", "failure", "tested_at")
"""Those of its rows of other stacks."""

PAST_COLUMNS = (
    "run_id",
    "target",
    "tested_at",
    "result",
    "stage",
    "failure",
    "error",
    "findings",
    "neuron_cores",
    "wall_s",
)
"""Those of a line of history."""

RECENT = 8
"""Publications that an answer reads the history of; `qualify history` reads all. Each is a file
with a footer of its own, and costs a reader about a millisecond."""

_OF_RELATIVES = ("model_id", "run_id", "model_type", "result")


@dataclass(frozen=True)
class Answer:
    """What is known of a model.

    model_id: as the results or the list spell it. asked: the stacks asked for, "" = any of the
    device. row: the newest row of such a stack. stack: its key; without a row the key that was
    asked for, where that is one, else None. is_stale: whether it is stale, and so no evidence.
    others: rows of other stacks, in the order of stacks. nearest: of these the one to look at when
    there is no row. wish: what the list wants; max_age_days: its limit. past: the last rows of
    any of the stacks, the newest first; `publications` were looked through for them. waiting: keys
    of stacks that the list wants and there is no row of.
    """

    model_id: str
    asked: str
    row: Row | None
    stack: str | None
    is_stale: bool
    others: tuple[Row, ...]
    nearest: Row | None
    wish: Wish | None
    max_age_days: int | None
    past: tuple[Row, ...]
    publications: int
    relatives: Relatives
    waiting: tuple[str, ...]

    @property
    def reading(self) -> Reading:
        return readings.reading(self.row, self.wish)

    @property
    def evidence(self) -> Evidence:
        return readings.evidence(self.row, self.wish, is_stale=self.is_stale)

    @property
    def known(self) -> bool:
        """Whether results or list know the model at all."""
        return bool(self.row or self.others or self.wish)


def answer(
    lookup: Lookup, published: Published, model: str, *, stack: str = "", now: datetime
) -> Answer:
    """What `lookup` and `published` know of `model`.

    model: a model id, letter case aside. stack: names stacks as in `stack_names.matches`; "" = any
    of the device.
    """
    rows = lookup.of_model(model, _OF_OTHERS)
    wish = published.find(model)
    by_stack = {stack_names.key(row): row for row in rows}
    order = stack_names.sort_keys(by_stack)
    fitting = [stack] if stack in by_stack else [key for key in order if _is_asked(key, stack)]
    wanted = wish.stacks if wish else ()
    key = next(iter(fitting), None) or _key_without_row(stack, wanted)
    row = lookup.of_run(by_stack[key]["run_id"], COLUMNS) if key in by_stack else None
    others = tuple(by_stack[other] for other in order if other != key)
    nearest = None if row else _nearest(others, key or stack)
    name = rows[0]["model_id"] if rows else wish.id if wish else model
    return Answer(
        model_id=name,
        asked=stack,
        row=row,
        stack=key,
        is_stale=row is not None and readings.stale(row, now, published.max_age_days, wish=wish),
        others=others,
        nearest=nearest,
        wish=wish,
        max_age_days=published.max_age_days,
        past=_past(lookup, name) if rows else (),
        publications=min(RECENT, len(lookup.history)),
        relatives=_relatives(lookup, next(iter(rows), None), key, stack),
        waiting=tuple(other for other in wanted if other not in by_stack and other != key),
    )


def split(model: str) -> tuple[str, str]:
    """(model id, key of a stack) of a run id; (the model id, "") of a model id; else UsageError."""
    try:
        return RunId.parse(model).model_id, model.partition("@")[2]
    except ValueError:
        if not is_model_id(model):
            raise UsageError(
                f"{model!r} is no model id", remedy='write one such as "Qwen/Qwen3-0.6B"'
            ) from None
        return model, ""


def _is_asked(key: str, stack: str) -> bool:
    return stack_names.matches(key, stack) if stack else stack_names.on_device(key)


def _key_without_row(stack: str, wanted: Sequence[str]) -> str | None:
    """The stack that is asked for, where that is one and not a pattern of many."""
    if stack_names.is_key(stack):
        return stack
    return next((key for key in wanted if _is_asked(key, stack)), None)


def _nearest(rows: Sequence[Row], asked: str) -> Row | None:
    """The row whose stack has most in common with what was asked for, on the same target.

    The same compiler weighs more than the same library, that more than the same torch; of equally
    near ones it is the newest. rows: in the order of stacks.
    """
    on_device = stack_names.asks_for_device(asked)
    there = [row for row in rows if stack_names.on_device(stack_names.key(row)) == on_device]
    return max(there, key=lambda row: shared_weight(row, asked), default=None)


def shared_weight(row: Row, asked: str) -> tuple[bool, ...]:
    """For compiler, library and torch: whether a row's stack has what was asked for."""
    held = stack_names.shared(stack_names.key(row), asked)
    return tuple(name in held for name in ("compiler", "library", "torch"))


def _past(lookup: Lookup, model_id: str) -> tuple[Row, ...]:
    rows = lookup.past(model_id, PAST_COLUMNS, RECENT)
    return tuple(sorted(rows, key=lambda row: (row["tested_at"], row["run_id"]), reverse=True))


def _relatives(lookup: Lookup, row: Row | None, key: str | None, asked: str) -> Relatives:
    """How others of the row's architecture did on the stack `key`, else on the newest asked for."""
    model_type = row["model_type"] if row else None
    if row is None or not model_type:
        return relatives((), None, "")
    rows = lookup.where("model_type", model_type, _OF_RELATIVES, stack=key)
    if key is None:
        keys = [one for one in stack_names.newest_first(rows) if _is_asked(one, asked)]
        key = next(iter(keys), "")
    return relatives(rows, model_type, key, but=row["model_id"])


def history(lookup: Lookup, model: str, stack: str) -> list[Row]:
    """Every row that was published of a model, on the stacks named or on any, the newest first.

    UsageError when there is none.
    """
    wanted = model.casefold()
    names = {row["model_id"] for row in lookup.of_model(model, ["model_id"])} or {model}
    rows = [row for name in sorted(names) for row in lookup.past(name, PAST_COLUMNS)]
    found = [row for row in rows if not stack or _is_asked(stack_names.key(row), stack)]
    if not found:
        other = near(lookup, wanted)
        raise UsageError(
            f"no result of {model!r} was published" + (f" on {stack!r}" if rows else ""),
            remedy=f"did you mean {other}?" if other and not rows else "",
        )
    return sorted(found, key=lambda row: (row["tested_at"], row["run_id"]), reverse=True)


def near(lookup: Lookup, model: str) -> str | None:
    """A model with a result whose name is like one that has none.

    Looked for among those of the same owner, or whose name begins alike: among 100 000 names a
    comparison of each takes seconds.
    """
    from difflib import get_close_matches

    def of(name: str) -> tuple[str, str]:
        owner, _, short = name.casefold().rpartition("/")
        return owner, short[:4]

    owner, start = of(model)
    names = {
        name.casefold(): name
        for name in lookup.model_ids()
        if of(name)[0] == owner or of(name)[1] == start
    }
    some = sorted(names)[:_COMPARED]
    found = get_close_matches(model.casefold(), some, n=1, cutoff=0.6)
    return names[found[0]] if found else None


_COMPARED = 2_000


def ending(answer: Answer) -> QualifyError:
    """How a command ends that asked for evidence that a model runs, and there is none."""
    stack = stack_names.label_of(answer.stack) if answer.stack else answer.asked or "Trainium"
    if answer.evidence is Evidence.FAIL:
        return ModelFails(f"{answer.model_id} fails on {stack}")
    what = f"{answer.reading}{', stale' if answer.is_stale else ''}"
    return NoEvidence(f"no evidence that {answer.model_id} runs on {stack}: {what}")


# --- JSON ---------------------------------------------------------------------------------------


def plain(answer: Answer, source: str) -> dict[str, Any]:
    """An answer as JSON types. source: where it comes from."""
    return {
        "model_id": answer.model_id,
        "source": source,
        "asked": answer.asked or None,
        "stack": answer.stack,
        "reading": str(answer.reading),
        "evidence": str(answer.evidence),
        "stale": answer.is_stale,
        "max_age_days": answer.max_age_days,
        "row": answer.row and plain_row(answer.row),
        "nearest": answer.nearest and plain_row(answer.nearest),
        "others": [plain_row(row) for row in answer.others],
        "wish": answer.wish and jsonable(asdict(answer.wish)),
        "waiting": list(answer.waiting),
        "history": [plain_row(row) for row in answer.past],
        "history_publications": answer.publications,
        "relatives": asdict(answer.relatives) if answer.relatives.of else None,
    }


def plain_row(row: Row) -> dict[str, Any]:
    """A row as JSON types, with the key of its stack: times in ISO 8601, UTC."""
    return {"stack": stack_names.key(row), **{name: jsonable(row[name]) for name in row}}


def jsonable(value: Any) -> Any:
    """`value` with its times as texts, at any depth."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return {name: jsonable(one) for name, one in value.items()}
    return [jsonable(one) for one in value] if isinstance(value, list | tuple) else value
