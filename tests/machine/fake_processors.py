"""Rules of the fake kernel for processors: SMT, hotplug, and dependent files.

After kernel/cpu.c, drivers/base/topology.c and cpufreq_offline() of Linux 6.x, as far as the
product can see a difference.
"""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, Final

from tests.machine.fake_cgroups import processors_changed, refusal
from tests.machine.fake_clocks import CPU, GOVERNOR_DEFAULTS, tunables_per_policy
from torchyard.core.cpu_lists import cpu_list, cpus_of_list

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.machine.fake_kernel import FakeKernel


def _smt(kernel: FakeKernel, path: str, value: str) -> None:
    present = kernel.text(path)
    if present == "forceoff":
        raise refusal(errno.EPERM)
    if present in ("notsupported", "notimplemented"):
        raise refusal(errno.ENODEV)
    if value not in ("on", "off", "forceoff"):
        raise refusal(errno.EINVAL)
    second = _second_threads(kernel)
    kernel.put(path, value)
    if value == "on":
        for cpu in _present(kernel):
            set_online(kernel, cpu, online=True)
    else:
        for cpu in second:
            set_online(kernel, cpu, online=False)
    _show_active(kernel)


def _online(kernel: FakeKernel, path: str, value: str) -> None:
    if value not in ("0", "1"):
        raise refusal(errno.EINVAL)
    match = re.search(r"cpu(\d+)/online$", path)
    assert match is not None
    cpu = int(match[1])
    control = f"{CPU}/smt/control"
    if value == "1" and kernel.exists(control):
        blocked = kernel.text(control) in ("off", "forceoff")
        if blocked and cpu in _second_threads(kernel):
            raise refusal(errno.EPERM)
    set_online(kernel, cpu, online=value == "1")
    _show_active(kernel)


def _present(kernel: FakeKernel) -> tuple[int, ...]:
    return cpus_of_list(kernel.text(f"{CPU}/present"))


def _siblings(kernel: FakeKernel) -> dict[int, tuple[int, ...]]:
    """Who shares a core with whom, as the tree had it at first."""
    known = kernel.recall("siblings")
    if known is None:
        known = {}
        for cpu in _present(kernel):
            path = f"{CPU}/cpu{cpu}/topology/thread_siblings_list"
            known[str(cpu)] = list(cpus_of_list(kernel.text(path))) if kernel.exists(path) else []
        kernel.remember("siblings", known)
    return {int(cpu): tuple(siblings) for cpu, siblings in known.items()}


def _second_threads(kernel: FakeKernel) -> list[int]:
    return [cpu for cpu, siblings in _siblings(kernel).items() if siblings and cpu != siblings[0]]


def _show_active(kernel: FakeKernel) -> None:
    online = cpus_of_list(kernel.text(f"{CPU}/online"))
    active = any(cpu in online for cpu in _second_threads(kernel))
    if kernel.exists(f"{CPU}/smt/active"):
        kernel.put(f"{CPU}/smt/active", str(int(active)))


def set_online(kernel: FakeKernel, cpu: int, *, online: bool) -> None:
    """Plug a processor in or out, with everything that shows it."""
    now = cpus_of_list(kernel.text(f"{CPU}/online"))
    if (cpu in now) == online:
        return
    siblings = _siblings(kernel)
    after = tuple(sorted({*now, cpu} if online else set(now) - {cpu}))
    if not after:
        raise refusal(errno.EBUSY)
    kernel.put(f"{CPU}/online", cpu_list(after))
    if kernel.exists(f"{CPU}/offline"):
        kernel.put(f"{CPU}/offline", cpu_list(tuple(set(_present(kernel)) - set(after))))
    if kernel.exists(f"{CPU}/cpu{cpu}/online"):
        kernel.put(f"{CPU}/cpu{cpu}/online", str(int(online)))
    # Folders and files that hotplug takes away; the bias of Intel comes back with its value.
    for name in ("topology", "cache", "thermal_throttle", "power/energy_perf_bias"):
        _hide(kernel, f"{CPU}/cpu{cpu}/{name}", hide=not online)
    for other in siblings[cpu]:
        shown = f"{CPU}/cpu{other}/topology/thread_siblings_list"
        if kernel.exists(shown):
            kernel.put(shown, cpu_list(tuple(set(siblings[other]) & set(after))))
    _policies_of(kernel, cpu, after)
    processors_changed(kernel, cpu, after, plugged=online)


def _policies_of(kernel: FakeKernel, cpu: int, online: tuple[int, ...]) -> None:
    related = kernel.recall("related")
    if related is None:
        related = {
            policy: kernel.text(f"{policy}/related_cpus").split()
            for policy in kernel.paths(f"{CPU}/cpufreq/policy*")
        }
        kernel.remember("related", related)
    for policy, cpus in related.items():
        if str(cpu) not in cpus:
            continue
        affected = [one for one in cpus if int(one) in online]
        idle = set(kernel.recall("idle policies", []))
        if affected and policy in idle:
            _hide(kernel, policy, hide=False)
        kernel.put(f"{policy}/affected_cpus", " ".join(affected))
        kernel.remember("idle policies", sorted(idle - {policy} if affected else idle | {policy}))
        if affected and policy in idle and tunables_per_policy(kernel):
            # The governor starts anew; only its name is remembered.
            governor = kernel.text(f"{policy}/scaling_governor")
            for name, value in GOVERNOR_DEFAULTS.get(governor, {}).items():
                kernel.put(f"{policy}/{governor}/{name}", value)
        if not affected and kernel.offline_policies == "vanish":
            _hide(kernel, policy, hide=True)


def _hide(kernel: FakeKernel, path: str, *, hide: bool) -> None:
    shown, hidden = kernel.path(path), kernel.path(f".kernel/offline/{path}")
    source, target = (shown, hidden) if hide else (hidden, shown)
    if source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)


PROCESSOR_RULES: Final[dict[str, Callable[[FakeKernel, str, str], None]]] = {
    rf"{CPU}/smt/control": _smt,
    rf"{CPU}/cpu\d+/online": _online,
}
"""Pattern of a path -> what a write to it does."""
