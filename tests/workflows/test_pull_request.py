"""What a contributor sees of a pull request that changes the list."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import golden_files
from tests.hub_server import HubServer
from tests.test_actions_preview import BASE, GIANT, HEAD, SMALL, checkpoint
from tests.workflows.act import Outcome, World

PREVIEW = "What would happen"
ILL_FORMED = "  - id: example/ill-formed\n    task: text-generaton\n"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """A model that fits and one that no machine holds."""
    folder = tmp_path_factory.mktemp("weights")
    with HubServer() as server:
        for name in ("example/small-0.6b", "example/known-1b"):
            checkpoint(server, folder, name, layers=28, hidden=1024, middle=3072, heads=16)
        giant = "example/giant-405b"
        checkpoint(server, folder, giant, layers=126, hidden=16_384, middle=53_248, heads=128)
        yield server


def _pull(
    folder: Path, hub: HubServer, added: str, *, job: str | None = None
) -> tuple[Outcome, str]:
    """A pull request that adds entries to the list, by somebody without any right here: what came
    of it, and the page of the preview."""
    with World(folder, models=HEAD + BASE, hub_url=hub.url) as world:
        head = world.origin.write({"models.yaml": HEAD + BASE + added}, branch="topic")
        world.origin.write({"README.md": "Main went on.\n"})
        world.merge(7, head)
        outcome = world.run(
            "pull_request",
            "pull-request.yml",
            job=job,
            ref="refs/pull/7/merge",
            actor="stranger",
            payload={
                "action": "opened",
                "number": 7,
                "pull_request": {
                    "number": 7,
                    "head": {"sha": head, "ref": "topic"},
                    "base": {"sha": world.origin.head(), "ref": "main"},
                },
            },
        )
        assert world.github.log == [], "the job asked GitHub for something"
        if job is None:
            assert world.made() == ["lint", "test-fast"]
        return outcome, world.page(outcome, PREVIEW)


def test_good_ill_formed_and_oversized(tmp_path: Path, hub: HubServer) -> None:
    """Each of three added entries is answered for itself, on its line: what would happen, what is
    wrong, why it would be refused; the job fails for the ill-formed one, and the page leads with
    that."""
    outcome, page = _pull(tmp_path, hub, SMALL + ILL_FORMED + GIANT, job="preview")
    assert outcome.results == {PREVIEW: "failure"}, outcome.text
    job = outcome.job(PREVIEW)
    lines = (HEAD + BASE + SMALL + ILL_FORMED + GIANT).splitlines()
    placed = {
        (found.level, lines[found.line - 1].strip())
        for found in job.annotations
        if found.file == "models.yaml" and found.line
    }
    assert ("error", "task: text-generaton") in placed
    assert ("warning", "- id: example/giant-405b") in placed
    assert not [line for _, line in placed if "small" in line or "known" in line]
    golden_files.check("workflow-preview.md", page)


def test_good(tmp_path: Path, hub: HubServer) -> None:
    """A valid list passes, and the page says where the new model would run; the code is linted and
    tested beside it."""
    outcome, page = _pull(tmp_path, hub, SMALL)
    assert outcome.results == {PREVIEW: "success", "Lint and fast tests": "success"}, outcome.text
    assert outcome.job(PREVIEW).annotations == ()
    golden_files.check("workflow-preview-good.md", page)
