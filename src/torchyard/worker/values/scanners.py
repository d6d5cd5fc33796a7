"""What the watch and the patterns may ask of a tensor's bits, wherever the tensor lies.

Memory of the CPU is read in place. Tensors of a GPU are scanned there; what only a few tensors are
asked for (a range, repetitions) is read from a copy on the CPU, which is kept until `forget`.
"""

from typing import Dict, Optional, Tuple

import torch

from torchyard.worker.values.device_scan import DeviceScanner, open_device_scanner, words_of
from torchyard.worker.values.layouts import Layout, layout_of
from torchyard.worker.values.peek import WORDS
from torchyard.worker.values.scan import Scan, Scanner, flat_memory

DEVICES = ("cpu", "cuda")
_address = torch._C.TensorBase.data_ptr


class Scanners:
    """One for each device."""

    def __init__(self, memory: Scanner) -> None:
        self.memory = memory
        self._devices: Dict[torch.device, DeviceScanner] = {}
        self._copies: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}

    def can_scan(self, tensor: torch.Tensor) -> bool:
        """Whether its bits can be looked at in place."""
        return (
            tensor.device.type in DEVICES
            and tensor.layout is torch.strided
            and layout_of(tensor.dtype) is not None
            and tensor.numel() > 0
            and flat_memory(tensor) is not None
        )

    def on(self, device: torch.device) -> DeviceScanner:
        """The scanner of a GPU."""
        found = self._devices.get(device)
        if found is None:
            found = self._devices[device] = open_device_scanner(device)
        return found

    def scan(
        self,
        tensor: torch.Tensor,
        layout: Layout,
        before: Optional[int] = None,
        earlier: Optional[torch.Tensor] = None,
    ) -> Scan:
        """All in one pass; the bits before are at an address of the CPU, or in a tensor beside it."""
        if tensor.is_cpu:
            return self.memory.scan(_address(tensor), before, tensor.numel(), layout)
        return self.on(tensor.device).scan(tensor, earlier)

    def number_range(self, tensor: torch.Tensor, layout: Layout) -> Tuple[float, float]:
        """The least and the greatest number; NaN counts as beyond infinity."""
        own = self.host(tensor)
        return self.memory.number_range(_address(own), own.numel(), layout)

    def whole_numbers(self, tensor: torch.Tensor, layout: Layout) -> bool:
        """Whether no float among them has a fraction."""
        own = self.host(tensor)
        return self.memory.whole_numbers(_address(own), own.numel(), layout)

    def repeats(
        self, tensor: torch.Tensor, start_bytes: int, size_bytes: int, period_bytes: int
    ) -> bool:
        """Whether this much memory from there on is one period again and again."""
        return self.memory.repeats(
            _address(self.host(tensor)) + start_bytes, size_bytes, period_bytes
        )

    def constant_runs(self, tensor: torch.Tensor, run: int) -> bool:
        """Whether each run of elements has one value."""
        own = self.host(tensor)
        return self.memory.constant_runs(_address(own), own.numel(), own.element_size(), run)

    def element(self, tensor: torch.Tensor, place: int, bits: int) -> int:
        """The bits of one element, counted in the order of memory."""
        if tensor.is_cpu:
            address = _address(tensor) + place * (bits // 8)
            return int(WORDS[bits].from_address(address).value)
        return int(words_of(tensor)[place].item()) & ((1 << bits) - 1)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself, or its copy on the CPU, in the same order of memory."""
        if tensor.is_cpu:
            return tensor
        kept = self._copies.get(id(tensor))
        if kept is None:
            own = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
            )
            kept = self._copies[id(tensor)] = (tensor, own.copy_(tensor.detach()))
        return kept[1]

    def forget(self) -> None:
        """Let go of copies: the tensors will be written again."""
        if self._copies:
            self._copies.clear()
