"""torch.export: the module as one graph, run as it is or compiled ahead of time. Inference only.

Ahead of time means: the graph becomes a shared library in a package file, which is loaded again, as
a program without Python's compiler would do. Older versions of torch have other entry points for
the same thing; each is used where it is found, never by the version's number.
"""

import inspect
import os
import tempfile
import zipfile
from typing import Any

import torch

from torchyard.worker.backend_job import Job
from torchyard.worker.built import CannotBuild
from torchyard.worker.devices import cuda_device


def make_exported(job: Job) -> Any:
    """The exported program as a module."""
    program = _export(job, "export")
    return program.module()


def make_ahead_of_time(job: Job) -> Any:
    """The exported program compiled by AOTInductor and loaded from its package."""
    import torch._inductor as inductor

    job.refuse_writing("aot-inductor")
    folder = tempfile.mkdtemp(prefix="aot-inductor-", dir=os.environ.get("TORCHINDUCTOR_CACHE_DIR"))
    if hasattr(inductor, "aoti_compile_and_package") and hasattr(inductor, "aoti_load_package"):
        program = _export(job, "aot-inductor")
        compile_and_package = inductor.aoti_compile_and_package
        package = os.path.join(folder, "model.pt2")
        named = inspect.signature(compile_and_package).parameters
        if "args" in named:  # torch 2.5 wants the inputs once more
            path = compile_and_package(program, job.args, job.kwargs, package_path=package)
        else:
            path = compile_and_package(program, package_path=package)
        return _load_package(inductor.aoti_load_package, path, job.device)
    return _older_library(job, folder)


def _load_package(load: Any, path: str, device: str) -> Any:
    """The package, loaded to the device that it was compiled for.

    Where torch takes no index (before 2.7) it loads to the current device, which is this one.
    """
    _refuse_static_cpp_runtime(path)
    cuda = cuda_device(device)
    if cuda is None or "device_index" not in inspect.signature(load).parameters:
        return load(path)
    return load(path, device_index=cuda.index)


def _refuse_static_cpp_runtime(path: str) -> None:
    """Raise CannotBuild when the compiled library has its own copy of the C++ runtime.

    Loading one crashes the process: the copy in the library and the one that torch uses each have
    facets of the locale, and `std::regex` in the package's loader mixes them up.
    """
    with zipfile.ZipFile(path) as package:
        for name in package.namelist():
            if name.endswith(".so") and has_static_cpp_runtime(package.read(name)):
                raise CannotBuild(
                    "the C++ compiler linked the C++ runtime into the compiled library, and loading "
                    "it beside torch's would crash this process",
                    hint="set CXX to a compiler that links libstdc++ dynamically",
                )


def has_static_cpp_runtime(library: bytes) -> bool:
    """Whether a shared library defines the locale of the C++ runtime and needs no libstdc++."""
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
    cuda = cuda_device(job.device)
    return aot_load(path, "cpu" if cuda is None else cuda.name)


def _export(job: Job, backend: str) -> Any:
    try:
        from torch.export import export
    except ImportError as error:
        raise CannotBuild(
            "torch " + torch.__version__ + " has no torch.export", hint="use torch 2.1 or newer"
        ) from error
    job.refuse_training(backend)
    return export(job.module, job.args, job.kwargs)
