"""The pull request of proposals: real git, the real clients of Hub and GitHub, the real planner."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from pipeline.actions import candidates, proposal_page, proposals
from pipeline.actions.candidates import Prospect
from pipeline.actions.proposal_page import Entry, Proposed, Refused, State
from pipeline.actions.proposals import A_WEEK, Proposal
from pipeline.catalog import Model, parse
from pipeline.errors import HubError
from pipeline.rankings import Ranking, Rankings
from pipeline.words import Parallelism, Task
from tests import golden_files, jobs, papers
from tests.discovery import BRANCH, LIST, World, ranked, swollen
from tests.github_server import GitHubServer
from tests.hub_server import HubServer

GOOD = [f"good/model-{number}" for number in range(9)]


@pytest.fixture(scope="module")
def checkpoints(
    models: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HubServer]:
    """A Hub with nine good models, one too large, one without safetensors, one gated."""
    small = models("tiny-qwen3")
    with HubServer() as hub:
        for name in GOOD:
            hub.add(name, small)
        hub.add("listed/one", small)
        hub.add("big/model", swollen(small, tmp_path_factory.mktemp("big") / "model", 0.4))
        hub.add("bin/only", {"config.json": small / "config.json", "pytorch_model.bin": b"x"})
        hub.add("gated/model", small, gated="manual")
        hub.add("picture/model", models("tiny-qwen2-5-vl"))
        yield hub


@pytest.fixture
def world(checkpoints: HubServer, tmp_path: Path) -> Iterator[World]:
    with GitHubServer() as github:
        yield World.make(tmp_path, checkpoints, github)


def propose(world: World) -> Proposal:
    return proposals.propose(world.desk())


# --- which ----------------------------------------------------------------------------------------


def test_in_turn() -> None:
    """Each ranking of each task in turn gives its next missing model; what is listed, declined or
    without safetensors by the listing takes no turn, whatever the letter case, and is counted."""
    text, picture = Task.TEXT_GENERATION, Task.IMAGE_TEXT_TO_TEXT
    snapshots = [
        ranked(["Listed/One", "a/1", "gguf/1", "a/2"], without=["gguf/1"]),
        ranked(["b/1", "A/1", "b/2", "excluded/ONE"], ranking=Ranking.DOWNLOADS),
        ranked(["p/1", "no/no"], task=picture),
    ]
    found = candidates.missing(
        Rankings({(one.task, one.ranking): one for one in snapshots}),
        parse(LIST.encode(), file="x"),
        {"no/no"},
    )
    assert [(model.id, model.task) for model in found.models] == [
        ("a/1", text),
        ("b/1", text),
        ("p/1", picture),
        ("a/2", text),
        ("b/2", text),
    ]
    assert (found.listed, found.passed_over, found.declined) == (2, 1, 1)


def test_search_is_bounded() -> None:
    """The search ends when enough fit, and after 120 models however many fit."""
    asked: list[str] = []

    def look(models):  # type: ignore[no-untyped-def]
        asked.extend(model.id for model in models)
        return [
            Prospect(
                model, (papers.run(model.id) if "good" in model.id else papers.refused(model.id),)
            )
            for model in models
        ]

    bad = [Model(id=f"bad/{number}", task=Task.TEXT_GENERATION) for number in range(300)]
    found = candidates.search(bad, 5, look)
    assert (len(found.fits), len(found.refused), found.left) == (0, 120, 180)
    assert len(asked) == 120
    good = [Model(id=f"good/{number}", task=Task.TEXT_GENERATION) for number in range(30)]
    mixed = [model for pair in zip(bad, good, strict=False) for model in pair]
    found = candidates.search(mixed, 2, look)
    assert [one.model.id for one in found.fits] == ["good/0", "good/1"]
    assert [one.model.id for one in found.refused] == ["bad/0", "bad/1"]
    assert found.left == 56


# --- the pull request -----------------------------------------------------------------------------


def test_first_proposal(world: World) -> None:
    """The five highest that fit are proposed in one pull request: their entries on a branch, their
    estimates in the body, those that would not run named with the reason."""
    names = ["listed/one", "big/model", GOOD[0], "bin/only", *GOOD[1:]]
    world.publish(ranked(names), ranked(["picture/model"], task=Task.IMAGE_TEXT_TO_TEXT))
    made = propose(world)
    assert made.updated.added == ("picture/model", *GOOD[:4])
    assert world.proposed() == [*made.updated.added]
    assert world.pull.title == "Qualify 5 more models"
    assert (world.pull.head_ref, world.pull.base_ref) == (BRANCH, "main")
    assert world.origin.parents(BRANCH) == [world.origin.head()]
    text = world.origin.text("models.yaml", BRANCH)
    assert text.startswith("# What is wanted.\n") and "  # The first of all\n" in text
    assert text.count("revision") == 0
    golden_files.check("proposal-flow.md", world.pull.body or "")
    golden_files.check("proposal-summary.md", proposals.summary(made, world.desk().rankings))


def test_updated_rather_than_repeated(world: World) -> None:
    """Run again, with nothing new, nothing is pushed, opened or edited; with news, the same pull
    request is edited and its branch moves on without force."""
    world.publish(ranked(GOOD[:3]))
    propose(world)
    first, writes = world.origin.head(BRANCH), len(world.github.writes)
    made = propose(world)
    assert not made.updated.changed
    assert world.origin.head(BRANCH) == first
    assert len(world.github.writes) == writes
    world.publish(ranked([GOOD[4], *GOOD[:3]]))
    made = propose(world)
    assert made.updated.added == (GOOD[4],)
    assert world.proposed() == [*GOOD[:3], GOOD[4]]
    assert world.origin.parents(BRANCH) == [first, world.origin.head()]
    assert list(world.github.pulls) == [world.pull.number]
    assert world.pull.title == "Qualify 4 more models"


def test_five_at_a_time(world: World) -> None:
    """An unread pull request does not grow: no sixth is even looked up while five wait."""
    world.publish(ranked(GOOD))
    propose(world)
    world.looked_at.clear()
    made = propose(world)
    assert world.proposed() == GOOD[:A_WEEK]
    assert made.searched is None
    assert world.looked_at == GOOD[:A_WEEK]


def test_declined_by_its_box(world: World) -> None:
    """An unticked model leaves the branch, the next comes, and it never comes back: not in this
    pull request, not after its merge."""
    world.publish(ranked(GOOD[:7]))
    propose(world)
    world.untick(GOOD[1])
    propose(world)
    assert world.proposed() == [GOOD[0], *GOOD[2:6]]
    assert f"- [x] `{GOOD[1]}`" not in (world.pull.body or "")
    assert f"Declined here, and not proposed again: [`{GOOD[1]}`]" in (world.pull.body or "")
    world.merge()
    propose(world)
    assert world.proposed() == [GOOD[6]]
    assert len(world.github.pulls) == 2


def test_declined_by_closing(world: World) -> None:
    """Closing a pull request without merging declines all that it proposes; reopening does not."""
    world.publish(ranked(GOOD[:7]))
    propose(world)
    world.close()
    propose(world)
    assert world.proposed() == GOOD[5:7]
    assert len(world.github.pulls) == 2
    world.close()
    assert propose(world).updated.number is None
    world.pull.state = "open"
    made = propose(world)
    assert made.updated.number == world.pull.number
    assert world.proposed() == GOOD[5:7]


def test_declined_by_a_merge_without_it(world: World) -> None:
    """What a merged pull request proposed and the list does not have is declined."""
    world.publish(ranked(GOOD[:6]))
    propose(world)
    entry = f"  - id: {GOOD[2]}\n    task: text-generation\n"
    world.merge(lambda text: text.replace(entry, ""))
    propose(world)
    assert world.proposed() == [GOOD[5]]
    assert world.desk().history().declined == {GOOD[2]: 2 - 1}


def test_declined_on_the_branch(world: World) -> None:
    """Taking an entry out of the branch declines it; giving an entry more fields keeps them."""
    world.publish(ranked(GOOD[:6]))
    propose(world)
    text = world.origin.text("models.yaml", BRANCH)
    text = text.replace(f"  - id: {GOOD[1]}\n    task: text-generation\n", "")
    text = text.replace(f"  - id: {GOOD[2]}\n", f"  - id: {GOOD[2]}\n    cores: 1\n")
    commit = world.origin.write({"models.yaml": text}, branch=BRANCH)
    propose(world)
    assert world.proposed() == [GOOD[0], *GOOD[2:6]]
    assert parse(world.origin.text("models.yaml", BRANCH).encode(), file="x").model(GOOD[2]).cores
    assert world.origin.parents(BRANCH)[0] == commit
    assert f"- [x] `{GOOD[1]}`" not in (world.pull.body or "")


def test_strangers_pull_request(world: World) -> None:
    """Only pull requests of our own login say what is proposed or declined."""
    world.publish(ranked(GOOD[:2]))
    body = proposal_page.body([], [GOOD[0]], [], Rankings())
    for author, repository in (("mallory", None), ("github-actions[bot]", "mallory/repo")):
        world.github.add_pull(
            head_ref=BRANCH,
            author=author,
            head_repository=repository or world.github.repository,
            body=body,
            state="closed",
        )
    propose(world)
    assert world.proposed() == GOOD[:2]


def test_nothing_missing(world: World) -> None:
    """Without a model to propose there is no pull request and no branch, and the page says why."""
    world.publish(ranked(["listed/one", "excluded/one", "big/model", "gated/model"]))
    made = propose(world)
    assert (made.updated.number, world.github.pulls) == (None, {})
    assert not world.origin.has(BRANCH)
    golden_files.check("proposal-none-summary.md", proposals.summary(made, world.desk().rankings))


def test_nothing_left(world: World) -> None:
    """When all is unticked and nothing follows, the body says so, and the branch is main's list."""
    world.publish(ranked(GOOD[:2]))
    propose(world)
    world.untick(*GOOD[:2])
    propose(world)
    assert world.proposed() == []
    assert "Nothing is left to merge here" in (world.pull.body or "")
    assert world.origin.text("models.yaml", BRANCH) == world.origin.text("models.yaml")


