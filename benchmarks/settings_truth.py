"""How often `torchyard bisect --settings` names the right settings, on simulated programs.

Run as `python -m benchmarks.settings_truth [SEARCHES]`. 16 settings differ; one of them matters, or two
matter only together, or two add up. Noise is 1 % (SD) for each run; the speed of the machine differs by
5 % (SD) between rounds.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Callable
from statistics import fmean

from tests.bisect.simulated_settings import SimulatedSettings, named, together
from torchyard.errors import NothingToDo, Untrustworthy

COUNT = 16


def log_time(kind: str, chosen: set[int], size: float) -> Callable[[frozenset[int]], float]:
    """Return the log time of a simulated program."""
    if kind == "two that add up":
        return lambda bad: math.log1p(size) * len(chosen & bad) / 2.0
    return together(*chosen, size=size)


def search(kind: str, size: float, searches: int) -> str:
    """Return one row of the table."""
    results: Counter[str] = Counter()
    runs = []
    for seed in range(searches):
        needed = 1 if kind == "one" else 2
        chosen = set(random.Random(f"settings/{kind}/{seed}").sample(range(COUNT), needed))
        simulated = SimulatedSettings(count=COUNT, log_time=log_time(kind, chosen, size), seed=seed)
        try:
            outcome = simulated.search(time_s=2000.0)
        except (NothingToDo, Untrustworthy):
            results["none"] += 1
        else:
            right = named(outcome) == chosen and size != 0.0
            results["none" if not outcome.found else "right" if right else "wrong"] += 1
        runs.append(simulated.runs)
    shares = " ".join(f"{results[key] / searches:7.0%}" for key in ("right", "wrong", "none"))
    return f"{kind:<17}{size:5.0%}{fmean(runs):7.0f} {shares}"


def main() -> None:
    searches = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print("settings          slow   runs   right   wrong    none")
    for kind in ("one", "two together", "two that add up"):
        for size in (0.05, 0.2):
            print(search(kind, size, searches), flush=True)
    print(search("one", 0.0, searches), flush=True)


if __name__ == "__main__":
    main()
