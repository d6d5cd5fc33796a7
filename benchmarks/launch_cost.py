"""Cost of a launch, from its start until it is ready to be timed: started afresh, or forked.

Both kinds of launch are taken in turns, with one folder of compiled artifacts, so that all but the
first launch find everything compiled. Prints the median wall and CPU seconds of each phase. The CPU
time is that of the worker, of all its processes, of the template and of this process; the start of
the templates is shown apart. With `--session SECONDS`, a session of that measuring time follows, and
the table shows where its wall time went.

    python benchmarks/launch_cost.py --launches 5 --workload kernels/layer-norm
    python benchmarks/launch_cost.py --launches 0 --session 10 --workload models/mlp:training
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil

from process_cost import Cost
from torchyard.bench.bench_run import run_bench
from torchyard.bench.launch import LaunchProcesses, draw_launch
from torchyard.bench.launch_templates import TEMPLATES, LaunchTemplates
from torchyard.bench.preparation import PreparationState, compile_variant, warm_up
from torchyard.bench.timeline import PhaseTimes, phase_times
from torchyard.core.comparison import Comparison
from torchyard.core.events import ignore_events
from torchyard.core.study import Budget, MeasureSettings, Study, Target, Variant, Workload
from torchyard.process.templates import TemplatePool
from torchyard.results.run_reader import read_run

PHASES = ("start and build", "first calls", "warm-up")


class Meter:
    """Wall and CPU time of this process and all that it started, since the last reading."""

    def __init__(self) -> None:
        self._before = (time.perf_counter(), tree_cpu_s())

    def read(self) -> Cost:
        """Return the cost since the last reading."""
        now = (time.perf_counter(), tree_cpu_s())
        wall_s, cpu_s = (after - before for after, before in zip(now, self._before, strict=True))
        self._before = now
        return Cost(wall_s=wall_s, cpu_s=cpu_s)


def tree_cpu_s() -> float:
    """CPU time of this process and its living descendants, with their ended children."""
    total = 0.0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
        if process.pid != own.pid:
            total += times.children_user + times.children_system
    return total


def ended_cpu_s() -> float:
    """CPU time of this process and of its descendants that have ended."""
    whos = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(who)[:2]) for who in whos)


def launch(
    workload: Workload,
    pair: list[Variant],
    settings: MeasureSettings,
    prepared: PreparationState,
    chance: random.Random,
    scratch: Path,
    templates: LaunchTemplates | None,
    number: int,
) -> list[Cost]:
    meter = Meter()
    with LaunchProcesses(
        workload,
        pair,
        settings,
        draw=draw_launch(chance),
        log_folder=scratch / f"logs-{time.monotonic_ns()}",
        scratch=scratch,
        templates=templates,
        number=number,
        compiled_before=bool(prepared.first_calls_s),
    ) as processes:
        for key, reason in processes.not_forked.items():
            if reason:
                sys.exit(f"{key} was not forked: {reason}")
        costs = [meter.read()]
        for variant in processes.variants:
            compile_variant(processes, variant)
        costs.append(meter.read())
        for variant in processes.variants:
            warm_up(processes, variant, prepared)
        costs.append(meter.read())
        return costs


def session(
    workload: Workload, pair: list[Variant], settings: MeasureSettings, time_s: float
) -> None:
    """Run a session and print the sums of its phases."""
    study = Study(
        name="cost",
        baseline=pair[0],
        candidates=tuple(pair[1:]),
        workloads=(workload,),
        budget=Budget(time_s=time_s),
        settings=settings,
    )
    with tempfile.TemporaryDirectory(prefix="torchyard-") as name:
        folder, began_s, used_s = Path(name) / "run", time.perf_counter(), ended_cpu_s()
        (row,) = run_bench(study, folder=folder, command=["cost"], listener=ignore_events)
        cost = Cost(wall_s=time.perf_counter() - began_s, cpu_s=ended_cpu_s() - used_s)
        launches = read_run(folder).launches()
        report_session(row, cost, phase_times(launches), len(launches))


def report_session(row: Comparison, cost: Cost, times: PhaseTimes, launches: int) -> None:
    estimate = row.estimate
    answer = f"{estimate.speedup:.3f}x {row.state}" if estimate else str(row.state)
    print(f"session: {answer}, {launches} launches, {_text([cost])}")
    for phase, seconds in times.seconds.items():
        print(f"  {phase:16} {seconds:8.2f} s {seconds / times.wall_s:6.1%}")
    share = times.timed_share_after_compilation or 0.0
    print(f"  timed share after the first compilation: {share:.1%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="inductor")
    parser.add_argument(
        "--workload", action="append", default=[], help="SUITE/NAME or SUITE/NAME:MODE; repeatable"
    )
    parser.add_argument("--session", type=float, default=0.0, help="measuring time in seconds")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    kept: dict[str, object] = {}
    for text in options.workload or ["kernels/layer-norm"]:
        suite, _, name = text.partition("/")
        name, _, mode = name.partition(":")
        workload = Workload(suite=suite, name=name, mode=mode or "inference", device=options.device)
        target = Target(name="here", python=sys.executable)
        pair = [
            Variant(name=backend, target=target, backend=backend)
            for backend in ("eager", options.backend)
        ]
        settings = replace(MeasureSettings(), threads=options.threads)
        if options.session:
            print(f"\n{text}")
            session(workload, pair, settings, options.session)
        if not options.launches:
            continue
        prepared, chance = PreparationState(), random.Random(1)
        rows: dict[str, list[list[Cost]]] = {"fresh": [], "fork": []}
        with tempfile.TemporaryDirectory(prefix="torchyard-") as folder, TemplatePool() as pool:
            scratch = Path(folder)
            cold = launch(workload, pair, settings, prepared, chance, scratch, None, 0)
            templates = LaunchTemplates(pool, settings)
            meter = Meter()
            for number in range(TEMPLATES):
                launch(workload, pair, settings, prepared, chance, scratch, templates, number)
            first = meter.read()
            for number in range(options.launches):
                for way, source in (("fresh", None), ("fork", templates)):
                    rows[way].append(
                        launch(workload, pair, settings, prepared, chance, scratch, source, number)
                    )
        report(text, cold, first, rows)
        kept[text] = {
            way: [[(cost.wall_s, cost.cpu_s) for cost in costs] for costs in launches]
            for way, launches in rows.items()
        }
        if options.json:
            Path(options.json).write_text(json.dumps(kept))


def report(text: str, cold: list[Cost], first: Cost, rows: dict[str, list[list[Cost]]]) -> None:
    print(f"\n{text}: first launch, nothing compiled: {_text(cold)}")
    print(
        f"first launch of each of {TEMPLATES} templates, together:"
        f" {first.wall_s:.2f} s wall, {first.cpu_s:.2f} s CPU"
    )
    print(f"{'way':6} {'launches':>8}" + "".join(f"{name + ' wall/CPU s':>28}" for name in PHASES))
    for way, launches in rows.items():
        phases = [
            Cost(
                wall_s=statistics.median(costs[phase].wall_s for costs in launches),
                cpu_s=statistics.median(costs[phase].cpu_s for costs in launches),
            )
            for phase in range(len(PHASES))
        ]
        cells = "".join(f"{f'{cost.wall_s:.2f} / {cost.cpu_s:.2f}':>28}" for cost in phases)
        print(f"{way:6} {len(launches):8d}{cells}   total {_text(phases)}", flush=True)


def _text(costs: list[Cost]) -> str:
    wall_s, cpu_s = sum(cost.wall_s for cost in costs), sum(cost.cpu_s for cost in costs)
    return f"{wall_s:.2f} s wall, {cpu_s:.2f} s CPU"


if __name__ == "__main__":
    main()
