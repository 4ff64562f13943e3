"""The site: what was published, as a folder of pages that any web server can serve.

    index.html, compare.html, models.html, 404.html, style.css, *.js
    data/index.json, data/figures.json     the rows as columns, for the pages that scripts draw
    models/<owner>--<name>/                index.html, badge.svg, result.json
    results/                               what was published, with files.json that lists it

Every link is relative, so that it works from any folder. The same input gives the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipeline import copies, phrases, stack_names, wishes
from pipeline.catalog import Catalog, load
from pipeline.outside import OutsideRow
from pipeline.readings import reading
from pipeline.script import template_folder
from pipeline.site import endpoints, files, index, pages
from pipeline.site.gather import Facts, Model, gather
from pipeline.site.model import view

__all__ = ["Built", "build", "build_from"]


@dataclass(frozen=True)
class Built:
    """What was built. outside: rows of others that are shown; left_out: those of other models."""

    models: int
    rows: int
    stacks: int
    outside: int = 0
    left_out: int = 0


def build(published: Path, out: Path) -> Built:
    """Make the site in the folder `out` of a folder that holds results/ and, maybe, models.yaml."""
    listed = published / "models.yaml"
    catalog = load(listed) if listed.is_file() else None
    return build_from(published / "results", catalog, out)


def build_from(
    results: Path, catalog: Catalog | None, out: Path, outside: Iterable[OutsideRow] = ()
) -> Built:
    """Make the site of `results` in the folder `out`, which an earlier build may have made.

    catalog: the list; None = what results/models.json says of it. outside: what others published,
    shown beside the results of the same models.

    ResultsError where there are no results; UsageError when `out` holds what is not a site. After
    any error the old site is what it was.
    """
    said = tuple(outside)
    files.refuse_foreign(out)
    facts = gather(results, catalog, said)
    with files.replacing(out) as site:
        _write(site, facts, results, catalog)
    shown = sum(len(model.outside) for model in facts.models)
    return Built(len(facts.models), len(facts.rows), len(facts.stacks), shown, len(said) - shown)


def _write(site: Path, facts: Facts, results: Path, catalog: Catalog | None) -> None:
    write = files.writer(site)
    files.copy_assets(template_folder() / "site", site)
    files.copy_results(results, site)
    if catalog:
        told = wishes.dump(wishes.of(catalog), facts.max_age_days)
        write(f"results/{wishes.FILE}", told)
    write(f"results/{copies.INDEX}", copies.listing(site / "results"))
    write("data/index.json", index.index(facts))
    write("data/figures.json", index.figures(facts))
    for model in facts.models:
        folder = f"models/{model.slug}"
        page = pages.render("model", root="../../", generated=facts.generated, **view(facts, model))
        write(f"{folder}/index.html", page)
        write(f"{folder}/badge.svg", endpoints.badge(facts, model))
        write(f"{folder}/result.json", endpoints.result(facts, model))
    for name in ("index", "compare"):
        write(f"{name}.html", _front(name, facts))
    plain = pages.render(
        "models",
        root="",
        generated=facts.generated,
        models=[_short(facts, model) for model in facts.models],
    )
    write("models.html", plain)
    write("404.html", pages.render("404", root="", generated=facts.generated))
    # GitHub would run the folder through Jekyll, which leaves out what begins with an underscore.
    write(".nojekyll", b"")


def _front(name: str, facts: Facts) -> str:
    """A page that a script draws from data/index.json; here only what stands there without it."""
    newest = facts.stacks[0].key
    counts = Counter(str(facts.reading(model, newest)) for model in facts.models)
    return pages.render(
        name,
        root="",
        generated=facts.generated,
        counts=counts,
        tasks=sorted({model.task for model in facts.models}),
        models=len(facts.models),
        stacks=[stack.label for stack in facts.stacks],
        max_age_days=facts.max_age_days,
    )


def _short(facts: Facts, model: Model) -> dict[str, object]:
    """A line of the plain list."""
    row = facts.head(model)
    return {
        "id": model.id,
        "slug": model.slug,
        "task": model.task,
        "reading": str(reading(row, model.wish)),
        "stale": row is not None and facts.stale(row, model.wish),
        "tested": phrases.iso(row["tested_at"])[:10] if row else None,
        "stack": stack_names.label(row) if row else None,
    }
