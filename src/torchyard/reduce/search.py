"""The search: which operators can be left out, and which dimensions shortened.

Each step is a sequential test on rounds of blocks: the distribution-free interval of the median is
compared with 40 % of the loss of the model, which is timed in the same rounds. Test i of a search may
err with probability alpha / (i (i + 1)), shared by its looks at the data. What stays undecided is kept.
Peak memory and wrong results do not depend on what else runs: one measurement decides.
A search that starts from a part of an attribution keeps 40 % of the loss of that part instead, which is
a share of the time of the baseline: it scales with the speed of the machine.
Independent of torch: `measure` times a program.
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
from torchyard.reduce.model import SCALES, UNITS, Group, Metric, Sides
from torchyard.stats.delta_debugging import minimize, share_of_alpha
from torchyard.stats.distributions import median_interval

ALPHA: Final = 0.05
KEPT_SHARE: Final = 0.4
"""Share of the loss that a smaller program must keep. Below 1/2, so that one of two equal layers keeps it."""
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


_NO_PART_LOSS: Final = (
    "the operators may lose time only together with others, or eager code may run other operators than "
    "the traced model (branches on torch.compiler.is_compiling()): reduce without --part, or choose "
    "another one"
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
    return _loss(one) - KEPT_SHARE * (one[1] - one[0])


def _log_ratio(one: Round) -> float:
    return math.log((one[3] + 1.0) / (one[2] + 1.0))


class ReductionSearch:
    """A reduction of a program of some units (operators).

    It starts from all units, or from those of a part of an attribution.
    """

    def __init__(
        self,
        operators: Sequence[str],
        measure: Measure,
        *,
        seconds: float,
        listener: Callable[[str], None],
        metric: Metric = "time",
        start: Sequence[int] = (),
        part: Group | None = None,
    ) -> None:
        self._operators = operators
        self._measure = measure
        self._part = part
        self._metric = metric
        self._exact = metric != "time"
        # An error has no size that a smaller program must keep.
        self._spare = (
            _loss if metric == "wrong" else _spare if part is None else self._spare_of_part
        )
        self._deadline_s = time.monotonic() + seconds
        self._listener = listener
        self._rounds: dict[tuple[Sequence[int], Sizes], list[Round]] = {}
        self._decisions: dict[tuple[Sequence[int], Sizes, float | None], bool] = {}
        self.units: tuple[int, ...] = tuple(start or range(len(operators)))
        self.sizes: Sizes = ()
        self.complete = True
        self._worse = False

    @property
    def tests(self) -> int:
        """Number of programs that were tested."""
        return len(self._decisions)

    def run(self, lengths: Callable[[Sequence[int]], Sequence[int]]) -> tuple[Sides, ...]:
        """Reduce; return the times of the model and of four programs, each smaller than the one before.

        These are all operators, those that show the loss, without repetitions, and with short dimensions.
        `lengths` returns the lengths of dimensions of a program.
        """
        whole = self._whole()
        captured = self._captured(whole)
        cut = unrepeated = captured
        try:
            minimize(self.units, lambda units: self._keeps(units, (), self._spare), self._cut)
            cut = unrepeated = self._sides(self.units, ())
            self._leave_out_repetitions(self._relative(cut))
            unrepeated = self._sides(self.units, ())
            self._shorten(list(lengths(self.units)), self._relative(unrepeated))
        except _TimeUp:
            self.complete = False
            unrepeated = self._sides(self.units, ())
            cut = unrepeated if cut is captured else cut
        reduced = self._sides(self.units, self.sizes) if self.sizes else unrepeated
        return whole, captured, cut, unrepeated, reduced

    def _spare_of_part(self, one: Round) -> float:
        """Return the loss beyond what a smaller program must keep of that of the part."""
        return _loss(one) - KEPT_SHARE * one[0] * (self._part.share if self._part else 0.0)

    def _whole(self) -> Sides:
        """Return the times of the model; raise if there is no loss, unless a part has one."""
        self._worse = self._keeps(WHOLE, (), _large_loss if self._metric == "memory" else _loss)
        whole = replace(self._sides(WHOLE, ()), model_loss=None)
        if not self._worse and self._part is None:
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
            part = self._part
            loss = part.share * whole.baseline if part else whole.loss
            raise Untrustworthy(
                f"the operators of part {part.number} do not show its loss"
                if part
                else "the captured graph does not show the difference, so it cannot be reduced",
                why=f"the {'part' if part else 'model'} loses {loss:.4g} {unit}, its operators as one graph "
                f"{captured.loss:.4g} {unit}",
                hint=_NOISY
                if not self._exact and captured.loss >= KEPT_SHARE * loss
                else _NO_PART_LOSS
                if part
                else _NO_LOSS,
            )
        return captured

    def _relative(self, sides: Sides) -> float:
        scale = SCALES[self._metric]
        return _log_ratio((0.0, 0.0, scale * sides.baseline, scale * sides.candidate))

    def _cut(self, units: tuple[int, ...]) -> None:
        self.units = units

    def _leave_out_repetitions(self, log_ratio: float) -> None:
        """Leave out operators whose like remains, as often as 40 % of the relative loss stays.

        In repeated layers, each repetition has its share of the loss.
        """
        kinds = {self._operators[unit] for unit in self.units}
        if self._metric == "wrong" or len(kinds) == len(self.units):
            return
        minimize(
            self.units,
            lambda units: (
                {self._operators[unit] for unit in units} == kinds
                and self._keeps_ratio(units, (), log_ratio)
            ),
            self._cut,
        )

    def _shorten(self, lengths: list[int], log_ratio: float) -> None:
        """Halve each length as often as the relative loss stays, or the results are wrong."""
        for length in lengths:
            shorter = length
            while shorter // 2 >= SHORTEST:
                shorter //= 2
                others = tuple(one for one in self.sizes if one[0] != length)
                sizes = (*others, (length, shorter))
                if shorter in lengths or not self._keeps_ratio(self.units, sizes, log_ratio):
                    break
                self.sizes = sizes

    def _keeps_ratio(self, units: tuple[int, ...], sizes: Sizes, log_ratio: float) -> bool:
        """Test whether 40 % of the relative loss stays, without growth, or the results are wrong."""
        if self._metric == "wrong":
            return self._keeps(units, sizes, _loss)
        if not self._keeps(units, sizes, _log_ratio, KEPT_SHARE * log_ratio):
            return False
        return self._relative(self._sides(units, sizes)) <= MOST_GROWTH * log_ratio

    def _keeps(
        self,
        units: Sequence[int],
        sizes: Sizes,
        statistic: Callable[[Round], float],
        limit: float | None = None,
    ) -> bool:
        """Test whether the median of a statistic of a program is above a limit [default: 0]."""
        key = (tuple(units), sizes, limit)
        if key not in self._decisions:
            if len(self._decisions) > 1 and time.monotonic() > self._deadline_s:
                raise _TimeUp
            self._decisions[key] = False
            self._decisions[key] = self._test(key[0], sizes, statistic, limit or 0.0)
        return self._decisions[key]

    def _test(
        self,
        units: tuple[int, ...],
        sizes: Sizes,
        statistic: Callable[[Round], float],
        limit: float,
    ) -> bool:
        rounds = self._rounds[units, sizes] = []
        alpha = share_of_alpha(ALPHA, self.tests)
        self._listener(f"test {self.tests}: {_program_text(units, sizes)}")
        target, look = (1 if self._exact else FIRST_ROUNDS), 1
        while len(rounds) < MOST_ROUNDS:
            try:
                rounds += self._measure(units, sizes, target - len(rounds))
            except Unusable as error:
                self._listener(f"  unusable: {error}")
                return False
            if self._exact:
                return statistic(rounds[-1]) > limit
            interval = median_interval([statistic(one) for one in rounds], alpha / 2.0**look)
            if interval is not None and interval[0] > limit:
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
            model_loss=slower_model - model if self._worse and not sizes else None,
        )


def _program_text(units: Sequence[int], sizes: Sizes) -> str:
    text = format_count(len(units), "operator") if units else "the model"
    return text + "".join(f", {old} -> {new}" for old, new in sizes)
