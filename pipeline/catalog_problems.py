"""What is wrong with models.yaml: its YAML with places, the rules between entries, the words.

`Document` composes the file to YAML nodes, so that every problem has a line and a column,
whichever layer finds it: YAML itself, the rules between entries (`rule_problems`), or the
pydantic schema (`schema_problems`), which is pipeline.catalog's and not known here.
"""

from __future__ import annotations

import copy
import json
import re
from bisect import bisect_left, bisect_right
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pipeline.errors import CatalogError
from pipeline.words import Parallelism, Target, Task

Loc = tuple[str | int, ...]
"""A place: the keys and list positions that lead to it, () = the whole file."""

_TAG = "tag:yaml.org,2002:"
_KINDS = {
    "map": "a mapping",
    "seq": "a list",
    "null": "nothing",
    "int": "the number {}",
    "float": "the number {}",
    "bool": "the truth value {}",
    "timestamp": "the date {}",
}
"""What a node holds, by the last part of its tag; text ("str") is quoted instead."""


@dataclass(frozen=True, order=True)
class Problem:
    """One fault of the list. Line and column count from 1; `str()` is one line for a person."""

    file: str
    line: int
    column: int
    message: str

    @property
    def where(self) -> str:
        """The place as compilers write it: models.yaml:12:5."""
        return f"{self.file}:{self.line}:{self.column}"

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class InvalidCatalog(CatalogError):
    """The list has problems: all that were found, in file order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        what = "this problem" if len(self.problems) == 1 else f"these {len(self.problems)} problems"
        remedy = f"correct {what}: the list is not used until then"
        super().__init__("\n".join(map(str, self.problems)), remedy=remedy)


def _kind(node: yaml.Node) -> str:
    return node.tag.removeprefix(_TAG)


def _is_readable(node: yaml.ScalarNode) -> bool:
    """Whether the text is what its tag says: "2026-13-01" looks like a date and is none."""
    try:
        yaml.constructor.SafeConstructor().construct_object(node)
    except (ValueError, ArithmeticError, LookupError, AttributeError):
        return False
    return True


class Document:
    """A YAML text as data, with the place of each of its parts.

    Keys that are repeated or no text are noted in `problems` and read on; what YAML itself cannot
    read raises InvalidCatalog at once.
    """

    def __init__(self, data: bytes, file: str, keys: Iterable[str]) -> None:
        """file: its name in problems; keys: those the top mapping can have, for one."""
        self.file = file
        self.problems: list[Problem] = []
        before, text = "", ""
        try:
            data = data.removeprefix(BOM_UTF8)
            text = data.decode()
            loader = yaml.SafeLoader(text)
            root = loader.get_single_node()
            if not isinstance(root, yaml.MappingNode):
                found = "the file is empty" if root is None else f"found {_found(root)}"
                expected = f"expected a mapping with the keys {', '.join(keys)}"
                raise self._fatal(root.start_mark if root else None, f"{found}; {expected}")
            self.root: yaml.Node = root
            self._examine(root)
            self.data: dict[str, Any] = loader.construct_document(root)
            return
        except yaml.MarkedYAMLError as error:
            what = ", ".join(part for part in (error.context, error.problem) if part)
            what += "; indent with spaces, not tabs" if "'\\t'" in what else ""
            raise self._fatal(error.problem_mark, f"not valid YAML: {what}") from error
        except RecursionError as error:
            raise self._fatal(None, "nested too deeply or into itself") from error
        except UnicodeDecodeError as error:
            before = data[: error.start].decode()
            what = f"byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        except yaml.reader.ReaderError as error:
            before = text[: error.position]
            what = f"character U+{ord(text[error.position]):04X} is not allowed; remove it"
        place = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise InvalidCatalog([Problem(file, *place, what)])

    def _fatal(self, mark: yaml.Mark | None, message: str) -> InvalidCatalog:
        return InvalidCatalog([*self.problems, self._at(mark, message)])

    def _at(self, mark: yaml.Mark | None, message: str) -> Problem:
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        return Problem(self.file, *place, " ".join(message.splitlines()))

    def nodes(self, loc: Loc) -> tuple[yaml.Node, yaml.Node]:
        """The nodes of the key (of the item, in a list) and of the value at `loc`."""
        key = value = self.root
        for part in loc:
            if isinstance(value, yaml.MappingNode):
                # The last one counts: a mapping's own keys stand behind those merged into it.
                key, value = next(pair for pair in reversed(value.value) if pair[0].value == part)
            else:
                key = value = value.value[part]
        return key, value

    def problem(self, loc: Loc, message: str, *, key: bool = False) -> Problem:
        """A problem at the value at `loc`, or at its key."""
        return self._at(self.nodes(loc)[0 if key else 1].start_mark, message)

    def place(self, loc: Loc) -> tuple[int, int]:
        """Line and column, from 1, of the value at `loc`."""
        mark = self.nodes(loc)[1].start_mark
        return mark.line + 1, mark.column + 1

    def without(self, problems: Iterable[Problem]) -> Document | None:
        """The same document less the models and exclusions that hold these problems.

        None where one of them is in no such entry: what is left would not be sound either. Places
        stay those of the text, positions in the two lists become those of what is left.
        """
        rest = copy.copy(self)
        rest.problems, rest.data = [], dict(self.data)
        pairs = list(self.root.value)
        places = sorted({(one.line - 1, one.column - 1) for one in problems})
        left = set(places)
        for name in [name for name in ("models", "excluded") if name in self.data]:
            key, value = self.nodes((name,))
            if not isinstance(value, yaml.SequenceNode):
                continue
            held = [_within(item, places) for item in value.value]
            left.difference_update(*held)
            sound = [index for index, inside in enumerate(held) if not inside]
            items = [value.value[index] for index in sound]
            slim = yaml.SequenceNode(value.tag, items, value.start_mark, value.end_mark)
            pairs = [(key, slim) if pair[1] is value else pair for pair in pairs]
            rest.data[name] = [self.data[name][index] for index in sound]
        rest.root = yaml.MappingNode(self.root.tag, pairs, self.root.start_mark, self.root.end_mark)
        return None if left else rest

    def _examine(self, root: yaml.Node) -> None:
        todo, seen = [root], set()
        while todo:
            node = todo.pop()
            if id(node) in seen:  # an alias
                continue
            seen.add(id(node))
            what, kind = "", "str"
            if isinstance(node, yaml.MappingNode):
                kind = "map"
                self._examine_keys(node)
                todo += [value for _, value in node.value]
            elif isinstance(node, yaml.SequenceNode):
                kind = "seq"
                todo += node.value
            if _kind(node) not in ("str", *_KINDS):
                what = f"unknown tag {quote(node.tag)}; remove it"
            elif isinstance(node, yaml.ScalarNode) and not _is_readable(node):
                what = f"found {_found(node)}, which is none; quote it: {quote(node.value)}"
            if what:
                self.problems.append(self._at(node.start_mark, what))
                node.tag = f"{_TAG}{kind}"

    def _examine_keys(self, node: yaml.MappingNode) -> None:
        first: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                what = f"found {_found(key)} as a key; quote what starts with a bracket"
                raise self._fatal(key.start_mark, what)
            if first.setdefault(key.value, key) is not key:
                what = _twice("key", key.value, self._at(first[key.value].start_mark, ""))
                self.problems.append(self._at(key.start_mark, what))
            elif _kind(key) not in ("str", "merge"):
                what = f"found {_found(key)} as a key; quote it: {quote(key.value)}"
                self.problems.append(self._at(key.start_mark, what))
                key.tag = f"{_TAG}str"


def _within(node: yaml.Node, places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Which of the places, sorted and counted from 0, are in the text of `node`."""
    start, end = ((mark.line, mark.column) for mark in (node.start_mark, node.end_mark))
    # An empty node ends where it starts, and that is its place.
    last = bisect_right(places, start) if end == start else bisect_left(places, end)
    return places[bisect_left(places, start) : last]


