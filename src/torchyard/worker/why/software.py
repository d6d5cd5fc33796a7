"""Software that a variant runs on: torch's build settings, loaded libraries, calls of oneDNN.

oneDNN reports each primitive that it executes on stdout (its verbose mode). One iteration runs with
stdout redirected to a file, and what an operator adds to the file is its evidence.
"""

import contextlib
import ctypes
import mmap
import os
import re
import sys
import tempfile
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

from torchyard.worker.bench.backend_names import uses_dynamo
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.why.sources import SourceRecorder, Unit

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
