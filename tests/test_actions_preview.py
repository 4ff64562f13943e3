"""`qualify actions preview` from end to end: git, the real command, a server in the Hub's place.

What a contributor reads is kept whole in tests/golden/preview-*.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import prod
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from huggingface_hub import constants

from pipeline.actions import preview_page, preview_table
from pipeline.actions.preview import MOST_MODELS, Preview, read
from pipeline.actions.workflow import MAX_SUMMARY_BYTES, Workflow
from pipeline.cli import main
from pipeline.cli.planning import make_plan
from pipeline.errors import CatalogError, EnvironmentFault, HubError, UsageError
from pipeline.plan import Request
from pipeline.words import Failure
from tests import golden_files, jobs, papers
from tests.hub_server import HubServer, Repository, StoredFile
from tests.test_known import published

HEAD = """\
defaults:
  stacks: [neuron]
  limit_minutes: 240
  margin: {gib: 2, fraction: 0.05}
  prompts:
    text-generation: [Once upon a time, The capital of France is, Water boils at]
runners:
  trn2-3xlarge: {labels: [self-hosted, trn2-3xlarge], cores: 4, core_gib: 24, host_gib: 124}
  trn2-48xlarge: {labels: [self-hosted, trn2-48xlarge], cores: 64, core_gib: 24, host_gib: 2048}
  laptop: {target: cpu, labels: [ubuntu-latest], cores: 4, core_gib: 8, host_gib: 16}
stacks:
  neuron:
    target: neuron
    library_version: "5.24.0"
    torch: "2.14.0"
    neuronx_cc: "2.28.7631.0"
    torch_neuronx: "2.14.3.0"
  cpu: {target: cpu, library_version: "5.24.0", torch: "2.13.0"}
models:
"""
BASE = "  - {id: example/known-1b, task: text-generation}\n"
SMALL = "  - id: example/small-0.6b\n    task: text-generation\n"
GIANT = "  - id: example/giant-405b\n    task: text-generation\n"
EXCLUDED = """\
excluded:
  - {id: example/old, task: text-generation, reason: not_prioritised, note: later perhaps}
