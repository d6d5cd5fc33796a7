"""What verdicts cost and how often they are wrong, in 20 simulated worlds where the truth is known.

Prints tables of docs/explanation/statistics.md:

    python benchmarks/simulate_cost.py

A world is a distribution of launches and of the pairs inside them. Each comparison is measured with
the stopping rule of `bench`: an interim analysis after every launch from the second on, until there is
a verdict with a half-width of at most 1 % or a quarter of the effect (a third after two launches), or
the launches run out. All comparisons of a world are computed together with the functions behind `stats.estimate`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchyard.stats.estimate import EARLY_SHARE, PRECISE_SHARE
from torchyard.stats.launch_model import p_values
from torchyard.stats.stopping import InterimAnalysis, interval_level, nominal_levels

Values = NDArray[np.float64]
ALPHA, MARGIN, GOAL = 0.05, 0.01, 0.01
FIRST = 2
MEDIAN_VARIANCE = math.pi / 2.0


@dataclass(frozen=True, kw_only=True)
class World:
    """Launch effects are drawn by `launch`; pairs are normal with this standard deviation."""

    name: str
    launch: Callable[[np.random.Generator, tuple[int, int]], Values]
    pair_sd: float = 0.02
    pairs: int = 10


def normal(sd: float) -> Callable[[np.random.Generator, tuple[int, int]], Values]:
    return lambda rng, size: rng.normal(0.0, sd, size)


def modes(
    apart: float, share: float, sd: float = 0.004
) -> Callable[[np.random.Generator, tuple[int, int]], Values]:
    """Each process of a pair of processes takes the slow mode with this probability."""

    def draw(rng: np.random.Generator, size: tuple[int, int]) -> Values:
        slow = (rng.random((2, *size)) < share).astype(np.float64)
        drawn: Values = rng.normal(0.0, sd, size) + apart * (slow[0] - slow[1])
        return drawn

    return draw


def mixed(rng: np.random.Generator, size: tuple[int, int]) -> Values:
    """Every comparison has a spread of its own around 1.5 %."""
    return rng.normal(0.0, 1.0, size) * 0.015 * np.exp(rng.normal(0.0, 0.5, (size[0], 1)))


def skewed(rng: np.random.Generator, size: tuple[int, int]) -> Values:
    return 0.015 * (rng.gamma(4.0, 0.5, size) - 2.0)


WORLDS = (
    *(World(name=f"launches {100 * sd:.1f} %", launch=normal(sd)) for sd in (0.001, 0.003, 0.007)),
    *(World(name=f"launches {100 * sd:.1f} %", launch=normal(sd)) for sd in (0.015, 0.03, 0.06)),
    *(World(name=f"launches {100 * sd:.0f} %", launch=normal(sd)) for sd in (0.12, 0.25)),
    World(name="spread of its own around 1.5 %", launch=mixed),
    World(name="no launch effect, pairs 2 %", launch=normal(0.0)),
    World(name="no launch effect, pairs 10 %", launch=normal(0.0), pair_sd=0.1),
    World(name="launches 1.5 %, pairs 10 %", launch=normal(0.015), pair_sd=0.1),
    World(name="launches 1.5 %, 3 pairs", launch=normal(0.015), pairs=3),
    World(name="launches t (3 df), 1.5 %", launch=lambda g, n: 0.015 * g.standard_t(3.0, n)),
    World(name="skewed launches, 1.5 %", launch=skewed),
    World(name="two modes 3 % apart", launch=modes(0.03, 0.5)),
    World(name="two modes 12 % apart", launch=modes(0.12, 0.5)),
    World(name="rare mode (10 %) 12 % apart", launch=modes(0.12, 0.1)),
    World(name="two modes 25 % apart", launch=modes(0.25, 0.5)),
    World(name="two modes 50 % apart", launch=modes(0.5, 0.5)),
)


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """Shares over the comparisons of one world, and the mean number of launches."""

    decided: float
    right_sign: float
    covered: float
    launches: float


def measure(
    world: World, rng: np.random.Generator, *, repeats: int, most: int, effect: float
) -> Stopped:
    """Measure `repeats` comparisons of at most `most` launches."""
    true_launches = world.launch(rng, (repeats, most))
    pairs = rng.normal(0.0, world.pair_sd, (repeats, most, world.pairs))
    values = effect + true_launches + np.median(pairs, axis=2)
    deviations = np.abs(pairs - np.median(pairs, axis=2, keepdims=True))
    looks = [InterimAnalysis(launches=k, fraction=k / most) for k in range(FIRST, most + 1)]
    levels = nominal_levels(looks, ALPHA)
    active = np.ones(repeats, dtype=bool)
    claims = np.zeros(repeats)
    covered = np.zeros(repeats, dtype=bool)
    used = np.zeros(repeats)
    for look, level in zip(looks, levels, strict=True):
        k = look.launches
        seen = values[active, :k]
        mean, spread = seen.mean(axis=1), np.maximum(seen.std(axis=1, ddof=1), 1e-6)
        pooled = deviations[active, :k].reshape(seen.shape[0], -1)
        floor = MEDIAN_VARIANCE * (1.4826 * np.median(pooled, axis=1)) ** 2 / world.pairs

        def p_at(
            distance: Values, spread: Values = spread, k: int = k, floor: Values = floor
        ) -> Values:
            far = np.maximum(distance, 0.0)
            return np.asarray(p_values(far, spread, k, pair_variance=floor), dtype=np.float64)

        differs = p_at(np.abs(mean)) < level
        same = (np.abs(mean) < MARGIN) & (p_at(math.log1p(MARGIN) - np.abs(mean)) < level)
        crossed = interval_level(looks[: k - 1], [0.0] * (k - 1), ALPHA)
        width_level = np.where(differs, crossed, level)
        share = EARLY_SHARE if k == FIRST else PRECISE_SHARE
        precise = p_at(np.maximum(GOAL, share * np.abs(mean))) < width_level
        stop = (differs | same) & precise if k < most else np.ones(mean.size, dtype=bool)
        places = np.flatnonzero(active)[stop]
        claims[places] = np.where(differs & ~same, np.sign(mean), 0.0)[stop]
        covered[places] = (p_at(np.abs(mean - effect)) >= width_level)[stop]
        used[places] = k
        active[places] = False
        if not active.any():
            break
    return Stopped(
        decided=float(np.mean(claims != 0.0)),
        right_sign=float(np.mean(claims == np.sign(effect))) if effect else 0.0,
        covered=float(covered.mean()),
        launches=float(used.mean()),
    )


def print_worlds(seed: int, repeats: int) -> None:
    """Identical code: false alarms and coverage, by the largest number of launches."""
    print("### Identical code in 20 worlds: called different / interval covers the truth\n")
    sizes = (3, 5, 8, 20)
    print_row("world", *(f"at most {most} launches" for most in sizes), "launches used of 20")
    print_row(*["---"] * (len(sizes) + 2))
    alarms: list[float] = []
    for number, world in enumerate(WORLDS):
        rng = np.random.default_rng((seed, number))
        found = [measure(world, rng, repeats=repeats, most=most, effect=0.0) for most in sizes]
        alarms += [one.decided for one in found]
        cells = [f"{one.decided:.1%} / {one.covered:.1%}" for one in found]
        print_row(world.name, *cells, f"{found[-1].launches:.1f}")
    print(f"\nmean {np.mean(alarms):.1%}, worst {np.max(alarms):.1%}\n")


def print_power(seed: int, repeats: int) -> None:
    """Effects of known size: found, covered, and launches used."""
    print("### Effects of known size: found with the right sign / covered / launches used\n")
    chosen = [one for one in WORLDS if one.name in {"launches 0.3 %", "launches 1.5 %"}]
    sizes = (5, 8, 20)
    print_row("effect", *(f"{one.name}, at most {most}" for one in chosen for most in sizes))
    print_row(*["---"] * (1 + len(sizes) * len(chosen)))
    for speedup in (1.01, 1.02, 1.05, 1.2, 2.0):
        cells = []
        for number, world in enumerate(chosen):
            for most in sizes:
                rng = np.random.default_rng((seed, number, most))
                one = measure(world, rng, repeats=repeats, most=most, effect=math.log(speedup))
                cells.append(f"{one.right_sign:.0%} / {one.covered:.0%} / {one.launches:.1f}")
        print_row(f"{speedup:g}x", *cells)
    print()


def print_row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=4000, help="comparisons per cell")
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    slack = 1.96 * (0.05 * 0.95 / options.repeats) ** 0.5
    print(f"{options.repeats} comparisons per cell: a true 5 % shows as 5 +- {slack:.1%}\n")
    print_worlds(options.seed, options.repeats)
    print_power(options.seed, options.repeats)


if __name__ == "__main__":
    main()
