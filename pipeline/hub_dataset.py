"""results/ as a dataset of the Hub: what is sent, in one commit on top of the head that was read.

    README.md                    the card, made from the rows (dataset_card)
    current/, history/           as below results/, nothing but Parquet
    models.json, rankings/       as below results/

The Hub is asked for its head, what differs is decided, and the commit names that head as its
parent, so that it is refused when somebody else was quicker; then all is decided anew. The same
cure serves a commit whose answer was lost: if it went through, nothing differs any more.

Publications are never taken back. Those that the dataset holds and this folder does not are
fetched, checked, and current/ is derived from all of them, so that no publisher undoes another's.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from pipeline import dataset_card, rankings, wishes
from pipeline import results as store
from pipeline.errors import EnvironmentFault, ResultsError, UsageError
from pipeline.hub_branch import Remote, branch_head, commit_to, download, quiet
from pipeline.hub_faults import TOKEN, explained, wait
from pipeline.lookup import parquet_files
from pipeline.rows import SCHEMA, Row, canonical
from pipeline.words import Target

if TYPE_CHECKING:
    from huggingface_hub import HfApi

BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Waits between the seven attempts. Each conflict means that another publisher got through."""
MAX_WAIT_S = 300.0
"""Longest single wait that the server can ask for: the Hub counts requests in windows of five
minutes (https://huggingface.co/docs/hub/rate-limits)."""

_REPO = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}", re.ASCII)
_PREFIXES = ("hf://datasets/", "https://huggingface.co/datasets/", "datasets/")


@dataclass(frozen=True)
class Pushed:
    """What came of it. commit: the branch's head with all of it. sent, removed: paths in the
    dataset; both () when it was there already. joined: publications that only the dataset had.
    attempts: how often the head was read."""

    repo_id: str
    url: str
    commit: str
    sent: tuple[str, ...]
    removed: tuple[str, ...]
    joined: tuple[str, ...]
    attempts: int

    def __str__(self) -> str:
        """Lines for people."""
        lines = [f"  sent {path}" for path in self.sent]
        lines += [f"  removed {path}" for path in self.removed]
        lines += [
            f"  joined with history/{name}, which only the dataset has" for name in self.joined
        ]
        did = f"{len(self.sent)} sent, {len(self.removed)} removed" if lines else "nothing to send"
        return "\n".join([f"{self.url} is at {self.commit[:12]}: {did}", *lines])

    def plain(self) -> dict[str, object]:
        """As JSON holds it."""
        return asdict(self)


def repo_of(text: str) -> str:
    """OWNER/NAME of a dataset, also where it is written as an address. UsageError if it is none."""
    prefix = next((one for one in _PREFIXES if text.startswith(one)), "")
    name = text.removeprefix(prefix).rstrip("/")
    if not _REPO.fullmatch(name) or "--" in name or ".." in name:
        raise UsageError(f"{text!r} is no dataset of the Hub", remedy="write OWNER/NAME")
    return name


def token() -> str:
    """The write token in HF_TOKEN; EnvironmentFault when there is none, or none that can be one.

    No other place is looked at: a login kept on this machine may be a person's, with other rights.
    """
    value = os.environ.get(TOKEN, "").strip()
    if not re.fullmatch(r"[\x21-\x7e]+", value):
        raise EnvironmentFault(
            f"{TOKEN} holds no token",
            remedy=f"set {TOKEN} to a token that may write to the dataset: "
            "https://huggingface.co/settings/tokens",
        )
    return value


def push(
    results: Path,
    repo: str,
    *,
    token: str,
    endpoint: str | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Pushed:
    """Make the dataset `repo` hold what `results` does, in one commit; see the module's docstring.

    repo: as `repo_of` takes it; it must exist. endpoint: the Hub's address; None = HF_ENDPOINT or
    the public Hub. sleep: how to wait between attempts, in seconds.

    ResultsError, before anything is asked of the Hub, when `results` is not whole (`check`).
    HubError, without a text of the client or the server, when the Hub refuses or stays away.
    """
    repo_id = repo_of(repo)
    check(results)
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint, token=token, library_name="trn-qualify")
    with quiet():
        return _push(api, results, repo_id, sleep)


