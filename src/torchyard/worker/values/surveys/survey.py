"""The survey: steps in which all written memory is scanned and no pattern is evaluated.

One row per written tensor; GPU rows are read at the end of the next step, so that the program never waits for them. A
row with a new flag triggers another closely observed step. The player is one closure, because it runs for every operator.
"""

import functools
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from torchyard.worker.values.operators import Operator, operator_of, tensors_in, written_tensors
from torchyard.worker.values.places import Place
from torchyard.worker.values.scanning.cpu_scan import LAYOUTS, Layout, Scan, flat_memory
from torchyard.worker.values.scanning.scanners import Batch, DeviceScanner, Scanners, hashes_of_rows

SINGLE, FREQUENT, EQUAL, REPEATED, NARROW, EARLIER = 1, 2, 4, 8, 16, 32
"""Flags of a row: one value, almost one value, the bits of another row of the step, the bits of the same
row in the previous step, fewer bits in use than the dtype has, the bits of any row of the previous step."""

ResultKey = Tuple[int, int]
"""Node of the flow graph and index of its result."""
_FREQUENT_SHARE = 0.9
_SPARE_BITS = {64: (1 << 29) - 1, 32: (1 << 13) - 1}


class Surveyed(NamedTuple):
    """Flags of the rows of one step."""

    step: int
    regular: bool
    """Whether the order of operators equals that of the previous step."""
    closely: bool
    """Whether the step was observed closely."""
    result_keys: List[ResultKey]
    shows: List[int]
    """Flags of each result; mostly 0."""
    new: bool
    """Whether a row has a flag for the first time."""


class StepRows:
    """Rows of a step, including those still on a GPU."""

    def __init__(self) -> None:
        self.step = 0
        self.regular = True
        self.closely = False
        self.result_keys: List[ResultKey] = []
        self._counts: List[int] = []
        self._narrow: List[int] = []
        self.here: List[Tuple[int, int, int, int, int]] = []
        """Row number, hash, zeros, elements equal to the first, bits in use."""
        self.parts: List[Tuple[List[int], torch.Tensor]] = []
        """Row numbers, and the rows on their device."""
        self._fetched: List[Tuple[List[int], torch.Tensor, Any]] = []
        self._constant: Dict[Any, torch.Tensor] = {}
        """Tensors shared by steps with the same rows."""
        self.hashes: Optional[torch.Tensor] = None
        """Hashes of all rows, once they were read."""

    def like(self) -> "StepRows":
        """Return new rows with the same results and sizes."""
        rows = StepRows()
        rows.result_keys, rows._counts, rows._narrow = self.result_keys, self._counts, self._narrow
        rows._constant = self._constant
        return rows

    def first(self, count: int) -> "StepRows":
        """Return the first `count` rows, to which others can be added."""
        rows = StepRows()
        rows.result_keys, rows._counts = self.result_keys[:count], self._counts[:count]
        rows._narrow = self._narrow[:count]
        rows.here, rows.parts = self.here, self.parts
        return rows

    def add(self, result_key: ResultKey, count: int, narrow: int) -> int:
        """Add a row and return its number."""
        self.result_keys.append(result_key)
        self._counts.append(count)
        self._narrow.append(narrow)
        return len(self.result_keys) - 1

    def fetch(self) -> bool:
        """Start copying rows from GPUs; return whether there are any."""
        by_device: Dict[torch.device, List[Tuple[List[int], torch.Tensor]]] = {}
        for part in self.parts:
            by_device.setdefault(part[1].device, []).append(part)
        for device, parts in by_device.items():
            there = parts[0][1] if len(parts) == 1 else torch.cat([rows for _, rows in parts])
            numbers = [number for places, _ in parts for number in places]
            done: Optional[Any] = None
            if device.type == "cuda":
                here = torch.empty(there.shape, dtype=there.dtype, device="cpu", pin_memory=True)
                here.copy_(there, non_blocking=True)
                done = torch.cuda.Event()
                done.record(torch.cuda.current_stream(device))
            else:
                here = there
            self._fetched.append((numbers, here, done))
        return bool(self._fetched)

    def shows(self, last: Optional["StepRows"]) -> List[int]:
        """Return the flags of each row; wait for rows from GPUs."""
        table = self._table()
        if not self.result_keys:
            return []
        counts, narrow = self._kept("counts", self._counts), self._kept("narrow", self._narrow)
        hashes, zeros, alike, used = table.unbind(1)
        self.hashes = hashes.clone()
        flags = (alike == counts).to(torch.int64) * SINGLE
        most = torch.maximum(zeros, alike)
        flags |= (most >= counts * _FREQUENT_SHARE).to(torch.int64) * FREQUENT
        flags |= (used & narrow == 0).to(torch.int64) * NARROW
        ordered, order = torch.sort(hashes)
        like_next = ordered[1:] == ordered[:-1]
        equal = torch.zeros(len(table), dtype=torch.bool, device="cpu")
        equal[order[1:]] = like_next
        equal[order[:-1]] |= like_next
        flags |= equal.to(torch.int64) * EQUAL
        if last is not None and last.hashes is not None:
            flags |= (
                self._repeated(last.result_keys, last.hashes, self.hashes).to(torch.int64)
                * REPEATED
            )
            flags |= torch.isin(self.hashes, last.hashes).to(torch.int64) * EARLIER
        shows: List[int] = flags.tolist()
        return shows

    def _table(self) -> torch.Tensor:
        """Return hash, zeros, elements equal to the first, and bits in use of each row."""
        table = torch.zeros((len(self.result_keys), 4), dtype=torch.int64, device="cpu")
        if self.here:
            here = _whole(self.here)
            table[here[:, 0]] = here[:, 1:]
        counts = self._kept("counts", self._counts)
        for number, (numbers, rows, done) in enumerate(self._fetched):
            if done is not None:
                done.synchronize()
            places = self._kept(("numbers", number), numbers)
            hashes = hashes_of_rows(rows, counts[places])
            table[places] = torch.stack((hashes, rows[:, 2], rows[:, 3], rows[:, 5]), 1)
        return table

    def _kept(self, name: Any, numbers: List[int]) -> torch.Tensor:
        """Return the numbers as a tensor, cached for the next step."""
        tensor = self._constant.get(name)
        if tensor is None or len(tensor) != len(numbers):
            tensor = self._constant[name] = _whole(numbers)
        return tensor

    def _repeated(
        self, result_keys: List[ResultKey], last: torch.Tensor, hashes: torch.Tensor
    ) -> torch.Tensor:
        """Return which rows have the same bits as in the previous step."""
        if result_keys is self.result_keys or result_keys == self.result_keys:
            return last == hashes
        # Different rows or order: compare the k-th rows of each result.
        earlier: Dict[ResultKey, List[int]] = {}
        for result_key, digest in zip(reversed(result_keys), reversed(last.tolist())):
            earlier.setdefault(result_key, []).append(digest)
        same = []
        for result_key, digest in zip(self.result_keys, hashes.tolist()):
            digests = earlier.get(result_key)
            same.append(digests.pop() == digest if digests else False)
        return torch.tensor(same, dtype=torch.bool, device="cpu")


