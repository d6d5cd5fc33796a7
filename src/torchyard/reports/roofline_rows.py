"""Which rows of a run can be held against the machine's peak, and how near each came.

A row is one variant on one workload. The peak is looked up in the home folder by the machine that the
run was made on, so it may have been measured before the run or after it. Where there is none, the
row still has its rates, and the command that measures the peak is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from torchyard.core.comparison import Comparison, VariantMetrics, Verdict
from torchyard.core.roofline import Attainment, MachinePeak, attainment_of
from torchyard.core.variant import Variant
from torchyard.core.workload import Workload
from torchyard.reports.peak_text import peak_command, threads_text
from torchyard.results.machine_identity import machine_name
from torchyard.results.peak_files import find_peak
from torchyard.results.run_reader import Run

__all__ = ["ABOVE", "PeakKey", "Roofline", "RooflineRow", "roofline_of"]

ABOVE: Final = 1.05
"""A share above this is more than noise: the peak is too low, or something was counted too high."""
_SUITE: Final = "kernels"


@dataclass(frozen=True, kw_only=True)
class PeakKey:
    """What a peak is of."""

    machine: str
    device: str
    precision: str
    threads: int

    @property
    def text(self) -> str:
        """For people: `cpu, float32, 2 threads`."""
        return f"{self.device}, {self.precision}{threads_text(self.threads)}"

    @property
    def command(self) -> str:
        """What measures it."""
        return peak_command(self.device, self.precision, self.threads)


@dataclass(frozen=True, kw_only=True)
class RooflineRow:
    """One variant on one workload."""

    workload: Workload
    variant: str
    metrics: VariantMetrics
    key: PeakKey
    attainment: Attainment | None
    """None without a peak."""
    untrusted: bool = False
    """Whether its times must not be trusted."""

    @property
    def name(self) -> str:
        """The workload in short: without the suite, and without the mode where it is the usual one."""
        label = self.workload.label.removeprefix(f"{_SUITE}/")
        return label.replace(" inference", "", 1)


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """All rows of a run, and the peaks there are."""

    rows: tuple[RooflineRow, ...]
    peaks: tuple[tuple[PeakKey, MachinePeak], ...]
    missing: tuple[PeakKey, ...]
    """Peaks that rows would need and nobody has measured."""

    def placed(self, key: PeakKey) -> list[RooflineRow]:
        """Rows that have a place in the picture of that peak."""
        return [
            row
            for row in self.rows
            if row.key == key and row.attainment and row.attainment.intensity
        ]


def roofline_of(run: Run, *, find: Callable[..., MachinePeak | None] = find_peak) -> Roofline:
    """What the run says of rooflines; without rows where no workload says what it moves."""
    look_up = cache(find)
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
            peak = replace(peak, streams=())  # nothing is left in a cache that is emptied
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
    """Each variant of each workload once; what is wrong or failed has no speed to speak of."""
    seen: set[tuple[str, str]] = set()
    for comparison in comparisons:
        sides = [(comparison.baseline, comparison.baseline_metrics)]
        if comparison.verdict not in {Verdict.WRONG, Verdict.FAILED}:
            sides.append((comparison.candidate, comparison.candidate_metrics))
        for name, metrics in sides:
            key = (comparison.workload.label, name)
            if key not in seen and _tells(comparison.workload, metrics):
                seen.add(key)
                yield comparison, name, metrics


def _tells(workload: Workload, metrics: VariantMetrics) -> bool:
    """Whether there are rates to be shown; models are left to the table of comparisons."""
    if not metrics.time_ns:
        return False
    return metrics.moved_bytes is not None or (
        workload.suite == _SUITE and metrics.flops is not None
    )


def _key_of(run: Run, workload: Workload, variant: Variant) -> PeakKey:
    # A run is named after its GPU when any workload ran on one; a peak is of one device.
    info = {**run.info, "study": {"workloads": [{"device": workload.device}]}}
    return PeakKey(
        machine=machine_name(info),
        device=workload.device,
        precision=variant.precision,
        threads=_threads(run, variant) if workload.device == "cpu" else 0,
    )


def _threads(run: Run, variant: Variant) -> int:
    """As `measure.starting` chose them; 0 when the number of cores was not recorded."""
    chosen = variant.environment.threads or run.study.settings.threads
    if chosen:
        return chosen
    facts = run.info.get("machine")
    cores = str(facts.get("cores", "")) if isinstance(facts, dict) else ""
    return int(cores) if cores.isdecimal() else 0
