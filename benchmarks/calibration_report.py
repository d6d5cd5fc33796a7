"""The table of `calibration.py`: what was promised beside what was seen."""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.stats.simulated_launches import RULES
from torchyard.core.study import Budget
from torchyard.stats.estimate import decided, estimate
from torchyard.stats.stopping import InterimAnalysis

TRUE_LOG = {"again": 0.0, "slower": -math.log(1.02)}
LONG_S = 60.0


def print_report(records: list[dict[str, Any]]) -> None:
    """One block per kind of comparison."""
    kinds = [kind for kind in dict.fromkeys(r["kind"] for r in records) if "rivals" not in kind]
    for kind in kinds:
        found = [r for r in records if r["kind"] == kind]
        print(f"\n{kind}: {len(found)} comparisons of {_time(found):.0f} s")
        _line("same code called different (single look)", _verdicts(found, "again", _alarm))
        _line("  the same, looking after every launch", _replayed(found, "again", _alarm))
        _line("2 % slowdown found (single look)", _verdicts(found, "slower", _slower))
        _line("  the same, looking after every launch", _replayed(found, "slower", _slower))
        _line("95 % interval holds the truth, same code", _coverage(found, "again"))
        _line("95 % interval holds the truth, 2 % slower", _coverage(found, "slower"))
        deviation = _launch_deviation(found)
        print(f"  {'SD between launches, same code':46} {deviation:8.2%}")
        print(f"  {'half-width of the interval, median':46} {_half_width(found):8.2%}")
        print(f"  {'smallest slowdown found in 80 % at 60 s':46} {_smallest(found):8.2%}")
        shares = [r["again"]["timed_share"] for r in found if "again" in r]
        print(f"  {'share of measuring time in timed blocks':46} {statistics.fmean(shares):8.1%}")
        disturbed = sum(r["again"]["disturbed"] for r in found if "again" in r)
        pairs = sum(r["again"]["pairs"] for r in found if "again" in r)
        print(f"  {'pairs that were disturbed':46} {disturbed / max(1, pairs):8.1%}")
    for kind in [k for k in dict.fromkeys(r["kind"] for r in records) if "rivals" in k]:
        found = [r for r in records if r["kind"] == kind]
        print(f"\n{kind}: the same code called different, {len(found)} times 30 repeats")
        for name, rule in RULES.items():
            source = "alternating" if name.startswith("dynamo") else "sequential"
            flags = [rule(*_two(r[source], source)).different for r in found]
            _line(f"{name} ({source})", (sum(flags), len(flags)))


def _two(times: Any, source: str) -> tuple[list[float], list[float]]:
    if source == "alternating":
        return [a for a, _ in times], [b for _, b in times]
    return times[0], times[1]


def _line(text: str, counted: tuple[int, int]) -> None:
    hits, total = counted
    low, high = _wilson(hits, total)
    print(
        f"  {text:46} {hits:4d} of {total:<4d} {hits / max(1, total):6.1%} [{low:.1%}, {high:.1%}]"
    )


def _wilson(hits: int, total: int) -> tuple[float, float]:
    if total == 0:
        return 0.0, 1.0
    z, share = 1.96, hits / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    spread /= 1 + z * z / total
    return max(0.0, centre - spread), min(1.0, centre + spread)


def _time(found: list[dict[str, Any]]) -> float:
    return float(statistics.median(r["again"]["elapsed_s"] for r in found if "again" in r))


def _alarm(verdict: str) -> bool:
    return verdict in {"faster", "slower"}


def _slower(verdict: str) -> bool:
    return verdict == "slower"


def _verdicts(
    found: list[dict[str, Any]], side: str, test: Callable[[str], bool]
) -> tuple[int, int]:
    """By the plain interval, whether it excludes no difference."""
    rows = [r[side] for r in found if side in r]
    hits = 0
    for row in rows:
        said = "faster" if row["low"] > 1 else "slower" if row["high"] < 1 else "same"
        hits += test(said)
    return hits, len(rows)


def _replayed(
    found: list[dict[str, Any]], side: str, test: Callable[[str], bool]
) -> tuple[int, int]:
    """By the sequential rule with its default goal, on the same launches."""
    hits = total = 0
    for record in found:
        if side not in record:
            continue
        launches = record[side]["launches"]
        ends = [end for _, end in record["launch_ends_s"]]
        budget = Budget(time_s=ends[-1])
        looks: list[InterimAnalysis] = []
        said = "undecided"
        for count in range(budget.min_launches, len(launches) + 1):
            last = count == len(launches)
            fraction = 1.0 if last else min(0.999, ends[count - 1] / ends[-1])
            looks.append(InterimAnalysis(launches=count, fraction=fraction))
            answer = estimate(launches[:count], looks=looks, budget=budget)
            said = str(answer.verdict)
            if decided(answer, budget):
                break
        total += 1
        hits += test(said)
    return hits, total


def _coverage(found: list[dict[str, Any]], side: str) -> tuple[int, int]:
    truth = math.exp(TRUE_LOG[side])
    rows = [r[side] for r in found if side in r]
    return sum(row["low"] <= truth <= row["high"] for row in rows), len(rows)


def _effects(found: list[dict[str, Any]], side: str) -> list[list[float]]:
    return [[statistics.median(pairs) for pairs in r[side]["launches"]] for r in found if side in r]


def _launch_deviation(found: list[dict[str, Any]]) -> float:
    """Pooled inside comparisons, so that slow drift of the machine stays out."""
    groups = [group for group in _effects(found, "again") if len(group) > 1]
    weight = sum(len(group) - 1 for group in groups)
    total = sum(statistics.variance(group) * (len(group) - 1) for group in groups)
    return math.sqrt(total / max(1, weight))


def _half_width(found: list[dict[str, Any]]) -> float:
    rows = [r["again"] for r in found if "again" in r]
    return statistics.median((math.log(row["high"]) - math.log(row["low"])) / 2 for row in rows)


def _smallest(found: list[dict[str, Any]]) -> float:
    """Launches drawn again from all that were seen, as many as fit into a minute."""
    pool = [effect for group in _effects(found, "slower") for effect in group]
    centre = statistics.fmean(pool)
    per_launch_s = statistics.median(
        r["launch_ends_s"][-1][1] / len(r["launch_ends_s"]) for r in found
    )
    count = max(3, round(LONG_S / per_launch_s))
    chance = random.Random(5)
    groups = [[chance.choice(pool) - centre for _ in range(count)] for _ in range(400)]
    budget = Budget(time_s=LONG_S, precision_goal=0.0, margin=1e-9)
    for tenth in range(1, 200):
        effect = tenth / 2000
        hits = 0
        for group in groups:
            answer = estimate([[value - effect] for value in group], looks=(), budget=budget)
            hits += str(answer.verdict) == "slower"
        if hits >= 0.8 * len(groups):
            return effect
    return math.nan
