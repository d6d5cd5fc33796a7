"""Backends: from a module to the thing that is called. Runs inside the target.

`eager` is the module itself, so that eager and compiled code share one model object, one set of
parameters and one placement in memory. A backend is written

    eager | inductor | inductor:MODE | aot_eager | cudagraphs | dynamo:NAME | FILE.py:FUNCTION

where FUNCTION takes the module and returns a callable.
"""

import importlib.util
import os
from typing import Any, Callable

from torchyard.worker.built import CannotBuild

Apply = Callable[[Any], Any]


def resolve(backend: str) -> Apply:
    """The function that turns a module into a callable; CannotBuild when there is none."""
    import torch

    if backend == "eager":
        return lambda module: module
    if ".py:" in backend or backend.endswith(".py"):
        return _user_function(backend)
    if not hasattr(torch, "compile"):
        raise CannotBuild(
            "torch " + torch.__version__ + " has no torch.compile", hint="use torch 2.0 or newer"
        )
    name, _, mode = backend.partition(":")
    if name == "inductor":
        modes = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
        if mode and mode not in modes:
            raise CannotBuild(
                "inductor has no mode " + repr(mode), hint="modes: " + ", ".join(modes)
            )
        return lambda module: torch.compile(module, backend="inductor", mode=mode or None)
    import torch._dynamo

    chosen = mode if name == "dynamo" else name
    known = list(torch._dynamo.list_backends(exclude_tags=()))
    if chosen not in known:
        raise CannotBuild(
            "this torch has no backend " + repr(chosen), hint="it has: " + ", ".join(sorted(known))
        )
    return lambda module: torch.compile(module, backend=chosen)


def _user_function(backend: str) -> Apply:
    path, _, function = backend.rpartition(":")
    if not path:
        raise CannotBuild(
            "the backend " + repr(backend) + " names no function", hint="write FILE.py:FUNCTION"
        )
    if not os.path.isfile(path):
        raise CannotBuild("there is no file " + repr(path), hint="give the path of the backend")
    spec = importlib.util.spec_from_file_location("torchyard_user_backend", path)
    if spec is None or spec.loader is None:
        raise CannotBuild("the file " + repr(path) + " cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, function, None)
    if not callable(found):
        raise CannotBuild(
            path + " has no function " + repr(function),
            hint="it must take the module and return a callable",
        )
    return found
