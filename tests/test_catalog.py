"""models.yaml: what it may say, and how its errors read."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import catalog
from pipeline.catalog import Catalog, InvalidCatalog, Problem
from pipeline.catalog_problems import Document, rule_problems
from pipeline.errors import CatalogError, UsageError, exit_codes
from pipeline.words import Parallelism, RunId, Target, Task

VALID = """\
# yaml-language-server: $schema=pipeline/data/models.schema.json
defaults:
  stacks: [sdk]
  limit_minutes: 60
  margin:
    gib: 1.5
    fraction: 0.1
  prompts:
    text-generation:
      - The sea
      - A train
      - My friend
runners:
  small:
    labels: [self-hosted, trn2]
    cores: 4
    core_gib: 24
    host_gib: 128
  large:
    labels: [trn2-large]
    cores: 64
    core_gib: 24
    host_gib: 2048
    usd_per_hour: 20.5
stacks:
  sdk: &sdk
    target: neuron
    library_version: "5.24.0"
    torch: "2.14.0"
    neuronx_cc: "2.28.7631.0+abc"
    torch_neuronx: "2.14.0.1"
  host:
    target: cpu
    library_version: "5.24.0"
    torch: "2.13.0"
models:
  - id: Qwen/Qwen3-0.6B
    task: text-generation
    runner: small
    cores: 4
    parallelism: tensor
  - id: gpt2
    task: text-generation
    source: checkpoints/gpt2
    revision: main
    dtype: float32
    prompts: [One, Two, Three]
    extra_packages: ["einops==0.8.1", "timm[all]>=1,<2"]
    limit_minutes: 90
    note: the old one
excluded:
  - id: acme/far
    task: text-generation
    reason: incompatible
    note: needs a GPU
    issue: https://github.com/acme/far/issues/1
  - id: acme/near
    task: image-text-to-text
    reason: not_prioritised
    note: nobody asked
