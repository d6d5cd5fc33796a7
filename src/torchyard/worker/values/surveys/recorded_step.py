"""A recorded step: its operators in order, what each wrote, and the rows of the scans.

A surveyed step is the recording for the next one. While the same operators write tensors of the same sizes, nothing
is looked up, which would cost more than the scan; at the first difference the rest is surveyed without the recording.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from torchyard.worker.values.operators import Operator, tensors_in, written_tensors
from torchyard.worker.values.places import Place
from torchyard.worker.values.scanning.cpu_scan import LAYOUTS, Layout
from torchyard.worker.values.scanning.scanners import Batch, DeviceScanner, hashes_of_rows

SINGLE, FREQUENT, EQUAL, REPEATED, NARROW = 1, 2, 4, 8, 16
"""Flags of a row: one value, almost one value, the bits of another row of the step, the bits of the same
row in the previous step, fewer bits in use than the dtype has."""

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
