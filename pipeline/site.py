"""The site: what was published, as a folder of pages that any web server can serve.

For now one page, the Markdown page as HTML, with the Parquet files and scripts beside it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pipeline.errors import ResultsError
from pipeline.script import environment

_DATA = ("current", "scripts")
"""What of results/ is beside the page: what it links to, and the rows that it was made from."""


def build(published: Path, out: Path) -> None:
    """Make the site in the folder `out` from `published`, which holds a page and results/.

    Other files in `out` stay. ResultsError when nothing was published.
    """
    from markdown_it import MarkdownIt
    from mdit_py_plugins.anchors import anchors_plugin

    page = published / "COMPATIBILITY.md"
    if not page.is_file():
        raise ResultsError(
            "there is no page to make a site of",
            where=str(page),
            remedy="qualify publish makes it from records",
        )
    # Folds are HTML in the page; text from outside was escaped when the page was made.
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table").use(anchors_plugin)
    body = markdown.render(page.read_text(encoding="utf-8"))
    out.mkdir(parents=True, exist_ok=True)
    html = environment().get_template("page.html.jinja").render(body=body)
    (out / "index.html").write_text(html, encoding="utf-8")
    # GitHub would run the folder through Jekyll, for which braces in a text are commands.
    (out / ".nojekyll").touch()
    for name in _DATA:
        if (published / "results" / name).is_dir():
            shutil.copytree(
                published / "results" / name, out / "results" / name, dirs_exist_ok=True
            )
