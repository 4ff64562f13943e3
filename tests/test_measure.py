"""`qualify measure`: who may be measured, real figures of a real model, and bounded time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner, Result

from pipeline import measure
from pipeline import results as store
from pipeline.cli import main
from pipeline.cli.planning import one_run
from pipeline.errors import UsageError
from pipeline.measure import Places, Qualification, Request, measuring
from pipeline.record import Record, Run
from pipeline.words import Failure, Parallelism, Target, Task
from tests import papers

MODEL = "demo/tiny"
LIST = """\
defaults:
  stacks: [cpu]
  new_tokens: 32
  dtype: bfloat16
  prefill_chunk: 32
  max_age_days: 30
  limit_minutes: 20
  margin: {{gib: 0.5, fraction: 0.2}}
  judge: org/judge
  prompts:
    text-generation: [Once upon a time, The sun was setting, When I was a child]
    image-text-to-text: [Describe the picture., What it is., Tell me what you see.]
runners:
  laptop: {{target: cpu, labels: [laptop], machines: 1, cores: 2, core_gib: 2, host_gib: 6}}
stacks:
  cpu: {{target: cpu, library_version: "{transformers}", torch: "{torch}"}}
models:
  - {{id: demo/tiny, task: text-generation, source: {source}}}
"""
ONE = ("--prompt-tokens=8", "--batch=1,2", "--new-tokens=6", "--repeats=2", "--no-store")


def qualify(*arguments: str) -> Result:
    """The command in the working directory."""
    return CliRunner().invoke(main, ["measure", MODEL, *arguments])


@pytest.fixture
def asked(models: Callable[[str], Path], in_tmp: Path) -> Run:
    """The run that the list in the working directory asks for."""
    told = {name: version(name).partition("+")[0] for name in ("torch", "transformers")}
    Path("models.yaml").write_text(LIST.format(source=models("tiny-gpt2"), **told))
    nowhere = Path(os.devnull)
    return one_run(MODEL, Path("models.yaml"), nowhere, in_tmp / "build/facts", ())


def publish(*records: Record) -> None:
    """results/ of these records."""
    results = Path("results")
    store.write(store.prepare(results, [store.row_of(record) for record in records]).files)


def sharded(asked: Run, cores: int = 2) -> Run:
    placed = papers.placement(cores, parallelism=Parallelism.TENSOR)
    return asked.model_copy(update={"placement": placed})


# --- who may be measured ------------------------------------------------------------------------


def test_without_results_nothing_is_measured(asked: Run) -> None:
    """Neither the default folder nor a named one that is not there counts for a PASS."""
    assert asked.placement is not None
    ended = qualify()
    assert ended.exit_code == 6 and "no published results" in ended.output
    assert qualify("--results=nowhere", "--unqualified").exit_code == 6
    assert not Path("build/measure").exists()


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (
            lambda run: papers.passing(papers.run("other/model")),
            "results have no row of it on this stack",
        ),
        (lambda run: papers.failing(run), "its row is FAIL (compiler_error)"),
        (lambda run: papers.erring(run), "its row is ERROR (download)"),
        (
            lambda run: papers.passing(run.model_copy(update={"revision": "f" * 40})),
            f"its PASS is of revision {'f' * 40}",
        ),
        (
            lambda run: papers.passing(run.model_copy(update={"dtype": "float16"})),
            "its PASS is of dtype float16",
        ),
        (
            lambda run: papers.passing(sharded(run, 4)),
            "its PASS is of another placement: 4 cores, tensor parallel; planned: 1 core\n",
        ),
    ],
)
def test_only_a_pass_of_the_same_counts(
    asked: Run, record: Callable[[Run], Record], reason: str
) -> None:
    """Same model, stack, revision, dtype and placement; anything else is refused by name."""
    publish(record(asked))
    ended = qualify()
    assert ended.exit_code == 2
    assert f"is not qualified: {reason}" in ended.output
    assert "--unqualified" in ended.output
    assert not Path("build/measure").exists()


def test_a_pass_qualifies(asked: Run) -> None:
    """With its date and its run, for the report."""
    record = papers.passing(asked)
    publish(record)
    found = measure.qualification(asked, Path("results"))
    assert (found.reason, found.placement) == (None, asked.placement)
    assert (found.tested_at, found.run_url) == ("2026-11-30T08:00:00Z", record.run_url)


def test_the_placement_that_passed_is_measured(asked: Run) -> None:
    """When more cores were needed than planned, those are what was qualified."""
    larger = papers.placement(2, parallelism=Parallelism.TENSOR)
    publish(papers.passing(sharded(asked)))
    planned = asked.model_copy(update={"larger": (larger,)})
    assert measure.qualification(planned, Path("results")).placement == larger


# --- bad options --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--batch=1,x", "'x' is not a whole number from 1 to"),
        ("--batch=", "'' is not a whole number"),
        ("--batch=0", "'0' is not a whole number"),
        ("--prompt-tokens=-3", "'-3' is not a whole number"),
        ("--prompt-tokens=1.5", "'1.5' is not a whole number"),
        ("--prompt-tokens=9999999999999999999", "is not a whole number from 1 to 131072"),
        ("--prompt-tokens=8,8", "names a number twice"),
        (f"--batch={','.join(map(str, range(1, 18)))}", "17 numbers, 16 at most"),
        ("--new-tokens=0", "0 is not in the range"),
        ("--repeats=0", "0 is not in the range"),
        ("--usd-per-hour=-1", "-1.0 is not in the range"),
        ("--usd-per-hour=nan", "not a finite number"),
        ("--limit-minutes=0", "0.0 is not in the range"),
        ("--limit-minutes=inf", "not a finite number"),
    ],
)
def test_bad_options_are_named(in_tmp: Path, option: str, message: str) -> None:
    """Before any list is read."""
    ended = qualify(option)
    assert ended.exit_code == 2
    assert message in ended.output


def test_options_that_exclude_each_other(in_tmp: Path) -> None:
    """A store cannot be used and not be used."""
    ended = qualify("--store=x", "--no-store")
    assert ended.exit_code == 2 and "exclude each other" in ended.output


def _request(**changes: Any) -> Request:
    fields: dict[str, Any] = {
        "prompt_tokens": (8,),
        "new_tokens": 4,
        "batches": (1,),
        "repeats": 1,
        "usd_per_hour": None,
        "limit_s": 60,
    }
    return Request(**(fields | changes))


def _measured(
    output: Path, run: Run | None = None, request: Request | None = None
) -> measure.Measurement:
    run = run or papers.run(stack=papers.stack(Target.CPU))
    placed = run.placement
    assert placed is not None
    return measure.measure(
        run, request or _request(), Qualification(placed, None), Places(output), lambda _: None
    )


def test_an_earlier_measurement_is_never_overwritten(tmp_path: Path) -> None:
    """A folder with anything in it is refused, and left as it is."""
    (tmp_path / "measure.json").write_text("earlier")
    with pytest.raises(UsageError, match="not an empty folder"):
        _measured(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["measure.json"]


def test_pictures_are_not_measured(tmp_path: Path) -> None:
    """Prompts are counted in tokens of text."""
    run = papers.run(stack=papers.stack(Target.CPU), task=Task.IMAGE_TEXT_TO_TEXT)
    with pytest.raises(UsageError, match="only text generation"):
        _measured(tmp_path / "out", run)


def test_too_many_sizes(tmp_path: Path) -> None:
    """Each compiles: nobody means so many."""
    request = _request(prompt_tokens=tuple(range(1, 17)), batches=tuple(range(1, 6)))
    with pytest.raises(UsageError, match="80 sizes are too many, 64 at most"):
        _measured(tmp_path / "out", request=request)


# --- the script's end ---------------------------------------------------------------------------


def test_a_hang_ends_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its whole process group with it, and every size is told as not measured."""
    hang = "import subprocess, time\nsubprocess.Popen(['sleep', '654'])\ntime.sleep(654)\n"
    monkeypatch.setattr(measuring, "render", lambda *_: hang)
    made = _measured(tmp_path / "out", request=_request(limit_s=1))
    assert made.error == "no end within 1 s; it was at stage download"
    assert [point.standing for point in made.points] == ["not measured"]
    alive = [one.info["cmdline"] for one in psutil.process_iter(["cmdline"])]
    assert ["sleep", "654"] not in alive
    assert not (tmp_path / "out/work").exists()


