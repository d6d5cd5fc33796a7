"""Compile time by phase, from the timers of dynamo.

The timers are inclusive: that of Inductor is part of that of AOTAutograd, and so on. Phases exclude
each other and sum to the time of compilation. The timers are those of the process, so the variants of
one process are told apart by reading them after each compilation.
"""

import sys
from typing import Any, Dict, List, Mapping, Tuple

DYNAMO = ("_compile.compile_inner", "_compile.<locals>.compile_inner")
BACKEND = ("OutputGraph.call_user_compiler", "call_user_compiler")
LAZY_BACKWARD = ("backward._backward_impl",)
INDUCTOR = ("compile_fx_inner",)
CODEGEN = ("GraphLowering.codegen",)
KERNELS = ("PyCodeCache.load_by_key_path",)
TEMPLATES = ("_template_precompiling", "_template_autotuning")
"""Ends of the names of timers of template kernels such as matrix products."""
AUTOTUNING = (
    "CachingAutotuner.benchmark_all_configs",
    "CachingAutotuner.coordinate_descent_tuning",
)

Phases = List[Tuple[str, float]]


def phases_of(seconds: Mapping[str, float]) -> Phases:
    """Return name and time of each phase in the order of execution; empty without compilation."""

    def total(names: Tuple[str, ...]) -> float:
        return sum(seconds.get(name, 0.0) for name in names)

    if not any(total(names) for names in (DYNAMO, LAZY_BACKWARD)):
        return []
    backend = total(BACKEND) + total(LAZY_BACKWARD)
    inductor = total(INDUCTOR)
    templates = sum(time_s for name, time_s in seconds.items() if name.endswith(TEMPLATES))
    codegen, kernels = total(CODEGEN), total(KERNELS)
    phases = [
        ("dynamo: tracing and guards", total(DYNAMO) - total(BACKEND)),
        ("AOTAutograd and joint graph passes", backend - inductor),
        ("Inductor: passes and lowering", inductor - codegen - kernels - templates),
        ("Inductor: code generation", codegen),
        ("compilation of kernels (C++, Triton)", kernels),
        ("autotuning", templates + total(AUTOTUNING)),
    ]
    return [(name, max(0.0, duration_s)) for name, duration_s in phases]


class CompileTimer:
    """Reads the timers of this process."""

    def __init__(self) -> None:
        self._before: Dict[str, float] = {}

    def read(self) -> Phases:
        """Return the phases since the last call."""
        now = _timers()
        new = {}
        for name, time_s in now.items():
            before_s = self._before.get(name, 0.0)
            new[name] = time_s - before_s if time_s >= before_s else time_s  # timers were reset
        self._before = now
        return phases_of(new)


def _timers() -> Dict[str, float]:
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    metrics = getattr(dynamo, "compilation_time_metrics", None) or {}
    return {str(name): float(sum(times)) for name, times in metrics.items()}
