"""How often a slowdown of exactly known size is found: comparisons of two variants in one process.

    python benchmarks/known_slowdowns.py collect --data slowdowns.jsonl --minutes 40
    python benchmarks/known_slowdowns.py collect --data slowdowns.jsonl --cores 6-15 --minutes 9
    python benchmarks/known_slowdowns.py report --data slowdowns.jsonl

Three chains of a hundred equal layers (linear layers, convolutions, and products with weights in
closures, which cannot be relocated) are compared with themselves and with 1, 2 and 5 layers more, by
the ordinary stopping rule. `collect` runs one comparison on each of the cores at a time, in turns over
the cases; it appends a line for each and can be stopped and continued.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from torchyard.bench.bench_run import run_bench
from torchyard.core.events import ignore_events
from torchyard.core.study import Budget, MeasureSettings, Study, Target, Variant, Workload

INJECTED = Path(__file__).with_name("injected.py")
WORKLOADS = {
    "linear layers": Workload(suite="kernels", name="layered-mlp"),
    "convolutions": Workload(suite="file", name=f"{INJECTED}:convolutions"),
    "closures": Workload(suite="file", name=f"{INJECTED}:captured"),
}
EFFECTS = (2, 1, 0, 5)
"""Layers more, in a hundred."""


def compare(workload: str, extra: int, time_s: float, seed: int) -> dict[str, Any]:
    """Make one comparison by the ordinary rules, as `torchyard bench` does."""
    target = Target(name="here", python=sys.executable)
    base, candidate = (
        Variant(name=name, target=target, backend=f"{INJECTED}:plus_{layers}")
        for name, layers in (("base", 0), ("longer", extra))
    )
    study = Study(
        name="known",
        baseline=base,
        candidates=(candidate,),
        workloads=(WORKLOADS[workload],),
        budget=Budget(time_s=time_s),
        settings=MeasureSettings(threads=1, check_accuracy=False, seed=seed),
    )
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
        run = Path(folder) / "run"
        (row,) = run_bench(study, folder=run, command=sys.argv, listener=ignore_events)
        launches = [json.loads(line) for line in (run / "launches.jsonl").open(encoding="utf-8")]
    interval = None if row.estimate is None else row.estimate.interval
    return {
        "workload": workload,
        "extra": extra,
        "time_s": time_s,
        "seed": seed,
        "verdict": str(row.state),
        "speedup": None if row.estimate is None else row.estimate.speedup,
        "interval": None if interval is None else [interval.low, interval.high],
        "launches": None if row.estimate is None else row.estimate.launches,
        "starts_s": [launch["start_s"] for launch in launches],
        "timed_s": [launch["timing"]["timed_s"] for launch in launches],
        "timed_share": row.timed_share,
        "elapsed_s": row.elapsed_s,
        "wall_s": time.monotonic() - began,
        "untrusted": list(row.untrusted),
    }


def collect(
    data: Path, minutes: float, cores: list[int], effects: list[int], time_s: float
) -> None:
    """Append comparisons until the time is used; each core runs one at a time."""
    deadline = time.monotonic() + 60 * minutes
    cases = [(workload, extra) for extra in effects for workload in WORKLOADS]
    done = sum(1 for _ in data.open()) if data.exists() else 0
    running: dict[int, subprocess.Popen[str]] = {}
    with data.open("a", encoding="utf-8") as file:
        while running or time.monotonic() < deadline:
            for core in cores:
                ended = running.get(core)
                if ended is not None and ended.poll() is not None:
                    file.write(ended.communicate()[0])
                    file.flush()
                    del running[core]
                if core not in running and time.monotonic() + time_s < deadline:
                    workload, extra = cases[done % len(cases)]
                    done += 1
                    running[core] = _start(workload, extra, time_s, done, core)
            if not running:
                break
            time.sleep(0.5)


def _start(workload: str, extra: int, time_s: float, seed: int, core: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "one", "--workload", workload, "--effect", str(extra)]
    command += ["--time", str(time_s), "--seed", str(seed), "--cores", str(core)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def report(records: list[dict[str, Any]]) -> None:
    """Print one row for each workload and effect."""
    print("| workload | slowdown | comparisons | slower | same | faster | covered | half-width |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for workload in WORKLOADS:
        for extra in sorted(EFFECTS):
            rows = [r for r in records if (r["workload"], r["extra"]) == (workload, extra)]
            known = [r for r in rows if r["interval"]]
            if not known:
                continue
            truth = 100 / (100 + extra)
            verdicts = [r["verdict"] for r in rows]
            covered = sum(r["interval"][0] <= truth <= r["interval"][1] for r in known)
            widths = sorted((r["interval"][1] - r["interval"][0]) / 2 for r in known)
            counts = [
                f"{verdicts.count(name) / len(rows):.0%}" for name in ("slower", "same", "faster")
            ]
            print(
                f"| {workload} | {extra} % | {len(rows)} | {' | '.join(counts)} "
                f"| {covered} of {len(known)} | {widths[len(widths) // 2]:.2%} |"
            )
    for name in ("launches", "timed_share", "wall_s"):
        values = sorted(r[name] for r in records if r[name] is not None)
        if values:
            print(f"{name}: median {values[len(values) // 2]:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["collect", "report", "one"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--cores", default="0", help="such as 0,2 or 6-15; one comparison on each")
    parser.add_argument("--effect", type=int, action="append", choices=EFFECTS)
    parser.add_argument("--time", type=float, default=60.0, help="seconds of one comparison")
    parser.add_argument("--workload", choices=list(WORKLOADS), help="for one comparison")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    cores = [
        core
        for part in options.cores.split(",")
        for core in range(int(part.partition("-")[0]), int(part.rpartition("-")[2]) + 1)
    ]
    effects = options.effect or list(EFFECTS)
    if options.action == "one":
        os.sched_setaffinity(0, cores)
        print(json.dumps(compare(options.workload, effects[0], options.time, options.seed)))
    elif options.data is None:
        parser.error("--data is required")
    elif options.action == "collect":
        collect(options.data, options.minutes, cores, effects, options.time)
    else:
        report([json.loads(line) for line in options.data.open(encoding="utf-8")])


if __name__ == "__main__":
    main()
