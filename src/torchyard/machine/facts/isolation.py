"""CPU isolation facts: kernel command line, cpusets, process limits, interrupt affinity."""

from __future__ import annotations

import os
from collections import Counter
from typing import Final

from torchyard.core.cpu_lists import cpu_list, cpus_of_list, cpus_of_mask
from torchyard.machine.facts.reading import (
    Reader,
    facts_of,
    fields_of,
    in_words,
    line_of,
    or_none,
    processors,
)
from torchyard.machine.knob import Machine
from torchyard.machine.model import Fact
from torchyard.machine.system.file_tree import FileTree, Found

NOISE_WORDS: Final = (
    *("isolcpus", "nohz_full", "rcu_nocbs", "irqaffinity", "skew_tick", "nohz"),
    *("nosmt", "maxcpus", "mitigations", "idle", "intel_idle.max_cstate"),
    *("processor.max_cstate", "cpuidle.off", "intel_pstate", "amd_pstate", "cpufreq.off"),
    *("transparent_hugepage", "hugepages", "default_hugepagesz", "numa_balancing", "numa"),
    *("nmi_watchdog", "nowatchdog", "clocksource", "tsc", "preempt", "threadirqs", "psi"),
)
"""Words that change how steady or how fast this machine is."""


def boot_line(files: FileTree) -> Found:
    """The whole line."""
    return line_of(files, "proc/cmdline")


def boot_values(files: FileTree) -> dict[str, str]:
    """Word -> value, the last of each; a word without a value has an empty one."""
    values: dict[str, str] = {}
    for word in (boot_line(files).value or "").split():
        if word == "--":  # what follows is for the first process, not for the kernel
            break
        name, _, value = word.partition("=")
        values[name.replace("-", "_")] = value
    return values


def noise_words(files: FileTree) -> Found:
    """Those of `NOISE_WORDS` that are on the line."""
    found = boot_line(files)
    if found.value is None:
        return found
    values = boot_values(files)
    shown = [f"{n}={values[n]}" if values[n] else n for n in NOISE_WORDS if n in values]
    return Found(value=" ".join(shown) or "nothing about noise")


ISOLATION_SECTION: Final = "isolation"
_CPU: Final = "sys/devices/system/cpu"
_STATUS: Final = "proc/self/status"
_NO_GROUP: Final = "this process is in no control group that is mounted"


