"""GitHub through the real client: what is asked, what is written, what people read on failure."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pipeline.actions import github as module
from pipeline.actions.github import GitHub, Permission, fit, same_text
from pipeline.actions.workflow import Workflow
from pipeline.errors import EnvironmentFault, GitHubError, exit_codes
from tests.github_server import BOT, MAX_BODY, GitHubServer

COMMIT = "c" * 40


@pytest.fixture
def server() -> Iterator[GitHubServer]:
    with GitHubServer() as running:
        yield running


@pytest.fixture
def waits() -> list[float]:
    """The seconds that the client of the test waited, one entry a wait."""
    return []


@pytest.fixture
def github(server: GitHubServer, waits: list[float]) -> GitHub:
    return GitHub(
        server.repository,
        server.token,
        server.url,
        sleep=waits.append,
        seconds_between_writes=0,
    )


# --- people ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "permission", "writes"),
    [
        ("admin", Permission.ADMIN, True),
        ("maintain", Permission.WRITE, True),
        ("write", Permission.WRITE, True),
        ("triage", Permission.READ, False),
        ("read", Permission.READ, False),
        ("none", Permission.NONE, False),
        ("a role of tomorrow", Permission.NONE, False),
    ],
)
def test_permission(
    server: GitHubServer, github: GitHub, said: str, permission: Permission, writes: bool
) -> None:
    """Only what is known to allow writing allows it."""
    server.people["ann"] = said
    assert github.permission("ann") is permission
    assert permission.writes is writes


@pytest.mark.parametrize(
    "name", ["nobody", "", "../../pulls", "a/b", "ann bob", "ann\n", "a" * 200]
)
def test_who_is_no_user_has_no_permission(server: GitHubServer, github: GitHub, name: str) -> None:
    """An unknown login, and what cannot be a login, has none; the latter is not even asked for."""
    server.people["ann"] = "admin"
    assert github.permission(name) is Permission.NONE
    assert server.requests() == (
        ["GET /collaborators/nobody/permission"] if name == "nobody" else []
    )


def test_a_permission_that_github_does_not_tell_is_an_error(
    server: GitHubServer, github: GitHub
) -> None:
    """A failing server is no reason to believe anything of a person."""
    server.people["ann"] = "admin"
    server.fail("/permission", 500, times=9)
    with pytest.raises(GitHubError, match="GitHub itself failed"):
        github.permission("ann")


# --- pull requests and files ----------------------------------------------------------------------


def test_pull_request(server: GitHubServer, github: GitHub) -> None:
    """A pull request is read in one request, whether its fork and its author still exist or not."""
    server.add_pull(head_sha=COMMIT, head_repository="stranger/fork", author="ann", body=None)
    server.add_pull(head_repository=None, author=None, state="closed", merged=True)
    first, second = github.pull_request(1), github.pull_request(2)
    assert (first.head_sha, first.head_repository, first.author) == (COMMIT, "stranger/fork", "ann")
    assert (first.state, first.merged, first.body) == ("open", False, "")
    assert (second.head_repository, second.author) == (None, "ghost")
    assert (second.state, second.merged) == ("closed", True)
    assert server.requests() == ["GET /pulls/1", "GET /pulls/2"]


def test_pull_requests_of_a_branch(server: GitHubServer, github: GitHub) -> None:
    """A fork's branch of the same name is not ours, even when the fork has the same owner."""
    ours = server.add_pull(head_ref="qualify/proposals")
    server.add_pull(head_ref="qualify/proposals", head_repository="stranger/fork")
    server.add_pull(head_ref="qualify/proposals", head_repository="org/other")
    server.add_pull(head_ref="qualify/proposals", state="closed")
    server.add_pull(head_ref="other")
    found = github.pull_requests(head_branch="qualify/proposals")
    assert [one.number for one in found] == [ours.number]
    every = github.pull_requests(head_branch="qualify/proposals", state="all")
    assert [(one.number, one.state) for one in every] == [(4, "closed"), (1, "open")]
    assert [one.number for one in github.pull_requests()] == [5, 3, 2, 1]


def test_lists_are_read_to_their_end(server: GitHubServer, github: GitHub) -> None:
    """What GitHub gives in pages arrives whole, with one request a page and none an entry."""
    for number in range(230):
        server.add_issue(title=str(number), labels=["qualify-model"])
    assert len(github.issues(label="qualify-model", state="open")) == 230
    assert server.requests() == ["GET /issues"] * 3


