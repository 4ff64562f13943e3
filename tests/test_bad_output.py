"""Whatever a crashed process or a mad device leaves ends in a record with a reason, and in a row
that every page and command shows without harm.

Real processes throughout: only what run.py contains is replaced, and where a judge has to fail, the
program that it is.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
import threading
import unicodedata
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from pipeline import cli, judge, publish, runner, script, site
from pipeline import results as store
from pipeline.actions import on_demand_answer, on_demand_comment, publishing_page
from pipeline.actions.artifacts import Artifacts
from pipeline.actions.git import Pushed
from pipeline.actions.on_demand import Ask
from pipeline.actions.publishing import Publication
from pipeline.actions.workflow import Workflow
from pipeline.cli import running
from pipeline.errors import RecordError
from pipeline.record import Observation, Record, Run, parse, read, write
from pipeline.record.told import MAX_FAULTS, MAX_TEXT, MAX_TOLD_BYTES, read_told
from pipeline.words import CpuMatch, English, Failure, Stage, Target
from tests import papers
from tests.conftest import SEEN

CPU = papers.stack(Target.CPU)

# What run.py would have left had all gone well, and ways to leave something else.
BEGINNING = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
FACTS = json.loads({facts!r})
def put(**changes):
    text = json.dumps({{**FACTS, **changes}})
    Path(".new").write_text(text)
    Path(".new").replace("run.json")
def raw(data):
    Path(".new").write_bytes(data)
    Path(".new").replace("run.json")
def texts(text):
    put(generations=[{{**one, "text": text}} for one in FACTS["generations"]])
def tokens(first):
    put(generations=[{{**one, "tokens": [first, 8, 9, 10]}} for one in FACTS["generations"]])
def fails(**facts):
    put(stage="load", generations=[], **facts)
    sys.exit(1)
def whole():
    return json.dumps(FACTS).encode()
"""

HARNESS = "run.py ended well, and what it left is not as it writes it: run.json: "
UNKNOWN = "run.py ended with exit code 1 for a reason that is not known: run.json: "
NOBODY = (
    "neither the CPU reference (inputs.safetensors is not there) nor the judge (the judge ended "
    "with 1: RuntimeError: \N{REPLACEMENT CHARACTER}no\N{REPLACEMENT CHARACTER} such thing) ran"
)
ASK = "no known signature; docs/failures.md says how to add one"


@dataclass(frozen=True)
class Case:
    """What a script does, and what its record must say.

    error: the record's, up to where it is the reader's own affair. lost: fields of the observation
    that cannot be kept; None = none of it can.
    """

    does: str
    failure: Failure
    stage: Stage
    error: str
    lost: tuple[str, ...] | None = ()


def _broken(does: str, why: str, *lost: str) -> Case:
    return Case(does, Failure.HARNESS, Stage.CHECK, HARNESS + why, lost)


def _nothing(does: str, why: str) -> Case:
    return Case(does, Failure.HARNESS, Stage.DOWNLOAD, HARNESS + why, None)


CONTROLS = "".join(map(chr, [*range(32), *range(127, 160)]))
HIDDEN = "\u202egnp.exe\u202c \u200b\u2066x\u2069 \ufeff"

# What tokens may well stand for: a judge's affair.
TEXTS: Mapping[str, str] = {
    "controls": f"a{CONTROLS}b",
    "terminal": "\x1b[2J\x1b[31mred\x1b]0;title\x07\x9b31m\x1b",
    "workflow-command": "x\r::error::no\n::add-mask::a\n##[error]no",
    "hidden": HIDDEN,
    "markup": "<script>alert(1)</script> ![x](http://x) {{ 7 * 7 }} | `x` @everyone",
    "nul": "\0" * 400,
    "zero-width": "\u200b" * 400,
    "half-way": "a\N{REPLACEMENT CHARACTER}" * 400,
    "astral": "\U0010ffff" * 400,
    "combining": "e" + "\u0301" * 30_000,
    "long-word": "x" * MAX_TEXT,
}
# Of which nothing is left for a judge.
NO_TEXTS: Mapping[str, str] = {
    "spaces": " \n\t\r \u00a0\u2028" * 4_000,
    "empty": "",
    "special-tokens": "<|im_end|><|endoftext|></s><pad>",
    "half-characters": "\N{REPLACEMENT CHARACTER}" * 40,
}


