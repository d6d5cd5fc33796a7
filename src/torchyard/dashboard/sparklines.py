"""Small lines beside names: where they go; `templates/dashboard_parts.html.j2` draws them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Sparkline", "sparkline"]

WIDTH: Final = 120
HEIGHT: Final = 26
_EDGE: Final = 3
_MOST_POINTS: Final = 60
_NARROWEST: Final = math.log(1.02)
"""Noise of a percent must not look like a mountain."""


@dataclass(frozen=True, kw_only=True)
class Sparkline:
    """A line of a few points."""

    points: str = ""
    """As an SVG polyline has them; empty when there is nothing to draw."""
    last: tuple[float, float] = (0.0, 0.0)
    one: float | None = None
    """Height of "no difference", when it is inside."""
    tone: str = ""
    """The latest verdict, which colours the last point."""
    label: str = ""
    width: int = WIDTH
    height: int = HEIGHT


def sparkline(speedups: Sequence[float], *, tone: str = "") -> Sparkline:
    """The latest speedups, oldest first, on a logarithmic scale."""
    shown = [value for value in speedups if 0 < value < math.inf][-_MOST_POINTS:]
    if not shown:
        return Sparkline()
    logs = [math.log(value) for value in shown]
    middle = (min(logs) + max(logs)) / 2
    half = max(max(logs) - min(logs), _NARROWEST) / 2

    def height(log: float) -> float:
        share = (log - middle) / (2 * half) + 0.5
        return round(HEIGHT - _EDGE - share * (HEIGHT - 2 * _EDGE), 1)

    step = (WIDTH - 2 * _EDGE) / max(1, len(logs) - 1)
    places = [(round(_EDGE + index * step, 1), height(log)) for index, log in enumerate(logs)]
    if len(places) == 1:
        places = [(WIDTH / 2, places[0][1])]
    return Sparkline(
        points=" ".join(f"{x:g},{y:g}" for x, y in places),
        last=places[-1],
        one=height(0.0) if middle - half <= 0.0 <= middle + half else None,
        tone=tone,
        label=f"the last {len(shown)} from {shown[0]:.3f}x to {shown[-1]:.3f}x",
    )
