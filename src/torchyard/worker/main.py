"""The worker: answer the controller's requests inside the target, one at a time.

The pipe is read in blocking mode, so a waiting worker uses no CPU. An exception of the workload is
reported as an answer and does not end the worker.
"""

import gc
import hashlib
import os
import platform
import sys
import traceback
from typing import Any, Callable, Dict, List, Mapping

from torchyard.worker import device_turn, placement, wire
from torchyard.worker.catalog.entry import SCRIPT_SUITE
from torchyard.worker.workload import CannotBuild

OLDEST_TORCH = (2, 0)
_OPENMP_LIBRARIES = ("libgomp", "libiomp", "libomp")
_ALLOCATOR_LIBRARIES = ("libtcmalloc", "libjemalloc", "libmimalloc")
_SPEED_VARIABLES = (
    *("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "BLIS_", "GOTO_", "ATEN_", "TORCH", "PYTORCH_"),
    *("DNNL_", "ONEDNN_", "TRITON_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "NCCL_", "HIP_"),
    *("ROCR_", "MIOPEN_", "HSA_", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_BIND_NOW", "MALLOC"),
    *("GLIBC_TUNABLES", "TCMALLOC_", "MIMALLOC_", "JE_MALLOC", "PYTHONMALLOC", "PYTHONOPTIMIZE"),
)
_OF_SERVICE = (
    *("meet", "join", "reference", "judge", "warm", "block", "follow", "verify", "recheck"),
    *("reseat", "measure", "operators"),
)
_OF_ATTRIBUTION = (
    *("observe", "compile_phases", "kernel_code", "sources", "software", "instrumented"),
)
_OF_REDUCTION = ("capture", "lengths", "measure", "source")
"""Verbs that are methods of the same name."""
_AFFINITY_HINT = "use cores and NUMA nodes that are available to this process; `lscpu` lists them"


def main(channel: wire.Channel, arguments: List[str]) -> int:
    """Serve requests until `quit` or until the controller is gone."""
    modules: List[str] = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name == "--layout":
            pages, heap_bytes = (int(text) for text in value.split(","))
            placement.shift(pages, heap_bytes)
        elif name == "--import":
            modules = value.split(",")
        elif name == "--template":
            return _serve_template(channel, value, modules)
    try:
        placement.place(os.environ)
        facts = _handshake()
    except placement.CannotPlace as error:
        channel.receive()
        channel.send(wire.error_answer("cannot-build", str(error), hint=_AFFINITY_HINT))
        return 1
    except Exception as error:
        text = str(error) if isinstance(error, ImportError) else _describe(error)
        channel.receive()
        channel.send(wire.error_answer("no-torch", text, traceback.format_exc()))
        return 1
    from torchyard.worker.bench import backends, peak
    from torchyard.worker.bench.service import WorkerService

    service = WorkerService()
    verbs: Dict[str, Callable[..., Any]] = {
        "hello": lambda: dict(facts, devices=_devices()),
        "device": service.prepare_device,
        "build": lambda **fields: _build(channel, service, fields),
        "list": service.list_names,
        "backends": lambda: {"names": backends.registered()},
        "peak": peak.answer,
        "memory-sites": lambda **fields: _attribution(service).memory(**fields),
    }
    for verb in _OF_SERVICE:
        verbs[verb] = getattr(service, verb)
    for verb in _OF_ATTRIBUTION:
        verbs[verb] = _when_asked(_attribution, service, verb)
    for verb in _OF_REDUCTION:
        verbs["reduce-" + verb] = _when_asked(_reduction, service, verb)
    while True:
        try:
            request = channel.receive()
        except wire.ChannelClosed:
            return 0
        verb = request.pop("ask", "")
        if verb == "quit":
            channel.send(wire.answer({}))
            return 0
        try:
            device_turn.TURN.begin(str(request.pop("turn", "")))
            reply = wire.answer(verbs[verb](**request))
        except CannotBuild as error:
            reply = wire.error_answer("cannot-build", _text(error), hint=error.hint)
        except MemoryError as error:
            reply = wire.error_answer("out-of-memory", _describe(error), traceback.format_exc())
        except Exception as error:
            kind = "out-of-memory" if _is_device_memory(error) else "raised"
            reply = wire.error_answer(kind, _describe(error), traceback.format_exc())
            error.__traceback__ = None
            gc.collect()
        if verb in wire.LED:
            service.release_ranks()
        waits = device_turn.TURN.end()
        channel.send(dict(reply, waits=waits) if waits else reply)


def _build(channel: wire.Channel, service: Any, fields: Dict[str, Any]) -> Any:
    """Build the workload; a script answers this request and all further ones itself, until it fails."""
    if fields["workload"]["suite"] == SCRIPT_SUITE:
        from torchyard.worker.training_script.service import serve

        serve(channel, **fields)
    return service.build(**fields)


def _when_asked(owner: Callable[[Any], Any], service: Any, name: str) -> Callable[..., Any]:
    """Return a method of an object that is created at the first request."""

    def answer(**fields: Any) -> Any:
        return getattr(owner(service), name)(**fields)

    return answer


def _attribution(service: Any) -> Any:
    from torchyard.worker.why.service import attribution_of

    return attribution_of(service)


def _reduction(service: Any) -> Any:
    from torchyard.worker.reduce.service import reduction_of

    return reduction_of(service)


def _serve_template(channel: wire.Channel, path: str, modules: List[str]) -> int:
    """Fork workers on request; a forked worker continues as one that was started."""
    from torchyard.worker import template

    try:
        placement.place(os.environ)
    except placement.CannotPlace:
        return 1  # a worker reports it
    worker = template.serve(channel, path, modules)
    if worker is None:
        return 0
    own, arguments = worker.channel, worker.arguments
    return placement.call_deeper(worker.stack_bytes, lambda: main(own, arguments))


def _describe(error: BaseException) -> str:
    return type(error).__name__ + ": " + _text(error)


def _text(error: BaseException) -> str:
    """Return the message of an exception; `__str__` of a user-defined class may itself fail."""
    try:
        return str(error)
    except Exception as other:
        return "(its __str__ raised " + type(other).__name__ + ")"


def _is_device_memory(error: BaseException) -> bool:
    texts = ("can't allocate memory", "DefaultCPUAllocator: not enough memory")
    return type(error).__name__ == "OutOfMemoryError" or any(one in _text(error) for one in texts)


def _handshake() -> Dict[str, Any]:
    import torch

    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST_TORCH:
        raise ImportError("torch " + torch.__version__ + " is too old: 2.0 or newer is required")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit():
        torch.set_num_threads(int(threads))
    interop_threads = os.environ.get("TORCHYARD_INTEROP_THREADS", "")
    if interop_threads.isdigit():
        torch.set_num_interop_threads(int(interop_threads))
    libraries = _loaded_libraries()
    return {
        "protocol": wire.PROTOCOL,
        "pid": os.getpid(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "torch": torch.__version__,
        "torch_git": getattr(torch.version, "git_version", ""),
        "torch_config": torch.__config__.show(),
        "torch_files": _library_sizes(os.path.dirname(torch.__file__)),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "openmp": [name for name in libraries if name.startswith(_OPENMP_LIBRARIES)],
        "allocators": [name for name in libraries if name.startswith(_ALLOCATOR_LIBRARIES)],
        "randomisation_off": placement.randomisation_is_off(),
        "variables": _variables_in_use(os.environ),
    }


def _devices() -> List[str]:
    """Return the devices of this process; this initializes the driver of a GPU."""
    from torchyard.worker.devices import visible

    with device_turn.TURN.querying_devices():
        return visible()


def _library_sizes(package: str) -> str:
    """Return a digest of the names and sizes of torch's libraries, to distinguish builds."""
    try:
        with os.scandir(os.path.join(package, "lib")) as entries:
            sizes = sorted((one.name, one.stat().st_size) for one in entries if ".so" in one.name)
    except OSError:
        return ""
    return hashlib.sha256(repr(sizes).encode()).hexdigest()[:16]


def _variables_in_use(environment: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables that affect the speed of torch, each with a digest of its value, which may be private."""
    return {
        name: hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        for name, value in sorted(environment.items())
        if name.startswith(_SPEED_VARIABLES)
        and not name.endswith("_CACHE_DIR")
        and (not name.startswith("TORCHYARD_") or name == "TORCHYARD_INTEROP_THREADS")
    }


def _loaded_libraries() -> List[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            paths = {line.split(None, 5)[5].strip() for line in file if line.count("/") > 0}
    except (OSError, IndexError):
        return []
    return sorted({os.path.basename(path) for path in paths})