def test_hub_away(world: World) -> None:
    """When the Hub does not answer nothing is changed, be it about new models or proposed ones."""
    world.publish(ranked(GOOD[:2]))
    with HubServer() as away:
        away.fail("/", 503, times=10_000)
        there, world.hub = world.hub, away
        with pytest.raises(HubError, match="the Hub told about none of 2 models"):
            propose(world)
        assert world.github.pulls == {}
        world.hub = there
        propose(world)
        body, writes = world.pull.body, len(world.github.writes)
        world.hub = away
        world.publish(ranked(GOOD[:3]))
        with pytest.raises(HubError, match="nothing was changed"):
            propose(world)
    assert (world.pull.body, len(world.github.writes)) == (body, writes)


def test_moved_main(world: World) -> None:
    """Whatever of it comes to main by another way leaves the proposal, and the branch takes over
    main's list; what else moves on main moves no branch."""
    world.publish(ranked(GOOD[:3]))
    propose(world)
    first = world.origin.head(BRANCH)
    world.origin.write({"README.md": "News\n"})
    propose(world)
    assert world.origin.head(BRANCH) == first
    world.origin.write(
        {
            "models.yaml": LIST.replace(
                "  - id: listed/one",
                f"  - id: {GOOD[1]}\n    task: text-generation\n  - id: listed/one",
            )
        }
    )
    propose(world)
    assert world.proposed() == [GOOD[0], GOOD[2]]
    assert world.desk().history().declined == {}


