"""The token check's figures: devices that are right but different, and how verdicts are counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.verdict import noise, series, tokens
from benchmarks.verdict.device import Asked, generate
from benchmarks.verdict.faults import FAULTS, Fault
from benchmarks.verdict.generate import TEXT_MODEL, Device, Prompt
from benchmarks.verdict.kinds import Label
from benchmarks.verdict.series import Series
from benchmarks.verdict.tokens import Count
from pipeline import agreement
from pipeline.words import CpuMatch

STEPS = 6


@pytest.fixture(scope="module")
def directory(models: Callable[[str], Path]) -> Path:
    return models("tiny-qwen3")


@pytest.fixture
def model(directory: Path) -> Any:
    loaded: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
    return loaded.eval().requires_grad_(False)


@pytest.fixture
def path(model: Any) -> noise.Path:
    prompts = [[5, 6, 7, 8], [9, 10]]
    return noise.Path.of(prompts, [list(range(20, 20 + STEPS))] * 2, model)


def _weights(model: Any) -> bytes:
    return b"".join(one.float().numpy().tobytes() for one in model.parameters())


@pytest.mark.parametrize("kind", noise.BF16)
def test_right_device_differs_by_rounding_and_leaves_the_model_as_it_was(
    model: Any, path: noise.Path, kind: str
) -> None:
    """Every right but different device moves logits, by far less than a fault, and is undone."""
    weights, before = _weights(model), noise.logits(model, path)
    with noise.BF16[kind](model):
        during = noise.logits(model, path)
    assert torch.equal(noise.logits(model, path), before)
    assert _weights(model) == weights
    with FAULTS["all_reduce_missing_one_layer"].model(model):
        broken = noise.logits(model, path)
    moved = (during - before).square().mean().sqrt()
    assert moved < 0.1 * (broken - before).square().mean().sqrt()
    assert moved > 0 or kind == "fused attention"


def test_partial_sums_of_ranks_are_the_whole_sum(model: Any, path: noise.Path) -> None:
    """In float32 nothing but the order is different; a part left out would show."""
    model = model.float()
    with noise.over_ranks(4)(model):
        shared = noise.logits(model, path)
    assert torch.allclose(shared, noise.logits(model, path), atol=1e-4)


def test_rounding_at_random_gives_neighbours_of_the_exact_product() -> None:
    """Each value is one of the two bf16 numbers around it, and the mean stays where it was."""
    layer = torch.nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    layer.weight.data.fill_(1.0)

    class Model(torch.nn.Module):
        config = type("Config", (), {"_attn_implementation": "eager"})()
        _supports_sdpa = True

        def __init__(self) -> None:
            super().__init__()
            self.q_proj = layer

        def set_attn_implementation(self, name: str) -> None:
            self.config._attn_implementation = name

    value = 1 + 2**-9  # a quarter of the way from 1 to the next bf16
    with noise.rounding_at_random(Model()):
        found = layer(torch.full((4000, 1), value))
    assert set(found.unique().tolist()) == {1.0, 1.0078125}
    assert abs(float(found.mean()) - value) < 2**-11


def test_cut_model_has_so_many_layers_and_gets_them_back(model: Any) -> None:
    """A shallower model is the same model for the length of the block."""
    whole = model.model.layers
    with noise.cut(model, 1):
        assert len(model.model.layers) == 1
    assert model.model.layers is whole


def test_evidence_holds_a_device_against_both_references() -> None:
    """Gaps count without tokens that end a text; departures are root mean squares, with them."""
    own = torch.zeros(1, 1, 8)
    exact = own.clone()
    exact[0, 0, 3] = 1.0
    device = own.clone()
    device[0, 0, 0], device[0, 0, 2] = 5.0, 2.0
    row = noise.compare(device, own, exact, ends=[0])[0, 0]
    logs = [torch.log_softmax(one[0, 0], -1) for one in (device, own, exact)]
    best = logs[0].topk(5).indices
    apart = [logs[0][best] - logs[1][best], logs[0][best] - logs[2][best]]
    assert row[noise.GAP] == 0  # 0 is banned, 2 is the device's, all are equal for the reference
    assert row[noise.EXACT_GAP] == pytest.approx(1.0)
    assert (row[noise.PLACE], row[noise.EXACT_PLACE]) == (0, 1)
    assert row[noise.DEPARTURE] == pytest.approx(float(apart[0].square().mean().sqrt()))
    assert row[noise.EXACT_DEPARTURE] == pytest.approx(float(apart[1].square().mean().sqrt()))
    between = (apart[1] - apart[0]).square().mean().sqrt()
    assert row[noise.NOISE] == pytest.approx(float(between))


def _evidence(away: float, gap: float = 0.0, rounding: float = 0.05, prompts: int = 3) -> Any:
    row = [gap, 0, gap, 0, away, away, rounding]
    return np.array([[row] * 32] * prompts)


def test_verdict_gets_departure_noise_and_gap_of_the_evidence() -> None:
    """What pipeline.agreement makes of the rebuilt reference are the figures it was built of."""
    found = agreement.match(noise.reference(_evidence(0.06, gap=0.01)))
    assert found.departure == pytest.approx(0.06)
    assert found.noise == pytest.approx(0.05)
    assert found.max_gap == pytest.approx(0.01)
    without = agreement.match(noise.reference(_evidence(0.06), float32=False))
    assert without.noise is None
    assert without.departure == pytest.approx(0.06)
    silent = agreement.match(noise.reference(_evidence(0.06), logits=False))
    assert silent.departure is None
    assert silent.noise == pytest.approx(0.05)


def test_runs_are_disjoint_and_whole() -> None:
    """No prompt is in two runs, and no run is short of prompts."""
    evidence = np.arange(10)[:, None, None] * np.ones((1, 2, 7))
    found = tokens.runs(evidence, 3)
    assert [len(run) for run in found] == [3, 3, 3]
    assert len({float(run[at, 0, 0]) for run in found for at in range(3)}) == 9


def test_verdicts_are_counted_by_what_they_say() -> None:
    """A device at its own noise passes, one far off is refused, one between may be neither."""
    bounds = agreement.IN_NOISES
    between = 0.05 * (bounds.run + min(bounds.wrong, bounds.prompt)) / 2
    several = [
        Series("m", "bfloat16", name, Label.DIFFERENT, False, True, {"training": _evidence(away)})
        for name, away in (("good", 0.05), ("bad", 0.05 * bounds.wrong * 2), ("odd", between))
    ]
    found = tokens.count(several, "training", 3, "logits and float32")
    assert (found.passed, found.refused, found.undecided) == (1, 1, 1)
    assert found.runs == 3
    assert found + Count(passed=1) == Count(2, 1, 1)


def test_prompts_that_left_the_reference_s_path_are_told_apart() -> None:
    """A token that is not the reference's own choice is where a text of the device's own begins."""
    both = np.concatenate([_evidence(0.05, prompts=2), _evidence(0.05, gap=0.02, prompts=3)])
    one = Series("m", "bfloat16", "k", Label.DIFFERENT, False, True, {"training": both})
    found = tokens.diverged([one], "training")
    assert found["on the reference's own path"].runs == 2
    assert found["on a path of their own"].runs == 3


def test_late_fault_is_healthy_before_its_step(directory: Path) -> None:
    """Up to the step the tokens and log-probabilities are those of a healthy device."""
    device = Device(directory)
    batch = device.tensors([Prompt(None, "training", "Once upon a time, in a small village")])
    late = Fault(series.late(FAULTS["ranks_swapped"].model, 5))
    healthy, broken, again = (
        generate(device.models.bf16, batch, Asked(one))[0] for one in (Fault(), late, Fault())
    )
    assert broken.logprobs is not None and healthy.logprobs is not None
    assert broken.logprobs[:5] == healthy.logprobs[:5]
    assert broken.logprobs[5] != healthy.logprobs[5]
    assert again == healthy


def test_small_model_passes_when_right_and_not_when_wrong(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """End to end: sums in another order pass; noise of 5 % does not, from half-way on either."""
    late = "noise_5_percent, from step 16"
    monkeypatch.setattr(series, "RIGHT", {"4 ranks": series.RIGHT["4 ranks"]})
    monkeypatch.setattr(series, "WRONG", {late: series.WRONG[late]})
    found = {one.kind: one for one in series.family(directory, torch.bfloat16, per_kind=1)}
    verdicts = {
        kind: tokens.judged(one.evidence["training"], routed=one.routed)
        for kind, one in found.items()
    }
    assert verdicts["4 ranks"] in (CpuMatch.EXACT, CpuMatch.NEAR_TIE)
    assert verdicts[late] is CpuMatch.MISMATCH


def test_kept_figures_are_those_of_the_bounds_in_use() -> None:
    """Whoever changes a bound measures again: python -m benchmarks.verdict.tokens --write."""
    found = json.loads(tokens.FIGURES.read_text(encoding="utf-8"))
    assert found["bounds"] == tokens.bounds()
    assert found["bounds"]["in_noises"] == asdict(agreement.IN_NOISES)


def test_kept_figures_say_that_faults_are_caught() -> None:
    """In held-out runs of eight prompts no right device was refused, and 5 % noise and one layer's
    missing sum never passed; noise of 1 % never passed on the real model."""
    found = json.loads(tokens.FIGURES.read_text(encoding="utf-8"))
    eight = found["verdicts"]["held_out"]["logits and float32"]["8"]
    assert eight[tokens.GOOD]["refused"] == 0
    for kind in ("noise_5_percent", "all_reduce_missing_one_layer", "layer_skipped"):
        assert eight[kind]["passed"] == 0
        assert eight[kind]["refused"] > 0
    slight = [
        one["run"]
        for one in found["sides"]
        if one["model"] == TEXT_MODEL and one["kind"].endswith("noise_1_percent")
    ]
    assert min(slight) > agreement.IN_NOISES.run
