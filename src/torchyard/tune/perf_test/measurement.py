"""Run a performance test: two common first checks of a PyTorch installation as one measurement.

A square matrix product (operations per second, share of the machine's peak) and the inference of a
three-layer perceptron (with the table of its operators), under the current settings and under tuned
ones, alternating.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from torchyard.bench.bench_run import run_bench
from torchyard.bench.launch import LaunchProcesses, VariantFailed, draw_launch
from torchyard.bench.roofline.machine_peak import PeakRequest, peak_of_machine
from torchyard.core.comparison import Comparison
from torchyard.core.events import Listener
from torchyard.core.records import decode
from torchyard.core.roofline import MachinePeak
from torchyard.core.study import Study, Variant, Workload
from torchyard.errors import TorchyardError
from torchyard.tune.model import Contender


@dataclass(frozen=True, kw_only=True)
class OperatorRow:
    """An operator or kernel, over all iterations."""

    name: str
    calls: int
    on_device: bool = False
    """Whether it is a kernel or copy; its time is also in the row of the operator that launched it."""
    self_cost: float
    """CPU time in ns, without nested operators."""
    total_cost: float
    self_device_cost: float = 0.0
    """GPU time in ns."""
    total_device_cost: float = 0.0


@dataclass(frozen=True, kw_only=True)
class OperatorTable:
    """Time of one variant by operator."""

    workload: str
    variant: str
    iterations: int
    rows: tuple[OperatorRow, ...]
    """Most expensive first."""
    why_not: str = ""
    """Why there are no rows."""

    @property
    def operators(self) -> tuple[OperatorRow, ...]:
        """Rows of operators on the CPU."""
        return tuple(row for row in self.rows if not row.on_device)

    @property
    def kernels(self) -> tuple[OperatorRow, ...]:
        """Rows of kernels on the GPU, most expensive first."""
        return tuple(row for row in self.rows if row.on_device)

    @property
    def total_ns(self) -> float:
        """Total self CPU time."""
        return sum(row.self_cost for row in self.operators)

    @property
    def device_ns(self) -> float:
        """Total GPU time."""
        return sum(row.self_device_cost for row in self.kernels)


@dataclass(frozen=True, kw_only=True)
class PerfTest:
    """Result of a performance test."""

    comparisons: tuple[Comparison, ...]
    """The product first, then the inference."""
    tables: tuple[OperatorTable, ...]
    peak: MachinePeak | None
    peak_why_not: str = ""
    run: str = ""
    """The run folder."""
    settings: tuple[tuple[str, str], ...] = ()
    """Name of each variant and a description of its settings."""


WARM_S: Final = 3.0


def run_perf_test(
    study: Study, *, folder: Path, command: Sequence[str], iterations: int, listener: Listener
) -> PerfTest:
    """Measure both workloads of the study, then profile the operators of the last one."""
    peak, why_not = _peak(study, listener)
    rows = run_bench(study, folder=folder, command=command, listener=listener)
    tables = operator_tables(study, study.workloads[-1], iterations=iterations)
    return PerfTest(
        comparisons=tuple(rows),
        tables=tuple(tables),
        peak=peak,
        peak_why_not=why_not,
        run=str(folder),
        settings=tuple((variant.name, settings_of(variant)) for variant in study.variants),
    )


def settings_of(variant: Variant) -> str:
    """Describe how a variant differs from plain `python program.py`."""
    environment = variant.environment
    parts = [f"{key}={value}" for key, value in environment.variables]
    parts += [f"preload {Path(library).name}" for library in environment.preload]
    if environment.threads is not None:
        parts.append(f"{environment.threads} threads")
    if variant.backend != "eager":
        parts.append(variant.backend)
    parts += [key if value is True else f"{key}={value}" for key, value in variant.options]
    return ", ".join(parts) or "unchanged"


def tuned_variant(current: Variant, winner: Contender) -> Variant:
    """Return the current variant with the settings of a race winner."""
    return replace(winner.variant(current), name="tuned")


def _peak(study: Study, listener: Listener) -> tuple[MachinePeak | None, str]:
    """Return the peak of the current settings, or why it is unavailable."""
    baseline = study.baseline
    request = PeakRequest(
        target=baseline.target,
        device=study.workloads[0].device,
        precision=baseline.precision,
        threads=baseline.environment.threads or study.settings.threads,
    )
    try:
        return peak_of_machine(request, listener=listener).peak, ""
    except TorchyardError as error:
        return None, error.what + (f": {error.why}" if error.why else "")


def operator_tables(study: Study, workload: Workload, *, iterations: int) -> list[OperatorTable]:
    """Return one table of profiled operators per variant, or why there is none.

    Measured in a launch of their own: a profiler slows down what it observes, so its times are used
    for shares only.
    """
    with tempfile.TemporaryDirectory(prefix="torchyard-operators-") as folder:
        return [
            _operator_table(study, workload, variant, Path(folder), iterations)
            for variant in study.variants
        ]


def _operator_table(
    study: Study, workload: Workload, variant: Variant, folder: Path, iterations: int
) -> OperatorTable:
    settings = study.settings
    table = OperatorTable(workload=workload.label, variant=variant.name, iterations=0, rows=())
    try:
        with LaunchProcesses(
            workload,
            (variant,),
            settings,
            draw=draw_launch(random.Random(settings.seed)),
            log_folder=folder,
            scratch=folder,
        ) as processes:
            processes.ask(variant, "warm", phase="warm-up", seconds=WARM_S, variant=variant.name)
            answer = processes.ask(
                variant, "operators", phase="profile", iterations=iterations, variant=variant.name
            )
    except VariantFailed as failed:
        return replace(table, why_not=failed.failure.message)
    rows = tuple(decode(OperatorRow, row, where="row", strict=False) for row in answer["rows"])
    return replace(table, iterations=int(answer["iterations"]), rows=rows)