"""


def problems(text: str | bytes) -> list[str]:
    """The problems of a list as people read them; fails when there are none."""
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(InvalidCatalog) as caught:
        catalog.parse(data, file="models.yaml")
    return [str(problem).removeprefix("models.yaml:") for problem in caught.value.problems]


def edited(*edits: tuple[str, str]) -> str:
    """VALID with each old text, which stands there once, replaced."""
    text = VALID
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


# What stands once in VALID, what replaces it, and the one problem that follows.
EDITS: list[tuple[str, str, str]] = [
    ("revision: main", "revison: main", '45:5: unknown key "revison"; did you mean "revision"?'),
    ("  stacks: [sdk]", "  stack: [sdk]", '3:3: unknown key "stack"; did you mean "stacks"?'),
    ("fraction: 0.1", "frction: 0.1", '7:5: unknown key "frction"; did you mean "fraction"?'),
    ("host_gib: 128", "host_gb: 128", '18:5: unknown key "host_gb"; did you mean "host_gib"?'),
    ("excluded:", "exclude:", '51:1: unknown key "exclude"; did you mean "excluded"?'),
    (
        "gib: 1.5",
        "gib: 1.5, x: 1",
        "6:16: not valid YAML: mapping values are not allowed here",
    ),
    (
        "    note: the old one",
        "    zzz: the old one",
        '50:5: unknown key "zzz"; expected one of "id", "task", "source", "revision", "runner", '
        '"cores", "parallelism", "dtype", "prompts", "extra_packages", "limit_minutes", "note"',
    ),
    (
        "cores: 4\n    core_gib",
        "cores: 4\n    labels: [x]\n    core_gib",
        '17:5: key "labels" is here twice; expected it once (first at models.yaml:15:5)',
    ),
    (
        "    note: nobody asked",
        "    # silent",
        '57:5: key "note" is missing; expected it here',
    ),
    (
        "id: gpt2\n    task: text-generation",
        "id: gpt2\n    task: text-genration",
        '43:11: unknown task "text-genration"; did you mean "text-generation"?',
    ),
    (
        "id: gpt2\n    task: text-generation",
        "id: gpt2\n    task: painting",
        '43:11: unknown task "painting"; expected one of "text-generation", "image-text-to-text"',
    ),
    (
        "id: gpt2\n    task: text-generation",
        "id: gpt2\n    task:",
        "43:10: task: found nothing; expected 'text-generation' or 'image-text-to-text'",
    ),
    ("dtype: float32", "dtype: flaot32", '46:12: unknown dtype "flaot32"; did you mean "float32"?'),
    (
        "parallelism: tensor",
        "parallelism: tensr",
        '41:18: unknown parallelism "tensr"; did you mean "tensor"?',
    ),
    (
        "reason: not_prioritised",
        "reason: not_prioritized",
        '59:13: unknown reason "not_prioritized"; did you mean "not_prioritised"?',
    ),
    (
        "target: cpu",
        "target: tablet",
        '33:13: unknown target "tablet"; expected one of "neuron", "cpu", "simulator"',
    ),
    (
        "target: cpu",
        "target: cpu\n    library: vllm",
        '34:14: unknown library "vllm"; expected one of "transformers"',
    ),
    ("runner: small", "runner: smal", '39:13: unknown runner "smal"; did you mean "small"?'),
    (
        "runner: small",
        "runner: trn3",
        '39:13: unknown runner "trn3"; expected one of "small", "large"',
    ),
    ("stacks: [sdk]", "stacks: [sdkk]", '3:12: unknown stack "sdkk"; did you mean "sdk"?'),
    ("stacks: [sdk]", "stacks: sdk", '3:11: stacks: found "sdk"; expected a list'),
    ("stacks: [sdk]", "stacks: []", "3:11: stacks: 0 given; expected 1 or more"),
    (
        "stacks: [sdk]",
        "stacks: [sdk, sdk]",
        '3:17: stack "sdk" is here twice; expected it once (first at models.yaml:3:12)',
    ),
    (
        'torch: "2.13.0"',
        "torch: 2.13",
        '35:12: torch: found the number 2.13; expected text: quote it, "2.13"',
    ),
    (
        'torch: "2.13.0"',
        'torch: "2.13-rc1"',
        '35:12: torch: found "2.13-rc1"; expected a version such as "5.24.0"',
    ),
    (
        "revision: main",
        "revision: 1234567",
        '45:15: revision: found the number 1234567; expected text: quote it, "1234567"',
    ),
    (
        "revision: main",
        "revision: 2026-11-30",
        '45:15: revision: found the date 2026-11-30; expected text: quote it, "2026-11-30"',
    ),
    (
        "note: the old one",
        "note: yes",
        '50:11: note: found the truth value yes; expected text: quote it, "yes"',
    ),
    ("note: the old one", 'note: " "', '50:11: note: found " "; expected text that is not empty'),
    ("note: needs a GPU", "note:", "55:10: note: found nothing; expected text"),
    ("note: needs a GPU", "note: [a, b]", "55:11: note: found a list; expected text"),
    (
        "limit_minutes: 90",
        "limit_minutes: 1.5",
        "49:20: limit_minutes: found the number 1.5; expected a whole number",
    ),
    (
        "limit_minutes: 90",
        "limit_minutes: 0",
        "49:20: limit_minutes: found the number 0; expected greater than or equal to 1",
    ),
    (
        "limit_minutes: 90",
        'limit_minutes: "90"',
        '49:20: limit_minutes: found "90"; expected a whole number',
    ),
    ("host_gib: 128", "host_gib: 128 GiB", '18:15: host_gib: found "128 GiB"; expected a number'),
    (
        "usd_per_hour: 20.5",
        "machines: 0",
        "24:15: machines: found the number 0; expected greater than or equal to 1",
    ),
    (
        "usd_per_hour: 20.5",
        "machines: 2.0",
        "24:15: machines: found the number 2.0; expected a whole number",
    ),
    (
        "usd_per_hour: 20.5",
        "compilations: 65",
        "24:19: compilations: found the number 65; expected less than or equal to 64",
    ),
    (
        "  limit_minutes: 60",
        "  limit_minutes: 60\n  store: build/graphs",
        '5:10: store: found "build/graphs"; expected a URL without user name or password, '
        "such as hf://buckets/owner/name",
    ),
    (
        "  limit_minutes: 60",
        "  limit_minutes: 60\n  store: s3://me:secret@bucket/graphs",
        '5:10: store: found "s3://me:secret@bucket/graphs"; expected a URL without user name or '
        "password, such as hf://buckets/owner/name",
    ),
    (
        "usd_per_hour: 20.5",
        "usd_per_hour: .nan",
        "24:19: usd_per_hour: found the number .nan; expected a finite number",
    ),
    (
        "cores: 64",
        "cores: 48",
        "21:12: cores: found the number 48; expected 1, 2, 4, 8, 16, 32 or 64",
    ),
    ("cores: 64", "cores: yes", "21:12: cores: found the truth value yes; expected a whole number"),
    ("labels: [trn2-large]", "labels: []", "20:13: labels: 0 given; expected 1 or more"),
    (
        "labels: [trn2-large]",
        "labels: [a b]",
        '20:14: labels[0]: found "a b"; expected text without spaces',
    ),
    ("- My friend", "# none", "10:7: text-generation: 2 given; expected 3 or more"),
    (
        "- My friend",
        "- 3",
        '12:9: text-generation[2]: found the number 3; expected text: quote it, "3"',
    ),
    ("prompts: [One, Two, Three]", "prompts: [One]", "47:14: prompts: 1 given; expected 3 or more"),
    (
        "text-generation:\n",
        "text-genertion:\n",
        '9:5: unknown key "text-genertion"; did you mean "text-generation"?',
    ),
    (
        "id: gpt2\n",
        "id: https://huggingface.co/openai-community/gpt2\n",
        '42:9: id: found "https://huggingface.co/openai-community/gpt2"; '
        'expected the id instead of its URL: "openai-community/gpt2"',
    ),
    (
        "id: gpt2\n",
        "id: https://huggingface.co/datasets/squad\n",
        '42:9: id: found "https://huggingface.co/datasets/squad"; '
        'expected a model id such as "Qwen/Qwen3-0.6B"',
    ),
    (
        "id: gpt2\n",
        "id: a--b\n",
        '42:9: id: found "a--b"; expected a model id such as "Qwen/Qwen3-0.6B"',
    ),
    (
        "id: gpt2\n",
        "id: QWEN/qwen3-0.6b\n",
        '42:9: model "QWEN/qwen3-0.6b" is here twice; expected it once (first at models.yaml:37:9)',
    ),
    (
        "id: acme/near",
        "id: GPT2",
        '57:9: model "GPT2" is here twice; expected it once (first at models.yaml:42:9)',
    ),
    (
        "    issue: https://github.com/acme/far/issues/1",
        "    # no issue yet",
        '54:13: reason "incompatible" without an issue; expected the https URL of one in issue',
    ),
    (
        "issue: https://github.com",
        "issue: http://github.com",
        '56:12: issue: found "http://github.com/acme/far/issues/1"; expected an https URL',
    ),
    (
        '    torch_neuronx: "2.14.0.1"',
        "    # not named",
        "27:13: target neuron without torch_neuronx; expected its version",
    ),
    (
        'torch: "2.13.0"',
        'torch: "2.13.0"\n    neuronx_cc: "2.28"',
        "36:5: neuronx_cc with target cpu; expected none: remove it",
    ),
    (
        "models:\n",
        '  twin: {target: cpu, library_version: "5.24.0", torch: "2.13.0"}\nmodels:\n',
        '36:3: stacks "host" and "twin" give the same run ids; '
        "expected another library, compiler or torch version (first at models.yaml:32:3)",
    ),
    (
        "models:\n",
        '  twin:\n    <<: *sdk\n    python: "3.14"\nmodels:\n',
        '36:3: stacks "sdk" and "twin" give the same run ids; '
        "expected another library, compiler or torch version (first at models.yaml:26:3)",
    ),
    (
        "  large:",
        '  "large one":',
        '19:3: key: found "large one"; '
        "expected a name: at most 64 letters, digits, dots, dashes and underscores",
    ),
    ("  large:", "  2026:", '19:3: found the number 2026 as a key; quote it: "2026"'),
    (
        '["einops==0.8.1"',
        '["--index-url=https://evil.example"',
        '48:22: extra_packages[0]: found "--index-url=https://evil.example"; '
        'expected a package, with version bounds if any, such as "einops==0.8.1"',
    ),
    (
        '["einops==0.8.1"',
        '["git+https://evil.example/x"',
        '48:22: extra_packages[0]: found "git+https://evil.example/x"; '
        'expected a package, with version bounds if any, such as "einops==0.8.1"',
    ),
    (
        "task: image-text-to-text",
        "task: [a]",
        "58:11: task: found a list; expected 'text-generation' or 'image-text-to-text'",
    ),
    (
        "task: text-generation\n    runner",
        "task: image-text-to-text\n    runner",
        '38:11: no prompts for task "image-text-to-text"; '
        "expected some in defaults.prompts or here",
    ),
    (
        "runner: small\n    cores: 4",
        "runner: small\n    cores: 8",
        "40:12: 8 cores; expected at most 4, what small has",
    ),
    (
        "parallelism: tensor",
        "parallelism: none",
        '41:18: parallelism "none" on 4 cores; '
        "expected none on one core, tensor or expert on several",
    ),
    ("runner: small\n", "runner: !secret small\n", '39:13: unknown tag "!secret"; remove it'),
    (
        "revision: main",
        "revision: 2026-13-01",
        '45:15: found the date 2026-13-01, which is none; quote it: "2026-13-01"',
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), EDITS)
def test_a_fault_is_reported_alone_and_at_its_place(old: str, new: str, expected: str) -> None:
    """One fault gives one line that names line, column, what is wrong and what is expected."""
    assert problems(edited((old, new))) == [expected]


# Texts that are not a YAML mapping at all, and the one problem of each.
FILES: list[tuple[bytes, str]] = [
    (
        b"",
        "1:1: the file is empty; "
        "expected a mapping with the keys defaults, runners, stacks, models, excluded",
    ),
    (
        b"# only a remark\n",
        "1:1: the file is empty; "
        "expected a mapping with the keys defaults, runners, stacks, models, excluded",
    ),
    (
        b"\n- a\n- b\n",
        "2:1: found a list; "
        "expected a mapping with the keys defaults, runners, stacks, models, excluded",
    ),
    (
        b"models\n",
        '1:1: found "models"; '
        "expected a mapping with the keys defaults, runners, stacks, models, excluded",
    ),
    (
        b"models:\n\t- id: a\n",
        r"2:1: not valid YAML: while scanning for the next token, "
        r"found character '\t' that cannot start any token; indent with spaces, not tabs",
    ),
    (
        b'models:\n  - id: "gpt2\n',
        "3:1: not valid YAML: while scanning a quoted scalar, found unexpected end of stream",
    ),
    (b"models: *gone\n", "1:9: not valid YAML: found undefined alias 'gone'"),
    (
        b"a: 1\n---\nb: 2\n",
        "2:1: not valid YAML: expected a single document in the stream, but found another document",
    ),
    (
        b"models:\n  - <<: 5\n",
        "2:9: not valid YAML: while constructing a mapping, "
        "expected a mapping or list of mappings for merging, but found scalar",
    ),
    (b"models:\n  - note: caf\xe9\n", "2:14: byte 0xe9 is not UTF-8; save the file as UTF-8"),
    (b"\xef\xbb\xbfa: \xe9", "1:4: byte 0xe9 is not UTF-8; save the file as UTF-8"),
    ("models:\n".encode("utf-16"), "1:1: byte 0xff is not UTF-8; save the file as UTF-8"),
    ("é: ü\x00\n".encode(), "1:5: character U+0000 is not allowed; remove it"),
    (
        b"models:\n  {{ id }}: 1\n",
        "2:3: found a mapping as a key; quote what starts with a bracket",
    ),
    (b"[" * 800, "1:1: nested too deeply or into itself"),
]


@pytest.mark.parametrize(("data", "expected"), FILES)
def test_what_is_no_mapping_is_reported_with_its_line(data: bytes, expected: str) -> None:
    """Syntax errors, wrong encodings and empty files are problems with a place like any other."""
    assert problems(data) == [expected]


def test_every_problem_is_reported_at_once() -> None:
    """Faults of YAML, of the schema and between entries come together, in file order."""
    text = edited(
        ("stacks: [sdk]", "stacks: [sdkk]"),
        ("fraction: 0.1", "fraction: -1"),
        ("usd_per_hour: 20.5", "usd_per_hour: cheap"),
        ('torch: "2.13.0"', "torch: 2.13"),
        ("runner: small", "runner: smal"),
        ("id: gpt2\n", "id: Qwen/Qwen3-0.6B\n"),
        ("revision: main", "revison: main"),
        ("limit_minutes: 90", "limit_minutes: 90\n    limit_minutes: 91"),
        ("    note: nobody asked", "    # silent"),
    )
    with pytest.raises(InvalidCatalog) as caught:
        catalog.parse(text.encode(), file="models.yaml")
    assert str(caught.value).splitlines() == [
        'models.yaml:3:12: unknown stack "sdkk"; did you mean "sdk"?',
        "models.yaml:7:15: fraction: found the number -1; expected greater than or equal to 0",
        'models.yaml:24:19: usd_per_hour: found "cheap"; expected a number',
        'models.yaml:35:12: torch: found the number 2.13; expected text: quote it, "2.13"',
        'models.yaml:39:13: unknown runner "smal"; did you mean "small"?',
        'models.yaml:42:9: model "Qwen/Qwen3-0.6B" is here twice; '
        "expected it once (first at models.yaml:37:9)",
        'models.yaml:45:5: unknown key "revison"; did you mean "revision"?',
        'models.yaml:50:5: key "limit_minutes" is here twice; '
        "expected it once (first at models.yaml:49:5)",
        'models.yaml:58:5: key "note" is missing; expected it here',
        "  correct these 9 problems: the list is not used until then",
    ]
    assert caught.value.problems[0] == Problem(
        "models.yaml", 3, 12, 'unknown stack "sdkk"; did you mean "sdk"?'
    )


# Edits that rename something of which another edit's message speaks.
RENAMES = (
    "excluded:",
    "  large:",
    "text-generation:\n",
    "id: gpt2\n",
    "runner: small\n    cores: 4",
)


def test_faults_do_not_hide_each_other() -> None:
    """Any two faults on lines of their own give the problems that each gives alone."""
    apart = [
        edit
        for edit in EDITS
        if edit[0] not in RENAMES
        and edit[0].count("\n") == edit[1].count("\n")
        and "not valid YAML" not in edit[2]
    ]
    draw = random.Random(7)  # noqa: S311 -- a fixed choice of cases
    tried = 0
    while tried < 50:
        one, two = draw.sample(apart, 2)
        if _lines(one) & _lines(two):
            continue
        tried += 1
        assert set(problems(edited(one[:2], two[:2]))) == {one[2], two[2]}


def _lines(edit: tuple[str, str, str]) -> set[int]:
    """The lines of VALID that an edit and its message are about, from 1."""
    first = VALID.count("\n", 0, VALID.index(edit[0])) + 1
    return {int(edit[2].split(":")[0]), *range(first, first + edit[0].count("\n") + 1)}


def test_no_text_ends_in_anything_but_a_catalog_error() -> None:
    """However a list is damaged, the answer is a catalog or problems on lines that exist."""
    draw = random.Random(11)  # noqa: S311 -- a fixed choice of damage
    pieces = [":", "- ", "[", "]", "{", "}", "\n", "  ", '"', "&a ", "*a", "*sdk", "<<: *sdk\n"]
    pieces += ["!!set ", "5", "null", "\t", "\x00", "é", "? ", "|", "#", "models", "[]", "{}"]
    caught = 0
    for _ in range(150):
        text = VALID
        for _ in range(draw.randint(1, 3)):
            start = draw.randrange(len(text))
            text = text[:start] + draw.choice(pieces) + text[start + draw.randint(0, 12) :]
        try:
            catalog.parse(text.encode(), file="models.yaml")
        except InvalidCatalog as error:
            caught += 1
            assert error.problems
            assert list(error.problems) == sorted(error.problems)
            for problem in error.problems:
                assert 1 <= problem.line <= text.count("\n") + 2
                assert problem.column >= 1
                assert "\n" not in problem.message
    assert caught > 50


def test_a_valid_list_says_what_it_says() -> None:
    """Every field of the file arrives, and what is left out has the documented default."""
    found = catalog.parse(VALID.encode(), file="models.yaml")
    defaults = found.defaults
    assert (defaults.new_tokens, defaults.dtype, defaults.prefill_chunk) == (32, "bfloat16", 128)
    assert defaults.max_age_days == 30
    assert defaults.judge == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert (defaults.margin.gib, defaults.margin.fraction) == (1.5, 0.1)
    assert list(found.runners) == ["small", "large"]
    assert found.runners["small"].usd_per_hour is None
    assert found.runners["large"].usd_per_hour == 20.5
    qwen, gpt2 = found.models
    assert (qwen.cores, qwen.parallelism) == (4, Parallelism.TENSOR)
    assert gpt2.extra_packages == ("einops==0.8.1", "timm[all]>=1,<2")
    assert [entry.id for entry in found.excluded] == ["acme/far", "acme/near"]


def test_defaults_hold_unless_the_model_says_otherwise() -> None:
    """prompts, dtype, time limit and runner classes: the model's own, else the defaults'."""
    found = catalog.parse(VALID.encode(), file="models.yaml")
    qwen, gpt2 = found.models
    assert found.prompts_for(qwen) == ("The sea", "A train", "My friend")
    assert found.prompts_for(gpt2) == ("One", "Two", "Three")
    assert (found.dtype_for(qwen), found.dtype_for(gpt2)) == ("bfloat16", "float32")
    assert (found.limit_s(qwen), found.limit_s(gpt2)) == (3600, 5400)
    assert list(found.runners_for(qwen, Target.NEURON)) == ["small"]
    assert list(found.runners_for(gpt2, Target.NEURON)) == ["small", "large"]
    assert not found.runners_for(gpt2, Target.CPU)


def test_a_local_checkpoint_is_relative_to_the_list(tmp_path: Path) -> None:
    """source resolves against the list's folder, absolute ones stay, and neither need exist."""
    found = catalog.parse(VALID.encode(), file="models.yaml")
    qwen, gpt2 = found.models
    assert qwen.directory(tmp_path) is None
    assert gpt2.directory(tmp_path) == (tmp_path / "checkpoints" / "gpt2").resolve()
    elsewhere = gpt2.model_copy(update={"source": str(tmp_path / "x")})
    assert elsewhere.directory(Path("/nowhere")) == (tmp_path / "x").resolve()


