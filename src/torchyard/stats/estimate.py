"""The estimate of one comparison: pairs in; speedup, confidence interval, p-value and verdict out.

Combines launch-level statistics, interim analyses and the verdict, and decides whether a comparison
is settled (`decided`). The verdict (faster, slower, same, undecided) is computed from an interval
of the log speedup, where faster and slower are mirror images. Deterministic: random numbers are the
same in every call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from torchyard.core.comparison import Estimate, Interval, Verdict
from torchyard.core.study import Budget
from torchyard.errors import UsageError
from torchyard.stats.distributions import (
    median_interval,
    sign_test_p,
    two_sided_critical,
    two_sided_p,
)
from torchyard.stats.launches import (
    SD_FLOOR,
    dependence,
    launch_effects,
    launch_sd,
    pair_floor,
    pair_sd,
    standard_error,
    t_statistics,
)
from torchyard.stats.stopping import (
    Look,
    boundaries,
    launches_needed,
    launches_needed_range,
    minimum_detectable,
    p_value,
)


def verdict_of(low: float, high: float, margin: float) -> Verdict:
    """What an interval of the log speedup says, with `margin` as the size that does not matter."""
    limit = math.log1p(margin)
    if -limit <= low and high <= limit:
        return Verdict.SAME
    if low > 0.0:
        return Verdict.FASTER
    if high < 0.0:
        return Verdict.SLOWER
    return Verdict.UNDECIDED


_FLIPS: Final = 4096
_MOST_FLIPPED: Final = 400
"""With more values than this the normal approximation replaces random flips."""
_SEED: Final = 7_919


def sign_flip_p(values: Sequence[float]) -> float:
    """Two-sided p-value of "the values are symmetric around 0", from their sum (Fisher 1935).

    Flips the signs of all values at random, always with the same random numbers.
    """
    found = np.asarray(values, dtype=np.float64)
    total = abs(float(found.sum()))
    size = math.sqrt(float(found @ found))
    # Below one part in a billion the values are rounding.
    if found.size == 0 or total <= 1e-9 * found.size or size == 0.0:
        return 1.0
    if found.size > _MOST_FLIPPED:
        return math.erfc(total / size / math.sqrt(2.0))
    rng = np.random.default_rng((_SEED, found.size))
    signs = rng.integers(0, 2, (_FLIPS, found.size), dtype=np.int8) * 2.0 - 1.0
    as_large = int(np.count_nonzero(np.abs(signs @ found) >= total * (1.0 - 1e-12)))
    return (1.0 + as_large) / (1.0 + _FLIPS)


ONE_LAUNCH: Final = "one launch speaks for its own processes only"
LAUNCHES_TO_PLAN_FROM: Final = 6
"""With fewer launches the time needed is given as a range only: after three of them the estimate lay
between 3 and 28 launches where 12 were needed."""
_WIDEST: Final = 20.0
"""A log interval wider than this (a factor of 10^8 each way) is no interval worth writing down."""

Pairs = Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class _Centre:
    """Log speedup with its interval, before it gets a verdict."""

    log: float
    half_widths: tuple[float, float] | None
    """Down to the low end, up to the high end."""
    p_value: float | None

    @property
    def ends(self) -> tuple[float, float] | None:
        if self.half_widths is None or max(self.half_widths) > _WIDEST:
            return None
        return self.log - self.half_widths[0], self.log + self.half_widths[1]


def estimate(
    launches: Pairs,
    *,
    looks: Sequence[Look],
    budget: Budget,
    seconds_per_launch: float | None = None,
    pairs_dropped: int = 0,
    mean_launches: Pairs | None = None,
    never_same: Sequence[str] = (),
) -> Estimate:
    """What the clean pairs of each launch say; log(baseline time / candidate time) per pair.

    `launches` holds every launch in order, also those left without a clean pair (empty).
    `looks` are the planned looks so far, the present one last; empty means a single final look.
    The last fraction is 1 when time or launches ran out, and stays what it was when the
    comparison stopped because it was decided. With no launch at all `speedup` is 1 and means
    nothing: `launches` is 0, the interval is None and a reason says so.
    `mean_launches` holds the same pairs from block means. `never_same` are reasons why *same* must
    not be said whatever the interval.
    """
    _check_budget(budget)
    effects = launch_effects(launches)
    plan = _usable_looks(launches, looks, budget)
    centre = _centre(launches, effects, plan, budget)
    seen, floor = launch_sd(effects), pair_floor(launches)
    spread = None if seen is None else max(seen, floor, SD_FLOOR)
    reasons = _remarks(launches, effects, floor)
    verdict, doubts = _judge(centre, effects.size, budget)
    mean_log, mean_p = _mean_effect(launches, mean_launches)
    withheld = list(never_same) if verdict is Verdict.SAME else []
    withheld += _dependent(effects, centre, verdict, budget.margin)
    if mean_log is not None and mean_p <= budget.alpha and effects.size:
        text = (
            f"means and medians disagree: {math.exp(mean_log):.4f} from block means against "
            f"{math.exp(centre.log):.4f} from medians (p = {mean_p:.2g}), so rare slow iterations "
            "or blocks belong to one side"
        )
        if _contradicts(mean_log, verdict, budget.margin):
            withheld.append(text)
        elif abs(mean_log - centre.log) > math.log1p(budget.margin):
            doubts.append(text)
    if withheld:
        verdict = Verdict.UNDECIDED
    return Estimate(
        verdict=verdict,
        speedup=math.exp(centre.log),
        interval=_interval(centre, budget),
        p_value=centre.p_value,
        scope="processes" if effects.size == 1 else "launches",
        launches=int(effects.size),
        pairs=sum(len(pairs) for pairs in launches),
        pairs_dropped=pairs_dropped,
        launch_sd=seen,
        pair_sd=pair_sd(launches),
        minimum_detectable=None
        if spread is None
        else minimum_detectable(spread, effects.size, alpha=budget.alpha),
        time_needed_s=_time_needed_s(spread, effects.size, seconds_per_launch, budget),
        time_needed_range_s=_time_needed_range_s(spread, effects.size, seconds_per_launch, budget),
        mean_speedup=None if mean_log is None else math.exp(mean_log),
        withheld=tuple(withheld),
        reasons=tuple(reasons + doubts + withheld),
    )


def decided(estimate: Estimate, budget: Budget) -> bool:
    """Whether measuring may stop here: a verdict, at the precision asked for."""
    if budget.precision_goal <= 0.0 or estimate.interval is None:
        return False
    if estimate.verdict is Verdict.UNDECIDED or estimate.interval.low <= 0.0:
        return False
    width = math.log(estimate.interval.high / estimate.interval.low)
    return width / 2.0 <= budget.precision_goal


def _centre(
    launches: Pairs, effects: NDArray[np.float64], plan: Sequence[Look], budget: Budget
) -> _Centre:
    if effects.size == 0:
        return _Centre(log=0.0, half_widths=None, p_value=None)
    centre = float(np.mean(effects))
    if effects.size == 1:
        pairs = next(pairs for pairs in launches if len(pairs))
        ends = median_interval(pairs, budget.alpha)
        asked_for = budget.max_launches == 1
        return _Centre(
            log=centre,
            half_widths=None if ends is None else (centre - ends[0], ends[1] - centre),
            p_value=sign_test_p(pairs) if asked_for else None,
        )
    usable = [pairs for pairs in launches if len(pairs)]
    counts = [look.launches for look in plan]
    limits = boundaries(plan, budget.alpha)
    floors = [
        _pair_bound(usable[:count], limit) for count, limit in zip(counts, limits, strict=True)
    ]
    statistics = t_statistics(effects, counts, floors)
    width = limits[-1] * standard_error(effects, floors[-1])
    return _Centre(
        log=centre,
        half_widths=(width, width),
        p_value=p_value(plan, statistics, budget.alpha),
    )


def _pair_bound(launches: Pairs, limit: float) -> float:
    """The standard deviation between launches below which the interval must not fall.

    Pairs alone imply a half-width of c * floor / sqrt(K), with Student's c for the degrees of freedom
    of the pairs at the level that the boundary `limit` has for K launches. It is taken sqrt(2) times
    as wide, because launches that agree do not show that their own variance is 0: up to that of the
    pairs is allowed for. Never more than the floor itself in place of the standard deviation seen.
    """
    floor = pair_floor(launches)
    pairs_df = sum(len(pairs) - 1 for pairs in launches)
    if floor == 0.0 or not 0.0 < limit < math.inf:
        return floor
    level = two_sided_p(limit, len(launches) - 1)
    return min(1.0, math.sqrt(2.0) * two_sided_critical(level, pairs_df) / limit) * floor


def _usable_looks(launches: Pairs, looks: Sequence[Look], budget: Budget) -> list[Look]:
    """The looks at which stopping was possible, counted in launches that have a clean pair.

    A look that cannot stop the measurement spends no alpha: those with fewer launches than a
    verdict needs, and all interim looks when the whole time is to be used.
    """
    if not looks:
        looks = (Look(launches=len(launches), fraction=1.0),)
    if looks[-1].launches != len(launches):
        raise ValueError(f"the last look is at {looks[-1].launches} of {len(launches)} launches")
    usable = [
        Look(
            launches=sum(len(pairs) > 0 for pairs in launches[: look.launches]),
            fraction=min(1.0, look.fraction),
        )
        for look in looks
    ]
    wanted = _launches_wanted(budget)
    could_stop = [look for look in usable[:-1] if look.launches >= wanted]
    return [*(could_stop if budget.precision_goal > 0.0 else ()), usable[-1]]


def _mean_effect(launches: Pairs, mean_launches: Pairs | None) -> tuple[float | None, float]:
    """Log speedup from block means, and the p-value of its difference from the medians' one.

    Each launch counts with the mean over its pairs, which slow blocks move and medians ignore. If
    slow iterations and blocks hit both sides alike, the deviations of the means from the launch's
    median have a symmetric distribution: that is tested.
    """
    if mean_launches is None:
        return None, 1.0
    means = [math.fsum(pairs) / len(pairs) for pairs in mean_launches if len(pairs)]
    if not means:
        return None, 1.0
    mean_log = math.fsum(means) / len(means)
    if [len(pairs) for pairs in launches] != [len(pairs) for pairs in mean_launches]:
        return mean_log, 1.0
    used = [
        (pairs, slow) for pairs, slow in zip(launches, mean_launches, strict=True) if len(pairs)
    ]
    centres = launch_effects([pairs for pairs, _ in used])
    apart = [
        value - float(centre)
        for (_, slow), centre in zip(used, centres, strict=True)
        for value in slow
    ]
    return mean_log, sign_flip_p(apart)


def _dependent(
    effects: NDArray[np.float64], centre: _Centre, verdict: Verdict, margin: float
) -> list[str]:
    """Why the verdict does not hold if launches depend on the ones before, where they do.

    A stationary series with lag-1 correlation r has sqrt((1 + r) / (1 - r)) times the standard error
    of independent values.
    """
    found = min(dependence(effects), 0.9)
    if found <= 0.0 or centre.half_widths is None or verdict is Verdict.UNDECIDED:
        return []
    factor = math.sqrt((1.0 + found) / (1.0 - found))
    low, high = (factor * width for width in centre.half_widths)
    if verdict_of(centre.log - low, centre.log + high, margin) is verdict:
        return []
    text = (
        f"launches depend on the ones before (correlation {found:.2f}), so that the interval is too "
        f"narrow: {verdict} does not hold with one {factor:.1f} times as wide"
    )
    return [text]


def _contradicts(mean_log: float, verdict: Verdict, margin: float) -> bool:
    """Whether the speedup from block means makes the verdict from medians untrue."""
    if verdict is Verdict.SAME:
        return abs(mean_log) > math.log1p(margin)
    if verdict is Verdict.FASTER:
        return mean_log <= 0.0
    return verdict is Verdict.SLOWER and mean_log >= 0.0


def _time_needed_s(
    spread: float | None, launches: int, seconds_per_launch: float | None, budget: Budget
) -> float | None:
    """None while too few launches were seen: their standard deviation says next to nothing."""
    if spread is None or seconds_per_launch is None or launches < LAUNCHES_TO_PLAN_FROM:
        return None
    needed = launches_needed(
        spread, budget.precision_goal, alpha=budget.alpha, at_least=_launches_wanted(budget)
    )
    return None if needed is None else needed * seconds_per_launch


def _time_needed_range_s(
    spread: float | None, launches: int, seconds_per_launch: float | None, budget: Budget
) -> tuple[float, float] | None:
    if spread is None or seconds_per_launch is None:
        return None
    needed = launches_needed_range(
        spread,
        launches,
        budget.precision_goal,
        alpha=budget.alpha,
        at_least=_launches_wanted(budget),
    )
    return (
        None if needed is None else (needed[0] * seconds_per_launch, needed[1] * seconds_per_launch)
    )


def _launches_wanted(budget: Budget) -> int:
    return max(2, min(budget.min_launches, budget.max_launches))


def _judge(centre: _Centre, launches: int, budget: Budget) -> tuple[Verdict, list[str]]:
    if launches == 0:
        return Verdict.UNDECIDED, ["no launch has a clean pair"]
    if launches == 1 and budget.max_launches > 1:
        return Verdict.UNDECIDED, [ONE_LAUNCH]
    remarks = [ONE_LAUNCH] if launches == 1 else []
    wanted = _launches_wanted(budget)
    if 1 < launches < wanted:
        return Verdict.UNDECIDED, [f"{launches} launches, a verdict needs {wanted}"]
    if centre.ends is None:
        return Verdict.UNDECIDED, [*remarks, "too little data for an interval"]
    low, high = centre.ends
    verdict = verdict_of(low, high, budget.margin)
    if verdict is Verdict.UNDECIDED:
        remarks.append(
            f"the interval {math.exp(low):.4f} to {math.exp(high):.4f} holds both no difference "
            f"and differences beyond the margin of {budget.margin:.2%}"
        )
    return verdict, remarks


def _remarks(launches: Pairs, effects: NDArray[np.float64], floor: float) -> list[str]:
    remarks = []
    empty = len(launches) - effects.size
    if empty and effects.size:
        remarks.append(f"{empty} of {len(launches)} launches had no clean pair and were left out")
    spread = launch_sd(effects)
    if spread is not None and max(2.0 * spread, SD_FLOOR) < floor:
        remarks.append(
            f"launches agree within {spread:.2%}, closer than their pairs explain: the interval "
            f"rests on the {floor:.2%} that pairs imply"
        )
    elif spread is not None and spread < SD_FLOOR:
        remarks.append(
            "launches agree to the last digit: the clock is too coarse for their real spread"
        )
    return remarks


def _interval(centre: _Centre, budget: Budget) -> Interval | None:
    if centre.ends is None:
        return None
    low, high = centre.ends
    return Interval(low=math.exp(low), high=math.exp(high), confidence=1.0 - budget.alpha)


def _check_budget(budget: Budget) -> None:
    wrong = {
        "alpha": not 0.0 < budget.alpha < 1.0,
        "margin": not 0.0 <= budget.margin < math.inf,
        "precision-goal": not 0.0 <= budget.precision_goal < math.inf,
        "min-launches": budget.min_launches < 1,
        "max-launches": budget.max_launches < 1,
    }
    for key, is_wrong in wrong.items():
        if is_wrong:
            value = getattr(budget, key.replace("-", "_"))
            raise UsageError(
                f"budget: {key} = {value!r} makes no sense",
                hint="alpha lies between 0 and 1, margins are not negative, launches are 1 or more",
            )
