"""Histories for a terminal: what changed, or one series with its picture. No colours, no rich."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Final

from torchyard.core.change import ChangePoint, SeriesHistory
from torchyard.core.stored import Metric
from torchyard.reports.history_plot import plot_lines
from torchyard.reports.history_wording import (
    METHOD,
    chance_text,
    change_interval,
    change_sentence,
    change_size,
    changed_title,
    counts_text,
    range_text,
    series_title,
    when_text,
)

__all__ = ["CHANGE_HEADINGS", "change_cells", "changes_text", "series_text"]

CHANGE_HEADINGS: Final = ("", "kind", "size", "interval", "p", "revisions", "since")


def change_cells(change: ChangePoint, metric: Metric) -> tuple[str, ...]:
    """One row of a table of changes."""
    return (
        change.towards(metric),
        change.kind,
        change_size(change),
        change_interval(change),
        chance_text(change),
        range_text(change),
        when_text(change.after if change.kind == "step" else change.before),
    )


def changes_text(found: Sequence[SeriesHistory], metric: Metric, *, width: int = 100) -> str:
    """Which histories changed, the largest change first; they come in that order."""
    lines = [changed_title(found, metric)]
    changed = [one for one in found if one.changes]
    for one in changed:
        lines += ["", series_title(one)]
        lines += _table([change_cells(change, metric) for change in one.changes])
    lines += ["", *wrap(METHOD, width)]
    return "\n".join(lines) + "\n"


def series_text(
    found: Sequence[SeriesHistory],
    *,
    width: int = 100,
    plots: bool = True,
    ascii_only: bool = False,
) -> str:
    """Each series with its picture and what changed in it."""
    lines: list[str] = []
    for one in found:
        lines += [series_title(one), *wrap(counts_text(one), width, break_on_hyphens=False), ""]
        if plots:
            lines += [*plot_lines(one, width=width, ascii_only=ascii_only), ""]
        for change in one.changes:
            sentence = change_sentence(change, one.series.metric)
            mark = "~" if change.kind == "drift" else "^" if ascii_only else "▲"
            lines += wrap(
                f"{mark} {sentence}", width, subsequent_indent="  ", break_on_hyphens=False
            )
        if not one.changes:
            lines.append("no change found")
        lines.append("")
    lines += wrap(METHOD, width)
    return "\n".join(lines) + "\n"


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    shown = [CHANGE_HEADINGS, *rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(CHANGE_HEADINGS))]
    return [
        (
            "  " + "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True))
        ).rstrip()
        for row in shown
    ]
