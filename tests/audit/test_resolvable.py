from __future__ import annotations

import math

import numpy as np
import pytest

from torchyard.audit.model import Spread
from torchyard.audit.variation import MINUTES, resolvable_in
from torchyard.core.comparison import Interval
from torchyard.stats.distributions import two_sided_critical

NOISY = Spread(sd=0.03, interval=Interval(low=0.02, high=0.06))


def test_longer_comparisons_resolve_less() -> None:
    found = [resolvable_in(minutes, NOISY, launch_s=4.4).difference for minutes in MINUTES]
    sizes = [size for size in found if size is not None]
    assert len(sizes) == len(MINUTES)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] / sizes[-1] == pytest.approx(math.sqrt(30), rel=0.12)


def test_the_number_of_launches_is_what_fits() -> None:
    assert resolvable_in(1, NOISY, launch_s=4.5).launches == 13
    assert resolvable_in(5, NOISY, launch_s=100.0).launches == 3


def test_the_interval_comes_from_the_spread() -> None:
    found = resolvable_in(5, NOISY, launch_s=4.0)
    assert found.difference is not None
    assert found.interval is not None
    assert found.interval.low == pytest.approx(found.difference * 2 / 3)
    assert found.interval.high == pytest.approx(found.difference * 2)


def test_no_resolvable_effect_without_two_launches_or_a_spread() -> None:
    assert resolvable_in(1, NOISY, launch_s=40.0).difference is None
    assert resolvable_in(1, Spread(), launch_s=1.0).difference is None
    assert resolvable_in(5, Spread(sd=0.01), launch_s=4.0).interval is None
    with pytest.raises(ValueError, match="must be positive"):
        resolvable_in(1, NOISY, launch_s=0.0)


def test_the_resolvable_effect_holds_in_simulation() -> None:
    """A difference of the promised size is found by the t test in about 80 % of comparisons."""
    found = resolvable_in(1, NOISY, launch_s=4.5)
    assert found.difference is not None
    rng = np.random.default_rng(11)
    drawn = rng.normal(found.difference, 0.03, (4000, found.launches))
    t = drawn.mean(axis=1) / (drawn.std(axis=1, ddof=1) / math.sqrt(found.launches))
    power = float(np.mean(t > two_sided_critical(0.05, found.launches - 1)))
    assert 0.78 <= power <= 0.86
