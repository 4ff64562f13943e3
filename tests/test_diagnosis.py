"""From what a failed script left to the class of its failure, and from many failures to causes.

tests/logs holds excerpts of logs, written for these tests: <class>/<signature>[-n].txt what failed
runs leave (a head in YAML, what run.py and the harness know; after "---" the log), none/<name>.txt
what healthy runs print.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import diagnosis
from pipeline.diagnosis import UNCLASSIFIED, Decides, Weight
from pipeline.record import Observation
from pipeline.rows import row_of
from pipeline.words import Failure, Result, Stage
from tests import papers

LOGS = Path(__file__).parent / "logs"
FAILED = sorted(path for path in LOGS.glob("*/*.txt") if path.parent.name != "none")
HEALTHY = sorted(LOGS.glob("none/*.txt"))


def _seen(stage: Stage, kind: str | None, message: str | None) -> Observation:
    return papers.observation(stage=stage, error_type=kind, error_message=message)


def _diagnose(
    kind: str | None = "RuntimeError",
    message: str | None = "odd",
    log: str = "",
    *,
    stage: Stage = Stage.COMPILE,
    **facts: Any,
) -> diagnosis.Diagnosis:
    facts = {"exit_code": 1, "oom_kills": None, **facts}
    return diagnosis.diagnose(_seen(stage, kind, message), log, **facts)


def _of_file(path: Path) -> diagnosis.Diagnosis:
    head, _, log = path.read_text(encoding="utf-8").partition("\n---\n")
    facts = yaml.safe_load(head)
    stage, kind = Stage(facts.pop("stage")), facts.pop("error_type", None)
    return _diagnose(kind, facts.pop("error_message", None), log, stage=stage, **facts)


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


# --- the corpus -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FAILED, ids=_name)
def test_an_excerpt_gives_its_class_and_signature(path: Path) -> None:
    """The folder is the class, the file's name the signature."""
    ids = {one.id for one in diagnosis.signatures()}
    name = path.stem if path.stem in ids else re.sub(r"-\d+$", "", path.stem)
    found = _of_file(path)
    assert (found.failure, found.signature) == (Failure(path.parent.name), name)
    assert found.error


def test_every_signature_has_an_excerpt() -> None:
    """No signature rests on a text that no test has seen."""
    decided = {_of_file(path).signature for path in FAILED}
    healthy = "\n".join(path.read_text(encoding="utf-8") for path in HEALTHY)
    for one in diagnosis.signatures():
        only_explained = one.decides is Decides.NEVER and one.pattern.search(healthy)
        assert one.id in decided or only_explained, one.id


@pytest.mark.parametrize("path", HEALTHY, ids=_name)
def test_what_healthy_runs_print_decides_nothing(path: Path) -> None:
    """No line is a finding, and the class of an unknown failure beside it stays as it is."""
    log = path.read_text(encoding="utf-8")
    assert [line for line in log.splitlines() if diagnosis.findings(line)] == []
    for stage, failure in (
        (Stage.LOAD, Failure.LOAD_ERROR),
        (Stage.COMPILE, Failure.RUNTIME_ERROR),
        (Stage.GENERATE, Failure.RUNTIME_ERROR),
    ):
        found = _diagnose(log=log, stage=stage, cores=4)
        assert (found.failure, found.signature) == (failure, UNCLASSIFIED)


