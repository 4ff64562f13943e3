"""The points of a measurement as one SVG picture, written without a plotting library.

A line a point and three panels: first token, later token, tokens per second. Percentiles differ in
shape, not only in place; what is drawn stands in words in the picture's description too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor, log10
from xml.sax.saxutils import escape

from pipeline.measure.figures import Spread
from pipeline.measure.points import Point, Standing

_LABEL, _PLOT, _VALUE, _GAP = 190, 150, 74, 16
"""Widths in pixels: a line's name, a panel's drawing, the number behind it, the space between."""
_ROW, _HEAD, _FOOT = 30, 76, 66
"""Heights in pixels."""
_PANELS = 3

_STYLE = """
svg { font: 13px system-ui, sans-serif; }
.paper { fill: #ffffff; } .ink { fill: #1b1f24; } .soft { fill: #57606a; }
.rule { stroke: #8c959f; stroke-width: 1; } .range { stroke: #0b57a4; stroke-width: 3; }
.mark { fill: #0b57a4; stroke: #0b57a4; stroke-width: 2; }
.doubt .mark { fill: #ffffff; } .doubt .range { stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) {
.paper { fill: #12161c; } .ink { fill: #e6edf3; } .soft { fill: #9da7b3; }
.rule { stroke: #6e7781; } .range { stroke: #6cb6ff; }
.mark { fill: #6cb6ff; stroke: #6cb6ff; } .doubt .mark { fill: #12161c; }
}
""".strip()


def svg(points: Sequence[Point], title: str) -> str:
    """The picture of the points that were measured. title: what they are of."""
    drawn = [point for point in points if point.first_token is not None]
    width = _LABEL + _PANELS * (_PLOT + _VALUE) + (_PANELS - 1) * _GAP + 16
    height = _HEAD + _ROW * max(1, len(drawn)) + _FOOT
    panels = (
        _Panel("first token, ms", lambda point: _milliseconds(point.first_token)),
        _Panel("later token, ms", lambda point: _milliseconds(point.token)),
        _Panel("tokens per second", lambda point: _rate(point)),
    )
    body = [f'<text class="ink" x="8" y="24" font-weight="600">{_text(title, 110)}</text>']
    doubt = any(point.standing is not Standing.VALID for point in drawn)
    hollow = "; hollow marks and dashed lines: points that do not count" if doubt else ""
    body.append(f'<text class="soft" x="8" y="44">a measurement, not a result{hollow}</text>')
    for place, panel in enumerate(panels):
        left = _LABEL + place * (_PLOT + _VALUE + _GAP)
        body += panel.draw(left, drawn)
    for number, point in enumerate(drawn):
        y = _HEAD + _ROW * number + _ROW // 2
        body.append(f'<text class="ink" x="8" y="{y + 4}">{_text(_name(point), 34)}</text>')
    body += _legend(height - 16)
    if not drawn:
        body.append(f'<text class="ink" x="8" y="{_HEAD + 20}">nothing was measured</text>')
    told = "; ".join(_words(point) for point in drawn) or "nothing was measured"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-labelledby="title description">',
        f'<title id="title">{_text(title, 500)}</title>',
        f'<desc id="description">{_text(told, 20_000)}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


class _Panel:
    """One figure of every point, on a scale from zero.

    values: of a point, one or three numbers in rising order (p50, p90, p99); () = none.
    """

    def __init__(self, name: str, values: Callable[[Point], tuple[float, ...]]) -> None:
        self.name = name
        self.values = values

    def draw(self, left: int, points: Sequence[Point]) -> list[str]:
        most = scale(max((value for point in points for value in self.values(point)), default=0))
        foot = _HEAD + _ROW * len(points)
        parts = [f'<text class="ink" x="{left}" y="{_HEAD - 10}">{_text(self.name, 40)}</text>']
        for share in (0.0, 0.5, 1.0):
            x = left + share * _PLOT
            parts.append(
                f'<line class="rule" x1="{x:g}" y1="{_HEAD}" x2="{x:g}" y2="{foot}" '
                f'stroke-opacity="{1 if share == 0 else 0.35}"/>'
            )
            parts.append(
                f'<text class="soft" x="{x:g}" y="{foot + 16}" text-anchor="middle" '
                f'font-size="11">{most * share:g}</text>'
            )
        for number, point in enumerate(points):
            y = _HEAD + _ROW * number + _ROW // 2
            doubt = "" if point.standing is Standing.VALID else ' class="doubt"'
            parts.append(f"<g{doubt}>")
            values = self.values(point)
            at = [left + value / most * _PLOT for value in values]
            if len(at) == 1:
                parts.append(
                    f'<rect class="mark" x="{left}" y="{y - 6}" width="{at[0] - left:.1f}" '
                    'height="12"/>'
                )
            elif at:
                parts.append(
                    f'<line class="range" x1="{at[0]:.1f}" y1="{y}" x2="{at[2]:.1f}" y2="{y}"/>'
                )
                parts += [_circle(at[0], y), _bar(at[1], y), _diamond(at[2], y)]
            told = f"{values[0]:.3g}" if values and values[0] < 100 else ""
            told = told or (f"{values[0]:.0f}" if values else "-")
            parts.append(
                f'<text class="ink" x="{left + _PLOT + _VALUE - 6}" y="{y + 4}" '
                f'text-anchor="end">{told}</text></g>'
            )
        return parts


def scale(most: float) -> float:
    """The end of an axis: the smallest of 1, 2, 5, 10 times a power of ten that holds `most`."""
    if most <= 0:
        return 1.0
    power = 10.0 ** floor(log10(most))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= most * (1 - 1e-12))


def _circle(x: float, y: float) -> str:
    return f'<circle class="mark" cx="{x:.1f}" cy="{y}" r="5"/>'


def _bar(x: float, y: float) -> str:
    return f'<line class="range" x1="{x:.1f}" y1="{y - 7}" x2="{x:.1f}" y2="{y + 7}"/>'


def _diamond(x: float, y: float) -> str:
    return f'<path class="mark" d="M{x - 5:.1f} {y}l5 -5l5 5l-5 5z"/>'


def _legend(y: int) -> list[str]:
    def word(x: int, text: str) -> str:
        return f'<text class="soft" x="{x}" y="{y}">{text}</text>'

    return [
        _circle(14, y - 4),
        word(26, "p50, the number at the right"),
        _bar(232, y - 4),
        word(242, "p90"),
        _diamond(292, y - 4),
        word(304, "p99 (few samples: the largest one; see the tables)"),
    ]


def _milliseconds(spread: Spread | None) -> tuple[float, ...]:
    return () if spread is None else (1000 * spread.p50, 1000 * spread.p90, 1000 * spread.p99)


def _rate(point: Point) -> tuple[float, ...]:
    return () if point.tokens_per_s is None else (point.tokens_per_s,)


def _name(point: Point) -> str:
    doubt = "" if point.standing is Standing.VALID else f" ({point.standing.value})"
    return f"prompt {point.prompt_tokens}, batch {point.batch}{doubt}"


def _words(point: Point) -> str:
    """One point as a sentence."""
    parts = [_name(point)]
    for name, spread in (("first token", point.first_token), ("later token", point.token)):
        if spread is not None:
            p50, p90, p99 = _milliseconds(spread)
            parts.append(f"{name} p50 {p50:.1f} ms, p90 {p90:.1f} ms, p99 {p99:.1f} ms")
    if point.tokens_per_s is not None:
        parts.append(f"{point.tokens_per_s:.1f} tokens per second")
    return ", ".join(parts)


def _text(value: str, length: int) -> str:
    """`value` for a text node, cut to `length` characters; what XML cannot hold is left out."""
    clean = "".join(char for char in value if char.isprintable())
    return escape(clean if len(clean) <= length else f"{clean[: length - 3]}...")
