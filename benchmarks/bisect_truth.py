"""Compare `torchyard bisect` with `git bisect` and a threshold, on simulated ranges of 64 changes.

Run as `python -m benchmarks.bisect_truth [RANGES]`. The rule of `git bisect`: each step runs one
revision several times and calls it bad if its median is above the middle between the medians of good
and bad. It gets as many runs as the search of Torchyard used on the same range. Noise is 1 % (SD) for
each run; with `disturbed`, 5 % of the runs are 50 % slower.
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


def by_threshold(simulated: SimulatedRange, runs: int) -> int:
    """Return the revision that `git bisect` names with this number of runs."""
    each = max(1, runs // (STEPS + 2))

    def time(index: int) -> float:
        return median(simulated.log_time(index) for _ in range(each))

    low, high = 0, CHANGES
    threshold = (time(low) + time(high)) / 2.0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if time(middle) > threshold else (middle, high)
    return high


def compare(size: float, slow_share: float, ranges: int) -> str:
    """Return one row of the table."""
    ours: Counter[str] = Counter()
    theirs: Counter[str] = Counter()
    runs = []
    for seed in range(ranges):
        change = random.Random(f"benchmark/{seed}").randint(1, CHANGES)
        levels = step(change, size)
        simulated = SimulatedRange(levels=levels, seed=seed, slow_share=slow_share)
        try:
            outcome = simulated.search()
        except (NothingToDo, Untrustworthy):
            ours["none"] += 1
        else:
            right = named(outcome) == [change] and size > 0.0
            wrong = outcome.ending == "culprit" and not right
            ours["right" if right else "wrong" if wrong else "none"] += 1
        runs.append(simulated.runs)
        other = SimulatedRange(levels=levels, seed=seed + 10**6, slow_share=slow_share)
        right = by_threshold(other, simulated.runs) == change and size > 0.0
        theirs["right" if right else "wrong"] += 1
    shares = [
        f"{counts[key] / ranges:7.1%}"
        for counts in (ours, theirs)
        for key in ("right", "wrong", "none")
    ]
    kind = "disturbed" if slow_share else "clean"
    return f"{kind:<10}{size:5.0%}{fmean(runs):8.0f} " + " ".join(shares)


def main() -> None:
    ranges = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print(f"{ranges} ranges per row   torchyard bisect         git bisect, threshold")
    print("noise     slow    runs   right   wrong    none   right   wrong    none")
    for slow_share in (0.0, 0.05):
        for size in (0.02, 0.05, 0.2, 0.0):
            print(compare(size, slow_share, ranges), flush=True)


if __name__ == "__main__":
    main()