# --- which text decides ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "kind", "message", "facts", "failure", "signature"),
    [
        (Stage.LOAD, "ValueError", "bad config", {}, Failure.LOAD_ERROR, UNCLASSIFIED),
        (Stage.COMPILE, "RuntimeError", "odd", {}, Failure.RUNTIME_ERROR, UNCLASSIFIED),
        (Stage.COMPILE, "BackendCompilerFailed", "x", {}, Failure.COMPILER_ERROR, UNCLASSIFIED),
        (Stage.DOWNLOAD, "GatedRepoError", "403", {}, Failure.GATED, "hub-gated"),
        (Stage.DOWNLOAD, "RevisionNotFoundError", "", {}, Failure.MISSING, "hub-missing"),
        (Stage.GENERATE, "SIGSEGV", "rank 1 died of SIGSEGV", {}, Failure.CRASH, "crash"),
        (Stage.LOAD, "SIGKILL", "rank 0 died", {"oom_kills": 0}, Failure.KILLED, "killed"),
        (Stage.LOAD, "SIGKILL", "rank 0 died", {"oom_kills": None}, Failure.KILLED, "killed"),
        (
            Stage.LOAD,
            "SIGKILL",
            "rank 0 died",
            {"oom_kills": 1},
            Failure.HOST_OUT_OF_MEMORY,
            "oom-killer",
        ),
        (Stage.LOAD, None, None, {"exit_code": -9}, Failure.KILLED, "killed"),
        (Stage.LOAD, None, None, {"exit_code": -11}, Failure.CRASH, "crash"),
        (Stage.LOAD, None, None, {"exit_code": -15}, Failure.KILLED, "killed"),
        (Stage.LOAD, None, None, {"exit_code": 3}, Failure.LOAD_ERROR, UNCLASSIFIED),
    ],
)
def test_types_signals_and_silence(
    stage: Stage,
    kind: str | None,
    message: str | None,
    facts: dict[str, Any],
    failure: Failure,
    signature: str,
) -> None:
    """Where no text is known, the exception's type, the signal and the stage give the class."""
    found = _diagnose(kind, message, stage=stage, **facts)
    assert (found.failure, found.signature) == (failure, signature)
    assert found.error


def test_an_unknown_text_asks_for_a_signature() -> None:
    """The first line stays the error itself; the last says what to do; the whole fits a record."""
    found = _diagnose(message="the wheel came off\n" * 210)
    assert found.error.startswith("RuntimeError: the wheel came off\n")
    assert found.error.endswith(f"\n{diagnosis.ASK}")
    assert len(found.error) <= 4_000


def test_the_line_of_the_log_that_decided_is_told() -> None:
    """What the message does not say, the error quotes from the log, whatever the message's size."""
    log = "one\nERROR: [NCC_EVRF013] TopK on integers\ntwo\n"
    found = _diagnose(message="x" * 4_000, log=log)
    assert found.error.endswith("\nthe log says: ERROR: [NCC_EVRF013] TopK on integers")
    assert len(found.error) <= 4_000


def test_the_message_weighs_more_than_the_log() -> None:
    """A warning in the log does not override the cause that the exception itself names."""
    log = "warning: No space left on device while writing a trace\n"
    assert _diagnose(message="NCC_IBIR297", log=log).failure is Failure.COMPILER_ERROR


def test_a_cause_in_the_log_weighs_more_than_a_symptom_in_the_message() -> None:
    """ "Compilation failed" is what every cause ends in."""
    message = "NEFF compilation failed with return code 70"
    assert _diagnose(message=message).signature == "compiler-exit-70"
    assert _diagnose(message=message, log="[NCC_IBIR297]").signature == "ncc-ibir297"


def test_a_symptom_weighs_more_than_what_is_general() -> None:
    """ "Execution failed" in the message says less than what hung according to the log."""
    message, log = "NRT EXECUTION FAILED: Failed to execute model", "NRT_TIMEOUT"
    assert _diagnose(message=message).signature == "neuron-execution-failed"
    assert _diagnose(message=message, log=log).signature == "neuron-execution-timeout"


def test_the_machine_comes_before_the_model() -> None:
    """Of two causes in one log the one that says nothing of the model decides."""
    log = "[NCC_EVRF013] TopK\nNeuronCore(s) not available - Requested:nc1-nc1 Available:0\n"
    assert _diagnose(log=log).failure is Failure.DEVICE_UNAVAILABLE


def test_the_earliest_cause_wins() -> None:
    """What one rank died of comes before what its death did to others."""
    first, second = "rank 2: NRT_RESOURCE\n", "rank 0: NRT_EXEC_OOB\n"
    assert _diagnose(log=first + second).signature == "neuron-out-of-memory"
    assert _diagnose(log=second + first).signature == "neuron-out-of-bounds"


