"""TorchScript: a module traced or scripted, where the torch still has it. Inference only."""

import warnings
from typing import Any

import torch

from torchyard.worker.backend_job import Job
from torchyard.worker.built import CannotBuild


def make(job: Job, way: str) -> Any:
    """The module as a script module: `trace`, `script` or `freeze` (traced, weights as constants)."""
    name = "torchscript:" + way
    jit = getattr(torch, "jit", None)
    if not all(hasattr(jit, part) for part in ("trace", "script", "freeze")):
        raise CannotBuild(
            "torch " + torch.__version__ + " has no TorchScript", hint="use export or aot-inductor"
        )
    job.refuse_training(name)
    if way == "freeze":
        job.refuse_writing(name)
    with warnings.catch_warnings():
        # It is deprecated, and says so at every call; tracing warns of what the check finds anyway.
        warnings.simplefilter("ignore")
        if way == "script":
            return torch.jit.script(job.module)
        traced = _trace(job)
        return torch.jit.freeze(traced.eval()) if way == "freeze" else traced


def _trace(job: Job) -> Any:
    if job.args and job.kwargs:
        raise CannotBuild(
            "torch.jit.trace takes positional or named inputs, and this workload has both",
            hint="use torchscript:script or export",
        )
    if job.kwargs:
        return torch.jit.trace(
            job.module, example_kwarg_inputs=job.kwargs, strict=False, check_trace=False
        )
    return torch.jit.trace(job.module, job.args, strict=False, check_trace=False)
