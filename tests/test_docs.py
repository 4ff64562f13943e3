"""The generated parts of the documentation: they are what code says, and say all of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from pydantic import BaseModel

from pipeline import catalog, docs, results, rows
from pipeline.cli import main as qualify
from tests import papers

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results.md"
MODELS = ROOT / "docs" / "models-yaml.md"


def page(root: Path, name: str, text: str) -> Path:
    """Write a page of documentation below `root`."""
    path = root / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def block(path: Path, language: str) -> str:
    """The text of the one code block in that language on a page."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", path.read_text("utf-8"), re.M | re.S)
    return str(text)


def test_the_committed_pages_are_not_stale() -> None:
    """`python -m pipeline.docs`, as CI runs it, finds nothing, however narrow the terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.docs"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "60"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_region_has_a_place() -> None:
    """No generator is without a page: a region cut out of docs/ by accident is noticed."""
    text = "".join(path.read_text("utf-8") for path in (ROOT / "docs").glob("*.md"))
    assert set(re.findall(r"^<!-- generated: (.*) -->$", text, re.M)) == docs.GENERATORS.keys()


def test_stale_pages_are_named_and_written_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check exits 1 naming each stale page and no other, --write mends them, for good."""
    region = "Before.\n<!-- generated: exit-codes -->\nold\n<!-- end -->\nAfter.\n"
    readme, guide = page(tmp_path, "README.md", region), page(tmp_path, "docs/a.md", region)
    page(tmp_path, "CONTRIBUTING.md", "No region.\n")
    page(tmp_path, "CHANGELOG.md", region)

    assert docs.main([], tmp_path) == 1
    assert capsys.readouterr().out == "README.md: stale\ndocs/a.md: stale\n"
    assert readme.read_text("utf-8") == region
    assert docs.main(["--write"], tmp_path) == 0
    assert capsys.readouterr().out == "README.md: written\ndocs/a.md: written\n"

    written = readme.read_text("utf-8")
    assert written.startswith("Before.\n<!-- generated: exit-codes -->\n\n| exit code | meaning |")
    assert written.endswith(" |\n\n<!-- end -->\nAfter.\n")
    assert "\nold\n" not in written
    assert guide.read_text("utf-8") == written
    assert docs.main([], tmp_path) == docs.main(["--write"], tmp_path) == 0
    assert capsys.readouterr().out == ""
    assert readme.read_text("utf-8") == written
    assert (tmp_path / "CHANGELOG.md").read_text("utf-8") == region


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "# Title\n\n<!-- generated: exit-code -->\n<!-- end -->\n",
            'docs/b.md:3: no region "exit-code"',
        ),
        ("\n<!-- generated: failures -->\n", 'docs/b.md:2: region "failures" has no end'),
        (
            "<!-- generated: failures -->\n<!-- generated: columns -->\n<!-- end -->\n",
            'docs/b.md:1: region "failures" has no end',
        ),
        ("text\n<!--end-->\n", "docs/b.md:2: the end of no region"),
    ],
)
def test_a_broken_region_is_placed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    """A region of no known name, or without begin or end, exits 1 with file, line and remedy;
    nothing is written then, not even to pages that are in order."""
    stale = "<!-- generated: failures -->\n<!-- end -->\n"
    first, second = page(tmp_path, "README.md", stale), page(tmp_path, "docs/b.md", text)
    assert docs.main(["--write"], tmp_path) == 1
    reason, remedy = capsys.readouterr().err.splitlines()
    assert reason == message
    assert remedy.startswith("  ")
    assert (first.read_text("utf-8"), second.read_text("utf-8")) == (stale, text)


def test_a_fence_shows_the_marks_of_a_region(tmp_path: Path) -> None:
    """In a code block the marks are text; after it, and after a generated block, they count."""
    shown = "```\n<!-- generated: NAME -->\n<!-- end -->\n```\n"
    commands, codes = (
        f"<!-- generated: {name} -->\n\n{docs.GENERATORS[name]()}\n\n<!-- end -->\n"
        for name in ("commands", "exit-codes")
    )
    assert docs.renew(shown + commands + codes, "a.md") == shown + commands + codes
    assert docs.renew(shown + codes.replace("done", "did"), "a.md") == shown + codes


def test_every_command_has_its_help() -> None:
    """A heading for each command, and below it every option the command takes."""
    parts = docs.GENERATORS["commands"]().split("\n## ")
    texts = dict(part.removeprefix("## ").split("\n", 1) for part in parts)
    commands = {f"qualify {name}": command for name, command in qualify.commands.items()}
    below = {
        f"{path} {name}": command
        for path, group in commands.items()
        if isinstance(group, click.Group)
        for name, command in group.commands.items()
    }
    assert {*texts} == {"qualify", *commands, *below}
    for path, command in (commands | below).items():
        for parameter in command.params:
            shown = parameter.metavar if isinstance(parameter, click.Argument) else None
            assert (shown or max(parameter.opts, key=len)).upper() in texts[path].upper()
    assert all(len(line) <= docs.HELP_WIDTH for text in texts.values() for line in text.split("\n"))