def _texts(texts: Mapping[str, str], failure: Failure, error: str) -> dict[str, Case]:
    return {
        name: Case(f"texts({text!r})", failure, Stage.CHECK, error) for name, text in texts.items()
    }


CASES: Mapping[str, Case] = {
    **_texts(TEXTS, Failure.INCONCLUSIVE, NOBODY),
    **_texts(NO_TEXTS, Failure.NOT_FLUENT, "score "),
    # --- texts that no tokens can stand for ---
    "longer-word": _broken(
        f"texts('x' * {10**6})", f"generations: a text of {10**6} characters, cut to {MAX_TEXT}"
    ),
    "50-megabytes": _nothing(
        f"texts('x ' * {25 * 10**6})", f"it is larger than {MAX_TOLD_BYTES} bytes"
    ),
    "long-texts": _broken(
        "put(generations=[{'prompt': '', 'tokens': [1], 'text': '\u6c34' * 30_000}] * 20)",
        "generations: 3600860 bytes, which no row holds",
        "generations",
    ),
    "many-answers": Case(
        f"put(generations=FACTS['generations'] * {10**4})",
        Failure.HARNESS,
        Stage.CHECK,
        "30000 answers to 3 prompts",
    ),
    "half-a-character": _broken(
        r"raw(whole().replace(b' answer 0', b'\\ud800'))",
        "generations: half a character (a lone surrogate)",
    ),
    "no-utf-8": _broken(r"raw(whole().replace(b' answer 0', b'\xff\xfe'))", "byte 741 is no UTF-8"),
    # --- ids ---
    "negative-id": Case(
        "tokens(-1)",
        Failure.WRONG_TOKENS,
        Stage.CHECK,
        "prompt 1 gave an id outside the vocabulary of 151936",
    ),
    "id-of-64-bits": Case(
        "tokens(2**63 - 1)",
        Failure.WRONG_TOKENS,
        Stage.CHECK,
        "prompt 1 gave an id outside the vocabulary of 151936",
    ),
    "enormous-id": _broken(
        "tokens(10**30)", "generations.0.tokens.0: Input should be a valid integer", "generations"
    ),
    "endless-id": _broken(
        "raw(whole().replace(b'310.0', b'1' * 10**5))",
        "compile_s: Input should be a finite number",
        "compile_s",
    ),
    "fraction-as-id": _broken(
        "tokens(7.5)", "generations.0.tokens.0: Input should be a valid integer", "generations"
    ),
    "whole-fraction-as-id": _broken(
        "tokens(7.0)", "generations.0.tokens.0: Input should be a valid integer", "generations"
    ),
    "text-as-id": _broken(
        "tokens('7')", "generations.0.tokens.0: Input should be a valid integer", "generations"
    ),
    "truth-as-id": _broken(
        "tokens(True)", "generations.0.tokens.0: Input should be a valid integer", "generations"
    ),
    # --- numbers ---
    "nan": _broken(
        "put(compile_s=float('nan'))", "compile_s: Input should be a finite number", "compile_s"
    ),
    "infinity": _broken(
        "put(generate_s=float('inf'))", "generate_s: Input should be a finite number", "generate_s"
    ),
    "negative-time": _broken(
        "put(load_s=-1.0)", "load_s: Input should be greater than or equal to 0", "load_s"
    ),
    "age-of-the-universe": _broken(
        "put(load_s=1e308)", "load_s: Input should be less than or equal to 1000000000", "load_s"
    ),
    # --- shape ---
    "no-file": Case(
        "sys.exit(0)",
        Failure.DOWNLOAD,
        Stage.DOWNLOAD,
        f"run.py ended with exit code 0 and said nothing\n{ASK}",
        None,
    ),
    "empty-file": _nothing("raw(b'')", "it is no JSON: Expecting value: line 1 column 1 (char 0)"),
    "zeros": _nothing(
        r"raw(b'\0' * 4096)", "it is no JSON: Expecting value: line 1 column 1 (char 0)"
    ),
    "cut-short": _nothing(
        "raw(whole()[:10])", "it is no JSON: Unterminated string starting at: line 1 column 2"
    ),
    "list": _nothing("raw(b'[1]')", "it is not an object"),
    "nested": _nothing("raw(b'[' * 10**6)", "it is nested too deeply"),
    "nested-in-a-field": _broken(
        "raw(whole()[:-1] + b', \"versions\": ' + b'[' * 600 + b']' * 600 + b'}')",
        "versions: nested too deeply",
        "versions",
    ),
    "folder": _nothing("Path('run.json').mkdir()", "it cannot be read: Is a directory"),
    "pipe": _nothing("os.mkfifo('run.json')", "it cannot be read: run.json is no regular file"),
    "device": _nothing(
        "os.symlink('/dev/zero', 'run.json')", "it cannot be read: run.json is no regular file"
    ),
    "no-stage": _nothing(
        "FACTS.pop('stage'); put()",
        "stage: Input should be 'plan', 'download', 'load', 'compile', 'generate', 'check' or "
        "'done'",
    ),
    "no-answers": Case(
        "FACTS.pop('generations'); put()",
        Failure.HARNESS,
        Stage.CHECK,
        "0 answers to 3 prompts",
        ("generations",),
    ),
    "wrong-types": _broken(
        "put(versions='x', generations={}, repeatable='true', vocab_size='151936')",
        "versions: Input should be an object; generations: Input should be a valid array; "
        "repeatable: Input should be a valid boolean; vocab_size: Input should be a valid integer",
        *("versions", "generations", "repeatable", "vocab_size"),
    ),
    "unknown-fields": _broken(
        r"put(**{'\x1b[31m' * 10**5: 1, 'pass': True})", "fields that are none of its own: 2"
    ),
    "everything-wrong": _broken(
        "put(**{name: [[]] for name in FACTS if name != 'stage'})",
        "schema_version: Input should be a valid integer; versions: Input should be an object; "
        "download_s: Input should be a valid number; load_s: Input should be a valid number; "
        "compile_s: Input should be a valid number; ",
        *(name for name in papers.observation(CPU).model_fields_set if name != "stage"),
    ),
    # --- failures that are told badly ---
    "controls-in-the-error": Case(
        f"fails(error_type='ValueError', error_message={'no' + CONTROLS!r})",
        Failure.LOAD_ERROR,
        Stage.LOAD,
        f"ValueError: no{CONTROLS}\n{ASK}",
        ("generations",),
    ),
    "half-a-character-in-the-error": Case(
        r"fails(error_type='OSError', error_message='no /x/\udcff')",
        Failure.LOAD_ERROR,
        Stage.LOAD,
        f"OSError: no /x/\N{REPLACEMENT CHARACTER}\n{ASK}\n"
        "run.json: error_message: half a character (a lone surrogate)",
        ("generations",),
    ),
    "endless-error": Case(
        f"fails(error_type='E' * {10**6}, error_message='x' * {10**6})",
        Failure.LOAD_ERROR,
        Stage.LOAD,
        f"{'E' * 200}: x",
        ("generations",),
    ),
    "wrong-error": Case(
        "fails(error_type=7, error_message=[], error_rank=-1)",
        Failure.HARNESS,
        Stage.LOAD,
        UNKNOWN + "error_type: Input should be a valid string; error_message: Input should be a "
        "valid string; error_rank: Input should be greater than or equal to 0",
        ("generations",),
    ),
    "silent": Case(
        "put(stage='compile', generations=[]); seen('compile'); raw(b'{'); sys.exit(1)",
        Failure.HARNESS,
        Stage.COMPILE,
        UNKNOWN + "it is no JSON: Expecting property name enclosed in double quotes",
        ("generations",),
    ),
    "known-cause": Case(
        "raw(b'{'); print('No space left on device', file=sys.stderr); sys.exit(1)",
        Failure.DISK_FULL,
        Stage.DOWNLOAD,
        "run.py ended with exit code 1 and said nothing\nthe log says: No space left on device\n"
        "run.json: it is no JSON: Expecting property name enclosed in double quotes",
        None,
    ),
    "killed-while-writing": Case(
        "put(stage='generate', generations=[]); Path('.run.json.1').write_text('{\"stage');"
        "seen('generate'); os.kill(os.getpid(), signal.SIGKILL)",
        Failure.KILLED,
        Stage.GENERATE,
        "SIGKILL: run.py died of SIGKILL",
        ("generations",),
    ),
    "gone": Case(
        "put(stage='generate'); seen('generate'); Path('run.json').unlink(); os.abort()",
        Failure.CRASH,
        Stage.GENERATE,
        "SIGABRT: run.py died of SIGABRT\nrun.json: it is gone",
    ),
    # --- what is printed ---
    "broken-log": Case(
        r"sys.stdout.buffer.write(b'\xff\xfe\x00\x1b[2J\r::error::x\n##[error]x\n'); fails()",
        Failure.LOAD_ERROR,
        Stage.LOAD,
        f"run.py ended with exit code 1 and said nothing\n{ASK}",
        ("generations",),
    ),
    "broken-finding": Case(
        r"sys.stdout.buffer.write(b'\xff\x1b[31mFalling back to original GraphModule execution\r'"
        r"b'\0\n'); put()",
        Failure.CPU_FALLBACK,
        Stage.CHECK,
        "the log says: \N{REPLACEMENT CHARACTER}\x1b[31mFalling back to original GraphModule "
        "execution\r\0",
    ),
}

