"""Draw the roofline: operations per byte against operations per second, both logarithmic.

Two bounds, memory bandwidth (sloped) and arithmetic (level), with the bandwidth of caches dashed;
one mark for each workload and variant. `roofline_part` is for the page of a run; the SVG file
is self-contained, with colors for light and dark screens. Text from outside is in the
data only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final

from torchyard.bench.roofline.report import (
    HEADINGS,
    PeakKey,
    Roofline,
    RooflineRow,
    cells_of,
    notes_of_roofline,
    peak_sentence,
    roofline_of,
)
from torchyard.core.roofline import MachinePeak
from torchyard.core.units import format_bandwidth, format_flops
from torchyard.errors import MissingTool, NothingToDo
from torchyard.presentation.chart_layout import LETTER, Box, place_labels
from torchyard.presentation.html_page import asset
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.vega import charts_available, drawn_svg, inline_chart
from torchyard.presentation.vega_spec import Spec, category, layer, mark, scale
from torchyard.results.run_reader import Run

WIDTH, HEIGHT = 820, 460
_COLORS: Final = ("baseline", "candidate", "slower", "same", "wrong", "undecided")
"""Names of the page's colors, distinguishable by color-blind readers."""
_RATE_LABEL: Final = "replace(format(datum.value, '~s'), regexp('([kMGTP])$'), ' $1') + 'FLOP/s'"
_SHAPES: Final = ("circle", "triangle-up", "square", "diamond", "cross", "triangle-down")


def roofline_spec(key: PeakKey, peak: MachinePeak, roofline: Roofline) -> Spec:
    """Return the roofline chart of one peak with its rows."""
    rows = roofline.placed(key)
    x_ends, y_ends = _ends(rows, peak)
    variants = list(dict.fromkeys(row.variant for row in rows))
    points = [_point(row, variants) for row in rows]
    x = {
        "type": "quantitative",
        "title": "arithmetic intensity (FLOP/byte, logarithmic)",
        "scale": {"type": "log", "domain": list(x_ends), "nice": False, "clamp": True},
        "axis": {"format": "~g", "grid": True, "domain": False, "values": _decades(x_ends)},
    }
    y = {
        "type": "quantitative",
        "title": "FLOP/s (logarithmic)",
        "scale": {"type": "log", "domain": list(y_ends), "nice": False, "clamp": True},
        "axis": {
            "labelExpr": _RATE_LABEL,
            "grid": True,
            "domain": False,
            "values": _decades(y_ends),
        },
    }
    names = [one_line(name) for name in variants]
    colors = [f"var(--{color})" for color in _cycle(_COLORS, len(names))]
    legend = {"orient": "top", "title": None}
    plane = _Plane(x_ends, y_ends)
    slanted, level, taken = plane.bound_labels(peak)
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "layer": [
            _bound(_line(peak.cache_bytes_per_second, peak, x_ends, y_ends), x, y, dashed=True),
            _bound(_line(peak.bytes_per_second, peak, x_ends, y_ends), x, y, dashed=False),
            _texts(slanted, x, y, color="var(--muted)", angle=plane.angle),
            _texts(level, x, y, color="var(--muted)"),
            layer(
                mark("point", size=70, opacity=1, strokeWidth=1.4),
                values=points,
                x={**x, "field": "intensity"},
                y={**y, "field": "rate"},
                shape=category(
                    "variant", scale=scale(names, _cycle(_SHAPES, len(names))), legend=legend
                ),
                color=category("variant", scale=scale(names, colors), legend=legend),
            ),
            _texts(plane.names(points, taken), x, y, color="var(--text)"),
        ],
    }


def roofline_description(key: PeakKey, peak: MachinePeak, roofline: Roofline) -> str:
    """Describe the chart in words, for screen readers."""
    rows = roofline.placed(key)
    shares = [row.attainment.roof_share for row in rows if row.attainment]
    span = (
        f" from {min(shares):.0%} to {max(shares):.0%} of their roofline bounds" if shares else ""
    )
    noun = "mark" if len(rows) == 1 else "marks"
    return one_line(
        f"Roofline of {key.text}: {format_flops(peak.flops_per_second, per_second=True)} and "
        f"{format_bandwidth(peak.bytes_per_second)}; {len(rows)} {noun}{span}. "
        "All numbers are in the table."
    )


def _point(row: RooflineRow, variants: Sequence[str]) -> dict[str, Any]:
    attainment = row.attainment
    if attainment is None or not attainment.intensity or attainment.flops_per_second is None:
        raise AssertionError(row)  # `placed` excludes these
    return {
        "intensity": attainment.intensity,
        "rate": attainment.flops_per_second,
        "variant": one_line(row.variant),
        "name": one_line(row.name),
        "rank": variants.index(row.variant),
    }


