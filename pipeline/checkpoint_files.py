"""What a checkpoint's files say of it: config.json, the index of shards, safetensors headers.

Pure: `Files` gives the bytes, from wherever they are (see pipeline.hub). Which file holds the
weights is decided as `from_pretrained` does: the config's `transformers_weights`, else
model.safetensors, else model.safetensors.index.json. Of shards only the tensors in the index's
weight_map count, so that second copies (`original/`, `consolidated.safetensors`) do not. What is
not as the format says raises Refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Protocol, TypeVar

from pipeline.placement import Checkpoint, Tensor
from pipeline.record import Refusal
from pipeline.words import Failure

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

FIRST_BYTES = 128 * 1024
"""Read of every safetensors file at once. huggingface_hub reads 100 kB, which held the header of
97 % of files (https://github.com/huggingface/huggingface_hub/pull/1855)."""
MAX_HEADER_BYTES = 100_000_000
"""Longest header that the safetensors library reads; here also the limit of a JSON file."""

_MAX_REASON = 1_000

T = TypeVar("T")


class Refused(Exception):
    """Ends the inspection of one checkpoint; `refusal` is its outcome."""

    def __init__(self, failure: Failure, reason: str) -> None:
        super().__init__(reason)
        # File names may hold bytes that are not UTF-8, and names in headers may be of any length.
        text = reason[:_MAX_REASON].encode("utf-8", "backslashreplace").decode()
        self.refusal = Refusal(failure=failure, reason=text)


def unsupported(reason: str) -> Refused:
    """To raise: the checkpoint's files are not what the format says."""
    return Refused(Failure.UNSUPPORTED_CHECKPOINT, reason)


class Files(Protocol):
    """The files of one checkpoint at one revision, wherever they are."""

    @property
    def where(self) -> str:
        """Repository or directory, for reasons."""

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""

    def text(self, name: str) -> bytes:
        """A whole small file, cut above MAX_HEADER_BYTES."""

    def read(self, name: str, start: int, length: int) -> tuple[bytes, int]:
        """(at most `length` bytes from `start`, size of the whole file)."""

    def each(self, function: Callable[[str], T], names: Sequence[str]) -> list[T]:
        """`function` of every name, in order."""


def read_checkpoint(files: Files, model_id: str, revision: str) -> Checkpoint:
    """The facts that `files` hold, named as told; without safetensors there are no tensors."""
    if not files.has(CONFIG):
        raise unsupported(f"{files.where} has no {CONFIG}")
    config = _json_object(files, CONFIG)
    tensors = _stored_tensors(files, config)
    return Checkpoint(
        model_id=model_id,
        revision=revision,
        config=config,
        tensors=tensors,
        checkpoint_bytes=sum(tensor.bytes for tensor in tensors),
        remote_code=bool(config.get("auto_map")),
    )


def _json_object(files: Files, name: str) -> dict[str, Any]:
    text = files.text(name)
    if len(text) > MAX_HEADER_BYTES:
        raise unsupported(f"{files.where}: {name} is longer than {MAX_HEADER_BYTES} bytes")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise unsupported(f"{files.where}: {name} is not JSON") from error
    if not isinstance(value, dict):
        raise unsupported(f"{files.where}: {name} is not a JSON object")
    return value


def _stored_tensors(files: Files, config: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The tensors that from_pretrained would find, by name; () without safetensors."""
    weights = config.get("transformers_weights")
    if weights is None:
        weights = next((name for name in (SINGLE, INDEX) if files.has(name)), None)
        if weights is None:
            return ()
    elif not _is_inside(weights) or not files.has(weights):
        raise unsupported(
            f"{files.where}: {CONFIG} names {weights!r} (transformers_weights), which is not there"
        )
    elif not weights.endswith((".safetensors", ".safetensors.index.json")):
        return ()
    if weights.endswith(".index.json"):
        found = _indexed_tensors(files, weights)
    else:
        found = _header(files, weights)
    return tuple(found[name] for name in sorted(found))


def _indexed_tensors(files: Files, index: str) -> dict[str, Tensor]:
    weight_map = _json_object(files, index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(map(_is_inside, weight_map.values())):
        raise unsupported(f"{files.where}: {index} has no weight_map of tensor names to files")
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not files.has(shard)]
    if missing:
        raise unsupported(
            f"{files.where}: {len(missing)} of {len(shards)} files that {index} names are not "
            f"there, {missing[0]!r} first"
        )
    found = files.each(lambda shard: _header(files, shard), shards)
    headers = dict(zip(shards, found, strict=True))
    for name, shard in weight_map.items():
        if name not in headers[shard]:
            raise unsupported(
                f"{files.where}: {index} places {name[:200]!r} in {shard!r}, which does not hold it"
            )
    return {name: headers[shard][name] for name, shard in weight_map.items()}


def _is_inside(name: object) -> bool:
    """Whether `name` is a file name that cannot leave the checkpoint's directory."""
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


# Safetensors headers: https://huggingface.co/docs/safetensors/index#format


def _header(files: Files, name: str) -> dict[str, Tensor]:
    """The tensors of one safetensors file by name."""
    where = f"{files.where}: {name}"
    head, size = files.read(name, 0, FIRST_BYTES)
    if head.startswith(b"version https://git-lfs"):
        raise unsupported(f"{where} is a Git LFS pointer, not the weights")
    if len(head) < 8:
        raise unsupported(f"{where} is cut: {size} bytes hold no safetensors header")
    length = int.from_bytes(head[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise unsupported(
            f"{where} is not safetensors: its header would be {length} bytes long, above the "
            f"format's limit of {MAX_HEADER_BYTES}"
        )
    end = 8 + length
    if end > len(head) and end <= size:
        head += files.read(name, len(head), end - len(head))[0]
    if end > len(head):
        raise unsupported(f"{where} is cut: its header ends at byte {end} of {size}")
    return _parse_header(head[8:end], size - end, where)


def _parse_header(text: bytes, data_bytes: int, where: str) -> dict[str, Tensor]:
    """text: the JSON header; data_bytes: what follows it in the file."""
    try:
        header = json.loads(text.decode(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise unsupported(f"{where}: the safetensors header is not JSON") from error
    if not isinstance(header, dict):
        raise unsupported(f"{where}: the safetensors header is not a JSON object")
    header.pop("__metadata__", None)
    tensors = {}
    spans = []
    for name, entry in header.items():
        tensors[name], span = _parse_entry(name, entry, where)
        spans.append((*span, name))
    position = 0
    for begin, end, name in sorted(spans):
        if end > data_bytes:
            raise unsupported(
                f"{where}: the data of {name[:200]!r} ends at byte {end} of {data_bytes}: the "
                "file is cut or its header is wrong"
            )
        if begin != position:
            fault = "overlaps the tensor before it" if begin < position else "follows a gap"
            raise unsupported(f"{where}: the data of {name[:200]!r} {fault}")
        position = end
    if position != data_bytes:
        raise unsupported(f"{where}: {data_bytes - position} bytes at the end belong to no tensor")
    return tensors


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value


def _parse_entry(name: str, entry: object, where: str) -> tuple[Tensor, tuple[int, int]]:
    """(tensor, its data_offsets), the two in agreement."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end]} if all(
            type(number) is int and 0 <= number < 2**63 for number in (*shape, begin, end)
        ):
            tensor = Tensor(name, dtype, tuple(shape))
        case _:
            raise unsupported(f"{where}: the header's entry {name[:200]!r} is malformed")
    try:
        expected = tensor.bytes
    except KeyError as error:
        raise unsupported(f"{where}: {name[:200]!r} has unknown dtype {dtype[:50]!r}") from error
    if end - begin != expected:
        raise unsupported(
            f"{where}: {name[:200]!r} spans {end - begin} bytes, but its dtype and shape take "
            f"{expected if expected < 2**63 else 'far more'}"
        )
    return tensor, (begin, end)
