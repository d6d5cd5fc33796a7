"""A file whose import changes the state of the process."""

# ruff: noqa: PLW0108 - candidates are wrappers on purpose

from __future__ import annotations

from typing import Any

import torch

torch.set_grad_enabled(False)
torch.use_deterministic_algorithms(True)
torch.set_float32_matmul_precision("medium")


def state_at_import(module: Any) -> Any:
    return lambda x: module(x)