def _ends(
    rows: Sequence[RooflineRow], peak: MachinePeak
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ranges of the axes: all marks, the ridge, and part of both bounds."""
    attainments = [row.attainment for row in rows if row.attainment]
    across = [one.intensity for one in attainments if one.intensity] + [peak.ridge]
    low, high = min(across) / 2, max(across) * 3
    rates = [one.flops_per_second for one in attainments if one.flops_per_second]
    bottom = min([*rates, low * peak.bytes_per_second]) / 1.6
    return (low, high), (bottom, max([peak.flops_per_second, *rates]) * 2)


def _decades(ends: tuple[float, float]) -> list[float]:
    first, last = math.floor(math.log10(ends[0])), math.ceil(math.log10(ends[1]))
    steps = (1, 3) if last - first <= 3 else (1,)  # noqa: PLR2004 - few decades leave room
    values = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return [value for value in values if ends[0] <= value <= ends[1]]


def _line(
    rate: float | None, peak: MachinePeak, x_ends: tuple[float, float], y_ends: tuple[float, float]
) -> list[dict[str, float]]:
    """Return the bound: from the left or bottom edge to the ridge, then level to the right edge."""
    if rate is None:
        return []
    start = max(x_ends[0], y_ends[0] / rate)
    ridge = peak.flops_per_second / rate
    return [
        {"x": start, "y": start * rate},
        {"x": ridge, "y": peak.flops_per_second},
        {"x": x_ends[1], "y": peak.flops_per_second},
    ]


def _bound(line: list[dict[str, float]], x: Spec, y: Spec, *, dashed: bool) -> Spec:
    style = mark("line", color="var(--text)", strokeWidth=2)
    if dashed:
        style = mark("line", color="var(--muted)", strokeWidth=1.5, strokeDash=[6, 4])
    return layer(style, values=line, x={**x, "field": "x"}, y={**y, "field": "y"})


def _texts(values: list[Spec], x: Spec, y: Spec, *, color: str, angle: float = 0.0) -> Spec:
    return layer(
        mark("text", align="left", baseline="middle", fontSize=11, color=color, angle=angle),
        values=values,
        x={**x, "field": "x"},
        y={**y, "field": "y"},
        text=category("text"),
    )


class _Plane:
    """Conversion between values and pixels of the chart."""

    def __init__(self, x_ends: tuple[float, float], y_ends: tuple[float, float]) -> None:
        self._x = [math.log(end) for end in x_ends]
        self._y = [math.log(end) for end in y_ends]

    @property
    def angle(self) -> float:
        """Angle of the memory bound in degrees as in Vega: rising is negative."""
        rise = HEIGHT / (self._y[1] - self._y[0])
        run = WIDTH / (self._x[1] - self._x[0])
        return -math.degrees(math.atan2(rise, run))

    def pixel(self, x: float, y: float) -> tuple[float, float]:
        """Return the pixel of a value, from the top left."""
        across = (math.log(x) - self._x[0]) / (self._x[1] - self._x[0])
        up = (math.log(y) - self._y[0]) / (self._y[1] - self._y[0])
        return across * WIDTH, (1 - up) * HEIGHT

    def value(self, x: float, y: float) -> dict[str, float]:
        """Return the value at a pixel."""
        across = self._x[0] + x / WIDTH * (self._x[1] - self._x[0])
        up = self._y[0] + (1 - y / HEIGHT) * (self._y[1] - self._y[0])
        return {"x": math.exp(across), "y": math.exp(up)}

    def names(self, points: list[dict[str, Any]], taken: Sequence[Box]) -> list[dict[str, Any]]:
        """Return the label of each workload, at its fastest variant, where it fits."""
        best: dict[str, dict[str, Any]] = {}
        for point in points:
            fastest = best.get(point["name"])
            if fastest is None or point["rate"] > fastest["rate"]:
                best[point["name"]] = point
        marks = [
            (
                *self.pixel(point["intensity"], point["rate"]),
                point["name"] if best[point["name"]] is point else "",
            )
            for point in points
        ]
        # Marks near the edges have the least space, so their labels are placed first.
        marks.sort(key=lambda mark: -abs(mark[0] - WIDTH / 2))
        labels = place_labels(marks, width=WIDTH, height=HEIGHT, taken=taken)
        return [{**self.value(label.x, label.y), "text": label.text} for label in labels]

    def bound_labels(
        self, peak: MachinePeak
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[Box]]:
        """Return the labels of the sloped and the level bounds, and the boxes they occupy."""
        taken: list[Box] = []
        slanted: list[dict[str, Any]] = []
        slope = math.radians(-self.angle)
        roofs = [("memory", peak.bytes_per_second), ("cache", peak.cache_bytes_per_second)]
        for name, rate in roofs:
            if rate is None:
                continue
            text = f"{name} {format_bandwidth(rate)}"
            start = max(math.exp(self._x[0]), math.exp(self._y[0]) / rate)
            left, bottom = self.pixel(start, start * rate)
            # Above the line, near its lower end.
            x = left + 14 * math.cos(slope) - 9 * math.sin(slope)
            y = bottom - 14 * math.sin(slope) - 9 * math.cos(slope)
            slanted.append({**self.value(x, y), "text": text})
            for step in range(0, int(LETTER * len(text)), 10):
                across, up = x + step * math.cos(slope), y - step * math.sin(slope)
                taken.append(Box(left=across - 7, top=up - 7, right=across + 12, bottom=up + 7))
        text = f"arithmetic {format_flops(peak.flops_per_second, per_second=True)}"
        length = LETTER * len(text)
        _, bound_y = self.pixel(peak.ridge, peak.flops_per_second)
        x, y = WIDTH - length - 4, bound_y - 10
        taken.append(Box(left=x, top=y - 8, right=WIDTH, bottom=y + 8))
        return slanted, [{**self.value(x, y), "text": text}], taken


def _cycle(values: Sequence[str], count: int) -> list[str]:
    return [values[place % len(values)] for place in range(count)]


def roofline_part(run: Run) -> dict[str, Any] | None:
    """Return the variables of `templates/roofline.html.j2`; None if no row has a peak to compare with."""
    roofline = roofline_of(run)
    if not any(roofline.placed(key) for key, _ in roofline.peaks):
        return None
    pictures = [
        inline_chart(
            roofline_spec(key, peak, roofline),
            title=key.text if len(roofline.peaks) > 1 else "",
            description=roofline_description(key, peak, roofline),
        )
        for key, peak in roofline.peaks
        if charts_available() and roofline.placed(key)
    ]
    return {
        "pictures": pictures,
        "sentences": [
            *(peak_sentence(key, peak) for key, peak in roofline.peaks),
            *notes_of_roofline(roofline),
        ],
        "headings": [heading[:1].upper() + heading[1:] for heading in HEADINGS],
        "rows": [cells_of(row) for row in roofline.rows],
    }


_LIGHT: Final = re.compile(r"^:root\s*\{([^}]*)\}", re.MULTILINE)
_DARK: Final = re.compile(r'^:root\[data-theme="dark"\]\s*\{([^}]*)\}', re.MULTILINE)
_VARIABLE: Final = re.compile(r"(--[a-z]+):\s*(#[0-9a-f]{3,6})")


def to_roofline_svg(run: Run) -> str:
    """Return the chart of the first peak that has rows; raise NothingToDo if there is none."""
    if not charts_available():
        raise MissingTool(
            "drawing a chart needs vl-convert-python, which is not installed",
            hint="install it, or use --format roofline for the table",
        )
    roofline = roofline_of(run)
    for key, peak in roofline.peaks:
        if roofline.placed(key):
            svg = drawn_svg(
                roofline_spec(key, peak, roofline),
                description=roofline_description(key, peak, roofline),
            )
            return with_theme_colors(svg)
    notes = notes_of_roofline(roofline)
    raise NothingToDo(
        "this run has no roofline chart",
        why=notes[0] if notes else "none of its workloads states both operations and bytes",
        hint="`torchyard report --format roofline` shows the rates",
    )


def with_theme_colors(svg: str) -> str:
    """Embed the page's colors for light and dark color schemes into the SVG."""
    page = asset("report.css")
    style = (
        f"svg{{background:var(--page);font-family:sans-serif;{_theme_colors(_LIGHT, page)}}}"
        f"@media(prefers-color-scheme:dark){{svg{{{_theme_colors(_DARK, page)}}}}}"
    )
    head, tag_end, rest = svg.partition(">")
    if 'xmlns="http://www.w3.org/2000/svg"' not in head:
        head = head.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    return f"{head}{tag_end}<style>{style}</style>{rest}\n"


def _theme_colors(theme: re.Pattern[str], page: str) -> str:
    match = theme.search(page)
    if match is None:
        raise AssertionError(theme.pattern)
    colors = dict(_VARIABLE.findall(match[1]))
    return "".join(f"{name}:{value};" for name, value in sorted(colors.items()))
