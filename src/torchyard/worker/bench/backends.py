"""Backends: turn a module into the callable that is timed.

- torch.compile: inductor in its modes, and every backend that dynamo has registered;
- torch.export: the module as one graph, run as it is or compiled ahead of time (AOTInductor), inference only;
- TorchScript: traced or scripted, where torch still has it, inference only.
"""

import importlib.util
import inspect
import os
import sys
import tempfile
import warnings
import zipfile
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from torchyard.worker.bench.backend_names import (
    INDUCTOR_MODES,
    SCRIPT_WAYS,
    is_user_function,
    uses_dynamo,
)
from torchyard.worker.devices import device_of
from torchyard.worker.workload import CannotBuild


class Job(NamedTuple):
    """A module with its inputs, and how the callable will be used."""

    module: Any
    args: Tuple[Any, ...]
    kwargs: Dict[str, Any]
    device: str
    training: bool = False
    mutates: bool = False
    dynamic: bool = False

    def refuse_training(self, backend: str) -> None:
        """Raise CannotBuild in training."""
        if self.training:
            raise CannotBuild(backend + " supports inference only", hint="use --mode inference")

    def refuse_writing(self, backend: str) -> None:
        """Raise CannotBuild where an iteration changes parameters that the callable has copied."""
        if self.mutates:
            raise CannotBuild(
                backend + " copies the parameters, and this workload changes them",
                hint="use eager or inductor for this workload",
            )


class OwnCompiler:
    """A wrapper of a registered compiler that dynamo treats as a different one for every variant."""

    def __init__(self, name: str, compiler: Callable[..., Any]) -> None:
        self.__name__ = name
        self.compiler = compiler

    def __call__(self, graph: Any, inputs: Any, **more: Any) -> Any:
        """Compile one graph; called by dynamo."""
        return self.compiler(graph, inputs, **more)


def check_compile() -> None:
    """Raise CannotBuild when torch.compile is missing."""
    if not hasattr(torch, "compile"):
        raise CannotBuild(
            "torch " + torch.__version__ + " has no torch.compile", hint="use torch 2.0 or newer"
        )


def load_without_compile_processes() -> None:
    """Load cached artifacts in this process, where an earlier launch has stored any.

    Inductor starts processes that compile Triton kernels at the first compilation for a GPU, also if
    all kernels are cached. They import torch, which takes seconds of CPU time during the next blocks.
    """
    folder = os.path.join(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""), "fxgraph")
    if "TORCHINDUCTOR_COMPILE_THREADS" in os.environ or not os.path.isdir(folder):
        return
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # read when inductor is imported
    config: Any = sys.modules.get("torch._inductor.config")
    if config is not None:
        config.compile_threads = 1


def registered() -> List[str]:
    """Return the backends registered in dynamo, including those for debugging."""
    check_compile()
    import torch._dynamo

    return sorted(torch._dynamo.list_backends(exclude_tags=()))


def make_inductor(job: Job, mode: Optional[str]) -> Any:
    """Return the module, to be compiled by inductor at its first call."""
    import torch._dynamo

    dynamic = True if job.dynamic else None
    wrapper = getattr(torch, "_TorchCompileInductorWrapper", None)
    if wrapper is None:
        return torch.compile(job.module, backend="inductor", mode=mode, dynamic=dynamic)
    own = type("OwnInductor", (wrapper,), {"__eq__": object.__eq__, "__hash__": object.__hash__})
    compiler = own(mode or "default", None, dynamic)
    return torch._dynamo.optimize(backend=compiler, dynamic=dynamic)(job.module)


def make_registered(job: Job, name: str) -> Any:
    """Return the module, to be compiled by a registered dynamo backend at its first call."""
    from torch._dynamo.backends.registry import lookup_backend

    if name == "inductor":
        return make_inductor(job, None)
    if name == "cudagraphs" and device_of(job.device).kind != "cuda":
        raise CannotBuild(
            "cudagraphs requires a CUDA device", hint="use --device cuda, or another backend"
        )
    return torch.compile(
        job.module,
        backend=OwnCompiler(name, lookup_backend(name)),
        dynamic=True if job.dynamic else None,
    )


def make_ahead_of_time(job: Job) -> Any:
    """Return the exported program, compiled by AOTInductor and loaded from its package."""
    import torch._inductor as inductor

    job.refuse_writing("aot-inductor")
    folder = tempfile.mkdtemp(prefix="aot-inductor-", dir=os.environ.get("TORCHINDUCTOR_CACHE_DIR"))
    if hasattr(inductor, "aoti_compile_and_package") and hasattr(inductor, "aoti_load_package"):
        program = _export(job, "aot-inductor")
        compile_and_package = inductor.aoti_compile_and_package
        package = os.path.join(folder, "model.pt2")
        named = inspect.signature(compile_and_package).parameters
        if "args" in named:  # torch 2.5 requires the inputs again
            path = compile_and_package(program, job.args, job.kwargs, package_path=package)
        else:
            path = compile_and_package(program, package_path=package)
        return _load_package(inductor.aoti_load_package, path, job.device)
    return _older_library(job, folder)


def _load_package(load: Any, path: str, device: str) -> Any:
    """Load the package to its device; before torch 2.7 there is no index, and it loads to the current device."""
    _refuse_static_cpp_runtime(path)
    hardware = device_of(device)
    if hardware.is_host or "device_index" not in inspect.signature(load).parameters:
        return load(path)
    return load(path, device_index=hardware.index)


