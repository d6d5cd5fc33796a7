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


def this_process() -> dict[str, object]:
    """Return the identity of this process; a PID alone is reused."""
    return owner_of(os.getpid())


def owner_of(pid: int) -> dict[str, object]:
    """Return the identity of a process of this host and namespace."""
    return {
        "pid": pid,
        "started_ticks": start_ticks(pid),
        "host": socket.gethostname(),
        "boot": _boot_id(),
        "namespace": pid_namespace(),
    }


def is_gone(owner: object) -> bool:
    """Whether the process has certainly ended; False when that cannot be determined here."""
    return is_alive(owner) is False


def is_alive(owner: object) -> bool | None:
    """Whether the process of an identity runs; None when that cannot be determined here."""
    if not isinstance(owner, Mapping):
        return None
    pid = owner.get("pid")
    if not isinstance(pid, int) or owner.get("host") != socket.gethostname():
        return None
    if owner.get("boot") != _boot_id():
        return False
    if owner.get("namespace") != pid_namespace():
        return None
    ticks = start_ticks(pid)
    return ticks is not None and ticks == owner.get("started_ticks")


def start_ticks(pid: int) -> int | None:
    """Return the start time in clock ticks since boot; None when the process is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command name in parentheses may itself contain spaces and parentheses.
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """Return the PID namespace of this process, such as `pid:[4026531836]`; empty when unknown."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
