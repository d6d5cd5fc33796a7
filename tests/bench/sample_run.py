"""A realistic run with every verdict, written by the real writer, with fixed dates."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

from tests.sample_records import made_block
from torchyard.core.block import Block, GuardReading
from torchyard.core.comparison import (
    Accuracy,
    AccuracyStatus,
    Comparison,
    Estimate,
    Failure,
    GuardSummary,
    Interval,
    VariantMetrics,
    Verdict,
)
from torchyard.core.study import Environment, Study, Target, Variant, Workload
from torchyard.results.run_reader import Run, read_run
from torchyard.results.run_writer import RunWriter

TARGET = Target(name="nightly", python="/opt/nightly/bin/python")
EAGER = Variant(name="eager", target=TARGET)
INDUCTOR = Variant(name="inductor", target=TARGET, backend="inductor")
TCMALLOC = Variant(
    name="tcmalloc",
    target=TARGET,
    environment=Environment(name="tcmalloc", preload=("/usr/lib/libtcmalloc.so.4",)),
)

MATMUL = Workload(suite="kernels", name="matmul", parameters=(("size", 1000),))
ATTENTION = Workload(suite="kernels", name="attention")
EMBEDDING = Workload(suite="kernels", name="embedding", mode="training")
RESNET = Workload(suite="models", name="resnet", batch_size=8)
GPT = Workload(suite="models", name="gpt", mode="training", optimizer_step=True)
LSTM = Workload(suite="models", name="lstm", device="cuda")

STUDY = Study(
    name="eager against inductor and tcmalloc",
    baseline=EAGER,
    candidates=(INDUCTOR, TCMALLOC),
    workloads=(MATMUL, ATTENTION, EMBEDDING, RESNET, GPT, LSTM),
)

PASSED = Accuracy(
    status=AccuracyStatus.PASS, method="float64 reference", max_error=2.4e-6, compared=3
)
MACHINE: dict[str, object] = {
    "cpu": "Example 9000, 2 cores",
    "memory_bytes": 8 * 2**30,
    "governor": "unavailable, because /sys is not readable",
    "kernel": "6.1.0",
}

GUARDS: tuple[dict[str, str], ...] = (
    {"run-queue wait": "", "steal": "", "temperature": "there is no sensor"},
    {"run-queue wait": "", "steal": "/proc/stat is gone", "temperature": "there is no sensor"},
)
"""Of the first launch and of the second."""


def estimate(
    verdict: Verdict,
    speedup: float,
    half_width: float,
    *,
    launches: int = 8,
    pairs: int = 160,
    p_value: float | None = 0.0002,
    pairs_dropped: int = 0,
    time_needed_s: float | None = None,
    reasons: tuple[str, ...] = (),
) -> Estimate:
    return Estimate(
        verdict=verdict,
        speedup=speedup,
        interval=Interval(low=speedup * (1 - half_width), high=speedup * (1 + half_width)),
        p_value=p_value,
        p_adjusted=None if p_value is None else min(1.0, 2 * p_value),
        scope="launches" if launches > 1 else "processes",
        launches=launches,
        pairs=pairs,
        pairs_dropped=pairs_dropped,
        launch_sd=half_width if launches > 1 else None,
        pair_sd=0.02,
        minimum_detectable=half_width * 1.5 if launches > 1 else None,
        time_needed_s=time_needed_s,
        reasons=reasons,
    )


def metrics(time_ns: float, *, compiled: bool = False) -> VariantMetrics:
    return VariantMetrics(
        time_ns=time_ns,
        compile_cold_s=21.4 if compiled else None,
        compile_warm_s=3.1 if compiled else None,
        peak_memory_bytes=412 * 2**20,
        memory_method="peak resident set of the process",
        graphs=2 if compiled else None,
        graph_breaks=(("call to print", 1), ("data-dependent branch", 2)) if compiled else (),
        recompiles=1 if compiled else None,
        recompile_reasons=(("batch size 16: size mismatch at index 0", 1),) if compiled else (),
        energy_j=0.0123 if compiled else None,
        torch_version="2.9.0",
        unavailable=(("flops", "the suite does not know them"),),
    )


COMPARISONS = (
    Comparison(
        workload=MATMUL,
        baseline="eager",
        candidate="inductor",
        verdict=Verdict.FASTER,
        estimate=estimate(Verdict.FASTER, 1.352, 0.008, pairs_dropped=9),
        accuracy=PASSED,
        baseline_metrics=metrics(12.34e6),
        candidate_metrics=metrics(9.13e6, compiled=True),
        shared_process=True,
        elapsed_s=48.0,
        timed_share=0.82,
        guards=GuardSummary(
            blocks=64,
            dirty=10,
            reasons=(("waited for a core", 8), ("core slowed down", 4)),
            temperature_c=(41.0, 48.5),
        ),
    ),
    Comparison(
        workload=ATTENTION,
        baseline="eager",
        candidate="inductor",
        verdict=Verdict.SLOWER,
        estimate=estimate(Verdict.SLOWER, 0.934, 0.011),
        accuracy=PASSED,
        baseline_metrics=metrics(842e3),
        candidate_metrics=metrics(901e3),
        shared_process=True,
    ),
    Comparison(
        workload=EMBEDDING,
        baseline="eager",
        candidate="inductor",
        verdict=Verdict.SAME,
        estimate=estimate(Verdict.SAME, 1.001, 0.006, p_value=0.41),
        accuracy=Accuracy(status=AccuracyStatus.RANDOM),
        baseline_metrics=metrics(3.2e6),
        candidate_metrics=metrics(3.2e6),
        shared_process=True,
    ),
    Comparison(
        workload=RESNET,
        baseline="eager",
        candidate="inductor",
        verdict=Verdict.UNDECIDED,
        estimate=estimate(
            Verdict.UNDECIDED,
            1.021,
            0.03,
            p_value=0.18,
            time_needed_s=172.0,
            reasons=("the interval holds both no difference and differences beyond 1%",),
        ),
        accuracy=PASSED,
        baseline_metrics=metrics(54.2e6),
        candidate_metrics=metrics(53.1e6),
        shared_process=True,
    ),
    Comparison(
        workload=GPT,
        baseline="eager",
        candidate="inductor",
        verdict=Verdict.WRONG,
        estimate=estimate(Verdict.FASTER, 1.811, 0.01),
        accuracy=Accuracy(
            status=AccuracyStatus.FAIL,
            method="float64 reference",
            max_error=0.31,
            candidate_rmse=0.11,
            baseline_rmse=3e-7,
            compared=52,
            detail="gradient of blocks.3.attn.weight",
        ),
        baseline_metrics=metrics(88e6),
        candidate_metrics=metrics(48.6e6, compiled=True),
        shared_process=True,
    ),
    Comparison(
        workload=LSTM,
        baseline="eager",
        candidate="inductor",
        verdict=Verdict.FAILED,
        failure=Failure(
            kind="out-of-memory",
            phase="warm",
            variant="inductor",
            message="the worker was killed by the kernel at 7.6 GiB",
            hint="give a smaller batch-size",
            log="logs/launch-0-nightly.txt",
            log_tail="compiling graph 1\ncompiling graph 2\nKilled",
        ),
        baseline_metrics=metrics(1.9e9),
    ),
    Comparison(
        workload=MATMUL,
        baseline="eager",
        candidate="tcmalloc",
        verdict=Verdict.UNDECIDED,
        estimate=estimate(
            Verdict.UNDECIDED,
            1.004,
            0.004,
            launches=1,
            pairs=20,
            p_value=None,
            reasons=("a single launch is valid for its own processes only",),
        ),
        accuracy=Accuracy(status=AccuracyStatus.UNCHECKED),
        baseline_metrics=metrics(12.34e6),
        candidate_metrics=metrics(12.29e6),
        notes=("preloads libtcmalloc",),
    ),
)


PHASES = (
    [
        ["other", "", 0.0, 10.0],
        ["process start", "", 0.0, 2.0],
        ["accuracy check", "inductor", 2.0, 6.0],
        ["compilation", "inductor", 2.0, 5.0],
        ["block set-up", "inductor", 6.0, 9.5],
        ["timed blocks", "inductor", 6.5, 9.5],
    ],
    [
        ["waiting", "", 10.0, 40.0],
        ["other", "", 40.0, 42.5],
        ["timed blocks", "eager", 40.5, 42.0],
    ],
)


def blocks_of(comparison: Comparison, seed: int) -> list[Block]:
    """Blocks whose ratios scatter around the comparison's speedup; the last ones are dirty."""
    found = comparison.estimate
    if found is None:
        return []
    rng = random.Random(seed)
    blocks = []
    dirty_left = found.pairs_dropped
    for launch in range(found.launches):
        shift = rng.gauss(0, found.launch_sd or 0.0)
        for round_ in range(4):
            dirty = ("waited for a core",) if dirty_left > 0 and round_ == 3 else ()
            dirty_left -= bool(dirty)
            ratio = found.speedup * math.exp(shift + rng.gauss(0, 0.004))
            for position, variant in enumerate((comparison.baseline, comparison.candidate)):
                time_ns = 1e6 if position == 0 else 1e6 / ratio
                blocks.append(
                    made_block(
                        variant,
                        launch=launch,
                        round=round_,
                        position=position,
                        seat=round_,
                        samples_ns=(time_ns,) * 3,
                        started_ns=round_ * 10**9,
                        wall_ns=3 * 10**6,
                        guard=GuardReading(cpu_ns=3 * 10**6, cpu_temperature_c=41.0 + launch),
                        dirty=dirty if position == launch % 2 else (),
                    )
                )
    return blocks


