"""The page of models: lists, search, filters, order, the shared address, and what a row says."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.site.campaign import EXCLUDED, FILLERS, WANTED
from tests.site.conftest import Open

TEXT_MODELS = sum(model.task == "text-generation" for model in WANTED) + len(EXCLUDED) + 1
"""Of the list: those with a result that the list no longer names are shown as well."""


def shown(page: Page) -> list[str]:
    """The ids of the models in the table, in order."""
    return page.locator("#table tbody th").all_inner_texts()


def row(page: Page, model: str) -> Locator:
    """The row of a model, searched for as a reader would."""
    page.get_by_role("searchbox").fill(model)
    return page.locator("#table tbody tr", has=page.get_by_role("rowheader", name=model))


def asked(page: Page) -> dict[str, str]:
    """What the address asks for."""
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def choose(page: Page, label: str, value: str) -> None:
    page.get_by_label(label, exact=True).select_option(value)


# --- lists --------------------------------------------------------------------------------------


def test_the_list_is_shown_first_with_how_many_match(index: Page) -> None:
    """Selected is the list, excluded models and former ones included, 50 a page."""
    expect(index.locator("#count")).to_contain_text(
        f"{TEXT_MODELS} of {TEXT_MODELS} models of the list match, shown: 1 to 50"
    )
    assert len(shown(index)) == 50
    assert "hub/only-ranked" not in shown(index)


@pytest.mark.parametrize(
    ("view", "models"),
    [
        ("Trending", ["hub/only-ranked", "Qwen/Qwen3-32B", "Qwen/Qwen3-0.6B"]),
        ("Downloads", ["Qwen/Qwen3-0.6B", "microsoft/gpu-only", "hub/downloaded"]),
    ],
)
def test_rankings_are_in_the_hubs_order_with_models_without_a_result(
    index: Page, view: str, models: list[str]
) -> None:
    """A ranking shows what the Hub ranks, by rank, whether or not anybody ran it."""
    index.get_by_role("link", name=view).click()
    assert shown(index) == models
    assert row(index, models[0]).locator(".c-rank").inner_text() == "1"
    assert asked(index) == {"view": view.lower()}


def test_each_task_has_its_own_lists(index: Page) -> None:
    """Another task shows its own models only."""
    index.get_by_role("link", name="image-text-to-text").click()
    assert shown(index) == ["google/gemma-3-4b-it"]
    index.get_by_role("link", name="Trending").click()
    expect(index.locator("#table")).to_contain_text("This list holds no model.")


def test_pages_follow_each_other(index: Page) -> None:
    """Every model is on one page, and only a page of rows is in the document."""
    first = shown(index)
    index.get_by_role("link", name="Next").click()
    second = shown(index)
    assert len(first) + len(second) == TEXT_MODELS
    assert set(first).isdisjoint(second)
    assert asked(index) == {"page": "2"}
    expect(index.get_by_role("link", name="Next")).to_have_count(0)


# --- search and filters -------------------------------------------------------------------------


def test_search_takes_a_part_of_a_name_as_one_types(index: Page) -> None:
    """Letter case does not matter, and the address follows."""
    index.keyboard.press("/")
    index.keyboard.type("qwen3")
    expect(index.locator("#count")).to_have_text(f"2 of {TEXT_MODELS} models of the list match")
    assert shown(index) == ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-32B"]
    index.wait_for_url("**/index.html?q=qwen3")


def test_a_slash_in_the_search_is_a_slash(index: Page) -> None:
    """The key that focuses the search is a letter like others inside it."""
    index.keyboard.press("/")
    index.keyboard.type("qwen/q")
    assert index.get_by_role("searchbox").input_value() == "qwen/q"
    assert len(shown(index)) == 2


def test_every_selector_narrows_the_table(index: Page) -> None:
    """What is chosen holds for every row that has a result, and stands in the address."""
    for label, value, models in (
        ("Compiler", "neuronx-cc 2.27.5121.0", 4),
        ("Library", "transformers 5.23.0", 4),
        ("Compiler", "inductor 2.13.0", 1),
        ("Cores", "8", 1),
        ("Parallelism", "expert", 1),
        ("Parallelism", "tensor", 1),
        ("Architecture", "llama", 1),
        ("Age", "stale", 1),
    ):
        choose(index, label, value)
        numbers = index.locator("#results button .number").all_inner_texts()
        assert sum(map(int, numbers[:3])) == models, f"PASS, FAIL and ERROR of {label} {value}"
        assert list(asked(index).values()) == [value]
        if label not in ("Compiler", "Library"):
            assert len(shown(index)) == models, "of a model without a row nothing is known"
        index.get_by_role("button", name="Clear filters").click()


def test_a_stack_that_a_model_never_ran_on_leaves_it_untested(index: Page) -> None:
    """A choice of stack asks for the reading there; other stacks stand beside it."""
    choose(index, "Compiler", "neuronx-cc 2.27.5121.0")
    untested = row(index, "openai/gpt-oss-20b")
    expect(untested.locator(".c-result")).to_have_text("UNTESTED")
    expect(untested.locator(".c-others")).to_contain_text("PASS")


def test_results_are_filtered_by_buttons_that_say_how_many(index: Page) -> None:
    """A button's number is what the table then holds."""
    for result, count in {
        "PASS": 5,
        "FAIL": 1,
        "ERROR": 1,
        "EXCLUDED": 2,
        "UNTESTED": FILLERS + 1,
    }.items():
        button = index.locator(f"button[data-result={result}]")
        assert button.locator(".number").inner_text() == str(count)
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")
        expect(index.locator("#count")).to_contain_text(f"{count} of {TEXT_MODELS} models")
        marks = index.locator(f"#table .c-result [data-reading={result}]")
        expect(marks).to_have_count(min(count, 50))
        button.click()


