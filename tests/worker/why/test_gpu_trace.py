"""GPU time of operators: constructed traces with known answers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.worker.why.test_instrumented_block import traced, unit
from torchyard.worker.why.assignment import (
    Activity,
    Assignment,
    Call,
    Range,
    Trace,
    busy_shares,
    iterations_of,
    parse_trace,
    read_trace,
    short_kernel_name,
)
from torchyard.worker.why.kernels import KernelCall
from torchyard.worker.why.sources import TracedOperator

pytestmark = pytest.mark.torch
ITERATION = Range("ty::iteration", 0, 1000, 1, 1)
GRAPH = {"ty::0": ("graph", "")}


def kernel(name: str, start: int, end: int, correlation: int, external: int = 0) -> Activity:
    return Activity(name, start, end, correlation, external)


def launch(start: int, correlation: int, name: str = "cudaLaunchKernel", thread: int = 1) -> Call:
    return Call(name, start, thread, correlation)


def times(
    trace: Trace,
    operators: list[TracedOperator] | None = None,
    calls: list[KernelCall] | None = None,
) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return GPU time by name and modules, summed over all iterations."""
    graphs = {} if calls is None else {"graph": calls}
    assignment = Assignment(operators or [], graphs, GRAPH, compiled=calls is not None)
    for root in iterations_of(trace):
        assignment.iteration(root)
    return {
        (name, tuple(one.module for one in units)): numbers[0]
        for (name, units), numbers in assignment.times.items()
    }


def test_kernels_belong_to_the_innermost_range_that_launched_them() -> None:
    trace = Trace(
        [ITERATION, Range("aten::linear", 10, 90, 1, 2), Range("aten::addmm", 20, 80, 1, 3)],
        [launch(30, 7), launch(85, 8)],
        [kernel("gemm", 200, 260, 7), kernel("bias", 300, 310, 8)],
    )
    assert times(trace, traced("addmm")) == {
        ("aten::addmm: gemm", ("m0",)): 60.0,
        ("aten::linear: bias", ("m0",)): 10.0,
    }


def test_overlap_on_two_streams_is_counted_once() -> None:
    trace = Trace(
        [ITERATION, Range("aten::mm", 10, 20, 1, 2), Range("aten::add", 30, 40, 1, 3)],
        [launch(15, 1), launch(35, 2)],
        [kernel("mm", 100, 200, 1), kernel("add", 150, 250, 2)],
    )
    assert times(trace, traced("mm", "add")) == {
        ("aten::mm: mm", ("m0",)): 75.0,
        ("aten::add: add", ("m1",)): 75.0,
    }


def test_shares_sum_to_the_busy_time() -> None:
    chance = random.Random(3)
    activities = []
    busy = set()
    for number in range(60):
        start = chance.randrange(2000)
        end = start + chance.randrange(120)
        activities.append(kernel("k", start, end, number))
        busy |= set(range(start, end))
    shares = busy_shares(activities)
    assert sum(shares) == pytest.approx(len(busy))
    for one, share in zip(activities, shares, strict=True):
        assert 0.0 <= share <= one.end_ns - one.start_ns + 1e-9


def test_the_backward_pass_runs_on_another_thread() -> None:
    trace = Trace(
        [
            ITERATION,
            Range("aten::mul", 10, 20, 1, 2),
            Range("autograd::engine::evaluate_function: MulBackward0", 100, 200, 9, 3),
            Range("aten::mul", 120, 150, 9, 4),
        ],
        [launch(15, 1), launch(130, 2, thread=9)],
        [kernel("k", 20, 30, 1), kernel("k", 300, 320, 2)],
    )
    assert times(trace, traced("mul", "mul")) == {
        ("aten::mul: k", ("m0",)): 10.0,
        ("aten::mul: k", ("m1",)): 20.0,
    }


