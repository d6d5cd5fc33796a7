"""Simulated rounding: differences that eager code also shows are not wrong, and wrong results stay wrong."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.worker.accuracy_check import check_accuracy
from tests.worker.in_process_service import write_file

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
    record = check_accuracy(tmp_path, net, f"{mine}:backwards", mode="training")
    # THEN it is further off than eager code, which had luck, and is not called wrong for it
    assert record["candidate_rmse"] > 10 * record["baseline_rmse"]
    assert record["status"] == "pass", record


def test_an_ordinary_row_that_is_wrong_stays_wrong(tmp_path: Path, net: str) -> None:
    mine = write_file(tmp_path, "mine.py", BACKENDS)
    record = check_accuracy(tmp_path, net, f"{mine}:opened", mode="training")
    assert record["status"] == "fail"


def test_without_simulated_rounding_the_assumed_rounding_applies(
    tmp_path: Path,
) -> None:
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
    record = check_accuracy(tmp_path, path, f"{mine}:wrong")
    assert record["status"] == "fail"
    assert record["method"] == "float64 reference, assumed rounding (TypeError: not under a mode)"


@pytest.mark.parametrize("rounding", ["float32", "tf32", "bfloat16", "float16", "amp"])
def test_simulated_rounding_is_as_large_as_the_rounding_it_stands_for(rounding: str) -> None:
    import torch

    from torchyard.worker.bench.accuracy.reference import SimulatedRounding
    from torchyard.worker.bench.model import Model
    from torchyard.worker.bench.variant import VariantRunner
    from torchyard.worker.workload import BuiltWorkload

    torch.manual_seed(0)
    module, x = torch.nn.Conv2d(32, 32, 3), torch.randn(4, 32, 16, 16)
    exact = copy.deepcopy(module).double()(x.double()).detach()
    # GIVEN what the rounding of operands (and, in short formats, of results) does to a convolution
    rounded = [_rounded(rounding, t.detach()) for t in (x, module.weight, module.bias)]
    real = torch.nn.functional.conv2d(*(t.double() for t in rounded))
    if rounding not in ("tf32", "float32"):
        real = _rounded(rounding, real.float()).double()
    if rounding == "float32":
        real = module(x).detach().double()
    by_rounding = float((real - exact).square().mean().sqrt())
    # WHEN eager code runs with simulated rounding
    runner = VariantRunner(
        "a", "eager", "float32", Model(BuiltWorkload(module, (x,)), False, False), "cpu"
    )
    before = torch.random.get_rng_state()
    simulation = SimulatedRounding(runner, rounding)
    first, second = (simulation.run(1, number, "cpu")["output"][0] for number in range(2))
    # THEN it gets about as far, differently each time
    for found in (first, second):
        far = float((found.double() - exact).square().mean().sqrt())
        assert 0.3 * by_rounding < far < 12 * by_rounding
    assert not torch.equal(first, second)
    # AND a seed means what it meant before
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.random.set_rng_state(before)
    simulation.run(1, 0, "cpu")
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), expected)


def test_equal_numbers_are_rounded_equally() -> None:
    """The gradient of a mean is one number everywhere; its rounding error is common to all."""
    import torch

    from torchyard.worker.bench.accuracy.reference import SimulatedRounding
    from torchyard.worker.bench.model import Model
    from torchyard.worker.bench.variant import VariantRunner
    from torchyard.worker.workload import BuiltWorkload

    x = torch.full((1000,), 0.1)
    runner = VariantRunner(
        "a", "eager", "float32", Model(BuiltWorkload(torch.nn.Sigmoid(), (x,)), False, False), "cpu"
    )
    simulation = SimulatedRounding(runner, "bfloat16")
    runs = [simulation.run(1, number, "cpu")["output"][0] for number in range(4)]
    assert all(len(run.unique()) == 1 for run in runs)
    assert len({float(run[0]) for run in runs}) > 1


def _rounded(rounding: str, numbers: torch.Tensor) -> torch.Tensor:
    import torch

    if rounding == "tf32":
        return (numbers.view(torch.int32) & ~0x1FFF).view(torch.float32)
    types = {"bfloat16": torch.bfloat16, "amp": torch.bfloat16, "float16": torch.float16}
    return numbers.to(types.get(rounding, torch.float32)).float()
