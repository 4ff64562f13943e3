"""From what a failed run left to its failure class, and from many failures to their causes.

Signatures are data (data/signatures.yaml): known texts, each with a class, a meaning, a remedy and
a source. docs/failures.md says how one of them decides and how to add one. Where none is known,
the exception's type and the stage give the class, and the signature is `UNCLASSIFIED`.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, TypeAdapter

from pipeline.record import Finding, Observation
from pipeline.record.base import Paper
from pipeline.words import Failure, Result, RunId, Stage, TryReason

UNCLASSIFIED = "unclassified"
"""The signature of a failure whose text nobody has described yet."""

ASK = "no known signature; docs/failures.md says how to add one"

_OOM_KILLER, _KILLED, _CRASH, _RUN_JSON = "oom-killer", "killed", "crash", "run-json"
"""Signatures that the way a process ended gives, whatever the log says."""

_STOPS = {"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"}
_CRASHES = {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE"}
_BY_TYPE = {
    "BackendCompilerFailed": Failure.COMPILER_ERROR,
    "InductorError": Failure.COMPILER_ERROR,
    "CppCompileError": Failure.COMPILER_ERROR,
}
_BY_STAGE = {
    Stage.PLAN: Failure.HARNESS,
    Stage.DOWNLOAD: Failure.DOWNLOAD,
    Stage.LOAD: Failure.LOAD_ERROR,
}
_LINE, _ERROR = 500, 4_000
"""Characters kept of a line of the log, and of an error in all (record.ShortText)."""

_OWN_LINES = re.compile(r"^\[\d\d:\d\d:\d\d\] [^\n]{0,65536}\n?", re.MULTILINE)
"""What run.py itself says, the model's text among it: no evidence of anything that went wrong."""


class Decides(StrEnum):
    """What a signature's text may do."""

    FAILED = "failed"
    """Name the cause of a run that failed."""
    ALWAYS = "always"
    """Also end a run in its class that came to its end, whatever the tokens."""
    NEVER = "never"
    """Nothing: it is explained for people, or given by how a process ended."""


class Weight(StrEnum):
    """How much a signature's text explains; the heaviest decides."""

    CAUSE = "cause"
    SYMPTOM = "symptom"
    """Causes end in it."""
    GENERAL = "general"
    """Something failed, and no more."""

    @property
    def order(self) -> int:
        """0 for the heaviest."""
        return list(Weight).index(self)


Pattern = Annotated[
    re.Pattern[str],
    BeforeValidator(lambda text: re.compile(text, re.MULTILINE)),
]


class Signature(Paper):
    """A known text of a failure and what it means; data/signatures.yaml explains the fields."""

    id: str
    failure: Annotated[Failure, Field(alias="class")]
    pattern: Pattern
    meaning: str
    remedy: str
    source: str
    weight: Weight = Weight.CAUSE
    decides: Decides = Decides.FAILED
    stages: frozenset[Stage] = frozenset(Stage)
    sharded: bool = False
    retry: TryReason | Literal["never"] | None = None

    @property
    def of_machine(self) -> bool:
        """Whether it speaks of infrastructure, not of the model."""
        return self.failure.result is Result.ERROR


@dataclass(frozen=True)
class Diagnosis:
    """Why a run failed. signature: id of the text that decided, UNCLASSIFIED where none did."""

    failure: Failure
    signature: str
    error: str


@cache
def signatures() -> tuple[Signature, ...]:
    """All signatures, in the order of the file."""
    text = files("pipeline").joinpath("data/signatures.yaml").read_text(encoding="utf-8")
    return TypeAdapter(tuple[Signature, ...]).validate_python(yaml.safe_load(text))


def known(name: str | None) -> Signature | None:
    """The signature of that id; None for UNCLASSIFIED and for ids of other versions."""
    return None if name is None else _by_id().get(name)


@cache
def _by_id() -> Mapping[str, Signature]:
    return {one.id: one for one in signatures()}


# --- one line while the run goes on ---------------------------------------------------------------


@cache
def _speaking() -> tuple[re.Pattern[str], tuple[Signature, ...]]:
    """One pattern that finds what any `always` signature would, and those signatures."""
    chosen = tuple(one for one in signatures() if one.decides is Decides.ALWAYS)
    return re.compile("|".join(f"(?:{one.pattern.pattern})" for one in chosen)), chosen


def findings(line: str) -> Finding | None:
    """What a line of the log says against the run whatever its tokens; None for nearly all lines.

    Meant for every line as it comes: the usual one costs one search.
    """
    anything, chosen = _speaking()
    if not anything.search(line) or _OWN_LINES.match(line):
        return None
    for one in chosen:
        if found := one.pattern.search(line):
            kept = _around(line, found).strip()
            return Finding(signature=one.id, failure=one.failure, line=kept)
    return None