def test_a_script_that_dies_is_diagnosed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words that runs have, with what it had measured until then, and its log is kept."""
    text = (
        "import json\n"
        "json.dump({'stage': 'compile', 'error_type': 'SIGKILL', 'error_message': 'rank 0 died'},"
        " open('run.json', 'w'))\n"
        "print('so far', flush=True)\n"
        "raise SystemExit(137)\n"
    )
    monkeypatch.setattr(measuring, "render", lambda *_: text)
    made = _measured(tmp_path / "out")
    assert made.error is not None
    assert f"{Failure.KILLED} at stage compile" in made.error
    assert (tmp_path / "out/log.txt").read_text() == "so far\n"
    assert (tmp_path / "out/measure.py").read_text() == text


def test_a_measurement_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and it says so."""
    monkeypatch.setattr(measuring, "render", lambda *_: "import time\ntime.sleep(655)\n")
    run = papers.run(stack=papers.stack(Target.CPU))
    assert run.placement is not None
    places = Places(tmp_path / "out")
    places.stop.set()
    made = measure.measure(
        run, _request(), Qualification(run.placement, None), places, lambda _: None
    )
    assert made.error == "interrupted"


# --- a real model -------------------------------------------------------------------------------


def _disturbed(render: Callable[[Run, Request], str]) -> Callable[[Run, Request], str]:
    """The script with two faults: in the fourth call the third token is late; before the eighth,
    the graphs are forgotten. Two calls of each size warm up, two are measured."""

    def made(run: Run, request: Request) -> str:
        text = render(run, request)
        for before, after in (
            (
                "        self.ticks: list[float] = []\n",
                "        self.ticks: list[float] = []\n"
                "        Clock.made = getattr(Clock, 'made', 0) + 1\n"
                "        if Clock.made == 8:\n"
                "            import torch\n"
                "            torch._dynamo.reset()\n",
            ),
            (
                "        self.ticks.append(time.perf_counter())\n",
                "        if Clock.made == 4 and len(self.ticks) == 3:\n"
                "            time.sleep(0.5)\n"
                "        self.ticks.append(time.perf_counter())\n",
            ),
        ):
            assert text.count(before) == 1
            text = text.replace(before, after)
        return text

    return made


