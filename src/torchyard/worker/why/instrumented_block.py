"""Profile a block with torch.profiler, and sum the times by source operator.

The events of each iteration form a tree. Operators of eager code are related to the recorded order
of operators (`sources.py`), kernels and library calls of a compiled graph to the recorded order of
its calls (`kernels.py`).

The profiler keeps small allocations until it ends. They split the memory that results would reuse,
and page faults in new memory can take longer than the kernels. So a block has few iterations, memory
that was written to before is kept in reserve, and iterations with more page faults than without the
profiler are left out.
"""

import contextlib
import ctypes
import gc
import resource
from statistics import median
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch.profiler import ProfilerActivity, profile

from torchyard.worker.bench.backend_names import uses_dynamo
from torchyard.worker.bench.timing import clock
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.why.kernels import GeneratedCode, KernelCall, Labels
from torchyard.worker.why.sources import TracedOperator, Unit

PRIME = 3
"""Iterations before the profiler starts."""
LONGEST = 1.25
"""Iterations longer than this multiple of the median were interrupted, and are left out."""
FEW_FAULTS = 16
MIN_KEPT_SHARE = 0.25
LOOKAHEAD = 16
"""Operators that may be missing in a row: gradients can add up in another way than when recorded."""
ITERATION = "ty::iteration"
"""Names of up to 15 characters are stored without an allocation."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_THRESHOLD = 32 << 20
"""The largest size that glibc serves from the heap."""
PIECE_BYTES = 16 << 20

Row = Tuple[str, Tuple[Unit, ...]]


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


class Event:
    """An event of the profiler with its children, in the order of their starts."""

    def __init__(self, name: str, start_ns: float, end_ns: float) -> None:
        self.name = name
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.children: List["Event"] = []

    @property
    def duration_ns(self) -> float:
        """Duration with that of the children."""
        return self.end_ns - self.start_ns

    @property
    def own_ns(self) -> float:
        """Duration without that of the children."""
        return max(0.0, self.duration_ns - sum(child.duration_ns for child in self.children))

    @property
    def nested(self) -> int:
        """Number of events inside of it."""
        return sum(1 + child.nested for child in self.children)


class Attribution:
    """Assigns events to source operators, one iteration after the other."""

    def __init__(
        self,
        operators: Sequence[TracedOperator],
        graphs: Dict[str, List[KernelCall]],
        labels: Labels,
        *,
        compiled: bool,
    ) -> None:
        """In `compiled` code, only some of the operators run one by one."""
        self.times: Dict[Row, List[float]] = {}
        """Duration, calls and nested events."""
        self._operators = operators
        self._positions: Dict[str, List[int]] = {}
        for position, operator in enumerate(operators):
            self._positions.setdefault(_short(operator.unit.operator), []).append(position)
        self._graphs = graphs
        self._labels = labels
        self._lookahead = len(operators) if compiled else LOOKAHEAD
        self._next = 0

    def iteration(self, event: Event) -> None:
        """Assign the events of one iteration; the rest of its duration is host time."""
        self._next = 0
        for child in event.children:
            self._assign(child)

    def _assign(self, event: Event) -> Tuple[Unit, ...]:
        """Assign an event; return the source operators of the last one inside of it."""
        if event.name in self._labels:
            graph, kernel = self._labels[event.name]
            if kernel:  # outside of a graph: its calls are known by name only
                self._add(kernel, _next_call(self._graphs.get(graph, ()), 0, kernel)[0], event)
            else:
                self._assign_graph(event, self._graphs.get(graph, ()))
            return ()
        is_operator = "::" in event.name and not event.name.startswith("autograd::")
        if is_operator:
            units = self._eager_units(event.name)
            if units:
                self._add(event.name, units, event)
                return units
        last: Tuple[Unit, ...] = ()
        for child in event.children:
            last = self._assign(child) or last
        if is_operator:
            calls = 0 if last else 1
            self._add_time(event.name, last, event.own_ns, calls, len(event.children))
        return last

    def _assign_graph(self, graph: Event, calls: Sequence[KernelCall]) -> None:
        position = 0
        for event in _outermost(graph):
            name = self._labels.get(event.name, ("", event.name))[1]
            units, position = _next_call(calls, position, name)
            self._add(name, units, event)

    def _eager_units(self, name: str) -> Tuple[Unit, ...]:
        """Return the source of the next operator of that name in the recorded order."""
        for position in self._positions.get(_short(name), ()):
            if position >= self._next:
                if position - self._next >= self._lookahead:
                    return ()
                self._next = position + 1
                return (self._operators[position].unit,)
        return ()

    def _add(self, name: str, units: Tuple[Unit, ...], event: Event) -> None:
        self._add_time(name, units, event.duration_ns, 1, event.nested)

    def _add_time(
        self, name: str, units: Tuple[Unit, ...], duration_ns: float, calls: int, nested: int
    ) -> None:
        row = self.times.setdefault((name, units), [0.0, 0.0, 0.0])
        row[0] += duration_ns
        row[1] += calls
        row[2] += nested


def _short(name: str) -> str:
    """Return the name of an operator without namespace, and without the mark of in-place operators."""
    return name.rpartition("::")[2].rstrip("_")


def _outermost(event: Event) -> List[Event]:
    """Return the outermost operators and kernels of a graph."""
    events: List[Event] = []
    for child in event.children:
        events += [child] if "::" in child.name else _outermost(child)
    return events


def _next_call(
    calls: Sequence[KernelCall], position: int, name: str
) -> Tuple[Tuple[Unit, ...], int]:
    """Return the source operators of the next call of that name, and the position after it."""
    for index in range(position, len(calls)):
        if calls[index].name == name or _short(name) in calls[index].name.split("."):
            return calls[index].units, index + 1
    return (), position


def iterations_of(profiler: Any) -> List[Event]:
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
) -> Dict[str, Any]:
    """Profile some iterations; return their mean duration and the rows of one iteration.

    `faulting` says that most iterations had more page faults than without the profiler.
    """
    labels: Labels = {}
    usual_faults, walls_ns, faults, profiler = _record(runner, iterations, code, labels)
    most_faults = usual_faults + FEW_FAULTS
    usable = [wall_ns for wall_ns, own in zip(walls_ns, faults) if own <= most_faults]
    faulting = len(usable) < MIN_KEPT_SHARE * len(walls_ns)
    limit_ns = LONGEST * median(walls_ns if faulting else usable)
    kept = [
        (event, wall_ns)
        for event, wall_ns, own in zip(iterations_of(profiler), walls_ns, faults)
        if wall_ns <= limit_ns and (faulting or own <= most_faults)
    ]
    compiled = uses_dynamo(runner.backend)
    attribution = Attribution(operators, code.calls(), labels, compiled=compiled)
    for event, _ in kept:
        attribution.iteration(event)
    count = max(1, len(kept))
    rows = [
        [name, [list(unit) for unit in units], *(number / count for number in numbers)]
        for (name, units), numbers in attribution.times.items()
    ]
    return {
        "iterations": len(kept),
        "iteration_ns": sum(wall_ns for _, wall_ns in kept) / count,
        "events": sum(event.nested for event, _ in kept) / count,
        "faulting": faulting,
        "rows": rows,
    }


def _record(
    runner: VariantRunner, iterations: int, code: GeneratedCode, labels: Labels
) -> Tuple[int, List[int], List[int], Any]:
    """Return page faults of an iteration without the profiler, then times, page faults and events."""
    reset: Optional[Any] = runner.model.forget_gradients if runner.model.training else None
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
            with code.labelled(labels), profile(activities=[ProfilerActivity.CPU]) as profiler:
                for _ in range(iterations):
                    before = _page_faults()
                    start = clock()
                    with torch.autograd.profiler.record_function(ITERATION):
                        call()
                    walls_ns.append(clock() - start)
                    faults.append(_page_faults() - before)
                    if reset is not None:
                        reset()
    finally:
        gc.enable()
    return int(median(usual)), walls_ns, faults, profiler


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
