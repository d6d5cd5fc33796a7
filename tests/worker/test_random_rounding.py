"""Rounding at random: nothing is called wrong that eager code shows too, and what is wrong stays wrong."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from desk_with import write_file
from judge_with import judge

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.torch

RECTIFIED = """
    import torch
    from torch import nn

    def added(x, weight, order):
        total = x[:, order[0]] * weight[order[0]]
        for column in order[1:]:
            total = total + x[:, column] * weight[column]
        return total

    FORWARDS, BACKWARDS = list(range(32)), list(reversed(range(32)))

    class Net(nn.Module):
        '''Rows whose sum is nearly zero: its sign, and so a gradient, is a matter of rounding.'''

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(32))

        def forward(self, x):
            return torch.relu(added(x, self.weight, FORWARDS))

        def example_inputs(self):
            weight = self.weight.detach()
            x = torch.randn(4096, 32)
            x[:, 31] -= (x.double() @ weight.double()).float() / weight[31]
            exact = added(x.double(), weight.double(), FORWARDS) > 0
            lucky = (added(x, weight, FORWARDS) > 0) == exact
            other = (added(x, weight, BACKWARDS) > 0) != exact
            return (torch.cat([x[lucky & other][:3], 0.01 * torch.randn(64, 32)]),)

        def loss(self, output):
            return output.sum() + (1000 * output).tanh().sum()
"""

BACKENDS = """
    import sys
    import torch

    def backwards(module):
        added = sys.modules[type(module).__module__].added
        return lambda x: torch.relu(added(x, module.weight, list(reversed(range(32)))))

    def opened(module):
        added = sys.modules[type(module).__module__].added
        def call(x):
            total = added(x, module.weight, list(range(32)))
            mask = total > 0
            mask[-1] = ~mask[-1]  # an ordinary row
            return torch.where(mask, total, torch.zeros_like(total))
        return call
"""


@pytest.fixture
def net(tmp_path: Path) -> str:
    return write_file(tmp_path, "rectified.py", RECTIFIED)


def test_a_gradient_that_jumps_by_rounding_alone_is_not_wrong(tmp_path: Path, net: str) -> None:
    mine = write_file(tmp_path, "mine.py", BACKENDS)
    record = judge(tmp_path, net, f"{mine}:backwards", mode="training")
    # THEN it is further off than eager code, which had luck, and is not called wrong for it
    assert record["candidate_rmse"] > 10 * record["baseline_rmse"]
    assert record["status"] == "pass", record


def test_an_ordinary_row_that_is_wrong_stays_wrong(tmp_path: Path, net: str) -> None:
    mine = write_file(tmp_path, "mine.py", BACKENDS)
    record = judge(tmp_path, net, f"{mine}:opened", mode="training")
    assert record["status"] == "fail"


def test_what_cannot_be_moved_is_said(tmp_path: Path) -> None:
    # GIVEN a model that does not run while its operators are looked at
    code = """
        import torch

        class Particular(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(4))

            def forward(self, x):
                if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
                    raise TypeError("not under a mode")
                return x * self.weight

            def example_inputs(self):
                return (torch.ones(4),)
    """
    mine = write_file(tmp_path, "mine.py", "def wrong(m):\n    return lambda x: m(x) * 1.5\n")
    path = write_file(tmp_path, "particular.py", code)
    record = judge(tmp_path, path, f"{mine}:wrong")
    assert record["status"] == "fail"
    assert record["detail"].endswith("rounding at random could not be tried: TypeError")


def test_convolutions_in_tf32_are_moved_as_far_as_tf32_cuts(tmp_path: Path) -> None:
    import torch

    from torchyard.worker.built import Built
    from torchyard.worker.random_rounding import furthest
    from torchyard.worker.side import Model, Side

    torch.manual_seed(0)
    module, x = torch.nn.Conv2d(32, 32, 3), torch.randn(4, 32, 16, 16)
    exact = {"output": [copy.deepcopy(module).double()(x.double()).detach()]}
    # GIVEN what cutting both operands down to ten bits does to a convolution
    rounded = torch.nn.functional.conv2d(
        _ten_bits(x).double(), _ten_bits(module.weight).double(), module.bias.double()
    )
    by_tf32 = float((rounded.detach() - exact["output"][0]).square().mean().sqrt())
    # WHEN eager code rounds at random
    side = Side("a", "eager", "float32", Model(Built(module, (x,)), False, False), "cpu")
    before = torch.random.get_rng_state()
    (far,) = furthest(side, 1, exact, tf32=True, on="cpu")["output"]
    (near,) = furthest(side, 1, exact, tf32=False, on="cpu")["output"]
    # THEN it gets about as far, and a thousandth of that where float32 is kept
    assert 0.5 * by_tf32 < far < 3 * by_tf32
    assert near < 0.01 * by_tf32
    # AND a seed means what it meant before
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.random.set_rng_state(before)
    furthest(side, 1, exact, tf32=True, on="cpu")
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), expected)


def _ten_bits(numbers: torch.Tensor) -> torch.Tensor:
    import torch

    return (numbers.detach().view(torch.int32) & ~0x1FFF).view(torch.float32)
