"""New entries in the text of models.yaml."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from pipeline.catalog import InvalidCatalog, Model, parse
from pipeline.errors import CatalogError
from pipeline.list_edit import insert
from pipeline.words import Task

ROOT = Path(__file__).parent.parent
SHIPPED = (ROOT / "models.yaml").read_bytes()
FILE = "models.yaml"

HEAD = """\
defaults:
  stacks: [cpu]
  limit_minutes: 60
  margin: {gib: 0, fraction: 0.0}
  prompts:
    text-generation: [a, b, c]
    image-text-to-text: [a, b, c]
runners:
  laptop: {target: cpu, labels: [ubuntu-latest], cores: 4, core_gib: 8, host_gib: 16}
stacks:
  cpu: {target: cpu, library_version: "5.24.0", torch: "2.13.0"}
"""


def text(model_id: str, **fields: object) -> Model:
    return Model.model_validate({"id": model_id, "task": "text-generation", **fields})


def picture(model_id: str) -> Model:
    return Model(id=model_id, task=Task.IMAGE_TEXT_TO_TEXT)


def added(old: bytes, new: bytes) -> list[str]:
    """The lines that `new` has more than `old`; nothing else may differ."""
    before = old.decode().splitlines(keepends=True)
    after = new.decode().splitlines(keepends=True)
    lines = list(difflib.ndiff(before, after))
    assert not [line for line in lines if line.startswith("- ")]
    return [line[2:] for line in lines if line.startswith("+ ")]


def before(data: bytes, line: str) -> str:
    """The line before the one that holds `line`."""
    lines = data.decode().splitlines()
    return lines[next(i for i, one in enumerate(lines) if line in one) - 2]


def test_shipped_list() -> None:
    """In the list of this repository each goes to its family, and not a byte else changes."""
    models = [text("Qwen/Qwen3-1.7B"), picture("Qwen/Qwen2.5-VL-3B-Instruct"), text("new/one")]
    made = insert(SHIPPED, models, file=FILE)
    assert added(SHIPPED, made) == [
        "  - id: Qwen/Qwen3-1.7B\n",
        "    task: text-generation\n",
        "  - id: Qwen/Qwen2.5-VL-3B-Instruct\n",
        "    task: image-text-to-text\n",
        "  - id: new/one\n",
        "    task: text-generation\n",
    ]
    order = [model.id for model in parse(made, file=FILE).models]
    assert order[order.index("Qwen/Qwen3-1.7B") - 1] == "Qwen/Qwen3-32B"
    assert order[order.index("Qwen/Qwen2.5-VL-3B-Instruct") - 1] == "Qwen/Qwen2.5-VL-7B-Instruct"
    assert order[-1] == "new/one"


def test_nothing_to_insert() -> None:
    """No models, same bytes."""
    assert insert(SHIPPED, [], file=FILE) == SHIPPED


def test_every_field() -> None:
    """What an entry says beyond id and task is written, too; defaults are not."""
    model = text(
        "new/one",
        revision="0123abc",
        cores=4,
        parallelism="tensor",
        note="A note: with 'quotes', a # and\ttabs, longer than a line of YAML would be " * 3,
        extra_packages=["einops==0.8.1"],
    )
    made = insert(SHIPPED, [model], file=FILE)
    assert parse(made, file=FILE).model("new/one") == model
    assert "    revision: 0123abc\n" in added(SHIPPED, made)
    assert len(added(SHIPPED, made)) == 8


@pytest.mark.parametrize("model_id", ["12345", "1e5", "null", "on", "0x1F", "2026-11-30", "1_000"])
def test_ids_that_yaml_reads_otherwise(model_id: str) -> None:
    """An id that YAML would take for a number, a date or a truth value is quoted."""
    made = insert(SHIPPED, [text(model_id)], file=FILE)
    assert parse(made, file=FILE).models[-1].id == model_id


@pytest.mark.parametrize(
    ("above", "new", "below"),
    [
        pytest.param(
            "models:\n- id: a/b\n  task: text-generation\n",
            "- id: n/n\n  task: text-generation\n",
            "",
            id="dashes at the margin",
        ),
        pytest.param(
            "models:\n    -   id: a/b\n        task: text-generation\n",
            "    -   id: n/n\n        task: text-generation\n",
            "",
            id="wide",
        ),
        pytest.param(
            "models:\n  - id: a/b\n    task: text-generation",
            "\n  - id: n/n\n    task: text-generation",
            "",
            id="no line break at the end",
        ),
        pytest.param(
            "models:\n  - id: a/b\n    task: text-generation # why\n",
            "  - id: n/n\n    task: text-generation\n",
            "\n    # of what follows\n# and this\nexcluded: []\n",
            id="comments",
        ),
        pytest.param(
            "models:\n  - id: a/b\n    task: text-generation\n    note: |\n      1\n      # 2\n",
            "  - id: n/n\n    task: text-generation\n",
            "excluded: []\n",
            id="a text that looks like a comment",
        ),
        pytest.param(
            "models:\n  - {id: a/b,\n     task: text-generation}  # why\n",
            "  - id: n/n\n    task: text-generation\n",
            "# the end\n",
            id="an entry in brackets",
        ),
        pytest.param(
            "models:\n  -\n    id: a/b\n    task: text-generation\n    extra_packages:\n"
            "      - einops\n",
            "  - id: n/n\n    task: text-generation\n",
            "...\n",
            id="a dash alone, the document's end",
        ),
        pytest.param(
            "models:\n  - id: a/b\n    task: text-generation\n    note: caf\u00e9 \U0001f980\n"
            "    runner:\n",
            "  - id: n/n\n    task: text-generation\n",
            "",
            id="wide characters, an empty value",
        ),
        pytest.param(
            "models:\n  - id: a/b\n    task: text-generation\n    prompts: &p [a, b, c]\n"
            "  - id: c/d\n    task: text-generation\n    prompts: *p\n",
            "  - id: n/n\n    task: text-generation\n",
            "excluded: []\n",
            id="a value that stands elsewhere",
        ),
        pytest.param(
            "models:\n  - id: N/x\n    task: text-generation\n",
            "  - id: n/n\n    task: text-generation\n",
            "  # next\n  - id: c/d\n    task: text-generation\n",
            id="beside its owner's",
        ),
        pytest.param(
            "models:\n  - id: N/x\n    task: image-text-to-text\n  - id: n\n"
            "    task: text-generation\n",
            "  - id: n/n\n    task: text-generation\n",
            "",
            id="not beside another task or a name alone",
        ),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_layouts(above: str, new: str, below: str, newline: str, bom: bytes) -> None:
    """Indentation and line breaks are those of the file, and what surrounds the entry stays."""

    def file(text: str) -> bytes:
        return bom + (HEAD + text).replace("\n", newline).encode()

    assert insert(file(above + below), [text("n/n")], file=FILE) == file(above + new + below)


def test_brackets() -> None:
    """A list in brackets is refused with its place, not guessed at."""
    data = (HEAD + "models: [{id: a/b, task: text-generation}]\n").encode()
    with pytest.raises(InvalidCatalog, match=r"models\.yaml:12:9: .*brackets"):
        insert(data, [text("n/n")], file=FILE)


def test_unfit() -> None:
    """Where the layout cannot be told, it is said, and nothing is given away."""
    data = HEAD + "models: &m\n  -\n    id: a/b\n    task: text-generation\n"
    with pytest.raises(CatalogError, match="by hand"):
        insert(data.encode(), [text("n/n")], file=FILE)


def test_anchored_list() -> None:
    """A name that YAML gives to the list is no part of its layout."""
    data = (HEAD + "models: &m\n    - id: a/b\n      task: text-generation\n").encode()
    made = insert(data, [text("n/n")], file=FILE)
    assert made == data + b"    - id: n/n\n      task: text-generation\n"


def test_already_there() -> None:
    """A model that is on the list, wanted or excluded, in whatever letter case, is refused."""
    for model_id in ("qwen/qwen3-0.6b", "DeepSeek-AI/DeepSeek-R1"):
        with pytest.raises(InvalidCatalog, match="here twice"):
            insert(SHIPPED, [text(model_id)], file=FILE)


def test_invalid_list() -> None:
    """A list that is wrong before is not edited, and told as it is everywhere."""
    with pytest.raises(InvalidCatalog, match=r"models\.yaml:12:1: .*unknown key"):
        insert((HEAD + "model: []\n").encode(), [text("n/n")], file=FILE)
