"""models.yaml, the list of wishes: its schema, its loader, and errors that name line and column.

The file is composed to YAML nodes first, so that every problem, whichever layer finds it (YAML,
the pydantic schema, the rules between entries), has a place. All are reported together.
"""

from __future__ import annotations

import json
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
)

from pipeline.errors import CatalogError, UsageError
from pipeline.record import (
    MODEL_ID,
    Parallelism,
    StackVersions,
    Target,
    Task,
    is_model_id,
    write_atomically,
)

SCHEMA_PATH = Path(__file__).parent / "data" / "models.schema.json"
_HUB_URL = re.compile(r"https?://(?:huggingface\.co|hf\.co)/([^/?#]+(?:/[^/?#]+)?)")


def _model_id(text: str) -> str:
    url = _HUB_URL.match(text)
    if url and is_model_id(url[1]) and not url[1].startswith(("datasets/", "spaces/")):
        raise ValueError(f"expected the id instead of its URL: {_quote(url[1])}")
    if not is_model_id(text):
        raise ValueError('expected a model id such as "Qwen/Qwen3-0.6B"')
    return text


def _whole(value: object) -> object:
    if type(value) is not int:  # Python holds True and 1.0 to be equal to 1
        raise ValueError("expected a whole number")
    return value


# What each pattern asks for, in words. A version is what a run id can hold; a package is a name
# with version bounds: never an option of pip, never a URL to install code from.
_VERSION, _NAME = r"^[0-9A-Za-z][0-9A-Za-z.+_!]*$", r"^[0-9A-Za-z][0-9A-Za-z._-]{0,63}$"
_TEXT, _WORD, _URL = r"\S", r"^\S+$", r"^https://[^\s/]+/\S+$"
_BOUND = r"(==|~=|!=|<=|>=|<|>)[0-9A-Za-z.*+!]+"
_PACKAGE = rf"^[0-9A-Za-z][0-9A-Za-z._-]*(\[[0-9A-Za-z._,-]+\])?({_BOUND}(,{_BOUND})*)?$"
_EXPECTED = {
    _VERSION: 'a version such as "5.24.0"',
    _NAME: "a name: at most 64 letters, digits, dots, dashes and underscores",
    _TEXT: "text that is not empty",
    _WORD: "text without spaces",
    _URL: "an https URL",
    _PACKAGE: 'a package, with version bounds if any, such as "einops==0.8.1"',
    "int_type": "a whole number",
    "float_type": "a number",
    "tuple_type": "a list",
    "model_type": "a mapping",
    "string_type": "text",
    "dict_type": "a mapping",
}
_ID_SCHEMA = Field(json_schema_extra={"pattern": f"^{MODEL_ID.pattern}$"})
_CLOSED: dict[str, JsonValue] = {"additionalProperties": False}
ModelId = Annotated[str, AfterValidator(_model_id), _ID_SCHEMA]
Version = Annotated[str, Field(pattern=_VERSION, max_length=200)]
EntryName = Annotated[str, Field(pattern=_NAME)]
Text = Annotated[str, Field(pattern=_TEXT, max_length=4_000)]
Word = Annotated[str, Field(pattern=_WORD, max_length=200)]
Package = Annotated[str, Field(pattern=_PACKAGE, max_length=200)]
Prompts = Annotated[tuple[Text, ...], Field(min_length=3, max_length=64)]
Dtype = Literal["bfloat16", "float16", "float32"]
# A trn2 machine has 16 devices of 4 logical cores; placement goes up to 16 cores.
MachineCores = Annotated[Literal[1, 2, 4, 8, 16, 32, 64], BeforeValidator(_whole)]
Cores = Annotated[Literal[1, 2, 4, 8, 16], BeforeValidator(_whole)]
Count = Annotated[int, Field(strict=True, ge=1)]
# A self-hosted job may take five days: https://docs.github.com/en/actions/reference/limits
Minutes = Annotated[int, Field(strict=True, ge=1, le=7_200)]
Amount = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Size = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class Exclusion(StrEnum):
    """Why people keep a model out of the campaign."""

    INCOMPATIBLE = "incompatible"
    NOT_PRIORITISED = "not_prioritised"