@pytest.mark.parametrize(
    "name", [name for name in docs.GENERATORS if name not in ("commands", "signatures")]
)
def test_no_cell_is_empty(name: str) -> None:
    """Whatever code adds - a key, a column, a failure class - is also described."""
    table = docs.GENERATORS[name]()
    head = table.split("\n| --- |")[0].split("\n")[-1]
    found = [line for line in table.split("\n") if line.startswith("| ")][2:]
    assert found
    for line in found:
        parts = re.split(r"(?<!\\)\|", line)[1:-1]
        assert len(parts) == head.count("|") - 1, line
        assert all(part.strip() for part in parts), line


def test_every_value_is_explained() -> None:
    """docs/results.md has a section for each closed column, with exactly its values, in order."""
    for name, kind in docs.VALUES.items():
        (section,) = re.findall(
            rf"^### {name}\n(.*?)(?=^##|\Z)", RESULTS.read_text("utf-8"), re.M | re.S
        )
        assert re.findall(r"^\| `(.*?)` \|", section, re.M) == [value.value for value in kind]


def test_the_pandas_lines_run(tmp_path: Path) -> None:
    """What docs/results.md shows reads published results of two stacks, with those columns."""
    old = papers.run(stack=papers.stack(library_version="5.23.0"))
    published = [rows.row_of(papers.passing()), rows.row_of(papers.failing(old))]
    results.write(results.prepare(tmp_path / "results", published).files)
    first, _, last = block(RESULTS, "python").strip().rpartition("\n")
    done = subprocess.run(
        [sys.executable, "-c", f"{first}\nprint(({last}).to_csv(index=False))"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert sorted(done.stdout.split("\n")) == [
        "",
        "",
        "Qwen/Qwen3-0.6B,2.28.7631.0,transformers,5.23.0,1,FAIL",
        "Qwen/Qwen3-0.6B,2.28.7631.0,transformers,5.24.0,1,PASS",
        "model_id,neuronx_cc,library,library_version,neuron_cores,result",
    ], done.stderr


def test_the_example_is_a_valid_entry() -> None:
    """The five lines of docs/models-yaml.md pass the validator in the place of our own models."""
    text = block(MODELS, "yaml")
    assert text.count("\n") == 5
    content: dict[str, Any] = yaml.safe_load((ROOT / "models.yaml").read_bytes())
    content["models"] = yaml.safe_load(text)
    (model,) = catalog.parse(yaml.safe_dump(content).encode(), file="models.yaml").models
    assert (model.id, model.cores) == ("Qwen/Qwen3-0.6B", 4)


@pytest.mark.parametrize(
    ("section", "row"),
    [
        ("models", "| `cores` | `1`, `2`, `4`, `8`, `16` | `null` |"),
        ("models", "| `id` | model id, such as `Qwen/Qwen3-0.6B` | required |"),
        ("models", "| `prompts` | list of 3 to 64: text | `null` |"),
        ("models", "| `parallelism` | `none`, `tensor`, `expert` | `null` |"),
        ("excluded", r"| `issue` | text like `^https://[^\s/]+/\S+$` | `null` |"),
        ("defaults", "| `new_tokens` | whole number, 1 to 4096 | `32` |"),
        ("defaults", "| `margin.fraction` | number, 0 or more | required |"),
        ("runners", "| `core_gib` | number above 0 | required |"),
        ("runners", "| `labels` | list of 1 or more: text without spaces | required |"),
        ("stacks", "| `library` | `transformers` | `transformers` |"),
        ("stacks", "| `neuronx_cc` | version, in quotes | `null` |"),
    ],
)
def test_keys_say_type_and_default(section: str, row: str) -> None:
    """Limits, choices, nested keys and defaults of the schema come out in words."""
    assert any(line.startswith(row) for line in docs.GENERATORS[section]().split("\n"))


def test_every_key_is_there() -> None:
    """Each section's table names every key of its schema, and every key below it, once."""
    parts: dict[str, type[BaseModel]] = {
        "defaults": catalog.Defaults,
        "runners": catalog.Runner,
        "stacks": catalog.Stack,
        "models": catalog.Model,
        "excluded": catalog.Excluded,
    }
    for section, part in parts.items():
        named = re.findall(r"^\| `(.*?)` \|", docs.GENERATORS[section](), re.M)
        assert [name for name in named if "." not in name] == [*part.model_fields]