def test_a_kernel_without_recorded_launch_is_related_by_external_id() -> None:
    trace = Trace([ITERATION, Range("aten::mm", 10, 20, 1, 5)], [], [kernel("k", 50, 60, 3, 5)])
    assert times(trace, traced("mm")) == {("aten::mm: k", ("m0",)): 10.0}


def test_a_launch_by_a_thread_without_ranges_is_related_by_external_id() -> None:
    trace = Trace(
        [ITERATION, Range("aten::mm", 10, 20, 1, 5)],
        [launch(15, 3, thread=77)],
        [kernel("k", 50, 60, 3, 5)],
    )
    assert times(trace, traced("mm")) == {("aten::mm: k", ("m0",)): 10.0}


def test_a_kernel_of_unknown_origin_has_no_source() -> None:
    trace = Trace([ITERATION], [], [kernel("void other::k<int>(int)", 50, 60, 3)])
    calls = [KernelCall("extern_kernels.mm", (unit("mm", "a"),))]
    assert times(trace, traced("mm"), calls) == {("k", ()): 10.0}


def test_work_outside_of_iterations_is_left_out() -> None:
    second = Range("ty::iteration", 2000, 3000, 1, 8)
    trace = Trace(
        [ITERATION, second, Range("aten::mm", 1500, 1600, 1, 2)],
        [launch(1550, 1)],
        [kernel("launched between", 2100, 2200, 1), kernel("unknown", 1200, 1300, 2)],
    )
    assert times(trace, traced("mm")) == {}


def test_a_kernel_that_runs_after_its_iteration_belongs_to_it() -> None:
    second = Range("ty::iteration", 1010, 2000, 1, 8)
    trace = Trace(
        [ITERATION, second, Range("aten::mm", 900, 950, 1, 2)],
        [launch(910, 1)],
        [kernel("late", 990, 1200, 1)],
    )
    first, other = iterations_of(trace)
    assert [one.busy_ns for one in first.children[0].kernels] == [210.0]
    assert not other.children
    assert not other.kernels


def test_copies_belong_to_their_operator() -> None:
    copy = kernel("Memcpy HtoD (Pageable -> Device)", 50, 80, 3)
    trace = Trace(
        [ITERATION, Range("aten::copy_", 10, 20, 1, 2)], [launch(12, 3, "cudaMemcpyAsync")], [copy]
    )
    assert times(trace, traced("copy")) == {("aten::copy_: Memcpy HtoD", ("m0",)): 30.0}


CALLS = [
    KernelCall("triton_poi_fused_relu_0", (unit("relu", "a"),)),
    KernelCall("extern_kernels.mm", (unit("mm", "b"),)),
    KernelCall("extern_kernels.bmm", (unit("bmm", "c"),)),
    KernelCall("triton_poi_fused_relu_0", (unit("relu", "d"),)),
    KernelCall("extern_kernels.addmm", (unit("addmm", "e"),)),
]


def test_generated_kernels_and_library_calls_of_a_graph() -> None:
    trace = Trace(
        [
            ITERATION,
            Range("Torch-Compiled Region: 0/0", 5, 900, 1, 2),
            Range("ty::0", 10, 800, 1, 3),
            Range("triton_poi_fused_relu_0", 20, 30, 1, 4),
            Range("aten::mm", 40, 50, 1, 5),
            Range("triton_poi_fused_relu_0", 60, 70, 1, 6),
        ],
        [launch(25, 1, "cuLaunchKernel"), launch(45, 2), launch(65, 3, "cuLaunchKernel")],
        [
            kernel("triton_poi_fused_relu_0", 100, 110, 1),
            kernel("gemm", 110, 150, 2),
            kernel("triton_poi_fused_relu_0", 150, 170, 3),
        ],
    )
    assert times(trace, traced("relu", "mm"), CALLS) == {
        ("triton_poi_fused_relu_0", ("a",)): 10.0,
        ("aten::mm: gemm", ("b",)): 40.0,
        ("triton_poi_fused_relu_0", ("d",)): 20.0,
    }


