"""The site as a folder: what a web server would serve."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from pipeline import site
from pipeline.catalog import load
from pipeline.errors import ResultsError
from pipeline.publish import publish
from tests import papers
from tests.conftest import ROOT


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A PASS, and a FAIL whose error tries to be a part of the page."""
    folder = tmp_path / "published"
    other = papers.run("other/model")
    records = [
        papers.passing(),
        papers.failing(other, error="<script>alert(1)</script> {% raw %} | <b>bold</b>"),
    ]
    publish(
        [papers.save(tmp_path / "records", records)],
        results=folder / "results",
        table=folder / "COMPATIBILITY.md",
        catalog_view=load(ROOT / "models.yaml"),
        plan=None,
        now=papers.day(1),
    )
    return folder


def test_the_page_holds_the_table_and_its_links_lead_to_files(
    published: Path, tmp_path: Path
) -> None:
    """The Markdown page is there as HTML, and each script that it links to beside it."""
    site.build(published, tmp_path / "site")
    html = (tmp_path / "site" / "index.html").read_text()
    assert "<td>" in html and "Qwen/Qwen3-0.6B" in html
    links = re.findall(r'href="([^"#:]+)"', html)
    assert len(links) == 2, "each row links to its script"
    for link in links:
        assert (tmp_path / "site" / unquote(link)).is_file(), link
    for heading in re.findall(r'href="#([^"]+)"', html):
        assert f'id="{heading}"' in html, heading
    assert list((tmp_path / "site" / "results" / "current").rglob("*.parquet"))
    assert (tmp_path / "site" / ".nojekyll").exists()


def test_text_from_a_record_stays_text(published: Path, tmp_path: Path) -> None:
    """What a model's run printed is shown, and never becomes a part of the page."""
    site.build(published, tmp_path / "site")
    html = (tmp_path / "site" / "index.html").read_text()
    assert "<script" not in html and "<b>bold" not in html
    assert "alert(1)" in html


def test_nothing_published_is_an_error(tmp_path: Path) -> None:
    """No blank page where there are no results."""
    with pytest.raises(ResultsError, match="no page"):
        site.build(tmp_path, tmp_path / "site")
    assert not (tmp_path / "site").exists()