# --- a run that failed ----------------------------------------------------------------------------


def diagnose(
    observation: Observation,
    log: str,
    *,
    exit_code: int,
    oom_kills: int | None,
    timed_out: bool = False,
    cores: int | None = None,
    restored: int | None = None,
    faults: Sequence[str] = (),
) -> Diagnosis:
    """Why a script ended with `exit_code` other than 0, or not within its limit (`timed_out`).

    log: what all ranks printed. oom_kills: how many processes the kernel's out-of-memory killer
    ended meanwhile on this machine. cores: over how many the model was spread. restored: how many
    compiled graphs the run was given. None = unknown. faults: what in run.json could not be used:
    with one, a script that ended well did not, and what nobody can explain is ours.

    A run that timed out has class `timeout`, unless the log names a cause in the machine; the
    signature then says what hung, where a known text does.
    """
    broken = f"run.json: {'; '.join(faults)}"
    if faults and exit_code == 0 and not timed_out:
        reason = "run.py ended well, and what it left is not as it writes it"
        return Diagnosis(Failure.HARNESS, _RUN_JSON, _with(f"{reason}: {broken}", ""))
    found = _diagnosed(
        observation, log, exit_code, oom_kills, timed_out=timed_out, cores=cores, restored=restored
    )
    if not faults:
        return found
    if found.signature == UNCLASSIFIED and not timed_out and not observation.error_type:
        reason = f"run.py ended with exit code {exit_code} for a reason that is not known"
        return Diagnosis(Failure.HARNESS, _RUN_JSON, _with(f"{reason}: {broken}", ""))
    return replace(found, error=_with(found.error, broken))


def _diagnosed(
    observation: Observation,
    log: str,
    exit_code: int,
    oom_kills: int | None,
    *,
    timed_out: bool,
    cores: int | None,
    restored: int | None,
) -> Diagnosis:
    kind, message = _told(observation, exit_code, timed_out)
    error = f"{kind}: {message}" if kind and not message.startswith(kind) else message
    if not timed_out and kind in _STOPS:
        if kind == "SIGKILL" and oom_kills:
            line = "the kernel's out-of-memory killer ended processes meanwhile"
            return Diagnosis(Failure.HOST_OUT_OF_MEMORY, _OOM_KILLER, _with(error, line))
        return Diagnosis(Failure.KILLED, _KILLED, _with(error, ""))
    found = _decisive(error, log, observation.stage, sharded=cores is not None and cores > 1)
    if found is None and kind in _CRASHES:
        return Diagnosis(Failure.CRASH, _CRASH, _with(error, ""))
    if found is None:
        failure = Failure.TIMEOUT if timed_out else _unclassified(kind, observation.stage)
        return Diagnosis(failure, UNCLASSIFIED, _with(error, ASK))
    failure = found.signature.failure
    if failure is Failure.KILLED and oom_kills:
        failure = Failure.HOST_OUT_OF_MEMORY
    elif failure is Failure.CACHE and restored == 0:
        # Nothing was cached: what the runtime refuses was compiled in this very run.
        failure = Failure.RUNTIME_ERROR
    if timed_out and (found.signature.weight is not Weight.CAUSE or not found.signature.of_machine):
        failure = Failure.TIMEOUT
    line = f"the log says: {found.line}" if found.in_log else ""
    return Diagnosis(failure, found.signature.id, _with(error, line))


@dataclass(frozen=True)
class _Found:
    signature: Signature
    in_log: bool
    line: str


def _told(observation: Observation, exit_code: int, timed_out: bool) -> tuple[str, str]:
    """(type, message) of the error, of the signal that ended the script, or of its silence."""
    if timed_out:
        return "", f"no end within its time limit; it was at stage {observation.stage}"
    kind, message = observation.error_type or "", observation.error_message or ""
    if not kind and exit_code < 0:
        name = _signal_name(-exit_code)
        return name, f"run.py died of {name}"
    if not kind and not message:
        return "", f"run.py ended with exit code {exit_code} and said nothing"
    return kind, message


def _decisive(error: str, log: str, stage: Stage, *, sharded: bool) -> _Found | None:
    """What decides among all signatures that occur in the error message and the log.

    First a line of the machine that makes any result worthless. Then by weight; the message, which
    is of the rank that failed first, before the log; among causes the machine before the model;
    then the earliest line, which is the cause of what other ranks say later; on one line the order
    of the signatures.
    """
    best: tuple[tuple[object, ...], _Found] | None = None
    for in_log, text in ((False, error), (True, _OWN_LINES.sub("", log))):
        for order, one in enumerate(signatures()):
            if one.decides is Decides.NEVER or (one.sharded and not sharded):
                continue
            if stage not in one.stages or not (found := one.pattern.search(text)):
                continue
            worthless = one.decides is Decides.ALWAYS and one.of_machine
            line_start = text.rfind("\n", 0, found.start()) + 1
            model = one.weight is Weight.CAUSE and not one.of_machine
            key = (not worthless, one.weight.order, in_log, model, line_start, order)
            if best is None or key < best[0]:
                best = key, _Found(one, in_log, _around(text, found))
    return best[1] if best else None


