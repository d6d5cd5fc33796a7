"""Every section of facts on every fake machine, damaged and empty ones included."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.machine.trees import KINDS, make_tree
from torchyard.machine.facts import FACT_SECTIONS, read_sections
from torchyard.machine.knob import Machine
from torchyard.machine.model import Fact
from torchyard.machine.system.file_tree import FileTree

SECTIONS = [name for name in FACT_SECTIONS if name != "gpu"]

EXPECTED: dict[str, dict[tuple[str, str], str]] = {
    "intel-pstate": {
        ("processor", "architecture"): "x86_64",
        ("processor", "model"): "Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz",
        ("processor", "design"): "family 6 model 85 stepping 7",
        ("processor", "microcode"): "0x5003604",
        ("processor", "mitigations"): "2 in force, 1 not affected, 1 vulnerable",
        ("topology", "CPUs"): "8 online (0-7)",
        ("topology", "cores"): "4 in 2 sockets, 2 threads per core",
        ("topology", "NUMA nodes"): "2: node 0 has 0-1,4-5, node 1 has 2-3,6-7",
        ("frequency", "driver"): "intel_pstate",
        ("frequency", "governor"): "powersave",
        ("frequency", "turbo"): "on",
        ("frequency", "base clock"): "2.50 GHz",
        ("frequency", "hardware clock range"): "1.00 GHz to 3.90 GHz",
        ("frequency", "energy preference"): "balance_performance",
        ("frequency", "energy bias"): "6",
        ("idle", "driver"): "intel_idle",
        ("idle", "states"): "POLL 0 us, C1 2 us, C1E 10 us, C6 133 us",
        ("idle", "deepest allowed"): "C6, 133 us wake-up latency",
        ("isolation", "control group version"): "2",
        ("isolation", "partition of this process"): "member",
        ("interrupts", "irqbalance"): "running as process 700",
        ("memory", "NUMA balancing"): "on",
        ("memory", "swap"): "/dev/sda2 8.0 GiB, 0.0 GiB used",
        ("kernel", "virtualization"): "none seen",
        ("kernel", "hard lockup watchdog"): "on",
        ("power", "thermal throttling since boot"): "never",
        ("power", "temperature"): "x86_pkg_temp 41 °C, coretemp 41 °C",
    },
    "amd-acpi": {
        ("processor", "architecture"): "x86_64",
        ("frequency", "driver"): "acpi-cpufreq",
        ("frequency", "governor"): "ondemand",
        ("frequency", "turbo"): "on",
        ("kernel", "release"): "5.15.0-91-generic",
        ("topology", "cores"): "4 in 1 socket, 2 threads per core",
    },
    "amd-epp": {
        ("frequency", "driver"): "amd-pstate-epp",
        ("frequency", "driver mode"): "active",
        ("frequency", "turbo"): "on",
        ("memory", "transparent huge pages"): "[always] madvise never",
        ("isolation", "kernel parameters"): "amd_pstate=active",
    },
    "arm-cpufreq": {
        ("processor", "architecture"): "aarch64",
        ("processor", "model"): "Arm implementer 0x41 part 0xd0c",
        ("processor", "design"): "Neoverse-N1 r3p1",
        ("processor", "vector instructions"): "asimd, asimdhp, asimddp",
        ("frequency", "governor"): "schedutil",
        ("frequency", "base clock"): "3.00 GHz",
        ("topology", "simultaneous multithreading"): "not controllable by this kernel",
        ("memory", "swap"): "none",
        ("kernel", "clock source"): "arch_sys_counter",
    },
    "arm-bare": {
        ("idle", "driver"): "none (no idle driver)",
        ("kernel", "virtualization"): "guest of Amazon EC2",
        ("topology", "cores"): "4 in 1 socket, 1 thread per core",
    },
    "cloud-vm": {
        ("kernel", "virtualization"): "guest of QEMU",
        ("topology", "simultaneous multithreading"): "not supported by the CPU",
        ("load", "steal time since boot"): "0.01%",
    },
    "cgroup-v1": {
        ("isolation", "control group version"): "1",
        ("isolation", "control group of this process"): "/sys/fs/cgroup/cpuset/docker/4f1c2a",
        ("isolation", "cpuset of this process"): "0-3",
        ("isolation", "CPU quota"): "2",
    },
    "cgroup-v2": {
        ("isolation", "control group version"): "2",
        ("isolation", "cpuset of this process"): "0-3",
        ("isolation", "CPU quota"): "2",
    },
    "smt-off-at-boot": {
        ("topology", "CPUs"): "4 online (0-3), 4 offline (4-7)",
        ("topology", "cores"): "4 in 1 socket, 1 thread per core",
        (
            "topology",
            "simultaneous multithreading",
        ): "off until the next boot",
        ("isolation", "kernel parameters"): "nosmt=force",
    },
}

UNAVAILABLE = {
    "arm-bare": [("frequency", "governor"), ("frequency", "turbo"), ("idle", "states")],
    "cloud-vm": [("frequency", "driver"), ("memory", "NUMA balancing"), ("power", "temperature")],
    "arm-cpufreq": [("frequency", "turbo"), ("processor", "microcode")],
    "amd-acpi": [("frequency", "energy preference"), ("power", "thermal throttling since boot")],
    "intel-pstate": [("software", "gcc"), ("software", "allocators"), ("power", "source")],
}


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One tree of each kind, for tests that only look."""
    return {kind: make_tree(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree whose every file is written over by the test."""
    return make_tree("arm-cpufreq", tmp_path_factory.mktemp("spoiled"))


def facts_of(root: Path) -> dict[tuple[str, str], Fact]:
    facts = read_sections(Machine(files=FileTree(root)))
    named = {(fact.section, fact.name): fact for fact in facts}
    assert len(named) == len(facts), "two facts have the same name"
    return named


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_there_is_read(kind: str, trees: dict[str, Path]) -> None:
    facts = facts_of(trees[kind])
    assert {name: facts[name].text for name in EXPECTED[kind]} == EXPECTED[kind]
    for name in UNAVAILABLE.get(kind, []):
        assert facts[name].value is None


@pytest.mark.parametrize("kind", KINDS)
def test_every_section_says_something_about_every_machine(
    kind: str, trees: dict[str, Path]
) -> None:
    machine = Machine(files=FileTree(trees[kind]))
    for name in SECTIONS:
        facts = FACT_SECTIONS[name](machine)
        assert facts
        assert {fact.section for fact in facts} == {name}
        for fact in facts:
            assert (fact.value is None) == bool(fact.unavailable), fact
            assert fact.value != ""


@pytest.mark.parametrize("section", SECTIONS)
def test_an_empty_root_gives_reasons(section: str, tmp_path: Path) -> None:
    for fact in FACT_SECTIONS[section](Machine(files=FileTree(tmp_path))):
        assert fact.value is None, fact
        assert fact.text.startswith("unavailable, because ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "\x1b[31mred\x1b[0m\x07",
        "9" * 5000,
        "-1",
        "0-99999999999",
        "\0a\0/lib/libgomp.so.1\0",
        "a:b:c\n:::\n0::/../../../etc\n1:cpuset,cpu:/\0\n",
        "cpu " + "7 " * 12,
        "[",
        "²",
        "some avg10=nan total=-1",
    ],
)
def test_any_text_in_any_file_is_taken_or_explained(text: str, spoiled: Path) -> None:
    for folder, _, names in os.walk(spoiled):
        for name in names:
            Path(folder, name).write_text(text)
    for fact in read_sections(Machine(files=FileTree(spoiled))):
        assert (fact.value is None) == bool(fact.unavailable), fact


def test_files_that_cannot_be_read_are_reasons(tmp_path: Path) -> None:
    """A folder in the place of a file refuses to be read even by root."""
    make_tree("intel-pstate", tmp_path)
    for path in (
        "proc/cpuinfo",
        "proc/meminfo",
        "proc/sys/kernel/randomize_va_space",
        "sys/devices/system/cpu/smt/control",
        "sys/devices/system/cpu/intel_pstate/no_turbo",
    ):
        (tmp_path / path).unlink()
        (tmp_path / path).mkdir()
    facts = facts_of(tmp_path)
    assert facts["processor", "model"].unavailable == "/proc/cpuinfo: Is a directory"
    assert "/proc/meminfo: Is a directory" in facts["memory", "reserved huge pages"].unavailable
    assert "Is a directory" in facts["memory", "address space randomization"].unavailable
    assert "smt/control: Is a directory" in (
        facts["topology", "simultaneous multithreading"].unavailable
    )
    assert "no_turbo: Is a directory" in facts["frequency", "turbo"].unavailable


def test_policies_that_differ_are_named(tmp_path: Path) -> None:
    make_tree("intel-pstate", tmp_path)
    policies = tmp_path / "sys/devices/system/cpu/cpufreq"
    for number in (0, 1, 5):
        (policies / f"policy{number}/scaling_governor").write_text("performance\n")
    (policies / "policy3/scaling_max_freq").write_text("2500000\n")
    facts = facts_of(tmp_path)
    assert facts["frequency", "governor"].text == "performance (0-1,5), powersave (2-4,6-7)"
    assert facts["frequency", "allowed clock range"].text == (
        "1.00 GHz to 3.90 GHz (0-2,4-7), 1.00 GHz to 2.50 GHz (3)"
    )


@pytest.mark.parametrize(
    ("kind", "file", "text", "turbo"),
    [
        ("intel-pstate", "intel_pstate/no_turbo", "1\n", "off"),
        ("amd-acpi", "cpufreq/boost", "0\n", "off"),
        ("amd-epp", "cpufreq/boost", "1\n", "on"),
    ],
)
def test_turbo_of_every_vendor(kind: str, file: str, text: str, turbo: str, tmp_path: Path) -> None:
    make_tree(kind, tmp_path)
    (tmp_path / "sys/devices/system/cpu" / file).write_text(text)
    assert facts_of(tmp_path)["frequency", "turbo"].text == turbo


def test_turbo_of_single_policies(tmp_path: Path) -> None:
    make_tree("amd-epp", tmp_path)
    cpufreq = tmp_path / "sys/devices/system/cpu/cpufreq"
    (cpufreq / "boost").unlink()
    for policy in cpufreq.glob("policy*"):
        (policy / "boost").write_text("0\n")
    assert facts_of(tmp_path)["frequency", "turbo"].text == "off"
    (cpufreq / "policy2/boost").write_text("1\n")
    assert facts_of(tmp_path)["frequency", "turbo"].text == "boost is 0 (0-1,3-7), 1 (2)"


def test_idle_states_that_are_disabled_everywhere(tmp_path: Path) -> None:
    make_tree("intel-pstate", tmp_path)
    cpu = tmp_path / "sys/devices/system/cpu"
    for file in cpu.glob("cpu[0-9]*/cpuidle/state3/disable"):
        file.write_text("1\n")
    facts = facts_of(tmp_path)
    assert facts["idle", "states"].text == "POLL 0 us, C1 2 us, C1E 10 us, C6 133 us (disabled)"
    assert facts["idle", "deepest allowed"].text == "C1E, 10 us wake-up latency"
    (cpu / "cpu0/cpuidle/state3/disable").write_text("0\n")
    assert facts_of(tmp_path)["idle", "deepest allowed"].text == "C6, 133 us wake-up latency"


def test_cores_isolated_at_boot_and_at_run_time(tmp_path: Path) -> None:
    make_tree("intel-pstate", tmp_path)
    (tmp_path / "proc/cmdline").write_text("ro isolcpus=2 rcu-nocbs=2 nohz_full=2 -- nosmt\n")
    (tmp_path / "sys/devices/system/cpu/isolated").write_text("2\n")
    (tmp_path / "sys/devices/system/cpu/nohz_full").write_text("(null)\n")
    (tmp_path / "sys/fs/cgroup/cpuset.cpus.isolated").write_text("6-7\n")
    facts = facts_of(tmp_path)
    assert facts["isolation", "isolated at boot"].text == "2"
    assert facts["isolation", "isolated at run time"].text == "6-7"
    assert facts["isolation", "no timer ticks (nohz_full)"].text == "none"
    assert facts["isolation", "no RCU callbacks (rcu_nocbs)"].text == "2"
    assert facts["isolation", "kernel parameters"].text == "isolcpus=2 nohz_full=2 rcu_nocbs=2"


def test_limits_of_parents_hold(tmp_path: Path) -> None:
    make_tree("cgroup-v2", tmp_path)
    (tmp_path / "sys/fs/cgroup/system.slice/cpu.max").write_text("50000 100000\n")
    assert facts_of(tmp_path)["isolation", "CPU quota"].text == "0.5"


def test_a_group_that_is_not_visible_from_a_container(tmp_path: Path) -> None:
    make_tree("intel-pstate", tmp_path)
    (tmp_path / "proc/self/cgroup").write_text("0::/../../outside\n")
    assert facts_of(tmp_path)["isolation", "control group of this process"].text == "/sys/fs/cgroup"


def test_power(tmp_path: Path) -> None:
    make_tree("intel-pstate", tmp_path)
    supply = tmp_path / "sys/class/power_supply"
    for name, files in {
        "AC": {"type": "Mains", "online": "0"},
        "BAT0": {"type": "Battery", "status": "Discharging"},
        "mouse": {"type": "Battery", "status": "Discharging", "scope": "Device"},
    }.items():
        (supply / name).mkdir(parents=True)
        for file, text in files.items():
            (supply / name / file).write_text(text + "\n")
    assert facts_of(tmp_path)["power", "source"].text == "battery"
    (supply / "AC/online").write_text("1\n")
    assert facts_of(tmp_path)["power", "source"].text == "mains"
    (supply / "AC/online").write_text("0\n")
    (supply / "BAT0/status").write_text("Full\n")
    assert facts_of(tmp_path)["power", "source"].text == "mains"


def test_virtual_machines_and_physical_machines(tmp_path: Path) -> None:
    make_tree("cloud-vm", tmp_path)
    board = tmp_path / "sys/class/dmi/id"
    (board / "sys_vendor").unlink()
    (board / "product_name").unlink()
    text = facts_of(tmp_path)["kernel", "virtualization"].text
    assert text == "guest of a hypervisor that does not say its name"
    make_tree("arm-bare", tmp_path / "metal")
    (tmp_path / "metal/sys/class/dmi/id/product_name").write_text("c7g.metal\n")
    assert facts_of(tmp_path / "metal")["kernel", "virtualization"].text == "none seen"


def test_this_machine_can_be_read() -> None:
    facts = facts_of(Path("/"))
    assert facts["kernel", "release"].value
    assert facts["isolation", "CPUs of this process"].value
    assert facts["memory", "total"].text.endswith("GiB")
