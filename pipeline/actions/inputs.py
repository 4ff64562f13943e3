"""What a workflow asks of planning: its inputs, which come as environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from pipeline.errors import UsageError
from pipeline.plan import Request


def request(environment: Mapping[str, str], event_name: str) -> Request:
    """The request in QUALIFY_SELECT, QUALIFY_STACK, QUALIFY_FORCE and QUALIFY_BUDGET.

    Unset and empty are the same. A push asks for nothing, so it forces nothing. UsageError for a
    value that cannot be meant.
    """
    force = _truth(environment, "QUALIFY_FORCE")
    return Request(
        stacks=words(environment, "QUALIFY_STACK"),
        select=words(environment, "QUALIFY_SELECT"),
        force=force and event_name != "push",
        budget_s=_budget_s(environment),
    )


def branch(environment: Mapping[str, str]) -> str:
    """The branch that is published to: QUALIFY_BRANCH, else main."""
    return environment.get("QUALIFY_BRANCH", "").strip() or "main"


def words(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The words of a variable; no run id, model id, glob or stack has a space in it."""
    return tuple(environment.get(name, "").split())


def _truth(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "").strip()
    if value not in ("", "true", "false"):
        raise UsageError(f"{name} is {value!r}", remedy="expected true, false or nothing")
    return value == "true"


def _budget_s(environment: Mapping[str, str]) -> float | None:
    value = environment.get("QUALIFY_BUDGET", "").strip()
    if not value:
        return None
    try:
        minutes = float(value)
    except ValueError:
        minutes = -1
    if not isfinite(minutes) or minutes < 0:
        raise UsageError(
            f"QUALIFY_BUDGET is {value!r}",
            remedy="expected minutes of machine time such as 240, or nothing for no limit",
        )
    return minutes * 60
