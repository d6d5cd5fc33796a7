"""What the page of a run shows of its roofline; nothing where no workload says what it moves."""

from __future__ import annotations

from typing import Any

from torchyard.reports.roofline_chart import roofline_description, roofline_spec
from torchyard.reports.roofline_rows import roofline_of
from torchyard.reports.roofline_text import (
    HEADINGS,
    cells_of,
    notes_of_roofline,
    peak_sentence,
)
from torchyard.reports.vega import charts_available, inline_chart
from torchyard.results.run_reader import Run

__all__ = ["roofline_part"]


def roofline_part(run: Run) -> dict[str, Any] | None:
    """Everything `templates/roofline.html.j2` asks for."""
    roofline = roofline_of(run)
    if not roofline.rows:
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
