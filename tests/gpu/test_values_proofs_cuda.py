"""Proofs about GPU memory: replayed graphs, streams, and real waste."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.worker.values.proof_profiles import certainty_if_native, watched
from torchyard.worker.values.proofs.certainty import PROVEN

pytestmark = [pytest.mark.gpu, pytest.mark.torch]
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
SHAPE = (64, 64)


def _captured(function: Callable[[], Any]) -> tuple[Any, Any]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


def _proven(program: Callable[[], Any]) -> list[str]:
    found = [
        finding
        for deep in (False, True)
        for finding in watched(program, times=3, deep=deep).findings.all()
        if finding.proof
    ]
    return [finding.operator for finding in found if certainty_if_native(finding) == PROVEN]


def test_a_buffer_that_a_replayed_graph_reads() -> None:
    buffer, x = torch.zeros(SHAPE, device="cuda"), torch.randn(SHAPE, device="cuda")

    def work() -> Any:
        return (buffer + 1).sum()

    graph, total = _captured(work)
    results: list[float] = []

    def program() -> None:
        buffer.zero_()
        graph.replay()
        results.append(float(total))
        buffer.copy_(x)

    assert _proven(program) == []
    assert set(results) == {float(SHAPE[0] * SHAPE[1])}


def test_a_buffer_that_a_replayed_graph_writes() -> None:
    buffer = torch.zeros(SHAPE, device="cuda")
    graph, _ = _captured(lambda: buffer.add_(1))
    results: list[float] = []

    def program() -> None:
        buffer.zero_()
        results.append(float(buffer.sum()))
        graph.replay()

    assert _proven(program) == []
    assert set(results) == {0.0}


def test_a_buffer_that_another_stream_reads() -> None:
    buffer, x = torch.randn(SHAPE, device="cuda"), torch.randn(SHAPE, device="cuda")
    side = torch.cuda.Stream()

    def program() -> None:
        buffer.zero_()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            total = buffer.sum()
        torch.cuda.current_stream().wait_stream(side)
        buffer.copy_(x)
        assert float(total) == 0.0

    assert _proven(program) == []


def test_an_array_interface_that_is_kept() -> None:
    buffer, x = torch.randn(SHAPE, device="cuda"), torch.randn(SHAPE, device="cuda")
    interface = buffer.__cuda_array_interface__

    def program() -> None:
        _ = buffer.__cuda_array_interface__
        buffer.zero_()
        buffer.copy_(x)

    assert interface["shape"] == SHAPE
    assert _proven(program) == []


@pytest.mark.fresh_process
def test_waste_on_a_gpu_is_proven() -> None:
    x = torch.randn(SHAPE, device="cuda")

    def program() -> Any:
        buffer = torch.zeros(SHAPE, device="cuda")
        buffer.copy_(x)
        total = torch.zeros(SHAPE, device="cuda")
        total.zero_()
        total.add_(buffer)
        total.add_(x)
        return total.sum()

    assert sorted(set(_proven(program))) == ["aten::zero_", "aten::zeros"]
