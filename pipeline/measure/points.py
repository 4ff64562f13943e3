"""What the measuring script saw, size by size, and what may be concluded from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from pipeline.measure.figures import Spread, rate, usd_per_million
from pipeline.record import SCHEMA_VERSION, Finding, Versions
from pipeline.record.base import Bytes, Name, Paper, Seconds, ShortText
from pipeline.words import Stage

_Count = Annotated[int, Field(ge=0)]


class Call(Paper):
    """Seconds of one measured call of generate(), by rank 0's clock.

    token_s: from each token to the next, one fewer than new tokens.
    """

    first_token_s: Seconds
    token_s: tuple[Seconds, ...]
    wall_s: Seconds


class Counted(Paper):
    """What Dynamo's and the compiler's own counters rose by; None = could not be read."""

    graphs: _Count
    graph_breaks: _Count
    compiled: _Count | None
    restored: _Count | None


class RankSeen(Paper):
    """One rank's account of a point. tokens: what the first call generated, a list a row."""

    warm_up_s: tuple[Seconds, ...]
    warm_up: Counted
    measured: Counted
    backend_graphs: _Count | None
    downgrade: ShortText | None
    peak_bytes: Bytes | None
    repeatable: bool
    tokens: tuple[tuple[int, ...], ...]


class PointSeen(Paper):
    """One size: prompt tokens a row, rows a batch. refused: why it was not measured."""

    prompt_tokens: _Count
    batch: _Count
    refused: ShortText | None
    calls: tuple[Call, ...]
    ranks: tuple[RankSeen, ...]


class Seen(Paper):
    """The script's run.json; None = not reached."""

    schema_version: int = SCHEMA_VERSION
    stage: Stage
    versions: Versions = Versions()
    download_s: Seconds | None = None
    load_s: Seconds | None = None
    threads: _Count | None = None
    points: tuple[PointSeen, ...] = ()
    cpu_fallback_ops: tuple[Name, ...] | None = None
    error_type: Name | None = None
    error_message: ShortText | None = None
    error_rank: _Count | None = None


class Standing(StrEnum):
    """Whether a point's figures are of the compiled model and of nothing else."""

    VALID = "valid"
    INVALID = "invalid"
    UNPROVEN = "unproven"
    NOT_MEASURED = "not measured"

    @property
    def meaning(self) -> str:
        """One sentence for people."""
        return _MEANINGS[self]


_MEANINGS = {
    Standing.VALID: "everything was compiled before the measured calls, and nothing during them",
    Standing.INVALID: "the figures are not those of the compiled model alone; the reason is told",
    Standing.UNPROVEN: "nothing was seen to be wrong, and it could not be seen whether all is well",
    Standing.NOT_MEASURED: "this size was not measured; the reason is told",
}


@dataclass(frozen=True)
class Rules:
    """What points are judged and priced by.

    backend_counts: whether the target's backend says how many graphs it made (not on the cpu).
    machine_cores, usd_per_hour: of the whole machine; None = not known.
    """

    cores: int
    new_tokens: int
    backend_counts: bool
    machine_cores: int | None = None
    usd_per_hour: float | None = None


@dataclass(frozen=True)
class Point:
    """A size and its figures. Times are seconds, rates tokens a second, peaks bytes a rank.

    reasons: why the standing is what it is; notes: what a reader should know beside it.
    token: of every token but the first of a call. decode_tokens_per_s: without the prompt's time.
    graphs: of one rank, the most; compiled, restored: of all ranks, before the measured calls.
    warm_up_s: of rank 0. usd_per_million: of valid points alone.
    """

    prompt_tokens: int
    batch: int
    standing: Standing
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()
    first_token: Spread | None = None
    token: Spread | None = None
    tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None
    usd_per_million: float | None = None
    peak_bytes: tuple[int, ...] | None = None
    warm_up_s: tuple[float, ...] = ()
    graphs: int | None = None
    compiled: int | None = None
    restored: int | None = None
    compiled_while_measured: int | None = None