def test_models_are_found_whatever_their_case() -> None:
    """model() ignores letter case; a near miss is suggested, an excluded model says why."""
    found = catalog.parse(VALID.encode(), file="models.yaml")
    assert found.model("qwen/qwen3-0.6B").id == "Qwen/Qwen3-0.6B"
    with pytest.raises(UsageError, match=r'unknown model "Qwen/Qwen3-6B"; did you mean "Qwen/Qw'):
        found.model("Qwen/Qwen3-6B")
    with pytest.raises(UsageError, match=r'unknown model "zzz"; expected one of "Qwen/Qwen3-0.6B"'):
        found.model("zzz")
    with pytest.raises(UsageError, match=r"acme/far is excluded \(incompatible\): needs a GPU"):
        found.model("Acme/Far")


def test_stacks_become_the_versions_of_plans() -> None:
    """Every field of a stack reaches StackVersions, and its run ids can be parsed back."""
    found = catalog.parse(VALID.encode(), file="models.yaml")
    sdk = found.stack_versions("sdk")
    assert sdk.model_dump(exclude={"name"}) == found.stacks["sdk"].model_dump()
    assert (sdk.name, sdk.target, sdk.neuronx_cc) == ("sdk", Target.NEURON, "2.28.7631.0+abc")
    for name in found.stacks:
        run_id = found.stack_versions(name).run_id("a/b")
        assert RunId.parse(str(run_id)) == run_id
    with pytest.raises(UsageError, match=r'unknown stack "sdkk"; did you mean "sdk"?'):
        found.stack_versions("sdkk")


