"""The issue form: what GitHub makes of it is read strictly, and each request gets one answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.actions import issue_form, proposal_page, proposals
from pipeline.actions.candidates import Prospect
from pipeline.actions.issue_form import Answer, Verdict, answer, marker, read
from pipeline.catalog import Model
from pipeline.errors import UsageError
from pipeline.record import Refusal
from pipeline.words import Failure, Task
from tests import golden_files, jobs, papers
from tests.discovery import World, ranked, swollen
from tests.github_server import GitHubServer, Issue
from tests.hub_server import HubServer

FORMS = Path(__file__).parent.parent / ".github" / "ISSUE_TEMPLATE"
FORM: dict[str, Any] = yaml.safe_load((FORMS / "qualify-model.yml").read_text(encoding="utf-8"))
GOOD = [f"good/model-{number}" for number in range(4)]


def rendered(**answers: str) -> str:
    """What GitHub makes of the form: a heading for each field, and what was answered below it."""
    parts = []
    for field in FORM["body"]:
        if field["type"] == "markdown":
            continue
        told = answers.get(field["id"]) or "_No response_"
        if field["type"] == "checkboxes":
            options = field["attributes"]["options"]
            told = "\n".join(f"- [x] {option['label']}" for option in options)
        parts.append(f"### {field['attributes']['label']}\n\n{told}")
    return "\n\n".join(parts)


def asking(model: str, task: str = "text-generation", **more: str) -> str:
    return rendered(model=model, task=task, **more)


# --- the form -------------------------------------------------------------------------------------


def test_forms_are_valid() -> None:
    """Both files are what GitHub's schemas say."""
    for name, schema in (
        ("qualify-model.yml", "github-issue-forms"),
        ("config.yml", "github-issue-config"),
    ):
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
        done = subprocess.run(
            [*command, f"vendor.{schema}", str(FORMS / name)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_form_and_reader_agree() -> None:
    """The labels that are read are the form's, in its order, with the free text last; its tasks are
    ours, and its label is the one that is answered."""
    fields = [field for field in FORM["body"] if field["type"] != "markdown"]
    labels = [field["attributes"]["label"] for field in fields]
    assert labels == [*issue_form.FIELDS, issue_form.LAST]
    assert set(fields[1]["attributes"]["options"]) == {str(task) for task in Task}
    assert FORM["labels"] == [issue_form.LABEL]
    assert FORM["name"] in issue_form._AGAIN


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_read(newline: str) -> None:
    """A form that was filled in, with or without what is optional, whatever the line ends."""
    body = asking("Qwen/Qwen3-0.6B").replace("\n", newline)
    assert read(body).model == Model(id="Qwen/Qwen3-0.6B", task=Task.TEXT_GENERATION)
    body = asking("org/m", "image-text-to-text", revision="refs/pr/7", why="Because.\n\n### Task\n")
    model = read(body.replace("\n", newline)).model
    assert (model.task, model.revision) == (Task.IMAGE_TEXT_TO_TEXT, "refs/pr/7")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "'Model id' of the form is missing"),
        ("Please run Qwen!", "'Model id' of the form is missing"),
        ("Hello\n\n" + asking("a/b"), "text above"),
        (asking(""), "the model id is missing"),
        (asking("a/b", task=""), "the task is missing"),
        (asking("a/b", task="None"), "the task is missing"),
        (asking("a/b", task="rm -rf"), "'rm -rf' is no task"),
        (asking("a b"), "'a b' is no model id"),
        (asking("../../etc"), "is no model id"),
        (asking("a/b\nc/d"), "Model id has more than one line"),
        (asking("a/b\n\n### Task\n\nx"), "Task"),
        (asking("x" * 5_000), "is no model id"),
        (asking("a/b", revision="-q"), "'-q' is no revision"),
        (asking("a/b", revision="a..b"), "is no revision"),
        (asking("a/b", revision="main; id"), "is no revision"),
        (asking("a/b").replace("### Task", "### Tasks"), "'Task' of the form is missing"),
        (asking("a/b") + "x" * 70_000, "too long"),
    ],
)
def test_what_is_not_the_form(body: str, words: str) -> None:
    """Anything else is told, with what to do about it, and never guessed at."""
    with pytest.raises(UsageError) as caught:
        read(body)
    assert words in caught.value.reason
    assert caught.value.remedy
    assert len(caught.value.reason) < 300


