"""models.yaml, the list of wishes: its schema and its loader.

Every problem of the file, whichever layer finds it (YAML, the schema, the rules between entries),
has a line and a column, and all are reported together: see pipeline.catalog_problems.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
)

from pipeline.catalog_problems import Document, Loc, quote, rule_problems, schema_problems, unknown

# With "as", these two are names of this module as well.
from pipeline.catalog_problems import InvalidCatalog as InvalidCatalog
from pipeline.catalog_problems import Problem as Problem
from pipeline.errors import CatalogError, UsageError
from pipeline.record import StackVersions, write_atomically
from pipeline.words import MODEL_ID, Parallelism, Target, Task, is_model_id

SCHEMA_PATH = Path(__file__).parent / "data" / "models.schema.json"
_HUB_URL = re.compile(r"https?://(?:huggingface\.co|hf\.co)/([^/?#]+(?:/[^/?#]+)?)")


def _model_id(text: str) -> str:
    url = _HUB_URL.match(text)
    if url and is_model_id(url[1]) and not url[1].startswith(("datasets/", "spaces/")):
        raise ValueError(f"expected the id instead of its URL: {quote(url[1])}")
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
# Without "@": a store's URL is printed and published, and must not carry a password.
_STORE = r"^[a-z][a-z0-9+.-]*://[^\s@]+$"
_BOUND = r"(==|~=|!=|<=|>=|<|>)[0-9A-Za-z.*+!]+"
_PACKAGE = rf"^[0-9A-Za-z][0-9A-Za-z._-]*(\[[0-9A-Za-z._,-]+\])?({_BOUND}(,{_BOUND})*)?$"
_EXPECTED = {
    _VERSION: 'a version such as "5.24.0"',
    _NAME: "a name: at most 64 letters, digits, dots, dashes and underscores",
    _TEXT: "text that is not empty",
    _WORD: "text without spaces",
    _URL: "an https URL",
    _STORE: "a URL without user name or password, such as hf://buckets/owner/name",
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
StoreUrl = Annotated[str, Field(pattern=_STORE, max_length=2_000)]
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


_COMPILE_CORES, _COMPILE_GIB, _OTHER_COMPILE_GIB = 2, 32, 4


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
    prompts: Mapping[Task, Prompts] = Field(
        description="Three at least for each task; the judge passes nothing with fewer than four."
    )
    limit_minutes: Minutes = Field(description="Time limit of one run, its check apart.")
    margin: Margin
    new_tokens: Count = Field(32, le=4096, description="Tokens to generate for each prompt.")
    dtype: Dtype = Field("bfloat16", description="What weights are loaded as.")
    prefill_chunk: Count = Field(128, description="Prompts are left-padded to a multiple of it.")
    max_age_days: Count = Field(30, description="Results older than this are stale.")
    store: StoreUrl | None = Field(
        None,
        description="URL of the compiled-graph store that runs restore from and save to, such as "
        "`hf://buckets/owner/name`; null: none. `--store` of `qualify run` overrides it.",
    )
    judge: Text = Field(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        description="Model id or directory of the judge of fluent English.",
    )


class Runner(_Part):
    """A class of machines. Placement tries the classes in the file's order.

    Target simulator is the tests' stand-in for a device; publish refuses its results.
    """

    target: Target = Field(
        Target.NEURON, description="Which stacks run here: those of this target."
    )
    labels: tuple[Word, ...] = Field(min_length=1, description="`runs-on` of its jobs.")
    cores: MachineCores = Field(description="Cores of one machine.")
    core_gib: Size = Field(description="Memory of one core, GiB.")
    host_gib: Size = Field(description="Memory of the host, GiB.")
    machines: Count = Field(1, le=100, description="How many machines of the class exist.")
    compilations: Count | None = Field(
        None,
        le=64,
        description="Runs that may compile at once on one machine; null: one for every two cores "
        "and 32 GiB of the host's memory (4 GiB off the device), whichever gives fewer, and one at "
        "least.",
    )
    usd_per_hour: Amount | None = Field(None, description="Price of one machine; null: unknown.")

    @property
    def slots(self) -> int:
        """Runs that may compile at once on one machine: as stated, else a careful figure.

        An assumption: trn2.3xlarge has about 12 vCPUs and 124 GiB for its four cores, no swap, and
        a user saw the kernel end compilations for want of memory there. One for every two cores
        leaves each about six vCPUs and, on that machine, 62 GiB. Off the device Inductor's C++
        compilers, or nothing but a stand-in, need far less.
        """
        each = _COMPILE_GIB if self.target is Target.NEURON else _OTHER_COMPILE_GIB
        careful = min(self.cores // _COMPILE_CORES, int(self.host_gib / each))
        return self.compilations or max(1, careful)


class Stack(_Part):
    """The exact versions a run is for. What is null is not named and not checked.

    Targets neuron and simulator need neuronx_cc and torch_neuronx; target cpu must not have them.
    Target simulator is the tests' stand-in for a device; publish refuses its results.
    """

    target: Target = Field(
        description="What the stack runs on; its runs go to runner classes of the same target."
    )
    library: Literal["transformers"] = Field(
        "transformers", description="The library that loads and runs the model."
    )
    library_version: Version = Field(description="That library's version.")
    torch: Version = Field(description="Version of torch.")
    neuronx_cc: Version | None = Field(None, description="Version of neuronx-cc, the compiler.")
    torch_neuronx: Version | None = Field(None, description="Version of torch-neuronx.")
    nki: Version | None = Field(None, description="Version of nki.")
    runtime: Version | None = Field(None, description="Version of the Neuron runtime.")
    driver: Version | None = Field(None, description="Version of the Neuron kernel driver.")
    python: Version | None = Field(None, description="Version of Python.")
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
    cores: Cores | None = Field(None, description="Number of cores; null: placement decides.")
    parallelism: Parallelism | None = None
    dtype: Dtype | None = Field(None, description="Instead of `defaults.dtype`.")
    prompts: Prompts | None = Field(None, description="Instead of the task's default prompts.")
    extra_packages: tuple[Package, ...] = Field((), description="Needed beside the stack.")
    limit_minutes: Minutes | None = Field(None, description="Instead of `defaults.limit_minutes`.")
    note: Text | None = Field(None, description="For people.")

    def directory(self, folder: Path) -> Path | None:
        """The local checkpoint's absolute path, `folder` being the list's; None = the Hub.

        It need not exist: planning says so where it matters.
        """
        return (folder / self.source).resolve() if self.source else None


class Excluded(_Part):
    """A model that is known and not wanted. Reason incompatible needs an issue."""

    id: ModelId = Field(description="Repository id.")
    task: Task
    reason: Exclusion
    note: Text = Field(description="One sentence for readers.")
    issue: Annotated[str, Field(pattern=_URL, max_length=2_000)] | None = Field(
        None, description="Where it is discussed."
    )


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
        raise UsageError(unknown("model", model_id, [model.id for model in self.models]))

    def stack_versions(self, name: str) -> StackVersions:
        """The stack of that name as plans and records carry it; UsageError with a near miss."""
        if name not in self.stacks:
            raise UsageError(unknown("stack", name, self.stacks))
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
    document = Document(data, file, Catalog.model_fields)
    problems = [*document.problems, *rule_problems(document)]
    try:
        catalog = Catalog.model_validate(document.data)
    except ValidationError as error:
        problems += schema_problems(document, error, _keys_at, _EXPECTED)
        raise InvalidCatalog(problems) from error
    if problems:
        raise InvalidCatalog(problems)
    return catalog


def _keys_at(loc: Loc) -> Iterable[str]:
    """The keys of the schema's mapping at `loc`."""
    if loc == ("defaults", "margin"):
        return Margin.model_fields
    parts: dict[str | int, type[_Part]] = {
        "defaults": Defaults,
        "runners": Runner,
        "stacks": Stack,
        "models": Model,
        "excluded": Excluded,
    }
    return (parts[loc[0]] if loc else Catalog).model_fields


def schema_text() -> str:
    """The JSON Schema of models.yaml for editors; it lacks the rules between fields."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(dialect | Catalog.model_json_schema(), indent=1) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        write_atomically(SCHEMA_PATH, schema_text().encode())
    else:
        sys.stdout.write(schema_text())
