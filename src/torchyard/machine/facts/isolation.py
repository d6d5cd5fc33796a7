"""CPU isolation facts: kernel command line, cpusets, process limits, interrupt affinity.

`read_limits` says how many cores and how much memory this process may use: machine, control groups, and
the Slurm variables of its job, because not every cluster enforces its limits with control groups.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

from torchyard.core.cpu_lists import cpu_list, cpus_of_list, cpus_of_mask
from torchyard.core.units import format_count
from torchyard.machine.facts.memory import amount_kib
from torchyard.machine.facts.reading import Reader, in_words, line_reader, processors
from torchyard.machine.system.file_tree import CPU, FileTree, Reading
from torchyard.machine.system.tasks import group_mounts, read_allowed
from torchyard.process.timing_turn import RESERVED_VARIABLE

NOISE_PARAMETERS: Final = (
    *("isolcpus", "nohz_full", "rcu_nocbs", "irqaffinity", "skew_tick", "nohz"),
    *("nosmt", "maxcpus", "mitigations", "idle", "intel_idle.max_cstate"),
    *("processor.max_cstate", "cpuidle.off", "intel_pstate", "amd_pstate", "cpufreq.off"),
    *("transparent_hugepage", "hugepages", "default_hugepagesz", "numa_balancing", "numa"),
    *("nmi_watchdog", "nowatchdog", "clocksource", "tsc", "preempt", "threadirqs", "psi"),
)
"""Kernel parameters that affect speed or noise."""


boot_line: Final = line_reader("proc/cmdline")


def boot_values(files: FileTree) -> dict[str, str]:
    """Return parameter -> value; the last of each counts, and flags have an empty value."""
    values: dict[str, str] = {}
    for word in (boot_line(files).value or "").split():
        if word == "--":  # the rest is for init
            break
        name, _, value = word.partition("=")
        values[name.replace("-", "_")] = value
    return values


def noise_parameters(files: FileTree) -> Reading:
    """Return the parameters of `NOISE_PARAMETERS` that are on the command line."""
    reading = boot_line(files)
    if reading.value is None:
        return reading
    values = boot_values(files)
    shown = [f"{n}={values[n]}" if values[n] else n for n in NOISE_PARAMETERS if n in values]
    return Reading(value=" ".join(shown) or "none that affects noise")


_STATUS: Final = "proc/self/status"
_NO_GROUP: Final = "this process is in no mounted control group"


def allowed(files: FileTree) -> Reading:
    """Return the CPUs that this process may use, as a list, with those reserved for its timed workers."""
    reserved = cpus_of_list(os.environ.get(RESERVED_VARIABLE, "")) if files.live else ()
    reading = files.read(_STATUS)
    listed = reading.fields.get("Cpus_allowed_list")
    if listed is None and files.live:  # some sandboxes omit the line
        return Reading(value=cpu_list((*os.sched_getaffinity(0), *reserved)))
    if listed is None:
        return Reading(because=reading.because or f"/{_STATUS} has no Cpus_allowed_list")
    return in_words(Reading(value=listed), lambda text: cpu_list((*cpus_of_list(text), *reserved)))


def isolated_cpus(files: FileTree) -> tuple[int, ...]:
    """Return the CPUs without load balancing: isolated at boot, and in isolated partitions."""
    at_boot = files.read(f"{CPU}/isolated").cpus
    root = group_mounts(files).get("cgroup2")
    at_run_time = files.read(f"{root}/cpuset.cpus.isolated").cpus if root else ()
    return tuple(sorted({*at_boot, *at_run_time}))


def isolated_text(files: FileTree) -> Reading:
    """Return the isolated CPUs as a list, or `none`."""
    if files.read(f"{CPU}/isolated").value is None:
        return files.read(f"{CPU}/isolated")
    return Reading(value=cpu_list(isolated_cpus(files)) or "none")


def group_version(files: FileTree) -> Reading:
    """Return the control group version of cpusets."""
    mounts = group_mounts(files)
    if "cpuset" in mounts:
        return Reading(value="1" + (" (version 2 is also mounted)" if "cgroup2" in mounts else ""))
    if "cgroup2" in mounts:
        return Reading(value="2")
    reading = files.read("proc/mounts")
    return Reading(because=reading.because or "/proc/mounts has no control groups")


def own_groups(files: FileTree, controller: str) -> tuple[str, ...]:
    """Return the folders of this process's groups with a controller, and of their parents.

    A container often sees its own group as the top of the tree, while /proc names it by the host's
    path. Folders that do not exist are therefore skipped, and the top is always included.
    """
    mounts, top = group_mounts(files), "sys/fs/cgroup"
    folders: list[str] = []
    for line in files.read("proc/self/cgroup").text.splitlines():
        hierarchy, names, path = (line + "::").split(":", 2)
        if hierarchy == "0":
            places = [mounts.get("cgroup2", top), f"{top}/unified"]
        elif controller in names.split(","):
            places = [mounts.get(controller, f"{top}/{controller}"), f"{top}/{names}"]
        else:
            continue
        steps = [step for step in path.removesuffix("::").split("/") if step not in ("", "..")]
        folders += [
            "/".join((place, *steps[:count]))
            for place in places
            for count in range(len(steps), -1, -1)
        ]
    return tuple(folder for folder in dict.fromkeys(folders) if files.exists(folder))


def group_quota(files: FileTree, group: str) -> float | None:
    """Return the CPU quota of one group as a number of CPUs; None if it has none."""
    quota, _, period = files.read(f"{group}/cpu.max").text.partition(" ")
    if not quota:
        quota = files.read(f"{group}/cpu.cfs_quota_us").text
        period = files.read(f"{group}/cpu.cfs_period_us").text
    if not quota.isdecimal() or not period.strip().isdecimal() or not int(period):
        return None
    return int(quota) / int(period)


def quota_processors(files: FileTree) -> Reading:
    """Return the CPU quota of this process's groups as a number of CPUs, or `all`."""
    groups = own_groups(files, "cpu")
    if not groups:
        return Reading(because=_NO_GROUP)
    quotas = [quota for group in groups if (quota := group_quota(files, group)) is not None]
    return Reading(value=f"{min(quotas):g}" if quotas else "all")