def test_no_longer_fits(world: World, models: Callable[[str], Path]) -> None:
    """A proposed model that would not run any more leaves the proposal, with the reason, and is
    not declined by that."""
    small = models("tiny-qwen3")
    world.hub.add("later/gated", small)
    world.publish(ranked(["later/gated", GOOD[0]]))
    propose(world)
    assert world.proposed() == ["later/gated", GOOD[0]]
    world.hub.add("later/gated", small, gated="auto")
    made = propose(world)
    assert world.proposed() == [GOOD[0]]
    assert [one.id for one in made.updated.refused] == ["later/gated"]
    assert world.desk().history().declined == {}
    world.hub.add("later/gated", small)
    propose(world)
    assert world.proposed() == [GOOD[0], "later/gated"]


def test_runner_class_of_another_target(world: World) -> None:
    """An entry that people gave a runner class without a default stack is refused, not lost."""
    text = LIST.replace(
        "stacks:\n  sdk:",
        "  pc: {target: cpu, labels: [x], cores: 1, core_gib: 9, host_gib: 9}\nstacks:\n  sdk:",
    )
    world.origin.write({"models.yaml": text})
    model = Model(id=GOOD[0], task=Task.TEXT_GENERATION, runner="pc")
    (prospect,) = world.desk().look([model])
    assert not prospect.fits and not prospect.unread
    assert prospect.refusal and "runner class pc" in prospect.refusal.reason


