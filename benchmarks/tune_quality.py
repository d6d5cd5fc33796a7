"""How good the winner of `torchyard tune` is, and how long it takes to find it.

    python benchmarks/tune_quality.py kernels/mlp --batch-size 16 --budget 4m --space benchmarks/tune_quality.toml

Three ways to choose settings for one workload, in one run: the race; an exhaustive search over all
combinations of the same choices, each measured with a fixed number of launches; and what
`torch.backends.xeon.run_cpu` would set (an allocator that is there, threads bound to cores, waiting
threads that sleep soon). Then all three are measured side by side against the default, on launches of
their own: what counts is that last table, and the time that each search took.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torchyard.bench.bench_run import run_bench
from torchyard.bench.request import Request, SpecText
from torchyard.bench.study_assembly import assemble
from torchyard.bench.workload_text import choose_workload
from torchyard.core.events import Event, ignore_events
from torchyard.core.number_checks import CHECKS
from torchyard.core.study import Budget, Study
from torchyard.process.start import find_library
from torchyard.tune.model import Choice, Contender, Race, RaceFolder
from torchyard.tune.race import RaceRun
from torchyard.tune.race_rounds import RaceRounds
from torchyard.tune.space import plan_race

HEAT = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload")
    parser.add_argument("--mode", default="inference")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--space", default="default")
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--launches", type=int, default=3, help="of each combination")
    parser.add_argument("--final", type=int, default=8, help="launches of the last table")
    parser.add_argument("--most", type=int, default=400, help="combinations at most")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tune-quality-") as name:
        measure(given, Path(name))


def measure(given: argparse.Namespace, folder: Path) -> None:
    study = study_of(given)
    budget_s = float(CHECKS["time"].read(given.budget, where="--budget"))
    race = plan_race(study, space=given.space, budget_s=budget_s, with_changes=False)
    began_s = time.monotonic()
    kept = RaceFolder.create(folder / "race")
    heats = RaceRounds(kept, race, command=sys.argv, listener=ignore_events)
    race = RaceRun(kept, race, heats, listener=lambda _, text: say(text)).run()
    race_s = time.monotonic() - began_s
    proposed = race.winner or Contender()
    say(f"race: {proposed.name} in {race_s:.0f} s")
    combinations = all_combinations(race.space.choices)[: given.most]
    began_s = time.monotonic()
    best = exhaustive(race, combinations, given.launches, folder)
    exhaustive_s = time.monotonic() - began_s
    say(f"exhaustive: {best.name} of {len(combinations)} in {exhaustive_s:.0f} s")
    usual = run_cpu_style()
    finals = {"race": proposed, "exhaustive": best, "run_cpu": usual}
    table(race, finals, {"race": race_s, "exhaustive": exhaustive_s}, given.final, folder)


def study_of(given: argparse.Namespace) -> Study:
    spec = SpecText(text=given.workload, where="workload", folder=Path.cwd())
    choice = replace(choose_workload(spec), batch_size=given.batch_size)
    return assemble(Request(workloads=(choice,), modes=(given.mode,)), here=sys.executable)


def all_combinations(choices: Sequence[Choice]) -> list[Contender]:
    """One choice or none of each dimension, all but the default itself."""
    dimensions: dict[str, list[Choice | None]] = {}
    for choice in choices:
        dimensions.setdefault(choice.dimension, [None]).append(choice)
    found = []
    for chosen in itertools.product(*dimensions.values()):
        contender = Contender()
        for one in chosen:
            if one is not None:
                contender = contender.with_choice(one)
        if contender.choices:
            found.append(contender)
    return found


def exhaustive(
    race: Race, combinations: Sequence[Contender], launches: int, folder: Path
) -> Contender:
    """The one whose measured speedup is the largest."""
    speeds: dict[str, float] = {}
    for number in range(0, len(combinations), HEAT):
        some = combinations[number : number + HEAT]
        rows = bench(race, some, launches, folder / f"exhaustive-{number}")
        speeds.update(rows)
        say(f"exhaustive: {min(number + HEAT, len(combinations))} of {len(combinations)}")
    by_name = {one.name: one for one in combinations}
    best = max(speeds, key=lambda name: speeds[name], default="")
    return by_name[best] if best and speeds[best] > 1.0 else Contender()


def run_cpu_style() -> Contender:
    """What the launcher of torch sets on one node: allocator, binding, sleeping threads."""
    contender = Contender()
    for library in ("libtcmalloc.so.4", "libjemalloc.so.2"):
        path = find_library(library)
        if path is not None:
            contender = contender.with_choice(
                Choice(dimension="allocator", name=library.split(".")[0][3:], preload=(str(path),))
            )
            break
    return contender.with_choice(
        Choice(
            dimension="openmp",
            name="bound",
            variables=(("KMP_BLOCKTIME", "1"), ("OMP_PLACES", "cores"), ("OMP_PROC_BIND", "close")),
        )
    )


def bench(
    race: Race, contenders: Sequence[Contender], launches: int, folder: Path
) -> dict[str, float]:
    rows = run_bench(
        _study(race, contenders, launches), folder=folder, command=sys.argv, listener=_warn
    )
    return {row.candidate: row.estimate.speedup for row in rows if row.estimate is not None}


def table(
    race: Race,
    finals: dict[str, Contender],
    took_s: dict[str, float],
    launches: int,
    folder: Path,
) -> None:
    """The three side by side against the default, on fresh launches."""
    different = {one.name: one for one in finals.values() if one.choices}
    rows = run_bench(
        _study(race, list(different.values()), launches),
        folder=folder / "final",
        command=sys.argv,
        listener=_warn,
    )
    found = {row.candidate: row for row in rows}
    print("| way | settings | speed | 95 % interval | search |")
    print("|---|---|--:|---|--:|")
    for way, contender in finals.items():
        row = found.get(contender.name)
        speed, interval = "1", ""
        if row is not None and row.estimate is not None:
            speed = f"{row.estimate.speedup:.3f}"
            if row.estimate.interval is not None:
                ends = row.estimate.interval
                interval = f"{ends.low:.3f} to {ends.high:.3f}"
        elif row is not None and row.failure is not None:
            speed = "failed"
        search = f"{took_s[way]:.0f} s" if way in took_s else "none"
        print(f"| {way} | {contender.name} | {speed} | {interval} | {search} |", flush=True)


def _study(race: Race, contenders: Sequence[Contender], launches: int) -> Study:
    seconds = 0.6 * (len(contenders) + 1)
    return Study(
        name="tune quality",
        baseline=race.default,
        candidates=tuple(one.variant(race.default) for one in contenders),
        workloads=(race.workload,),
        budget=Budget(
            time_s=max(60.0, 4 * launches * seconds),
            precision_goal=0.0,
            min_launches=launches,
            max_launches=launches,
            launch_s=seconds,
        ),
        settings=replace(race.settings, check_accuracy=False),
    )


def _warn(event: Event) -> None:
    if event.kind == "warning":
        say(event.text)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
