"""Operators in a surveyed step: matched with a recorded step, otherwise looked up one by one.

Looking up finds the place of each operator: by its position, while operators come in the order of
the last step, otherwise by walking the stack. A step without surprises becomes the next recording.
The compiled follower, where available, replaces the dispatch mode in all of this. Without the mode
torch takes other paths through some operators (`linear` adds its bias in place), so operators are
aligned with those of the closely observed step by their neighbours.
"""

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from torchyard.worker.values.exchange import Counts, Options
from torchyard.worker.values.findings import Flow
from torchyard.worker.values.operators import Operator, operator_of, written_tensors
from torchyard.worker.values.places import Places
from torchyard.worker.values.scanning.cpu_scan import LAYOUTS, flat_memory
from torchyard.worker.values.surveys.follower import Follower
from torchyard.worker.values.surveys.recorded_step import (
    Score,
    Turn,
    number_outputs,
    numbered_outputs,
    output_at,
)
from torchyard.worker.values.surveys.survey import Player, Survey, play_score

_FAR = 24
"""How far ahead the two are compared after a difference."""
_ALIKE = 3
"""Operators in a row that must be alike before they are taken for the same again."""


def align(now: Sequence[Any], before: Sequence[Any]) -> List[Optional[int]]:
    """For each operator the number of the earlier one; None for those that are new.

    As many new ones as old ones between two stretches that are alike stand for each other.
    """
    found: List[Optional[int]] = []
    here = there = 0
    while here < len(now) and there < len(before):
        if now[here] is before[there]:
            found.append(there)
            here, there = here + 1, there + 1
            continue
        skip = _next_alike(now, before, here, there)
        if skip is None:
            break
        new, old = skip
        found += [there + k if new == old else None for k in range(new)]
        here, there = here + new, there + old
    return found + [None] * (len(now) - len(found))


def _next_alike(now: Sequence[Any], before: Sequence[Any], here: int, there: int) -> Any:
    """How many to leave out here and there until the two are alike again: as few as possible."""
    for total in range(1, 2 * _FAR):
        for new in range(max(0, total - _FAR), min(total, _FAR) + 1):
            old = total - new
            if _alike(now, before, here + new, there + old):
                return new, old
    return None


def _alike(now: Sequence[Any], before: Sequence[Any], here: int, there: int) -> bool:
    if here >= len(now) or there >= len(before):
        return here == len(now) and there == len(before)
    count = min(_ALIKE, len(now) - here, len(before) - there)
    return all(now[here + k] is before[there + k] for k in range(count))