def _unclassified(kind: str, stage: Stage) -> Failure:
    return _BY_TYPE.get(kind) or _BY_STAGE.get(stage, Failure.RUNTIME_ERROR)


def _around(text: str, found: re.Match[str]) -> str:
    """The line that was found, at most `_LINE` characters of it and the beginning of the match."""
    start = max(text.rfind("\n", 0, found.start()) + 1, found.start() - _LINE // 2)
    end = text.find("\n", found.start())
    return text[start : min(end if end >= 0 else len(text), start + _LINE)].strip()


def _with(error: str, more: str) -> str:
    """`error` and a last line `more`, within what a record holds; `more` is kept whole."""
    if not more:
        return error[:_ERROR]
    return f"{error[: _ERROR - len(more) - 1]}\n{more}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# --- many failures --------------------------------------------------------------------------------


@dataclass(frozen=True)
class FailureGroup:
    """Failures of one cause. models, stacks: sorted, without repetition; count: rows.

    signature: its id, UNCLASSIFIED without one. line: what is common to their errors, numbers and
    names taken out; the compiler's code where the signature covers several; "" where the signature
    says it all. remedy, source: "" where nobody knows.
    """

    failure: str
    signature: str
    line: str
    count: int
    models: tuple[str, ...]
    stacks: tuple[str, ...]
    meaning: str
    remedy: str
    source: str


def groups(rows: Iterable[Mapping[str, Any]]) -> list[FailureGroup]:
    """The rows that did not PASS, by cause, the most frequent first.

    rows: with the columns result, failure, signature, error, model_id and run_id (pipeline.rows).
    """
    members: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["failure"] is not None and row["result"] != Result.PASS:
            members.setdefault(_cause(row), []).append(row)
    made = [_group(cause, found) for cause, found in members.items()]
    return sorted(made, key=lambda one: (-one.count, one.failure, one.signature, one.line))


def _cause(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """(class, signature, line): rows of one cause give the same."""
    failure, error = str(row["failure"]), str(row["error"] or "")
    signature = known(row["signature"])
    if signature is None:
        return failure, str(row["signature"] or UNCLASSIFIED), _normal(error, str(row["model_id"]))
    code = signature.pattern.search(error) if "code" in signature.pattern.groupindex else None
    return failure, signature.id, code["code"] if code else ""


def _group(cause: tuple[str, str, str], rows: list[Mapping[str, Any]]) -> FailureGroup:
    failure, name, line = cause
    signature = known(name)
    words = Failure(failure).meaning if failure in set(Failure) else ""
    return FailureGroup(
        failure=failure,
        signature=name,
        line=line,
        count=len(rows),
        models=tuple(sorted({str(row["model_id"]) for row in rows})),
        stacks=tuple(sorted({_stack(str(row["run_id"])) for row in rows})),
        meaning=signature.meaning if signature else words,
        remedy=signature.remedy if signature else "",
        source=signature.source if signature else "",
    )


def _stack(run_id: str) -> str:
    """The part of a run id after the model, as words: "transformers 5.24.0, ..."."""
    try:
        return RunId.parse(run_id).stack
    except ValueError:
        return run_id


def _normal(error: str, model_id: str) -> str:
    """The first line of an error without what differs from model to model."""
    line = next((one for one in error.split("\n") if one.strip()), "").replace(model_id, "MODEL")
    line = re.sub(r"(?:/[\w.@+-]{1,200}){2,50}", "PATH", line[:_LINE])
    return re.sub(r"0x[0-9a-fA-F]{1,40}|\d{1,40}(?:\.\d{1,40})?", "N", line).strip()


# --- for docs/failures.md -------------------------------------------------------------------------


def table() -> str:
    """All signatures by class, as Markdown."""
    return "\n\n".join(_section(failure) for failure in Failure if any(_of(failure)))


def _of(failure: Failure) -> Iterator[Signature]:
    return (one for one in signatures() if one.failure is failure)


def _section(failure: Failure) -> str:
    head = f"### `{failure}` ({failure.result}): {failure.meaning}"
    return f"{head}\n\n" + "\n".join(
        f"- `{one.id}`: {one.meaning}. Remedy: {one.remedy}. [Source]({one.source})"
        for one in _of(failure)
    )


if __name__ == "__main__":
    print(table())
