"""The published branch: real git, a bare repository as origin, and other writers."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipeline.actions import git as module
from pipeline.actions.git import Pushed, published_tree, push_derived
from pipeline.actions.workflow import Workflow
from pipeline.errors import EnvironmentFault, QualifyError, UsageError
from tests.origins import Origin, git

TOKEN = "ghs_0123456789abcdefghijklmnopqrstuvwxyz"  # noqa: S105 -- made up


class Place:
    """An origin, a checkout of it, and the tree that is published from."""

    def __init__(self, folder: Path) -> None:
        self.origin = Origin.make(folder, {"README.md": "one\n", "models.yaml": "models: []\n"})
        self.root = self.origin.checkout(folder / "checkout")
        self.tree = self.root / "build" / "published"
        self.waits: list[float] = []

    def push(
        self, derive: Callable[[Path], str | None], branch: str = "main", **options: object
    ) -> Pushed:
        """push_derived, without its waits."""
        fixed = {"branch": branch, "tree": self.tree, "sleep": self.waits.append}
        return push_derived(self.root, derive=derive, **(fixed | options))  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A repository with one commit."""
    return Place(tmp_path)


def adding(path: str, text: str = "x\n", message: str = "Add") -> Callable[[Path], str]:
    """What adds one file."""

    def derive(tree: Path) -> str:
        file = tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return message

    return derive


def test_a_commit_comes_after_the_branchs_head(place: Place) -> None:
    """What is derived from the newest tree is one commit after it, by GitHub's own bot."""
    before = place.origin.write({"later.txt": "after the checkout\n"})
    checkout = git(place.root, "status", "--porcelain", "--branch")
    pushed = place.push(adding("results/a.txt", message="Publish 1 result\n\n- body"))
    assert pushed == Pushed(place.origin.head(), 1)
    assert place.origin.parents() == [before]
    assert place.origin.message() == "Publish 1 result\n\n- body"
    assert place.origin.files() == ["README.md", "later.txt", "models.yaml", "results/a.txt"]
    told = git(place.origin.path, "log", "-1", "--format=%an|%ae|%cn|%ce", "main")
    assert told == "|".join(module.AUTHOR * 2)
    assert git(place.tree, "rev-parse", "HEAD") == pushed.commit
    assert git(place.tree, "status", "--porcelain") == ""
    # build/ is untracked here, where a real checkout ignores it; nothing else moved.
    assert git(place.root, "status", "--porcelain", "--branch") == f"{checkout}\n?? build/"
    assert place.waits == []


def test_nothing_to_do_pushes_nothing(place: Place) -> None:
    """Neither no message nor a tree as it was before makes a commit."""
    before = place.origin.head()
    assert place.push(lambda tree: None) == Pushed(None, 1)
    assert place.push(lambda tree: "the same") == Pushed(None, 1)
    assert place.push(adding("README.md", "one\n")) == Pushed(None, 1)
    assert place.origin.head() == before


def test_rejected_push_is_derived_again(place: Place) -> None:
    """What another writer pushed meanwhile is in the tree of the next attempt and is kept."""
    seen: list[list[str]] = []

    def derive(tree: Path) -> str:
        seen.append(sorted(path.name for path in tree.iterdir() if path.name != ".git"))
        if len(seen) < 3:
            place.origin.write({f"other-{len(seen)}.txt": "theirs\n"})
        (tree / f"mine-{len(seen)}.txt").write_text(f"{len(seen)}\n")
        return f"attempt {len(seen)}"

    pushed = place.push(derive)
    assert pushed == Pushed(place.origin.head(), 3)
    assert seen[2] == ["README.md", "models.yaml", "other-1.txt", "other-2.txt"]
    assert place.origin.files() == [
        "README.md",
        "mine-3.txt",
        "models.yaml",
        "other-1.txt",
        "other-2.txt",
    ]
    assert place.origin.message() == "attempt 3"
    assert len(place.origin.commits()) == 4
    assert len(place.origin.parents()) == 1
    assert len(place.waits) == 2 and all(0 < wait <= 20 for wait in place.waits)


