"""State of the pytest process that a test must not change."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

MOST_GROWTH_BYTES = 2 << 30
"""How much private memory, used or only reserved, the tests of one file may leave behind. A block
larger than the machine's memory makes fork fail with ENOMEM, even when none of it is used."""

_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "user", "uts")
_SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2),
)
"""Not SIGCHLD: torch's DataLoader installs a handler when it is first used, and keeps it."""
_LIMITS = {
    name: getattr(resource, name)
    for name in ("RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_NPROC")
}


def process_state() -> dict[str, object]:
    """Namespaces, working folder, umask, signal handlers and mask, limits, priority, cores."""
    mask = os.umask(0o077)
    os.umask(mask)
    state: dict[str, object] = {"umask": oct(mask), "nice": os.nice(0)}
    try:
        state["working folder"] = Path.cwd()
    except FileNotFoundError:
        state["working folder"] = "deleted"
    for name in _NAMESPACES:
        try:
            state[f"{name} namespace"] = os.readlink(f"/proc/self/ns/{name}")  # noqa: PTH115
        except OSError:
            continue
    for number in _SIGNALS:
        state[f"handler of {number.name}"] = signal.getsignal(number)
    state["blocked signals"] = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    for name, number in _LIMITS.items():
        state[name] = resource.getrlimit(number)
    if hasattr(os, "sched_getaffinity"):
        state["cores"] = os.sched_getaffinity(0)
    return state


def differences(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """What changed, a line each."""
    return [
        f"{name}: {before[name]} before, {after.get(name)} after"
        for name in before
        if before[name] != after.get(name)
    ]


def private_bytes() -> int:
    """Private writable memory of this process, used or only reserved."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    return 0
