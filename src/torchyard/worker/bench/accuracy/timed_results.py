"""Results of timed calls, kept while a block runs and compared after it. Runs inside the target.

Samples are chosen at random, and the result of their last call is copied after the clock was read, so that a variant
cannot distinguish checked calls. A result is correct if it differs from eager's by at most a small multiple of the
difference accepted before timing, or by no more than a timed result that passed the full accuracy check; otherwise it
gets the full check with its own float64 reference.
"""

import math
import random
from typing import Any, Dict, List, NamedTuple, Optional

import torch

from torchyard.worker.bench.accuracy import judge as accuracy
from torchyard.worker.bench.accuracy import plain_values
from torchyard.worker.bench.accuracy.tensors import Results, pieces, plain
from torchyard.worker.bench.variant import VariantRunner

MOST_SAMPLES = 8
KEPT_BYTES = 32 << 20
"""Bytes copied in one block; at least one result is kept."""
MARGIN = 3.0
"""Tolerance as a multiple of the difference from eager code that was accepted before timing."""
COMPARABLE = ("pass", "less-accurate", "nondeterministic")
"""Statuses with which results of timed calls can be compared with those of eager code."""

SINGLE_STEPS = 4.0
"""Tolerance of a single number, in rounding steps of its type: one that is often equal has no accepted
difference, and the full check of a loss takes as long as that of all gradients."""

Accepted = Dict[str, List[List[float]]]
"""By group: for each tensor the tolerated relative distance from eager code, root mean square and largest."""

_chance = random.SystemRandom()
"""Not the shared generator, whose next numbers a variant could predict."""


class Kept(NamedTuple):
    """The results of one timed call."""

    call: int
    results: Results
    snapshot: Dict[str, Any]
    """Values before the call of the inputs, buffers and parameters that eager code changes."""


