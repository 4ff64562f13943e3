"""How a measurement is shown: never as a result, and never as more than it is."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from pipeline import measure
from pipeline.measure import Measurement, Qualification, Request, chart
from pipeline.measure.figures import Spread
from pipeline.measure.points import Call, Point, PointSeen, Seen, Standing
from pipeline.record import find_records
from pipeline.words import Stage, Target
from tests import papers

SVG = "{http://www.w3.org/2000/svg}"


def point(prompt: int, batch: int, **changes: Any) -> Point:
    """A valid point."""
    fields: dict[str, Any] = {
        "prompt_tokens": prompt,
        "batch": batch,
        "standing": Standing.VALID,
        "reasons": (),
        "first_token": Spread(5, 0.0123, 0.02, 0.02, 0.01, 0.02),
        "token": Spread(155, 0.004, 0.005, 0.0061, 0.003, 0.009),
        "tokens_per_s": 250.0,
        "decode_tokens_per_s": 260.0,
        "usd_per_million": 0.456,
        "peak_bytes": (papers.GIB, 2 * papers.GIB),
        "warm_up_s": (30.0, 0.5),
        "graphs": 2,
        "compiled": 2,
        "restored": 0,
        "compiled_while_measured": 0,
    }
    return Point(**(fields | changes))


def made(*points: Point, target: Target = Target.CPU, **changes: Any) -> Measurement:
    """A measurement on two cores, qualified."""
    asked = papers.run(stack=papers.stack(target), placement=papers.placement(2), machine_cores=4)
    call = Call(first_token_s=0.0123, token_s=(0.004,), wall_s=0.02)
    told = PointSeen(prompt_tokens=32, batch=1, refused=None, calls=(call,), ranks=())
    fields: dict[str, Any] = {
        "asked": asked,
        "request": Request((32,), 32, (1, 4), 5, 1.5, 600),
        "qualification": Qualification(
            papers.placement(2), None, "2026-11-30T08:00:00Z", "https://example.org/1"
        ),
        "points": points or (point(32, 1), point(32, 4)),
        "seen": Seen(stage=Stage.DONE, versions=papers.versions(), threads=1, points=(told,)),
        "error": None,
        "measured_at": datetime(2026, 11, 30, 9, tzinfo=UTC),
        "wall_s": 61.5,
    }
    return Measurement(**(fields | changes))


def parsed(svg: str) -> ElementTree.Element:
    """The picture as XML: what is not well-formed raises."""
    return ElementTree.fromstring(svg)  # noqa: S314 -- our own


def test_every_form_says_that_it_is_no_result() -> None:
    """In the terminal, in JSON, in the report, in the picture."""
    one = made()
    assert "This is a measurement, not a result" in measure.table(one)
    assert measure.data(one)["what"].startswith("This is a measurement, not a result")
    assert "This is a measurement, not a result" in measure.markdown(one)
    assert "a measurement, not a result" in chart.svg(one.points, "x")


def test_nothing_of_it_can_be_published(tmp_path: Path) -> None:
    """Publishing looks for records, and a measurement leaves none."""
    measure.write(made(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "measure.json",
        "measure.svg",
        "report.md",
    }
    assert find_records([tmp_path]) == []


def test_only_the_device_speaks_of_trainium() -> None:
    """A figure of the cpu says nothing of it, and every form with words says so."""
    for form in (lambda one: measure.table(one, 1000), measure.markdown):
        assert "Nothing of Trainium" in form(made())
        assert "Nothing of Trainium" not in form(made(target=Target.NEURON))
    limits = measure.data(made())["not_to_conclude"]
    for word in ("Trainium", "serving engine", "static cache", "greedy", "bill"):
        assert any(word in sentence for sentence in limits)


def test_a_stand_in_says_nothing_at_all() -> None:
    """Figures of the tests' device are not mistaken for those of a real one."""
    told = papers.versions().model_copy(update={"neuronx_cc": "2.28.7631.0+simulator"})
    one = made(target=Target.NEURON, seen=Seen(stage=Stage.DONE, versions=told))
    assert measure.data(one)["not_to_conclude"][0].startswith("Nothing at all")
    assert "Nothing at all" not in measure.table(made(target=Target.NEURON), 1000)


