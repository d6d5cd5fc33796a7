"""Cores and memory from fake /proc and /sys trees, and from this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from torchyard.machine.facts.isolation import read_limits

GIB = 1 << 30


def tree(root: Path, files: Mapping[str, object]) -> Path:
    standard: dict[str, object] = {
        "proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-7\n",
        "proc/cpuinfo": "processor\t: 0\n" * 8,
        "proc/meminfo": f"MemTotal: {32 << 20} kB\nMemFree: 1 kB\nMemAvailable: {24 << 20} kB\n",
        "proc/self/cgroup": "0::/\n",
    }
    for name, content in {**standard, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}")
    return root


def test_a_plain_machine(tmp_path: Path) -> None:
    limits = read_limits(tree(tmp_path, {}))
    assert (limits.cores, limits.total_mib, limits.available_mib) == (8, 32 * 1024, 24 * 1024)
    assert limits.cores_why == "8 cores"
    assert limits.memory_why == "on this machine"


def test_affinity(tmp_path: Path) -> None:
    status = "Cpus_allowed_list:\t0,2-3,7\n"
    limits = read_limits(tree(tmp_path, {"proc/self/status": status}))
    assert limits.cores == 4
    assert "4 of 8 cores" in limits.cores_why


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("150000 100000", 2),
        ("50000 100000", 1),
        ("max 100000", 8),
        ("1600000 100000", 8),
        ("junk", 8),
        ("1 0", 8),
    ],
)
def test_quota_of_version_2(tmp_path: Path, quota: str, cores: int) -> None:
    root = tree(
        tmp_path,
        {"proc/self/cgroup": "0::/user/build\n", "sys/fs/cgroup/user/build/cpu.max": quota},
    )
    limits = read_limits(root)
    assert limits.cores == cores
    assert ("quota" in limits.cores_why) == (cores < 8)


@pytest.mark.parametrize(
    ("mounts", "line", "group"),
    [
        ("cgroup2 /groups cgroup2 rw 0 0\n", "0::/a", "groups/a"),
        ("cgroup /v1/cpu cgroup rw,cpu,cpuacct 0 0\n", "4:cpu,cpuacct:/a\n0::/", "v1/cpu/a"),
    ],
)
def test_groups_are_found_where_they_are_mounted(
    tmp_path: Path, mounts: str, line: str, group: str
) -> None:
    files = {"proc/mounts": mounts, "proc/self/cgroup": line, f"{group}/cpu.max": "100000 100000"}
    assert read_limits(tree(tmp_path, files)).cores == 1


def test_quota_of_version_1(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/cpu,cpuacct/docker/abc"
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n",
        f"{group}/cpu.cfs_quota_us": "250000",
        f"{group}/cpu.cfs_period_us": "100000",
    }
    assert read_limits(tree(tmp_path, files)).cores == 3
    (tmp_path / group / "cpu.cfs_quota_us").write_text("-1")
    assert read_limits(tmp_path).cores == 8


def test_memory_of_version_2_without_the_cache_of_files(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/a/b"
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        f"{group}/memory.max": 8 * GIB,
        f"{group}/memory.current": 5 * GIB,
        f"{group}/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
    }
    limits = read_limits(tree(tmp_path, files))
    assert (limits.total_mib, limits.available_mib) == (8 * 1024, 5 * 1024)
    assert limits.memory_why == "in the control group"


def test_the_tightest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/memory.max": "max",
        "sys/fs/cgroup/a/b/memory.high": 6 * GIB,
        "sys/fs/cgroup/a/memory.max": 4 * GIB,
        "sys/fs/cgroup/a/memory.current": GIB,
    }
    limits = read_limits(tree(tmp_path, files))
    assert (limits.total_mib, limits.available_mib) == (4 * 1024, 3 * 1024)


def test_memory_of_version_1_seen_from_inside_a_container(tmp_path: Path) -> None:
    """/proc names the group by the host's path; the tree shows it as its top."""
    top = "sys/fs/cgroup/memory"
    files = {
        "proc/self/cgroup": "9:memory:/docker/abc\n0::/docker/abc\n",
        f"{top}/memory.limit_in_bytes": 2 * GIB,
        f"{top}/memory.usage_in_bytes": GIB,
        f"{top}/memory.stat": f"total_inactive_file {GIB // 2}\n",
    }
    limits = read_limits(tree(tmp_path, files))
    assert (limits.total_mib, limits.available_mib) == (2048, 1536)


def test_no_limit_of_version_1(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "9:memory:/x\n",
        "sys/fs/cgroup/memory/x/memory.limit_in_bytes": 9223372036854771712,
    }
    assert read_limits(tree(tmp_path, files)).total_mib == 32 * 1024


def test_more_in_use_than_allowed_is_none_left(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory.max": GIB, "sys/fs/cgroup/memory.current": 2 * GIB}
    assert read_limits(tree(tmp_path, files)).available_mib == 0


def test_an_old_kernel_without_memavailable(tmp_path: Path) -> None:
    files = {"proc/meminfo": "MemTotal: 4096 kB\nMemFree: 1024 kB\nCached: 2048 kB\n"}
    assert read_limits(tree(tmp_path, files)).available_mib == 3


def test_nothing_to_read_is_one_core(tmp_path: Path) -> None:
    limits = read_limits(tmp_path)
    assert (limits.cores, limits.total_mib) == (1, 0)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text("Cpus_allowed_list:\tx-y\n")
    assert read_limits(tmp_path).cores == 1


def test_this_machine() -> None:
    limits = read_limits()
    assert 1 <= limits.cores <= len(os.sched_getaffinity(0))
    assert 0 < limits.available_mib <= limits.total_mib
    assert limits.total_mib <= psutil.virtual_memory().total >> 20


@pytest.mark.parametrize(
    ("said", "cores", "total_mib", "available_mib"),
    [
        ({"SLURM_CPUS_ON_NODE": "2", "SLURM_MEM_PER_NODE": "3072"}, 2, 3072, 3072),
        ({"SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_CPU": "7000"}, 4, 28000, 24 * 1024),
        ({"SLURM_CPUS_ON_NODE": "64", "SLURM_MEM_PER_NODE": "9999999"}, 8, 32 * 1024, 24 * 1024),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_NODE": "0"}, 8, 32 * 1024, 24 * 1024),
        ({"SLURM_CPUS_ON_NODE": "many", "SLURM_MEM_PER_NODE": "3G"}, 8, 32 * 1024, 24 * 1024),
        ({}, 8, 32 * 1024, 24 * 1024),
    ],
)
def test_what_slurm_gave_the_job(
    tmp_path: Path, said: dict[str, str], cores: int, total_mib: int, available_mib: int
) -> None:
    root = tree(tmp_path, {})
    limits = read_limits(root, {"SLURM_JOB_ID": "7", **said})
    assert (limits.cores, limits.total_mib, limits.available_mib) == (
        cores,
        total_mib,
        available_mib,
    )
    assert limits.cores_why.endswith("(Slurm job)") == (cores < 8)
    assert (limits.memory_why == "in the Slurm job") == (total_mib < 32 * 1024)
    outside = read_limits(root, said)
    assert (outside.cores, outside.total_mib) == (8, 32 * 1024), "left over from another shell"


def test_a_group_inside_a_job_may_be_smaller_yet(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.max": 2 * GIB}
    variables = {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "3072"}
    limits = read_limits(tree(tmp_path, files), variables)
    assert (limits.total_mib, limits.memory_why) == (2048, "in the control group")
