"""The branch of a dataset of the Hub, through the Hub's client: its head, its files, one commit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.phrases import counted

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TIMEOUT_S = 30.0
BRANCH = "main"


@dataclass(frozen=True)
class Remote:
    """A file of the dataset. sha256: of large files; blob: git's name of the others' content."""

    size: int
    sha256: str | None
    blob: str

    def holds(self, data: bytes) -> bool:
        if len(data) != self.size:
            return False
        if self.sha256 is not None:
            return hashlib.sha256(data).hexdigest() == self.sha256
        return git_blob(data) == self.blob


def git_blob(data: bytes) -> str:
    """Git's name of a content: what the Hub calls `oid` of a file that is not stored as large."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def branch_head(api: HfApi, repo_id: str) -> tuple[str, dict[str, Remote]]:
    """(the commit that the branch is at, its files by path)."""
    from huggingface_hub.hf_api import RepoFile

    info = api.dataset_info(repo_id, revision=BRANCH, timeout=TIMEOUT_S)
    if not info.sha:
        raise ValueError("no commit")
    tree = api.list_repo_tree(repo_id, repo_type="dataset", revision=info.sha, recursive=True)
    return info.sha, {
        one.path: Remote(one.size, one.lfs.sha256 if one.lfs else None, one.blob_id)
        for one in tree
        if isinstance(one, RepoFile)
    }


def download(api: HfApi, repo_id: str, head: str, path: str, folder: Path) -> Path:
    """A file as it was at `head`, in `folder`."""
    return Path(
        api.hf_hub_download(repo_id, path, repo_type="dataset", revision=head, local_dir=folder)
    )


def commit_to(
    api: HfApi, repo_id: str, head: str, files: Mapping[str, bytes], removed: Sequence[str]
) -> str:
    """Add files and remove others in one commit on top of `head`; the new head."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    # Bytes, not paths: what is sent is what was checked, whatever happens to the folder meanwhile.
    operations: list[Any] = [
        CommitOperationAdd(path_in_repo=path, path_or_fileobj=data) for path, data in files.items()
    ]
    operations += [CommitOperationDelete(path, is_folder=False) for path in removed]
    new = sum(path.startswith("history/") for path in files)
    told = counted(new, "publication") if new else "The same publications"
    made = api.create_commit(
        repo_id,
        operations,
        commit_message=f"{told}: {len(files)} files changed, {len(removed)} removed",
        repo_type="dataset",
        revision=BRANCH,
        parent_commit=head,
    )
    return made.oid


@contextmanager
def quiet() -> Iterator[None]:
    """Without the client's progress bars, which would stand between the lines of a command."""
    from huggingface_hub.utils import (  # type: ignore[attr-defined] # exported lazily
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
