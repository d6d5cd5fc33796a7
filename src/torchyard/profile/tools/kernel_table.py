"""Rows of kernels from the CSV tables of GPU profilers."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from torchyard.profile.model import CostRow

__all__ = ["Columns", "ask_for_kernels", "kernel_rows", "nanoseconds"]

_SCALES: Final = {
    unit: scale
    for units, scale in (
        (("ns", "nsecond", "nanosecond"), 1.0),
        (("us", "usecond", "microsecond"), 1e3),
        (("ms", "msecond", "millisecond"), 1e6),
        (("s", "second"), 1e9),
    )
    for unit in units
}


class Columns(NamedTuple):
    """Headings of a table."""

    name: str
    time: str
    calls: str | None = None
    """None when each line is one call."""


def ask_for_kernels(
    command: Sequence[str], columns: Columns, *, tool: str, limit_s: float
) -> tuple[tuple[CostRow, ...], tuple[str, ...]]:
    """Kernels of a report, from the tool that wrote it; and notes, when it has none to show."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return (), (f"{tool} cannot read its report: {error}",)
    rows = kernel_rows(done.stdout.splitlines(), columns)
    said = done.stderr.strip()[:300]
    if done.returncode != 0:
        return rows, (f"{tool} ended with {done.returncode}: {said}".rstrip(": "),)
    return rows, () if rows else (f"{tool} shows no kernel: {said}".rstrip(": "),)


def kernel_rows(lines: Iterable[str], columns: Columns) -> tuple[CostRow, ...]:
    """Kernels by their time on the device; lines before the headings are passed over."""
    table = csv.reader(lines)
    heads: list[str] = []
    scale = 1.0
    calls: dict[str, int] = {}
    times: dict[str, float] = {}
    for cells in table:
        if not heads:
            if columns.name in cells and columns.time in cells:
                heads = cells
            continue
        row = dict(zip(heads, cells, strict=False))
        name, time = row.get(columns.name, ""), row.get(columns.time, "").replace(",", "")
        if not name:
            # ncu puts a line of units below the headings.
            scale = nanoseconds(row.get(columns.time, ""))
            continue
        try:
            times[name] = times.get(name, 0.0) + float(time) * scale
            calls[name] = calls.get(name, 0) + _calls(row, columns)
        except ValueError:
            continue
    rows = (
        CostRow(name=name, calls=calls.get(name), self_device_cost=time, total_device_cost=time)
        for name, time in times.items()
    )
    return tuple(sorted(rows, key=lambda row: -row.self_device_cost))


def nanoseconds(unit: str) -> float:
    """How many of them are in one of these; 1 for a unit that is not known."""
    return _SCALES.get(unit.strip().lower(), 1.0)


def _calls(row: dict[str, str], columns: Columns) -> int:
    return 1 if columns.calls is None else int(row.get(columns.calls, "0").replace(",", ""))
