"""Finished sweeps: plans, statuses and joined runs, without starting processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from torchyard.core.comparison import (
    Accuracy,
    AccuracyStatus,
    Comparison,
    Failure,
    VariantMetrics,
    Verdict,
)
from torchyard.core.study import Budget, Mode, Precision, Study, Target, Variant, Workload
from torchyard.results.run_reader import Run
from torchyard.stats.estimate import estimate
from torchyard.sweep.model import Attempt, Cell, CellState, CellStatus, Outcome, SweepPlan

TARGET = Target(name="here", python="python3")
BUDGET = Budget()
PASS = Accuracy(status=AccuracyStatus.PASS, method="float64 reference", compared=2)
MACHINE = {"cpu": "Example 9000", "cores": "2", "architecture": "aarch64"}


def workload(name: str, *, suite: str = "kernels", mode: Mode = "inference") -> Workload:
    return Workload(suite=suite, name=name, mode=mode)


def study(
    one: Workload, *, candidates: Sequence[str] = ("inductor",), precision: Precision = "float32"
) -> Study:
    return Study(
        name="sweep",
        baseline=Variant(name="eager", target=TARGET, precision=precision),
        candidates=tuple(
            Variant(name=name, target=TARGET, backend="inductor", precision=precision)
            for name in candidates
        ),
        workloads=(one,),
        budget=BUDGET,
    )


def cell(number: int, one: Study) -> Cell:
    return Cell(id=f"{number:04d}-{one.workloads[0].name}-{one.baseline.precision}", study=one)


def comparison(
    one: Workload,
    *,
    candidate: str = "inductor",
    speedup: float = 1.2,
    sd: float = 0.005,
    launches: int = 6,
    seed: int = 1,
    accuracy: Accuracy | None = PASS,
    compile_s: float | None = 10.0,
    memory: tuple[int, int] | None = (200, 100),
    untrusted: bool = False,
) -> Comparison:
    """One row, its estimate made from effects with exactly this mean and spread."""
    rng = np.random.default_rng(seed)
    drawn = rng.normal(0.0, 1.0, launches)
    if launches > 1:
        drawn *= sd / drawn.std(ddof=1)
    drawn += math.log(speedup) - drawn.mean()
    estimated = estimate([[float(value)] for value in drawn], looks=(), budget=BUDGET)
    wrong = accuracy is not None and accuracy.status is AccuracyStatus.FAIL
    before, after = memory or (None, None)
    return Comparison(
        workload=one,
        baseline="eager",
        candidate=candidate,
        verdict=Verdict.WRONG if wrong else estimated.verdict,
        estimate=estimated,
        accuracy=accuracy,
        baseline_metrics=VariantMetrics(
            time_ns=1e7, peak_memory_bytes=before, memory_method="resident set"
        ),
        candidate_metrics=VariantMetrics(
            time_ns=1e7 / speedup,
            compile_cold_s=compile_s,
            peak_memory_bytes=after,
            memory_method="resident set",
        ),
        untrusted=("noisy machine: 5 of 6 pairs were disturbed",) if untrusted else (),
    )


def failed(
    one: Workload, kind: str, *, candidate: str = "inductor", phase: str = "warm", tail: str = ""
) -> Comparison:
    return Comparison(
        workload=one,
        baseline="eager",
        candidate=candidate,
        verdict=Verdict.FAILED,
        failure=Failure(
            kind=kind,
            phase=phase,
            variant=candidate,
            message=f"it ended as {kind}",
            log="logs/launch-0.txt",
            log_tail=tail,
        ),
    )


def run(
    comparisons: Sequence[Comparison],
    *,
    precision: Precision = "float32",
    id_: str = "20250102T030405.678Z-4f2a",
    check_accuracy: bool = True,
    machine: dict[str, str] | None = None,
) -> Run:
    whole = study(workload("any"), precision=precision)
    settings = replace(whole.settings, check_accuracy=check_accuracy)
    return Run(
        folder=Path("runs") / id_,
        id=id_,
        state="finished",
        info={"id": id_, "machine": machine or MACHINE},
        study=replace(
            whole, workloads=tuple(one.workload for one in comparisons), settings=settings
        ),
        comparisons=tuple(comparisons),
    )


def status(
    one: Cell,
    state: CellState = "done",
    *,
    outcomes: Sequence[Outcome | None] = ("finished",),
    text: str = "",
    log: str = "",
) -> CellStatus:
    attempts = tuple(
        Attempt(number=number, outcome=outcome, why=text, log=log)
        for number, outcome in enumerate(outcomes, start=1)
    )
    return CellStatus(cell=one, state=state, attempts=attempts, text=text)


def plan(cells: Sequence[Cell], *, null: bool = False) -> SweepPlan:
    return SweepPlan(
        name="eager against inductor",
        cells=tuple(cells),
        null=null,
        created="2025-01-02T03:04:05Z",
        torchyard="0.1.0",
    )


def whole_sweep() -> tuple[SweepPlan, list[CellStatus], list[Run]]:
    """Two suites, two candidates, two precisions; every way to end."""
    both = ("inductor", "aot_eager")
    kernels = [workload(name) for name in ("matmul", "conv", "norm", "pad")]
    models = [workload(name, suite="models", mode="training") for name in ("gpt", "lstm", "resnet")]
    fp32: list[Comparison] = []
    half: list[Comparison] = []
    speeds = {"matmul": 1.02, "conv": 1.31, "norm": 2.4, "pad": 0.82, "gpt": 1.6, "resnet": 0.97}
    for seed, one in enumerate((*kernels, *models)):
        for candidate in both:
            slower = 1.0 if candidate == "inductor" else 0.9
            truth = speeds.get(one.name, 1.0) * slower
            made = comparison(one, candidate=candidate, speedup=truth, seed=seed)
            if (one.name, candidate) == ("lstm", "inductor"):
                made = failed(one, "out-of-memory", tail="compiling graph 1\nKilled")
            elif (one.name, candidate) == ("gpt", "inductor"):
                bad = Accuracy(status=AccuracyStatus.FAIL, detail="gradient of blocks.3.weight")
                made = comparison(one, candidate=candidate, speedup=1.9, accuracy=bad)
            elif (one.name, candidate) == ("pad", "aot_eager"):
                made = failed(one, "cannot-build", candidate=candidate, phase="build")
            elif (one.name, candidate) == ("norm", "aot_eager"):
                drawn = Accuracy(status=AccuracyStatus.NONDETERMINISTIC, detail="output 0")
                made = comparison(one, candidate=candidate, speedup=1.1, accuracy=drawn)
            elif (one.name, candidate) == ("matmul", "aot_eager"):
                made = comparison(one, candidate=candidate, speedup=1.011, sd=0.0085, seed=4)
            fp32.append(made)
    half.extend(
        comparison(one, speedup=1.5, seed=9, candidate=name) for one in kernels[:2] for name in both
    )
    precisions: list[tuple[Workload, Precision]] = [
        *((one, "float32") for one in (*kernels, *models)),
        *((one, "bfloat16") for one in kernels),
    ]
    cells = [
        cell(number, study(one, candidates=both, precision=precision))
        for number, (one, precision) in enumerate(precisions, start=1)
    ]
    statuses = [status(one) for one in cells]
    statuses[-2] = status(
        cells[-2], "failed", outcomes=("died", "time-limit"), text="took more than 600 s"
    )
    statuses[-1] = status(cells[-1], "running", outcomes=(None,), text="measuring")
    runs = [run(fp32), run(half, precision="bfloat16", id_="20250102T030405.678Z-77aa")]
    return plan(cells), statuses, runs


def null_sweep(
    count: int = 60, *, spread: float = 0.006, shift: float = 0.0
) -> tuple[SweepPlan, list[CellStatus], list[Run]]:
    """Everything against itself; `shift` is how far two identical sides seem apart each time."""
    rng = np.random.default_rng(11)
    rows, cells = [], []
    for number in range(count):
        one = workload(f"w{number:03d}")
        cells.append(cell(number + 1, study(one, candidates=("eager-again",))))
        effects = rng.normal(rng.choice([-1, 1]) * shift, spread, 6)
        estimated = estimate([[float(value)] for value in effects], looks=(), budget=BUDGET)
        rows.append(
            replace(
                comparison(one, candidate="eager-again", compile_s=None, memory=None),
                estimate=estimated,
                verdict=estimated.verdict,
            )
        )
    return plan(cells, null=True), [status(one) for one in cells], [run(rows)]
