"""Counters: None before the first increment, and no increment while they are off (TRAINIUM.md
4.4)."""

from __future__ import annotations

import os
from typing import Any

_enabled = os.environ.get("TORCH_NEURONX_METRICS_ENABLED", "").lower() in ("1", "true", "yes")
_counters: dict[str, int] = {}


def is_enabled() -> bool:
    return _enabled


def set_enabled(enabled: bool) -> None:
    global _enabled
    _enabled = enabled


def count(name: str) -> None:
    """One more (of the stand-in alone)."""
    if _enabled:
        _counters[name] = _counters.get(name, 0) + 1


def get_counter_names() -> list[str]:
    return list(_counters)


def get_counter_value(name: str) -> int | None:
    return _counters.get(name)


def get_metric_names() -> list[str]:
    return []


def get_metric_data(name: str) -> dict[str, Any] | None:
    return None


def get_compilation_metrics() -> dict[str, Any]:
    return {name: value for name, value in _counters.items() if "Compilation" in name}


def clear_counters() -> None:
    _counters.clear()


def clear_metrics() -> None:
    """No metrics here, counters alone."""


clear_all = clear_counters
