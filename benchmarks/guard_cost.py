"""What guards cost a block, and how steady the frequency probe is: side by side, as ratios.

    python benchmarks/guard_cost.py --blocks 200 --workload kernels/layered-mlp

One worker, blocks in pairs in random order: one with the yard's readers and the frequency probe, one
without. Prints the ratio of the time until the answer (what guards cost), the ratio of the timed
samples (whether guards disturb what they watch; it should be 1), what each reader takes, and how far
the probe strays from what is usual: every block above the limit is called dirty.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchyard.bench.launch import LaunchProcesses, draw_launch
from torchyard.bench.preparation import PreparationState, warm_up
from torchyard.core.block import GuardReading
from torchyard.core.study import MeasureSettings, Target, Variant, Workload
from torchyard.machine.guards import block_check
from torchyard.machine.guards.block_check import SMALLEST_LIMIT, ProbeBaseline
from torchyard.machine.guards.host_guards import READERS, HostGuards
from torchyard.machine.knob import Machine
from torchyard.worker.bench import timing as readings
from torchyard.worker.bench.timing import FrequencyProbe

VARIANT = Variant(name="one", target=Target(name="here", python=sys.executable))


class Blocks:
    """Blocks of one worker, with guards and without."""

    def __init__(
        self, crew: LaunchProcesses, prepared: PreparationState, watch: HostGuards, threads: int
    ) -> None:
        self._crew = crew
        self._plan = prepared.plans[VARIANT.name]
        self._watch = watch
        self._usual = ProbeBaseline()
        self._threads = threads
        self.readings: list[GuardReading] = []
        self.medians_ns: list[float] = []
        self.dirty: Counter[str] = Counter()

    def take(self, *, guarded: bool) -> tuple[float, float]:
        """Seconds until the answer was there and judged, and the median sample."""
        started = time.perf_counter()
        if guarded:
            self._watch.begin()
        answer = self._ask(guarded)
        if guarded:
            reading = block_check.reading_from(answer["readings"], self._watch.end())
            reading = self._usual.beside(VARIANT.name, reading)
            reasons = block_check.judge(
                reading,
                wall_ns=answer["wall_ns"],
                samples=len(answer["samples_ns"]),
                threads=self._threads,
            )
            self.readings.append(reading)
            self.medians_ns.append(statistics.median(answer["samples_ns"]))
            self.dirty.update(reasons)
        return time.perf_counter() - started, statistics.median(answer["samples_ns"])

    def _ask(self, probe: bool) -> dict[str, Any]:
        return self._crew.ask(
            VARIANT,
            "block",
            phase="timing",
            limit_s=60.0,
            variant=VARIANT.name,
            inner=self._plan.inner,
            samples=self._plan.samples,
            prime=self._plan.prime,
            settle=False,
            flush_l2=False,
            probe=probe,
        )


def ratio_with_interval(ratios: Sequence[float]) -> str:
    """The median ratio with a 95 % interval by the bootstrap."""
    chance = random.Random(1)
    again = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(1000))
    return f"{statistics.median(ratios):.4f} [{again[25]:.4f}, {again[974]:.4f}]"


def cost_us(work: Callable[[], object], repeats: int = 300) -> float:
    """The median duration of a call."""
    durations = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        work()
        durations.append(time.perf_counter_ns() - start)
    return statistics.median(durations) / 1e3


def print_costs() -> None:
    """What is read by itself, in this process."""
    for open_reader in READERS:
        reader = open_reader(Machine())
        times = 2 if reader.grows else 1
        text = reader.unavailable or f"{cost_us(reader.read):.1f} us, {times} x for a block"
        print(f"  {reader.name:<20} {text}")
        reader.close()
    probe = FrequencyProbe()
    print(f"  {'frequency probe':<20} {cost_us(probe.read):.1f} us, 2 x for a block")
    print(f"  {'worker readings':<20} {cost_us(readings.read_usage):.1f} us, 2 x for a block")


def print_probe(taken: Sequence[GuardReading]) -> None:
    """How far the probe strays from what is usual."""
    strays = sorted(
        max(each.probe_before_ns or 0, each.probe_after_ns or 0) / each.probe_usual_ns - 1
        for each in taken
        if each.probe_usual_ns
    )
    if not strays:
        return
    shown = (("median", 0.5), ("95 of 100", 0.95), ("99 of 100", 0.99), ("all", 1.0))
    print("probe slower than usual by at most:")
    for text, share in shown:
        stray = strays[math.ceil(share * len(strays)) - 1]
        print(f"  {text:<10} {100 * stray:.2f} %")
    limits = [
        each.probe_limit_ns / each.probe_usual_ns
        for each in taken
        if each.probe_limit_ns and each.probe_usual_ns
    ]
    if limits:
        print(f"  limit {100 * (min(limits) - 1):.1f} to {100 * (max(limits) - 1):.1f} %")
    for limit in (0.01, 0.02, 0.03, SMALLEST_LIMIT):
        above = sum(stray > limit for stray in strays) / len(strays)
        print(f"  above {100 * limit:g} %: {100 * above:.2f} % of {len(strays)} blocks")


def print_meaning(taken: Sequence[GuardReading], medians_ns: Sequence[float]) -> None:
    """Whether blocks beside slow probes are slow: what dropping them is good for."""
    strays = [
        math.log(max(each.probe_before_ns or 0, each.probe_after_ns or 0) / each.probe_usual_ns)
        for each in taken
        if each.probe_usual_ns
    ]
    usual_ns = statistics.median(medians_ns)
    times = [math.log(median_ns / usual_ns) for median_ns in medians_ns]
    print(f"block times scatter by {100 * statistics.stdev(times):.2f} %, probes by")
    print(
        f"  {100 * statistics.stdev(strays):.2f} %, correlated with {correlation(strays, times):.2f}"
    )
    for limit in (0.0, 0.02, SMALLEST_LIMIT, 0.1):
        kept = [time for stray, time in zip(strays, times, strict=True) if stray <= limit]
        if len(kept) > 2:
            share = 100 * len(kept) / len(times)
            deviation = 100 * statistics.stdev(kept)
            print(
                f"  up to {100 * limit:g} %: {share:.0f} % of blocks, scatter by {deviation:.2f} %"
            )


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Pearson's; 0 where one does not vary."""
    try:
        return statistics.correlation(one, other)
    except statistics.StatisticsError:
        return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=200)
    parser.add_argument("--block-s", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workload", default="kernels/layered-mlp")
    options = parser.parse_args()
    suite, _, name = options.workload.partition("/")
    settings = MeasureSettings(block_s=options.block_s, threads=options.threads)
    chance = random.Random(4)
    prepared = PreparationState()
    elapsed, samples = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        HostGuards() as watch,
        LaunchProcesses(
            Workload(suite=suite, name=name),
            [VARIANT],
            settings,
            draw=draw_launch(chance),
            log_folder=Path(folder),
            scratch=Path(folder),
        ) as crew,
    ):
        warm_up(crew, VARIANT, prepared)
        blocks = Blocks(crew, prepared, watch, options.threads)
        for _ in range(options.blocks):
            order = [True, False]
            chance.shuffle(order)
            found = {guarded: blocks.take(guarded=guarded) for guarded in order}
            elapsed.append(found[True][0] / found[False][0])
            samples.append(found[True][1] / found[False][1])
    print(f"{options.workload}, {options.blocks} pairs of blocks, with guards over without:")
    print(f"  until the answer  {ratio_with_interval(elapsed)}")
    print(f"  timed samples     {ratio_with_interval(samples)}")
    print("one reading:")
    print_costs()
    print_probe(blocks.readings)
    print_meaning(blocks.readings, blocks.medians_ns)
    said = ", ".join(f"{reason} {count}" for reason, count in blocks.dirty.most_common())
    print(f"dirty of {len(blocks.readings)}: {said or 'none'}")


if __name__ == "__main__":
    main()
