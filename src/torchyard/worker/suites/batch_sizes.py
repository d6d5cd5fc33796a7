"""The batch size of a listed workload, where the user gives none: by the device and how large it is.

Lists hold one number for a GPU of 40 GB and one for a server of 32 cores. Smaller devices get the
share that they are of those; larger ones get no more, so that numbers of large machines can be held
side by side. The machine's cores count, not those this process may use: all processes of a
comparison must come to the same number.
"""

import os
from typing import Any, Optional

import torch

from torchyard.worker.catalog_entry import Listed

GPU_MEMORY_BYTES = 40e9
CPU_CORES = 32


def batch_size_for(listed: Optional[Listed], device: Any, otherwise: int) -> int:
    """The list's number for this device; `otherwise` for what is not listed."""
    if listed is None:
        return otherwise
    on_gpu = torch.device(device).type != "cpu"
    first, second = listed.gpu_batch_size, listed.cpu_batch_size
    if not on_gpu:
        first, second = second, first
    return share_of(first or second or otherwise, _part_of_a_large_one(device))


def share_of(batch_size: int, part: float) -> int:
    """That part of a batch size as a power of two, at least 1; the whole where `part` is 1 up."""
    if part >= 1:
        return batch_size
    share = 1
    while 2 * share <= batch_size * part:
        share *= 2
    return share


def _part_of_a_large_one(device: Any) -> float:
    """How large the device is, beside those that the lists are for."""
    place = torch.device(device)
    if place.type == "cuda":
        memory_bytes = torch.cuda.get_device_properties(place).total_memory
        return float(memory_bytes) / GPU_MEMORY_BYTES
    if place.type == "cpu":
        return (os.cpu_count() or 1) / CPU_CORES
    return 1.0
