"""What a model's page says; templates/site/model.html.jinja lays it out. Pure.

Texts of rows are cleaned of control characters here and escaped by the template.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from typing import Any

from pipeline import diagnosis, phrases
from pipeline.markdown import url
from pipeline.outside import OutsideRow
from pipeline.readings import Reading, excluded_as, reading
from pipeline.rows import clean
from pipeline.site import commands
from pipeline.site.gather import Facts, Model, Rank, Stack
from pipeline.site.index import outside_stack
from pipeline.words import Failure, Target, cores

Row = Mapping[str, Any]
View = dict[str, Any]

_TEXT = 20_000
"""Characters shown of one generated text or error; whole ones are in the Parquet files."""
_RELATIVES = 12
"""Models of the same architecture that are named on a stack."""
_HUB = "https://huggingface.co/"


def view(facts: Facts, model: Model) -> View:
    """The values that the template lays out."""
    head = facts.head(model)
    return {
        "model": model,
        "hub": None if model.id in facts.local else f"{_HUB}{model.id}",
        "reading": str(reading(head, model.wish)),
        "meaning": reading(head, model.wish).meaning,
        "head": _stack(facts, head) if head else None,
        "stale": head is not None and facts.stale(head, model.wish),
        "wish": _wish(model),
        "ranks": [_rank(one) for one in model.ranks],
        "lines": [_line(facts, model, stack) for stack in facts.stacks],
        "sections": [_section(facts, model, stack) for stack in facts.stacks if _has(model, stack)],
        "relatives": list(_relatives(facts, model)),
        "outside": [_outside(one) for one in model.outside],
        "max_age_days": facts.max_age_days,
    }


def _has(model: Model, stack: Stack) -> bool:
    return stack.key in model.rows or stack.key in model.history


def _stack(facts: Facts, row: Row) -> Stack:
    key = str(row["run_id"]).partition("@")[2]
    return next(stack for stack in facts.stacks if stack.key == key)


def _wish(model: Model) -> View:
    """What the list says, in words."""
    wish = model.wish
    if wish is None:
        told = "It is not on the list of this campaign."
    elif wish.excluded:
        told = f"Excluded from this campaign: {excluded_as(wish)}."
    else:
        told = "It is on the list of this campaign."
    return {
        "told": told,
        "note": clean(wish.note) if wish and wish.note else None,
        "issue": web(wish.issue) if wish else None,
    }


def _rank(rank: Rank) -> View:
    row, snapshot = rank.row, rank.snapshot
    known = [
        phrases.counted(row.downloads, "download") + " in 30 days" if row.downloads else "",
        phrases.counted(row.likes, "like") if row.likes else "",
    ]
    return {
        "rank": row.rank,
        "ranking": str(snapshot.ranking),
        "task": str(snapshot.task),
        "taken": f"{snapshot.taken_at.astimezone(UTC):%Y-%m-%d}",
        "known": ", ".join(filter(None, known)),
    }


def _line(facts: Facts, model: Model, stack: Stack) -> View:
    """The model on one stack in short; UNTESTED and EXCLUDED ones have a line, too."""
    row = model.rows.get(stack.key)
    return {
        "stack": stack,
        "anchor": anchor(stack) if _has(model, stack) else None,
        "reading": str(facts.reading(model, stack.key)),
        "stale": row is not None and facts.stale(row, model.wish),
        "tested": phrases.iso(row["tested_at"]) if row else None,
        "cores": _cores(row) if row else "-",
        "time": phrases.duration(row["wall_s"]) if row else "-",
        "why": str(row["failure"] or "") if row else "",
        "run": web(row["run_url"]) if row else None,
    }


def anchor(stack: Stack) -> str:
    """An id of the page's, of characters that need no escaping in an address."""
    return re.sub(r"[^0-9A-Za-z.-]+", "_", stack.key)


def _section(facts: Facts, model: Model, stack: Stack) -> View:
    row = model.rows.get(stack.key)
    lines = model.history.get(stack.key) or ([row] if row else [])
    made: View = {
        "stack": stack,
        "anchor": anchor(stack),
        "reading": str(facts.reading(model, stack.key)),
        "history": [_past(model, facts, line, row) for line in lines],
        "row": None,
    }
    return made if row is None else made | {"row": _details(facts, model, row)}


