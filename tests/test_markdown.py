"""Markdown that people's texts cannot become a part of."""

from __future__ import annotations

from pipeline.markdown import code, fold, table, text, url


def test_text_keeps_what_people_can_read() -> None:
    """Escaping touches only what is markup, and cutting shows that it cut."""
    assert text("RuntimeError: NCC_EVRF004 (at 5 %), \"x\" 'y'; a-b+c=d/e.f?") == (
        "RuntimeError: NCC_EVRF004 (at 5 %), \"x\" 'y'; a-b+c=d/e.f?"
    )
    assert text("0123456789", 8) == "01234..."
    assert text("||||||||", 8) == "&#124;" * 8


def test_links_escape_plus_and_at() -> None:
    """A run id's "@" and a version's "+" would otherwise mean something else in an address."""
    assert url("a/b@c-2.13.0+cpu.py") == "a/b%40c-2.13.0%2Bcpu.py"


def test_only_a_model_id_is_set_as_code() -> None:
    """What is no id could end the code that it stands in."""
    assert code("Qwen/Qwen3-0.6B") == "`Qwen/Qwen3-0.6B`"
    assert code("a`b") == "a&#96;b"


def test_a_table_and_a_fold_are_read_as_such() -> None:
    """Each cell has its column; GitHub reads Markdown inside of HTML only after an empty line."""
    made = table(("Model", "Result"), [("`a/b`", "PASS"), ("`c/d`", "FAIL")])
    assert made == "| Model | Result |\n| --- | --- |\n| `a/b` | PASS |\n| `c/d` | FAIL |"
    assert fold("More", made) == f"<details><summary>More</summary>\n\n{made}\n\n</details>"
