"""Observe the calls of generated kernels, in place of the blind spot between dispatched operators.

Inductor loads each graph as a Python module whose globals hold the kernels. They are replaced by functions that look at
their tensors before and after the call: also in modules that were loaded before. The kernel itself gets the same
arguments. Graphs that run without Python (C++ wrapper, CUDA graphs) cannot be observed: they invalidate what is known of
all memory, and are counted. Kernels of other threads mark their memory as accessed.
"""

import os
import sys
import threading
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch

from torchyard.worker.values.compiled.after_import import AfterImport
from torchyard.worker.values.compiled.cuda_graphs import CUDA_GRAPHS, CudaGraphs
from torchyard.worker.values.compiled.generated_module import (
    GeneratedModule,
    Kernel,
    KernelSite,
    read_module,
)
from torchyard.worker.values.compiled.overwrite_trials import OverwriteTrials, Trial
from torchyard.worker.values.compiled.source_operators import (
    BufferSource,
    KeptSources,
    KernelOperator,
    Sources,
    sources_of_graph,
)
from torchyard.worker.values.dispatch_mode import KernelWrite, ValueMode, without_dispatch
from torchyard.worker.values.observation import Before, storage_key
from torchyard.worker.values.places import generated_files

_ALLOCATORS = ("empty_strided_cpu", "empty_strided_cuda", "empty_strided_cpu_pinned")
_LOADER = "load_by_key_path"
_GRAPHS = (
    ("torch._inductor.output_code", "CompiledFxGraph"),
    ("torch._inductor.codecache", "CompiledFxGraph"),
    ("torch.export.pt2_archive._package", "AOTICompiledModel"),
)
"""Modules and classes of callable graphs."""
NO_KERNELS = (
    "torch.compile was called, but no generated kernel ran: the functions ran eagerly (as with earlier versions of "
    "torch while they are profiled), with another backend, or not at all"
)
NO_MODULE = "they run without a generated Python module (AOTInductor), or it was not found"


class _Module:
    """A generated module whose kernels are observed."""

    def __init__(
        self, name: str, module: Any, parsed: GeneratedModule, sources: Optional[Sources]
    ) -> None:
        self.name = name
        self.module = module
        self.parsed = parsed
        self.sources = sources
        self.originals: Dict[str, Any] = {}
        self.operators: Dict[Tuple[str, int, int], Tuple[KernelOperator, BufferSource]] = {}

    def restore(self) -> None:
        for name, value in self.originals.items():
            setattr(self.module, name, value)


