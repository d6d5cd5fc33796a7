"""Where this process computes and gets memory, as its environment says. Before torch is imported.

The runtime of OpenMP looks at the processors that it may use when it is loaded, and memory stays where
it was first touched, so both are settled first.
"""

import ctypes
import os
import platform
from typing import List, Mapping, Set

CORES = "TORCHYARD_CORES"
MEMORY = "TORCHYARD_MEMORY"

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
_POLICIES = {"bind": 2, "interleave": 3}
_BITS = 64
_MOST_NODES = 1024


class CannotPlace(Exception):
    """The kernel, or what was asked for, does not allow it."""


def place(environment: Mapping[str, str]) -> None:
    """Keep this process, and what it will start, to processors and NUMA nodes."""
    cores, memory = environment.get(CORES, ""), environment.get(MEMORY, "")
    try:
        if cores:
            os.sched_setaffinity(0, _numbers(cores))
        if memory:
            _set_policy(memory)
    except (OSError, ValueError) as error:
        raise CannotPlace(
            "the process cannot be put on cores %r and memory %r: %s" % (cores, memory, error)
        ) from error


def _numbers(text: str) -> Set[int]:
    found: Set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _set_policy(text: str) -> None:
    name, _, nodes = text.partition(":")
    number = _SET_MEMPOLICY.get(platform.machine())
    if name not in _POLICIES or number is None:
        raise ValueError("no such policy of memory on this machine: %s" % text)
    libc = ctypes.CDLL(None, use_errno=True)
    mask = _mask(_numbers(nodes))
    words = (ctypes.c_ulong * len(mask))(*mask)
    if libc.syscall(number, _POLICIES[name], words, ctypes.c_ulong(_MOST_NODES)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _mask(nodes: Set[int]) -> List[int]:
    words = [0] * (_MOST_NODES // _BITS)
    for node in nodes:
        if node >= _MOST_NODES:
            raise ValueError("there is no NUMA node %d" % node)
        words[node // _BITS] |= 1 << (node % _BITS)
    return words
