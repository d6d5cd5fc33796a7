"""Requests of an attribution: observe compilation, record sources, time operators, describe the software.

Compile time by phase is from the timers of dynamo, which are inclusive: that of Inductor is part of that of
AOTAutograd, and so on. Phases exclude each other and sum to the time of compilation. The timers are those of the
process, so the variants of one process are told apart by reading them after each compilation.

oneDNN reports each primitive that it executes on stdout (its verbose mode). One iteration runs with stdout redirected
to a file, and what an operator adds to the file is its evidence.
"""

import contextlib
import ctypes
import mmap
import os
import re
import sys
import tempfile
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import torch

from torchyard.worker.bench.backend_names import uses_dynamo
from torchyard.worker.bench.service import WorkerService
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.why.instrumented_block import reserve_memory, run_instrumented
from torchyard.worker.why.kernels import GeneratedCode
from torchyard.worker.why.memory import peak_by_site
from torchyard.worker.why.sources import SourceRecorder, TracedOperator, Unit


class AttributionService:
    """The handlers of the verbs of an attribution; `observe` comes before the first call."""

    def __init__(self, service: WorkerService) -> None:
        self._service = service
        self._code = GeneratedCode()
        self._timer = CompileTimer()
        self._operators: Dict[str, List[TracedOperator]] = {}

    def observe(self, reserve_bytes: int) -> Dict[str, Any]:
        """Record the kernels that Inductor generates from now on; reserve memory for the profiler."""
        reserve_memory(reserve_bytes)
        self._code.install()
        self._timer.read()
        return {}

    def compile_phases(self) -> Dict[str, Any]:
        """Return the compile time by phase since `observe` or the last call."""
        return {"phases": self._timer.read()}

    def sources(self, variant: str) -> Dict[str, Any]:
        """Record the operators of one iteration; return their FLOPs and bytes.

        Compiled code is related to the operators of the eager module.
        """
        runner = self._service.runner(variant)
        compiled = uses_dynamo(runner.backend)
        if compiled:
            runner = VariantRunner("eager", "eager", runner.precision, runner.model, runner.device)
        recorder = SourceRecorder(runner.model.module)
        with runner.context():
            call = runner.caller()
            with recorder:
                call()
        runner.model.forget_gradients()
        self._operators[variant] = recorder.operators
        totals: Dict[Unit, List[float]] = {}
        for operator in recorder.operators:
            total = totals.setdefault(operator.unit, [0.0, 0.0])
            total[0] += operator.flops
            total[1] += operator.moved_bytes
        why_not = self._code.why_not if compiled else ""
        work = [[list(unit), flops, moved] for unit, (flops, moved) in totals.items()]
        return {"work": work, "kernels_why_not": why_not}

    def memory(self, variant: str) -> Dict[str, Any]:
        """Return the memory at the peak of one iteration by allocation site."""
        operators = self._operators.get(variant, [])
        return peak_by_site(self._service.runner(variant), operators, self._code)

    def software(self, variant: str) -> Dict[str, Any]:
        """Return build settings, loaded libraries, and the primitives of oneDNN in one iteration."""
        primitives = [
            [None if unit is None else list(unit), kind, implementation]
            for unit, kind, implementation in primitives_of(self._service.runner(variant))
        ]
        return {**facts(), "primitives": primitives}

    def kernel_code(self, names: List[str]) -> Dict[str, Any]:
        """Return the generated code of these kernels."""
        return {"code": [[name, text] for name, text in self._code.sources(names)]}

    def instrumented(self, variant: str, iterations: int, trace: str = "") -> Dict[str, Any]:
        """Profile one block."""
        operators = self._operators.get(variant, [])
        runner = self._service.runner(variant)
        return run_instrumented(runner, iterations, operators, self._code, trace)


_attributions: Dict[int, AttributionService] = {}


def attribution_of(service: WorkerService) -> AttributionService:
    """Return the attribution of a worker's service."""
    return _attributions.setdefault(id(service), AttributionService(service))


