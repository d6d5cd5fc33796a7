"""Fake machines: folders that look like /proc, /sys and /dev of real ones.

`make_tree("amd-epp", tmp_path)` builds one. Everything that differs between kinds is in `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.machine.trees_cgroup import cgroup_v1_files, cgroup_v2_files
from tests.machine.trees_kernel import kernel_files
from tests.machine.trees_processor import Files, Link, Processor, processor_files

_INTEL_INFO = """vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 85
model name\t: Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz
stepping\t: 7
microcode\t: 0x5003604
cpu MHz\t\t: 1000.000
cache size\t: 28160 KB
flags\t\t: fpu vme tsc msr lm constant_tsc nonstop_tsc aperfmperf est tm2 fma avx2 avx512f avx512_vnni hwp hwp_epp
bogomips\t: 5000.00
"""
_AMD_INFO = """vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC 7763 64-Core Processor
stepping\t: 1
microcode\t: 0xa0011d5
cpu MHz\t\t: 1500.000
cache size\t: 512 KB
flags\t\t: fpu vme tsc msr lm constant_tsc nonstop_tsc aperfmperf cpb hw_pstate avx2
bogomips\t: 4890.80
"""
_ARM_INFO = """BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""
_ALL_GOVERNORS = "conservative ondemand userspace powersave performance schedutil "
_PREFERENCES = "default performance balance_performance balance_power power "


def _clocks(
    driver: str, governors: str, governor: str, khz: tuple[int, int, int]
) -> dict[str, str]:
    lowest, now, highest = map(str, khz)
    return {
        "cpuinfo_min_freq": lowest,
        "cpuinfo_max_freq": highest,
        "cpuinfo_transition_latency": "0",
        "scaling_available_governors": governors,
        "scaling_cur_freq": now,
        "scaling_driver": driver,
        "scaling_governor": governor,
        "scaling_min_freq": lowest,
        "scaling_max_freq": highest,
        "scaling_setspeed": "<unsupported>",
    }


_INTEL = Processor(
    cpuinfo=_INTEL_INFO,
    sockets=2,
    threads=2,
    policy=_clocks(
        "intel_pstate", "performance powersave", "powersave", (1000000, 1000031, 3900000)
    )
    | {
        "base_frequency": "2500000",
        "energy_performance_available_preferences": _PREFERENCES,
        "energy_performance_preference": "balance_performance",
    },
    extra={
        "intel_pstate/status": "active",
        "intel_pstate/no_turbo": "0",
        "intel_pstate/min_perf_pct": "25",
        "intel_pstate/max_perf_pct": "100",
        "intel_pstate/num_pstates": "30",
        "intel_pstate/turbo_pct": "47",
        "intel_pstate/hwp_dynamic_boost": "0",
    },
    each={
        "power/energy_perf_bias": "6",
        "thermal_throttle/core_throttle_count": "0",
        "thermal_throttle/core_throttle_max_time_ms": "0",
        "thermal_throttle/core_throttle_total_time_ms": "0",
        "thermal_throttle/package_throttle_count": "0",
        "thermal_throttle/package_throttle_max_time_ms": "0",
        "thermal_throttle/package_throttle_total_time_ms": "0",
    },
    idle_driver="intel_idle",
    idle_governors="menu teo ",
    idle=(
        ("POLL", "CPUIDLE CORE POLL IDLE", 0, 0),
        ("C1", "MWAIT 0x00", 2, 2),
        ("C1E", "MWAIT 0x01", 10, 20),
        ("C6", "MWAIT 0x20", 133, 600),
    ),
)
_AMD_IDLE = (
    ("POLL", "CPUIDLE CORE POLL IDLE", 0, 0),
    ("C1", "ACPI FFH MWAIT 0x0", 1, 2),
    ("C2", "ACPI IOPORT 0x814", 400, 800),
)
_AMD = Processor(
    cpuinfo=_AMD_INFO,
    cores=4,
    threads=2,
    policy=_clocks("acpi-cpufreq", _ALL_GOVERNORS, "ondemand", (1500000, 1500000, 2450000))
    | {"scaling_available_frequencies": "2450000 2000000 1500000 ", "cpb": "1"},
    cpufreq={
        "boost": "1",
        "ondemand/ignore_nice_load": "0",
        "ondemand/io_is_busy": "0",
        "ondemand/powersave_bias": "0",
        "ondemand/sampling_down_factor": "1",
        "ondemand/sampling_rate": "10000",
        "ondemand/up_threshold": "95",
    },
    idle_driver="acpi_idle",
    idle=_AMD_IDLE,
)
_AMD_EPP = replace(
    _AMD,
    policy=_clocks(
        "amd-pstate-epp", "performance powersave", "powersave", (400000, 1496443, 3529052)
    )
    | {
        "amd_pstate_highest_perf": "255",
        "amd_pstate_lowest_nonlinear_freq": "1500000",
        "amd_pstate_max_freq": "3529052",
        "boost": "1",
        "energy_performance_available_preferences": _PREFERENCES,
        "energy_performance_preference": "balance_performance",
    },
    cpufreq={"boost": "1"},
    each={"acpi_cppc/nominal_freq": "2450", "acpi_cppc/lowest_freq": "400"},
    extra={"amd_pstate/status": "active", "amd_pstate/prefcore": "enabled"},
)
_ARM = Processor(
    cpuinfo=_ARM_INFO,
    cores=4,
    smt="notimplemented",
    caches=(
        (1, "Data", "64K", "core"),
        (1, "Instruction", "64K", "core"),
        (2, "Unified", "1024K", "core"),
    ),
)
_ARM_CPUFREQ = replace(
    _ARM,
    policy=_clocks("cppc_cpufreq", _ALL_GOVERNORS, "schedutil", (1000000, 1000000, 3000000)),
    cpufreq={"schedutil/rate_limit_us": "1000"},
    each={"acpi_cppc/nominal_freq": "3000", "acpi_cppc/lowest_freq": "1000"},
    idle_driver="acpi_idle",
    idle=(("LPI-0", "WFI", 1, 1), ("LPI-1", "Core power down", 350, 1100)),
)
_CLOUD = Processor(
    cpuinfo=_INTEL_INFO.replace("Gold 6248 CPU @ 2.50GHz", "Platinum 8375C CPU @ 2.90GHz").replace(
        "aperfmperf est tm2 fma avx2 avx512f avx512_vnni hwp hwp_epp", "avx2 avx512f hypervisor"
    ),
    smt="notsupported",
    idle_governors="menu haltpoll ",
)
_SMT_OFF = replace(
    _INTEL, sockets=1, cores=4, offline=(4, 5, 6, 7), smt="forceoff", idle_governors="menu "
)
_NET = ("eth0-TxRx-0", "eth0-TxRx-1", "nvme0q0", "nvme0q1")
_VIRTIO = ("virtio0-config", "virtio0-input.0", "virtio0-output.0", "virtio1-req.0")
_BOOT = "BOOT_IMAGE=/boot/vmlinuz root=UUID=0b1c ro quiet"


