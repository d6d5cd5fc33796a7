"""Posterior over failing runs, and the likelihood ratio of one set of settings."""

from __future__ import annotations

import random

import pytest

from torchyard.bisect.failures import failed_runs, log_evidence, posterior_of_failures
from torchyard.bisect.posterior import next_revision


def search(rates: list[float], seed: int, most: int = 400) -> int | None:
    """Return the revision that is named after rounds of single runs."""
    chance = random.Random(seed)
    last = len(rates) - 1
    rounds = [{i: float(chance.random() < rates[i]) for i in (0, last)} for _ in range(5)]
    for _ in range(most):
        posterior = posterior_of_failures(rounds, last)
        if posterior.culprit is not None:
            return posterior.culprit
        chosen = next_revision(posterior)
        assert chosen is not None
        rounds.append({chosen: float(chance.random() < rates[chosen])})
    return None


def test_the_first_failing_revision_is_found_in_few_runs() -> None:
    for change in (1, 2, 9, 15, 16):
        assert search([0.0] * change + [1.0] * (17 - change), 1, most=20) == change


def test_flaky_failures() -> None:
    results = [search([0.02] * 9 + [0.5] * 8, seed) for seed in range(30)]
    assert results.count(9) >= 26
    assert sum(one not in {9, None} for one in results) <= 4


def test_a_fix_is_found_too() -> None:
    assert search([1.0] * 6 + [0.0] * 5, 1) == 6


def test_probabilities_sum_to_one_and_equal_ends_gain_no_change() -> None:
    rounds = [{0: 0.0, 4: 0.0}] * 30
    posterior = posterior_of_failures(rounds, 4, no_change=0.5)
    assert sum(posterior.single) + posterior.no_change == pytest.approx(1.0)
    assert posterior.no_change > 0.5
    assert failed_runs([{0: 1.0}, {0: 0.0}, {1: 1.0}], 0) == (1, 2)


def test_evidence_has_the_sign_of_the_likelier_side() -> None:
    good, bad = (0, 5), (5, 5)
    assert log_evidence((3, 3), good, bad) > 0.0 > log_evidence((0, 3), good, bad)
    assert log_evidence((1, 2), good, bad) == pytest.approx(0.0)
