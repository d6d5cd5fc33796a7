"""Interrupts and soft interrupts on the cores, by source."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from torchyard.machine.lookout.source import Disturber, GrowingTotals, Scene

__all__ = ["InterruptCounts", "SoftInterruptCounts"]

# ITS-PCI-MSIX-0000:00:02.0   1 Edge   virtio1-req.0: the name follows the trigger.
_TRIGGER: Final = re.compile(r"\b(?:edge|level|fasteoi|percpu)\b\s*", re.IGNORECASE)
_OWN_WORK: Final = frozenset({"TIMER", "SCHED", "RCU", "HRTIMER"})
"""Soft interrupts that every running program causes by itself."""


class InterruptCounts:
    """How often each source interrupted the cores."""

    name = "interrupts"

    def __init__(self) -> None:
        self.unavailable = ""
        self._totals = GrowingTotals()

    def since_last(self, scene: Scene) -> Mapping[Disturber, float]:
        """Counts, summed over the cores."""
        found = scene.files.read("proc/interrupts")
        if found.value is None:
            self.unavailable = found.because
            return {}
        totals: Counter[Disturber] = Counter()
        for label, count, rest in _rows(found.value, scene.cores):
            what = _named(label, rest)
            kind = "timer interrupt" if "timer" in what.lower() else "interrupt"
            totals[Disturber(kind, what)] += count
        return self._totals.added(totals)


class SoftInterruptCounts:
    """How often work of network, disk and others was done behind interrupts."""

    name = "soft interrupts"

    def __init__(self) -> None:
        self.unavailable = ""
        self._totals = GrowingTotals()

    def since_last(self, scene: Scene) -> Mapping[Disturber, float]:
        """Counts, summed over the cores."""
        found = scene.files.read("proc/softirqs")
        if found.value is None:
            self.unavailable = found.because
            return {}
        totals: Counter[Disturber] = Counter()
        for label, count, _ in _rows(found.value, scene.cores):
            if label not in _OWN_WORK:
                totals[Disturber("soft interrupt", label)] += count
        return self._totals.added(totals)


def _rows(text: str, cores: tuple[int, ...]) -> Iterator[tuple[str, int, str]]:
    """Label, count on the cores, and what follows the counts."""
    lines = text.splitlines()
    columns = [word.removeprefix("CPU") for word in lines[0].split()] if lines else []
    wanted = {str(core) for core in cores}
    for line in lines[1:]:
        label, colon, rest = line.strip().partition(":")
        words = rest.split(maxsplit=len(columns))
        counts = words[: len(columns)]
        if not colon or len(counts) < len(columns) or not all(map(str.isdecimal, counts)):
            continue  # ERR and MIS have one count for all processors
        count = sum(int(word) for name, word in zip(columns, counts, strict=True) if name in wanted)
        yield label, count, words[len(columns)] if len(words) > len(columns) else ""


def _named(label: str, rest: str) -> str:
    """The device of a numbered interrupt; the words of an architecture's own."""
    rest = " ".join(rest.split())
    if not label.isdecimal():
        return rest or label
    end = max((match.end() for match in _TRIGGER.finditer(rest)), default=-1)
    name = rest[end:] if end >= 0 else rest.rpartition(" ")[2]
    return name or f"interrupt {label}"
