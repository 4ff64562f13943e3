"""pipeline.hub with the real huggingface_hub client against a local server in the Hub's place."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants, snapshot_download

from pipeline import checkpoint_files, hub_client
from pipeline.hub import CheckpointRef, inspect, inspect_all
from pipeline.placement import Checkpoint, Tensor
from pipeline.record import Refusal
from pipeline.words import Failure
from tests.hub_server import Content, HubServer

MODEL = "org/model"
CONFIG = json.dumps({"model_type": "qwen3", "num_hidden_layers": 2}).encode()
TOKEN = "hf_secretSECRETsecret"  # noqa: S105 -- names nobody


@pytest.fixture(autouse=True)
def _own_hub_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No token or offline switch of this machine reaches a test."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    # Else the client asks huggingface.co for a list of agent names, for its user agent.
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)


@pytest.fixture
def server() -> Iterator[HubServer]:
    with HubServer() as running:
        yield running


class Waits(list[float]):
    """Takes the place of time.sleep: notes the seconds."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def ask(server: HubServer, model_id: str = MODEL, **options: Any) -> Checkpoint | Refusal:
    return inspect(model_id, endpoint=server.url, **({"sleep": Waits()} | options))


def facts(found: Checkpoint | Refusal) -> Checkpoint:
    assert isinstance(found, Checkpoint), found
    return found


def refusal(found: Checkpoint | Refusal) -> Refusal:
    assert isinstance(found, Refusal), found
    return found


def weights(*names: str, pad: int = 0) -> bytes:
    """A safetensors file: a 3 x 4 bf16 tensor a name, and `pad` bytes of metadata."""
    header: dict[str, object] = {"__metadata__": {"pad": "x" * pad}}
    for number, name in enumerate(names):
        header[name] = entry(24 * number, 24 * (number + 1), "BF16", [3, 4])
    return packed(header, bytes(24 * len(names)))


def packed(header: object, data: bytes = b"") -> bytes:
    """A file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, dtype: str = "U8", shape: list[int] | None = None) -> object:
    shape = [end - begin] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


SHARDED: dict[str, Content] = {
    "config.json": CONFIG,
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    ).encode(),
    "model-1.safetensors": weights("a", "left.over"),
    "model-2.safetensors": weights("b"),
    "model-3.safetensors": weights("unnamed"),
    "original/model.safetensors": weights("a", "b"),
    "consolidated.safetensors": weights("a", "b"),
}


# What is read from the Hub, and with how many requests


def test_single_file(server: HubServer) -> None:
    """Three requests give the resolved commit, the config, and every tensor by name."""
    commit = server.add(MODEL, {"config.json": CONFIG, "model.safetensors": weights("b", "a")})
    assert facts(ask(server)) == Checkpoint(
        model_id=MODEL,
        revision=commit,
        config=json.loads(CONFIG),
        tensors=(Tensor("a", "BF16", (3, 4)), Tensor("b", "BF16", (3, 4))),
        checkpoint_bytes=48,
        remote_code=False,
    )
    assert server.paths() == [
        f"/api/models/{MODEL}",
        f"/{MODEL}/resolve/{commit}/config.json",
        f"/{MODEL}/resolve/{commit}/model.safetensors",
    ]


def test_index_decides(server: HubServer) -> None:
    """Only tensors of the weight_map count, at one request a shard that it names."""
    commit = server.add(MODEL, SHARDED)
    found = facts(ask(server))
    assert [tensor.name for tensor in found.tensors] == ["a", "b"]
    assert found.checkpoint_bytes == 48
    assert sorted(server.paths()[1:]) == [
        f"/{MODEL}/resolve/{commit}/{name}"
        for name in (
            "config.json",
            "model-1.safetensors",
            "model-2.safetensors",
            "model.safetensors.index.json",
        )
    ]


def test_single_file_goes_before_an_index(server: HubServer) -> None:
    """Where both are there, model.safetensors is what from_pretrained loads."""
    server.add(MODEL, SHARDED | {"model.safetensors": weights("c")})
    assert [tensor.name for tensor in facts(ask(server)).tensors] == ["c"]


def test_long_header(server: HubServer) -> None:
    """A header above the first read costs one request more, from where the first one ended."""
    server.add(MODEL, {"config.json": CONFIG, "model.safetensors": weights("a", pad=200_000)})
    assert [tensor.name for tensor in facts(ask(server)).tensors] == ["a"]
    ranges = [request.headers.get("range", "") for request in server.log]
    assert ranges[:3] == ["", "", "bytes=0-131071"]
    assert len(ranges) == 4 and ranges[3].startswith("bytes=131072-200")


def test_weights_stay_where_they_are(tmp_path: Path) -> None:
    """The data behind a header is not transferred, even by a server without ranges."""
    size = 64 * 1024 * 1024
    path = tmp_path / "model.safetensors"
    path.write_bytes(packed({"w": entry(0, size)}))
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size + size)
    for ranges, limit in ((True, checkpoint_files.FIRST_BYTES), (False, size // 2)):
        with HubServer(ranges=ranges) as server:
            server.add(MODEL, {"config.json": CONFIG, "model.safetensors": path})
            assert facts(ask(server)).checkpoint_bytes == size
            assert server.log[-1].sent <= limit


def test_no_ranges_and_a_long_header() -> None:
    """Without ranges the second read of a header still finds its place."""
    with HubServer(ranges=False) as server:
        server.add(MODEL, {"config.json": CONFIG, "model.safetensors": weights("a", pad=200_000)})
        assert facts(ask(server)).checkpoint_bytes == 24


def test_redirects_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files may live on another site, as the Hub's do; the token is not shown there."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with HubServer(redirect=True) as server:
        server.add(MODEL, SHARDED, readers=(TOKEN,))
        assert facts(ask(server)).checkpoint_bytes == 48
        elsewhere = [request for request in server.log if "/storage/" in request.path]
        assert len(elsewhere) == 2
        assert not [request for request in elsewhere if "authorization" in request.headers]


def test_shards_are_read_a_few_at_a_time(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more requests run at once than SHARD_WORKERS, however many shards there are."""
    monkeypatch.setattr(hub_client, "SHARD_WORKERS", 2)
    names = [f"model-{number:02}.safetensors" for number in range(30)]
    index = json.dumps({"weight_map": {name: name for name in names}}).encode()
    files: dict[str, Content] = {name: weights(name) for name in names}
    server.add(MODEL, files | {"config.json": CONFIG, "model.safetensors.index.json": index})
    assert len(facts(ask(server)).tensors) == 30
    assert len(server.log) == 3 + 30
    assert server.most_at_once <= 2


