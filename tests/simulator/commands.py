"""The command line on a machine of the stand-in, and a list of models for it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

_LIST = """
defaults:
  stacks: [simulator]
  limit_minutes: 30
  margin: {{gib: 0.1, fraction: 0.05}}
  judge: {judge}
  prompts:
    text-generation: [The old lighthouse, My grandmother, The small town]
    image-text-to-text: [Describe the picture, What is it, Which colour]
runners:
  simulated: {{target: simulator, labels: [none], cores: {cores}, core_gib: 1, host_gib: 16}}
stacks:
  simulator:
    target: simulator
    library_version: "5.24.0"
    torch: "2.13.0"
    torch_neuronx: "2.13.3.0"
    neuronx_cc: "2.28.7631.0"
    nki: "0.7.0"
models:
{models}
"""


def write_list(folder: Path, judge: Path, cores: int, *models: Mapping[str, Any]) -> None:
    """models.yaml in `folder`: a machine class of so many cores, and these entries."""
    entries = "\n".join(f"  - {json.dumps(model)}" for model in models)
    (folder / "models.yaml").write_text(_LIST.format(judge=judge, cores=cores, models=entries))


def qualify(
    python: Path, folder: Path, environment: Mapping[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """`qualify` with these arguments in `folder`, whatever its exit code."""
    return subprocess.run(
        [str(python), "-m", "pipeline.cli", *arguments],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
