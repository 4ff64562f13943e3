"""results/models.json: what the list wants, for readers that have no list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline import catalog, wishes
from pipeline.errors import ResultsError
from pipeline.wishes import Kind, Wish
from tests.conftest import ROOT
from tests.papers import Banned, View, Wanted


def test_the_shipped_list() -> None:
    """Every model of the list is there with its wish; the wanted ones name the stacks by key."""
    listed = catalog.load(ROOT / "models.yaml")
    found = wishes.of(listed)
    ids = [model.id for model in listed.models] + [model.id for model in listed.excluded]
    assert sorted(found) == sorted(ids)
    wanted = found[listed.models[0].id]
    assert wanted.stacks == ("transformers-5.24.0@neuronxcc-2.28.7631.0@torch-2.14.0",)
    for model in listed.excluded:
        told = found[model.id]
        assert (told.wish, told.reason, told.note, told.issue, told.stacks) == (
            Kind.EXCLUDED,
            model.reason,
            model.note,
            model.issue,
            (),
        )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """All of it, in the order of ids, one line a model; the same wishes give the same bytes."""
    view = View(models=(Wanted("z/z", note="née"), Wanted("a/a")), excluded=(Banned("m/m"),))
    found = wishes.of(view)
    data = wishes.dump(found, 30)
    (tmp_path / wishes.FILE).write_bytes(data)
    assert wishes.read(tmp_path) == found
    assert wishes.published(tmp_path).max_age_days == 30
    assert list(found) == ["a/a", "m/m", "z/z"]
    assert [line.split('"')[3] for line in data.decode().splitlines()[1:-1]] == list(found)
    assert wishes.dump(dict(reversed(found.items())), 30) == data
    assert json.loads(wishes.dump({}, None)) == {"version": 1, "max_age_days": None, "models": []}


def test_letter_case_aside(tmp_path: Path) -> None:
    """As the Hub finds a model."""
    found = wishes.Published({"A/b": Wish("A/b", "text-generation", Kind.WANTED)})
    assert found.find("a/B") is found.models["A/b"]
    assert found.find("a/c") is None


def test_results_of_before(tmp_path: Path) -> None:
    """Results that were published without the file have no wishes and no limit of age."""
    assert wishes.read(tmp_path) == {}
    assert wishes.published(tmp_path).max_age_days is None


GOOD = json.loads(wishes.dump(wishes.of(View(excluded=(Banned("m/m"),))), 30))
(ENTRY,) = GOOD["models"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        json.dumps(GOOD | {"version": 2}),
        json.dumps(GOOD | {"max_age_days": True}),
        json.dumps(GOOD | {"max_age_days": -1}),
        json.dumps(GOOD | {"models": [{"id": "a/b"}]}),
        json.dumps(GOOD | {"models": [ENTRY | {"wish": "maybe"}]}),
        json.dumps(GOOD | {"models": [ENTRY | {"note": 7}]}),
        json.dumps(GOOD | {"models": [ENTRY | {"stacks": [7]}]}),
        "[" * 100_000,
    ],
)
def test_what_is_not_the_file_is_refused(tmp_path: Path, text: str) -> None:
    """An exclusion that is misread could turn a gate: the file is named, with what to do."""
    (tmp_path / wishes.FILE).write_text(text)
    with pytest.raises(ResultsError, match=r"models\.json: is not a list of wishes") as caught:
        wishes.read(tmp_path)
    assert caught.value.remedy