def read_isolation(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(ISOLATION_SECTION, ISOLATION_READERS, machine.files)


def allowed(files: FileTree) -> Found:
    """The processors that this process may use, as a list."""
    found = files.read(_STATUS)
    named = fields_of(found).get("Cpus_allowed_list")
    if named is None and files.live:  # some sandboxes leave the line out
        return Found(value=cpu_list(tuple(os.sched_getaffinity(0))))
    if named is None:
        return Found(because=found.because or f"/{_STATUS} has no Cpus_allowed_list")
    return in_words(Found(value=named), lambda text: cpu_list(cpus_of_list(text)))


def apart(files: FileTree) -> tuple[int, ...]:
    """Processors without load balancing: of the boot line, and of isolated partitions."""
    at_boot = or_none(files.read(f"{_CPU}/isolated"))
    root = _mounts(files).get("cgroup2")
    at_run_time = or_none(files.read(f"{root}/cpuset.cpus.isolated")) if root else ()
    return tuple(sorted({*at_boot, *at_run_time}))


def set_apart(files: FileTree) -> Found:
    """The same as a list, in words when there is none."""
    if files.read(f"{_CPU}/isolated").value is None:
        return files.read(f"{_CPU}/isolated")
    return Found(value=cpu_list(apart(files)) or "none")


def group_version(files: FileTree) -> Found:
    """Which control groups hold cpusets here."""
    mounts = _mounts(files)
    if "cpuset" in mounts:
        return Found(
            value="1" + (" (version 2 is mounted beside it)" if "cgroup2" in mounts else "")
        )
    if "cgroup2" in mounts:
        return Found(value="2")
    found = files.read("proc/mounts")
    return Found(because=found.because or "/proc/mounts has no control groups")


def own_groups(files: FileTree, controller: str) -> tuple[str, ...]:
    """Folders, below the root, of this process's group for a controller and of its parents."""
    mounts = _mounts(files)
    mount = mounts.get(controller if controller in mounts else "cgroup2")
    text = files.read("proc/self/cgroup").value or ""
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        own = controller in names.split(",") if controller in mounts else not names
        if own and mount is not None:
            steps = [step for step in path.split("/") if step]
            groups = ["/".join((mount, *steps[:count])) for count in range(len(steps), -1, -1)]
            # A container sees the path that its group has outside, and its own group as the root.
            return tuple(groups) if files.exists(groups[0]) else (mount,)
    return ()


def quota_processors(files: FileTree) -> Found:
    """How many processors the groups of this process may use, as a number; `all` without limit."""
    groups = own_groups(files, "cpu")
    if not groups:
        return Found(because=_NO_GROUP)
    shares: list[float] = []
    for group in groups:  # the limit of every parent holds, too
        found = files.read(f"{group}/cpu.max")
        quota, _, period = (found.value or "").partition(" ")
        if found.value is None:
            quota = files.read(f"{group}/cpu.cfs_quota_us").value or ""
            period = files.read(f"{group}/cpu.cfs_period_us").value or ""
        if quota.isdecimal() and period.strip().isdecimal() and int(period):
            shares.append(int(quota) / int(period))
    return Found(value=f"{min(shares):g}" if shares else "all")


def _mounts(files: FileTree) -> dict[str, str]:
    """Controller of version 1, or `cgroup2` -> mount point below the root."""
    found: dict[str, str] = {}
    for line in (files.read("proc/mounts").value or "").splitlines():
        match line.split():
            case [_, place, "cgroup2", *_]:
                found.setdefault("cgroup2", place.strip("/"))
            case [_, place, "cgroup", options, *_]:
                for option in options.split(","):
                    found.setdefault(option, place.strip("/"))
    return found


def _group(files: FileTree) -> Found:
    groups = own_groups(files, "cpuset")
    return Found(value=f"/{groups[0]}") if groups else Found(because=_NO_GROUP)


def _of_group(*names: str, nothing: str) -> Reader:
    """The first of some files that the group of this process has."""

    def read_file(files: FileTree) -> Found:
        groups = own_groups(files, "cpuset")
        if not groups:
            return Found(because=_NO_GROUP)
        for name in names:
            found = files.read(f"{groups[0]}/{name}")
            if found.value is not None:
                return Found(value=found.value.strip() or nothing)
        return Found(because=f"/{groups[0]} has no {names[0]}: it is the root, or has no cpuset")

    return read_file


def _rcu(files: FileTree) -> Found:
    if files.read("proc/cmdline").value is None:
        return files.read("proc/cmdline")
    values = boot_values(files)
    if "rcu_nocbs" not in values:
        return Found(value="none")
    return Found(value=values["rcu_nocbs"] or "all")


def _workqueues(files: FileTree) -> Found:
    path = "sys/devices/virtual/workqueue/cpumask"
    return in_words(line_of(files, path), lambda text: cpu_list(cpus_of_mask(text)))


def _partitions(files: FileTree) -> Found:
    root = _mounts(files).get("cgroup2")
    if root is None:
        return Found(because="control groups of version 2 are not mounted")
    return processors(f"{root}/cpuset.cpus.isolated")(files)


ISOLATION_READERS: Final[dict[str, Reader]] = {
    "set apart at boot": processors(f"{_CPU}/isolated"),
    "without timer ticks": processors(f"{_CPU}/nohz_full"),
    "without RCU callbacks": _rcu,
    "set apart at run time": _partitions,
    "the boot line says": noise_words,
    "this process may use": allowed,
    "cpusets of version": group_version,
    "group of this process": _group,
    "cpuset of this process": _of_group(
        "cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus", nothing="none"
    ),
    "partition of this process": _of_group("cpuset.cpus.partition", nothing="none"),
    "processors that limits leave": quota_processors,
    "unbound workqueues": _workqueues,
}


INTERRUPTS_SECTION: Final = "interrupts"
_IRQ: Final = "proc/irq"
_BUSIEST: Final = 3


def read_interrupts(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(INTERRUPTS_SECTION, INTERRUPTS_READERS, machine.files)


def placement(files: FileTree) -> dict[str, tuple[int, ...]]:
    """Interrupt -> processors that serve it now; those that no device uses are left out."""
    used = _used(files)
    found: dict[str, tuple[int, ...]] = {}
    for number in files.names(_IRQ):
        if number.isdecimal() and (not used or used.get(number)):
            effective = files.read(f"{_IRQ}/{number}/effective_affinity_list")
            if not (effective.value or "").strip():
                effective = files.read(f"{_IRQ}/{number}/smp_affinity_list")
            if cpus := or_none(effective):
                found[number] = cpus
    return found


def balancer(files: FileTree) -> Found:
    """The process number of irqbalance, or `not running`."""
    if not files.exists("proc"):
        return Found(because="/proc: No such file or directory")
    for name in files.names("proc"):
        if name.isdecimal() and files.read(f"proc/{name}/comm").value == "irqbalance":
            return Found(value=f"running as process {name}")
    return Found(value="not running")


def _used(files: FileTree) -> dict[str, int]:
    """Interrupt -> how often it was served since boot, over all processors."""
    counts: dict[str, int] = {}
    for line in (files.read("proc/interrupts").value or "").splitlines()[1:]:
        number, colon, rest = line.strip().partition(":")
        if colon and number.isdecimal():
            served = 0
            for word in rest.split():
                if not word.isdecimal():
                    break
                served += int(word)
            counts[number] = served
    return counts


def _default(files: FileTree) -> Found:
    found = line_of(files, f"{_IRQ}/default_smp_affinity")
    return in_words(found, lambda text: cpu_list(cpus_of_mask(text)))


def _placement(files: FileTree) -> Found:
    every = placement(files)
    if not every:
        return Found(because=f"/{_IRQ} has no interrupt that says where it is served")
    on = sorted({cpu for cpus in every.values() for cpu in cpus})
    return Found(value=f"{len(every)} in use, served by {cpu_list(tuple(on))}")


def _busiest(files: FileTree) -> Found:
    """Where most of the devices' interrupts went since boot: a core to keep away from."""
    lines = (files.read("proc/interrupts").value or "").splitlines()
    names = lines[0].split() if lines else []
    totals: Counter[str] = Counter()
    for line in lines[1:]:
        number, _, rest = line.strip().partition(":")
        if number.isdecimal():
            for name, word in zip(names, rest.split(), strict=False):
                totals[name] += int(word) if word.isdecimal() else 0
    shown = [
        f"{name.removeprefix('CPU')} ({count})"
        for name, count in totals.most_common(_BUSIEST)
        if count
    ]
    if not shown:
        return Found(because="/proc/interrupts is missing or counts nothing")
    return Found(value=", ".join(shown))


INTERRUPTS_READERS: Final[dict[str, Reader]] = {
    "new interrupts go to": _default,
    "placement": _placement,
    "served most since boot": _busiest,
    "irqbalance": balancer,
}
