"""Failures instead of times: posterior over change points, and a test of one setting, from exit codes.

A run fails or not. Runs before and after a change fail with two unknown probabilities (Jeffreys
priors), so that flaky programs can be searched, too. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from torchyard.bisect.posterior import Posterior

PASSED: Final = 1.0
FAILED: Final = math.e
"""Values of runs in blocks; their logarithms are 0 and 1."""
_NO_CHANGE: Final = 0.05

Round = Mapping[int, float]


def failed_runs(rounds: Sequence[Round], revision: int) -> tuple[int, int]:
    """Return how many runs of a revision failed, and how many there are."""
    values = [one[revision] for one in rounds if revision in one]
    return round(math.fsum(values)), len(values)


def posterior_of_failures(
    rounds: Sequence[Round], last: int, *, no_change: float = _NO_CHANGE
) -> Posterior:
    """Return the posterior of the range 0 to `last`; `no_change` is the prior of no change."""
    counts = [failed_runs(rounds, revision) for revision in range(last + 1)]
    failed, runs = (sum(one[i] for one in counts) for i in range(2))
    logs = []
    before, runs_before = counts[0]
    for count, size in counts[1:]:
        logs.append(
            _log_likelihood(before, runs_before)
            + _log_likelihood(failed - before, runs - runs_before)
        )
        before, runs_before = before + count, runs_before + size
    none = _log_likelihood(failed, runs)
    top = max(none, *logs)
    weights = [0.0, *((1.0 - no_change) / last * math.exp(log - top) for log in logs)]
    nothing = no_change * math.exp(none - top)
    total = nothing + math.fsum(weights)
    single = tuple(weight / total for weight in weights)
    return Posterior(
        single=single,
        no_change=nothing / total,
        several=0.0,
        changes=single,
        pair=None,
        rounds=tuple(size for _, size in counts),
    )


def log_evidence(runs: tuple[int, int], good: tuple[int, int], bad: tuple[int, int]) -> float:
    """Return the log likelihood ratio of failing as bad does, and failing as good does."""
    rates = [(failed + 0.5) / (size + 1.0) for failed, size in (good, bad)]
    failed, passed = runs[0], runs[1] - runs[0]
    return failed * math.log(rates[1] / rates[0]) + passed * math.log(
        (1.0 - rates[1]) / (1.0 - rates[0])
    )


def _log_likelihood(failed: int, runs: int) -> float:
    """Return the log marginal likelihood of a sequence of runs with one failure probability."""
    return (
        math.lgamma(failed + 0.5)
        + math.lgamma(runs - failed + 0.5)
        - math.lgamma(runs + 1.0)
        - math.log(math.pi)
    )