def _details(facts: Facts, model: Model, row: Row) -> View:
    """Everything that the current row says."""
    run_id = str(row["run_id"])
    script = f"results/scripts/{url(run_id)}.py" if run_id in facts.scripts else None
    return {
        "result": str(row["result"]),
        "meaning": Reading(row["result"]).meaning,
        "stale": facts.stale(row, model.wish),
        "on_device": row["target"] == Target.NEURON,
        "tested": phrases.iso(row["tested_at"]),
        "run": web(row["run_url"]),
        "run_id": run_id,
        "facts": _named(_facts(facts, model, row)),
        "versions": _named(_versions(row)),
        "script": script,
        "install": commands.install(row),
        "beside": commands.beside_image(row),
        "extra": [clean(one) for one in row["extra_packages"] or ()],
        "container": commands.container(row, facts.runners.get(row["runner"] or "")),
        "graphs": commands.graphs(row),
        "compiler": run_id.split("@")[2],
        "texts": list(_texts(row)),
        "check": _named(_check(row)),
        "findings": _findings(row),
        "timings": _timings(row),
        "memory": list(_memory(row)),
        "error": _error(row),
        "tries": [_try(one) for one in row["tries"] or ()],
    }


def _named(pairs: Iterable[tuple[str, object]]) -> list[tuple[str, str]]:
    """Those that are known, as text."""
    return [(name, clean(str(value))) for name, value in pairs if value not in (None, "")]


def _facts(facts: Facts, model: Model, row: Row) -> list[tuple[str, object]]:
    size = row["checkpoint_bytes"]
    return [
        ("Cores", _cores(row)),
        ("Number format", row["dtype"]),
        ("Parameters", None if row["parameters"] is None else f"{row['parameters']:,}"),
        ("Checkpoint", None if size is None else f"{size / 2**30:.3g} GiB"),
        ("Revision", row["revision"] or "not pinned"),
        ("Machine", row["instance_type"]),
        ("Runner class", row["runner"]),
        ("Placement and compilation", row["notes"]),
        ("Attempt", row["attempts"]),
        ("Cost of all tries", None if row["cost_usd"] is None else f"{row['cost_usd']:.2f} USD"),
        ("Commit of this project", row["pipeline_commit"]),
    ]


def _versions(row: Row) -> list[tuple[str, object]]:
    return [
        ("target", row["target"]),
        ("neuronx-cc", row["neuronx_cc"]),
        ("torch-neuronx", row["torch_neuronx"]),
        ("torch", row["torch"]),
        (str(row["library"]), row["library_version"]),
        ("accelerate", row["accelerate"]),
        ("nki", row["nki"]),
        ("Neuron runtime", row["runtime"]),
        ("Neuron driver", row["neuron_driver"]),
        ("Python", row["python"]),
        ("image", row["image"]),
    ]


def _texts(row: Row) -> Iterable[tuple[str, str]]:
    for prompt, text in zip(row["prompts"] or (), row["generated_text"] or (), strict=False):
        yield clean(prompt)[:_TEXT], clean(text)[:_TEXT]


def _check(row: Row) -> list[tuple[str, object]]:
    score = row["judge_score"]
    return [
        ("Rests on", row["check"]),
        ("Tokens against the CPU (cpu_match)", row["cpu_match"]),
        ("Largest gap to the CPU's first choice", _nats(row["max_gap"])),
        ("Logits off by", _nats(row["departure"])),
        ("The model's own rounding noise", _nats(row["noise"])),
        ("Text (english)", row["english"]),
        ("Judge", row["judge"]),
        ("Judge's score", None if score is None else f"{score:.4g}"),
        ("Graphs captured", row["graphs"]),
        ("Graphs the backend made", row["backend_graphs"]),
        ("Compiled graphs came", row["cache"]),
        ("Operators on the host", _host(row)),
    ]


def _nats(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g} nats"


def _host(row: Row) -> str | None:
    told = phrases.host_operators(row)
    return None if told == "-" else ", ".join(row["cpu_fallback_ops"] or ()) or told


def _findings(row: Row) -> View:
    """What the log says against the run; None = nobody read it."""
    found = row["findings"]
    return {"read": found is not None, "lines": [clean(one)[:_TEXT] for one in found or ()]}


def _timings(row: Row) -> list[tuple[str, str, str]]:
    """(what, how long, in which words to read it); only what is known."""
    per_s = row["tokens_per_s"]
    kept = {"restored": "nothing was compiled", "partial": "some graphs came from the cache"}
    first = kept.get(row["cache"] or "", "compilation included")
    told = [
        ("Download", seconds(row["download_s"]), "the checkpoint"),
        ("Load", seconds(row["load_s"]), "from_pretrained"),
        ("First call", seconds(row["compile_s"]), f"{first}: not a speed"),
        ("Steady state", seconds(row["generate_s"]), "the second, identical call"),
        ("Tokens a second", None if per_s is None else f"{per_s:.3g}", "one prompt, steady state"),
        ("Whole run", seconds(row["wall_s"]), "the last try, compilation included"),
    ]
    return [(what, value, words) for what, value, words in told if value is not None]