def test_a_fault_of_the_hardware_beats_whatever_the_message_says() -> None:
    """Nothing that a faulty device computed speaks of the model."""
    log = "Uncorrectable HBM memory error is detected on Neuron device: 0:1\n"
    assert _diagnose(message="NRT_EXEC_COMPLETED_WITH_NUM_ERR", log=log).failure is (
        Failure.DEVICE_FAULT
    )


def test_a_retried_download_is_no_cause_later() -> None:
    """Texts of the network count where the run ended while it downloaded, nowhere else."""
    log = "Connection reset by peer\nRetrying in 1s\n"
    assert _diagnose(log=log, stage=Stage.DOWNLOAD).signature == "hub-connection"
    assert _diagnose(log=log, stage=Stage.COMPILE).signature == UNCLASSIFIED


def test_shapes_speak_of_parallelism_only_where_there_is_some() -> None:
    """The same message on one core, or on nobody knows how many, is an ordinary error."""
    message = "shape '[1, 128, -1, 64]' is invalid for input of size 36864"
    assert _diagnose(message=message, cores=2).failure is Failure.UNSUPPORTED_PARALLELISM
    assert _diagnose(message=message, cores=1).failure is Failure.RUNTIME_ERROR
    assert _diagnose(message=message).failure is Failure.RUNTIME_ERROR


def test_what_the_model_writes_is_no_evidence() -> None:
    """Lines that run.py prints itself carry the model's text: they are not searched."""
    log = "[08:22:13] 'It fails with' continues ' NRT_RESOURCE: No space left on device'\n"
    assert _diagnose(log=log).signature == UNCLASSIFIED
    assert _diagnose(log=log.replace("[08:22:13] ", "")).signature != UNCLASSIFIED


# --- evidence beside the texts --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("oom_kills", "failure"),
    [(None, Failure.KILLED), (0, Failure.KILLED), (2, Failure.HOST_OUT_OF_MEMORY)],
)
@pytest.mark.parametrize("code", [-9, 137])
def test_a_killed_compiler_is_want_of_memory_only_with_evidence(
    code: int, oom_kills: int | None, failure: Failure
) -> None:
    """SIGKILL alone does not say who sent it."""
    found = _diagnose(
        message=f"NEFF compilation failed with return code {code}", oom_kills=oom_kills
    )
    assert (found.failure, found.signature) == (failure, "compiler-killed")


@pytest.mark.parametrize(
    ("restored", "failure"),
    [(None, Failure.CACHE), (2, Failure.CACHE), (0, Failure.RUNTIME_ERROR)],
)
def test_the_cache_is_at_fault_only_if_something_came_from_it(
    restored: int | None, failure: Failure
) -> None:
    """A graph that is refused although nothing was restored was compiled in this very run."""
    found = _diagnose(
        message="Unsupported hardware operator code 9 found in neff", restored=restored
    )
    assert (found.failure, found.signature) == (failure, "neuron-neff-unusable")


def test_a_timeout_stays_one_and_says_what_hung() -> None:
    """A symptom or a cause in the model gives the signature; the class is that of the clock."""
    late: dict[str, Any] = {"timed_out": True, "exit_code": -9}
    hang = "suspected hang in collectives operation 0 out of 100\n"
    found = _diagnose(None, None, hang, **late)
    assert (found.failure, found.signature) == (Failure.TIMEOUT, "neuron-collectives-hang")
    found = _diagnose(None, None, "[NCC_IBTN006] narwhal\n", **late)
    assert (found.failure, found.signature) == (Failure.TIMEOUT, "ncc-ibtn006")
    found = _diagnose(None, None, "", **late)
    assert (found.failure, found.signature) == (Failure.TIMEOUT, UNCLASSIFIED)
    assert "at stage compile" in found.error


def test_a_symptom_of_the_machine_does_not_excuse_a_timeout() -> None:
    """What other things cause is no evidence that the machine is at fault."""
    log = "Failed to execute the device barrier 1\n"
    found = _diagnose(None, None, log, timed_out=True, exit_code=-9)
    assert (found.failure, found.signature) == (Failure.TIMEOUT, "neuron-barrier")