DYNAMO = ("_compile.compile_inner", "_compile.<locals>.compile_inner")
BACKEND = ("OutputGraph.call_user_compiler", "call_user_compiler")
LAZY_BACKWARD = ("backward._backward_impl",)
INDUCTOR = ("compile_fx_inner",)
CODEGEN = ("GraphLowering.codegen",)
KERNELS = ("PyCodeCache.load_by_key_path",)
TEMPLATES = ("_template_precompiling", "_template_autotuning")
"""Ends of the names of timers of template kernels such as matrix products."""
AUTOTUNING = (
    "CachingAutotuner.benchmark_all_configs",
    "CachingAutotuner.coordinate_descent_tuning",
)

Phases = List[Tuple[str, float]]


def phases_of(seconds: Mapping[str, float]) -> Phases:
    """Return name and time of each phase in the order of execution; empty without compilation."""

    def total(names: Tuple[str, ...]) -> float:
        return sum(seconds.get(name, 0.0) for name in names)

    if not any(total(names) for names in (DYNAMO, LAZY_BACKWARD)):
        return []
    backend = total(BACKEND) + total(LAZY_BACKWARD)
    inductor = total(INDUCTOR)
    templates = sum(time_s for name, time_s in seconds.items() if name.endswith(TEMPLATES))
    codegen, kernels = total(CODEGEN), total(KERNELS)
    phases = [
        ("dynamo: tracing and guards", total(DYNAMO) - total(BACKEND)),
        ("AOTAutograd and joint graph passes", backend - inductor),
        ("Inductor: passes and lowering", inductor - codegen - kernels - templates),
        ("Inductor: code generation", codegen),
        ("compilation of kernels (C++, Triton)", kernels),
        ("autotuning", templates + total(AUTOTUNING)),
    ]
    return [(name, max(0.0, duration_s)) for name, duration_s in phases]


class CompileTimer:
    """Reads the timers of this process."""

    def __init__(self) -> None:
        self._before: Dict[str, float] = {}

    def read(self) -> Phases:
        """Return the phases since the last call."""
        now = _timers()
        new = {}
        for name, time_s in now.items():
            before_s = self._before.get(name, 0.0)
            new[name] = time_s - before_s if time_s >= before_s else time_s  # timers were reset
        self._before = now
        return phases_of(new)


def _timers() -> Dict[str, float]:
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    metrics = getattr(dynamo, "compilation_time_metrics", None) or {}
    return {str(name): float(sum(times)) for name, times in metrics.items()}


_NAME = re.compile(r"^(lib[A-Za-z0-9_+]+?)(?:-[\w.-]*)?\.so(?:\.([\d.]+))?$")
"""`libgomp-98df74fd.so.1.0.0`: the name and number without the digest that wheels add."""
_SAME = {"libopenblasp": "libopenblas", "libopenblaso": "libopenblas"}
"""Names of builds of one library with different threads."""
_OWN = ("libtorch", "libc10", "libshm", "libcaffe2")
"""Libraries of torch, whose version is that of torch."""
_TEXTS = {
    "libarm_compute": re.compile(rb"arm_compute_version=v?([\w.]+)"),
    "libdnnl": re.compile(rb"oneDNN v([\d.]+)"),
    "libgomp": re.compile(rb"GCC: \([^)]*\) ([\d.]+)"),
    "libomp": re.compile(rb"clang version ([\d.]+)"),
}
"""Text in the file of a library that contains its version, or that of its compiler."""
_PREFIXES = {"libgomp": "of GCC ", "libomp": "of clang "}

Primitive = Tuple[Optional[Unit], str, str]
"""Source operator (None if unknown), primitive and implementation: `matmul`, `gemm:acl`."""


def facts() -> Dict[str, Any]:
    """Return version and build settings of torch, and the libraries that are loaded now."""
    return {
        "torch": torch.__version__,
        "git": getattr(torch.version, "git_version", "") or "",
        "python": "%d.%d.%d" % sys.version_info[:3],
        "show": torch.__config__.show(),
        "parallel": torch.__config__.parallel_info(),
        "libraries": [list(one) for one in loaded_libraries()],
    }


