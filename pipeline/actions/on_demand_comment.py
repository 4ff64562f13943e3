"""The one comment in which a pull request's asks for hardware time are answered.

It carries its own data in a hidden line, so that the newest answer is shown whole, earlier ones in
short, and an ask that is running or was turned down costs neither. The data are checked when they
come back: people with write access can edit the comment, and what cannot be read is dropped.

Every text of a run is escaped: errors and generated text come from models and device machines.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated

from pydantic import AwareDatetime, Field

from pipeline.actions.github import MAX_TEXT, GitHub
from pipeline.errors import RecordError
from pipeline.markdown import code, fold, table, text
from pipeline.phrases import duration, moment
from pipeline.record import parse
from pipeline.record.base import Name, Paper, ShortText
from pipeline.words import Failure, Parallelism, Result, Stage, Target

MAX_EARLIER = 10
"""Earlier asks that the comment goes on showing."""

_DETAILS = ((300, 160), (160, 80), (60, 0), (0, 0))
"""(characters of a cause and of a remedy, of a generated text), tried until the comment fits."""

_MEANINGS = {
    Result.PASS: "PASS says: this revision loaded, compiled, generated text for every prompt and "
    "passed its output check, on this stack. It says nothing of throughput, of long generations or "
    "of answer quality.",
    Result.ERROR: "ERROR is trouble of a machine, a network or this project, and says nothing of "
    "the model.",
}
_UNPUBLISHED = (
    "Nothing of this is in the published results, which hold what was run from the main branch's "
    "list."
)

_DATA = re.compile(r"^<!-- trn-qualify: data (\{.*\}) -->\r?$", re.MULTILINE)
_HIDDEN = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "<>&@#"})
"""What could end an HTML comment or address somebody, as JSON may write it instead."""

Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Url = Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.:-]+/[\w./-]*$", max_length=500)]


class Line(Paper):
    """What became of one model on one stack, in short.

    result: None = refused: nothing was run. stack: its name in the list, "" for an entry that was
    not even planned. said: how the answer to the first prompt begins.
    """

    model_id: Name
    revision: Name | None = None
    stack: Name = ""
    result: Result | None = None
    failure: Failure | None = None
    stage: Stage | None = None
    cores: Annotated[int, Field(ge=1, le=16)] | None = None
    parallelism: Parallelism | None = None
    wall_s: Annotated[int, Field(ge=0)] | None = None
    check: ShortText = ""
    why: ShortText = ""
    remedy: ShortText = ""
    said: ShortText = ""

    @property
    def word(self) -> str:
        """The result, or "refused"."""
        return str(self.result or "refused")


class Answer(Paper):
    """What an ask came to. stacks: in words, by name; targets: theirs."""

    sha: Commit
    asked_by: Name
    asked_at: AwareDatetime
    run_url: Url
    stacks: dict[Name, ShortText] = Field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    lines: Annotated[tuple[Line, ...], Field(max_length=1_000)]


class Notice(Paper):
    """What became of the newest ask so far: it is running, or was turned down, and why.

    It stands above the answers until the next one.
    """

    running: bool
    asked_by: Name
    asked_at: AwareDatetime
    run_url: Url
    told: ShortText


class Conversation(Paper):
    """All that the comment says: answers, the newest first, and the ask after them."""

    answers: Annotated[tuple[Answer, ...], Field(max_length=1 + MAX_EARLIER)] = ()
    notice: Notice | None = None

    def answered(self, answer: Answer) -> Conversation:
        """With `answer` on top, which replaces an earlier one of the same commit."""
        earlier = [_short(one) for one in self.answers if one.sha != answer.sha]
        return Conversation(answers=(answer, *earlier[:MAX_EARLIER]))

    def noticed(self, notice: Notice) -> Conversation:
        """With this notice, and all answers as they are."""
        return self.model_copy(update={"notice": notice})


def _short(answer: Answer) -> Answer:
    """An answer as earlier ones are kept: the results, and no more of each than its failure."""
    kept = {"model_id", "stack", "result", "failure", "stage"}
    lines = tuple(Line.model_validate(line.model_dump(include=kept)) for line in answer.lines)
    return answer.model_copy(update={"lines": lines})


def conversation(github: GitHub, number: int) -> Conversation:
    """What our comment on pull request `number` says; an empty one where there is none."""
    return read(github.our_comment(number, marker=marker(number)))


def post(github: GitHub, number: int, now: Conversation) -> str:
    """Our one comment on pull request `number` says this now; its URL."""
    return github.comment(number, render(number, now), marker=marker(number))


def marker(number: int) -> str:
    """What our comment on pull request `number` is known by."""
    return f"trn-qualify: on-demand {number}"


def read(body: str) -> Conversation:
    """The conversation in a comment's body; an empty one where it holds none."""
    found = _DATA.search(body)
    try:
        return parse(Conversation, found[1], where="comment") if found else Conversation()
    except RecordError:
        return Conversation()


