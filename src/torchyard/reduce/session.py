"""Run a reduction: a worker captures and times programs; the script is checked in new processes."""

from __future__ import annotations

import json
import math
import os
import platform
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from typing import Any, Final

from torchyard.bench.launch import LaunchProcesses, VariantFailed, draw_launch
from torchyard.core.comparison import Estimate
from torchyard.core.short_names import short_label
from torchyard.core.study import (
    COMMAND_SUITE,
    SCRIPT_SUITE,
    Budget,
    MeasureSettings,
    Variant,
    Workload,
)
from torchyard.errors import UsageError
from torchyard.process.programs import capture
from torchyard.reduce.group import units_of_part
from torchyard.reduce.model import SCALES, UNITS, WORSE, Group, Metric, Reduced, Sides
from torchyard.reduce.search import MARGIN, ReductionSearch, Round, Sizes, Unusable
from torchyard.reduce.storage import RoundStore
from torchyard.stats.estimate import estimate

FRESH: Final = {"time": 5, "memory": 2, "wrong": 2}
"""New processes that run the script."""
LARGER_ERROR: Final = 3.0
"""Factor between the errors of compiled and eager code from which on results count as wrong."""
_SCRIPT_LIMIT_S: Final = 600.0


def reduce_comparison(
    workload: Workload,
    baseline: Variant,
    candidate: Variant,
    settings: MeasureSettings,
    *,
    seconds: float,
    name: str,
    metric: Metric = "time",
    part: Group | None = None,
    store: RoundStore,
    listener: Callable[[str], None],
) -> Reduced:
    """Reduce a comparison; `name` is the file name of the script."""
    _check(workload, baseline, candidate)
    started_s = time.monotonic()
    with TemporaryDirectory(prefix="torchyard-reduce-") as folder:
        with LaunchProcesses(
            workload,
            (baseline, candidate),
            replace(settings, check_accuracy=False),
            draw=draw_launch(random.Random()),
            log_folder=Path(folder),
            scratch=Path(folder),
        ) as processes:

            def ask(verb: str, **fields: object) -> dict[str, Any]:
                return processes.ask(
                    candidate, verb, phase="timing", limit_s=settings.step_limit_s, **fields
                )

            def measure(units: Sequence[int], sizes: Sizes, rounds: int) -> Sequence[Round]:
                try:
                    answer = ask(
                        "reduce-measure",
                        metric=metric,
                        baseline=baseline.name,
                        candidate=candidate.name,
                        units=list(units),
                        sizes=[list(one) for one in sizes],
                        rounds=rounds,
                    )
                except VariantFailed as failed:
                    if not failed.process_alive:
                        raise
                    raise Unusable(failed.failure.message) from failed
                return [(float(a), float(b), float(c), float(d)) for a, b, c, d in answer["rounds"]]

            captured = ask("reduce-capture", variant=candidate.name)
            rounds = store.begin(captured["operators"])
            if rounds:
                listener(f"resumed after {rounds} rounds")
            search = ReductionSearch(
                captured["operators"],
                store.stored_first(measure),
                seconds=seconds,
                listener=listener,
                metric=metric,
                start=() if part is None else units_of_part(part, captured["places"]),
                part=part,
            )
            times = search.run(lambda units: ask("reduce-lengths", units=list(units))["lengths"])
            source = ask(
                "reduce-source",
                candidate=candidate.name,
                units=list(search.units),
                sizes=[list(one) for one in search.sizes],
                name=name,
                title=f"{short_label(workload)}: "
                + WORSE[metric].format(candidate.name, baseline.name)
                + ".",
                metric=metric,
                about="Reduced by Torchyard to the operators that show the difference.",
            )
            hello = processes.hellos[candidate.process_key]
        script = str(source["script"])
        shutil.rmtree(folder, ignore_errors=True)
    listener(f"check in {FRESH[metric]} new processes")
    fresh, checked, confirmed = _check_script(script, candidate, metric)
    return Reduced(
        workload=short_label(workload),
        baseline=baseline.name,
        candidate=candidate.name,
        metric=metric,
        operators_before=len(captured["operators"]),
        operators=tuple(source["operators"]),
        sizes=search.sizes,
        graphs=int(captured["graphs"]),
        end_to_end=times[0],
        part="" if part is None else part.name,
        part_loss=None if part is None else part.loss_ns / SCALES["time"],
        captured=times[1],
        cut=times[2],
        unrepeated=times[3],
        reduced=times[4],
        fresh=fresh,
        estimate=checked,
        confirmed=confirmed,
        complete=search.complete,
        tests=search.tests,
        elapsed_s=time.monotonic() - started_s,
        script=script,
        environment=(
            ("torch", str(hello.get("torch", "unavailable"))),
            ("Python", str(hello.get("python", "unavailable"))),
            ("system", f"{platform.system()} {platform.machine()}"),
            ("processor", _processor()),
        ),
    )