def test_revisions(server: HubServer) -> None:
    """A branch, an older commit and main each give their own files and their commit's hash."""
    old = server.add(MODEL, {"config.json": CONFIG})
    new = server.add(MODEL, {"config.json": b'{"model_type": "llama"}'})
    branch = server.add(MODEL, {"config.json": b'{"model_type": "gpt2"}'}, ref="refs/pr/1")
    seen = {
        revision: (found.revision, found.model_type)
        for revision in (None, old, "refs/pr/1")
        if (found := facts(ask(server, revision=revision)))
    }
    assert seen == {None: (new, "llama"), old: (old, "qwen3"), "refs/pr/1": (branch, "gpt2")}


def test_a_pinned_commit_is_never_another(server: HubServer) -> None:
    """A server that answers a pinned commit with another one is not believed."""
    commit = server.add(MODEL, {"config.json": CONFIG})
    server.repositories[MODEL].refs["0" * 40] = commit
    assert refusal(ask(server, revision="0" * 40)).failure is Failure.DOWNLOAD


def test_without_safetensors(server: HubServer, tmp_path: Path) -> None:
    """Weights in other formats are no tensors; whether that is refused is for placement."""
    files = {"config.json": CONFIG, "pytorch_model.bin": b"PK"}
    server.add(MODEL, dict(files))
    assert facts(ask(server)).tensors == ()
    assert facts(inspect(MODEL, source=write(tmp_path, files))).checkpoint_bytes == 0


def test_remote_code_is_noted(server: HubServer) -> None:
    """A config that names classes in the repository says so."""
    server.add(MODEL, {"config.json": b'{"auto_map": {"AutoConfig": "configuration_x.X"}}'})
    assert facts(ask(server)).remote_code is True


def test_weights_that_the_config_names(server: HubServer) -> None:
    """`transformers_weights` goes before model.safetensors, as in from_pretrained."""
    config = b'{"transformers_weights": "other.safetensors"}'
    files: dict[str, Content] = {"config.json": config, "model.safetensors": weights("a")}
    server.add(MODEL, files | {"other.safetensors": weights("b")})
    assert [tensor.name for tensor in facts(ask(server)).tensors] == ["b"]
    server.add(MODEL, files)
    assert "transformers_weights" in refusal(ask(server)).reason


