"""Relocate parameters and inputs to fresh memory between blocks, to average over memory placements."""

import gc
import mmap
import random
import time
from typing import Any, Dict, Iterable, List, Tuple, Union

import torch

from torchyard.worker import placement
from torchyard.worker.bench.model import Model
from torchyard.worker.devices import OutOfMemoryError, device_of
from torchyard.worker.workload import flatten

LINE_BYTES = 64
SPREAD_PAGES = 8
CUDA_LINE_BYTES = 512
"""The alignment of torch's allocator, which generated kernels may rely on."""
CUDA_SEGMENT_BYTES = 2 << 20
MAX_CUDA_PADS = 8
MAX_PAD_SEGMENTS = 16


class Placement:
    """The current placement of one storage, and the tensors in it."""

    def __init__(self, storage: Any) -> None:
        self.device = str(storage.device)
        self.size_bytes = int(storage.nbytes())
        self.base = int(storage.data_ptr())
        self.offset = 0
        self.tensors: List[Any] = []

    def holds(self, tensor: Any) -> bool:
        """Whether the tensor lies in this storage at its current address."""
        inside = int(tensor.data_ptr()) - self.base - self.offset
        return 0 <= inside < self.size_bytes

    def move(self, arena: Any, offset: int) -> int:
        """Copy the bytes to `offset` in the arena and point the tensors there."""
        old = self.tensors[0].untyped_storage()
        size = self.size_bytes
        source = torch.empty(0, dtype=torch.uint8, device=arena.device)
        source.set_(old, self.offset, (size,), (1,))
        new = arena.untyped_storage()
        with torch.no_grad():
            arena[offset : offset + size].copy_(source)
            for tensor in self.tensors:
                width = tensor.element_size()
                inside = tensor.storage_offset() - self.offset // width
                place = (new, offset // width + inside, tensor.size(), tensor.stride())
                if isinstance(tensor, torch.nn.Parameter):
                    # `set_` discards the gradient accumulator, and with it the hooks of
                    # DistributedDataParallel and of the user.
                    tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
                        *place
                    )
                else:
                    tensor.set_(*place)
        self.base = int(new.data_ptr())
        self.offset = offset
        return size


class CopiedModule:
    """A module of one variant whose values come from elsewhere, so that it is moved, but not rewound."""

    args: Tuple[Any, ...] = ()
    kwargs: Dict[str, Any] = {}
    optimizer: Any = None

    def __init__(self, module: Any) -> None:
        self._module = module

    def state(self) -> List[Any]:
        """Return parameters and buffers."""
        return list(self._module.parameters()) + list(self._module.buffers())

    def rewind(self) -> None:
        """Do nothing."""


class Relocator:
    """Relocates the movable storages of the models."""

    def __init__(self, models: Iterable[Union[Model, "CopiedModule"]]) -> None:
        self._models = list(models)
        self._placements: List[Placement] = []
        self._held_bytes = 0
        self._pads: List[Any] = []
        self._gpu_pads: List[Any] = []

    def relocate(self, seed: int, method: str) -> Dict[str, Any]:
        """Relocate all movable storages; return moved bytes, immovable bytes and duration."""
        started_ns = time.perf_counter_ns()
        draw = random.Random(seed)
        for model in self._models:
            model.rewind()
        moved_bytes = 0
        if method != "off":
            self._update()
            draw.shuffle(self._placements)
            host = [each for each in self._placements if each.device == "cpu"]
            if method == "pages":
                moved_bytes = _to_fresh_pages(host, draw)
            else:
                moved_bytes = _to_fresh_heap(host, draw)
                self._pads = [bytearray(draw.randrange(1 << 16)) for _ in range(draw.randrange(8))]
            placement.trim_heap()
            moved_bytes += self._relocate_on_gpu(draw)
        return {
            "moved_bytes": moved_bytes,
            "held_bytes": self._held_bytes,
            "duration_ns": time.perf_counter_ns() - started_ns,
        }

    def _relocate_on_gpu(self, draw: random.Random) -> int:
        """Move the storages of each GPU, and let the next calls use new memory for results.

        CUDA graphs contain addresses: where one was recorded, nothing is moved.
        """
        by_device: Dict[str, List[Placement]] = {}
        for each in self._placements:
            if each.device != "cpu":
                by_device.setdefault(each.device, []).append(each)
        if not by_device:
            return 0
        if _has_cuda_graphs():
            on_gpus = [each for placements in by_device.values() for each in placements]
            self._held_bytes += sum(each.size_bytes for each in on_gpus)
            return 0
        moved = 0
        self._gpu_pads = []
        for device, placements in by_device.items():
            hardware = device_of(device)
            hardware.synchronize()
            try:
                moved += _to_fresh_gpu_memory(placements, draw, device, self._gpu_pads)
            except OutOfMemoryError:
                self._held_bytes += sum(each.size_bytes for each in placements)
            hardware.synchronize()
            hardware.empty_cache()
        return moved

    def _update(self) -> None:
        """Assign the current tensors to placements: optimizers and modules may create or replace some."""
        present = {id(tensor): tensor for model in self._models for tensor in _tensors_of(model)}
        for existing in self._placements:
            existing.tensors = [
                t for t in existing.tensors if id(t) in present and existing.holds(t)
            ]
            for tensor in existing.tensors:
                del present[id(tensor)]
        self._placements = [existing for existing in self._placements if existing.tensors]
        self._held_bytes = 0
        new: Dict[int, Placement] = {}
        for tensor in present.values():
            if not _movable(tensor):
                self._held_bytes += _size_bytes(tensor)
                continue
            storage = tensor.untyped_storage()
            owner = next(
                (existing for existing in self._placements if existing.holds(tensor)), None
            )
            if owner is None:
                owner = new.setdefault(storage.data_ptr(), Placement(storage))
            owner.tensors.append(tensor)
        self._placements.extend(new.values())


