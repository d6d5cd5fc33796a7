"""Who finds planted changes in histories, and who cries wolf: Torchyard, asv's rule, a threshold.

Prints the tables of docs/explanation/change-points.md. All rules see the same series.

    python benchmarks/change_points.py [--repeats 60] [--seed 7] [--part NAME]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from numpy.typing import NDArray

from tests.stats.change_points.simulated_histories import (
    OTHERS,
    QUIET,
    RIVALS,
    Labelled,
    Plan,
    draw,
    with_step,
)
from torchyard.stats.change_points.detection import Settled, find_moves, settle
from torchyard.stats.change_points.shape import Move

NEAR = 5
"""Points by which a found step may be off."""
SIZES = (0.01, 0.02, 0.05, 0.10)
NOISES = (0.005, 0.01, 0.03)
DRIFTS = (
    Plan(name="drift of 10 % over 300 points", drift=(0.0, 1.0, 0.1)),
    Plan(name="drift of 5 % over points 100 to 200 of 300", drift=(1 / 3, 2 / 3, 0.05)),
    Plan(name="drift of 10 % over 1000 points", length=1000, drift=(0.0, 1.0, 0.1)),
)
Rule = Callable[[Labelled], list[int]]


def ours(series: Labelled) -> list[Move]:
    return find_moves(series.values, () if series.errors is None else series.errors)


def rules() -> dict[str, Rule]:
    found: dict[str, Rule] = {"Torchyard": lambda series: [m.first for m in ours(series)]}
    for name, rival in RIVALS.items():
        found[name] = lambda series, rival=rival: rival(series.values)  # type: ignore[misc]
    return found


@dataclass
class Score:
    """Counts over series."""

    alarms: int = 0
    right: int = 0
    planted: int = 0
    alarmed: int = 0
    series: int = 0

    def add(self, found: Sequence[int], truth: Sequence[int]) -> None:
        """Take in one series."""
        right = matched(found, truth)
        self.alarms += len(found)
        self.right += right
        self.planted += len(truth)
        self.alarmed += len(found) > right
        self.series += 1

    def __add__(self, other: Score) -> Score:
        return Score(
            *(
                getattr(self, name) + getattr(other, name)
                for name in ("alarms", "right", "planted", "alarmed", "series")
            )
        )

    @property
    def recall(self) -> str:
        """Share of planted steps that were found."""
        return f"{self.right / self.planted:.0%}" if self.planted else "–"

    @property
    def precision(self) -> str:
        """Share of alarms that were right."""
        return f"{self.right / self.alarms:.0%}" if self.alarms else "–"

    @property
    def wolf(self) -> str:
        """Series with a wrong alarm, of 100."""
        return f"{100 * self.alarmed / self.series:.1f}"


def matched(found: Sequence[int], truth: Sequence[int]) -> int:
    """How many planted steps have a found one near them, each found one used once."""
    free = list(found)
    count = 0
    for place in truth:
        near = [one for one in free if abs(one - place) <= NEAR]
        if near:
            free.remove(min(near, key=lambda one: abs(one - place)))
            count += 1
    return count


def scores(plan: Plan, repeats: int, seed: int) -> dict[str, Score]:
    rng = np.random.default_rng([seed, *plan.name.encode()])
    result = {name: Score() for name in rules()}
    for _ in range(repeats):
        series = draw(plan, rng)
        for name, rule in rules().items():
            result[name].add(rule(series), series.steps)
    return result


def print_quiet(repeats: int, seed: int) -> list[dict[str, Score]]:
    print("### Nothing changed: series with a false alarm, of 100\n")
    header("history", *rules())
    rows = []
    for plan in QUIET:
        rows.append(scores(plan, repeats * (3 if plan.length < 100 else 1), seed))
        print_row(plan.name, *(score.wolf for score in rows[-1].values()))
    print()
    return rows


def print_steps(repeats: int, seed: int) -> list[dict[str, Score]]:
    rows = []
    for length in (12, 30, 300):
        print(f"### One step near the middle of {length} points: found\n")
        header("step, noise", *rules())
        for size in SIZES:
            for noise in NOISES:
                plan = with_step(size, noise=noise, length=length)
                rows.append(scores(plan, repeats, seed))
                print_row(
                    f"{size:.0%}, {noise:.1%}", *(score.recall for score in rows[-1].values())
                )
        print()
    return rows


def print_others(repeats: int, seed: int) -> list[dict[str, Score]]:
    print("### Steps in other company: found / wrong alarms per series\n")
    header("history", *rules())
    rows = []
    for plan in OTHERS:
        rows.append(scores(plan, repeats, seed))
        print_row(
            plan.name,
            *(
                f"{one.recall} / {(one.alarms - one.right) / one.series:.2f}"
                for one in rows[-1].values()
            ),
        )
    print()
    return rows


def print_drifts(repeats: int, seed: int) -> None:
    print("### Drift: changes reported per series (Torchyard: drifts + steps)\n")
    header("history", *rules())
    for plan in DRIFTS:
        rng = np.random.default_rng([seed, *plan.name.encode()])
        drifts = steps = 0
        rivals = dict.fromkeys(RIVALS, 0)
        count = max(repeats // (1 if plan.length < 1000 else 6), 1)
        for _ in range(count):
            series = draw(plan, rng)
            moves = ours(series)
            drifts += sum(move.kind == "drift" for move in moves)
            steps += sum(move.kind == "step" for move in moves)
            if plan.length < 1000:
                for name, rival in RIVALS.items():
                    rivals[name] += len(rival(series.values))
        cells = [f"{total / count:.2f}" for total in rivals.values()]
        if plan.length >= 1000:
            cells = ["–"] * len(cells)
        print_row(plan.name, f"{drifts / count:.2f} + {steps / count:.2f}", *cells)
    print()


def print_delay(repeats: int, seed: int) -> None:
    print("### Runs after a step until it is reported (median; share reported within 30)\n")
    header("step, noise; 60 points before", *rules())
    for size, noise in ((0.02, 0.005), (0.05, 0.01), (0.10, 0.01), (0.05, 0.03)):
        plan = Plan(name=f"delay {size} {noise}", length=90, noise=noise)
        rng = np.random.default_rng([seed, *plan.name.encode()])
        delays: dict[str, list[float]] = {name: [] for name in rules()}
        for _ in range(max(repeats // 2, 1)):
            values = draw(plan, rng).values
            values[60:] *= 1.0 + size
            for name, rule in rules().items():
                delays[name].append(delay(rule, values, 60))
        cells = [
            f"{np.median(found):.0f} ({np.mean(np.isfinite(found)):.0%})"
            if np.isfinite(np.median(found))
            else f"– ({np.mean(np.isfinite(found)):.0%})"
            for found in delays.values()
        ]
        print_row(f"{size:.0%}, {noise:.1%}", *cells)
    print()


def delay(rule: Rule, values: NDArray[np.float64], place: int) -> float:
    for end in range(place + 1, values.size + 1):
        seen = Labelled(values=values[:end], errors=None, steps=(), drift=None)
        if any(abs(one - place) <= NEAR for one in rule(seen)):
            return end - place
    return float("inf")


def print_looks(repeats: int, seed: int) -> None:
    print("### Nothing changed, looked at after every run: series with an alarm at any look\n")
    header("history", "Torchyard: at the end", "Torchyard: at any look", "threshold of 5 %")
    for noise in (0.01, 0.03):
        plan = Plan(name=f"nothing, 200 points, noise {noise:.0%}", length=200, noise=noise)
        rng = np.random.default_rng([seed, *plan.name.encode()])
        end = looks = threshold = 0
        for _ in range(repeats):
            values = draw(plan, rng).values
            found = [bool(find_moves(values[:size])) for size in range(8, values.size + 1)]
            end += found[-1]
            looks += any(found)
            threshold += bool(RIVALS["threshold of 5 %"](values))
        print_row(plan.name, *(f"{100 * n / repeats:.1f} %" for n in (end, looks, threshold)))
    print()


def print_cost(seed: int) -> None:
    print("### CPU time, 10,000 points with 1 % noise\n")
    header("history", "from scratch", "one more point")
    rng = np.random.default_rng(seed)
    places = np.arange(10_000)
    for name, level in (
        ("nothing", 0.0 * places),
        ("a step every 500 points", 0.05 * ((places // 500) % 2)),
        ("a step every 77 points", 0.05 * ((places // 77) % 2)),
        ("drift all the way", places / 10_000),
    ):
        values = np.exp(level + rng.normal(0.0, 0.01, places.size))
        started = time.process_time()
        find_moves(values)
        whole = time.process_time() - started
        kept: Settled = settle(values[:-1])
        started = time.process_time()
        find_moves(values, settled=kept)
        print_row(name, f"{whole:.2f} s", f"{1e3 * (time.process_time() - started):.0f} ms")
    print()


def print_totals(rows: list[dict[str, Score]]) -> None:
    print("### All series without drift together\n")
    header("rule", "precision", "recall", "series with a false alarm, of 100")
    for name in rules():
        total = Score()
        for row in rows:
            total = total + row[name]
        print_row(name, total.precision, total.recall, total.wolf)
    print()


def header(*cells: str) -> None:
    print_row(*cells)
    print_row(*["---"] * len(cells))


def print_row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=60, help="series per row")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--part", choices=("found", "drift", "delay", "looks", "cost"))
    options = parser.parse_args()
    repeats, seed = options.repeats, options.seed
    if options.part in (None, "found"):
        rows = print_quiet(repeats, seed) + print_steps(repeats, seed) + print_others(repeats, seed)
        print_totals(rows)
    if options.part in (None, "drift"):
        print_drifts(repeats, seed)
    if options.part in (None, "delay"):
        print_delay(repeats, seed)
    if options.part in (None, "looks"):
        print_looks(repeats, seed)
    if options.part in (None, "cost"):
        print_cost(seed)


if __name__ == "__main__":
    main()