"""


def checkpoint(
    hub: HubServer,
    folder: Path,
    model_id: str,
    *,
    layers: int,
    hidden: int,
    middle: int,
    heads: int,
    gated: str | bool = False,
) -> None:
    """A Qwen3 of any size on the server: a true header, and weights that are a hole on the disk."""
    config = {
        "model_type": "qwen3",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": middle,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
    }
    shapes = {"model.embed_tokens.weight": [151_936, hidden], "model.norm.weight": [hidden]}
    for index in range(layers):
        layer = f"model.layers.{index}"
        shapes |= {
            f"{layer}.input_layernorm.weight": [hidden],
            f"{layer}.post_attention_layernorm.weight": [hidden],
            f"{layer}.self_attn.q_proj.weight": [128 * heads, hidden],
            f"{layer}.self_attn.k_proj.weight": [1024, hidden],
            f"{layer}.self_attn.v_proj.weight": [1024, hidden],
            f"{layer}.self_attn.o_proj.weight": [hidden, 128 * heads],
            f"{layer}.self_attn.q_norm.weight": [128],
            f"{layer}.self_attn.k_norm.weight": [128],
            f"{layer}.mlp.gate_proj.weight": [middle, hidden],
            f"{layer}.mlp.up_proj.weight": [middle, hidden],
            f"{layer}.mlp.down_proj.weight": [hidden, middle],
        }
    header: dict[str, Any] = {}
    at = 0
    for name, shape in shapes.items():
        end = at + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    path = folder / f"{model_id.replace('/', '--')}.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + at)
    digest = hashlib.sha256(text).hexdigest()
    commit = digest[:40]
    files = {
        "config.json": StoredFile.of(json.dumps(config).encode()),
        "model.safetensors": StoredFile(path, digest),  # of() would read every byte of the hole
    }
    hub.repositories[model_id] = Repository({commit: files}, {"main": commit}, gated=gated)


@dataclass
class Told:
    """What the command left behind."""

    code: int
    log: str
    summary: str
    error: str

    @property
    def annotations(self) -> list[str]:
        return [line for line in self.log.splitlines() if line.startswith("::")]


def _plain_environment() -> dict[str, str]:
    """Without what git sets for the processes of its hooks."""
    return {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}


@dataclass
class Pull:
    """A checkout as a pull request's job has it, and the job's environment."""

    root: Path
    hub: HubServer
    patch: pytest.MonkeyPatch
    head: str = ""

    def git(self, *arguments: str) -> str:
        identity = {
            f"GIT_{who}_{what}": value
            for who in ("AUTHOR", "COMMITTER")
            for what, value in (
                ("NAME", "someone"),
                ("EMAIL", "someone@example.com"),
                ("DATE", "2026-11-30T08:00:00Z"),
            )
        }
        done = subprocess.run(
            ["git", "-C", str(self.root), *arguments],
            env={**_plain_environment(), **identity, "HOME": str(self.root.parent)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, files: dict[str, str | None], message: str) -> str:
        for name, content in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.unlink()
            else:
                path.write_text(content, encoding="utf-8")
        self.git("add", "--all")
        self.git("commit", "--allow-empty", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")

    def propose(self, *texts: str, name: str = "models.yaml", before: str | None = None) -> None:
        """One commit a text on a branch, merged with a main that went on meanwhile."""
        self.git("init", "--quiet", "--initial-branch=main")
        files: dict[str, str | None] = {"README.md": "one\n"}
        self.commit(files | ({name: before} if before is not None else {}), "base")
        self.git("checkout", "--quiet", "-b", "change")
        for text in texts:
            self.head = self.commit({name: text}, "change the list")
        self.git("checkout", "--quiet", "main")
        self.commit({"README.md": "two\n"}, "main goes on")
        self.git("checkout", "--quiet", "--detach")
        self.git("merge", "--quiet", "--no-ff", "--message", "merge", "change")
        event = {"pull_request": {"number": 7, "head": {"sha": self.head}}}
        self.event(event)

    def event(self, payload: dict[str, Any]) -> None:
        (self.root.parent / "event.json").write_text(json.dumps(payload))

    def preview(self, *arguments: str, cwd: str = "", **environment: str) -> Told:
        """The command, in this process: importing everything anew takes longer than the rest."""
        self.patch.chdir(self.root / cwd)
        for name, value in self._environment(environment).items():
            self.patch.setenv(name, value)
        done = CliRunner().invoke(main, ["actions", "preview", *arguments])
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Told(done.exit_code, done.stdout, self._summary(), done.stderr)

    def preview_as_a_step(self) -> Told:
        """The command as the workflow's step starts it."""
        done = jobs.qualify(self.root, "preview", variables=self._environment({}))
        return Told(done.returncode, done.stdout, self._summary(), done.stderr)

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        (self.root.parent / "summary.md").unlink(missing_ok=True)
        return {
            "HF_ENDPOINT": self.hub.url,
            "GITHUB_REPOSITORY": "example/campaign",
            "GITHUB_RUN_ID": "4711",
            "GITHUB_EVENT_NAME": "pull_request",
            "GITHUB_EVENT_PATH": str(self.root.parent / "event.json"),
            "GITHUB_STEP_SUMMARY": str(self.root.parent / "summary.md"),
            **more,
        }

    def _summary(self) -> str:
        path = self.root.parent / "summary.md"
        return path.read_text(encoding="utf-8") if path.exists() else ""


