"""How the judge of fluent English weighs its signals: one calibration a judge model, with source.

A term turns one signal into evidence against a text: nothing within what right texts show, then
more with every spread beyond it. Weights, bias and the two bounds were learnt from labelled texts
with one model and mean nothing for another, so a judge is found here by its Hub id or, when only a
directory is known, by its architecture. They live in data/judge_calibration.json together with how
they were found and how often they err on texts that took no part in it, and are made by
`python -m benchmarks.verdict.calibrate`.
"""

from __future__ import annotations

import json
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.errors import EnvironmentFault, UsageError
from pipeline.likelihood import weights_sha256
from pipeline.signals import SIGNALS, Signals

CALIBRATION_FILE: Final = "judge_calibration.json"
CALIBRATE: Final = "python -m benchmarks.verdict.calibrate --judge DIR --id ID --write"

Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Side(StrEnum):
    """The side of a signal that speaks against a text."""

    HIGH = "high"
    LOW = "low"


class Term(_Data):
    """One signal as evidence against a text.

    centre, spread: where right texts of the training half end on that side, and the unit beyond it.
    weight: log odds a unit; never negative, so a term can only speak against.
    """

    signal: str
    side: Side
    centre: Finite
    spread: Annotated[Finite, Field(gt=0)]
    weight: Annotated[Finite, Field(ge=0)]

    @model_validator(mode="after")
    def _is_measured(self) -> Self:
        if self.signal not in SIGNALS:
            raise ValueError(f"{self.signal}: no such signal")
        return self

    def distance(self, signals: Signals, limit: float) -> float:
        """Spreads beyond the centre on the bad side, from 0 to `limit`."""
        value: float = getattr(signals, self.signal)
        beyond = value - self.centre if self.side is Side.HIGH else self.centre - value
        return min(max(beyond / self.spread, 0.0), limit)


class Bounds(_Data):
    """A run's score speaks for fluent English below the first and against it above the second."""

    fluent: Finite
    not_fluent: Finite

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.fluent > self.not_fluent:
            raise ValueError("the two bounds are in the wrong order")
        return self


class Rule(_Data):
    """From the signals of a run's texts to its verdict.

    A text's score is the log odds that it is wrong: bias + the sum of weight x distance, within
    -cap..cap. A run's score is the mean over its texts: one odd text does not rule it.
    """

    bias: Finite
    limit: Annotated[Finite, Field(gt=0)]
    cap: Annotated[Finite, Field(gt=0)]
    terms: tuple[Term, ...]
    bounds: Bounds

    def contributions(self, signals: Signals) -> dict[str, float]:
        """What each term adds to the score of a text, for those that add something."""
        found = {
            f"{term.signal} {term.side}": term.weight * term.distance(signals, self.limit)
            for term in self.terms
        }
        return {name: value for name, value in found.items() if value > 0}

    def score(self, signals: Signals) -> float:
        """The score of a text."""
        return self.clipped(self.bias + sum(self.contributions(signals).values()))

    def clipped(self, score: float) -> float:
        """Within -cap..cap."""
        return min(max(score, -self.cap), self.cap)


