"""Runs with known effects, written by the real writer, for tests of `compare` and `gate`."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchyard.core.block import Block, GuardReading
from torchyard.core.comparison import (
    Accuracy,
    AccuracyStatus,
    Comparison,
    Failure,
    VariantMetrics,
    Verdict,
)
from torchyard.core.study import Budget, Environment, Study, Target, Variant, Workload
from torchyard.results.run_reader import Run, read_run
from torchyard.results.run_writer import RunWriter
from torchyard.stats.estimate import estimate
from torchyard.stats.pairs import pair_blocks, summarize_guards

HERE = Target(name="here", python="/opt/yard/bin/python")
EAGER = Variant(name="eager", target=HERE)
FAST = Variant(name="fast", target=HERE, backend="inductor")
SLOW = Variant(
    name="slow",
    target=HERE,
    backend="inductor",
    environment=Environment(name="default", variables=()),
)
MATMUL = Workload(suite="kernels", name="matmul")
GPT = Workload(suite="models", name="gpt", mode="training")
STUDY = Study(
    name="planted",
    baseline=EAGER,
    candidates=(FAST, SLOW),
    workloads=(MATMUL, GPT),
    budget=Budget(precision_goal=0.0, time_s=60.0),
)
MACHINE: dict[str, Any] = {
    "architecture": "x86_64",
    "cpu": "Example 9000",
    "cores": "8",
    "load": "0.10 0.10 0.10",
    "governor": "performance",
    "kernel": "6.1.0",
}
FACTS: dict[str, Any] = {
    "torch": "2.9.0",
    "torch_git": "0123456789abcdef",
    "torch_config": "PyTorch built with: GCC 12",
    "python": "3.12.1",
    "threads": 4,
    "openmp": ["libgomp.so.1"],
    "allocators": [],
    "pid": 4711,
    "executable": "/opt/yard/bin/python",
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a planted run shows. Effects are log speedups over the baseline, by variant."""

    effects: Mapping[str, float] = field(default_factory=lambda: {"fast": 0.2, "slow": 0.05})
    study: Study = STUDY
    machine: Mapping[str, Any] = field(default_factory=lambda: MACHINE)
    target: Mapping[str, Any] = field(default_factory=lambda: FACTS)
    seed: int = 1
    launches: int = 8
    launch_sd: float = 0.004
    drift: float = 0.0
    """Log factor on every time of the run."""
    busy: bool = False
    failed: tuple[tuple[str, str], ...] = ()
    """Workload's name and variant."""
    wrong: tuple[tuple[str, str], ...] = ()
    memory_bytes: int = 100 * 2**20
    compile_s: float = 10.0
    started: str = "2025-01-02T03:04:05.678Z"


def write_session(folder: Path, plan: Plan) -> Run:
    """The run in that folder; its id is the folder's name."""
    writer = RunWriter.create(
        folder, study=plan.study, command=["torchyard"], machine=dict(plan.machine)
    )
    writer.add_target("here+default", dict(plan.target))
    for number, workload in enumerate(plan.study.workloads):
        blocks = simulate_blocks(plan, number)
        for launch in range(plan.launches):
            writer.add_launch(
                {
                    "workload": workload.label,
                    "launch": launch,
                    "start_s": 2.0,
                    "timing": {"wall_s": 5.0},
                }
            )
        writer.add_blocks(workload, blocks)
        for candidate in plan.study.candidates:
            writer.add_comparison(_comparison(plan, workload, candidate, blocks))
    writer.finish("finished")
    facts = json.loads((folder / "run.json").read_text())
    facts |= {"started": plan.started, "finished": plan.started}
    facts["owner"] |= {"host": "yard", "boot": "one"}
    (folder / "run.json").write_text(json.dumps(facts))
    return read_run(folder)


def simulate_blocks(plan: Plan, number: int) -> list[Block]:
    """Every variant once in each round; each launch draws how far its processes are apart."""
    chance = random.Random(f"{plan.seed}/{number}")
    blocks: list[Block] = []
    for launch in range(plan.launches):
        layouts = {v.name: chance.gauss(0.0, plan.launch_sd) for v in plan.study.variants}
        for round_ in range(6):
            for position, variant in enumerate(plan.study.variants):
                effect = plan.effects.get(variant.name, 0.0)
                log = plan.drift + layouts[variant.name] + chance.gauss(0.0, 0.001) - effect
                blocks.append(
                    Block(
                        launch=launch,
                        round=round_,
                        position=position,
                        variant=variant.name,
                        seat=round_,
                        inner=1,
                        samples_ns=(1e6 * (number + 1) * math.exp(log),),
                        started_ns=(launch * 6 + round_) * 10**9,
                        wall_ns=10**7,
                        guard=GuardReading(),
                        dirty=("waited for a core",) if plan.busy else (),
                    )
                )
    return blocks


def _comparison(
    plan: Plan, workload: Workload, candidate: Variant, blocks: list[Block]
) -> Comparison:
    base = plan.study.baseline
    key = (workload.name, candidate.name)
    row = Comparison(
        workload=workload, baseline=base.name, candidate=candidate.name, verdict=Verdict.FAILED
    )
    if key in plan.failed:
        failure = Failure(
            kind="crashed",
            phase="warm",
            variant=candidate.name,
            message="signal 11",
            log="/opt/yard/logs/x.txt",
            log_tail="secret words",
        )
        return replace(row, failure=failure)
    paired = pair_blocks(blocks, base.name, candidate.name)
    estimated = estimate(paired.medians, looks=(), budget=plan.study.budget)
    row = replace(
        row,
        verdict=estimated.verdict,
        estimate=estimated,
        accuracy=Accuracy(status=AccuracyStatus.PASS),
        baseline_metrics=_metrics(plan, blocks, base.name),
        candidate_metrics=_metrics(plan, blocks, candidate.name),
        guards=summarize_guards(blocks, base.name, candidate.name),
        untrusted=("noisy machine: all pairs were disturbed",) if paired.busy else (),
    )
    if key in plan.wrong:
        bad = Accuracy(status=AccuracyStatus.FAIL, detail="output 0 is off by 3")
        return replace(row, verdict=Verdict.WRONG, accuracy=bad)
    return row


def _metrics(plan: Plan, blocks: list[Block], name: str) -> VariantMetrics:
    times = sorted(block.median_ns for block in blocks if block.variant == name)
    return VariantMetrics(
        time_ns=times[len(times) // 2],
        compile_cold_s=plan.compile_s,
        peak_memory_bytes=plan.memory_bytes,
        torch_version="2.9.0",
    )
