"""What this machine is, read without root from /proc and /sys.

Everything is read below a root folder that tests can replace. What cannot be read is said as
"unavailable, because ...", never as a blank or a zero.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

__all__ = ["read_facts"]


def read_facts(root: Path = Path("/")) -> dict[str, str]:
    """Facts that belong beside every number."""
    cpu = root / "sys/devices/system/cpu"
    return {
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "cpu": _cpu_model(root),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": _memory(root),
        "load": _first_line(root / "proc/loadavg"),
        "governor": _first_line(cpu / "cpu0/cpufreq/scaling_governor"),
        "turbo off": _first_line(cpu / "intel_pstate/no_turbo"),
        "smt": _first_line(cpu / "smt/control"),
        "transparent huge pages": _first_line(root / "sys/kernel/mm/transparent_hugepage/enabled"),
        "address randomisation": _first_line(root / "proc/sys/kernel/randomize_va_space"),
    }


def _first_line(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        return f"unavailable, because {path.name}: {error.strerror or error}"
    return text.splitlines()[0] if text else f"unavailable, because {path.name} is empty"


def _cpu_model(root: Path) -> str:
    try:
        lines = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"unavailable, because cpuinfo: {error.strerror or error}"
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    if "model name" in fields:
        return fields["model name"]
    if "CPU part" in fields:
        return f"Arm implementer {fields.get('CPU implementer', '?')} part {fields['CPU part']}"
    return "unavailable, because cpuinfo names no model"


def _memory(root: Path) -> str:
    try:
        lines = (root / "proc/meminfo").read_text(encoding="utf-8", errors="replace").splitlines()
        kib = next(int(line.split()[1]) for line in lines if line.startswith("MemTotal:"))
    except (OSError, ValueError, StopIteration):
        return "unavailable, because meminfo has no MemTotal"
    return f"{kib / 2**20:.1f} GiB"
