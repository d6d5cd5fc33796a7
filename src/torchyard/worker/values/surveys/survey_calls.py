"""Operators in a surveyed step: matched with a recorded step, otherwise looked up one by one.

A step without deviations becomes the next recording. Without the dispatch mode torch takes different code paths in
some operators, so operators are aligned with those of the closely observed step by their neighbours.
"""

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from torchyard.worker.values.exchange import Counts, Options
from torchyard.worker.values.findings import Flow
from torchyard.worker.values.operators import Operator, operator_of, written_tensors
from torchyard.worker.values.places import Places
from torchyard.worker.values.scanning.cpu_scan import LAYOUTS, flat_memory
from torchyard.worker.values.surveys.follower import Follower
from torchyard.worker.values.surveys.survey import (
    Player,
    RecordedCall,
    Recording,
    Survey,
    number_outputs,
    numbered_outputs,
    output_at,
    play_recording,
)

_SEARCH_DISTANCE = 24
"""Search distance after a difference."""
_LEAST_MATCHES = 3
"""Consecutive operators that must match to resume the alignment."""


def align(now: Sequence[Any], before: Sequence[Any]) -> List[Optional[int]]:
    """Return for each operator the index of the earlier one, by matching stretches; None for new operators."""
    matches: List[Optional[int]] = []
    here = there = 0
    while here < len(now) and there < len(before):
        if now[here] is before[there]:
            matches.append(there)
            here, there = here + 1, there + 1
            continue
        skip = _next_match(now, before, here, there)
        if skip is None:
            break
        new, old = skip
        matches += [there + k if new == old else None for k in range(new)]
        here, there = here + new, there + old
    return matches + [None] * (len(now) - len(matches))


def _next_match(now: Sequence[Any], before: Sequence[Any], here: int, there: int) -> Any:
    """Return the smallest numbers of operators to skip in both sequences until they match."""
    for total in range(1, 2 * _SEARCH_DISTANCE):
        for new in range(max(0, total - _SEARCH_DISTANCE), min(total, _SEARCH_DISTANCE) + 1):
            old = total - new
            if _match_at(now, before, here + new, there + old):
                return new, old
    return None


def _match_at(now: Sequence[Any], before: Sequence[Any], here: int, there: int) -> bool:
    if here >= len(now) or there >= len(before):
        return here == len(now) and there == len(before)
    count = min(_LEAST_MATCHES, len(now) - here, len(before) - there)
    return all(now[here + k] is before[there + k] for k in range(count))


