"""The rest of fake machines: settings of the kernel, memory, interrupts, workqueues, processes."""

from __future__ import annotations

from tests.machine.trees_processor import Files, Link, Processor
from torchyard.core.cpu_lists import cpu_list

_IDLE = "some avg10=0.00 avg60=0.02 avg300=0.00 total=81239\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


def kernel_files(
    processor: Processor,
    *,
    release: str,
    boot_line: str,
    clock: str,
    devices: tuple[str, ...] = (),
    numa_balancing: bool = True,
    nmi_watchdog: bool = True,
    swap: bool = True,
    steal: int = 0,
    huge_pages: str = "always [madvise] never",
    vendor: str = "",
    product: str = "",
) -> Files:
    cpus, nodes = processor.online, processor.sockets
    files: Files = {
        "proc/cmdline": boot_line + "\n",
        "proc/loadavg": "0.08 0.12 0.09 1/412 2311\n",
        "proc/uptime": "86400.50 690000.25\n",
        "proc/version": f"Linux version {release} (build@kernel) (gcc 12.2.0) #1 SMP\n",
        "proc/swaps": "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
        + ("/dev/sda2                               partition\t8388604\t\t0\t\t-2\n" * swap),
        "proc/pressure/cpu": _IDLE,
        "proc/pressure/memory": _IDLE.replace("81239", "0"),
        "proc/pressure/io": _IDLE.replace("81239", "922"),
        "proc/stat": _stat(cpus, steal),
        "proc/vmstat": "nr_free_pages 18432000\npgfault 90210321\npgmajfault 2210\n"
        "pswpin 0\npswpout 0\nnuma_pages_migrated 0\nthp_fault_alloc 120\ncompact_stall 0\n",
        "proc/meminfo": _meminfo(swap, nodes),
        "sys/devices/system/clocksource/clocksource0/current_clocksource": f"{clock}\n",
        "sys/devices/system/clocksource/clocksource0/available_clocksource": f"{clock} \n",
        "sys/kernel/mm/transparent_hugepage/enabled": f"{huge_pages}\n",
        "sys/kernel/mm/transparent_hugepage/defrag": "always defer defer+madvise [madvise] never\n",
        "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size advise [never] deny force\n",
        "sys/kernel/mm/transparent_hugepage/hpage_pmd_size": "2097152\n",
        "sys/kernel/mm/transparent_hugepage/khugepaged/defrag": "1\n",
        "sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs": "10000\n",
        "sys/kernel/mm/ksm/run": "0\n",
        "dev/cpu_dma_latency": "",
        "sys/devices/system/cpu/vulnerabilities/meltdown": "Not affected\n",
        "sys/devices/system/cpu/vulnerabilities/spectre_v1": "Mitigation: usercopy/swapgs barriers\n",
        "sys/devices/system/cpu/vulnerabilities/spectre_v2": "Mitigation: Retpolines; IBPB: conditional\n",
        "sys/devices/system/cpu/vulnerabilities/tsx_async_abort": "Vulnerable\n",
    }
    settings = {
        "kernel/osrelease": release,
        "kernel/ostype": "Linux",
        "kernel/hostname": "yard",
        "kernel/random/boot_id": "8f2e63a1-2c1b-4a59-9a3e-1d7d4f6f0c11",
        "kernel/randomize_va_space": "2",
        "kernel/perf_event_max_sample_rate": "100000",
        "kernel/perf_cpu_time_max_percent": "25",
        "kernel/perf_event_paranoid": "2",
        "kernel/timer_migration": "1",
        "kernel/watchdog": "1",
        "kernel/soft_watchdog": "1",
        "kernel/nmi_watchdog": str(int(nmi_watchdog)),
        "kernel/watchdog_thresh": "10",
        "kernel/watchdog_cpumask": cpu_list(cpus),
        "kernel/sched_rt_runtime_us": "950000",
        "kernel/sched_rt_period_us": "1000000",
        "kernel/sched_autogroup_enabled": "1",
        "vm/swappiness": "60",
        "vm/stat_interval": "1",
        "vm/overcommit_memory": "0",
        "vm/dirty_ratio": "20",
        "vm/dirty_background_ratio": "10",
        "vm/nr_hugepages": "0",
        "vm/zone_reclaim_mode": "0",
        "vm/compaction_proactiveness": "20",
    }
    if _version(release) >= (6, 1):
        settings["kernel/arch"] = "aarch64" if "CPU part" in processor.cpuinfo else "x86_64"
    if numa_balancing:
        settings["kernel/numa_balancing"] = str(int(nodes > 1))
    files |= {f"proc/sys/{path}": text + "\n" for path, text in settings.items()}
    if vendor:
        files["sys/class/dmi/id/sys_vendor"] = vendor + "\n"
        files["sys/class/dmi/id/product_name"] = product + "\n"
    return files | _interrupts(processor, devices) | _workqueues(processor) | _processes(processor)


def _version(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in release.split("-", maxsplit=1)[0].split(".")[:2])


