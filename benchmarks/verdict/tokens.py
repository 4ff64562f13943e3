"""How far the token check can be trusted: `python -m benchmarks.verdict.tokens --models DIR`.

DIR holds the models of demo.build_models. Devices that are right but different, and broken ones
(faults.py), are held against the CPU reference, and pipeline.agreement.match judges runs of 1 to 8
of their prompts. --write keeps the figures in token_figures.json beside this file.

Nothing here ran on Trainium. The rule's constants were chosen on the training half of the prompts;
the rates are those of the held-out half, whose prompts no constant has seen. Of the families,
tiny-qwen2-5-vl was not looked at either. Runs of one checkpoint share weights, and a device's kinds
share prompts, so the intervals say how much chance there is in the prompts, not how another
checkpoint would fare.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.verdict import faults, noise, rates
from benchmarks.verdict.corpus import HALVES, HERE
from benchmarks.verdict.kinds import Label
from benchmarks.verdict.noise import Evidence
from benchmarks.verdict.series import Series, measure
from pipeline import agreement
from pipeline.record import write_atomically
from pipeline.words import CpuMatch

FIGURES: Final = HERE / "token_figures.json"
RUNS: Final = (1, 2, 3, 4, 8)
"""Prompts a run."""
LESS_RUNS: Final = (3, 8)
"""The same where less evidence than usual is there."""
GOOD: Final = "right but different"


# --- figures --------------------------------------------------------------------------------------


def typical(values: Any) -> float:
    """Of an array of any shape, as the rule has it."""
    return agreement.typical(np.ravel(values).tolist())


def sides(evidence: Evidence) -> dict[str, float]:
    """How far a device goes in each figure that the rule bounds, all prompts taken as one run.

    noise in nats; run, prompt, step and gap in noises, as pipeline.agreement bounds them;
    wide_steps: the share of steps beyond the bounds of one step; own_*: against the run's dtype, in
    nats.
    """
    rounding, away = evidence[..., noise.NOISE], evidence[..., noise.EXACT_DEPARTURE]
    noises = max(typical(rounding), agreement.FLOOR)
    at_most = agreement.IN_NOISES
    here = np.maximum(rounding, noises)
    gaps = evidence[..., noise.EXACT_GAP]
    wide = (away > at_most.step * here) | (gaps > at_most.gap * here)
    return {
        "noise": typical(rounding),
        "run": typical(away) / noises,
        "prompt": max(map(typical, away)) / noises,
        "step": float((away / here).max()),
        "gap": float((gaps / here).max()),
        "wide_steps": float(wide.mean()),
        "place": float(evidence[..., noise.EXACT_PLACE].max()),
        "own_run": typical(evidence[..., noise.DEPARTURE]),
        "own_prompt": max(map(typical, evidence[..., noise.DEPARTURE])),
        "own_step": float(evidence[..., noise.DEPARTURE].max()),
        "own_gap": float(evidence[..., noise.GAP].max()),
    }


BEST: Final = "logits and float32"
LEVELS: Final = {
    BEST: {"logits": True, "float32": True},
    "float32 alone": {"logits": False, "float32": True},
    "logits alone": {"logits": True, "float32": False},
    "neither": {"logits": False, "float32": False},
}
"""What a run may leave to go by."""


def judged(
    evidence: Evidence, *, routed: bool, logits: bool = True, float32: bool = True
) -> CpuMatch:
    """What pipeline.agreement says of these prompts as one run."""
    found = noise.reference(evidence, logits=logits, float32=float32)
    return agreement.match(found, routed=routed).cpu_match


def runs(evidence: Evidence, prompts: int) -> list[Evidence]:
    """Disjoint runs of so many prompts, drawn once; what is left over is not used."""
    order = np.random.default_rng(faults.SEED).permutation(len(evidence))
    whole = len(evidence) // prompts
    return [evidence[order[at * prompts : (at + 1) * prompts]] for at in range(whole)]


@dataclass
class Count:
    """Runs judged: those passed (exact or near_tie), refused (mismatch), and neither."""

    passed: int = 0
    refused: int = 0
    undecided: int = 0

    def add(self, match: CpuMatch) -> None:
        """One more."""
        if match in (CpuMatch.EXACT, CpuMatch.NEAR_TIE):
            self.passed += 1
        elif match is CpuMatch.MISMATCH:
            self.refused += 1
        else:
            self.undecided += 1

    def __add__(self, other: Count) -> Count:
        return Count(
            self.passed + other.passed,
            self.refused + other.refused,
            self.undecided + other.undecided,
        )

    @property
    def runs(self) -> int:
        """All of them."""
        return self.passed + self.refused + self.undecided


def count(series: Iterable[Series], half: str, prompts: int, level: str) -> Count:
    """Verdicts on runs of so many prompts."""
    found = Count()
    for one in series:
        for run in runs(one.evidence[half], prompts):
            found.add(judged(run, routed=one.routed, **LEVELS[level]))
    return found


def diverged(series: Iterable[Series], half: str) -> dict[str, Count]:
    """Verdicts on single prompts of right devices, by whether they left the reference's own path.

    A prompt has left it where a token is not the first choice of the reference in the run's dtype;
    from there on the device goes on with a text of its own.
    """
    found = {"on the reference's own path": Count(), "on a path of their own": Count()}
    for one in series:
        if one.label is Label.WRONG or not one.free:
            continue
        for prompt in one.evidence[half]:
            left = bool((prompt[:, noise.GAP] > 0).any())
            name = "on a path of their own" if left else "on the reference's own path"
            found[name].add(judged(prompt[None], routed=one.routed))
    return found


def bounds() -> dict[str, Any]:
    """The bounds that the figures belong to."""
    return {
        "in_noises": asdict(agreement.IN_NOISES),
        "in_nats": asdict(agreement.IN_NATS),
        "floor": agreement.FLOOR,
        "routed_share": agreement.ROUTED_SHARE,
        "trim": agreement.TRIM,
    }


def figures(series: Sequence[Series]) -> dict[str, Any]:
    """Everything the tables show, as counts and shares."""
    by_kind: dict[str, list[Series]] = {}
    for one in series:
        name = one.kind if one.label is Label.WRONG else GOOD
        by_kind.setdefault(name.removeprefix("corpus: "), []).append(one)
    return {
        "bounds": bounds(),
        "sides": [
            {
                "model": one.model,
                "dtype": one.dtype,
                "kind": one.kind,
                "label": one.label.value,
                "half": half,
                "prompts": len(one.evidence[half]),
            }
            | {name: round(value, 4) for name, value in sides(one.evidence[half]).items()}
            for one in series
            for half in HALVES
        ],
        "verdicts": {
            half: {
                level: {
                    str(prompts): {
                        kind: asdict(count(several, half, prompts, level))
                        for kind, several in by_kind.items()
                    }
                    for prompts in (RUNS if level == BEST else LESS_RUNS)
                }
                for level in LEVELS
            }
            for half in HALVES
        },
        "diverged": {
            half: {name: asdict(of) for name, of in diverged(series, half).items()}
            for half in HALVES
        },
    }


# --- tables ---------------------------------------------------------------------------------------

_SIDES: Final = ("run", "prompt", "step", "gap", "wide_steps", "own_run", "own_gap")


def tables(found: dict[str, Any]) -> Iterator[str]:
    """What is printed, line by line."""
    yield f"Bounds of pipeline.agreement: {json.dumps(found['bounds'])}"
    for half in HALVES:
        yield ""
        yield f"How far devices go, {half} prompts (noise and own_*: nats; run to gap: noises)"
        yield f"{'':54}{'noise':>7}" + "".join(f"{name:>11}" for name in _SIDES)
        for one in found["sides"]:
            if one["half"] == half:
                mark = "-" if one["label"] == Label.WRONG.value else "+"
                name = f"{mark} {one['model'][:12]} {one['dtype']} {one['kind']}"
                cells = "".join(f"{one[side]:11.3f}" for side in _SIDES)
                yield f"{name[:54]:54}{one['noise']:7.4f}{cells}"
    for half in HALVES:
        for level, by_prompts in found["verdicts"][half].items():
            yield ""
            yield (f"{half} prompts, {level}: runs passed / undecided / refused, by prompts a run")
            yield f"{'':46}" + "".join(f"{prompts:>15}" for prompts in by_prompts)
            for kind in by_prompts[str(LESS_RUNS[0])]:
                counts = [Count(**verdicts[kind]) for verdicts in by_prompts.values()]
                yield f"{kind[:46]:46}" + "".join(
                    f"{f'{one.passed}/{one.undecided}/{one.refused}':>15}" for one in counts
                )
            for prompts, verdicts in by_prompts.items():
                good = Count(**verdicts[GOOD])
                bad = sum((Count(**one) for kind, one in verdicts.items() if kind != GOOD), Count())
                yield (
                    f"{prompts} prompts: false FAIL {rates.rate(good.refused, good.runs)}, "
                    f"undecided {rates.rate(good.undecided, good.runs)}; "
                    f"false PASS {rates.rate(bad.passed, bad.runs)}"
                )
        yield ""
        for name, verdicts in found["diverged"][half].items():
            of = Count(**verdicts)
            yield f"{half}, right, {name}: refused {rates.rate(of.refused, of.runs)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="How far the token check can be trusted.")
    parser.add_argument("--models", type=Path, required=True, metavar="DIR")
    parser.add_argument("--write", action="store_true", help=f"keep the figures in {FIGURES.name}")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    began = time.monotonic()
    series = []
    for one in measure(options.models):
        series.append(one)
        print(
            f"{time.monotonic() - began:5.0f} s  {one.model} {one.dtype} {one.kind}",
            file=sys.stderr,
            flush=True,
        )
    found = figures(series)
    for line in tables(found):
        print(line)
    print(f"\n{time.monotonic() - began:.0f} s")
    if options.write:
        write_atomically(FIGURES, (json.dumps(found, indent=1) + "\n").encode())
        print(f"wrote {FIGURES}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