def _check(workload: Workload, baseline: Variant, candidate: Variant) -> None:
    reasons = {
        "whole programs": workload.suite == COMMAND_SUITE,
        "training scripts": workload.suite == SCRIPT_SUITE,
        "training with an optimizer step": workload.optimizer_step,
        "variants in different targets or environments": baseline.process_key
        != candidate.process_key,
        "different modules": bool(baseline.file or candidate.file),
        "different precisions": baseline.precision != candidate.precision,
        "autocast": candidate.precision == "amp",
        "several ranks": workload.ranks > 1,
        "several instances": candidate.environment.instances > 1,
        f"the baseline {baseline.backend}": baseline.backend != "eager",
    }
    for what, applies in reasons.items():
        if applies:
            raise UsageError(
                f"reduce does not support {what}",
                why="it compares eager and compiled code in one process",
                hint="choose a row such as eager against inductor",
            )


def _check_script(
    script: str, candidate: Variant, metric: Metric
) -> tuple[Sides | None, Estimate | None, bool]:
    """Run the script in new processes; return both sides, the speedup, and whether it shows the loss.

    None if the script fails, for example because of a custom operator.
    """
    pairs: list[tuple[float, float]] = []
    unit = UNITS[metric].lower()
    variables = {**os.environ, **dict(candidate.target.variables)}
    variables.update(candidate.environment.variables)
    with TemporaryDirectory(prefix="torchyard-reduce-") as folder:
        path = Path(folder) / "script.py"
        path.write_text(script, encoding="utf-8")
        variables["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "inductor")
        for _ in range(FRESH[metric]):
            try:
                run = capture(
                    [candidate.target.python, str(path), "--json"],
                    variables=variables,
                    folder=folder,
                    limit_s=_SCRIPT_LIMIT_S,
                )
                answer = json.loads(run.stdout.splitlines()[-1])
                pairs.append((float(answer[f"eager_{unit}"]), float(answer[f"compiled_{unit}"])))
            except (subprocess.TimeoutExpired, ValueError, IndexError, KeyError, OSError):
                return None, None, False
    if metric != "time":
        factor = LARGER_ERROR if metric == "wrong" else 1.0 + MARGIN
        baseline, other = pairs[0]
        shown = all(compiled > factor * eager for eager, compiled in pairs)
        return Sides(baseline=baseline, candidate=other), None, shown
    checked = estimate(
        [[math.log(eager / compiled)] for eager, compiled in pairs],
        looks=(),
        budget=Budget(min_launches=len(pairs), max_launches=len(pairs)),
    )
    eager, compiled = (geometric_mean(pair[i] for pair in pairs) for i in range(2))
    slower = checked.interval is not None and checked.interval.high < 1.0
    return Sides(baseline=eager, candidate=compiled), checked, slower


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or "unavailable"
    names = [line.partition(":")[2] for line in text.splitlines() if line.startswith("model name")]
    return names[0].strip() if names else platform.machine()