def write_run(
    folder: Path, *, study: Study = STUDY, comparisons: tuple[Comparison, ...] = COMPARISONS
) -> Run:
    """The sample run in that folder, with dates and names that never change."""
    writer = RunWriter.create(
        folder,
        study=study,
        command=["torchyard", "compare", "kernels/matmul", "--against", "two words"],
        machine=MACHINE,
    )
    writer.add_target("nightly", {"torch": "2.9.0", "python": "3.12.1", "threads": 2})
    for launch in range(2):
        writer.add_launch(
            {
                "workload": MATMUL.label,
                "launch": launch,
                "guards": GUARDS[launch],
                "phases": PHASES[launch],
            }
        )
    for seed, comparison in enumerate(comparisons):
        writer.add_blocks(comparison.workload, blocks_of(comparison, seed))
        writer.add_comparison(comparison)
    (writer.logs / "launch-0-nightly.txt").write_text("Killed\n")
    writer.finish("finished")
    facts = json.loads((folder / "run.json").read_text())
    facts.update(
        id="20250102T030405.678Z-4f2a",
        torchyard="0.1.0",
        started="2025-01-02T03:04:05.678Z",
        finished="2025-01-02T03:12:41.002Z",
    )
    (folder / "run.json").write_text(json.dumps(facts))
    return read_run(folder)
