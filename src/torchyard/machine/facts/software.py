"""Kernel and software facts: kernel, virtualization, allocators, OpenMP, compilers, drivers.

Libraries are found in the loader's cache and in the usual directories, programs on PATH. Programs
are run for their version on the live machine only, not for a copy of another machine.
"""

from __future__ import annotations

import os
import platform
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from torchyard.errors import TorchyardError
from torchyard.machine.facts.processor import flags
from torchyard.machine.facts.reading import (
    Reader,
    as_fact,
    as_reading,
    facts_of,
    file_reader,
    line_of,
    line_reader,
    switch_reader,
)
from torchyard.machine.knob import Machine
from torchyard.machine.model import Fact
from torchyard.machine.system.file_tree import FileTree, Reading, find_program, run_program

GUEST_OF: Final = "guest of "
"""Start of `virtualisation` in a virtual machine; recorded in runs."""
_SYS: Final = "proc/sys/kernel"

HYPERVISORS: Final = (
    ("qemu", "QEMU"),
    ("kvm", "KVM"),
    ("amazon ec2", "Amazon EC2"),
    ("google compute engine", "Google Compute Engine"),
    ("virtual machine", "Hyper-V"),
    ("vmware", "VMware"),
    ("virtualbox", "VirtualBox"),
    ("openstack", "OpenStack"),
    ("xen", "Xen"),
    ("parallels", "Parallels"),
    ("bhyve", "bhyve"),
)
"""(part of a vendor or product name in lower case, hypervisor)"""


release: Final = line_reader(f"{_SYS}/osrelease")
clock_source: Final = line_reader("sys/devices/system/clocksource/clocksource0/current_clocksource")


def virtualisation(files: FileTree) -> Reading:
    """Return the hypervisor of this guest, or `none seen`: a hypervisor may hide itself."""
    board = [
        line_of(files, f"sys/class/dmi/id/{name}").value or ""
        for name in ("sys_vendor", "product_name", "board_vendor")
    ]
    board_text = " ".join(board).lower()
    hypervisor = next((name for part, name in HYPERVISORS if part in board_text), "")
    if ".metal" in board_text:  # Amazon's bare-metal instances have the same vendor as its guests
        hypervisor = ""
    type_file = line_of(files, "sys/hypervisor/type").value or ""
    tree = files.read("proc/device-tree/compatible").text
    if not hypervisor and type_file and type_file != "none":
        hypervisor = type_file
    if not hypervisor and "dummy-virt" in tree:
        hypervisor = "a hypervisor (linux,dummy-virt)"
    if not hypervisor and (
        "hypervisor" in flags(files) or files.exists("proc/device-tree/hypervisor")
    ):
        hypervisor = "a hypervisor that does not say its name"
    if hypervisor:
        return Reading(value=f"{GUEST_OF}{hypervisor}")
    if not files.exists("proc/cpuinfo"):
        return Reading(because=files.read("proc/cpuinfo").because)
    return Reading(value="none seen")


def _container(files: FileTree) -> Reading:
    for path, name in ((".dockerenv", "Docker"), ("run/.containerenv", "Podman")):
        if files.exists(path):
            return Reading(value=name)
    container = line_of(files, "run/systemd/container").value
    if container:
        return Reading(value=container)
    return (
        Reading(value="none seen") if files.exists("proc") else Reading(because="/proc is missing")
    )


KERNEL: Final[dict[str, Reader]] = {
    "release": release,
    "clock source": clock_source,
    "virtualization": virtualisation,
    "container": _container,
    "hard lockup watchdog": switch_reader(f"{_SYS}/nmi_watchdog"),
    "soft lockup watchdog": switch_reader(f"{_SYS}/soft_watchdog"),
    "memory statistics interval": line_reader(
        "proc/sys/vm/stat_interval", lambda text: f"{int(text)} s"
    ),
    "timer migration": switch_reader(f"{_SYS}/timer_migration"),
    "perf sample rate limit": line_reader(
        f"{_SYS}/perf_event_max_sample_rate", lambda text: f"{int(text)} per s"
    ),
    "perf CPU time limit": line_reader(
        f"{_SYS}/perf_cpu_time_max_percent", lambda text: f"{int(text)} %"
    ),
    "perf for unprivileged users": file_reader(
        f"{_SYS}/perf_event_paranoid",
        {"-1": "all", "0": "no raw tracepoints", "1": "no CPU events", "2": "user space only"},
    ),
    "real-time scheduling limit": line_reader(
        f"{_SYS}/sched_rt_runtime_us",
        lambda text: "no limit" if text == "-1" else f"{int(text) / 1e4:g} % of a second",
    ),
}


SOFTWARE_SECTION: Final = "software"