def test_attempts_are_bounded(place: Place) -> None:
    """A branch that others push to all the time is given up, with the reason."""
    count = iter(range(100))

    def derive(tree: Path) -> str:
        place.origin.write({f"other-{next(count)}.txt": "theirs\n"})
        return adding("mine.txt")(tree)

    with pytest.raises(QualifyError, match=r"in 3 attempts.*\[rejected\] \(fetch first\)"):
        place.push(derive, attempts=3)
    assert len(place.waits) == 2
    assert "mine.txt" not in place.origin.files()


def test_what_the_server_forbids_is_not_tried_again(place: Place) -> None:
    """A protected branch stays protected: one attempt, and the server's words."""
    place.origin.hook("update", ["echo 'GH006: Protected branch update failed' >&2", "exit 1"])
    with pytest.raises(QualifyError, match=r"GH006.*hook declined") as caught:
        place.push(adding("mine.txt"))
    assert "contents: write" in caught.value.remedy
    assert place.waits == []


def test_a_push_of_which_only_the_answer_was_lost_is_no_failure(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the branch's head is the commit that was pushed, it is not derived a second time."""
    real = subprocess.run(["which", "git"], capture_output=True, check=True, text=True)
    wrapper = tmp_path / "bin" / "git"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f'#!/bin/sh\n{real.stdout.strip()} "$@" || exit\n'
        'case "$*" in *"push --porcelain"*) echo "fatal: the remote end hung up" >&2; exit 128;; '
        "esac\n"
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    calls: list[Path] = []

    def derive(tree: Path) -> str:
        calls.append(tree)
        return adding("mine.txt")(tree)

    assert place.push(derive) == Pushed(place.origin.head(), 2)
    assert len(calls) == 1 and len(place.origin.commits()) == 2


@pytest.mark.parametrize("start", [None, "elsewhere", "commit"])
def test_absent_branch_starts_somewhere(place: Place, start: str | None) -> None:
    """By default at the commit that was checked out, else where it is told to."""
    here = git(place.root, "rev-parse", "HEAD")
    there = place.origin.write({"e.txt": "e\n"}, branch="elsewhere")
    place.origin.write({"later.txt": "later\n"})
    wanted = {None: here, "elsewhere": there, "commit": there}[start]
    pushed = place.push(
        adding("r.txt"), "qualify/results", start=there if start == "commit" else start
    )
    assert pushed.commit == place.origin.head("qualify/results")
    assert place.origin.parents("qualify/results") == [wanted]


def test_start_that_is_nowhere_is_an_error(place: Place) -> None:
    """A commit that origin does not know cannot be started from, and no attempt helps."""
    with pytest.raises(QualifyError, match="new cannot start from nowhere of origin"):
        place.push(adding("r.txt"), "new", start="nowhere")
    assert place.waits == [] and not place.origin.has("new")


def test_no_tree_of_an_absent_branch(place: Place) -> None:
    """There is nothing to read where nothing was published yet."""
    assert published_tree(place.root, "results", place.tree) is None


def test_tree_is_what_the_branch_holds(place: Place) -> None:
    """The newest commit's files, without its past, however the checkout stands."""
    for number in range(5):
        place.origin.write({f"{number}.txt": f"{number}\n"})
    assert published_tree(place.root, "main", place.tree) == place.tree
    assert (place.tree / "4.txt").read_text() == "4\n"
    assert git(place.tree, "rev-list", "--count", "HEAD") == "1"
    assert git(place.root, "rev-list", "--count", "--all") == "1"


def test_paths_may_be_relative(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands are called in the checkout, with paths below it."""
    monkeypatch.chdir(place.root)
    tree = Path("build/tree")
    seen: list[Path] = []

    def derive(tree: Path) -> str:
        seen.append(tree)
        return adding("mine.txt")(tree)

    assert published_tree(Path(), "main", tree) == tree
    pushed = push_derived(Path(), branch="main", tree=tree, derive=derive)
    assert pushed.commit == place.origin.head()
    assert [path.absolute() for path in seen] == [place.root / tree]


def test_a_shallow_checkout_can_publish(tmp_path: Path) -> None:
    """actions/checkout fetches one commit; neither it nor the tree needs the others."""
    origin = Origin.make(tmp_path)
    for number in range(5):
        origin.write({f"{number}.txt": f"{number}\n"})
    root = origin.checkout(tmp_path / "checkout", depth=1)
    tree = root / "build" / "tree"
    pushed = push_derived(root, branch="main", tree=tree, derive=adding("mine.txt"))
    assert pushed.commit == origin.head()
    assert len(origin.commits()) == 7
    assert git(tree, "rev-list", "--count", "HEAD") == "2"
    assert (root / ".git" / "shallow").read_text().count("\n") == 1
    pushed = push_derived(root, branch="results", tree=tree, derive=adding("results.txt"))
    assert pushed.commit == origin.head("results")
    assert len(origin.commits("results")) == 7


def test_onto_brings_a_branch_up_to_date_without_force(place: Place) -> None:
    """The tree is main's plus the change; the commit comes after the branch's head and main's."""
    first = place.push(adding("models.yaml", "first\n"), "qualify/proposals", onto="main")
    assert place.origin.parents("qualify/proposals") == [place.origin.head("main")]
    main = place.origin.write({"README.md": "two\n"})

    def derive(tree: Path) -> str:
        assert (tree / "README.md").read_text() == "two\n"
        assert (tree / "models.yaml").read_text() == "models: []\n"
        (tree / "models.yaml").write_text("second\n")
        return "Propose"

    second = place.push(derive, "qualify/proposals", onto="main")
    assert second.commit == place.origin.head("qualify/proposals")
    assert place.origin.parents("qualify/proposals") == [first.commit, main]
    changed = git(place.origin.path, "diff", "--name-only", "main...qualify/proposals")
    assert changed == "models.yaml"
    assert place.push(derive, "qualify/proposals", onto="main").commit is None


def test_onto_a_branch_that_is_not_there(place: Place) -> None:
    """A mistyped branch is told, not started from something else."""
    place.origin.write({"a.txt": "a\n"}, branch="proposals")
    for branch in ("proposals", "new"):
        with pytest.raises(QualifyError, match="nain"):
            place.push(adding("models.yaml"), branch, onto="nain")


def test_tree_of_an_earlier_attempt_is_made_right(place: Place) -> None:
    """Changed, added and ignored files, a stale lock and a broken index do no harm."""
    place.origin.write({".gitignore": "*.log\n"})
    place.push(adding("one.txt"))
    (place.tree / "README.md").write_text("dirty\n")
    (place.tree / "one.txt").unlink()
    (place.tree / "stray").mkdir()
    (place.tree / "stray" / "x.log").write_text("x")
    (place.tree / ".git" / "index.lock").touch()
    (place.tree / ".git" / "shallow.lock").touch()
    (place.tree / ".git" / "HEAD").write_text("broken")
    (place.tree / ".git" / "index").write_bytes(b"broken")
    assert published_tree(place.root, "main", place.tree) == place.tree
    names = sorted(path.name for path in place.tree.iterdir())
    assert names == [".git", ".gitignore", "README.md", "models.yaml", "one.txt"]
    assert (place.tree / "README.md").read_text() == "one\n"


def test_derived_files_are_committed_though_ignored(place: Place) -> None:
    """What is derived is published, whatever the repository's list of ignored files says."""
    place.origin.write({".gitignore": "*.parquet\n"})
    place.push(adding("results/a.parquet"))
    assert "results/a.parquet" in place.origin.files()


@pytest.mark.parametrize("what", ["folder", "checkout", "file", "link"])
def test_a_folder_with_other_things_is_not_emptied(place: Place, tmp_path: Path, what: str) -> None:
    """--tree on somebody's own folder loses nothing there."""
    other = tmp_path / "other"
    match what:
        case "folder":
            other.mkdir()
            (other / "letter.txt").write_text("dear")
        case "checkout":
            other = place.root
        case "file":
            other.write_text("dear")
        case "link":
            place.push(adding("one.txt"))
            other.symlink_to(place.tree)
    with pytest.raises(UsageError, match=r"other things|not a folder"):
        published_tree(place.root, "main", other)
    assert what != "folder" or (other / "letter.txt").read_text() == "dear"
    assert what != "link" or (place.tree / "one.txt").exists()


def test_names_of_all_kinds(place: Place) -> None:
    """Spaces, umlauts, quotes, line ends and a leading dash survive the way."""
    names = ["a b.txt", "ünï/日本.txt", 'quo"te.txt', "line\nend.txt", "-x", "a+b@c.py"]

    def derive(tree: Path) -> str:
        for name in names:
            adding(name, f"{name}\n")(tree)
        return "Añadir"

    place.push(derive)
    assert sorted(place.origin.files()) == sorted([*names, "README.md", "models.yaml"])
    assert place.origin.message() == "Añadir"
    tree = published_tree(place.root, "main", place.tree)
    assert tree is not None
    assert all((tree / name).read_text() == f"{name}\n" for name in names)


def test_a_hooks_variables_do_not_lead_elsewhere(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started by a git hook, this reads and writes its own tree and nobody's index."""
    other = Origin.make(tmp_path / "elsewhere")
    theirs = other.checkout(tmp_path / "theirs")
    index = (theirs / ".git" / "index").read_bytes()
    for name, value in {
        "GIT_DIR": str(theirs / ".git"),
        "GIT_WORK_TREE": str(theirs),
        "GIT_INDEX_FILE": str(theirs / ".git" / "index"),
        "GIT_OBJECT_DIRECTORY": str(theirs / ".git" / "objects"),
        "GIT_NAMESPACE": "theirs",
        "GIT_AUTHOR_NAME": "Somebody",
        "GIT_COMMITTER_DATE": "2001-01-01T00:00:00Z",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "remote.origin.url",
        "GIT_CONFIG_VALUE_0": str(other.path),
    }.items():
        monkeypatch.setenv(name, value)
    place.push(adding("mine.txt"))
    assert "mine.txt" in place.origin.files() and len(other.commits()) == 1
    assert (theirs / ".git" / "index").read_bytes() == index
    told = git(place.origin.path, "log", "-1", "--format=%an %cd", "main")
    assert told.startswith(module.AUTHOR[0]) and "2001" not in told


def test_a_persons_settings_do_not_change_what_is_committed(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hooks, line ends, signing and ignored files of a person stay out of it."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("pre-commit", "pre-push", "reference-transaction", "post-checkout"):
        (hooks / name).write_text("#!/bin/sh\nexit 1\n")
        (hooks / name).chmod(0o755)
    (tmp_path / "ignored").write_text("*\n")
    (tmp_path / "attributes").write_text("* text eol=crlf\n")
    settings = tmp_path / "gitconfig"
    settings.write_text(
        f"[core]\nhooksPath={hooks}\nautocrlf=true\nexcludesFile={tmp_path}/ignored\n"
        f"attributesFile={tmp_path}/attributes\n[commit]\ngpgSign=true\n[push]\ngpgSign=true\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    place.push(adding("mine.txt", "one\r\ntwo\n"))
    data = subprocess.run(
        ["git", "-C", str(place.origin.path), "show", "main:mine.txt"],
        capture_output=True,
        check=True,
    )
    assert data.stdout == b"one\r\ntwo\n"
    assert (place.tree / "README.md").read_bytes() == b"one\n"


def test_messages_are_bounded(place: Place) -> None:
    """A message keeps its beginning; characters that git refuses or terminals obey are left out."""
    body = "\n".join(f"- line {number}" for number in range(10_000))
    place.push(adding("one.txt", message=f"Sub\0ject \x1b[31m\n\n# kept\n{body}"))
    message = place.origin.message()
    assert message.startswith("Subject [31m\n\n# kept\n- line 0\n")
    assert message.endswith("\n(cut here)") and len(message) <= module.MAX_MESSAGE + 20


@pytest.mark.parametrize("branch", ["", "a..b", "with space", "x.lock", "/x"])
def test_what_cannot_be_a_branch(place: Place, branch: str) -> None:
    """The branch's name comes from a variable that people set: a slip is told."""
    with pytest.raises(UsageError, match="name of a branch"):
        place.push(adding("one.txt"), branch)


def test_a_name_like_an_option_is_no_option(place: Place) -> None:
    """Nothing in the name of a branch is taken for something else."""
    place.push(adding("one.txt"), "--force")
    assert place.origin.has("--force")


def test_without_git(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is missing is named."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match="git is not installed"):
        published_tree(place.root, "main", place.tree)


def test_without_origin(tmp_path: Path) -> None:
    """A folder that is no clone has nowhere to publish to."""
    git(tmp_path, "init", "--quiet")
    with pytest.raises(QualifyError, match="no origin to publish to"):
        published_tree(tmp_path, "main", tmp_path / "tree")


def test_origin_that_is_gone(place: Place) -> None:
    """Git's own words say what is wrong."""
    place.origin.path.rename(place.origin.path.with_name("moved.git"))
    with pytest.raises(QualifyError, match="does not"):
        published_tree(place.root, "main", place.tree)


def test_faults_of_derive_go_through(place: Place) -> None:
    """An error of what derives is its own, and nothing is pushed."""

    def derive(tree: Path) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        place.push(derive)
    assert len(place.origin.commits()) == 1


class _Server(ThreadingHTTPServer):
    """git's own HTTP server program behind the credentials of a job."""

    repository: Path
    asked: list[str | None]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        told = self.headers.get("Authorization")
        self.server.asked.append(told)
        basic = base64.b64encode(f"x-access-token:{TOKEN}".encode()).decode()
        if told != f"basic {basic}":
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        done = subprocess.run(
            ["git", "http-backend"],
            input=body,
            capture_output=True,
            check=True,
            env={
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(self.server.repository.parent),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "REMOTE_USER": "job",
                "REMOTE_ADDR": "127.0.0.1",
            },
        )
        head, _, rest = done.stdout.partition(b"\r\n\r\n")
        fields = [line.split(": ", 1) for line in head.decode().split("\r\n")]
        status = next((value for name, value in fields if name == "Status"), "200 OK")
        self.send_response(int(status.split()[0]))
        for name, value in fields:
            if name != "Status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest)

    do_POST = do_GET


@pytest.fixture
def server(place: Place) -> Iterator[str]:
    """The address of the origin behind HTTP."""
    http = _Server(("127.0.0.1", 0), _Handler)
    http.repository, http.asked = place.origin.path, []
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.mark.parametrize("user", ["", "somebody:old-secret@"])
def test_the_token_goes_by_the_environment_alone(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, user: str
) -> None:
    """The server gets it; arguments, the repository's files and the checkout's do not hold it."""
    real = subprocess.run(["which", "git"], capture_output=True, check=True, text=True)
    log = tmp_path / "arguments"
    wrapper = tmp_path / "bin" / "git"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {real.stdout.strip()} "$@"\n')
    wrapper.chmod(0o755)
    address = server.replace("://", f"://{user}")
    git(place.root, "remote", "set-url", "origin", f"{address}/origin.git")
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    workflow = Workflow("o/r", "1", 1, "push", {}, server_url=server, token=TOKEN)
    assert published_tree(place.root, "main", place.tree, workflow=workflow) == place.tree
    pushed = place.push(adding("mine.txt"), token=TOKEN, server_url=server)
    assert pushed.commit == place.origin.head()
    basic = base64.b64encode(f"x-access-token:{TOKEN}".encode()).decode()
    held = [log, *(path for path in place.tree.rglob("*") if path.is_file())]
    for secret in (TOKEN, basic, "old-secret"):
        assert not any(secret.encode() in path.read_bytes() for path in held)
    assert "push --porcelain" in log.read_text()


def test_a_token_without_rights_is_told_and_hidden(place: Place, server: str) -> None:
    """No retry, no token in the message, and what to set."""
    git(place.root, "remote", "set-url", "origin", f"{server}/origin.git")
    with pytest.raises(QualifyError, match="403") as caught:
        place.push(adding("mine.txt"), token="ghs_wrong", server_url=server)  # noqa: S106
    assert "ghs_wrong" not in str(caught.value) and "contents: write" in str(caught.value)
    assert place.waits == []
