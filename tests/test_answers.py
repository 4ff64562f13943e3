"""What is known of one model: which row answers, what counts as evidence, and what one reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline import answers, screen, wishes
from pipeline import results as store
from pipeline.answers import Answer
from pipeline.errors import ModelFails, NoEvidence, UsageError
from pipeline.lookup import Lookup
from pipeline.readings import Evidence, Reading
from pipeline.record import Record
from pipeline.words import Failure, Target
from tests import papers
from tests.papers import Banned, View, Wanted

NOW = papers.day(10)
MODEL = "Qwen/Qwen3-0.6B"
NEWEST, OLD = papers.stack(neuronx_cc="2.29.5"), papers.stack()
KEYS = {
    name: f"transformers-5.24.0@neuronxcc-{name}@torch-2.14.0" for name in ("2.28.7631.0", "2.29.5")
}
CPU = papers.stack(Target.CPU)


def ask(folder: Path, *records: Record, view: View | None = None, **options: Any) -> Answer:
    """The answer about MODEL out of results that hold `records`."""
    results = folder / "results"
    store.write(store.prepare(results, map(store.row_of, records)).files)
    data = wishes.dump(wishes.of(view or View()), options.pop("max_age_days", 30))
    (results / wishes.FILE).write_bytes(data)
    model = options.pop("model", MODEL)
    asked: dict[str, Any] = {"stack": "", "now": NOW, **options}
    return answers.answer(Lookup(results), wishes.published(results), model, **asked)


def run_on(stack: Any, name: str = MODEL, **changes: Any) -> Any:
    return papers.run(name, stack=stack, **changes)


def read(answer: Answer, width: int = 80) -> str:
    """What the screen says, as one line."""
    return " ".join(screen.screen(answer, NOW, width).split())


def test_the_newest_stack_answers(tmp_path: Path) -> None:
    """A newer FAIL is not hidden by an older PASS, which stands among the others."""
    found = ask(
        tmp_path, papers.passing(run_on(OLD), papers.day(5)), papers.failing(run_on(NEWEST))
    )
    assert (found.reading, found.evidence) == (Reading.FAIL, Evidence.FAIL)
    assert found.stack == KEYS["2.29.5"]
    assert [row["result"] for row in found.others] == ["PASS"]
    assert found.nearest is None
    assert isinstance(answers.ending(found), ModelFails)


def test_a_stack_that_is_asked_for_answers(tmp_path: Path) -> None:
    """Whole, in part, or as part of a run id."""
    rows = (papers.passing(run_on(OLD)), papers.failing(run_on(NEWEST)))
    for stack in ("neuronxcc-2.28", KEYS["2.28.7631.0"], "torch-2.14,neuronx-cc 2.28"):
        found = ask(tmp_path, *rows, stack=stack)
        assert (found.evidence, found.stack) == (Evidence.PASS, KEYS["2.28.7631.0"])
    assert answers.split(f"Qwen--Qwen3-0.6B@{KEYS['2.29.5']}") == (MODEL, KEYS["2.29.5"])
    assert answers.split(MODEL) == (MODEL, "")
    with pytest.raises(UsageError, match="is no model id"):
        answers.split("two words")


def test_an_error_is_no_evidence_and_hides_behind_nothing(tmp_path: Path) -> None:
    """Also not behind a PASS of another stack."""
    found = ask(tmp_path, papers.erring(run_on(NEWEST)), papers.passing(run_on(OLD)))
    assert (found.reading, found.evidence) == (Reading.ERROR, Evidence.NONE)
    assert isinstance(answers.ending(found), NoEvidence)
    assert "counts as no evidence: a fault of the infrastructure" in read(found)


def test_another_target_says_nothing_of_trainium(tmp_path: Path) -> None:
    """A PASS on the cpu answers only those who ask for the cpu."""
    found = ask(tmp_path, papers.passing(run_on(CPU)))
    assert (found.reading, found.evidence, found.nearest) == (Reading.UNTESTED, Evidence.NONE, None)
    assert f"{MODEL}: UNTESTED on Trainium It ran on another target only" in read(found)
    asked = ask(tmp_path, stack="cpu")
    assert asked.evidence is Evidence.PASS
    assert "It is of another target, which says nothing of Trainium." in read(asked)


def test_the_nearest_stack_is_named_and_is_no_evidence(tmp_path: Path) -> None:
    """The same compiler before the same library before the same torch, then the newest."""
    other_library = papers.stack(library_version="5.20.0")
    found = ask(
        tmp_path,
        papers.passing(run_on(other_library)),
        papers.failing(run_on(NEWEST)),
        papers.passing(run_on(CPU)),
        stack="transformers-5.24.0@neuronxcc-2.28.7631.0@torch-2.14.0",
    )
    assert (found.reading, found.evidence) == (Reading.UNTESTED, Evidence.NONE)
    assert found.nearest is not None
    assert found.nearest["run_id"].endswith(
        "transformers-5.20.0@neuronxcc-2.28.7631.0@torch-2.14.0"
    )
    told = read(found)
    assert told.startswith(
        f"{MODEL}: UNTESTED on neuronx-cc 2.28.7631.0, transformers 5.24.0, torch 2.14.0"
    )
    assert (
        "Nearest tested stack (same compiler and torch); it stands for itself only: 2026-11-30 PASS"
        in told
    )
    nothing = ask(tmp_path, stack="neuronxcc-3.1")
    assert nothing.nearest is not None and nothing.nearest["result"] == "FAIL"
    assert "(the newest, nothing in common)" in read(nothing)
    assert "UNTESTED on neuronxcc-3.1" in read(nothing)


def test_a_stale_pass_is_no_evidence(tmp_path: Path) -> None:
    """The limit is the campaign's own, as it was published."""
    found = ask(tmp_path, papers.passing(run_on(OLD)), max_age_days=9)
    assert (found.reading, found.is_stale, found.evidence) == (Reading.PASS, True, Evidence.NONE)
    assert read(found).startswith(f"{MODEL}: PASS, stale ")
    assert "10 days old, the campaign's limit is 9" in read(found)
    assert str(answers.ending(found)).endswith("torch 2.14.0: PASS, stale")
    assert ask(tmp_path, max_age_days=10).evidence is Evidence.PASS


