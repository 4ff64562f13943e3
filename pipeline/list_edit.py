"""New models in the text of models.yaml; every comment and every other byte stays as it was.

Where an entry ends is known from PyYAML's nodes, which carry their places; what goes between is
text of our own. The result is parsed, and has to be the old list with the new models in it and
nothing else, or it is not given away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import yaml

from pipeline.catalog import Catalog, InvalidCatalog, Model, Problem, parse
from pipeline.errors import CatalogError


@dataclass(frozen=True)
class _Layout:
    """How the entries of `models` stand in the text.

    dash: column of the dashes; key: column of an entry's keys; newline: "\\n", or "\\r\\n".
    """

    dash: int
    key: int
    newline: str


def insert(data: bytes, models: Sequence[Model], *, file: str) -> bytes:
    """The list `data` with `models` in it: each behind the entry of the same task and owner whose
    name begins most like its own, else at the end of `models`.

    file: name of the list in errors. InvalidCatalog when `data` is no valid list, or a model is on
    it already; CatalogError when the text is laid out in a way that entries cannot be put into.
    """
    old = parse(data, file=file)
    if not models:
        return data
    mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
    text = data.removeprefix(mark).decode()
    sequence = _sequence(text, file)
    layout = _layout(text, sequence, file)
    places: dict[int, list[Model]] = {}
    for model in models:
        places.setdefault(_beside(old, model), []).append(model)
    for index, added in sorted(places.items(), reverse=True):
        at = _end(text, sequence.value[index])
        lines = [line for model in added for line in _entry(model, layout)]
        block = layout.newline.join(lines)
        # A file that ends without a line break goes on doing so.
        ended = text[at - 1] == "\n"
        block = block + layout.newline if ended else layout.newline + block
        text = text[:at] + block + text[at:]
    made = mark + text.encode()
    _prove(old, made, models, file)
    return made


def _sequence(text: str, file: str) -> yaml.SequenceNode:
    """The node of the key `models`; the last one, as in reading."""
    root = yaml.SafeLoader(text).get_single_node()
    assert isinstance(root, yaml.MappingNode)
    node = next(value for key, value in reversed(root.value) if key.value == "models")
    if not isinstance(node, yaml.SequenceNode) or node.flow_style:
        mark = node.start_mark
        what = "`models` is written in brackets; expected one entry a line, each behind a dash"
        raise InvalidCatalog([Problem(file, mark.line + 1, mark.column + 1, what)])
    return node


def _layout(text: str, sequence: yaml.SequenceNode, file: str) -> _Layout:
    """As the first entry is written; two columns from dash to keys where its dash is alone."""
    first = sequence.value[0].start_mark
    before = text[text.rfind("\n", 0, first.index) + 1 : first.index]
    if re.fullmatch(" *- +", before):
        dash, key = before.index("-"), first.column
    elif text[sequence.start_mark.index] == "-":
        dash, key = sequence.start_mark.column, sequence.start_mark.column + 2
    else:
        raise _unfit(file)
    return _Layout(dash, key, "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n")


def _end(text: str, entry: yaml.Node) -> int:
    """Behind the line that an entry ends on, a comment there included.

    A block's end mark is where the next token begins, so comments of whatever follows are inside:
    back over these, but not into a scalar whose lines look like comments.
    """
    lines = text[: entry.end_mark.index].splitlines(keepends=True)
    while not lines[-1].strip() or lines[-1].lstrip().startswith("#"):
        lines.pop()
    last = max(sum(map(len, lines)), *_ends(entry))
    if text[last - 1] == "\n":
        return last
    found = text.find("\n", last)
    return len(text) if found < 0 else found + 1


def _ends(node: yaml.Node) -> Iterator[int]:
    """Where each of a node's scalars and bracketed parts ends."""
    if isinstance(node, yaml.MappingNode | yaml.SequenceNode) and not node.flow_style:
        yield node.start_mark.index
        for part in node.value:
            for child in part if isinstance(part, tuple) else (part,):
                yield from _ends(child)
    else:
        yield node.end_mark.index


def _beside(catalog: Catalog, model: Model) -> int:
    """The index of the entry that the model goes behind."""
    owner, _, name = model.id.casefold().rpartition("/")
    best, index = -1, len(catalog.models) - 1
    for at, other in enumerate(catalog.models):
        their_owner, _, their_name = other.id.casefold().rpartition("/")
        if other.task is model.task and owner and their_owner == owner:
            alike = _common(name, their_name)
            if alike >= best:
                best, index = alike, at
    return index


def _common(one: str, other: str) -> int:
    """With how many characters in common they begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _entry(model: Model, layout: _Layout) -> list[str]:
    """The lines of an entry: its keys as the schema orders them, those with defaults left out."""
    fields = model.model_dump(mode="json", exclude_defaults=True)
    # One line a value, whatever its length; PyYAML quotes what could be read as something else.
    told = yaml.safe_dump(
        fields, sort_keys=False, allow_unicode=True, width=2**31, default_flow_style=False
    )
    first, *rest = told.splitlines()
    dash = " " * layout.dash + "-" + " " * (layout.key - layout.dash - 1)
    return [dash + first, *(" " * layout.key + line for line in rest)]


def _prove(old: Catalog, made: bytes, added: Sequence[Model], file: str) -> None:
    """CatalogError unless `made` is the old list, in its order, and exactly `added`."""
    try:
        new = parse(made, file=file)
    except InvalidCatalog as error:
        on_it = {model.id.casefold() for model in old.models}
        on_it |= {entry.id.casefold() for entry in old.excluded}
        if any(model.id.casefold() in on_it for model in added):
            raise
        raise _unfit(file) from error
    wanted = {model.id: model for model in added}
    kept = tuple(model for model in new.models if model.id not in wanted)
    found = [model for model in new.models if model.id in wanted]
    if new.model_copy(update={"models": kept}) != old or _by_id(found) != _by_id(added):
        raise _unfit(file)


def _unfit(file: str) -> CatalogError:
    return CatalogError(
        "the way in which `models` is written lets no entries be put into it",
        where=file,
        remedy="add the models to the file by hand, then run this again",
    )


def _by_id(models: Iterable[Model]) -> list[Model]:
    return sorted(models, key=lambda model: model.id)
