"""Where results are read from: a clone, a site, or a dataset of the Hub, all as a local folder.

What comes over the network is kept, and stands in when nothing can be reached: `copies`, whose
libraries a folder needs none of.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ResultsError


@dataclass(frozen=True)
class Source:
    """Results in a folder of this machine, whatever they were named by.

    name: as they were named. results: the folder with current/ and history/. listed: the model
    list beside them, None where there is none. notice: what a reader must know of them, such as
    that they are a copy of some time ago; "" = nothing.
    """

    name: str
    results: Path
    listed: Path | None
    notice: str = ""


def open_source(text: str, *, cache: Path | None = None) -> Source:
    """The results that `text` names.

    text: a folder, either of results or one that holds `results/`, as a clone does; the address of
    a site that `qualify site` made, https:// or http://; or hf://datasets/OWNER/NAME[@REVISION].
    cache: folder for copies of sites; None = `cache_folder()`. Those of datasets are kept where
    huggingface_hub keeps them.

    ResultsError when there are no results, or they cannot be had.
    """
    if text.startswith(("https://", "http://")):
        from pipeline import copies

        copy = copies.site(text.rstrip("/"), cache or cache_folder())
    elif text.startswith("hf://"):
        from pipeline import copies

        copy = copies.dataset(text)
    else:
        return _folder(text, Path(text))
    return _folder(text, copy.folder, copy.notice)


def cache_folder() -> Path:
    """Where copies of sites are kept: $XDG_CACHE_HOME/trn-qualify, or below ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "trn-qualify"


def _folder(name: str, folder: Path, notice: str = "") -> Source:
    if (folder / "results" / "current").is_dir():
        results = folder / "results"
    elif (folder / "current").is_dir():
        results = folder
    else:
        raise ResultsError(
            "there are no published results",
            where=name,
            remedy="name another --results: a folder, the address of a site, or "
            "hf://datasets/OWNER/NAME",
        )
    beside = (results if results == folder else folder, results.parent)
    lists = [place / "models.yaml" for place in beside]
    return Source(name, results, next((path for path in lists if path.is_file()), None), notice)
