"""Compare the rows of a run with the machine's peak, and format peaks and rooflines as text.

A row is one variant on one workload. The peak is looked up by the machine that the run was made
on, so it may have been measured before or after the run. Without a peak, the row still has its
rates, and the command that measures the peak is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Final

from torchyard.bench.roofline.machine_peak import find_peak
from torchyard.core.comparison import Comparison, VariantMetrics, Verdict
from torchyard.core.roofline import (
    Attainment,
    MachinePeak,
    attainment_of,
    bytes_per_second,
    intensity,
)
from torchyard.core.study import Variant, Workload
from torchyard.core.units import format_bandwidth, format_bytes, format_flops
from torchyard.machine.identity import machine_name
from torchyard.presentation.safe_text import aligned, one_line
from torchyard.presentation.wording import ABSENT, time_text
from torchyard.results.run_reader import Run

_NAME: Final = 12


def peak_text(peak: MachinePeak, *, fresh: bool, lasts_days: float) -> str:
    """Format a peak for the terminal."""
    rows = [
        ("machine", one_line(peak.machine)),
        ("device", one_line(f"{peak.device}, {peak.precision}{threads_text(peak.threads)}")),
        ("arithmetic", format_flops(peak.flops_per_second, per_second=True)),
        ("memory", format_bandwidth(peak.bytes_per_second)),
    ]
    if peak.cache_bytes_per_second is not None:
        rows.append(("cache", f"up to {format_bandwidth(peak.cache_bytes_per_second)}"))
    rows += [
        ("ridge", f"{peak.ridge:.3g} FLOP/byte; below it, memory is the limit"),
        ("torch", one_line(peak.torch_version)),
        ("measured", one_line(_when(peak, fresh=fresh, lasts_days=lasts_days))),
    ]
    if peak.load and not peak.load.startswith("unavailable"):
        rows.append(("load", one_line(f"{peak.load} (averages over 1, 5 and 15 minutes)")))
    rows += [("note", one_line(note)) for note in peak.notes]
    lines = [f"{name:<{_NAME}} {text}" for name, text in rows]
    return "\n".join([*lines, "", *_products(peak), "", *_streams(peak)]) + "\n"


def peak_command(device: str, precision: str, threads: int) -> str:
    """Return the command that measures this peak."""
    words = ["torchyard machine peak"]
    words += [f"--device {device}"] if device != "cpu" else []
    words += [f"--precision {precision}"] if precision != "float32" else []
    words += [f"--threads {threads}"] if threads else []
    return one_line(" ".join(words))


def threads_text(threads: int) -> str:
    """Return `, 2 threads`; empty if threads do not matter."""
    return f", {threads} thread{'' if threads == 1 else 's'}" if threads else ""


def _when(peak: MachinePeak, *, fresh: bool, lasts_days: float) -> str:
    if fresh:
        return f"{peak.measured}, in {peak.duration_s:.0f} s"
    return f"{peak.measured}; stored, valid for {lasts_days:g} days (--measure measures again)"


def _products(peak: MachinePeak) -> list[str]:
    lines = ["products of square matrices, best of several runs"]
    for one in peak.products:
        share = one.flops_per_second / peak.flops_per_second
        rate = format_flops(one.flops_per_second, per_second=True)
        lines.append(f"  {one.size:>6} {rate:>16} {share:>6.0%}")
    return lines


def _streams(peak: MachinePeak) -> list[str]:
    lines = [
        "memory streams (bytes read and written), by total size of the arrays",
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


ABOVE: Final = 1.05
"""A share above this is not noise: the peak is too low, or the operations or bytes are overestimated."""
_SUITE: Final = "kernels"


@dataclass(frozen=True, kw_only=True)
class PeakKey:
    """What a peak was measured for."""

    machine: str
    device: str
    precision: str
    threads: int

    @property
    def text(self) -> str:
        """The key as text: `cpu, float32, 2 threads`."""
        return f"{self.device}, {self.precision}{threads_text(self.threads)}"

    @property
    def command(self) -> str:
        """The command that measures this peak."""
        return peak_command(self.device, self.precision, self.threads)


@dataclass(frozen=True, kw_only=True)
class RooflineRow:
    """One variant on one workload."""

    workload: Workload
    variant: str
    metrics: VariantMetrics
    key: PeakKey
    attainment: Attainment | None
    """None if no peak is known."""
    untrusted: bool = False
    """Whether its times are untrusted."""

    @property
    def name(self) -> str:
        """Short label: without the suite `kernels` and without the mode `inference`."""
        label = self.workload.label.removeprefix(f"{_SUITE}/")
        return label.replace(" inference", "", 1)


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """All rows of a run with the known peaks."""

    rows: tuple[RooflineRow, ...]
    peaks: tuple[tuple[PeakKey, MachinePeak], ...]
    missing: tuple[PeakKey, ...]
    """Peaks that rows need but that were not measured."""

    def placed(self, key: PeakKey) -> list[RooflineRow]:
        """Return the rows that can be drawn in the chart of that peak."""
        return [
            row
            for row in self.rows
            if row.key == key and row.attainment and row.attainment.intensity
        ]


def roofline_of(run: Run) -> Roofline:
    """Return the roofline of a run; without rows if no workload states the bytes it moves."""
    look_up = cache(find_peak)
    variants = {variant.name: variant for variant in run.study.variants}
    rows: list[RooflineRow] = []
    peaks: dict[PeakKey, MachinePeak | None] = {}
    for comparison, name, metrics in _sides(run.comparisons):
        variant = variants.get(name)
        if variant is None:
            continue
        key = _key_of(run, comparison.workload, variant)
        peak = look_up(
            key.machine,
            key.device,
            key.precision,
            key.threads,
            torch_version=metrics.torch_version,
        )
        if peak is not None and run.study.settings.flush_l2 and key.device != "cpu":
            peak = replace(peak, streams=())  # flushed caches hold no data
        peaks[key] = peaks.get(key) or peak
        rows.append(
            RooflineRow(
                workload=comparison.workload,
                variant=name,
                metrics=metrics,
                key=key,
                attainment=attainment_of(metrics, peak) if peak else None,
                untrusted=not comparison.trusted,
            )
        )
    return Roofline(
        rows=tuple(rows),
        peaks=tuple((key, peak) for key, peak in peaks.items() if peak is not None),
        missing=tuple(key for key, peak in peaks.items() if peak is None),
    )


def _sides(
    comparisons: tuple[Comparison, ...],
) -> Iterator[tuple[Comparison, str, VariantMetrics]]:
    """Yield each variant of each workload once, without wrong and failed candidates."""
    keys: set[tuple[str, str]] = set()
    for comparison in comparisons:
        variants = [(comparison.baseline, comparison.baseline_metrics)]
        if comparison.verdict not in {Verdict.WRONG, Verdict.FAILED}:
            variants.append((comparison.candidate, comparison.candidate_metrics))
        for name, metrics in variants:
            key = (comparison.workload.label, name)
            if key not in keys and _has_rates(comparison.workload, metrics):
                keys.add(key)
                yield comparison, name, metrics


def _has_rates(workload: Workload, metrics: VariantMetrics) -> bool:
    """Whether the row has rates to show; only kernels and workloads with known bytes do."""
    if not metrics.time_ns:
        return False
    return metrics.moved_bytes is not None or (
        workload.suite == _SUITE and metrics.flops is not None
    )


def _key_of(run: Run, workload: Workload, variant: Variant) -> PeakKey:
    # The machine name of a run includes its GPU if any workload used it; a peak is of one device.
    info = {**run.info, "study": {"workloads": [{"device": workload.device}]}}
    return PeakKey(
        machine=machine_name(info),
        device=workload.device,
        precision=variant.precision,
        threads=_threads(run, variant) if workload.device == "cpu" else 0,
    )


def _threads(run: Run, variant: Variant) -> int:
    """Return the threads as `bench.launch` chose them; 0 if the number of cores is not recorded."""
    chosen = variant.environment.threads or run.study.settings.threads
    if chosen:
        return chosen
    facts = run.info.get("machine")
    cores = str(facts.get("cores", "")) if isinstance(facts, dict) else ""
    return int(cores) if cores.isdecimal() else 0


HEADINGS = ("workload", "variant", "time", "FLOP/s", "bytes/s", "FLOP/byte", "of bound", "limit")
_TEXT_COLUMNS = 2
"""Number of left-aligned text columns."""


def to_roofline_text(run: Run) -> str:
    """Return the roofline report as text."""
    roofline = roofline_of(run)
    lines = [f"{one_line(run.study.name)}  ({run.state}, {run.id})", ""]
    if not roofline.rows:
        lines += [
            "No workload of this run states the bytes it moves. Those of the suite `kernels` do:",
            "  torchyard bench --suite kernels",
        ]
        return "\n".join(lines) + "\n"
    rows = [HEADINGS, *map(cells_of, roofline.rows)]
    lines += [aligned(rows, right=range(_TEXT_COLUMNS, len(HEADINGS))), ""]
    lines += [peak_sentence(key, peak) for key, peak in roofline.peaks]
    lines += notes_of_roofline(roofline)
    return "\n".join(lines) + "\n"


def cells_of(row: RooflineRow) -> tuple[str, ...]:
    """Return one row of the table, in the order of the headings."""
    attainment = row.attainment
    return (
        one_line(row.name),
        one_line(row.variant),
        time_text(row.metrics),
        _rate(row.metrics.flops_per_second, partial(format_flops, per_second=True)),
        _rate(bytes_per_second(row.metrics), format_bandwidth),
        _rate(intensity(row.metrics), "{:.3g}".format),
        _share(attainment.roof_share) if attainment else ABSENT,
        attainment.bound if attainment else ABSENT,
    )


def peak_sentence(key: PeakKey, peak: MachinePeak) -> str:
    """Describe the peak that the rows are compared with."""
    cache = peak.cache_bytes_per_second
    return one_line(
        f"peak of {key.text}: {format_flops(peak.flops_per_second, per_second=True)}, "
        f"memory {format_bandwidth(peak.bytes_per_second)}"
        + (f", caches up to {format_bandwidth(cache)}" if cache else "")
        + f"; measured {peak.measured[:10]} with torch {peak.torch_version}"
    )


def notes_of_roofline(roofline: Roofline) -> list[str]:
    """Return notes on missing peaks, untrusted rows and implausible shares."""
    notes = [
        f"no stored peak of {one_line(key.text)} for this machine; measure it there with: "
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
            f"above the roofline bound: {', '.join(above)}: the measured peak is too low, or the work is "
            "overestimated (a faster algorithm, lower internal precision, a fused loss)"
        )
    return notes


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "<1%"  # noqa: PLR2004 - below the precision shown


def _rate(value: float | None, text: Callable[[float], str]) -> str:
    return ABSENT if value is None else text(value)
