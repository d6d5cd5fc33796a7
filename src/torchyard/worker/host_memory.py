"""Memory of the host that this process uses, and that it can still allocate."""

import os
import resource
from typing import Iterator, List, Optional


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
