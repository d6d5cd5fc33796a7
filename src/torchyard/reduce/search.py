"""The search: which operators can be left out, and which dimensions shortened.

Each step is a sequential test on rounds of blocks: the distribution-free interval of the median is
compared with half of the loss of the model, which is timed in the same rounds. Test i of a search may
err with probability alpha / (i (i + 1)), shared by its looks at the data. What stays undecided is kept.
Peak memory and wrong results do not depend on what else runs: one measurement decides.
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
from torchyard.reduce.model import SCALES, UNITS, Metric, Sides
from torchyard.stats.delta_debugging import minimize, share_of_alpha
from torchyard.stats.distributions import median_interval

ALPHA: Final = 0.05
KEPT_SHARE: Final = 0.5
"""Share of the loss that a smaller program must keep."""
FIRST_ROUNDS: Final = 8
MOST_ROUNDS: Final = 64
MOST_GROWTH: Final = 1.5
"""Factor by which the relative loss of shorter dimensions may grow: beyond it, the overhead of a call
is measured instead of the operators."""
MARGIN: Final = 0.01
"""Relative difference of peak memory that does not count."""
SHORTEST: Final = 8
"""Dimensions of this length are not shortened further."""

Round = tuple[float, float, float, float]
"""Times in ns, bytes or errors: the model by baseline and candidate, and a program by both."""
Sizes = tuple[tuple[int, int], ...]
Measure = Callable[[Sequence[int], Sizes, int], Sequence[Round]]
"""Measure a program: units, shortened lengths, number of rounds. No units: the model itself."""
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


_NOT_WORSE: Final[dict[Metric, str]] = {
    "time": "the candidate is not shown to be slower than the baseline",
    "memory": "the candidate does not use more memory than the baseline",
    "wrong": "the results of the candidate are not wrong",
}


def _loss(one: Round) -> float:
    return one[3] - one[2]


def _large_loss(one: Round) -> float:
    """Return the loss beyond differences that do not count."""
    return one[3] - (1.0 + MARGIN) * one[2]


def _spare(one: Round) -> float:
    """Return the loss beyond what a smaller program must keep of that of the model."""
    return (one[3] - one[2]) - KEPT_SHARE * (one[1] - one[0])


def _log_ratio(one: Round) -> float:
    return math.log((one[3] + 1.0) / (one[2] + 1.0))


class ReductionSearch:
    """A reduction of a program of some units (operators)."""

    def __init__(
        self,
        count: int,
        measure: Measure,
        *,
        seconds: float,
        listener: Callable[[str], None],
        metric: Metric = "time",
    ) -> None:
        self._measure = measure
        self._metric = metric
        self._exact = metric != "time"
        # An error has no size that a smaller program must keep.
        self._spare = _loss if metric == "wrong" else _spare
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

    def run(self, lengths: Callable[[Sequence[int]], Sequence[int]]) -> tuple[Sides, ...]:
        """Reduce; return the times of the model, of its graph, of what remains, and of its short form.

        `lengths` returns the lengths of dimensions of a program.
        """
        whole = self._whole()
        captured = self._captured(whole)
        cut = captured
        try:
            minimize(self.units, lambda units: self._keeps(units, (), self._spare), self._cut)
            cut = self._sides(self.units, ())
            self._shorten(list(lengths(self.units)), self._relative(cut))
        except _TimeUp:
            self.complete = False
            cut = self._sides(self.units, ())
        reduced = self._sides(self.units, self.sizes) if self.sizes else cut
        return whole, captured, cut, reduced

    def _whole(self) -> Sides:
        """Return the times of the model; raise if there is no loss."""
        worse = self._keeps(WHOLE, (), _large_loss if self._metric == "memory" else _loss)
        whole = replace(self._sides(WHOLE, ()), model_loss=None)
        if not worse:
            unit = UNITS[self._metric]
            raise NothingToDo(
                _NOT_WORSE[self._metric],
                why="the accuracy check found no error"
                if self._metric == "wrong"
                else f"{whole.baseline:.4g} {unit} and {whole.candidate:.4g} {unit} per iteration",
                hint="choose another row" + ("" if self._exact else ", or a less noisy machine"),
            )
        return whole

    def _captured(self, whole: Sides) -> Sides:
        """Return the times of the captured graph; raise if it does not show the loss."""
        shown = self._keeps(self.units, (), self._spare)
        captured = self._sides(self.units, ())
        if not shown:
            unit = UNITS[self._metric]
            raise Untrustworthy(
                "the captured graph does not show the difference, so it cannot be reduced",
                why=f"the model loses {whole.loss:.4g} {unit}, its operators as one graph "
                f"{captured.loss:.4g} {unit}",
                hint=_NOISY
                if not self._exact and captured.loss >= KEPT_SHARE * whole.loss
                else _NO_LOSS,
            )
        return captured

    def _relative(self, sides: Sides) -> float:
        scale = SCALES[self._metric]
        return _log_ratio((0.0, 0.0, scale * sides.baseline, scale * sides.candidate))

    def _cut(self, units: tuple[int, ...]) -> None:
        self.units = units

    def _shorten(self, lengths: list[int], log_ratio: float) -> None:
        """Halve each length as often as the relative loss stays, or the results are wrong."""
        wrong = self._metric == "wrong"
        statistic, limit = (_loss, 0.0) if wrong else (_log_ratio, KEPT_SHARE * log_ratio)
        for length in lengths:
            shorter = length
            while shorter // 2 >= SHORTEST:
                shorter //= 2
                others = tuple(one for one in self.sizes if one[0] != length)
                sizes = (*others, (length, shorter))
                if shorter in lengths or not self._keeps(self.units, sizes, statistic, limit):
                    break
                grown = self._relative(self._sides(self.units, sizes)) > MOST_GROWTH * log_ratio
                if grown and not wrong:
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
        target, look = (1 if self._exact else FIRST_ROUNDS), 1
        while len(rounds) < MOST_ROUNDS:
            try:
                rounds += self._measure(units, sizes, target - len(rounds))
            except Unusable as error:
                self._listener(f"  unusable: {error}")
                return False
            if self._exact:
                if statistic(rounds[-1]) > limit:
                    self._kept.add(key)
                return key in self._kept
            interval = median_interval([statistic(one) for one in rounds], alpha / 2.0**look)
            if interval is not None and interval[0] > limit:
                self._kept.add(key)
                return True
            if interval is not None and interval[1] < limit:
                return False
            target, look = 2 * target, look + 1
        return False

    def _sides(self, units: Sequence[int], sizes: Sizes) -> Sides:
        """Return the medians of all rounds of a program that was tested."""
        rounds = self._rounds[tuple(units), sizes]
        if not rounds:
            raise Untrustworthy("the captured graph cannot be run", hint="choose another model")
        model, slower_model, baseline, candidate = (
            median(one[side] for one in rounds) / SCALES[self._metric] for side in range(4)
        )
        return Sides(
            baseline=baseline,
            candidate=candidate,
            model_loss=None if sizes else slower_model - model,
        )


def _program_text(units: Sequence[int], sizes: Sizes) -> str:
    text = format_count(len(units), "operator") if units else "the model"
    return text + "".join(f", {old} -> {new}" for old, new in sizes)