def test_lost_state(world: World) -> None:
    """A body whose hidden line is gone is written anew where it is open, and told where closed."""
    world.publish(ranked(GOOD[:2]))
    propose(world)
    world.pull.body = "I wrote this instead."
    propose(world)
    assert world.proposed() == GOOD[:2]
    assert proposal_page.read_state(world.pull.body or "")
    world.pull.body = "gone"
    world.close()
    assert propose(world).history.lost == (1,)


# --- its body -------------------------------------------------------------------------------------


def proposal(name: str, asked: int | None = None, **changes: object) -> Proposed:
    run = papers.run(name, machine_cores=4, runner="trn2-3xlarge", estimated_s=768, **changes)
    return Proposed(Prospect(Model(id=name, task=run.task), (run,)), asked)


def snapshots() -> Rankings:
    found = [
        ranked(["Qwen/Qwen3-1.7B", "other/one", "google/gemma-3-4b-pt"]),
        ranked(["other/two", "Qwen/Qwen3-1.7B"], ranking=Ranking.DOWNLOADS),
    ]
    return Rankings({(one.task, one.ranking): one for one in found})


def test_body() -> None:
    """The whole text: the question first, figures, boxes, what would not run, how checks start."""
    large = papers.placement(4)
    body = proposal_page.body(
        [
            proposal("Qwen/Qwen3-1.7B"),
            proposal("google/gemma-3-4b-pt", placement=large, usd_per_hour=2.5),
            proposal("small/model", asked=17, checkpoint_bytes=None, parameters=None),
        ],
        ["zeta/declined", "Alpha/declined"],
        [
            Refused(id="huge/model", reason="too large: needs 900 GiB; the largest holds 384"),
            Refused(id="x/y", reason="harness: <img src=x> @everyone #1 | --> ```"),
        ],
        snapshots(),
    )
    golden_files.check("proposal-body.md", body)


def test_body_of_one() -> None:
    """One model asked for is told as one; two stacks give it two rows."""
    one = proposal("small/model", asked=17, usd_per_hour=2.5)
    other = papers.refused("small/model", stack=papers.stack(name="older", torch="2.13.0"))
    both = Proposed(Prospect(one.model, (*one.prospect.runs, other)), 17)
    golden_files.check("proposal-one.md", proposal_page.body([both], [], [], Rankings()))