def test_a_timeout_for_a_fault_of_the_machine_says_nothing_of_the_model() -> None:
    """A run that hangs on a sick device or a full disk is an ERROR, not a FAIL."""
    for log in ("DMA TX engine 0 is in an abort state", "No space left on device"):
        found = _diagnose(None, None, log, timed_out=True, exit_code=-9)
        assert found.failure.result is Result.ERROR


# --- findings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "signature", "failure"),
    [
        (
            "WARNING: Falling back to original GraphModule execution",
            "neuron-fallback",
            Failure.CPU_FALLBACK,
        ),
        (
            "we are unable to meet the criteria for compilation. Compilation will be skipped.",
            "compilation-skipped",
            Failure.CPU_FALLBACK,
        ),
        (
            "[0/8] torch._dynamo hit config.recompile_limit (8)",
            "recompile-limit-eager",
            Failure.CPU_FALLBACK,
        ),
        (
            "torch._dynamo hit config.accumulated_recompile_limit (256)",
            "recompile-limit-eager",
            Failure.CPU_FALLBACK,
        ),
        (
            "Uncorrectable memory error is detected on Neuron device: 5:1 metadata: 0x2.",
            "neuron-memory-error",
            Failure.DEVICE_FAULT,
        ),
    ],
)
def test_lines_that_no_tokens_outweigh(line: str, signature: str, failure: Failure) -> None:
    """A graph that did not run compiled, or a device that is sick, makes no PASS."""
    found = diagnosis.findings(f"{line}\n")
    assert found is not None
    assert (found.signature, found.failure, found.line) == (signature, failure, line)


def test_a_finding_quotes_a_piece_of_a_long_line() -> None:
    """The piece has the text itself, and no more than a record holds."""
    text = "Falling back to original GraphModule execution"
    for line in ("x" * 65_000 + text, text + "x" * 65_000, "x" * 30_000 + text + "x" * 30_000):
        found = diagnosis.findings(line)
        assert found is not None
        assert text in found.line
        assert len(found.line) <= 500


def test_causes_of_failed_runs_are_no_findings() -> None:
    """A run that came to its end although such a line stands in its log is judged by its tokens."""
    for line in ("NRT_RESOURCE", "NEFF compilation failed", "executed via CPU fallback"):
        assert diagnosis.findings(line) is None


# --- the data -------------------------------------------------------------------------------------


def test_signatures_are_sound() -> None:
    """Ids are lasting names and unique; each has meaning, remedy and source; none matches all."""
    signatures = diagnosis.signatures()
    ids = [signature.id for signature in signatures]
    assert len(set(ids)) == len(ids)
    assert UNCLASSIFIED not in ids
    for one in signatures:
        assert re.fullmatch("[a-z0-9-]{3,60}", one.id)
        assert one.meaning and one.remedy
        assert one.source.startswith("https://")
        assert not one.pattern.search("")
        # What ends any run must not be a guess that holds at some stages or placements only.
        if one.decides is Decides.ALWAYS:
            assert one.weight is Weight.CAUSE and not one.sharded and one.stages == frozenset(Stage)


def test_patterns_take_time_in_proportion_to_the_text() -> None:
    """No pattern repeats anything without a bound, or more than 200 times, or a repetition."""
    for one in diagnosis.signatures():
        plain = re.sub(r"\\.|\[(?:\\.|[^\]])*\]", "a", one.pattern.pattern)
        bounds = re.findall(r"\{(\d+)(,?)(\d*)\}", plain)
        assert not re.search(r"[*+]", plain), one.id
        assert all(
            int(most or least) <= 200 and not (comma and not most) for least, comma, most in bounds
        ), one.id
        assert not re.search(r"\}\)[{?]", plain), one.id


def _long_lines() -> list[str]:
    """The beginnings of known texts, again and again, up to 64 KiB without a line break."""
    pieces = ("a", " ", "/", "NRT_", "NCC_E", "Failed to allocate ", "requires the ", "shape '[1, ")
    return [(piece * 65_536)[:65_536] for piece in pieces]


@pytest.mark.parametrize("line", _long_lines(), ids=lambda line: repr(line[:12]))
def test_long_lines_decide_nothing(line: str) -> None:
    """64 KiB without a line break, of the beginnings of known texts, are searched like any line."""
    assert diagnosis.findings(line) is None
    assert _diagnose(log=line, cores=2).signature == UNCLASSIFIED


