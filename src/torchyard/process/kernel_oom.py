"""Whether the kernel has ended processes for lack of memory: counters before and after.

The kernel's out-of-memory killer sends a plain SIGKILL; that it did so shows only in counters, of
the whole machine and of the control group. They count other processes too, so that a worker that
somebody ended with kill -9 while another died for memory is taken for out of memory as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["oom_kill_counts"]

_CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")


def oom_kill_counts() -> tuple[int, ...]:
    """The counters that can be read here; one that moved means the killer was at work."""
    files = (Path("/proc/vmstat"), *_own_group_files())
    counts = (_oom_kills(file) for file in files)
    return tuple(count for count in counts if count is not None)


def _own_group_files() -> list[Path]:
    """`memory.events` of version 2 and `memory.oom_control` of version 1 of control groups."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files: list[Path] = []
    for line in lines:
        hierarchy, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        relative = group.lstrip("/")
        if hierarchy == "0":
            files.append(_CONTROL_GROUPS / relative / "memory.events")
            files.append(_CONTROL_GROUPS / "memory.events")  # seen from inside a container
        elif "memory" in controllers.split(","):
            files.append(_CONTROL_GROUPS / "memory" / relative / "memory.oom_control")
            files.append(_CONTROL_GROUPS / "memory" / "memory.oom_control")
    return files


def _oom_kills(file: Path) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.strip().isdigit():
            return int(count)
    return None
