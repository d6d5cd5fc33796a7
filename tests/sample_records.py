"""Records with plausible values; a test sets the fields that it is about."""

from __future__ import annotations

from typing import Any

from torchyard.core.block import Block, GuardReading
from torchyard.core.roofline import MachinePeak


def made_block(variant: str, **fields: Any) -> Block:
    """A clean block with one sample."""
    usual: dict[str, Any] = {
        **dict.fromkeys(("launch", "round", "position", "seat", "started_ns"), 0),
        "inner": 1,
        "samples_ns": (1.0,),
        "wall_ns": 1,
        "guard": GuardReading(),
    }
    return Block(variant=variant, **{**usual, **fields})


def made_peak(flops_per_second: float, bytes_per_second: float, **fields: Any) -> MachinePeak:
    """A peak of a CPU in float32 with one thread."""
    usual: dict[str, Any] = {
        "machine": "example-2c-abcd",
        "device": "cpu",
        "precision": "float32",
        "threads": 1,
        "products": (),
        "streams": (),
        "torch_version": "2.9.0",
        "measured": "2026-01-02T03:04:05+00:00",
    }
    rates = {"flops_per_second": flops_per_second, "bytes_per_second": bytes_per_second}
    return MachinePeak(**{**usual, **rates, **fields})
