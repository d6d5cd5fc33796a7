"""Backends: from a module to the thing that is called. Runs inside the target.

`eager` is the module itself, so that eager and compiled code share one model object, one set of
parameters and one placement in memory. The names are in `backend_names`; each way to make a callable
is a sibling module. What a torch lacks is CannotBuild with the reason, and fails its variant only.

Some backends need the inputs and do their work before the first call (`ahead`): they are made in
that call, so that the time it takes is part of the compile time.
"""

import importlib.util
import os
from typing import Any, Callable, NamedTuple

from torchyard.worker import backends_compiled, backends_exported, backends_scripted
from torchyard.worker.backend_job import Job
from torchyard.worker.backend_names import (
    INDUCTOR_MODES,
    SCRIPT_WAYS,
    is_user_function,
    uses_dynamo,
)
from torchyard.worker.built import CannotBuild


class Backend(NamedTuple):
    """How a callable is made of a module, and whether that needs the inputs."""

    make: Callable[[Job], Any]
    ahead: bool


def resolve(backend: str) -> Backend:
    """The way to make a callable; CannotBuild when this torch has none of that name."""
    if backend == "eager":
        return Backend(lambda job: job.module, ahead=False)
    if is_user_function(backend):
        function = _user_function(backend)
        return Backend(lambda job: function(job.module), ahead=True)
    name, _, way = backend.partition(":")
    if name == "torchscript":
        _check_way(name, way, SCRIPT_WAYS)
        return Backend(lambda job: backends_scripted.make(job, way or "trace"), ahead=True)
    if name == "export" and not way:
        return Backend(backends_exported.make_exported, ahead=True)
    if name == "aot-inductor" and not way:
        return Backend(backends_exported.make_ahead_of_time, ahead=True)
    if name == "inductor":
        _check_way(name, way, INDUCTOR_MODES)
        backends_compiled.check_compile()
        return Backend(lambda job: backends_compiled.make_inductor(job, way or None), ahead=False)
    chosen = way if name == "dynamo" else backend
    known = backends_compiled.registered()
    if chosen not in known or not (uses_dynamo(backend) or name == "dynamo"):
        raise CannotBuild(
            "this torch has no backend " + repr(chosen), hint="it has: " + ", ".join(known)
        )
    return Backend(lambda job: backends_compiled.make_registered(job, chosen), ahead=False)


def _check_way(name: str, way: str, ways: Any) -> None:
    if way and way not in ways:
        raise CannotBuild(name + " has no mode " + repr(way), hint="modes: " + ", ".join(ways))


def _user_function(backend: str) -> Callable[[Any], Any]:
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
