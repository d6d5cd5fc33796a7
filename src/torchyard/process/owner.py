"""Identify the process that owns a file or a setting, and tell whether it is still running.

A killed process cannot record that it ended, so readers have to check. The answer is definite
only on the same host and in the same PID namespace; elsewhere it is None. A PID is reused, so the
identity also holds the start time, the boot id and the namespace.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["is_alive", "is_gone", "owner_of", "this_process"]


def this_process() -> dict[str, object]:
    """What identifies this process for good; a number alone is used again."""
    return owner_of(os.getpid())


def owner_of(pid: int) -> dict[str, object]:
    """What identifies a process of this host and namespace."""
    return {
        "pid": pid,
        "started_ticks": _started_ticks(pid),
        "host": socket.gethostname(),
        "boot": _boot(),
        "namespace": _namespace(),
    }


def is_gone(owner: Mapping[str, Any]) -> bool:
    """Whether that process has certainly ended; False when this place cannot know."""
    return is_alive(owner) is False


def is_alive(owner: Mapping[str, Any]) -> bool | None:
    """Whether that process is there; None when this place cannot know."""
    pid = owner.get("pid")
    if not isinstance(pid, int) or owner.get("host") != socket.gethostname():
        return None
    if owner.get("boot") != _boot():
        return False
    if owner.get("namespace") != _namespace():
        return None
    ticks = _started_ticks(pid)
    return ticks is not None and ticks == owner.get("started_ticks")


def _started_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in brackets may hold spaces and brackets itself: fields count from the last one.
    fields = stat.rpartition(")")[2].split()
    dead = fields[0] in ("Z", "X")
    return None if dead else int(fields[19])


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
