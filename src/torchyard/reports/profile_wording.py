"""Words and numbers of a profile by a tool, the same on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from torchyard.core.tool_profile import CostRow, CounterValue, ToolProfile
from torchyard.core.units import format_bytes, format_duration

__all__ = [
    "HOW_TO_OPEN",
    "cost_text",
    "counter_text",
    "facts_of",
    "has_calls",
    "has_device",
    "has_memory",
    "has_total",
    "share_of",
    "size_text",
    "state_sentence",
]

HOW_TO_OPEN: Final = (
    "Open the trace at https://ui.perfetto.dev (Open trace file; it stays on your machine) or in "
    "Chrome at chrome://tracing."
)
_STATES: Final = {
    "finished": "The program ended well.",
    "crashed": "The program failed with exit code {code}: this is what was recorded up to there.",
    "interrupted": "The program was interrupted: this is what was recorded up to there.",
    "running": "The profile was not finished.",
}


def state_sentence(profile: ToolProfile) -> str:
    """How the program ended."""
    said = _STATES.get(profile.state, profile.state)
    if profile.state == "finished" and profile.exit_code:
        said = _STATES["crashed"]
    return said.format(code=profile.exit_code)


def cost_text(cost: float | None, unit: str) -> str:
    """A cost in the profile's unit."""
    if cost is None:
        return ""
    if cost == 0:
        return "0"
    return format_duration(cost) if unit == "ns" else f"{cost:,.0f}"


def size_text(size_bytes: int) -> str:
    """A size; nothing for none, a minus for what was given back."""
    return format_bytes(size_bytes) if size_bytes else ""


def share_of(row: CostRow, profile: ToolProfile) -> float:
    """The row's part of all self costs."""
    return row.all_self_cost / profile.total_cost if profile.total_cost > 0 else 0.0


def counter_text(counter: CounterValue) -> str:
    """A counter with its unit."""
    if counter.value is None:
        return "cannot be counted on this machine"
    if counter.unit == "msec":
        return format_duration(counter.value * 1e6)
    return f"{counter.value:,.0f}{' ' + counter.unit if counter.unit else ''}"


def has_calls(rows: Iterable[CostRow]) -> bool:
    """Whether the tool counts calls."""
    return any(row.calls is not None for row in rows)


def has_total(rows: Iterable[CostRow]) -> bool:
    """Whether the tool knows what was called from what."""
    return any(row.total_cost is not None for row in rows)


def has_device(rows: Iterable[CostRow]) -> bool:
    """Whether anything ran on a device."""
    return any(row.self_device_cost or row.total_device_cost for row in rows)


def has_memory(rows: Iterable[CostRow]) -> bool:
    """Whether memory was recorded."""
    return any(row.memory_bytes or row.device_memory_bytes for row in rows)


def _tool(profile: ToolProfile) -> str:
    """Name and version; most tools put their name before the version themselves."""
    version = profile.tool_version
    return version if version.startswith(profile.tool) else f"{profile.tool} {version}".strip()


def facts_of(profile: ToolProfile) -> list[tuple[str, str]]:
    """What was run and recorded."""
    rows = [
        ("program", " ".join(profile.program)),
        ("interpreter", profile.python),
        ("tool", _tool(profile)),
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
        rows.append(("peak on device", format_bytes(profile.peak_device_bytes)))
    return [(name, text) for name, text in rows if text]
