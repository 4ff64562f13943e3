"""The Hub's rankings, with huggingface_hub's own client, from a small server in the Hub's place."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

from pipeline import hub_client, rankings, results
from pipeline.errors import RecordError
from pipeline.rankings import Ranked, Ranking, Rankings, Snapshot
from pipeline.words import Task
from tests import golden_files
from tests.hub_server import HubServer, Listed

NOW = datetime(2026, 11, 30, 6, 17, 5, 123456, tzinfo=UTC)
TEXT, PICTURE = Task.TEXT_GENERATION, Task.IMAGE_TEXT_TO_TEXT


@pytest.fixture
def server() -> Iterator[HubServer]:
    with HubServer() as hub:
        for number in range(rankings.TOP + 30):
            hub.listed[f"text/model-{number:03}"] = Listed(
                "text-generation",
                downloads=1_000 - number,
                trending_score=number,
                likes=7,
                safetensors={"parameters": {"BF16": 600}, "total": 600 + number},
            )
            hub.listed[f"picture/model-{number:03}"] = Listed(
                "image-text-to-text", downloads=number
            )
        yield hub


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of the library's own retries of a list, which cannot be handed in, are noted."""
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    return waits


def take(server: HubServer, now: datetime = NOW) -> tuple[list[Snapshot], list[str]]:
    return rankings.take(now=now, endpoint=server.url, sleep=lambda _: None)


def snapshot(
    ids: list[str],
    *,
    task: Task = TEXT,
    ranking: Ranking = Ranking.TRENDING,
    taken_at: datetime = NOW,
) -> Snapshot:
    rows = tuple(
        Ranked(
            rank=rank,
            id=model_id,
            downloads=None,
            likes=None,
            trending_score=None,
            library_name=None,
            gated=None,
            parameters=None,
        )
        for rank, model_id in enumerate(ids, 1)
    )
    return Snapshot(task=task, ranking=ranking, taken_at=taken_at, rows=rows)


def test_four_rankings(server: HubServer) -> None:
    """Both tasks by both orders, the first 200 of each as the Hub orders them, with its figures."""
    taken, faults = take(server)
    assert faults == []
    assert [(one.task, one.ranking) for one in taken] == [
        (task, ranking) for task in Task for ranking in Ranking
    ]
    trending, downloads, *_ = taken
    assert [row.rank for row in trending.rows] == list(range(1, 201))
    assert [trending.rows[0].id, downloads.rows[0].id] == ["text/model-229", "text/model-000"]
    assert downloads.rows[1] == Ranked(
        rank=2,
        id="text/model-001",
        downloads=999,
        likes=7,
        trending_score=1.0,
        library_name="transformers",
        gated=False,
        parameters=601,
    )
    assert downloads.taken_at == datetime(2026, 11, 30, 6, 17, 5, tzinfo=UTC)
    assert taken[3].rows[0].id == "picture/model-229"
    assert taken[3].rows[0].parameters is None


def test_requests(server: HubServer) -> None:
    """A ranking costs one request a page, and asks for nothing that is not kept."""
    take(server)
    assert len(server.log) == 8
    assert server.log[0].query["sort"] == ["trendingScore"]
    assert server.log[0].query["pipeline_tag"] == ["text-generation"]
    assert set(server.log[0].query["expand"]) == {
        "downloads",
        "gated",
        "library_name",
        "likes",
        "private",
        "safetensors",
        "trendingScore",
    }


def test_what_is_left_out(server: HubServer) -> None:
    """What is no model id, private, or there twice leaves its rank empty; others keep theirs."""
    tops = ["a--b/c", "../x", "ok/first", "ok/hidden", "OK/First", "-v", "ok/second"]
    for place, model_id in enumerate(tops):
        server.listed[model_id] = Listed("text-generation", downloads=9_000 - place)
    server.listed["ok/hidden"].private = True
    found = take(server)[0][1]
    assert [(row.rank, row.id) for row in found.rows[:3]] == [
        (3, "ok/first"),
        (7, "ok/second"),
        (8, "text/model-000"),
    ]
    assert found.rows[-1].rank == 200