def test_kernels_of_a_cuda_graph() -> None:
    names = ["triton_poi_fused_relu_0", "gemm", "bgemm", "triton_poi_fused_relu_0", "gemm"]
    start = 100
    activities = []
    for name in names:
        activities.append(kernel(name, start, start + 10, 1))
        start += 20
    activities.append(kernel("Memset (Device)", start, start + 5, 1))
    trace = Trace(
        [ITERATION, Range("ty::0", 10, 800, 1, 3)], [launch(20, 1, "cudaGraphLaunch")], activities
    )
    assert times(trace, [], CALLS) == {
        ("triton_poi_fused_relu_0", ("a",)): 10.0,
        ("CUDA graph: gemm", ("b", "c")): 10.0,
        ("CUDA graph: bgemm", ("b", "c")): 10.0,
        ("triton_poi_fused_relu_0", ("d",)): 10.0,
        ("CUDA graph: gemm", ("e",)): 10.0,
        ("CUDA graph: Memset", ()): 5.0,
    }


def test_a_cuda_graph_without_generated_code() -> None:
    trace = Trace([ITERATION], [launch(20, 1, "cudaGraphLaunch")], [kernel("gemm", 30, 40, 1)])
    assert times(trace) == {("CUDA graph: gemm", ()): 10.0}


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::F<float>>(int)", "vectorized_elementwise_kernel"),
        ("(anonymous namespace)::softmax_warp<float>(float*)", "softmax_warp"),
        ("void (anonymous namespace)::softmax_warp<float>(float*)", "softmax_warp"),
        ("sm90_xmma_gemm_f32f32_tf32f32", "sm90_xmma_gemm_f32f32_tf32f32"),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH"),
    ],
)  # fmt: skip
def test_short_names(name: str, short: str) -> None:
    assert short_kernel_name(name) == short


def record(cat: str, name: str, ts: float, dur: float, tid: int, **args: object) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def test_a_chrome_trace_is_read(tmp_path: Path) -> None:
    records = [
        {"ph": "M", "name": "process_name"},
        record("user_annotation", "ty::iteration", 0.0, 1000.0, 4, **{"External id": 1}),
        record("gpu_user_annotation", "ty::iteration", 50.0, 100.0, 7, **{"External id": 1}),
        record("cpu_op", "aten::mm", 1.5, 20.0, 4, **{"External id": 2}),
        record("cuda_runtime", "cudaGraphLaunch", 2.0, 3.0, 4, correlation=9),
        record("kernel", "gemm", 50.0, 0.125, 7, correlation=9, stream=7, **{"graph id": 3}),
        record("gpu_memset", "Memset", 60.0, 1.0, 7, correlation=10, **{"graph id": 0}),
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "ts": 1.0, "tid": 4, "id": 9},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": records}))
    trace = read_trace(str(path))
    assert trace == parse_trace(records)
    assert [one.name for one in trace.ranges] == ["ty::iteration", "aten::mm"]
    assert trace.ranges[1] == Range("aten::mm", 1500.0, 21500.0, 4, 2)
    assert trace.calls == [Call("cudaGraphLaunch", 2000.0, 4, 9)]
    gemm, fill = trace.activities
    assert (gemm.end_ns - gemm.start_ns, gemm.correlation, gemm.in_graph) == (125.0, 9, True)
    assert not fill.in_graph


def test_ranges_of_a_real_trace_have_the_same_form(tmp_path: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    label = torch._C._profiler._RecordFunctionFast("ty::0")
    with profile(activities=[ProfilerActivity.CPU]) as profiler:  # noqa: SIM117
        with torch.autograd.profiler.record_function("ty::iteration"), label:
            torch.ones(4).add(1.0)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    (root,) = iterations_of(read_trace(str(tmp_path / "trace.json")))
    (inner,) = root.children
    assert inner.name == "ty::0"
    assert {"aten::ones", "aten::add"} <= {child.name for child in inner.children}
