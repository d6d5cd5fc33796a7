"""A tool's profile as plain text: the most expensive operators, counters, memory, files.

The formatting of states, costs and counters is shared with the HTML page (`report_page.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from torchyard.core.units import format_bytes, format_duration, format_percent
from torchyard.presentation.safe_text import one_line, shortened
from torchyard.profile.model import CostRow, CounterValue, ToolProfile

HOW_TO_OPEN: Final = (
    "Open the trace at https://ui.perfetto.dev (Open trace file; it stays on your machine) or in "
    "Chrome at chrome://tracing."
)
_STATES: Final = {
    "finished": "The program finished successfully.",
    "crashed": "The program failed with exit code {code}; the data recorded until then are shown.",
    "interrupted": "The program was interrupted; the data recorded until then are shown.",
    "running": "The profile is incomplete.",
}


def state_sentence(profile: ToolProfile) -> str:
    """Return one sentence on how the program ended."""
    sentence = _STATES.get(profile.state, profile.state)
    if profile.state == "finished" and profile.exit_code:
        sentence = _STATES["crashed"]
    return sentence.format(code=profile.exit_code)


def cost_text(cost: float | None, unit: str) -> str:
    """Format a cost in the profile's unit."""
    if cost is None:
        return ""
    if cost == 0:
        return "0"
    return format_duration(cost) if unit == "ns" else f"{cost:,.0f}"


def size_text(size_bytes: int) -> str:
    """Format a number of bytes: empty for 0, negative if more was freed than allocated."""
    return format_bytes(size_bytes) if size_bytes else ""


def share_of(row: CostRow, profile: ToolProfile) -> float:
    """Return the row's share of all self costs."""
    return row.all_self_cost / profile.total_cost if profile.total_cost > 0 else 0.0


def counter_text(counter: CounterValue) -> str:
    """Format a counter with its unit."""
    if counter.value is None:
        return "not supported on this machine"
    if counter.unit == "msec":
        return format_duration(counter.value * 1e6)
    return f"{counter.value:,.0f}{' ' + counter.unit if counter.unit else ''}"


def has_calls(rows: Iterable[CostRow]) -> bool:
    """Return whether the tool counts calls."""
    return any(row.calls is not None for row in rows)


def has_total(rows: Iterable[CostRow]) -> bool:
    """Return whether the tool reports costs that include callees."""
    return any(row.total_cost is not None for row in rows)


def has_device(rows: Iterable[CostRow]) -> bool:
    """Return whether any row has device time."""
    return any(row.self_device_cost or row.total_device_cost for row in rows)


def has_memory(rows: Iterable[CostRow]) -> bool:
    """Return whether memory was recorded."""
    return any(row.memory_bytes or row.device_memory_bytes for row in rows)


def _tool_and_version(profile: ToolProfile) -> str:
    """Return name and version; most version strings begin with the name already."""
    version = profile.tool_version
    return version if version.startswith(profile.tool) else f"{profile.tool} {version}".strip()


def run_facts(profile: ToolProfile) -> list[tuple[str, str]]:
    """Return the program, tool and totals as (label, text) pairs."""
    rows = [
        ("program", " ".join(profile.program)),
        ("interpreter", profile.python),
        ("tool", _tool_and_version(profile)),
        ("started", profile.started),
    ]
    if profile.recorded_ns:
        rows.append(("recorded", format_duration(profile.recorded_ns)))
    if profile.steps:
        rows.append(("steps", f"{profile.recorded_steps} recorded of {profile.steps}"))
    if profile.total_cost:
        what = "sum of self times" if profile.unit == "ns" else profile.unit
        rows.append((what, cost_text(profile.total_cost, profile.unit)))
    if profile.peak_memory_bytes:
        rows.append(("peak memory", f"{format_bytes(profile.peak_memory_bytes)} resident"))
    if profile.peak_device_bytes:
        rows.append(("peak device memory", format_bytes(profile.peak_device_bytes)))
    return [(name, text) for name, text in rows if text]


_NAME_WIDTH: Final = 52
_LABEL_WIDTH: Final = 18


def profile_text(profile: ToolProfile, *, folder: Path | None = None, rows: int = 20) -> str:
    """Return the whole report with the `rows` most expensive rows."""
    lines = [one_line(f"{profile.tool}: {state_sentence(profile)}"), ""]
    lines += [
        f"{one_line(name):<{_LABEL_WIDTH}} {one_line(text)}" for name, text in run_facts(profile)
    ]
    if profile.rows:
        lines += ["", *_table(profile, profile.rows[:rows])]
        omitted = len(profile.rows) + profile.rows_left_out - min(rows, len(profile.rows))
        if omitted:
            lines.append(f"... and {omitted} more rows; use --rows, --json or --html to see them")
    else:
        lines += ["", f"No {profile.row_kind}s were recorded."]
    if profile.counters:
        lines += ["", "Counters of the whole run:"]
        lines += [
            f"  {one_line(counter.name):<{_LABEL_WIDTH}} {one_line(counter_text(counter))}"
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
    all_rows = profile.rows
    columns: list[tuple[str, list[str]]] = []
    unit = profile.unit
    if has_calls(all_rows):
        calls = [str(row.calls) if row.calls is not None else "" for row in rows]
        columns.append(("calls", calls))
    only_device = has_device(all_rows) and not any(row.self_cost for row in all_rows)
    if not only_device:
        columns.append(("self", [cost_text(row.self_cost, unit) for row in rows]))
        if has_total(all_rows):
            columns.append(("total", [cost_text(row.total_cost, unit) for row in rows]))
    if has_device(all_rows):
        columns.append(("self device", [cost_text(row.self_device_cost, unit) for row in rows]))
    columns.append(("share", [format_percent(share_of(row, profile)) for row in rows]))
    if has_memory(all_rows):
        columns.append(("memory", [size_text(row.memory_bytes) for row in rows]))
        if any(row.device_memory_bytes for row in all_rows):
            sizes = [size_text(row.device_memory_bytes) for row in rows]
            columns.append(("device memory", sizes))
    names = [shortened(one_line(row.name), _NAME_WIDTH) for row in rows]
    width = max(len(name) for name in (*names, profile.row_kind))
    widths = [max(len(text) for text in (head, *cells)) for head, cells in columns]
    header = "  ".join(head.rjust(size) for (head, _), size in zip(columns, widths, strict=True))
    lines = [f"{profile.row_kind:<{width}}  {header}"]
    for index, name in enumerate(names):
        cells = "  ".join(
            cells[index].rjust(size) for (_, cells), size in zip(columns, widths, strict=True)
        )
        lines.append(f"{name:<{width}}  {cells}".rstrip())
    return lines