class _Part(BaseModel):
    """A mapping of the file: closed and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Margin(_Part):
    """Memory of a core that placement keeps free: the sum of both parts."""

    gib: Amount = Field(description="GiB, whatever the model.")
    fraction: Amount = Field(description="Share of the core's weight bytes: 0.1 for a tenth.")


class Defaults(_Part):
    """What holds for every model that does not say otherwise."""

    stacks: tuple[str, ...] = Field(min_length=1, description="Stacks planned by default.")
    prompts: Mapping[Task, Prompts] = Field(description="Three at least for each task.")
    limit_minutes: Minutes = Field(description="Time limit of one run, its check apart.")
    margin: Margin
    new_tokens: Count = Field(32, le=4096, description="Tokens to generate for each prompt.")
    dtype: Dtype = Field("bfloat16", description="What weights are loaded as.")
    prefill_chunk: Count = Field(128, description="Prompts are left-padded to a multiple of it.")
    max_age_days: Count = Field(30, description="Results older than this are stale.")
    judge: Text = Field(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        description="Model id or directory of the judge of fluent English.",
    )


class Runner(_Part):
    """A class of machines. Placement tries the classes in the file's order."""

    target: Literal[Target.NEURON, Target.CPU] = Field(
        Target.NEURON, description="Which stacks run here: those of this target."
    )
    labels: tuple[Word, ...] = Field(min_length=1, description="`runs-on` of its jobs.")
    cores: MachineCores = Field(description="Cores of one machine.")
    core_gib: Size = Field(description="Memory of one core, GiB.")
    host_gib: Size = Field(description="Memory of the host, GiB.")
    usd_per_hour: Amount | None = Field(None, description="Price of one machine; null: unknown.")


class Stack(_Part):
    """The exact versions a run is for. What is null is not named and not checked.

    Target neuron needs neuronx_cc and torch_neuronx; target cpu must not have them.
    """

    target: Literal[Target.NEURON, Target.CPU]
    library: Literal["transformers"] = "transformers"
    library_version: Version
    torch: Version
    neuronx_cc: Version | None = None
    torch_neuronx: Version | None = None
    nki: Version | None = None
    runtime: Version | None = Field(None, description="Version of the Neuron runtime.")
    driver: Version | None = Field(None, description="Version of the Neuron kernel driver.")
    python: Version | None = None
    image: Word | None = Field(None, description="Container image with its tag.")


class Model(_Part):
    """A wish: one checkpoint to qualify. What is null is decided by defaults and placement."""

    id: ModelId = Field(description="Repository id; with `source`, the name in results.")
    task: Task
    source: Text | None = Field(
        None, description="Directory of the checkpoint, relative to this file's; null: the Hub."
    )
    revision: Word | None = Field(None, description="Commit, tag or branch; null: the newest.")
    runner: str | None = Field(None, description="The one runner class to use.")
    cores: Cores | None = None
    parallelism: Parallelism | None = None
    dtype: Dtype | None = None
    prompts: Prompts | None = Field(None, description="Instead of the task's default prompts.")
    extra_packages: tuple[Package, ...] = Field((), description="Needed beside the stack.")
    limit_minutes: Minutes | None = None
    note: Text | None = Field(None, description="For people.")

    def directory(self, folder: Path) -> Path | None:
        """The local checkpoint's absolute path, `folder` being the list's; None = the Hub.

        It need not exist: planning says so where it matters.
        """
        return (folder / self.source).resolve() if self.source else None


class Excluded(_Part):
    """A model that is known and not wanted. Reason incompatible needs an issue."""

    id: ModelId
    task: Task
    reason: Exclusion
    note: Text = Field(description="One sentence for readers.")
    issue: Annotated[str, Field(pattern=_URL, max_length=2_000)] | None = None


