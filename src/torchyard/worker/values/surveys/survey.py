"""The survey: steps in which all written memory is scanned and no pattern is evaluated.

One row per written tensor; GPU rows are read at the end of the next step, so that the program never waits for them. A
row with a new flag triggers another closely observed step. The player is one closure, because it runs for every operator.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from torchyard.worker.values.operators import operator_of
from torchyard.worker.values.scanning.cpu_scan import Layout, Scan, flat_memory
from torchyard.worker.values.scanning.scanners import Scanners
from torchyard.worker.values.surveys.recorded_step import (
    Flush,
    Output,
    RecordedCall,
    Recording,
    ResultKey,
    StepRows,
    Surveyed,
    needless_bits,
    outputs_of,
    signed,
)

_MOST_HELD = 512
_address = torch._C.TensorBase.data_ptr


class Survey:
    """Rows of the current step, and flags from earlier steps."""

    def __init__(self, scanners: Scanners, held_bytes: int) -> None:
        self._scanners = scanners
        self._held_limit = held_bytes
        self._rows = StepRows()
        self.held: List[torch.Tensor] = []
        """Tensors to be scanned; always the same list object."""
        self._held_rows: List[int] = []
        self.addresses: List[int] = []
        self._starts: Set[int] = set()
        self._held_bytes = 0
        self._queue: Optional[Tuple[Any, int]] = None
        self._queues = 0
        self._scanned = 0
        """Number of GPU tensors scanned in this step."""
        self._to_play = 0
        self._played: Optional[torch.Tensor] = None
        self._numbers: List[int] = []
        """Row numbers of the device rows in a played step."""
        self._waiting: Optional[StepRows] = None
        self._last: Optional[StepRows] = None
        self._known: Dict[ResultKey, int] = {}
        self.launches = 0

    def note(self, result_key: ResultKey, scan: Scan, layout: Layout) -> int:
        """Add a row that was already scanned; return its number."""
        row = self._rows.add(result_key, scan.count, needless_bits(layout))
        self._note(row, scan)
        return row

    def add(self, tensor: torch.Tensor, result_key: ResultKey, layout: Layout) -> int:
        """Add a tensor that was just written; return the number of its row."""
        if tensor.is_cpu:
            return self.note(result_key, self._scanners.scan(tensor, layout), layout)
        queue = (tensor.device, _stream(tensor.device))
        if queue != self._queue:
            self.flush()
            self._queue = queue
            self._queues += 1
        count = tensor.numel() * layout.per_number
        row = self._rows.add(result_key, count, needless_bits(layout))
        self._held_rows.append(row)
        self.held.append(tensor)
        self.addresses.append(_address(tensor))
        self._starts.add(_start(tensor))
        self._held_bytes += count * layout.bits // 8
        return row

    @property
    def holds(self) -> bool:
        """Whether tensors are waiting to be scanned."""
        return bool(self.held)

    @property
    def is_full(self) -> bool:
        """Whether enough tensors are waiting to be scanned."""
        return self._held_bytes > self._held_limit or len(self.held) >= _MOST_HELD

    def waits_for(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor's memory is waiting to be scanned."""
        return tensor.layout is torch.strided and _start(tensor) in self._starts

    def flush(self) -> Optional[Flush]:
        """Scan and release the held tensors, in stream order."""
        if not self.held or self._queue is None:
            return None
        scanner = self._scanners.on(self._queue[0])
        flush = Flush(scanner, scanner.batch(self.held), self._held_rows, self._scanned)
        self._rows.parts.append((flush.rows, scanner.rows(self.held)))
        self._let_go()
        self._held_rows, self._held_bytes = [], 0
        self._starts.clear()
        return flush

    def hold_again(self, outputs: Sequence[Output], tensors: List[torch.Tensor]) -> None:
        """Hold tensors of recorded outputs."""
        if outputs[0].cpu:
            for output, tensor in zip(outputs, tensors):
                self._note(output.row, self._scanners.scan(tensor, output.layout))
            return
        self.held += tensors
        self.addresses += map(_address, tensors)

    def take_over(
        self,
        tensors: Sequence[torch.Tensor],
        rows: Sequence[Tuple[int, int, int, int, int]],
    ) -> None:
        """Take over GPU tensors held and CPU rows scanned by the follower."""
        self.held += tensors
        self.addresses += map(_address, tensors)
        self._rows.here += rows

    def move(self, rows: Sequence[int], node: int) -> None:
        """Reassign rows of this step to another node."""
        for row in rows:
            self._rows.result_keys[row] = (node, self._rows.result_keys[row][1])

    def flush_again(self, flush: Flush) -> None:
        """Scan the held tensors, which are those of a recorded batch."""
        if self._played is None:
            self._played = flush.scanner.new_rows(self._to_play)
        flush.scanner.scan_into(self._played, flush.first, flush.batch, self.held, self.addresses)
        self._numbers += flush.rows
        self._let_go()

    def _let_go(self) -> None:
        self._scanned += len(self.held)
        self.launches += 1
        self.held.clear()
        self.addresses.clear()

    def play(self, recording: Recording) -> None:
        """Begin a step that is expected to match the recording."""
        self._rows = recording.rows.like()
        self._to_play = len(self._rows.result_keys)

    def recorded(self) -> Optional[StepRows]:
        """Return the rows of this step for a recording; None if it cannot be played."""
        # With several streams, the stream of each tensor would have to be checked.
        return self._rows if self._queues <= 1 else None

    def stop_playing(self, played: Sequence[Output]) -> None:
        """Continue without the recording; the outputs so far matched it."""
        self._stop_playing()
        self._rows = self._rows.first(len(played))
        waiting = [output for output in played if not output.cpu][self._scanned :]
        self._held_rows = [output.row for output in waiting]
        self._starts = {_start(tensor) for tensor in self.held}
        sizes = (tensor.numel() * tensor.element_size() for tensor in self.held)
        self._held_bytes = sum(sizes)

    def end_step(self, step: int, regular: bool, closely: bool) -> List[Surveyed]:
        """End the step; return the surveyed steps whose rows are available."""
        self.flush()
        self._stop_playing()
        rows, self._rows = self._rows, StepRows()
        self._scanned = 0
        rows.step, rows.regular, rows.closely = step, regular, closely
        before, self._waiting = self._waiting, rows
        surveyed = [] if before is None else [self._read(before)]
        if not rows.fetch():
            surveyed += self.drain()
        for device in {part.device for _, part in rows.parts}:
            self._scanners.on(device).end_step()
        self._queues = min(self._queues, 1)
        return surveyed

    def drain(self) -> List[Surveyed]:
        """Wait for the rows of the last step."""
        rows, self._waiting = self._waiting, None
        return [] if rows is None else [self._read(rows)]

    def _stop_playing(self) -> None:
        if self._played is not None:
            self._rows.parts.append((self._numbers, self._played[: len(self._numbers)]))
        self._played, self._numbers = None, []

    def _note(self, row: int, scan: Scan) -> None:
        entry = (row, signed(scan.hash), scan.zeros, scan.like_first, signed(scan.any_bits))
        self._rows.here.append(entry)

    def _read(self, rows: StepRows) -> Surveyed:
        shows = rows.shows(self._last)
        self._last = rows
        new = False
        for result_key, shown in zip(rows.result_keys, shows):
            if shown:
                before = self._known.get(result_key, 0)
                if shown & ~before:
                    new = True
                    self._known[result_key] = before | shown
        return Surveyed(rows.step, rows.regular, rows.closely, rows.result_keys, shows, new)