def loaded_libraries() -> List[Tuple[str, str, int]]:
    """Return name, version and size of each shared library, without those of torch and Python modules."""
    paths = set()
    with contextlib.suppress(OSError), open("/proc/self/maps", errors="replace") as file:
        for line in file:
            words = line.rstrip("\n").split(None, 5)
            if words[5:] and words[5].startswith("/"):
                paths.add(words[5])
    libraries = []
    for path in paths:
        match = _NAME.match(os.path.basename(path))
        if match and not match.group(1).startswith(_OWN):
            name, number = _SAME.get(match.group(1), match.group(1)), match.group(2)
            with contextlib.suppress(OSError):
                size_bytes = os.path.getsize(path)
                libraries.append((name, _version(name, path) or number or "", size_bytes))
    return sorted(libraries)


def _version(name: str, path: str) -> str:
    """Return the version that a library reports or contains; empty if it is unknown."""
    if name == "libopenblas":
        with contextlib.suppress(OSError, AttributeError):
            report = ctypes.CDLL(path).openblas_get_config
            report.restype = ctypes.c_char_p
            return (report() or b"").decode("utf-8", "replace").replace("OpenBLAS ", "", 1).strip()
    pattern = _TEXTS.get(name)
    if pattern is not None:
        with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            match = pattern.search(content)
            if match:
                return _PREFIXES.get(name, "") + match.group(1).decode("ascii", "replace")
    return ""


class RedirectedOutput:
    """Stdout of the process, also that of C code, redirected to a file."""

    def __init__(self) -> None:
        self._c = ctypes.CDLL(None)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed at exit

    def __enter__(self) -> "RedirectedOutput":
        sys.stdout.flush()
        self._c.fflush(None)
        self._stdout = os.dup(1)
        os.dup2(self._file.fileno(), 1)
        return self

    def __exit__(self, *details: Any) -> None:
        self._c.fflush(None)
        os.dup2(self._stdout, 1)
        os.close(self._stdout)
        self._file.close()

    def new_lines(self) -> List[str]:
        """Return the lines since the last call."""
        self._c.fflush(None)
        end = os.lseek(self._file.fileno(), 0, os.SEEK_END)
        text = os.pread(self._file.fileno(), end, 0).decode("utf-8", "replace")
        os.ftruncate(self._file.fileno(), 0)
        os.lseek(self._file.fileno(), 0, os.SEEK_SET)
        return text.splitlines()


class PrimitiveRecorder(SourceRecorder):
    """Records which primitives of oneDNN each operator of eager code executes."""

    def __init__(self, module: Any, output: RedirectedOutput) -> None:
        super().__init__(module)
        self.primitives: List[Primitive] = []
        self._output = output

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        result = super().__torch_dispatch__(function, types, args, kwargs)
        unit = self.operators[-1].unit
        self.primitives += [(unit, *one) for one in executed(self._output.new_lines())]
        return result


def executed(lines: List[str]) -> Iterator[Tuple[str, str]]:
    """Yield primitive and implementation of each execution that oneDNN reports."""
    for line in lines:
        fields = line.split(",")
        if fields[0] in ("onednn_verbose", "dnnl_verbose") and "exec" in fields:
            start = fields.index("exec")
            if len(fields) > start + 3:
                yield fields[start + 2], fields[start + 3]


def primitives_of(runner: VariantRunner) -> List[Primitive]:
    """Run one iteration; return the primitives of oneDNN. Those of compiled code have no operator."""
    if not torch.backends.mkldnn.is_available():
        return []
    with runner.context(), RedirectedOutput() as output:
        call = runner.caller()
        with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
            if uses_dynamo(runner.backend):
                call()
                primitives: List[Primitive] = [(None, *one) for one in executed(output.new_lines())]
            else:
                with PrimitiveRecorder(runner.model.module, output) as recorder:
                    call()
                primitives = recorder.primitives
    runner.model.forget_gradients()
    return primitives
