"""Backends of torch.compile: inductor in its modes, and everything that dynamo has registered.

Dynamo keeps compiled code with the module's source, and reuses it for any caller whose compiler is
equal. Two sides with the same compiler and different settings would share the code of whichever ran
first. So every side's compiler is equal to itself only.
"""

from typing import Any, Callable, List, Optional

import torch

from torchyard.worker.backend_job import Job
from torchyard.worker.built import CannotBuild


class OwnCompiler:
    """A registered compiler that dynamo takes for another one in every side."""

    def __init__(self, name: str, compiler: Callable[..., Any]) -> None:
        self.__name__ = name
        self.compiler = compiler

    def __call__(self, graph: Any, inputs: Any, **more: Any) -> Any:
        """What dynamo asks for each graph."""
        return self.compiler(graph, inputs, **more)


def check_compile() -> None:
    """CannotBuild where there is no torch.compile."""
    if not hasattr(torch, "compile"):
        raise CannotBuild(
            "torch " + torch.__version__ + " has no torch.compile", hint="use torch 2.0 or newer"
        )


def registered() -> List[str]:
    """What dynamo knows by name, those for debugging too."""
    check_compile()
    import torch._dynamo

    return sorted(torch._dynamo.list_backends(exclude_tags=()))


def make_inductor(job: Job, mode: Optional[str]) -> Any:
    """The module compiled by inductor at its first call."""
    import torch._dynamo

    dynamic = True if job.dynamic else None
    wrapper = getattr(torch, "_TorchCompileInductorWrapper", None)
    if wrapper is None:
        return torch.compile(job.module, backend="inductor", mode=mode, dynamic=dynamic)
    own = type("OwnInductor", (wrapper,), {"__eq__": object.__eq__, "__hash__": object.__hash__})
    compiler = own(mode or "default", None, dynamic)
    return torch._dynamo.optimize(backend=compiler, dynamic=dynamic)(job.module)


def make_registered(job: Job, name: str) -> Any:
    """The module compiled by one of dynamo's registered backends at its first call."""
    from torch._dynamo.backends.registry import lookup_backend

    if name == "inductor":
        return make_inductor(job, None)
    if name == "cudagraphs" and torch.device(job.device).type != "cuda":
        raise CannotBuild(
            "cudagraphs needs a CUDA device", hint="use --device cuda, or another backend"
        )
    return torch.compile(
        job.module,
        backend=OwnCompiler(name, lookup_backend(name)),
        dynamic=True if job.dynamic else None,
    )
