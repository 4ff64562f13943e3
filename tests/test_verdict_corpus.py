"""The corpus of the verdict: what it holds, and that its faults are faults."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from benchmarks.verdict import damage, faults  # noqa: E402 (they need torch)
from benchmarks.verdict.corpus import CORPUS, read_lines  # noqa: E402
from benchmarks.verdict.device import NEW_TOKENS, Asked, Made, Models, generate, hold  # noqa: E402
from benchmarks.verdict.faults import FAULTS, Fault  # noqa: E402
from benchmarks.verdict.generate import IMAGE_KINDS, loops  # noqa: E402
from benchmarks.verdict.kinds import KINDS, Label  # noqa: E402
from demo.recipes import PROMPTS, TEXTS  # noqa: E402

LIKE_LLAMA = ("tiny-llama-3-kv-heads", "tiny-qwen3")


@cache
def corpus() -> list[dict[str, Any]]:
    return read_lines()


def test_corpus_is_large_and_varied() -> None:
    """At least 400 continuations of at least 60 prompts, in a file that a repository can hold."""
    assert len(corpus()) >= 400
    assert len({line["prompt"] for line in corpus()}) >= 60
    assert CORPUS.stat().st_size < 3_500_000


def test_corpus_holds_every_kind_in_both_halves() -> None:
    """Every kind of kinds.py is there, to fit on and to be judged by."""
    halves = defaultdict(set)
    for line in corpus():
        halves[line["kind"]].add(line["half"])
    assert set(halves) == set(KINDS)
    assert {name for name, found in halves.items() if found != {"training", "held_out"}} == set()


def test_corpus_asks_both_tasks() -> None:
    """Pictures are there where a kind makes sense for them: right, different and wrong ones."""
    asked = [line for line in corpus() if line["task"] == "image-text-to-text"]
    assert {line["device"] for line in asked} == set(IMAGE_KINDS)
    assert {line["label"] for line in asked} == set(Label)


def test_halves_share_no_text() -> None:
    """What was fitted on one half was not seen in the other, but for constant and blank texts."""
    halves = defaultdict(set)
    for line in corpus():
        if not KINDS[line["kind"]].constant and line["text"].strip():
            halves[line["text"]].add(line["half"])
    assert [text for text, found in halves.items() if len(found) > 1] == []


def test_halves_share_no_prompt() -> None:
    """A prompt of one half is never asked in the other; of pictures, none is shown in both."""
    halves = defaultdict(set)
    for line in corpus():
        halves[line.get("picture") or line["prompt"]].add(line["half"])
    assert [prompt for prompt, found in halves.items() if len(found) > 1] == []


def test_labels_are_those_of_the_kinds() -> None:
    """A line's label is its kind's, and a healthy loop comes from a healthy device."""
    for line in corpus():
        assert line["label"] == KINDS[line["kind"]].label
        if line["kind"] == "healthy_loop":
            assert KINDS[line["device"]].label is not Label.WRONG
            assert loops(line["text"])
        elif "device" in line:
            assert line["device"] == line["kind"]


def test_wrong_kinds_say_who_sees_them() -> None:
    """Each wrong kind says whether a reader sees it and why; no other kind does."""
    for kind in KINDS.values():
        wrong = kind.label is Label.WRONG
        assert (kind.visible is not None, kind.why != "") == (wrong, wrong), kind.name


def test_every_fault_is_a_wrong_kind() -> None:
    """A fault and the kind it makes have one name."""
    assert {name for name in FAULTS if KINDS[name].label is not Label.WRONG} == set()
    assert set(FAULTS) == {
        kind.name for kind in KINDS.values() if kind.label is Label.WRONG and kind.device
    }


def test_greedy_lines_hold_evidence() -> None:
    """What a device made greedily was held against the reference, in both dtypes."""
    for line in corpus():
        if "device" not in line or not KINDS[line["device"]].device:
            assert "max_gap_bf16" not in line
            continue
        assert len(line["tokens"]) == 32
        for dtype in ("bf16", "fp32"):
            assert line[f"max_gap_{dtype}"] >= 0
            assert (line[f"worst_place_{dtype}"] > 0) == (line[f"max_gap_{dtype}"] > 0)
        assert line["noise"] > 0
        overflow = line["device"].startswith("overflow")
        assert (line["departure_bf16"] is None) == overflow


def test_healthy_devices_are_nearer_than_gross_faults() -> None:
    """The evidence tells a healthy device from a swapped shard: else no fault was applied."""
    worst: dict[str, list[float]] = defaultdict(list)
    for line in corpus():
        if line.get("departure_bf16") is not None and line["made_by"].startswith("SmolLM2"):
            worst[line["device"]].append(line["departure_bf16"])
    for healthy in ("bf16_against_fp32", "sharded_sums_rising", "compiled"):
        for broken in ("ranks_swapped", "all_reduce_missing", "o_proj_transposed"):
            assert max(worst[healthy]) < min(worst[broken])


def test_written_texts_are_spoilt_in_their_own_half() -> None:
    """A damaged text is made of texts of its half, so damage carries nothing across."""
    of_half = {
        (line["half"], line["prompt"]) for line in corpus() if line["kind"].startswith("written_")
    }
    for line in corpus():
        if line["kind"] in damage.DAMAGES:
            assert (line["half"], line["prompt"]) in of_half


def test_halves_are_about_equal() -> None:
    """No kind leans on one half (pictures: two of three are in the training half)."""
    counts: Counter[tuple[str, str]] = Counter(
        (line["kind"], line["half"]) for line in corpus() if line["task"] == "text-generation"
    )
    for kind in KINDS:
        first, second = counts[kind, "training"], counts[kind, "held_out"]
        assert min(first, second) >= 0.3 * max(first, second), kind


# --- the faults themselves, on tiny models --------------------------------------------------------


@pytest.fixture(scope="module", params=LIKE_LLAMA)
def asked(request: pytest.FixtureRequest, models: Callable[[str], Path]) -> Tiny:
    return Tiny(models(request.param))


class Tiny:
    """A tiny model, and what it answers when healthy."""

    def __init__(self, directory: Path) -> None:
        torch.set_num_threads(1)
        self.models = Models.load(directory)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self.tokenizer.padding_side = "left"
        self.healthy = self.answers()

    def batch(self, *prompts: str) -> dict[str, Any]:
        """Tensors, padded on the left."""
        return dict(self.tokenizer(list(prompts or PROMPTS), return_tensors="pt", padding=True))

    def answers(self, fault: Fault | None = None, *prompts: str) -> list[Made]:
        """What the model answers on that device, or on a healthy one."""
        how = Asked(fault) if fault else Asked()
        return generate(self.models.bf16, self.batch(*prompts), how)

    def logits(self) -> Any:
        """Of the prompts, healthy."""
        with torch.inference_mode():
            return self.models.bf16(**self.batch()).logits


@pytest.mark.parametrize("name", [name for name in FAULTS if name != "eos_ignored"])
def test_fault_changes_what_is_computed_and_leaves_nothing(asked: Tiny, name: str) -> None:
    """The device's log-probabilities are not a healthy one's; afterwards nothing is left."""
    before = asked.logits()
    broken = asked.answers(FAULTS[name])
    assert torch.equal(before, asked.logits())
    assert [one.logprobs for one in broken] != [one.logprobs for one in asked.healthy]
    assert asked.answers() == asked.healthy


def test_ignored_end_is_an_end_token(asked: Tiny) -> None:
    """The faulty device emits the end-of-text the healthy one is kept from, and computes on."""
    end = asked.models.bf16.generation_config.eos_token_id
    story = TEXTS[0][:-40]
    broken = asked.answers(FAULTS["eos_ignored"], story)[0]
    assert end in broken.tokens
    assert len(broken.tokens) == NEW_TOKENS
    assert broken.ids and broken.tokens == [step[0] for step in broken.ids]
    assert end not in asked.answers(None, story)[0].tokens


def test_overflows_are_no_numbers(asked: Tiny) -> None:
    """Both overflows really leave NaN or infinite logits, so there are no log-probabilities."""
    for name in ("overflow_to_nan", "overflow_to_inf"):
        assert [one.logprobs for one in asked.answers(FAULTS[name])] == [None] * len(PROMPTS)


def test_position_is_right_in_the_prompt_and_off_after_it(asked: Tiny) -> None:
    """The first new token comes from the prompt alone and is untouched; the second step is not."""
    for broken, healthy in zip(
        asked.answers(FAULTS["position_off_by_one"]), asked.healthy, strict=True
    ):
        assert broken.logprobs and healthy.logprobs
        assert broken.logprobs[0] == healthy.logprobs[0]
        assert broken.logprobs[1] != healthy.logprobs[1]


def test_stale_slot_shows_from_its_step_on(asked: Tiny) -> None:
    """Until the entry is lost every step is as ever."""
    step = faults.STALE_STEP
    for broken, healthy in zip(
        asked.answers(FAULTS["stale_cache_slot"]), asked.healthy, strict=True
    ):
        assert broken.logprobs and healthy.logprobs
        assert broken.logprobs[: step + 1] == healthy.logprobs[: step + 1]
        assert broken.logprobs[step + 1] != healthy.logprobs[step + 1]


def test_swapped_shards_are_right_once_both_sides_are_swapped(asked: Tiny) -> None:
    """The fault is to exchange columns against rows: with the rows exchanged too, it is gone."""
    model = asked.models.fp32
    ranks = faults.ranks_of(model)
    batch = asked.batch()

    def rows(weight: Any) -> Any:
        parts = list(weight.chunk(ranks))
        return torch.cat([parts[1], parts[0], *parts[2:]])

    weights = []
    for layer in faults.layers_of(model):
        weights += [getattr(layer.self_attn, f"{name}_proj").weight for name in "qkv"]
        if layer.mlp.down_proj.in_features % ranks == 0:
            weights += [layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]
    with torch.inference_mode():
        healthy = model(**batch).logits
        with faults.ranks_swapped(model):
            swapped = model(**batch).logits
            with faults._edited(weights, rows):
                mended = model(**batch).logits
    assert not torch.allclose(swapped, healthy, atol=0.1)
    assert torch.allclose(mended, healthy, atol=1e-3)


def test_sharded_sums_are_the_whole_sum(asked: Tiny) -> None:
    """All ranks' parts add up to the product, in any order; one rank's part does not."""
    model = asked.models.fp32
    batch, ranks = asked.batch(), range(faults.ranks_of(model))
    with torch.inference_mode():
        healthy = model(**batch).logits
        for order in (ranks, ranks[::-1]):
            with faults.sharded_sums(model, order):
                assert torch.allclose(model(**batch).logits, healthy, atol=1e-3)
        with faults.all_reduce_missing(model):
            assert not torch.allclose(model(**batch).logits, healthy, atol=0.1)


def test_float32_sums_keep_up_with_changed_weights(asked: Tiny) -> None:
    """The wide copies that make it quick are made anew when a weight changes, and back again."""
    model = asked.models.bf16
    head = model.get_output_embeddings()
    hidden = torch.ones(1, head.in_features, dtype=torch.bfloat16)
    before = head(hidden)
    with faults.weight_noise(model, 0.3):
        expected = (hidden.float() @ head.weight.float().T).to(torch.bfloat16)
        assert torch.equal(head(hidden), expected)
        assert not torch.equal(expected, before)
    assert torch.equal(head(hidden), before)


def test_healthy_device_stands_where_the_reference_does(asked: Tiny) -> None:
    """Evidence of a healthy device: no gap beyond rounding, departures as small as the noise."""
    prompt = asked.batch(PROMPTS[0])
    found = hold(asked.models, prompt, asked.healthy[0])
    assert found["max_gap_bf16"] < 0.25
    assert found["departure_bf16"] < 5 * found["noise"]
    assert len(found["steps"]) == 32


def test_models_that_are_built_otherwise_are_refused(models: Callable[[str], Path]) -> None:
    """A fault without a meaning for a model is an error, never a healthy run called broken."""
    gpt2 = transformers.AutoModelForCausalLM.from_pretrained(models("tiny-gpt2"))
    for damage_of in (faults.ranks_swapped, faults.o_proj_transposed):
        with pytest.raises(ValueError, match="Llama"), damage_of(gpt2):
            pass
    with pytest.raises(ValueError, match="rotary"), faults.position_off_by_one(gpt2):
        pass
