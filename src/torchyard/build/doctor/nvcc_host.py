"""Check: nvcc accepts the host compiler that it is going to be used with."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from torchyard.build.coupling import host_clang_limit, host_gcc_limit
from torchyard.build.doctor.patient import Check, Patient
from torchyard.build.tools import Tool
from torchyard.core.doctor_finding import DoctorFinding

__all__ = ["CHECK"]

_NAMED_BY: Final = ("CUDAHOSTCXX", "CMAKE_CUDA_HOST_COMPILER", "CUDA_HOST_COMPILER", "NVCC_CCBIN")
_FLAGS: Final = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "TORCH_NVCC_FLAGS", "CUDAFLAGS")
_OVERRIDE: Final = "-allow-unsupported-compiler"


def _examine(patient: Patient) -> Iterator[DoctorFinding]:
    if not patient.wants_cuda or patient.tools_come_later:
        return
    nvcc, host = patient.nvcc, _host(patient)
    if nvcc is None or host is None or not nvcc.version or not host.version:
        return
    limit = (host_clang_limit if host.family == "clang" else host_gcc_limit)(nvcc.version)
    major = int(host.version.split(".")[0])
    if limit is None or major <= limit:
        return
    overridden = any(_OVERRIDE in patient.variables.get(name, "") for name in _FLAGS)
    older = _older(patient, host, limit)
    yield DoctorFinding(
        check=CHECK.name,
        severity="warns" if overridden else "blocks",
        what=f"nvcc {nvcc.version} does not accept {host.family} {host.version} ({host.path})",
        why=f"the newest it takes is {host.family} {limit}; `unsupported GNU version!` would be"
        f" the end{', but ' + _OVERRIDE + ' is set' if overridden else ''}",
        mend=f"export CUDAHOSTCXX={shlex.quote(older.path)}"
        if older
        else f"apt-get install g++-{limit} && export CUDAHOSTCXX=/usr/bin/g++-{limit}",
    )


def _host(patient: Patient) -> Tool | None:
    """The compiler nvcc hands host code to."""
    for name in _NAMED_BY:
        if patient.variables.get(name):
            return patient.toolbox.find(patient.variables[name])
    return patient.cxx


def _older(patient: Patient, host: Tool, limit: int) -> Tool | None:
    program = "clang++" if host.family == "clang" else "g++"
    lowest = 9
    for major in range(limit, lowest - 1, -1):
        tool = patient.toolbox.find(f"{program}-{major}")
        if tool is not None:
            return tool
    return None


CHECK = Check(name="nvcc-host", looks_at="nvcc and its host compiler", run=_examine)