def test_two_results_can_be_asked_for_and_all_filters_cleared(index: Page) -> None:
    """FAIL and ERROR together; one button takes every filter back."""
    index.locator("button[data-result=ERROR]").click()
    index.locator("button[data-result=FAIL]").click()
    assert shown(index) == ["meta-llama/Llama-3.1-8B", "mistralai/Mistral-7B-v0.3"]
    assert asked(index) == {"result": "FAIL,ERROR"}
    index.get_by_role("button", name="Clear filters").click()
    assert asked(index) == {}
    assert len(shown(index)) == 50


def test_where_nothing_matches_other_lists_are_named(index: Page) -> None:
    """A model that only a ranking has is found there, never an empty table."""
    index.get_by_role("searchbox").fill("only-ranked")
    expect(index.locator("#table")).to_contain_text("No model of this list matches.")
    expect(index.locator("#table table")).to_have_count(0)
    index.get_by_role("link", name="1 model in Trending, text-generation").click()
    assert shown(index) == ["hub/only-ranked"]


# --- order --------------------------------------------------------------------------------------


def test_columns_sort_both_ways_and_say_so(index: Page) -> None:
    """The second press turns the order; what has no value comes last either way."""
    for column, first, last in (
        ("Model", "filler/model-00", "tired/superseded"),
        ("Architecture", "openai/gpt-oss-20b", "gone/from-the-list"),
        ("Cores", "gone/from-the-list", "Qwen/Qwen3-32B"),
        ("Time", "gone/from-the-list", "gone/from-the-list"),
        ("Tested", "old/stale-model", "meta-llama/Llama-3.1-8B"),
        ("Stack", "gone/from-the-list", "gone/from-the-list"),
    ):
        button = index.get_by_role("button", name=column, exact=True)
        header = index.get_by_role("columnheader", name=column, exact=True)
        if column != "Model":
            expect(header).to_have_attribute("aria-sort", "none")
            button.click()
        expect(header).to_have_attribute("aria-sort", "ascending")
        assert shown(index)[0] == first, column
        button.click()
        expect(header).to_have_attribute("aria-sort", "descending")
        expect(button).to_be_focused()
        assert shown(index)[0] == last, column


