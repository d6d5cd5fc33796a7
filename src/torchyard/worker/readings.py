"""What happened to this process: CPU time, waiting for a core, preemption, paging. No root needed.

Read before and after a block, outside the timed part; the yard judges the differences.
"""

import os
import resource
import time
from typing import Dict, Optional


def read() -> Dict[str, Optional[int]]:
    """Running totals of this process (and of the machine for steal). None: unavailable."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_ns": time.process_time_ns(),
        "run_queue_wait_ns": _run_queue_wait_ns(),
        "involuntary_switches": usage.ru_nivcsw,
        "major_faults": usage.ru_majflt,
        "steal_ns": _steal_ns(),
    }


def difference(
    before: Dict[str, Optional[int]], after: Dict[str, Optional[int]]
) -> Dict[str, Optional[int]]:
    """After minus before, key by key."""
    result: Dict[str, Optional[int]] = {}
    for key, start in before.items():
        end = after.get(key)
        result[key] = None if start is None or end is None else end - start
    return result


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


def _steal_ns() -> Optional[int]:
    try:
        with open("/proc/stat", encoding="ascii") as file:
            fields = file.readline().split()
        return int(fields[8]) * (1000000000 // os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return None
