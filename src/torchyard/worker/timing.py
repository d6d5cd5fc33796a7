"""One block: a short batch of timed iterations of one side, with the readings around it.

A sample is the mean of `inner` calls between two looks at the clock; a block is a list of samples.
On the CPU the clock is the host's. On CUDA events are recorded around each sample and read after
one synchronisation at the end, so that nothing waits inside the block; the host's clock stands
beside them as the block's wall time. With cold caches every iteration is a sample: the caches are
flushed before it, outside the timed part. On CUDA the flush runs ahead of the host, so short kernels
are then timed without the gaps between launches. Gradients are dropped between samples, outside the
timed part.
"""

import gc
import time
from typing import Any, Callable, Dict, List, Optional

from torchyard.worker import cache_flush, readings
from torchyard.worker.devices import CudaDevice, cuda_device
from torchyard.worker.frequency_probe import FrequencyProbe
from torchyard.worker.side import Side
from torchyard.worker.timed_check import TimedCheck

SETTLE_STEP_S = 0.002
SETTLE_LIMIT_S = 0.4

_probe = FrequencyProbe()
clock = time.perf_counter_ns
_process_clock = time.process_time_ns
"""Taken before any code of the user's runs: a variant that replaces them does not change the timing."""


def run_block(
    side: Side,
    inner: int,
    samples: int,
    prime: int,
    settle: bool,
    flush_l2: bool,
    probe: bool = False,
    check: Optional[TimedCheck] = None,
) -> Dict[str, Any]:
    """Time the block and say what happened to the process meanwhile.

    The frequency probe comes after the untimed calls, when the clock is where the block finds it. `check`
    keeps results of some calls; what it does is not timed.
    """
    cuda = cuda_device(side.device)
    if side.model.training:
        inner = 1  # gradients are dropped after every call
    reset = side.model.forget_gradients if side.model.training else None
    flush = cache_flush.flush_for(side.device) if flush_l2 else None
    if flush is not None:
        inner, samples = 1, flush.affordable(inner * samples)
    gc.disable()
    try:
        with side.context():
            call = side.caller()
            for _ in range(prime + (check.prime if check is not None else 0)):
                call()
                if reset is not None:
                    reset()
            side.synchronize()
            probe_before_ns = _probe.read() if probe else None
            before = readings.read()
            started_ns = clock()
            if cuda is not None:
                durations = _cuda_samples(call, inner, samples, reset, flush, check, cuda)
            else:
                durations = _host_samples(call, inner, samples, reset, flush, check)
            wall_ns = clock() - started_ns
            after = readings.read()
            probe_after_ns = _probe.read() if probe else None
    finally:
        gc.enable()
    result: Dict[str, Any] = {
        "samples_ns": durations,
        "inner": inner,
        "started_ns": started_ns,
        "wall_ns": wall_ns,
        "readings": dict(
            readings.difference(before, after),
            probe_before_ns=probe_before_ns,
            probe_after_ns=probe_after_ns,
        ),
    }
    if settle:
        result["settle_ns"] = wait_until_idle()
    return result


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
    """A sample whose last result is kept.

    Where a call changes what the next one sees, the result of one more call is kept instead: the state
    before the last of several calls cannot be copied without a pause in the timed part.
    """
    one_more = check.stateful and inner > 1
    kept: List[Any] = []
    if not one_more:
        check.before()
    if training:
        start = clock()
        call(kept)
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
        kept.append(output)
    check.after(index, kept)
    return duration


def _cuda_samples(
    call: Callable[..., Any],
    inner: int,
    samples: int,
    reset: Optional[Callable[[], None]],
    flush: Optional[Callable[[], None]],
    check: Optional[TimedCheck],
    device: CudaDevice,
) -> List[float]:
    starts, ends = device.events(samples), device.events(samples)
    stream = device.stream()
    for index, (start, end) in enumerate(zip(starts, ends)):
        watching = check if check is not None and index in check.chosen else None
        one_more = watching is not None and watching.stateful and inner > 1
        kept: List[Any] = []
        if watching is not None and not one_more:
            watching.before()
        if flush is not None:
            flush()
        start.record(stream)
        if watching is None:
            for _ in range(inner):
                call()
        elif reset is not None:
            call(kept)
        else:
            for _ in range(inner - 1):
                call()
            kept.append(call())
        end.record(stream)
        if watching is not None:
            if one_more:
                watching.before()
                kept = [call()]
            watching.after(index, kept)
            del kept
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
    """Sleep until this process's own threads stopped spinning; how long that took.

    OpenMP threads spin for a while after a parallel region (GNU: some milliseconds, Intel: 200 ms)
    and would take a core from the other side's block.
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
