"""CPU affinity, NUMA memory policy and memory layout of this process. Runs before torch is imported.

`place` applies the affinity and the memory policy of the environment; `shift` moves the heap by offsets
that the controller chooses, so that the memory layout is randomised between launches.
"""

import ctypes
import mmap
import os
import platform
from typing import Any, Callable, List, Mapping, Optional, Set

CORES = "TORCHYARD_CORES"
MEMORY = "TORCHYARD_MEMORY"

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
_POLICIES = {"bind": 2, "interleave": 3}
_BITS = 64
_MAX_NODES = 1024


class CannotPlace(Exception):
    """The affinity or the memory policy cannot be applied."""


def place(environment: Mapping[str, str]) -> None:
    """Bind this process and its children to the CPUs and NUMA nodes of the environment."""
    cores, memory = environment.get(CORES, ""), environment.get(MEMORY, "")
    try:
        if cores:
            os.sched_setaffinity(0, _numbers(cores))
        if memory:
            _set_policy(memory)
    except (OSError, ValueError) as error:
        raise CannotPlace(
            "cannot bind the process to cores %r and memory %r: %s" % (cores, memory, error)
        ) from error


def _numbers(text: str) -> Set[int]:
    numbers: Set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def _set_policy(text: str) -> None:
    name, _, nodes = text.partition(":")
    number = _SET_MEMPOLICY.get(platform.machine())
    if name not in _POLICIES or number is None:
        raise ValueError("unsupported memory policy on this machine: %s" % text)
    libc = ctypes.CDLL(None, use_errno=True)
    mask = _mask(_numbers(nodes))
    words = (ctypes.c_ulong * len(mask))(*mask)
    if libc.syscall(number, _POLICIES[name], words, ctypes.c_ulong(_MAX_NODES)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _mask(nodes: Set[int]) -> List[int]:
    words = [0] * (_MAX_NODES // _BITS)
    for node in nodes:
        if node >= _MAX_NODES:
            raise ValueError("there is no NUMA node %d" % node)
        words[node // _BITS] |= 1 << (node % _BITS)
    return words


_padding: List[Any] = []


def shift(pages: int, heap_bytes: int) -> None:
    """Shift later allocations: keep an untouched mapping and a heap block for the process's life."""
    if pages > 0:
        _padding.append(mmap.mmap(-1, pages * mmap.PAGESIZE))
    if heap_bytes > 0:
        _padding.append(bytearray(heap_bytes))


def call_deeper(stack_bytes: int, function: Callable[[], int]) -> int:
    """Call the function with the stack shifted by at least `stack_bytes`; any exception passes."""
    if stack_bytes <= 0:
        return function()

    class Padding(ctypes.Structure):  # passed by value, and thus on the stack
        _fields_ = (("padding", ctypes.c_char * stack_bytes),)

    outcome: List[Any] = []

    def call(_padding: Any) -> int:
        try:
            outcome.append(function())
        except BaseException as error:
            outcome.append(error)
        return 0

    ctypes.PYFUNCTYPE(ctypes.c_int, Padding)(call)(Padding())
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return int(outcome[0])


def randomisation_is_off() -> Optional[bool]:
    """Whether address space randomisation is off for this process; None: unknown."""
    try:
        with open("/proc/self/personality", encoding="ascii") as file:
            return bool(int(file.read(), 16) & 0x0040000)
    except (OSError, ValueError):
        return None


def trim_heap() -> bool:
    """Return free heap pages to the kernel, so that the next use gets other physical pages."""
    try:
        libc = ctypes.CDLL(None)
        libc.malloc_trim(ctypes.c_size_t(0))
    except (OSError, AttributeError):
        return False
    return True
