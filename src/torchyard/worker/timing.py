"""One block: a short batch of timed iterations of one side, with the readings around it.

A sample is the mean of `inner` calls between two looks at the clock; a block is a list of samples.
On the CPU the clock is the host's. On CUDA events are recorded around each sample and read after
one synchronisation at the end, so that nothing waits inside the block; the host's clock stands
beside them as the block's wall time. An L2 flush before each sample runs ahead of the host, so short
kernels are then timed without the gaps between launches. Gradients are dropped between samples,
outside the timed part.
"""

import gc
import time
from typing import Any, Callable, Dict, List, Optional

import torch

from torchyard.worker import readings
from torchyard.worker.devices import CudaDevice, cuda_device
from torchyard.worker.frequency_probe import FrequencyProbe
from torchyard.worker.side import Side

SETTLE_STEP_S = 0.002
SETTLE_LIMIT_S = 0.4

_probe = FrequencyProbe()


def run_block(
    side: Side,
    inner: int,
    samples: int,
    prime: int,
    settle: bool,
    flush_l2: bool,
    probe: bool = False,
) -> Dict[str, Any]:
    """Time the block and say what happened to the process meanwhile.

    The frequency probe comes after the untimed calls, when the clock is where the block finds it.
    """
    cuda = cuda_device(side.device)
    if side.model.training:
        inner = 1  # gradients are dropped after every call
    reset = side.model.forget_gradients if side.model.training else None
    gc.disable()
    try:
        with side.context():
            call = side.caller()
            for _ in range(prime):
                call()
                if reset is not None:
                    reset()
            side.synchronize()
            probe_before_ns = _probe.read() if probe else None
            before = readings.read()
            started_ns = time.perf_counter_ns()
            if cuda is not None:
                durations = _cuda_samples(call, inner, samples, reset, flush_l2, cuda)
            else:
                durations = _host_samples(call, inner, samples, reset)
            wall_ns = time.perf_counter_ns() - started_ns
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
    call: Callable[[], Any], inner: int, samples: int, reset: Optional[Callable[[], None]]
) -> List[float]:
    clock = time.perf_counter_ns
    durations: List[float] = [0.0] * samples
    if reset is not None:
        for index in range(samples):
            start = clock()
            call()
            durations[index] = clock() - start
            reset()
    elif inner == 1:
        for index in range(samples):
            start = clock()
            call()
            durations[index] = clock() - start
    else:
        calls = range(inner)
        for index in range(samples):
            start = clock()
            for _ in calls:
                call()
            durations[index] = (clock() - start) / inner
    return durations


_flush_buffer: Dict[str, Any] = {}


def _cuda_samples(
    call: Callable[[], Any],
    inner: int,
    samples: int,
    reset: Optional[Callable[[], None]],
    flush_l2: bool,
    device: CudaDevice,
) -> List[float]:
    starts, ends = device.events(samples), device.events(samples)
    stream = device.stream()
    buffer = _l2_buffer(device) if flush_l2 else None
    for start, end in zip(starts, ends):
        if buffer is not None:
            buffer.zero_()
        start.record(stream)
        for _ in range(inner):
            call()
        end.record(stream)
        if reset is not None:
            reset()
    device.synchronize()
    return [start.elapsed_time(end) * 1e6 / inner for start, end in zip(starts, ends)]


def _l2_buffer(device: CudaDevice) -> Any:
    if device.name not in _flush_buffer:
        size_bytes = 2 * getattr(device.properties(), "L2_cache_size", 128 << 20)
        _flush_buffer[device.name] = torch.empty(size_bytes, dtype=torch.uint8, device=device.name)
    return _flush_buffer[device.name]


def wait_until_idle() -> int:
    """Sleep until this process's own threads stopped spinning; how long that took.

    OpenMP threads spin for a while after a parallel region (GNU: some milliseconds, Intel: 200 ms)
    and would take a core from the other side's block.
    """
    started_ns = time.perf_counter_ns()
    deadline_ns = started_ns + int(SETTLE_LIMIT_S * 1e9)
    while True:
        cpu_before, wall_before = time.process_time_ns(), time.perf_counter_ns()
        time.sleep(SETTLE_STEP_S)
        used = time.process_time_ns() - cpu_before
        now = time.perf_counter_ns()
        if used < 0.1 * (now - wall_before) or now > deadline_ns:
            return now - started_ns
