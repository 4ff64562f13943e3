# ruff: noqa: PTH102, PTH103, PTH113, PTH118, PTH120, PTH123
# pathlib takes longer to import than all of this takes to run.
"""In place of actions/upload-artifact: copies files to a folder of the run's artifacts.

https://github.com/actions/upload-artifact (README): a name is unique within a run unless it may be
overwritten; the tree keeps what stands below the least common ancestor of the searched paths, and a
searched path ends before its first wildcard; hidden files are left out; links are followed; names
with characters that a file system of another kind lacks are refused.
"""

import os
import sys

WILD = set("*?[")
BAD_IN_NAME, BAD_IN_PATH = set('":<>|*?\r\n\\/'), set('":<>|*?\r\n')


def fail(message: str) -> None:
    """End the step."""
    print(f"::error::{message}")
    sys.exit(1)


def base(pattern: str) -> str:
    """Where the search for an absolute pattern starts."""
    parts = pattern.split("/")
    plain = next((at for at, part in enumerate(parts) if WILD & set(part)), len(parts))
    return "/".join(parts[:plain])


def below(path: str) -> list[str]:
    """A file itself, or every file in a directory."""
    if os.path.isfile(path):
        return [path]
    walked = os.walk(path, followlinks=True)
    return [os.path.join(folder, name) for folder, _, names in walked for name in names]


def fits(names: list[str], parts: list[str]) -> bool:
    """Whether the pattern's parts name the path, or a directory that it stands in."""
    if not parts:
        return True
    if parts[0] == "**":
        return any(fits(names[skipped:], parts[1:]) for skipped in range(len(names)))
    return bool(names) and alike(names[0], parts[0]) and fits(names[1:], parts[1:])


def alike(name: str, part: str) -> bool:
    """Whether a part of a pattern names the file or folder."""
    if not WILD & set(part):
        return name == part
    from fnmatch import fnmatchcase

    return fnmatchcase(name, part)


def matches(pattern: str) -> set[str]:
    """Files that an absolute pattern names."""
    start = base(pattern)
    parts = pattern.removeprefix(start).split("/")[1:]
    return {file for file in below(start) if fits(file.removeprefix(start).split("/")[1:], parts)}


workspace = os.environ["GITHUB_WORKSPACE"]
lines = [line.strip() for line in os.environ["PATHS"].splitlines() if line.strip()]
wanted = [os.path.normpath(os.path.join(workspace, line)) for line in lines if line[0] != "!"]
unwanted = [os.path.normpath(os.path.join(workspace, line[1:])) for line in lines if line[0] == "!"]
files = set().union(*map(matches, wanted)) - set().union(*map(matches, unwanted))
root = os.path.commonpath([base(pattern) for pattern in wanted])
if root in files:
    root = os.path.dirname(root)
if os.environ["INCLUDE_HIDDEN_FILES"] != "true":
    # The root's own name counts, too.
    above = os.path.dirname(root)
    files = {file for file in files if "/." not in file.removeprefix(above)}

name = os.environ["NAME"]
if BAD_IN_NAME & set(name):
    fail(f"The artifact name is not valid: {name}")
if not files:
    message = f"No files were found with the provided path: {', '.join(lines)}."
    match os.environ["IF_NO_FILES_FOUND"]:
        case "error":
            fail(message)
        case "warn":
            print(f"::warning::{message} No artifacts will be uploaded.")
    sys.exit(0)
for file in sorted(files):
    if BAD_IN_PATH & set(file.removeprefix(root)):
        fail(f"The path for one of the files in artifact is not valid: {file}")

target = os.path.join(os.environ["ARTIFACTS"], os.environ["GITHUB_RUN_ID"], name)
os.makedirs(os.path.dirname(target), exist_ok=True)
if os.environ["OVERWRITE"] == "true":
    import shutil

    shutil.rmtree(target, ignore_errors=True)
try:
    os.mkdir(target)
except FileExistsError:
    fail("Failed to CreateArtifact: (409) Conflict: an artifact with this name already exists")
for file in files:
    copy = target + file.removeprefix(root)
    os.makedirs(os.path.dirname(copy), exist_ok=True)
    with open(file, "rb") as here, open(copy, "wb") as there:
        there.write(here.read())
print(f"Artifact {name} has been successfully uploaded: {len(files)} files")
