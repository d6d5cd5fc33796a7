"""Tiny studies over workloads from files, and a search for leftover processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import psutil

from torchyard.bench.bench_run import run_bench
from torchyard.core.comparison import Comparison
from torchyard.core.events import ignore_events
from torchyard.core.study import Budget, MeasureSettings, Study, Target, Variant, Workload
from torchyard.process.timing_turn import TimingTurn

HERE = Target(name="here", python=sys.executable)
QUICK = MeasureSettings(block_s=0.02, threads=1)


def write_file(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(dedent(text), encoding="utf-8")
    return str(path)


def bench(
    folder: Path,
    workload: str,
    *candidates: Variant,
    baseline: Variant | None = None,
    settings: MeasureSettings = QUICK,
    launches: int = 1,
    budget: Budget | None = None,
    turn: TimingTurn | None = None,
) -> list[Comparison]:
    """Run one workload from a file; `folder` becomes the run folder."""
    study = Study(
        name="tiny",
        baseline=baseline or Variant(name="base", target=HERE),
        candidates=candidates or (Variant(name="other", target=HERE),),
        workloads=(Workload(suite="file", name=workload),),
        budget=budget or Budget(time_s=2.0, min_launches=launches, max_launches=launches),
        settings=settings,
    )
    rows = run_bench(study, folder=folder, command=["tiny"], listener=ignore_events, turn=turn)
    assert leftover_processes(os.getpid()) == []
    return rows


def leftover_processes(yard_pid: int) -> Sequence[int]:
    """Living processes that carry the marks of that yard's launches."""
    found = []
    for process in psutil.process_iter():
        try:
            variables = process.environ()
            alive = process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            continue
        yard = variables.get("TORCHYARD_YARD", "")
        if alive and "TORCHYARD_LAUNCH" in variables and yard.startswith(f"{yard_pid}:"):
            found.append(process.pid)
    return found
