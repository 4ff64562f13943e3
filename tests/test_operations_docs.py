"""docs/operations.md and docs/security.md say what is there: commands, names, settings, links.

No command of theirs can run here for real: they speak to AWS, GitHub and a trn2 machine. What can
be held is held: the shell reads them, what they name exists, and what they pass is well formed.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import subprocess
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from pipeline import catalog, script
from pipeline.cli import main as qualify
from pipeline.record import StackVersions
from pipeline.words import Target

ROOT = Path(__file__).parents[1]
OPERATIONS = ROOT / "docs" / "operations.md"
SECURITY = ROOT / "docs" / "security.md"
PAGES = (OPERATIONS, SECURITY)
WORKFLOWS = ROOT / ".github" / "workflows"
LIST = catalog.load(ROOT / "models.yaml")


def read(path: Path) -> str:
    """A page, whole."""
    return path.read_text(encoding="utf-8")


def blocks(path: Path, language: str) -> list[str]:
    """The texts of a page's code blocks in that language."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", read(path), re.M | re.S)
    return [text for _, text in found]


def code(path: Path) -> Iterator[str]:
    """Everything on a page that stands as code: lines of blocks, joined where they go on, spans."""
    for language in ("bash", "console", "yaml"):
        for block in blocks(path, language):
            yield from block.replace("\\\n", " ").splitlines()
    yield from re.findall(
        r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```$", "", read(path), flags=re.M | re.S)
    )


@functools.cache
def workflows() -> dict[str, Any]:
    """The workflows by file name; YAML reads the key `on` as true."""
    return {path.name: yaml.safe_load(read(path)) for path in WORKFLOWS.glob("*.yml")}


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    """(file name, job) of all workflows."""
    for name, workflow in workflows().items():
        for job in workflow["jobs"].values():
            yield name, job


def github_text() -> str:
    """All of .github that workflows are made of."""
    folders = (WORKFLOWS, ROOT / ".github" / "actions")
    return "\n".join(read(path) for folder in folders for path in sorted(folder.rglob("*.yml")))


# --- commands -------------------------------------------------------------------------------------


def own_commands(path: Path) -> list[list[str]]:
    """Words of each `qualify ...` on a page, without the program."""
    pattern = re.compile(r"(?<![\w-])qualify ([a-z][^|;&<>'`]*)")
    return [shlex.split(match[1]) for line in code(path) for match in pattern.finditer(line)]


def parse(words: list[str]) -> str:
    """The command that the words call; click's error when it, or an option, does not exist."""
    command: click.Command = qualify
    names = []
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(click.Context(command), words)
        assert name is not None
        assert found is not None
        command = found
        names.append(name)
    command.make_parser(click.Context(command)).parse_args(list(words))
    return " ".join(names)


def test_own_commands_exist_with_their_options() -> None:
    """Each `qualify` command on the pages is one of the program, with options that it has."""
    called = {parse(words) for page in PAGES for words in own_commands(page)}
    assert {"doctor", "plan", "validate"} <= called


