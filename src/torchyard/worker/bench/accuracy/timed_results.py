"""Results of timed calls, kept while a block runs and compared after it. Runs inside the target.

A few samples of a block are chosen at random; what their last call returned is copied after the
clock was read. The variant cannot tell a call whose result is kept from any other. After the block, outside
the timed part, the results are compared with those of eager code on the same inputs and state.

Comparing has two steps. A result that equals eager's, or is no further from it than a small multiple of
what the check before timing accepted, is right. Anything else is judged in full (`accuracy`), with a float64
reference of its own.
"""

import math
import random
from typing import Any, Dict, List, Optional

import torch

from torchyard.worker.bench.accuracy import judge as accuracy
from torchyard.worker.bench.accuracy.tensors import Results, plain
from torchyard.worker.bench.variant import Side

MOST_SAMPLES = 8
KEPT_BYTES = 32 << 20
"""Copied in one block; at least one result is kept, however large it is."""
MARGIN = 3.0
"""A result may be this many times as far from eager's as the one that was judged before timing."""

Accepted = Dict[str, List[List[float]]]
"""By group: for each tensor the relative distance from eager code, root mean square and largest."""

_chance = random.SystemRandom()
"""Not the shared generator, whose next numbers a variant could know."""


class Kept:
    """What one timed call left."""

    def __init__(self, call: int, results: Results, snapshot: Dict[str, Any]) -> None:
        self.call = call
        self.results = results
        self.snapshot = snapshot
        """Inputs, buffers and parameters before the call, where eager code changes them."""


class TimedCheck:
    """Chooses calls of one block and keeps their results."""

    def __init__(self, runner: Side, changing: List[str], samples: int, inner: int) -> None:
        self._runner = runner
        self._changing = changing
        self.inner = inner
        self.chosen = self._choose(samples)
        self.prime = _chance.randrange(8) if inner > 1 else 0
        """More untimed calls: otherwise every checked call would have the same number modulo `inner`."""
        self.kept: List[Kept] = []
        self.changed: List[str] = []
        self.unfinished_ns = 0
        """How long the device went on after the stream that was timed had ended: work on other streams."""
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
        """Whether an iteration changes what the next one sees."""
        return bool(self._changing)

    def before(self) -> None:
        """Keep the state that the next call begins with."""
        if self._changing:
            self._snapshot = self._runner.model.snapshot(self._changing)

    def after(self, sample: int, kept: List[Any]) -> None:
        """Keep what the call returned and left behind."""
        with self._runner.model.without_optimizer():
            results = self._runner.collect(kept, self._changing)
        self.kept.append(Kept((sample + 1) * self.inner, results, self._snapshot))

    def finish(self) -> None:
        """After the block: what of inputs and buffers is not as it was before it."""
        self.changed = self._runner.model.changed_names()
        self._runner.model.rewind()


class Verifier:
    """Compares kept results of one variant with eager code."""

    def __init__(self, runner: Side, seed: int, limit_bytes: Optional[int]) -> None:
        self._runner = runner
        self.peer = runner.peer()
        self._seed = seed
        self._limit_bytes = limit_bytes
        self.accepted: Optional[Accepted] = None
        self._changing: Optional[List[str]] = None

    def changing(self) -> List[str]:
        """What an iteration of eager code changes of inputs, buffers and parameters."""
        if self._changing is None:
            self.peer.results(self._seed)
            self._changing = list(self.peer.changed)
        return self._changing

    def accept(self, results: Results, expected: Results) -> None:
        """These results were judged right: remember how far from eager's they are."""
        now = {
            group: [distance(one, other) for one, other in zip(tensors, expected[group])]
            for group, tensors in results.items()
            if len(tensors) == len(expected.get(group, []))
        }
        if self.accepted is None:
            self.accepted = now
            return
        for group, pairs in now.items():
            known = self.accepted.setdefault(group, pairs)
            self.accepted[group] = [
                [max(one[0], other[0]), max(one[1], other[1])] for one, other in zip(pairs, known)
            ]

    def failure(self, check: TimedCheck) -> Optional[Dict[str, Any]]:
        """The first call of the block with a wrong result: its number, and what is wrong."""
        extra = sorted(set(check.changed) - set(self.changing()))
        if extra:
            return {"call": None, "text": "changes " + ", ".join(extra[:3])}
        expected: Optional[Results] = None
        right: List[Results] = []
        for kept in check.kept:
            if any(_identical(kept.results, other) for other in right):
                continue
            if expected is None or kept.snapshot:
                expected = self._expected(kept)
            text = self._judge(kept, expected)
            if text:
                return {"call": kept.call, "text": text}
            if not kept.snapshot:
                right = [kept.results]
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
        if record["status"] != "fail":
            return ""
        return str(record["detail"])

    def is_near(self, results: Results, expected: Results) -> bool:
        """Whether results are eager's, or no further from them than those that were judged right."""
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
                found = distance(one, other)
                if found[0] > MARGIN * limit[0] or found[1] > MARGIN * limit[1]:
                    return False
        return True


def distance(found: Any, expected: Any) -> List[float]:
    """Relative difference of two tensors: root mean square and largest. Infinite where it has no meaning."""
    far = [math.inf, math.inf]
    one, other = plain(found), plain(expected)
    if one.shape != other.shape or one.dtype is not other.dtype:
        return far
    if torch.equal(one, other):
        return [0.0, 0.0]
    if not one.is_floating_point():
        return far
    one, other = one.double(), other.double()
    finite = torch.isfinite(other)
    if not bool((torch.isfinite(one) == finite).all()):
        return far
    gap, size = (one - other)[finite], other[finite]
    if gap.numel() == 0:
        return far
    scale = float(size.square().mean().sqrt())
    largest = float(size.abs().max())
    if scale == 0.0:
        return far
    return [float(gap.square().mean().sqrt()) / scale, float(gap.abs().max()) / largest]


def _identical(one: Results, other: Results) -> bool:
    if set(one) != set(other):
        return False
    return all(
        len(tensors) == len(other[group])
        and all(
            left.shape == right.shape and left.dtype is right.dtype and _equal(left, right)
            for left, right in zip(tensors, other[group])
        )
        for group, tensors in one.items()
    )


def _equal(left: Any, right: Any) -> bool:
    return bool(torch.equal(plain(left, left.device), plain(right, left.device)))


def _bytes(tensor: Any) -> int:
    return int(tensor.numel()) * int(tensor.element_size())