@functools.lru_cache(maxsize=None)
def needless_bits(layout: Layout) -> int:
    """Return the bits that are zero in all elements if a narrower dtype suffices."""
    if not layout.is_float:
        return signed(((1 << layout.bits) - 1) & ~((1 << layout.bits // 2) - 1))
    return _SPARE_BITS.get(layout.bits, 1)


def signed(number: int) -> int:
    """Return the same 64 bits as a signed integer, as in torch."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def _whole(numbers: Any) -> torch.Tensor:
    # The program may have changed the default device.
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


class Output(NamedTuple):
    """A scanned output of an operator."""

    place: int
    """Index among the tensors that it writes and returns."""
    numel: int
    dtype: torch.dtype
    cpu: bool
    row: int
    layout: Layout


class Flush(NamedTuple):
    """Tensors that were scanned together."""

    scanner: DeviceScanner
    batch: Batch
    rows: List[int]
    first: int
    """Number of tensors scanned on the device before in this step."""


class RecordedCall:
    """One operator of a recorded step."""

    __slots__ = (
        "flush_after",
        "flush_before",
        "func",
        "node",
        "operator",
        "outputs",
        "place",
        "single",
        "sizes",
    )

    def __init__(
        self, func: Any, operator: Operator, node: int, place: Optional[Place] = None
    ) -> None:
        self.func = func
        self.operator = operator
        self.node = node
        """-1 while only its location is known."""
        self.place = place
        self.outputs: Tuple[Output, ...] = ()
        self.flush_before: Optional[Flush] = None
        """Scan before the call, because it overwrites held memory."""
        self.flush_after: Optional[Flush] = None
        """Scan after the call, because enough is held or the step is over."""
        self.single = not operator.writes
        """Whether it writes only its result."""
        self.sizes = (0, 0, 0)
        """Bytes written: all, in small tensors, in unsupported tensors."""

    @property
    def one(self) -> Optional[Output]:
        """Its only output, if it is a GPU tensor and the whole result."""
        whole = self.operator.returns_written or (self.single and not self.operator.many_results)
        if not whole or len(self.outputs) != 1 or self.outputs[0].cpu:
            return None
        return self.outputs[0]


class Recording(NamedTuple):
    """A recorded step."""

    recorded_calls: List[RecordedCall]
    rows: StepRows


def outputs_of(call: RecordedCall, args: Any, keywords: Any, result: Any) -> List[torch.Tensor]:
    """Return all written tensors in the order of `Output.place`: arguments, then results."""
    if call.single:
        return tensors_in((result,))
    return [tensor for _, tensor in numbered_outputs(call, args, keywords, result)]


def numbered_outputs(
    call: RecordedCall, args: Any, keywords: Any, result: Any
) -> List[Tuple[int, torch.Tensor]]:
    """Return written tensors with positions; arguments and results are numbered separately."""
    written = [] if call.single else written_tensors(call.operator, args, keywords)
    return number_outputs(call.operator, written, tensors_in((result,)))


def number_outputs(
    operator: Operator, written: List[torch.Tensor], results: List[torch.Tensor]
) -> List[Tuple[int, torch.Tensor]]:
    """Number written and returned tensors."""
    if operator.undefined:
        return []
    if not operator.writes:
        return list(enumerate(results))
    numbered = list(enumerate(written))
    if operator.fresh:
        written_ids = {id(tensor) for tensor in written}
        numbered += [(at, one) for at, one in enumerate(results) if id(one) not in written_ids]
    return numbered


def output_at(place: int, row: int, tensor: torch.Tensor) -> Output:
    """Return the output that is expected to be written again."""
    layout = LAYOUTS[tensor.dtype]
    return Output(place, tensor.numel(), tensor.dtype, tensor.is_cpu, row, layout)


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
            if shown & ~EARLIER:
                before = self._known.get(result_key, 0)
                if shown & ~EARLIER & ~before:
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
    written_tensors = []
    for output in outputs:
        tensor = tensors[output.place]
        if (
            tensor.numel() != output.numel
            or tensor.dtype is not output.dtype
            or tensor.is_cpu is not output.cpu
            or not (tensor.is_contiguous() or flat_memory(tensor) is not None)
        ):
            return False
        written_tensors.append(tensor)
    survey.hold_again(outputs, written_tensors)
    return True