def _items(document: Document, *loc: str) -> dict[Loc, Any]:
    """What a list or mapping holds, by place; {} where it is neither: the schema reports that."""
    content: Any = document.data
    for part in loc:
        content = content.get(part) if isinstance(content, dict) else None
    if isinstance(content, list):
        content = dict(enumerate(content))
    return {(*loc, key): item for key, item in content.items()} if isinstance(content, dict) else {}


def _entries(document: Document, section: str) -> list[tuple[Loc, dict[str, Any]]]:
    found = _items(document, section)
    return [(loc, entry) for loc, entry in found.items() if isinstance(entry, dict)]


def rule_problems(document: Document) -> Iterator[Problem]:
    """The rules that one field alone cannot break. They bear data that the schema refuses."""
    first: dict[object, Loc] = {}
    for loc, name in _items(document, "defaults", "stacks").items():
        yield from _reference(document, "stack", loc, name)
        if isinstance(name, str) and first.setdefault(name, loc) != loc:
            yield document.problem(loc, _twice("stack", name, document.problem(first[name], "")))
    yield from _stack_problems(document)
    prompts = {loc[-1] for loc in _items(document, "defaults", "prompts")}
    tasks = set(Task) - prompts if prompts and prompts <= set(Task) else set()
    for loc, entry in _entries(document, "models"):
        yield from _reference(document, "runner", (*loc, "runner"), entry.get("runner"))
        yield from _cores_problems(document, loc, entry)
        task = entry.get("task")
        if isinstance(task, str) and task in tasks and not entry.get("prompts"):
            what = f"no prompts for task {quote(task)}; expected some in defaults.prompts or here"
            yield document.problem((*loc, "task"), what)
    for loc, entry in _entries(document, "excluded"):
        if entry.get("reason") == "incompatible" and entry.get("issue") is None:
            what = 'reason "incompatible" without an issue; expected the https URL of one in issue'
            yield document.problem((*loc, "reason"), what)
    first = {}
    for section in [name for name in document.data if name in ("models", "excluded")]:
        for loc, entry in _entries(document, section):
            name = entry.get("id")
            if isinstance(name, str) and first.setdefault(name.casefold(), loc) != loc:
                earlier = document.problem((*first[name.casefold()], "id"), "")
                yield document.problem((*loc, "id"), _twice("model", name, earlier))