def _tensors_of(model: Union[Model, "CopiedModule"]) -> List[Any]:
    tensors = model.state() + flatten(model.args) + flatten(model.kwargs)
    if model.optimizer is not None:
        for state in model.optimizer.state.values():
            tensors.extend(flatten(state))
    return tensors


def _movable(tensor: Any) -> bool:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return (
        plain
        and tensor.device.type in ("cpu", "cuda")
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and tensor.untyped_storage().nbytes() > 0
    )


def _size_bytes(tensor: Any) -> int:
    """Return the bytes of a tensor; of a sparse one those of its indices and values."""
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


def _to_fresh_pages(placements: List[Placement], draw: random.Random) -> int:
    """Move every storage to one new anonymous mapping, at random cache lines."""
    if not placements:
        return 0
    offsets: List[int] = []
    end = draw.randrange(SPREAD_PAGES) * mmap.PAGESIZE
    for each in placements:
        end += draw.randrange(1, mmap.PAGESIZE // LINE_BYTES + 1) * LINE_BYTES
        offsets.append(end)
        end += _round_up(each.size_bytes)
    arena = torch.frombuffer(mmap.mmap(-1, end + mmap.PAGESIZE), dtype=torch.uint8)
    return sum(each.move(arena, offset) for each, offset in zip(placements, offsets))


def _to_fresh_heap(placements: List[Placement], draw: random.Random) -> int:
    """Move every storage to a new block of the process's allocator, at a random cache line."""
    moved = 0
    for each in placements:
        offset = draw.randrange(mmap.PAGESIZE // LINE_BYTES) * LINE_BYTES
        arena = torch.empty(offset + _round_up(each.size_bytes), dtype=torch.uint8)
        moved += each.move(arena, offset)
    return moved


def _to_fresh_gpu_memory(
    placements: List[Placement], draw: random.Random, device: str, pads: List[Any]
) -> int:
    """Move every storage to one new block after random pads, each at a random aligned address."""
    for _ in range(draw.randrange(MAX_CUDA_PADS)):
        segments = draw.randrange(1, MAX_PAD_SEGMENTS)
        size = segments * CUDA_SEGMENT_BYTES
        pads.append(torch.empty(size, dtype=torch.uint8, device=device))
    offsets: List[int] = []
    end = 0
    for each in placements:
        end += draw.randrange(CUDA_SEGMENT_BYTES // CUDA_LINE_BYTES // 32) * CUDA_LINE_BYTES
        offsets.append(end)
        end += _round_up(each.size_bytes, CUDA_LINE_BYTES)
    arena = torch.empty(end, dtype=torch.uint8, device=device)
    return sum(each.move(arena, offset) for each, offset in zip(placements, offsets))


def _has_cuda_graphs() -> bool:
    """Whether a CUDA graph exists in this process."""
    return any(issubclass(type(each), torch.cuda.CUDAGraph) for each in gc.get_objects())


def _round_up(size_bytes: int, line_bytes: int = LINE_BYTES) -> int:
    return (size_bytes + line_bytes - 1) // line_bytes * line_bytes
