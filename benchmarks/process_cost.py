"""CPU and wall time of a command with all its processes, for benchmarks of building."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one command, with all its processes."""

    wall_s: float
    cpu_s: float


def run(argv: Sequence[str], variables: Mapping[str, str]) -> Cost:
    """Run it to its end; anything but exit code 0 raises."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(argv, env=dict(variables), check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall_s=wall, cpu_s=cpu)
