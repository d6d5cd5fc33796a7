"""Kernel rows from the CSV tables of GPU profilers."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from torchyard.profile.model import CostRow
from torchyard.profile.tools.interface import run_captured

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
    """Column names of a table."""

    name: str
    time: str
    calls: str | None = None
    """None if each line is one call."""


def query_kernels(
    command: Sequence[str], columns: Columns, *, tool: str, limit_s: float
) -> tuple[tuple[CostRow, ...], tuple[str, ...]]:
    """Run a tool's export command; return its kernels, and notes if it failed or has none."""
    try:
        done = run_captured(command, limit_s=limit_s)
    except (OSError, subprocess.SubprocessError) as error:
        return (), (f"cannot export the {tool} report: {error}",)
    rows = kernel_rows(done.stdout.splitlines(), columns)
    message = done.stderr.strip()[:300]
    if done.returncode != 0:
        return rows, (f"{tool} exited with code {done.returncode}: {message}".rstrip(": "),)
    return rows, () if rows else (f"{tool} recorded no kernels: {message}".rstrip(": "),)


def kernel_rows(lines: Iterable[str], columns: Columns) -> tuple[CostRow, ...]:
    """Return kernels sorted by device time; lines before the header are skipped."""
    table = csv.reader(lines)
    header: list[str] = []
    scale = 1.0
    calls: dict[str, int] = {}
    times: dict[str, float] = {}
    for cells in table:
        if not header:
            if columns.name in cells and columns.time in cells:
                header = cells
            continue
        row = dict(zip(header, cells, strict=False))
        name, time = row.get(columns.name, ""), row.get(columns.time, "").replace(",", "")
        if not name:
            # ncu prints a line with units below the header.
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
    """Return the length of a time unit in nanoseconds; 1 for an unknown unit."""
    return _SCALES.get(unit.strip().lower(), 1.0)


def _calls(row: dict[str, str], columns: Columns) -> int:
    return 1 if columns.calls is None else int(row.get(columns.calls, "0").replace(",", ""))
