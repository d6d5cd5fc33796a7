"""Register the toy device (see toy_device.cpp), as an out-of-tree backend does when it is imported."""

from __future__ import annotations

import os

import torch


class ToyModule:
    """The module `torch.toy`, with the functions that torch expects of a backend."""

    def __init__(self) -> None:
        self.states = [torch.tensor([index]) for index in range(8)]

    @staticmethod
    def device_count() -> int:
        return int(os.environ.get("TOY_COUNT", "2"))

    def is_available(self) -> bool:
        return self.device_count() > 0

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def current_device() -> int:
        return int(torch.accelerator.current_device_index())

    @staticmethod
    def get_device_name(index: int) -> str:
        return f"Toy accelerator of size {index + 1}"

    def manual_seed_all(self, seed: int) -> None:
        self.states = [torch.tensor([seed]) for _ in self.states]

    def get_rng_state(self, index: int) -> torch.Tensor:
        return self.states[index].clone()

    def set_rng_state(self, state: torch.Tensor, index: int) -> None:
        self.states[index] = state.clone()


if not hasattr(torch, "toy"):
    torch.ops.load_library(os.environ["TOY_LIBRARY"])
    torch.utils.rename_privateuse1_backend("toy")
    torch._register_device_module("toy", ToyModule())
    torch.utils.generate_methods_for_privateuse1_backend()