def test_free_text_passes_for_nothing() -> None:
    """Headings inside the free text change no answer."""
    why = "### Model id\n\nevil/one\n\n### Task\n\nimage-text-to-text\n\n### Revision\n\nx"
    assert read(asking("a/b", why=why)).model == Model(id="a/b", task=Task.TEXT_GENERATION)


def test_address() -> None:
    """Whoever pastes the address is told the id in it."""
    for address in ("https://huggingface.co/a/b", "https://hf.co/a/b/", "https://www.hf.co/a/b"):
        with pytest.raises(UsageError, match="is no model id") as caught:
            read(asking(address))
        assert "write a/b instead" in caught.value.remedy


# --- answering ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoints(
    models: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HubServer]:
    small = models("tiny-qwen3")
    with HubServer() as hub:
        for name in GOOD:
            hub.add(name, small)
        hub.add(GOOD[0], small, ref="v9")
        hub.add("big/model", swollen(small, tmp_path_factory.mktemp("big") / "model", 0.4))
        hub.add("bin/only", {"config.json": small / "config.json", "pytorch_model.bin": b"x"})
        hub.add("gated/model", small, gated="manual")
        yield hub


@pytest.fixture
def world(checkpoints: HubServer, tmp_path: Path) -> Iterator[World]:
    with GitHubServer() as github:
        yield World.make(tmp_path, checkpoints, github)


def ask(world: World, body: str, issue: Issue | None = None) -> tuple[Answer, Issue]:
    """An issue with that body is opened, or edited, and answered."""
    if issue is None:
        issue = world.github.add_issue(body=body, author="ann", labels=[issue_form.LABEL])
    issue.body = body
    desk = world.desk()
    found = answer(desk, desk.github.issue(issue.number))
    desk.github.comment(issue.number, found.comment, marker=marker(issue.number))
    return found, issue


@pytest.mark.parametrize(
    ("name", "body", "verdict"),
    [
        ("unreadable", "Run <b>this</b> @everyone", Verdict.UNREADABLE),
        ("listed", asking("Listed/ONE"), Verdict.LISTED),
        ("excluded", asking("excluded/one"), Verdict.EXCLUDED),
        ("missing", asking("no/such", revision="v1"), Verdict.MISSING),
        ("gated", asking("gated/model"), Verdict.GATED),
        ("refused", asking("big/model"), Verdict.REFUSED),
        ("refused-checkpoint", asking("bin/only"), Verdict.REFUSED),
    ],
)
def test_not_proposed(world: World, name: str, body: str, verdict: Verdict) -> None:
    """What cannot or need not be proposed is answered with the reason, and proposed nowhere."""
    found, issue = ask(world, body)
    assert found.verdict is verdict
    assert world.github.pulls == {}
    (comment,) = [one for one in world.github.comments if one.issue == issue.number]
    golden_files.check(f"request-{name}.md", comment.body)


def test_refused_on_two_stacks() -> None:
    """A model that no stack runs is told with each stack's reason."""
    one = papers.refused("big/model")
    other = papers.refused(
        "big/model",
        stack=papers.stack(name="older", torch="2.13.0"),
        refusal=Refusal(failure=Failure.UNSUPPORTED_PARALLELISM, reason="9 | heads"),
    )
    model = Model(id="big/model", task=Task.TEXT_GENERATION)
    found = issue_form._refused(model, Prospect(model, (one, other)))
    golden_files.check("request-refused-twice.md", found.comment)


def test_proposed(world: World) -> None:
    """What fits is answered with its estimate and goes into the proposal, marked; asking again
    edits the one comment."""
    found, issue = ask(world, asking(GOOD[0], revision="main", why="I need it"))
    assert found.verdict is Verdict.PROPOSED
    assert world.proposed() == [GOOD[0]]
    assert "    revision: main\n" in world.origin.text("models.yaml", "qualify/proposals")
    golden_files.check("request-proposed.md", found.comment)
    assert f"- [x] `{GOOD[0]}`, text-generation, asked for in #{issue.number}" in (
        world.pull.body or ""
    )
    again, _ = ask(world, asking(GOOD[0], revision="main"), issue)
    assert "is proposed already in #" in again.comment
    assert len(world.github.comments) == 1
    assert len(world.github.pulls) == 1


def test_another_model_by_the_same_issue(world: World) -> None:
    """An issue that is edited to ask for another model proposes that one instead."""
    _, issue = ask(world, asking(GOOD[0]))
    ask(world, asking(GOOD[1]), issue)
    assert world.proposed() == [GOOD[1]]
    assert world.desk().history().declined == {}


