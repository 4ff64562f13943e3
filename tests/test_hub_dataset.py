"""pipeline/hub_dataset.py: results/ as a dataset, with the real client and a local server."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from huggingface_hub import constants

from pipeline import hub_branch, hub_dataset, rankings, wishes
from pipeline import results as store
from pipeline.cli import main
from pipeline.columns import VERSION_KEY
from pipeline.errors import EnvironmentFault, HubError, QualifyError, ResultsError, UsageError
from pipeline.hub_dataset import Pushed, push
from pipeline.record import Record
from pipeline.rows import canonical
from pipeline.words import Target
from tests.dataset_server import DatasetServer
from tests.discovery import ranked
from tests.papers import day, erring, failing, passing, run, save, stack

REPO = "org/results"
TOKEN = "hf_secret_token"  # noqa: S105 -- opens this machine's stand-in
CPU = stack(Target.CPU)


@pytest.fixture(autouse=True)
def basic_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files over plain HTTP; one test takes hf_xet."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


@pytest.fixture
def hub() -> Iterator[DatasetServer]:
    with DatasetServer() as server:
        server.open(REPO, TOKEN)
        yield server


def publish(results: Path, *records: Record) -> Path:
    """Results that hold the records, each publication by itself."""
    for record in records:
        store.write(store.prepare(results, [store.row_of(record)]).files)
    return results


def published(tmp_path: Path, name: str = "results") -> Path:
    """A PASS and a FAIL on Trainium, and a PASS on the CPU, in three publications."""
    return publish(
        tmp_path / name,
        passing(run("a/one")),
        failing(run("a/two"), day(1)),
        passing(run("a/one", stack=CPU), day(2)),
    )


def send(results: Path, hub: DatasetServer, waits: list[float] | None = None) -> Pushed:
    """`push` without waiting; what it would have waited goes into `waits`."""
    slept = waits if waits is not None else []
    return push(results, REPO, token=TOKEN, endpoint=hub.url, sleep=slept.append)


def remote(hub: DatasetServer, folder: Path) -> Path:
    """The dataset as a folder."""
    for name, data in hub.files(REPO).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def texts(rows: Sequence[store.Row]) -> list[str]:
    return [canonical(row) for row in rows]


@pytest.mark.parametrize("large", [True, False])
def test_all_of_results_arrives_as_it_is(hub: DatasetServer, tmp_path: Path, large: bool) -> None:
    """Every file is there byte for byte whether the Hub keeps Parquet as large files or not; no
    script is sent beside the rows that hold them."""
    if not large:
        hub.large = lambda path: False
    results = published(tmp_path)
    (results / wishes.FILE).write_bytes(wishes.dump({}, 30))
    pushed = send(results, hub)
    there = hub.files(REPO)
    here = {
        path.relative_to(results).as_posix(): path.read_bytes()
        for path in results.rglob("*")
        if path.is_file() and path.suffix != ".py"
    }
    assert {name: there[name] for name in here} == here
    assert set(there) - set(here) == {"README.md"}
    assert {file.large for file in hub.stored_files(REPO).values()} == (
        {True, False} if large else {False}
    )
    assert set(pushed.sent) == set(there)
    assert (pushed.removed, pushed.joined, pushed.attempts) == ((), (), 1)
    assert pushed.commit == hub.head(REPO)
    assert pushed.url == f"{hub.url}/datasets/{REPO}"


def test_hf_xet_carries_large_files(
    hub: DatasetServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hf_xet, which the client takes where it is installed, the commit names the contents
    here, and their bytes go into hf_xet's store alone."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    hub.cas = tmp_path / "cas"
    hub.cas.mkdir()
    results = published(tmp_path)
    pushed = send(results, hub)
    held = {name: file.etag for name, file in hub.stored_files(REPO).items() if file.large}
    sent = [name for name in pushed.sent if name.endswith(".parquet")]
    assert held == {
        name: hashlib.sha256((results / name).read_bytes()).hexdigest() for name in sent
    }
    assert any(hub.cas.rglob("*"))
    assert not hub.uploaded  # none went another way


def test_the_same_results_are_sent_once(hub: DatasetServer, tmp_path: Path) -> None:
    """Where nothing changed nothing is sent: no commit, no upload."""
    results = published(tmp_path)
    first = send(results, hub)
    hub.log.clear()
    again = send(results, hub)
    assert (again.sent, again.removed, again.commit) == ((), (), first.commit)
    assert {one.method for one in hub.log} == {"GET"}
    assert str(again).endswith("nothing to send")


def test_only_what_changed_is_sent(hub: DatasetServer, tmp_path: Path) -> None:
    """A new publication sends itself, its stack's current file, and the card; no other file."""
    results = published(tmp_path)
    send(results, hub)
    hub.log.clear()
    publish(results, failing(run("a/one"), day(5)))
    pushed = send(results, hub)
    newest = max(path.name for path in (results / "history").iterdir())
    assert pushed.sent == (
        "README.md",
        "current/neuronxcc-2.28.7631.0/transformers-5.24.0.parquet",
        f"history/{newest}",
    )
    assert sum(one.method == "PUT" for one in hub.log) == 2
    commit = next(one for one in hub.log if "/commit/" in one.path)
    assert commit.status == 200


