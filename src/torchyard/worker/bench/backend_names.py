"""The backends by name, as data: no torch, so that the yard knows the same words as the worker.

Besides these, `dynamo:NAME` is any backend that dynamo has registered, and FILE.py:FUNCTION is a
function of the user's that takes the module and returns a callable.
"""

from typing import Dict, List

INDUCTOR_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
SCRIPT_WAYS = ("trace", "script", "freeze")

BACKENDS: Dict[str, str] = {
    "eager": "the module itself, uncompiled",
    "inductor": "torch.compile with its default compiler",
    "inductor:default": "the same, named in full",
    "inductor:reduce-overhead": "torch.compile with CUDA graphs where there is a GPU",
    "inductor:max-autotune": "torch.compile that tries several kernels and keeps the fastest",
    "inductor:max-autotune-no-cudagraphs": "the same without CUDA graphs",
    "aot_eager": "torch.compile that captures forward and backward and runs them uncompiled",
    "cudagraphs": "torch.compile that records CUDA graphs and compiles nothing; GPU only",
    "torchscript": "the same as torchscript:trace",
    "torchscript:trace": "torch.jit.trace; inference only",
    "torchscript:script": "torch.jit.script; inference only",
    "torchscript:freeze": "torch.jit.trace and torch.jit.freeze; inference only",
    "export": "torch.export, and the exported module run as it is; inference only",
    "aot-inductor": "torch.export, compiled ahead of time and loaded again; inference only",
}
"""Each with what it does."""


def names() -> List[str]:
    """Every backend that has a name of its own."""
    return list(BACKENDS)


def is_user_function(backend: str) -> bool:
    """Whether it is FILE.py:FUNCTION."""
    return ".py:" in backend or backend.endswith(".py")


def uses_dynamo(backend: str) -> bool:
    """Whether torch.compile makes it; a function of the user's may do what it likes."""
    head = backend.partition(":")[0]
    return not is_user_function(backend) and head in (
        "inductor",
        "aot_eager",
        "cudagraphs",
        "dynamo",
    )


def uses_inductor(backend: str) -> bool:
    """Whether inductor's own settings mean anything to it; a user's function may call inductor."""
    head, _, rest = backend.partition(":")
    if is_user_function(backend):
        return True
    return head in ("inductor", "aot-inductor") or (head == "dynamo" and rest == "inductor")