@pytest.mark.long
def test_a_real_model_on_the_cpu(asked: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a qualified model every size is told: one that stands, with the injected slow step in its
    figures; one that compiled while it was measured, as invalid; one that is too long."""
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")  # the machine's vector units, not asked for
    monkeypatch.setattr(measuring, "render", _disturbed(measuring.render))
    publish(papers.passing(asked))
    ended = qualify(*ONE, "--prompt-tokens=8,4000", "--usd-per-hour=2", "--output=out", "--json")
    assert ended.exit_code == 0, ended.output
    told = json.loads(Path("out/measure.json").read_text())
    good, recompiled, *long = told["points"]

    assert (good["standing"], good["reasons"]) == ("valid", [])
    assert [len(call["token_s"]) for call in good["calls"]] == [5, 5]
    assert good["calls"][1]["token_s"][1] >= 0.5
    assert good["token"]["most"] == good["token"]["p99"] == good["calls"][1]["token_s"][1]
    assert good["token"]["samples"] == 10 and good["first_token"]["samples"] == 2
    for call in good["calls"]:
        assert call["first_token_s"] + sum(call["token_s"]) <= call["wall_s"]
    wall_s = sum(call["wall_s"] for call in good["calls"])
    assert good["tokens_per_s"] == pytest.approx(12 / wall_s)
    assert good["usd_per_million"] == pytest.approx(2 / 2 / 3600 / (12 / wall_s) * 1e6)
    assert (good["graphs"], good["compiled"], good["compiled_while_measured"]) == (2, 2, 0)
    assert len(good["warm_up_s"]) == 2
    assert good["peak_bytes"][0] > 2**26

    assert recompiled["standing"] == "invalid"
    assert "the compiler was at work in the measured calls: 2 graphs" in recompiled["reasons"][0]
    assert recompiled["usd_per_million"] is None

    assert [one["standing"] for one in long] == ["not measured"] * 2
    assert "positions for" in long[0]["reasons"][0]

    assert told["error"] is None and told["qualification"]["qualified"] is True
    assert told["versions"]["torch"] == version("torch")
    assert {path.name for path in Path("out").iterdir()} == {
        *("measure.json", "measure.svg", "report.md", "measure.py", "log.txt")
    }
