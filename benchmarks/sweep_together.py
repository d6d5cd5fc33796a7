"""The workloads of `sweep_cost.py` as one real sweep with several cells under way: how long it takes as a whole.

A part of `sweep_cost.py`, which runs it with `--together N`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweep_cost_cases import Case
from torchyard.core.study import Study
from torchyard.results.run_reader import read_run
from torchyard.sweep.execution import SweepDriver
from torchyard.sweep.executors.interface import open_executor
from torchyard.sweep.folder import SweepFolder
from torchyard.sweep.model import Cell, ExecutorChoice, SweepPlan


def together(cases: Sequence[Case], studies: Sequence[Study], at_most: int) -> dict[str, Any]:
    """Wall time from the first process to the last answer, and the answers."""
    cells = tuple(
        Cell(id=f"{number:04d}-{case.workload.name}", study=study)
        for number, (case, study) in enumerate(zip(cases, studies, strict=True))
    )
    choice = ExecutorChoice(options=(("at-most", at_most),))
    with tempfile.TemporaryDirectory(prefix="torchyard-") as name:
        folder = SweepFolder.create(
            Path(name) / "sweep", SweepPlan(name="cost", cells=cells, executor=choice)
        )
        executor = open_executor(
            choice,
            folder.folder,
            lambda cell: [sys.executable, "-m", "torchyard", "sweep-cell", name + "/sweep", cell],
            folder.log_path,
        )
        began_s = time.monotonic()
        statuses = SweepDriver(folder, executor, listener=lambda _view: None).run()
        wall_s = time.monotonic() - began_s
        rows = [
            row
            for status in statuses
            if status.run
            for row in read_run(folder.folder / status.run).comparisons
        ]
    return {
        "wall_s": wall_s,
        "at_most": at_most,
        "cells": len(rows),
        "verdicts": dict(Counter(row.verdict.value for row in rows)),
    }
