"""Native functions that issue writes inside operators, found on the real call stack."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from torchyard.worker.values.native_callers import NativeCall, calls_of


def backward_of(result: torch.Tensor) -> Callable[[], None]:
    return lambda: result.sum().backward()


def names(call: NativeCall) -> list[str]:
    return [one.partition("(")[0].rpartition("::")[2] for one in call.functions if "::" in one]


def test_caller_of_a_created_tensor() -> None:
    loss = functional.mse_loss(torch.randn(8, 8, requires_grad=True), torch.randn(8, 8))
    chain = ("mse_loss_backward", "zeros_like", "zero_", "fill_")
    (call,) = calls_of(backward_of(loss), {(chain, 64)})[chain, 64]
    assert call.called == "zeros_like"
    assert "mse_loss_backward" in names(call)
    assert "zeros_like" not in names(call)


def test_two_writes_have_different_callers() -> None:
    scores = torch.randn(2, 3, 8, 8, requires_grad=True)
    loss = functional.nll_loss(scores, torch.randint(0, 3, (2, 8, 8)))
    chain = ("nll_loss2d_backward", "zero_", "fill_")
    second, first = calls_of(backward_of(loss), {(chain, 384)})[chain, 384]
    assert (second.called, first.called) == ("zero_", "zeros_like")
    assert "nll_loss2d_backward_out_cpu" in names(second)
    assert names(first)[0] == "nll_loss2d_backward_cpu"


def test_memory_that_is_used_again_has_no_earlier_write() -> None:
    addresses: list[int] = []

    def run() -> None:
        for _ in range(100):
            memory = torch.empty(1 << 10)
            addresses.append(memory.data_ptr())
            memory.zero_()
            del memory

    (call,) = calls_of(run, {(("zero_",), 1 << 10)})[("zero_",), 1 << 10]
    assert call.called == "zero_"
    assert len(set(addresses)) < len(addresses)


def test_a_chain_that_does_not_occur_is_missing() -> None:
    loss = functional.mse_loss(torch.randn(8, 8, requires_grad=True), torch.randn(8, 8))
    other = (("huber_loss_backward", "zero_"), 64)
    smaller = (("mse_loss_backward", "zeros_like", "zero_"), 63)
    assert calls_of(backward_of(loss), {other, smaller}) == {other: [], smaller: []}


def test_fills_of_one_operator_are_distinguished_by_their_size() -> None:
    layer = torch.nn.ConvTranspose2d(3, 4, 3, bias=False).double()
    values = torch.randn(2, 3, 8, 8, dtype=torch.float64, requires_grad=True)
    chain = ("convolution_backward", "zero_")
    gradient, weights = (chain, 2 * 3 * 8 * 8), (chain, 3 * 4 * 3 * 3)
    calls = calls_of(backward_of(layer(values)), {gradient, weights})
    assert [call.number for call in (*calls[gradient], *calls[weights])] == [0, 1]
    assert len(calls[gradient][0].callers) == 2


def test_fills_of_equal_size_at_two_places_are_not_distinguished() -> None:
    layer = torch.nn.ConvTranspose2d(2, 2, 2, bias=False).double()
    values = torch.randn(1, 2, 2, 4, dtype=torch.float64, requires_grad=True)
    write = (("convolution_backward", "zero_"), 16)
    assert calls_of(backward_of(layer(values)), {write}) == {write: []}


@pytest.mark.parametrize("dimensions", [2, 3])
def test_results_are_those_of_the_program(dimensions: int) -> None:
    torch.manual_seed(0)
    layer = torch.nn.ConvTranspose2d(3, 4, 3).double()
    values = torch.randn(*(1, 3, 8, 8)[4 - dimensions - 1 :], dtype=torch.float64)
    expected = layer(values)
    results: list[torch.Tensor] = []
    calls_of(lambda: results.append(layer(values)), {(("convolution", "zero_"), 1)})
    assert torch.equal(results[0], expected)
