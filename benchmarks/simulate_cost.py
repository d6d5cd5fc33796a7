"""What a verdict of Torchyard takes on simulated machines: launches and seconds, by what was asked for.

Prints a table of docs/explanation/what-a-sweep-costs.md:

    python benchmarks/simulate_cost.py

Both sides are the same code, so that every comparison must be shown to be the same within 5 %. Pairs of a
launch follow one another (AR(1), 0.5), one in twenty is disturbed, and launches differ by 0.5 %. Starting a
launch takes 3 s and a pair 0.2 s, as with an iteration of 0.1 s.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from torchyard.bench.rounds import MIN_FITTING_SHARE
from torchyard.core.comparison import Estimate, Verdict
from torchyard.core.study import Budget
from torchyard.stats.estimate import decided, estimate
from torchyard.stats.stopping import InterimAnalysis

START_S, PAIR_S = 3.0, 0.2
LAUNCH_SD = 0.005
FOLLOWING = 0.5
DISTURBED = 0.05
MARGIN = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=300, help="simulated comparisons per row")
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    print_row(
        "time allowed", "pairs per launch", "pairs differ by", "same", "undecided", "false alarms"
    )
    print("| " + " | ".join(["---:"] * 8) + " |")
    for time_s, pairs in [(12, 6), (15, 6), (30, 6), (60, 6), (15, 3), (15, 12)]:
        for spread in (0.01, 0.03):
            budget = Budget(time_s=time_s, precision_goal=MARGIN, margin=MARGIN)
            found = [compared(rng, budget, pairs, spread) for _ in range(options.repeats)]
            verdicts = [one.verdict for one, _ in found]
            same, undecided = verdicts.count(Verdict.SAME), verdicts.count(Verdict.UNDECIDED)
            alarms = options.repeats - same - undecided
            shares = [f"{count / options.repeats:.1%}" for count in (same, undecided, alarms)]
            launches = float(np.mean([one.launches for one, _ in found]))
            seconds = float(np.mean([took_s for _, took_s in found]))
            print_row(
                f"{time_s} s",
                str(pairs),
                f"{spread:.0%}",
                *shares,
                last=(f"{launches:.1f}", f"{seconds:.1f}"),
            )


def compared(
    rng: np.random.Generator, budget: Budget, pairs: int, spread: float
) -> tuple[Estimate, float]:
    """One comparison under the stopping rule, and the measuring time it took."""
    launches: list[list[float]] = []
    looks: list[InterimAnalysis] = []
    took_s = 0.0
    while True:
        launches.append(launch(rng, pairs, spread))
        took_s += pairs * PAIR_S + (START_S if len(launches) > 1 else 0.0)
        if len(launches) < budget.min_launches:
            continue
        left_s = budget.time_s - took_s
        last = left_s < MIN_FITTING_SHARE * (START_S + pairs * PAIR_S)
        fraction = 1.0 if last else min(0.999, took_s / budget.time_s)
        looks.append(InterimAnalysis(launches=len(launches), fraction=fraction))
        found = estimate(launches, looks=looks, budget=budget)
        if last or decided(found, budget):
            return found, took_s


def launch(rng: np.random.Generator, pairs: int, spread: float) -> list[float]:
    """Log speedups of the pairs of one launch; the truth is 0."""
    steps = rng.normal(0.0, 1.0, pairs)
    for index in range(1, pairs):
        steps[index] = FOLLOWING * steps[index - 1] + math.sqrt(1 - FOLLOWING**2) * steps[index]
    steps += (rng.random(pairs) < DISTURBED) * rng.normal(0.0, 5.0, pairs)
    return [float(value) for value in rng.normal(0.0, LAUNCH_SD) + spread * steps]


def print_row(*cells: str, last: tuple[str, str] = ("launches (mean)", "seconds (mean)")) -> None:
    print("| " + " | ".join((*cells, *last)) + " |")


if __name__ == "__main__":
    main()