ALLOCATORS: Final = ("libtcmalloc.so", "libtcmalloc_minimal.so", "libjemalloc.so", "libmimalloc.so")
OPENMP: Final = ("libgomp.so", "libomp.so", "libiomp5.so")
_FOLDERS: Final = (
    *("usr/lib", "usr/lib64", "usr/local/lib", "usr/lib/*-linux-gnu*", "usr/lib/llvm-*/lib"),
    *("opt/intel/oneapi/compiler/*/lib", "opt/intel/oneapi/compiler/*/linux/compiler/lib/intel64"),
)

PROGRAMS: Final = {
    "gcc": r"\) ([\d.]+)",
    "g++": r"\) ([\d.]+)",
    "clang": r"clang version (\S+)",
    "nvcc": r"release [\d.]+, V([\d.]+)",
    "hipcc": r"HIP version: (\S+)",
    "cmake": r"cmake version (\S+)",
}
"""Program -> pattern of its version in the output of `--version`."""
_ANSWER_LIMIT_S: Final = 10.0
_LIBRARY = re.compile(r"\.so(?:\.\d+)*$")


def read_software(machine: Machine) -> tuple[Fact, ...]:
    """Read the section; programs run in parallel, because some take a second."""
    with ThreadPoolExecutor(max_workers=len(PROGRAMS)) as pool:
        versions = pool.map(lambda name: program_version(machine.files, name), PROGRAMS)
        programs = [
            as_fact(SOFTWARE_SECTION, name, version)
            for name, version in zip(PROGRAMS, versions, strict=True)
        ]
    return (*facts_of(SOFTWARE_SECTION, SOFTWARE_READERS, machine.files), *programs)


def find_libraries(files: FileTree, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths of shared libraries by name (`libgomp.so` finds `libgomp.so.1`)."""
    paths: dict[str, None] = {}
    # The cache is binary, with zero-terminated strings, so paths can be extracted from it.
    cache = files.read("etc/ld.so.cache").text
    for text in cache.split("\0"):
        if text.startswith("/") and _is_one(text.rsplit("/", 1)[1], names):
            paths[text] = None
    for folder in _FOLDERS:
        for name in names:
            for path in files.paths(f"{folder}/{name}*"):
                if _is_one(path.rsplit("/", 1)[1], names):
                    paths[f"/{path}"] = None
    path_by_target: dict[str, str] = {}
    for path in paths:  # keep one name of each file
        path_by_target.setdefault(os.path.realpath(files.path(path.lstrip("/"))), path)
    return tuple(sorted(path_by_target.values()))


def program_version(files: FileTree, name: str) -> Reading:
    """Return the version and path of a program of `PROGRAMS`."""
    if not files.live:
        return Reading(because="this is a copy: programs are not run")
    try:
        text = run_program(files, name, "--version", limit_s=_ANSWER_LIMIT_S)
    except TorchyardError as error:
        return Reading(because=error.what)
    match = re.search(PROGRAMS[name], text)
    if match is None:
        return Reading(because=f"`{name} --version` prints no version: {text.strip()[:80]!r}")
    return Reading(value=f"{match[1]} ({find_program(files, name)})")


def _is_one(file_name: str, names: tuple[str, ...]) -> bool:
    """Whether a file name is one of the libraries, not a linker script or another library."""
    stem = _LIBRARY.sub(".so", file_name)
    return stem in names


def _library_reader(names: tuple[str, ...]) -> Reader:
    def read_libraries(files: FileTree) -> Reading:
        shown = [_with_target(files, path) for path in find_libraries(files, names)]
        return as_reading(", ".join(shown), "none in the loader's cache or the usual directories")

    return read_libraries


def _with_target(files: FileTree, path: str) -> str:
    """Return the path, with the symlink's target if that contains the version."""
    target = os.path.realpath(files.path(path.lstrip("/"))).rsplit("/", 1)[-1]
    return path if path.endswith(target) else f"{path} ({target})"


def _c_library(files: FileTree) -> Reading:
    if not files.live:
        return Reading(because="this is a copy: programs are not run")
    name, version = platform.libc_ver()
    return as_reading(f"{name} {version}".strip(), "the C library does not report its version")


def _nvidia(files: FileTree) -> Reading:
    reading = line_of(files, "proc/driver/nvidia/version")
    if reading.value is None:
        return reading
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", reading.value)
    return Reading(value=match[1] if match else reading.value)


def _allocators(files: FileTree) -> Reading:
    """List allocators; that of the C library is the default without LD_PRELOAD."""
    own, others = _c_library(files), _library_reader(ALLOCATORS)(files)
    shown = [own.value] if own.value else []
    shown += [others.value] if others.value else []
    return as_reading(", ".join(shown), others.because)


SOFTWARE_READERS: Final[dict[str, Reader]] = {
    "C library": _c_library,
    "allocators": _allocators,
    "OpenMP runtimes": _library_reader(OPENMP),
    "NVIDIA driver": _nvidia,
    "AMD driver": line_reader("sys/module/amdgpu/version"),
}
