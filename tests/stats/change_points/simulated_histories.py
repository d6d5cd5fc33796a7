"""Evaluate change-point detection: labelled synthetic histories, and the rules of other tools.

Each point of a labelled history is the value of one run: a level that may step or drift, times
noise. The noise can be normal or correlated, have outliers, come from a machine with two speeds,
or differ in size from run to run with known errors. The rules of other tools are written from
their descriptions. Used by tests and benchmarks, not by reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One kind of synthetic history. Sizes are of the logarithm of the value."""

    name: str
    length: int = 300
    noise: float = 0.01
    steps: tuple[tuple[float, float], ...] = ()
    """Position as a share of the length, and size; the direction is random."""
    drift: tuple[float, float, float] | None = None
    """Start, end and total size."""
    outliers: float = 0.0
    """Share of runs that are outliers by 10 to 50 %."""
    slow_share: float = 0.0
    slower: float = 0.0
    """Share of runs in a slower mode, and by how much."""
    correlation: float = 0.0
    """Correlation of neighbors: first-order autoregression."""
    uneven: float = 1.0
    """Ratio of the noise of the noisiest run to that of the quietest; errors are known if above 1."""
    moved: float = 0.1
    """Steps are shifted at random by up to this share of the length."""


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """Values in order of time with the true changes."""

    values: Values
    errors: Values | None
    steps: tuple[int, ...]
    """Indices of the first value of each new level."""
    drift: tuple[int, int] | None


def with_step(size: float, *, noise: float, length: int) -> Plan:
    """Return a plan with one step near the middle."""
    name = f"step of {size:.0%}, noise {noise:.1%}, {length} points"
    return Plan(name=name, length=length, noise=noise, steps=((0.5, np.log1p(size)),), moved=0.15)


def draw(plan: Plan, rng: np.random.Generator) -> Labelled:
    """Draw one history of this kind."""
    count = plan.length
    direction = rng.choice((-1.0, 1.0))
    shares = np.exp(rng.uniform(0.0, np.log(plan.uneven), count)) if plan.uneven > 1.0 else None
    noise = _noise(plan, rng) * (1.0 if shares is None else shares / np.mean(shares))
    level = np.zeros(count)
    move = rng.uniform(-plan.moved, plan.moved)
    places = []
    for share, size in plan.steps:
        place = min(max(round((share + move) * count), 1), count - 1)
        level[place:] += direction * size
        places.append(place)
    drift = None
    if plan.drift is not None:
        first, last = (round(share * count) for share in plan.drift[:2])
        rise = np.clip((np.arange(count) - first) / max(last - first, 1), 0.0, 1.0)
        level += direction * plan.drift[2] * rise
        drift = first, last
    return Labelled(
        values=np.exp(level + noise),
        errors=None if shares is None else plan.noise * shares / np.mean(shares),
        steps=tuple(places),
        drift=drift,
    )


def _noise(plan: Plan, rng: np.random.Generator) -> Values:
    noise = rng.normal(0.0, plan.noise, plan.length)
    if plan.correlation:
        scale = np.sqrt(1.0 - plan.correlation**2)
        for place in range(1, plan.length):
            noise[place] = plan.correlation * noise[place - 1] + scale * noise[place]
    if plan.slow_share:
        noise += plan.slower * (rng.random(plan.length) < plan.slow_share)
    if plan.outliers:
        hit = rng.random(plan.length) < plan.outliers
        size = np.log1p(rng.uniform(0.1, 0.5, plan.length))
        noise += hit * size * rng.choice((-1.0, 1.0), plan.length, p=(0.2, 0.8))
    return noise


_FIVE: Final = float(np.log(1.05))
_BACK: Final = ((0.5, _FIVE), (0.6, -_FIVE))
_TWICE: Final = ((0.4, _FIVE), (0.6, _FIVE))

QUIET: Final[tuple[Plan, ...]] = (
    *(Plan(name=f"nothing, {length} points", length=length) for length in (10, 20, 30, 300)),
    *(
        replace(plan, name=f"{plan.name}, {length} points", length=length)
        for plan in (
            Plan(name="outliers, 1 run in 20", outliers=0.05),
            Plan(name="two speeds 12 % apart, even odds", slow_share=0.5, slower=0.12),
            Plan(name="two speeds 12 % apart, 1 run in 5 slow", slow_share=0.2, slower=0.12),
            Plan(name="neighbours alike, 0.5", correlation=0.5),
            Plan(name="runs of uneven noise, 1 to 10", uneven=10.0),
        )
        for length in (30, 300)
    ),
)
"""Histories without changes."""