def _push(api: HfApi, results: Path, repo_id: str, sleep: Callable[[float], object]) -> Pushed:
    what = f"dataset {repo_id}"
    waits = iter(BACKOFF_S)
    attempts = 0
    tried = _Wanted({}, (), ())
    while True:
        attempts += 1
        try:
            head, there = branch_head(api, repo_id)
            wanted = _decide(api, results, repo_id, head, there)
            if wanted.files or wanted.removed:
                tried = wanted
                commit = commit_to(api, repo_id, head, wanted.files, wanted.removed)
            else:
                # Nothing is left to do: of an earlier attempt only the answer was lost.
                commit = head
            return Pushed(
                repo_id=repo_id,
                url=f"{api.endpoint}/datasets/{repo_id}",
                commit=commit,
                sent=tuple(tried.files),
                removed=tried.removed,
                joined=wanted.joined,
                attempts=attempts,
            )
        except ResultsError:
            raise
        # The client documents no closed set: its HTTP library's errors, OSError, RuntimeError of a
        # transfer, and ValueError, KeyError or TypeError on an answer that is not what it expects.
        except Exception as error:
            asked = wait(error)
            pause = next(waits, None)
            if asked is None or pause is None:
                raise explained(error, what, attempts) from error
        sleep(max(pause, min(asked, MAX_WAIT_S)))


# --- what is sent -------------------------------------------------------------------------------


def check(results: Path) -> None:
    """ResultsError (RecordError for a ranking) unless everything that would be sent is whole.

    Every Parquet file is read with the project's own reader, which holds the rows against their
    digest, and is of today's schema; no row is of the simulator; current/ is what history says.
    """
    current, history = store.read_current(results), store.read_history(results)
    if not current:
        raise ResultsError(
            "there are no published results", where=str(results), remedy="publish records first"
        )
    for path in (*parquet_files(results / "current"), *parquet_files(results / "history")):
        if not pq.read_schema(path).remove_metadata().equals(SCHEMA):
            raise ResultsError(
                "is of an older schema, and all files of a dataset need one",
                where=str(path),
                remedy="publish records with this version, which rewrites all files",
            )
    for row in (*current, *history):
        if _simulated(row):
            raise ResultsError(
                f"{row['run_id']} comes from the simulator, which is a test double",
                where=str(results),
                remedy="publish rows of the targets neuron and cpu only",
            )
        if dataset_card.of_trainium(row["run_id"]) != (row["target"] == Target.NEURON):
            # Readers of the dataset tell the two apart by the folder as well.
            raise ResultsError(
                f"{row['run_id']} is of target {row['target']}, which its name is not",
                where=str(results),
                remedy="take the file that holds it back from git",
            )
    if list(map(canonical, store.merge(history))) != list(map(canonical, current)):
        raise ResultsError(
            "current/ is not what history/ says",
            where=str(results),
            remedy="take both back from git, or remove current/ and publish records again",
        )
    wishes.read(results)
    rankings.read(results)


def _simulated(row: Row) -> bool:
    """As evidence.simulated, of a row: the stand-in's packages say so in their versions."""
    named = ("neuronx_cc", "torch_neuronx", "torch", "nki", "runtime", "neuron_driver", "image")
    told = (row["library_version"], *(row[name] for name in named))
    return row["target"] == Target.SIMULATOR or any(
        "simulator" in text.lower() for text in told if text
    )