def _stat(cpus: tuple[int, ...], steal: int) -> str:
    """Numbers are user nice system idle iowait irq softirq steal guest guest_nice, in hundredths of seconds."""
    one = [30_000, 100, 9_000, 8_500_000, 900, 0, 400, steal, 0, 0]
    lines = ["cpu  " + " ".join(str(number * len(cpus)) for number in one)]
    lines += [f"cpu{cpu} " + " ".join(map(str, one)) for cpu in cpus]
    lines += ["intr 90210321 0 9 0", "ctxt 180420642", "btime 1700000000", "processes 120345"]
    return (
        "\n".join([*lines, "procs_running 1", "procs_blocked 0", "softirq 1000 0 500 500"]) + "\n"
    )


def _meminfo(swap: bool, nodes: int) -> str:
    total = 98_304_000 * nodes
    amounts = {
        "MemTotal": total,
        "MemFree": total * 3 // 4,
        "MemAvailable": total * 9 // 10,
        "Buffers": 204_800,
        "Cached": 8_192_000,
        "SwapCached": 0,
        "SwapTotal": 8_388_604 * swap,
        "SwapFree": 8_388_604 * swap,
        "Dirty": 128,
        "AnonPages": 1_048_576,
        "AnonHugePages": 409_600,
    }
    lines = [f"{name + ':':<16}{amount:>8} kB" for name, amount in amounts.items()]
    lines += ["HugePages_Total:       0", "HugePages_Free:        0", "Hugepagesize:       2048 kB"]
    return "\n".join(lines) + "\n"


def _interrupts(processor: Processor, devices: tuple[str, ...]) -> Files:
    """Interrupt 0 belongs to one processor; the others of `devices` start at 24."""
    cpus, everything = processor.online, processor.mask(processor.present)
    files: Files = {"proc/irq/default_smp_affinity": everything}
    table = [" " * 11 + "".join(f"CPU{cpu:<8}" for cpu in cpus)]
    for number, name in {0: "timer", **dict(enumerate(devices, start=24))}.items():
        own = (cpus[number % len(cpus)],) if number else (cpus[0],)
        counts = "".join(f"{1000 * (cpu in own):>10} " for cpu in cpus)
        table.append(f"{number:>3}: {counts}  PCI-MSI  {number}-edge  {name}")
        folder = f"proc/irq/{number}"
        files[f"{folder}/smp_affinity"] = everything
        files[f"{folder}/smp_affinity_list"] = cpu_list(processor.present) + "\n"
        files[f"{folder}/effective_affinity"] = processor.mask(own)
        files[f"{folder}/effective_affinity_list"] = cpu_list(own) + "\n"
        files[f"{folder}/affinity_hint"] = processor.mask(())
        files[f"{folder}/node"] = "0\n"
        files[f"{folder}/spurious"] = "count 0\nunhandled 0\nlast_unhandled 0 ms\n"
        if number:
            files[f"{folder}/{name}/"] = ""
    rest = "".join(f"{70_000:>10} " for _ in cpus)
    table += [f"LOC: {rest}  Local timer interrupts", f"RES: {rest}  Rescheduling interrupts"]
    files["proc/interrupts"] = "\n".join(table) + "\n"
    return files


def _workqueues(processor: Processor) -> Files:
    everything, folder = processor.mask(processor.present), "sys/devices/virtual/workqueue"
    files: Files = {
        f"{folder}/cpumask": everything,
        f"{folder}/cpumask_requested": everything,
        f"{folder}/cpumask_isolated": processor.mask(()),
    }
    for name in ("writeback", "blkcg_punt_bio"):
        files[f"{folder}/{name}/cpumask"] = everything
        files[f"{folder}/{name}/nice"] = "0\n"
        files[f"{folder}/{name}/max_active"] = "256\n"
        files[f"{folder}/{name}/per_cpu"] = "0\n"
        files[f"sys/bus/workqueue/devices/{name}"] = Link(
            f"../../../devices/virtual/workqueue/{name}"
        )
    return files


def _processes(processor: Processor) -> Files:
    """systemd, the parent of the kernel's threads, irqbalance, and the one that looks (self)."""
    cpus, nodes = processor.online, processor.sockets
    files: Files = {"proc/self": Link("2000")}
    for process, name in {1: "systemd", 2: "kthreadd", 700: "irqbalance", 2000: "python3"}.items():
        folder = f"proc/{process}"
        files[f"{folder}/comm"] = name + "\n"
        files[f"{folder}/cmdline"] = "" if name == "kthreadd" else f"/usr/bin/{name}\0"
        files[f"{folder}/schedstat"] = "164850 27513 2\n"
        files[f"{folder}/oom_score_adj"] = "0\n"
        files[f"{folder}/stat"] = (
            f"{process} ({name}) S {int(process > 2)} {process} {process} 0 -1 4194304 840 0 2 0 "
            "51 20 0 0 20 0 1 0 1200 2867200 291 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 "
            f"{cpus[0]} 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
        )
        files[f"{folder}/status"] = (
            f"Name:\t{name}\nState:\tS (sleeping)\nTgid:\t{process}\nPid:\t{process}\n"
            f"PPid:\t{int(process > 2)}\nUid:\t0\t0\t0\t0\nThreads:\t1\n"
            f"Cpus_allowed:\t{processor.mask(cpus)}Cpus_allowed_list:\t{cpu_list(cpus)}\n"
            f"Mems_allowed:\t{(1 << nodes) - 1:x}\nMems_allowed_list:\t{cpu_list(tuple(range(nodes)))}\n"
            "voluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t3\n"
        )
    return files
