"""What happened to this process: CPU time, waiting for a core, preemption, paging. No root needed.

Read before and after a block, outside the timed part; the yard judges the differences.
"""

import os
import resource
import time
from typing import Any, Dict, Optional

_STEAL_TICKS = "steal_ticks"


def read() -> Dict[str, Any]:
    """Running totals of this process, and of its CPUs for steal. None: unavailable."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_ns": time.process_time_ns(),
        "run_queue_wait_ns": _run_queue_wait_ns(),
        "involuntary_switches": usage.ru_nivcsw,
        "major_faults": usage.ru_majflt,
        _STEAL_TICKS: _steal_ticks(),
    }


def difference(before: Dict[str, Any], after: Dict[str, Any]) -> Dict[str, Optional[int]]:
    """After minus before, key by key; stolen time in nanoseconds."""
    result: Dict[str, Optional[int]] = {}
    for key, start in before.items():
        end = after.get(key)
        if key == _STEAL_TICKS:
            result.update(_stolen(start, end))
        else:
            result[key] = None if start is None or end is None else end - start
    return result


def _stolen(
    before: Optional[Dict[int, int]], after: Optional[Dict[int, int]]
) -> Dict[str, Optional[int]]:
    """Stolen time, and the part of it that cannot be rounding.

    The kernel shows whole ticks of 1 / SC_CLK_TCK seconds, usually 10 ms. A CPU's counter that goes up
    by n ticks says that more than n - 1 were stolen: one tick may be a microsecond that was missing to
    the next whole one.
    """
    if before is None or after is None:
        return {"steal_ns": None, "steal_certain_ns": None}
    tick_ns = 1000000000 // os.sysconf("SC_CLK_TCK")
    ticks = [after[cpu] - start for cpu, start in before.items() if cpu in after]
    return {
        "steal_ns": sum(ticks) * tick_ns,
        "steal_certain_ns": sum(max(0, one - 1) for one in ticks) * tick_ns,
    }


def _run_queue_wait_ns() -> Optional[int]:
    total = 0
    try:
        for task in os.listdir("/proc/self/task"):
            with open("/proc/self/task/" + task + "/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[1])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, IndexError):
        return None
    return total


def _steal_ticks() -> Optional[Dict[int, int]]:
    """Ticks stolen from each CPU that this process may run on; those of others do not disturb it."""
    try:
        allowed = os.sched_getaffinity(0)
        found: Dict[int, int] = {}
        with open("/proc/stat", encoding="ascii") as file:
            for line in file:
                name, _, numbers = line.partition(" ")
                if not name.startswith("cpu"):
                    break
                if name != "cpu" and int(name[3:]) in allowed:
                    found[int(name[3:])] = int(numbers.split()[7])
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return found or None
