"""Build the corpus of the verdict: `python -m benchmarks.verdict.generate --models DIR`.

DIR holds SmolLM2-135M-Instruct and tiny-qwen2-5-vl as demo.build_models makes them; it takes about
half an hour of one core. The corpus is corpus.jsonl beside this file, one continuation a line, in
the order of kinds.py and of the prompts:

    kind, label    see kinds.py; a healthy continuation that loops has the kind "healthy_loop"
    half           "training" or "held_out": halves share no prompt, and no text but constant and
                   blank ones
    task           text-generation or image-text-to-text (then `picture` says of which picture)
    prompt, text   the text as run.py decodes it, special tokens included
    made_by        the model, "written" (by hand) or "text" (a written text that was damaged)
    prompt_id      in texts/prompts.json, or null
    device         of those a model made: the kind of device, as in kinds.py
    tokens         its token ids; of greedy ones also the evidence of the reference (device.hold)

With --only the other kinds stay as they are in the corpus, so that one can be made again alone.
The same inputs, versions and processor give the same bytes; another processor rounds otherwise and
may turn near-ties.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoProcessor, AutoTokenizer

from benchmarks.verdict import damage, faults
from benchmarks.verdict.corpus import CORPUS, HELD_OUT, TRAINING, read_lines, written
from benchmarks.verdict.device import COLUMNS, PREFILL_CHUNK, Asked, Made, Models, generate, hold
from benchmarks.verdict.faults import FAULTS, Fault
from benchmarks.verdict.kinds import KINDS, Label
from demo.recipes import CAPTIONS, QUESTIONS, picture
from pipeline.record import write_atomically
from pipeline.words import Task

TEXT_MODEL: Final = "SmolLM2-135M-Instruct"
IMAGE_MODEL: Final = "tiny-qwen2-5-vl"

BATCH: Final = 48
PER_FAULT: Final = 6
"""Prompts of each kind of prompt that a broken device is asked, half of them of each half."""
QUICK: Final = 2
"""With --quick every model is asked so many of each kind."""
LOOP_WORDS: Final = 8
"""So many words in a row that each repeat the word a fixed distance before are a loop."""

Line = dict[str, Any]


@dataclass(frozen=True)
class Prompt:
    """What a device is asked. text: as it is shown and kept. picture: its name, or None."""

    id: str | None
    half: str
    text: str
    picture: str | None = None


def _sharded(*, rising: bool) -> Fault:
    def damage(model: Any) -> Any:
        ranks = range(faults.ranks_of(model))
        return faults.sharded_sums(model, ranks if rising else ranks[::-1])

    return Fault(damage)


HEALTHY: Final = {
    "greedy_fp32": Asked(),
    "greedy_bf16": Asked(cache="growing"),
    "sampled": Asked(seed=faults.SEED),
    "bf16_against_fp32": Asked(columns=PREFILL_CHUNK),
    "sharded_sums_rising": Asked(fault=_sharded(rising=True)),
    "sharded_sums_falling": Asked(fault=_sharded(rising=False)),
    "compiled": Asked(compiled=True),
}
FIRST: Final = ("greedy_fp32", "bf16_against_fp32")
"""Made before the faults; the rest comes after."""
IMAGE_KINDS: Final = (
    "greedy_fp32",
    "greedy_bf16",
    "bf16_against_fp32",
    "sharded_sums_rising",
    "ranks_swapped",
    "all_reduce_missing",
    "o_proj_transposed",
    "overflow_to_nan",
    "noise_1_percent",
    "noise_5_percent",
)
"""What the small image model is asked too. Two ranks have one order of adding; more noise leaves
its texts as they are, which the kind's `visible` would deny."""
CHAT_KINDS: Final = ("chat", "list", "code", "numbers", "short", "caption")
"""Prompts that make sense as a user's message."""