def test_stacks_that_differ_in_one_part_of_the_run_id_are_allowed() -> None:
    """One SDK release under two torch versions is two stacks."""
    text = edited(("models:\n", '  twin:\n    <<: *sdk\n    torch: "2.15.0"\nmodels:\n'))
    found = catalog.parse(text.encode(), file="models.yaml")
    assert found.stacks["twin"].torch == "2.15.0"
    assert found.stacks["twin"].neuronx_cc == found.stacks["sdk"].neuronx_cc


SIMULATED = """\
  stand-in:
    target: simulator
    library_version: "5.24.0"
    torch: "2.13.0"
"""


def test_the_simulator_needs_what_the_device_needs() -> None:
    """A stack of the tests' stand-in names compiler and backend, and runner classes may be its."""
    text = edited(("models:\n", f"{SIMULATED}models:\n"))
    assert problems(text) == [
        f"37:13: target simulator without {field}; expected its version"
        for field in ("neuronx_cc", "torch_neuronx")
    ]
    named = f'{SIMULATED}    neuronx_cc: "1.0"\n    torch_neuronx: "0.1"\n'
    text = edited(
        ("models:\n", f"{named}models:\n"), ("cores: 64", "cores: 64\n    target: simulator")
    )
    found = catalog.parse(text.encode(), file="models.yaml")
    assert found.stack_versions("stand-in").target is Target.SIMULATOR
    model = found.model("gpt2")
    assert list(found.runners_for(model, Target.SIMULATOR)) == ["large"]
    assert list(found.runners_for(model, Target.NEURON)) == ["small"]


