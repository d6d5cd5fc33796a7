"""Rules of the fake kernel for masks and groups of processors: interrupts, workqueues, cpusets.

After kernel/irq/proc.c, kernel/workqueue.c and kernel/cgroup/cpuset*.c of Linux 6.x, as far as the
product can see a difference. Processes are numbers in `cgroup.procs`; nothing runs.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from typing import TYPE_CHECKING, Final

from torchyard.core.cpu_lists import cpu_list, cpu_mask, cpus_of_list, cpus_of_mask

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.machine.fake_kernel import FakeKernel


CPU: Final = "sys/devices/system/cpu"
GROUPS: Final = "sys/fs/cgroup"


def refusal(code: int) -> OSError:
    """The error of a system call."""
    return OSError(code, os.strerror(code))


def _online(kernel: FakeKernel) -> tuple[int, ...]:
    return cpus_of_list(kernel.text(f"{CPU}/online"))


# Masks.


def put_mask(kernel: FakeKernel, path: str, cpus: tuple[int, ...]) -> None:
    """Show a mask with as many digits as before, and its list beside it."""
    digits = len(kernel.text(path).replace(",", ""))
    text = cpu_mask(cpus)
    if digits <= 8:
        text = text[-8:].lstrip("0").zfill(digits)
    kernel.put(path, text)
    if kernel.exists(f"{path}_list"):
        kernel.put(f"{path}_list", cpu_list(cpus))


def _parsed(value: str, *, mask: bool) -> tuple[int, ...]:
    try:
        return cpus_of_mask(value) if mask else cpus_of_list(value)
    except ValueError:
        raise refusal(errno.EINVAL) from None


def _interrupt(kernel: FakeKernel, path: str, value: str) -> None:
    folder, _, name = path.rpartition("/")
    number = folder.rpartition("/")[2]
    if number.isdigit() and int(number) in kernel.per_cpu_interrupts:
        raise refusal(kernel.interrupt_refusal)
    cpus = _parsed(value, mask=not name.endswith("_list"))
    online = tuple(cpu for cpu in cpus if cpu in _online(kernel))
    if not online:
        raise refusal(errno.EINVAL)
    put_mask(kernel, path.removesuffix("_list"), cpus)
    effective = f"{folder}/effective_affinity"
    if kernel.exists(effective):
        now = cpus_of_mask(kernel.text(effective))
        if not set(now) <= set(online):
            put_mask(kernel, effective, online[:1])


def _workqueue(kernel: FakeKernel, path: str, value: str) -> None:
    cpus = _parsed(value, mask=True)
    possible = cpus_of_list(kernel.text(f"{CPU}/possible"))
    if not set(cpus) & set(possible):
        raise refusal(errno.EINVAL)
    put_mask(kernel, path, cpus)
    requested = f"{path}_requested"
    if kernel.exists(requested):
        put_mask(kernel, requested, cpus)


# Control groups, version 2.


def _partition(kernel: FakeKernel, path: str, value: str) -> None:
    if value not in ("member", "root", "isolated"):
        raise refusal(errno.EINVAL)
    reason = "" if value == "member" else _why_invalid(kernel, path.rpartition("/")[0])
    kernel.put(path, f"{value} invalid ({reason})" if reason else value)
    refresh_groups(kernel)


def _why_invalid(kernel: FakeKernel, group: str) -> str:
    """Linux takes the word and says why it does not hold."""
    parent = group.rpartition("/")[0]
    own = set(cpus_of_list(kernel.text(f"{group}/cpuset.cpus")))
    kind = kernel.text(f"{parent}/cpuset.cpus.partition") if parent != GROUPS else "root"
    if not own:
        return "cpuset.cpus and cpuset.cpus.exclusive are empty"
    if kind not in ("root", "isolated"):
        return "Parent is not a partition root"
    if not own & set(_online(kernel)):
        return "Parent unable to distribute cpu downstream"
    for other in _children(kernel, parent):
        if other == group:
            continue
        taken = kernel.text(f"{other}/cpuset.cpus.partition") in ("root", "isolated")
        if taken and own & set(cpus_of_list(kernel.text(f"{other}/cpuset.cpus"))):
            return "Cpu list in cpuset.cpus not exclusive"
    if own >= set(_online(kernel)):
        return "Parent unable to distribute cpu downstream"
    return ""


def _children(kernel: FakeKernel, group: str) -> list[str]:
    return [path.rpartition("/")[0] for path in kernel.paths(f"{group}/*/cpuset.cpus.partition")]


def _cpus(kernel: FakeKernel, path: str, value: str) -> None:
    group = path.rpartition("/")[0]
    cpus = _parsed(value, mask=False)
    if set(cpus) - set(cpus_of_list(kernel.text(f"{CPU}/possible"))):
        raise refusal(errno.EINVAL)
    if kernel.exists(f"{group}/cpuset.sched_load_balance"):
        _cpus_of_version_1(kernel, group, cpus)
        return
    kernel.put(path, cpu_list(cpus))
    kind = kernel.text(f"{group}/cpuset.cpus.partition")
    if kind != "member":
        _partition(kernel, f"{group}/cpuset.cpus.partition", kind.split()[0])
    refresh_groups(kernel)


def refresh_groups(kernel: FakeKernel) -> None:
    """Effective processors of every group: what partitions leave over."""
    if not kernel.exists(f"{GROUPS}/cgroup.subtree_control"):
        return
    isolated = _share(kernel, GROUPS, set(_online(kernel)))
    if kernel.exists(f"{GROUPS}/cpuset.cpus.isolated"):
        kernel.put(f"{GROUPS}/cpuset.cpus.isolated", cpu_list(tuple(isolated)))


def _share(kernel: FakeKernel, group: str, cpus: set[int]) -> set[int]:
    """Hand processors down; returns those of isolated partitions."""
    isolated: set[int] = set()
    left = set(cpus)
    children = _children(kernel, group)
    for child in children:
        kind = kernel.text(f"{child}/cpuset.cpus.partition")
        if kind in ("root", "isolated"):
            own = set(cpus_of_list(kernel.text(f"{child}/cpuset.cpus"))) & cpus
            left -= own
            isolated |= own if kind == "isolated" else set()
            isolated |= _share(kernel, child, own)
    for child in children:
        if kernel.text(f"{child}/cpuset.cpus.partition") not in ("root", "isolated"):
            own = set(cpus_of_list(kernel.text(f"{child}/cpuset.cpus"))) & left
            isolated |= _share(kernel, child, own or left)
    if kernel.exists(f"{group}/cpuset.cpus.effective"):
        kernel.put(f"{group}/cpuset.cpus.effective", cpu_list(tuple(left)))
    return isolated


# Control groups, version 1.


def _cpus_of_version_1(kernel: FakeKernel, group: str, cpus: tuple[int, ...]) -> None:
    parent = group.rpartition("/")[0]
    if not kernel.exists(f"{parent}/cpuset.cpus"):
        raise refusal(errno.EACCES)  # the topmost group follows the machine
    if set(cpus) - set(cpus_of_list(kernel.text(f"{parent}/cpuset.cpus"))):
        raise refusal(errno.EACCES)
    if not cpus and kernel.text(f"{group}/cgroup.procs"):
        raise refusal(errno.ENOSPC)
    for other in kernel.paths(f"{parent}/*/cpuset.cpus"):
        folder = other.rpartition("/")[0]
        alone = "1" in (
            kernel.text(f"{folder}/cpuset.cpu_exclusive"),
            kernel.text(f"{group}/cpuset.cpu_exclusive"),
        )
        if folder != group and alone and set(cpus) & set(cpus_of_list(kernel.text(other))):
            raise refusal(errno.EINVAL)
    for child in kernel.paths(f"{group}/*/cpuset.cpus"):
        if set(cpus_of_list(kernel.text(child))) - set(cpus):
            raise refusal(errno.EBUSY)
    kernel.put(f"{group}/cpuset.cpus", cpu_list(cpus))
    if kernel.exists(f"{group}/cpuset.effective_cpus"):
        kernel.put(f"{group}/cpuset.effective_cpus", cpu_list(cpus))


def _join(kernel: FakeKernel, path: str, value: str) -> None:
    """A process enters a group and leaves its old one."""
    group, _, name = path.rpartition("/")
    if not value.isdigit():
        raise refusal(errno.EINVAL)
    top = re.match(rf"{GROUPS}(/cpuset(?=/)|/cpu[^/]*(?=/)|/memory(?=/))?", path)
    assert top is not None
    others = [p for p in (kernel.root / top[0]).rglob(name) if value in p.read_text().split()]
    if not others and not kernel.exists(f"proc/{value}"):
        raise refusal(errno.ESRCH)
    if _bound(kernel, value):
        raise refusal(errno.EINVAL)
    control = f"{group}/cgroup.subtree_control"
    if kernel.exists(control) and kernel.text(control) and group != GROUPS:
        raise refusal(errno.EBUSY)
    for needed in ("cpuset.cpus", "cpuset.mems"):
        version_1 = kernel.exists(f"{group}/cpuset.sched_load_balance")
        if version_1 and not kernel.text(f"{group}/{needed}"):
            raise refusal(errno.ENOSPC)
    for file in ("cgroup.procs", "tasks", "cgroup.threads"):
        for other in (kernel.root / top[0]).rglob(file):
            left = [one for one in other.read_text().split() if one != value]
            other.write_text("".join(f"{one}\n" for one in left), encoding="utf-8")
        if kernel.exists(f"{group}/{file}"):
            inside = kernel.path(f"{group}/{file}")
            numbers = sorted({*map(int, inside.read_text().split()), int(value)})
            inside.write_text("".join(f"{one}\n" for one in numbers), encoding="utf-8")
    _show_group(kernel, value, "cpuset" if top[1] == "/cpuset" else "", group, top[0])


def _bound(kernel: FakeKernel, number: str) -> bool:
    """PF_NO_SETAFFINITY: threads of the kernel that nobody moves."""
    stat = f"proc/{number}/stat"
    flags = kernel.text(stat).rpartition(")")[2].split()[6] if kernel.exists(stat) else "0"
    return bool(int(flags) & 0x04000000)


def _show_group(kernel: FakeKernel, number: str, controller: str, group: str, top: str) -> None:
    path = f"proc/{number}/cgroup"
    if not kernel.exists(path):
        return
    lines = [line.split(":", 2) for line in kernel.text(path).splitlines()]
    for line in lines:
        if line[1] == controller:
            line[2] = group.removeprefix(top) or "/"
    kernel.put(path, "\n".join(":".join(line) for line in lines))


def _controllers(kernel: FakeKernel, path: str, value: str) -> None:
    group = path.rpartition("/")[0]
    enabled = kernel.text(path).split()
    for word in value.split():
        if word[:1] not in "+-" or word[1:] not in kernel.text(f"{group}/cgroup.controllers"):
            raise refusal(errno.ENOENT if word[:1] in "+-" else errno.EINVAL)
        if word[0] == "+" and word[1:] not in enabled:
            enabled.append(word[1:])
        elif word[0] == "-" and word[1:] in enabled:
            passed_on = kernel.paths(f"{group}/*/cgroup.subtree_control")
            if any(word[1:] in kernel.text(child).split() for child in passed_on):
                raise refusal(errno.EBUSY)
            enabled.remove(word[1:])
    # In the kernel's own order, whatever was switched on last.
    every = kernel.text(f"{group}/cgroup.controllers").split()
    kernel.put(path, " ".join(sorted(enabled, key=every.index)))
    for child in kernel.paths(f"{group}/*/cgroup.subtree_control"):
        _cpuset_files(kernel, child.rpartition("/")[0], wanted="cpuset" in enabled)
    refresh_groups(kernel)


def _cpuset_files(kernel: FakeKernel, group: str, *, wanted: bool) -> None:
    """Files of the controller come with it and go with it."""
    if kernel.exists(f"{group}/cpuset.cpus") == wanted:
        return
    for name in ("cpus", "cpus.effective", "cpus.partition", "mems", "mems.effective"):
        if wanted:
            kernel.put(f"{group}/cpuset.{name}", "member" if name == "cpus.partition" else "")
        else:
            kernel.path(f"{group}/cpuset.{name}").unlink()


def make_group(kernel: FakeKernel, path: str) -> None:
    """What mkdir does below /sys/fs/cgroup: the folder comes with its files."""
    if kernel.exists(path):
        raise refusal(errno.EEXIST)
    parent = path.rpartition("/")[0]
    kernel.path(path).mkdir()
    texts = {"cgroup.procs": "", "tasks": ""}
    if kernel.exists(f"{parent}/cpuset.sched_load_balance"):
        texts |= {"cpuset.cpus": "", "cpuset.mems": "", "cpuset.effective_cpus": ""}
        texts |= {"cpuset.cpu_exclusive": "0", "cpuset.mem_exclusive": "0"}
        texts |= {"cpuset.sched_load_balance": "1", "cpuset.memory_migrate": "0"}
    else:
        enabled = kernel.text(f"{parent}/cgroup.subtree_control")
        texts = {"cgroup.procs": "", "cgroup.threads": "", "cgroup.type": "domain"}
        texts |= {"cgroup.controllers": enabled, "cgroup.subtree_control": ""}
    for name, text in texts.items():
        empty = not text and name.startswith(("cgroup.", "tasks"))
        kernel.path(f"{path}/{name}").write_text("" if empty else text + "\n", encoding="utf-8")
    if "cpuset" in texts.get("cgroup.controllers", "").split():
        _cpuset_files(kernel, path, wanted=True)
    refresh_groups(kernel)


def remove_group(kernel: FakeKernel, path: str) -> None:
    """What rmdir does: refused while processes or groups are inside."""
    if not kernel.exists(path):
        raise refusal(errno.ENOENT)
    folders = [entry for entry in kernel.path(path).iterdir() if entry.is_dir()]
    if folders or kernel.text(f"{path}/cgroup.procs"):
        raise refusal(errno.EBUSY)
    shutil.rmtree(kernel.path(path))
    refresh_groups(kernel)


# Hotplug.


def processors_changed(
    kernel: FakeKernel, cpu: int, online: tuple[int, ...], *, plugged: bool
) -> None:
    """What interrupts, nodes and groups of processors lose or gain with a processor."""
    home = kernel.recall("nodes")
    if home is None:
        home = {
            path: list(cpus_of_list(kernel.text(path)))
            for path in kernel.paths("sys/devices/system/node/node*/cpulist")
        }
        kernel.remember("nodes", home)
    for path, cpus in home.items():
        if cpu in cpus:
            left = tuple(one for one in cpus if one in online)
            kernel.put(path, cpu_list(left))
            put_mask(kernel, path.replace("cpulist", "cpumap"), left)
    if not plugged:
        _interrupts_move(kernel, online)
        for path in sorted(kernel.paths(f"{GROUPS}/cpuset/**/cpuset.cpus"), key=len):
            # Version 1 forgets a processor that goes; it does not come back by itself.
            for name in (path, path.replace("cpuset.cpus", "cpuset.effective_cpus")):
                left = tuple(one for one in cpus_of_list(kernel.text(name)) if one != cpu)
                kernel.put(name, cpu_list(left))
    elif kernel.exists(f"{GROUPS}/cpuset/cpuset.cpus"):
        kernel.put(f"{GROUPS}/cpuset/cpuset.cpus", cpu_list(online))
        kernel.put(f"{GROUPS}/cpuset/cpuset.effective_cpus", cpu_list(online))
    refresh_groups(kernel)


def _interrupts_move(kernel: FakeKernel, online: tuple[int, ...]) -> None:
    """An interrupt whose processors are all gone gets every other, and keeps them."""
    for path in kernel.paths("proc/irq/[0-9]*/smp_affinity"):
        cpus = cpus_of_mask(kernel.text(path))
        if not set(cpus) & set(online):
            put_mask(kernel, path, online)
        effective = path.replace("smp_affinity", "effective_affinity")
        if kernel.exists(effective):
            now = cpus_of_mask(kernel.text(effective))
            if not set(now) <= set(online):
                allowed = sorted(set(cpus) & set(online)) or list(online)
                put_mask(kernel, effective, (allowed[0],))


GROUP_RULES: Final[dict[str, Callable[[FakeKernel, str, str], None]]] = {
    r"proc/irq/(\d+/smp_affinity(_list)?|default_smp_affinity)": _interrupt,
    r"sys/(devices/virtual|bus)/workqueue/(\S+/)?cpumask": _workqueue,
    rf"{GROUPS}/\S+/cpuset\.cpus\.partition": _partition,
    rf"{GROUPS}/\S+/cpuset\.cpus": _cpus,
    rf"{GROUPS}/(\S+/)?(cgroup\.procs|tasks)": _join,
    rf"{GROUPS}/(\S+/)?cgroup\.subtree_control": _controllers,
}
"""Pattern of a path -> what a write to it does."""