class Catalog(_Part):
    """The list: what people want qualified, on what, and what they leave out."""

    defaults: Defaults
    runners: Mapping[EntryName, Runner] = Field(min_length=1, json_schema_extra=_CLOSED)
    stacks: Mapping[EntryName, Stack] = Field(min_length=1, json_schema_extra=_CLOSED)
    models: tuple[Model, ...] = Field(min_length=1)
    excluded: tuple[Excluded, ...] = ()

    def model(self, model_id: str) -> Model:
        """The model of that id, letter case aside; UsageError with a near miss, or why not."""
        wanted = model_id.casefold()
        for model in self.models:
            if model.id.casefold() == wanted:
                return model
        for entry in self.excluded:
            if entry.id.casefold() == wanted:
                raise UsageError(f"{entry.id} is excluded ({entry.reason}): {entry.note}")
        raise UsageError(_unknown("model", model_id, [model.id for model in self.models]))

    def stack_versions(self, name: str) -> StackVersions:
        """The stack of that name as plans and records carry it; UsageError with a near miss."""
        if name not in self.stacks:
            raise UsageError(_unknown("stack", name, self.stacks))
        return StackVersions(name=name, **self.stacks[name].model_dump())

    def runners_for(self, model: Model, target: Target) -> Mapping[str, Runner]:
        """The runner classes placement may try, in order: the target's, of them the named one."""
        return {
            name: runner
            for name, runner in self.runners.items()
            if runner.target is target and model.runner in (None, name)
        }

    def prompts_for(self, model: Model) -> tuple[str, ...]:
        """The model's own prompts, or its task's."""
        return model.prompts or self.defaults.prompts[model.task]

    def dtype_for(self, model: Model) -> Dtype:
        """What the model's weights are loaded as."""
        return model.dtype or self.defaults.dtype

    def limit_s(self, model: Model) -> int:
        """The model's time limit, seconds."""
        return 60 * (model.limit_minutes or self.defaults.limit_minutes)


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


def load(path: Path) -> Catalog:
    """The list in a file; InvalidCatalog with every problem, CatalogError if it is unreadable."""
    try:
        data = path.read_bytes()
    except OSError as error:
        remedy = "name the model list, or go to the folder that holds models.yaml"
        reason = f"cannot be read: {error.strerror}"
        raise CatalogError(reason, where=str(path), remedy=remedy) from error
    return parse(data, file=str(path))


def parse(data: bytes, *, file: str) -> Catalog:
    """The list in a YAML text; InvalidCatalog with every problem found in it, placed in `file`."""
    document = _Document(data, file)
    problems = [*document.problems, *_between(document)]
    try:
        catalog = Catalog.model_validate(document.data)
    except ValidationError as error:
        raise InvalidCatalog([*problems, *_schema_problems(document, error)]) from error
    if problems:
        raise InvalidCatalog(problems)
    return catalog


_Loc = tuple[str | int, ...]
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


def _kind(node: yaml.Node) -> str:
    return node.tag.removeprefix(_TAG)


def _is_readable(node: yaml.ScalarNode) -> bool:
    """Whether the text is what its tag says: "2026-13-01" looks like a date and is none."""
    try:
        yaml.constructor.SafeConstructor().construct_object(node)
    except (ValueError, ArithmeticError, LookupError, AttributeError):
        return False
    return True


class _Document:
    """A YAML text as data, with the place of each of its parts.

    Keys that are repeated or no text are noted in `problems` and read on; what YAML itself cannot
    read raises InvalidCatalog at once.
    """

    def __init__(self, data: bytes, file: str) -> None:
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
                expected = f"expected a mapping with the keys {', '.join(Catalog.model_fields)}"
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

    def nodes(self, loc: _Loc) -> tuple[yaml.Node, yaml.Node]:
        """The nodes of the key (of the item, in a list) and of the value at `loc`."""
        key = value = self.root
        for part in loc:
            if isinstance(value, yaml.MappingNode):
                # The last one counts: a mapping's own keys stand behind those merged into it.
                key, value = next(pair for pair in reversed(value.value) if pair[0].value == part)
            else:
                key = value = value.value[part]
        return key, value

    def problem(self, loc: _Loc, message: str, *, key: bool = False) -> Problem:
        """A problem at the value at `loc`, or at its key."""
        return self._at(self.nodes(loc)[0 if key else 1].start_mark, message)

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
                what = f"unknown tag {_quote(node.tag)}; remove it"
            elif isinstance(node, yaml.ScalarNode) and not _is_readable(node):
                what = f"found {_found(node)}, which is none; quote it: {_quote(node.value)}"
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
                what = f"found {_found(key)} as a key; quote it: {_quote(key.value)}"
                self.problems.append(self._at(key.start_mark, what))
                key.tag = f"{_TAG}str"