def test_odd_values_are_null(server: HubServer) -> None:
    """A value that is not of the documented kind is unknown, and costs neither row nor ranking."""
    server.listed["odd/one"] = Listed(
        "text-generation",
        downloads=99_999,
        likes=-1,
        trending_score="much",
        library_name="x" * 5_000,
        gated="perhaps",
        safetensors={"parameters": {}, "total": 2**70},
    )
    server.listed["odd/two"] = Listed(
        "text-generation", downloads=99_998, likes=None, trending_score=None, library_name=None
    )
    first, second = take(server)[0][1].rows[:2]
    assert (first.id, first.downloads) == ("odd/one", 99_999)
    assert {first.likes, first.trending_score, first.library_name, first.gated} == {None}
    assert first.parameters is None
    assert (second.likes, second.trending_score, second.library_name) == (None, None, None)


def test_short_answer(server: HubServer, tmp_path: Path) -> None:
    """A ranking of fewer than 100 rows is refused, the others are taken; the old file stays."""
    old = snapshot(["old/model"], task=PICTURE, taken_at=NOW - timedelta(days=1))
    rankings.store(tmp_path, [old])
    for number in range(rankings.FEWEST - 1, rankings.TOP + 30):
        del server.listed[f"picture/model-{number:03}"]
    taken, faults = take(server)
    assert [one.task for one in taken] == [TEXT, TEXT]
    assert faults == [
        f"the Hub's image-text-to-text models by {ranking}: 99 rows came, expected about 200"
        for ranking in ("trending", "downloads")
    ]
    rankings.store(tmp_path, taken)
    assert rankings.read(tmp_path).of(PICTURE, Ranking.TRENDING) == old


def test_hub_away(server: HubServer, no_waiting: list[float]) -> None:
    """A Hub that fails for a moment is waited for; one that stays away gives faults, no crash."""
    server.fail("/api/models", 503)
    assert take(server)[1] == []
    assert no_waiting == [1]
    server.fail("/api/models", 503, times=10_000)
    taken, faults = take(server)
    assert taken == []
    assert len(faults) == 4
    assert "the Hub answered HTTP 503" in faults[0]
    assert "text-generation models by trending_score" in faults[0]


def test_answer_that_is_no_list(server: HubServer) -> None:
    """Anything but a list of models is a fault in our words."""
    server.fail("/api/models", 200, times=10_000, body=b'[{"name": "x"}]')
    taken, faults = take(server)
    assert taken == []
    assert len(faults) == 4 and all("could not be read" in fault for fault in faults)


def test_round_trip(server: HubServer, tmp_path: Path) -> None:
    """What is read is what was taken; same snapshot, same bytes; a line a row."""
    taken, _ = take(server)
    assert rankings.store(tmp_path, taken) == taken
    assert list(rankings.read(tmp_path)) == taken
    path = tmp_path / "rankings" / "text-generation-downloads.json"
    text = path.read_text(encoding="utf-8")
    assert text.encode() == rankings.dump(taken[1])
    assert list(json.loads(text)) == ["schema_version", "task", "ranking", "taken_at", "rows"]
    assert text.splitlines()[5] == ' "rows": ['
    assert len(text.splitlines()) == 200 + 8
    assert path.stat().st_size < rankings.MAX_BYTES / 20


def test_nothing_there(tmp_path: Path) -> None:
    """Without snapshots there are no rankings, and that is no error."""
    assert list(rankings.read(tmp_path)) == []
    assert Rankings().of(TEXT, Ranking.TRENDING) is None


