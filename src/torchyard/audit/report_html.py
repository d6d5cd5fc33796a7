"""Format an audit as one self-contained HTML page: no script, no network, no other file.

Charts are computed here in units of their own (800 wide), drawn by `templates/audit_charts.html.j2`
and scaled by the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from types import SimpleNamespace
from typing import Final

from torchyard.audit.model import Audit, AuditChange
from torchyard.audit.report import (
    change_rows,
    number_rows,
    share_text,
    slower_text,
    source_text,
    verdict_sentence,
)
from torchyard.core.units import format_percent
from torchyard.presentation.chart_layout import round_step
from torchyard.presentation.html_page import render_page
from torchyard.presentation.safe_text import one_line

WIDTH: Final = 800
_BLOCKS_HEIGHT: Final = 260
_CURVE_HEIGHT: Final = 240
_TARGET_TICKS: Final = 5
_SHOWN_SHARE: Final = 0.98
"""The axis covers this share of the blocks; the others are drawn at the edge with a mark."""
_LEAST_REACH: Final = 0.01
_MOST_REACH: Final = 3.0
_MARGIN: Final = 1.15


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Linear map from values to positions; `low` is at `start`."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Return the position of a value, clamped to the axis."""
        share = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        return round(self.start + share * (self.end - self.start), 2)

    def beyond(self, value: float) -> bool:
        """Whether a value is outside the axis."""
        return not self.low <= value <= self.high

    def ticks(self) -> list[float]:
        """Return a few round values within the axis."""
        step = round_step((self.high - self.low) / _TARGET_TICKS)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def blocks_chart(audit: Audit) -> SimpleNamespace | None:
    """Return the chart of block times in the order they were measured; None if there are none.

    Launches are (left end, width), points (x, y, classes: side, dirty, beyond).
    """
    if not audit.series:
        return None
    middle = audit.time_ns or median(point.time_ns for point in audit.series)
    values = [point.time_ns / middle - 1.0 for point in audit.series]
    reach = _reach(values)
    last_s = max(1e-3, *(point.at_s for point in audit.series), audit.measured_s)
    x = Axis(low=0.0, high=last_s, start=64, end=WIDTH - 8)
    y = Axis(low=-min(reach, 1.0), high=reach, start=_BLOCKS_HEIGHT - 28, end=10)
    return SimpleNamespace(
        height=_BLOCKS_HEIGHT,
        launches=tuple(
            (x.place(one.began_s), round(x.place(one.ended_s) - x.place(one.began_s), 2))
            for one in audit.launches
        ),
        points=tuple(
            (
                x.place(point.at_s),
                y.place(value),
                f"side{point.side}"
                + (" dirty" if point.dirty else "")
                + (" beyond" if y.beyond(value) else ""),
            )
            for point, value in zip(audit.series, values, strict=True)
        ),
        y_ticks=tuple((y.place(tick), _percent_tick(tick)) for tick in y.ticks()),
        x_ticks=tuple((x.place(tick), f"{tick:g} s") for tick in x.ticks()),
    )


def launches_chart(audit: Audit) -> SimpleNamespace | None:
    """Return the chart of median and spread of launches; None if no launch has a clean pair.

    Rows are (x, left end, right end, y, text).
    """
    launches = [
        (number, launch.effect, launch.spread or 0.0)
        for number, launch in enumerate(audit.launches, start=1)
        if launch.effect is not None
    ]
    if not launches:
        return None
    ends = [end for _, effect, spread in launches for end in (effect - spread, effect + spread)]
    reach = _reach(ends)
    x = Axis(low=-reach, high=reach, start=24, end=WIDTH - 24)
    step = 14 if len(launches) <= 30 else max(3, 420 // len(launches))  # noqa: PLR2004
    rows = tuple(
        (
            x.place(effect),
            x.place(effect - spread),
            x.place(effect + spread),
            12.0 + place * step,
            f"launch {number}: {format_percent(effect, signed=True)}, pairs ±{format_percent(spread)}",
        )
        for place, (number, effect, spread) in enumerate(launches)
    )
    return SimpleNamespace(
        height=len(launches) * step + 40,
        zero=x.place(0.0),
        rows=rows,
        ticks=tuple((x.place(tick), _percent_tick(tick)) for tick in x.ticks()),
    )


def curve_chart(audit: Audit) -> SimpleNamespace | None:
    """Return the chart of resolvable differences; None if none is known."""
    curve = [
        (one.minutes, one.difference, one.interval)
        for one in audit.resolvable
        if one.difference is not None
    ]
    if not curve:
        return None
    highest = max(difference for _, difference, _ in curve)
    uppers = [interval.high for _, _, interval in curve if interval is not None]
    top = min(max([highest, *uppers]), 3.0 * highest)
    x = Axis(low=0.0, high=30.0, start=64, end=WIDTH - 12)
    y = Axis(low=0.0, high=top * 1.05, start=_CURVE_HEIGHT - 28, end=10)
    upper = [(m, i.high) for m, _, i in curve if i is not None]
    lower = [(m, i.low) for m, _, i in reversed(curve) if i is not None]
    return SimpleNamespace(
        height=_CURVE_HEIGHT,
        line=_path([(x.place(m), y.place(d)) for m, d, _ in curve]),
        band=_path([(x.place(m), y.place(value)) for m, value in (*upper, *lower)], closed=True),
        points=tuple(
            (x.place(m), y.place(d), f"{m:g} min: {format_percent(d)}")
            for m, d, _ in curve
            if m in (1, 5, 30)
        ),
        x_ticks=tuple((x.place(tick), f"{tick:g}") for tick in (1, 5, 10, 15, 20, 25, 30)),
        y_ticks=tuple((y.place(tick), _percent_tick(tick, signed=False)) for tick in y.ticks()),
    )


def _reach(values: list[float]) -> float:
    """Return how far the axis extends from zero on both sides."""
    sizes = sorted(abs(value) for value in values)
    covered = sizes[min(len(sizes) - 1, math.ceil(_SHOWN_SHARE * len(sizes)) - 1)]
    return min(_MOST_REACH, max(_LEAST_REACH, _MARGIN * covered))


def _path(points: list[tuple[float, float]], *, closed: bool = False) -> str:
    if not points:
        return ""
    text = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
    return text + " Z" if closed else text


def _percent_tick(value: float, *, signed: bool = True) -> str:
    number = round(value * 100, 6)
    return f"{number:+g}%" if signed and number else f"{number:g}%"


def audit_page(
    audit: Audit,
    *,
    changes: tuple[AuditChange, ...] = (),
    changes_title: str = "",
    differences: Sequence[str] = (),
) -> str:
    """Return the HTML page; with `changes`, also the comparison with another audit."""
    return render_page(
        *("audit.html.j2", "report.css", "audit.css"),
        audit=audit,
        verdict=verdict_sentence(audit),
        good=not audit.complaints,
        numbers=number_rows(audit),
        width=WIDTH,
        blocks=blocks_chart(audit),
        launches=launches_chart(audit),
        curve=curve_chart(audit),
        disturbances=[
            {
                "text": source_text(one),
                "share": share_text(one),
                "slower": slower_text(one),
                "advice": one_line(one.advice),
            }
            for one in audit.disturbances
        ],
        changes=change_rows(changes),
        changes_title=one_line(changes_title),
        differences=differences,
    )
