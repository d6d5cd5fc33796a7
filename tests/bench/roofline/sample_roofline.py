"""A run of kernels with known numbers, and the peak of its machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.bench.sample_run import EAGER, INDUCTOR, TARGET, estimate, write_run
from tests.sample_records import made_peak
from torchyard.core.comparison import Comparison, VariantMetrics, Verdict
from torchyard.core.roofline import ProductRate, StreamRate
from torchyard.core.study import MeasureSettings, Study, Variant, Workload
from torchyard.machine.identity import machine_name
from torchyard.results.run_reader import Run

FACTS = {"architecture": "aarch64", "cpu": "Example 9000", "cores": "2", "memory": "8 GiB"}
MACHINE = machine_name({"machine": FACTS})
HALF = Variant(name="inductor+bfloat16", target=TARGET, backend="inductor", precision="bfloat16")

MATMUL = Workload(suite="kernels", name="matmul", parameters=(("size", 1000),))
VECTOR = Workload(suite="kernels", name="matmul-vector")
NORM = Workload(suite="kernels", name="layer-norm", mode="training")
GPT = Workload(suite="models", name="gpt")

PEAK = made_peak(
    100e9,
    20e9,
    machine=MACHINE,
    threads=2,
    products=(
        ProductRate(size=256, flops_per_second=80e9),
        ProductRate(size=1024, flops_per_second=100e9),
    ),
    streams=(
        StreamRate(kind="copy", working_set_bytes=2**20, bytes_per_second=60e9),
        StreamRate(kind="triad", working_set_bytes=2**20, bytes_per_second=50e9),
        StreamRate(kind="copy", working_set_bytes=2**27, bytes_per_second=20e9),
        StreamRate(kind="triad", working_set_bytes=2**27, bytes_per_second=18e9),
    ),
    duration_s=14.6,
    load="0.10 0.05 0.01",
)


def metrics(
    seconds: float, *, flops: float | None = None, moved: float | None = None
) -> VariantMetrics:
    return VariantMetrics(
        time_ns=seconds * 1e9, flops=flops, moved_bytes=moved, torch_version="2.9.0"
    )


def row(
    workload: Workload,
    candidate: str,
    baseline_metrics: VariantMetrics,
    candidate_metrics: VariantMetrics,
    *,
    verdict: Verdict = Verdict.FASTER,
) -> Comparison:
    return Comparison(
        workload=workload,
        baseline="eager",
        candidate=candidate,
        verdict=verdict,
        estimate=estimate(verdict, 1.25, 0.01),
        baseline_metrics=baseline_metrics,
        candidate_metrics=candidate_metrics,
    )


MATMUL_EAGER = metrics(25e-3, flops=2e9, moved=12e6)
COMPARISONS = (
    row(MATMUL, "inductor", MATMUL_EAGER, metrics(21e-3, flops=2e9, moved=12e6)),
    row(MATMUL, "inductor+bfloat16", MATMUL_EAGER, metrics(12e-3, flops=2e9, moved=6e6)),
    row(
        VECTOR,
        "inductor",
        metrics(1.5e-3, flops=8.4e6, moved=16.8e6),
        metrics(1.2e-3, flops=8.4e6, moved=16.8e6),
    ),
    row(NORM, "inductor", metrics(1e-3, moved=12e6), metrics(0.5e-3, moved=12e6)),
    row(
        VECTOR,
        "inductor+bfloat16",
        metrics(1.5e-3, flops=8.4e6, moved=16.8e6),
        metrics(1e-6, flops=8.4e6, moved=8.4e6),
        verdict=Verdict.WRONG,
    ),
    row(GPT, "inductor", metrics(0.1, flops=1e9), metrics(0.08, flops=1e9)),
)


def roofline_run(folder: Path, comparisons: tuple[Comparison, ...] = COMPARISONS) -> Run:
    """The run as it is read, with facts that name its machine."""
    run = write_run(folder)
    study = Study(
        name="kernels against their roofs",
        baseline=EAGER,
        candidates=(INDUCTOR, HALF),
        workloads=(MATMUL, VECTOR, NORM, GPT),
        settings=MeasureSettings(threads=2),
    )
    info = {**run.info, "machine": FACTS}
    return replace(run, info=info, study=study, comparisons=comparisons)
