"""The words that the kernel was started with. Reads only; which words to add is said elsewhere."""

from __future__ import annotations

from typing import Final

from torchyard.machine.facts.reading import line_of
from torchyard.machine.file_tree import FileTree, Found

__all__ = ["NOISE_WORDS", "boot_line", "boot_values", "noise_words"]

NOISE_WORDS: Final = (
    *("isolcpus", "nohz_full", "rcu_nocbs", "irqaffinity", "skew_tick", "nohz"),
    *("nosmt", "maxcpus", "mitigations", "idle", "intel_idle.max_cstate"),
    *("processor.max_cstate", "cpuidle.off", "intel_pstate", "amd_pstate", "cpufreq.off"),
    *("transparent_hugepage", "hugepages", "default_hugepagesz", "numa_balancing", "numa"),
    *("nmi_watchdog", "nowatchdog", "clocksource", "tsc", "preempt", "threadirqs", "psi"),
)
"""Words that change how steady or how fast this machine is."""


def boot_line(files: FileTree) -> Found:
    """The whole line."""
    return line_of(files, "proc/cmdline")


def boot_values(files: FileTree) -> dict[str, str]:
    """Word -> value, the last of each; a word without a value has an empty one."""
    values: dict[str, str] = {}
    for word in (boot_line(files).value or "").split():
        if word == "--":  # what follows is for the first process, not for the kernel
            break
        name, _, value = word.partition("=")
        values[name.replace("-", "_")] = value
    return values


def noise_words(files: FileTree) -> Found:
    """Those of `NOISE_WORDS` that are on the line."""
    found = boot_line(files)
    if found.value is None:
        return found
    values = boot_values(files)
    shown = [f"{n}={values[n]}" if values[n] else n for n in NOISE_WORDS if n in values]
    return Found(value=" ".join(shown) or "nothing about noise")