PYTHON = """\
#!{python}
import os, sys
if sys.argv[1] != "-m":
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
{judges}
"""

FAILS = r"""
sys.stdin.buffer.read()
sys.stderr.buffer.write(b"Traceback (most recent call last):\n\xff\n")
sys.exit("RuntimeError: \x1bno\x07 such thing")
"""


def _interpreter(folder: Path, judges: str) -> str:
    """A Python that does `judges` instead of running a module, such as the judge."""
    path = folder / "python"
    path.write_text(PYTHON.format(python=sys.executable, judges=textwrap.dedent(judges)))
    path.chmod(0o755)
    return str(path)


def _asked(model_id: str) -> Run:
    return papers.run(model_id, stack=CPU, script_sha256=None, limit_s=300)


FACTS = papers.observation(CPU).model_dump_json()


@dataclass(frozen=True)
class Ran:
    """Runs of scripts: their records, by name, as returned and on disk; what was said of each."""

    folder: Path
    records: dict[str, Record] = field(default_factory=dict)
    said: dict[str, list[str]] = field(default_factory=dict)

    def left(self, name: str) -> Record:
        """The record on disk."""
        run_id = self.records[name].run.run_id
        return read(Record, self.folder / run_id / "1" / "record.json")


def _run(folder: Path, scripts: Mapping[str, str], judges: str) -> Ran:
    """Run each of the scripts as its model's run.py, two at a time."""
    folder.mkdir(exist_ok=True)
    python = _interpreter(folder, judges)
    settings = runner.Settings(folder / "records", None, None, judge.DEFAULT_JUDGE, python=python)
    ran = Ran(folder / "records")

    def one(name: str) -> None:
        said = ran.said[name] = []

        def say(line: str) -> None:
            said.append(line[:200])  # a flood of lines is not kept here either

        ran.records[name] = runner.run(_asked(f"bad/{name}"), settings, say)

    beginning = BEGINNING.format(facts=FACTS) + SEEN
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(
            script, "render", lambda asked: beginning + scripts[asked.model_id.split("/")[1]]
        )
        list(pool.map(one, scripts))
    return ran


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """All of CASES."""
    scripts = {name: f"{case.does}\n" for name, case in CASES.items()}
    return _run(tmp_path_factory.mktemp("ran"), scripts, FAILS)


