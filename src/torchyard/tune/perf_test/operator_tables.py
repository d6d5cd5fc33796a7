"""Operator tables of each variant from the profiler, for `torchyard perf-test`.

Measured in a launch of their own: a profiler slows down what it observes, so its times are used
for shares only.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Final

from torchyard.bench.launch import LaunchProcesses, VariantFailed, draw_launch
from torchyard.core.records import decode
from torchyard.core.study import Study, Workload
from torchyard.tune.perf_test.model import OperatorRow, OperatorTable

WARM_S: Final = 3.0


def operator_tables(study: Study, workload: Workload, *, iterations: int) -> list[OperatorTable]:
    """Return one table per variant; the table of a variant that fails states why."""
    settings = study.settings
    tables = []
    with tempfile.TemporaryDirectory(prefix="torchyard-operators-") as folder:
        for variant in study.variants:
            try:
                with LaunchProcesses(
                    workload,
                    (variant,),
                    settings,
                    draw=draw_launch(random.Random(settings.seed)),
                    log_folder=Path(folder),
                    scratch=Path(folder),
                ) as processes:
                    limit_s = settings.step_limit_s
                    processes.ask(
                        variant,
                        "warm",
                        phase="warm-up",
                        limit_s=limit_s,
                        variant=variant.name,
                        seconds=WARM_S,
                    )
                    answer = processes.ask(
                        variant,
                        "operators",
                        phase="profile",
                        limit_s=limit_s,
                        variant=variant.name,
                        iterations=iterations,
                    )
            except VariantFailed as failed:
                tables.append(
                    OperatorTable(
                        workload=workload.label,
                        variant=variant.name,
                        iterations=0,
                        rows=(),
                        why_not=failed.failure.message,
                    )
                )
                continue
            tables.append(
                OperatorTable(
                    workload=workload.label,
                    variant=variant.name,
                    iterations=int(answer["iterations"]),
                    rows=tuple(
                        decode(OperatorRow, row, where="row", strict=False)
                        for row in answer["rows"]
                    ),
                )
            )
    return tables
