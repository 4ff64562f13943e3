"""Programs of the Neuron tools, found and asked; none of them may hang the harness."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from pipeline import processes

TOOLS = Path("/opt/aws/neuron/bin")
"""Where the package aws-neuronx-tools puts its programs; not on the PATH of a runner's service."""

LIMIT_S = 30.0
"""Longest wait for an answer. neuron-ls answers within seconds; a driver in trouble may never."""


@dataclass(frozen=True)
class Answer:
    """What a program said. code: its exit code, negative = ended by that signal."""

    command: str
    code: int
    out: str
    err: str

    @property
    def told(self) -> str:
        """Its last words, for people: at most 500 characters of both streams."""
        return " ".join(f"{self.err} {self.out}".split())[-500:] or "nothing"


class NoAnswerError(Exception):
    """A program is not there, could not be started, or did not answer in time."""


def find(name: str) -> str | None:
    """The program of that name, from PATH, then from `TOOLS`; None = not there."""
    return shutil.which(name) or shutil.which(name, path=str(TOOLS))


def ask(name: str, *arguments: str, limit_s: float = LIMIT_S) -> Answer:
    """Run a program to its end; NoAnswerError when it is not there or takes longer."""
    program = find(name)
    command = " ".join((name, *arguments))
    if program is None:
        raise NoAnswerError(f"{name} is neither on PATH nor in {TOOLS}")
    try:
        ended = processes.run([program, *arguments], limit_s=limit_s)
    except processes.Unanswered as error:
        raise NoAnswerError(f"{command} {error}") from error
    texts = (stream.decode(errors="replace") for stream in (ended.out, ended.err))
    return Answer(command, ended.code, *texts)
