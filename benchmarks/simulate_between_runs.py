"""How often a comparison of two runs is wrong, on simulated machines where the truth is known.

Prints the tables of "Between two runs" in docs/explanation/statistics.md:

    python benchmarks/simulate_between_runs.py

Two runs of identical code. The machine's speed differs between the runs by a factor that hits
everything alike (`drift`), and the speedup itself by a smaller one (`sessions`). Inside a run, launches
differ as on the machines of `tests/stats/simulated_launches.py`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from numpy.typing import NDArray

from tests.stats.simulated_launches import (
    IID,
    NOISES,
    Noise,
    draw_launches,
    mann_whitney_rule,
    threshold_rule,
    welch_rule,
)
from torchyard.core.comparison import Verdict
from torchyard.core.study import Budget
from torchyard.stats.between_runs import (
    SESSION_SD,
    Effect,
    beyond_p,
    difference,
    effect_of,
    ratio_verdict,
)
from torchyard.stats.estimate import decided, estimate
from torchyard.stats.stopping import InterimAnalysis
from torchyard.stats.suite import benjamini_hochberg

PAIRS = 10
LAUNCHES = 10
CALLS = 5
"""Raw times of each launch that rules without launches get."""
CLAIMS = {Verdict.FASTER, Verdict.SLOWER}

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Session:
    """One run: its launches' log speedups, and the candidate's plain times."""

    effects: Values
    times: Values
    """One row per launch."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2000, help="simulated comparisons per cell")
    parser.add_argument("--seed", type=int, default=11)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    slack = 1.96 * (0.05 * 0.95 / options.repeats) ** 0.5
    print(f"{options.repeats} comparisons per cell; a true 5 % shows as 5 ± {slack:.1%}\n")
    print_drift(rng, options.repeats)
    print_sessions(rng, options.repeats)
    print_machines(rng, options.repeats)
    print_power(rng, options.repeats // 2)
    print_gate(rng, options.repeats // 8)


def print_drift(rng: np.random.Generator, repeats: int) -> None:
    print("### Identical code, the machine's speed differs between the runs: called different\n")
    drifts = (0.0, 0.01, 0.03, 0.1)
    rules = ("Welch t on times", "Mann-Whitney on times", "medians differ by 2 %", "Torchyard")
    counts = np.zeros((len(rules), len(drifts)), dtype=int)
    for column, drift in enumerate(drifts):
        for _ in range(repeats):
            one, other = (draw(IID, rng, drift=drift) for _ in range(2))
            answers = (
                welch_rule(one.times.ravel(), other.times.ravel()).different,
                mann_whitney_rule(one.times.ravel(), other.times.ravel()).different,
                threshold_rule(one.times.ravel(), other.times.ravel()).different,
                claims([one], [other]),
            )
            counts[:, column] += answers
    print_table("rule", [f"drift {drift:.0%}" for drift in drifts], rules, counts / repeats)


def print_sessions(rng: np.random.Generator, repeats: int) -> None:
    print("### Identical code, sessions differ in the speedup: called different\n")
    spreads = (0.0, 0.0025, 0.005, 0.01, 0.02)
    rules = (
        "plain Welch over launches",
        f"Torchyard, one run on each side (allowance {SESSION_SD:.1%})",
        "Torchyard, baseline of 5 runs",
    )
    counts = np.zeros((len(rules), len(spreads)), dtype=int)
    for column, spread in enumerate(spreads):
        for _ in range(repeats):
            runs = [draw(IID, rng, sessions=spread) for _ in range(6)]
            counts[:, column] += (
                claims(runs[:1], runs[5:], session_sd=0.0),
                claims(runs[:1], runs[5:]),
                claims(runs[:5], runs[5:]),
            )
    print_table("rule", [f"sessions {s:.2%}" for s in spreads], rules, counts / repeats)


def print_machines(rng: np.random.Generator, repeats: int) -> None:
    print("### Identical code, sessions as the allowance, drift 3 %: called different\n")
    rules = [noise.name for noise in NOISES]
    columns = ("3 launches", "10 launches", "stopped when decided, 20 at most")
    shares = np.zeros((len(rules), len(columns)))
    for row, noise in enumerate(NOISES):
        for column, launches in enumerate((3, 10)):
            found = sum(
                claims(
                    [draw(noise, rng, launches=launches, drift=0.03, sessions=SESSION_SD)],
                    [draw(noise, rng, launches=launches, drift=0.03, sessions=SESSION_SD)],
                )
                for _ in range(repeats)
            )
            shares[row, column] = found / repeats
        fewer = max(1, repeats // 8)
        found = sum(
            claims(
                [draw(noise, rng, launches=20, drift=0.03, sessions=SESSION_SD)],
                [draw(noise, rng, launches=20, drift=0.03, sessions=SESSION_SD)],
                stop=True,
            )
            for _ in range(fewer)
        )
        shares[row, 2] = found / fewer
    print_table("machine", columns, rules, shares)


def print_power(rng: np.random.Generator, repeats: int) -> None:
    print("### What is found: launches differ by 1.5 %, sessions as the allowance, margin 1 %\n")
    slowdowns = (0.01, 0.02, 0.03, 0.05, 0.1)
    rules = (
        "10 launches in each run",
        "30 launches in each run",
        "10 launches, baseline of 5 runs",
    )
    shares = np.zeros((len(rules), len(slowdowns)))
    for column, slowdown in enumerate(slowdowns):
        for row, (launches, runs) in enumerate(((10, 1), (30, 1), (10, 5))):
            found = 0
            for _ in range(repeats):
                before = [
                    draw(IID, rng, launches=launches, drift=0.03, sessions=SESSION_SD)
                    for _ in range(runs)
                ]
                now = draw(IID, rng, launches=launches, drift=0.03, sessions=SESSION_SD)
                slower = Session(effects=now.effects - np.log1p(slowdown), times=now.times)
                found += claims(before, [slower], margin=0.01)
            shares[row, column] = found / repeats
    print_table("design", [f"{s:.0%} slower" for s in slowdowns], rules, shares)


def print_gate(rng: np.random.Generator, repeats: int) -> None:
    print("### A gate at 2 %, drift 3 %, sessions as the allowance: fails\n")
    cases = ((1, 0.0), (20, 0.0), (100, 0.0), (20, 0.02))
    columns = [
        f"{size} workload{'s' if size > 1 else ''}, {slowdown:.0%} slower"
        for size, slowdown in cases
    ]
    rules = ("medians differ by 2 %", "every interval by itself", "Torchyard")
    shares = np.zeros((len(rules), len(cases)))
    for column, (size, slowdown) in enumerate(cases):
        fails = np.zeros(len(rules), dtype=int)
        for _ in range(repeats):
            fails += gate(rng, size, slowdown)
        shares[:, column] = fails / repeats
    print_table("rule", columns, rules, shares)


def gate(rng: np.random.Generator, size: int, slowdown: float) -> tuple[bool, bool, bool]:
    """Whether any of the workloads shuts the gate, by each rule; drift hits all of a run alike."""
    limit, shift = 0.02, rng.normal(0.0, 0.03 * np.sqrt(2.0))
    values, medians = [], []
    for _ in range(size):
        one, other = (draw(IID, rng, sessions=SESSION_SD) for _ in range(2))
        slower = Session(effects=other.effects - np.log1p(slowdown), times=other.times)
        before, now = (_effect(run) for run in (one, slower))
        turned = difference([now], [before])
        values.append(beyond_p(turned, float(np.log1p(limit))))
        ratio = np.median(other.times) * (1.0 + slowdown) * np.exp(shift) / np.median(one.times)
        medians.append(ratio > 1.0 + limit)
    adjusted = benjamini_hochberg(values)
    return any(medians), min(values) <= 0.025, min(adjusted) <= 0.025


def draw(
    noise: Noise,
    rng: np.random.Generator,
    *,
    launches: int = LAUNCHES,
    drift: float = 0.0,
    sessions: float = 0.0,
) -> Session:
    """One run of code whose true speedup is 1."""
    pairs = draw_launches(noise, rng, launches=launches, pairs=PAIRS)
    effects = np.median(pairs, axis=1) + rng.normal(0.0, sessions)
    # The candidate's own times: the machine on that day, the process's layout, and noise.
    layouts = rng.normal(0.0, noise.launch_sd / np.sqrt(2.0), (launches, 1))
    logs = rng.normal(0.0, drift) + layouts + rng.normal(0.0, noise.block_sd, (launches, CALLS))
    return Session(effects=effects, times=0.01 * np.exp(logs))


def claims(
    one: list[Session],
    other: list[Session],
    *,
    session_sd: float = SESSION_SD,
    margin: float = 0.0,
    stop: bool = False,
) -> bool:
    """Whether Torchyard calls the two sides different."""
    sides = [[_effect(run, stop=stop) for run in side] for side in (one, other)]
    found = difference(sides[0], sides[1], session_sd=session_sd)
    return ratio_verdict(found, confidence=0.95, margin=margin) in CLAIMS


def _effect(run: Session, *, stop: bool = False) -> Effect:
    """What the run says; with `stop` it ends as soon as it is decided, as `bench` does."""
    launches = [[float(effect)] for effect in run.effects]
    budget = Budget(precision_goal=0.02)
    found = estimate(launches, looks=(), budget=budget)
    looks: list[InterimAnalysis] = []
    for count in range(3, len(launches) + 1) if stop else ():
        looks.append(InterimAnalysis(launches=count, fraction=count / len(launches)))
        found = estimate(launches[:count], looks=looks, budget=budget)
        if decided(found, budget):
            break
    effect = effect_of(found)
    if effect is None:
        raise ValueError("a simulated run has launches enough for an interval")
    return effect


def print_table(
    corner: str,
    columns: tuple[str, ...] | list[str],
    rows: tuple[str, ...] | list[str],
    shares: Values,
) -> None:
    print(f"| {' | '.join((corner, *columns))} |")
    print(f"| {' | '.join(['---'] * (len(columns) + 1))} |")
    for name, values in zip(rows, shares, strict=True):
        print(f"| {' | '.join((name, *(f'{value:.1%}' for value in values)))} |")
    print()


if __name__ == "__main__":
    main()
