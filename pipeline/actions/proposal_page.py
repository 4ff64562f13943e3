"""The body of the pull request that proposes models: what people read, and the state inside it.

The first line is a hidden comment with the state as JSON; below it boxes, which people untick, and
the table. Pure. The state comes back from GitHub as anybody with write access left it, so it is
checked like any paper.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError

from pipeline.actions.candidates import Prospect
from pipeline.actions.figures import HUB, NO_PRICE, amount, share_s, usd
from pipeline.catalog import Model
from pipeline.markdown import fold, table, text
from pipeline.placement import GIB
from pipeline.rankings import Rankings
from pipeline.record import Refusal, Run
from pipeline.record.base import Paper
from pipeline.words import Parallelism, Task, is_model_id

MOST = 20
"""Models of one pull request: more than a person judges at a sitting, and a bound for what
strangers can ask for."""
MOST_REFUSED = 20
"""Refused models that are named: the highest-ranked ones."""

_REASON = 300
_BOX = re.compile(r"[ \t]*[-*+] \[([ xX])\] \[?`([^`\s]+)`.*")
_STATE = re.compile(r"<!-- trn-qualify: proposals (\{.*\}) -->")


def _is_id(value: str) -> str:
    if not is_model_id(value):
        raise ValueError("not a model id")
    return value


ModelId = Annotated[str, AfterValidator(_is_id)]


class Entry(Paper):
    """A proposed model. asked: the issue that asked for it; null: its rank did."""

    id: ModelId
    task: Task
    revision: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    asked: Annotated[int, Field(ge=1)] | None = None


class Refused(Paper):
    """A model that ranked high and would not run, and why."""

    id: ModelId
    reason: Annotated[str, Field(max_length=_REASON)]


class State(Paper):
    """What one pull request proposes, what of it was declined, and what was refused on the way."""

    proposed: Annotated[tuple[Entry, ...], Field(max_length=2 * MOST)] = ()
    declined: Annotated[tuple[ModelId, ...], Field(max_length=1_000)] = ()
    refused: Annotated[tuple[Refused, ...], Field(max_length=MOST_REFUSED)] = ()


@dataclass(frozen=True)
class Proposed:
    """A model of the pull request, looked up. asked: the issue that asked for it."""

    prospect: Prospect
    asked: int | None = None

    @property
    def model(self) -> Model:
        """Its entry in the list."""
        return self.prospect.model


def read_state(body: str) -> State | None:
    """The state in a body; None when it is gone or not a state any more."""
    found = _STATE.match(body.lstrip("\ufeff \t\r\n"))
    if found is None:
        return None
    try:
        return State.model_validate_json(found[1])
    except ValidationError:
        return None


def unticked(body: str) -> set[str]:
    """The ids whose box is there and empty, in lower case."""
    boxes = [_BOX.fullmatch(line) for line in body.splitlines()]
    return {box[2].casefold() for box in boxes if box and box[1] == " "}


def title(count: int) -> str:
    """The title of the pull request."""
    if not count:
        return "Qualify no more models"
    return f"Qualify {count} more {'model' if count == 1 else 'models'}"


def body(
    proposed: Sequence[Proposed],
    declined: Iterable[str],
    refused: Sequence[Refused],
    rankings: Rankings,
) -> str:
    """The whole body. declined: ids that this pull request proposed and people declined in it."""
    entries = [
        Entry(id=one.model.id, task=one.model.task, revision=one.model.revision, asked=one.asked)
        for one in proposed
    ]
    declined = sorted(declined, key=str.casefold)
    state = State(
        proposed=tuple(entries), declined=tuple(declined), refused=tuple(refused[:MOST_REFUSED])
    )
    told = json.dumps(state.model_dump(mode="json", exclude_none=True))
    # A comment ends with the first "-->", and nobody is to be called by a name in it: as escapes
    # these signs can stand in any text.
    told = re.sub("[<>&@#]", lambda sign: f"\\u{ord(sign[0]):04x}", told)
    parts = [
        f"<!-- trn-qualify: proposals {told} -->",
        *_answer(proposed),
        *figures(proposed, rankings),
    ]
    if proposed:
        parts += [_how_to_decline(), *_boxes(proposed)]
    parts += folded(refused)
    if declined:
        names = ", ".join(link(name) for name in declined)
        parts.append(f"Declined here, and not proposed again: {names}.")
    parts.append(
        "The checks of a pull request that a workflow opened do not start by themselves: approve "
        "them below where GitHub offers it, else close this and reopen it at once. What they would "
        "tell of these models stands above."
    )
    return "\n\n".join(parts) + "\n"


def _answer(proposed: Sequence[Proposed]) -> list[str]:
    if not proposed:
        return [
            "**Nothing is left to merge here:** every model of this pull request was declined or "
            "is on the list by now. Close it; what was declined stays declined."
        ]
    asked = sum(one.asked is not None for one in proposed)
    ranked = len(proposed) - asked
    if len(proposed) == 1:
        whence = "was asked for in an issue" if asked else "is high in the Hub's rankings"
        return [
            f"**Shall this model be qualified?** It {whence}, it is not on the list yet, and it "
            "fits by its checkpoint's headers. Merging adds it to the list; the next campaign then "
            f"takes {total(proposed)}."
        ]
    if not asked:
        whence = "All are high in the Hub's rankings"
    elif not ranked:
        whence = "All were asked for in issues"
    else:
        are = "is" if ranked == 1 else "are"
        were = "was asked for in an issue" if asked == 1 else "were asked for in issues"
        whence = f"{ranked} {are} high in the Hub's rankings, {asked} {were}"
    return [
        f"**Shall these {len(proposed)} models be qualified?** {whence}; none is on the list yet, "
        "and all fit by their checkpoints' headers. Merging adds them to the list; the next "
        f"campaign then takes {total(proposed)}."
    ]


def total(proposed: Sequence[Proposed]) -> str:
    """ "about 84 machine-minutes (price not stated)"."""
    runs = [run for one in proposed for run in one.prospect.placed]
    minutes = sum(map(share_s, runs)) / 60
    costs = [usd(run) for run in runs]
    price = NO_PRICE if None in costs else f"{sum(filter(None, costs)):.2f} USD"
    return f"about {_minutes(minutes)} machine-minutes ({price})"


def _how_to_decline() -> str:
    return (
        "Untick what is not wanted: the next update takes it out, and it is not proposed again. "
        "(Updates are weekly, with each request, and whenever the workflow is started by hand; a "
        "merge before that still adds it.) Closing this pull request declines all of them."
    )


def _boxes(proposed: Sequence[Proposed]) -> list[str]:
    lines = []
    for one in proposed:
        asked = f", asked for in #{one.asked}" if one.asked else ""
        lines.append(f"- [x] `{one.model.id}`, {one.model.task}{asked}")
    return ["\n".join(lines)]


def folded(refused: Sequence[Refused]) -> list[str]:
    """The refused models with their reasons, folded away; [] without any."""
    if not refused:
        return []
    count = len(refused)
    shown = refused[:MOST_REFUSED]
    what = f"{count} {'model' if count == 1 else 'models'} of the rankings would not run"
    if count > len(shown):
        what += f"; the first {len(shown)}"
    rows = [(link(one.id), text(one.reason, _REASON)) for one in shown]
    inside = table(("Model", "Why not"), rows)
    return [fold(what, inside)]


def refused_of(prospects: Iterable[Prospect]) -> list[Refused]:
    """The refusals of prospects, as they are told."""
    return [
        Refused(id=one.model.id, reason=_reason(refusal))
        for one in prospects
        if (refusal := one.refusal)
    ]


def _reason(refusal: Refusal) -> str:
    return f"{refusal.failure.replace('_', ' ')}: {refusal.reason}"[:_REASON]


# --- the table ------------------------------------------------------------------------------------


def figures(proposed: Sequence[Proposed], rankings: Rankings) -> list[str]:
    """The table of models, a row for each stack; [] without any."""
    runs = [(one, run) for one in proposed for run in one.prospect.runs]
    several = len({run.stack.name for _, run in runs}) > 1
    rows = []
    for one, run in runs:
        ranks, downloads = _ranks(one.model.id, rankings)
        rows.append(
            (
                link(one.model.id),
                *((text(run.stack.name),) if several else ()),
                ranks,
                downloads,
                size(run),
                *placed(run),
            )
        )
    if not rows:
        return []
    stack = ("Stack",) if several else ()
    head = ("Model", *stack, "Rank", "Downloads in 30 days", "Checkpoint", *PLACED)
    notes = "" if several else f"Stack: {text(runs[0][1].stack.name)}. "
    return [
        table(head, rows),
        f"{notes}Times are estimates, the output check apart. Machine-minutes and cost count a run "
        "by its share of the machine's cores.",
    ]


def _ranks(model_id: str, rankings: Rankings) -> tuple[str, str]:
    """("trending 3, downloads 12", "1,234,567") of its task; "-" for what is not known."""
    found = rankings.ranks(model_id)
    ranks = ", ".join(f"{ranking} {row.rank}" for (_, ranking), row in found.items())
    counts = [row.downloads for row in found.values() if row.downloads is not None]
    return ranks or "-", f"{counts[-1]:,}" if counts else "-"


PLACED = ("Cores", "Runs on", "Machine-minutes", "Cost")


def placed(run: Run) -> tuple[str, ...]:
    """The cells of PLACED for one run."""
    if run.placement is None:
        assert run.refusal is not None
        return (f"refused: {text(run.refusal.reason, _REASON)}", "-", "-", "-")
    cores = str(run.placement.cores)
    if run.placement.parallelism is not Parallelism.NONE:
        cores += f", {run.placement.parallelism}"
    price = usd(run)
    minutes = _minutes(share_s(run) / 60)
    return cores, text(run.runner), minutes, NO_PRICE if price is None else f"{price:.2f} USD"


def size(run: Run) -> str:
    """ "1.2 GiB, 596 M parameters"."""
    if run.checkpoint_bytes is None:
        return "-"
    gib = run.checkpoint_bytes / GIB
    told = f"{gib:.0f} GiB" if gib >= 100 else f"{gib:.1f} GiB" if gib >= 0.1 else "&lt;0.1 GiB"
    return told if run.parameters is None else f"{told}, {amount(run.parameters)} parameters"


def link(model_id: str) -> str:
    """The id, in code type, leading to its page on the Hub."""
    return f"[`{model_id}`]({HUB}/{model_id})"


def _minutes(minutes: float) -> str:
    return f"{minutes:.0f}" if minutes >= 1 else "&lt;1"