def test_current_files_that_are_gone_are_removed_in_the_same_commit(
    hub: DatasetServer, tmp_path: Path
) -> None:
    """A file below current/ that results no longer have is removed; history and files of others
    stay."""
    kept = {"current/old-1/x.parquet": b"old", "current/notes.txt": b"x", "docs/mine.md": b"mine"}
    hub.open(REPO, TOKEN, files=kept)
    pushed = send(published(tmp_path), hub)
    assert pushed.removed == ("current/notes.txt", "current/old-1/x.parquet")
    there = hub.files(REPO)
    assert there["docs/mine.md"] == b"mine"
    assert not set(pushed.removed) & set(there)
    assert hub.commits() == [200]


def test_another_publisher_in_between_loses_nothing(hub: DatasetServer, tmp_path: Path) -> None:
    """A commit on a head that somebody moved is refused with 412; then all is decided anew, with
    their publications: current holds the rows of both."""
    ours = publish(tmp_path / "ours", passing(run("a/one")), failing(run("a/two"), day(1)))
    theirs = publish(
        tmp_path / "theirs",
        passing(run("a/one")),
        passing(run("a/two"), day(3)),
        passing(run("b/x")),
    )

    def another() -> None:
        send(theirs, hub)

    hub.before_commit = another
    waits: list[float] = []
    pushed = send(ours, hub, waits)
    assert sorted(hub.commits()) == [200, 200, 412]
    assert (pushed.attempts, len(pushed.joined), waits) == (2, 2, [1.0])
    folder = remote(hub, tmp_path / "remote")
    hub_dataset.check(folder)
    expected = store.merge([*store.read_history(ours), *store.read_history(theirs)])
    assert texts(store.read_current(folder)) == texts(expected)
    assert {row["model_id"] for row in expected} == {"a/one", "a/two", "b/x"}
    both = {path.name for place in (ours, theirs) for path in (place / "history").iterdir()}
    assert {path.name for path in (folder / "history").iterdir()} == both
    assert len(store.read_history(ours)) == 2  # the folder itself is left as it was


def test_publishers_that_race_lose_nothing(hub: DatasetServer, tmp_path: Path) -> None:
    """Four at once, each with a publication of its own: the dataset ends with all of them."""
    places = [
        publish(tmp_path / str(number), passing(run(f"a/model-{number}"), day(number)))
        for number in range(4)
    ]
    faults: list[BaseException] = []

    def work(place: Path) -> None:
        try:
            send(place, hub)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(place,)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    folder = remote(hub, tmp_path / "remote")
    hub_dataset.check(folder)
    assert len(store.read_history(folder)) == 4
    assert [row["model_id"] for row in store.read_current(folder)] == [
        f"a/model-{number}" for number in range(4)
    ]