def seconds(value: float | None) -> str | None:
    """ "0.52 s", "45 s", "6 min (361 s)"."""
    if value is None:
        return None
    if value < 60:
        return f"{value:.3g} s"
    return f"{phrases.duration(round(value))} ({value:,.0f} s)"


def _memory(row: Row) -> Iterable[View]:
    """Each count under its own name; `of` what a core has, where it counts a core."""
    capacity = row["hbm_capacity_gb"]
    source = f", by {row['runtime_peak_source']}" if row["runtime_peak_source"] else ""
    for name, value, of in (
        ("Tensors, by the allocator's count", row["hbm_peak_gb"], capacity),
        (f"Code and buffers too, by the runtime's count{source}", row["runtime_peak_gb"], capacity),
        ("What the plan expected", row["estimated_gb"], capacity),
        ("The machine's own memory", row["host_peak_gb"], None),
    ):
        if value is not None:
            yield {"name": clean(name), "gib": value, "of": of, "core": of is not None}


def _error(row: Row) -> View | None:
    """Why it did not pass, and what is known of such a cause; None of a PASS."""
    if not row["failure"] and not row["error"]:
        return None
    known = diagnosis.known(row["signature"])
    failure = row["failure"]
    return {
        "failure": failure,
        "class_means": Failure(failure).meaning if failure in set(Failure) else None,
        "stage": row["stage"],
        "signature": row["signature"],
        "text": clean(row["error"] or "")[:_TEXT],
        "means": known.meaning if known else None,
        "remedy": known.remedy if known else None,
        "source": web(known.source) if known else None,
    }


def _try(one: Row) -> View:
    return {
        "reason": clean(str(one["reason"] or "-")).replace("_", " "),
        "cores": _cores({**one, "neuron_cores": one["cores"]}),
        "result": str(one["result"]),
        "stage": str(one["stage"] or "-"),
        "failure": str(one["failure"] or "-"),
        "error": clean(one["error"] or "")[:500],
        "time": seconds(one["wall_s"]) or "-",
        "cache": str(one["cache"] or "-"),
    }


def _past(model: Model, facts: Facts, line: Row, current: Row | None) -> View:
    """One row of the history."""
    revision = line["revision"]
    return {
        "current": _same(line, current),
        "tested": phrases.iso(line["tested_at"]),
        "result": str(line["result"]),
        "stale": facts.stale(line, model.wish),
        "failure": str(line["failure"] or ""),
        "stage": str(line["stage"] or ""),
        "cause": clean(phrases.cause(line))[:300],
        "cores": _cores(line),
        "whole": seconds(line["wall_s"]) or "-",
        "first": seconds(line["compile_s"]) or "-",
        "steady": seconds(line["generate_s"]) or "-",
        "memory": phrases.memory(line),
        "check": clean(phrases.check(line)) or "-",
        "revision": str(revision).rpartition(":")[2][:12] if revision else "-",
        "run": web(line["run_url"]),
    }


def _same(line: Row, current: Row | None) -> bool:
    """Whether a row of the history is the current one."""
    names = ("tested_at", "result", "stage", "run_url", "error")
    return current is not None and all(line[name] == current[name] for name in names)


def _relatives(facts: Facts, model: Model) -> Iterable[View]:
    """Evidence about others, on each stack that has some."""
    for stack in facts.stacks:
        found = facts.relatives(model, stack.key)
        if found.of:
            named: Sequence[str] = found.model_ids[:_RELATIVES]
            yield {
                "stack": stack,
                "told": str(found),
                "tested": stack.key in model.rows,
                "models": [(name, f"../{name.replace('/', '--')}/index.html") for name in named],
                "more": found.of - len(named),
            }


def _outside(row: OutsideRow) -> View:
    """A row of somebody else's, in their words."""
    return {
        "dataset": clean(row.dataset),
        "revision": clean(row.revision or "")[:12],
        "result": clean(row.result) or "-",
        "stack": clean(outside_stack(row)) or "-",
        "cores": str(row.cores or "-"),
        "runner": clean(row.runner or "") or "-",
        "tested": phrases.iso(row.tested_at)[:10] if row.tested_at else "-",
        "notes": clean(row.notes or ""),
        "error": clean(row.error or ""),
        "exclusion": clean(row.exclusion or ""),
    }


def _cores(row: Row) -> str:
    """ "1 core", "4 cores, tensor", "refused"."""
    count, split = row["neuron_cores"], row["parallelism"]
    if count is None:
        return "refused"
    return cores(count) + (f", {split}" if split not in (None, "none") else "")


def web(address: str | None) -> str | None:
    """An address of the web, None for any other text: it becomes a link's target."""
    found = address is not None and re.fullmatch(r"https?://[A-Za-z0-9][^\s\"<>\\]*", address)
    return address if found else None
