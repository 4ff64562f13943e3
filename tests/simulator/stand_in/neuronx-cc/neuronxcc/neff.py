"""The stand-in's compiled graph: the graph's text behind a digest, so that damage shows.

No torch here: the compiler starts in milliseconds.
"""

from __future__ import annotations

import hashlib

_MAGIC = b"NEFF simulator\n"


class Damaged(Exception):
    """These are not the bytes that the compiler wrote."""


def pack(text: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(text).hexdigest().encode() + b"\n" + text


def unpack(neff: bytes) -> bytes:
    """The graph's text; Damaged when a byte is missing or another."""
    magic, digest, text = neff[: len(_MAGIC)], neff[len(_MAGIC) :][:64], neff[len(_MAGIC) + 65 :]
    if magic != _MAGIC or digest != hashlib.sha256(text).hexdigest().encode():
        raise Damaged
    return text