def _refuse_static_cpp_runtime(path: str) -> None:
    """Raise CannotBuild when the compiled library has its own copy of the C++ runtime.

    Loading such a library crashes the process: it and torch each have their own locale facets, and
    `std::regex` in the package's loader mixes them up.
    """
    with zipfile.ZipFile(path) as package:
        for name in package.namelist():
            if name.endswith(".so") and has_static_cpp_runtime(package.read(name)):
                raise CannotBuild(
                    "the compiled library contains a static copy of the C++ runtime; loading it next "
                    "to torch's would crash this process",
                    hint="set CXX to a compiler that links libstdc++ dynamically",
                )


def has_static_cpp_runtime(library: bytes) -> bool:
    """Whether a shared library contains the C++ runtime's locale and does not depend on libstdc++."""
    return b"_ZNSt6locale" in library and not (b"libstdc++.so" in library or b"libc++" in library)


def _older_library(job: Job, folder: str) -> Any:
    try:
        from torch._export import aot_compile, aot_load
    except ImportError as error:
        raise CannotBuild(
            "torch " + torch.__version__ + " has no AOTInductor", hint="use torch 2.3 or newer"
        ) from error
    job.refuse_training("aot-inductor")
    library = os.path.join(folder, "model.so")
    path = aot_compile(
        job.module, job.args, job.kwargs, options={"aot_inductor.output_path": library}
    )
    return aot_load(path, device_of(job.device).name)


def _export(job: Job, backend: str) -> Any:
    try:
        from torch.export import export
    except ImportError as error:
        raise CannotBuild(
            "torch " + torch.__version__ + " has no torch.export", hint="use torch 2.1 or newer"
        ) from error
    job.refuse_training(backend)
    return export(job.module, job.args, job.kwargs)


def make_torchscript(job: Job, way: str) -> Any:
    """Return the module as a ScriptModule: `trace`, `script` or `freeze` (traced, constant weights)."""
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
        # Deprecation warnings at every call; the accuracy check covers the warnings of tracing.
        warnings.simplefilter("ignore")
        if way == "script":
            return torch.jit.script(job.module)
        traced = _trace(job)
        return torch.jit.freeze(traced.eval()) if way == "freeze" else traced


def _trace(job: Job) -> Any:
    if job.args and job.kwargs:
        raise CannotBuild(
            "torch.jit.trace accepts positional or keyword inputs, and this workload has both",
            hint="use torchscript:script or export",
        )
    if job.kwargs:
        return torch.jit.trace(
            job.module, example_kwarg_inputs=job.kwargs, strict=False, check_trace=False
        )
    return torch.jit.trace(job.module, job.args, strict=False, check_trace=False)


class Backend(NamedTuple):
    """The function that creates the callable, and whether it needs the inputs."""

    make: Callable[[Job], Any]
    ahead: bool


def resolve(backend: str) -> Backend:
    """Return the backend of that name; raise CannotBuild when this torch does not have it."""
    if backend == "eager":
        return Backend(lambda job: job.module, ahead=False)
    if is_user_function(backend):
        function = _user_function(backend)
        return Backend(lambda job: function(job.module), ahead=True)
    name, _, way = backend.partition(":")
    if name == "torchscript":
        check_mode(name, way, SCRIPT_WAYS)
        return Backend(lambda job: make_torchscript(job, way or "trace"), ahead=True)
    if name == "export" and not way:
        return Backend(lambda job: _export(job, "export").module(), ahead=True)
    if name == "aot-inductor" and not way:
        return Backend(make_ahead_of_time, ahead=True)
    if name == "inductor":
        check_mode(name, way, INDUCTOR_MODES)
        check_compile()
        return Backend(lambda job: make_inductor(job, way or None), ahead=False)
    chosen = registered_name(backend)
    return Backend(lambda job: make_registered(job, chosen), ahead=False)


def registered_name(backend: str) -> str:
    """Return the name in dynamo of `dynamo:NAME` or a named backend; raise CannotBuild without one."""
    head, _, rest = backend.partition(":")
    name = rest if head == "dynamo" else backend
    available = registered()
    if name not in available or not uses_dynamo(backend):
        raise CannotBuild(
            "this torch has no backend " + repr(name),
            hint="available backends: " + ", ".join(available),
        )
    return name


def check_mode(name: str, way: str, ways: Any) -> None:
    """Raise CannotBuild for a mode that the backend does not have."""
    if way and way not in ways:
        raise CannotBuild(name + " has no mode " + repr(way), hint="modes: " + ", ".join(ways))


def _user_function(backend: str) -> Callable[[Any], Any]:
    path, _, function = backend.rpartition(":")
    if not path:
        raise CannotBuild(
            "the backend " + repr(backend) + " has no function name", hint="write FILE.py:FUNCTION"
        )
    if not os.path.isfile(path):
        raise CannotBuild(
            "the file " + repr(path) + " does not exist", hint="give the path of the backend"
        )
    spec = importlib.util.spec_from_file_location("torchyard_user_backend", path)
    if spec is None or spec.loader is None:
        raise CannotBuild("the file " + repr(path) + " cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    backend_function = getattr(module, function, None)
    if not callable(backend_function):
        raise CannotBuild(
            path + " has no function " + repr(function),
            hint="the function must take the module and return a callable",
        )
    return backend_function
