"""Cores of a machine: which are free, which go together, which are out of use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.record import Record
from pipeline.words import TryReason


@dataclass(frozen=True)
class Lease:
    """What one try of a run is given.

    core_ids: ids of the machine's cores, in rank order. previous: the record of the try before,
    which this one goes on with. compiled: to be called once nothing is compiled any more.
    """

    core_ids: tuple[int, ...]
    reason: TryReason = TryReason.FIRST
    previous: Record | None = None
    compiled: Callable[[], None] = lambda: None