def test_the_simulator_and_the_device_share_their_run_ids() -> None:
    """A stand-in of the same versions would write rows under the device's names: refused."""
    twin = "  twin:\n    <<: *sdk\n    target: simulator\n"
    assert problems(edited(("models:\n", f"{twin}models:\n"))) == [
        '36:3: stacks "sdk" and "twin" give the same run ids; '
        "expected another library, compiler or torch version (first at models.yaml:26:3)"
    ]


def test_a_store_may_be_named() -> None:
    """defaults.store is null, or the URL as written."""
    found = catalog.parse(VALID.encode(), file="models.yaml")
    assert found.defaults.store is None
    url = "hf://buckets/acme/graphs"
    text = edited(("  limit_minutes: 60", f"  limit_minutes: 60\n  store: {url}"))
    assert catalog.parse(text.encode(), file="models.yaml").defaults.store == url


@pytest.mark.parametrize(
    ("cores", "host_gib", "changes", "slots"),
    [
        (4, 124, {}, 2),
        (64, 2048, {}, 32),
        (64, 100, {}, 3),
        (1, 2, {}, 1),
        (4, 16, {"target": "cpu"}, 2),
        (4, 6, {"target": "simulator"}, 1),
        (4, 124, {"compilations": 4}, 4),
        (64, 2048, {"compilations": 1}, 1),
    ],
)
def test_compilations_at_once(
    cores: int, host_gib: int, changes: dict[str, object], slots: int
) -> None:
    """As stated; else by cores and host memory, whichever gives fewer, and one at least."""
    fields = {"labels": ("x",), "cores": cores, "core_gib": 24.0, "host_gib": float(host_gib)}
    runner = catalog.Runner.model_validate(fields | changes)
    assert (runner.slots, runner.machines) == (slots, 1)


