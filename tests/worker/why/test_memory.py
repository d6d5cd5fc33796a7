"""Memory at the peak of an iteration belongs to the lines that allocated it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.in_process_service import make_service, variant, write_file
from torchyard.worker.why.memory import Change, live_at_peak
from torchyard.worker.why.service import attribution_of

pytestmark = pytest.mark.torch

MIB = 1 << 20
PROGRAM = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1024, 256))

        def forward(self, x):
            early = torch.cat([x] * 4)  # early
            first = early.sum()
            del early
            big = torch.cat([x] * 6)  # big
            small = x * self.weight  # small
            total = big.sum() + small.sum() + first
            del big
            late = torch.cat([x] * 5)  # late
            return total + late.sum()

        def example_inputs(self):
            return (torch.randn(1024, 256),)

        def loss(self, output):
            return output
"""


def changes(*steps: tuple[int, int]) -> list[Change]:
    return [Change(time, address, size) for time, (address, size) in enumerate(steps)]


@pytest.mark.parametrize(
    ("steps", "live"),
    [
        ([], []),
        ([(1, -50)], []),
        ([(1, 10), (2, 20), (1, -10), (3, 15)], [1, 3]),
        ([(1, 10), (1, -10), (1, 30)], [2]),  # the address is used again
        ([(9, -99), (1, 10), (9, -99)], [1]),  # allocated before the iteration
        ([(1, 10), (2, 10), (2, -10), (3, 10)], [0, 1]),  # the first of equal peaks
    ],
)
def test_live_allocations_at_the_peak(steps: list[tuple[int, int]], live: list[int]) -> None:
    assert live_at_peak(changes(*steps)) == live


def test_the_order_is_that_of_time() -> None:
    late, early = Change(5, 1, -10), Change(1, 1, 10)
    assert live_at_peak([late, Change(9, 2, 10), early]) == [2]


def lines_at_peak(path: str, mode: str) -> dict[str, int]:
    service = make_service(f"{path}:Net", variant("one"), mode=mode)
    service.warm("one", 0.0)
    attribution = attribution_of(service)
    attribution.sources("one")
    answer = attribution.memory("one")
    assert answer["peak_bytes"] == sum(size for *_, size in answer["sites"])
    other_method = service.measure("one")["peak_memory_bytes"]
    assert answer["peak_bytes"] == pytest.approx(other_method, rel=0.05)
    totals: dict[str, int] = {}
    for _, units, size in answer["sites"]:
        comment = units[0][5].rpartition("# ")[2] if units else ""
        totals[comment] = totals.get(comment, 0) + size
    return totals


def test_only_what_is_live_at_the_peak_counts(tmp_path: Path) -> None:
    totals = lines_at_peak(write_file(tmp_path, "net.py", PROGRAM), "inference")
    assert totals["big"] == 6 * MIB
    assert totals["small"] == MIB
    assert "early" not in totals
    assert "late" not in totals
    assert sum(totals.values()) < 7.1 * MIB


def test_memory_of_the_backward_pass_belongs_to_forward_lines(tmp_path: Path) -> None:
    totals = lines_at_peak(write_file(tmp_path, "net.py", PROGRAM), "training")
    assert totals.get("", 0) <= 0.1 * sum(totals.values())
    assert sum(totals.values()) >= 7 * MIB