def test_news(tmp_path: Path) -> None:
    """The same rows on the same day, and what is older than what is there, change no file."""
    first = snapshot(["a/b", "c/d"])
    assert rankings.store(tmp_path, [first]) == [first]
    later = NOW + timedelta(hours=2)
    assert rankings.store(tmp_path, [snapshot(["a/b", "c/d"], taken_at=later)]) == []
    moved = snapshot(["c/d", "a/b"], taken_at=later)
    assert rankings.store(tmp_path, [moved]) == [moved]
    assert rankings.store(tmp_path, [first]) == []
    tomorrow = snapshot(["c/d", "a/b"], taken_at=NOW + timedelta(days=1))
    assert rankings.store(tmp_path, [tomorrow]) == [tomorrow]
    assert rankings.read(tmp_path).of(TEXT, Ranking.TRENDING) == tomorrow


def test_ranks(tmp_path: Path) -> None:
    """A model's ranks are found whatever its letter case."""
    rankings.store(
        tmp_path, [snapshot(["a/b", "c/d"]), snapshot(["C/D"], ranking=Ranking.DOWNLOADS)]
    )
    found = rankings.read(tmp_path).ranks("C/d")
    assert {key: row.rank for key, row in found.items()} == {
        (TEXT, Ranking.TRENDING): 2,
        (TEXT, Ranking.DOWNLOADS): 1,
    }


def test_summary() -> None:
    """A job's page says what was taken, where it went, and what was not taken."""
    taken = [snapshot(["a/b", "c/d", "e/f", "g/h"]), snapshot(["c/d"], ranking=Ranking.DOWNLOADS)]
    faults = ["the Hub's image-text-to-text models by trending: 3 rows came, expected about 200"]
    golden_files.check("rankings-summary.md", rankings.summary(taken, faults, "c" * 40))
    assert rankings.summary(taken, [], None).startswith("## The rankings are as they were")
    assert rankings.summary([], faults, None).startswith("## The Hub gave no ranking")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a valid snapshot"),
        (b"{}", "not a valid snapshot"),
        (b" " * (rankings.MAX_BYTES + 1), "is larger than"),
        (rankings.dump(snapshot(["a/b"], task=PICTURE)), "holds the ranking image-text-to-text"),
        (rankings.dump(snapshot(["../b"])), "'../b' is no model id"),
        (rankings.dump(snapshot(["a/b"])).replace(b"+00:00", b"").replace(b"Z", b""), "taken_at"),
        (rankings.dump(snapshot(["a/b"])).replace(b'"rank": 1', b'"rank": 0'), "rows.0.rank"),
    ],
    ids=["empty", "keys", "large", "misnamed", "id", "time", "rank"],
)
def test_faulty_file(tmp_path: Path, data: bytes, words: str) -> None:
    """A file that is no snapshot is named, with its fault."""
    path = tmp_path / "rankings" / "text-generation-trending.json"
    path.parent.mkdir()
    path.write_bytes(data)
    with pytest.raises(RecordError, match=words) as caught:
        rankings.read(tmp_path)
    assert str(path) in str(caught.value)


def test_beside_results(tmp_path: Path) -> None:
    """Readers of results/ do not trip over rankings/: ours, migration, pandas on current/."""
    rankings.store(tmp_path, [snapshot(["a/b"])])
    assert results.read_current(tmp_path) == []
    assert results.read_history(tmp_path) == []
    assert results.migrate(tmp_path) == []
    current = tmp_path / "current" / "x"
    current.mkdir(parents=True)
    pd.DataFrame({"model_id": ["a/b"]}).to_parquet(current / "y.parquet")
    assert len(pd.read_parquet(tmp_path / "current")) == 1


def test_import_is_light() -> None:
    """Readers of rankings import no client of the Hub."""
    code = (
        "import sys, pipeline.rankings; "
        "print({'huggingface_hub', 'torch', 'transformers', 'github'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    assert done.stdout.strip() == "set()"


def test_library_still_takes_what_is_asked() -> None:
    """The names of what a list is asked for are those that huggingface_hub knows."""
    from typing import get_args

    from huggingface_hub.hf_api import ExpandModelProperty_T, ModelSort_T

    assert set(hub_client._LISTED) <= set(get_args(ExpandModelProperty_T))
    assert {ranking.sort for ranking in Ranking} <= set(get_args(ModelSort_T))