class Device:
    """One checkpoint, how it is asked, and the lines it makes."""

    def __init__(self, directory: Path, *, image: bool = False) -> None:
        self.models = Models.load(directory, image=image)
        self.image = image
        self.processor: Any = (AutoProcessor if image else AutoTokenizer).from_pretrained(directory)
        self.tokenizer: Any = self.processor.tokenizer if image else self.processor
        self.tokenizer.padding_side = "left"

    def templated(self, prompts: Iterable[Prompt]) -> list[Prompt]:
        """The same as messages of a user."""

        def text(prompt: Prompt) -> str:
            asked = [{"role": "user", "content": prompt.text}]
            return str(
                self.tokenizer.apply_chat_template(
                    asked, add_generation_prompt=True, tokenize=False
                )
            )

        return [Prompt(one.id, one.half, text(one)) for one in prompts]

    def tensors(self, prompts: Sequence[Prompt]) -> dict[str, Any]:
        """A batch, padded on the left."""
        if not self.image:
            return dict(
                self.tokenizer([one.text for one in prompts], return_tensors="pt", padding=True)
            )
        texts = []
        for one in prompts:
            content = [{"type": "image"}, {"type": "text", "text": one.text}]
            message = {"role": "user", "content": content}
            texts.append(self.processor.apply_chat_template([message], add_generation_prompt=True))
        images = [picture(one.picture) for one in prompts if one.picture]
        return dict(self.processor(text=texts, images=images, return_tensors="pt", padding=True))

    def answers(self, prompts: Sequence[Prompt], asked: Asked, *, fp32: bool) -> list[Made]:
        """The continuations, in batches of one shape."""
        model = self.models.fp32 if fp32 else self.models.bf16
        whole = self.tensors(prompts)["input_ids"].shape[1]
        columns = max(asked.columns, -(-whole // COLUMNS) * COLUMNS)
        made: list[Made] = []
        for start in range(0, len(prompts), BATCH):
            batch = self.tensors(prompts[start : start + BATCH])
            one = Asked(asked.fault, asked.cache, columns, asked.compiled, asked.seed)
            made += generate(model, batch, one)
        return made

    def line(self, kind: str, prompt: Prompt, made: Made) -> Line:
        """One line of the corpus, with evidence where the kind has it."""
        text: str = self.tokenizer.decode(made.tokens)
        named = KINDS[kind]
        healthy = named.label is not Label.WRONG
        shown = KINDS["healthy_loop"] if healthy and loops(text) else named
        line = {
            "kind": shown.name,
            "label": shown.label.value,
            "half": prompt.half,
            "task": (Task.IMAGE_TEXT_TO_TEXT if self.image else Task.TEXT_GENERATION).value,
            "prompt": prompt.text,
            "text": text,
            "made_by": self.models.name,
            "prompt_id": prompt.id,
            "device": kind,
            "tokens": made.tokens,
        }
        if prompt.picture:
            line["picture"] = prompt.picture
        if named.device:
            line |= hold(self.models, self.tensors([prompt]), made)
        return line


def loops(text: str) -> bool:
    """Whether a text goes in circles, as small healthy models now and then do."""
    words = text.lower().split()
    for distance in range(1, len(words)):
        again = 0
        for earlier, later in zip(words, words[distance:], strict=False):
            again = again + 1 if earlier == later else 0
            if again == LOOP_WORDS:
                return True
    return False


def device_lines(device: Device, prompts: Sequence[Prompt], kind: str) -> Iterator[Line]:
    """The continuations of one kind of device."""
    asked = HEALTHY.get(kind) or Asked(FAULTS[kind])
    made = device.answers(prompts, asked, fp32=kind == "greedy_fp32")
    for prompt, one in zip(prompts, made, strict=True):
        yield device.line(kind, prompt, one)


def chat_lines(device: Device, prompts: Sequence[Prompt]) -> Iterator[Line]:
    """Greedy continuations of templated prompts."""
    asked = device.templated(prompts)
    for prompt, one in zip(asked, device.answers(asked, Asked(), fp32=False), strict=True):
        yield device.line("chat_template", prompt, one)


def ending_lines(device: Device, prompts: Sequence[Prompt]) -> Iterator[Line]:
    """Where the model ends by itself: the text up to there, and that of a device that goes on."""
    asked = device.templated(prompts)
    end = device.models.bf16.generation_config.eos_token_id
    made = device.answers(asked, Asked(FAULTS["eos_ignored"]), fp32=False)
    for prompt, one in zip(asked, made, strict=True):
        if end in one.tokens:
            yield device.line("eos_ignored", prompt, one)
            early = Made(one.tokens[: one.tokens.index(end)], None, None)
            if early.tokens:
                yield device.line("stops_early", prompt, early)


def text_lines(tokenizer: Any) -> Iterator[Line]:
    """Written texts, and what damage.py makes of them."""
    for kind, half, prompt, text, by in damage.texts(tokenizer):
        yield {
            "kind": kind,
            "label": KINDS[kind].label.value,
            "half": half,
            "task": Task.TEXT_GENERATION.value,
            "prompt": prompt,
            "text": text,
            "made_by": by,
            "prompt_id": None,
        }


def groups(
    models: Path, *, quick: bool
) -> Iterator[tuple[tuple[str, ...], str, Callable[[], Iterable[Line]]]]:
    """(kinds, model, what makes their lines) in the order of making, the quickest first."""
    whole = written("prompts.json")
    prompts = {one["id"]: Prompt(one["id"], one["half"], one["prompt"]) for one in whole}
    of_kind: dict[str, list[Prompt]] = {}
    for one in whole:
        of_kind.setdefault(one["kind"], []).append(prompts[one["id"]])
    if quick:
        of_kind = {kind: several[:QUICK] for kind, several in of_kind.items()}
    everything = [one for several in of_kind.values() for one in several]
    some = [one for several in of_kind.values() for one in several[:PER_FAULT]]
    said = [one for kind in CHAT_KINDS for one in of_kind[kind]]
    loaded: dict[str, Device] = {}

    def device(name: str) -> Device:
        if name not in loaded:
            loaded.clear()
            loaded[name] = Device(models / name, image=name == IMAGE_MODEL)
        return loaded[name]

    def made(name: str, asked: Sequence[Prompt], kind: str) -> Iterable[Line]:
        return device_lines(device(name), asked, kind)

    tokenizer = AutoTokenizer.from_pretrained(models / TEXT_MODEL)
    yield tuple(damage.KIND_NAMES), "", partial(text_lines, tokenizer)
    pictures = [
        Prompt(None, HELD_OUT if name == "blue square" else TRAINING, question, name)
        for name in CAPTIONS
        for question in QUESTIONS
    ]
    for kind in IMAGE_KINDS:
        yield (kind,), IMAGE_MODEL, partial(made, IMAGE_MODEL, pictures, kind)
    for kind in FIRST:
        yield (kind,), TEXT_MODEL, partial(made, TEXT_MODEL, everything, kind)
    for kind in FAULTS:
        if kind != "eos_ignored":
            yield (kind,), TEXT_MODEL, partial(made, TEXT_MODEL, some, kind)
    yield (
        ("eos_ignored", "stops_early"),
        TEXT_MODEL,
        lambda: ending_lines(device(TEXT_MODEL), said),
    )
    yield ("chat_template",), TEXT_MODEL, lambda: chat_lines(device(TEXT_MODEL), said)
    for kind in HEALTHY:
        if kind not in FIRST:
            yield (kind,), TEXT_MODEL, partial(made, TEXT_MODEL, everything, kind)


def settled(lines: Iterable[Line]) -> list[Line]:
    """The lines in the corpus's order, no text in both halves but constant and blank ones, none
    twice."""
    rank = {name: at for at, name in enumerate(KINDS)}
    halves: dict[str, str] = {}
    seen: set[tuple[str, str, str, str, str]] = set()
    kept = []
    ordered = sorted(
        lines,
        key=lambda one: (
            rank[one["kind"]],
            one["task"],
            one.get("device", ""),
            one["prompt_id"] or "",
        ),
    )
    for line in ordered:
        key = (
            line["kind"],
            line.get("device", ""),
            line["prompt"],
            line["text"],
            line.get("picture", ""),
        )
        if key in seen:
            continue
        seen.add(key)
        same = halves.setdefault(line["text"], line["half"]) == line["half"]
        # Rows of line breaks are no text that a rule could learn by heart either.
        if same or KINDS[line["kind"]].constant or not line["text"].strip():
            kept.append(line)
    return kept


def _write(path: Path, lines: Iterable[Line]) -> None:
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    write_atomically(path, text.encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Build the corpus of the verdict.")
    parser.add_argument("--models", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", nargs="+", metavar="KIND", help="kinds to make again (globs)")
    parser.add_argument("--quick", action="store_true", help="a sixth of the prompts, to try it")
    parser.add_argument("--out", type=Path, default=CORPUS, metavar="FILE")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lines = read_lines(options.out) if options.only and options.out.exists() else []
    began = time.monotonic()
    for names, model, make in groups(options.models, quick=options.quick):
        if options.only and not any(fnmatch.filter(names, one) for one in options.only):
            continue
        lines = [one for one in lines if not _belongs(one, names, model)]
        made = list(make())
        lines = settled([*lines, *made])
        _write(options.out, lines)
        which = names[0] if len(names) < 3 else f"{len(names)} kinds of text"
        print(
            f"{time.monotonic() - began:6.0f} s  {which}: {len(made)}; {len(lines)} in all",
            file=sys.stderr,
            flush=True,
        )
    return 0


def _belongs(line: Line, names: Sequence[str], model: str) -> bool:
    by = line["made_by"] if "device" in line else ""
    return line.get("device", line["kind"]) in names and by == model


if __name__ == "__main__":
    sys.exit(main())