# --- from the script to its record ----------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_every_end_has_its_class_and_a_reason(ran: Ran, name: str) -> None:
    """Class, stage and reason say what happened; the first line of the reason is a sentence."""
    record, case = ran.records[name], CASES[name]
    assert (record.failure, record.stage) == (case.failure, case.stage)
    assert record.result is case.failure.result
    assert record.error and record.error.startswith(case.error)
    assert "Traceback" not in record.error
    assert not any("Traceback" in line for line in ran.said[name])


@pytest.mark.parametrize("name", CASES)
def test_nothing_else_is_lost(ran: Ran, name: str) -> None:
    """The record on disk is the one returned, with script, times and all that can be used."""
    record, case = ran.records[name], CASES[name]
    assert ran.left(name) == record
    assert record.run_py and "FACTS" in record.run_py
    assert record.wall_s and record.tested_at and record.log == "log.txt"
    assert record.exit_code is not None
    if case.lost is None:
        assert record.observation is None
        return
    assert record.observation is not None
    wanted = parse(Observation, FACTS, where="here")
    for one in Observation.model_fields.keys() - {"stage", *_TOLD_HERE}:
        kept, had = getattr(record.observation, one), getattr(wanted, one)
        if one not in case.lost:
            assert kept == had or one == "generations", one
        elif one != "versions":
            assert kept in (None, (), 1), one


