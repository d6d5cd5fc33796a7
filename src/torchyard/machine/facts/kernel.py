"""The kernel: release, clock, watchdogs and periodic work, limits of perf, virtualisation."""

from __future__ import annotations

from typing import Final

from torchyard.core.machine import Fact
from torchyard.machine.facts.processor import flags
from torchyard.machine.facts.reading import Reader, facts_of, in_words, line_of, of_file
from torchyard.machine.file_tree import FileTree, Found
from torchyard.machine.knob import Machine

__all__ = ["SECTION", "clock_source", "read", "release", "virtualisation"]

SECTION: Final = "kernel"
_SYS: Final = "proc/sys/kernel"
_ON_OFF: Final = {"0": "off", "1": "on"}

HYPERVISORS: Final = (
    ("qemu", "QEMU"),
    ("kvm", "KVM"),
    ("amazon ec2", "Amazon EC2"),
    ("google compute engine", "Google Compute Engine"),
    ("virtual machine", "Hyper-V"),
    ("vmware", "VMware"),
    ("virtualbox", "VirtualBox"),
    ("openstack", "OpenStack"),
    ("xen", "Xen"),
    ("parallels", "Parallels"),
    ("bhyve", "bhyve"),
)
"""What names of vendors and products say (lower case) -> who it is."""


def read(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(SECTION, READERS, machine.files)


def release(files: FileTree) -> Found:
    """The kernel's version."""
    return line_of(files, f"{_SYS}/osrelease")


def clock_source(files: FileTree) -> Found:
    """What clocks are read from."""
    return line_of(files, "sys/devices/system/clocksource/clocksource0/current_clocksource")


def virtualisation(files: FileTree) -> Found:
    """Who runs this machine as a guest, or `none seen`: a guest may be hidden well."""
    board = [
        line_of(files, f"sys/class/dmi/id/{name}").value or ""
        for name in ("sys_vendor", "product_name", "board_vendor")
    ]
    named = " ".join(board).lower()
    who = next((name for part, name in HYPERVISORS if part in named), "")
    if ".metal" in named:  # bare machines of Amazon carry the same vendor as its guests
        who = ""
    type_file = line_of(files, "sys/hypervisor/type").value or ""
    tree = files.read("proc/device-tree/compatible").value or ""
    if not who and type_file and type_file != "none":
        who = type_file
    if not who and "dummy-virt" in tree:
        who = "a hypervisor (linux,dummy-virt)"
    if not who and ("hypervisor" in flags(files) or files.exists("proc/device-tree/hypervisor")):
        who = "a hypervisor that does not say its name"
    if who:
        return Found(value=f"guest of {who}")
    if not files.exists("proc/cpuinfo"):
        return Found(because=files.read("proc/cpuinfo").because)
    return Found(value="none seen")


def _container(files: FileTree) -> Found:
    for path, name in ((".dockerenv", "Docker"), ("run/.containerenv", "Podman")):
        if files.exists(path):
            return Found(value=name)
    named = line_of(files, "run/systemd/container").value
    if named:
        return Found(value=named)
    return Found(value="none seen") if files.exists("proc") else Found(because="/proc is missing")


def _switch(name: str) -> Reader:
    return lambda files: in_words(
        line_of(files, f"{_SYS}/{name}"), lambda text: _ON_OFF.get(text, text)
    )


READERS: Final[dict[str, Reader]] = {
    "release": release,
    "clock source": clock_source,
    "virtualisation": virtualisation,
    "container": _container,
    "watchdog for hard lockups": _switch("nmi_watchdog"),
    "watchdog for soft lockups": _switch("soft_watchdog"),
    "statistics of memory every": lambda files: in_words(
        line_of(files, "proc/sys/vm/stat_interval"), lambda text: f"{int(text)} s"
    ),
    "timers move between processors": _switch("timer_migration"),
    "samples of perf at most": lambda files: in_words(
        line_of(files, f"{_SYS}/perf_event_max_sample_rate"), lambda text: f"{int(text)} per s"
    ),
    "time of perf at most": lambda files: in_words(
        line_of(files, f"{_SYS}/perf_cpu_time_max_percent"), lambda text: f"{int(text)} %"
    ),
    "perf for users": of_file(
        f"{_SYS}/perf_event_paranoid",
        {"-1": "everything", "0": "no raw tracepoints", "1": "no processors", "2": "own code only"},
    ),
    "real-time time at most": lambda files: in_words(
        line_of(files, f"{_SYS}/sched_rt_runtime_us"),
        lambda text: "no limit" if text == "-1" else f"{int(text) / 1e4:g} % of a second",
    ),
}
