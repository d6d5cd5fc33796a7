"""Pages that the kernel moved, split, scanned or swapped, from /proc/vmstat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from torchyard.machine.lookout.source import Disturber, GrowingTotals, Scene

__all__ = ["PageMoves"]

_SWAP: Final = Disturber("swap", "pages swapped")
_COUNTERS: Final = {
    "pgmigrate_success": Disturber("page moves", "pages migrated"),
    "numa_hint_faults": Disturber("page moves", "NUMA balancing faults"),
    "numa_pages_migrated": Disturber("page moves", "pages moved by NUMA balancing"),
    "thp_split_page": Disturber("page moves", "huge pages split"),
    "compact_migrate_scanned": Disturber("page moves", "pages scanned by compaction"),
    "pgscan_kswapd": Disturber("page moves", "pages scanned by kswapd"),
    "pgscan_direct": Disturber("page moves", "pages scanned for want of memory"),
    "pswpin": _SWAP,
    "pswpout": _SWAP,
}


class PageMoves:
    """Counts of the whole machine."""

    name = "page moves"

    def __init__(self) -> None:
        self.unavailable = ""
        self._totals = GrowingTotals()

    def since_last(self, scene: Scene) -> Mapping[Disturber, float]:
        """By what was done to pages."""
        found = scene.files.read("proc/vmstat")
        if found.value is None:
            self.unavailable = found.because
            return {}
        totals: Counter[Disturber] = Counter()
        for line in found.value.splitlines():
            name, _, count = line.partition(" ")
            if name in _COUNTERS and count.isdecimal():
                totals[_COUNTERS[name]] += int(count)
        return self._totals.added(totals)
