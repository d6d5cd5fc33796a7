"""Fake machines with control groups, for tests of core isolation."""

from __future__ import annotations

from pathlib import Path

from tests.machine.fake_kernel import FakeKernel
from tests.machine.knob_cycle import KnobCycle
from tests.machine.trees import make_tree
from torchyard.core.cpu_lists import cpus_of_list
from torchyard.machine.knobs import KNOBS

V1 = "sys/fs/cgroup/cpuset"
V2 = "sys/fs/cgroup"
SESSION = "user.slice/user-1000.slice/session-2.scope"


def cycle_on(kind: str, folder: Path) -> KnobCycle:
    kernel = FakeKernel(make_tree(kind, folder / "root"))
    return KnobCycle(kernel, folder, {"isolation": KNOBS["isolation"]})


def last_core(round_: KnobCycle) -> int:
    return cpus_of_list(round_.text("sys/devices/system/cpu/online"))[-1]


def add_task(round_: KnobCycle, number: int, group: str, *, bound: bool = False) -> None:
    """A task that was started, or a thread of the kernel, in a group of a fake machine."""
    kernel = round_.kernel
    version_1 = kernel.exists(f"{V1}/tasks")
    path = group.removeprefix(V1 if version_1 else V2) or "/"
    flags = 0x04200040 if bound else 0x400000
    kernel.put(
        f"proc/{number}/stat",
        f"{number} (task {number}) S 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {number}00 0 0",
    )
    kernel.put(f"proc/{number}/comm", f"task {number}")
    kernel.put(f"proc/{number}/cgroup", f"1:cpuset:{path}" if version_1 else f"0::{path}")
    online = kernel.text("sys/devices/system/cpu/online")
    kernel.put(f"proc/{number}/status", f"Name:\ttask\nCpus_allowed_list:\t{online}")
    for file in ("tasks", "cgroup.procs") if version_1 else ("cgroup.procs", "cgroup.threads"):
        place = kernel.path(f"{group}/{file}")
        numbers = sorted({*map(int, place.read_text().split()), number})
        place.write_text("".join(f"{one}\n" for one in numbers))


def members(round_: KnobCycle, group: str) -> list[int]:
    return [int(word) for word in round_.text(f"{group}/cgroup.procs").split()]
