"""The backends by name, as data: no torch, so that the controller can use the list, too.

In addition, `dynamo:NAME` is any backend registered in dynamo, and FILE.py:FUNCTION is a user-defined
function that takes the module and returns a callable.
"""

from typing import Dict, List

GIVEN = "given"
"""The backend of a callable that was passed to `torchyard.compare`, not named."""
INDUCTOR_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
SCRIPT_WAYS = ("trace", "script", "freeze")

BACKENDS: Dict[str, str] = {
    "eager": "the module itself, uncompiled",
    "inductor": "torch.compile with the default backend",
    "inductor:default": "same as inductor",
    "inductor:reduce-overhead": "mode reduce-overhead: CUDA graphs on a GPU",
    "inductor:max-autotune": "mode max-autotune: benchmarks kernels, keeps the fastest",
    "inductor:max-autotune-no-cudagraphs": "mode max-autotune without CUDA graphs",
    "aot_eager": "forward and backward graphs of torch.compile, run eagerly",
    "cudagraphs": "CUDA graphs of torch.compile without code generation; GPU only",
    "torchscript": "same as torchscript:trace",
    "torchscript:trace": "torch.jit.trace; inference only",
    "torchscript:script": "torch.jit.script; inference only",
    "torchscript:freeze": "torch.jit.trace and torch.jit.freeze; inference only",
    "export": "torch.export, exported module run without compilation; inference only",
    "aot-inductor": "torch.export, compiled ahead of time by AOTInductor; inference only",
}
"""Backends with descriptions."""


def names() -> List[str]:
    """Return the named backends."""
    return list(BACKENDS)


def is_user_function(backend: str) -> bool:
    """Whether the backend is FILE.py:FUNCTION, or a callable that was passed as an object."""
    return ".py:" in backend or backend.endswith(".py") or backend == GIVEN


def uses_dynamo(backend: str) -> bool:
    """Whether the backend uses torch.compile; False for user-defined functions."""
    head = backend.partition(":")[0]
    return not is_user_function(backend) and head in (
        "inductor",
        "aot_eager",
        "cudagraphs",
        "dynamo",
    )


def uses_inductor(backend: str) -> bool:
    """Whether inductor's settings apply to the backend; a user-defined function may call inductor."""
    head, _, rest = backend.partition(":")
    if is_user_function(backend):
        return backend != GIVEN
    return head in ("inductor", "aot-inductor") or (head == "dynamo" and rest == "inductor")