class SurveyCalls:
    """Operators of the current step, compared with those of the last step."""

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
        """Whether the compiled follower handles this step."""
        self._followed: Optional[Recording] = None
        """The last completely followed recording, used again after a closely observed step."""
        self._unexpected: Optional[RecordedCall] = None
        self._least_bytes = options.least_bytes
        self._counts = counts
        self._sites = sites
        self._places = places
        self._last: List[Tuple[Any, int]] = []
        self._calls: List[Tuple[Any, int]] = []
        self._recorded_calls: List[RecordedCall] = []
        self._recording: Optional[Recording] = None
        self._player: Optional[Player] = None
        self.call: Callable[[Any, Any, Any], Any] = self._record
        """Runs an operator and surveys what it wrote."""
        self.deviated = False
        """Whether the order of operators differs from the last step."""

    def remember(self, func: Any, node: int) -> None:
        """Store an operator of a closely observed step with its node."""
        self._calls.append((func, node))

    def begin(self, *, alone: bool = False) -> None:
        """Begin a surveyed step; `alone` if the dispatch mode can be detached."""
        self.call, self._player = self._record, None
        follower = self._follower
        if alone and follower is not None:
            recording = self._recording or self._followed
            self.following = follower.begin(
                recording, self._unexpected_in_follower, self._after_unexpected
            )
            if self.following:
                self._recording = recording
                if recording is not None:
                    self._player = Player(self._record, follower.position)
                return
        if self._recording is not None:
            self._player = play_recording(
                self._recording, self._survey, self._unexpected_operator, self._other_result
            )
            self.call = self._player.play

    def pause(self) -> None:
        """Pause following until `resume`; only between steps."""
        if self.following and self._follower is not None:
            self._follower.end()

    def stop(self) -> None:
        """Stop following in the middle of a step."""
        if self.following and self._follower is not None:
            self._follower.end()
            self._follower.hand_over()
            self.following = False

    def interrupt(self) -> None:
        """Stop in the middle of a step, before operators that must not be observed."""
        self.stop()
        if self._player is not None:
            self._leave_recording()
        self.deviated = True
        self._survey.flush()

    def resume(self) -> None:
        """Resume following at the start of a step."""
        if self.following and self._follower is not None:
            self._follower.begin(
                self._recording, self._unexpected_in_follower, self._after_unexpected
            )

    def end_step(self, surveyed: bool) -> bool:
        """End a step and prepare the next recording; return whether it matched the last step."""
        if self.following and self._follower is not None:
            self._follower.end()
            self._follower.hand_over()
            self._unexpected = None
            if self._follower.error is not None:
                raise self._follower.error
        if self._player is not None and self._recording is not None:
            if self._player.position() == len(self._recording.recorded_calls):
                self._count(self._recording.recorded_calls)
                self._last = []
                if self.following:
                    self._followed = self._recording
            else:
                self._leave_recording()  # fewer operators than in the recording
        regular = not self.deviated
        if surveyed and self._player is None:
            if self.following and self.deviated:
                regular = self._take_places()
            self._last = [(call.func, call.node) for call in self._recorded_calls]
            self._recording = None if self.deviated else self._recorded()
        elif not surveyed:
            self._last, self._recording = self._calls, None
        self._player, self.following = None, False
        self._calls, self._recorded_calls, self.deviated = [], [], False
        return regular

    def _take_places(self) -> bool:
        """Assign the nodes of the last step to matching operators; return whether all matched."""
        numbers = align(
            [call.func for call in self._recorded_calls],
            [func for func, _ in self._last],
        )
        for call, number in zip(self._recorded_calls, numbers):
            if call.place is None:
                continue
            func, node = (None, -1) if number is None else self._last[number]
            if func is not call.func:
                place = call.place if number is None else self._sites.place(node)
                node = self._sites.node(call.operator.name, place, ())
            call.node, call.place = node, None
            self._survey.move([output.row for output in call.outputs], node)
        return len(numbers) == len(self._last) and None not in numbers

    def _unexpected_in_follower(self, func: Any, written: List[torch.Tensor]) -> None:
        """Handle an operator that differs from the recording, before it runs."""
        if self._player is not None:
            self._leave_recording()
        self._unexpected = self._enter(func, operator_of(func), written)

    def _after_unexpected(self, written: List[torch.Tensor], results: List[torch.Tensor]) -> None:
        """Handle an unexpected operator, or different results of a recorded one, after it ran."""
        call, self._unexpected = self._unexpected, None
        if call is None:
            if self._recording is None or self._player is None:
                return
            expected = self._recording.recorded_calls[self._player.position()]
            self._leave_recording()
            call = RecordedCall(expected.func, expected.operator, expected.node)
            self._recorded_calls.append(call)
            self._counts.operators += 1
        self._add_outputs(call, number_outputs(call.operator, written, results))

    def _unexpected_operator(self, func: Any, args: Any, keywords: Any) -> Any:
        self._leave_recording()
        return self._record(func, args, keywords)

    def _other_result(self, call: RecordedCall, args: Any, keywords: Any, result: Any) -> Any:
        self._leave_recording()
        again = RecordedCall(call.func, call.operator, call.node)
        self._recorded_calls.append(again)
        self._counts.operators += 1
        self._add_outputs(again, numbered_outputs(again, args, keywords, result))
        return result

    def _leave_recording(self) -> None:
        """Continue this step without the recording."""
        recording, player = self._recording, self._player
        self._recording = self._player = None
        self.call = self._record
        if recording is None or player is None:
            return
        if self.following and self._follower is not None:
            self._follower.hand_over()
        self.deviated = True
        self._followed = None
        self._last = [(call.func, call.node) for call in recording.recorded_calls]
        self._recorded_calls = recording.recorded_calls[: player.position()]
        self._count(self._recorded_calls)
        self._survey.stop_playing(
            [output for call in self._recorded_calls for output in call.outputs]
        )

    def _record(self, func: Any, args: Any, keywords: Any) -> Any:
        operator = operator_of(func)
        if operator.inert:
            return func(*args, **keywords)
        written = written_tensors(operator, args, keywords) if operator.writes else []
        call = self._enter(func, operator, written)
        result = func(*args, **keywords)
        self._add_outputs(call, numbered_outputs(call, args, keywords, result))
        return result

    def _enter(self, func: Any, operator: Operator, written: List[torch.Tensor]) -> RecordedCall:
        """Record an operator that is about to run."""
        self._counts.operators += 1
        at = len(self._recorded_calls)
        if not self.deviated and at < len(self._last) and self._last[at][0] is func:
            call = RecordedCall(func, operator, self._last[at][1])
        else:
            self.deviated = True
            place = self._places.now()
            if self.following:  # its node is determined at the end of the step
                call = RecordedCall(func, operator, -1, place)
            else:
                call = RecordedCall(func, operator, self._sites.node(operator.name, place, ()))
        self._recorded_calls.append(call)
        survey = self._survey
        if survey.holds and any(map(survey.waits_for, written)):
            call.flush_before = survey.flush()
        return call

    def _add_outputs(self, call: RecordedCall, outputs: List[Tuple[int, torch.Tensor]]) -> None:
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
                row = self._survey.add(tensor, (call.node, position), layout)
                scanned.append(output_at(place, row, tensor))
        call.outputs, call.sizes = tuple(scanned), (written, small, not_seen)
        self._add_bytes(call)
        if self._survey.is_full:
            call.flush_after = self._survey.flush()

    def _recorded(self) -> Optional[Recording]:
        """Return the step as a recording for the next one."""
        last = self._survey.flush()
        if last is not None and self._recorded_calls:
            self._recorded_calls[-1].flush_after = last
        rows = self._survey.recorded()
        return None if rows is None else Recording(self._recorded_calls, rows)

    def _count(self, recorded_calls: List[RecordedCall]) -> None:
        """Count operators and bytes of played calls."""
        self._counts.operators += len(recorded_calls)
        for call in recorded_calls:
            self._add_bytes(call)

    def _add_bytes(self, call: RecordedCall) -> None:
        written, small, not_seen = call.sizes
        self._counts.written_bytes += written
        self._counts.small_bytes += small
        self._counts.not_seen_bytes += not_seen