_TOLD_HERE = ("error_type", "error_message", "error_rank")


def test_texts_are_kept_as_they_came(ran: Ran) -> None:
    """The record is evidence: what tokens stand for is not changed, and cut only where told."""
    for name, text in (
        ("controls", f"a{CONTROLS}b"),
        ("hidden", HIDDEN),
        ("empty", ""),
        ("longer-word", "x" * MAX_TEXT),
        ("half-a-character", "\N{REPLACEMENT CHARACTER}"),
    ):
        seen = ran.records[name].observation
        assert seen and seen.generations[0].text == text, name


def test_ids_that_a_tensor_can_hold_are_kept(ran: Ran) -> None:
    """Ids outside the vocabulary are what speaks against the run: they stand in its record."""
    for name, first in (("negative-id", -1), ("id-of-64-bits", 2**63 - 1)):
        seen = ran.records[name].observation
        assert seen and seen.generations[0].tokens == (first, 8, 9, 10)


def test_many_faults_are_counted(ran: Ran) -> None:
    """However much is wrong, a few faults are told and the rest is a number."""
    error = ran.records["everything-wrong"].error or ""
    assert len(error.split("; ")) == MAX_FAULTS + 1
    assert re.search(r"; \d+ more faults$", error)


def test_what_is_said_is_plain(ran: Ran) -> None:
    """Neither a terminal nor a workflow's log obeys anything that a script prints."""
    said = [line for lines in ran.said.values() for line in lines]
    assert "\N{REPLACEMENT CHARACTER}" * 3 + " ::error::x" in said
    for line in said:
        assert not _raw(line.replace("\n", ""))
        assert not line.startswith("::")
        assert "##[" not in line


def test_each_line_of_a_reason_is_said_as_ours(capsys: pytest.CaptureFixture[str]) -> None:
    """`qualify run` puts the run before every line: none begins as a command to a workflow."""
    asked = _asked("bad/one")
    running._progress([asked], to_stderr=False)(asked, "FAIL\n::error::no\r::add-mask::a\x1b[2J")
    said = capsys.readouterr().out
    assert said.splitlines() == [
        "[1/1] bad/one: FAIL",
        "[1/1] bad/one: ::error::no",
        "[1/1] bad/one: ::add-mask::a",
    ]


# --- quantities -----------------------------------------------------------------------------------


@pytest.mark.parametrize("megabytes", [20, 200])
def test_a_flood_of_output_costs_little_memory(tmp_path: Path, megabytes: int) -> None:
    """Bytes that are no text, in one line and in many, are kept within bounds however many."""
    peak = [before := _rss()]
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.05):
            peak[0] = max(peak[0], _rss())

    sampler = threading.Thread(target=sample)
    sampler.start()
    flood = rf"""
for _ in range({megabytes} * 5):
    sys.stdout.buffer.write(b"\xff\x00\xc3(" * 25_000)
sys.stdout.flush()
for _ in range({megabytes} * 5):
    sys.stderr.buffer.write(b"\xff" * 99_999 + b"\n")
put()
"""
    try:
        ran = _run(tmp_path / "ran", {"flood": flood}, FAILS)
    finally:
        ended.set()
        sampler.join()
    record = ran.records["flood"]
    assert (record.failure, record.stage) == (Failure.INCONCLUSIVE, Stage.CHECK)
    (path,) = ran.folder.glob("*/*/log.txt")
    # Each byte that is no text becomes one character of three bytes.
    assert path.stat().st_size <= 3 * 2**20 + 4_096
    assert peak[0] - before < 16 * 2**20


def _rss() -> int:
    return int(psutil.Process().memory_info().rss)


def test_a_process_that_left_the_group_does_not_disturb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes on printing after the script's end is neither waited for nor a traceback."""
    raised: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    stays = (
        "import os, time\n"
        "os.setsid()\n"
        "for _ in range(140):\n"
        "    time.sleep(0.1)\n"
        "    print('still here', flush=True)\n"
    )
    does = f"subprocess.Popen([sys.executable, '-c', {stays!r}]); time.sleep(0.5); put()\n"
    ran = _run(tmp_path / "ran", {"stays": does}, FAILS)
    assert ran.records["stays"].failure is Failure.INCONCLUSIVE
    for one in threading.enumerate():
        if "follow" in one.name:
            one.join(10)
    assert raised == []