OTHERS: Final[tuple[Plan, ...]] = (
    Plan(name="two steps of 5 %, one direction", steps=_TWICE),
    Plan(name="5 % up and back after 30 runs", steps=_BACK),
    Plan(name="5 % up and back after 6 of 60 runs", length=60, steps=_BACK),
    Plan(name="step of 5 %, outliers 1 run in 20", steps=((0.5, _FIVE),), outliers=0.05),
    Plan(
        name="step of 5 %, two speeds 12 % apart",
        steps=((0.5, _FIVE),),
        slow_share=0.5,
        slower=0.12,
    ),
    Plan(name="step of 5 %, neighbours alike, 0.5", steps=((0.5, _FIVE),), correlation=0.5),
    Plan(
        name="step of 1 %, uneven noise, 1 to 10",
        steps=((0.5, float(np.log(1.01))),),
        uneven=10.0,
    ),
)
"""Histories with steps, combined with other effects."""


_MOST_JUMPS: Final = 30


def asv_steps(values: Values, *, smallest: float = 0.0) -> list[int]:
    """Apply the rule of asv: levels that minimize absolute deviations plus a price per jump (L1 Potts fit).

    The price is chosen by an information criterion, the log of the deviations plus 4 ln(n) / n per
    jump, after first-order autocorrelation is removed. Here the best fit for each number of jumps is
    computed exactly, and the criterion selects the number. Levels have at least two values. `smallest`
    drops jumps below a fraction, as asv's threshold does.
    """
    count = values.size
    costs = _deviations(values)
    best_score, best = math.inf, [0, count]
    for ends in _fits(costs, min(_MOST_JUMPS, count // 2 - 1)):
        levels = [float(np.median(values[a:b])) for a, b in pairwise(ends)]
        residuals = values - np.repeat(levels, np.diff(ends))
        correlation = float(residuals[1:] @ residuals[:-1]) / max(
            float(residuals @ residuals), 1e-300
        )
        rest = abs(residuals[0]) + float(np.abs(residuals[1:] - correlation * residuals[:-1]).sum())
        score = math.log(max(rest, 1e-300)) + 4.0 * (len(ends) - 2) * math.log(count) / count
        if score < best_score:
            best_score, best = score, ends
    levels = [float(np.median(values[a:b])) for a, b in pairwise(best)]
    return [
        place
        for place, before, after in zip(best[1:-1], levels[:-1], levels[1:], strict=True)
        if abs(after / before - 1.0) >= smallest
    ]


def _deviations(values: Values) -> Values:
    """Return the sum of distances from the median of values i to j, inclusive; infinite below two."""
    count = values.size
    costs = np.full((count, count), math.inf)
    for length in range(2, count + 1):
        ordered = np.sort(sliding_window_view(values, length), axis=1)
        half = length // 2
        sums = ordered[:, length - half :].sum(axis=1) - ordered[:, :half].sum(axis=1)
        starts = np.arange(count - length + 1)
        costs[starts, starts + length - 1] = sums
    return costs


def _fits(costs: Values, most_jumps: int) -> list[list[int]]:
    """Return the ends of levels of the best fit with 0, 1, ... jumps."""
    count = costs.shape[0]
    reached = [costs[0]]
    backs: list[NDArray[np.intp]] = []
    for _ in range(most_jumps):
        # Rows: first value of the last level; columns: its last value.
        through = reached[-1][:-1, np.newaxis] + costs[1:]
        backs.append(np.argmin(through, axis=0) + 1)
        reached.append(np.min(through, axis=0))
    fits = []
    for jumps, total in enumerate(reached):
        if not math.isfinite(total[-1]):
            break
        ends = [count]
        for back in reversed(backs[:jumps]):
            ends.append(int(back[ends[-1] - 1]))
        fits.append([0, *reversed(ends)])
    return fits


def threshold_alarms(values: Values, *, last: int = 10, limit: float = 0.05) -> list[int]:
    """Return alarms: values further than `limit` from the median of the `last` values.

    Consecutive alarms count as one, at the first of them.
    """
    alarms: list[int] = []
    alarmed = False
    for place in range(min(last, values.size // 2), values.size):
        usual = float(np.median(values[max(0, place - last) : place]))
        before, alarmed = alarmed, abs(values[place] / usual - 1.0) > limit
        if alarmed and not before:
            alarms.append(place)
    return alarms


RIVALS: Final[dict[str, Callable[[Values], list[int]]]] = {
    "asv, all steps": asv_steps,
    "asv, steps of 5 % or more": lambda values: asv_steps(values, smallest=0.05),
    "threshold of 5 %": threshold_alarms,
}
"""Rules of other tools by name in tables."""
