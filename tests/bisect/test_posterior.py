"""The posterior over change points, against a direct computation and limiting cases."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from torchyard.bisect.noise import MIN_ROUNDS, SINGLE_LEVEL, differ, without_outliers
from torchyard.bisect.posterior import (
    Posterior,
    candidates,
    effect_of,
    next_revision,
    posterior_of,
)

LAST = 8


def rounds_of(
    change: int, size: float, middles: list[int], sd: float = 0.01
) -> list[dict[int, float]]:
    chance = random.Random(5)
    rounds = []
    for number in [0, LAST, *middles]:
        common = chance.gauss(0.0, 1.0)
        rounds.append(
            {
                k: common + chance.gauss(0.0, sd) + (size if k >= change else 0.0)
                for k in sorted({0, number, LAST})
            }
        )
    return rounds


def direct_log_likelihood(rounds: list[dict[int, float]], steps: list[int]) -> float:
    """Least squares with one column for each round and each step, and the g-prior."""
    rows, values = [], []
    for index, one in enumerate(rounds):
        for k, value in one.items():
            rows.append(
                [float(index == i) for i in range(len(rounds))] + [float(k >= s) for s in steps]
            )
            values.append(value)
    design, y = np.array(rows), np.array(values)

    def residual(columns: int) -> float:
        fit = design[:, :columns] @ np.linalg.lstsq(design[:, :columns], y, rcond=None)[0]
        return float(((y - fit) ** 2).sum())

    degrees = len(y) - len(rounds)
    share = residual(len(rounds) + len(steps)) / residual(len(rounds))
    return 0.5 * (
        (degrees - len(steps)) * math.log1p(degrees) - degrees * math.log1p(degrees * share)
    )


def test_probabilities_equal_a_direct_computation() -> None:
    rounds = rounds_of(3, 0.02, [4, 2, 6, 2])
    posterior = posterior_of(rounds, LAST, margin=0.0)
    weights: dict[tuple[int, ...], float] = {
        (k,): 0.85 / LAST * math.exp(direct_log_likelihood(rounds, [k])) for k in range(1, 9)
    }
    measured = [0, 2, 4, 6, 8]
    for k1 in range(1, 9):
        for k2 in range(k1 + 1, 9):
            # Two changes without a measured revision between them are one step.
            separate = any(k1 <= k < k2 for k in measured)
            steps = [k1, k2] if separate else [k1]
            weights[k1, k2] = 0.1 / 28 * math.exp(direct_log_likelihood(rounds, steps))
    weights[()] = 0.05
    total = math.fsum(weights.values())
    for k in range(1, 9):
        assert posterior.single[k] == pytest.approx(weights[(k,)] / total, rel=1e-6)
    assert posterior.no_change == pytest.approx(0.05 / total, rel=1e-6)
    several = math.fsum(value for key, value in weights.items() if len(key) == 2)
    assert posterior.several == pytest.approx(several / total, rel=1e-6)
    assert posterior.changes[5] == pytest.approx(
        math.fsum(value for key, value in weights.items() if 5 in key) / total, rel=1e-6
    )


def test_probabilities_sum_to_one() -> None:
    posterior = posterior_of(rounds_of(3, 0.02, [4, 2]), LAST, margin=0.01)
    assert posterior.no_change + posterior.several + sum(posterior.single) == pytest.approx(1.0)


def test_effects_of_rounds_do_not_matter() -> None:
    rounds = rounds_of(3, 0.05, [4, 2, 3])
    shifted = [{k: value + 3.0 * i for k, value in one.items()} for i, one in enumerate(rounds)]
    first, second = (posterior_of(one, LAST, margin=0.01) for one in (rounds, shifted))
    assert first.single == pytest.approx(second.single, abs=1e-6)


def test_a_faster_revision_is_found_too() -> None:
    posterior = posterior_of(rounds_of(3, -0.2, [4, 3, 2] * 4), LAST, margin=0.01)
    assert posterior.culprit == 3


def test_one_measurement_of_each_side_is_not_enough() -> None:
    rounds = rounds_of(3, 0.2, [0, 0, 0, 0, 0, 3, 2])
    posterior = posterior_of(rounds, LAST, margin=0.01)
    assert posterior.best == 3
    assert posterior.single[3] > 0.9
    assert posterior.culprit is None
    more = posterior_of([*rounds, *rounds_of(3, 0.2, [3, 2] * MIN_ROUNDS)], LAST, margin=0.01)
    assert more.culprit == 3


def test_the_next_revision_halves_the_posterior() -> None:
    posterior = posterior_of(rounds_of(3, 0.2, []), LAST, margin=0.01)
    assert next_revision(posterior) == 4
    posterior = posterior_of(rounds_of(3, 0.2, [4] * 5), LAST, margin=0.01)
    assert next_revision(posterior) == 2


def test_adjacent_ends_need_no_other_revision() -> None:
    rounds = [{0: 0.0 + i, 1: 0.2 + i + 0.01 * (i % 2)} for i in range(6)]
    posterior = posterior_of(rounds, 1, margin=0.01)
    assert posterior.culprit == 1
    assert next_revision(posterior) is None


def test_equal_times_give_no_change() -> None:
    posterior = posterior_of(rounds_of(3, 0.0, [4, 2, 6] * 30), LAST, margin=0.01)
    assert posterior.no_change > 0.2
    assert posterior.culprit is None
    identical = posterior_of([{0: 1.0, LAST: 1.0}] * 6, LAST, margin=0.01)
    assert identical.culprit is None
    assert identical.no_change > 0.04


def test_candidates_contain_the_change_with_95_percent() -> None:
    posterior = Posterior(
        single=(0.0, 0.5, 0.02, 0.3, 0.15, 0.03),
        no_change=0.0,
        several=0.0,
        changes=(0.0, 0.5, 0.02, 0.3, 0.15, 0.03),
        pair=None,
        rounds=(0,) * 6,
    )
    assert candidates(posterior) == [1, 3, 4]


def test_effect_covers_the_truth() -> None:
    covered = 0
    for seed in range(200):
        chance = random.Random(seed)
        rounds = [
            {k: chance.gauss(0.1 if k >= 3 else 0.0, 0.01) for k in (0, middle, LAST)}
            for middle in (2, 3, 4, 5, 2, 3)
        ]
        effect = effect_of(rounds, 3)
        assert effect.low < effect.ratio < effect.high
        covered += effect.low <= math.exp(0.1) <= effect.high
    assert 180 <= covered <= 199


def test_disturbed_runs_are_left_out() -> None:
    rounds = rounds_of(3, 0.2, [2, 2, 2, 2, 3, 3, 3, 3])
    assert without_outliers(rounds) == rounds
    rounds[4] = {**rounds[4], 2: rounds[4][2] + 0.5}
    rest = {k: value for k, value in rounds[4].items() if k != 2}
    assert without_outliers(rounds) == [*rounds[:4], rest, *rounds[5:]]


def test_a_disturbed_pair_is_left_out() -> None:
    rounds = rounds_of(3, 0.2, [2, 3] * 6)[2:]
    assert without_outliers([{0: 0.0, LAST: 0.7}, *rounds]) == rounds


def test_the_only_run_of_a_revision_counts_within_the_ends() -> None:
    rounds = rounds_of(3, 0.2, [2, 3, 2, 3, 6])
    assert without_outliers(rounds) == rounds
    far = {**rounds[-1], 6: rounds[-1][6] + 0.5}
    rest = {k: value for k, value in far.items() if k != 6}
    assert without_outliers([*rounds[:-1], far]) == [*rounds[:-1], rest]
    # Another run confirms it: the revision is that slow.
    assert without_outliers([*rounds[:-1], far, far]) == [*rounds[:-1], far, far]


def test_the_level_of_a_revision_is_not_an_outlier() -> None:
    rounds = rounds_of(3, 0.2, [2, 3, 2, 3])
    moved = [{k: v + (1.0 if k == 2 else 0.0) for k, v in one.items()} for one in rounds]
    assert without_outliers(moved) == moved


def noisy_rounds(size: float, sd: float, each: int = 3) -> list[dict[int, float]]:
    """Return rounds of revisions 3 and 4 between ends that have almost no noise."""
    chance = random.Random(2)
    return [
        {
            0: chance.gauss(0.0, 0.001),
            k: chance.gauss(size * (k == 4), sd),
            LAST: chance.gauss(0.02, 0.001),
        }
        for k in [3, 4] * each
    ]


def test_adjacent_revisions_differ_by_their_own_noise() -> None:
    assert not differ(noisy_rounds(0.02, 0.03), 3, 4, LAST, SINGLE_LEVEL)
    assert differ(noisy_rounds(0.02, 0.03, each=100), 3, 4, LAST, SINGLE_LEVEL)
    assert differ(noisy_rounds(0.02, 0.001), 3, 4, LAST, SINGLE_LEVEL)
    assert not differ(noisy_rounds(0.02, 0.001, each=2), 3, 4, LAST, SINGLE_LEVEL)
    assert not differ(noisy_rounds(0.0, 0.03, each=100), 3, 4, LAST, SINGLE_LEVEL)


def test_revisions_next_to_an_end() -> None:
    rounds = noisy_rounds(0.02, 0.001)
    assert not differ(rounds, 0, 3, LAST, SINGLE_LEVEL)
    assert differ(rounds, 0, 4, LAST, SINGLE_LEVEL)
    assert differ(rounds, 3, LAST, LAST, SINGLE_LEVEL)
    assert not differ(rounds, 4, LAST, LAST, SINGLE_LEVEL)


def test_runs_of_noisy_revisions_between_quiet_ends_are_no_outliers() -> None:
    rounds = noisy_rounds(0.02, 0.03, each=10)
    assert without_outliers(rounds) == rounds


def test_runs_at_one_of_two_levels_are_no_outliers() -> None:
    chance = random.Random(1)
    rounds = [
        {k: chance.gauss(0.1 if chance.random() < 0.5 else 0.0, 0.002) for k in (0, middle, LAST)}
        for middle in [2, 3] * 12
    ]
    assert without_outliers(rounds) == rounds
