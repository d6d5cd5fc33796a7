"""Two sides compared, in Markdown, for pull requests and notes."""

from __future__ import annotations

from typing import Final

from torchyard.core.cross_comparison import CrossComparison
from torchyard.reports.compare_wording import (
    LEGEND,
    assumption_text,
    counts_text,
    drift_text,
    mean_text,
    notes_of_row,
    p_of_row,
    ratio_text,
    row_title,
    side_lines,
    side_speedup,
    side_time,
    unpaired_text,
    verdict_of_row,
)
from torchyard.reports.markdown_report import escaped

__all__ = ["compare_markdown"]

_HEADINGS: Final = (
    "workload",
    "A time",
    "B time",
    "A speedup",
    "B speedup",
    "ratio",
    "p",
    "verdict",
    "support",
)
_RIGHT: Final = (1, 2, 3, 4, 5, 6)


def compare_markdown(comparison: CrossComparison) -> str:
    """A table that reads well as text too."""
    several = len(comparison.one.variants) > 1 or len(comparison.other.variants) > 1
    lines = ["## A against B", ""]
    lines += [f"- **{name}**: {escaped(text)}" for name, text in side_lines(comparison)]
    if comparison.rows:
        rule = ("---:" if index in _RIGHT else "---" for index in range(len(_HEADINGS)))
        lines += ["", _cells(_HEADINGS), _cells(tuple(rule))]
        for row in comparison.rows:
            cells = (
                row_title(row, variants=several),
                side_time(row.one),
                side_time(row.other),
                side_speedup(row.one),
                side_speedup(row.other),
                " ".join(ratio_text(row)),
                p_of_row(row),
                verdict_of_row(row),
                row.support,
            )
            lines.append(_cells(tuple(escaped(cell) for cell in cells)))
    summary = [LEGEND, counts_text(comparison), mean_text(comparison)]
    summary += [drift_text(comparison), assumption_text(comparison)]
    lines += ["", *(f"- {escaped(text)}" for text in summary if text)]
    notes = [
        f"- {escaped(row_title(row, variants=several))}: {escaped('; '.join(texts))}"
        for row in comparison.rows
        if (texts := notes_of_row(row))
    ]
    unpaired = [
        f"- {escaped(row_title(item, variants=several))}: {escaped(unpaired_text(item))}"
        for item in comparison.unpaired
    ]
    for heading, items in (("Notes", notes), ("Cannot be compared", unpaired)):
        if items:
            lines += ["", f"**{heading}**", "", *items]
    if comparison.facts:
        lines += ["", "**Facts that differ** (in bold: those that forbid a verdict)", ""]
        lines += [_cells(("fact", "A", "B")), _cells(("---", "---", "---"))]
        for fact in comparison.facts:
            name = f"**{escaped(fact.name)}**" if fact.blocks else escaped(fact.name)
            lines.append(_cells((name, escaped(fact.one or "none"), escaped(fact.other or "none"))))
    return "\n".join(lines) + "\n"


def _cells(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
