"""How large the HTML report of a big run is, and what writing it costs.

    python benchmarks/report_size.py [WORKLOADS] [--keep FOLDER]

Makes a run of WORKLOADS workloads (200 unless told) with 8 launches of 10 pairs and 40 samples in a
block, in a temporary folder, and writes its page twice in one process: the first time bundles the
chart runtime and starts the drawing library, as every new process does without its cache. Times are
processor time, because machines are busy. The goal is 3 MB for 200 workloads.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import sys
import tempfile
import time
from pathlib import Path

from torchyard.bench.report.formats import FORMATS
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
from torchyard.core.study import Study, Target, Variant, Workload
from torchyard.results.run_reader import read_run
from torchyard.results.run_writer import RunWriter

GOAL_BYTES = 3_000_000
LAUNCHES, ROUNDS, SAMPLES = 8, 10, 40
HERE = Target(name="here", python="/usr/bin/python3")


def comparison(index: int, rng: random.Random) -> Comparison:
    """Mostly faster or slower, now and then undecided or failed."""
    workload = Workload(
        suite=("kernels", "models", "huggingface")[index % 3],
        name=f"workload-number-{index:03}",
        mode="training" if index % 2 else "inference",
    )
    if index % 25 == 24:
        failure = Failure(
            kind="raised",
            phase="compile",
            variant="inductor",
            message="RuntimeError: a message of a usual length, with the operator that it is about",
            log=f"logs/workload-{index}.txt",
            log_tail="\n".join(
                f'  File "torch/_inductor/part_{n}.py", line {n}' for n in range(60)
            ),
        )
        return Comparison(
            workload=workload,
            baseline="eager",
            candidate="inductor",
            verdict=Verdict.FAILED,
            failure=failure,
        )
    speedup = math.exp(rng.gauss(0.1, 0.25))
    clear = Verdict.FASTER if speedup > 1 else Verdict.SLOWER
    verdict = Verdict.UNDECIDED if index % 7 == 0 else clear
    metrics = VariantMetrics(
        time_ns=5e6,
        compile_cold_s=20.0,
        compile_warm_s=2.0,
        peak_memory_bytes=10**9,
        memory_method="allocator",
        graphs=2,
        graph_breaks=(("a reason of a usual length for a break in the graph", 2),),
        torch_version="2.13.0",
    )
    return Comparison(
        workload=workload,
        baseline="eager",
        candidate="inductor",
        verdict=verdict,
        estimate=Estimate(
            verdict=verdict,
            speedup=speedup,
            interval=Interval(low=speedup * 0.98, high=speedup * 1.02),
            p_value=0.001,
            p_adjusted=0.002,
            launches=LAUNCHES,
            pairs=LAUNCHES * ROUNDS,
            pairs_dropped=4,
            launch_sd=0.02,
            pair_sd=0.01,
            minimum_detectable=0.02,
            time_needed_s=40.0,
        ),
        accuracy=Accuracy(status=AccuracyStatus.PASS, method="float64 reference", compared=40),
        baseline_metrics=metrics,
        candidate_metrics=metrics,
        elapsed_s=60.0,
        timed_share=0.8,
    )


def blocks_of(one: Comparison, rng: random.Random) -> list[Block]:
    """Noisy blocks of both sides, one in twenty dirty, with a slow sample now and then."""
    if one.estimate is None:
        return []
    blocks = []
    for launch in range(LAUNCHES):
        for round_ in range(ROUNDS):
            for position, variant in enumerate(("eager", "inductor")):
                middle = 5e6 if position == 0 else 5e6 / one.estimate.speedup
                samples = tuple(
                    round(middle * math.exp(abs(rng.gauss(0, 0.02))), 1) for _ in range(SAMPLES)
                )
                blocks.append(
                    Block(
                        launch=launch,
                        round=round_,
                        position=position,
                        variant=variant,
                        seat=0,
                        inner=1,
                        samples_ns=(*samples[1:], middle * rng.choice((1.0, 1.1, 8.0))),
                        started_ns=(launch * ROUNDS + round_) * 10**9,
                        wall_ns=10**8,
                        guard=GuardReading(cpu_ns=10**8),
                        dirty=("waited for a core",) if rng.random() < 0.05 else (),
                    )
                )
    return blocks


def write_run(folder: Path, workloads: int) -> None:
    rng = random.Random(1)
    comparisons = [comparison(index, rng) for index in range(workloads)]
    study = Study(
        name=f"{workloads} workloads",
        baseline=Variant(name="eager", target=HERE),
        candidates=(Variant(name="inductor", target=HERE, backend="inductor"),),
        workloads=tuple(one.workload for one in comparisons),
    )
    writer = RunWriter.create(folder, study=study, command=["torchyard"], machine={"cpu": "some"})
    for one in comparisons:
        writer.add_blocks(one.workload, blocks_of(one, rng))
        writer.add_comparison(one)
    writer.finish("finished")


def parts_of(page: str) -> dict[str, int]:
    """Bytes of the page by what they are for."""
    found = {
        "chart runtime": sum(map(len, re.findall(r'id="chart-runtime">[^<]*', page))),
        "data of charts": sum(
            len(text.encode())
            for text in re.findall(r'<script type="application/json">[^<]*', page)
        ),
        "forest plot and bars": sum(
            len(text.encode())
            for text in re.findall(
                r'<figure class="chart">(?:<figcaption>[^<]*</figcaption>)?<svg.*?</svg>',
                page,
                re.DOTALL,
            )
        ),
        "table": sum(
            len(text.encode()) for text in re.findall(r"<tr data-part.*?</tr>", page, re.DOTALL)
        ),
    }
    return {**found, "the rest": len(page.encode()) - sum(found.values())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="?", type=int, default=200)
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["XDG_CACHE_HOME"] = temporary
        folder = Path(temporary) / "run"
        write_run(folder, arguments.workloads)
        run = read_run(folder)
        begun = time.process_time()
        count = sum(1 for _ in run.blocks())
        print(f"reading {count} blocks: {time.process_time() - begun:.1f} s")
        page = ""
        for name in ("first page", "second page"):
            begun = time.process_time()
            page = FORMATS["html"](run)
            print(f"{name}: {time.process_time() - begun:.1f} s, reading included")
        if arguments.keep:
            arguments.keep.mkdir(parents=True, exist_ok=True)
            (arguments.keep / "report.html").write_text(page)
    size = len(page.encode())
    print(f"{arguments.workloads} workloads: {size / 1e6:.2f} MB")
    print(json.dumps({name: f"{part / 1e6:.2f} MB" for name, part in parts_of(page).items()}))
    return int(size > GOAL_BYTES * max(1.0, arguments.workloads / 200))


if __name__ == "__main__":
    sys.exit(main())
