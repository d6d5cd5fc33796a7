"""How long operators take in the program itself, at chosen call sites. Examines no values.

A dispatch mode calls every operator and reads two clocks around those at the chosen sites: real
arguments, real memory, real threads. On a GPU it synchronizes before and after.
"""

import mmap
import resource
import statistics
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from torchyard.worker.values.operators import operator_of, tensors_in
from torchyard.worker.values.places import Places, Site, site_of
from torchyard.worker.values.redispatch import DetachableMode

_MOST_SAMPLES = 4096
"""Of one site; beyond it every second one is dropped."""
GROUPS = 8
"""Parts of the run, in order of time, whose means are compared."""
_TRIMMED = 0.9
"""Share of a group's samples that count as undisturbed: the slowest are left out."""
LONG_NS = 50_000
"""Operators that take longer are timed reliably: calling them from a mode adds little."""
_CALIBRATED = 200
_COLD_BYTES = 64 << 20
_TOUCHED_BYTES = 16 << 20
ANY_SHAPES = "*"
"""Stands for all calls on a line: shapes may differ from run to run."""


class _Samples:
    """Wall and CPU time of calls at one site, in order."""

    def __init__(self) -> None:
        self.taken: List[Tuple[int, int]] = []
        self.calls = 0
        self.made_bytes = 0
        """Of all results that are new memory."""
        self.touched_bytes = 0
        """Of all arguments and results."""
        self.faults = 0
        """Page faults during all calls."""
        self.before: List[int] = []
        """CPU time of Python from the operator before to each call."""
        self.after: List[int] = []
        """And from each call to the operator after it."""
        self._every = 1
        self._skipped = 0

    def add(self, wall_ns: int, cpu_ns: int) -> None:
        """Add the times of one call."""
        self.calls += 1
        self._skipped += 1
        if self._skipped < self._every:
            return
        self._skipped = 0
        self.taken.append((wall_ns, cpu_ns))
        if len(self.taken) >= _MOST_SAMPLES:
            del self.taken[::2]
            self._every *= 2


class SiteTimes(DetachableMode):
    """Times calls at the chosen sites while it is in the mode stack."""

    def __init__(self, chosen: Sequence[Dict[str, Any]]) -> None:
        super().__init__()
        sites = [Site(*(one[name] for name in Site._fields)) for one in chosen]
        sites += [site._replace(shapes=ANY_SHAPES) for site in sites]
        self._samples: Dict[Site, _Samples] = {site: _Samples() for site in sites}
        self._operators: Set[str] = {site.operator for site in sites}
        self._places = Places()
        self._left: Optional[Tuple[int, int]] = None
        """The thread that ran the last operator, and its CPU time at the end of it."""
        self._inert_ns = 0
        self.other_ns = 0
        """CPU time of long operators at other sites: no fix removes them."""
        self._last: Tuple[_Samples, ...] = ()
        """Samples of the last operator, if it was timed."""

    def set_detached(self, detached: bool) -> None:
        """Leave or re-enter the mode stack; operators in between are not part of a call."""
        self._left, self._last = None, ()
        super().set_detached(detached)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Optional[Any] = None
    ) -> Any:
        """Call an operator, timed at chosen sites."""
        keywords = kwargs or {}
        operator = operator_of(func)
        entered_ns = time.thread_time_ns()
        if operator.inert:
            if operator.view_with_writing_backward:
                self._places.now()  # stores the location for the backward pass
            result = func(*args, **keywords)
            self._inert_ns += time.thread_time_ns() - entered_ns
            return result
        place = self._places.now()
        python_ns = self._python_ns(entered_ns)
        line = exact = None
        if operator.name in self._operators:
            site = site_of(operator.name, place, args, keywords)
            exact = self._samples.get(site)
            line = self._samples.get(site._replace(shapes=ANY_SHAPES))
        if line is None:
            began_ns = time.thread_time_ns()
            result = func(*args, **keywords)
            took_ns = time.thread_time_ns() - began_ns
            if took_ns >= LONG_NS:
                self.other_ns += took_ns
            self._leave(())
            return result
        wait = torch.cuda.is_initialized()
        if wait:
            torch.cuda.synchronize()
        faults = page_faults()
        cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
        result = func(*args, **keywords)
        if wait:
            torch.cuda.synchronize()
        took_ns = time.perf_counter_ns() - wall_ns
        took_cpu_ns = time.process_time_ns() - cpu_ns
        faults = page_faults() - faults
        made = _bytes_of((result,)) if operator.fresh else 0
        touched = made + _bytes_of(args) + _bytes_of(keywords.values())
        counted = (line,) if exact is None else (line, exact)
        for samples in counted:
            samples.add(took_ns, took_cpu_ns)
            samples.faults += faults
            samples.made_bytes += made
            samples.touched_bytes += touched
            _append(samples.before, python_ns)
        self._leave(counted)
        return result

    def _python_ns(self, entered_ns: int) -> Optional[int]:
        """Return the CPU time from the last operator to this one; None where no Python is between, as in backward."""
        same_thread = self._left is not None and self._left[0] == threading.get_ident()
        if self._left is None or not same_thread or self._places.in_backward:
            return None
        python_ns = max(0, entered_ns - self._left[1] - self._inert_ns)
        for samples in self._last:
            _append(samples.after, python_ns)
        return python_ns

    def _leave(self, samples: Tuple[_Samples, ...]) -> None:
        self._last = samples
        self._inert_ns = 0
        self._left = (threading.get_ident(), time.thread_time_ns())

    def taken(self, site: Site) -> List[Tuple[int, int]]:
        """Return wall and CPU time of single calls at a site."""
        return self._samples[site].taken

    def as_list(self) -> List[Dict[str, Any]]:
        """For JSON: per site how often it was called, and means over groups of calls."""
        rows = []
        for site, samples in self._samples.items():
            calls = max(1, samples.calls)
            data: Dict[str, Any] = dict(site._asdict(), calls=samples.calls)
            data["made_bytes"] = samples.made_bytes / calls
            data["faults"] = samples.faults / calls
            data["touched_bytes"] = samples.touched_bytes / calls
            data["before_ns"] = _trimmed(samples.before) if samples.before else 0.0
            data["after_ns"] = _trimmed(samples.after) if samples.after else 0.0
            for number, clock in enumerate(("wall", "cpu")):
                groups = _groups([sample[number] for sample in samples.taken])
                data[clock + "_ns"] = [_trimmed(group) for group in groups]
                data[clock + "_most_ns"] = max((statistics.fmean(g) for g in groups), default=0.0)
            rows.append(data)
        return rows


