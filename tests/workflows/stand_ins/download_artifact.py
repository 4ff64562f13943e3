# ruff: noqa: PTH103, PTH112, PTH118, PTH208
# pathlib takes longer to import than all of this takes to run.
"""In place of actions/download-artifact: puts artifacts of the run into the workspace.

https://github.com/actions/download-artifact (README): one by `name`, whose files come right below
`path` and which must exist; or all that fit `pattern`, each in a folder of its name unless they are
merged, and none is no error. Symbolic links are kept: what tests put into the store stays as
hostile as they made it.
"""

import os
import sys


def put(source: str, target: str) -> None:
    """The files below `source` in `target`, as further names of the same: a sparse file of
    gigabytes stays one."""
    os.makedirs(target, exist_ok=True)
    for entry in os.scandir(source):
        place = os.path.join(target, entry.name)
        if entry.is_dir(follow_symlinks=False):
            put(entry.path, place)
        else:
            os.link(entry.path, place, follow_symlinks=False)


store = os.path.join(os.environ["ARTIFACTS"], os.environ["GITHUB_RUN_ID"])
target = os.path.join(os.environ["GITHUB_WORKSPACE"], os.environ["DOWNLOAD_PATH"])
name, pattern = os.environ["NAME"], os.environ["PATTERN"] or "*"
if name:
    found = [name]
    if not os.path.isdir(os.path.join(store, name)):
        print(f"::error::Unable to download artifact(s): Artifact not found for name: {name}")
        sys.exit(1)
else:
    from fnmatch import fnmatchcase

    there = sorted(os.listdir(store)) if os.path.isdir(store) else []
    found = [one for one in there if fnmatchcase(one, pattern)]
flat = bool(name) or os.environ["MERGE_MULTIPLE"] == "true"
for one in found:
    put(os.path.join(store, one), target if flat else os.path.join(target, one))
print(f"Total of {len(found)} artifact(s) downloaded")
