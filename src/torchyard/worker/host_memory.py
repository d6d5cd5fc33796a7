"""Memory of the host that this process uses and can still allocate, and the caches of its CPUs."""

import os
import resource
from typing import Dict, Iterator, List, Optional


def status_bytes(name: str) -> Optional[int]:
    """Return a size of this process from /proc, such as VmRSS or VmHWM."""
    return _field("/proc/self/status", name)


def allocatable_bytes() -> Optional[int]:
    """Return the bytes that can be allocated: the minimum of machine, cgroup and process limits."""
    return min(_host_limits(), default=None)


def _host_limits() -> Iterator[int]:
    available = _field("/proc/meminfo", "MemAvailable")
    if available is not None:
        yield available
    for folder in _control_groups():
        limit, used = (_number(os.path.join(folder, name)) for name in _GROUP_FILES)
        if limit is not None and used is not None:
            yield max(0, limit - used)
    for kind, field in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft, _ = resource.getrlimit(kind)
        used = status_bytes(field)
        if soft != resource.RLIM_INFINITY and used is not None:
            yield max(0, soft - used)


_GROUP_FILES = ("memory.max", "memory.current")


def _control_groups() -> List[str]:
    """Return this process's cgroup (v2) and its ancestors: each may have a limit."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except OSError:
        return []
    path = next((line[3:] for line in lines if line.startswith("0::")), "").strip("/")
    parts = path.split("/") if path else []
    return ["/sys/fs/cgroup/" + "/".join(parts[:end]) for end in range(len(parts), -1, -1)]


def _field(path: str, name: str) -> Optional[int]:
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.startswith(name + ":"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def _number(path: str) -> Optional[int]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def cache_sizes() -> Dict[str, int]:
    """Return the bytes of each cache of the CPUs that this process may use, as `LEVEL of CPUS`."""
    sizes: Dict[str, int] = {}
    for cpu in os.sched_getaffinity(0):
        folder = "/sys/devices/system/cpu/cpu%d/cache" % cpu
        try:
            for index in os.listdir(folder):
                if index.startswith("index"):
                    place = os.path.join(folder, index)
                    # A cache shared by several CPUs is counted once.
                    name = _read(place, "level") + " of " + _read(place, "shared_cpu_list")
                    sizes[name] = bytes_of(_read(place, "size"))
        except (OSError, ValueError):
            continue
    return sizes


def _read(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read().strip()


def bytes_of(text: str) -> int:
    """Return the bytes of a size in the kernel's format, such as `32768K`."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    unit = text[-1:]
    return int(text[:-1]) * units[unit] if unit in units else int(text or 0)
