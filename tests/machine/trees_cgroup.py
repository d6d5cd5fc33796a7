"""Control groups of fake machines: version 1 with one folder per controller, and version 2."""

from __future__ import annotations

from tests.machine.trees_processor import Files
from torchyard.core.cpu_lists import cpu_list

ROOT = "sys/fs/cgroup"
CONTROLLERS = "cpuset cpu io memory hugetlb pids rdma misc"
_NO_PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


def cgroup_v1_files(cpus: tuple[int, ...], nodes: int) -> Files:
    """A machine whose container engine gave this process a cpuset and half of the processors."""
    path = "/docker/4f1c2a"
    controllers = ("cpuset", "cpu,cpuacct", "memory", "freezer", "pids")
    half = cpus[: max(1, len(cpus) // 2)]
    files: Files = {
        "proc/self/cgroup": "".join(
            f"{number}:{name}:{path}\n"
            for number, name in enumerate((*controllers, "name=systemd"), start=1)
        ),
        "proc/mounts": "sysfs /sys sysfs rw,nosuid,nodev,noexec,relatime 0 0\n"
        f"tmpfs /{ROOT} tmpfs ro,nosuid,nodev,noexec,mode=755 0 0\n"
        + "".join(
            f"cgroup /{ROOT}/{name} cgroup rw,nosuid,nodev,noexec,relatime,{name} 0 0\n"
            for name in controllers
        ),
        "proc/cgroups": "#subsys_name\thierarchy\tnum_cgroups\tenabled\n"
        "cpuset\t1\t3\t1\ncpu\t2\t60\t1\ncpuacct\t2\t60\t1\nmemory\t3\t90\t1\n"
        "freezer\t4\t3\t1\npids\t5\t70\t1\n",
        "proc/1/cgroup": "1:cpuset:/\n6:name=systemd:/init.scope\n",
        "proc/2/cgroup": "1:cpuset:/\n6:name=systemd:/\n",
        "proc/700/cgroup": "1:cpuset:/\n6:name=systemd:/system.slice/irqbalance.service\n",
    }
    mems = cpu_list(tuple(range(nodes)))
    for folder, own in {"": cpus, "/docker": cpus, path: half}.items():
        cpuset = f"{ROOT}/cpuset{folder}"
        for name, text in {
            "cgroup.clone_children": "0",
            "cgroup.procs": "1\n2\n700" if not folder else "2000" if folder == path else "",
            "tasks": "1\n2\n700" if not folder else "2000" if folder == path else "",
            "cpuset.cpu_exclusive": "1" if not folder else "0",
            "cpuset.cpus": cpu_list(own),
            "cpuset.effective_cpus": cpu_list(own),
            "cpuset.mem_exclusive": "1" if not folder else "0",
            "cpuset.mems": mems,
            "cpuset.effective_mems": mems,
            "cpuset.memory_migrate": "0",
            "cpuset.sched_load_balance": "1",
            "cpuset.sched_relax_domain_level": "-1",
            "notify_on_release": "0",
        }.items():
            files[f"{cpuset}/{name}"] = text + "\n" if text else ""
        cpu = f"{ROOT}/cpu,cpuacct{folder}"
        for name, text in {
            "cpu.cfs_period_us": "100000",
            "cpu.cfs_quota_us": "-1" if folder != path else "200000",
            "cpu.shares": "1024",
            "cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0",
        }.items():
            files[f"{cpu}/{name}"] = text + "\n"
        files[f"{ROOT}/memory{folder}/memory.limit_in_bytes"] = (
            "9223372036854771712\n" if folder != path else "8589934592\n"
        )
    return files


def cgroup_v2_files(
    cpus: tuple[int, ...], nodes: int, *, container: bool = False, isolated: str = ""
) -> Files:
    """A machine under systemd: this process in a session, or in a container with limits."""
    session = "/user.slice/user-1000.slice/session-2.scope"
    docker = "/system.slice/docker-4f1c2a.scope"
    own = docker if container else session
    mems = cpu_list(tuple(range(nodes)))
    files: Files = {
        "proc/self/cgroup": f"0::{own}\n",
        "proc/mounts": "sysfs /sys sysfs rw,nosuid,nodev,noexec,relatime 0 0\n"
        f"cgroup2 /{ROOT} cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate 0 0\n",
        "proc/cgroups": "#subsys_name\thierarchy\tnum_cgroups\tenabled\n"
        "cpuset\t0\t90\t1\ncpu\t0\t90\t1\nmemory\t0\t90\t1\npids\t0\t90\t1\n",
        "proc/1/cgroup": "0::/init.scope\n",
        "proc/2/cgroup": "0::/\n",
        "proc/700/cgroup": "0::/system.slice/irqbalance.service\n",
    }
    files |= _named(
        "",
        {
            "cgroup.controllers": CONTROLLERS,
            "cgroup.max.depth": "max",
            "cgroup.max.descendants": "max",
            "cgroup.procs": "2",
            "cgroup.stat": "nr_descendants 90\nnr_dying_descendants 0",
            "cgroup.subtree_control": CONTROLLERS,
            "cgroup.threads": "2",
            "cpuset.cpus.effective": cpu_list(cpus),
            "cpuset.cpus.isolated": isolated,
            "cpuset.mems.effective": mems,
            "cpu.stat": "usage_usec 81000000\nuser_usec 60000000\nsystem_usec 21000000",
        },
    )
    files[f"{ROOT}/cpu.pressure"] = _NO_PRESSURE
    folders = {"/init.scope": "1", "/system.slice": "", "/system.slice/irqbalance.service": "700"}
    folders |= {"/user.slice": "", "/user.slice/user-1000.slice": "", session: "2000"}
    if container:
        folders |= {session: "", docker: "2000"}
    for folder, processes in folders.items():
        inner = not processes and folder not in (session, docker)
        limited = folder == docker
        files |= _named(
            folder,
            {
                "cgroup.controllers": CONTROLLERS,
                "cgroup.events": f"populated {int(bool(processes))}\nfrozen 0",
                "cgroup.freeze": "0",
                "cgroup.procs": processes,
                "cgroup.subtree_control": CONTROLLERS if inner else "",
                "cgroup.threads": processes,
                "cgroup.type": "domain",
                "cpu.max": "200000 100000" if limited else "max 100000",
                "cpu.stat": "usage_usec 9000\nuser_usec 6000\nsystem_usec 3000\n"
                "nr_periods 0\nnr_throttled 0\nthrottled_usec 0",
                "cpu.weight": "100",
                "cpuset.cpus": cpu_list(cpus[: max(1, len(cpus) // 2)]) if limited else "",
                "cpuset.cpus.effective": cpu_list(
                    cpus[: max(1, len(cpus) // 2)] if limited else cpus
                ),
                "cpuset.cpus.exclusive": "",
                "cpuset.cpus.exclusive.effective": "",
                "cpuset.cpus.partition": "member",
                "cpuset.mems": "",
                "cpuset.mems.effective": mems,
                "memory.current": "104857600",
                "memory.max": "8589934592" if limited else "max",
                "pids.max": "max",
            },
        )
        files[f"{ROOT}{folder}/cpu.pressure"] = _NO_PRESSURE
    return files


def _named(folder: str, texts: dict[str, str]) -> Files:
    """An empty list of processes is an empty file; other empty values are an empty line."""
    return {
        f"{ROOT}{folder}/{name}": "" if not text and name.startswith("cgroup.") else text + "\n"
        for name, text in texts.items()
    }
