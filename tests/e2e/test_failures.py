"""What ends a run for real: a rank that fails or is killed, a damaged checkpoint, another stack."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from demo.build_models import PROMPTS
from pipeline import runner, script
from pipeline.hub import directory_revision
from pipeline.record import Record, Run
from pipeline.words import Failure, Parallelism, Result, Stage, Target
from tests import papers


def _asked(model: Path, cores: int = 2) -> Run:
    stack = papers.stack(Target.CPU, torch="2.13.0")
    return papers.run(
        f"demo/{model.name}",
        stack=stack,
        source=str(model),
        revision=directory_revision(model),
        placement=papers.placement(
            cores, parallelism=Parallelism.TENSOR if cores > 1 else Parallelism.NONE
        ),
        prompts=PROMPTS,
        new_tokens=8,
        prefill_chunk=32,
        script_sha256=None,
        limit_s=300,
    )


@pytest.fixture
def settings(tmp_path: Path) -> runner.Settings:
    return runner.Settings(tmp_path / "records", None, None, "nobody")


def test_a_failing_rank_ends_all_with_its_traceback(
    models: Callable[[str], Path], settings: runner.Settings
) -> None:
    """Forced past placement, 3 key/value heads over 2 ranks fail; the cause is shown and kept."""
    said: list[str] = []
    record = runner.run(_asked(models("tiny-llama-3-kv-heads")), settings, said.append)
    told = "\n".join(said)
    assert record.result is Result.FAIL
    assert record.stage in (Stage.LOAD, Stage.COMPILE)
    assert record.error and "invalid for input of size" in record.error
    assert record.observation and record.observation.error_rank in (0, 1)
    assert "Traceback (most recent call last)" in told
    assert "all ranks were ended" in told


def test_a_rank_killed_from_outside(
    models: Callable[[str], Path], settings: runner.Settings
) -> None:
    """SIGKILL of one rank while all compile: the others go too, the record says who and where."""
    killed: list[int] = []
    ended = threading.Event()

    def kill_rank_1() -> None:
        while not (killed or ended.is_set()):
            for process in psutil.Process().children(recursive=True):
                if "--rank=1" in process.cmdline() and said and "compile" in said[-1]:
                    process.kill()
                    killed.append(process.pid)
            time.sleep(0.1)

    said: list[str] = []
    thread = threading.Thread(target=kill_rank_1)
    thread.start()
    try:
        record: Record = runner.run(_asked(models("tiny-qwen3")), settings, said.append)
    finally:
        ended.set()
        thread.join()
    assert killed
    assert (record.stage, record.failure) == (Stage.COMPILE, Failure.KILLED)
    assert record.error and "rank 1 died of SIGKILL" in record.error
    assert record.observation and record.observation.error_rank == 1


def test_a_damaged_checkpoint_fails_where_it_should(
    models: Callable[[str], Path], settings: runner.Settings, tmp_path: Path
) -> None:
    """Weights that do not fit their config: FAIL at load, with the library's own words."""
    broken = tmp_path / "broken"
    shutil.copytree(models("tiny-qwen3"), broken)
    config = broken / "config.json"
    config.write_text(
        config.read_text().replace('"intermediate_size": 128', '"intermediate_size": 96')
    )
    assert '"intermediate_size": 96' in config.read_text()
    record = runner.run(_asked(broken, cores=1), settings, print)
    assert (record.stage, record.failure) == (Stage.LOAD, Failure.LOAD_ERROR)
    assert record.error and "size" in record.error


def test_another_torch_than_asked_for(
    models: Callable[[str], Path], settings: runner.Settings
) -> None:
    """A record is never made on another stack than its row would name."""
    model = models("tiny-gpt2")
    stack = papers.stack(Target.CPU, torch="2.12.0")
    asked = papers.run(
        "demo/tiny-gpt2", stack=stack, source=str(model), script_sha256=None, limit_s=60
    )
    record = runner.run(asked, settings, print)
    assert (record.stage, record.failure) == (Stage.DOWNLOAD, Failure.WRONG_STACK)
    assert record.error and "torch 2.12.0 is asked for" in record.error


def test_by_hand_another_torch_is_a_note(models: Callable[[str], Path], tmp_path: Path) -> None:
    """A reader who replays a script on another stack is told, not stopped."""
    stack = papers.stack(Target.CPU, torch="2.12.0")
    asked = papers.run("demo/none", stack=stack, source=str(tmp_path / "nothing"))
    (tmp_path / "run.py").write_text(script.render(asked))
    done = subprocess.run(
        [sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "note: torch 2.12.0 is asked for" in done.stderr
    assert done.returncode == 1
    assert "holds no checkpoint" in done.stderr