def _reference(document: Document, kind: str, loc: Loc, name: object) -> Iterator[Problem]:
    known = [key for _, key in _items(document, f"{kind}s") if isinstance(key, str)]
    if known and isinstance(name, str) and name not in known:
        yield document.problem(loc, unknown(kind, name, known))


def _stack_problems(document: Document) -> Iterator[Problem]:
    first: dict[tuple[Any, ...], Loc] = {}
    for loc, entry in _entries(document, "stacks"):
        target = entry.get("target")
        for field in ("neuronx_cc", "torch_neuronx"):
            given = entry.get(field) is not None
            if target in (Target.NEURON, Target.SIMULATOR) and not given:
                what = f"target {target} without {field}; expected its version"
                yield document.problem((*loc, "target"), what)
            elif target == Target.CPU and given:
                what = f"{field} with target cpu; expected none: remove it"
                yield document.problem((*loc, field), what, key=True)
        # What a stack gives to a run id: record.StackVersions.run_id.
        # The simulator stands in for the device, compiler and all: its runs have the same names.
        compiled = target in (Target.NEURON, Target.SIMULATOR)
        compiler = entry.get("neuronx_cc") if compiled else ""
        kind = Target.NEURON if compiled else target
        parts = (kind, entry.get("library_version"), compiler, entry.get("torch"))
        if all(isinstance(part, str) for part in parts) and first.setdefault(parts, loc) != loc:
            earlier = document.problem(first[parts], "", key=True)
            what = f"stacks {quote(first[parts][1])} and {quote(loc[1])} give the same run ids"
            what += "; expected another library, compiler or torch version"
            yield document.problem(loc, f"{what} (first at {earlier.where})", key=True)


def _cores_problems(document: Document, loc: Loc, entry: dict[str, Any]) -> Iterator[Problem]:
    cores, parallelism = entry.get("cores"), entry.get("parallelism")
    if type(cores) is not int:
        return
    if parallelism in list(Parallelism) and (cores == 1) != (parallelism == Parallelism.NONE):
        what = f"parallelism {quote(parallelism)} on {cores} cores; expected none on one core, "
        yield document.problem((*loc, "parallelism"), f"{what}tensor or expert on several")
    sizes = {str(key[1]): part.get("cores") for key, part in _entries(document, "runners")}
    sizes = {name: sizes[name] for name in sizes if entry.get("runner") == name} or sizes
    most = max((size for size in sizes.values() if type(size) is int), default=cores)
    if cores > most:
        what = f"{cores} cores; expected at most {most}, what {' or '.join(sizes)} has"
        yield document.problem((*loc, "cores"), what)


