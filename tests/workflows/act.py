"""Executes the repository's workflows here, with act: no Docker, no network, no GitHub.

    with World(tmp_path, models=LIST) as world:
        outcome = world.run("workflow_dispatch", "qualify.yml", inputs={"stack": "cpu"})
        assert outcome.results == {"Plan": "success", ...}

What is real: the workflow files, act's reading of them (matrices, needs, conditions, outputs,
called workflows), every `qualify` command as this checkout has it, git and a bare repository behind
git's own HTTP protocol, and whatever the commands start.

What is not:
- Each job's steps run in a directory of this machine, whatever `runs-on` and `container` say.
- `.github/actions/install`, which makes a virtual environment from a package index, is a stand-in
  that puts a `qualify` on PATH: this checkout's package, run with the Python of the tests.
- The three actions of GitHub's (checkout, upload-artifact, download-artifact) are stand-ins, see
  tests/workflows/stand_ins. Which commits they stand for is read from the workflow files.
- In the copies the lines `queue: max`, `deployment: false` and `cache-mode: none` are left out, and
  `$/` before a local path is `./`: act's schema is older than these.
- act heeds neither `permissions` nor `concurrency` nor `environment` nor `timeout-minutes` of jobs:
  the job's token may do whatever GitServer and GitHubServer let it.
- A called workflow of which one job fails ends the whole run with act; on GitHub others go on.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import yaml

from tests.github_server import GitHubServer
from tests.origins import Origin, git
from tests.workflows.git_server import GitServer
from tests.workflows.outcome import Outcome as Outcome  # who imports World needs it, too
from tests.workflows.outcome import read_log
from tests.workflows.process import execute

ROOT = Path(__file__).parent.parent.parent
STAND_INS = Path(__file__).parent / "stand_ins"
REPOSITORY = "example/campaign"
_ACT = Path(sys.executable).with_name("act")
_UNKNOWN = re.compile(rb"^( +queue: max| +deployment: false|cache-mode: none)\n", re.MULTILINE)
_OWN = re.compile(rb"(uses: )\$/")
_PINNED = re.compile(r"uses: (actions/([a-z-]+)@[0-9a-f]{40})\b")
_RACES = ("fatal error: concurrent map", "Unable to clone ")
"""By which words act tells that its own race (World, `many`) ended it, or made a job look for a
stand-in on the network."""
_STARTS = 4
"""How often act is started when that happens, or when it stands still with no step running. What
the run did to main and to its artifacts is undone before."""
_STILL = 30.0
"""After how many seconds without a word and without a running step act counts as standing still. It
reads a step's output from a terminal of its own, and now and then waits for more of it although the
step has ended: once in 22 runs of 600 jobs."""
_NOBODY = "http://127.0.0.1:9"
"""Where nothing listens: a command that asks the network ends with an error, at once."""


def workflow_files() -> dict[str, bytes]:
    """path -> content of the repository's .github, as GitHub reads it."""
    folder = ROOT / ".github"
    return {
        str(path.relative_to(ROOT)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def copied_files() -> dict[str, bytes]:
    """The same as act gets to read it: see the module's docstring."""
    files = {}
    for path, content in workflow_files().items():
        if path.startswith(".github/actions/install/"):
            continue
        files[path] = _OWN.sub(rb"\1./", _UNKNOWN.sub(b"", content))
    stand_in = STAND_INS / "install" / "action.yml"
    return files | {".github/actions/install/action.yml": stand_in.read_bytes()}


def action(name: str) -> str:
    """The action of GitHub's as the workflow files pin it: "actions/<name>@<commit>"."""
    pinned = pinned_actions(workflow_files().values())
    (found,) = [whole for whole, short in pinned.items() if short == name]
    return found


def pinned_actions(files: Iterable[bytes]) -> dict[str, str]:
    """owner/name@commit of every pinned action -> its name."""
    return {found[1]: found[2] for content in files for found in _PINNED.finditer(content.decode())}


def _beside(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files with the stand-ins of both artifact actions as actions of the repository, and one
    for the action that runs a job, which otherwise takes most of the time."""
    names = ("upload-artifact", "download-artifact")
    changed = dict(files)
    for name in names:
        local = f".github/stand-ins/{name}"
        for path, content in changed.items():
            used = re.sub(rf"uses: actions/{name}@.*", f"uses: ./{local}", content.decode())
            changed[path] = used.encode()
    for name in names:
        stand_in = STAND_INS / name.replace("-", "_") / "action.yml"
        changed[f".github/stand-ins/{name}/action.yml"] = stand_in.read_bytes()
    run_job = STAND_INS / "run_job" / "action.yml"
    return changed | {".github/actions/run-job/action.yml": run_job.read_bytes()}


class World:
    """The repository on its server and all that its workflows meet, below one directory.

    models: text of models.yaml. files: others of the first commit, by path. hub_url: of a server in
    the Hub's place; without it no Hub answers. github: in the place of api.github.com.

    many: for hundreds of jobs, under which act breaks down: it writes a map of the actions that
    stand-ins replace from all jobs at once, without a lock, and Go ends a program that does. Then
    act itself puts the commit into each job's workspace, as a copy, and the other stand-ins are
    local actions of it. What a job does is a program of the test's, `$RUN_JOB ID ARTIFACT`: the
    action that runs a job is executed by the other scenarios.
    """

    def __init__(
        self,
        folder: Path,
        *,
        models: str,
        files: Mapping[str, str] | None = None,
        workflows: Mapping[str, bytes] | None = None,
        hub_url: str = _NOBODY,
        many: bool = False,
    ) -> None:
        self.folder = folder
        self.many = many
        self.github = GitHubServer(REPOSITORY)
        self.hub_url = hub_url
        self.hooks = folder / "hooks"
        self.runs = 0
        self._workflows = copied_files() if workflows is None else dict(workflows)
        if many:
            self._workflows = _beside(self._workflows)
        for made in (self.hooks, folder / "home", folder / "tools", folder / "bin"):
            made.mkdir(parents=True)
        written = {path: content.decode() for path, content in self._workflows.items()}
        self.origin = Origin.make(
            folder / "server", {**written, "models.yaml": models, **(files or {})}
        )
        # As on GitHub: a commit that no branch ends with can be fetched, too.
        git(self.origin.path, "config", "uploadpack.allowAnySHA1InWant", "true")
        git(self.origin.path, "config", "http.receivepack", "true")
        self.server = GitServer(self.origin.path, REPOSITORY, writers=(self.github.token,))
        self.script(folder / "bin" / "qualify", _QUALIFY)
        self.script(folder / "bin" / "real-qualify", _REAL_QUALIFY)
        self.script(folder / "tools" / "make", _MAKE)
        # act asks node for its version before every job; no action here is made of JavaScript.
        self.script(folder / "tools" / "node", "#!/bin/sh\necho v24.0.0\n")
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.server)
        self._stack.enter_context(self.github)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def script(self, path: Path, text: str) -> None:
        """An executable file."""
        path.write_text(text)
        path.chmod(0o755)

    def hook(self, call: str, text: str) -> None:
        """What runs instead of `qualify CALL ...`, with $REAL_QUALIFY for the command itself.

        call: the first words of the command, joined by a dash: "run", "actions-publish".
        """
        self.script(self.hooks / call, text)

    def merge(self, number: int, head: str) -> str:
        """refs/pull/<number>/head and /merge, as GitHub keeps them for a pull request to main
        without conflicts; the hash of the merge commit."""
        bare = self.origin.path
        main = self.origin.head()
        tree = git(bare, "merge-tree", "--write-tree", main, head)
        message = f"Merge {head} into {main}"
        merged = git(bare, "commit-tree", tree, "-p", main, "-p", head, "-m", message)
        git(bare, "update-ref", f"refs/pull/{number}/head", head)
        git(bare, "update-ref", f"refs/pull/{number}/merge", merged)
        return merged

    def export(self, name: str, ref: str = "main") -> Path:
        """The files of a commit, in a folder of that name."""
        target = self.folder / name
        target.mkdir()
        archive = subprocess.run(
            ["git", "archive", ref], cwd=self.origin.path, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x"], cwd=target, check=True, input=archive.stdout)
        return target

    def checkout(self, name: str) -> Path:
        """Main in a clone of that name, brought up to date."""
        tree = self.folder / name
        if not tree.exists():
            self.origin.checkout(tree)
        git(tree, "pull", "--quiet")
        return tree

    def push(self, tree: Path, message: str) -> None:
        """Commit all that is in a clone of `checkout` to main."""
        git(tree, "add", "--all")
        git(tree, "commit", "--quiet", "--message", message)
        git(tree, "push", "--quiet")

    def unhook(self) -> None:
        """Every command is itself again."""
        for path in self.hooks.iterdir():
            path.unlink()

    def artifacts(self, outcome: Outcome) -> Path:
        """The folder with a folder for each artifact of the run."""
        return self.folder / "artifacts" / str(outcome.number)

    def page(self, outcome: Outcome, *jobs: str) -> str:
        """What these jobs show of the run, without what differs from run to run."""
        text = "\n".join(outcome.job(name).summary for name in jobs)
        text = text.replace(self.server.url, "https://github.com")
        text = re.sub(r"\b[0-9a-f]{40}\b", "0" * 40, text)
        return re.sub(r"\[[0-9a-f]{7}\]", "[0000000]", text)

    def made(self) -> list[str]:
        """The arguments of each call of `make`, which is a stub."""
        path = self.folder / "made"
        return path.read_text().splitlines() if path.exists() else []

    def run(
        self,
        event: str,
        workflow: str,
        *,
        payload: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        job: str | None = None,
        ref: str = "refs/heads/main",
        variables: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        actor: str = "maintainer",
        timeout: float = 580,
    ) -> Outcome:
        """Start a workflow of the commit `ref` by an event, and wait for its end.

        payload: of the event, beside the repository and the sender. inputs: of workflow_dispatch.
        job: this one only, with what it needs. environment: of every step, and of act.

        AssertionError: a step, or all of them, had no end after `timeout` seconds.
        """
        self.runs += 1
        clone = self._clone(ref)
        event_path = self.folder / "events" / f"{self.runs}.json"
        event_path.parent.mkdir(exist_ok=True)
        told: dict[str, Any] = {
            "repository": {
                "full_name": REPOSITORY,
                "default_branch": "main",
                "html_url": f"{self.server.url}/{REPOSITORY}",
            },
            "sender": {"login": actor},
            **(payload or {}),
        }
        if inputs is not None:
            # GitHub's payload holds text, whatever the input's type.
            told["inputs"] = {
                name: str(value).lower() if isinstance(value, bool) else value
                for name, value in inputs.items()
            }
        event_path.write_text(json.dumps(told))
        command: list[str | Path] = [
            _ACT,
            event,
            *("--workflows", f".github/workflows/{workflow}"),
            *("--eventpath", event_path),
            *("--actor", actor),
            *(("--job", job) if job else ()),
            *self._platforms(),
            *([] if self.many else [*self._stand_ins(), "--no-skip-checkout"]),
            "--json",
            "--action-offline-mode",
            "--no-cache-server",
            *("--container-daemon-socket", "-"),
            *("--artifact-server-addr", "127.0.0.1"),
            *("--concurrent-jobs", "2"),
            *("--secret", f"GITHUB_TOKEN={self.github.token}"),
        ]
        for name, value in (secrets or {}).items():
            command += ["--secret", f"{name}={value}"]
        for name, value in (variables or {}).items():
            command += ["--var", f"{name}={value}"]
        for name, value in self._told(clone, ref, environment or {}).items():
            command += ["--env", f"{name}={value}"]
        head = self.origin.head()
        log = self.folder / "logs" / str(self.runs)
        log.mkdir(parents=True)
        around = self._around(environment or {})
        for start in range(_STARTS):
            done = execute(
                command,
                cwd=clone,
                env=around,
                log=log / f"{start}.json",
                timeout=timeout,
                still=_STILL,
            )
            if not (done.stuck or any(race in done.out + done.err for race in _RACES)):
                break
            print(f"act is started again; it said last\n{done.err[-20_000:]}")
            git(self.origin.path, "update-ref", "refs/heads/main", head)
            shutil.rmtree(self.folder / "artifacts" / str(self.runs), ignore_errors=True)
        return read_log(self.runs, done.exit_code, done.out, done.err)

    def _clone(self, ref: str) -> Path:
        """A clone at the commit: act takes commit, branch and repository from git."""
        clone = self.folder / "clones" / str(self.runs)
        clone.mkdir(parents=True)
        # In few files, since act may copy all of them into each job.
        git(clone, "init", "--quiet", "--template=", "--initial-branch", "main")
        git(clone, "-c", "fetch.unpackLimit=1", "fetch", "--quiet", str(self.origin.path), ref)
        branch = ref.removeprefix("refs/heads/")
        on_branch = branch != ref
        git(clone, "checkout", "--quiet", *(["-B", branch] if on_branch else []), "FETCH_HEAD")
        git(clone, "remote", "add", "origin", f"https://github.com/{REPOSITORY}.git")
        # Where act copies this clone into a job, that is its origin.
        settings = f'[url "{self.server.url}/"]\n\tinsteadOf = https://github.com/\n'
        (self.folder / "home" / ".gitconfig").write_text(settings)
        return clone

    def _platforms(self) -> list[str]:
        """Every label of the list and the workflows: this machine."""
        labels = {"ubuntu-latest"}
        listed = yaml.safe_load(self.origin.text("models.yaml"))
        if isinstance(listed, dict):
            for runner in listed.get("runners", {}).values():
                labels.update(runner["labels"])
        return [part for label in sorted(labels) for part in ("-P", f"{label}=-self-hosted")]

    def _stand_ins(self) -> list[str]:
        arguments = []
        for action, name in pinned_actions(self._workflows.values()).items():
            stand_in = STAND_INS / name.replace("-", "_")
            arguments += ["--local-repository", f"{action}={stand_in}"]
        return arguments

    def _told(self, clone: Path, ref: str, environment: Mapping[str, str]) -> dict[str, str]:
        """Variables that act would set otherwise, or look up in git at every step, slowly."""
        return {
            "GITHUB_API_URL": self.github.url,
            "GITHUB_SERVER_URL": self.server.url,
            "GITHUB_RUN_ID": str(self.runs),
            "GITHUB_REPOSITORY": REPOSITORY,
            "GITHUB_REF": ref,
            "SHA_REF": git(clone, "rev-parse", "HEAD"),
            **{name: value for name, value in environment.items() if name.startswith("GITHUB_")},
        }

    def _around(self, environment: Mapping[str, str]) -> dict[str, str]:
        # Nothing of this process's surroundings: no credentials, no `qualify` of a virtual
        # environment, no git hook that the tests run in.
        return {
            "PATH": f"{self.folder / 'tools'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder / "home"),
            "LANG": "C.UTF-8",
            # act gives steps a terminal, at which git would wait for a password or a page turn.
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_PAGER": "cat",
            "ARTIFACTS": str(self.folder / "artifacts"),
            "STAND_INS": str(STAND_INS),
            "STAND_IN_PYTHON": sys.executable,
            "QUALIFY_BIN": str(self.folder / "bin"),
            "REAL_QUALIFY": str(self.folder / "bin" / "real-qualify"),
            "HOOKS": str(self.hooks),
            "MADE": str(self.folder / "made"),
            "PACKAGE": str(ROOT),
            # Few jobs at once meet in that map too (World, `many`): on one processor, rarely.
            "GOMAXPROCS": "1",
            "GOTRACEBACK": "all",  # where every job stood, when it is ended from here
            "HF_ENDPOINT": self.hub_url,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_VEC_ISA_OK": "1",
            **environment,
        }


_QUALIFY = """#!/bin/sh
for call in "$1-$2" "$1"; do
    [ -x "$HOOKS/$call" ] && exec "$HOOKS/$call" "$@"
done
exec "$REAL_QUALIFY" "$@"
"""

_REAL_QUALIFY = """#!/bin/sh
PYTHONPATH="$PACKAGE" exec "$STAND_IN_PYTHON" -P -m pipeline.cli "$@"
"""

_MAKE = """#!/bin/sh
echo "$@" >> "$MADE"
"""