# What the Hub refuses


def test_missing_and_private(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No repository, a private one, no such revision, no possible id: `missing`, one request."""
    server.add(MODEL, {"config.json": CONFIG})
    server.add("org/private", {"config.json": CONFIG}, private=True, readers=(TOKEN,))
    for model_id, revision in (("org/none", None), ("org/private", None), (MODEL, "v9")):
        found = refusal(ask(server, model_id, revision=revision))
        assert found.failure is Failure.MISSING
        assert model_id in found.reason and (revision or "") in found.reason
    assert len(server.log) == 3
    assert refusal(ask(server, "../api/x")).failure is Failure.MISSING
    assert len(server.log) == 3
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert refusal(ask(server, "org/none")).failure is Failure.MISSING
    assert facts(ask(server, "org/private")).model_type == "qwen3"


def test_gated(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gated repository is `gated` without access, with or without a token, and read with it."""
    server.add(MODEL, {"config.json": CONFIG}, gated="manual", readers=(TOKEN,))
    assert refusal(ask(server)).failure is Failure.GATED
    server.tokens.add("hf_other")
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    found = refusal(ask(server))
    assert (found.failure, MODEL in found.reason) == (Failure.GATED, True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert facts(ask(server)).model_type == "qwen3"


def test_gated_before_the_description(server: HubServer) -> None:
    """A Hub that gates the description too says the same: GatedRepo is not taken for missing."""
    server.add(MODEL, {"config.json": CONFIG})
    server.fail("/api/models", 403, headers={"X-Error-Code": "GatedRepo"})
    assert refusal(ask(server)).failure is Failure.GATED


def test_forbidden_file_of_a_gated_repository(server: HubServer) -> None:
    """A plain 403 on a file is `gated` where the description says so, `download` elsewhere."""
    for gated, failure in (("auto", Failure.GATED), (False, Failure.DOWNLOAD)):
        server.add(MODEL, {"config.json": CONFIG}, gated=gated)
        server.fail("config.json", 403)
        assert refusal(ask(server)).failure is failure


def test_token_is_never_told(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reason holds the token: not one that is refused, echoed, or no possible header."""
    server.add(MODEL, {"config.json": CONFIG})
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    found = [refusal(ask(server))]
    assert server.log[-1].headers["authorization"] == f"Bearer {TOKEN}"
    assert "token (HTTP 401)" in found[0].reason
    server.tokens.add(TOKEN)
    for status in (400, 401, 403, 404, 418, 503):
        echo = {"X-Error-Message": f"you sent {TOKEN}"}
        server.fail("/api", status, times=5, headers=echo, body=TOKEN.encode())
        found.append(refusal(ask(server)))
        for _ in range(5):  # use up what is left of this fault
            ask(server)
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}\x01")
    found.append(refusal(ask(server)))
    assert {outcome.failure for outcome in found} == {Failure.DOWNLOAD}
    assert not [outcome.reason for outcome in found if "secret" in outcome.reason.lower()]


# What fails for a while, or for good


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry-After": "7"}, 8.0),
        ({"Retry-After": "86400"}, hub_client.MAX_WAIT_S),
        ({"RateLimit": '"api";r=0;t=55'}, 56.0),
        ({"RateLimit": '"api";r=12;t=55'}, None),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, None),
        ({}, None),
    ],
)
def test_rate_limit(server: HubServer, headers: dict[str, str], wait: float | None) -> None:
    """429 is waited out as long as the server asks, up to a bound; by growing waits otherwise."""
    server.add(MODEL, {"config.json": CONFIG})
    server.fail("/api", 429, times=2, headers=headers)
    waits = Waits()
    assert facts(ask(server, sleep=waits)).model_type == "qwen3"
    assert waits == ([1.0, 2.0] if wait is None else [wait, wait])
    assert len(server.log) == 2 + 2


@pytest.mark.parametrize("path", ["/api/models", "config.json", "index.json", "model-2"])
def test_every_request_is_tried_again(server: HubServer, path: str) -> None:
    """A server error or a cut connection at any step is no outcome when the next try works."""
    server.add(MODEL, SHARDED)
    server.fail(path, 502)
    server.cut(path)
    assert facts(ask(server)).checkpoint_bytes == 48
    assert len(server.log) == 5 + 2


@pytest.mark.parametrize("status", [429, 500, 503, None])
def test_given_up(server: HubServer, status: int | None) -> None:
    """After five attempts it is `download`, saying what the Hub answered."""
    server.add(MODEL, {"config.json": CONFIG})
    if status is None:
        server.cut("config.json", times=9)
    else:
        server.fail("config.json", status, times=9)
    waits = Waits()
    found = refusal(ask(server, sleep=waits))
    assert found.failure is Failure.DOWNLOAD
    assert f"HTTP {status}" in found.reason if status else "ProtocolError" in found.reason
    assert "config.json" in found.reason and "5 attempts" in found.reason
    assert waits == list(hub_client.BACKOFF_S)


def test_what_will_not_change_is_not_tried_again(server: HubServer) -> None:
    """Client errors and answers that are no description of a model end at the first attempt."""
    server.add(MODEL, {"config.json": CONFIG})
    server.fail("/api", 418)
    assert "HTTP 418" in refusal(ask(server)).reason
    for body in (b"<html>", b"[]", b"{}", b'{"id": "org/model", "sha": "main", "siblings": []}'):
        server.fail("/api", 200, body=body)
        assert refusal(ask(server)).failure is Failure.DOWNLOAD
    assert len(server.log) == 5


def test_nobody_there() -> None:
    """A refused connection is `download` with the system's words."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
        found = refusal(inspect(MODEL, endpoint=endpoint, sleep=Waits()))
    assert found.failure is Failure.DOWNLOAD
    assert found.reason.endswith("(ConnectError: Connection refused), 5 attempts")


def test_offline(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_OFFLINE is named as the cause, at once."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    waits = Waits()
    found = refusal(ask(server, sleep=waits))
    assert (found.failure, waits) == (Failure.DOWNLOAD, [])
    assert "HF_HUB_OFFLINE" in found.reason


# Many


def test_all_in_order(server: HubServer, tmp_path: Path) -> None:
    """Outcomes stand in the order asked for; equal refs are asked once."""
    for number in range(20):
        config = json.dumps({"model_type": f"type{number}"}).encode()
        server.add(f"org/m{number}", {"config.json": config})
    write(tmp_path, {"config.json": b'{"model_type": "local"}'})
    refs = [CheckpointRef(f"org/m{number}") for number in range(20)]
    refs += [CheckpointRef("org/none"), CheckpointRef("org/here", source=tmp_path), refs[3]]
    found = inspect_all(refs, workers=4, endpoint=server.url, sleep=Waits())
    types = [outcome.model_type for outcome in found if isinstance(outcome, Checkpoint)]
    assert types == [*(f"type{number}" for number in range(20)), "local", "type3"]
    assert refusal(found[20]).failure is Failure.MISSING
    assert len(server.log) == 2 * 20 + 1
    assert inspect_all([], endpoint=server.url) == []


def test_a_hub_that_is_away_is_not_waited_for_by_each(server: HubServer) -> None:
    """After one request was given up the next ones get one attempt, until one succeeds."""
    for number in range(6):
        server.add(f"org/m{number}", {"config.json": CONFIG})
    server.fail("/api", 503, times=5 + 1 + 1)
    server.fail("/api/models/org/m5", 503, times=1)
    waits = Waits()
    refs = [CheckpointRef(f"org/m{number}") for number in range(6)]
    found = inspect_all(refs, workers=1, endpoint=server.url, sleep=waits)
    away = [isinstance(outcome, Refusal) for outcome in found]
    assert away == [True, True, True, False, False, False]
    assert waits == [*hub_client.BACKOFF_S, 1.0]


# The cache of facts


def test_cache_saves_requests(server: HubServer, tmp_path: Path) -> None:
    """A known commit costs one request, a pinned one none; a moved branch is read anew."""
    cache = tmp_path / "facts"
    commit = server.add(MODEL, SHARDED)
    fresh = facts(ask(server, cache=cache))
    count = len(server.log)
    assert facts(ask(server, cache=cache)) == fresh
    assert len(server.log) == count + 1
    assert facts(ask(server, cache=cache, revision=commit)) == fresh
    assert len(server.log) == count + 1
    moved = server.add(MODEL, {"config.json": b'{"model_type": "llama"}'})
    assert facts(ask(server, cache=cache)).revision == moved
    assert facts(ask(server, cache=cache, revision=commit)) == fresh
    assert len(list(cache.iterdir())) == 2


def test_refusals_are_not_kept(server: HubServer, tmp_path: Path) -> None:
    """What could not be read this time is asked again the next time."""
    cache = tmp_path / "facts"
    server.add(MODEL, {"config.json": CONFIG})
    server.fail("config.json", 404, headers={"X-Error-Code": "EntryNotFound"})
    found = refusal(ask(server, cache=cache))
    assert found.failure is Failure.UNSUPPORTED_CHECKPOINT
    assert facts(ask(server, cache=cache)).model_type == "qwen3"


def test_cache_keeps_every_number(server: HubServer, tmp_path: Path) -> None:
    """Infinity, which configs of state-space models hold, comes back as it was."""
    server.add(MODEL, {"config.json": b'{"time_step_limit": [0.0, Infinity]}'})
    for _ in range(2):
        assert facts(ask(server, cache=tmp_path)).config["time_step_limit"] == [0.0, math.inf]


@pytest.mark.parametrize(
    "broken",
    [
        lambda text: b"",
        lambda text: text[:-20],
        lambda text: b"[]",
        lambda text: b"\xff" + text,
        lambda text: text.replace(b'"format": 1', b'"format": 0'),
        lambda text: text.replace(b'"org/model"', b'"org/other"'),
        lambda text: text.replace(b'"BF16"', b'"X"', 1),
        lambda text: text.replace(b"[3, 4]", b"[3, 5]", 1),
        lambda text: text.replace(b"[3, 4]", b'"3, 4"', 1),
        lambda text: b"[" * 100_000,
    ],
)
def test_broken_cache_is_a_miss(server: HubServer, tmp_path: Path, broken: Any) -> None:
    """A cut, foreign or altered entry is read anew from the Hub, and replaced."""
    server.add(MODEL, SHARDED)
    fresh = facts(ask(server, cache=tmp_path))
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    path.write_bytes(broken(good))
    assert path.read_bytes() != good
    assert facts(ask(server, cache=tmp_path)) == fresh
    assert path.read_bytes() == good


def test_cache_that_cannot_be_written(server: HubServer, tmp_path: Path) -> None:
    """Facts are given even where they cannot be kept."""
    (tmp_path / "file").write_bytes(b"")
    server.add(MODEL, {"config.json": CONFIG})
    assert facts(ask(server, cache=tmp_path / "file")).model_type == "qwen3"


# Local directories


def test_directory_as_repository(server: HubServer, tmp_path: Path) -> None:
    """The same files give the same facts from a directory as from the Hub, revision apart."""
    root = write(tmp_path, {name: bytes(content) for name, content in SHARDED.items()})
    server.add(MODEL, SHARDED)
    local, remote = facts(inspect(MODEL, source=root)), facts(ask(server))
    assert (local.config, local.tensors, local.checkpoint_bytes) == (
        remote.config,
        remote.tensors,
        remote.checkpoint_bytes,
    )


def test_directory_revision_follows_every_change(tmp_path: Path) -> None:
    """Any changed, renamed, added or removed visible file gives another digest; others do not."""
    files = {"config.json": CONFIG, "model.safetensors": weights("a"), "sub/notes.txt": b"ab"}

    def revision(name: str, changed: dict[str, bytes]) -> str:
        return facts(inspect(MODEL, source=write(tmp_path / name, changed))).revision

    first = revision("first", files)
    assert first.startswith("sha256:") and len(first) == 7 + 40
    assert revision("copy", dict(reversed(files.items()))) == first
    hidden = files | {".git/HEAD": b"x", ".cache": b"y", "sub/.DS_Store": b"z"}
    assert revision("hidden", hidden) == first
    removed = {name: files[name] for name in ("config.json", "model.safetensors")}
    others = {
        revision("content", files | {"sub/notes.txt": b"ac"}),
        revision("length", files | {"sub/notes.txt": b"a"}),
        revision("added", files | {"empty": b""}),
        revision("copied", {**files, "sub/other.txt": b"ab"}),
        revision("renamed", {**removed, "sub/other.txt": b"ab"}),
        revision("removed", removed),
        revision("config", files | {"config.json": CONFIG + b"\n"}),
    }
    assert len(others | {first}) == 8


def test_directory_of_links(tmp_path: Path) -> None:
    """Linked files, of which the Hub's own download cache is made, count as what they link to."""
    files = {"config.json": CONFIG, "model.safetensors": weights("a")}
    write(tmp_path / "blobs", files)
    (tmp_path / "snapshot").mkdir()
    for name in files:
        (tmp_path / "snapshot" / name).symlink_to(tmp_path / "blobs" / name)
    linked = facts(inspect(MODEL, source=tmp_path / "snapshot"))
    assert linked == facts(inspect(MODEL, source=tmp_path / "blobs"))


def test_pinned_directory(tmp_path: Path) -> None:
    """A directory is held against the digest that was asked for."""
    write(tmp_path, {"config.json": CONFIG})
    revision = facts(inspect(MODEL, source=tmp_path)).revision
    assert facts(inspect(MODEL, source=tmp_path, revision=revision)).revision == revision
    found = refusal(inspect(MODEL, source=tmp_path, revision="main"))
    assert found.failure is Failure.MISSING
    assert revision in found.reason and "'main'" in found.reason


def test_directory_that_is_not_there(tmp_path: Path) -> None:
    """No directory is `missing`, none with a config.json unsupported; both name the path."""
    write(tmp_path, {"file": b"", "empty/README.md": b""})
    for name, failure, words in (
        ("none", Failure.MISSING, "does not exist"),
        ("file", Failure.MISSING, "is not a directory"),
        ("empty", Failure.UNSUPPORTED_CHECKPOINT, "has no config.json"),
    ):
        found = refusal(inspect(MODEL, source=tmp_path / name))
        assert found.failure is failure
        assert str(tmp_path / name) in found.reason and words in found.reason


def test_names_that_are_not_text(tmp_path: Path) -> None:
    """A path of any bytes still makes a reason that a record can hold."""
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    found = refusal(inspect(MODEL, source=root))
    assert "\\udcff" in found.reason
    assert Refusal.model_validate_json(found.model_dump_json()) == found


def test_long_names_are_cut(tmp_path: Path) -> None:
    """A reason stays within what a record takes, whatever the path."""
    found = refusal(inspect(MODEL, source=tmp_path / ("x" * 5_000)))
    assert found.failure in (Failure.MISSING, Failure.DOWNLOAD)
    assert len(found.reason) == 1_000


GOOD = {"a": entry(0, 4), "b": entry(4, 8, "F32", [])}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is cut: 0 bytes hold no"),
        (b"\x10\0\0", "is cut: 3 bytes hold no"),
        (packed(GOOD, bytes(8))[:40], "is cut: its header ends at byte"),
        (packed(GOOD, bytes(7)), "ends at byte 8 of 7"),
        (packed(GOOD, bytes(9)), "1 bytes at the end belong to no tensor"),
        (b"\xff" * 8 + b"{}", "18446744073709551615 bytes long"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "is a Git LFS pointer"),
        (packed(b"{'a'}"), "is not JSON"),
        (packed(b'{"\xff": 1}'), "is not JSON"),
        (packed(b"[" * 100_000), "is not JSON"),
        (packed(b'{"a": 1, "a": 1}'), "is not JSON"),
        (packed([]), "is not a JSON object"),
        (packed({"a": entry(0, 4), "b": entry(2, 6)}, bytes(6)), "'b' overlaps"),
        (packed({"a": entry(0, 4), "b": entry(0, 4)}, bytes(4)), "'b' overlaps"),
        (packed({"a": entry(0, 4), "b": entry(6, 8)}, bytes(8)), "'b' follows a gap"),
        (packed({"a": entry(4, 0, "U8", [4])}, bytes(4)), "spans -4 bytes"),
        (packed({"a": entry(-4, 0)}, bytes(4)), "'a' is malformed"),
        (packed({"a": entry(0, 2**64)}, bytes(4)), "'a' is malformed"),
        (packed({"a": entry(0, 4, "F32", [2])}, bytes(4)), "spans 4 bytes, but"),
        (packed({"a": entry(0, 4, "U8", [2**62] * 9)}, bytes(4)), "far more"),
        (packed({"a": entry(0, 4, "U9")}, bytes(4)), "unknown dtype 'U9'"),
        (packed({"a": {"dtype": "U8", "shape": [4]}}, bytes(4)), "'a' is malformed"),
        (packed({"a": entry(0, 4, "U8", [True, 4])}, bytes(4)), "'a' is malformed"),
        (packed({"x" * 9_999: 1}), "is malformed"),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)
def test_faulty_weights(tmp_path: Path, content: bytes, words: str) -> None:
    """A file that the format does not allow is unsupported, with its name and its fault."""
    write(tmp_path, {"config.json": CONFIG, "model.safetensors": content})
    found = refusal(inspect(MODEL, source=tmp_path))
    assert found.failure is Failure.UNSUPPORTED_CHECKPOINT
    assert words in found.reason
    assert str(tmp_path) in found.reason and "model.safetensors" in found.reason
    assert len(found.reason) <= 1_000


def test_good_weights(tmp_path: Path) -> None:
    """The header that the faulty ones are made from is accepted, metadata and scalar included."""
    header = {"__metadata__": {"format": "pt"}, "none": entry(4, 4), **GOOD}
    write(tmp_path, {"config.json": CONFIG, "model.safetensors": packed(header, bytes(8))})
    assert facts(inspect(MODEL, source=tmp_path)).tensors == (
        Tensor("a", "U8", (4,)),
        Tensor("b", "F32", ()),
        Tensor("none", "U8", (0,)),
    )


def test_faulty_weights_on_the_hub(server: HubServer) -> None:
    """Files on the Hub are held to the same rules, an empty one included."""
    for content, words in ((b"", "is cut: 0 bytes"), (packed(GOOD, bytes(7)), "of 7")):
        server.add(MODEL, {"config.json": CONFIG, "model.safetensors": content})
        found = refusal(ask(server))
        assert found.failure is Failure.UNSUPPORTED_CHECKPOINT
        assert words in found.reason and MODEL in found.reason


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (b"{", "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b"{}", "has no weight_map"),
        (b'{"weight_map": ["a"]}', "has no weight_map"),
        (b'{"weight_map": {"a": 1}}', "has no weight_map"),
        (b'{"weight_map": {"a": "../model.safetensors"}}', "has no weight_map"),
        (b'{"weight_map": {"a": "/model.safetensors"}}', "has no weight_map"),
        (b'{"weight_map": {"a": "none.safetensors"}}', "1 of 1 files"),
        (b'{"weight_map": {"z": "w.safetensors"}}', "'z' in 'w.safetensors', which does not"),
    ],
)
def test_faulty_index(tmp_path: Path, index: bytes, words: str) -> None:
    """An index that is malformed, leaves the directory or names what is not there is refused."""
    files = {"config.json": CONFIG, "w.safetensors": weights("a")}
    write(tmp_path, files | {"model.safetensors.index.json": index})
    found = refusal(inspect(MODEL, source=tmp_path))
    assert found.failure is Failure.UNSUPPORTED_CHECKPOINT
    assert words in found.reason and "model.safetensors.index.json" in found.reason


@pytest.mark.parametrize("config", [b"", b"{", b"[]", b"\xff\xfe"])
def test_faulty_config(tmp_path: Path, config: bytes) -> None:
    """A config.json that is no JSON object is named."""
    found = refusal(inspect(MODEL, source=write(tmp_path, {"config.json": config})))
    assert found.failure is Failure.UNSUPPORTED_CHECKPOINT
    assert "config.json is not" in found.reason


# Around it


def test_import_is_light() -> None:
    """Importing pipeline.hub imports neither huggingface_hub nor anything of the run extra."""
    code = (
        "import sys, pipeline.hub; "
        "print({'huggingface_hub', 'torch', 'transformers', 'httpx', 'httpx2'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    assert done.stdout.strip() == "set()"


def test_server_serves_downloads(tmp_path: Path) -> None:
    """The stand-in server is Hub enough for whole snapshots, through redirects too."""
    with HubServer(redirect=True) as server:
        server.add(MODEL, SHARDED)
        path = snapshot_download(
            MODEL, endpoint=server.url, cache_dir=tmp_path, allow_patterns=["*.json", "original/*"]
        )
        names = {file.relative_to(path).as_posix() for file in Path(path).rglob("*.*")}
        assert names == {
            "config.json",
            "model.safetensors.index.json",
            "original/model.safetensors",
        }
        original = Path(path, "original/model.safetensors").read_bytes()
        assert original == SHARDED["original/model.safetensors"]