def test_results_sort_from_pass_to_untested(index: Page) -> None:
    """The order of results is that of their buttons."""
    index.get_by_role("button", name="Result", exact=True).click()
    names = index.locator("#table .c-result .reading").all_inner_texts()
    order = ["PASS", "FAIL", "ERROR", "EXCLUDED", "UNTESTED"]
    assert names == sorted(names, key=order.index)
    assert set(names) == set(order)


# --- the address --------------------------------------------------------------------------------


def test_a_shared_address_restores_the_view(visit: Open) -> None:
    """Everything that was chosen comes back, in the fields as well."""
    address = "index.html?view=downloads&q=qwen&compiler=neuronx-cc+2.27.5121.0&sort=-model"
    page = visit().goto(address)
    assert shown(page) == ["Qwen/Qwen3-0.6B"]
    assert page.get_by_role("searchbox").input_value() == "qwen"
    assert page.get_by_label("Compiler").input_value() == "neuronx-cc 2.27.5121.0"
    expect(page.get_by_role("link", name="Downloads")).to_have_attribute("aria-current", "page")
    expect(row(page, "Qwen/Qwen3-0.6B").locator(".c-stack")).to_contain_text("2.27.5121.0")


def test_back_and_forward_walk_through_the_choices(index: Page) -> None:
    """Each choice is one step; a typed word is one step as a whole."""
    index.get_by_role("searchbox").press_sequentially("llama")
    index.wait_for_url("**?q=llama")
    index.locator("button[data-result=PASS]").click()
    expect(index.locator("#table table")).to_have_count(0)
    index.go_back()
    assert shown(index) == ["meta-llama/Llama-3.1-8B"]
    index.go_back()
    assert len(shown(index)) == 50
    assert index.get_by_role("searchbox").input_value() == ""
    index.go_forward()
    assert shown(index) == ["meta-llama/Llama-3.1-8B"]


def test_back_from_a_model_leads_to_the_search(index: Page) -> None:
    """Whoever follows a link while the address still waits for typing comes back to it."""
    index.get_by_role("searchbox").fill("llama")
    index.get_by_role("link", name="meta-llama/Llama-3.1-8B", exact=True).click()
    expect(index.get_by_role("heading", level=1)).to_have_text("meta-llama/Llama-3.1-8B")
    index.go_back()
    assert asked(index) == {"q": "llama"}
    expect(index.locator("#table tbody tr")).to_have_count(1)


def test_an_address_with_what_is_not_there_says_so(visit: Open) -> None:
    """An old link is shown without what no longer exists, and the reader is told."""
    page = visit().goto("index.html?compiler=neuronx-cc+1.0&q=llama&page=x")
    expect(page.get_by_role("alert")).to_contain_text('compiler "neuronx-cc 1.0"')
    assert shown(page) == ["meta-llama/Llama-3.1-8B"]


# --- what a row says ----------------------------------------------------------------------------


def test_a_result_carries_age_versions_and_its_run(index: Page) -> None:
    """The newest stack's row, what failed, and the other stack beside it."""
    failed = row(index, "meta-llama/Llama-3.1-8B")
    expect(failed.locator(".c-result")).to_contain_text("compiler_error")
    expect(failed.locator(".c-tested time")).to_have_text("3 days ago")
    expect(failed.locator(".c-stack")).to_have_text(
        re.compile("neuronx-cc 2.28.7631.0.*transformers 5.24.0.*torch 2.14.0", re.DOTALL)
    )
    run = failed.locator(".c-tested").get_by_role("link")
    expect(run).to_have_attribute("href", "https://github.com/example/campaign/actions/runs/1")
    other = failed.locator(".c-others")
    expect(other).to_contain_text("PASS")
    expect(other).to_contain_text("2.27.5121.0, 5.23.0, 23 d")
    expect(other.get_by_role("link", name="run of meta-llama/Llama-3.1-8B")).to_have_count(1)


