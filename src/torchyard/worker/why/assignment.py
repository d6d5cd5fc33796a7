"""Assign the events of an iteration to source operators.

The events of each iteration form a tree. Operators of eager code are related to the recorded order
of operators (`sources.py`), kernels and library calls of a compiled graph to the recorded order of
its calls (`kernels.py`). On a GPU, an event costs the GPU time of the kernels, copies and fills that it launches.

A trace of torch.profiler (Chrome format) has ranges on the threads of the host, calls of the CUDA runtime and driver,
and activities of the GPU. Activity and call have the same correlation id. The innermost range that contains the call
launched the activity. Concurrent activities share the time in which they overlap, so that all of them sum to the time
in which the GPU is busy.
"""

import bisect
import json
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from torchyard.worker.why.kernels import KernelCall, Labels
from torchyard.worker.why.sources import TracedOperator, Unit

LOOKAHEAD = 16
"""Operators that may be missing in a row: gradients can add up in another way than when recorded."""

Row = Tuple[str, Tuple[Unit, ...]]


class Cost(NamedTuple):
    """Duration of an event or of a GPU kernel; `nested` events were recorded inside of it."""

    kernel: str
    duration_ns: float
    calls: int
    nested: int


class GpuKernel(NamedTuple):
    """A kernel, copy or fill of the GPU, and its share of the busy time."""

    name: str
    busy_ns: float
    in_graph: bool
    """Whether a CUDA graph launched it."""


class Event:
    """An event of the profiler with its children, in the order of their starts."""

    def __init__(self, name: str, start_ns: float, end_ns: float) -> None:
        self.name = name
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.children: List["Event"] = []

    @property
    def kernels(self) -> List[GpuKernel]:
        """GPU kernels that were launched inside of it, but not inside of its children."""
        return []

    @property
    def duration_ns(self) -> float:
        """Duration with that of the children."""
        return self.end_ns - self.start_ns

    @property
    def nested(self) -> int:
        """Number of events inside of it."""
        return sum(1 + child.nested for child in self.children)

    def costs(self) -> Iterator[Cost]:
        """Return what it costs with its children."""
        yield Cost("", self.duration_ns, 1, self.nested)

    def own_costs(self) -> Iterator[Cost]:
        """Return what it costs without its children."""
        children_ns = sum(child.duration_ns for child in self.children)
        yield Cost("", max(0.0, self.duration_ns - children_ns), 1, len(self.children))


class LaunchingEvent(Event):
    """An event that costs the GPU time of the kernels that it launches."""

    def __init__(self, name: str, start_ns: float, end_ns: float) -> None:
        super().__init__(name, start_ns, end_ns)
        self._kernels: List[GpuKernel] = []

    @property
    def kernels(self) -> List[GpuKernel]:
        """GPU kernels that were launched inside of it, but not inside of its children."""
        return self._kernels

    def costs(self) -> Iterator[Cost]:
        """Return the kernels that it and its children launch."""
        yield from self.own_costs()
        for child in self.children:
            yield from child.costs()

    def own_costs(self) -> Iterator[Cost]:
        """Return the kernels that it launches itself."""
        for kernel in self._kernels:
            yield Cost(short_kernel_name(kernel.name), kernel.busy_ns, 1, 0)


