"""Inputs of workflows, as environment variables."""

from __future__ import annotations

import pytest

from pipeline.actions.inputs import branch, request
from pipeline.errors import UsageError
from pipeline.plan import Request


def test_nothing_is_asked() -> None:
    """Unset variables and empty ones, which GitHub makes of inputs that are not there."""
    names = ("SELECT", "STACK", "FORCE", "BUDGET", "BRANCH")
    for environment in ({}, {f"QUALIFY_{name}": "" for name in names}):
        assert request(environment, "schedule") == Request()
        assert branch(environment) == "main"


def test_everything_is_asked() -> None:
    """Words at any white space, minutes as seconds."""
    environment = {
        "QUALIFY_SELECT": " *Qwen3*\norg/model  a--b@* ",
        "QUALIFY_STACK": "cpu sdk-2.33",
        "QUALIFY_FORCE": "true",
        "QUALIFY_BUDGET": " 90.5 ",
        "QUALIFY_BRANCH": "results",
    }
    asked = Request(("cpu", "sdk-2.33"), ("*Qwen3*", "org/model", "a--b@*"), True, 90.5 * 60)
    assert request(environment, "workflow_dispatch") == asked
    assert branch(environment) == "results"


def test_a_push_forces_nothing() -> None:
    """Nobody asked for hardware time by pushing."""
    assert request({"QUALIFY_FORCE": "true"}, "push").force is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("QUALIFY_BUDGET", "a lot"),
        ("QUALIFY_BUDGET", "-1"),
        ("QUALIFY_BUDGET", "nan"),
        ("QUALIFY_BUDGET", "inf"),
        ("QUALIFY_FORCE", "yes"),
        ("QUALIFY_FORCE", "TRUE"),
    ],
)
def test_what_cannot_be_meant(name: str, value: str) -> None:
    """An error that names the variable and what it holds, rather than a campaign without bound."""
    with pytest.raises(UsageError, match=f"{name} is '{value}'"):
        request({name: value}, "workflow_dispatch")


def test_a_budget_of_nothing_is_a_budget() -> None:
    """0 minutes plan refusals alone; they are not the same as no limit."""
    assert request({"QUALIFY_BUDGET": "0"}, "workflow_dispatch").budget_s == 0
