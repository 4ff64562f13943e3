# ruff: noqa: PTH103, PTH104, PTH110, PTH118, S606
# pathlib takes longer to import than all of this takes to run.
"""In place of actions/checkout: fetches one commit of the repository into the job's workspace.

https://github.com/actions/checkout (README, "Usage"): without `ref` the commit that started the
run; `fetch-depth` commits of its history, 0 = all of every branch; `persist-credentials` leaves the
token in the clone's configuration; `path` is below the workspace. Inputs that checkout/action.yml
does not list have no effect, so tests/workflows/test_files.py refuses them.

What was fetched for one commit is copied for the next job that wants the same.
"""

import os


def fetch(clone: str) -> None:
    """Make the clone, as git on a hosted machine would."""
    import base64
    import subprocess

    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=clone, check=True)

    git("init", "--quiet", "--template=", "--initial-branch", "main")
    git("remote", "add", "origin", f"{SERVER}/{os.environ['GITHUB_REPOSITORY']}")
    if os.environ["PERSIST_CREDENTIALS"] == "true":
        secret = base64.b64encode(f"x-access-token:{os.environ['TOKEN']}".encode()).decode()
        git("config", f"http.{SERVER}/.extraheader", f"AUTHORIZATION: basic {secret}")
    if DEPTH == "0":
        every = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
        git("fetch", "--quiet", "origin", *every)
    depth = () if DEPTH == "0" else ("--depth", DEPTH)
    git("fetch", "--quiet", "--no-tags", *depth, "origin", REF or COMMIT)
    branch = REF or os.environ["GITHUB_REF"].removeprefix("refs/heads/")
    on_branch = not branch.startswith("refs/") and len(branch) != 40
    there = ("-B", branch) if on_branch else ("--detach",)
    git("checkout", "--quiet", "--force", *there, "FETCH_HEAD")


def kept() -> str:
    """The clone of this commit, made by this step or by an earlier one of the run."""
    key = "-".join(
        (COMMIT, DEPTH, os.environ["GITHUB_REF_NAME"], os.environ["PERSIST_CREDENTIALS"])
    )
    place = os.path.join(os.environ["ARTIFACTS"], f"checkout-{key.replace('/', '-')}")
    if not os.path.exists(place):
        mine = f"{place}.{os.getpid()}"
        os.makedirs(mine)
        fetch(mine)
        try:
            os.rename(mine, place)
        except OSError:  # another job was faster
            return mine
    return place


SERVER, COMMIT = os.environ["GITHUB_SERVER_URL"], os.environ["GITHUB_SHA"]
REF, DEPTH = os.environ["REF"], os.environ["FETCH_DEPTH"]

target = os.path.join(os.environ["GITHUB_WORKSPACE"], os.environ["CHECKOUT_PATH"])
os.makedirs(target, exist_ok=True)
if REF or DEPTH == "0":  # branches move
    fetch(target)
else:
    os.execlp("cp", "cp", "--archive", f"{kept()}/.", target)