def schema_problems(
    document: Document,
    error: ValidationError,
    keys_at: Callable[[Loc], Iterable[str]],
    asked_for: Mapping[str, str],
) -> Iterator[Problem]:
    """What the schema refused, placed and in words.

    keys_at: the known keys of the mapping at a place.
    asked_for: pattern of the schema, or pydantic's type of error -> what it asks for, in words.
    """
    meant: set[Loc] = set()
    # Missing keys last: one whose name is nearly that of an unknown key is reported once, there.
    for fault in sorted(error.errors(include_url=False), key=lambda f: f["type"] == "missing"):
        loc, kind, name = fault["loc"], fault["type"], str(fault["loc"][-1])
        if kind == "extra_forbidden":
            keys = keys_at(loc[:-1])
            meant.add((*loc[:-1], _near(name, keys) or name))
            yield document.problem(loc, unknown("key", name, keys), key=True)
        elif kind == "missing":
            if loc not in meant:
                yield document.problem(loc[:-1], f"key {quote(name)} is missing; expected it here")
        else:
            is_key = name == "[key]"
            loc = loc[:-1] if is_key else loc
            node = document.nodes(loc)[0 if is_key else 1]
            if kind == "too_short" and len(node.value) >= fault["ctx"]["min_length"]:
                continue  # pydantic counts the valid items only, and the others are reported
            what = _fault(fault, node, _label(loc, is_key), asked_for)
            yield document.problem(loc, what, key=is_key)


def _label(loc: Loc, is_key: bool) -> str:
    """The innermost name of a place, with the position in its list: prompts[0]."""
    if is_key:
        return "key"
    index = f"[{loc[-1]}]" if isinstance(loc[-1], int) else ""
    return f"{loc[-2]}{index}" if index else str(loc[-1])


def _fault(fault: ErrorDetails, node: yaml.Node, label: str, asked_for: Mapping[str, str]) -> str:
    """What is wrong with the value of `node`, from pydantic's words for it."""
    kind, context = fault["type"], fault.get("ctx", {})
    options = re.findall(r"'([^']+)'", context.get("expected", ""))
    if options and _kind(node) == "str":
        return unknown(label, node.value, options)
    if kind == "too_short":
        return f"{label}: {len(node.value)} given; expected {context['min_length']} or more"
    if kind == "value_error":
        expected = str(context["error"])
    elif kind == "string_type" and isinstance(node, yaml.ScalarNode) and _kind(node) != "null":
        expected = f"expected text: quote it, {quote(node.value)}"
    else:
        words = re.sub(r"^.* should (be |have )?", "", fault["msg"])
        known = context.get("expected") or asked_for.get(context.get("pattern", kind), words)
        expected = f"expected {known}"
    return f"{label}: found {_found(node)}; {expected}"


def _found(node: yaml.Node) -> str:
    kind = _KINDS.get(_kind(node))
    return kind.format(quote(node.value)[1:-1]) if kind else quote(node.value)


def quote(value: object) -> str:
    """A value on one line, in double quotes, cut to 80 characters."""
    text = str(value)
    return json.dumps(text if len(text) <= 80 else f"{text[:77]}...", ensure_ascii=False)


def _twice(what: str, name: str, first: Problem) -> str:
    return f"{what} {quote(name)} is here twice; expected it once (first at {first.where})"


def _near(word: str, options: Iterable[str]) -> str | None:
    lowered = {option.casefold(): option for option in options}
    near = get_close_matches(word.casefold(), lowered, n=1)
    return lowered[near[0]] if near else None


def unknown(what: str, word: str, options: Iterable[str]) -> str:
    near = _near(word, options)
    known = [*map(quote, options)]
    known = [*known[:12], "..."] if len(known) > 12 else known
    hint = f"did you mean {quote(near)}?" if near else f"expected one of {', '.join(known)}"
    return f"unknown {what} {quote(word)}; {hint}"
