"""The survey: steps in which every written byte is scanned, and no pattern is asked.

A program does the same in each step, so a few steps are looked at closely and the others surveyed:
one row for each tensor that an operator wrote, on a GPU many with one launch and no waiting until
the step ends. What the rows show is compared with what they showed before; something new is a reason
to look closely again. Knows rows, not operators.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch

from torchyard.worker.values.device_scan import FIELDS
from torchyard.worker.values.layouts import LAYOUTS, Layout
from torchyard.worker.values.scan import Scan
from torchyard.worker.values.scanners import Scanners

SINGLE, FREQUENT, EQUAL, REPEATED, NARROW = 1, 2, 4, 8, 16
"""What a row may show: one value, nearly one value, the bits of another row of the step, the bits of
the same row in the step before, or fewer bits in use than its dtype has."""

Sight = Tuple[int, int]
_FREQUENT_SHARE = 0.9
_MOST_HELD = 512
_SPREAD = 0x9E3779B97F4A7C15 - (1 << 64)
_SPREAD_UPPER = 0x2545F4914F6CDD1D
_SPARE_BITS = {64: (1 << 29) - 1, 32: (1 << 13) - 1}


class Surveyed(NamedTuple):
    """What the rows of one step showed."""

    sights: List[Sight]
    shows: List[int]
    """For each, what it shows; 0 for most."""
    new: bool
    """Whether a row showed what was never seen of it."""


class Survey:
    """The rows of the step under way, and what is known from the steps before."""

    def __init__(self, scanners: Scanners, memory_bytes: int) -> None:
        self._scanners = scanners
        self._memory_bytes = memory_bytes
        self._sights: List[Sight] = []
        self._counts: List[int] = []
        self._narrow: List[int] = []
        self._here: List[Tuple[int, int, int, int, int]] = []
        self._parts: List[Tuple[List[int], torch.Tensor]] = []
        self._held: List[torch.Tensor] = []
        self._held_rows: List[int] = []
        self._held_keys: Set[int] = set()
        self._held_bytes = 0
        self._queue: Optional[Tuple[Any, int]] = None
        self._last: Optional[Tuple[List[Sight], torch.Tensor]] = None
        self._known: Dict[Sight, int] = {}
        self.launches = 0

    def note(self, sight: Sight, scan: Scan, layout: Layout) -> None:
        """A row that was scanned already, while looking closely."""
        place = self._row(sight, scan.count, layout)
        used = _signed(scan.any_bits)
        self._here.append((place, _signed(scan.hash), scan.zeros, scan.like_first, used))

    def add(self, tensor: torch.Tensor, sight: Sight, layout: Layout, key: int) -> None:
        """A tensor that was just written; `key` is the identity of its storage."""
        if tensor.is_cpu:
            self.note(sight, self._scanners.scan(tensor, layout), layout)
            return
        queue = (tensor.device, _stream(tensor.device))
        if queue != self._queue:
            self.flush()
            self._queue = queue
        self._held_rows.append(self._row(sight, tensor.numel() * layout.per_number, layout))
        self._held.append(tensor)
        self._held_keys.add(key)
        self._held_bytes += tensor.numel() * tensor.element_size()
        if self._held_bytes > self._memory_bytes or len(self._held) >= _MOST_HELD:
            self.flush()

    def about_to_write(self, key: int) -> None:
        """Before a storage is written over: what waits to be scanned must be scanned first."""
        if key in self._held_keys:
            self.flush()

    def flush(self) -> None:
        """Scan what is held, in the order of the device's queue, and let go of it."""
        if not self._held or self._queue is None:
            return
        rows = self._scanners.on(self._queue[0]).rows(self._held)
        self._parts.append((self._held_rows, rows))
        self.launches += 1
        self._held, self._held_rows, self._held_bytes = [], [], 0
        self._held_keys.clear()

    def end_step(self) -> Surveyed:
        """Wait for the rows, and say what they show."""
        self.flush()
        table = self._table()
        shows = self._shows(table)
        hashes = table[:, 0].clone()
        new = False
        for sight, shown in zip(self._sights, shows):
            if shown:
                before = self._known.get(sight, 0)
                if shown & ~before:
                    new = True
                    self._known[sight] = before | shown
        surveyed = Surveyed(self._sights, shows, new)
        self._last = (self._sights, hashes)
        self._sights, self._counts, self._narrow = [], [], []
        self._here, self._parts = [], []
        return surveyed

    def _row(self, sight: Sight, count: int, layout: Layout) -> int:
        self._sights.append(sight)
        self._counts.append(count)
        self._narrow.append(_needless_bits(layout))
        return len(self._sights) - 1

    def _table(self) -> torch.Tensor:
        """Hash, zeros, like the first, and bits in use, a row for each sight."""
        table = torch.zeros((len(self._sights), 4), dtype=torch.int64)
        if self._here:
            here = torch.tensor(self._here, dtype=torch.int64)
            table[here[:, 0]] = here[:, 1:]
        if self._parts:
            places = torch.tensor([place for places, _ in self._parts for place in places])
            rows = torch.cat([rows.to("cpu", non_blocking=True) for _, rows in self._joined()])
            counts = torch.tensor(self._counts)[places]
            table[places, 0] = rows[:, 0] * _SPREAD + rows[:, 1] * _SPREAD_UPPER + counts
            table[places, 1] = rows[:, 2]
            table[places, 2] = rows[:, 3]
            table[places, 3] = rows[:, 5]
        return table

    def _joined(self) -> List[Tuple[torch.device, torch.Tensor]]:
        """Parts of one device as one, so that there is one copy to wait for."""
        joined: List[Tuple[torch.device, List[torch.Tensor]]] = []
        for _, rows in self._parts:
            if not joined or joined[-1][0] != rows.device:
                joined.append((rows.device, []))
            joined[-1][1].append(rows.view(-1, FIELDS))
        found = [(device, torch.cat(parts)) for device, parts in joined]
        for device, _ in found:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        return found

    def _shows(self, table: torch.Tensor) -> List[int]:
        if not len(table):
            return []
        counts, narrow = torch.tensor(self._counts), torch.tensor(self._narrow)
        hashes, zeros, alike, used = table.unbind(1)
        shows = (alike == counts).to(torch.int64) * SINGLE
        most = torch.maximum(zeros, alike)
        shows |= (most >= counts * _FREQUENT_SHARE).to(torch.int64) * FREQUENT
        shows |= (used & narrow == 0).to(torch.int64) * NARROW
        order = torch.argsort(hashes)
        same = torch.zeros(len(table), dtype=torch.bool)
        alike_next = hashes[order][1:] == hashes[order][:-1]
        same[order[1:]] = alike_next
        same[order[:-1]] |= alike_next
        shows |= same.to(torch.int64) * EQUAL
        if self._last is not None:
            shows |= self._repeated(self._last[0], self._last[1], hashes).to(torch.int64) * REPEATED
        found: List[int] = shows.tolist()
        return found

    def _repeated(
        self, sights: List[Sight], last: torch.Tensor, hashes: torch.Tensor
    ) -> torch.Tensor:
        """Which rows have the bits that they had in the step before."""
        if sights == self._sights:
            return last == hashes
        # Another order, or other rows: the k-th row of a sight is compared with its k-th.
        earlier: Dict[Sight, List[int]] = {}
        for sight, digest in zip(reversed(sights), reversed(last.tolist())):
            earlier.setdefault(sight, []).append(digest)
        same = []
        for sight, digest in zip(self._sights, hashes.tolist()):
            digests = earlier.get(sight)
            same.append(bool(digests) and digests is not None and digests.pop() == digest)
        return torch.tensor(same)


def _needless_bits(layout: Layout) -> int:
    """Bits that are zero in every element when a narrower dtype would do."""
    if not layout.is_float:
        return _signed(((1 << layout.bits) - 1) & ~((1 << layout.bits // 2) - 1))
    return _SPARE_BITS.get(layout.bits, 1)


def _signed(number: int) -> int:
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def _stream(device: torch.device) -> int:
    current = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(current(device.index or 0)) if current is not None else 0


def layout_for(tensor: torch.Tensor) -> Optional[Layout]:
    """How its numbers lie, for a tensor that can be scanned where it is."""
    return LAYOUTS.get(tensor.dtype) if tensor.layout is torch.strided else None
