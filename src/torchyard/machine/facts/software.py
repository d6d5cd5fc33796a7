"""Kernel and software facts: kernel, virtualization, allocators, OpenMP, compilers, drivers.

Libraries are found in the loader's cache and in the usual directories, programs on PATH. Programs
are asked for their version on the running machine only, not for a copy of another machine.
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
    as_found,
    facts_of,
    in_words,
    line_of,
    of_file,
)
from torchyard.machine.knob import Machine
from torchyard.machine.model import Fact
from torchyard.machine.system.file_tree import FileTree, Found
from torchyard.machine.system.programs import find_program, run_program

KERNEL_SECTION: Final = "kernel"
_SYS: Final = "proc/sys/kernel"
_ON_OFF: Final = {"0": "off", "1": "on"}

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
"""What names of vendors and products say (lower case) -> who it is."""


def read_kernel(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(KERNEL_SECTION, KERNEL_READERS, machine.files)


def release(files: FileTree) -> Found:
    """The kernel's version."""
    return line_of(files, f"{_SYS}/osrelease")


def clock_source(files: FileTree) -> Found:
    """What clocks are read from."""
    return line_of(files, "sys/devices/system/clocksource/clocksource0/current_clocksource")


def virtualisation(files: FileTree) -> Found:
    """Who runs this machine as a guest, or `none seen`: a guest may be hidden well."""
    board = [
        line_of(files, f"sys/class/dmi/id/{name}").value or ""
        for name in ("sys_vendor", "product_name", "board_vendor")
    ]
    named = " ".join(board).lower()
    who = next((name for part, name in HYPERVISORS if part in named), "")
    if ".metal" in named:  # bare machines of Amazon carry the same vendor as its guests
        who = ""
    type_file = line_of(files, "sys/hypervisor/type").value or ""
    tree = files.read("proc/device-tree/compatible").value or ""
    if not who and type_file and type_file != "none":
        who = type_file
    if not who and "dummy-virt" in tree:
        who = "a hypervisor (linux,dummy-virt)"
    if not who and ("hypervisor" in flags(files) or files.exists("proc/device-tree/hypervisor")):
        who = "a hypervisor that does not say its name"
    if who:
        return Found(value=f"guest of {who}")
    if not files.exists("proc/cpuinfo"):
        return Found(because=files.read("proc/cpuinfo").because)
    return Found(value="none seen")


def _container(files: FileTree) -> Found:
    for path, name in ((".dockerenv", "Docker"), ("run/.containerenv", "Podman")):
        if files.exists(path):
            return Found(value=name)
    named = line_of(files, "run/systemd/container").value
    if named:
        return Found(value=named)
    return Found(value="none seen") if files.exists("proc") else Found(because="/proc is missing")


def _switch(name: str) -> Reader:
    return lambda files: in_words(
        line_of(files, f"{_SYS}/{name}"), lambda text: _ON_OFF.get(text, text)
    )


