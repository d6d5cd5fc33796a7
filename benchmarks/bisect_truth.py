"""Compare `torchyard bisect` with `git bisect` and a threshold, on simulated ranges of 64 changes.

Run as `python -m benchmarks.bisect_truth [RANGES]`. The rule of `git bisect`: each step runs one
revision several times and calls it bad if its median is above the middle between the medians of good
and bad. It gets as many runs as the search of Torchyard used on the same range. Noise is 1 % (SD) for
each run. `disturbed`: 5 % of the runs are 50 % slower. `drift`: the speed of the machine differs by 2 %
(SD) between rounds of Torchyard, and between the revisions that `git bisect` measures one after the other.
Slowdowns of 1 % are searched with a margin of 0.5 % and four times as much time.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from statistics import fmean, median

from tests.bisect.simulated_range import SimulatedRange, named, step
from torchyard.errors import NothingToDo, Untrustworthy

CHANGES = 64
STEPS = 6
SMALL = 0.01


def by_threshold(simulated: SimulatedRange, runs: int) -> int:
    """Return the revision that `git bisect` names with this number of runs."""
    each = max(1, runs // (STEPS + 2))

    def time(index: int) -> float:
        common = simulated.chance.gauss(0.0, simulated.round_sd)
        return common + median(simulated.log_time(index) for _ in range(each))

    low, high = 0, CHANGES
    threshold = (time(low) + time(high)) / 2.0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if time(middle) > threshold else (middle, high)
    return high


def compare(kind: str, size: float, ranges: int) -> str:
    """Return one row of the table."""
    slow_share = 0.05 if kind == "disturbed" else 0.0
    round_sd = 0.02 if kind == "drift" else 0.0

    def simulate(seed: int, levels: list[float]) -> SimulatedRange:
        margin = 0.005 if size == SMALL else 0.01
        return SimulatedRange(
            levels=levels, seed=seed, slow_share=slow_share, round_sd=round_sd, margin=margin
        )

    time_s = 2400.0 if size == SMALL else 600.0
    ours: Counter[str] = Counter()
    theirs: Counter[str] = Counter()
    runs = []
    for seed in range(ranges):
        change = random.Random(f"benchmark/{seed}").randint(1, CHANGES)
        levels = step(change, size)
        simulated = simulate(seed, levels)
        try:
            outcome = simulated.search(time_s=time_s)
        except (NothingToDo, Untrustworthy):
            ours["none"] += 1
        else:
            right = named(outcome) == [change] and size > 0.0
            wrong = outcome.ending == "culprit" and not right
            ours["right" if right else "wrong" if wrong else "none"] += 1
        runs.append(simulated.runs)
        other = simulate(seed + 10**6, levels)
        right = by_threshold(other, simulated.runs) == change and size > 0.0
        theirs["right" if right else "wrong"] += 1
    shares = [
        f"{counts[key] / ranges:7.1%}"
        for counts in (ours, theirs)
        for key in ("right", "wrong", "none")
    ]
    return f"{kind:<10}{size:5.0%}{fmean(runs):8.0f} " + " ".join(shares)


def main() -> None:
    ranges = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print(f"{ranges} ranges per row   torchyard bisect         git bisect, threshold")
    print("noise     slow    runs   right   wrong    none   right   wrong    none")
    for kind in ("clean", "disturbed", "drift"):
        for size in (SMALL, 0.02, 0.05, 0.2, 0.0):
            print(compare(kind, size, ranges), flush=True)


if __name__ == "__main__":
    main()
