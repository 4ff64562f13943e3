"""What a language model thinks of each token of a text, on the CPU, in a process of its own.

`python -m pipeline.likelihood` reads one question on stdin and writes one answer on stdout, JSON:
    {"model": directory or Hub id, "revision": commit or null, "items": [{"prompt", "text"}, ...]}
    {"weights_sha256": 64 hex digits, "texts": [{name: [value of each token of the text]}, ...]}
The names are the fields of `Tokens`. A failure ends it with an exit code other than 0 and its
reason as the last line on stderr.

It runs where torch and transformers are, which may be another interpreter than that of the rest:
beyond those two it needs nothing but the standard library, and only once a model is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

MAX_TOKENS: Final = 64
"""A continuation is judged by its first 64 tokens of the judge: twice the length the calibration
was made at, since word counts and extremes over windows drift with length."""
MAX_PROMPT_TOKENS: Final = 256
_BATCH: Final = 8
_BATCH_LOGITS: Final = 1 << 26
"""So many logits at once, a quarter of a GiB: a judge with a large vocabulary gets small batches
instead of the host's last memory."""
_DIGITS: Final = 4
"""Rounded to 0.0001 nats: what is left of the batch a text happened to be in is below that."""

_Pair: TypeAlias = tuple[list[int], list[int]]
"""Ids of the tokens a model is led along, and of those to score."""
_Columns: TypeAlias = tuple[
    tuple[float, ...], tuple[float, ...], tuple[float, ...], tuple[int, ...]
]


@dataclass(frozen=True)
class Tokens:
    """What a judge says of each token of one text; all tuples have one value a token, in order.

    nll: negative log-likelihood after the prompt, nats. alone: the same without the prompt.
    entropy, variance: mean and variance of the negative log-likelihood over the judge's own
        distribution at that place, nats and nats squared: what a token drawn from it would have.
    rank: how many tokens the judge held likelier.
    """

    nll: tuple[float, ...]
    alone: tuple[float, ...]
    entropy: tuple[float, ...]
    variance: tuple[float, ...]
    rank: tuple[int, ...]


def weights_sha256(directory: Path) -> str:
    """SHA-256 over the safetensors files of a model directory, in the order of their names.

    Raises FileNotFoundError without any.
    """
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no safetensors weights in {directory}")
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


class Likelihood:
    """A judge model in memory, float32 on one CPU thread. Needs torch and transformers."""

    def __init__(self, directory: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)  # two threads on busy cores spin: ten times slower
        self.tokenizer: Any = AutoTokenizer.from_pretrained(str(directory))
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            str(directory), dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        )
        self.model.train(False)

    def __call__(self, items: Sequence[tuple[str, str]]) -> list[Tokens]:
        """The tokens of each text of (prompt, text), at most MAX_TOKENS of each; two forwards each.

        Prompt and text are tokenised apart, so a value belongs to the text alone; where a decoder
        dropped the space between the two it is put back. A tokenizer without a token to begin with
        begins with the one that ends a text; without either, the first token of a sequence cannot
        be scored: `alone` then takes the value of `nll` there, and a text without a prompt loses
        it.
        """
        tokenizer = self.tokenizer
        starts = (tokenizer.bos_token_id, tokenizer.eos_token_id)
        start = [one for one in starts if one is not None][:1]
        led: list[_Pair] = []
        bare: list[_Pair] = []
        for prompt, text in items:
            glued = prompt[-1:].strip() and text[:1].isalnum()
            before = [*start, *self._ids(prompt)[-MAX_PROMPT_TOKENS:]]
            after = self._ids(f" {text}" if glued else text)[:MAX_TOKENS]
            if not before:
                before, after = after[:1], after[1:]
            led.append((before, after))
            bare.append((start, after) if start else (after[:1], after[1:]))
        found = []
        for with_prompt, without in zip(self._scores(led), self._scores(bare), strict=True):
            nll, entropy, variance, rank = with_prompt
            alone = without[0]
            missing = nll[: len(nll) - len(alone)]
            found.append(Tokens(nll, missing + alone, entropy, variance, rank))
        return found

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _scores(self, pairs: Sequence[_Pair]) -> list[_Columns]:
        """(nll, entropy, variance, rank) of the second half of each pair of token ids."""
        import torch

        found: dict[int, _Columns] = {}
        for batch in self._batches(pairs):
            longest = max(len(before) + len(after) for before, after in batch.values())
            first = min(len(before) for before, _ in batch.values())
            ids = torch.zeros(len(batch), longest, dtype=torch.int64)
            for row, (before, after) in enumerate(batch.values()):
                ids[row, : len(before) + len(after)] = torch.tensor(before + after)
            with torch.inference_mode():
                # What is padded on the right is in nobody's past, so nothing needs a mask.
                kept = self.model(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    logits_to_keep=longest - first + 1,
                    use_cache=False,
                ).logits
                for row, (index, (before, after)) in enumerate(batch.items()):
                    at = len(before) - first
                    found[index] = _of_logits(kept[row, at : at + len(after)], after)
        return [found.get(index, ((), (), (), ())) for index in range(len(pairs))]

    def _batches(self, pairs: Sequence[_Pair]) -> Iterator[dict[int, _Pair]]:
        """The pairs that hold something to score, by their index, those of like length together."""
        size = max(
            1,
            min(
                _BATCH,
                _BATCH_LOGITS // (MAX_TOKENS * self.model.config.get_text_config().vocab_size),
            ),
        )
        order = sorted(
            (index for index, (_, after) in enumerate(pairs) if after),
            key=lambda index: (len(pairs[index][0]), len(pairs[index][1])),
        )
        for begin in range(0, len(order), size):
            yield {index: pairs[index] for index in order[begin : begin + size]}


def _of_logits(logits: Any, chosen: list[int]) -> _Columns:
    import torch

    logs = torch.log_softmax(logits.float(), dim=-1)
    own = logs.gather(1, torch.tensor(chosen)[:, None])
    shares = logs.exp()
    entropy = torch.special.entr(shares).sum(dim=-1)
    squares = torch.where(shares > 0, shares * logs.square(), 0.0)  # a ruled-out token counts 0
    variance = squares.sum(dim=-1) - entropy.square()
    rank: list[int] = (logs > own).sum(dim=-1).tolist()
    values = (-own[:, 0], entropy, variance.clamp(min=0))
    nll, mean, spread = (tuple(round(one, _DIGITS) for one in value.tolist()) for value in values)
    return nll, mean, spread, tuple(rank)


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    directory = _directory_of(question["model"], question["revision"])
    likelihood = Likelihood(directory)
    texts = likelihood([(item["prompt"], item["text"]) for item in question["items"]])
    return {"weights_sha256": weights_sha256(directory), "texts": [asdict(one) for one in texts]}


def _directory_of(model: str, revision: str | None) -> Path:
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    wanted = ["config.json", "tokenizer*", "special_tokens_map.json", "vocab.json", "merges.txt"]
    patterns = [*wanted, "model*.safetensors*"]
    return Path(snapshot_download(model, revision=revision, allow_patterns=patterns))


def _main() -> None:
    """Read a question on stdin, write the answer on stdout; what libraries print goes to stderr."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as stdout:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        json.dump(_answer(json.load(sys.stdin)), stdout)


if __name__ == "__main__":
    _main()
