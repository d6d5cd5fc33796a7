"""Profiled blocks: events become times of source operators."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.in_process_service import make_service, variant
from tests.worker.why.net import write_net
from torchyard.worker.why.assignment import Assignment, Event
from torchyard.worker.why.kernels import KernelCall
from torchyard.worker.why.service import attribution_of
from torchyard.worker.why.sources import FORWARD, TracedOperator, Unit

pytestmark = pytest.mark.torch


def unit(operator: str, module: str = "") -> Unit:
    return Unit(FORWARD, module, "", "/net.py", 1, "", operator)


def traced(*operators: str) -> list[TracedOperator]:
    return [TracedOperator(unit(name, f"m{index}"), 0.0, 0) for index, name in enumerate(operators)]


def tree(name: str, start: int, end: int, *children: Event) -> Event:
    event = Event(name, float(start), float(end))
    event.children = list(children)
    return event


def assigned(
    operators: list[TracedOperator],
    *events: Event,
    graphs: dict[str, list[KernelCall]] | None = None,
    labels: dict[str, tuple[str, str]] | None = None,
) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return the times by name and modules."""
    assignment = Assignment(operators, graphs or {}, labels or {}, compiled=graphs is not None)
    assignment.iteration(tree("ty::iteration", 0, 10**6, *events))
    return {
        (name, tuple(one.module for one in units)): numbers[0]
        for (name, units), numbers in assignment.times.items()
    }


def test_composite_operators_are_split() -> None:
    linear = tree("aten::linear", 0, 100, tree("aten::t", 5, 10), tree("aten::addmm", 10, 95))
    assert assigned(traced("t", "addmm"), linear) == {
        ("aten::t", ("m0",)): 5.0,
        ("aten::addmm", ("m1",)): 85.0,
        ("aten::linear", ("m1",)): 10.0,
    }


def test_in_place_operators_match_those_that_were_recorded_out_of_place() -> None:
    times = assigned(traced("mul", "add", "add"), tree("aten::add_", 0, 7))
    assert times == {("aten::add_", ("m1",)): 7.0}


def test_a_distant_operator_of_the_same_name_is_another_one() -> None:
    operators = traced(*["mul"] * 30, "sum")
    times = assigned(operators, tree("aten::sum", 0, 7), tree("aten::mul", 8, 9))
    assert times == {("aten::sum", ()): 7.0, ("aten::mul", ("m0",)): 1.0}


def test_calls_of_a_graph_are_matched_in_order() -> None:
    calls = [
        KernelCall("cpp_fused_0", (unit("relu", "a"), unit("add", "b"))),
        KernelCall("extern_kernels.addmm", (unit("addmm", "c"),)),
        KernelCall("cpp_fused_0", (unit("relu", "d"),)),
    ]
    labels = {"ty::0": ("module", "cpp_fused_0"), "ty::1": ("module", "")}
    graph = tree(
        "ty::1",
        0,
        100,
        tree("ty::0", 0, 10),
        tree("aten::addmm", 10, 30, tree("aten::copy_", 11, 12)),
        tree("ty::0", 30, 35),
    )
    times = assigned([], graph, graphs={"module": calls}, labels=labels)
    assert times == {
        ("cpp_fused_0", ("a", "b")): 10.0,
        ("aten::addmm", ("c",)): 20.0,
        ("cpp_fused_0", ("d",)): 5.0,
    }


def test_module_paths_are_completed_after_a_graph_break() -> None:
    path = Unit(FORWARD, "blocks.*.norm", "", "/net.py", 7, "", "native_layer_norm")
    other = path._replace(module="other", line=9)
    operators = [TracedOperator(path, 0.0, 0), TracedOperator(other, 0.0, 0)]
    relative = [path._replace(module=name) for name in ("norm", "", "orm")]
    calls = [KernelCall(f"cpp_{index}", (one,)) for index, one in enumerate(relative)]
    labels = {f"ty::{index}": ("graph", f"cpp_{index}") for index in range(3)}
    events = [tree(f"ty::{index}", index, index + 1) for index in range(3)]
    times = assigned(operators, *events, graphs={"graph": calls}, labels=labels)
    assert list(times) == [
        ("cpp_0", ("blocks.*.norm",)),
        ("cpp_1", ("blocks.*.norm",)),
        ("cpp_2", ("orm",)),
    ]


def test_autograd_functions_are_host_time() -> None:
    node = tree("autograd::engine::evaluate_function: X", 0, 100, tree("aten::mul", 10, 20))
    assert assigned(traced("mul"), node) == {("aten::mul", ("m0",)): 10.0}


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_operators_of_a_real_block(tmp_path: Path, mode: str) -> None:
    service = make_service(f"{write_net(tmp_path)}:Net", variant("one"), mode=mode)
    service.warm("one", 0.0)
    attribution = attribution_of(service)
    attribution.sources("one")
    answer = attribution.instrumented("one", 3)
    assert 1 <= answer["iterations"] <= 3
    rows = {(name, units[0][1] if units else None): row for name, units, *row in answer["rows"]}
    duration_ns, calls, *_ = rows["aten::native_layer_norm", "blocks.*.norm"]
    assert duration_ns > 0
    assert calls == 2
    assert sum(row[0] for row in rows.values()) <= answer["iteration_ns"]
    unknown = {name for name, module in rows if module is None}
    assert unknown <= {"aten::empty", "aten::zeros", "aten::zero_"}
    backward = {name for name, *_ in rows if name.endswith("backward")}
    assert bool(backward) is (mode == "training")