def test_an_older_folder_does_not_take_the_newer_list_back(
    hub: DatasetServer, tmp_path: Path
) -> None:
    """models.json and the rankings are those of whoever has the newest publication."""
    old = publish(tmp_path / "old", passing(run("a/one")))
    new = publish(tmp_path / "new", passing(run("a/one")), passing(run("a/two"), day(3)))
    (old / wishes.FILE).write_bytes(wishes.dump({}, 10))
    (new / wishes.FILE).write_bytes(wishes.dump({}, 20))
    snapshot = ranked(["a/one"])
    assert rankings.store(new, [snapshot])
    send(new, hub)
    pushed = send(old, hub)
    assert pushed.sent == ()
    assert json.loads(hub.files(REPO)[wishes.FILE])["max_age_days"] == 20
    assert f"rankings/{snapshot.name}" in hub.files(REPO)


@pytest.mark.parametrize(
    ("status", "headers", "wait"),
    [
        (409, {}, 1.0),
        (412, {}, 1.0),
        (429, {"Retry-After": "37"}, 38.0),
        (429, {"RateLimit": '"api";r=0;t=120'}, 121.0),
        (429, {"Retry-After": "86400"}, hub_dataset.MAX_WAIT_S),
        (500, {}, 1.0),
        (503, {"Retry-After": "5"}, 6.0),
    ],
)
def test_a_busy_hub_is_asked_again(
    hub: DatasetServer, tmp_path: Path, status: int, headers: dict[str, str], wait: float
) -> None:
    """Conflicts, limits and failures of the server are tried again, after as long as it asks for,
    within a bound."""
    hub.fail("/commit/", status, headers=headers)
    waits: list[float] = []
    pushed = send(published(tmp_path), hub, waits)
    assert (pushed.attempts, waits, hub.commits()) == (2, [wait], [status, 200])


@pytest.mark.parametrize(
    ("path", "attempts"),
    # Listings and preupload the client repeats itself, after a second.
    [(f"/api/datasets/{REPO}/revision", 2), ("/tree/", 1), ("/preupload/", 1), ("/commit/", 2)],
)
def test_a_cut_connection_is_tried_again(
    hub: DatasetServer, tmp_path: Path, path: str, attempts: int
) -> None:
    """An answer that ends in its middle is asked for again, and what was sent is whole."""
    hub.cut(path)
    results = published(tmp_path)
    pushed = send(results, hub)
    assert pushed.attempts == attempts
    hub_dataset.check(remote(hub, tmp_path / "remote"))


def test_a_commit_whose_answer_was_lost_is_not_made_twice(
    hub: DatasetServer, tmp_path: Path
) -> None:
    """The next attempt finds the dataset as wanted, and tells what was sent."""
    hub.cut("/commit/")
    pushed = send(published(tmp_path), hub)
    assert hub.commits() == [200]
    assert pushed.commit == hub.head(REPO)
    assert "README.md" in pushed.sent


@pytest.mark.parametrize("status", [409, 429, 500])
def test_it_gives_up_in_the_end(hub: DatasetServer, tmp_path: Path, status: int) -> None:
    """Attempts are bounded, and the error says that nothing is lost."""
    hub.fail("/commit/", status, times=100)
    waits: list[float] = []
    with pytest.raises(HubError, match=f"{status}, 7 attempts") as caught:
        send(published(tmp_path), hub, waits)
    assert waits == list(hub_dataset.BACKOFF_S)
    assert "nothing is lost" in str(caught.value)
    assert hub.files(REPO) == {}


def test_a_hub_that_is_away_is_no_traceback(tmp_path: Path) -> None:
    """A refused connection is tried again and then told."""
    waits: list[float] = []
    with pytest.raises(HubError, match=r"could not be used .*7 attempts"):
        push(
            published(tmp_path),
            REPO,
            token=TOKEN,
            endpoint="http://127.0.0.1:9",
            sleep=waits.append,
        )
    assert waits == list(hub_dataset.BACKOFF_S)