def _start(tensor: torch.Tensor) -> int:
    """Return the address of its storage."""
    return _address(tensor) - tensor.storage_offset() * tensor.element_size()


def _stream(device: torch.device) -> int:
    current = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(current(device.index or 0)) if current is not None else 0


Play = Callable[[Any, Any, Any], Any]


class Player(NamedTuple):
    """A recording that is being followed."""

    play: Play
    """Runs an operator."""
    position: Callable[[], int]
    """Returns the number of matched operators."""


def play_recording(
    recording: Recording,
    survey: Survey,
    on_unexpected: Play,
    other_result: Callable[[RecordedCall, Any, Any, Any], Any],
) -> Player:
    """Begin to follow a recording in Python.

    `on_unexpected` runs an operator that differs from the recording, `other_result` handles a different
    result. Both leave the recording: `play` is not called after them.
    """
    recorded_calls: List[Any] = [
        (call.func, call, call.one, call.flush_before, call.flush_after)
        for call in recording.recorded_calls
    ]
    recorded_calls.append((None, None, None, None, None))
    at = 0
    hold, note = survey.held.append, survey.addresses.append
    flush = survey.flush_again
    survey.play(recording)

    def play(func: Any, args: Any, keywords: Any) -> Any:
        nonlocal at
        expected, call, one, before, after = recorded_calls[at]
        if expected is not func:
            if operator_of(func).inert:
                return func(*args, **keywords)
            return on_unexpected(func, args, keywords)
        if before is not None:
            flush(before)
        result = func(*args, **keywords)
        if one is not None:
            if (
                result.numel() != one.numel
                or result.dtype is not one.dtype
                or not result.is_cuda
                or not (result.is_contiguous() or flat_memory(result) is not None)
            ):
                return other_result(call, args, keywords, result)
            hold(result)
            note(_address(result))
        elif call.outputs and not _hold_all(survey, call, args, keywords, result):
            return other_result(call, args, keywords, result)
        at += 1
        if after is not None:
            flush(after)
        return result

    return Player(play, lambda: at)


def _hold_all(survey: Survey, call: RecordedCall, args: Any, keywords: Any, result: Any) -> bool:
    """Hold the written tensors if they match the recording."""
    tensors = outputs_of(call, args, keywords, result)
    outputs = call.outputs
    if outputs[-1].place >= len(tensors):
        return False
    held = []
    for output in outputs:
        tensor = tensors[output.place]
        if (
            tensor.numel() != output.numel
            or tensor.dtype is not output.dtype
            or tensor.is_cpu is not output.cpu
            or not (tensor.is_contiguous() or flat_memory(tensor) is not None)
        ):
            return False
        held.append(tensor)
    survey.hold_again(outputs, held)
    return True