def test_the_page_of_failures_is_what_the_data_says() -> None:
    """docs/failures.md holds all signatures; `python -m pipeline.diagnosis` prints them."""
    page = Path(__file__).parents[1] / "docs" / "failures.md"
    assert f"\n{diagnosis.table()}\n" in page.read_text(encoding="utf-8")


# --- many failures --------------------------------------------------------------------------------


def _row(model: str, failure: Failure, signature: str | None, error: str) -> dict[str, Any]:
    asked = papers.run(model)
    return row_of(papers.failing(asked, failure=failure, signature=signature, error=error))


def test_one_bug_that_hits_thirty_models_is_one_group() -> None:
    """Rows of a signature are one group, with its models, its meaning, remedy and source."""
    rows = [
        _row(
            f"org/model-{n}",
            Failure.COMPILER_ERROR,
            "ncc-ibir297",
            f"RuntimeError: {n} NCC_IBIR297",
        )
        for n in range(30)
    ]
    rows.append(row_of(papers.passing()))
    (one,) = diagnosis.groups(rows)
    assert (one.count, len(one.models), one.signature) == (30, 30, "ncc-ibir297")
    assert one.stacks == ("transformers 5.24.0, neuronxcc 2.28.7631.0, torch 2.14.0",)
    assert one.source == "https://github.com/aws-neuron/aws-neuron-sdk/issues/1362"
    assert one.meaning and one.remedy and not one.line


def test_codes_of_one_signature_are_groups_of_their_own() -> None:
    """A signature that covers many codes of the compiler does not hide that they differ."""
    rows = [
        _row("a/one", Failure.COMPILER_ERROR, "ncc-internal", "x\nthe log says: [NCC_IXGM002]"),
        _row("a/two", Failure.COMPILER_ERROR, "ncc-internal", "x\nthe log says: [NCC_IABC123]"),
        _row("a/three", Failure.COMPILER_ERROR, "ncc-internal", "y\nthe log says: [NCC_IABC123]"),
    ]
    found = diagnosis.groups(rows)
    assert [(one.line, one.count) for one in found] == [("NCC_IABC123", 2), ("NCC_IXGM002", 1)]


def test_unclassified_failures_are_grouped_by_what_they_have_in_common() -> None:
    """Numbers, paths, addresses and the model's own name do not make another failure."""
    rows = [
        _row(
            "a/one",
            Failure.RUNTIME_ERROR,
            UNCLASSIFIED,
            "E: a/one at 0x7f12 in /data/x/y.py:12\nmore",
        ),
        _row("b/two", Failure.RUNTIME_ERROR, UNCLASSIFIED, "E: b/two at 0x7f99 in /home/z/y.py:99"),
        _row("c/three", Failure.RUNTIME_ERROR, UNCLASSIFIED, "E: something else"),
        _row("d/four", Failure.WRONG_TOKENS, None, "prompt 1, token 3: 0.75 nats below"),
        _row("e/five", Failure.WRONG_TOKENS, None, "prompt 2, token 11: 1.25 nats below"),
    ]
    found = diagnosis.groups(rows)
    assert [(one.failure, one.count) for one in found] == [
        ("runtime_error", 2),
        ("wrong_tokens", 2),
        ("runtime_error", 1),
    ]
    assert found[0].line == "E: MODEL at N in PATH:N"
    assert found[1].meaning == Failure.WRONG_TOKENS.meaning
    assert not found[0].remedy and not found[0].source


def test_a_signature_of_another_version_is_shown_as_it_is() -> None:
    """A row may carry an id that this version does not know: the class still has a meaning."""
    (one,) = diagnosis.groups([_row("a/one", Failure.CRASH, "gone-since", "SIGSEGV: died")])
    assert (one.signature, one.meaning) == ("gone-since", Failure.CRASH.meaning)


def test_no_failures_make_no_groups() -> None:
    """PASS rows, and no rows at all."""
    assert diagnosis.groups([row_of(papers.passing())]) == []
    assert diagnosis.groups([]) == []