@pytest.fixture
def pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pull]:
    """An empty repository, and a Hub with models of three sizes; this machine's token and the
    variables of a job that runs the tests reach neither."""
    for name in [
        name for name in os.environ if name.startswith(("HF_TOKEN", "GITHUB_", "QUALIFY"))
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    (tmp_path / "checkout").mkdir()
    (tmp_path / "hub").mkdir()
    with HubServer() as hub:
        add = tmp_path / "hub"
        checkpoint(hub, add, "example/small-0.6b", layers=28, hidden=1024, middle=3072, heads=16)
        checkpoint(hub, add, "example/known-1b", layers=28, hidden=2048, middle=6144, heads=16)
        checkpoint(
            hub, add, "example/giant-405b", layers=126, hidden=16384, middle=53248, heads=128
        )
        # What HF_ENDPOINT does at import.
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        yield Pull(tmp_path / "checkout", hub, monkeypatch)


def lines_of(text: str, needle: str) -> int:
    """The line, from 1, that holds `needle`."""
    return next(n for n, line in enumerate(text.splitlines(), 1) if needle in line)


BEFORE = HEAD + BASE + EXCLUDED


def test_a_good_model(pull: Pull) -> None:
    """One screen: where it would run, for how long, and what to do next."""
    pull.propose(HEAD + BASE + SMALL + EXCLUDED, before=BEFORE)
    told = pull.preview_as_a_step()
    assert (told.code, told.annotations, told.error) == (0, [], "")
    golden_files.check("preview-good.md", told.summary)
    assert told.log == told.summary  # the log holds the page for readers without a browser


def test_good_and_ill_formed_and_oversized(pull: Pull) -> None:
    """An error on its line, a warning on that of the refused model, and the good one as well."""
    wrong = "  - id: example/wrong\n    tsk: text-generation\n"
    text = HEAD + BASE + SMALL + wrong + GIANT + EXCLUDED
    pull.propose(text, before=BEFORE)
    told = pull.preview()
    assert told.code == CatalogError.exit_code
    assert told.annotations == [
        f"::error file=models.yaml,line={lines_of(text, 'tsk')},col=5,title=model list::"
        'unknown key "tsk"; did you mean "task"?',
        f"::warning file=models.yaml,line={lines_of(text, 'giant')},col=5,title=refused%3A "
        "too_large::example/giant-405b: its weights take 752.8 GiB and 16 cores have 384.0 GiB",
    ]
    golden_files.check("preview-mixed.md", told.summary)


def test_altered(pull: Pull) -> None:
    """What is known of a model, what altered fields and settings mean, and what is no more."""
    before = (
        HEAD.replace("host_gib: 124", "host_gib: 124, usd_per_hour: 2.5")
        + BASE
        + SMALL
        + "  - {id: example/leaves, task: text-generation}\n"
        + EXCLUDED
    )
    after = (
        before.replace("limit_minutes: 240", "limit_minutes: 120")
        .replace("[Once upon a time,", "[Once upon a time in the west,")
        .replace("  - {id: example/leaves, task: text-generation}\n", "")
        .replace(SMALL, SMALL + "    cores: 2\n    note: Two, to see\n")
        .replace("later perhaps", "soon")
    ) + "  - {id: example/moe, task: text-generation, reason: not_prioritised, note: later}\n"
    run = papers.run("example/small-0.6b", stack=papers.stack(torch="2.14.0"))
    pull.propose(after, before=before)
    # Not committed: Parquet names pyarrow's version, and the page names the commit.
    published(pull.root / "results", [papers.passing(run)])
    told = pull.preview()
    assert (told.code, told.annotations) == (0, [])
    golden_files.check("preview-altered.md", told.summary)


def test_nothing(pull: Pull) -> None:
    """Another order and other comments are no change, and the Hub is not asked."""
    pull.propose(HEAD + "  # one\n" + BASE + EXCLUDED, before=BEFORE)
    told = pull.preview()
    assert (told.code, told.annotations, pull.hub.log) == (0, [], [])
    golden_files.check("preview-nothing.md", told.summary)


def test_many_problems(pull: Pull) -> None:
    """Ten annotations are shown, so the tenth tells of the others; the summary lists all."""
    wrong = "".join(f"  - id: example/m{n}\n    task: text-generatoin\n" for n in range(12))
    pull.propose(HEAD + BASE + wrong + EXCLUDED, before=BEFORE)
    told = pull.preview()
    assert told.code == CatalogError.exit_code
    assert len(told.annotations) == 10
    assert all(line.startswith("::error file=models.yaml,line=") for line in told.annotations)
    more = "(and 2 more: the job's summary lists them all)"
    assert [line.endswith(more) for line in told.annotations] == [False] * 9 + [True]
    assert told.summary.count("did you mean") == 12
    golden_files.check("preview-problems.md", told.summary)


def test_models_that_cannot_run(pull: Pull) -> None:
    """What does not exist fails the check; what is gated, or has no weights to load, only warns."""
    checkpoint(
        pull.hub,
        pull.root.parent / "hub",
        "example/gated-1b",
        layers=28,
        hidden=2048,
        middle=6144,
        heads=16,
        gated="auto",
    )
    pull.hub.add("example/old-format", {"config.json": b'{"model_type": "qwen3"}'})
    names = ("gated-1b", "gone", "old-format")
    entries = "".join(f"  - {{id: example/{name}, task: text-generation}}\n" for name in names)
    text = HEAD + BASE + entries + EXCLUDED
    pull.propose(text, before=BEFORE)
    told = pull.preview()
    assert told.code == HubError.exit_code
    assert [line.partition(",title=")[0] for line in told.annotations] == [
        f"::{level} file=models.yaml,line={lines_of(text, name)},col=5"
        for level, name in (("error", "gone"), ("warning", "gated"), ("warning", "old-format"))
    ]
    golden_files.check("preview-refused.md", told.summary)


def test_a_hub_that_is_away(pull: Pull) -> None:
    """It says nothing of the model: a warning, and no failed check."""
    pull.propose(HEAD + BASE + SMALL + EXCLUDED, before=BEFORE)
    pull.patch.setattr(constants, "HF_HUB_OFFLINE", True)
    told = pull.preview()
    assert told.code == 0
    (line,) = told.annotations
    assert line.startswith("::warning file=models.yaml,line=21,col=5,title=could not be read now::")
    assert "## 1 model added: it could not be read now" in told.summary
    assert "run this job again later: the change is not at fault | planned anew |" in told.summary
    assert "refused" not in told.summary


# What it is compared with


def test_a_list_below_the_root_is_named_from_there(pull: Pull) -> None:
    """GitHub knows files by their path from the repository's root, wherever the command stands."""
    pull.propose(HEAD + "  - {id: 7}\n", name="campaign/models.yaml", before=BEFORE)
    told = pull.preview(cwd="campaign")
    assert told.code == CatalogError.exit_code
    assert all("::error file=campaign/models.yaml,line=20" in line for line in told.annotations)
    assert "## campaign/models.yaml has 2 problems" in told.summary
    assert "`qualify validate --list campaign/models.yaml` checks it" in told.summary
    assert pull.preview("--list", "campaign/models.yaml").annotations == told.annotations


def test_a_new_list_adds_every_model(pull: Pull) -> None:
    """Without a list before, all of it is new, and no setting counts as changed."""
    pull.propose(BEFORE)
    told = pull.preview()
    assert told.code == 0
    assert told.summary.startswith("## 1 model added: it would run\n")


def test_all_commits_of_a_change_count(pull: Pull) -> None:
    """The base is what is merged with, not the commit before the last one."""
    other = "  - {id: example/giant-405b, task: text-generation}\n"
    pull.propose(HEAD + BASE + SMALL, HEAD + BASE + SMALL + other, before=HEAD + BASE)
    assert pull.preview().summary.startswith("## 2 models added: 1 would run, 1 is refused\n")


@pytest.mark.parametrize("shape", ["head", "one commit", "a head that is a merge"])
def test_a_checkout_that_cannot_tell_the_base_is_an_error(pull: Pull, shape: str) -> None:
    """HEAD^1 of anything but GitHub's merge is another commit than the base: never a false "no
    change"."""
    pull.propose(HEAD + BASE + SMALL + EXCLUDED, "later" + HEAD, before=BEFORE)
    if shape == "head":
        pull.git("checkout", "--quiet", "change")
    elif shape == "one commit":
        shallow = pull.root.parent / "shallow"
        pull.git("clone", "--quiet", "--depth=1", f"file://{pull.root}", str(shallow))
        pull.root = shallow
    else:
        pull.event({"pull_request": {"head": {"sha": pull.git("rev-parse", "HEAD")}}})
    (pull.root / "models.yaml").write_text(HEAD + BASE + SMALL + EXCLUDED)
    told = pull.preview()
    assert told.code == EnvironmentFault.exit_code
    (line,) = told.annotations
    assert line.startswith("::error file=models.yaml,line=1,col=1,title=the change could not be")
    assert told.summary.startswith("## The change could not be previewed\n")
    assert "fetch-depth: 2" in told.summary or "HEAD is not the merge" in told.summary


def test_another_base(pull: Pull) -> None:
    """A commit or a file may be named; outside of a pull request HEAD^1 is the commit before."""
    pull.propose(HEAD + BASE + SMALL + EXCLUDED, before=BEFORE)
    told = pull.preview("--base", "HEAD")
    assert "asks for the same as before" in told.summary
    (pull.root / "other.yaml").write_text(HEAD + BASE + EXCLUDED)
    assert "## 1 model added" in pull.preview("--base", "other.yaml").summary
    pull.git("checkout", "--quiet", "change")
    pull.event({})
    told = pull.preview(GITHUB_EVENT_NAME="workflow_dispatch")
    assert told.summary.startswith("## 1 model added: it would run\n")
    assert "/qualify" not in told.summary  # there is no pull request to say it in
    assert "no commit --help" in pull.preview("--base", "--help").summary.replace("&#45;", "-")


def test_a_base_that_is_invalid_itself(pull: Pull) -> None:
    """Its sound entries are what a change is held against, and the page says so."""
    broken = HEAD + BASE + "  - {id: example/broken}\n" + EXCLUDED
    pull.propose(HEAD + BASE + SMALL + EXCLUDED, before=broken)
    told = pull.preview()
    assert told.code == 0
    assert "## 1 model added: it would run" in told.summary
    assert "The list of the base has 1 problem itself" in told.summary


def test_no_list_at_all(pull: Pull) -> None:
    """A change that takes the list away breaks the campaign."""
    pull.propose(BEFORE, before=BEFORE)
    (pull.root / "models.yaml").unlink()
    told = pull.preview()
    assert told.code == CatalogError.exit_code
    assert "cannot be read: No such file or directory" in told.summary


def test_outside_of_a_repository(pull: Pull, tmp_path: Path) -> None:
    """An error that says what to do."""
    pull.propose(BEFORE, before=BEFORE)
    told = pull.preview("--list", str(tmp_path / "models.yaml"))
    assert told.code == EnvironmentFault.exit_code
    assert "is in no git repository" in told.error


def test_results_of_another_branch(pull: Pull) -> None:
    """Where results are published beside main, what is known is read there."""
    pull.propose(HEAD + BASE + SMALL + EXCLUDED, before=BEFORE)
    pull.git("checkout", "--quiet", "--orphan", "published")
    published(pull.root / "results", [papers.passing(papers.run("example/small-0.6b"))])
    pull.commit({}, "results")
    pull.git("checkout", "--quiet", "--detach", "main")
    pull.git("merge", "--quiet", "--no-ff", "--message", "merge", "change")
    assert "no result yet" in pull.preview().summary
    pull.git("remote", "add", "origin", str(pull.root))
    told = pull.preview(QUALIFY_BRANCH="published")
    link = "[PASS, 2026-11-30](https://github.com/example/campaign/blob/published/COMPATIBILITY.md)"
    assert link in told.summary


# What a list can hold


def test_yaml_that_nothing_can_read(pull: Pull) -> None:
    """No word on the models, and none that they would run."""
    pull.propose(HEAD + BASE + "  - {id: example/small-0.6b\n", before=BEFORE)
    told = pull.preview()
    assert (told.code, pull.hub.log) == (CatalogError.exit_code, [])
    assert "What the models of this change would do is not known before that." in told.summary


def test_problems_outside_of_the_entries(pull: Pull) -> None:
    """With broken settings nothing can be placed."""
    text = (HEAD + BASE + SMALL + EXCLUDED).replace("gib: 2,", "gib: two,")
    pull.propose(text, before=BEFORE)
    told = pull.preview()
    assert (told.code, pull.hub.log) == (CatalogError.exit_code, [])
    assert "is not known before that" in told.summary


def test_a_list_that_cannot_be_planned(pull: Pull) -> None:
    """Rules that only planning knows end in an error that the page explains."""
    lines = (HEAD + BASE + SMALL).splitlines(keepends=True)
    pull.propose("".join(line for line in lines if "  trn2-" not in line), before=HEAD + BASE)
    told = pull.preview()
    assert told.code == UsageError.exit_code
    assert "stack neuron is of target neuron, and no runner class is" in told.summary


def test_two_stacks(pull: Pull) -> None:
    """Every default stack has its line, and a model that one of them has no machine for says so."""
    head = HEAD.replace("stacks: [neuron]", "stacks: [neuron, cpu]")
    tied = "  - {id: example/giant-405b, task: text-generation, runner: laptop}\n"
    pull.propose(head + BASE + SMALL + tied, before=head + BASE)
    told = pull.preview()
    assert told.code == 0
    assert "## 2 models added: 1 would run, 1 is refused" in told.summary
    neuron = "neuronx-cc 2.28.7631.0, transformers 5.24.0, torch 2.14.0"
    cpu = "transformers 5.24.0, torch 2.13.0"
    rows = [line.split(" | ")[:3] for line in told.summary.splitlines() if "| `" in line]
    assert rows[:4] == [
        ["| `example/small-0.6b`", neuron, "would run"],
        ["| `example/small-0.6b`", cpu, "would run"],
        ["| `example/giant-405b`", neuron, "no run here"],
        ["| `example/giant-405b`", cpu, "refused: too large"],
    ]
    assert "its runner class laptop is not of target neuron" in told.summary


def up_to_date(pull: Pull, text: str) -> None:
    """Publish a PASS of yesterday for every run of that list, as the planner asks for it."""
    path = pull.root / "models.yaml"
    pull.root.mkdir(exist_ok=True)
    path.write_text(text)
    nowhere = Path(os.devnull)
    facts = pull.root.parent / "facts"
    made = make_plan(path, nowhere / "none", nowhere, facts, Request(force=True))
    at = datetime.now(UTC) - timedelta(days=1)
    published(pull.root / "results", [papers.passing(run, at) for run in made.runs])


def test_settings_that_make_others_due(pull: Pull) -> None:
    """The count is the planner's: other prompts are other scripts, another age limit is none."""
    before = HEAD.replace("limit_minutes", "max_age_days: 30\n  limit_minutes") + BASE + SMALL
    up_to_date(pull, before)
    pull.propose(before.replace("_days: 30", "_days: 20"), before=before)
    told = pull.preview()
    assert told.summary.startswith("## 1 setting changed\n")
    assert "- changes settings: defaults.max_age_days: 30 → 20\n" in told.summary
    assert "The changed settings make no other run due.\n" in told.summary
    after = before.replace("_days: 30", "_days: 20").replace("Water boils", "Ice melts")
    pull.commit({"models.yaml": after}, "on top")
    pull.event({})
    told = pull.preview()
    assert "- changes settings: defaults.prompts\n" in told.summary
    machine = r"about \d+ machine-minutes, price not stated"
    assert re.search(f"settings make 2 other runs due: {machine}\\.\n", told.summary)


def test_an_alteration_that_changes_no_run(pull: Pull) -> None:
    """A note is for people: the result there is stays good, and nothing is promised to run."""
    before = HEAD + BASE + SMALL
    up_to_date(pull, before)
    pull.propose(before + "    note: for people\n", before=before)
    told = pull.preview()
    assert told.summary.startswith("## 1 model altered: it is not due\n")
    assert "| `example/small-0.6b`<br>note set to for people | not due | " in told.summary
    assert "COMPATIBILITY.md); not due |\n" in told.summary


def test_hostile_text_stays_text(pull: Pull) -> None:
    """Nobody is mentioned, no markup works, no line of the log is a command but our own."""
    note = "@someone <img src=x> **b** #1 `x` [l](https://x.y) ::error::boo ##[error]boo | cell"
    entry = f"  - id: example/small-0.6b\n    task: text-generation\n    note: {json.dumps(note)}\n"
    excluded = EXCLUDED.replace("later perhaps", json.dumps(note))
    wrong = f"  - id: {json.dumps(note)}\n    task: text-generation\n"
    pull.propose(HEAD + BASE + entry + wrong + excluded, before=BEFORE + "")
    told = pull.preview()
    assert len(told.annotations) == 1
    others = [line for line in told.log.splitlines() if line not in told.annotations]
    assert not [line for line in others if line.lstrip().startswith("::") or "##[" in line]
    for markup in ("@", "<img", "**b", "#1", "`x`", "[l]", "::", "| cell"):
        assert markup not in told.summary.replace("**Next:**", "")
    assert "&#64;someone" in told.summary


def test_a_hundred_models(pull: Pull) -> None:
    """Still one table, below GitHub's limit, with one line for all of what they take."""
    small = pull.hub.repositories["example/small-0.6b"]
    for number in range(100):
        pull.hub.repositories[f"example/m{number}"] = small
    entries = "".join(
        f"  - {{id: example/m{number}, task: text-generation}}\n" for number in range(100)
    )
    pull.propose(HEAD + BASE + entries, before=HEAD + BASE)
    told = pull.preview()
    assert told.code == 0
    assert told.summary.startswith("## 100 models added: 100 would run\n")
    assert sum(line.startswith("| `") for line in told.summary.splitlines()) == 100
    assert re.search(r"Together 100 runs, about \d+ machine-minutes, price not", told.summary)
    assert len(told.summary.encode()) < MAX_SUMMARY_BYTES / 10


def test_more_models_than_are_looked_up(pull: Pull) -> None:
    """The others are counted, not asked for: the Hub would refuse."""
    count = MOST_MODELS + 3
    entries = "".join(
        f"  - {{id: example/m{number}, task: text-generation}}\n" for number in range(count)
    )
    pull.propose(HEAD + BASE + entries, before=HEAD + BASE)
    told = pull.preview()
    assert told.code == HubError.exit_code
    assert len(pull.hub.log) == MOST_MODELS
    assert len(told.annotations) == 10
    assert "3 more models of this change are not looked up" in told.summary


def test_problems_beyond_count(workflow: Workflow) -> None:
    """However many there are, GitHub shows the page."""
    text = HEAD + "".join(f"  - {'x' * 90}{number}\n" for number in range(700))
    seen = Preview(read(text.encode(), "models.yaml"), "models.yaml", "0" * 40)
    told = preview_page.page(seen, workflow, branch="main")
    assert len(seen.listed.problems) >= 700
    assert len(told.encode()) < MAX_SUMMARY_BYTES
    assert f"And {len(seen.listed.problems) - preview_page.MOST_PROBLEMS} more of them" in told


@pytest.fixture
def workflow() -> Workflow:
    return Workflow("example/campaign", "1", 1, "pull_request", {})


@pytest.mark.parametrize("failure", Failure)
def test_every_refusal_has_a_remedy(failure: Failure, workflow: Workflow) -> None:
    """A contributor is never left with a class alone."""
    from pipeline.actions.preview import Forecast
    from pipeline.catalog import Model

    model = Model.model_validate({"id": "a/b", "task": "text-generation"})
    refusal = {"failure": failure, "reason": "why"}
    run = papers.refused("a/b", refusal=refusal)
    one = Forecast(model, run.run_id, run, None, True, "never run")
    assert len(preview_table._remedy(one)) > 20
    assert len(preview_table._merged(one)) > 5
