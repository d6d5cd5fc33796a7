"""How often each rule is wrong, on simulated machines where the truth is known.

Prints the tables of docs/explanation/statistics.md:

    python benchmarks/simulate_errors.py
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator

import numpy as np

from torchyard.core.comparison import Estimate, Verdict
from torchyard.core.study import Budget
from torchyard.stats.estimate import decided, estimate
from torchyard.stats.noise import (
    AR1,
    DRIFT,
    IID,
    LINKED_LAUNCHES,
    NOISES,
    Noise,
    Order,
    draw_launches,
    draw_times,
)
from torchyard.stats.rivals import RULES, naive_peeking
from torchyard.stats.sequential import Look

PAIRS = 10
MOST_LAUNCHES = 20
TESTED = (*NOISES, LINKED_LAUNCHES)
CALLS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2000, help="simulated comparisons per cell")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    slack = 1.96 * (0.05 * 0.95 / options.repeats) ** 0.5
    print(
        f"{options.repeats} comparisons per cell (half of that under looks and for rivals, an eighth for power); "
        f"a true 5 % shows as 5 ± {slack:.1%} (± {slack * 2**0.5:.1%} under looks)\n"
    )
    print_single_look(rng, options.repeats)
    print_sequential(rng, options.repeats // 2)
    print_power(rng, options.repeats // 8)
    print_rivals(rng, options.repeats // 2)


def print_single_look(rng: np.random.Generator, repeats: int) -> None:
    print("### One look: identical code called different / interval covers the truth\n")
    sizes = (3, 5, 10, 20)
    print_row("machine", *(f"{size} launches" for size in sizes))
    print_row(*["---"] * (len(sizes) + 1))
    budget = Budget(margin=0.0)
    for noise in TESTED:
        cells = []
        for size in sizes:
            answers = [
                estimate(launches, looks=(), budget=budget)
                for launches in comparisons(noise, rng, repeats, size, effect=0.0)
            ]
            alarms = sum(answer.verdict is not Verdict.UNDECIDED for answer in answers)
            cells.append(f"{alarms / repeats:.1%} / {covering(answers, 1.0) / repeats:.1%}")
        print_row(noise.name, *cells)
    print()


def print_sequential(rng: np.random.Generator, repeats: int) -> None:
    print(f"### A look after every launch from the third, {MOST_LAUNCHES} launches at most\n")
    print_row(
        "machine",
        "plain t test at every look: false alarms",
        "Torchyard: false alarms at any look",
        "Torchyard with its stopping rule: interval covers the truth",
    )
    print_row(*["---"] * 4)
    budget = Budget(precision_goal=0.02)
    for noise in TESTED:
        naive = alarms = covered = 0
        for launches in comparisons(noise, rng, repeats, MOST_LAUNCHES, effect=0.0):
            naive += naive_peeking([effect for (effect,) in launches]).different
            history = list(looked_at(launches, budget))
            alarms += covering(history, 1.0) < sum(one.interval is not None for one in history)
            stops = (one for one in history if decided(one, budget))
            covered += covering([next(stops, history[-1])], 1.0)
        print_row(noise.name, *(f"{count / repeats:.1%}" for count in (naive, alarms, covered)))
    print()


def print_power(rng: np.random.Generator, repeats: int) -> None:
    print("### What the stopping rule finds (independent noise, launches differ by 1.5 %)\n")
    print_row("true speedup", "faster", "slower", "same", "undecided", "launches used (mean)")
    print_row(*["---"] * 6)
    budget = Budget(precision_goal=0.02)
    for speedup in (1.0, 1.01, 1.02, 1.03, 1.05):
        answers = [
            stopped(launches, budget)
            for launches in comparisons(IID, rng, repeats, MOST_LAUNCHES, effect=np.log(speedup))
        ]
        verdicts = [answer.verdict for answer in answers]
        shares = [
            f"{verdicts.count(verdict) / repeats:.0%}"
            for verdict in (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME, Verdict.UNDECIDED)
        ]
        print_row(
            f"{speedup:.2f}", *shares, f"{np.mean([answer.launches for answer in answers]):.1f}"
        )
    print()


def print_rivals(rng: np.random.Generator, repeats: int) -> None:
    print(
        f"### Rules on raw times of one launch ({CALLS} per side): identical code, false alarms\n"
    )
    same_process = dataclasses.replace(IID, launch_sd=0.0)
    layouts = dataclasses.replace(IID, block_sd=0.005, launch_sd=0.01)
    cases: list[tuple[str, Noise, Order, bool]] = [
        ("alternating, independent", same_process, "alternating", False),
        (
            "alternating, AR(1) 0.7 of each process",
            dataclasses.replace(AR1, launch_sd=0.0),
            "alternating",
            True,
        ),
        ("alternating, processes differ by 1 %", layouts, "alternating", False),
        ("A then B, drift", dataclasses.replace(DRIFT, launch_sd=0.0), "blocks", False),
    ]
    print_row("rule", *(name for name, *_ in cases))
    print_row(*["---"] * (len(cases) + 1))
    alarms = np.zeros((len(RULES), len(cases)), dtype=int)
    for column, (_, noise, order, own_streams) in enumerate(cases):
        for _ in range(repeats):
            times = draw_times(noise, rng, samples=CALLS, order=order, own_streams=own_streams)
            for row, rule in enumerate(RULES.values()):
                alarms[row, column] += rule(*times).different
    for name, counts in zip(RULES, alarms, strict=True):
        print_row(name, *(f"{count / repeats:.0%}" for count in counts))
    print()


def comparisons(
    noise: Noise, rng: np.random.Generator, repeats: int, launches: int, *, effect: float
) -> Iterator[list[list[float]]]:
    """Launches with a single value each, the median of their pairs: same answers, less time."""
    for _ in range(repeats):
        pairs = draw_launches(noise, rng, launches=launches, pairs=PAIRS, effect=effect)
        yield [[float(median)] for median in np.median(pairs, axis=1)]


def looked_at(launches: list[list[float]], budget: Budget) -> Iterator[Estimate]:
    """The estimate after each launch, as the measuring loop would see it."""
    total = len(launches)
    looks = [Look(launches=n, fraction=n / total) for n in range(budget.min_launches, total + 1)]
    for place, look in enumerate(looks):
        yield estimate(launches[: look.launches], looks=looks[: place + 1], budget=budget)


def stopped(launches: list[list[float]], budget: Budget) -> Estimate:
    """The estimate at which the measuring loop stops."""
    history = looked_at(launches, budget)
    answer = next(history)
    while not decided(answer, budget) and answer.launches < len(launches):
        answer = next(history)
    return answer


def covering(answers: list[Estimate], truth: float) -> int:
    return sum(one.interval is not None and one.interval.covers(truth) for one in answers)


def print_row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
