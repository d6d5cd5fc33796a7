"""The search: which operators can be left out, and which dimensions shortened.

Each step is a sequential test on rounds of blocks: the distribution-free interval of the median is
compared with half of the loss of the model, which is timed in the same rounds. Test i of a search may
err with probability alpha / (i (i + 1)), shared by its looks at the data. What stays undecided is kept.
Knows no torch: `measure` times a program.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from torchyard.core.units import format_count
from torchyard.errors import NothingToDo, Untrustworthy
from torchyard.reduce.model import Times
from torchyard.stats.delta_debugging import minimize, share_of_alpha
from torchyard.stats.distributions import median_interval

__all__ = ["WHOLE", "Measure", "ReductionSearch", "Unusable"]

ALPHA: Final = 0.05
KEPT_SHARE: Final = 0.5
"""Share of the loss that a smaller program must keep."""
FIRST_ROUNDS: Final = 8
MOST_ROUNDS: Final = 64
MOST_GROWTH: Final = 1.5
"""Factor by which the relative loss of shorter dimensions may grow: beyond it, the overhead of a call
is measured instead of the operators."""
SHORTEST: Final = 8
"""Dimensions of this length are not shortened further."""

Round = tuple[float, float, float, float]
"""Times in ns: the model by baseline and candidate, and a program by both."""
Sizes = tuple[tuple[int, int], ...]
Measure = Callable[[Sequence[int], Sizes, int], Sequence[Round]]
"""Time a program: units, shortened lengths, number of rounds. No units: the model itself."""
WHOLE: Final[tuple[int, ...]] = ()


_NOISY: Final = "the machine is too noisy for a decision: stop other programs"
_NO_LOSS: Final = (
    "graph breaks, Python code or branches on torch.compiler.is_compiling() may be the cause: "
    "see `torchyard why`"
)


class Unusable(Exception):
    """A program cannot be run or compiled."""


class _TimeUp(Exception):
    """No further test fits the time."""


def _loss_ns(one: Round) -> float:
    return one[3] - one[2]


def _spare_ns(one: Round) -> float:
    """Return the loss beyond what a smaller program must keep of that of the model."""
    return (one[3] - one[2]) - KEPT_SHARE * (one[1] - one[0])


def _log_ratio(one: Round) -> float:
    return math.log(one[3] / one[2])


class ReductionSearch:
    """A reduction of a program of some units (operators)."""

    def __init__(
        self, count: int, measure: Measure, *, seconds: float, listener: Callable[[str], None]
    ) -> None:
        self._measure = measure
        self._deadline_s = time.monotonic() + seconds
        self._listener = listener
        self._rounds: dict[tuple[Sequence[int], Sizes], list[Round]] = {}
        self._kept: set[tuple[Sequence[int], Sizes]] = set()
        self.units: tuple[int, ...] = tuple(range(count))
        self.sizes: Sizes = ()
        self.complete = True

    @property
    def tests(self) -> int:
        """Number of programs that were tested."""
        return len(self._rounds)

    def run(self, lengths: Callable[[Sequence[int]], Sequence[int]]) -> tuple[Times, ...]:
        """Reduce; return the times of the model, of its graph, of what remains, and of its short form.

        `lengths` returns the lengths of dimensions of a program.
        """
        whole = self._whole()
        captured = self._captured(whole)
        cut = captured
        try:
            minimize(self.units, lambda units: self._keeps(units, (), _spare_ns), self._cut)
            cut = self._times(self.units, ())
            self._shorten(list(lengths(self.units)), cut.log_ratio)
        except _TimeUp:
            self.complete = False
            cut = self._times(self.units, ())
        reduced = self._times(self.units, self.sizes) if self.sizes else cut
        return whole, captured, cut, reduced

    def _whole(self) -> Times:
        """Return the times of the model; raise if there is no loss."""
        slower = self._keeps(WHOLE, (), _loss_ns)
        whole = replace(self._times(WHOLE, ()), model_loss_ms=None)
        if not slower:
            raise NothingToDo(
                "the candidate is not shown to be slower than the baseline",
                why=f"{whole.baseline_ms:.4g} ms and {whole.candidate_ms:.4g} ms per iteration",
                hint="choose another row, or a less noisy machine",
            )
        return whole

    def _captured(self, whole: Times) -> Times:
        """Return the times of the captured graph; raise if it does not show the loss."""
        shown = self._keeps(self.units, (), _spare_ns)
        captured = self._times(self.units, ())
        if not shown:
            raise Untrustworthy(
                "the captured graph does not show the difference, so it cannot be reduced",
                why=f"the model loses {whole.loss_ms:.4g} ms, its operators as one graph "
                f"{captured.loss_ms:.4g} ms",
                hint=_NOISY if captured.loss_ms >= KEPT_SHARE * whole.loss_ms else _NO_LOSS,
            )
        return captured

    def _cut(self, units: tuple[int, ...]) -> None:
        self.units = units

    def _shorten(self, lengths: list[int], log_ratio: float) -> None:
        """Halve each length as often as the relative loss stays."""
        limit = KEPT_SHARE * log_ratio
        for length in lengths:
            shorter = length
            while shorter // 2 >= SHORTEST:
                shorter //= 2
                others = tuple(one for one in self.sizes if one[0] != length)
                sizes = (*others, (length, shorter))
                if shorter in lengths or not self._keeps(self.units, sizes, _log_ratio, limit):
                    break
                if self._times(self.units, sizes).log_ratio > MOST_GROWTH * log_ratio:
                    break
                self.sizes = sizes

    def _keeps(
        self,
        units: Sequence[int],
        sizes: Sizes,
        statistic: Callable[[Round], float],
        limit: float = 0.0,
    ) -> bool:
        """Test whether the median of a statistic of a program is above a limit."""
        key = (tuple(units), sizes)
        if key in self._rounds:
            return key in self._kept
        if len(self._rounds) > 1 and time.monotonic() > self._deadline_s:
            raise _TimeUp
        rounds = self._rounds[key] = []
        alpha = share_of_alpha(ALPHA, len(self._rounds))
        self._listener(f"test {len(self._rounds)}: {_program_text(units, sizes)}")
        target, look = FIRST_ROUNDS, 1
        while len(rounds) < MOST_ROUNDS:
            try:
                rounds += self._measure(units, sizes, target - len(rounds))
            except Unusable as error:
                self._listener(f"  unusable: {error}")
                return False
            interval = median_interval([statistic(one) for one in rounds], alpha / 2.0**look)
            if interval is not None and interval[0] > limit:
                self._kept.add(key)
                return True
            if interval is not None and interval[1] < limit:
                return False
            target, look = 2 * target, look + 1
        return False

    def _times(self, units: Sequence[int], sizes: Sizes) -> Times:
        """Return the medians of all rounds of a program that was tested."""
        rounds = self._rounds[tuple(units), sizes]
        if not rounds:
            raise Untrustworthy("the captured graph cannot be run", hint="choose another model")
        model_ms, slower_model_ms, baseline_ms, candidate_ms = (
            median(one[side] for one in rounds) / 1e6 for side in range(4)
        )
        return Times(
            baseline_ms=baseline_ms,
            candidate_ms=candidate_ms,
            model_loss_ms=None if sizes else slower_model_ms - model_ms,
        )


def _program_text(units: Sequence[int], sizes: Sizes) -> str:
    text = format_count(len(units), "operator") if units else "the model"
    return text + "".join(f", {old} -> {new}" for old, new in sizes)