@pytest.mark.parametrize(
    ("token", "repo", "text"),
    [
        ("hf_unknown", REPO, "does not accept the token"),
        ("hf_reader", REPO, "write access"),
        (TOKEN, "org/absent", "hf repos create org/absent --type dataset"),
    ],
)
def test_refusals_say_what_to_do_and_never_the_token(
    hub: DatasetServer, tmp_path: Path, token: str, repo: str, text: str
) -> None:
    """A wrong token, one that only reads, and a dataset that is not there are told at once, each
    with its remedy; no error anywhere in the chain is shown with the token."""
    hub.tokens.add("hf_reader")
    waits: list[float] = []
    with pytest.raises(HubError, match=text) as caught:
        push(published(tmp_path), repo, token=token, endpoint=hub.url, sleep=waits.append)
    assert token not in str(caught.value)
    assert caught.value.remedy
    assert waits == []


def test_rows_of_the_simulator_are_not_sent(hub: DatasetServer, tmp_path: Path) -> None:
    """Whatever target they name: their packages say so. Nothing is asked of the Hub."""
    tests_own = stack(Target.SIMULATOR)
    disguised = stack(torch_neuronx="2.14.0+simulator")
    for number, one in enumerate((tests_own, disguised)):
        results = publish(
            tmp_path / str(number), passing(run("a/one")), passing(run("a/two", stack=one), day(1))
        )
        with pytest.raises(ResultsError, match="simulator"):
            send(results, hub)
    assert hub.log == []


def _changed_row(results: Path) -> None:
    path = next((results / "current").rglob("neuronxcc*/*.parquet"))
    table = pq.read_table(path)
    at = table.column_names.index("result")
    pq.write_table(table.set_column(at, "result", pa.array(["PASS"] * table.num_rows)), path)


def _older_schema(results: Path) -> None:
    path = next((results / "current").rglob("neuronxcc*/*.parquet"))
    table = pq.read_table(path)
    marks = {**table.schema.metadata, VERSION_KEY: b"1"}
    pq.write_table(table.drop_columns(["tries"]).replace_schema_metadata(marks), path)


def _cut(results: Path) -> None:
    path = next((results / "history").iterdir())
    path.write_bytes(path.read_bytes()[:-100])


def _lost_history(results: Path) -> None:
    max((results / "history").iterdir()).unlink()


def _foreign(results: Path) -> None:
    (results / "current" / "README.md").write_text("hello")


def _bad_list(results: Path) -> None:
    (results / wishes.FILE).write_text("[]")


def _nothing(results: Path) -> None:
    shutil.rmtree(results)


@pytest.mark.parametrize(
    "spoil",
    [_changed_row, _older_schema, _cut, _lost_history, _foreign, _bad_list, _nothing],
)
def test_nothing_broken_gets_out(hub: DatasetServer, tmp_path: Path, spoil: object) -> None:
    """Results that are not whole are refused before the Hub is asked anything."""
    results = published(tmp_path)
    assert callable(spoil)
    spoil(results)
    with pytest.raises(QualifyError):
        send(results, hub)
    assert hub.log == []


def test_a_dataset_that_was_changed_by_hand_is_not_overwritten(
    hub: DatasetServer, tmp_path: Path
) -> None:
    """A publication of ours that has other rows there, or a file that is no publication: nothing
    is sent, and the error names the file."""
    results = published(tmp_path)
    one, other, *_ = sorted((results / "history").iterdir())
    for name, data in ((one.name, other.read_bytes()), ("mine.parquet", b"no Parquet")):
        head = hub.open(REPO, TOKEN, files={f"history/{name}": data})
        with pytest.raises(ResultsError, match=name) as caught:
            send(results, hub)
        assert "nothing was sent" in str(caught.value)
        assert hub.head(REPO) == head


def test_a_publication_written_anew_here_is_sent(hub: DatasetServer, tmp_path: Path) -> None:
    """Other bytes for the same rows, as a change of columns or another pyarrow makes them, replace
    the old ones."""
    results = published(tmp_path)
    send(results, hub)
    path = next((results / "history").iterdir())
    table = pq.read_table(path)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="none")
    path.write_bytes(sink.getvalue())
    assert send(results, hub).sent == (f"history/{path.name}",)


