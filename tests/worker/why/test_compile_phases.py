"""Compile time by phase: phases exclude each other and sum to the time of compilation."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from torchyard.worker.why.service import CompileTimer, phases_of

TIMERS = {
    "_compile.compile_inner": 10.0,
    "OutputGraph.call_user_compiler": 9.0,
    "backward._backward_impl": 4.0,
    "compile_fx_inner": 11.0,
    "GraphLowering.codegen": 3.0,
    "PyCodeCache.load_by_key_path": 5.0,
    "mm_template_autotuning": 0.5,
    "gc": 7.0,
}


def test_phases_sum_to_the_time_of_compilation() -> None:
    phases = dict(phases_of(TIMERS))
    assert list(phases.values()) == [1.0, 2.0, 2.5, 3.0, 5.0, 0.5]
    assert sum(phases.values()) == 10.0 + 4.0


def test_nothing_is_compiled() -> None:
    assert phases_of({"gc": 1.0}) == []
    assert phases_of({}) == []


def test_each_reading_is_that_of_one_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = {"_compile.compile_inner": [2.0]}
    module = SimpleNamespace(compilation_time_metrics=metrics)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", module)
    timer = CompileTimer()
    timer.read()
    metrics["_compile.compile_inner"].append(3.0)
    assert timer.read()[0][1] == 3.0
    assert timer.read() == []
    metrics["_compile.compile_inner"] = [1.5]  # the timers were reset
    assert timer.read()[0][1] == 1.5


def test_timers_of_this_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    timer = CompileTimer()
    timer.read()
    torch.compile(lambda x: x + 1.0, backend="aot_eager")(torch.ones(3))
    phases = dict(timer.read())
    assert phases["dynamo: tracing and guards"] > 0.0
    assert phases["AOTAutograd and joint graph passes"] > 0.0
    assert phases["Inductor: code generation"] == 0.0
    torch._dynamo.reset()