# --- one file -------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_yet_is_no_fault(tmp_path: Path) -> None:
    """Before run.py has told anything there is nothing, and nothing wrong."""
    told = read_told(tmp_path / "run.json", str)
    assert (told.observation, told.faults) == (None, ())


def test_every_valid_observation_is_read_without_fault(tmp_path: Path) -> None:
    """What run.py writes comes back whole, from the first stage to the last."""
    path = tmp_path / "run.json"
    for seen in (
        Observation(stage=Stage.DOWNLOAD),
        papers.observation(),
        papers.observation(CPU, error_type="ValueError", error_message="no", error_rank=1),
        papers.observation(download_s=3, downgrade="x" * 4_000),
    ):
        write(seen, path)
        told = read_told(path, str)
        assert (told.observation, told.faults) == (seen, ())


def test_taking_secrets_out_makes_no_text_too_long(tmp_path: Path) -> None:
    """An error of the full length stays an error when a longer word stands for the secret."""
    path = tmp_path / "run.json"
    message = "hunter22" + "x" * 3_992
    write(papers.observation(stage=Stage.LOAD, error_message=message), path)
    told = read_told(path, lambda text: text.replace("hunter22", "[redacted]"))
    assert told.observation and told.faults == ()
    assert told.observation.error_message == "[redacted]" + "x" * 3_990


@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_a_paper_that_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    """A pipe in a record's place is not waited for, a device not read until memory ends."""
    import os

    path = tmp_path / "record.json"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(RecordError, match="is no regular file"):
        read(Record, path)


def test_a_fault_in_a_record_is_told_in_one_plain_line(tmp_path: Path) -> None:
    """The name of a field that no schema knows is somebody's text like any other."""
    path = tmp_path / "record.json"
    facts = json.loads(papers.passing().model_dump_json())
    path.write_text(json.dumps({**facts, "\x1b[2J\r::error::" + "x" * 10**6: 1}))
    with pytest.raises(RecordError) as caught:
        read(Record, path)
    assert not _raw(caught.value.reason)
    assert len(caught.value.reason) < 1_000


# --- from records to readers ----------------------------------------------------------------------


def _raw(text: str) -> set[str]:
    """Characters that steer a terminal or hide what a text holds; ends of lines and tabs do not."""
    return {
        one for one in set(text) - {"\n", "\t"} if unicodedata.category(one) in ("Cc", "Cf", "Cs")
    }


@dataclass(frozen=True)
class Shown:
    """The records published, in `folder`."""

    folder: Path
    done: publish.Published
    records: tuple[Record, ...]

    @property
    def results(self) -> Path:
        return self.folder / "results"