def test_beside_the_rankings(world: World) -> None:
    """Requests and rankings share the pull request, and neither takes the other's place."""
    ask(world, asking(GOOD[3]))
    world.publish(ranked(GOOD))
    proposals.propose(world.desk())
    assert world.proposed() == [GOOD[3], *GOOD[:3]]
    found, issue = ask(world, asking(GOOD[0]))
    assert found.verdict is Verdict.PROPOSED
    assert world.proposed() == [GOOD[3], *GOOD[:3]]
    assert f"`{GOOD[0]}`, text-generation, asked for in #{issue.number}" in (world.pull.body or "")


def test_what_people_added_stays(world: World) -> None:
    """Asking for a model that is proposed keeps what people gave its entry on the branch; only the
    issue that asked for it first can change its revision."""
    _, issue = ask(world, asking(GOOD[0]))
    text = world.origin.text("models.yaml", "qualify/proposals")
    text = text.replace(f"  - id: {GOOD[0]}\n", f"  - id: {GOOD[0]}\n    cores: 1\n")
    world.origin.write({"models.yaml": text}, branch="qualify/proposals")
    found, _ = ask(world, asking(GOOD[0], revision="v9"))
    assert found.verdict is Verdict.PROPOSED
    entry = f"  - id: {GOOD[0]}\n    task: text-generation\n    cores: 1\n"
    assert entry in world.origin.text("models.yaml", "qualify/proposals")
    ask(world, asking(GOOD[0], revision="main"), issue)
    entry = f"  - id: {GOOD[0]}\n    task: text-generation\n    revision: main\n    cores: 1"
    assert entry in world.origin.text("models.yaml", "qualify/proposals")


def test_declined(world: World) -> None:
    """A model once declined is not proposed again, whoever asks; the answer says where it was."""
    ask(world, asking(GOOD[0]))
    number = world.pull.number
    world.close()
    found, _ = ask(world, asking(GOOD[0]))
    assert found.verdict is Verdict.DECLINED
    assert f"declined in #{number}" in found.comment
    assert len(world.github.pulls) == 1
    golden_files.check("request-declined.md", found.comment)


def test_full(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pull request holds a bounded number of models; a request beyond it is told so."""
    assert proposal_page.MOST == 20
    monkeypatch.setattr(issue_form, "MOST", 2)
    for name in GOOD[:2]:
        ask(world, asking(name))
    found, _ = ask(world, asking(GOOD[2]))
    assert found.verdict is Verdict.FULL
    assert world.proposed() == GOOD[:2]
    golden_files.check("request-full.md", found.comment)


def test_hub_away(world: World) -> None:
    """A Hub that does not answer decides nothing."""
    ask(world, asking(GOOD[0]))
    writes = len(world.github.writes)
    with HubServer() as away:
        away.fail("/", 503, times=10_000)
        desk = replace(world, hub=away).desk()
        issue = world.github.add_issue(body=asking(GOOD[1]), labels=[issue_form.LABEL])
        found = answer(desk, desk.github.issue(issue.number))
    assert found.verdict is Verdict.UNREAD
    assert "nothing is decided" in found.comment
    assert len(world.github.writes) == writes


# --- the command ----------------------------------------------------------------------------------


def qualify(world: World, event: object) -> subprocess.CompletedProcess[str]:
    """`qualify actions request` in the checkout, for that event."""
    told = world.environment
    Path(told["GITHUB_EVENT_PATH"]).write_text(json.dumps(event))
    return jobs.qualify(world.root, "request", variables=told)


def test_command(world: World) -> None:
    """The issue is read as it is now, not as the event has it; only open ones with the label are
    answered."""
    issue = world.github.add_issue(body=asking(GOOD[0]), labels=[issue_form.LABEL])
    event = {"action": "opened", "issue": {"number": issue.number, "body": "something older"}}
    done = qualify(world, event)
    assert done.returncode == 0, done.stderr
    (comment,) = world.github.comments
    assert comment.body.startswith(f"<!-- {marker(issue.number)} -->\n**[`{GOOD[0]}`]")
    summary = (world.folder / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith(f"## Issue #{issue.number}: proposed")
    other = world.github.add_issue(body=asking(GOOD[1]), labels=["bug"])
    done = qualify(world, {"issue": {"number": other.number}})
    assert (done.returncode, len(world.github.comments)) == (0, 1)
    assert qualify(world, {"action": "opened"}).returncode == 2
