"""Move parameters and inputs to fresh memory between blocks, so that one placement does not decide a result."""

import mmap
import random
import time
from typing import Any, Dict, Iterable, List

import torch

from torchyard.worker import placement
from torchyard.worker.bench.variant import Model
from torchyard.worker.workload import flatten

LINE_BYTES = 64
SPREAD_PAGES = 8


class Seat:
    """One storage as it was made: the tensors that live in it, at which bytes, how long it is."""

    def __init__(self, storage: Any) -> None:
        self.size_bytes = int(storage.nbytes())
        self.base = int(storage.data_ptr())
        self.place = 0
        self.tensors: List[Any] = []

    def holds(self, tensor: Any) -> bool:
        """Whether the tensor lies in this seat as it stands now."""
        inside = int(tensor.data_ptr()) - self.base - self.place
        return 0 <= inside < self.size_bytes

    def move(self, arena: Any, place: int) -> int:
        """Copy the bytes to `place` in the arena and point the tensors there."""
        old = self.tensors[0].untyped_storage()
        size = self.size_bytes
        source = torch.empty(0, dtype=torch.uint8).set_(old, self.place, (size,), (1,))
        new = arena.untyped_storage()
        with torch.no_grad():
            arena[place : place + size].copy_(source)
            for tensor in self.tensors:
                width = tensor.element_size()
                inside = tensor.storage_offset() - self.place // width
                tensor.set_(new, place // width + inside, tensor.size(), tensor.stride())
        self.base = int(new.data_ptr())
        self.place = place
        return size


class Seater:
    """Knows every movable storage of the models, and moves them on request."""

    def __init__(self, models: Iterable[Model]) -> None:
        self._models = list(models)
        self._seats: List[Seat] = []
        self._held_bytes = 0
        self._pads: List[Any] = []

    def reseat(self, seed: int, method: str) -> Dict[str, Any]:
        """Move everything movable; how many bytes moved, how many could not, how long it took."""
        started_ns = time.perf_counter_ns()
        draw = random.Random(seed)
        for model in self._models:
            model.rewind()
        moved_bytes = 0
        if method != "off":
            self._find()
            draw.shuffle(self._seats)
            if method == "pages":
                moved_bytes = _to_fresh_pages(self._seats, draw)
            else:
                moved_bytes = _to_fresh_heap(self._seats, draw)
                self._pads = [bytearray(draw.randrange(1 << 16)) for _ in range(draw.randrange(8))]
            placement.give_back_free_heap()
        return {
            "moved_bytes": moved_bytes,
            "held_bytes": self._held_bytes,
            "duration_ns": time.perf_counter_ns() - started_ns,
        }

    def _find(self) -> None:
        """Sort the tensors there are now into seats.

        The optimiser's state comes with its first step, and a module may give a buffer new memory
        or put another tensor in its place. What is gone is let go.
        """
        present = {id(tensor): tensor for model in self._models for tensor in _tensors_of(model)}
        for seat in self._seats:
            seat.tensors = [t for t in seat.tensors if id(t) in present and seat.holds(t)]
            for tensor in seat.tensors:
                del present[id(tensor)]
        self._seats = [seat for seat in self._seats if seat.tensors]
        self._held_bytes = 0
        new: Dict[int, Seat] = {}
        for tensor in present.values():
            if not _movable(tensor):
                self._held_bytes += _size_bytes(tensor)
                continue
            storage = tensor.untyped_storage()
            home = next((s for s in self._seats if s.holds(tensor)), None)
            if home is None:
                home = new.setdefault(storage.data_ptr(), Seat(storage))
            home.tensors.append(tensor)
        self._seats.extend(new.values())


def _tensors_of(model: Model) -> List[Any]:
    found = model.state() + flatten(model.args) + flatten(model.kwargs)
    if model.optimizer is not None:
        for state in model.optimizer.state.values():
            found.extend(flatten(state))
    return found


def _movable(tensor: Any) -> bool:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return (
        plain
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and tensor.untyped_storage().nbytes() > 0
    )


def _size_bytes(tensor: Any) -> int:
    """Bytes of a tensor that stays; of a sparse one its whole shape would say far too much."""
    try:
        if tensor.layout is torch.strided:
            return int(tensor.numel()) * int(tensor.element_size())
        if tensor.layout is torch.sparse_coo:
            parts = [tensor._indices(), tensor._values()]
        elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
        else:
            parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
        return sum(int(part.numel()) * int(part.element_size()) for part in parts)
    except (RuntimeError, NotImplementedError):
        return 0


def _to_fresh_pages(seats: List[Seat], draw: random.Random) -> int:
    """Every storage into one new anonymous mapping, at random cache lines."""
    if not seats:
        return 0
    places: List[int] = []
    end = draw.randrange(SPREAD_PAGES) * mmap.PAGESIZE
    for seat in seats:
        end += draw.randrange(1, mmap.PAGESIZE // LINE_BYTES + 1) * LINE_BYTES
        places.append(end)
        end += _round_up(seat.size_bytes)
    arena = torch.frombuffer(mmap.mmap(-1, end + mmap.PAGESIZE), dtype=torch.uint8)
    return sum(seat.move(arena, place) for seat, place in zip(seats, places))


def _to_fresh_heap(seats: List[Seat], draw: random.Random) -> int:
    """Every storage into a new block of the process's own allocator, at a random cache line."""
    moved = 0
    for seat in seats:
        offset = draw.randrange(mmap.PAGESIZE // LINE_BYTES) * LINE_BYTES
        arena = torch.empty(offset + _round_up(seat.size_bytes), dtype=torch.uint8)
        moved += seat.move(arena, offset)
    return moved


def _round_up(size_bytes: int) -> int:
    return (size_bytes + LINE_BYTES - 1) // LINE_BYTES * LINE_BYTES
