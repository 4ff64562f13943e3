"""What a first run saw: kept after every check, as JSON with everything and Markdown to post."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pipeline.doctor import Machine
from pipeline.first_run.check import Check
from pipeline.first_run.checks import CHECKS
from pipeline.log import redact
from pipeline.record import write_atomically

# A body of a GitHub issue holds 65 536 characters; in Markdown each text is cut to leave room.
_WHOLE, _FAILED, _OTHER = 12_000, 3000, 500
_INSTANCE_ID = re.compile(r"\bi-[0-9a-f]{8,17}\b")


class Outcome(StrEnum):
    """What a check showed. Nothing is claimed of what was not tried."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNTRIED = "could not be tried"


@dataclass(frozen=True)
class Result:
    """A check's outcome. text: what was seen, verbatim, or why it could not be tried."""

    check: Check
    outcome: Outcome
    text: str
    seconds: float | None = None
    cores: tuple[int, ...] = ()


@dataclass
class Report:
    """All results so far. Checks that are not among them were not reached."""

    started_at: str
    commit: str | None
    machine: Machine
    checks: tuple[Check, ...] = CHECKS
    results: list[Result] = field(default_factory=list)

    def all(self) -> list[Result]:
        """One result for each check, in order; those that were not reached say so."""
        told = {result.check.id: result for result in self.results}
        return [
            told.get(check.id) or Result(check, Outcome.UNTRIED, "it was not reached")
            for check in self.checks
        ]

    def of(self, outcome: Outcome) -> list[Result]:
        """The results of one outcome, in order."""
        return [result for result in self.all() if result.outcome is outcome]

    def write(self, path: Path) -> None:
        """Markdown at `path`, JSON beside it; secrets and instance ids are taken out."""
        write_atomically(path, _clean(self.markdown()).encode())
        text = json.dumps(self.data(), indent=1, ensure_ascii=False)
        write_atomically(path.with_suffix(".json"), _clean(text).encode())

    def data(self) -> dict[str, Any]:
        """Everything, as JSON takes it."""
        return {
            "started_at": self.started_at,
            "pipeline_commit": self.commit,
            "machine": dataclasses.asdict(self.machine),
            "checks": [
                {
                    "id": result.check.id,
                    "assumption": result.check.assumption,
                    "source": result.check.source,
                    "mended_in": [str(place) for place in result.check.places],
                    "how": result.check.how,
                    "outcome": result.outcome,
                    "seen": result.text,
                    "seconds": result.seconds,
                    "cores": list(result.cores),
                }
                for result in self.all()
            ],
        }

    def markdown(self) -> str:
        """The report for people."""
        parts = [
            "# First run on a device",
            f"Begun {self.started_at} by pipeline commit {self.commit or 'unknown'}.",
            "\n".join(f"- {outcome}: {len(self.of(outcome))}" for outcome in Outcome),
        ]
        for outcome in (Outcome.FAILS, Outcome.UNTRIED, Outcome.HOLDS):
            parts.append(f"## {outcome.capitalize()}")
            parts += [_section(result) for result in self.of(outcome)] or ["None."]
        parts += ["## Machine", _machine(self.machine)]
        return "\n\n".join(parts) + "\n"


def _section(result: Result) -> str:
    check = result.check
    limit = _FAILED if result.outcome is Outcome.FAILS else _OTHER
    text = cut(result.text, _WHOLE if check.whole else limit)
    lines = [f"### {check.id}", "", check.assumption, ""]
    if result.outcome is not Outcome.HOLDS:
        lines += [f"- mended in {', '.join(f'`{place}`' for place in check.places)}"]
    took = "" if result.seconds is None else f", in {result.seconds:.1f} s"
    on = f" on cores {', '.join(map(str, result.cores))}" if result.cores else ""
    lines += [f"- source: {check.source}", f"- tried{on}{took}: {check.how}", ""]
    return "\n".join((*lines, fenced(text)))


def cut(text: str, limit: int) -> str:
    """At most `limit` characters: a third from the beginning, which sums up, the rest the end."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 3]}\n[...]\n{text[-(limit - limit // 3) :]}"


def fenced(text: str) -> str:
    """`text` as a code block that nothing in it can close."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _machine(found: Machine) -> str:
    rows: dict[str, object] = {
        "system": found.system,
        "instance": found.instance or "not told",
        "driver": found.driver or "none",
        "python": f"{found.python} ({found.executable})",
        "memory": _gib(found.memory_bytes),
        "swap": _gib(found.swap_bytes),
    }
    lines = [f"{name}: {value}" for name, value in rows.items()]
    lines += _named("package", found.packages) + _named("system package", found.system_packages)
    lines += _named("environment", found.caches)
    lines += [
        f"disk {disk.use}: {_gib(disk.free_bytes)} free at {disk.path}" for disk in found.disks
    ]
    lines += [f"no devices: {found.no_devices}"] if found.no_devices else map(str, found.devices)
    return fenced("\n".join(lines))


def _named(kind: str, values: Mapping[str, str]) -> list[str]:
    return [f"{kind} {name}: {value}" for name, value in sorted(values.items())]


def _gib(size: int | None) -> str:
    return "not told" if size is None else f"{size / 2**30:.1f} GiB"


def _clean(text: str) -> str:
    return _INSTANCE_ID.sub("i-[left out]", redact(text, os.environ))
