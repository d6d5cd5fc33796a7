# ruff: noqa: INP001  # a script beside the pages, not a package
"""Draw the speedups of docs/explanation/inductor-on-an-h200.md as docs/images/inductor-on-an-h200.svg."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from torchyard.bench.roofline.chart import with_theme_colors
from torchyard.presentation.vega import drawn_svg

DOCS: Final = Path(__file__).parent
PAGE: Final = DOCS / "explanation" / "inductor-on-an-h200.md"
PICTURE: Final = DOCS / "images" / "inductor-on-an-h200.svg"
SPEEDUP: Final = re.compile(r"(\d\.\d{3})x \[(\d\.\d{3}), (\d\.\d{3})\]([^|]*)")
_COLORS: Final = {"inference": "var(--faster)", "training": "var(--slower)"}


def speedups(page: str) -> list[dict[str, Any]]:
    """Return workload, mode, speedup and interval of each cell of the page that is not wrong."""
    rows = []
    for workload, cells in re.findall(r"^\| (\w+/\S+) \|(.*)$", page, re.MULTILINE):
        for mode, match in zip(_COLORS, SPEEDUP.finditer(cells), strict=True):
            speedup, low, high = (float(number) for number in match.groups()[:3])
            row = {"workload": workload, "mode": mode, "speedup": speedup, "low": low, "high": high}
            if "wrong" not in match[4]:
                rows.append(row)
    return rows


def spec(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the chart: a point and an interval per cell, a line where both variants are as fast."""
    order = sorted(
        {row["workload"] for row in rows},
        key=lambda name: -max(row["speedup"] for row in rows if row["workload"] == name),
    )
    x = {
        "type": "quantitative",
        "title": "speedup of inductor over eager (95 % confidence intervals, logarithmic)",
        "scale": {"type": "log", "domain": [0.85, 4], "nice": False},
        "axis": {"values": [0.9, 1, 1.25, 1.5, 2, 2.5, 3, 4], "format": ".2~f", "grid": True},
    }
    y = {
        "field": "workload",
        "type": "nominal",
        "sort": order,
        "title": None,
        "axis": {"labelLimit": 260},
    }
    mode = {
        "color": {
            "field": "mode",
            "scale": {"domain": list(_COLORS), "range": list(_COLORS.values())},
            "legend": {"orient": "top", "title": None},
        },
        "yOffset": {"field": "mode", "scale": {"paddingOuter": 0.3}},
    }
    return {
        "width": 560,
        "height": {"step": 8},
        "data": {"values": rows},
        "layer": [
            {
                "data": {"values": [{"one": 1}]},
                "mark": {"type": "rule", "color": "var(--text)", "strokeDash": [4, 3]},
                "encoding": {"x": {"field": "one", **x}},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}, "y": y, **mode},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 40, "opacity": 1},
                "encoding": {"x": {"field": "speedup", **x}, "y": y, **mode},
            },
        ],
    }


def main() -> None:
    """Write the picture."""
    rows = speedups(PAGE.read_text("utf-8"))
    text = "Speedups of inductor over eager on an H200; all numbers are in the table of the page."
    PICTURE.write_text(with_theme_colors(drawn_svg(spec(rows), description=text)), "utf-8")


if __name__ == "__main__":
    main()
