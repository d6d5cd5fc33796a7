"""A tool's profile as plain text and as one HTML page: operators, counters, memory, files.

The page is self-contained except for links to the files of the tool.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import quote

from torchyard.core.units import format_bytes, format_duration, format_percent
from torchyard.presentation.html_page import render_page
from torchyard.presentation.safe_text import aligned, one_line, shortened
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


def opens_in_perfetto(profile: ToolProfile) -> bool:
    """Return whether one of the files is a trace for Perfetto."""
    return any(file.name.endswith(("trace.json.gz", ".pftrace")) for file in profile.files)


def shown_columns(profile: ToolProfile) -> dict[str, bool]:
    """Return whether each optional column of the table has values."""
    rows = profile.rows
    device = any(row.self_device_cost or row.total_device_cost for row in rows)
    on_processor = any(row.self_cost for row in rows) or not device
    return {
        "calls": any(row.calls is not None for row in rows),
        "processor": on_processor,
        "total": on_processor and any(row.total_cost is not None for row in rows),
        "device": device,
        "memory": any(row.memory_bytes or row.device_memory_bytes for row in rows),
        "device_memory": any(row.device_memory_bytes for row in rows),
    }


def row_cells(row: CostRow, profile: ToolProfile) -> dict[str, str]:
    """Return the text of every column of a row."""
    unit = profile.unit
    return {
        "calls": "" if row.calls is None else f"{row.calls:,}",
        "self": cost_text(row.self_cost, unit),
        "total": cost_text(row.total_cost, unit),
        "device": cost_text(row.self_device_cost, unit),
        "share": format_percent(share_of(row, profile)),
        "memory": size_text(row.memory_bytes),
        "device_memory": size_text(row.device_memory_bytes),
    }


def run_facts(profile: ToolProfile) -> list[tuple[str, str]]:
    """Return the program, tool and totals as (label, text) pairs."""
    # Most version strings begin with the name of the tool.
    name = "" if profile.tool_version.startswith(profile.tool) else profile.tool
    rows = [
        ("program", " ".join(profile.program)),
        ("interpreter", profile.python),
        ("tool", f"{name} {profile.tool_version}".strip()),
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
    if opens_in_perfetto(profile):
        lines.append(f"  {HOW_TO_OPEN}")
    return lines


_COLUMNS: Final = (
    ("calls", "calls", "calls"),
    ("processor", "self", "self"),
    ("total", "total", "total"),
    ("device", "device", "self device"),
    ("", "share", "share"),
    ("memory", "memory", "memory"),
    ("device_memory", "device_memory", "device memory"),
)
"""Key of `shown_columns`, key of `row_cells`, heading."""


def _table(profile: ToolProfile, rows: tuple[CostRow, ...]) -> list[str]:
    shown = shown_columns(profile)
    columns = [(key, heading) for column, key, heading in _COLUMNS if shown.get(column, True)]
    cells = [row_cells(row, profile) for row in rows]
    names = [shortened(one_line(row.name), _NAME_WIDTH) for row in rows]
    table = [
        [profile.row_kind, *(heading for _, heading in columns)],
        *(
            [name, *(row[key] for key, _ in columns)]
            for name, row in zip(names, cells, strict=True)
        ),
    ]
    return aligned(table, right=range(1, len(table[0]))).split("\n")


def profile_page(profile: ToolProfile, *, files_at: str = "") -> str:
    """Return the page. `files_at` is the folder of the tool's files, relative to the page."""
    return render_page(
        *("profile.html.j2", "report.css", "profile.css"),
        profile=profile,
        good=profile.state == "finished" and not profile.exit_code,
        sentence=state_sentence(profile),
        facts=run_facts(profile),
        rows=[_page_row(row, profile) for row in profile.rows],
        left_out=profile.rows_left_out,
        shows=shown_columns(profile),
        counters=[(one.name, counter_text(one)) for one in profile.counters],
        stacks=[
            (cost_text(one.cost, profile.unit), " › ".join(one.frames)) for one in profile.stacks
        ],
        files=[
            {"name": file.name, "about": file.about, "link": _link(files_at, file.name)}
            for file in profile.files
        ],
        how_to_open=HOW_TO_OPEN if opens_in_perfetto(profile) else "",
    )


def _page_row(row: CostRow, profile: ToolProfile) -> dict[str, Any]:
    most = share_of(profile.rows[0], profile)
    return {
        **row_cells(row, profile),
        "name": row.name,
        "where": row.where,
        "bar": round(100 * share_of(row, profile) / most, 1) if most > 0 else 0,
        "shapes": [
            f"{one.shapes}: {one.calls:,} calls, {cost_text(one.self_cost, profile.unit)}"
            for one in row.shapes
        ],
    }


def _link(folder: str, name: str) -> str:
    """Return a relative URL; a file name can never turn it into an absolute one."""
    path = PurePosixPath(folder) / name if folder else PurePosixPath(name)
    text = quote(str(path))
    return text if text.startswith(("/", ".")) else f"./{text}"