def render(number: int, conversation: Conversation) -> str:
    """The comment's body, with its marker and data; it fits into what GitHub takes."""
    for why, said in _DETAILS:
        shown = _cut(conversation, why, said)
        data = shown.model_dump_json(exclude_defaults=True).translate(_HIDDEN)
        head = [f"<!-- {marker(number)} -->", f"<!-- trn-qualify: data {data} -->"]
        body = "\n".join([*head, "", *_body(shown)]).rstrip() + "\n"
        if len(body) <= MAX_TEXT:
            return body
    # Too many runs for any detail: earlier asks go first, then the data with them.
    if len(conversation.answers) > 1:
        return render(number, conversation.model_copy(update={"answers": conversation.answers[:1]}))
    return "\n".join([head[0], "", *_body(shown)])


def _cut(conversation: Conversation, why: int, said: int) -> Conversation:
    """With texts no longer than that, in the newest answer; earlier ones have none."""
    answers = tuple(
        answer.model_copy(
            update={
                "lines": tuple(
                    line.model_copy(
                        update={
                            "why": line.why[:why],
                            "remedy": line.remedy[:why],
                            "said": line.said[:said],
                        }
                    )
                    for line in answer.lines
                )
            }
        )
        for answer in conversation.answers
    )
    return conversation.model_copy(update={"answers": answers})


def _body(conversation: Conversation) -> list[str]:
    lines = []
    if notice := conversation.notice:
        word = "Running" if notice.running else "Not run"
        who = f"{text(notice.asked_by)}, {moment(notice.asked_at)}, [log]({notice.run_url})"
        lines += [f"> **{word}** ({who}): {text(notice.told, 1_000)}", ""]
    if conversation.answers:
        newest, *earlier = conversation.answers
        lines += [f"### {headline(newest)}", "", *report(newest)]
        if earlier:
            lines += ["", fold(f"Earlier asks: {len(earlier)}", "\n".join(map(_briefly, earlier)))]
    return lines


def headline(answer: Answer) -> str:
    """The answer in one line of plain text: "2 of 3 models passed"."""
    counts = Counter(line.word for line in answer.lines)
    of = "model" if len({line.stack for line in answer.lines if line.stack}) <= 1 else "run"
    total = len(answer.lines)
    if counts["refused"] == total:
        return f"Nothing was run ({total} refused)"
    told = f"{counts[Result.PASS]} of {total} {of}{'' if total == 1 else 's'} passed"
    rest = [f"{counts[word]} {word}" for word in ("FAIL", "ERROR", "refused") if counts[word]]
    where = " on Trainium2" if {*answer.targets} == {Target.NEURON} else ""
    return f"{told}{where}" + (f" ({', '.join(rest)})" if rest else "")


def report(answer: Answer) -> list[str]:
    """The answer without its headline: what became of each model, why, and on which stack."""
    several = len(answer.stacks) > 1
    seen = {line.result for line in answer.lines}
    stack = ["stack"] if several else []
    columns = ["model", "revision", *stack, "result", "cores", "time", "check"]
    lines = [table(columns, (_row(line, several) for line in answer.lines))]
    if seen != {Result.PASS}:
        lines.append("")
        for line in answer.lines:
            lines += _cause(line, several) if line.result is not Result.PASS else []
    kept = f"[Log]({answer.run_url})."
    if seen != {None}:
        kept = f"The [run]({answer.run_url}) keeps records, logs and each `run.py` as artifacts."
    who = f"asked for by {text(answer.asked_by)}, {moment(answer.asked_at)}"
    lines += ["", f"Commit {answer.sha}, {who}. {kept}", ""]
    lines += [
        f"{'- ' if several else ''}Stack {text(name)}: {text(versions, 500)}"
        for name, versions in answer.stacks.items()
    ]
    if seen != {None}:
        meanings = (told for result, told in _MEANINGS.items() if result in seen)
        lines += ["", " ".join([*meanings, _UNPUBLISHED])]
    if said := [line for line in answer.lines if line.said]:
        told = [f"- {code(line.model_id)}: {text(line.said)}" for line in said]
        lines += ["", fold("How the answers to the first prompt begin", "\n".join(told))]
    return lines


def _row(line: Line, several: bool) -> list[str]:
    cells = [code(line.model_id), text((line.revision or "-")[:12])]
    cells += [text(line.stack) or "-"] if several else []
    return [*cells, line.word, _cores(line), duration(line.wall_s), text(line.check) or "-"]


def _cause(line: Line, several: bool) -> list[str]:
    on = f" on {text(line.stack)}" if several and line.stack else ""
    stage = f" at {line.stage}" if line.stage else ""
    what = f"{line.failure}{stage}: " if line.failure else ""
    told = [f"- {code(line.model_id)}{on}, {line.word}: {what}{text(line.why, 500)}"]
    return [*told, f"  - What to do: {text(line.remedy, 500)}"] if line.remedy else told


def _briefly(answer: Answer) -> str:
    several = len(answer.stacks) > 1
    told = "; ".join(
        code(line.model_id)
        + (f" on {text(line.stack)}" if several and line.stack else "")
        + f" {line.word}"
        + (f" ({line.failure}{f' at {line.stage}' if line.stage else ''})" if line.failure else "")
        for line in answer.lines
    )
    who = f"{text(answer.asked_by)}, {moment(answer.asked_at)}"
    return f"- {answer.sha} ({who}, [run]({answer.run_url})): {told}"


def _cores(line: Line) -> str:
    if line.cores is None:
        return "-"
    return f"{line.cores}, {line.parallelism}" if line.cores > 1 else "1"