def _items(document: _Document, *loc: str) -> dict[_Loc, Any]:
    """What a list or mapping holds, by place; {} where it is neither: the schema reports that."""
    content: Any = document.data
    for part in loc:
        content = content.get(part) if isinstance(content, dict) else None
    if isinstance(content, list):
        content = dict(enumerate(content))
    return {(*loc, key): item for key, item in content.items()} if isinstance(content, dict) else {}


def _entries(document: _Document, section: str) -> list[tuple[_Loc, dict[str, Any]]]:
    found = _items(document, section)
    return [(loc, entry) for loc, entry in found.items() if isinstance(entry, dict)]


def _between(document: _Document) -> Iterator[Problem]:
    """The rules that one field alone cannot break. They bear data that the schema refuses."""
    first: dict[object, _Loc] = {}
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
            what = f"no prompts for task {_quote(task)}; expected some in defaults.prompts or here"
            yield document.problem((*loc, "task"), what)
    for loc, entry in _entries(document, "excluded"):
        if entry.get("reason") == Exclusion.INCOMPATIBLE and entry.get("issue") is None:
            what = 'reason "incompatible" without an issue; expected the https URL of one in issue'
            yield document.problem((*loc, "reason"), what)
    first = {}
    for section in [name for name in document.data if name in ("models", "excluded")]:
        for loc, entry in _entries(document, section):
            name = entry.get("id")
            if isinstance(name, str) and first.setdefault(name.casefold(), loc) != loc:
                earlier = document.problem((*first[name.casefold()], "id"), "")
                yield document.problem((*loc, "id"), _twice("model", name, earlier))


def _reference(document: _Document, kind: str, loc: _Loc, name: object) -> Iterator[Problem]:
    known = [key for _, key in _items(document, f"{kind}s") if isinstance(key, str)]
    if known and isinstance(name, str) and name not in known:
        yield document.problem(loc, _unknown(kind, name, known))


def _stack_problems(document: _Document) -> Iterator[Problem]:
    first: dict[tuple[Any, ...], _Loc] = {}
    for loc, entry in _entries(document, "stacks"):
        target = entry.get("target")
        for field in ("neuronx_cc", "torch_neuronx"):
            given = entry.get(field) is not None
            if target == Target.NEURON and not given:
                what = f"target neuron without {field}; expected its version"
                yield document.problem((*loc, "target"), what)
            elif target == Target.CPU and given:
                what = f"{field} with target cpu; expected none: remove it"
                yield document.problem((*loc, field), what, key=True)
        # What a stack gives to a run id: record.StackVersions.run_id.
        compiler = entry.get("neuronx_cc") if target == Target.NEURON else ""
        parts = (target, entry.get("library_version"), compiler, entry.get("torch"))
        if all(isinstance(part, str) for part in parts) and first.setdefault(parts, loc) != loc:
            earlier = document.problem(first[parts], "", key=True)
            what = f"stacks {_quote(first[parts][1])} and {_quote(loc[1])} give the same run ids"
            what += "; expected another library, compiler or torch version"
            yield document.problem(loc, f"{what} (first at {earlier.where})", key=True)


def _cores_problems(document: _Document, loc: _Loc, entry: dict[str, Any]) -> Iterator[Problem]:
    cores, parallelism = entry.get("cores"), entry.get("parallelism")
    if type(cores) is not int:
        return
    if parallelism in list(Parallelism) and (cores == 1) != (parallelism == Parallelism.NONE):
        what = f"parallelism {_quote(parallelism)} on {cores} cores; expected none on one core, "
        yield document.problem((*loc, "parallelism"), f"{what}tensor or expert on several")
    sizes = {str(key[1]): part.get("cores") for key, part in _entries(document, "runners")}
    sizes = {name: sizes[name] for name in sizes if entry.get("runner") == name} or sizes
    most = max((size for size in sizes.values() if type(size) is int), default=cores)
    if cores > most:
        what = f"{cores} cores; expected at most {most}, what {' or '.join(sizes)} has"
        yield document.problem((*loc, "cores"), what)


