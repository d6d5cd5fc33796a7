"""A profile by a tool as plain text: the costliest operators, counters, memory, files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from torchyard.core.tool_profile import CostRow, ToolProfile
from torchyard.core.units import format_percent
from torchyard.reports.plain_text import one_line, shortened
from torchyard.reports.profile_wording import (
    HOW_TO_OPEN,
    cost_text,
    counter_text,
    facts_of,
    has_calls,
    has_device,
    has_memory,
    has_total,
    share_of,
    size_text,
    state_sentence,
)

__all__ = ["profile_text"]

_NAME_WIDTH: Final = 52
_FACT_WIDTH: Final = 18


def profile_text(profile: ToolProfile, *, folder: Path | None = None, rows: int = 20) -> str:
    """The whole report, with the costliest `rows`."""
    lines = [one_line(f"{profile.tool}: {state_sentence(profile)}"), ""]
    lines += [
        f"{one_line(name):<{_FACT_WIDTH}} {one_line(text)}" for name, text in facts_of(profile)
    ]
    if profile.rows:
        lines += ["", *_table(profile, profile.rows[:rows])]
        left = len(profile.rows) + profile.rows_left_out - min(rows, len(profile.rows))
        if left:
            lines.append(
                f"... and {left} more; --rows shows more, --json and --html all that is kept"
            )
    else:
        lines += ["", f"No {profile.row_kind} was recorded."]
    if profile.counters:
        lines += ["", "Counters of the whole run:"]
        lines += [
            f"  {one_line(counter.name):<{_FACT_WIDTH}} {one_line(counter_text(counter))}"
            for counter in profile.counters
        ]
    lines += _files(profile, folder)
    lines += [f"note: {one_line(note)}" for note in profile.notes]
    return "\n".join(lines) + "\n"


def _files(profile: ToolProfile, folder: Path | None) -> list[str]:
    if not profile.files:
        return []
    lines = ["", "Files:"]
    for file in profile.files:
        place = str(folder / file.name) if folder is not None else file.name
        lines.append(f"  {one_line(place)}: {one_line(file.about)}")
    if any(file.name.endswith(("trace.json.gz", ".pftrace")) for file in profile.files):
        lines.append(f"  {HOW_TO_OPEN}")
    return lines


def _table(profile: ToolProfile, rows: tuple[CostRow, ...]) -> list[str]:
    every = profile.rows
    columns: list[tuple[str, list[str]]] = []
    unit = profile.unit
    if has_calls(every):
        calls = [str(row.calls) if row.calls is not None else "" for row in rows]
        columns.append(("calls", calls))
    only_device = has_device(every) and not any(row.self_cost for row in every)
    if not only_device:
        columns.append(("self", [cost_text(row.self_cost, unit) for row in rows]))
        if has_total(every):
            columns.append(("total", [cost_text(row.total_cost, unit) for row in rows]))
    if has_device(every):
        columns.append(("self device", [cost_text(row.self_device_cost, unit) for row in rows]))
    columns.append(("share", [format_percent(share_of(row, profile)) for row in rows]))
    if has_memory(every):
        columns.append(("memory", [size_text(row.memory_bytes) for row in rows]))
        if any(row.device_memory_bytes for row in every):
            sizes = [size_text(row.device_memory_bytes) for row in rows]
            columns.append(("device memory", sizes))
    names = [shortened(one_line(row.name), _NAME_WIDTH) for row in rows]
    width = max(len(name) for name in (*names, profile.row_kind))
    widths = [max(len(text) for text in (head, *cells)) for head, cells in columns]
    heads = "  ".join(head.rjust(size) for (head, _), size in zip(columns, widths, strict=True))
    lines = [f"{profile.row_kind:<{width}}  {heads}"]
    for index, name in enumerate(names):
        cells = "  ".join(
            cells[index].rjust(size) for (_, cells), size in zip(columns, widths, strict=True)
        )
        lines.append(f"{name:<{width}}  {cells}".rstrip())
    return lines
