"""How often each rule is wrong, on simulated machines where the truth is known.

Prints the tables of docs/explanation/statistics.md:

    python benchmarks/simulate_errors.py
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from numpy.typing import NDArray

from tests.stats.simulated_launches import (
    AR1,
    DRIFT,
    IID,
    LINKED_LAUNCHES,
    NOISES,
    RULES,
    Noise,
    Order,
    draw_launches,
    draw_times,
    naive_peeking,
)
from torchyard.core.comparison import Estimate, Verdict
from torchyard.core.study import Budget
from torchyard.stats.distributions import two_sided_critical
from torchyard.stats.estimate import decided, estimate
from torchyard.stats.stopping import InterimAnalysis
from torchyard.stats.suite import adjust_for_suite, geometric_mean, selected_intervals

PAIRS = 10
MOST_LAUNCHES = 20
TESTED = (*NOISES, LINKED_LAUNCHES)
CALLS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2000, help="simulated comparisons per cell")
    parser.add_argument("--seed", type=int, default=7)
    parts = ("all", "launches", "pairs", "suites", "dependence")
    parser.add_argument("--part", choices=parts, default="all", help="which tables to print")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    slack = 1.96 * (0.05 * 0.95 / options.repeats) ** 0.5
    print(
        f"{options.repeats} comparisons per cell (half of that under looks and for rivals, an eighth for power); "
        f"a true 5 % shows as 5 ± {slack:.1%} (± {slack * 2**0.5:.1%} under looks)\n"
    )
    if options.part in {"all", "launches"}:
        print_single_look(rng, options.repeats)
        print_sequential(rng, options.repeats // 2)
        print_power(rng, options.repeats // 8)
        print_rivals(rng, options.repeats // 2)
    if options.part in {"all", "pairs"}:
        rng = np.random.default_rng(options.seed + 1)
        print_pairs_dominate(rng, options.repeats)
        print_power_of_pairs(rng, options.repeats // 4)
    if options.part in {"all", "suites"}:
        rng = np.random.default_rng(options.seed + 2)
        print_means(rng, options.repeats // 5)
        print_extremes(rng, options.repeats // 10)
    if options.part in {"all", "dependence"}:
        print_dependent_launches(np.random.default_rng(options.seed + 3), options.repeats)


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


Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]
PAIR_NOISES: dict[str, Draw] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "heavy tail (t, 2 df)": lambda rng, size: rng.standard_t(2.0, size),
    "skewed (exponential)": lambda rng, size: rng.exponential(1.0, size),
    "30 % of pairs in a second mode": lambda rng, size: (
        4.0 * (rng.random(size) < 0.3) + 0.25 * rng.standard_normal(size)
    ),
}


def print_pairs_dominate(rng: np.random.Generator, repeats: int) -> None:
    """Without and with the lower bound that pairs set."""
    print(
        "### Pairs noisier than launches: interval covers the truth (all comparisons / the quarter whose launches agree best)\n"
    )
    designs = ((3, 6), (5, 10), (8, 10))
    print_row(
        "pair noise",
        "launch variance over that of pairs",
        *(f"{k} launches of {n} pairs: {how}" for k, n in designs for how in ("before", "after")),
    )
    print_row(*["---"] * (2 + 2 * len(designs)))
    for name, draw in PAIR_NOISES.items():
        for share in (0.0, 0.5):
            cells = []
            for launches, pairs in designs:
                medians = np.median(draw(rng, (100_000, pairs)), axis=1)
                centre, spread = float(medians.mean()), float(medians.std())
                drawn = draw(rng, (repeats, launches, pairs)) - centre
                drawn += math.sqrt(share) * spread * rng.standard_normal((repeats, launches, 1))
                drawn *= 0.05
                alone = [[[float(one)] for one in np.median(each, axis=1)] for each in drawn]
                for worlds in (alone, drawn.tolist()):
                    answers = [estimate(one, looks=(), budget=Budget()) for one in worlds]
                    cells.append(coverage_cell(answers))
            print_row(name, f"{share:g}", *cells)
    print()


def coverage_cell(answers: list[Estimate]) -> str:
    covered = np.asarray([one.interval is not None and one.interval.covers(1.0) for one in answers])
    spreads = np.asarray([one.launch_sd for one in answers], dtype=np.float64)
    agreeing = spreads <= np.quantile(spreads, 0.25)
    return f"{covered.mean():.1%} / {covered[agreeing].mean():.1%}"


def print_power_of_pairs(rng: np.random.Generator, repeats: int) -> None:
    print("### What the lower bound costs: found faster, before / after (pairs differ by 5 %)\n")
    designs = ((3, 6), (5, 10), (8, 10), (20, 10))
    print_row("true speedup", *(f"{k} launches of {n} pairs" for k, n in designs))
    print_row(*["---"] * (len(designs) + 1))
    for speedup in (1.02, 1.05, 1.1, 1.2, 1.5):
        cells = []
        for launches, pairs in designs:
            found = [0, 0]
            for _ in range(repeats):
                drawn = rng.normal(math.log(speedup), 0.05, (launches, pairs))
                alone = [[float(one)] for one in np.median(drawn, axis=1)]
                for place, world in enumerate((alone, drawn.tolist())):
                    answer = estimate(world, looks=(), budget=Budget())
                    found[place] += answer.verdict is Verdict.FASTER
            cells.append(" / ".join(f"{count / repeats:.0%}" for count in found))
        print_row(f"{speedup:.2f}", *cells)
    print()


def print_means(rng: np.random.Generator, repeats: int) -> None:
    print("### Geometric mean of comparisons that stop early: interval covers the truth\n")
    print_row("comparisons", "goal", "at most", "before", "after", "width after over before")
    print_row(*["---"] * 6)
    for size in (2, 5, 20):
        for goal in (0.01, 0.02, 0.03):
            for most in (8, 20):
                budget = Budget(precision_goal=goal)
                covered, widths = [0, 0], [0.0, 0.0]
                count = repeats if size < 20 else repeats // 2
                for _ in range(count):
                    effects = rng.normal(0.02, 0.05, size)
                    answers = []
                    for effect in effects:
                        sd = 0.015 * math.exp(rng.normal(0.0, 0.5))
                        drawn = [[float(one)] for one in rng.normal(effect, sd, most)]
                        answers.append(stopped(drawn, budget))
                    for place, (centre, width) in enumerate((plain_mean(answers), mean(answers))):
                        covered[place] += abs(centre - float(effects.mean())) <= width
                        widths[place] += width
                print_row(
                    str(size),
                    f"{goal:.0%}",
                    str(most),
                    *(f"{one / count:.1%}" for one in covered),
                    f"{widths[1] / widths[0]:.2f}",
                )
    print()


def mean(answers: list[Estimate]) -> tuple[float, float]:
    found = geometric_mean(answers)
    if found is None:
        raise AssertionError(answers)
    return math.log(found[0]), math.log(found[1].high / found[1].low) / 2.0


def plain_mean(answers: list[Estimate]) -> tuple[float, float]:
    """From the standard deviation between launches alone, as if nothing could have stopped early."""
    variances = [(one.launch_sd or 0.0) ** 2 / one.launches for one in answers]
    total = math.fsum(variances)
    bottom = math.fsum(v**2 / (a.launches - 1) for v, a in zip(variances, answers, strict=True))
    width = two_sided_critical(0.05, total**2 / bottom) * math.sqrt(total) / len(answers)
    return math.fsum(math.log(one.speedup) for one in answers) / len(answers), width


def print_extremes(rng: np.random.Generator, repeats: int) -> None:
    print("### The best five of 40 comparisons (5 launches, launches differ by 1.5 %)\n")
    print_row("true effects", "list", "rows shown (mean)", "shown too fast by", "covers the truth")
    print_row(*["---"] * 5)
    for name, sd in (("identical code", 0.0), ("differ by 1 %", 0.01), ("differ by 5 %", 0.05)):
        shown, excess, covered = [0, 0], [0.0, 0.0], [0, 0]
        for _ in range(repeats):
            effects = rng.normal(0.0, sd, 40)
            answers = [
                estimate([[float(v)] for v in rng.normal(e, 0.015, 5)], looks=(), budget=Budget())
                for e in effects
            ]
            answers = adjust_for_suite(answers, 0.05)
            highest = sorted(range(40), key=lambda place: -answers[place].speedup)[:5]
            plain = [answers[place].interval for place in highest]
            faster = [n for n, one in enumerate(answers) if one.verdict is Verdict.FASTER]
            decided_best = sorted(faster, key=lambda place: -low_end(answers[place]))[:5]
            selected = selected_intervals([answers[n] for n in decided_best], 40, alpha=0.05)
            for kind, (places, intervals) in enumerate(
                ((highest, plain), (decided_best, selected))
            ):
                for place, interval in zip(places, intervals, strict=True):
                    shown[kind] += 1
                    excess[kind] += math.log(answers[place].speedup) - effects[place]
                    covered[kind] += interval is not None and interval.covers(
                        math.exp(effects[place])
                    )
        for kind, rule in enumerate(
            ("by estimate, plain intervals", "decided, by near end, FCR intervals")
        ):
            count = max(1, shown[kind])
            print_row(
                name,
                rule,
                f"{shown[kind] / repeats:.2f}",
                f"{excess[kind] / count:.1%}",
                f"{covered[kind] / count:.1%}" if shown[kind] else "-",
            )
    print()


def low_end(answer: Estimate) -> float:
    return answer.interval.low if answer.interval is not None else 0.0


def print_dependent_launches(rng: np.random.Generator, repeats: int) -> None:
    print("### Launches that depend on each other: identical code called different (one look)\n")
    sizes = (3, 8, 20)
    print_row("machine", *(f"{size} launches" for size in sizes))
    print_row(*["---"] * (len(sizes) + 1))
    worlds: list[tuple[str, float, float]] = [
        (f"correlation {rho} from launch to launch", 1.0, rho) for rho in (0.2, 0.5)
    ]
    for share in (0.1, 0.3):
        for name, spacing_s in (("neighbours, 10 s apart", 10.0), ("in turns, 400 s apart", 400.0)):
            label = f"{share:.0%} of the variance changes within 2 min; {name}"
            worlds.append((label, share, math.exp(-spacing_s / 120.0)))
    for name, share, rho in worlds:
        cells = []
        for size in sizes:
            shocks = rng.standard_normal((repeats, size))
            for place in range(1, size):
                shocks[:, place] *= math.sqrt(1.0 - rho**2)
                shocks[:, place] += rho * shocks[:, place - 1]
            quick = rng.standard_normal((repeats, size))
            drawn = 0.015 * (math.sqrt(share) * shocks + math.sqrt(1.0 - share) * quick)
            alarms = sum(
                estimate([[v] for v in one], looks=(), budget=Budget(margin=0.0)).verdict
                is not Verdict.UNDECIDED
                for one in drawn.tolist()
            )
            cells.append(f"{alarms / repeats:.1%}")
        print_row(name, *cells)
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
    looks = [
        InterimAnalysis(launches=n, fraction=n / total)
        for n in range(budget.min_launches, total + 1)
    ]
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
