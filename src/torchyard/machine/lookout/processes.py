"""CPU time of other processes and of kernel threads, by name."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from torchyard.machine.lookout.processor_time import busy_s
from torchyard.machine.lookout.source import Disturber, Scene

__all__ = ["CAME_AND_WENT", "OURSELVES", "ProcessTime"]

CAME_AND_WENT: Final = "processes that came and went"
OURSELVES: Final = "Torchyard itself"
_KERNEL_THREAD: Final = 0x00200000
"""PF_KTHREAD of include/linux/sched.h."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
# kworker/0:1H-kblockd, ksoftirqd/1, kdamond.0, kswapd0: one name for all of a kind.
_KERNEL_NUMBER: Final = re.compile(r"[/.:].*$|\d+$")


@dataclass(frozen=True, kw_only=True)
class _Seen:
    name: str
    parent: int
    of_kernel: bool
    cpu_s: float
    processor: int


class ProcessTime:
    """What every other process used since the last look."""

    name = "processes"

    def __init__(self) -> None:
        self.unavailable = ""
        self._before: dict[tuple[int, int], _Seen] | None = None
        self._busy_s: float | None = None

    def since_last(self, scene: Scene) -> Mapping[Disturber, float]:
        """Seconds by name; what ended between two looks is seen only as a remainder."""
        now = dict(_processes(scene))
        busy = busy_s(scene.files)
        before, self._before = self._before, now
        busy_before, self._busy_s = self._busy_s, busy
        if not now:
            self.unavailable = "/proc shows no process"
            return {}
        if before is None:
            return {}
        parents = {pid: seen.parent for (pid, _), seen in now.items()}
        ours = {pid for pid in parents if _descends(pid, scene.own_pid, parents)}
        used: dict[Disturber, float] = defaultdict(float)
        all_s = 0.0
        for key, seen in now.items():
            # A process that began since then has used everything since then.
            more = seen.cpu_s - (before[key].cpu_s if key in before else 0.0)
            if more <= 0.0:
                continue
            all_s += more
            pid = key[0]
            if pid == scene.own_pid:
                used[Disturber("torchyard", OURSELVES)] += more
            elif pid not in ours and (scene.everywhere or seen.processor in scene.cores):
                kind = "kernel thread" if seen.of_kernel else "process"
                used[Disturber(kind, _shown(seen))] += more
        ended = before.keys() - now.keys()
        ours_ended = any(before[key].parent in ours for key in ended)
        if busy is not None and busy_before is not None and scene.everywhere and not ours_ended:
            unseen = busy - busy_before - all_s
            if ended and unseen > 0.0:
                used[Disturber("process", CAME_AND_WENT)] += unseen
        return used


def _processes(scene: Scene) -> Iterator[tuple[tuple[int, int], _Seen]]:
    """By number and start, because numbers come again."""
    for name in scene.files.names("proc"):
        if not name.isdecimal():
            continue
        text = scene.files.read(f"proc/{name}/stat").value or ""
        # The name stands in brackets and may hold blanks and brackets itself.
        head, _, tail = text.rpartition(")")
        fields = tail.split()
        try:
            seen = _Seen(
                name=head.partition("(")[2],
                parent=int(fields[1]),
                of_kernel=bool(int(fields[6]) & _KERNEL_THREAD),
                cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
                processor=int(fields[36]),
            )
            start_ticks = int(fields[19])
        except (IndexError, ValueError):
            continue  # it ended while it was read
        yield (int(name), start_ticks), seen


def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    visited = 0
    while pid and visited < len(parents):
        if pid == ancestor:
            return True
        pid = parents.get(pid, 0)
        visited += 1
    return False


def _shown(seen: _Seen) -> str:
    return (_KERNEL_NUMBER.sub("", seen.name) or seen.name) if seen.of_kernel else seen.name
