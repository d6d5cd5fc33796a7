"""Candidates that compute right results and change what the baseline shares with them."""

# ruff: noqa: PLW0108 - candidates are wrappers on purpose
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from typing import Any

import torch


def _direct(module: Any) -> Any:
    """The computation without the attributes of the module."""
    return lambda x: torch.tanh(module.inner(x))


def sets_attribute(module: Any) -> Any:
    module.repeats = 20
    return _direct(module)


def sets_attribute_of_class(module: Any) -> Any:
    type(module).repeats = 20
    return _direct(module)


def sets_attribute_late(module: Any) -> Any:
    calls = [0]

    def call(x: Any) -> Any:
        calls[0] += 1
        module.repeats = 20 if calls[0] > 40 else 1
        return torch.tanh(module.inner(x))

    return call


def sets_configuration(module: Any) -> Any:
    module.config.repeats = 20
    return _direct(module)


def replaces_function_of_the_model_file(module: Any) -> Any:
    file = sys.modules[type(module).__module__]
    real = file.activation

    def slow(x: Any) -> Any:
        for _ in range(20):
            real(x)
        return real(x)

    file.activation = slow
    return _direct(module)


def replaces_function_by_one_of_torch(module: Any) -> Any:
    sys.modules[type(module).__module__].activation = torch.tanh
    return module


def hooks_a_parameter(module: Any) -> Any:
    module.inner.weight.register_hook(lambda _: None)
    return module


def changes_layout_of_an_input(module: Any) -> Any:
    def call(x: Any) -> Any:
        x.data = x.data.t().contiguous().t()
        return module(x)

    return call


def adds_to_an_input(module: Any) -> Any:
    def call(values: Any) -> Any:
        y = torch.tanh(module.inner(values["x"]))
        values["more"] = 1
        return y

    return call


def starts_a_thread(module: Any) -> Any:
    busy = [False]

    def burn() -> None:
        while not getattr(sys, "corpus_stop", False):
            if busy[0]:
                time.sleep(0.0002)
            else:
                sum(range(200))

    sys.corpus_thread = threading.Thread(target=burn, daemon=True)
    sys.corpus_thread.start()

    def call(x: Any) -> Any:
        busy[0] = True
        try:
            return module(x)
        finally:
            busy[0] = False

    return call


def starts_a_process(module: Any) -> Any:
    code = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"
    process = subprocess.Popen([sys.executable, "-c", code])
    atexit.register(process.kill)
    sys.corpus_process = process
    return lambda x: module(x)


def hooks_all_modules(module: Any) -> Any:
    torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    return _direct(module)


def hooks_saved_tensors(module: Any) -> Any:
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    hooks.__enter__()
    return lambda x: module(x)


def switches_fast_path_off(module: Any) -> Any:
    torch.backends.mha.set_fastpath_enabled(False)
    return lambda x: module(x)


def uses_one_backward_thread(module: Any) -> Any:
    torch._C._set_multithreading_enabled(False)
    return lambda x: module(x)


def traces_allocations(module: Any) -> Any:
    tracemalloc.start(25)
    return lambda x: module(x)


def monitors_lines(module: Any) -> Any:
    """Only Python 3.12 has `sys.monitoring`; a profile function is its ancestor."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        sys.setprofile(lambda *_: None)
    else:
        monitoring.use_tool_id(4, "corpus")
        monitoring.set_events(4, monitoring.events.LINE)
    return lambda x: module(x)


def interrupts_itself(module: Any) -> Any:
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    return lambda x: module(x)


def sets_scheduling_policy(module: Any) -> Any:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    return lambda x: module(x)


def configures_the_compiler(module: Any) -> Any:
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 1
    return lambda x: module(x)