def test_a_fault_behind_an_alias_is_reported_once_where_it_stands() -> None:
    """What an anchor holds is written in one place: its problem names that place, once."""
    text = edited(
        ("    runner: small", "    prompts: &p [One, Two, 3]\n    runner: small"),
        ("prompts: [One, Two, Three]", "prompts: *p"),
    )
    assert problems(text) == ['39:28: prompts[2]: found the number 3; expected text: quote it, "3"']


def test_a_key_beside_a_merge_is_reported_where_it_stands() -> None:
    """What overrides a merged key is what counts, for the value and for the place of a fault."""
    text = edited(("models:\n", "  twin:\n    <<: *sdk\n    torch: 2.15\nmodels:\n"))
    assert problems(text) == [
        '38:12: torch: found the number 2.15; expected text: quote it, "2.15"'
    ]


def test_a_long_choice_is_cut() -> None:
    """Twelve names are shown of many: an error stays one readable line."""
    many = "".join(
        f"  host{i}: {{target: cpu, library_version: '5.{i}', torch: '2'}}\n" for i in range(20)
    )
    text = edited(("models:\n", f"{many}models:\n"), ("stacks: [sdk]", "stacks: [zzzzzz]"))
    names = ", ".join(f'"{name}"' for name in ("sdk", "host", *(f"host{i}" for i in range(10))))
    assert problems(text) == [f'3:12: unknown stack "zzzzzz"; expected one of {names}, ...']