def _v2(processor: Processor, *, container: bool = False) -> Files:
    return cgroup_v2_files(processor.online, processor.sockets, container=container)


def _machine(processor: Processor, release: str, product: str = "", **kernel: Any) -> Files:
    """Files of a machine on which a process runs in the root group; `product` is `VENDOR/PRODUCT`."""
    groups = kernel.pop("groups", None) or _v2(processor)
    vendor, _, name = product.partition("/")
    facts = {"boot_line": _BOOT, "clock": "tsc", "devices": _NET, **kernel}
    facts |= {"vendor": vendor, "product": name} if product else {}
    return processor_files(processor) | groups | kernel_files(processor, release=release, **facts)


_SENSORS: Files = {
    "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp\n",
    "sys/class/thermal/thermal_zone0/temp": "41000\n",
    "sys/class/hwmon/hwmon0/name": "coretemp\n",
    "sys/class/hwmon/hwmon0/temp1_label": "Package id 0\n",
    "sys/class/hwmon/hwmon0/temp1_input": "41000\n",
    "sys/class/hwmon/hwmon0/temp1_max": "86000\n",
    "sys/class/hwmon/hwmon0/temp1_crit": "96000\n",
}
_ARM_KERNEL: dict[str, Any] = {"clock": "arch_sys_counter", "nmi_watchdog": False, "swap": False}

KINDS: dict[str, Callable[[], Files]] = {
    "intel-pstate": lambda: (
        _machine(_INTEL, "6.1.0-18-amd64", "Dell Inc./PowerEdge R640") | _SENSORS
    ),
    "amd-acpi": lambda: _machine(_AMD, "5.15.0-91-generic", "Supermicro/AS -2124GQ-NART"),
    "amd-epp": lambda: _machine(
        _AMD_EPP,
        "6.12.9-arch1",
        "ASUS/Pro WS",
        boot_line=_BOOT + " amd_pstate=active",
        huge_pages="[always] madvise never",
    ),
    "arm-cpufreq": lambda: _machine(
        _ARM_CPUFREQ, "6.1.0-18-arm64", "GIGABYTE/R272-P30-JG", **_ARM_KERNEL
    ),
    "arm-bare": lambda: _machine(_ARM, "6.8.0-1015-aws", "Amazon EC2/c7g.xlarge", **_ARM_KERNEL),
    "cloud-vm": lambda: _machine(
        _CLOUD,
        "6.1.0-18-cloud-amd64",
        "QEMU/Standard PC (Q35 + ICH9, 2009)",
        boot_line=_BOOT + " console=ttyS0",
        clock="kvm-clock",
        devices=_VIRTIO,
        numa_balancing=False,
        nmi_watchdog=False,
        swap=False,
        steal=1200,
    ),
    "cgroup-v1": lambda: _machine(_AMD, "4.19.0-26-amd64", groups=cgroup_v1_files(_AMD.online, 1)),
    "cgroup-v2": lambda: _machine(_AMD, "6.8.0-45-generic", groups=_v2(_AMD, container=True)),
    "smt-off-at-boot": lambda: _machine(
        _SMT_OFF, "6.1.0-18-amd64", "LENOVO/30BES01100", boot_line=_BOOT + " nosmt=force"
    ),
}


def make_tree(kind: str, folder: Path) -> Path:
    """Build one of `KINDS` in `folder` and return it."""
    write_files(KINDS[kind](), folder)
    return folder


def write_files(files: Files, folder: Path) -> None:
    """Write texts, links and (paths that end with a slash) folders.

    Links come first, so that files behind them land where they point.
    """
    made: set[Path] = set()
    for path, content in sorted(files.items(), key=lambda item: isinstance(item[1], str)):
        place = folder / path
        if path.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
            continue
        if place.parent not in made:
            place.parent.mkdir(parents=True, exist_ok=True)
            made.add(place.parent)
        if isinstance(content, Link):
            (place.parent / content.target).mkdir(parents=True, exist_ok=True)
            place.symlink_to(content.target)
        else:
            place.write_text(content)
