"""What a row says in words: each case that page and terminal share."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline import phrases
from pipeline.words import Stage, Target
from tests import papers


def row(**fields: Any) -> dict[str, Any]:
    """A row of a PASS on the device, as far as phrases look at it."""
    known: dict[str, Any] = {
        "result": "PASS",
        "target": Target.NEURON,
        "stage": Stage.DONE,
        "error": None,
        "findings": [],
        "tries": [],
        "cpu_fallback_ops": [],
        "hbm_peak_gb": None,
        "runtime_peak_gb": None,
        "hbm_capacity_gb": 24.0,
        "host_peak_gb": None,
    }
    return known | fields


def test_stack_is_what_the_run_id_names() -> None:
    """Compiler, library, torch; Inductor is a part of torch and has no version to tell."""
    assert phrases.stack(str(papers.stack().run_id("a/a"))) == [
        "neuronx-cc 2.28.7631.0",
        "transformers 5.24.0",
        "torch 2.14.0",
    ]
    assert phrases.stack(str(papers.stack(Target.CPU).run_id("a/a"))) == [
        "transformers 5.24.0",
        "torch 2.14.0",
    ]


NOTHING = dict.fromkeys(("cpu_match", "max_gap", "departure", "noise", "english"))
"""A row of which nothing was checked."""

TIE = NOTHING | {"cpu_match": "near_tie", "max_gap": 0.1234}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (NOTHING, ""),
        (NOTHING | {"cpu_match": "not_run", "english": "not_run"}, ""),
        (TIE, "tokens near_tie (0.12 nats)"),
        (
            TIE | {"departure": 0.0412, "noise": 0.031},
            "tokens near_tie (0.12 nats; logits off by 0.041, own noise 0.031)",
        ),
        (TIE | {"departure": 0.0412}, "tokens near_tie (0.12 nats; logits off by 0.041)"),
        (TIE | {"noise": 0.031}, "tokens near_tie (0.12 nats)"),
        (NOTHING | {"cpu_match": "exact", "max_gap": 0.0}, "tokens exact"),
        (
            NOTHING | {"cpu_match": "exact", "max_gap": 0.0, "departure": 0.0, "noise": 0.02},
            "tokens exact (logits off by 0, own noise 0.02)",
        ),
        (NOTHING | {"cpu_match": "not_run", "english": "fluent"}, "text fluent"),
    ],
)
def test_check(fields: dict[str, Any], told: str) -> None:
    """What was compared stands with its figures, in nats; what was not is left out."""
    assert phrases.check(row(**fields)) == told


@pytest.mark.parametrize("match", ["exact", "near_tie", "mismatch"])
@pytest.mark.parametrize("english", [None, "not_run", "fluent", "not_fluent"])
def test_evidence_of_tokens(match: str, english: str | None) -> None:
    """Where the tokens were compared the verdict rests on them, whatever the judge said."""
    found = NOTHING | {"cpu_match": match, "english": english}
    of_tokens = phrases.evidence(found)
    assert of_tokens == "tokens against the CPU reference, without logits: a small fault may pass"
    told = phrases.evidence(found | {"departure": 0.0})
    assert told and "its own noise unknown: a small fault may pass" in told
    told = phrases.evidence(found | {"departure": 0.0, "noise": 0.0})
    assert told == "tokens and logits against the CPU reference"


@pytest.mark.parametrize("match", [None, "not_run"])
def test_evidence_of_the_judge_says_what_it_cannot_see(match: str | None) -> None:
    """Where the judge alone was asked, a reader is told; where nothing was, nothing is claimed."""
    found = NOTHING | {"cpu_match": match}
    for english in ("fluent", "not_fluent", "inconclusive"):
        told = phrases.evidence(found | {"english": english})
        assert told and "judge" in told and "out of its reach" in told
    assert phrases.evidence(found) is None
    assert phrases.evidence(found | {"english": "not_run"}) is None


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "-"),
        ({"host_peak_gb": 6.04}, "6.04 GiB host"),
        ({"hbm_peak_gb": 1.5, "host_peak_gb": 6.0}, "tensors 1.5 of 24 GiB a core"),
        ({"runtime_peak_gb": 3.25}, "runtime 3.25 of 24 GiB a core"),
        ({"hbm_peak_gb": 0.0, "runtime_peak_gb": 3.0}, "tensors 0, runtime 3 of 24 GiB a core"),
        ({"hbm_peak_gb": 1.0, "hbm_capacity_gb": None}, "tensors 1 GiB a core"),
    ],
)
def test_memory(fields: dict[str, Any], told: str) -> None:
    """Each count stands under its own name, zero is one, and what nobody counted is left out."""
    assert phrases.memory(row(**fields)) == told


def earlier(failure: str | None, cores: int, result: str = "FAIL") -> dict[str, Any]:
    """An earlier try, as far as phrases look at it."""
    return {"failure": failure, "cores": cores, "result": result}


@pytest.mark.parametrize(
    ("tries", "told"),
    [
        (None, ""),
        ([], ""),
        ([earlier("device_out_of_memory", 1)], "after out of memory on 1 core"),
        ([earlier("host_out_of_memory", 2)], "after host out of memory on 2 cores"),
        ([earlier(None, 1, "ERROR")], "after ERROR on 1 core"),
        (
            [earlier("device_out_of_memory", 1), earlier("device_fault", 2)],
            "after out of memory on 1 core, then device fault on 2 cores",
        ),
        (
            [earlier("timeout", cores) for cores in (1, 2, 4, 8, 16)],
            "after timeout on 1 core, then timeout on 2 cores, then timeout on 4 cores, "
            "then 2 more",
        ),
    ],
)
def test_tries(tries: list[dict[str, Any]] | None, told: str) -> None:
    """What came before, in its order; rows from before tries were kept say nothing."""
    assert phrases.tries(row(tries=tries)) == told


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "none"),
        ({"cpu_fallback_ops": None}, "unknown"),
        ({"cpu_fallback_ops": None, "stage": Stage.CHECK}, "unknown"),
        ({"cpu_fallback_ops": None, "stage": Stage.COMPILE}, "-"),
        ({"cpu_fallback_ops": None, "target": Target.CPU}, "-"),
        ({"cpu_fallback_ops": ["a", "b", "c"]}, "a, b, c"),
        ({"cpu_fallback_ops": list("abcde")}, "a, b, c, 2 more"),
    ],
)
def test_host_operators(fields: dict[str, Any], told: str) -> None:
    """Unknown is not none, and off the device or before any output there is no question."""
    assert phrases.host_operators(row(**fields)) == told


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"error": None}, ""),
        ({"error": "first\nsecond"}, "first"),
        ({"error": "e", "findings": None}, "e"),
        ({"error": "e", "findings": ["s: l"]}, "e; the log also says s: l"),
        ({"error": "the log says: l", "findings": ["s: l"]}, "the log says: l"),
        ({"error": None, "findings": ["s: l"]}, "the log says s: l"),
        (
            {"error": "e", "findings": [f"s: {n}" for n in range(9)]},
            "e; the log also says s: 0, s: 1, s: 2, 6 more",
        ),
        ({"result": "PASS", "error": "e"}, ""),
    ],
)
def test_cause(fields: dict[str, Any], told: str) -> None:
    """The error's first line and what the log says besides; a PASS has no cause."""
    assert phrases.cause(row(**({"result": "FAIL"} | fields))) == told