class Architecture(_Data):
    """What tells a judge model apart when only a directory is known; from its config.json."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int


class Rate(_Data):
    """`k` of `n`, and the exact 95 % interval of the share (Clopper-Pearson)."""

    k: Count
    n: Count
    low: Share
    high: Share


class Outcome(_Data):
    """Verdicts on the held-out texts or runs of one kind. of: how many; the rest: inconclusive."""

    of: Count
    fluent: Count
    not_fluent: Count
    wrong: Rate


class KindFigures(_Data):
    """How often the judge errs on one kind of held-out text.

    visible: whether a reader sees the fault; None for a kind that is right. runs: by their number
    of prompts, no text in two of them. auc: against all right texts.
    """

    label: str
    visible: bool | None
    auc: Share | None
    texts: Outcome
    runs: dict[str, Outcome]


class Errors(_Data):
    """Held-out errors over all kinds, for one number of prompts.

    false_fail: right runs that came out not_fluent. false_pass: wrong runs whose fault a reader
    sees that came out fluent; false_pass_hidden: those whose fault he does not.
    drawn_*: the same as shares of runs drawn at random, kinds weighing the same.
    """

    false_fail: Rate
    false_pass: Rate
    false_pass_hidden: Rate
    right_inconclusive: Rate
    wrong_inconclusive: Rate
    drawn_false_fail: Share
    drawn_false_pass: Share
    drawn_right_inconclusive: Share
    drawn_wrong_inconclusive: Share


class Curve(_Data):
    """One way to score, on held-out texts or runs: kinds weigh the same.

    roc: (share of right ones above a threshold, share of visibly wrong ones above it). auc None:
    there were no runs of so many prompts.
    """

    auc: Share | None
    roc: tuple[tuple[Share, Share], ...]


class Report(_Data):
    """What the held-out half says: errors by number of prompts, curves by number and scorer."""

    errors: dict[str, Errors]
    curves: dict[str, dict[str, Curve]]
    kinds: dict[str, KindFigures]


class Calibration(_Data):
    """The rule of one judge model, with its source.

    weights_sha256: of the weights it was found with. other_weights: whether a directory with other
    weights of the same architecture may use it (the verdict says so).
    note: where those weights came from. training_auc: how well it tells texts of the training half
    apart that took no part in fitting it (cross-validation).
    """

    architecture: Architecture
    weights_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    other_weights: bool
    note: str
    source: str
    made_with: dict[str, str]
    training_auc: Share
    rule: Rule
    held_out: Report | None


class CalibrationFile(_Data):
    """data/judge_calibration.json: calibrations by the Hub id of the judge model."""

    judges: dict[str, Calibration]


def load_calibrations(path: Path | None = None) -> CalibrationFile:
    """The calibrations of a file, or those that come with the package.

    Raises EnvironmentFault when unusable.
    """
    source = path or resources.files("pipeline") / "data" / CALIBRATION_FILE
    try:
        return CalibrationFile.model_validate_json(source.read_bytes())
    except (OSError, ValidationError) as error:
        raise EnvironmentFault(
            f"the judge's calibration cannot be read: {error}",
            where=str(source),
            remedy=f"Make it again: {CALIBRATE}",
        ) from error


_ELSEWHERE: Final = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
}
"""How GPT-2 and its kin name these in config.json."""


def architecture_of(directory: Path) -> Architecture:
    """What config.json in a model directory says. Raises UsageError when it cannot be read."""
    path = directory / "config.json"
    try:
        config: Any = json.loads(path.read_bytes())
        config = {**config.get("text_config", {}), **config}
        return Architecture(
            **{
                name: config[name] if name in config else config[_ELSEWHERE.get(name, name)]
                for name in Architecture.model_fields
            }
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"not a language model that can judge: {error!r}",
            where=str(path),
            remedy="Name a directory with config.json, tokenizer and safetensors weights.",
        ) from error


def find_calibration(model: str, declared_id: str | None = None) -> tuple[str, Calibration]:
    """(Hub id, calibration) of a judge: a Hub id, or a directory that holds one.

    A directory is the model `declared_id` says, or else the calibrated one of its architecture;
    its weights must be the calibrated ones unless the calibration allows others. Raises UsageError
    for a judge without calibration: a rule of one model means nothing for another.
    """
    known = load_calibrations().judges
    directory = Path(model)
    if not directory.is_dir():
        if model in known:
            return model, known[model]
        raise _uncalibrated(f"neither a directory nor a calibrated judge: {model!r}", known)
    found = architecture_of(directory)
    if declared_id is None:
        same = (one for one, calibration in known.items() if calibration.architecture == found)
        identity = next(same, None)
        if identity is None:
            raise _uncalibrated(f"no calibration for the judge in {model!r} ({found!r})", known)
    elif declared_id not in known:
        raise _uncalibrated(f"no calibration for the judge {declared_id!r}", known)
    elif known[declared_id].architecture != found:
        raise _uncalibrated(f"{model!r} holds {found!r}, which is not {declared_id!r}", known)
    else:
        identity = declared_id
    calibration = known[identity]
    if not calibration.other_weights and _weights(directory) != calibration.weights_sha256:
        raise _uncalibrated(f"{model!r} holds other weights than {identity!r}", known)
    return identity, calibration


def _weights(directory: Path) -> str | None:
    try:
        return weights_sha256(directory)
    except OSError:
        return None  # none that can be read are not the calibrated ones


def _uncalibrated(reason: str, known: dict[str, Calibration]) -> UsageError:
    names = ", ".join(sorted(known)) or "none"
    return UsageError(reason, remedy=f"Calibrated: {names}. For another one: {CALIBRATE}")
