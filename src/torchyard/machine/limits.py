"""Read how many cores and how much memory this process may use: machine, control groups, Slurm job.

Reads /proc and /sys below a root directory that tests replace, and the Slurm variables of the job
that this process belongs to, because not every cluster enforces its limits with control groups.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["MachineLimits", "read_limits"]

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
    cores, cores_why = _cores(root)
    job_cores, job_bytes = _job(environ)
    if job_cores and job_cores < cores:
        cores, cores_why = job_cores, f"{_cores_text(job_cores)} (Slurm job)"
    total, available = _machine_memory(root)
    memory_why = "on this machine"
    for group in _groups(root, "memory"):
        limit = _group_limit(group)
        if limit is None:
            continue
        free = max(limit - _group_use(group), 0)
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


def _cores(root: Path) -> tuple[int, str]:
    allowed = _allowed_cores(_text(root / "proc/self/status"))
    online = sum(line.startswith("processor") for line in _lines(root / "proc/cpuinfo"))
    cores = allowed or online or 1
    why = _cores_text(cores)
    if online > cores:
        why = f"{cores} of {online} cores (affinity of this process)"
    quota = min(
        (group_quota for group_quota in map(_quota, _groups(root, "cpu")) if group_quota),
        default=None,
    )
    if quota is not None and quota < cores:
        # Rounded up: exceeding the quota by half a core waits a little, a core less is wasted.
        cores = max(int(-(-quota // 1)), 1)
        why = f"{_cores_text(cores)} (control group quota of {quota:.3g})"
    return cores, why


def _cores_text(cores: int) -> str:
    return "1 core" if cores == 1 else f"{cores} cores"


def _allowed_cores(status: str) -> int:
    for line in status.splitlines():
        if line.startswith("Cpus_allowed_list:"):
            ranges = [part.split("-") for part in line.split(":", 1)[1].strip().split(",") if part]
            try:
                return sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges)
            except ValueError:
                return 0
    return 0


def _job(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return cores and bytes of this node that belong to our Slurm job; 0: no limit."""
    if not environ.get("SLURM_JOB_ID"):
        return 0, 0
    names = ("SLURM_CPUS_ON_NODE", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU")
    words = [environ.get(name, "") for name in names]
    cores, node_mib, core_mib = (int(word) if word.isdecimal() else 0 for word in words)
    return cores, (node_mib or core_mib * cores) * _MIB_BYTES


def _machine_memory(root: Path) -> tuple[int, int]:
    facts: dict[str, int] = {}
    for line in _lines(root / "proc/meminfo"):
        name, _, rest = line.partition(":")
        number = rest.split()
        if number and number[0].isdigit():
            facts[name] = int(number[0]) * 1024
    total = facts.get("MemTotal", 0)
    # Kernels before 3.14 have no MemAvailable.
    available = facts.get("MemAvailable", facts.get("MemFree", 0) + facts.get("Cached", 0))
    return total, available


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups with a controller, innermost first.

    A container often sees its own group as the top of the tree, while /proc names it by the host's
    path. Folders that do not exist are therefore skipped, and the top is always included.
    """
    top = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        hierarchy, _, rest = line.partition(":")
        names, _, group = rest.partition(":")
        if hierarchy == "0":
            mounts = [top, top / "unified"]
        elif controller in names.split(","):
            mounts = [top / names, top / controller]
        else:
            continue
        parts = [part for part in group.split("/") if part not in ("", "..")]
        for mount in mounts:
            for depth in range(len(parts), -1, -1):
                folder = mount.joinpath(*parts[:depth])
                if folder.is_dir():
                    yield folder


def _group_limit(group: Path) -> int | None:
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limits = [limit for name in names if (limit := _number(group / name)) is not None]
    limit = min(limits, default=_NO_LIMIT_BYTES)
    return limit if limit < _NO_LIMIT_BYTES else None


def _group_use(group: Path) -> int:
    """Return the memory in use, without the file cache, which the kernel can reclaim."""
    for use_name, cache_name in (
        ("memory.current", "inactive_file"),
        ("memory.usage_in_bytes", "total_inactive_file"),
    ):
        use = _number(group / use_name)
        if use is None:
            continue
        for line in _lines(group / "memory.stat"):
            name, _, value = line.partition(" ")
            if name == cache_name and value.isdigit():
                return max(use - int(value), 0)
        return use
    return 0


def _quota(group: Path) -> float | None:
    words = _text(group / "cpu.max").split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):  # noqa: PLR2004 - "quota period"
        return int(words[0]) / int(words[1])
    quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