def test_exclusions_are_told_with_reason_and_issue(tmp_path: Path) -> None:
    """Without a row that is the reading; beside a row both are told."""
    view = View(excluded=(Banned(MODEL),))
    absent = ask(tmp_path, papers.passing(papers.run("a/b")), view=view)
    assert (absent.reading, absent.evidence) == (Reading.EXCLUDED, Evidence.NONE)
    assert "left out as incompatible: its kernels exist for GPUs only" in read(absent)
    assert "https://github.com/example/campaign/issues/7" in read(absent)
    both = ask(tmp_path, papers.passing(run_on(OLD)), view=view)
    assert (both.reading, both.evidence) == (Reading.PASS, Evidence.NONE)
    assert read(both).startswith(f"{MODEL}: PASS, EXCLUDED (incompatible) ")
    assert "counts as no evidence: people hold it to be incompatible" in read(both)
    later = View(excluded=(Banned(MODEL, reason="not_prioritised"),))
    assert ask(tmp_path, view=later).evidence is Evidence.PASS


def test_untested_models(tmp_path: Path) -> None:
    """Wanted ones and unknown ones are told apart; neither is evidence of anything."""
    other = papers.passing(papers.run("a/b"))
    wanted = ask(tmp_path, other, view=View((Wanted(MODEL, note="soon"),)))
    assert wanted.known and "The list wants it: soon" in read(wanted)
    unknown = ask(tmp_path, view=View())
    assert not unknown.known
    assert "Neither the results nor the list name it." in read(unknown)
    for found in (wanted, unknown):
        assert (found.reading, found.evidence) == (Reading.UNTESTED, Evidence.NONE)
        assert "absence of evidence, not evidence of failure" in read(found)


def test_relatives_are_of_the_stack_in_question(tmp_path: Path) -> None:
    """Those on the stack that answers, or was asked for; the model itself is none of them."""
    others = [papers.passing(run_on(NEWEST, f"a/{number}")) for number in range(3)]
    failed = papers.failing(run_on(NEWEST, "a/bad"))
    found = ask(tmp_path, *others, failed, papers.passing(run_on(OLD)), stack=KEYS["2.29.5"])
    assert str(found.relatives) == "3 of 4 qwen3 models pass on this stack"
    assert (
        "About others: 3 of 4 qwen3 models pass on neuronx-cc 2.29.5, transformers 5.24.0, torch "
        "2.14.0." in read(found)
    )
    assert ask(tmp_path, stack="neuronxcc-2.29").relatives == found.relatives
    assert ask(tmp_path, stack="neuronxcc-2.28").relatives.of == 0


def test_history_is_the_newest_first(tmp_path: Path) -> None:
    """Also of what current rows no longer show."""
    ask(tmp_path, papers.failing(run_on(OLD)))
    found = ask(tmp_path, papers.passing(run_on(OLD), papers.day(2)))
    assert [row["result"] for row in found.past] == ["PASS", "FAIL"]
    assert found.publications == 2
    lookup = Lookup(tmp_path / "results")
    rows = answers.history(lookup, MODEL.lower(), "")
    assert [row["tested_at"] for row in rows] == [papers.day(2), papers.day(0)]
    with pytest.raises(UsageError, match="no result of 'Qwen/Qwen3-06B' was published") as caught:
        answers.history(lookup, "Qwen/Qwen3-06B", "")
    assert caught.value.remedy == f"did you mean {MODEL}?"
    with pytest.raises(UsageError, match="was published on 'cpu'"):
        answers.history(lookup, MODEL, "cpu")


@pytest.mark.parametrize("width", [80, 120])
def test_one_screen(tmp_path: Path, width: int) -> None:
    """24 lines hold the fullest answer, whatever device machines wrote into it."""
    stacks = [papers.stack(neuronx_cc=f"2.{minor}.7631.0") for minor in range(10, 24)]
    long = "\x1b[31mRuntimeError: " + "word " * 400
    for number, on in enumerate(stacks):
        ask(
            tmp_path,
            papers.failing(
                run_on(on),
                papers.day(number % 9),
                failure=Failure.DEVICE_OUT_OF_MEMORY,
                signature=None,
                error=long,
            ),
            papers.passing(run_on(on, "a/b"), papers.day(number % 9)),
        )
    view = View(excluded=(Banned(MODEL, note="note " * 100),))
    found = ask(tmp_path, view=view)
    text = screen.screen(found, NOW, width)
    assert len(text.split("\n")) < 24, text
    assert max(map(len, text.split("\n"))) <= width
    assert "\x1b" not in text
    assert "more: --full shows them" in text and "more: qualify history" in text


def test_json_has_all_of_it(tmp_path: Path) -> None:
    """Words and rows as JSON types."""
    found = answers.plain(ask(tmp_path, papers.passing(run_on(OLD))), "here")
    assert found["evidence"] == found["reading"] == "PASS"
    assert found["row"]["tested_at"] == "2026-11-30T08:00:00Z"
    assert found["row"]["stack"] == found["stack"] == KEYS["2.28.7631.0"]
    assert (found["nearest"], found["relatives"], found["wish"]) == (None, None, None)
