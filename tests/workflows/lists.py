"""Model lists of the scenarios: tiny models on the cpu target, on machines whose labels no
pull request can name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

HEAD = """\
defaults:
  stacks: [cpu]
  new_tokens: 8
  dtype: bfloat16
  prefill_chunk: 32
  limit_minutes: 10
  margin: {gib: 0.5, fraction: 0.2}
  prompts:
    text-generation:
      - Once upon a time, in a small village
      - The sun was setting over the mountains
      - When I was a child, my grandmother
    image-text-to-text:
      - Describe the picture.
      - What does this image show?
      - Tell me what you see here.
runners:
  bench:
    target: cpu
    labels: [self-hosted, bench]
    cores: 1
    core_gib: 2
    host_gib: 4
    machines: 2
  pair:
    target: cpu
    labels: [self-hosted, pair]
    cores: 2
    core_gib: 2
    host_gib: 4
stacks:
  cpu:
    target: cpu
    library_version: "5.24.0"
    torch: "2.13.0"
models:
"""


def entry(model_id: str, *, source: Path | None = None, **fields: str) -> str:
    """An entry of `models`; fields as YAML."""
    given = {"task": "text-generation", **({"source": str(source)} if source else {}), **fields}
    lines = [f"  - id: {model_id}", *(f"    {name}: {value}" for name, value in given.items())]
    return "\n".join((*lines, ""))


def listed(entries: Iterable[str]) -> str:
    """The text of a list."""
    return HEAD + "".join(entries)