def _schema_problems(document: _Document, error: ValidationError) -> Iterator[Problem]:
    meant: set[_Loc] = set()
    # Missing keys last: one whose name is nearly that of an unknown key is reported once, there.
    for fault in sorted(error.errors(include_url=False), key=lambda f: f["type"] == "missing"):
        loc, kind, name = fault["loc"], fault["type"], str(fault["loc"][-1])
        if kind == "extra_forbidden":
            fields = _part(loc[:-1]).model_fields
            meant.add((*loc[:-1], _near(name, fields) or name))
            yield document.problem(loc, _unknown("key", name, fields), key=True)
        elif kind == "missing":
            if loc not in meant:
                yield document.problem(loc[:-1], f"key {_quote(name)} is missing; expected it here")
        else:
            is_key = name == "[key]"
            loc = loc[:-1] if is_key else loc
            node = document.nodes(loc)[0 if is_key else 1]
            if kind == "too_short" and len(node.value) >= fault["ctx"]["min_length"]:
                continue  # pydantic counts the valid items only, and the others are reported
            what = _fault(kind, fault["msg"], fault.get("ctx", {}), node, _label(loc, is_key))
            yield document.problem(loc, what, key=is_key)


def _part(loc: _Loc) -> type[_Part]:
    """The schema of the mapping at `loc`."""
    if loc == ("defaults", "margin"):
        return Margin
    parts: dict[str | int, type[_Part]] = {
        "defaults": Defaults,
        "runners": Runner,
        "stacks": Stack,
        "models": Model,
        "excluded": Excluded,
    }
    return parts[loc[0]] if loc else Catalog


def _label(loc: _Loc, is_key: bool) -> str:
    """The innermost name of a place, with the position in its list: prompts[0]."""
    if is_key:
        return "key"
    index = f"[{loc[-1]}]" if isinstance(loc[-1], int) else ""
    return f"{loc[-2]}{index}" if index else str(loc[-1])


def _fault(kind: str, message: str, context: dict[str, Any], node: yaml.Node, label: str) -> str:
    """What is wrong with the value of `node`, from pydantic's words for it."""
    options = re.findall(r"'([^']+)'", context.get("expected", ""))
    if options and _kind(node) == "str":
        return _unknown(label, node.value, options)
    if kind == "too_short":
        return f"{label}: {len(node.value)} given; expected {context['min_length']} or more"
    if kind == "value_error":
        expected = str(context["error"])
    elif kind == "string_type" and isinstance(node, yaml.ScalarNode) and _kind(node) != "null":
        expected = f"expected text: quote it, {_quote(node.value)}"
    else:
        words = re.sub(r"^.* should (be |have )?", "", message)
        known = context.get("expected") or _EXPECTED.get(context.get("pattern", kind), words)
        expected = f"expected {known}"
    return f"{label}: found {_found(node)}; {expected}"


def _found(node: yaml.Node) -> str:
    kind = _KINDS.get(_kind(node))
    return kind.format(_quote(node.value)[1:-1]) if kind else _quote(node.value)


def _quote(value: object) -> str:
    """A value on one line, in double quotes, cut to 80 characters."""
    text = str(value)
    return json.dumps(text if len(text) <= 80 else f"{text[:77]}...", ensure_ascii=False)


def _twice(what: str, name: str, first: Problem) -> str:
    return f"{what} {_quote(name)} is here twice; expected it once (first at {first.where})"


def _near(word: str, options: Iterable[str]) -> str | None:
    lowered = {option.casefold(): option for option in options}
    near = get_close_matches(word.casefold(), lowered, n=1)
    return lowered[near[0]] if near else None


def _unknown(what: str, word: str, options: Iterable[str]) -> str:
    near = _near(word, options)
    known = [*map(_quote, options)]
    known = [*known[:12], "..."] if len(known) > 12 else known
    hint = f"did you mean {_quote(near)}?" if near else f"expected one of {', '.join(known)}"
    return f"unknown {what} {_quote(word)}; {hint}"


def schema_text() -> str:
    """The JSON Schema of models.yaml for editors; it lacks the rules between fields."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(dialect | Catalog.model_json_schema(), indent=1) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        write_atomically(SCHEMA_PATH, schema_text().encode())
    else:
        sys.stdout.write(schema_text())