def test_a_list_that_holds_itself_ends_in_problems() -> None:
    """Recursive aliases and ever-growing ones neither hang nor fill the memory."""
    assert "1:9: models[0]: found a list; expected a mapping" in problems("models: &a [*a]\n")
    layers = ["excluded: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    keys = ["models", "stacks", "runners", "defaults", *"abcdefgh"]
    layers += [f"{key}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]" for i, key in enumerate(keys)]
    found = problems("\n".join(layers))
    assert '1:16: excluded[0]: found "x"; expected a mapping' in found
    assert "3:9: stacks: found a list; expected a mapping" in found
    assert len(found) == 10 + 10 + 3 + 8


def test_load_names_the_file(tmp_path: Path) -> None:
    """load() reads a file and puts its path before every problem; an unreadable one says why."""
    path = tmp_path / "models.yaml"
    path.write_text(VALID, encoding="utf-8")
    assert catalog.load(path) == catalog.parse(VALID.encode(), file="models.yaml")
    path.write_text(edited(("runner: small", "runner: smal")), encoding="utf-8")
    with pytest.raises(CatalogError) as caught:
        catalog.load(path)
    assert str(caught.value).startswith(f'{path}:39:13: unknown runner "smal"')
    assert caught.value.exit_code == CatalogError.exit_code
    with pytest.raises(CatalogError, match=r"gone\.yaml: cannot be read: No such file"):
        catalog.load(tmp_path / "gone.yaml")


def test_windows_files_are_read(tmp_path: Path) -> None:
    """A byte order mark and CRLF change neither the content nor the places."""
    data = b"\xef\xbb\xbf" + VALID.replace("\n", "\r\n").encode()
    assert catalog.parse(data, file="x") == catalog.parse(VALID.encode(), file="x")
    broken = data.replace(b"runner: small", b"runner: smal")
    assert problems(broken) == ['39:13: unknown runner "smal"; did you mean "small"?']


def test_the_exit_code_is_listed_once() -> None:
    """InvalidCatalog is a CatalogError to the table of exit codes, not a second one."""
    assert [code for code, _ in exit_codes()].count(InvalidCatalog.exit_code) == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_valid_list_survives_a_round_trip(seed: int) -> None:
    """A list, written as YAML from its own data and read again, is the same list."""
    data = _random_list(random.Random(seed))  # noqa: S311 -- a fixed choice of lists
    first = catalog.parse(yaml.safe_dump(data, sort_keys=False).encode(), file="x")
    text = yaml.safe_dump(first.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    assert catalog.parse(text.encode(), file="x") == first
    assert [model.id for model in first.models] == [model["id"] for model in data["models"]]


def _random_list(draw: random.Random) -> dict[str, Any]:
    words = ["yes", "5.24", "null", "- a", "é", "two\nlines", "#", "a: b", "'", " x ", "2026-11-30"]

    def some(count: int) -> list[str]:
        return [draw.choice(words) for _ in range(count)]

    def maybe(make: Callable[[], object]) -> object:
        return make() if draw.random() < 0.5 else None

    stacks = {
        f"s{i}": {"target": "cpu", "library_version": f"5.{i}", "torch": draw.choice(["2", "2.0"])}
        for i in range(draw.randint(1, 3))
    }
    stacks["n"] = {"target": "neuron", "library_version": "5.24.0", "torch": "2.14"}
    stacks["n"] |= {"neuronx_cc": "2.28", "torch_neuronx": "2.14.0+x"}
    models = [
        {
            "id": f"Owner/m_{i}",
            "task": draw.choice(list(Task)).value,
            "source": maybe(lambda: "a/b"),
            "revision": maybe(lambda: "1234567"),
            "runner": maybe(lambda: "r"),
            "cores": maybe(lambda: draw.choice([1, 2, 4, 8])),
            "dtype": maybe(lambda: "float16"),
            "prompts": maybe(lambda: some(draw.randint(3, 6))),
            "extra_packages": ["einops"] * draw.randint(0, 2),
            "note": maybe(lambda: draw.choice(words)),
        }
        for i in range(draw.randint(1, 5))
    ]
    runner = {"labels": ["x"], "cores": 8, "core_gib": 24, "host_gib": 0.5}
    return {
        "defaults": {
            "stacks": draw.sample(list(stacks), draw.randint(1, len(stacks))),
            "limit_minutes": draw.randint(1, 7200),
            "margin": {"gib": draw.random(), "fraction": 0},
            "prompts": {task.value: some(draw.randint(3, 5)) for task in Task},
        },
        "runners": {"r": runner | {"usd_per_hour": maybe(draw.random)}},
        "stacks": stacks,
        "models": models,
        "excluded": [
            {"id": f"no/{i}", "task": "text-generation", "reason": "not_prioritised", "note": "é"}
            for i in range(draw.randint(0, 2))
        ],
    }


# What is left of a list with problems


def _document(text: str) -> Document:
    return Document(text.encode(), "models.yaml", Catalog.model_fields)


def _rest(text: str) -> Document | None:
    """The document less the entries in which the loader finds problems."""
    with pytest.raises(InvalidCatalog) as caught:
        catalog.parse(text.encode(), file="models.yaml")
    return _document(text).without(caught.value.problems)


def test_places_of_entries() -> None:
    """An entry is where its first key stands."""
    document = _document(VALID)
    line, column = document.place(("models", 0))
    assert VALID.splitlines()[line - 1][column - 1 :] == "id: Qwen/Qwen3-0.6B"


def test_entries_without_problems_are_left() -> None:
    """A faulty model goes whole; the others keep their lines, if not their position."""
    first = VALID.index("  - id: Qwen/Qwen3-0.6B")
    wrong = "  - {id: a/wrong, tsk: text-generation, cores: 3}\n  -\n  - just text\n"
    rest = _rest(VALID[:first] + wrong + VALID[first:])
    assert rest is not None
    assert rest.data == _document(VALID).data
    assert rest.problems == []
    assert rest.place(("models", 0))[0] == _document(VALID).place(("models", 0))[0] + 3
    Catalog.model_validate(rest.data)
    assert not list(rule_problems(rest))


def test_the_second_of_two_goes() -> None:
    """Where a model is there twice the problem is at the second, and the first is left."""
    twice = "excluded:\n  - {id: qwen/qwen3-0.6b, task: text-generation}\n"
    text = VALID.partition("excluded:\n")[0] + twice
    rest = _rest(text)
    assert rest is not None
    assert rest.data["models"] == _document(VALID).data["models"]
    assert rest.data["excluded"] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("limit_minutes: 60", "limit_minutes: none"),
        ("models:\n", "models:\nmodels:\n"),
        ("  sdk: &sdk\n", "  sdk: &sdk\n    oddity: 1\n"),
        ("excluded:\n", "excludde:\n"),
    ],
)
def test_a_problem_elsewhere_leaves_nothing(old: str, new: str) -> None:
    """What all models share must be sound."""
    assert old in VALID
    assert _rest(VALID.replace(old, new, 1)) is None


