"""Small records for tests of run folders."""

from __future__ import annotations

from torchyard.core.block import Block, GuardReading
from torchyard.core.comparison import (
    Accuracy,
    AccuracyStatus,
    Comparison,
    Estimate,
    Failure,
    Interval,
    VariantMetrics,
    Verdict,
)
from torchyard.core.study import Budget, Environment, Study, Target, Variant, Workload

MATMUL = Workload(suite="kernels", name="matmul", parameters=(("size", 256),))
GPT = Workload(suite="models", name="gpt", mode="training", batch_size=4)

TARGET = Target(name="this", python="/opt/python/bin/python", variables=(("OMP_NUM_THREADS", "2"),))
STUDY = Study(
    name="eager against inductor",
    baseline=Variant(name="eager", target=TARGET),
    candidates=(
        Variant(
            name="inductor",
            target=TARGET,
            backend="inductor",
            environment=Environment(name="tcmalloc", preload=("/usr/lib/libtcmalloc.so",)),
        ),
    ),
    workloads=(MATMUL, GPT),
    budget=Budget(time_s=20.0),
)


def block(launch: int, round_: int, variant: str, *, dirty: tuple[str, ...] = ()) -> Block:
    return Block(
        launch=launch,
        round=round_,
        position=0 if variant == "eager" else 1,
        variant=variant,
        seat=round_,
        inner=2,
        samples_ns=(1.0e6 + round_, 1.1e6, 1.05e6),
        started_ns=10_000 * round_,
        wall_ns=3_200_000,
        guard=GuardReading(cpu_ns=3_100_000, throttle_reasons=("sw_power_cap",)),
        dirty=dirty,
    )


FASTER = Comparison(
    workload=MATMUL,
    baseline="eager",
    candidate="inductor",
    verdict=Verdict.FASTER,
    estimate=Estimate(
        verdict=Verdict.FASTER,
        speedup=1.25,
        interval=Interval(low=1.2, high=1.3),
        p_value=0.0004,
        launches=5,
        pairs=50,
        pairs_dropped=2,
        launch_sd=0.01,
        pair_sd=0.02,
        minimum_detectable=0.02,
        time_needed_s=None,
        reasons=("precision reached",),
    ),
    accuracy=Accuracy(status=AccuracyStatus.PASS, method="allclose", max_error=1e-6, compared=1),
    baseline_metrics=VariantMetrics(time_ns=1.0e6, unavailable=(("flops", "not known"),)),
    candidate_metrics=VariantMetrics(time_ns=0.8e6, graph_breaks=(("print", 2),), graphs=3),
    shared_process=True,
)
FAILED = Comparison(
    workload=GPT,
    baseline="eager",
    candidate="inductor",
    verdict=Verdict.FAILED,
    failure=Failure(
        kind="crashed",
        phase="warm",
        variant="inductor",
        message="signal 11",
        log="logs/launch-1.txt",
        log_tail="bytes that were no text: \udcff\x1b[31mred",
    ),
)