KERNEL_READERS: Final[dict[str, Reader]] = {
    "release": release,
    "clock source": clock_source,
    "virtualisation": virtualisation,
    "container": _container,
    "watchdog for hard lockups": _switch("nmi_watchdog"),
    "watchdog for soft lockups": _switch("soft_watchdog"),
    "statistics of memory every": lambda files: in_words(
        line_of(files, "proc/sys/vm/stat_interval"), lambda text: f"{int(text)} s"
    ),
    "timers move between processors": _switch("timer_migration"),
    "samples of perf at most": lambda files: in_words(
        line_of(files, f"{_SYS}/perf_event_max_sample_rate"), lambda text: f"{int(text)} per s"
    ),
    "time of perf at most": lambda files: in_words(
        line_of(files, f"{_SYS}/perf_cpu_time_max_percent"), lambda text: f"{int(text)} %"
    ),
    "perf for users": of_file(
        f"{_SYS}/perf_event_paranoid",
        {"-1": "everything", "0": "no raw tracepoints", "1": "no processors", "2": "own code only"},
    ),
    "real-time time at most": lambda files: in_words(
        line_of(files, f"{_SYS}/sched_rt_runtime_us"),
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
"""Program -> where its version stands in what `--version` prints."""
_ANSWER_LIMIT_S: Final = 10.0
_LIBRARY = re.compile(r"\.so(?:\.\d+)*$")


def read_software(machine: Machine) -> tuple[Fact, ...]:
    """The section; programs are asked at the same time, because some take a second."""
    with ThreadPoolExecutor(max_workers=len(PROGRAMS)) as pool:
        versions = pool.map(lambda name: program_version(machine.files, name), PROGRAMS)
        asked = [
            as_fact(SOFTWARE_SECTION, name, found)
            for name, found in zip(PROGRAMS, versions, strict=True)
        ]
    return (*facts_of(SOFTWARE_SECTION, SOFTWARE_READERS, machine.files), *asked)


def find_libraries(files: FileTree, names: tuple[str, ...]) -> tuple[str, ...]:
    """Paths of shared libraries of these names (`libgomp.so` finds `libgomp.so.1`)."""
    found: dict[str, None] = {}
    # The cache is binary; its texts are ended by zeros, so paths can be picked out of it.
    cache = files.read("etc/ld.so.cache").value or ""
    for text in cache.split("\0"):
        if text.startswith("/") and _is_one(text.rsplit("/", 1)[1], names):
            found[text] = None
    for folder in _FOLDERS:
        for name in names:
            for path in files.paths(f"{folder}/{name}*"):
                if _is_one(path.rsplit("/", 1)[1], names):
                    found[f"/{path}"] = None
    kept: dict[str, str] = {}
    for path in found:  # one of the several names that a file has
        kept.setdefault(os.path.realpath(files.path(path.lstrip("/"))), path)
    return tuple(sorted(kept.values()))


def program_version(files: FileTree, name: str) -> Found:
    """What a program of `PROGRAMS` says it is, and where it is."""
    if not files.live:
        return Found(because="this is a copy: programs are not asked")
    try:
        text = run_program(files, name, "--version", limit_s=_ANSWER_LIMIT_S)
    except TorchyardError as error:
        return Found(because=error.what)
    match = re.search(PROGRAMS[name], text)
    if match is None:
        return Found(because=f"`{name} --version` says no version: {text.strip()[:80]!r}")
    return Found(value=f"{match[1]} ({find_program(files, name)})")


def _is_one(file_name: str, names: tuple[str, ...]) -> bool:
    """Whether a file is one of the libraries and not a linker script, object or other library."""
    stem = _LIBRARY.sub(".so", file_name)
    return stem in names


def _found(names: tuple[str, ...]) -> Reader:
    def read_libraries(files: FileTree) -> Found:
        shown = [_with_target(files, path) for path in find_libraries(files, names)]
        return as_found(", ".join(shown), "none is in the loader's cache or the usual folders")

    return read_libraries


def _with_target(files: FileTree, path: str) -> str:
    """The path, with the file behind it when that tells more of the version."""
    target = os.path.realpath(files.path(path.lstrip("/"))).rsplit("/", 1)[-1]
    return path if path.endswith(target) else f"{path} ({target})"


def _c_library(files: FileTree) -> Found:
    if not files.live:
        return Found(because="this is a copy: programs are not asked")
    name, version = platform.libc_ver()
    return as_found(f"{name} {version}".strip(), "the C library does not say its version")


def _nvidia(files: FileTree) -> Found:
    found = line_of(files, "proc/driver/nvidia/version")
    if found.value is None:
        return found
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", found.value)
    return Found(value=match[1] if match else found.value)


def _allocators(files: FileTree) -> Found:
    """The C library's own is always there, and is what a process has without LD_PRELOAD."""
    own, others = _c_library(files), _found(ALLOCATORS)(files)
    shown = [f"of {own.value}"] if own.value else []
    shown += [others.value] if others.value else []
    return as_found(", ".join(shown), others.because)


SOFTWARE_READERS: Final[dict[str, Reader]] = {
    "C library": _c_library,
    "allocators": _allocators,
    "OpenMP runtimes": _found(OPENMP),
    "NVIDIA driver": _nvidia,
    "AMD driver": lambda files: line_of(files, "sys/module/amdgpu/version"),
}
