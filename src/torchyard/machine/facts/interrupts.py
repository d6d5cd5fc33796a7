"""Which processors serve interrupts of devices, and who moves them."""

from __future__ import annotations

from collections import Counter
from typing import Final

from torchyard.core.machine import Fact
from torchyard.core.processor_lists import cpu_list, cpus_of_mask
from torchyard.machine.facts.reading import Reader, facts_of, in_words, line_of, or_none
from torchyard.machine.file_tree import FileTree, Found
from torchyard.machine.knob import Machine

__all__ = ["SECTION", "balancer", "placement", "read"]

SECTION: Final = "interrupts"
_IRQ: Final = "proc/irq"
_BUSIEST: Final = 3


def read(machine: Machine) -> tuple[Fact, ...]:
    """The section."""
    return facts_of(SECTION, READERS, machine.files)


def placement(files: FileTree) -> dict[str, tuple[int, ...]]:
    """Interrupt -> processors that serve it now; those that no device uses are left out."""
    used = _used(files)
    found: dict[str, tuple[int, ...]] = {}
    for number in files.names(_IRQ):
        if number.isdecimal() and (not used or used.get(number)):
            effective = files.read(f"{_IRQ}/{number}/effective_affinity_list")
            if not (effective.value or "").strip():
                effective = files.read(f"{_IRQ}/{number}/smp_affinity_list")
            if cpus := or_none(effective):
                found[number] = cpus
    return found


def balancer(files: FileTree) -> Found:
    """The process number of irqbalance, or `not running`."""
    if not files.exists("proc"):
        return Found(because="/proc: No such file or directory")
    for name in files.names("proc"):
        if name.isdecimal() and files.read(f"proc/{name}/comm").value == "irqbalance":
            return Found(value=f"running as process {name}")
    return Found(value="not running")


def _used(files: FileTree) -> dict[str, int]:
    """Interrupt -> how often it was served since boot, over all processors."""
    counts: dict[str, int] = {}
    for line in (files.read("proc/interrupts").value or "").splitlines()[1:]:
        number, colon, rest = line.strip().partition(":")
        if colon and number.isdecimal():
            served = 0
            for word in rest.split():
                if not word.isdecimal():
                    break
                served += int(word)
            counts[number] = served
    return counts


def _default(files: FileTree) -> Found:
    found = line_of(files, f"{_IRQ}/default_smp_affinity")
    return in_words(found, lambda text: cpu_list(cpus_of_mask(text)))


def _placement(files: FileTree) -> Found:
    every = placement(files)
    if not every:
        return Found(because=f"/{_IRQ} has no interrupt that says where it is served")
    on = sorted({cpu for cpus in every.values() for cpu in cpus})
    return Found(value=f"{len(every)} in use, served by {cpu_list(tuple(on))}")


def _busiest(files: FileTree) -> Found:
    """Where most of the devices' interrupts went since boot: a core to keep away from."""
    lines = (files.read("proc/interrupts").value or "").splitlines()
    names = lines[0].split() if lines else []
    totals: Counter[str] = Counter()
    for line in lines[1:]:
        number, _, rest = line.strip().partition(":")
        if number.isdecimal():
            for name, word in zip(names, rest.split(), strict=False):
                totals[name] += int(word) if word.isdecimal() else 0
    shown = [
        f"{name.removeprefix('CPU')} ({count})"
        for name, count in totals.most_common(_BUSIEST)
        if count
    ]
    if not shown:
        return Found(because="/proc/interrupts is missing or counts nothing")
    return Found(value=", ".join(shown))


READERS: Final[dict[str, Reader]] = {
    "new interrupts go to": _default,
    "placement": _placement,
    "served most since boot": _busiest,
    "irqbalance": balancer,
}
