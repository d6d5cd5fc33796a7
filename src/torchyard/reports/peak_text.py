"""A measured peak as text: the two rates, the ridge between them, and what was measured for them."""

from __future__ import annotations

from typing import Final

from torchyard.core.roofline import MachinePeak
from torchyard.core.units import format_bandwidth, format_bytes, format_flops
from torchyard.reports.plain_text import one_line

__all__ = ["peak_command", "peak_text", "threads_text"]

_NAME: Final = 12


def peak_text(peak: MachinePeak, *, fresh: bool, lasts_days: float) -> str:
    """The whole of it, for a terminal."""
    rows = [
        ("machine", one_line(peak.machine)),
        ("device", one_line(f"{peak.device}, {peak.precision}{threads_text(peak.threads)}")),
        ("arithmetic", format_flops(peak.flops_per_second, per_second=True)),
        ("memory", format_bandwidth(peak.bytes_per_second)),
    ]
    if peak.cache_bytes_per_second is not None:
        rows.append(("cache", f"up to {format_bandwidth(peak.cache_bytes_per_second)}"))
    rows += [
        ("ridge", f"{peak.ridge:.3g} operations per byte: below it memory is the limit"),
        ("torch", one_line(peak.torch_version)),
        ("measured", one_line(_when(peak, fresh=fresh, lasts_days=lasts_days))),
    ]
    if peak.load and not peak.load.startswith("unavailable"):
        rows.append(("load", one_line(f"{peak.load} (averages over 1, 5 and 15 minutes)")))
    rows += [("note", one_line(note)) for note in peak.notes]
    lines = [f"{name:<{_NAME}} {text}" for name, text in rows]
    return "\n".join([*lines, "", *_products(peak), "", *_streams(peak)]) + "\n"


def peak_command(device: str, precision: str, threads: int) -> str:
    """The command that measures this peak."""
    words = ["torchyard machine peak"]
    words += [f"--device {device}"] if device != "cpu" else []
    words += [f"--precision {precision}"] if precision != "float32" else []
    words += [f"--threads {threads}"] if threads else []
    return one_line(" ".join(words))


def threads_text(threads: int) -> str:
    """What is said of threads behind a precision; nothing where they do not matter."""
    return f", {threads} thread{'' if threads == 1 else 's'}" if threads else ""


def _when(peak: MachinePeak, *, fresh: bool, lasts_days: float) -> str:
    if fresh:
        return f"{peak.measured}, in {peak.duration_s:.0f} s"
    return f"{peak.measured}; kept, and used for {lasts_days:g} days; --measure measures again"


def _products(peak: MachinePeak) -> list[str]:
    lines = ["products of square matrices, the best of several runs"]
    for one in peak.products:
        share = one.flops_per_second / peak.flops_per_second
        rate = format_flops(one.flops_per_second, per_second=True)
        lines.append(f"  {one.size:>6} {rate:>16} {share:>6.0%}")
    return lines


def _streams(peak: MachinePeak) -> list[str]:
    lines = [
        "bytes read and written, by size of all arrays together",
        f"  {'':>10} {'copy':>12} {'triad':>12}",
    ]
    sizes = sorted({one.working_set_bytes for one in peak.streams})
    rates = {(one.kind, one.working_set_bytes): one.bytes_per_second for one in peak.streams}
    for size in sizes:
        cells = [
            format_bandwidth(rates[kind, size]) if (kind, size) in rates else ""
            for kind in ("copy", "triad")
        ]
        lines.append(f"  {format_bytes(size):>10} {cells[0]:>12} {cells[1]:>12}")
    return lines
