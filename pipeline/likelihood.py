"""The likelihood of each token of a text, from a language model on the CPU in a process of its own.

`python -m pipeline.likelihood` reads one question on stdin and writes one answer on stdout, JSON:
    {"model": directory or Hub id, "revision": commit or null, "items": [{"prompt", "text"}, ...]}
    {"weights_sha256": 64 hex digits, "nll": [[nats of each token of the text], ...]}
A failure ends it with an exit code other than 0 and its reason as the last line on stderr.

It runs where torch and transformers are, which may be another interpreter than that of the rest:
beyond those two it needs nothing but the standard library, and only once a model is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

MAX_TOKENS: Final = 64
"""A continuation is judged by its first 64 tokens of the judge: twice the length the bounds were
found at, since word counts (distinct_2) and maxima (worst_window) drift with length."""
MAX_PROMPT_TOKENS: Final = 256


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

    def __call__(self, prompt: str, text: str) -> list[float]:
        """Negative log-likelihood (nats) of each token of `text` after `prompt`.

        At most MAX_TOKENS values. Prompt and text are tokenised apart, so a value belongs to the
        text alone; where a decoder dropped the space between the two it is put back.
        """
        import torch

        glued = prompt[-1:].strip() and text[0].isalnum()
        before = self._ids(prompt)[-MAX_PROMPT_TOKENS:]
        after = self._ids(f" {text}" if glued else text)[:MAX_TOKENS]
        start = self.tokenizer.bos_token_id
        if start is None:
            raise ValueError("the judge's tokenizer has no token to begin with")
        with torch.inference_mode():
            ids = torch.tensor([[start, *before, *after]])
            logits = self.model(input_ids=ids, logits_to_keep=len(after) + 1).logits[0, :-1]
            nll = torch.nn.functional.cross_entropy(logits, ids[0, -len(after) :], reduction="none")
        values: list[float] = nll.tolist()
        return values

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    directory = _directory_of(question["model"], question["revision"])
    likelihood = Likelihood(directory)
    return {
        "weights_sha256": weights_sha256(directory),
        "nll": [likelihood(item["prompt"], item["text"]) for item in question["items"]],
    }


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
