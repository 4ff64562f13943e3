"""How an observation and a wish read together: the words that every page and command shows.

Observations are the machines', wishes the people's; a reading is derived from both, nowhere stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pipeline.wishes import Wish

Row = Mapping[str, Any]

INCOMPATIBLE = "incompatible"
"""The reason of an exclusion that says: it does not work."""


class Reading(StrEnum):
    """What is known of a model on a stack."""

    PASS = "PASS"  # noqa: S105 -- a word, not a password
    FAIL = "FAIL"
    ERROR = "ERROR"
    EXCLUDED = "EXCLUDED"
    UNTESTED = "UNTESTED"

    @property
    def meaning(self) -> str:
        """One sentence for people."""
        return _MEANINGS[self]


_MEANINGS = {
    Reading.PASS: "loaded, compiled, generated and passed its output check on this stack",
    Reading.FAIL: "was tried on this stack and does not run",
    Reading.ERROR: "a fault of the infrastructure: says nothing of the model",
    Reading.EXCLUDED: "people left it out of the campaign",
    Reading.UNTESTED: "no result, which is absence of evidence and nothing else",
}


class Evidence(StrEnum):
    """What others may act on."""

    PASS = "PASS"  # noqa: S105 -- a word, not a password
    FAIL = "FAIL"
    NONE = "no evidence"


def reading(row: Row | None, wish: Wish | None) -> Reading:
    """How a model reads on a stack. row: its current row there; wish: what the list wants of it.

    An observation is shown as it is, also of a model that was excluded since. An exclusion is the
    reading where there is none.
    """
    if row is not None:
        return Reading(row["result"])
    return Reading.EXCLUDED if wish is not None and wish.excluded else Reading.UNTESTED


def excluded_as(wish: Wish | None) -> str | None:
    """ "not prioritised" or "incompatible"; None for a model that is not excluded."""
    if wish is None or not wish.excluded:
        return None
    return (wish.reason or "no reason").replace("_", " ")


def stale(row: Row, now: datetime, max_age_days: int | None, *, wish: Wish | None = None) -> bool:
    """Whether a row is older than the limit (None = there is none), or of a revision that moved.

    A revision is known to have moved where the list asks for another commit than the row's.
    """
    if max_age_days is not None and row["tested_at"] < now - timedelta(days=max_age_days):
        return True
    return wish is not None and _moved(row["revision"], wish.revision)


def _moved(tested: str | None, wanted: str | None) -> bool:
    """Two commits that differ. A branch or tag tells nothing of which commit it stands for."""
    return bool(tested and wanted and _is_commit(wanted) and tested != wanted)


def _is_commit(revision: str) -> bool:
    return len(revision) == 40 and all(digit in "0123456789abcdef" for digit in revision)


def evidence(row: Row | None, wish: Wish | None, *, is_stale: bool) -> Evidence:
    """What a row may be acted on for. PASS only where nothing at all speaks against it.

    A stale PASS is none, nor is one of a model that people hold to be incompatible all the same. A
    FAIL stays one as it ages: it is no reason to let a model through.
    """
    if row is None:
        return Evidence.NONE
    match reading(row, wish):
        case Reading.FAIL:
            return Evidence.FAIL
        case Reading.PASS if not is_stale and not (
            wish is not None and wish.excluded and wish.reason == INCOMPATIBLE
        ):
            return Evidence.PASS
    return Evidence.NONE
