"""Time every operator and kernel of a block, and sum the times by source operator.

A dispatch mode times the operators of eager code and the library calls of compiled code; generated
kernels are wrapped (`kernels.py`). torch.profiler is not used: it keeps small allocations until it
ends, which splits the memory that results reuse, and the page faults that follow can take longer
than the kernels.
"""

import gc
from statistics import median
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchyard.worker.bench.backend_names import uses_dynamo
from torchyard.worker.bench.timing import clock
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.why.kernels import GeneratedCode, KernelCall
from torchyard.worker.why.sources import TracedOperator, Unit, operator_name
from torchyard.worker.workload import CannotBuild

PRIME = 2
"""Iterations before the block."""
LONGEST = 1.25
"""Iterations longer than this multiple of the median were interrupted, and are left out."""
LOOKAHEAD = 16
"""Operators that may be missing in a row: gradients can add up in another way than when recorded."""
CALIBRATION_CALLS = 200
DIRECT_CALL_NS = 500
"""Cost of calling an operator that does nothing, without the mode."""

Row = Tuple[str, Tuple[Unit, ...]]


class Record(NamedTuple):
    """A timed operator or kernel, or the begin or end of a compiled graph."""

    what: Any
    """An operator, the name of a kernel, or None at the begin and end of a graph."""
    graph: str
    """Generated module of a kernel or graph."""
    start_ns: int
    end_ns: int


class Timer(TorchDispatchMode):
    """Records the operators of a block; kernels and graphs are added by their wrappers."""

    def __init__(self) -> None:
        super().__init__()
        self.records: List[Record] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return that compiled code still runs compiled under this mode."""
        return True

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        if kwargs:
            start = clock()
            result = function(*args, **kwargs)
            end = clock()
        else:
            start = clock()
            result = function(*args)
            end = clock()
        self.records.append(Record(function, "", start, end))
        return result


def calibrate() -> float:
    """Return the time that the mode adds to an operator, in ns."""
    timer = Timer()
    tensor = torch.zeros(1)
    with torch.no_grad(), timer:
        for _ in range(CALIBRATION_CALLS):
            torch.ops.aten.alias.default(tensor)
    durations = [record.end_ns - record.start_ns for record in timer.records]
    return max(0.0, median(durations) - DIRECT_CALL_NS) if durations else 0.0


class Attribution:
    """Assigns records to source operators, one iteration after the other."""

    def __init__(
        self,
        operators: Sequence[TracedOperator],
        graphs: Dict[str, List[KernelCall]],
        *,
        compiled: bool,
        call_ns: float,
    ) -> None:
        """In `compiled` code, only some of the operators run one by one."""
        self.times: Dict[Row, List[float]] = {}
        self._operators = operators
        self._positions: Dict[str, List[int]] = {}
        for position, operator in enumerate(operators):
            name = operator.unit.operator.rstrip("_")
            self._positions.setdefault(name, []).append(position)
        self._graphs = graphs
        self._lookahead = len(operators) if compiled else LOOKAHEAD
        self._call_ns = call_ns
        self._next = 0

    def iteration(self, records: Sequence[Record]) -> None:
        """Assign the records of one iteration."""
        self._next = 0
        calls: Sequence[KernelCall] = ()
        position, in_graph = 0, False
        for record in records:
            if record.what is None:
                in_graph = record.end_ns == 0
                calls, position = self._graphs.get(record.graph, ()), 0
                continue
            duration_ns = float(record.end_ns - record.start_ns)
            if isinstance(record.what, str):
                name = record.what
            else:
                name = "aten::" + operator_name(record.what)
                duration_ns = max(0.0, duration_ns - self._call_ns)
            if in_graph or isinstance(record.what, str):
                if not in_graph:
                    calls, position = self._graphs.get(record.graph, ()), 0
                units, position = _next_call(calls, position, name)
            else:
                units = self._eager_units(name)
            self._add(name, units, duration_ns)

    def _add(self, name: str, units: Tuple[Unit, ...], duration_ns: float) -> None:
        row = self.times.setdefault((name, units), [0.0, 0.0])
        row[0] += duration_ns
        row[1] += 1

    def _eager_units(self, name: str) -> Tuple[Unit, ...]:
        """Return the source of the next operator of that name in the recorded order."""
        for position in self._positions.get(name.rpartition("::")[2].rstrip("_"), ()):
            if position >= self._next:
                if position - self._next >= self._lookahead:
                    return ()
                self._next = position + 1
                return (self._operators[position].unit,)
        return ()


def _next_call(
    calls: Sequence[KernelCall], position: int, name: str
) -> Tuple[Tuple[Unit, ...], int]:
    """Return the source operators of the next call of that name in a graph, and the position after it."""
    short = name.rpartition("::")[2].rstrip("_")
    for index in range(position, len(calls)):
        if calls[index].name == name or short in calls[index].name.split("."):
            return calls[index].units, index + 1
    return (), position


def run_instrumented(
    runner: VariantRunner,
    iterations: int,
    operators: Sequence[TracedOperator],
    code: GeneratedCode,
    call_ns: float,
) -> Dict[str, Any]:
    """Time the operators of some iterations; return their mean duration and the rows of one iteration."""
    compiled = uses_dynamo(runner.backend)
    timer = Timer()
    reset = runner.model.forget_gradients if runner.model.training else None
    blocks: List[Tuple[int, List[Record]]] = []
    gc.disable()
    try:
        with runner.context(), code.instrumented(timer.records, Record):
            call = runner.caller()
            with timer:
                for index in range(PRIME + iterations):
                    start = clock()
                    call()
                    wall_ns = clock() - start
                    if index >= PRIME:
                        blocks.append((wall_ns, timer.records[:]))
                    del timer.records[:]
                    if reset is not None:
                        reset()
    finally:
        gc.enable()
    if compiled and runner.graph_counters["graphs"] and not _ran_compiled(blocks):
        raise CannotBuild(
            "torch " + torch.__version__ + " does not run compiled code under a dispatch mode",
            hint="use a newer torch, or compare eager variants",
        )
    limit_ns = LONGEST * median(wall_ns for wall_ns, _ in blocks)
    kept = [block for block in blocks if block[0] <= limit_ns]
    attribution = Attribution(operators, code.calls(), compiled=compiled, call_ns=call_ns)
    for _, records in kept:
        attribution.iteration(records)
    rows = [
        [name, [list(unit) for unit in units], total_ns / len(kept), calls / len(kept)]
        for (name, units), (total_ns, calls) in attribution.times.items()
    ]
    mean_ns = sum(wall_ns for wall_ns, _ in kept) / len(kept)
    return {"iterations": len(kept), "iteration_ns": mean_ns, "rows": rows}


def _ran_compiled(blocks: Sequence[Tuple[int, List[Record]]]) -> bool:
    return any(
        record.what is None or isinstance(record.what, str)
        for _, records in blocks
        for record in records
    )