def files(results: Path, repo_id: str) -> dict[str, bytes]:
    """Path in the dataset -> content, of all that `results` makes of it."""
    rows = store.read_current(results)
    publications = parquet_files(results / "history")
    found = {"README.md": dataset_card.card(rows, repo_id, len(publications)).encode()}
    kept = [*parquet_files(results / "current"), *publications]
    others = [results / wishes.FILE]
    others += [results / rankings.FOLDER / snapshot.name for snapshot in rankings.read(results)]
    kept += [path for path in others if path.is_file()]
    return found | {path.relative_to(results).as_posix(): path.read_bytes() for path in kept}


# --- what differs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Wanted:
    """What a commit changes. joined: history files that only the dataset had."""

    files: Mapping[str, bytes]
    removed: tuple[str, ...]
    joined: tuple[str, ...]


def _decide(
    api: HfApi, results: Path, repo_id: str, head: str, there: Mapping[str, Remote]
) -> _Wanted:
    ours = {path.name for path in parquet_files(results / "history")}
    theirs = {
        path.removeprefix("history/")
        for path in there
        if path.startswith("history/") and path.endswith(".parquet")
    }
    joined = sorted(theirs - ours)
    _same_publications(api, results, repo_id, head, there)
    if joined:
        with tempfile.TemporaryDirectory() as folder:
            joint = Path(folder) / "results"
            shutil.copytree(results, joint)
            _fetch(api, repo_id, head, joined, joint)
            local = files(joint, repo_id)
    else:
        local = files(results, repo_id)
    if joined and max(theirs) > max(ours):
        # The dataset holds a newer publication, and with it a newer list and newer rankings.
        local = {
            path: data
            for path, data in local.items()
            if path not in there or not _of_the_list(path)
        }
    changed = {
        path: data
        for path, data in sorted(local.items())
        if path not in there or not there[path].holds(data)
    }
    removed = sorted(path for path in there if path.startswith("current/") and path not in local)
    return _Wanted(changed, tuple(removed), tuple(joined))


def _of_the_list(path: str) -> bool:
    return path == wishes.FILE or path.startswith(f"{rankings.FOLDER}/")


def _same_publications(
    api: HfApi, results: Path, repo_id: str, head: str, there: Mapping[str, Remote]
) -> None:
    """ResultsError unless what the dataset holds under the name of one of ours has its rows.

    Its bytes may differ: after a change of columns every file is written anew, here first. That the
    dataset is ahead instead, or holds what was changed by hand, must not be overwritten.
    """
    for path in parquet_files(results / "history"):
        name = f"history/{path.name}"
        if name not in there or there[name].holds(path.read_bytes()):
            continue
        with tempfile.TemporaryDirectory() as folder:
            theirs = download(api, repo_id, head, name, Path(folder))
            try:
                same = store.load(theirs) == store.load(path)
            except ResultsError as error:
                raise _unjoined(repo_id, f"{name}: {error.reason}") from error
        if not same:
            raise _unjoined(repo_id, f"{name} has other rows than the one here")


def _fetch(api: HfApi, repo_id: str, head: str, names: list[str], results: Path) -> None:
    """Bring publications of the dataset into `results`, and derive current/ from all of them."""
    for name in names:
        if "/" in name:
            raise _unjoined(repo_id, f"history/{name} is no publication of this project")
        with tempfile.TemporaryDirectory() as folder:
            path = download(api, repo_id, head, f"history/{name}", Path(folder))
            shutil.copyfile(path, results / "history" / name)
    try:
        store.migrate(results)
        store.rebuild(results)
        check(results)
    except ResultsError as error:
        # The folder is a temporary one: a name in it helps nobody beyond its last parts.
        where = "/".join(error.where.split("/")[-2:])
        raise _unjoined(repo_id, f"{where}: {error.reason}") from error


def _unjoined(repo_id: str, reason: str) -> ResultsError:
    return ResultsError(
        f"what it holds cannot be joined with what is here: {reason}",
        where=f"dataset {repo_id}",
        remedy="nothing was sent; use the newest version of this project, or look into the "
        "dataset's commits",
    )