class SurveyCalls:
    """The operators of the step under way, beside those of the last."""

    def __init__(
        self,
        survey: Survey,
        options: Options,
        counts: Counts,
        sites: Flow,
        places: Places,
        follower: Optional[Follower] = None,
    ) -> None:
        self._survey = survey
        self._follower = follower
        self.following = False
        """Whether the compiled follower plays this step."""
        self._followed: Optional[Score] = None
        """The last one that was followed to its end, to be tried again after a close step."""
        self._strange: Optional[Turn] = None
        self._least_bytes = options.least_bytes
        self._counts = counts
        self._sites = sites
        self._places = places
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

    def begin(self, *, alone: bool = False) -> None:
        """A surveyed step begins; `alone` when the dispatch mode can get out of the way."""
        self.call, self._player = self._record, None
        follower = self._follower
        if alone and follower is not None:
            score = self._score or self._followed
            self.following = follower.begin(score, self._out_of_score, self._after_strange)
            if self.following:
                self._score = score
                if score is not None:
                    self._player = Player(self._record, follower.position)
                return
        if self._score is not None:
            self._player = play_score(
                self._score, self._survey, self._out_of_turn, self._other_result
            )
            self.call = self._player.play

    def pause(self) -> None:
        """Follow nothing until `resume`; only between steps."""
        if self.following and self._follower is not None:
            self._follower.end()

    def stop(self) -> None:
        """Follow nothing more, in the middle of a step."""
        if self.following and self._follower is not None:
            self._follower.end()
            self._follower.hand_over()
            self.following = False

    def resume(self) -> None:
        """The step of the score begins now."""
        if self.following and self._follower is not None:
            self._follower.begin(self._score, self._out_of_score, self._after_strange)

    def end_step(self, surveyed: bool) -> bool:
        """The next step is expected to be like this one; whether this one was like the last."""
        if self.following and self._follower is not None:
            self._follower.end()
            self._follower.hand_over()
            self._strange = None
            if self._follower.trouble is not None:
                raise self._follower.trouble
        if self._player is not None and self._score is not None:
            if self._player.position() == len(self._score.turns):
                self._count(self._score.turns)
                self._last = []
                if self.following:
                    self._followed = self._score
            else:
                self._leave_score()  # fewer operators than the score has
        regular = not self.lost
        if surveyed and self._player is None:
            if self.following and self.lost:
                regular = self._take_places()
            self._last = [(turn.func, turn.node) for turn in self._turns]
            self._score = None if self.lost else self._recorded()
        elif not surveyed:
            self._last, self._score = self._calls, None
        self._player, self.following = None, False
        self._calls, self._turns, self.lost = [], [], False
        return regular

    def _take_places(self) -> bool:
        """Operators that were in the last step, too, are where they were then; whether all were."""
        numbers = align([turn.func for turn in self._turns], [func for func, _ in self._last])
        for turn, number in zip(self._turns, numbers):
            if turn.place is None:
                continue
            func, node = (None, -1) if number is None else self._last[number]
            if func is not turn.func:
                place = turn.place if number is None else self._sites.place(node)
                node = self._sites.node(turn.operator.name, place, ())
            turn.node, turn.place = node, None
            self._survey.move([output.row for output in turn.outputs], node)
        return len(numbers) == len(self._last) and None not in numbers

    def _out_of_score(self, func: Any, written: List[torch.Tensor]) -> None:
        """The follower met an operator that the score does not say."""
        if self._player is not None:
            self._leave_score()
        self._strange = self._enter(func, operator_of(func), written)

    def _after_strange(self, written: List[torch.Tensor], results: List[torch.Tensor]) -> None:
        """That operator has run, or one of the score with another result."""
        turn, self._strange = self._strange, None
        if turn is None:
            if self._score is None or self._player is None:
                return
            said = self._score.turns[self._player.position()]
            self._leave_score()
            turn = Turn(said.func, said.operator, said.node)
            self._turns.append(turn)
            self._counts.operators += 1
        self._give(turn, number_outputs(turn.operator, written, results))

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
        if self.following and self._follower is not None:
            self._follower.hand_over()
        self.lost = True
        self._followed = None
        self._last = [(turn.func, turn.node) for turn in score.turns]
        self._turns = score.turns[: player.position()]
        self._count(self._turns)
        self._survey.stop_playing([output for turn in self._turns for output in turn.outputs])

    def _record(self, func: Any, args: Any, keywords: Any) -> Any:
        operator = operator_of(func)
        if operator.inert:
            return func(*args, **keywords)
        written = written_tensors(operator, args, keywords) if operator.writes else []
        turn = self._enter(func, operator, written)
        result = func(*args, **keywords)
        self._give(turn, numbered_outputs(turn, args, keywords, result))
        return result

    def _enter(self, func: Any, operator: Operator, written: List[torch.Tensor]) -> Turn:
        """An operator that is about to run, and what it will write."""
        self._counts.operators += 1
        at = len(self._turns)
        if not self.lost and at < len(self._last) and self._last[at][0] is func:
            turn = Turn(func, operator, self._last[at][1])
        else:
            self.lost = True
            place = self._places.now()
            if self.following:  # its node is found when the step is over
                turn = Turn(func, operator, -1, place)
            else:
                turn = Turn(func, operator, self._sites.node(operator.name, place, ()))
        self._turns.append(turn)
        survey = self._survey
        if survey.holds and any(map(survey.waits_for, written)):
            turn.flush_before = survey.flush()
        return turn

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
