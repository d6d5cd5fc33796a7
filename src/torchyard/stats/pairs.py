"""Pairs from blocks: the log speedups of all statistics, and the count of disturbed blocks.

A pair is the baseline's block and a candidate's block of one round. Its value is the log of
baseline time divided by candidate time. Disturbed pairs are dropped as long as most pairs are clean
and both variants are disturbed equally often. If most pairs are disturbed, all pairs are kept (the
order inside a pair is random, so there is no bias), and the comparison is untrusted. A disturbance
that occurs with one variant only, such as page faults of the candidate, is part of that variant's
cost: all pairs are kept, and the verdict cannot be *same*.

Pure functions of recorded blocks, so that an old run can be analyzed again.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from torchyard.core.block import Block
from torchyard.core.comparison import GuardSummary
from torchyard.stats.distributions import two_counts_p

MIN_CLEAN_PAIRS: Final = 3
"""A launch with fewer clean pairs is excluded, except for whole programs: each run is a launch."""
DIRTY_SHARE_LIMIT: Final = 0.5
"""Share of disturbed pairs above which a comparison is untrusted (noisy machine)."""
ONE_SIDED_P: Final = 0.01
"""p-value of the sign test below which a disturbance is attributed to one variant."""
ONE_SIDED_SHARE: Final = 0.02
"""Excess share of disturbed rounds of one variant that rules out *same*. Below it, the pairs are also
kept, and block means show the cost of the disturbance."""


@dataclass(frozen=True, kw_only=True)
class UsedPair:
    """One pair of the estimate: the times of both blocks."""

    baseline_ns: float
    candidate_ns: float
    """Medians over the samples of the block."""


@dataclass(frozen=True, kw_only=True)
class PairedLaunches:
    """Pairs of every launch, in order; empty for a launch with too few clean pairs."""

    medians: tuple[tuple[float, ...], ...]
    means: tuple[tuple[float, ...], ...]
    times: tuple[tuple[UsedPair, ...], ...]
    """The times behind `medians`, pair by pair."""
    dropped: int
    disturbed: int
    """Number of disturbed pairs, dropped or not."""
    reasons: tuple[tuple[str, int], ...]
    """Reasons of disturbances with counts, most frequent first."""
    one_sided: tuple[str, ...] = ()
    """Disturbances attributed to one variant, one sentence each; all pairs are kept then."""
    never_same: tuple[str, ...] = ()
    """Those of them that are frequent enough to rule out *same*."""

    @property
    def pairs(self) -> int:
        """Number of pairs in the estimate."""
        return sum(len(launch) for launch in self.medians)

    @property
    def usable(self) -> int:
        """Number of launches in the estimate."""
        return sum(1 for launch in self.medians if launch)

    @property
    def busy(self) -> bool:
        """Whether most pairs were disturbed, so that all of them are kept."""
        return self.disturbed > DIRTY_SHARE_LIMIT * max(1, self.pairs + self.dropped)


@dataclass(frozen=True, kw_only=True)
class _Pair:
    launch: int
    base: Block
    other: Block

    @property
    def why(self) -> frozenset[str]:
        return frozenset(self.base.dirty) | frozenset(self.other.dirty)

    @property
    def median(self) -> float:
        return math.log(self.base.median_ns / self.other.median_ns)

    @property
    def mean(self) -> float:
        return math.log(self.base.mean_ns / self.other.mean_ns)


def pair_blocks(blocks: Iterable[Block], baseline: str, candidate: str) -> PairedLaunches:
    """Pair the blocks of two variants round by round."""
    pairs = _pairs(blocks, baseline, candidate)
    reasons = Counter(reason for pair in pairs for reason in sorted(pair.why))
    disturbed = sum(1 for pair in pairs if pair.why)
    one_sided = _one_sided(pairs)
    keep_all = disturbed > DIRTY_SHARE_LIMIT * len(pairs) or bool(one_sided)
    pairs_by_launch: dict[int, list[_Pair]] = {pair.launch: [] for pair in pairs}
    for pair in pairs:
        if keep_all or not pair.why:
            pairs_by_launch[pair.launch].append(pair)
    for launch, launch_pairs in pairs_by_launch.items():
        whole = all(pair.base.whole_process for pair in launch_pairs)
        if 0 < len(launch_pairs) < MIN_CLEAN_PAIRS and not whole:
            reasons["too few clean pairs in the launch"] += len(launch_pairs)
            pairs_by_launch[launch] = []
    used = sum(len(launch_pairs) for launch_pairs in pairs_by_launch.values())
    return PairedLaunches(
        medians=tuple(
            tuple(pair.median for pair in launch_pairs) for launch_pairs in pairs_by_launch.values()
        ),
        means=tuple(
            tuple(pair.mean for pair in launch_pairs) for launch_pairs in pairs_by_launch.values()
        ),
        times=tuple(
            tuple(
                UsedPair(baseline_ns=pair.base.median_ns, candidate_ns=pair.other.median_ns)
                for pair in launch_pairs
            )
            for launch_pairs in pairs_by_launch.values()
        ),
        dropped=len(pairs) - used,
        disturbed=disturbed,
        reasons=tuple(reasons.most_common()),
        one_sided=tuple(text for text, _ in one_sided),
        never_same=tuple(text for text, share in one_sided if share >= ONE_SIDED_SHARE),
    )


def _one_sided(pairs: list[_Pair]) -> list[tuple[str, float]]:
    """Return disturbances that one variant has significantly more often, with the excess share.

    An exact sign test on the rounds in which exactly one block is disturbed: for any reason, and for
    each reason by itself, because two variants can be disturbed equally often by different things.
    Bonferroni over these tests.
    """
    reasons = sorted({reason for pair in pairs for reason in pair.why})
    tests: list[str | None] = [None, *(reasons if len(reasons) > 1 else ())]
    disturbances: list[tuple[str | None, str, float]] = []
    for reason in tests:
        base = [_has(pair.base, reason) for pair in pairs]
        other = [_has(pair.other, reason) for pair in pairs]
        only_base = sum(b and not o for b, o in zip(base, other, strict=True))
        only_other = sum(o and not b for b, o in zip(base, other, strict=True))
        if two_counts_p(only_base, only_other) * len(tests) >= ONE_SIDED_P:
            continue
        shares = {"candidate": sum(other) / len(pairs), "baseline": sum(base) / len(pairs)}
        owner = "candidate" if only_other > only_base else "baseline"
        rest = "baseline" if owner == "candidate" else "candidate"
        what = reason or "disturbance"
        text = (
            f"{what} is attributed to the {owner}: it occurs in {shares[owner]:.0%} of its blocks and in "
            f"{shares[rest]:.0%} of the {rest}'s"
        )
        disturbances.append((reason, text, abs(only_other - only_base) / len(pairs)))
    # The sentence about any reason is redundant if there are sentences about single ones.
    if len(disturbances) > 1 and disturbances[0][0] is None:
        disturbances = disturbances[1:]
    return [(text, share) for _, text, share in disturbances]


def _has(block: Block, reason: str | None) -> bool:
    return bool(block.dirty) if reason is None else reason in block.dirty


def _pairs(blocks: Iterable[Block], baseline: str, candidate: str) -> list[_Pair]:
    rounds: dict[tuple[int, int], dict[str, Block]] = defaultdict(dict)
    for block in blocks:
        if block.variant in {baseline, candidate}:
            rounds[block.launch, block.round][block.variant] = block
    return [
        _Pair(launch=launch, base=sides[baseline], other=sides[candidate])
        for (launch, _), sides in sorted(rounds.items())
        if len(sides) == 2  # noqa: PLR2004 - a round that was interrupted has fewer
    ]


def summarize_guards(blocks: Iterable[Block], baseline: str, candidate: str) -> GuardSummary:
    """Summarize guard readings over the rounds in which both variants have a block."""
    rounds: dict[tuple[int, int], dict[str, Block]] = defaultdict(dict)
    for block in blocks:
        if block.variant in {baseline, candidate}:
            rounds[block.launch, block.round][block.variant] = block
    paired = [block for sides in rounds.values() if len(sides) > 1 for block in sides.values()]
    reasons = Counter(reason for block in paired for reason in block.dirty)
    degrees = [
        block.guard.cpu_temperature_c
        for block in paired
        if block.guard.cpu_temperature_c is not None
    ]
    return GuardSummary(
        blocks=len(paired),
        dirty=sum(1 for block in paired if block.dirty),
        reasons=tuple(reasons.most_common()),
        temperature_c=(min(degrees), max(degrees)) if degrees else None,
    )