def _group(files: FileTree) -> Reading:
    groups = own_groups(files, "cpuset")
    return Reading(value=f"/{groups[0]}") if groups else Reading(because=_NO_GROUP)


def _of_group(*names: str) -> Reader:
    """Return a reader of the first existing file in this process's group."""

    def read_file(files: FileTree) -> Reading:
        groups = own_groups(files, "cpuset")
        if not groups:
            return Reading(because=_NO_GROUP)
        for name in names:
            reading = files.read(f"{groups[0]}/{name}")
            if reading.value is not None:
                return Reading(value=reading.value.strip() or "none")
        return Reading(because=f"/{groups[0]} has no {names[0]}: it is the root, or has no cpuset")

    return read_file


def _rcu(files: FileTree) -> Reading:
    if files.read("proc/cmdline").value is None:
        return files.read("proc/cmdline")
    values = boot_values(files)
    if "rcu_nocbs" not in values:
        return Reading(value="none")
    return Reading(value=values["rcu_nocbs"] or "all")


def _partitions(files: FileTree) -> Reading:
    root = group_mounts(files).get("cgroup2")
    if root is None:
        return Reading(because="control groups of version 2 are not mounted")
    return processors(f"{root}/cpuset.cpus.isolated")(files)


ISOLATION: Final[dict[str, Reader]] = {
    "isolated at boot": processors(f"{CPU}/isolated"),
    "no timer ticks (nohz_full)": processors(f"{CPU}/nohz_full"),
    "no RCU callbacks (rcu_nocbs)": _rcu,
    "isolated at run time": _partitions,
    "kernel parameters": noise_parameters,
    "CPUs of this process": allowed,
    "control group version": group_version,
    "control group of this process": _group,
    "cpuset of this process": _of_group(
        "cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"
    ),
    "partition of this process": _of_group("cpuset.cpus.partition"),
    "CPU quota": quota_processors,
    "unbound workqueues": line_reader(
        "sys/devices/virtual/workqueue/cpumask", lambda text: cpu_list(cpus_of_mask(text))
    ),
}


_IRQ: Final = "proc/irq"
_BUSIEST: Final = 3


def placement(files: FileTree) -> dict[str, tuple[int, ...]]:
    """Return interrupt -> CPUs that handle it now, without unused interrupts."""
    counts = _counts(files)
    placements: dict[str, tuple[int, ...]] = {}
    for number in files.names(_IRQ):
        if number.isdecimal() and (not counts or any(counts.get(number, ()))):
            effective = files.read(f"{_IRQ}/{number}/effective_affinity_list")
            if not (effective.value or "").strip():
                effective = files.read(f"{_IRQ}/{number}/smp_affinity_list")
            if cpus := effective.cpus:
                placements[number] = cpus
    return placements


def balancer(files: FileTree) -> Reading:
    """Return the process of irqbalance, or `not running`."""
    if not files.exists("proc"):
        return Reading(because="/proc: No such file or directory")
    for name in files.names("proc"):
        if name.isdecimal() and files.read(f"proc/{name}/comm").value == "irqbalance":
            return Reading(value=f"running as process {name}")
    return Reading(value="not running")


def _counts(files: FileTree) -> dict[str, list[int]]:
    """Return device interrupt -> counts since boot, in the order of the CPUs."""
    counts: dict[str, list[int]] = {}
    for line in files.read("proc/interrupts").text.splitlines()[1:]:
        number, colon, rest = line.strip().partition(":")
        if colon and number.isdecimal():
            counts[number] = [int(word) for word in takewhile(str.isdecimal, rest.split())]
    return counts


def _placement(files: FileTree) -> Reading:
    placements = placement(files)
    if not placements:
        return Reading(because=f"/{_IRQ} has no interrupt with an affinity")
    on = sorted({cpu for cpus in placements.values() for cpu in cpus})
    return Reading(value=f"{len(placements)} in use, handled by {cpu_list(tuple(on))}")


def _busiest(files: FileTree) -> Reading:
    """Return the CPUs that handled most device interrupts since boot."""
    names = files.read("proc/interrupts").text.partition("\n")[0].split()
    totals: Counter[str] = Counter()
    for counts in _counts(files).values():
        for name, count in zip(names, counts, strict=False):
            totals[name] += count
    shown = [
        f"{name.removeprefix('CPU')} ({count})"
        for name, count in totals.most_common(_BUSIEST)
        if count
    ]
    if not shown:
        return Reading(because="/proc/interrupts is missing or empty")
    return Reading(value=", ".join(shown))


INTERRUPTS: Final[dict[str, Reader]] = {
    "default affinity": line_reader(
        f"{_IRQ}/default_smp_affinity", lambda text: cpu_list(cpus_of_mask(text))
    ),
    "placement": _placement,
    "most interrupts since boot": _busiest,
    "irqbalance": balancer,
}


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