class Assignment:
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
        self._modules: Dict[Tuple[str, int], Set[str]] = {}
        for operator in operators:
            unit = operator.unit
            self._modules.setdefault((unit.file, unit.line), set()).add(unit.module)
        self._graphs = {
            name: [
                call._replace(units=tuple(sorted({self._with_path(unit) for unit in call.units})))
                for call in calls
            ]
            for name, calls in graphs.items()
        }
        self._labels = labels
        self._lookahead = len(operators) if compiled else LOOKAHEAD
        self._next = 0

    def _with_path(self, unit: Unit) -> Unit:
        """Complete a module path: after a graph break, a graph knows it from its own frame on."""
        modules = self._modules.get((unit.file, unit.line), set()) if unit.file else set()
        longer = [one for one in modules if not unit.module or one.endswith("." + unit.module)]
        is_known = unit.module in modules or len(longer) != 1
        return unit if is_known else unit._replace(module=longer[0])

    def kernel_bytes(self) -> Dict[Row, float]:
        """Return the bytes that each generated kernel moves, where they are known."""
        calls = [call for graph in self._graphs.values() for call in graph]
        return {(call.name, call.units): call.moved_bytes for call in calls if call.moved_bytes}

    def iteration(self, event: Event) -> None:
        """Assign the events of one iteration; the rest of its duration is host time."""
        self._next = 0
        self._assign_kernels(event.kernels, self._all_calls(event))
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
            for cost in event.own_costs():
                calls = 0 if last and not cost.kernel else 1  # a call counts where its work is
                self._add_cost(event.name, last, cost._replace(calls=calls))
        else:
            self._assign_kernels(event.kernels, self._all_calls(event))
        return last

    def _assign_graph(self, graph: Event, calls: Sequence[KernelCall]) -> None:
        position = 0
        loose: List[GpuKernel] = []
        for event in _outermost(graph, loose):
            name = self._labels.get(event.name, ("", event.name))[1]
            units, position = _next_call(calls, position, name)
            self._add(name, units, event)
        self._assign_kernels(loose, calls, between=True)

    def _all_calls(self, event: Event) -> Sequence[KernelCall]:
        """Return the calls of all graphs, for kernels that no event of a graph launched."""
        return [call for calls in self._graphs.values() for call in calls] if event.kernels else ()

    def _assign_kernels(
        self, kernels: Sequence[GpuKernel], calls: Sequence[KernelCall], *, between: bool = False
    ) -> None:
        """Assign kernels that no operator launched, in the order of execution.

        Generated kernels are known by name. With `between`, others belong to the library calls
        between two generated kernels.
        """
        position = 0
        waiting: List[GpuKernel] = []
        for kernel in kernels:
            units: Tuple[Unit, ...] = ()
            after = position
            if kernel.name.startswith(GENERATED):
                units, after = _next_call(calls, position, kernel.name)
                if not units:  # the graph ran again
                    units, after = _next_call(calls, 0, kernel.name)
            if not units:
                waiting.append(kernel)
                continue
            self._add_between(waiting, calls[position : after - 1] if between else ())
            waiting, position = [], after
            self._add_cost(kernel.name, units, Cost("", kernel.busy_ns, 1, 0))
        self._add_between(waiting, calls[position:] if between else ())

    def _add_between(self, kernels: Sequence[GpuKernel], calls: Sequence[KernelCall]) -> None:
        library = [call for call in calls if not call.name.startswith(GENERATED)]
        units = tuple(sorted({unit for call in library for unit in call.units}))
        for kernel in kernels:
            name = short_kernel_name(kernel.name)
            own = () if name.startswith(("Memcpy", "Memset")) else units
            if kernel.in_graph:
                name = "CUDA graph: " + name
            self._add_cost(name, own, Cost("", kernel.busy_ns, 1, 0))

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
        for cost in event.costs():
            self._add_cost(name, units, cost)

    def _add_cost(self, name: str, units: Tuple[Unit, ...], cost: Cost) -> None:
        if cost.kernel and cost.kernel != name:
            name = "%s: %s" % (name, cost.kernel)
        row = self.times.setdefault((name, units), [0.0, 0.0, 0.0])
        row[0] += cost.duration_ns
        row[1] += cost.calls
        row[2] += cost.nested


GENERATED = ("triton_", "cpp_")
LONGEST_NAME = 60


def short_kernel_name(name: str) -> str:
    """Return the name of a GPU kernel without return type, namespaces, and arguments."""
    name = name.replace("(anonymous namespace)::", "")
    for mark in ("<", "("):
        name = name.partition(mark)[0] or name
    return name.rpartition("::")[2].replace("void ", "").strip()[:LONGEST_NAME]


def _short(name: str) -> str:
    """Return the name of an operator without namespace, and without the mark of in-place operators."""
    return name.rpartition("::")[2].rstrip("_")


def _outermost(event: Event, loose: List[GpuKernel]) -> List[Event]:
    """Return the outermost operators and kernels of a graph; add GPU kernels outside of them to `loose`."""
    loose += event.kernels
    events: List[Event] = []
    for child in event.children:
        if "::" in child.name or child.name.startswith(GENERATED):
            events.append(child)
        else:
            events += _outermost(child, loose)
    return events


def _next_call(
    calls: Sequence[KernelCall], position: int, name: str
) -> Tuple[Tuple[Unit, ...], int]:
    """Return the source operators of the next call of that name, and the position after it."""
    for index in range(position, len(calls)):
        if calls[index].name == name or _short(name) in calls[index].name.split("."):
            return calls[index].units, index + 1
    return (), position


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
