"""Operators in a surveyed step: played from a score while they follow one, else surveyed the long way.

The long way finds the place of each operator: by its turn, while operators come in the order of the
last step, else by walking the stack. A step that went the long way without surprise is a score.
"""

from typing import Any, Callable, List, Optional, Tuple

import torch

from torchyard.worker.values.counts import Counts
from torchyard.worker.values.layouts import LAYOUTS
from torchyard.worker.values.operators import Operator, operator_of, written_tensors
from torchyard.worker.values.options import Options
from torchyard.worker.values.player import Player, play_score
from torchyard.worker.values.scan import flat_memory
from torchyard.worker.values.score import Score, Turn, numbered_outputs, output_at
from torchyard.worker.values.survey import Survey


class SurveyCalls:
    """The operators of the step under way, beside those of the last."""

    def __init__(
        self, survey: Survey, options: Options, counts: Counts, site: Callable[[Operator], int]
    ) -> None:
        self._survey = survey
        self._least_bytes = options.least_bytes
        self._counts = counts
        self._site = site
        """Gives the node of an operator that came out of turn."""
        self._last: List[Tuple[Any, int]] = []
        self._calls: List[Tuple[Any, int]] = []
        self._turns: List[Turn] = []
        self._score: Optional[Score] = None
        self._player: Optional[Player] = None
        self.call: Callable[[Any, Any, Any], Any] = self._record
        """Runs an operator with its arguments and keywords, and surveys what it wrote."""
        self.lost = False
        """Whether the order was another one in this step."""

    def remember(self, func: Any, node: int) -> None:
        """An operator whose node is known, in a step that is looked at closely."""
        self._calls.append((func, node))

    def begin(self) -> None:
        """A surveyed step begins."""
        self.call, self._player = self._record, None
        if self._score is not None:
            self._player = play_score(
                self._score, self._survey, self._out_of_turn, self._other_result
            )
            self.call = self._player.play

    def end_step(self, surveyed: bool) -> None:
        """The next step is expected to be like this one."""
        if self._player is not None and self._score is not None:
            if self._player.position() == len(self._score.turns):
                self._count(self._score.turns)
                self._last = []
            else:
                self._leave_score()  # fewer operators than the score has
        if surveyed and self._player is None:
            self._last = [(turn.func, turn.node) for turn in self._turns]
            self._score = None if self.lost else self._recorded()
        elif not surveyed:
            self._last, self._score = self._calls, None
        self._player = None
        self._calls, self._turns, self.lost = [], [], False

    def _out_of_turn(self, func: Any, args: Any, keywords: Any) -> Any:
        self._leave_score()
        return self._record(func, args, keywords)

    def _other_result(self, turn: Turn, args: Any, keywords: Any, result: Any) -> Any:
        self._leave_score()
        again = Turn(turn.func, turn.operator, turn.node)
        self._turns.append(again)
        self._counts.operators += 1
        self._give(again, numbered_outputs(again, args, keywords, result))
        return result

    def _leave_score(self) -> None:
        """From here on this step is another one."""
        score, player = self._score, self._player
        self._score = self._player = None
        self.call = self._record
        if score is None or player is None:
            return
        self.lost = True
        self._turns = score.turns[: player.position()]
        self._count(self._turns)
        self._survey.stop_playing([output for turn in self._turns for output in turn.outputs])

    def _record(self, func: Any, args: Any, keywords: Any) -> Any:
        operator = operator_of(func)
        if operator.inert:
            return func(*args, **keywords)
        self._counts.operators += 1
        at = len(self._turns)
        if not self.lost and at < len(self._last) and self._last[at][0] is func:
            node = self._last[at][1]
        else:
            self.lost = True
            node = self._site(operator)
        turn = Turn(func, operator, node)
        self._turns.append(turn)
        survey = self._survey
        if operator.writes and survey.holds:
            written = written_tensors(operator, args, keywords)
            if any(map(survey.waits_for, written)):
                turn.flush_before = survey.flush()
        result = func(*args, **keywords)
        self._give(turn, numbered_outputs(turn, args, keywords, result))
        return result

    def _give(self, turn: Turn, outputs: List[Tuple[int, torch.Tensor]]) -> None:
        written = small = not_seen = 0
        scanned = []
        for place, (position, tensor) in enumerate(outputs):
            size = tensor.numel() * tensor.element_size()
            written += size
            layout = LAYOUTS.get(tensor.dtype)
            if size < self._least_bytes:
                small += size
            elif (
                layout is None
                or tensor.layout is not torch.strided
                or not (tensor.is_cuda or tensor.is_cpu)
                or flat_memory(tensor) is None
            ):
                not_seen += size
            else:
                row = self._survey.add(tensor, (turn.node, position), layout)
                scanned.append(output_at(place, row, tensor))
        turn.outputs, turn.sizes = tuple(scanned), (written, small, not_seen)
        self._add_bytes(turn)
        if self._survey.is_full:
            turn.flush_after = self._survey.flush()

    def _recorded(self) -> Optional[Score]:
        """The step as a score for the next."""
        last = self._survey.flush()
        if last is not None and self._turns:
            self._turns[-1].flush_after = last
        rows = self._survey.recorded()
        return None if rows is None else Score(self._turns, rows)

    def _count(self, turns: List[Turn]) -> None:
        """What was played counts like the rest."""
        self._counts.operators += len(turns)
        for turn in turns:
            self._add_bytes(turn)

    def _add_bytes(self, turn: Turn) -> None:
        written, small, not_seen = turn.sizes
        self._counts.written_bytes += written
        self._counts.small_bytes += small
        self._counts.not_seen_bytes += not_seen
