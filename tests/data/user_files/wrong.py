"""Workloads that are none, each in its own way."""

from typing import Any

import torch
from torch import nn

LIMIT = 3


def nothing() -> None:
    pass


def too_many() -> Any:
    return nn.Identity(), torch.ones(1), None, None


def no_module() -> Any:
    return 5, torch.ones(1)


def no_inputs() -> Any:
    return nn.Identity(), "text"


def number_keys() -> Any:
    return nn.Identity(), {1: torch.ones(1)}


def raises() -> Any:
    width = LIMIT
    raise ValueError(f"width {width} is odd")


def exhausts() -> Any:
    raise MemoryError


def frozen() -> Any:
    return nn.Identity(), torch.ones(1), torch.sum


class Bare(nn.Module):  # type: ignore[misc]  # torch is seen as Any
    pass