def test_state_round_trip() -> None:
    """The state is read back from the body, with GitHub's line ends too, whatever a reason says."""
    refused = [Refused(id="x/y", reason="--> <!-- @ann #1 {} \\ \n é")]
    body = proposal_page.body([proposal("a/b", asked=3)], ["c/d"], refused, Rankings())
    state = State(
        proposed=(Entry(id="a/b", task=Task.TEXT_GENERATION, asked=3),),
        declined=("c/d",),
        refused=tuple(refused),
    )
    assert proposal_page.read_state(body) == state
    assert proposal_page.read_state(body.replace("\n", "\r\n")) == state
    first = body.splitlines()[0]
    assert first.count("-->") == 1 and not {"@", "#", "&"} & set(first)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "text",
        "<!-- trn-qualify: proposals {} ",
        "text\n<!-- trn-qualify: proposals {} -->",
        '<!-- trn-qualify: proposals {"proposed": [{"id": "../x", "task": "text-generation"}]} -->',
        '<!-- trn-qualify: proposals {"declined": [1]} -->',
        '<!-- trn-qualify: proposals {"more": 1} -->',
        "<!-- trn-qualify: proposals {" + "[" * 50_000 + "} -->",
    ],
)
def test_no_state(body: str) -> None:
    """What is not exactly a state is none."""
    assert proposal_page.read_state(body) is None


def test_unticked() -> None:
    """Only an empty box at the beginning of its line counts."""
    body = "- [ ] `A/b`\r\n* [ ] [`c/d`](u), x\n- [x] `e/f`\n text - [ ] `g/h`\n- [] `i/j`"
    assert proposal_page.unticked(body) == {"a/b", "c/d"}


def test_placed_cells() -> None:
    """Cores with their parallelism, the machine's share of time, and the price or that none is."""
    run = papers.run(placement=papers.placement(2), machine_cores=4, estimated_s=1_200)
    assert proposal_page.placed(run) == ("2, tensor", "trn2-1", "10", "price not stated")
    priced = run.model_copy(update={"usd_per_hour": 6.0})
    assert proposal_page.placed(priced)[3] == "1.00 USD"
    alone = papers.run(placement=papers.placement(1, parallelism=Parallelism.NONE))
    assert proposal_page.placed(alone)[0] == "1"


# --- the commands ---------------------------------------------------------------------------------


def qualify(
    world: World, *words: str, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`qualify actions WORDS` in the checkout, as a job runs it."""
    return jobs.qualify(world.root, *words, variables={**world.environment, **(more or {})})


def test_command_propose(world: World) -> None:
    """The command takes rankings and list as they are published, and writes the summary."""
    done = qualify(world, "propose")
    assert (done.returncode, "run `qualify actions rankings` first" in done.stderr) == (6, True)
    world.publish(ranked(GOOD[:1]))
    done = qualify(world, "propose", more={"QUALIFY_DEFAULT_BRANCH": "main"})
    assert done.returncode == 0, done.stderr
    assert world.proposed() == GOOD[:1]
    summary = (world.folder / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith("## 1 model proposed in #1, 1 of them new")
    assert world.github.token not in done.stdout + done.stderr


def test_command_rankings(world: World) -> None:
    """The command commits what the Hub gives, once a day unless something moved; it ends with 4
    when a ranking is missing, after the others were committed."""
    from tests.hub_server import Listed

    world.hub.listed = {
        f"{task}/m-{number:03}": Listed(task, downloads=number, trending_score=500 - number)
        for task in ("text-generation", "image-text-to-text")
        for number in range(210)
    }
    done = qualify(world, "rankings")
    assert done.returncode == 0, done.stderr
    head = world.origin.head()
    assert [name for name in world.origin.files() if "rankings" in name] == [
        f"results/rankings/{task}-{ranking}.json"
        for task in ("image-text-to-text", "text-generation")
        for ranking in ("downloads", "trending")
    ]
    assert world.origin.message().startswith("Rankings of the Hub, 2")
    assert qualify(world, "rankings").returncode == 0
    assert world.origin.head() == head
    for number in range(150):
        del world.hub.listed[f"text-generation/m-{number:03}"]
    world.hub.listed["image-text-to-text/m-007"].downloads = 9_999
    done = qualify(world, "rankings")
    assert done.returncode == 4
    assert "text-generation models by trending: 60 rows came" in done.stderr
    assert world.origin.parents() == [head]
    there = world.origin.text("results/rankings/text-generation-trending.json")
    assert len(json.loads(there)["rows"]) == 200
