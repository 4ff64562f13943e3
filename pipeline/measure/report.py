"""A measurement for people and programs: terminal tables, JSON, a Markdown report with a chart.

Each of them says that it is not a result, and what may not be concluded from it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline import markdown as md
from pipeline.lines import columns, wrapped
from pipeline.measure import chart
from pipeline.measure.figures import HOW_COST, HOW_PERCENTILES, HOW_RATE, Spread
from pipeline.measure.measuring import WARM_UPS, Measurement
from pipeline.measure.points import Point, Standing
from pipeline.measure.sentences import (
    HOW_LATENCY,
    HOW_MEMORY,
    HOW_PROMPTS,
    NOT_A_RESULT,
    not_to_conclude,
    qualified,
    title,
)
from pipeline.phrases import moment
from pipeline.record import write_atomically
from pipeline.words import Target

JSON_NAME, REPORT_NAME, CHART_NAME = "measure.json", "report.md", "measure.svg"
VERSION = 1
GIB = 1024**3


def write(measurement: Measurement, folder: Path) -> tuple[Path, ...]:
    """Write JSON, chart and report into a folder; their paths."""
    files = {
        JSON_NAME: json.dumps(data(measurement), indent=1, ensure_ascii=False) + "\n",
        CHART_NAME: chart.svg(measurement.points, title(measurement)),
        REPORT_NAME: markdown(measurement),
    }
    for name, text in files.items():
        write_atomically(folder / name, text.encode())
    return tuple(folder / name for name in files)


# --- numbers as text ----------------------------------------------------------------------------


def _ms(spread: Spread | None) -> tuple[str, str, str]:
    """p50, p90, p99 in milliseconds; "*" where one is the largest sample for want of more."""
    if spread is None:
        return "-", "-", "-"
    return (
        f"{1000 * spread.p50:.1f}",
        f"{1000 * spread.p90:.1f}{'*' if spread.p90_is_maximum else ''}",
        f"{1000 * spread.p99:.1f}{'*' if spread.p99_is_maximum else ''}",
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _cost(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def _peak(point: Point) -> str:
    if point.peak_bytes is None:
        return "-"
    peak = max(point.peak_bytes) / GIB
    return f"{peak:.2f}" if peak >= 0.1 else f"{peak:.2g}"


_SHORT = ("prompt", "batch", "first p50", "p90", "p99", "n", "later p50", "p90", "p99", "n")
_LONG = (
    *("prompt tokens", "batch", "first p50", "first p90", "first p99", "first n"),
    *("later p50", "later p90", "later p99", "later n"),
)


def _latencies(points: Sequence[Point], head: Sequence[str]) -> list[tuple[str, ...]]:
    rows = [
        (
            str(point.prompt_tokens),
            str(point.batch),
            *_ms(point.first_token),
            str(point.first_token.samples if point.first_token else 0),
            *_ms(point.token),
            str(point.token.samples if point.token else 0),
            point.standing.value,
        )
        for point in points
    ]
    return [(*head, "standing"), *rows]


def _totals(points: Sequence[Point]) -> list[tuple[str, ...]]:
    head = (
        *("prompt", "batch", "tokens/s", "later tokens/s", "USD/1M tokens", "peak GiB"),
        *("graphs", "warm-up s"),
    )
    rows = [
        (
            str(point.prompt_tokens),
            str(point.batch),
            _number(point.tokens_per_s, ".1f"),
            _number(point.decode_tokens_per_s, ".1f"),
            _cost(point.usd_per_million),
            _peak(point),
            "-" if point.graphs is None else str(point.graphs),
            f"{sum(point.warm_up_s):.1f}" if point.warm_up_s else "-",
        )
        for point in points
    ]
    return [head, *rows]


def _remarks(points: Sequence[Point]) -> list[str]:
    """Why points do not stand, and what is to be known of those that do."""
    lines = []
    for point in points:
        what = f"prompt {point.prompt_tokens}, batch {point.batch}"
        lines += [f"{what}: {point.standing.value}: {reason}" for reason in point.reasons]
        lines += [f"{what}: {note}" for note in point.notes]
    return lines


def _marks(points: Sequence[Point]) -> str | None:
    spreads = [spread for point in points for spread in (point.first_token, point.token) if spread]
    if any(spread.p99_is_maximum for spread in spreads):
        return "* the largest sample: so few say no more (p99 needs 100 samples, p90 needs 10)"
    return None


def _no_cost(measurement: Measurement) -> str | None:
    if measurement.request.usd_per_hour is None:
        return "cost is not told: the list states no price and --usd-per-hour was not given"
    if measurement.asked.machine_cores is None:
        return "cost is not told: how many cores the machine has is not known"
    return None


def _fallbacks(measurement: Measurement) -> str | None:
    names = measurement.seen.cpu_fallback_ops if measurement.seen else None
    return f"operators that ran on the host: {', '.join(names)}" if names else None


# --- the three forms ----------------------------------------------------------------------------


def table(measurement: Measurement, width: int = 120) -> str:
    """What a terminal of so many columns shows; tables need 91 where no point was invalid."""
    points = measurement.points

    def told(*sentences: str | None, indent: str = "") -> list[str]:
        return [line for one in sentences if one for line in wrapped(one, width, indent)]

    lines = told(title(measurement), qualified(measurement), NOT_A_RESULT)
    lines += ["", "milliseconds to the first token, and for each later one (n: samples)"]
    lines += [*columns(_latencies(points, _SHORT)), "", *columns(_totals(points)), ""]
    lines += told(_marks(points), _no_cost(measurement), _fallbacks(measurement))
    lines += told(*_remarks(points))
    if measurement.error:
        lines += told(f"The script did not come to its end: {measurement.error}")
    lines += ["", "What may not be concluded:"]
    lines += told(*not_to_conclude(measurement), indent="  ")
    return "\n".join(lines)


def data(measurement: Measurement) -> dict[str, Any]:
    """The measurement in JSON types: seconds, bytes, tokens a second; null = not known."""
    asked, request, found = measurement.asked, measurement.request, measurement.qualification
    seen = measurement.seen
    calls = {(one.prompt_tokens, one.batch): one.calls for one in (seen.points if seen else ())}
    return {
        "what": NOT_A_RESULT,
        "version": VERSION,
        "measured_at": measurement.measured_at.isoformat(timespec="seconds"),
        "command": command(measurement),
        "model_id": asked.model_id,
        "revision": asked.revision,
        "dtype": asked.dtype,
        "stack": asked.stack.model_dump(mode="json"),
        "runner": asked.runner,
        "cores": found.placement.cores,
        "parallelism": found.placement.parallelism.value,
        "machine_cores": asked.machine_cores,
        "core_ids": list(measurement.core_ids),
        "qualification": {
            "qualified": found.reason is None,
            "reason": found.reason,
            "tested_at": found.tested_at,
            "run_url": found.run_url,
        },
        "asked": {
            "prompt_tokens": list(request.prompt_tokens),
            "new_tokens": request.new_tokens,
            "batches": list(request.batches),
            "repeats": request.repeats,
            "warm_ups": WARM_UPS,
            "usd_per_hour": request.usd_per_hour,
            "limit_s": request.limit_s,
        },
        "points": [
            _point(point)
            | {
                "calls": [
                    call.model_dump(mode="json")
                    for call in calls.get((point.prompt_tokens, point.batch), ())
                ]
            }
            for point in measurement.points
        ],
        "error": measurement.error,
        "findings": [finding.line for finding in measurement.findings],
        "cpu_fallback_ops": _listed(seen.cpu_fallback_ops if seen else None),
        "versions": seen.versions.model_dump(mode="json") if seen else None,
        "threads": seen.threads if seen else None,
        "download_s": seen.download_s if seen else None,
        "load_s": seen.load_s if seen else None,
        "wall_s": round(measurement.wall_s, 3),
        "host_peak_bytes": measurement.host_peak_bytes,
        "runtime_peak_bytes": _listed(measurement.runtime_peak_bytes),
        "runtime_peak_source": measurement.runtime_peak_source,
        "cache_keys": list(measurement.cache_keys),
        **measurement.provenance,
        "how": _how(measurement),
        "not_to_conclude": list(not_to_conclude(measurement)),
    }


def _listed(values: Sequence[Any] | None) -> list[Any] | None:
    return None if values is None else list(values)


def _point(point: Point) -> dict[str, Any]:
    told = asdict(point) | {"standing": point.standing.value}
    for name, spread in (("first_token", point.first_token), ("token", point.token)):
        if spread is not None:
            told[name] |= {
                "p90_is_maximum": spread.p90_is_maximum,
                "p99_is_maximum": spread.p99_is_maximum,
            }
    return told


def _how(measurement: Measurement) -> dict[str, str]:
    on_device = measurement.asked.stack.target is not Target.CPU
    return {
        "prompts": HOW_PROMPTS,
        "latency": HOW_LATENCY,
        "percentiles": HOW_PERCENTILES,
        "tokens_per_s": HOW_RATE,
        "cost": HOW_COST,
        "memory": HOW_MEMORY[on_device],
    }


def command(measurement: Measurement) -> str:
    """The command that measures the same again."""
    asked, request = measurement.asked, measurement.request
    words = ["qualify", "measure", asked.model_id, f"--stack={asked.stack.name}"]
    words.append(f"--prompt-tokens={','.join(map(str, request.prompt_tokens))}")
    words.append(f"--new-tokens={request.new_tokens}")
    words.append(f"--batch={','.join(map(str, request.batches))}")
    words.append(f"--repeats={request.repeats}")
    if request.usd_per_hour is not None:
        words.append(f"--usd-per-hour={request.usd_per_hour:g}")
    if measurement.qualification.reason is not None:
        words.append("--unqualified")
    return shlex.join(words)


def markdown(measurement: Measurement) -> str:
    """The report, with the chart beside it in the same folder."""
    points = measurement.points
    asked, seen = measurement.asked, measurement.seen
    shown = [point for point in points if point.standing is not Standing.NOT_MEASURED]
    blocks = [
        f"# Measured: {md.text(title(measurement))}",
        f"**{md.text(NOT_A_RESULT)}** {md.text(qualified(measurement), 1000)}",
        f"Measured {moment(measurement.measured_at)} with\n\n```sh\n{command(measurement)}\n```",
    ]
    if measurement.error:
        blocks.append(f"**The script did not come to its end:** {md.text(measurement.error, 2000)}")
    if shown:
        blocks.append(f"![Time and throughput of each point, as in the tables]({CHART_NAME})")
    blocks += [
        "Milliseconds to the first token and for each later one (n: samples):",
        _md_table(_latencies(points, _LONG)),
        _md_table(_totals(points)),
    ]
    remarks = [_marks(points), _no_cost(measurement), _fallbacks(measurement), *_remarks(points)]
    blocks.append("\n".join(f"- {md.text(line, 2000)}" for line in remarks if line))
    machine = [
        f"repeats: {measurement.request.repeats} measured calls a point after {WARM_UPS} "
        f"that only warm up; new tokens: {measurement.request.new_tokens}",
        f"revision: {asked.revision}; dtype: {asked.dtype}",
        f"cores: {measurement.qualification.placement.cores} of {asked.machine_cores or 'unknown'} "
        f"of a machine of class {asked.runner}",
    ]
    if seen:
        known = seen.versions.model_dump(exclude_none=True)
        machine.append("versions: " + ", ".join(f"{name} {text}" for name, text in known.items()))
        if seen.threads is not None:
            machine.append(f"threads of a process: {seen.threads}")
        if seen.load_s is not None:
            machine.append(f"loading took {seen.load_s:.1f} s")
    if measurement.host_peak_bytes is not None:
        peak = measurement.host_peak_bytes / GIB
        machine.append(f"host memory of the whole script at its peak: {peak:.2f} GiB")
    if measurement.runtime_peak_bytes is not None:
        peak = max(measurement.runtime_peak_bytes) / GIB
        machine.append(
            f"device memory of the fullest core by {measurement.runtime_peak_source}, code and "
            f"warm-up included: {peak:.2f} GiB"
        )
    standing = sorted({point.standing for point in points})
    blocks += [
        "## What may not be concluded",
        "\n".join(f"- {sentence}" for sentence in not_to_conclude(measurement)),
        "## How the figures came about",
        "\n".join(f"- {md.text(line, 2000)}" for line in machine),
        "\n".join(f"- {sentence}" for sentence in _how(measurement).values()),
        "\n".join(f"- *{one.value}*: {one.meaning}." for one in standing),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _md_table(cells: Sequence[Sequence[str]]) -> str:
    escaped = [[md.text(cell) for cell in line] for line in cells]
    return md.table(escaped[0], escaped[1:])
