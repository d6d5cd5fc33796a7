"""GPU time of each event: kernels, copies and fills of a trace, related to what launched them.

A trace of torch.profiler (Chrome format) has ranges on the threads of the host, calls of the CUDA
runtime and driver, and activities of the GPU. Activity and call have the same correlation id. The
innermost range that contains the call launched the activity. Concurrent activities share the time
in which they overlap, so that all of them sum to the time in which the GPU is busy.
"""

import bisect
import json
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from torchyard.worker.why.assignment import GpuKernel, LaunchingEvent

ITERATION = "ty::iteration"
"""Names of up to 15 characters are stored without an allocation."""
_RANGES = ("cpu_op", "user_annotation")
_CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver")
_ACTIVITIES = ("kernel", "gpu_memcpy", "gpu_memset")


class Range(NamedTuple):
    """A range on a thread of the host: an operator or a label."""

    name: str
    start_ns: float
    end_ns: float
    thread: Any
    external: int
    """Id that activities refer to; 0 if there is none."""


class Call(NamedTuple):
    """A call of the CUDA runtime or driver."""

    name: str
    start_ns: float
    thread: Any
    correlation: int


class Activity(NamedTuple):
    """A kernel, copy or fill."""

    name: str
    start_ns: float
    end_ns: float
    correlation: int
    external: int = 0
    in_graph: bool = False


class Trace(NamedTuple):
    """The records of a profiled block."""

    ranges: List[Range]
    calls: List[Call]
    activities: List[Activity]


def read_trace(path: str) -> Trace:
    """Read a trace that torch.profiler exported."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return parse_trace(json.load(file, strict=False)["traceEvents"])


def parse_trace(records: Iterable[Dict[str, Any]]) -> Trace:
    """Return the ranges, calls and activities among the records of a Chrome trace."""
    trace = Trace([], [], [])
    for record in records:
        category = record.get("cat")
        if record.get("ph") != "X":
            continue
        name, fields = str(record["name"]), record.get("args") or {}
        start_ns = 1000.0 * float(record["ts"])
        end_ns = start_ns + 1000.0 * float(record.get("dur") or 0.0)
        external = int(fields.get("External id") or fields.get("external id") or 0)
        correlation = int(fields.get("correlation") or 0)
        if category in _RANGES:
            trace.ranges.append(Range(name, start_ns, end_ns, record.get("tid"), external))
        elif category in _CALLS:
            trace.calls.append(Call(name, start_ns, record.get("tid"), correlation))
        elif category in _ACTIVITIES:
            graph = bool(fields.get("graph id"))
            trace.activities.append(Activity(name, start_ns, end_ns, correlation, external, graph))
    return trace


def busy_shares(activities: Sequence[Activity]) -> List[float]:
    """Return the busy time of each activity; concurrent ones share the time equally."""
    shares = [0.0] * len(activities)
    bounds = sorted(
        (time_ns, is_start, index)
        for index, own in enumerate(activities)
        for time_ns, is_start in ((own.start_ns, True), (own.end_ns, False))
        if own.end_ns > own.start_ns
    )
    active: Set[int] = set()
    now_ns = 0.0
    for time_ns, is_start, index in bounds:
        for one in active:
            shares[one] += (time_ns - now_ns) / len(active)
        now_ns = time_ns
        if is_start:
            active.add(index)
        else:
            active.remove(index)
    return shares


def iterations_of(trace: Trace) -> List[LaunchingEvent]:
    """Return the iterations as trees of events with the GPU kernels that each event launches.

    An activity belongs to the iteration that launched it, also if it runs after that. Activities
    whose launch was not recorded belong to the iteration in which they start.
    """
    ranges = sorted(trace.ranges, key=lambda one: (one.start_ns, -one.end_ns))
    roots = [
        LaunchingEvent(one.name, one.start_ns, one.end_ns)
        for one in ranges
        if one.name == ITERATION
    ]
    starts = [root.start_ns for root in roots]

    def root_at(time_ns: float) -> Optional[LaunchingEvent]:
        index = bisect.bisect_right(starts, time_ns) - 1
        return roots[index] if index >= 0 and time_ns <= roots[index].end_ns else None

    stacks: Dict[Any, List[LaunchingEvent]] = {}

    def innermost(thread: Any, time_ns: float) -> Optional[LaunchingEvent]:
        root = root_at(time_ns)
        if root is None:
            return None
        stack = stacks.setdefault(thread, [root])
        if stack[0] is not root:
            stack[:] = [root]
        while len(stack) > 1 and stack[-1].end_ns <= time_ns:
            stack.pop()
        return stack[-1]

    by_external: Dict[int, LaunchingEvent] = {}
    by_correlation: Dict[int, Optional[LaunchingEvent]] = {}
    in_graph = set()
    records: List[Tuple[float, float, Any]] = [
        *((one.start_ns, -one.end_ns, one) for one in ranges if one.name != ITERATION),
        *((one.start_ns, 0.0, one) for one in trace.calls),
    ]
    for start_ns, _, record in sorted(records, key=lambda one: one[:2]):
        parent = innermost(record.thread, start_ns)
        if isinstance(record, Call):
            by_correlation[record.correlation] = parent
            if "GraphLaunch" in record.name:
                in_graph.add(record.correlation)
        elif parent is not None:
            event = LaunchingEvent(record.name, start_ns, record.end_ns)
            parent.children.append(event)
            stacks[record.thread].append(event)
            by_external[record.external] = event
    by_external.pop(0, None)
    activities = sorted(trace.activities, key=lambda one: one.start_ns)
    for one, busy_ns in zip(activities, busy_shares(activities)):
        owner = by_correlation.get(one.correlation, root_at(one.start_ns))
        if owner in roots or one.correlation not in by_correlation:
            owner = by_external.get(one.external, owner)
        if owner is not None:
            graph = one.in_graph or one.correlation in in_graph
            owner.kernels.append(GpuKernel(one.name, busy_ns, graph))
    return roots