class TimedCheck:
    """Chooses calls of one block and keeps their results."""

    def __init__(
        self, runner: VariantRunner, changing: List[str], samples: int, inner: int
    ) -> None:
        self._runner = runner
        self._changing = changing
        self.inner = inner
        self.chosen = self._choose(samples)
        self.prime = _chance.randrange(8) if inner > 1 else 0
        """Further untimed calls: otherwise the index of checked calls modulo `inner` would be constant."""
        self.kept: List[Kept] = []
        self.changed: List[str] = []
        self.unfinished_ns = 0
        """Time that the device continued after the end of the timed stream: work on other streams."""
        self._snapshot: Dict[str, Any] = {}

    def _choose(self, samples: int) -> "frozenset[int]":
        size = sum(_bytes(t) for t in self._runner.model.snapshot(self._changing).values())
        size += self._runner.result_bytes
        most = max(1, min(MOST_SAMPLES, KEPT_BYTES // max(1, size)))
        if samples > 2:
            most = min(most, samples // 2)
        return frozenset(_chance.sample(range(samples), min(samples, most)))

    @property
    def stateful(self) -> bool:
        """Whether an iteration changes state that the next one reads."""
        return bool(self._changing)

    def before(self) -> None:
        """Copy the state before the next call."""
        if self._changing:
            self._snapshot = self._runner.snapshot(self._changing)

    def after(self, sample: int, kept: List[Any]) -> None:
        """Copy the results of the call."""
        with self._runner.model.without_optimizer():
            results = self._runner.collect(kept, self._changing)
        self.kept.append(Kept((sample + 1) * self.inner, results, self._snapshot))

    def finish(self) -> None:
        """Record inputs and buffers that the block changed, and restore them."""
        self.changed = self._runner.model.changed_names()
        self._runner.model.rewind()


class Verifier:
    """Compares kept results of one variant with eager code."""

    def __init__(self, runner: VariantRunner, seed: int, limit_bytes: Optional[int]) -> None:
        self._runner = runner
        self.peer = runner.peer()
        self._seed = seed
        self._limit_bytes = limit_bytes
        self.accepted: Optional[Accepted] = None
        self._changing: Optional[List[str]] = None

    def changing(self) -> List[str]:
        """Return the inputs, buffers and parameters that an iteration of eager code changes."""
        if self._changing is None:
            self.peer.results(self._seed)
            self._changing = list(self.peer.changed)
        return self._changing

    def accept(self, results: Results, expected: Results, margin: float = MARGIN) -> None:
        """Tolerate a multiple of the difference of correct results from those of eager code."""
        now = {
            group: [
                [margin * one if math.isfinite(one) else 0.0 for one in distance(*both)]
                for both in zip(tensors, expected[group])
            ]
            for group, tensors in results.items()
            if len(tensors) == len(expected.get(group, []))
        }
        if self.accepted is None:
            self.accepted = now
            return
        for group, pairs in now.items():
            before = self.accepted.setdefault(group, pairs)
            self.accepted[group] = [
                [max(one[0], other[0]), max(one[1], other[1])] for one, other in zip(pairs, before)
            ]

    def failure(self, check: TimedCheck) -> Optional[Dict[str, Any]]:
        """Return the first call of the block with a wrong result, and its description."""
        extra = sorted(set(check.changed) - set(self.changing()))
        if extra:
            return {"call": None, "text": "changes " + ", ".join(extra[:3])}
        expected: Optional[Results] = None
        right: List[Results] = []
        for checked_call in check.kept:
            if any(_identical(checked_call.results, other) for other in right):
                continue
            if expected is None or checked_call.snapshot:
                expected = self._expected(checked_call)
            text = self._judge(checked_call, expected)
            if text:
                return {"call": checked_call.call, "text": text}
            if not checked_call.snapshot:
                right = [checked_call.results]
        return None

    def _expected(self, kept: Kept) -> Results:
        model = self._runner.model
        with model.starting_from(kept.snapshot), model.without_optimizer():
            return self.peer.results(self._seed)[0]

    def _judge(self, kept: Kept, expected: Results) -> str:
        if self.is_near(kept.results, expected):
            return ""
        model = self._runner.model
        with model.starting_from(kept.snapshot), model.without_optimizer():
            reference = accuracy.make_reference(self.peer, self._seed, self._limit_bytes)
            record = accuracy.judge(self._runner, self._seed, reference, results=kept.results)
        if record["status"] == "fail":
            return str(record["detail"])
        if record["status"] in COMPARABLE:
            # Nondeterministic results differ more in some calls: the full check is not needed for each of them.
            # Without a margin, so that errors that grow slowly do not pass what the full check refuses.
            self.accept(kept.results, expected, margin=1.0)
        return ""

    def is_near(self, results: Results, expected: Results) -> bool:
        """Whether results equal eager's, or differ by no more than the accepted ones."""
        if _identical(results, expected):
            return True
        accepted = self.accepted
        if accepted is None or set(results) != set(expected):
            return False
        for group, tensors in results.items():
            limits = accepted.get(group, [])
            if not len(tensors) == len(expected[group]) == len(limits):
                return False
            for one, other, limit in zip(tensors, expected[group], limits):
                relative = distance(one, other)
                least = _least(other, group)
                if any(error > max(most, least) for error, most in zip(relative, limit)):
                    return False
        return True


def _least(expected: Any, group: str) -> float:
    """Return the relative difference that is always near: only of a single number, which hides no other."""
    if expected.numel() != 1 or not expected.is_floating_point():
        return 0.0
    # Python has one type of numbers, whatever the type of the tensor that they come from.
    dtype = torch.float32 if group == plain_values.GROUP else expected.dtype
    return SINGLE_STEPS * float(torch.finfo(dtype).eps)


def distance(actual: Any, expected: Any) -> List[float]:
    """Return the relative difference of two tensors, root mean square and largest; inf if undefined."""
    far = [math.inf, math.inf]
    place = actual.device if actual.is_cuda and actual.device == expected.device else "cpu"
    one, other = plain(actual, place), plain(expected, place)
    if one.shape != other.shape or one.dtype is not other.dtype:
        return far
    if torch.equal(one, other):
        return [0.0, 0.0]
    if not one.is_floating_point():
        return far
    zero = torch.zeros((), dtype=torch.float64, device=one.device)
    totals = []
    for first, second in pieces(place, one, other):
        finite = torch.isfinite(second)
        gap = torch.where(finite, first - second, zero)
        size = torch.where(finite, second, zero)
        parts = [gap.square().sum(), size.square().sum(), gap.abs().max(), size.abs().max()]
        same = (first == second) | (torch.isnan(first) & torch.isnan(second))
        parts.append((~same & ~(finite & torch.isfinite(first))).any().double())
        totals.append(torch.stack(parts))
    table = torch.stack(totals)  # read once: each number read from a GPU waits for it
    gap_squares, size_squares, *_ = table.sum(dim=0).tolist()
    _, _, largest_gap, largest, mismatched = table.max(dim=0).values.tolist()
    if mismatched or size_squares == 0.0 or math.inf in (gap_squares, size_squares):
        return far
    return [math.sqrt(gap_squares / size_squares), largest_gap / largest]


def _identical(one: Results, other: Results) -> bool:
    if set(one) != set(other):
        return False
    return all(
        len(tensors) == len(other[group])
        and all(
            left.dtype is right.dtype and _equal(left, right)
            for left, right in zip(tensors, other[group])
        )
        for group, tensors in one.items()
    )


def _equal(left: Any, right: Any) -> bool:
    one, other = plain(left, left.device), plain(right, left.device)
    return one.shape == other.shape and bool(torch.equal(one, other))


def _bytes(tensor: Any) -> int:
    return int(tensor.numel()) * int(tensor.element_size())