def test_git_names_contents_as_git_does() -> None:
    """The name that the Hub compares is git's own."""
    git = subprocess.run(
        ["git", "hash-object", "--stdin"], input=b"hello\n", capture_output=True, check=True
    )
    assert hub_branch.git_blob(b"hello\n") == git.stdout.decode().strip()


@pytest.mark.parametrize(
    "text",
    ["org/results", "hf://datasets/org/results", "https://huggingface.co/datasets/org/results/"],
)
def test_a_dataset_may_be_named_by_its_address(text: str) -> None:
    """What people copy from a browser or a snippet is taken."""
    assert hub_dataset.repo_of(text) == REPO


@pytest.mark.parametrize("text", ["results", "a/b/c", "../x/y", "org/re sults", "", "org/a--b"])
def test_other_names_are_refused(text: str) -> None:
    """What cannot be a dataset's name is a wrong command line."""
    with pytest.raises(UsageError, match="OWNER/NAME"):
        hub_dataset.repo_of(text)


@pytest.mark.parametrize("value", [None, "", "  ", "two words", "line\nbreak"])
def test_the_token_comes_from_its_variable_alone(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """Without one the command ends before anything is done, and does not repeat what was there."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    if value is not None:
        monkeypatch.setenv("HF_TOKEN", value)
    with pytest.raises(EnvironmentFault, match="HF_TOKEN holds no token") as caught:
        hub_dataset.token()
    assert not (value or "").strip() or (value or "") not in str(caught.value)


def qualify(
    hub: DatasetServer, *arguments: str, token: str = TOKEN
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as HF_ENDPOINT is read at import."""
    return subprocess.run(
        [sys.executable, "-m", "pipeline.cli", *arguments],
        env={**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_sends_what_is_published(hub: DatasetServer, tmp_path: Path) -> None:
    """`qualify publish --hub` without records sends the results as they are, prints what it did,
    and reads no model list."""
    results = published(tmp_path)
    done = qualify(
        hub,
        "publish",
        "--hub",
        REPO,
        "--results",
        str(results),
        "--list",
        str(tmp_path / "no.yaml"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"/datasets/{REPO} is at {hub.head(REPO)[:12]}: 6 sent, 0 removed" in done.stdout
    assert "sent README.md" in done.stdout
    bad = "hf_wrong"
    wrong = qualify(hub, "publish", "--hub", REPO, "--results", str(results), token=bad)
    assert wrong.returncode == HubError.exit_code
    assert bad not in wrong.stdout + wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_records_are_published_and_then_sent(hub: DatasetServer, tmp_path: Path) -> None:
    """With records, results are derived first; the JSON tells both."""
    records = save(tmp_path / "records", [passing(run("a/one")), erring(run("a/two"))])
    (tmp_path / "models.yaml").write_text(Path("models.yaml").read_text())
    done = qualify(
        hub, "publish", str(records), "--hub", REPO, "--json",
        "--list", str(tmp_path / "models.yaml"),
        "--results", str(tmp_path / "results"),
        "--table", str(tmp_path / "COMPATIBILITY.md"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["added"] == 2
    assert told["hub"]["commit"] == hub.head(REPO)
    assert wishes.FILE in told["hub"]["sent"]


@pytest.mark.parametrize("arguments", [[], ["--plan", "plan.json", "--hub", REPO]])
def test_without_records_there_is_nothing_to_derive(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither records nor --hub alone is a wrong command line, told before anything else."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    done = CliRunner().invoke(main, ["publish", *arguments])
    assert done.exit_code == UsageError.exit_code
    assert "RECORDS" in done.output


def test_what_was_sent_opens_as_one_folder(hub: DatasetServer, tmp_path: Path) -> None:
    """pandas reads the dataset's current/ and history/ whole: nothing but Parquet of one schema."""
    send(published(tmp_path), hub)
    folder = remote(hub, tmp_path / "remote")
    for name in ("current", "history"):
        assert len(pd.read_parquet(folder / name)) == 3
