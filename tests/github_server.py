"""A small HTTP server in GitHub's place, for the real PyGithub client.

It answers what pipeline.actions.github asks, with the fields that GitHub gives and that are read,
in pages where GitHub answers in pages. It can be told to fail, and it keeps a log.

    with GitHubServer() as server:
        server.people["ann"] = "write"
        pull = server.add_pull(head_sha="c" * 40, author="ann")
        server.files["models.yaml", pull.head_sha] = b"models: []"
        github = GitHub(server.repository, server.token, server.url, seconds_between_writes=0)
        assert github.pull_request(pull.number).author == "ann"
        assert server.log[-1].path == f"/repos/{server.repository}/pulls/{pull.number}"

`GITHUB_API_URL=server.url GITHUB_TOKEN=server.token` lets a subprocess use it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from tests.local_server import Handler, LocalServer

BOT = "github-actions[bot]"
MAX_BODY = 65_536
"""Characters of a body that GitHub takes."""
MAX_INLINE = 1024 * 1024
"""Bytes of a file that the contents API puts into its answer."""


@dataclass
class Pull:
    """A pull request. head_repository None = the fork was deleted."""

    number: int
    title: str = "Add a model"
    body: str | None = ""
    state: str = "open"
    merged: bool = False
    author: str | None = "ann"
    head_sha: str = "a" * 40
    head_ref: str = "add-model"
    head_repository: str | None = "org/repo"
    base_ref: str = "main"


@dataclass
class Issue:
    """An issue. author None = the account was deleted."""

    number: int
    title: str = "A title"
    body: str | None = ""
    state: str = "open"
    author: str | None = BOT
    labels: list[str] = field(default_factory=list)


@dataclass
class Comment:
    """A comment on the issue or pull request `issue`."""

    id: int
    issue: int
    author: str | None
    body: str
    edits: int = 0


@dataclass
class Check:
    """A check run; `told` is what was last sent for it."""

    id: int
    name: str
    head_sha: str
    external_id: str
    told: dict[str, Any]


@dataclass
class Request:
    """One request as it arrived, and what was answered."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    """By lower-case name."""
    body: Any
    status: int = 0


@dataclass
class Fault:
    """What goes wrong with requests of `method` ("" = any) whose path contains `match`."""

    match: str
    method: str
    times: int
    status: int | None
    """The status to answer, and nothing is done; None: do it, and cut the answer in half."""
    headers: dict[str, str]
    message: str


class GitHubServer(LocalServer):
    """One repository, until the `with` block ends."""

    def __init__(self, repository: str = "org/repo") -> None:
        self.repository = repository
        self.token = "job-token"  # noqa: S105 - of this server alone
        self.tokens: dict[str, str] = {self.token: BOT}
        """Token -> whose it is; any other token is answered with 401."""
        self.people: dict[str, str] = {}
        """Login -> permission as GitHub says it; others are no users at all."""
        self.pulls: dict[int, Pull] = {}
        self.issues: dict[int, Issue] = {}
        self.comments: list[Comment] = []
        self.checks: list[Check] = []
        self.files: dict[tuple[str, str], bytes] = {}
        """(path, ref) -> content; a ref is a branch or a commit."""
        self.branches: dict[str, str] = {}
        """Branch -> commit, for pull requests that are opened here."""
        self.keeps_labels = True
        """Whether the token may set labels; GitHub drops them in silence otherwise."""
        self.lets_workflows_open_pulls = True
        self.log: list[Request] = []
        self._faults: list[Fault] = []
        self._next = 1
        self.lock = threading.RLock()
        super().__init__(_Handler)

    def add_pull(self, **fields: Any) -> Pull:
        """A pull request with these fields of `Pull` and the next number."""
        fields.setdefault("head_repository", self.repository)
        pull = Pull(self._number(), **fields)
        self.pulls[pull.number] = pull
        return pull

    def add_issue(self, **fields: Any) -> Issue:
        """An issue with these fields of `Issue` and the next number."""
        issue = Issue(self._number(), **fields)
        self.issues[issue.number] = issue
        return issue

    def add_comment(self, number: int, body: str, author: str | None = BOT) -> Comment:
        """A comment on the issue or pull request `number`."""
        comment = Comment(self._number(), number, author, body)
        self.comments.append(comment)
        return comment

    def fail(
        self,
        match: str,
        status: int,
        *,
        method: str = "",
        times: int = 1,
        headers: dict[str, str] | None = None,
        message: str = "",
    ) -> None:
        """Answer the next `times` requests whose path contains `match` with `status`."""
        self._faults.append(Fault(match, method, times, status, headers or {}, message))

    def cut(self, match: str, *, method: str = "", times: int = 1) -> None:
        """Do what the next `times` requests to paths with `match` ask, and cut the answers."""
        self._faults.append(Fault(match, method, times, None, {}, ""))

    def requests(self, method: str = "") -> list[str]:
        """ "METHOD path" of each request so far, with a repository's part of the path left out."""
        prefix = f"/repos/{self.repository}"
        return [
            f"{one.method} {one.path.removeprefix(prefix)}"
            for one in self.log
            if method in ("", one.method)
        ]

    @property
    def writes(self) -> list[str]:
        """The requests that were not GET."""
        return [one for one in self.requests() if not one.startswith("GET ")]

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def begin(self, request: Request) -> Fault | None:
        """Log a request; the fault that it shall meet."""
        self.log.append(request)
        for fault in self._faults:
            hit = fault.match in request.path and fault.method in ("", request.method)
            if hit and fault.times > 0:
                fault.times -= 1
                return fault
        return None

    # --- what GitHub does -------------------------------------------------------------------------

    def get_permission(self, call: _Call, user: str) -> Any:
        if user not in self.people:
            raise _Answer(404, f"{user} is not a user")
        role = self.people[user]
        legacy = {"maintain": "write", "triage": "read"}.get(role, role)
        return {"permission": legacy, "role_name": role, "user": {"login": user}}

    def get_pulls(self, call: _Call) -> Any:
        found = _in_state(self.pulls.values(), call.one("state", "open"))
        if head := call.one("head", ""):
            owner, _, branch = head.partition(":")
            found = [
                pull
                for pull in found
                if pull.head_ref == branch
                and (pull.head_repository or "").partition("/")[0] == owner
            ]
        return call.page([self._pull(pull) for pull in found])

    def get_pull(self, call: _Call, number: str) -> Any:
        return self._pull(_found(self.pulls, number)) | {"merged": self.pulls[int(number)].merged}

    def post_pulls(self, call: _Call) -> Any:
        if not self.lets_workflows_open_pulls:
            raise _Answer(
                403, "GitHub Actions is not permitted to create or approve pull requests."
            )
        told = call.body
        head = told["head"].rpartition(":")[2]
        for pull in self.pulls.values():
            if (pull.state, pull.head_ref, pull.base_ref) == ("open", head, told["base"]):
                raise _Answer(
                    422, "Validation Failed", f"A pull request already exists for org:{head}."
                )
        made = self.add_pull(
            title=told["title"],
            body=_body(told),
            author=call.login,
            head_sha=self.branches.get(head, _sha(head)),
            head_ref=head,
            base_ref=told["base"],
        )
        call.status = 201
        return self._pull(made)

    def patch_pull(self, call: _Call, number: str) -> Any:
        _change(_found(self.pulls, number), call.body)
        return self._pull(self.pulls[int(number)])

    def get_contents(self, call: _Call, path: str) -> Any:
        ref = call.one("ref", "main")
        below = {name for name, at in self.files if at == ref and name.startswith(f"{path}/")}
        if below:
            return [{"type": "file", "name": name, "path": name} for name in sorted(below)]
        if (path, ref) not in self.files:
            raise _Answer(404, "Not Found")
        data = self.files[path, ref]
        inline = len(data) <= MAX_INLINE
        return {
            "type": "file",
            "name": path.rpartition("/")[2],
            "path": path,
            "size": len(data),
            "sha": _sha(data),
            "encoding": "base64" if inline else "none",
            "content": base64.encodebytes(data).decode() if inline else "",
            "url": f"{self.url}/repos/{self.repository}/contents/{path}?ref={ref}",
        }

    def get_blob(self, call: _Call, sha: str) -> Any:
        for data in self.files.values():
            if _sha(data) == sha:
                content = base64.encodebytes(data).decode()
                return {"sha": sha, "size": len(data), "encoding": "base64", "content": content}
        raise _Answer(404, "Not Found")

    def get_issues(self, call: _Call) -> Any:
        """Pull requests too: to GitHub each is an issue."""
        wanted = set(filter(None, call.one("labels", "").split(",")))
        state = call.one("state", "open")
        found = [
            self._issue(one)
            for one in _in_state([*self.issues.values(), *self.pulls.values()], state)
            if wanted <= set(getattr(one, "labels", wanted))
        ]
        return call.page(found)

    def get_issue(self, call: _Call, number: str) -> Any:
        return self._issue(_found(self.pulls if int(number) in self.pulls else self.issues, number))

    def post_issues(self, call: _Call) -> Any:
        told = call.body
        labels = told.get("labels", []) if self.keeps_labels else []
        made = self.add_issue(
            title=told["title"], body=_body(told), author=call.login, labels=labels
        )
        call.status = 201
        return self._issue(made)

    def patch_issue(self, call: _Call, number: str) -> Any:
        _change(_found(self.issues, number), call.body)
        return self._issue(self.issues[int(number)])

    def get_comments(self, call: _Call, number: str) -> Any:
        found = [self._comment(one) for one in self.comments if one.issue == int(number)]
        return call.page(found)

    def post_comments(self, call: _Call, number: str) -> Any:
        if int(number) not in self.issues | self.pulls:
            raise _Answer(404, "Not Found")
        call.status = 201
        return self._comment(self.add_comment(int(number), _body(call.body), call.login))

    def patch_comment(self, call: _Call, number: str) -> Any:
        for one in self.comments:
            if one.id == int(number):
                one.body = _body(call.body)
                one.edits += 1
                return self._comment(one)
        raise _Answer(404, "Not Found")

    def get_check_runs(self, call: _Call, ref: str) -> Any:
        name = call.one("check_name", "")
        found = [
            self._check(one)
            for one in self.checks
            if one.head_sha == ref and name in ("", one.name)
        ]
        return {"total_count": len(found), "check_runs": call.page(found)}

    def post_check_runs(self, call: _Call) -> Any:
        told = dict(call.body)
        check = Check(
            self._number(),
            told.pop("name"),
            told.pop("head_sha"),
            told.pop("external_id", ""),
            told,
        )
        self.checks.append(check)
        call.status = 201
        return self._check(check)

    def patch_check_run(self, call: _Call, number: str) -> Any:
        for one in self.checks:
            if one.id == int(number):
                one.told |= call.body
                return self._check(one)
        raise _Answer(404, "Not Found")

    # --- as GitHub says it ------------------------------------------------------------------------

    def _pull(self, pull: Pull) -> dict[str, Any]:
        fork = pull.head_repository
        return {
            "number": pull.number,
            "title": pull.title,
            "body": pull.body,
            "state": pull.state,
            "merged_at": "2026-11-01T00:00:00Z" if pull.merged else None,
            "user": _user(pull.author),
            "head": {
                "sha": pull.head_sha,
                "ref": pull.head_ref,
                "repo": fork and {"full_name": fork, "url": f"{self.url}/repos/{fork}"},
            },
            "base": {"ref": pull.base_ref, "sha": "b" * 40},
            "url": f"{self.url}/repos/{self.repository}/pulls/{pull.number}",
            "html_url": f"https://github.com/{self.repository}/pull/{pull.number}",
        }

    def _issue(self, one: Issue | Pull) -> dict[str, Any]:
        pull = isinstance(one, Pull)
        kind = "pull" if pull else "issues"
        said = {
            "number": one.number,
            "title": one.title,
            "body": one.body,
            "state": one.state,
            "user": _user(one.author),
            "labels": [{"name": label} for label in getattr(one, "labels", [])],
            "url": f"{self.url}/repos/{self.repository}/issues/{one.number}",
            "html_url": f"https://github.com/{self.repository}/{kind}/{one.number}",
        }
        return said | ({"pull_request": {"url": f"{self.url}/pulls"}} if pull else {})

    def _comment(self, one: Comment) -> dict[str, Any]:
        kind = "pull" if one.issue in self.pulls else "issues"
        page = f"https://github.com/{self.repository}/{kind}/{one.issue}"
        return {
            "id": one.id,
            "body": one.body,
            "user": _user(one.author),
            "url": f"{self.url}/repos/{self.repository}/issues/comments/{one.id}",
            "html_url": f"{page}#issuecomment-{one.id}",
        }

    def _check(self, one: Check) -> dict[str, Any]:
        return {
            "id": one.id,
            "name": one.name,
            "head_sha": one.head_sha,
            "external_id": one.external_id,
            "url": f"{self.url}/repos/{self.repository}/check-runs/{one.id}",
        }


