"""The corpus with what a judge model says of it.

What rests on the model (eight numbers a text) is kept in a file, by the text: scoring the whole
corpus takes a CPU core most of an hour, learning from it and reporting on it takes seconds. What
rests on the text alone is measured afresh.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.verdict.corpus import CORPUS, HERE, read_lines
from benchmarks.verdict.kinds import KINDS, Label
from pipeline.calibration import Architecture, architecture_of
from pipeline.judge import clean, clean_prompt, goes_on
from pipeline.likelihood import Likelihood, Tokens, weights_sha256
from pipeline.signals import Signals, TokenSignals, measure, summarise, windows
from pipeline.words import Task

MEASURED: Final = HERE / "measured.json"
APART: Final = frozenset({"healthy_loop"})
"""Right kinds that neither teach the rule nor count in its errors: a healthy small model going in
circles is no fault and no good English. The table shows them."""
_BATCH: Final = 32


@dataclass(frozen=True)
class Line:
    """One labelled continuation, as the judge reads it: clean.

    after_end: whether it went on behind a token that ends a text (judge.goes_on).
    group: those a run is put together from, the kind and whether it is about a picture.
    visible: whether a reader sees the fault; None of a text that is not wrong. A broken device that
    writes what a healthy one does has no fault to see, whatever its kind.
    """

    kind: str
    label: Label
    half: str
    prompt: str
    text: str
    group: str
    visible: bool | None
    after_end: bool = False

    def signals(self, values: Values) -> Signals:
        """All its signals, given those that rest on the judge."""
        return measure(self.prompt, self.text, values.signals, after_end=self.after_end)

    @property
    def key(self) -> str:
        """By what its values are kept."""
        return hashlib.sha256(f"{self.prompt}\0{self.text}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Values:
    """What is kept of one text: worst_nll (the highest mean of nll over a window, which the judge
    before this one used), then the signals that rest on the judge.
    """

    worst_nll: float
    signals: TokenSignals


def read_corpus(path: Path = CORPUS) -> list[Line]:
    """Every line of the corpus. Raises ValueError for a kind that kinds.py does not know."""
    lines = []
    for number, one in enumerate(read_lines(path), 1):
        kind = KINDS.get(one["kind"])
        if kind is None or kind.label != one["label"]:
            raise ValueError(f"{path}:{number}: kind {one['kind']!r} is not in kinds.py as such")
        picture = one.get("task") == Task.IMAGE_TEXT_TO_TEXT
        lines.append(
            Line(
                kind=kind.name,
                label=kind.label,
                half=one["half"],
                prompt=clean_prompt(one["prompt"]),
                text=clean(one["text"]),
                group=f"{kind.name} (picture)" if picture else kind.name,
                visible=kind.visible,
                after_end=goes_on(one["text"]),
            )
        )
    healthy = {line.key for line in lines if line.label is not Label.WRONG}
    return [replace(line, visible=False) if _as_healthy(line, healthy) else line for line in lines]


def _as_healthy(line: Line, healthy: set[str]) -> bool:
    return line.label is Label.WRONG and line.key in healthy


class Measured:
    """What one judge model said of texts, kept in a file."""

    def __init__(
        self, sha256: str, architecture: Architecture, values: dict[str, Values | None]
    ) -> None:
        self.weights_sha256 = sha256
        self.architecture = architecture
        self._values = values

    @classmethod
    def read(cls, path: Path) -> Measured:
        """Raises OSError or ValueError when there is nothing usable."""
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            kept["weights_sha256"],
            Architecture.model_validate(kept["architecture"]),
            {
                key: Values(row[0], TokenSignals(*row[1:])) if row else None
                for key, row in kept["texts"].items()
            },
        )

    def write(self, path: Path) -> None:
        """One text a line, in the order of their keys."""
        rows = [
            f'"{key}":{json.dumps(_row(values), separators=(",", ":"))}'
            for key, values in sorted(self._values.items())
        ]
        head = json.dumps(
            {"weights_sha256": self.weights_sha256, "architecture": self.architecture.model_dump()}
        )
        path.write_text(f'{head[:-1]}, "texts": {{\n' + ",\n".join(rows) + "\n}}\n", "utf-8")

    def __contains__(self, line: Line) -> bool:
        return not line.text.strip() or line.key in self._values

    def __getitem__(self, line: Line) -> Values | None:
        """None when the text shows nothing, or nothing in the judge's tokens."""
        return self._values[line.key] if line.text.strip() else None

    def only(self, lines: Sequence[Line]) -> Measured:
        """Without the texts that are not in `lines`."""
        wanted = {line.key for line in lines}
        kept = {key: values for key, values in self._values.items() if key in wanted}
        return Measured(self.weights_sha256, self.architecture, kept)

    def complete(
        self, directory: Path, lines: Sequence[Line], say: Callable[[str], None]
    ) -> Iterator[None]:
        """Measure what is missing with the model in `directory`; yields after each batch."""
        missing = list({line.key: line for line in lines if line not in self}.values())
        if not missing:
            return
        # Likelihood batches what it is given by length; in this order there is little padding.
        missing.sort(key=lambda line: (len(line.prompt), len(line.text), line.key))
        likelihood = Likelihood(directory)
        for begin in range(0, len(missing), _BATCH):
            batch = missing[begin : begin + _BATCH]
            answers = likelihood([(line.prompt, line.text) for line in batch])
            for line, tokens in zip(batch, answers, strict=True):
                self._values[line.key] = _values(tokens)
            say(f"measured {min(begin + _BATCH, len(missing))} of {len(missing)} texts")
            yield


def measured_of(directory: Path, path: Path) -> Measured:
    """What the file holds of the model in `directory`; nothing yet when it is another's."""
    sha256 = weights_sha256(directory)
    try:
        found = Measured.read(path)
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if found and found.weights_sha256 == sha256:
        return found
    return Measured(sha256, architecture_of(directory), {})


def _values(tokens: Tokens) -> Values | None:
    if not tokens.nll:
        return None
    return Values(max(windows(tokens.nll)), summarise(tokens))


def _row(values: Values | None) -> list[float] | None:
    if values is None:
        return None
    return [round(value, 4) for value in (values.worst_nll, *astuple(values.signals))]