def test_an_unqualified_one_says_so_everywhere() -> None:
    """Who reads the report knows that no PASS stands behind it, and how it came about."""
    why = Qualification(papers.placement(2), "results have no row of it on this stack")
    one = made(qualification=why)
    assert "NOT QUALIFIED: results have no row" in measure.table(one, 1000)
    assert "NOT QUALIFIED" in measure.markdown(one)
    told = measure.data(one)
    assert told["qualification"]["qualified"] is False
    assert told["command"].endswith("--unqualified")
    assert "Not even that the model works" in told["not_to_conclude"][0]
    assert "NOT QUALIFIED" not in measure.markdown(made())


def test_the_terminal_table() -> None:
    """Figures stand in their columns; a percentile of few samples is marked as the largest one."""
    lines = measure.table(made(), 1000).split("\n")
    head = next(number for number, line in enumerate(lines) if line.startswith("prompt  batch"))
    assert lines[head + 1].split() == [
        *("32", "1", "12.3", "20.0*", "20.0*", "5"),
        *("4.0", "5.0", "6.1", "155", "valid"),
    ]
    assert lines[head + 5].split() == ["32", "1", "250.0", "260.0", "0.456", "2.00", "2", "30.5"]
    assert any(line.startswith("* the largest sample") for line in lines)
    enough = made(point(32, 1, first_token=Spread(100, 0.1, 0.2, 0.3, 0.1, 0.4)))
    assert "*" not in measure.table(enough)
    assert max(map(len, measure.table(made(), 100).split("\n"))) <= 100


def test_points_that_do_not_count_say_why() -> None:
    """Invalid, unproven and unmeasured sizes are told with their reason, not left out."""
    bad = point(32, 1, standing=Standing.INVALID, reasons=("compiled meanwhile",))
    none = Point(32, 4, Standing.NOT_MEASURED, ("the model has positions for 32 tokens",))
    for text in (measure.table(made(bad, none)), measure.markdown(made(bad, none))):
        assert "prompt 32, batch 1" in text and "compiled meanwhile" in text
        assert "prompt 32, batch 4" in text and "positions for 32 tokens" in text
    told = measure.data(made(bad, none))["points"]
    assert [one["standing"] for one in told] == ["invalid", "not measured"]
    assert told[1]["tokens_per_s"] is None


def test_a_script_that_failed_is_told() -> None:
    """With what it had measured before."""
    one = made(error="timeout at stage compile")
    assert "did not come to its end: timeout at stage compile" in measure.table(one)
    assert measure.data(one)["error"] == "timeout at stage compile"
    assert "did not come to its end" in measure.markdown(one)


def test_no_price_is_told() -> None:
    """A missing cost has its reason."""
    request = replace(made().request, usd_per_hour=None)
    assert "cost is not told: the list states no price" in measure.table(made(request=request))
    assert "--usd-per-hour" not in measure.data(made(request=request))["command"]


def test_json_holds_samples_and_formulas() -> None:
    """Another program can work out every figure anew: raw times, price, shares, definitions."""
    told = json.loads(json.dumps(measure.data(made())))
    assert told["points"][0]["calls"] == [
        {"first_token_s": 0.0123, "token_s": [0.004], "wall_s": 0.02}
    ]
    assert told["points"][0]["first_token"]["p99_is_maximum"] is True
    assert told["points"][0]["token"]["p99_is_maximum"] is False
    assert (told["cores"], told["machine_cores"], told["asked"]["usd_per_hour"]) == (2, 4, 1.5)
    assert set(told["how"]) == {
        *("prompts", "latency", "percentiles", "tokens_per_s", "cost", "memory")
    }


