"""Pairs from blocks: the log speedups of all statistics, and the count of disturbed blocks.

A pair is the baseline's block and a candidate's block of one round. Its value is the log of
baseline time divided by candidate time. Disturbed pairs are dropped as long as most pairs are clean
and both variants are disturbed equally often. On a machine that is noisy throughout, all pairs are
kept (the random order inside a pair keeps the comparison fair), and the comparison says that it
describes a noisy machine. A disturbance that occurs with one variant only, such as page faults of
the candidate, is part of that variant's cost: all pairs are kept, and the verdict cannot be *same*.

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
"""A launch with fewer clean pairs has no median worth the name and is left out."""
DIRTY_SHARE_LIMIT: Final = 0.5
"""With more dirty pairs than this the machine counts as busy throughout."""
ONE_SIDED_P: Final = 0.01
"""Below this p-value of the sign test a disturbance belongs to one variant."""
ONE_SIDED_SHARE: Final = 0.02
"""*Same* is refused when a variant is dirty in this share of rounds more often than the other one.
Below it the pairs are kept all the same, and block means show what the disturbance costs."""


@dataclass(frozen=True, kw_only=True)
class UsedPair:
    """One pair of the estimate: the times of both blocks."""

    baseline_ns: float
    candidate_ns: float
    """Medians over the samples of the block."""


@dataclass(frozen=True, kw_only=True)
class PairedLaunches:
    """Pairs of every launch, in order; a launch with too few clean ones is there, but empty."""

    medians: tuple[tuple[float, ...], ...]
    means: tuple[tuple[float, ...], ...]
    times: tuple[tuple[UsedPair, ...], ...]
    """The times behind `medians`, pair by pair."""
    dropped: int
    disturbed: int
    """How many pairs were disturbed, whether they were dropped or not."""
    reasons: tuple[tuple[str, int], ...]
    """What disturbed pairs, most frequent first."""
    one_sided: tuple[str, ...] = ()
    """Disturbances that come with one variant only, a sentence each; all pairs are kept then."""
    never_same: tuple[str, ...] = ()
    """Those of them that come often enough to rule out *same*."""

    @property
    def pairs(self) -> int:
        """How many pairs are in the estimate."""
        return sum(len(launch) for launch in self.medians)

    @property
    def usable(self) -> int:
        """How many launches are in the estimate."""
        return sum(1 for launch in self.medians if launch)

    @property
    def busy(self) -> bool:
        """Whether most pairs were disturbed, so that all of them had to be kept."""
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
    """Pair the two variants' blocks round by round."""
    pairs = _pairs(blocks, baseline, candidate)
    reasons = Counter(reason for pair in pairs for reason in sorted(pair.why))
    disturbed = sum(1 for pair in pairs if pair.why)
    one_sided = _one_sided(pairs)
    keep_all = disturbed > DIRTY_SHARE_LIMIT * len(pairs) or bool(one_sided)
    kept: dict[int, list[_Pair]] = {pair.launch: [] for pair in pairs}
    for pair in pairs:
        if keep_all or not pair.why:
            kept[pair.launch].append(pair)
    for launch, found in kept.items():
        if 0 < len(found) < MIN_CLEAN_PAIRS:
            reasons["too few clean pairs in the launch"] += len(found)
            kept[launch] = []
    used = sum(len(found) for found in kept.values())
    return PairedLaunches(
        medians=tuple(tuple(pair.median for pair in found) for found in kept.values()),
        means=tuple(tuple(pair.mean for pair in found) for found in kept.values()),
        times=tuple(
            tuple(
                UsedPair(baseline_ns=pair.base.median_ns, candidate_ns=pair.other.median_ns)
                for pair in found
            )
            for found in kept.values()
        ),
        dropped=len(pairs) - used,
        disturbed=disturbed,
        reasons=tuple(reasons.most_common()),
        one_sided=tuple(text for text, _ in one_sided),
        never_same=tuple(text for text, share in one_sided if share >= ONE_SIDED_SHARE),
    )


def _one_sided(pairs: list[_Pair]) -> list[tuple[str, float]]:
    """Disturbances that one variant has more often than chance explains, with the excess share.

    An exact sign test on the rounds in which only one of both blocks is dirty: for any reason, and for
    each reason by itself, because two variants can be disturbed equally often by different things.
    Bonferroni over these tests.
    """
    reasons = sorted({reason for pair in pairs for reason in pair.why})
    tests: list[str | None] = [None, *(reasons if len(reasons) > 1 else ())]
    found = []
    for reason in tests:
        base = [_has(pair.base, reason) for pair in pairs]
        other = [_has(pair.other, reason) for pair in pairs]
        only_base = sum(b and not o for b, o in zip(base, other, strict=True))
        only_other = sum(o and not b for b, o in zip(base, other, strict=True))
        if two_counts_p(only_base, only_other) * len(tests) >= ONE_SIDED_P:
            continue
        sides = {"candidate": sum(other) / len(pairs), "baseline": sum(base) / len(pairs)}
        owner = "candidate" if only_other > only_base else "baseline"
        rest = "baseline" if owner == "candidate" else "candidate"
        what = reason or "disturbance"
        text = (
            f"{what} belongs to the {owner}: in {sides[owner]:.0%} of its blocks against "
            f"{sides[rest]:.0%} of the {rest}'s"
        )
        found.append((text, abs(only_other - only_base) / len(pairs)))
    # The sentence about any reason says nothing beyond those about single ones.
    return found[1:] if len(found) > 1 and found[0][0].startswith("disturbance ") else found


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
    """Of the rounds in which both variants have a block: the comparison is made of these."""
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
