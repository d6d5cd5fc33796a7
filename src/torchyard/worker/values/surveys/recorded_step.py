"""A recorded step: its operators in order, what each wrote, and the rows of the scans.

Steps are alike, so a surveyed step is the recording ("score") for the next. While the same
operators come in the same order and write tensors of the same sizes, nothing is looked up: tensors
are held, and scanned where they were scanned before. Looking up places, storages and sizes costs
more than the scan. At the first difference the rest of the step is surveyed without the recording.
What rows show (one value, the bits of another row, those of the last step) is computed for all
rows at once, because a step has thousands.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from torchyard.worker.values.operators import Operator, tensors_in, written_tensors
from torchyard.worker.values.places import Place
from torchyard.worker.values.scanning.cpu_scan import LAYOUTS, Layout
from torchyard.worker.values.scanning.scanners import Batch, DeviceScanner, hashes_of_rows

SINGLE, FREQUENT, EQUAL, REPEATED, NARROW = 1, 2, 4, 8, 16
"""What a row may show: one value, nearly one value, the bits of another row of the step, the bits of
the same row in the step before, or fewer bits in use than its dtype has."""

ResultKey = Tuple[int, int]
"""A node of the flow graph and which of its results."""
_FREQUENT_SHARE = 0.9
_SPARE_BITS = {64: (1 << 29) - 1, 32: (1 << 13) - 1}


class Surveyed(NamedTuple):
    """What the rows of one step showed."""

    step: int
    regular: bool
    """Whether its operators came in the order of the step before."""
    closely: bool
    """Whether patterns looked at the step, too."""
    result_keys: List[ResultKey]
    shows: List[int]
    """For each, what it shows; 0 for most."""
    new: bool
    """Whether a row showed what was never seen of it."""


class StepRows:
    """Rows as they come in, and where those of a GPU will be."""

    def __init__(self) -> None:
        self.step = 0
        self.regular = True
        self.closely = False
        self.result_keys: List[ResultKey] = []
        self._counts: List[int] = []
        self._narrow: List[int] = []
        self.here: List[Tuple[int, int, int, int, int]] = []
        """Number of the row, hash, zeros, elements like the first, bits in use."""
        self.parts: List[Tuple[List[int], torch.Tensor]] = []
        """Numbers of rows, and the rows on their device."""
        self._fetched: List[Tuple[List[int], torch.Tensor, Any]] = []
        self._constant: Dict[Any, torch.Tensor] = {}
        """Tensors that rows of the same sights have in common."""
        self.hashes: Optional[torch.Tensor] = None
        """Of all rows, once they were read."""

    def like(self) -> "StepRows":
        """New rows of the same sights and sizes."""
        rows = StepRows()
        rows.result_keys, rows._counts, rows._narrow = self.result_keys, self._counts, self._narrow
        rows._constant = self._constant
        return rows

    def first(self, count: int) -> "StepRows":
        """The first of these rows, to which others can be added."""
        rows = StepRows()
        rows.result_keys, rows._counts = self.result_keys[:count], self._counts[:count]
        rows._narrow = self._narrow[:count]
        rows.here, rows.parts = self.here, self.parts
        return rows

    def add(self, result_key: ResultKey, count: int, narrow: int) -> int:
        """The number of a new row."""
        self.result_keys.append(result_key)
        self._counts.append(count)
        self._narrow.append(narrow)
        return len(self.result_keys) - 1

    def fetch(self) -> bool:
        """Ask for the rows of GPUs; whether there are any to wait for."""
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
        """What each row shows; waits for those that were asked for."""
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
        """Hash, zeros, elements like the first, and bits in use, for each row."""
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
        """The numbers as a tensor, which the same rows of the next step will need again."""
        tensor = self._constant.get(name)
        if tensor is None or len(tensor) != len(numbers):
            tensor = self._constant[name] = _whole(numbers)
        return tensor

    def _repeated(
        self, result_keys: List[ResultKey], last: torch.Tensor, hashes: torch.Tensor
    ) -> torch.Tensor:
        """Which rows have the bits that they had in the step before."""
        if result_keys is self.result_keys or result_keys == self.result_keys:
            return last == hashes
        # Another order, or other rows: the k-th row of a sight is compared with its k-th.
        earlier: Dict[ResultKey, List[int]] = {}
        for result_key, digest in zip(reversed(result_keys), reversed(last.tolist())):
            earlier.setdefault(result_key, []).append(digest)
        same = []
        for result_key, digest in zip(self.result_keys, hashes.tolist()):
            digests = earlier.get(result_key)
            same.append(digests.pop() == digest if digests else False)
        return torch.tensor(same, dtype=torch.bool, device="cpu")


def needless_bits(layout: Layout) -> int:
    """Bits that are zero in every element when a narrower dtype would do."""
    if not layout.is_float:
        return signed(((1 << layout.bits) - 1) & ~((1 << layout.bits // 2) - 1))
    return _SPARE_BITS.get(layout.bits, 1)


def signed(number: int) -> int:
    """The same 64 bits as a signed number, which is how torch has them."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def _whole(numbers: Any) -> torch.Tensor:
    # A program may have made another device the default one.
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


class Output(NamedTuple):
    """One tensor of an operator that is scanned."""

    place: int
    """Among the tensors that it writes and returns."""
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
    """How many were scanned on the device before them in this step."""


class RecordedCall:
    """One operator."""

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
        """-1 while only its place is known."""
        self.place = place
        self.outputs: Tuple[Output, ...] = ()
        self.flush_before: Optional[Flush] = None
        """Because it writes over what waits to be scanned."""
        self.flush_after: Optional[Flush] = None
        """Because enough waits, or the step is over."""
        self.single = not operator.writes
        """Whether all it can write is its result."""
        self.sizes = (0, 0, 0)
        """Bytes that it writes, in small tensors, and that are not seen."""

    @property
    def one(self) -> Optional[Output]:
        """Its output, when that is its whole result and waits for a launch."""
        whole = self.operator.returns_written or (self.single and not self.operator.many_results)
        if not whole or len(self.outputs) != 1 or self.outputs[0].cpu:
            return None
        return self.outputs[0]


class Recording(NamedTuple):
    """A step that can be played again."""

    recorded_calls: List[RecordedCall]
    rows: StepRows


def outputs_of(
    recorded_call: RecordedCall, args: Any, keywords: Any, result: Any
) -> List[torch.Tensor]:
    """Everything that an operator wrote, in the order of `Output.place`: arguments, then results."""
    if recorded_call.single:
        return tensors_in((result,))
    return [tensor for _, tensor in numbered_outputs(recorded_call, args, keywords, result)]


def numbered_outputs(
    recorded_call: RecordedCall, args: Any, keywords: Any, result: Any
) -> List[Tuple[int, torch.Tensor]]:
    """The same with positions: arguments and results are counted from 0 each."""
    written = (
        [] if recorded_call.single else written_tensors(recorded_call.operator, args, keywords)
    )
    return number_outputs(recorded_call.operator, written, tensors_in((result,)))


def number_outputs(
    operator: Operator, written: List[torch.Tensor], results: List[torch.Tensor]
) -> List[Tuple[int, torch.Tensor]]:
    """The same of tensors that are known already."""
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
    """What is expected to be written there again."""
    layout = LAYOUTS[tensor.dtype]
    return Output(place, tensor.numel(), tensor.dtype, tensor.is_cpu, row, layout)