@pytest.fixture(scope="module")
def shown(ran: Ran, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """All of CASES, published."""
    folder = tmp_path_factory.mktemp("shown")
    records = tuple(ran.records.values())
    wanted = papers.View(models=tuple(papers.Wanted(one.run.model_id) for one in records))
    done = publish.publish(
        [ran.folder],
        results=folder / "results",
        table=folder / "COMPATIBILITY.md",
        catalog_view=wanted,
        plan=papers.plan(*(one.run for one in records)),
        now=papers.day(400),
    )
    return Shown(folder, done, records)


def test_every_record_becomes_a_row(shown: Shown) -> None:
    """None is refused, none is lost: each row says what its record says, on disk too."""
    assert shown.done.problems == ()
    assert shown.done.lost == ()
    rows = {row["model_id"]: row for row in store.read_current(shown.results)}
    for record in shown.records:
        row = rows[record.run.model_id]
        told = (str(record.result), str(record.failure), str(record.stage))
        assert (row["result"], row["failure"], row["stage"]) == told
        assert row["error"]
        if record.observation and record.observation.generations:
            texts = [one.text for one in record.observation.generations]
            assert row["generated_text"] == texts


def test_prose_of_a_row_has_nothing_to_obey(shown: Shown) -> None:
    """What is there for people alone is cleaned in the row itself; what models wrote is not."""
    prose = ("error", "notes", "signature")
    for row in store.read_current(shown.results):
        told = [row[name] or "" for name in prose] + list(row["findings"] or ())
        assert not _raw("".join(told)), row["model_id"]


def test_the_page_shows_no_raw_character(shown: Shown) -> None:
    """COMPATIBILITY.md has a line for each, and markup that is not ours in none."""
    page = (shown.folder / "COMPATIBILITY.md").read_text()
    assert not _raw(page)
    assert page.count("`bad/") >= len(CASES)
    assert "::error" not in page and "##[" not in page


def _qualify(*arguments: str) -> str:
    ended = CliRunner().invoke(cli.main, list(arguments), catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.output


@pytest.mark.parametrize(
    "options", [(), ("--failures",), ("bad/*", "--full"), ("--json",), ("--failures", "--json")]
)
def test_show_prints_no_raw_character(shown: Shown, options: tuple[str, ...]) -> None:
    """The terminal gets letters, and from --json a document."""
    printed = _qualify("show", *options, "--results", str(shown.results))
    assert not _raw(printed)
    assert "bad/controls" in printed
    assert "##[" not in printed or "--json" in options
    if "--json" in options:
        assert json.loads(printed)


def test_the_site_shows_no_raw_character(shown: Shown) -> None:
    """Neither pages nor the data that scripts draw them from hold one; markup is text."""
    site.build(shown.folder, shown.folder / "site")
    pages = [
        path
        for path in (shown.folder / "site").rglob("*")
        if path.suffix in (".html", ".json", ".svg")
    ]
    assert len(pages) > 2 * len(CASES)
    for path in pages:
        text = path.read_text()
        assert not _raw(text), path
        assert "<script>alert" not in text
        if path.suffix == ".json":
            json.loads(text, parse_constant=_no_number)


def _no_number(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


def _workflow() -> Workflow:
    return Workflow(
        repository="example/campaign",
        run_id="1",
        attempt=1,
        event_name="schedule",
        event={},
        output_path=None,
        summary_path=None,
    )


def test_the_summary_and_the_comment_show_no_raw_character(shown: Shown) -> None:
    """The page of the workflow run, the commit's message and the comment on a pull request."""
    taken = publish.Taken(shown.records)
    plan = papers.plan(*(one.run for one in shown.records))
    publication = Publication(
        plan, Artifacts(taken, 0, (), (), {}), shown.done, Pushed("c0ffee00" * 5, 1), "main"
    )
    asked = Ask(
        number=7,
        sha="c0ffee00" * 5,
        asked_by="someone",
        asked_at=papers.day(0),
        models=tuple(one.run.model_id for one in shown.records),
    )
    answer = on_demand_answer.judged(_workflow(), asked, plan, taken, papers.day(400))
    written = (
        publishing_page.summary(publication, _workflow()),
        publishing_page.message(shown.done, _workflow()),
        on_demand_comment.render(7, on_demand_comment.Conversation(answers=(answer,))),
    )
    for text in written:
        assert "bad/controls" in text
        assert not _raw(text)
        assert not any(line.startswith("::") for line in text.splitlines())


# --- processes that look at the output ------------------------------------------------------------

ANSWERS = {
    "nothing": "pass",
    "no-utf-8": r"sys.stdout.buffer.write(b'\xff\xfe\0')",
    "no-json": "print('{')",
    "nested": "print('[' * 10**6)",
    "list": "print('[1, 2]')",
    "other-types": "tell({'weights_sha256': 1, 'texts': {'a': 'b'}, 'steps': 'x'})",
    "words": "told('a')",
    "not-finite": "told(float('nan'))",
    "infinite": "told(float('inf'))",
    "large": "told(10**400)",
    "endless": "print('{\"texts\": [[' + '1' * 10**5 + ']]}')",
    "killed": "os.kill(os.getpid(), 9)",
    "loud": r"sys.stderr.write('\x1b[31m' + 'x' * 10**7); sys.exit(3)",
}
ANSWERING = """
import json
def tell(answer):
    print(json.dumps(answer))
def told(value):
    names = ("nll", "alone", "entropy", "variance", "rank", "gap", "place", "logprobs")
    tell({"weights_sha256": "x", "texts": [dict.fromkeys(names, [value])] * 3, "steps": [[value]]})
sys.stdin.buffer.read()
"""


@pytest.mark.parametrize("name", ANSWERS)
def test_no_answer_about_the_output_is_a_pass_or_a_traceback(tmp_path: Path, name: str) -> None:
    """Whatever reference and judge answer, the run ends without a verdict and says why."""
    judges = f"{ANSWERING}{ANSWERS[name]}\n"
    does = "Path('inputs.safetensors').write_bytes(b'x'); put()\n"
    record = _run(tmp_path, {"fine": does}, judges).records["fine"]
    assert (record.failure, record.stage) == (Failure.INCONCLUSIVE, Stage.CHECK)
    check = record.check
    assert (check.cpu_match, check.english) == (CpuMatch.NOT_RUN, English.NOT_RUN)
    for reason, who in ((check.cpu_reason, "the reference"), (check.judge_reason, "the judge")):
        assert reason and reason.startswith(who)
        assert len(reason) <= 1_000 and len(reason.splitlines()) == 1
        assert not _raw(reason)


# A reference that agrees with every token.
AGREES = """
if sys.argv[2] != "pipeline.leading":
    sys.exit("no judge")
import json
question = json.load(sys.stdin)
step = {"gap": 0.0, "place": 0, "logprobs": [-1.0] * 5}
print(json.dumps({"steps": [[step] * len(one) for one in question["tokens"]], "exact": None}))
"""
LOGITS = {
    "honest": "logits(5, -1.0)",
    "not-there": "pass",
    "not-finite": "logits(5, float('nan'))",
    "far-away": "logits(5, -1e300)",
    "above-one": "logits(5, 1e300)",
    "huge-ids": "logits(10**30, -1.0)",
    "negative-ids": "logits(-1, -1.0)",
    "words": "logits('x', 'y')",
    "nested": "Path('logits.json').write_text('[' * 10**6)",
    "no-utf-8": r"Path('logits.json').write_bytes(b'\xff')",
    "endless": "os.symlink('/dev/zero', 'logits.json')",
    "pipe": "os.mkfifo('logits.json')",
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Runs whose logits.json is as LOGITS has it, on a machine whose reference agrees."""
    write_logits = """
def logits(first, logprob):
    ids, logprobs = [[[[one] * 5] * 4] * 3 for one in (first, logprob)]
    Path("logits.json").write_text(json.dumps({"ids": ids, "logprobs": logprobs}))
Path("inputs.safetensors").write_bytes(b"x")
"""
    scripts = {name: f"{write_logits}{does}\nput()\n" for name, does in LOGITS.items()}
    return _run(tmp_path_factory.mktemp("compared"), scripts, AGREES)


@pytest.mark.parametrize("name", LOGITS)
def test_no_logits_are_a_traceback(compared: Ran, name: str) -> None:
    """What cannot be used is not: the run passes by its tokens or fails by its logits."""
    record = compared.records[name]
    assert record.failure in (None, Failure.WRONG_TOKENS)
    assert record.check.cpu_match in (CpuMatch.EXACT, CpuMatch.MISMATCH)
    assert compared.left(name) == record
    if name in ("honest", "not-there"):
        assert record.failure is None


@pytest.fixture(scope="module")
def judged(models: Callable[[str], Path]) -> judge.Judgement:
    """The real judge's answer to all of TEXTS at once, and to half characters of both kinds."""
    texts = [*TEXTS.values(), "\ud800" * 400, "x" * 10**6]
    return judge.judge(
        [judge.Continuation("The capital of France is", text) for text in texts],
        model=str(models("SmolLM2-135M-Instruct")),
        declared_id=judge.DEFAULT_JUDGE,
    )


def test_no_ruin_is_fluent(judged: judge.Judgement) -> None:
    """The judge reads all of it without falling over, and takes none of it for English."""
    _, calibration = judge.find_calibration(judge.DEFAULT_JUDGE, None)
    fluent = calibration.rule.bounds.fluent
    for name, one in zip([*TEXTS, "halves", "word"], judged.texts, strict=True):
        assert one.score is None or one.score >= fluent, name
    assert judged.english is English.NOT_FLUENT
    assert judged.reason and not _raw(judged.reason)
    json.dumps([judged.score], allow_nan=False)


def test_where_no_text_is_left_nobody_is_asked() -> None:
    """Without a text there is nothing to measure: no process is started, and the reason says so."""
    found = judge.judge(
        [judge.Continuation("Hello", one) for one in NO_TEXTS.values()], python="/nowhere"
    )
    assert found.english is English.NOT_FLUENT
    assert f"no text in {len(NO_TEXTS)}" in found.reason
