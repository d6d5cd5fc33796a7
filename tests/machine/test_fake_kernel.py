"""The fake kernel: refusals and side effects of writes as in Linux."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machine.fake_kernel import NO_LATENCY_LIMIT, FakeKernel, snapshot
from tests.machine.trees import make_tree
from torchyard.machine.system.file_tree import WriteRefused

CPU = "sys/devices/system/cpu"
POLICY = f"{CPU}/cpufreq/policy0"
PAGES = "sys/kernel/mm/transparent_hugepage/enabled"
GROUPS = "sys/fs/cgroup"


@pytest.fixture
def intel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(make_tree("intel-pstate", tmp_path))


@pytest.fixture
def amd(tmp_path: Path) -> FakeKernel:
    return FakeKernel(make_tree("amd-acpi", tmp_path))


def _code(kernel: FakeKernel, path: str, value: str) -> int:
    """The error number of a write that must not change anything."""
    before, taken = kernel.snapshot(), len(kernel.accepted)
    with pytest.raises(WriteRefused) as refused:
        kernel.write(path, value)
    assert kernel.snapshot() == before
    assert len(kernel.accepted) == taken
    return refused.value.code


# Files in general.


def test_files_that_are_not_there_or_not_to_be_written(intel: FakeKernel) -> None:
    assert _code(intel, "proc/sys/kernel/no_such_file", "1") == errno.ENOENT
    assert _code(intel, CPU, "1") == errno.ENOENT
    only_read = intel.root / CPU / "present"
    only_read.chmod(0o444)
    assert _code(intel, f"{CPU}/present", "0") == errno.EACCES, "also for root"
    assert not intel.writable(f"{CPU}/present")


def test_a_plain_file_takes_a_value_and_keeps_its_newline(intel: FakeKernel) -> None:
    intel.write("proc/sys/vm/stat_interval", "10")
    assert (intel.root / "proc/sys/vm/stat_interval").read_bytes() == b"10\n"
    assert intel.accepted == [("proc/sys/vm/stat_interval", "10")]


def test_files_with_choices_select_one(intel: FakeKernel) -> None:
    intel.write(PAGES, "never")
    assert intel.text(PAGES) == "always madvise [never]"
    assert _code(intel, PAGES, "often") == errno.EINVAL


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("proc/sys/kernel/randomize_va_space", "3"),
        ("proc/sys/kernel/perf_event_max_sample_rate", "0"),
        ("proc/sys/kernel/perf_cpu_time_max_percent", "101"),
        ("proc/sys/vm/swappiness", "lots"),
    ],
)
def test_numbers_out_of_range(intel: FakeKernel, path: str, value: str) -> None:
    assert _code(intel, path, value) == errno.EINVAL


@pytest.mark.parametrize("share", ["0", "100"])
def test_a_sample_rate_without_throttling_is_refused(intel: FakeKernel, share: str) -> None:
    rate = "proc/sys/kernel/perf_event_max_sample_rate"
    intel.write(rate, "5000")
    intel.write("proc/sys/kernel/perf_cpu_time_max_percent", share)
    assert _code(intel, rate, "1") == errno.EINVAL


def test_refusals_that_a_test_asks_for(intel: FakeKernel) -> None:
    intel.refuse(PAGES, errno.EPERM)
    assert _code(intel, PAGES, "never") == errno.EPERM
    intel.dies_after = 0
    with pytest.raises(KeyboardInterrupt):
        intel.write("proc/sys/vm/stat_interval", "10")


def test_several_processes_share_one_machine(amd: FakeKernel) -> None:
    """What no file shows lies in the tree."""
    amd.write(f"{POLICY}/scaling_max_freq", "1000")  # clamped to the lowest clock
    assert amd.text(f"{POLICY}/scaling_max_freq") == "1500000"
    other = FakeKernel(amd.root)
    other.write(f"{CPU}/smt/control", "off")
    assert amd.read(f"{CPU}/cpufreq/policy4/scaling_governor").because.endswith("busy")
    amd.write(f"{CPU}/smt/control", "on")
    assert other.read(f"{CPU}/cpufreq/policy4/scaling_governor").value == "ondemand"
    assert not any(path.startswith(".kernel") for path in amd.snapshot())


# Clocks.


def test_governors(amd: FakeKernel, tmp_path: Path) -> None:
    assert _code(amd, f"{POLICY}/scaling_governor", "warp") == errno.EINVAL
    assert _code(amd, f"{POLICY}/scaling_setspeed", "2000000") == errno.EINVAL
    amd.write(f"{POLICY}/scaling_governor", "userspace")
    assert amd.exists(f"{CPU}/cpufreq/ondemand/up_threshold"), "seven policies still use it"
    amd.write(f"{POLICY}/scaling_setspeed", "2000000")
    for policy in amd.paths(f"{CPU}/cpufreq/policy*"):
        amd.write(f"{policy}/scaling_governor", "conservative")
    assert not amd.exists(f"{CPU}/cpufreq/ondemand")
    thresholds = f"{CPU}/cpufreq/conservative"
    assert _code(amd, f"{thresholds}/down_threshold", "85") == errno.EINVAL
    assert _code(amd, f"{thresholds}/up_threshold", "20") == errno.EINVAL
    assert _code(amd, f"{thresholds}/up_threshold", "101") == errno.EINVAL


def test_a_governor_may_reset_turbo(tmp_path: Path) -> None:
    root = make_tree("intel-pstate", tmp_path)
    kernel = FakeKernel(root, governor_resets_turbo=True)
    kernel.write(f"{CPU}/intel_pstate/no_turbo", "1")
    kernel.write(f"{POLICY}/scaling_governor", "performance")
    assert kernel.text(f"{CPU}/intel_pstate/no_turbo") == "0"
    assert kernel.text(f"{POLICY}/scaling_max_freq") == "3900000"


@pytest.mark.parametrize(
    ("kind", "afterwards"), [("intel-pstate", "power"), ("amd-epp", "performance")]
)
def test_preferences(kind: str, afterwards: str, tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree(kind, tmp_path))
    place = f"{POLICY}/energy_performance_preference"
    assert _code(kernel, place, "fast") == errno.EINVAL
    assert _code(kernel, place, "256") == errno.EINVAL
    kernel.write(place, "power")
    kernel.write(f"{POLICY}/scaling_governor", "performance")
    assert kernel.text(place) == "performance"
    assert _code(kernel, place, "balance_power") == errno.EBUSY
    kernel.write(place, "performance")
    kernel.write(f"{POLICY}/scaling_governor", "powersave")
    assert kernel.text(place) == afterwards


def test_limits_are_clamped_and_remembered_or_refused(tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree("amd-epp", tmp_path))
    kernel.write(f"{POLICY}/scaling_min_freq", "3000000")
    kernel.write(f"{POLICY}/scaling_max_freq", "2000000")
    assert kernel.text(f"{POLICY}/scaling_min_freq") == "2000000"
    kernel.write(f"{POLICY}/scaling_max_freq", "9000000")
    assert kernel.text(f"{POLICY}/scaling_min_freq") == "3000000", "what was asked for is kept"
    assert kernel.text(f"{POLICY}/scaling_max_freq") == "3529052"
    kernel.limits = "refuse"
    assert _code(kernel, f"{POLICY}/scaling_max_freq", "2999999") == errno.EINVAL
    assert _code(kernel, f"{POLICY}/scaling_min_freq", "-1") == errno.EINVAL


def test_boost_moves_the_highest_clock(intel: FakeKernel, tmp_path: Path) -> None:
    intel.write(f"{CPU}/intel_pstate/no_turbo", "1")
    assert intel.text(f"{POLICY}/scaling_max_freq") == "2500000"
    assert intel.text(f"{POLICY}/cpuinfo_max_freq") == "2500000"
    intel.write(f"{CPU}/intel_pstate/no_turbo", "0")
    assert intel.text(f"{POLICY}/scaling_max_freq") == "3900000"


def test_boost_of_amd_drops_limits(tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree("amd-epp", tmp_path))
    kernel.write(f"{POLICY}/scaling_max_freq", "2000000")
    kernel.write(f"{CPU}/cpufreq/boost", "0")
    assert kernel.text(f"{POLICY}/boost") == "0"
    assert _code(kernel, f"{POLICY}/boost", "1") == errno.EINVAL
    kernel.write(f"{CPU}/cpufreq/boost", "1")
    assert kernel.text(f"{POLICY}/scaling_max_freq") == "3529052"


# Processors.


@pytest.mark.parametrize(
    ("kind", "code"), [("smt-off-at-boot", errno.EPERM), ("cloud-vm", errno.ENODEV)]
)
def test_machines_that_refuse_to_switch_smt(kind: str, code: int, tmp_path: Path) -> None:
    assert _code(FakeKernel(make_tree(kind, tmp_path)), f"{CPU}/smt/control", "on") == code


def test_what_goes_and_comes_with_a_processor(amd: FakeKernel) -> None:
    before = amd.snapshot()
    assert _code(amd, f"{CPU}/smt/control", "maybe") == errno.EINVAL
    amd.write(f"{CPU}/smt/control", "off")
    assert amd.text(f"{CPU}/online") == "0-3"
    assert amd.text(f"{CPU}/offline") == "4-7"
    assert not amd.exists(f"{CPU}/cpu4/topology")
    assert amd.text(f"{CPU}/cpu0/topology/thread_siblings_list") == "0"
    assert _code(amd, f"{CPU}/cpufreq/policy4/scaling_governor", "performance") == errno.EBUSY
    assert _code(amd, f"{CPU}/cpu4/online", "1") == errno.EPERM
    amd.write(f"{CPU}/smt/control", "on")
    assert amd.snapshot() == before


def test_policies_may_vanish(tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree("amd-acpi", tmp_path), offline_policies="vanish")
    kernel.write(f"{CPU}/cpu3/online", "0")
    assert not kernel.exists(f"{CPU}/cpufreq/policy3")
    kernel.write(f"{CPU}/cpu3/online", "1")
    assert kernel.text(f"{CPU}/cpufreq/policy3/affected_cpus") == "3"


# Interrupts and groups.


def test_interrupts(tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree("amd-acpi", tmp_path), per_cpu_interrupts=(0,))
    assert _code(kernel, "proc/irq/0/smp_affinity", "01") == errno.EIO
    assert _code(kernel, "proc/irq/24/smp_affinity", "00") == errno.EINVAL
    assert _code(kernel, "proc/irq/24/smp_affinity", "xy") == errno.EINVAL
    kernel.write("proc/irq/24/smp_affinity", "6")
    assert kernel.text("proc/irq/24/smp_affinity") == "06", "as wide as the machine"
    assert kernel.text("proc/irq/24/smp_affinity_list") == "1-2"
    kernel.write("proc/irq/24/smp_affinity_list", "3")
    assert kernel.text("proc/irq/24/smp_affinity") == "08"
    kernel.interrupt_refusal = errno.EPERM
    assert _code(kernel, "proc/irq/0/smp_affinity_list", "1") == errno.EPERM


def test_partitions(tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree("cgroup-v2", tmp_path))
    before = kernel.snapshot()
    group = f"{GROUPS}/bench"
    kernel.make_folder(group)
    kernel.write(f"{group}/cpuset.cpus.partition", "root")
    assert "invalid" in kernel.text(f"{group}/cpuset.cpus.partition"), "it has no processors"
    kernel.write(f"{group}/cpuset.cpus", "2-3")
    kernel.write(f"{group}/cpuset.cpus.partition", "isolated")
    assert kernel.text(f"{GROUPS}/cpuset.cpus.effective") == "0-1,4-7"
    assert kernel.text(f"{GROUPS}/cpuset.cpus.isolated") == "2-3"
    assert _code(kernel, f"{group}/cpuset.cpus.partition", "mine") == errno.EINVAL
    kernel.write(f"{group}/cgroup.procs", "2000")
    with pytest.raises(WriteRefused, match="cannot remove"):
        kernel.remove_folder(group)
    kernel.write(f"{GROUPS}/system.slice/docker-4f1c2a.scope/cgroup.procs", "2000")
    kernel.remove_folder(group)
    assert kernel.snapshot() == before


def test_cpusets_of_version_1(tmp_path: Path) -> None:
    kernel = FakeKernel(make_tree("cgroup-v1", tmp_path))
    group = f"{GROUPS}/cpuset/bench"
    kernel.make_folder(group)
    assert _code(kernel, f"{group}/cgroup.procs", "2000") == errno.ENOSPC, (
        "no processors, no memory"
    )
    assert _code(kernel, f"{group}/cpuset.cpus", "99") == errno.EINVAL
    assert _code(kernel, f"{GROUPS}/cpuset/docker/4f1c2a/cpuset.cpus", "") == errno.ENOSPC
    assert _code(kernel, f"{GROUPS}/cpuset/docker/cpuset.cpus", "7") == errno.EBUSY
    kernel.write(f"{group}/cpuset.cpus", "4-7")
    kernel.write(f"{group}/cpuset.mems", "0")
    kernel.write(f"{group}/cgroup.procs", "2000")
    assert kernel.text(f"{group}/tasks") == "2000"
    assert kernel.text(f"{GROUPS}/cpuset/docker/4f1c2a/cgroup.procs") == ""


# The latency device.


def test_the_latency_device_drops_values_with_the_process(intel: FakeKernel) -> None:
    device = intel.path("dev/cpu_dma_latency")
    assert device.read_bytes() == NO_LATENCY_LIMIT
    program = """
import sys
with open(sys.argv[1], "r+b", 0) as device:
    device.write(bytes((5, 0, 0, 0)))
    print("held", flush=True)
    sys.stdin.read()
"""
    words = [sys.executable, "-c", program, str(device)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert intel.path("dev/cpu_dma_latency").read_bytes() == bytes((5, 0, 0, 0))
        holder.kill()
    assert intel.path("dev/cpu_dma_latency").read_bytes() == NO_LATENCY_LIMIT


def test_snapshots_see_everything(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/file").write_bytes(b"\0text")
    (tmp_path / "link").symlink_to("a")
    assert snapshot(tmp_path) == {"a/": b"", "a/b/": b"", "a/file": b"\0text", "link": b"-> a"}
