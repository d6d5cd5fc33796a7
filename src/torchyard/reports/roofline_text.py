"""The roofline of a run as a table: rates, and the share of what the machine can do at most."""

from __future__ import annotations

from collections.abc import Sequence

from torchyard.core.comparison import VariantMetrics
from torchyard.core.roofline import MachinePeak, bytes_per_second, intensity
from torchyard.core.units import format_bandwidth, format_flops
from torchyard.reports.plain_text import one_line
from torchyard.reports.roofline_rows import ABOVE, PeakKey, Roofline, RooflineRow, roofline_of
from torchyard.reports.wording import ABSENT, time_text
from torchyard.results.run_reader import Run

__all__ = ["cells_of", "notes_of_roofline", "peak_sentence", "to_roofline_text"]

HEADINGS = ("workload", "variant", "time", "FLOP/s", "bytes/s", "FLOP/byte", "of the roof", "limit")
_LEFT = 2
"""So many columns are texts, and stand at the left."""


def to_roofline_text(run: Run) -> str:
    """The whole report."""
    roofline = roofline_of(run)
    lines = [f"{one_line(run.study.name)}  ({run.state}, {run.id})", ""]
    if not roofline.rows:
        lines += [
            "No workload of this run says what it must move. Those of the suite `kernels` do:",
            "  torchyard bench --suite kernels",
        ]
        return "\n".join(lines) + "\n"
    lines += _table([HEADINGS, *(cells_of(row) for row in roofline.rows)])
    lines.append("")
    lines += [peak_sentence(key, peak) for key, peak in roofline.peaks]
    lines += notes_of_roofline(roofline)
    return "\n".join(lines) + "\n"


def cells_of(row: RooflineRow) -> tuple[str, ...]:
    """One row of the table, in the order of the headings."""
    found = row.attainment
    return (
        one_line(row.name),
        one_line(row.variant),
        time_text(row.metrics),
        _flops(row.metrics),
        _bandwidth(row.metrics),
        _intensity(row.metrics),
        _share(found.roof_share) if found else ABSENT,
        found.bound if found else ABSENT,
    )


def peak_sentence(key: PeakKey, peak: MachinePeak) -> str:
    """What the rows were held against."""
    cache = peak.cache_bytes_per_second
    return one_line(
        f"peak of {key.text}: {format_flops(peak.flops_per_second, per_second=True)}, "
        f"memory {format_bandwidth(peak.bytes_per_second)}"
        + (f", caches up to {format_bandwidth(cache)}" if cache else "")
        + f"; measured {peak.measured[:10]} with torch {peak.torch_version}"
    )


def notes_of_roofline(roofline: Roofline) -> list[str]:
    """What is missing, and what cannot be."""
    notes = [
        f"no peak of {one_line(key.text)} is known for this machine; measure it there with: "
        f"{key.command}"
        for key in roofline.missing
    ]
    untrusted = sum(row.untrusted for row in roofline.rows)
    if untrusted:
        notes.append(
            f"{untrusted} of {len(roofline.rows)} rows have untrusted times: do not use their shares"
        )
    above = [
        one_line(f"{row.name} ({row.variant})")
        for row in roofline.rows
        if row.attainment and row.attainment.roof_share > ABOVE
    ]
    if above:
        notes.append(
            f"above the roof: {', '.join(above)}: the peak was measured too low, or the work is less "
            "than was counted (a faster algorithm, a lower precision inside, a joined loss)"
        )
    return notes


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "<1%"  # noqa: PLR2004 - less than it shows


def _flops(metrics: VariantMetrics) -> str:
    rate = metrics.flops_per_second
    return ABSENT if rate is None else format_flops(rate, per_second=True)


def _bandwidth(metrics: VariantMetrics) -> str:
    rate = bytes_per_second(metrics)
    return ABSENT if rate is None else format_bandwidth(rate)


def _intensity(metrics: VariantMetrics) -> str:
    found = intensity(metrics)
    return ABSENT if found is None else f"{found:.3g}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if place < _LEFT else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
