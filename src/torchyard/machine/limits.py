"""Read how many cores and how much memory this process may use: machine, control groups, Slurm job.

Reads /proc and /sys below a root directory that tests replace, and the Slurm variables of the job
that this process belongs to, because not every cluster enforces its limits with control groups.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.core.units import format_count
from torchyard.machine.facts.isolation import group_quota, own_groups
from torchyard.machine.facts.memory import amount_kib
from torchyard.machine.system.file_tree import FileTree, Reading
from torchyard.machine.system.tasks import read_allowed

_MIB_BYTES: Final = 1 << 20
_NO_LIMIT_BYTES: Final = 1 << 60
"""cgroup v1 writes almost 2**63 for "no limit"."""


@dataclass(frozen=True, kw_only=True)
class MachineLimits:
    """Cores and memory that this process may use."""

    cores: int
    """Whole cores, at least one, after affinity, quota and job."""
    total_mib: int
    """Memory of the machine, or the lower limit of the control group or the job."""
    available_mib: int
    """Memory that can be allocated now without swapping."""
    cores_why: str
    memory_why: str


def read_limits(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> MachineLimits:
    """Read the limits from the files below `root` and the Slurm variables of the job."""
    files = FileTree(root)
    cores, cores_why = _cores(files)
    job_cores, job_bytes = _job(environ)
    if job_cores and job_cores < cores:
        cores, cores_why = job_cores, f"{format_count(job_cores, 'core')} (Slurm job)"
    total, available = _machine_memory(files)
    memory_why = "on this machine"
    for group in own_groups(files, "memory"):
        limit = _group_limit(files, group)
        if limit is None:
            continue
        free = max(limit - _group_use(files, group), 0)
        if limit < total:
            total, memory_why = limit, "in the control group"
        if free < available:
            available, memory_why = free, "in the control group"
    if job_bytes and job_bytes < total:
        total, memory_why = job_bytes, "in the Slurm job"
        available = min(available, total)
    return MachineLimits(
        cores=cores,
        total_mib=total // _MIB_BYTES,
        available_mib=available // _MIB_BYTES,
        cores_why=cores_why,
        memory_why=memory_why,
    )


def _cores(files: FileTree) -> tuple[int, str]:
    allowed = len(Reading(value=read_allowed(files, "self")).cpus)
    online = sum(
        line.startswith("processor") for line in files.read("proc/cpuinfo").text.splitlines()
    )
    cores = allowed or online or 1
    why = format_count(cores, "core")
    if online > cores:
        why = f"{cores} of {online} cores (affinity of this process)"
    quotas = (group_quota(files, group) for group in own_groups(files, "cpu"))
    quota = min((group_quota for group_quota in quotas if group_quota), default=None)
    if quota is not None and quota < cores:
        # Rounded up: exceeding the quota by half a core waits a little, a core less is wasted.
        cores = max(int(-(-quota // 1)), 1)
        why = f"{format_count(cores, 'core')} (control group quota of {quota:.3g})"
    return cores, why


def _job(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return cores and bytes of this node that belong to our Slurm job; 0: no limit."""
    if not environ.get("SLURM_JOB_ID"):
        return 0, 0
    names = ("SLURM_CPUS_ON_NODE", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU")
    words = [environ.get(name, "") for name in names]
    cores, node_mib, core_mib = (int(word) if word.isdecimal() else 0 for word in words)
    return cores, (node_mib or core_mib * cores) * _MIB_BYTES


def _machine_memory(files: FileTree) -> tuple[int, int]:
    total, available, free, cached = (
        (amount_kib(files, name) or 0) * 1024
        for name in ("MemTotal", "MemAvailable", "MemFree", "Cached")
    )
    # Kernels before 3.14 have no MemAvailable.
    return total, available or free + cached


def _group_limit(files: FileTree, group: str) -> int | None:
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    numbers = (files.read(f"{group}/{name}").number for name in names)
    limit = min((number for number in numbers if number is not None), default=_NO_LIMIT_BYTES)
    return limit if limit < _NO_LIMIT_BYTES else None


def _group_use(files: FileTree, group: str) -> int:
    """Return the memory in use, without the file cache, which the kernel can reclaim."""
    for use_name, cache_name in (
        ("memory.current", "inactive_file"),
        ("memory.usage_in_bytes", "total_inactive_file"),
    ):
        use = files.read(f"{group}/{use_name}").number
        if use is None:
            continue
        for line in files.read(f"{group}/memory.stat").text.splitlines():
            name, _, value = line.partition(" ")
            if name == cache_name and value.isdigit():
                return max(use - int(value), 0)
        return use
    return 0
