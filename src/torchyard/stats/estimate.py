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
from torchyard.stats.distributions import median_interval, sign_test_p
from torchyard.stats.launch_model import LaunchSummary, effective_degrees, half_width, p_values
from torchyard.stats.launches import (
    SD_FLOOR,
    dependence,
    launch_effects,
    launch_sd,
    pair_floor,
    pair_sd,
)
from torchyard.stats.stopping import (
    InterimAnalysis,
    interval_level,
    launches_needed,
    launches_needed_range,
    minimum_detectable,
    p_value,
)


def verdict_of(low: float, high: float, margin: float) -> Verdict:
    """Return the verdict of an interval of the log speedup; differences within `margin` are the same."""
    limit = math.log1p(margin)
    if -limit <= low and high <= limit:
        return Verdict.SAME
    if low > 0.0:
        return Verdict.FASTER
    if high < 0.0:
        return Verdict.SLOWER
    return Verdict.UNDECIDED


_FLIPS: Final = 4096
_MAX_FLIPPED: Final = 400
"""Above this number of values, a normal approximation replaces random flips."""
_SEED: Final = 7_919


def sign_flip_p(values: Sequence[float]) -> float:
    """Return the two-sided p-value of a sign-flip test of symmetry around 0 (Fisher 1935).

    Uses the same random numbers in every call.
    """
    data = np.asarray(values, dtype=np.float64)
    total = abs(float(data.sum()))
    size = math.sqrt(float(data @ data))
    # Below one part in a billion, the values are rounding errors.
    if data.size == 0 or total <= 1e-9 * data.size or size == 0.0:
        return 1.0
    if data.size > _MAX_FLIPPED:
        return math.erfc(total / size / math.sqrt(2.0))
    rng = np.random.default_rng((_SEED, data.size))
    signs = rng.integers(0, 2, (_FLIPS, data.size), dtype=np.int8) * 2.0 - 1.0
    as_large = int(np.count_nonzero(np.abs(signs @ data) >= total * (1.0 - 1e-12)))
    return (1.0 + as_large) / (1.0 + _FLIPS)


ONE_LAUNCH: Final = "a single launch is valid for its own processes only"
MIN_LAUNCHES_TO_PLAN: Final = 6
"""With fewer launches, the time needed is given as a range only: after three launches, estimates ranged
from 3 to 28 launches where 12 were needed."""
PRECISE_SHARE: Final = 1.0 / 4.0
EARLY_SHARE: Final = 1.0 / 3.0
"""Half-width, as a share of the effect, at which measuring stops; the second one after two launches."""
_FIRST: Final = 2
_WIDEST: Final = 20.0
"""Log intervals wider than this (a factor of 10^8 each way) are omitted."""

Pairs = Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class _Center:
    """Log speedup with its interval, before the verdict."""

    log: float
    half_widths: tuple[float, float] | None
    """Distances to the low and the high end."""
    p_value: float | None
    degrees: float | None = None
    """Degrees of freedom of the interval over launches."""

    @property
    def ends(self) -> tuple[float, float] | None:
        if self.half_widths is None or max(self.half_widths) > _WIDEST:
            return None
        return self.log - self.half_widths[0], self.log + self.half_widths[1]


