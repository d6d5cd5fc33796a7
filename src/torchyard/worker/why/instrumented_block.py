"""Profile a block with torch.profiler, and sum the times by source operator (`assignment.py`).

On a GPU, each iteration starts and ends with a synchronization, and its operators cost the time that
the GPU is busy with their kernels.

On the CPU, the profiler keeps small allocations until it ends. They split the memory that results would reuse,
and page faults in new memory can take longer than the kernels. So a block has few iterations, memory
that was written to before is kept in reserve, and iterations with more page faults than without the
profiler are left out.
"""

import contextlib
import ctypes
import gc
import os
import resource
import tempfile
from statistics import median
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch.profiler import profile

from torchyard.worker.bench.backend_names import uses_dynamo
from torchyard.worker.bench.timing import clock
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.why.assignment import ITERATION, Assignment, Event, iterations_of, read_trace
from torchyard.worker.why.kernels import GeneratedCode, Labels
from torchyard.worker.why.sources import TracedOperator
from torchyard.worker.workload import CannotBuild

PRIME = 3
"""Iterations before the profiler starts."""
LONGEST = 1.25
"""Iterations longer than this multiple of the median were interrupted, and are left out."""
FEW_FAULTS = 16
MIN_KEPT_SHARE = 0.25
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_THRESHOLD = 32 << 20
"""The largest size that glibc serves from the heap."""
PIECE_BYTES = 16 << 20


def reserve_memory(reserve_bytes: int) -> None:
    """Keep written memory in the heap, so that new allocations cause no page faults (glibc only)."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
        library.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
        library.malloc.restype = ctypes.c_void_p
        pieces = [
            library.malloc(ctypes.c_size_t(PIECE_BYTES))
            for _ in range(reserve_bytes // PIECE_BYTES)
        ]
        for piece in pieces:
            if piece:
                ctypes.memset(piece, 1, PIECE_BYTES)
        for piece in pieces:
            library.free(ctypes.c_void_p(piece))


def _gpu_iterations(profiler: Any, path: str) -> Sequence[Event]:
    """Return the events of each iteration as trees with the GPU kernels that they launch."""
    with tempfile.TemporaryDirectory(prefix="torchyard-why-") as folder:
        path = path or os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)  # possible only once
        trace = read_trace(path)
    if not trace.activities:
        raise CannotBuild(
            "the profiler of torch %s recorded no GPU kernels" % torch.__version__,
            hint="use a torch with CUPTI, and end other profilers of this GPU",
        )
    return iterations_of(trace)


def _host_iterations(profiler: Any) -> List[Event]:
    """Return the events of each iteration as trees.

    Events of other threads are left out: those of the calling thread wait for them.
    """
    events = []
    for one in profiler.events():
        if one.device_type == torch.autograd.DeviceType.CPU:
            span = one.time_range
            events.append((one.thread, Event(one.name, 1000.0 * span.start, 1000.0 * span.end)))
    events.sort(key=lambda pair: (pair[1].start_ns, -pair[1].end_ns))
    roots: List[Event] = []
    stack: List[Event] = []
    main: Any = None
    for thread, event in events:
        if event.name == ITERATION:
            main = thread
            roots.append(event)
            stack = [event]
            continue
        if not roots or thread != main:
            continue
        while stack and stack[-1].end_ns <= event.start_ns:
            stack.pop()
        if stack:
            stack[-1].children.append(event)
            stack.append(event)
    return roots


def run_instrumented(
    runner: VariantRunner,
    iterations: int,
    operators: Sequence[TracedOperator],
    code: GeneratedCode,
    trace: str = "",
) -> Dict[str, Any]:
    """Profile some iterations; return their mean duration and the rows of one iteration.

    `faulting` says that most iterations had more page faults than without the profiler. With `trace`,
    a Chrome trace is written there.
    """
    labels: Labels = {}
    on_gpu = not runner.hardware.is_host
    usual_faults, walls_ns, faults, profiler = _record(runner, iterations, code, labels)
    if on_gpu:
        faults = [0] * len(faults)
    most_faults = usual_faults + FEW_FAULTS
    usable = [wall_ns for wall_ns, own in zip(walls_ns, faults) if own <= most_faults]
    faulting = len(usable) < MIN_KEPT_SHARE * len(walls_ns)
    limit_ns = LONGEST * median(walls_ns if faulting else usable)
    if on_gpu:
        events = _gpu_iterations(profiler, trace)
    else:
        events = _host_iterations(profiler)
        if trace:
            profiler.export_chrome_trace(trace)
    usable_iterations = [
        (event, wall_ns)
        for event, wall_ns, own in zip(events, walls_ns, faults)
        if wall_ns <= limit_ns and (faulting or own <= most_faults)
    ]
    compiled = uses_dynamo(runner.backend)
    assignment = Assignment(operators, code.calls(), labels, compiled=compiled)
    for event, _ in usable_iterations:
        assignment.iteration(event)
    count = max(1, len(usable_iterations))
    kernel_bytes = assignment.kernel_bytes()
    rows = [
        [
            name,
            [list(unit) for unit in units],
            *(number / count for number in numbers),
            kernel_bytes.get((name, units), 0.0),
        ]
        for (name, units), numbers in assignment.times.items()
    ]
    return {
        "iterations": len(usable_iterations),
        "iteration_ns": sum(wall_ns for _, wall_ns in usable_iterations) / count,
        "events": sum(event.nested for event, _ in usable_iterations) / count,
        "faulting": faulting,
        "rows": rows,
    }


def _record(
    runner: VariantRunner, iterations: int, code: GeneratedCode, labels: Labels
) -> Tuple[int, List[int], List[int], Any]:
    """Return page faults of an iteration without the profiler, then times, page faults and events."""
    reset: Optional[Any] = runner.model.forget_gradients if runner.model.training else None
    activities = runner.hardware.activities()
    walls_ns: List[int] = []
    faults: List[int] = []
    usual: List[int] = []
    gc.disable()
    try:
        with runner.context():
            call = runner.caller()
            for _ in range(PRIME):
                before = _page_faults()
                call()
                usual.append(_page_faults() - before)
                if reset is not None:
                    reset()
            runner.synchronize()
            with code.labelled(labels), profile(activities=activities) as profiler:
                for _ in range(iterations):
                    before = _page_faults()
                    start = clock()
                    with torch.autograd.profiler.record_function(ITERATION):
                        call()
                        runner.synchronize()
                    walls_ns.append(clock() - start)
                    faults.append(_page_faults() - before)
                    if reset is not None:
                        reset()
                runner.synchronize()
    finally:
        gc.enable()
    return int(median(usual)), walls_ns, faults, profiler


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
