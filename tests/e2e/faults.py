"""Machines and artifacts that fail: what runs in place of two commands of the workflow."""

from __future__ import annotations

import sys

SECRET = "the-secret-of-the-machine"  # noqa: S105 - of the test's own machine
"""Content of a file that no artifact may bring to the branch: `secret` beside the repository."""

# By the model of the job: killed while it runs; gone with all it had; back with half a record; or
# back with what an attacker likes. The good one restores its graphs from the first dispatch.
IN_JOBS = f"""#!{sys.executable}
import os, pathlib, signal, subprocess, sys, time
import psutil
sys.path.insert(0, os.environ["PACKAGE"])
from pipeline.record import Plan, read

plan = read(Plan, pathlib.Path("build/plan.json"))
(job,) = [job for job in plan.jobs if job.job_id == sys.argv[4]]
name = job.runs[0].model_id.removeprefix("demo/")
command = [os.environ["REAL_QUALIFY"], *sys.argv[1:]]
folder = pathlib.Path("build/records") / job.runs[0].run_id / "1"
if name == "tiny-gemma3":
    os.execv(command[0], command)
elif name == "tiny-qwen3":
    # A machine that goes away: nobody ends its processes in order.
    started = subprocess.Popen(command)
    record = folder / "record.json"
    while not record.exists() or '"download"' not in record.read_text():
        time.sleep(0.05)
    family = psutil.Process(started.pid)
    for process in [family, *family.children(recursive=True)]:
        process.kill()
    sys.exit(137)
elif name == "tiny-llama-3-kv-heads":
    (kept,) = pathlib.Path(os.environ["WORLD"], "artifacts", "1").glob(
        "records-*/demo--tiny-llama-3-kv-heads@*/1/record.json")
    folder.mkdir(parents=True)
    (folder / "record.json").write_bytes(kept.read_bytes()[:3_000])
elif name == "tiny-gpt-oss":
    folder.mkdir(parents=True)
    (folder / "record.json").write_text('{{"schema_version": 10000}}')
"""

# What no upload of GitHub's would take, but a store could hold: links, holes, and odd names.
HOSTILE = f"""#!{sys.executable}
import os, pathlib, sys

artifacts = pathlib.Path("build/artifacts")
world = pathlib.Path(os.environ["WORLD"])
(victim,) = artifacts.glob("records-*/demo--tiny-gpt-oss@*/1")
(victim / "link").mkdir()
(victim / "link" / "record.json").symlink_to(world / "secret")
(victim / "folder").symlink_to(world)
(victim / "huge").mkdir()
with (victim / "huge" / "record.json").open("wb") as file:
    file.truncate(5 * 2**30)
(victim / "::error::owned").mkdir()
(victim / "::error::owned" / "record.json").write_text(
    '{{"run": {{"run_id": "../../../../pwned@a@b@c", "model_id": "../../pwned"}}}}')
(artifacts / "records-nobody-1").mkdir()
(artifacts / "records-nobody-1" / "record.json").write_text("{{}}")
(artifacts / "records-tiny-gpt-oss-1-9").mkdir()
os.execv(os.environ["REAL_QUALIFY"], [os.environ["REAL_QUALIFY"], *sys.argv[1:]])
"""