def test_readings_differ_in_word_shape_and_colour(index: Page) -> None:
    """No two of the five look alike, colours aside."""
    look = """mark => {
        const before = getComputedStyle(mark, "::before"), own = getComputedStyle(mark);
        return [mark.textContent, own.color, [before.clipPath, before.borderRadius, before.height,
                before.backgroundColor === "rgba(0, 0, 0, 0)"].join()];
    }"""
    marks = index.locator("#results .reading").all()
    words, colours, shapes = zip(*(mark.evaluate(look) for mark in marks), strict=True)
    assert words == ("PASS", "FAIL", "ERROR", "EXCLUDED", "UNTESTED")
    assert len(set(colours)) == len(set(shapes)) == 5


def test_exclusions_say_why(index: Page) -> None:
    """Incompatible and not prioritised are told apart, with the note."""
    expect(row(index, "microsoft/gpu-only").locator(".c-result")).to_have_text(
        "EXCLUDEDincompatible: its kernels exist for GPUs only"
    )
    expect(row(index, "tired/superseded").locator(".c-result")).to_have_text(
        "EXCLUDEDnot prioritised: its successor is listed"
    )


def test_a_model_that_is_no_longer_listed_keeps_its_result(index: Page) -> None:
    """Nobody loses a result because the list moved on; the row says that it did."""
    expect(row(index, "gone/from-the-list").locator("td.c-result")).to_have_text(
        "PASSnot on the list"
    )


def test_old_results_are_marked_stale(index: Page) -> None:
    """The list's limit of 30 days is held against the reader's own clock."""
    expect(row(index, "old/stale-model").locator(".stale")).to_have_count(1)
    index.get_by_role("searchbox").fill("qwen")
    expect(index.locator("#table .c-result .stale")).to_have_count(0)


def test_a_result_of_a_cpu_is_none_of_trainium(index: Page) -> None:
    """It never makes a reading unless it is asked for, and then says what it is."""
    expect(row(index, "only/on-cpu").locator(".c-result")).to_have_text("UNTESTED")
    expect(row(index, "only/on-cpu").locator(".c-others")).to_contain_text("cpu, 5.24.0")
    choose(index, "Compiler", "inductor 2.13.0")
    expect(row(index, "only/on-cpu").locator(".c-result")).to_have_text("PASSon cpu")
    expect(index.locator("#scope")).to_contain_text("they say nothing of Trainium")


def test_what_others_say_is_kept_apart_and_verbatim(index: Page) -> None:
    """Outside evidence is named so, and counts for no reading."""
    told = row(index, "Qwen/Qwen3-0.6B").locator(".outside-row")
    expect(told).to_contain_text("outside: WORKS <b>fine</b> (neuronx-cc 2.26.0, ")
    expect(told.locator(".reading")).to_have_count(0)


def test_what_a_pass_does_not_mean_stands_on_the_page(index: Page) -> None:
    """Whoever sees a PASS sees its limits."""
    limits = "It says nothing of throughput, long generations or answer quality."
    expect(index.locator(".lede")).to_contain_text(limits)


# --- charts -------------------------------------------------------------------------------------


def test_charts_have_the_same_figures_as_tables(index: Page) -> None:
    """They are drawn when opened, follow the filters, and stay in the address."""
    expect(index.locator("svg")).to_have_count(0)
    index.get_by_text("Charts of these models").click()
    expect(index.locator("figure")).to_have_count(4)
    assert asked(index) == {"charts": "open"}
    chart = index.locator("figure", has_text="Results by cores")
    chart.get_by_text("As a table").click()
    expect(chart.get_by_role("row", name="8 cores")).to_have_text("8 cores100100 %")
    index.locator("button[data-result=FAIL]").click()
    chart = index.locator("figure", has_text="Results by stack")
    chart.get_by_text("As a table").click()
    expect(chart.locator("tbody tr")).to_have_text(
        [re.compile("2.28.7631.0.*0100 %$"), re.compile("2.27.5121.0.*100100 %$")]
    )
