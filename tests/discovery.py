"""A small world for tests of proposals: a Hub with checkpoints, GitHub, a repository, rankings."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pipeline import rankings
from pipeline.actions.candidates import Look, looker
from pipeline.actions.github import GitHub
from pipeline.actions.proposals import Desk
from pipeline.actions.workflow import Workflow
from pipeline.catalog import parse
from pipeline.rankings import Ranked, Ranking, Snapshot
from pipeline.words import Task
from tests import jobs
from tests.github_server import GitHubServer, Pull
from tests.hub_server import HubServer
from tests.origins import Origin, git

NOW = datetime(2026, 11, 30, 7, 0, tzinfo=UTC)
BRANCH = "qualify/proposals"

LIST = """\
# What is wanted.
defaults:
  stacks: [sdk]
  limit_minutes: 60
  margin: {gib: 0, fraction: 0.0}
  prompts:
    text-generation: [One, Two, Three]
    image-text-to-text: [One, Two, Three]
runners:
  trn2-3xlarge: {labels: [self-hosted, trn2-3xlarge], cores: 4, core_gib: 0.05, host_gib: 124}
stacks:
  sdk:
    target: neuron
    library_version: "5.24.0"
    torch: "2.14.0"
    neuronx_cc: "2.28.7631.0"
    torch_neuronx: "2.14.3.0"
models:
  # The first of all
  - id: listed/one
    task: text-generation
excluded:
  - id: excluded/one
    task: text-generation
    reason: incompatible
    note: The compiler fails on its decode graph.
    issue: https://github.com/aws-neuron/aws-neuron-sdk/issues/1362
"""


def swollen(small: Path, out: Path, gib: float) -> Path:
    """The checkpoint in `small` with an embedding of so many GiB, which takes no space on disk."""
    out.mkdir(parents=True)
    data = (small / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    name = "model.embed_tokens.weight"
    width = header[name]["shape"][1]
    rows = int(gib * 2**30 / 2 / width)
    header[name] |= {"shape": [rows, width], "dtype": "BF16"}
    at = 0
    for tensor, entry in header.items():
        start, stop = entry["data_offsets"]
        count = rows * width * 2 if tensor == name else stop - start
        entry["data_offsets"] = [at, at + count]
        at += count
    head = json.dumps(header).encode()
    with (out / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(head)) + head)
        stream.truncate(8 + len(head) + at)
    (out / "config.json").write_bytes((small / "config.json").read_bytes())
    return out


def ranked(
    names: Sequence[str],
    *,
    task: Task = Task.TEXT_GENERATION,
    ranking: Ranking = Ranking.TRENDING,
    without: Iterable[str] = (),
) -> Snapshot:
    """A ranking of `names`, those `without` safetensors by the Hub's listing."""
    rows = tuple(
        Ranked(
            rank=rank,
            id=name,
            downloads=1_000_000 // rank,
            likes=10,
            trending_score=float(100 - rank),
            library_name="transformers",
            gated=False,
            parameters=None if name in set(without) else 600_000,
        )
        for rank, name in enumerate(names, 1)
    )
    return Snapshot(task=task, ranking=ranking, taken_at=NOW, rows=rows)


@dataclass
class World:
    """hub, github: servers. origin: the repository; root: a checkout of its main."""

    folder: Path
    hub: HubServer
    github: GitHubServer
    origin: Origin
    root: Path
    waits: list[float] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)
    """Ids that were looked up, in order."""

    @classmethod
    def make(cls, folder: Path, hub: HubServer, github: GitHubServer, listed: str = LIST) -> World:
        origin = Origin.make(folder, {"models.yaml": listed})
        return cls(folder, hub, github, origin, origin.checkout(folder / "checkout"))

    def publish(self, *snapshots: Snapshot) -> None:
        """Somebody commits rankings to main."""
        files = {f"results/rankings/{one.name}": rankings.dump(one).decode() for one in snapshots}
        self.origin.write(files)

    @property
    def environment(self) -> Mapping[str, str]:
        """Of a job in which a command runs."""
        return jobs.variables(
            self.folder,
            github=self.github,
            HF_ENDPOINT=self.hub.url,
            HF_HUB_DISABLE_TELEMETRY="1",
        )

    def desk(self) -> Desk:
        """The desk of one job: main checked out anew, its rankings read."""
        git(self.root, "fetch", "--quiet", "origin", "main")
        git(self.root, "reset", "--quiet", "--hard", "origin/main")
        catalog = parse((self.root / "models.yaml").read_bytes(), file="models.yaml")
        look = looker(
            catalog, self.root, {}, now=NOW, endpoint=self.hub.url, sleep=self.waits.append
        )
        return Desk(
            github=GitHub(
                self.github.repository,
                self.github.token,
                self.github.url,
                seconds_between_writes=0,
                sleep=self.waits.append,
            ),
            workflow=Workflow.here(self.environment),
            root=self.root,
            list_name="models.yaml",
            base="main",
            tree=self.root / "build" / "proposals",
            catalog=catalog,
            rankings=rankings.read(self.root / "results"),
            look=self._noting(look),
        )

    def _noting(self, look: Look) -> Look:
        def noting(models):  # type: ignore[no-untyped-def]
            self.looked_at += [model.id for model in models]
            return look(models)

        return noting

    @property
    def pull(self) -> Pull:
        """The newest pull request."""
        return self.github.pulls[max(self.github.pulls)]

    def proposed(self) -> list[str]:
        """What the branch adds to main."""
        on_main = self.origin.text("models.yaml")
        on_branch = self.origin.text("models.yaml", BRANCH)
        ids = [
            [model.id for model in parse(one.encode(), file="x").models]
            for one in (on_main, on_branch)
        ]
        return [name for name in ids[1] if name not in ids[0]]

    def untick(self, *names: str) -> None:
        """A person unticks boxes of the pull request."""
        for name in names:
            assert f"- [x] `{name}`" in (self.pull.body or "")
            self.pull.body = (self.pull.body or "").replace(f"- [x] `{name}`", f"- [ ] `{name}`")

    def merge(self, edit: Callable[[str], str] = lambda text: text) -> None:
        """A person merges the pull request, after an edit of its list."""
        text = edit(self.origin.text("models.yaml", BRANCH))
        self.origin.write({"models.yaml": text})
        self.pull.state, self.pull.merged = "closed", True

    def close(self) -> None:
        """A person closes it."""
        self.pull.state = "closed"
