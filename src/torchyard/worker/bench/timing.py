"""Time one block: a short batch of iterations of one variant, with the readings around it.

Readings are CPU time, run-queue wait, preemptions and page faults of this process, and the frequency
probe (a fixed amount of work, timed); none of them needs root. For cold caches, more memory than the
last-level cache holds is overwritten before each timed iteration.
"""

import gc
import hashlib
import os
import resource
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from torchyard.worker.bench.accuracy.timed_results import TimedCheck
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.devices import Device, device_of
from torchyard.worker.host_memory import cache_sizes

_CPU_TICKS = "cpu_ticks"


def read_usage() -> Dict[str, Any]:
    """Return the counters of this process, and busy and steal time of its CPUs. None: unavailable."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_ns": time.process_time_ns(),
        "run_queue_wait_ns": _run_queue_wait_ns(),
        "involuntary_switches": usage.ru_nivcsw,
        "major_faults": usage.ru_majflt,
        _CPU_TICKS: _cpu_ticks(),
    }


def usage_difference(before: Dict[str, Any], after: Dict[str, Any]) -> Dict[str, Any]:
    """Return the differences of the counters; steal time and, by CPU, busy time in nanoseconds."""
    result: Dict[str, Any] = {}
    for key, start in before.items():
        end = after.get(key)
        if key == _CPU_TICKS:
            result.update(_cpu_times(start, end))
        else:
            result[key] = None if start is None or end is None else end - start
    return result


def _cpu_times(
    before: Optional[Dict[int, Tuple[int, int]]], after: Optional[Dict[int, Tuple[int, int]]]
) -> Dict[str, Any]:
    """Return busy and steal time, and the steal time that rounding to ticks (usually 10 ms) cannot explain."""
    if before is None or after is None:
        return {"steal_ns": None, "steal_certain_ns": None, "busy_ns": None}
    tick_ns = 1000000000 // os.sysconf("SC_CLK_TCK")
    both = [(str(cpu), before[cpu], after[cpu]) for cpu in before if cpu in after]
    stolen = [end[1] - start[1] for _, start, end in both]
    return {
        "steal_ns": sum(stolen) * tick_ns,
        "steal_certain_ns": sum(max(0, one - 1) for one in stolen) * tick_ns,
        "busy_ns": {cpu: (end[0] - start[0]) * tick_ns for cpu, start, end in both},
    }


def _run_queue_wait_ns() -> Optional[int]:
    total = 0
    try:
        for task in os.listdir("/proc/self/task"):
            with open("/proc/self/task/" + task + "/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return total


def _cpu_ticks() -> Optional[Dict[int, Tuple[int, int]]]:
    """Return the busy and the steal ticks of each CPU that this process may run on."""
    try:
        allowed = os.sched_getaffinity(0)
        ticks: Dict[int, Tuple[int, int]] = {}
        with open("/proc/stat", encoding="ascii") as file:
            for line in file:
                name, _, numbers = line.partition(" ")
                if not name.startswith("cpu"):
                    break
                if name != "cpu" and int(name[3:]) in allowed:
                    times = [int(number) for number in numbers.split()]
                    idle = times[3] + times[4]
                    ticks[int(name[3:])] = (sum(times[:7]) - idle, times[7])
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return ticks or None


WORK = bytes(range(256)) * 64
TRIES = 8
RETRY_RATIO = 1.04
"""All tries are repeated when the result is slower than the fastest one by this factor: an interrupt can
outlast all tries, a reduced clock lasts longer."""


def hash_once() -> None:
    """Do the fixed amount of work of the frequency probe."""
    hashlib.sha256(WORK).digest()


class FrequencyProbe:
    """Times a fixed amount of work, and keeps the fastest time of this process."""

    def __init__(
        self,
        work: Callable[[], None] = hash_once,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._work = work
        self._clock = clock
        self._fastest_ns: Optional[int] = None

    def read(self) -> int:
        """Return the current duration of the work in nanoseconds."""
        duration_ns = self._best()
        if self._fastest_ns is None or duration_ns > RETRY_RATIO * self._fastest_ns:
            duration_ns = min(duration_ns, self._best())
        if self._fastest_ns is None or duration_ns < self._fastest_ns:
            self._fastest_ns = duration_ns
        return duration_ns

    def _best(self) -> int:
        work, clock = self._work, self._clock
        best = 0
        for _ in range(TRIES):
            start = clock()
            work()
            duration = clock() - start
            if not best or duration < best:
                best = duration
        return best


FLUSH_LIMIT_S = 0.5
"""Time that cache flushes may add to a block."""
FEWEST_SAMPLES = 5
SMALLEST_BYTES = 16 << 20
LARGEST_BYTES = 1 << 30
UNKNOWN_CPU_CACHE_BYTES = 64 << 20
UNKNOWN_GPU_CACHE_BYTES = 128 << 20

_flushes: Dict[str, "Flush"] = {}


class Flush:
    """Evicts the caches of one device; `cost_s` is the time of one flush."""

    def __init__(self, device: str) -> None:
        self._device = device_of(device)
        cache_bytes = self._device.cache_bytes() or UNKNOWN_GPU_CACHE_BYTES
        if self._device.is_host:
            cache_bytes = cpu_cache_bytes()
        self.size_bytes = min(LARGEST_BYTES, max(SMALLEST_BYTES, 2 * cache_bytes))
        self._buffer = torch.zeros(self.size_bytes // 4, dtype=torch.int32, device=device)
        self()
        self._device.synchronize()
        started_ns = time.perf_counter_ns()
        self()
        self._device.synchronize()
        self.cost_s = (time.perf_counter_ns() - started_ns) / 1e9

    def __call__(self) -> None:
        """Flush once. On an accelerator this only submits the work, before the timed part."""
        if self._device.is_host:
            self._buffer.bitwise_not_()
        else:
            self._buffer.zero_()

    def affordable(self, iterations: int) -> int:
        """Return the number of iterations of a block that can each be preceded by a flush."""
        most = max(FEWEST_SAMPLES, int(FLUSH_LIMIT_S / max(self.cost_s, 1e-9)))
        return max(1, min(iterations, most))


def flush_for(device: str) -> Flush:
    """Return the flush of a device, created once per process."""
    if device not in _flushes:
        _flushes[device] = Flush(device)
    return _flushes[device]


def cpu_cache_bytes() -> int:
    """Return the size of the largest cache of the CPUs that this process may use."""
    return max(cache_sizes().values(), default=UNKNOWN_CPU_CACHE_BYTES)


SETTLE_STEP_S = 0.002
SETTLE_LIMIT_S = 0.4

PROBE = FrequencyProbe()
clock = time.perf_counter_ns
_process_clock = time.process_time_ns
"""Bound before any user code runs: a variant that replaces them cannot change the timing."""


def run_block(
    runner: VariantRunner,
    inner: int,
    samples: int,
    prime: int,
    settle: bool,
    flush_l2: bool,
    probe: bool = False,
    check: Optional[TimedCheck] = None,
) -> Dict[str, Any]:
    """Time the block, and read the counters of the process around it.

    The frequency probe runs after the untimed calls, at the clock frequency of the block. `check` keeps
    results of some calls outside the timed part.
    """
    if runner.model.training:
        inner = 1  # gradients are dropped after every call
    flush = flush_for(runner.device) if flush_l2 else None
    if flush is not None:
        inner, samples = 1, flush.affordable(inner * samples)
    prime += check.prime if check is not None else 0
    result = timed_block(runner, inner, samples, prime, flush, probe, check)
    if settle:
        result["settle_ns"] = wait_until_idle()
    return result


def timed_block(
    runner: VariantRunner,
    inner: int,
    samples: int,
    prime: int,
    flush: Optional[Flush],
    probe: bool,
    check: Optional[TimedCheck],
) -> Dict[str, Any]:
    """Time exactly this block: every rank of a process group must make the same calls."""
    device = runner.hardware
    reset = runner.forget_gradients if runner.model.training else None
    plan = {
        "inner": inner,
        "samples": samples,
        "prime": prime,
        "flush": flush is not None,
        "probe": probe,
        "chosen": sorted(check.chosen) if check is not None else [],
        "stateful": check is not None and check.stateful,
    }
    gc.disable()
    try:
        with runner.context():
            call = runner.begin_block(plan)
            for _ in range(prime):
                call()
                if reset is not None:
                    reset()
            runner.synchronize()
            probe_before_ns = PROBE.read() if probe else None
            runner.barrier()
            before = read_usage()
            started_ns = clock()
            if device.is_host:
                durations = _host_samples(call, inner, samples, reset, flush, check)
            else:
                durations = _event_samples(call, inner, samples, reset, flush, check, device)
            wall_ns = clock() - started_ns
            after = read_usage()
            probe_after_ns = PROBE.read() if probe else None
    finally:
        runner.end_block()
        gc.enable()
    return {
        "samples_ns": durations,
        "inner": inner,
        "started_ns": started_ns,
        "wall_ns": wall_ns,
        "readings": dict(
            usage_difference(before, after),
            probe_before_ns=probe_before_ns,
            probe_after_ns=probe_after_ns,
        ),
    }


def _host_samples(
    call: Callable[..., Any],
    inner: int,
    samples: int,
    reset: Optional[Callable[[], None]],
    flush: Optional[Callable[[], None]],
    check: Optional[TimedCheck],
) -> List[float]:
    durations: List[float] = [0.0] * samples
    calls = range(inner)
    for index in range(samples):
        if flush is not None:
            flush()
        if check is not None and index in check.chosen:
            durations[index] = _checked_sample(call, inner, index, reset is not None, check)
        elif inner == 1:
            start = clock()
            call()
            durations[index] = clock() - start
        else:
            start = clock()
            for _ in calls:
                call()
            durations[index] = (clock() - start) / inner
        if reset is not None:
            reset()
    return durations


def _checked_sample(
    call: Callable[..., Any], inner: int, index: int, training: bool, check: TimedCheck
) -> float:
    """Time a sample and keep its last result.

    Where a call changes state that the next one reads, the result of one more call is kept instead: the
    state before the last of several calls cannot be copied without interrupting the timed part.
    """
    one_more = check.stateful and inner > 1
    outputs: List[Any] = []
    if not one_more:
        check.before()
    if training:
        start = clock()
        call(outputs)
        duration = float(clock() - start)
    else:
        rest = range(inner - 1)
        start = clock()
        for _ in rest:
            call()
        output = call()
        duration = (clock() - start) / inner
        if one_more:
            check.before()
            output = call()
        outputs.append(output)
    check.after(index, outputs)
    return duration


def _event_samples(
    call: Callable[..., Any],
    inner: int,
    samples: int,
    reset: Optional[Callable[[], None]],
    flush: Optional[Callable[[], None]],
    check: Optional[TimedCheck],
    device: Device,
) -> List[float]:
    starts, ends = device.events(samples), device.events(samples)
    stream = device.stream()
    for index, (start, end) in enumerate(zip(starts, ends)):
        checking = check if check is not None and index in check.chosen else None
        one_more = checking is not None and checking.stateful and inner > 1
        outputs: List[Any] = []
        if checking is not None and not one_more:
            checking.before()
        if flush is not None:
            flush()
        start.record(stream)
        if checking is None:
            for _ in range(inner):
                call()
        elif reset is not None:
            call(outputs)
        else:
            for _ in range(inner - 1):
                call()
            outputs.append(call())
        end.record(stream)
        if checking is not None:
            if one_more:
                checking.before()
                outputs = [call()]
            checking.after(index, outputs)
            del outputs
        if reset is not None:
            reset()
    last = device.events(1)[0]
    last.record(stream)
    last.synchronize()
    if check is not None:
        waiting_since_ns = clock()
        device.synchronize()
        check.unfinished_ns = clock() - waiting_since_ns
    device.synchronize()
    return [start.elapsed_time(end) * 1e6 / inner for start, end in zip(starts, ends)]


def wait_until_idle() -> int:
    """Sleep until the threads of this process have stopped spinning; return the waiting time.

    OpenMP threads spin for a while after a parallel region (GNU: some milliseconds, Intel: 200 ms)
    and would take a core from the block of the other variant.
    """
    started_ns = clock()
    deadline_ns = started_ns + int(SETTLE_LIMIT_S * 1e9)
    while True:
        cpu_before, wall_before = _process_clock(), clock()
        time.sleep(SETTLE_STEP_S)
        used = _process_clock() - cpu_before
        now = clock()
        if used < 0.1 * (now - wall_before) or now > deadline_ns:
            return now - started_ns