class _Answer(Exception):
    """Ends a request with an error."""

    def __init__(self, status: int, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.detail = detail


class _Call:
    """One request on its way through `GitHubServer`."""

    def __init__(self, request: Request, login: str, url: str) -> None:
        self.query = request.query
        self.body = request.body
        self.path = request.path
        self.login = login
        self.url = url
        self.status = 200
        self.headers: dict[str, str] = {}

    def one(self, name: str, default: str) -> str:
        """A parameter of the query."""
        return self.query.get(name, [default])[0]

    def page(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The part of a list that was asked for; the rest is named in the header Link."""
        size, page = int(self.one("per_page", "30")), int(self.one("page", "1"))
        if len(found) > size * page:
            query = {name: values[0] for name, values in self.query.items()}
            query["page"] = str(page + 1)
            self.headers["Link"] = f'<{self.url}{self.path}?{urlencode(query)}>; rel="next"'
        return found[size * (page - 1) : size * page]


_Route = Callable[..., Any]
_ROUTES: list[tuple[str, str, _Route]] = [
    ("GET", r"/collaborators/([^/]+)/permission", GitHubServer.get_permission),
    ("GET", r"/pulls", GitHubServer.get_pulls),
    ("POST", r"/pulls", GitHubServer.post_pulls),
    ("GET", r"/pulls/(\d+)", GitHubServer.get_pull),
    ("PATCH", r"/pulls/(\d+)", GitHubServer.patch_pull),
    ("GET", r"/contents/(.+)", GitHubServer.get_contents),
    ("GET", r"/git/blobs/([0-9a-f]+)", GitHubServer.get_blob),
    ("GET", r"/issues", GitHubServer.get_issues),
    ("POST", r"/issues", GitHubServer.post_issues),
    ("GET", r"/issues/(\d+)", GitHubServer.get_issue),
    ("PATCH", r"/issues/(\d+)", GitHubServer.patch_issue),
    ("GET", r"/issues/(\d+)/comments", GitHubServer.get_comments),
    ("POST", r"/issues/(\d+)/comments", GitHubServer.post_comments),
    ("PATCH", r"/issues/comments/(\d+)", GitHubServer.patch_comment),
    ("GET", r"/commits/([^/]+)/check-runs", GitHubServer.get_check_runs),
    ("POST", r"/check-runs", GitHubServer.post_check_runs),
    ("PATCH", r"/check-runs/(\d+)", GitHubServer.patch_check_run),
]


def _in_state(found: Iterable[Any], state: str) -> list[Any]:
    chosen = [one for one in found if state in ("all", one.state)]
    return sorted(chosen, key=lambda one: -one.number)


def _found(found: dict[int, Any], number: str) -> Any:
    if int(number) not in found:
        raise _Answer(404, "Not Found")
    return found[int(number)]


def _change(one: Pull | Issue, told: dict[str, Any]) -> None:
    if "body" in told:
        one.body = _body(told)
    one.title = told.get("title", one.title)
    one.state = told.get("state", one.state)


def _body(told: dict[str, Any]) -> str:
    body = told.get("body") or ""
    if len(body) > MAX_BODY:
        raise _Answer(422, "Validation Failed", "body is too long (maximum is 65536 characters)")
    return str(body)


def _user(login: str | None) -> dict[str, str] | None:
    return None if login is None else {"login": login}


def _sha(data: str | bytes) -> str:
    raw = data if isinstance(data, bytes) else data.encode()
    return hashlib.sha1(raw, usedforsecurity=False).hexdigest()


class _Handler(Handler):
    @property
    def github(self) -> GitHubServer:
        owner = self.server.owner
        assert isinstance(owner, GitHubServer)
        return owner

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def _serve(self) -> None:
        path, query, headers = self.asked()
        sent = self.rfile.read(int(headers.get("content-length", "0")))
        request = Request(self.command, path, query, headers, json.loads(sent) if sent else None)
        github = self.github
        with github.lock:
            fault = github.begin(request)
            if fault is not None and fault.status is not None:
                status, body, extra = fault.status, {"message": fault.message}, fault.headers
            else:
                status, body, extra = self._answered(request)
            request.status = status
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | extra).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if fault is not None and fault.status is None:
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        else:
            self.wfile.write(data)

    def _answered(self, request: Request) -> tuple[int, Any, dict[str, str]]:
        github = self.github
        token = request.headers.get("authorization", "").rpartition(" ")[2]
        if token not in github.tokens:
            return 401, {"message": "Bad credentials"}, {}
        call = _Call(request, github.tokens[token], github.url)
        prefix = f"/repos/{github.repository}"
        below = request.path.removeprefix(prefix)
        try:
            for method, pattern, route in _ROUTES if request.path.startswith(prefix) else []:
                found = re.fullmatch(pattern, below)
                if found and method == request.method:
                    body = route(github, call, *found.groups())
                    return call.status, body, call.headers
        except _Answer as answer:
            errors = {"errors": [{"message": answer.detail}]} if answer.detail else {}
            return answer.status, {"message": str(answer), **errors}, {}
        return 404, {"message": "Not Found"}, {}
