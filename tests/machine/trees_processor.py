"""Processors of fake machines: cpuinfo, topology, caches, SMT, NUMA nodes, frequency and idle files.

Every function gives paths below the root with their texts, as Linux shows them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torchyard.core.cpu_lists import cpu_list, cpu_mask

CPU = "sys/devices/system/cpu"


@dataclass(frozen=True)
class Link:
    """A symbolic link, relative as sysfs makes them."""

    target: str


Files = dict[str, str | Link]


@dataclass(frozen=True, kw_only=True)
class Processor:
    """What differs between machines; the rest follows from it."""

    cpuinfo: str
    """The lines of one processor, after `processor`."""
    sockets: int = 1
    cores: int = 2
    """Of each socket."""
    threads: int = 1
    offline: tuple[int, ...] = ()
    smt: str = "on"
    isolated: tuple[int, ...] = ()
    caches: tuple[tuple[int, str, str, str], ...] = (
        (1, "Data", "32K", "core"),
        (1, "Instruction", "32K", "core"),
        (2, "Unified", "1024K", "core"),
        (3, "Unified", "28160K", "socket"),
    )
    policy: dict[str, str] = field(default_factory=dict)
    """Files of every cpufreq policy; empty without cpufreq."""
    cpufreq: dict[str, str] = field(default_factory=dict)
    """Files below the cpufreq folder itself."""
    extra: dict[str, str] = field(default_factory=dict)
    """Files below the cpu folder: intel_pstate/no_turbo and the like."""
    each: dict[str, str] = field(default_factory=dict)
    """Files below the folder of each processor that is online."""
    idle_driver: str = "none"
    idle_governors: str = "menu "
    idle: tuple[tuple[str, str, int, int], ...] = ()
    """(name, description, latency_us, residency_us) of each state."""

    @property
    def present(self) -> tuple[int, ...]:
        return tuple(range(self.sockets * self.cores * self.threads))

    @property
    def online(self) -> tuple[int, ...]:
        return tuple(cpu for cpu in self.present if cpu not in self.offline)

    def core(self, cpu: int) -> int:
        """Counted over all sockets: siblings are half the machine apart, as on most servers."""
        return cpu % (self.sockets * self.cores)

    def socket(self, cpu: int) -> int:
        return self.core(cpu) // self.cores

    def siblings(self, cpu: int) -> tuple[int, ...]:
        return tuple(other for other in self.online if self.core(other) == self.core(cpu))

    def package_cpus(self, cpu: int) -> tuple[int, ...]:
        return tuple(other for other in self.online if self.socket(other) == self.socket(cpu))

    def mask(self, cpus: tuple[int, ...]) -> str:
        """A line with as many digits as the machine has processors (32 at most here)."""
        digits = (len(self.present) + 3) // 4
        return cpu_mask(cpus)[-digits:] + "\n"


def processor_files(processor: Processor) -> Files:
    files: Files = {
        "proc/cpuinfo": "\n".join(
            f"processor\t: {cpu}\n{processor.cpuinfo}" for cpu in processor.online
        ),
        f"{CPU}/online": cpu_list(processor.online) + "\n",
        f"{CPU}/offline": cpu_list(processor.offline) + "\n",
        f"{CPU}/present": cpu_list(processor.present) + "\n",
        f"{CPU}/possible": cpu_list(processor.present) + "\n",
        f"{CPU}/isolated": cpu_list(processor.isolated) + "\n",
        f"{CPU}/nohz_full": cpu_list(processor.isolated) + "\n",
        f"{CPU}/kernel_max": "8191\n",
        f"{CPU}/smt/control": processor.smt + "\n",
        f"{CPU}/smt/active": "01"[processor.smt == "on" and processor.threads > 1] + "\n",
        f"{CPU}/cpuidle/current_driver": processor.idle_driver + "\n",
        f"{CPU}/cpuidle/current_governor": "menu\n",
        f"{CPU}/cpuidle/current_governor_ro": "menu\n",
        f"{CPU}/cpuidle/available_governors": processor.idle_governors + "\n",
    }
    files |= {f"{CPU}/{path}": text + "\n" for path, text in processor.extra.items()}
    files |= {f"{CPU}/cpufreq/{path}": text + "\n" for path, text in processor.cpufreq.items()}
    for cpu in processor.present:
        if cpu:  # the boot processor cannot be taken offline on x86
            files[f"{CPU}/cpu{cpu}/online"] = f"{int(cpu in processor.online)}\n"
        files[f"{CPU}/cpu{cpu}/power/pm_qos_resume_latency_us"] = "0\n"
    for cpu in processor.online:
        files |= _processor(processor, cpu)
    return files | _nodes(processor)


def _processor(processor: Processor, cpu: int) -> Files:
    folder = f"{CPU}/cpu{cpu}"
    siblings, package_cpus = processor.siblings(cpu), processor.package_cpus(cpu)
    files: Files = {
        f"{folder}/topology/physical_package_id": f"{processor.socket(cpu)}\n",
        f"{folder}/topology/die_id": "0\n",
        f"{folder}/topology/core_id": f"{processor.core(cpu) % processor.cores}\n",
    }
    for name, group in {
        "thread_siblings": siblings,
        "core_cpus": siblings,
        "core_siblings": package_cpus,
        "package_cpus": package_cpus,
        "die_cpus": package_cpus,
    }.items():
        files[f"{folder}/topology/{name}"] = processor.mask(group)
        files[f"{folder}/topology/{name}_list"] = cpu_list(group) + "\n"
    for index, (level, kind, size, shared) in enumerate(processor.caches):
        group = siblings if shared == "core" else package_cpus
        for name, text in {
            "level": str(level),
            "type": kind,
            "size": size,
            "id": str(processor.core(cpu) if shared == "core" else processor.socket(cpu)),
            "coherency_line_size": "64",
            "ways_of_associativity": "8",
            "shared_cpu_list": cpu_list(group),
        }.items():
            files[f"{folder}/cache/index{index}/{name}"] = text + "\n"
        files[f"{folder}/cache/index{index}/shared_cpu_map"] = processor.mask(group)
    files |= {f"{folder}/{path}": text + "\n" for path, text in processor.each.items()}
    if processor.policy:
        policy = f"{CPU}/cpufreq/policy{cpu}"
        files[f"{folder}/cpufreq"] = Link(f"../cpufreq/policy{cpu}")
        files |= {f"{policy}/{name}": text + "\n" for name, text in processor.policy.items()}
        files |= {f"{policy}/{name}_cpus": f"{cpu}\n" for name in ("affected", "related")}
    for number, (name, description, latency_us, residency_us) in enumerate(processor.idle):
        for file, text in {
            "name": name,
            "desc": description,
            "latency": str(latency_us),
            "residency": str(residency_us),
            "power": "0",
            "usage": str(90210 + number),
            "time": str(8_100_300 * (number + 1)),
            "above": "0",
            "below": "17",
            "rejected": "0",
            "disable": "0",
            "default_status": "enabled",
        }.items():
            files[f"{folder}/cpuidle/state{number}/{file}"] = text + "\n"
    return files


def _nodes(processor: Processor) -> Files:
    nodes = range(processor.sockets)
    folder = "sys/devices/system/node"
    names = cpu_list(tuple(nodes)) + "\n"
    files: Files = {
        f"{folder}/{name}": names for name in ("online", "possible", "has_cpu", "has_memory")
    }
    for node in nodes:
        cpus = tuple(cpu for cpu in processor.online if processor.socket(cpu) == node)
        files[f"{folder}/node{node}/cpulist"] = cpu_list(cpus) + "\n"
        files[f"{folder}/node{node}/cpumap"] = processor.mask(cpus)
        files[f"{folder}/node{node}/distance"] = (
            " ".join("10" if other == node else "21" for other in nodes) + "\n"
        )
        files[f"{folder}/node{node}/meminfo"] = (
            f"Node {node} MemTotal:       98304000 kB\nNode {node} MemFree:        73728000 kB\n"
        )
        files[f"{folder}/node{node}/numastat"] = (
            "numa_hit 9021000\nnuma_miss 0\nnuma_foreign 0\n"
            "interleave_hit 2040\nlocal_node 9020000\nother_node 1000\n"
        )
    return files