def test_open_and_edit_a_pull_request(server: GitHubServer, github: GitHub) -> None:
    """What is written is what the pull request then says."""
    made = github.open_pull_request(title="Add", body="Two", head="qualify/proposals", base="main")
    assert (made.author, made.head_ref, made.base_ref) == (BOT, "qualify/proposals", "main")
    github.edit_pull_request(made.number, title="Add three", body="Three")
    pull = server.pulls[made.number]
    assert (pull.title, pull.body) == ("Add three", "Three")
    assert server.requests() == ["POST /pulls", "PATCH /pulls/1"]
    with pytest.raises(GitHubError, match="A pull request already exists for org:qualify/prop"):
        github.open_pull_request(title="Add", body="", head="qualify/proposals", base="main")


def test_a_repository_that_lets_no_workflow_open_pull_requests(
    server: GitHubServer, github: GitHub
) -> None:
    """No `permissions:` line helps there, and the message names the setting that does."""
    server.lets_workflows_open_pulls = False
    with pytest.raises(GitHubError) as caught:
        github.open_pull_request(title="Add", body="", head="qualify/proposals", base="main")
    assert "allow GitHub Actions to create and approve pull requests" in str(caught.value)


@pytest.mark.parametrize("size", [0, 5, 1024 * 1024, 1024 * 1024 + 1])
def test_file(server: GitHubServer, github: GitHub, size: int) -> None:
    """A file arrives whole and unchanged, also where GitHub leaves it out of its first answer."""
    data = bytes(range(256)) * (size // 256) + b"\xff" * (size % 256)
    server.files["models.yaml", COMMIT] = data
    assert github.file("models.yaml", ref=COMMIT, limit=2 * 1024 * 1024) == data


def test_a_file_above_the_limit_is_not_read(server: GitHubServer, github: GitHub) -> None:
    """Its size is known before it is fetched."""
    server.files["models.yaml", COMMIT] = b"x" * (1024 * 1024 + 1)
    with pytest.raises(GitHubError, match="has 1048577 bytes; the limit is 1048576"):
        github.file("models.yaml", ref=COMMIT, limit=1024 * 1024)
    assert len(server.log) == 1


def test_what_is_not_a_file(server: GitHubServer, github: GitHub) -> None:
    """A directory, and a file that is not there at that commit, are errors that say so."""
    server.files["models.yaml/x", COMMIT] = b""
    with pytest.raises(GitHubError, match="is not a file"):
        github.file("models.yaml", ref=COMMIT, limit=9)
    with pytest.raises(GitHubError, match=f"models.yaml at {'d' * 40}: not found in org/repo"):
        github.file("models.yaml", ref="d" * 40, limit=9)


# --- issues ---------------------------------------------------------------------------------------


def test_issues(server: GitHubServer, github: GitHub) -> None:
    """Issues are found by label and state; pull requests, which GitHub lists among them, are not
    issues."""
    server.add_issue(title="one", labels=["qualify-regression", "bug"], body=None)
    server.add_issue(title="two", labels=["bug"])
    server.add_issue(title="three", labels=["qualify-regression"], state="closed", author=None)
    server.add_pull()
    (one,) = github.issues(label="qualify-regression", state="open")
    assert (one.number, one.body, one.author) == (1, "", BOT)
    assert one.labels == ("qualify-regression", "bug")
    every = github.issues(label="qualify-regression", state="all")
    assert [(issue.title, issue.author) for issue in every] == [("three", "ghost"), ("one", BOT)]
    assert github.issue(2).title == "two"


def test_open_and_edit_an_issue(server: GitHubServer, github: GitHub) -> None:
    """An edit changes what it names and nothing else, an empty body included."""
    made = github.open_issue(title="Silence", body="since", labels=["qualify-watchdog"])
    assert server.issues[made.number].labels == ["qualify-watchdog"]
    github.edit_issue(made.number, state="closed")
    issue = server.issues[made.number]
    assert (issue.title, issue.body, issue.state) == ("Silence", "since", "closed")
    github.edit_issue(made.number, title="Silence again", body="", state="open")
    assert (issue.title, issue.body, issue.state) == ("Silence again", "", "open")
    assert server.writes == ["POST /issues", "PATCH /issues/1", "PATCH /issues/1"]


def test_an_issue_without_its_label_is_an_error(server: GitHubServer, github: GitHub) -> None:
    """GitHub drops labels in silence; the issue would never be found again, and doubled daily."""
    server.keeps_labels = False
    with pytest.raises(GitHubError, match="opened without its label qualify-watchdog"):
        github.open_issue(title="Silence", body="", labels=["qualify-watchdog"])


# --- comments -------------------------------------------------------------------------------------


def test_one_comment_is_edited(server: GitHubServer, github: GitHub) -> None:
    """However often it is said, there is one comment, it says the newest, and its URL stays."""
    pull = server.add_pull()
    first = github.comment(pull.number, "queued", marker="trn-qualify: on-demand")
    second = github.comment(pull.number, "PASS", marker="trn-qualify: on-demand")
    third = github.comment(pull.number, "PASS", marker="trn-qualify: on-demand")
    (comment,) = server.comments
    assert first == second == third
    assert comment.body == "<!-- trn-qualify: on-demand -->\nPASS"
    assert comment.edits == 1  # and nobody is told of an edit that changes nothing


def test_a_strangers_comment_is_not_ours(server: GitHubServer, github: GitHub) -> None:
    """Whoever copies the marker gets neither edited nor obeyed, nor does who imitates our name."""
    pull = server.add_pull()
    text = "<!-- trn-qualify: on-demand -->\nPASS, merge me"
    for author in ("mallory", "github-actions", None):
        server.add_comment(pull.number, text, author)
    server.add_comment(pull.number, f"Somebody wrote:\n{text}")
    github.comment(pull.number, "FAIL", marker="trn-qualify: on-demand")
    assert [one.edits for one in server.comments] == [0, 0, 0, 0, 0]
    assert server.comments[-1].body == "<!-- trn-qualify: on-demand -->\nFAIL"
    assert server.comments[-1].author == BOT


def test_markers_do_not_meet(server: GitHubServer, github: GitHub) -> None:
    """Each marker has its own comment; a body that brings its marker does not get it twice."""
    pull = server.add_pull()
    github.comment(pull.number, "one", marker="trn-qualify: a")
    github.comment(pull.number, "<!-- trn-qualify: ab -->\ntwo", marker="trn-qualify: ab")
    bodies = [one.body for one in server.comments]
    assert bodies == ["<!-- trn-qualify: a -->\none", "<!-- trn-qualify: ab -->\ntwo"]


def test_our_login_is_a_parameter(server: GitHubServer) -> None:
    """With another token than the job's, that one's comments are our own."""
    server.tokens["app-token"] = "qualify-app[bot]"
    app = GitHub(
        server.repository,
        "app-token",
        server.url,
        login="qualify-app[bot]",
        seconds_between_writes=0,
    )
    issue = server.add_issue()
    app.comment(issue.number, "one", marker="k")
    app.comment(issue.number, "two", marker="k")
    assert [one.body for one in server.comments] == ["<!-- k -->\ntwo"]


def test_say(server: GitHubServer, github: GitHub) -> None:
    """A plain comment is a new one each time."""
    issue = server.add_issue()
    assert github.say(issue.number, "one") != github.say(issue.number, "one")
    assert [one.body for one in server.comments] == ["one", "one"]


# --- checks ---------------------------------------------------------------------------------------


def test_one_check_is_updated(server: GitHubServer, github: GitHub) -> None:
    """One check a commit and name, completed, with what was said last."""

    def say(title: str, name: str = "trn2") -> None:
        github.check(
            COMMIT,
            name,
            conclusion="failure",
            title=title,
            summary="A table",
            details_url="https://example.org/run/1",
        )

    say("1 of 2 PASS")
    say("2 of 2 PASS")
    say("other", name="trn2 again")
    first, second = server.checks
    assert (first.name, first.head_sha, second.name) == ("trn2", COMMIT, "trn2 again")
    assert first.told["conclusion"] == "failure"
    assert first.told["status"] == "completed"
    assert first.told["output"] == {"title": "2 of 2 PASS", "summary": "A table"}


def test_a_jobs_own_check_is_not_ours(server: GitHubServer, github: GitHub) -> None:
    """A job that bears the same name has a check of GitHub's making, which is left alone."""
    said = {"conclusion": "success", "title": "t", "summary": "s", "details_url": "https://x.org"}
    github.check(COMMIT, "trn2", **said)  # type: ignore[arg-type] # one value of each type
    server.checks[0].external_id = "a-uuid-of-actions"
    github.check(COMMIT, "trn2", **said)  # type: ignore[arg-type] # as above
    assert [one.external_id for one in server.checks] == ["a-uuid-of-actions", "trn-qualify"]


# --- long texts -----------------------------------------------------------------------------------


def test_long_texts_are_cut(server: GitHubServer, github: GitHub) -> None:
    """GitHub refuses long bodies whole; ours end at a line's end, with a note, and begin as they
    were, marker included."""
    body = "\n".join(f"line {number:06d}" for number in range(10_000))
    assert len(body) > MAX_BODY
    issue = server.add_issue()
    github.comment(issue.number, body, marker="k")
    github.edit_issue(issue.number, body=body)
    for text in (server.comments[0].body, issue.body or ""):
        assert len(text) <= MAX_BODY
        *kept, empty, note = text.rstrip("\n").split("\n")
        assert (empty, "Cut here" in note) == ("", True)
        assert all(len(line) == len("line 000000") for line in kept[1:])
    assert server.comments[0].body.startswith("<!-- k -->\nline 000000\n")


def test_fit() -> None:
    """What fits is not touched; what is cut stays as it is when it is cut again."""
    assert fit("x" * module.MAX_TEXT) == "x" * module.MAX_TEXT
    cut = fit("x" * (module.MAX_TEXT + 1))
    assert len(cut) == module.MAX_TEXT
    assert fit(cut) == cut


def test_same_text() -> None:
    """A body that came back from GitHub's editor with other line ends says the same."""
    assert same_text("a\r\nb\r\n", "a\nb")
    assert not same_text("a\nb", "a\nc")


# --- failures -------------------------------------------------------------------------------------


def test_reads_are_repeated(server: GitHubServer, github: GitHub, waits: list[float]) -> None:
    """A server's failure and a cut answer are waited out, longer each time."""
    server.add_issue()
    server.fail("/issues/1", 502)
    server.cut("/issues/1")
    server.fail("/issues/1", 500)
    assert github.issue(1).number == 1
    assert waits == [2.0, 4.0, 8.0]


def test_edits_are_repeated(server: GitHubServer, github: GitHub) -> None:
    """Saying the same twice is as good as once."""
    issue = server.add_issue()
    server.cut("/issues/1", method="PATCH")
    github.edit_issue(1, state="closed")
    assert issue.state == "closed"
    assert server.writes == ["PATCH /issues/1"] * 2


@pytest.mark.parametrize("how", ["cut", "fail"])
def test_what_is_created_is_not_created_twice(
    server: GitHubServer, github: GitHub, waits: list[float], how: str
) -> None:
    """Nobody knows whether a lost creation was done: it is not repeated, and people hear why."""
    if how == "cut":
        server.cut("/issues", method="POST")
    else:
        server.fail("/issues", 502, method="POST")
    with pytest.raises(GitHubError, match="nobody knows whether it was done"):
        github.open_issue(title="Silence", body="", labels=[])
    assert len(server.issues) == (1 if how == "cut" else 0)
    assert server.writes == ["POST /issues"]
    assert waits == []


@pytest.mark.parametrize(
    ("status", "headers", "message", "wait"),
    [
        (403, {"Retry-After": "7"}, "You have exceeded a secondary rate limit", 7.0),
        (429, {"Retry-After": "7"}, "", 7.0),
        (403, {"Retry-After": "1"}, "", 2.0),
        (403, {}, "You have exceeded a secondary rate limit. Please wait", 60.0),
    ],
)
def test_limits_are_waited_out(
    server: GitHubServer,
    github: GitHub,
    waits: list[float],
    status: int,
    headers: dict[str, str],
    message: str,
    wait: float,
) -> None:
    """A refusal for too many requests was not done: it is repeated after the time that GitHub asks
    for, creations too."""
    server.fail("/issues", status, method="POST", headers=headers, message=message)
    github.open_issue(title="Silence", body="", labels=[])
    assert len(server.issues) == 1
    assert waits == [wait]


def test_used_up_requests_say_when_to_come_back(
    server: GitHubServer, github: GitHub, waits: list[float]
) -> None:
    """An hour's wait is not waited: the error says until when."""
    reset = int(time.time()) + 3600
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(reset)}
    server.fail("/issues", 403, headers=headers, message="API rate limit exceeded for x", times=9)
    with pytest.raises(GitHubError) as caught:
        github.issue(1)
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(reset))
    assert f"run the job again after {until}" in str(caught.value)
    assert waits == []


