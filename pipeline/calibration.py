"""The bounds of the judge of fluent English: one calibration a judge model, with its source.

A signal has two bounds: within the first it speaks for fluent English, beyond the second against.
They mean nothing for another model than the one they were found with, so a judge is found here by
its Hub id or, when only a directory is known, by its architecture. They live in
data/judge_calibration.json together with how they were found and what they miss, and are made by
`python -m benchmarks.judge_thresholds`.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.errors import EnvironmentFault, UsageError

CALIBRATION_FILE: Final = "judge_calibration.json"
CALIBRATE: Final = "python -m benchmarks.judge_thresholds --judge DIR --write"


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Bounds(_Data):
    """Where a signal stops speaking for fluent English, and where it starts speaking against."""

    fluent: float
    not_fluent: float


LOW_IS_BAD: Final = frozenset({"distinct_2", "function_words", "ascii_letters"})
"""Signals that speak against a text when they are low; of the others high values do."""


class Thresholds(_Data):
    """One pair of bounds a signal; the second lies on the bad side of the first, or equals it."""

    mean_nll: Bounds
    worst_window: Bounds
    distinct_2: Bounds
    function_words: Bounds
    ascii_letters: Bounds
    broken_characters: Bounds

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for name, bounds in self:
            band = bounds.not_fluent - bounds.fluent
            if (band > 0) if name in LOW_IS_BAD else (band < 0):
                raise ValueError(f"{name}: the two bounds leave no room between good and bad")
        return self


class Architecture(_Data):
    """What tells a judge model apart when only a directory is known; from its config.json."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int


class Figures(_Data):
    """How often each verdict came out, on texts that took no part in finding the bounds."""

    texts: Annotated[int, Field(gt=0)]
    fluent: float
    inconclusive: float
    not_fluent: float


class Calibration(_Data):
    """The bounds of one judge model, with their source.

    weights_sha256: of the weights they were found with.
    note: where those weights came from.
    single: per class of text, for one continuation; runs: per number of prompts, then per class.
    """

    architecture: Architecture
    weights_sha256: str
    note: str
    source: str
    made_with: dict[str, str]
    thresholds: Thresholds
    single: dict[str, Figures]
    runs: dict[str, dict[str, Figures]]


class CalibrationFile(_Data):
    """data/judge_calibration.json: calibrations by the Hub id of the judge model."""

    judges: dict[str, Calibration]


def load_calibrations() -> CalibrationFile:
    """The calibrations that come with the package. Raises EnvironmentFault when unusable."""
    source = resources.files("pipeline") / "data" / CALIBRATION_FILE
    try:
        return CalibrationFile.model_validate_json(source.read_bytes())
    except (OSError, ValidationError) as error:
        raise EnvironmentFault(
            f"the judge's calibration cannot be read: {error}",
            where=str(source),
            remedy=f"Make it again: {CALIBRATE}",
        ) from error


def architecture_of(directory: Path) -> Architecture:
    """What config.json in a model directory says. Raises UsageError when it cannot be read."""
    path = directory / "config.json"
    try:
        config: Any = json.loads(path.read_bytes())
        return Architecture(**{name: config[name] for name in Architecture.model_fields})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"not a language model that can judge: {error!r}",
            where=str(path),
            remedy="Name a directory with config.json, tokenizer and safetensors weights.",
        ) from error


def find_calibration(model: str, declared_id: str | None = None) -> tuple[str, Calibration]:
    """(Hub id, calibration) of a judge: a Hub id, or a directory that holds one.

    A directory is the model `declared_id` says, or else the calibrated one of its architecture.
    Raises UsageError for a judge without calibration: bounds of one model mean nothing for another.
    """
    known = load_calibrations().judges
    directory = Path(model)
    if not directory.is_dir():
        if model in known:
            return model, known[model]
        raise _uncalibrated(f"neither a directory nor a calibrated judge: {model!r}", known)
    found = architecture_of(directory)
    if declared_id is None:
        for identity, calibration in known.items():
            if calibration.architecture == found:
                return identity, calibration
        raise _uncalibrated(f"no calibration for the judge in {model!r} ({found!r})", known)
    if declared_id not in known:
        raise _uncalibrated(f"no calibration for the judge {declared_id!r}", known)
    if known[declared_id].architecture != found:
        raise _uncalibrated(f"{model!r} holds {found!r}, which is not {declared_id!r}", known)
    return declared_id, known[declared_id]


def _uncalibrated(reason: str, known: dict[str, Calibration]) -> UsageError:
    names = ", ".join(sorted(known)) or "none"
    return UsageError(reason, remedy=f"Calibrated: {names}. For another one: {CALIBRATE}")
