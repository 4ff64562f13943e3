"""The table of a preview: where each run would go, for how long, or why not and what to do then.

Pure. What the rest of the page shares with it are words for counts, sizes, times and costs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pipeline import phrases
from pipeline.actions.figures import HUB, NO_PRICE, amount, share_s, usd
from pipeline.actions.preview import Forecast
from pipeline.markdown import code, table, text
from pipeline.phrases import counted
from pipeline.placement import GIB
from pipeline.record import Run
from pipeline.words import Failure, Parallelism, Result

MAX_REASON = 400
"""Characters shown of a reason or a problem."""


def answer(forecasts: Sequence[Forecast]) -> str:
    """How many models run, are refused, and so on."""
    counts: dict[str, int] = {}
    by_model: dict[str, list[Forecast]] = {}
    for one in forecasts:
        by_model.setdefault(one.model.id, []).append(one)
    for runs in by_model.values():
        outcomes = [_outcome(one) for one in runs]
        best = next(name for name in _OUTCOMES if name in outcomes)
        counts[best] = counts.get(best, 0) + 1
    if len(by_model) == 1:
        return f"it {_OUTCOMES[next(iter(counts))][0]}"
    return ", ".join(
        f"{counts[name]} {_OUTCOMES[name][counts[name] > 1]}"
        for name in _OUTCOMES
        if name in counts
    )


_OUTCOMES = {
    "runs": ("would run", "would run", "would run"),
    "waits": ("is not due", "are not due", "not due"),
    "refused": ("is refused", "are refused", "refused"),
    "gated": ("is gated", "are gated", "gated"),
    "missing": ("was not found", "were not found", "not found"),
    "unread": ("could not be read now", "could not be read now", "could not be read now"),
    "none": ("has no stack to run on", "have no stack to run on", "no run here"),
}
"""Outcome -> in words, of one, of several, in a cell; the best first, which counts for a model."""

_REFUSED = {Failure.DOWNLOAD: "unread", Failure.MISSING: "missing", Failure.GATED: "gated"}


def _outcome(one: Forecast) -> str:
    if one.run is None:
        return "none"
    if one.refusal:
        return _REFUSED.get(one.refusal.failure, "refused")
    return "runs" if one.due else "waits"


def placements(
    forecasts: Sequence[Forecast], altered: Mapping[str, str], known_url: str
) -> Iterator[str]:
    """A line for each run of each model, and what keeps some from running.

    altered: model id -> what was altered, as Markdown. known_url: the page of what is known.
    """
    stacks = list(dict.fromkeys(one.run_id.partition("@")[2] for one in forecasts))
    rows = []
    for one in forecasts:
        name = code(one.model.id)
        if one.model.id in altered:
            name += f"<br>{altered[one.model.id]}"
        rows.append(
            (
                name,
                *((_stack(one.run_id),) if len(stacks) > 1 else ()),
                _told(one),
                _checkpoint(one),
                *_placed(one),
                _so_far(one, known_url),
            )
        )
    head = ("Model", *(("Stack",) if len(stacks) > 1 else ()), "Outcome", "Checkpoint")
    yield table((*head, "Cores", "Time", "Cost", "So far"), rows)
    notes = []
    if len(stacks) == 1:
        notes.append(f"Stack: {_stack(forecasts[0].run_id)}.")
    if any(one.run and one.run.placement for one in forecasts):
        notes.append(
            "Times are estimates, the output check apart. Machine-minutes and cost count a run by "
            "its share of the machine's cores."
        )
    runs = [one.run for one in forecasts if one.run and one.run.placement and one.due]
    if len(runs) > 1:
        notes.append(f"Together {_together(runs)}.")
    if notes:
        yield " ".join(notes)
    if refused := [one for one in forecasts if one.refusal or one.run is None]:
        yield from _refused(refused, several=len(stacks) > 1)


def _told(one: Forecast) -> str:
    name = _outcome(one)
    why = f": {text(one.refusal.failure.replace('_', ' '))}" if one.refusal else ""
    return _OUTCOMES[name][2] + (why if name == "refused" else "")


def _stack(run_id: str) -> str:
    return ", ".join(map(text, phrases.stack(run_id)))


def _checkpoint(one: Forecast) -> str:
    """Commit, parameters, GiB of weights."""
    run = one.run
    if run is None:
        return "-"
    told = []
    if run.source:
        told.append(f"a directory, {text(run.revision or 'no revision', 19)}")
    elif run.revision and re.fullmatch("[0-9a-f]{40}", run.revision) and not one.mistaken:
        told.append(f"[{run.revision[:12]}]({HUB}/{run.model_id}/tree/{run.revision})")
    elif run.revision:
        told.append(text(run.revision, 60))
    if run.parameters is not None:
        told.append(f"{amount(run.parameters)} parameters")
    if run.checkpoint_bytes:
        told.append(f"{gib(run.checkpoint_bytes)} GiB")
    return ", ".join(told) or "-"


def _placed(one: Forecast) -> tuple[str, str, str]:
    """Cores, time, cost."""
    run = one.run
    if run is None or run.placement is None:
        return "-", "-", "-"
    placed, machine = run.placement, run.machine_cores or run.placement.cores
    spread = "" if placed.parallelism is Parallelism.NONE else f", {placed.parallelism} parallelism"
    cell = (
        f"{placed.cores} of {machine} on {text(run.runner)}{spread}, "
        f"{gib(placed.core_bytes)} of {gib(run.core_bytes)} GiB a core"
    )
    time = (
        f"{minutes(run.estimated_s)} min, {minutes(run.limit_s)} at most "
        f"({minutes(share_s(run))} machine-min)"
    )
    return cell, time, cost([run])


def cost(runs: Iterable[Run]) -> str:
    costs = [usd(run) for run in runs]
    if None in costs:
        return NO_PRICE
    total = sum(filter(None, costs))
    return f"{total:.2f} USD" if total >= 0.005 or total == 0 else "&lt;0.01 USD"


def _together(runs: Sequence[Run]) -> str:
    share = sum(map(share_s, runs))
    return f"{counted(len(runs), 'run')}, about {minutes(share)} machine-minutes, {cost(runs)}"


def _so_far(one: Forecast, url: str) -> str:
    """What results know, and whether the run is due."""
    if one.earlier is None:
        return "no result yet"
    before = one.earlier
    what = f"{before.result}" + (f" ({text(before.failure)})" if before.failure else "")
    told = f"[{what}, {before.tested_at:%Y-%m-%d}]({url})"
    if one.run is None:
        return told
    return f"{told}; due: {text(one.reason)}" if one.due else f"{told}; not due"


def _refused(refused: Sequence[Forecast], *, several: bool) -> Iterator[str]:
    rows: dict[tuple[str, ...], list[str]] = {}
    for one in refused:
        reason = one.refusal.reason if one.refusal else one.reason
        cells = (code(one.model.id), text(reason, MAX_REASON), _remedy(one), _merged(one))
        rows.setdefault(cells, []).append(_stack(one.run_id))
    cells_of = [
        (f"{name} ({'; '.join(stacks)})" if several and len(stacks) == 1 else name, *rest)
        for (name, *rest), stacks in rows.items()
    ]
    yield table(("Not run", "Why", "What you can do", "Merged as it is"), cells_of)


def _remedy(one: Forecast) -> str:
    """What a contributor can do about a model that would not run."""
    if one.refusal is None:
        return "name a `runner` of the stack's target, or leave `runner` out"
    model = one.model
    asked = [
        f"`{name}`"
        for name in ("runner", "cores", "parallelism")
        if getattr(model, name) is not None
    ]
    smaller = "take a smaller checkpoint, or move it to `excluded` with a note"
    match one.refusal.failure:
        case Failure.TOO_LARGE | Failure.UNSUPPORTED_PARALLELISM if asked:
            return f"leave {' and '.join(asked)} out, so that placement decides; else {smaller}"
        case Failure.TOO_LARGE:
            return smaller
        case Failure.UNSUPPORTED_PARALLELISM:
            return "move it to `excluded` with a note: no allowed number of cores divides it"
        case Failure.UNSUPPORTED_CHECKPOINT:
            return "name a repository with safetensors weights of a type that Transformers has"
        case Failure.GATED:
            return (
                "nothing in the list: its size is unknown here, since this check has no token; a "
                "maintainer accepts its terms on the Hub for the campaign's account"
            )
        case Failure.MISSING if model.source:
            return "add the directory to the repository, or correct `source` or `revision`"
        case Failure.MISSING:
            return (
                f"correct the id (or `revision`) letter by letter: [its page]({HUB}/{model.id}) "
                "must open without signing in; a private one cannot be checked here"
            )
        case Failure.DOWNLOAD:
            return "run this job again later: the change is not at fault"
    return "ask a maintainer: this speaks of the pipeline or the repository's files"


def _merged(one: Forecast) -> str:
    """What the campaign makes of it."""
    if one.refusal is None:
        return "no row"
    match one.refusal.failure:
        case Failure.DOWNLOAD:
            return "planned anew"
        case Failure.GATED:
            return "planned anew with the campaign's token; ERROR where that may not read it either"
    result = one.refusal.failure.result
    return f"a row {result}, no machine used" + (
        ", tried again each time" if result is Result.ERROR else ""
    )


# --- words ----------------------------------------------------------------------------------------


def gib(size: float) -> str:
    value = size / GIB
    return (
        f"{value:.0f}"
        if value >= 100 or value == int(value)
        else f"{value:.1f}"
        if value >= 0.05
        else "&lt;0.1"
    )


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f}" if seconds >= 30 else "&lt;1"