def test_waiting_ends(server: GitHubServer, github: GitHub, waits: list[float]) -> None:
    """Four attempts in all, whatever happens."""
    server.fail("/issues", 503, times=99)
    with pytest.raises(GitHubError, match="HTTP 503"):
        github.issue(1)
    assert (len(server.log), len(waits)) == (4, 3)


@pytest.mark.parametrize(
    ("status", "message", "told"),
    [
        (401, "Bad credentials", "does not know the token"),
        (403, "Resource not accessible by integration", "the job needs `issues: write` under"),
        (404, "Not Found", "not found in org/repo, or the token may not see it"),
        (410, "Issues are disabled for this repo", "not found in org/repo"),
        (422, "Validation Failed", "GitHub refused (HTTP 422): Validation Failed"),
        (502, "", "GitHub itself failed (HTTP 502)"),
    ],
)
def test_refusals_are_told_apart(
    server: GitHubServer, github: GitHub, status: int, message: str, told: str
) -> None:
    """Each says what it was and what to do, in our words, with exit code 8 and without a token."""
    server.fail("/issues", status, message=f"{message} {server.token}".strip(), times=9)
    with pytest.raises(GitHubError) as caught:
        github.edit_issue(1, state="closed")
    text = str(caught.value)
    assert told in text
    assert text.startswith("editing issue 1: ")
    assert server.token not in text + repr(caught.value)
    assert caught.value.__suppress_context__
    assert caught.value.exit_code == 8
    assert (8, "GitHub did not answer as needed") in exit_codes()