class KernelObserver:
    """Observes generated kernels between `install` and `remove`."""

    def __init__(self, mode: ValueMode, cache: Optional[str]) -> None:
        self._mode = mode
        self._kept = KeptSources(cache)
        self._thread = threading.get_ident()
        self._modules: Dict[str, _Module] = {}
        self._all_modules: List[_Module] = []
        """A module may be loaded again with other constants."""
        self._removals: List[Callable[[], None]] = []
        self._watched: List[Any] = []
        self._cuda_graphs = CudaGraphs(mode)
        self._trials = OverwriteTrials(mode.options.memory_bytes)
        self.why_not = ""
        """Why nothing is observed."""
        self.calls = 0
        self.calls_elsewhere = 0
        """Kernel calls of other threads."""
        self._kernels: Set[Tuple[str, str]] = set()
        self._buffers: Set[Tuple[str, str, int, int]] = set()
        self._nameless: Set[str] = set()
        """Modules without source operators."""
        self._not_covered: Dict[str, Set[str]] = {}
        """Graphs by the reason why they are not observed."""

    @property
    def seen(self) -> bool:
        """Whether a generated kernel was called."""
        return bool(self.calls)

    def install(self) -> None:
        """Observe modules that were loaded before, and those that will be."""
        self._thread = threading.get_ident()
        self._cuda_graphs.install()
        self._removals.append(self._cuda_graphs.remove)
        if "torch._inductor.codecache" in sys.modules:
            self._install()
            return
        # Importing Inductor takes seconds: wait until the program does.
        finder = AfterImport("torch._inductor.codecache", self._install)
        sys.meta_path.insert(0, finder)
        self._removals.append(finder.remove)

    def _install(self) -> None:
        try:
            cache = sys.modules["torch._inductor.codecache"].PyCodeCache
            load = cache.__dict__[_LOADER].__func__
        except (AttributeError, KeyError):
            self.why_not = "torch %s loads generated code in another way" % torch.__version__
            return

        def observed_load(cls: Any, key: str, path: str, *args: Any, **kwargs: Any) -> Any:
            module = load(cls, key, path, *args, **kwargs)
            self._loaded(module, path)
            return module

        original = cache.__dict__[_LOADER]
        setattr(cache, _LOADER, classmethod(observed_load))
        self._removals.append(partial(setattr, cache, _LOADER, original))
        loaded = getattr(cache, "modules", ())
        for module in list(loaded.values() if isinstance(loaded, dict) else loaded):
            self._loaded(module, getattr(module, "__file__", "") or "")

    def _watch_graphs(self) -> None:
        """Observe calls of whole graphs, to know those whose kernels are not observed."""
        for module, name in _GRAPHS:
            graphs = getattr(sys.modules.get(module), name, None)
            if graphs is None or graphs in self._watched:
                continue
            self._watched.append(graphs)
            original = graphs.__call__
            graphs.__call__ = self._watched_call(original)
            self._removals.append(partial(setattr, graphs, "__call__", original))

    def _watched_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(graph: Any, *args: Any, **kwargs: Any) -> Any:
            reason = self._why_not_covered(graph)
            if not reason or self._mode.off:
                return original(graph, *args, **kwargs)
            self._not_covered.setdefault(reason, set()).add(str(getattr(graph, "cache_key", "")))
            try:
                return original(graph, *args, **kwargs)
            finally:
                self._mode.storages.epoch += 1  # it may have read and written any memory

        return call

    def remove(self) -> None:
        """Restore torch and the generated modules."""
        for removal in self._removals:
            removal()
        self._removals.clear()
        for module in self._all_modules:
            module.restore()

    def counts(self) -> Dict[str, int]:
        """Return totals for the report."""
        return {
            "kernels": len(self._kernels),
            "kernel_buffers": len(self._buffers),
            "kernel_calls": self.calls,
            "kernel_calls_elsewhere": self.calls_elsewhere,
        }

    def notes(self, compiles: bool) -> List[str]:
        """Return what was not observed, and why; `compiles` if the program called torch.compile."""
        notes = ["compiled code was not examined: %s" % self.why_not] if self.why_not else []
        if compiles and not (notes or self.calls or self.calls_elsewhere or self._not_covered):
            notes.append(NO_KERNELS)
        for reason, graphs in sorted(self._not_covered.items()):
            notes.append(
                "graphs of compiled code that were not examined, %d: %s" % (len(graphs), reason)
            )
        notes += self._cuda_graphs.notes() if CUDA_GRAPHS not in self._not_covered else []
        nameless = self._nameless & {module for module, _ in self._kernels}
        if nameless:
            notes.append(
                "graphs of compiled code without source lines, %d: they were compiled before the profile, or came "
                "from the cache of the compiler. Findings name the kernel and the compiled function"
                % len(nameless)
            )
        return notes

    def _why_not_covered(self, graph: Any) -> str:
        key = str(getattr(graph, "cache_key", "") or "")
        module = self._modules.get(key)
        if self.why_not:
            return self.why_not
        if module is None:
            return NO_MODULE
        if module.parsed.why_not:
            return module.parsed.why_not
        settings = getattr(graph, "fx_kwargs", None) or {}
        on_gpu = any(kind != "cpu" for kind in getattr(graph, "device_types", ()))
        return CUDA_GRAPHS if on_gpu and bool(settings.get("cudagraphs")) else ""

    def _loaded(self, module: Any, path: str) -> None:
        """Replace the kernels of a generated module."""
        name = os.path.splitext(os.path.basename(path))[0]
        if not hasattr(module, "call") or any(one.module is module for one in self._all_modules):
            return
        self._watch_graphs()
        try:
            with open(path, encoding="utf-8") as file:
                parsed = read_module(file.read())
            observed = _Module(name, module, parsed, self._sources(name, parsed))
        except Exception as error:  # another version of torch: the program must go on
            self._not_covered.setdefault("%s: %s" % (type(error).__name__, error), set()).add(name)
            return
        generated_files.add(path)
        self._modules[name] = observed
        self._all_modules.append(observed)
        for kernel in parsed.kernels.values():
            value = getattr(module, kernel.name, None)
            if value is None:
                continue
            observed.originals[kernel.name] = value
            if hasattr(value, "run"):  # a Triton kernel, which may replace its own `run`
                call = self._observed(observed, kernel, partial(_run, value))
                setattr(module, kernel.name, _ObservedTriton(value, call))
            else:
                setattr(module, kernel.name, self._observed(observed, kernel, value))
        for allocator in _ALLOCATORS:
            value = getattr(module, allocator, None)
            if value is not None:
                observed.originals[allocator] = value
                setattr(module, allocator, self._allocated(value))

    def _sources(self, name: str, parsed: GeneratedModule) -> Optional[Sources]:
        virtualized = sys.modules.get("torch._inductor.virtualized")
        graph = getattr(getattr(virtualized, "V", None), "graph", None)
        if hasattr(graph, "name_to_buffer"):
            calls = [site.arguments for site in parsed.sites.values()]
            sources = sources_of_graph(graph, calls)
            self._kept.put(name, sources)
            return sources
        earlier = self._kept.get(name)
        if earlier is None and parsed.kernels:
            self._nameless.add(name)
        return earlier

    def _allocated(self, allocate: Callable[..., Any]) -> Callable[..., Any]:
        mode = self._mode

        def call(*args: Any, **kwargs: Any) -> Any:
            tensor = allocate(*args, **kwargs)
            if not mode.off and threading.get_ident() == self._thread:
                mode.storages.of(tensor, mode.counts.operators, defined=False)
            return tensor

        return call

    def _observed(
        self, module: _Module, kernel: Kernel, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            mode = self._mode
            if mode.off:
                return function(*args, **kwargs)
            if threading.get_ident() != self._thread:
                self._mark_accessed(args)
                return function(*args, **kwargs)
            self.calls += 1
            if mode.surveying:  # the next step is observed closely
                return function(*args, **kwargs)
            line = sys._getframe(1).f_lineno
            return self._call(module, kernel, line, function, args, kwargs)

        return call

    def _mark_accessed(self, args: Any) -> None:
        self.calls_elsewhere += 1
        for value in args:
            if isinstance(value, torch.Tensor):
                self._mode.storages.mark_accessed(storage_key(value))

    def _call(
        self,
        module: _Module,
        kernel: Kernel,
        line: int,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
    ) -> Any:
        mode = self._mode
        site = module.parsed.sites.get((kernel.name, line))
        befores: List[Optional[Before]] = []
        writes: List[KernelWrite] = []
        trial: Optional[Trial] = None
        try:
            with _Quiet(mode):
                read, writes = self._arguments(module, kernel, site, line, args)
                befores = mode.before_kernel(read, writes)
                trial = self._trials.begin((module.name, kernel.name, line), writes, befores, args)
        except Exception as error:  # an error of the profiler must not reach the program
            self._give_up(error)
        try:
            with _Quiet(mode):  # operators inside belong to the autotuner of Triton kernels
                result = function(*args, **kwargs)
        except BaseException:
            mode.storages.epoch += 1  # what the kernel did is unknown
            raise
        if self.why_not:
            return result
        try:
            with _Quiet(mode):
                if trial is not None:
                    trial.run(function, args, kwargs)
                mode.after_kernel(kernel.name, writes, befores)
        except Exception as error:
            self._give_up(error)
        return result

    def _give_up(self, error: Exception) -> None:
        """Stop observing kernels; all memory may have been accessed by them from now on."""
        self.why_not = "%s: %s" % (type(error).__name__, error)
        self._mode.storages.epoch += 1
        for module in self._all_modules:
            module.restore()

    def _arguments(
        self, module: _Module, kernel: Kernel, site: Optional[KernelSite], line: int, args: Any
    ) -> Tuple[List[torch.Tensor], List[KernelWrite]]:
        """Return the tensors that a kernel reads, and its writes."""
        names = site.arguments if site is not None else ()
        self._kernels.add((module.name, kernel.name))
        caller = self._mode.places.now()
        tensors = [
            (position, value, kernel.parameter(position))
            for position, value in enumerate(args)
            if isinstance(value, torch.Tensor)
        ]
        read = [value for _, value, parameter in tensors if parameter.read]
        by_name = {
            names[position]: value for position, value, _ in tensors if position < len(names)
        }
        writes: List[KernelWrite] = []
        for position, value, parameter in tensors:
            if not parameter.written:
                continue
            if not parameter.known:
                self._mode.storages.mark_accessed(storage_key(value))
                continue
            buffer = names[position] if position < len(names) else ""
            operator, source = self._operator(module, kernel, site, position, buffer)
            self._buffers.add((module.name, kernel.name, line, position))
            new = site is not None and buffer in site.new
            operator.overwrites = new and not parameter.read
            place = caller
            if source.file:
                place = caller._replace(file=source.file, line=source.line, function="")
            place = place._replace(backward=self._mode.places.in_backward)
            inputs = read
            if source.reads is not None:
                inputs = [by_name[one] for one in source.reads if one in by_name and one != buffer]
            writes.append(KernelWrite(operator, place, value, inputs, new, parameter.read_back))
        return read, writes

    def _operator(
        self,
        module: _Module,
        kernel: Kernel,
        site: Optional[KernelSite],
        position: int,
        buffer: str,
    ) -> Tuple[KernelOperator, BufferSource]:
        key = (kernel.name, 0 if site is None else site.line, position)
        entry = module.operators.get(key)
        if entry is None:
            source = (module.sources or {}).get(buffer)
            if source is None:
                source = BufferSource(operators=() if site is None else site.operators)
            entry = module.operators[key] = (KernelOperator(kernel.name, source), source)
        return entry


class _Quiet:
    """The profiler's own operators: not dispatched to the mode."""

    def __init__(self, mode: ValueMode) -> None:
        self._mode = mode
        self._guard = without_dispatch()

    def __enter__(self) -> None:
        self._mode.off, self._mode.in_kernel = True, True
        self._guard.__enter__()

    def __exit__(self, *about: Any) -> None:
        self._guard.__exit__(*about)
        self._mode.off, self._mode.in_kernel = False, False


def _run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    return kernel.run(*args, **kwargs)


class _ObservedTriton:
    """A Triton kernel whose `run` is observed; everything else is its own."""

    def __init__(self, kernel: Any, run: Callable[..., Any]) -> None:
        self._kernel = kernel
        self.run = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)