def test_the_document_itself_stays_as_it_is() -> None:
    """What is left is another document."""
    text = VALID.replace("  - id: Qwen/Qwen3-0.6B\n", "  - id: Qwen/Qwen3-0.6B\n    odd: 1\n")
    document = _document(text)
    before = len(document.data["models"])
    place = document.place(("models", 0))
    rest = document.without([Problem("models.yaml", *place, "odd")])
    assert rest is not None
    assert (len(document.data["models"]), document.place(("models", 0))) == (before, place)
    assert len(rest.data["models"]) == before - 1


def test_the_committed_schema_is_the_generated_one() -> None:
    """Whoever changes the models runs `python -m pipeline.catalog --write` and commits it."""
    assert catalog.SCHEMA_PATH.read_text(encoding="utf-8") == catalog.schema_text()


def test_the_schema_names_every_key_of_a_list() -> None:
    """Editors complete and check what the loader accepts: the same keys, none beside."""
    schema = json.loads(catalog.schema_text())
    assert set(schema["properties"]) == set(Catalog.model_fields)
    for part in (catalog.Defaults, catalog.Runner, catalog.Stack, catalog.Model, catalog.Excluded):
        definition = schema["$defs"][part.__name__]
        assert set(definition["properties"]) == set(part.model_fields)
        assert definition["additionalProperties"] is False
        used = [field for field, info in part.model_fields.items() if info.is_required()]
        assert definition["required"] == used
    for section in ("runners", "stacks"):
        names = schema["properties"][section]
        assert list(names["patternProperties"]) == ["^[0-9A-Za-z][0-9A-Za-z._-]{0,63}$"]
        assert names["additionalProperties"] is False


def test_the_module_prints_and_writes_the_schema(tmp_path: Path) -> None:
    """`python -m pipeline.catalog` prints the schema, with --write it puts it beside the module."""
    package = tmp_path / "pipeline"
    package.mkdir()
    source = Path(catalog.__file__).parent
    for module in ("__init__", "catalog", "catalog_problems", "errors", "lines", "words"):
        shutil.copy(source / f"{module}.py", package)
    shutil.copytree(source / "record", package / "record")
    command = [sys.executable, "-m", "pipeline.catalog"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert printed.stdout == catalog.schema_text()
    assert not (package / "data").exists()
    subprocess.run([*command, "--write"], cwd=tmp_path, check=True)
    written = package / "data" / "models.schema.json"
    assert written.read_text(encoding="utf-8") == catalog.schema_text()


def test_reading_the_list_needs_neither_torch_nor_the_hub() -> None:
    """The validator starts fast: yaml and pydantic are all it imports."""
    code = "import sys, pipeline.catalog; print(*sorted(sys.modules))"
    command = [sys.executable, "-c", code]
    root = Path(catalog.__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "huggingface_hub", "pyarrow", "jinja2", "click", "pandas"}
    assert not heavy & set(done.stdout.split())