def test_what_every_job_may(server: GitHubServer, github: GitHub) -> None:
    """No line under `permissions:` is named where none exists: GitHub refuses a workflow with
    `metadata` in it, which every job's token may read."""
    server.fail("/permission", 403, message="Resource not accessible by integration")
    with pytest.raises(GitHubError, match="the token of every job may do this") as caught:
        github.permission("ann")
    assert "permissions:" not in str(caught.value)


def test_a_file_that_the_api_does_not_give(server: GitHubServer, github: GitHub) -> None:
    """Above 100 MB GitHub refuses with the status of a missing permission; it is none."""
    server.fail("/contents", 403, message="The requested blob is too large to fetch via the API")
    with pytest.raises(GitHubError, match=r"larger than what GitHub's API gives$"):
        github.file("models.yaml", ref=COMMIT, limit=1)


def test_nobody_there(waits: list[float]) -> None:
    """No server at all is said so, after the attempts."""
    with GitHubServer() as server:
        url = server.url
    github = GitHub("org/repo", "job-token", url, sleep=waits.append)
    with pytest.raises(GitHubError, match=r"no whole answer came from GitHub \(ConnectionError\)"):
        github.issue(1)
    assert len(waits) == 3


def test_an_answer_that_is_none(server: GitHubServer, github: GitHub) -> None:
    """A page of something between us and GitHub is no issue without title."""
    server.fail("/issues/1", 200, message="Welcome to our network")
    server.fail("/permission", 200, message="Welcome to our network")
    server.people["ann"] = "admin"
    server.fail("/pulls/1", 200, message="Welcome to our network")
    for ask in (
        lambda: github.issue(1),
        lambda: github.permission("ann"),
        lambda: github.pull_request(1),
    ):
        with pytest.raises(GitHubError, match="not what GitHub's API documents"):
            ask()


# --- this job -------------------------------------------------------------------------------------


def _workflow(server: GitHubServer, token: str | None) -> Workflow:
    return Workflow(
        repository=server.repository,
        run_id="7",
        attempt=1,
        event_name="schedule",
        event={},
        api_url=server.url,
        token=token,
    )


def test_of_a_workflow(server: GitHubServer) -> None:
    """The job's repository, API and token are used; a step without a token hears so."""
    server.add_issue(title="here")
    made = GitHub.of(_workflow(server, server.token))
    assert made.issue(1).title == "here"
    assert server.token not in repr(made)
    with pytest.raises(EnvironmentFault, match="GITHUB_TOKEN is not set"):
        GitHub.of(_workflow(server, None))


def test_the_client_is_not_loaded_before_it_is_needed() -> None:
    """Commands that ask GitHub nothing work without PyGithub and do not wait for it."""
    code = "import sys, pipeline.actions.github; print('github' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
