"""CPU and wall time of a command with all its processes, for benchmarks of building."""

from __future__ import annotations

import math
import resource
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchyard.stats.distributions import student_quantile


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


def percent_more(plain: Sequence[float], ours: Sequence[float]) -> str:
    """How much more the second takes, over pairs: geometric mean with its 95 % interval."""
    logs = [math.log(more / less) for less, more in zip(plain, ours, strict=True)]
    middle = statistics.mean(logs)
    text = f"{100 * math.expm1(middle):+.2f} %"
    if len(logs) > 1:
        half = (
            student_quantile(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
        )
        low, high = (100 * math.expm1(middle + sign * half) for sign in (-1, 1))
        text += f" (95 % interval of {len(logs)} pairs {low:+.2f} to {high:+.2f} %)"
    return text


def seconds_more(plain: Sequence[float], ours: Sequence[float]) -> str:
    """The same as a difference: mean with its 95 % interval."""
    extra = [more - less for less, more in zip(plain, ours, strict=True)]
    text = f"{statistics.mean(extra):+.2f} s"
    if len(extra) > 1:
        half = student_quantile(0.975, len(extra) - 1) * statistics.stdev(extra)
        half /= math.sqrt(len(extra))
        text += f" ({statistics.mean(extra) - half:+.2f} to {statistics.mean(extra) + half:+.2f} s)"
    return text