@pytest.mark.parametrize("words", [["docter"], ["doctor", "--frist-run"], ["plan", "--output"]])
def test_wrong_own_commands_would_be_seen(words: list[str]) -> None:
    """A command, an option or a value that is not there fails the test above."""
    with pytest.raises(click.UsageError):
        parse(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_the_shell_reads_every_block(page: Path) -> None:
    """`bash -n` takes each block, and each script that a block writes to a file."""
    texts = blocks(page, "bash")
    assert texts
    texts += [
        script_
        for text in texts
        for script_ in re.findall(r"<<'END'\n(#!/bin/bash\n.*?)^END$", text, re.M | re.S)
    ]
    for text in texts:
        done = subprocess.run(
            ["bash", "-n"], input=text, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), text


NOTING = r"""
command_not_found_handle() { :; } # whatever else the blocks call does nothing
note() {
  printf '%s\0' "${@:2}" >> "$1"
  if [[ " $* " == *" --input "* ]]; then IFS= read -r -d '' data; printf '%s\0' "$data" >> "$1"; fi
  echo 1
}
aws() { note aws "$@"; }
gh() { note gh "$@"; }
"""


def test_what_is_passed_as_json_is_json(tmp_path: Path) -> None:
    """With `aws` and `gh` replaced by what notes their arguments, all JSON among them parses."""
    names = {"ORG": "org", "REPO": "org/repo", "CLASS": "c", "TYPE": "t", "BUCKET": "b"}
    names |= {"AWS_REGION": "r", "GROUP_ID": "7", "INSTANCE": "i-1"}
    text = "\n".join(block for page in PAGES for block in blocks(page, "bash"))
    subprocess.run(
        ["/bin/bash", "-c", NOTING + text],
        env={**names, "PATH": str(tmp_path), "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    passed = [word for word in read(tmp_path / "aws").split("\0") if word[:1] in ("{", "[")]
    passed += [word for word in read(tmp_path / "gh").split("\0") if word.startswith("{")]
    assert len(passed) > 10
    for word in passed:
        json.loads(word)


def test_dispatches_give_inputs_that_exist() -> None:
    """`gh workflow run FILE -f NAME=...` names a workflow to dispatch, and inputs that it has."""
    pattern = re.compile(r"gh workflow run (\S+\.yml)(.*)")
    found = [match for page in PAGES for line in code(page) if (match := pattern.search(line))]
    assert found
    for match in found:
        triggers = workflows()[match[1]][True]
        assert "workflow_dispatch" in triggers, match[0]
        inputs = (triggers["workflow_dispatch"] or {}).get("inputs", {})
        assert set(re.findall(r"-f (\w+)=", match[2])) <= set(inputs), match[0]
        for selected in re.findall(r"-f select=(\S+/\S+)", match[2]):
            assert selected in {model.id for model in LIST.models}


# --- names ----------------------------------------------------------------------------------------


def test_variables_are_those_of_the_workflows() -> None:
    """What the pages say may be set is read by a workflow, and what one reads is explained."""
    there = set(re.findall(r"\bvars\.(\w+)", github_text()))
    told = {name for page in PAGES for name in re.findall(r"\bQUALIFY_[A-Z_]+\b", read(page))}
    assert told == there
    table = set(re.findall(r"^\| `(QUALIFY_\w+)` \|", read(OPERATIONS), re.M))
    assert table == there


def test_secrets_are_where_the_pages_put_them() -> None:
    """Each secret is in one environment, open to main alone, and read by no job outside of it; the
    one that writes is not on a machine with a device."""
    told = dict(re.findall(r"gh secret set (\w+) --repo \S+ --env (\S+)", read(OPERATIONS)))
    assert set(re.findall(r"\bsecrets\.(\w+)", github_text())) == set(told)
    for secret, environment in told.items():
        readers = [job for _, job in jobs() if f"secrets.{secret}" in json.dumps(job)]
        assert readers
        for job in readers:
            assert job["environment"]["name"] == environment
            if "WRITE" in secret:
                assert job["runs-on"] == "ubuntu-latest"
        assert f"environments/{environment}/deployment-branch-policies" in read(OPERATIONS)
    assert len(set(told.values())) == len(told)


def test_labels_are_those_that_the_code_uses() -> None:
    """The labels that are made are those that code and forms put on issues."""
    made = set(re.findall(r"gh label create (\S+)", read(OPERATIONS)))
    texts = [read(path) for path in (ROOT / "pipeline" / "actions").rglob("*.py")]
    used = set(re.findall(r'^LABEL\w* = "([\w-]+)"', "\n".join(texts), re.M))
    assert used <= made
    everything = "\n".join([*texts, *map(read, (ROOT / ".github").rglob("*.yml"))])
    assert {label for label in made if label not in everything} == set()


def test_files_exist() -> None:
    """Workflows and files of this repository that the pages name are there."""
    for page in PAGES:
        for name in re.findall(r"(?<![\w/-])([\w-]+\.yml)\b", read(page)):
            assert (WORKFLOWS / name).is_file(), name
        for name in re.findall(r"`((?:pipeline|tests|docs|templates)/[\w./-]+)`", read(page)):
            assert (ROOT / name).exists(), name


def test_group_holds_the_files_that_define_device_jobs() -> None:
    """A runner group counts where a job is defined, not who calls it: exactly those files."""
    defining = {name for name, job in jobs() if "matrix.labels" in str(job.get("runs-on"))}
    (body,) = re.findall(r'"selected_workflows": \[(.*?)\]', read(OPERATIONS), re.S)
    assert set(re.findall(r"workflows/([\w-]+\.yml)@refs/heads/main", body)) == defining
    for name in defining:
        assert f"`{name}`" in read(SECURITY)


def test_no_pull_request_event_where_devices_are() -> None:
    """As security.md says: one file has a pull_request event, and its jobs are hosted, all bare."""
    files = [name for name, one in workflows().items() if "pull_request" in json.dumps(one[True])]
    assert files == ["pull-request.yml"]
    for job in workflows()["pull-request.yml"]["jobs"].values():
        assert job["runs-on"] == "ubuntu-latest"
        assert job["permissions"] == {"contents": "read"}
        assert "secrets." not in json.dumps(job)


def test_writers_are_those_of_the_table() -> None:
    """Jobs that may write to the repository are those that the table of tokens names."""
    writing = {
        job["name"]
        for _, job in jobs()
        if "runs-on" in job and (job.get("permissions") or {}).get("contents") == "write"
    }
    (cell,) = re.findall(r"`contents: write` in (.*?) only", read(SECURITY))
    assert set(re.findall(r"\*(\w+)\*", cell)) == writing


def test_machine_is_set_up_for_what_jobs_use() -> None:
    """Folder, labels, packages, driver and shared memory are those that jobs and the list have."""
    text = read(OPERATIONS)
    for _, job in jobs():
        if "matrix.labels" in str(job.get("runs-on")):
            assert job["container"]["volumes"] == ["/var/lib/qualify:/var/lib/qualify"]
    assert "sudo mkdir -p /var/lib/qualify" in text
    for name, runner in LIST.runners.items():
        if runner.target is Target.NEURON:
            assert runner.labels == ("self-hosted", "linux", name)
    (runner_class,) = re.findall(r"^export CLASS=(\S+)", text, re.M)
    assert f"--shm-size={LIST.runners[runner_class].host_gib / 2:g}g" in text
    name = LIST.defaults.stacks[0]
    stack = StackVersions(name=name, library="transformers", **_versions(name))
    packages = script.requirements(stack, beside_image=True)
    assert f"--env PACKAGES={' '.join(packages)} " in text
    assert f"{stack.driver} at the time of writing" in text
    assert str(stack.image).startswith("public.ecr.aws/neuron/")


def _versions(name: str) -> Mapping[str, Any]:
    listed = yaml.safe_load(read(ROOT / "models.yaml"))["stacks"][name]
    return {key: value for key, value in listed.items() if key in StackVersions.model_fields}


# --- links ----------------------------------------------------------------------------------------


def slugs(path: Path) -> set[str]:
    """Anchors that GitHub gives the headings of a page."""
    heads = re.findall(
        r"^#+ (.+)$", re.sub(r"^ *```.*?^ *```$", "", read(path), flags=re.M | re.S), re.M
    )
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_links_resolve(page: Path) -> None:
    """Links to files of this repository lead to a file, and to a heading where they name one."""
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", read(page)) if "://" not in link]
    assert links
    for link in links:
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_file(), link
        assert not anchor or anchor in slugs(target), link


# --- the keeper -----------------------------------------------------------------------------------


class Cloud(types.ModuleType):
    """boto3 as far as the keeper uses it: machines that are up, and what is done to them."""

    def __init__(self, machines: Mapping[str, str]) -> None:
        super().__init__("boto3")
        self.machines = machines
        self.silent: set[str] = set()
        self.sent: list[tuple[str, str]] = []
        self.stopped: list[str] = []

    def client(self, _service: str) -> Cloud:
        return self

    def get_secret_value(self, **_: object) -> Mapping[str, str]:
        return {"SecretString": "the-token"}

    def describe_instances(self, **_: object) -> Mapping[str, Any]:
        tagged = [
            {"InstanceId": name, "Tags": [{"Key": "qualify-class", "Value": runner_class}]}
            for name, runner_class in self.machines.items()
        ]
        return {"Reservations": [{"Instances": [one]} for one in tagged]}

    def describe_instance_information(self, **asked: Any) -> Mapping[str, Any]:
        (name,) = asked["Filters"][0]["Values"]
        status = "ConnectionLost" if name in self.silent else "Online"
        return {"InstanceInformationList": [{"PingStatus": status}]}

    def send_command(self, **asked: Any) -> None:
        (name,), (command,) = asked["InstanceIds"], asked["Parameters"]["commands"]
        self.sent.append((name, command))

    def stop_instances(self, **asked: Any) -> None:
        self.stopped += asked["InstanceIds"]


class Hub:
    """GitHub as far as the keeper uses it: the group's runners, and configurations asked for."""

    def __init__(self) -> None:
        self.runners: list[Mapping[str, Any]] = []
        self.asked: list[Mapping[str, Any]] = []
        self.tokens: set[str | None] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                assert self.path == "/orgs/org/actions/runner-groups/7/runners?per_page=100"
                self._answer({"runners": outer.runners})

            def do_POST(self) -> None:
                assert self.path == "/orgs/org/actions/runners/generate-jitconfig"
                outer.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self._answer({"encoded_jit_config": "CONFIG"})

            def _answer(self, body: object) -> None:
                outer.tokens.add(self.headers["Authorization"])
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A GitHub for the keeper, whose environment speaks of it."""
    made = Hub()
    port = made.server.server_address[1]
    monkeypatch.setenv("GITHUB_API_URL", f"http://127.0.0.1:{port}")
    for name, value in {"ORG": "org", "GROUP_ID": "7", "STOP_HOURS": ""}.items():
        monkeypatch.setenv(name, value)
    yield made
    made.close()


def keep(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the keeper of the page once."""
    (text,) = blocks(OPERATIONS, "python")
    monkeypatch.setitem(sys.modules, "boto3", cloud)
    keeper: dict[str, Any] = {"__name__": "keeper"}
    exec(compile(text, "keeper.py", "exec"), keeper)  # noqa: S102 -- it is the page's program
    keeper["handler"]({}, None)


def online(name: str, *, busy: bool) -> Mapping[str, Any]:
    """A runner of a machine that GitHub sees."""
    return {"name": f"{name}_1", "status": "online", "busy": busy}


def test_keeper_gives_a_machine_without_runner_one_job(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for the group and for the labels of models.yaml, and hands over what it gets."""
    cloud = Cloud({"i-1": "trn2-3xlarge", "i-2": "trn2-48xlarge"})
    hub.runners = [{**online("i-1", busy=False), "status": "offline"}, online("i-2", busy=True)]
    keep(cloud, monkeypatch)
    assert cloud.sent == [("i-1", "/usr/local/sbin/qualify-one-job CONFIG")]
    (asked,) = hub.asked
    assert tuple(asked["labels"]) == LIST.runners["trn2-3xlarge"].labels
    assert asked["runner_group_id"] == 7
    assert asked["name"].partition("_")[0] == "i-1"
    assert hub.tokens == {"Bearer the-token"}
    assert cloud.stopped == []


def test_keeper_asks_nothing_for_a_machine_that_does_not_answer(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configuration that cannot be handed over would lie about for a day; others go on."""
    cloud = Cloud({"i-1": "trn2-3xlarge", "i-2": "trn2-3xlarge"})
    cloud.silent = {"i-1"}
    keep(cloud, monkeypatch)
    assert [name for name, _ in cloud.sent] == ["i-2"]
    assert len(hub.asked) == 1


@pytest.mark.parametrize(
    ("hours", "stopped"),
    [("", []), (" ".join(map(str, range(24))), ["i-idle"])],
    ids=["while setting up", "in the stop hours"],
)
def test_keeper_stops_what_waits_and_nothing_else(
    hours: str, stopped: list[str], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine is never stopped; an idle one in the hours that are named."""
    cloud = Cloud({"i-idle": "trn2-3xlarge", "i-busy": "trn2-3xlarge", "i-new": "trn2-3xlarge"})
    hub.runners = [online("i-idle", busy=False), online("i-busy", busy=True)]
    monkeypatch.setenv("STOP_HOURS", hours)
    keep(cloud, monkeypatch)
    assert cloud.stopped == stopped
    assert [name for name, _ in cloud.sent] == ["i-new"]