@pytest.mark.parametrize("target", [Target.CPU, Target.NEURON])
def test_memory_is_named_for_what_was_counted(target: Target) -> None:
    """Resident memory on the cpu, the device's allocator on the device."""
    told = measure.data(made(target=target))["how"]["memory"]
    assert ("allocator" in told) is (target is Target.NEURON)
    assert ("VmHWM" in told) is (target is Target.CPU)


def test_the_report_has_table_and_picture_side_by_side() -> None:
    """What the picture shows stands in tables too, for those who cannot see it."""
    report = MarkdownIt("commonmark").enable("table").render(measure.markdown(made()))
    assert (
        '<img src="measure.svg" alt="Time and throughput of each point, as in the tables"' in report
    )
    assert report.count("<table>") == 2
    assert "<td>250.0</td>" in report
    assert "measure.svg" not in measure.markdown(made(Point(32, 1, Standing.NOT_MEASURED, ("x",))))


def test_hostile_text_stays_text() -> None:
    """What comes from a model or a log is neither markup in the report nor in the picture."""
    evil = '<script>alert(1)</script> | "&'
    bad = point(32, 1, standing=Standing.INVALID, reasons=(evil,))
    report = measure.markdown(made(bad, error=evil))
    assert "<script>" not in report
    root = parsed(chart.svg([bad], evil + "\x1b\x00"))
    assert root.findtext(f"{SVG}title") == evil


# --- the picture --------------------------------------------------------------------------------


def test_the_picture_is_told_in_words() -> None:
    """It has a role, a title and a description with every point's figures."""
    root = parsed(chart.svg([point(32, 1), point(128, 4)], "m on 1 core"))
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "title description"
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None and title.text == "m on 1 core"
    assert description is not None and description.text is not None
    assert (
        "prompt 128, batch 4, first token p50 12.3 ms, p90 20.0 ms, p99 20.0 ms" in description.text
    )
    assert "250.0 tokens per second" in description.text


def test_marks_stand_where_the_figures_are() -> None:
    """On a scale from zero: half of the axis is half of its end."""
    one = point(32, 1, first_token=Spread(5, 0.01, 0.015, 0.02, 0.01, 0.02))
    root = parsed(chart.svg([one], "x"))
    circle = root.findall(f".//{SVG}g/{SVG}circle")[0]
    path = root.findall(f".//{SVG}g/{SVG}path")[0]
    left, width = 190.0, 150.0
    assert float(circle.get("cx") or 0) == left + width / 2
    assert path.get("d", "").startswith(f"M{left + width - 5:.1f} ")


def test_points_that_do_not_count_look_different() -> None:
    """By hollow marks and by the word beside them, not by colour."""
    doubt = point(32, 4, standing=Standing.UNPROVEN, reasons=("?",))
    good, mixed = chart.svg([point(32, 1)], "x"), chart.svg([point(32, 1), doubt], "x")
    assert 'class="doubt"' not in good and "hollow" not in good
    assert mixed.count('class="doubt"') == 3
    assert "prompt 32, batch 4 (unproven)" in mixed and "hollow marks" in mixed


def test_a_picture_of_nothing() -> None:
    """Says that it shows nothing, and is well-formed."""
    root = parsed(chart.svg([Point(1, 1, Standing.NOT_MEASURED, ("x",))], "x"))
    assert "nothing was measured" in "".join(root.itertext())


@pytest.mark.parametrize(
    ("most", "end"),
    [(0, 1), (0.9, 1), (1, 1), (1.01, 2), (5, 5), (37, 50), (501, 1000), (0.03, 0.05)],
)
def test_axes_end_at_round_numbers(most: float, end: float) -> None:
    """The smallest of 1, 2, 5, 10 times a power of ten that holds everything."""
    assert chart.scale(most) == pytest.approx(end)


def test_folders_count_on(tmp_path: Path) -> None:
    """No measurement takes the place of an earlier one."""
    assert measure.free_folder(tmp_path / "none").name == "1"
    for name in ("1", "9", "10", "notes"):
        (tmp_path / name).mkdir()
    assert measure.free_folder(tmp_path).name == "11"