def judged(seen: PointSeen, rules: Rules, findings: Sequence[Finding] = ()) -> Point:
    """The point with its figures and its standing. findings: lines of the log against the run."""
    if seen.refused is not None or not seen.calls or not seen.ranks:
        why = seen.refused or "the script did not come to its measured calls"
        return Point(seen.prompt_tokens, seen.batch, Standing.NOT_MEASURED, (why,))
    wrong = _wrong(seen, rules, findings)
    open_ends = _unproven(seen, rules)
    standing = Standing.INVALID if wrong else Standing.UNPROVEN if open_ends else Standing.VALID
    calls, ranks = seen.calls, seen.ranks
    later = [seconds for call in calls for seconds in call.token_s]
    tokens_per_s = rate(
        seen.batch * rules.new_tokens * len(calls), sum(call.wall_s for call in calls)
    )
    cost = usd_per_million(rules.usd_per_hour, rules.cores, rules.machine_cores, tokens_per_s)
    peaks = [rank.peak_bytes for rank in ranks]
    return Point(
        prompt_tokens=seen.prompt_tokens,
        batch=seen.batch,
        standing=standing,
        reasons=(*wrong, *open_ends),
        notes=tuple(
            f"rank {number}: compiled in pieces, with {rank.warm_up.graph_breaks} graph breaks: "
            f"{rank.downgrade}"
            for number, rank in enumerate(ranks)
            if rank.downgrade is not None
        ),
        first_token=Spread.of([call.first_token_s for call in calls]),
        token=Spread.of(later),
        tokens_per_s=tokens_per_s,
        decode_tokens_per_s=rate(seen.batch * len(later), sum(later)),
        usd_per_million=cost if standing is Standing.VALID else None,
        peak_bytes=_all(peaks),
        warm_up_s=ranks[0].warm_up_s,
        graphs=max(rank.warm_up.graphs for rank in ranks),
        compiled=_sum(rank.warm_up.compiled for rank in ranks),
        restored=_sum(rank.warm_up.restored for rank in ranks),
        compiled_while_measured=_sum(rank.measured.compiled for rank in ranks),
    )


def _wrong(seen: PointSeen, rules: Rules, findings: Sequence[Finding]) -> tuple[str, ...]:
    """What shows that the figures are not those of the compiled model alone."""
    told = [f"the log says: {finding.line}" for finding in findings]
    for number, rank in enumerate(seen.ranks):
        who = f"rank {number}: " if rules.cores > 1 else ""
        during, before = rank.measured, rank.warm_up
        if during.graphs or during.compiled or during.restored:
            told.append(
                f"{who}the compiler was at work in the measured calls: {during.graphs} graphs "
                f"captured, {during.compiled} compiled, {during.restored} read from the cache"
            )
        if before.graphs == 0 or (before.compiled == 0 and before.restored == 0):
            told.append(
                f"{who}no compiled graph: {before.graphs} captured, {before.compiled} compiled, "
                f"{before.restored} from the cache"
            )
        made = rank.backend_graphs
        if rules.backend_counts and made is not None and made < before.graphs:
            told.append(f"{who}{before.graphs} graphs were captured, the backend made {made}")
        if not rank.repeatable:
            told.append(f"{who}the same prompts gave other tokens in another call")
        if rank.tokens != seen.ranks[0].tokens:
            told.append(f"{who}its tokens are not those of rank 0")
    return tuple(told)


def _unproven(seen: PointSeen, rules: Rules) -> tuple[str, ...]:
    """What is needed for a proof and not there."""
    told = []
    if len(seen.ranks) != rules.cores:
        told.append(f"{len(seen.ranks)} of {rules.cores} ranks told what they saw")
    for number, rank in enumerate(seen.ranks):
        who = f"rank {number}: " if rules.cores > 1 else ""
        counted = (rank.measured.compiled, rank.measured.restored, rank.warm_up.compiled)
        if None in counted:
            told.append(f"{who}the compiler's counters could not be read")
        if rules.backend_counts and rank.backend_graphs is None:
            told.append(f"{who}the backend did not say how many graphs it made")
    return tuple(told)


def _sum(counts: Iterable[int | None]) -> int | None:
    known = _all(list(counts))
    return None if known is None else sum(known)


def _all(values: Sequence[int | None]) -> tuple[int, ...] | None:
    """The values, unless one of them is unknown."""
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else None