def _append(into: List[int], value: Optional[int]) -> None:
    if value is not None and len(into) < _MOST_SAMPLES:
        into.append(value)


def _groups(values: List[int]) -> List[List[int]]:
    """Split into up to GROUPS parts of equal size, in order; the first call is a warm-up if possible."""
    if len(values) > GROUPS:
        values = values[1:]
    count = min(GROUPS, len(values))
    return [values[len(values) * n // count : len(values) * (n + 1) // count] for n in range(count)]


def _trimmed(values: List[int]) -> float:
    shortest = sorted(values)[: max(1, int(len(values) * _TRIMMED))]
    return statistics.fmean(shortest)


def _bytes_of(values: Any) -> int:
    return sum(
        tensor.numel() * tensor.element_size()
        for tensor in tensors_in(values)
        if tensor.layout is torch.strided
    )


def machine_costs() -> Dict[str, float]:
    """Return the overheads around an operator on this machine, in ns of wall and CPU time.

    `call`: Python around one operator, by a small module. `window`: what reading the clocks and
    calling from a mode add to a timed operator. `gap`: what they add to Python between two operators.
    `fault`: a page of memory that is new to the process.
    `unmap`: a page that is given back. `read`: a byte that is in no cache.
    """
    try:
        with torch.enable_grad(), torch.inference_mode(False):
            return _measured_costs()
    except Exception:  # whatever state the program left torch in
        return {}


def _measured_costs() -> Dict[str, float]:
    small = torch.ones(4, device="cpu", dtype=torch.float32)
    module = torch.nn.LayerNorm(4, device="cpu", dtype=torch.float32)
    costs: Dict[str, float] = {}
    native, inside = _each(lambda: torch.add(small, small)), _windows(small)
    for number, clock in enumerate(("wall", "cpu")):
        costs["call_" + clock] = _each(lambda: module(small))[number]
        costs["window_" + clock] = max(0.0, inside[number] - native[number])
    costs["gap"] = _gap(small)
    cold = torch.ones(_COLD_BYTES // 4, device="cpu", dtype=torch.float32)
    costs["read"] = _each(cold.sum, 3)[1] / _COLD_BYTES
    costs["fault"], costs["unmap"] = _cost_of_pages()
    costs["page"] = float(mmap.PAGESIZE)
    return costs


def speed_probe() -> float:
    """Return CPU time of a fixed piece of work on one thread: how fast the machine is at the moment."""
    ones = torch.ones(1024, device="cpu", dtype=torch.float32)
    with torch.no_grad():
        return min(_each(ones.tanh, 300)[1] for _ in range(5))


def page_faults() -> int:
    """Return how many page faults without I/O this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _cost_of_pages() -> Tuple[float, float]:
    """Return the CPU time of touching a new page, and of releasing one."""
    pages = _TOUCHED_BYTES // mmap.PAGESIZE
    memory = mmap.mmap(-1, _TOUCHED_BYTES)
    began_ns = time.process_time_ns()
    for start in range(0, _TOUCHED_BYTES, mmap.PAGESIZE):
        memory[start] = 1
    touched_ns = time.process_time_ns()
    memory.close()
    return (touched_ns - began_ns) / pages, (time.process_time_ns() - touched_ns) / pages


def _each(work: Callable[[], Any], times: int = _CALIBRATED) -> Tuple[float, float]:
    """Return wall and CPU time of one native call."""
    work()
    cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
    for _ in range(times):
        work()
    wall = (time.perf_counter_ns() - wall_ns) / times
    return wall, (time.process_time_ns() - cpu_ns) / times


def _gap(small: torch.Tensor) -> float:
    """Return the CPU time between two consecutive operators in the mode."""
    args = (small, small)
    mode = SiteTimes([site_of("aten::add", Places().now(), args, {})._asdict()])
    with mode:
        for _ in range(_CALIBRATED):
            torch.add(small, small)
    gaps = [gap for samples in mode._samples.values() for gap in samples.before]
    return float(statistics.median(gaps)) if gaps else 0.0


def _windows(small: torch.Tensor) -> Tuple[float, float]:
    """Return the median wall and CPU time of an operator that the mode times."""
    add, args = torch.ops.aten.add.Tensor, (small, small)
    site = site_of("aten::add", Places().now(), args, {})
    mode = SiteTimes([site._asdict()])
    for _ in range(_CALIBRATED):
        mode.__torch_dispatch__(add, (), args, {})
    walls, cpus = zip(*mode.taken(site))
    return float(statistics.median(walls)), float(statistics.median(cpus))