def estimate(
    launches: Pairs,
    *,
    looks: Sequence[InterimAnalysis],
    budget: Budget,
    seconds_per_launch: float | None = None,
    pairs_dropped: int = 0,
    mean_launches: Pairs | None = None,
    never_same: Sequence[str] = (),
) -> Estimate:
    """Estimate the speedup from the clean pairs of each launch: log(baseline / candidate time) per pair.

    `launches` contains every launch in order, including those without a clean pair (empty).
    `looks` are the interim analyses so far, the current one last; empty means a single final
    analysis. The last fraction is 1 if time or launches ran out, and keeps its value if the comparison
    stopped because it was decided. Without any launch, `speedup` is 1 and meaningless: `launches` is
    0, the interval is None, and a reason states it. `mean_launches` contains the same pairs from block
    means. `never_same` are reasons that exclude the verdict *same* for any interval.
    """
    _check_budget(budget)
    effects = launch_effects(launches)
    plan = _usable_analyses(launches, looks, budget)
    center = _center(launches, effects, plan, budget)
    observed_sd, floor = launch_sd(effects), pair_floor(launches)
    spread = None if observed_sd is None else max(observed_sd, floor, SD_FLOOR)
    reasons = _remarks(launches, effects, floor)
    verdict, doubts = _judge(center, effects.size, budget)
    mean_log, mean_p = _mean_effect(launches, mean_launches)
    withheld = list(never_same) if verdict is Verdict.SAME else []
    withheld += _dependent(effects, center, verdict, budget.margin)
    if mean_log is not None and mean_p <= budget.alpha and effects.size:
        text = (
            f"means and medians disagree: {math.exp(mean_log):.4f} from block means, "
            f"{math.exp(center.log):.4f} from medians (p = {mean_p:.2g}), so one variant has more rare "
            "slow iterations or blocks"
        )
        if _contradicts(mean_log, verdict, budget.margin):
            withheld.append(text)
        elif abs(mean_log - center.log) > math.log1p(budget.margin):
            doubts.append(text)
    if withheld:
        verdict = Verdict.UNDECIDED
    return Estimate(
        verdict=verdict,
        speedup=math.exp(center.log),
        interval=_interval(center, budget),
        p_value=center.p_value,
        scope="processes" if effects.size == 1 else "launches",
        launches=int(effects.size),
        pairs=sum(len(pairs) for pairs in launches),
        pairs_dropped=pairs_dropped,
        launch_sd=observed_sd,
        pair_sd=pair_sd(launches),
        degrees=center.degrees,
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
    """Whether measuring may stop: a verdict with the requested precision, or precise for its size.

    A half-width of a quarter of the effect is enough, and a third after two launches: a large effect
    need not be known to within 1 %.
    """
    if budget.precision_goal <= 0.0 or estimate.interval is None:
        return False
    if estimate.verdict is Verdict.UNDECIDED or estimate.interval.low <= 0.0:
        return False
    width = math.log(estimate.interval.high / estimate.interval.low) / 2.0
    share = EARLY_SHARE if estimate.launches <= _FIRST else PRECISE_SHARE
    return width <= max(budget.precision_goal, share * abs(math.log(estimate.speedup)))


def _center(
    launches: Pairs, effects: NDArray[np.float64], plan: Sequence[InterimAnalysis], budget: Budget
) -> _Center:
    if effects.size == 0:
        return _Center(log=0.0, half_widths=None, p_value=None)
    center = float(np.mean(effects))
    if effects.size == 1:
        pairs = next(pairs for pairs in launches if len(pairs))
        ends = median_interval(pairs, budget.alpha)
        asked_for = budget.max_launches == 1
        return _Center(
            log=center,
            half_widths=None if ends is None else (center - ends[0], ends[1] - center),
            p_value=sign_test_p(pairs) if asked_for else None,
        )
    usable = [pairs for pairs in launches if len(pairs)]
    summaries = [
        _summary(effects[: analysis.launches], usable[: analysis.launches]) for analysis in plan
    ]
    nominal_ps = [
        float(
            p_values(
                np.mean(effects[: one.launches], keepdims=True),
                np.asarray([one.spread]),
                one.launches,
                pair_variance=one.pair_variance,
            )[0]
        )
        for one in summaries
    ]
    level = interval_level(plan, nominal_ps, budget.alpha)
    width = half_width(summaries[-1], level)
    return _Center(
        log=center,
        half_widths=(width, width),
        p_value=p_value(plan, nominal_ps, budget.alpha),
        degrees=effective_degrees(summaries[-1], budget.alpha),
    )


@dataclass(frozen=True, kw_only=True)
class InterimResult:
    """Input of the planning for one candidate: effect, spread between launches, noise of pairs."""

    effect: float | None
    """Mean log speedup over launches; None without a clean pair."""
    summary: LaunchSummary | None
    """None below two launches with a clean pair."""
    pair_sd: float | None


def interim_result(launches: Pairs) -> InterimResult:
    """Return the result so far, from the clean pairs of each launch."""
    effects = launch_effects(launches)
    usable = [pairs for pairs in launches if len(pairs)]
    return InterimResult(
        effect=float(np.mean(effects)) if effects.size else None,
        summary=_summary(effects, usable) if effects.size > 1 else None,
        pair_sd=pair_sd(launches),
    )


def _summary(effects: NDArray[np.float64], launches: Pairs) -> LaunchSummary:
    """Return the summary of launches that have clean pairs.

    The variance between launches contains the error of their pairs: it cannot be smaller, even if a
    few launches agree by chance.
    """
    spread = launch_sd(effects)
    if spread is None:
        raise ValueError(f"{effects.size} launches have no standard deviation")
    return LaunchSummary(
        launches=int(effects.size),
        spread=max(spread, SD_FLOOR),
        pair_variance=pair_floor(launches) ** 2,
    )


def _usable_analyses(
    launches: Pairs, looks: Sequence[InterimAnalysis], budget: Budget
) -> list[InterimAnalysis]:
    """Return the analyses at which stopping was possible, counted in launches with a clean pair.

    An analysis that cannot stop the measurement spends no alpha: those with fewer launches than a
    verdict needs, and all interim analyses if the whole time is used.
    """
    if not looks:
        looks = (InterimAnalysis(launches=len(launches), fraction=1.0),)
    if looks[-1].launches != len(launches):
        raise ValueError(
            f"the last analysis is at {looks[-1].launches} of {len(launches)} launches"
        )
    usable = [
        InterimAnalysis(
            launches=sum(len(pairs) > 0 for pairs in launches[: analysis.launches]),
            fraction=min(1.0, analysis.fraction),
        )
        for analysis in looks
    ]
    required = _min_launches(budget)
    could_stop = [analysis for analysis in usable[:-1] if analysis.launches >= required]
    return [*(could_stop if budget.precision_goal > 0.0 else ()), usable[-1]]


def _mean_effect(launches: Pairs, mean_launches: Pairs | None) -> tuple[float | None, float]:
    """Return the log speedup from block means, and the p-value of its difference from the medians.

    Each launch contributes the mean over its pairs, which slow blocks affect and medians ignore. If
    slow iterations and blocks affect both variants alike, the deviations of the means from the launch
    median are symmetric, which is tested.
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
        (pairs, mean_pairs)
        for pairs, mean_pairs in zip(launches, mean_launches, strict=True)
        if len(pairs)
    ]
    centers = launch_effects([pairs for pairs, _ in used])
    deviations = [
        value - float(center)
        for (_, mean_pairs), center in zip(used, centers, strict=True)
        for value in mean_pairs
    ]
    return mean_log, sign_flip_p(deviations)


def _dependent(
    effects: NDArray[np.float64], center: _Center, verdict: Verdict, margin: float
) -> list[str]:
    """Return why the verdict does not hold if successive launches are correlated, where they are.

    A stationary series with lag-1 correlation r has sqrt((1 + r) / (1 - r)) times the standard error
    of independent values.
    """
    correlation = min(dependence(effects), 0.9)
    if correlation <= 0.0 or center.half_widths is None or verdict is Verdict.UNDECIDED:
        return []
    factor = math.sqrt((1.0 + correlation) / (1.0 - correlation))
    low, high = (factor * width for width in center.half_widths)
    if verdict_of(center.log - low, center.log + high, margin) is verdict:
        return []
    text = (
        f"successive launches are correlated ({correlation:.2f}), so the interval is too narrow: "
        f"{verdict} does not hold with an interval {factor:.1f} times as wide"
    )
    return [text]


def _contradicts(mean_log: float, verdict: Verdict, margin: float) -> bool:
    """Whether the speedup from block means contradicts the verdict from medians."""
    if verdict is Verdict.SAME:
        return abs(mean_log) > math.log1p(margin)
    if verdict is Verdict.FASTER:
        return mean_log <= 0.0
    return verdict is Verdict.SLOWER and mean_log >= 0.0


def _time_needed_s(
    spread: float | None, launches: int, seconds_per_launch: float | None, budget: Budget
) -> float | None:
    """Return the time needed for a verdict; None with too few launches to estimate it."""
    if spread is None or seconds_per_launch is None or launches < MIN_LAUNCHES_TO_PLAN:
        return None
    needed = launches_needed(
        spread, budget.precision_goal, alpha=budget.alpha, at_least=_min_launches(budget)
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
        at_least=_min_launches(budget),
    )
    return (
        None if needed is None else (needed[0] * seconds_per_launch, needed[1] * seconds_per_launch)
    )


def _min_launches(budget: Budget) -> int:
    return max(2, min(budget.min_launches, budget.max_launches))


def _judge(center: _Center, launches: int, budget: Budget) -> tuple[Verdict, list[str]]:
    if launches == 0:
        return Verdict.UNDECIDED, ["no launch has a clean pair"]
    if launches == 1 and budget.max_launches > 1:
        return Verdict.UNDECIDED, [ONE_LAUNCH]
    remarks = [ONE_LAUNCH] if launches == 1 else []
    required = _min_launches(budget)
    if 1 < launches < required:
        return Verdict.UNDECIDED, [f"{launches} launches; a verdict needs {required}"]
    if center.ends is None:
        return Verdict.UNDECIDED, [*remarks, "too few data for a confidence interval"]
    low, high = center.ends
    verdict = verdict_of(low, high, budget.margin)
    if verdict is Verdict.UNDECIDED:
        remarks.append(
            f"the interval {math.exp(low):.4f} to {math.exp(high):.4f} includes both no difference and "
            f"differences beyond the margin of {budget.margin:.2%}"
        )
    return verdict, remarks


def _remarks(launches: Pairs, effects: NDArray[np.float64], floor: float) -> list[str]:
    remarks = []
    empty = len(launches) - effects.size
    if empty and effects.size:
        remarks.append(f"{empty} of {len(launches)} launches had no clean pair and were excluded")
    spread = launch_sd(effects)
    if spread is not None and max(2.0 * spread, SD_FLOOR) < floor:
        remarks.append(
            f"launches agree within {spread:.2%}, closer than their pairs explain: the interval is "
            f"based on the {floor:.2%} that pairs imply"
        )
    elif spread is not None and spread < SD_FLOOR:
        remarks.append(
            "launches agree to the last digit: the clock is too coarse to show their variation"
        )
    return remarks


def _interval(center: _Center, budget: Budget) -> Interval | None:
    if center.ends is None:
        return None
    low, high = center.ends
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
                f"budget: invalid value {key} = {value!r}",
                hint="alpha must be between 0 and 1, margins must not be negative, launches must be at least 1",
            )
