# ruff: noqa: D102 - methods are documented in `Task`
"""What the controller asks of a script: run steps, and measure them.

A task begins at the end of a step and gets every following one, until it has its answer. When the script
ends in between, `interrupt` drops the incomplete step, and the task begins again in the next run.
"""

import multiprocessing
import os
import signal
import threading
import time
from statistics import median
from typing import Any, Callable, Dict, List, Optional

import torch
from torch.utils.data import dataloader

from torchyard.worker.bench import dynamo_graphs, metrics, timing
from torchyard.worker.bench.service import CHUNK_S, LONG_S, is_stable, still_gets_faster
from torchyard.worker.training_script.results import STEPS, StepResults

Answer = Optional[Dict[str, Any]]
DATA_S = 0.5
DATA_STEPS = 5
"""Least duration and steps over which waiting for data is measured."""
_OTHERS_SHARE = 0.05
"""Share of a block in which other programs may compute, if waiting for a core is the script's own."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def synchronize() -> None:
    """Wait for the GPUs that the script uses."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


class DataWaits:
    """Time that the script has spent in `next` of data loaders."""

    def __init__(self) -> None:
        self.total_ns = 0
        self._depth = 0
        self._thread = threading.get_ident()

    def install(self) -> None:
        """Measure all data loaders of this process."""
        kind = dataloader._BaseDataLoaderIter
        original = kind.__next__

        def timed_next(iterator: Any) -> Any:
            if self._depth or threading.get_ident() != self._thread:
                return original(iterator)
            self._depth += 1
            started_ns = timing.clock()
            try:
                return original(iterator)
            finally:
                self.total_ns += timing.clock() - started_ns
                self._depth -= 1

        kind.__next__ = timed_next


class Children:
    """Processes that the script has started by multiprocessing, such as those of data loaders."""

    def __init__(self) -> None:
        self._stopped: List[int] = []

    def stop(self) -> None:
        """Stop them, so that they neither prefetch nor compute while another variant is timed."""
        self._stopped = [one.pid for one in multiprocessing.active_children() if one.pid]
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them continue."""
        self._signal(signal.SIGCONT)
        self._stopped = []

    def _signal(self, number: int) -> None:
        for pid in self._stopped:
            try:
                os.kill(pid, number)
            except OSError:
                continue

    @staticmethod
    def cpu_ticks() -> Optional[int]:
        """Return the CPU time of all children; None without children or where it cannot be read."""
        total = 0
        children = multiprocessing.active_children()
        for child in children:
            try:
                with open("/proc/%d/stat" % (child.pid or 0), encoding="utf-8") as file:
                    fields = file.read().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
            except (OSError, ValueError, IndexError):
                return None
        return total if children else None


class Task:
    """A number of steps, with an answer at the end."""

    def begin(self) -> None:
        """Start measuring, at the end of a step."""

    def step(self, returned: Any) -> Answer:
        """Take the end of a step; return the answer after the last one."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """Drop what has been measured since the last step: the script has ended."""


class FirstStep:
    """The first step with the variant applied, in which backends compile."""

    def __init__(self) -> None:
        self.seconds: Optional[float] = None
        self.counters: Dict[str, Any] = {"graphs": None, "graph_breaks": []}
        self.cached_graphs = 0
        self.frames = 0
        self.began_s = 0.0

    def begin(self) -> None:
        """Take the start of the step."""
        dynamo_graphs.clear_counters()
        self.began_s = time.perf_counter()

    def end(self, compiles: bool) -> None:
        """Take the end of the step; later steps do not count."""
        if self.seconds is not None:
            return
        synchronize()
        self.seconds = time.perf_counter() - self.began_s
        if compiles:
            self.counters = dynamo_graphs.read_counters()
            self.cached_graphs = dynamo_graphs.cached_graphs()
            self.frames = dynamo_graphs.compiled_frames()
            dynamo_graphs.take_failures()


class OneStep(Task):
    """A single step."""

    def __init__(self, first: FirstStep) -> None:
        self._first = first

    def step(self, returned: Any) -> Answer:  # noqa: ARG002
        return {"first_call_s": self._first.seconds}


class WarmUp(Task):
    """Steps until their time is stable; a chunk of steps may extend over several runs of the script."""

    def __init__(self, first: FirstStep, limit_s: float) -> None:
        self._first = first
        self._limit_s = limit_s
        self._began_s: Optional[float] = None
        self._last_s = 0.0
        self._chunk_s = 0.0
        self._chunk_steps = 0
        self._chunks: List[float] = []
        self._count = 0

    def begin(self) -> None:
        synchronize()
        self._last_s = time.perf_counter()
        if self._began_s is None:
            self._began_s = self._last_s

    def step(self, returned: Any) -> Answer:  # noqa: ARG002
        if self._chunk_s + time.perf_counter() - self._last_s >= CHUNK_S:
            synchronize()
        now_s = time.perf_counter()
        self._chunk_s += now_s - self._last_s
        self._last_s = now_s
        self._chunk_steps += 1
        self._count += 1
        warm_up_s = now_s - (self._began_s or now_s)
        is_over = warm_up_s >= self._limit_s
        if self._chunk_s < CHUNK_S and not is_over:
            return None
        per_step_ns = self._chunk_s * 1e9 / self._chunk_steps
        self._chunks.append(per_step_ns)
        self._chunk_s, self._chunk_steps = 0.0, 0
        long = per_step_ns > LONG_S * 1e9
        stable = not still_gets_faster(self._chunks) if long else is_stable(self._chunks)
        if not stable and not is_over:
            return None
        return {
            "first_call_s": self._first.seconds or 0.0,
            "first_call_began_s": self._first.began_s,
            "cached_graphs": self._first.cached_graphs,
            "iteration_ns": median(self._chunks[-2:]),
            "iterations": self._count,
            "stable": stable,
            "warm_up_s": warm_up_s,
            "workers": len(multiprocessing.active_children()),
        }


class Block(Task):
    """Timed steps: their mean, so that steps that wait for data count as often as they occur."""

    def __init__(self, steps: int, prime: int, probe: bool, settle: bool) -> None:
        """With `settle`, the threads of this process have stopped spinning before the answer."""
        self.settle = settle
        self._steps = steps
        self._prime = prime
        self._probe = probe
        self.synchronize_each = False
        """Whether every step is synchronized, since the script may end after any of them."""
        self._done = 0
        self._waiting = 0
        self._timed_ns = 0
        self._started_ns = 0
        self._first_ns: Optional[int] = None
        self._before: Dict[str, Any] = {}
        self._readings: Dict[str, Optional[int]] = {}
        self._probe_before_ns: Optional[int] = None
        self._segment: List[int] = []
        self._children_ticks: Optional[int] = None

    def begin(self) -> None:
        self._waiting = self._prime
        if not self._waiting:
            self._begin_segment()

    def _begin_segment(self) -> None:
        synchronize()
        if self._probe and self._probe_before_ns is None:
            self._probe_before_ns = timing.PROBE.read()
        self._children_ticks = Children.cpu_ticks()
        self._before = timing.read_usage()
        self._started_ns = timing.clock()
        if self._first_ns is None:
            self._first_ns = self._started_ns
        self._segment = []

    def step(self, returned: Any) -> Answer:  # noqa: ARG002
        if self._waiting:
            self._waiting -= 1
            if not self._waiting:
                self._begin_segment()
            return None
        if self.synchronize_each or self._done + len(self._segment) + 1 >= self._steps:
            synchronize()
        self._segment.append(timing.clock())
        if self._done + len(self._segment) < self._steps:
            return None
        self._end_segment()
        readings = dict(
            self._readings,
            probe_before_ns=self._probe_before_ns,
            probe_after_ns=timing.PROBE.read() if self._probe else None,
        )
        return {
            "samples_ns": [self._timed_ns / self._done],
            "inner": self._done,
            "started_ns": self._first_ns,
            "wall_ns": self._timed_ns,
            "readings": readings,
        }

    def interrupt(self) -> None:
        """Keep the complete steps, unless they may be unfinished on a GPU."""
        if self._segment and (self.synchronize_each or not torch.cuda.is_available()):
            self._end_segment()
        self._segment = []

    def _end_segment(self) -> None:
        timed_ns = self._segment[-1] - self._started_ns
        usage = timing.usage_difference(self._before, timing.read_usage())
        children, busy = Children.cpu_ticks(), usage.pop("busy_ns")
        if self._children_ticks is not None and children is not None and busy is not None:
            children_s = (children - self._children_ticks) / _TICKS_PER_S
            others_s = (sum(busy.values()) - (usage["cpu_ns"] or 0)) / 1e9 - children_s
            if others_s < _OTHERS_SHARE * timed_ns / 1e9:
                # The processes of the script itself used the cores, which is part of a step.
                usage["run_queue_wait_ns"] = 0
        for name, value in usage.items():
            before = self._readings.get(name, 0)
            self._readings[name] = None if value is None or before is None else before + value
        self._timed_ns += timed_ns
        self._done += len(self._segment)
        self._segment = []


class Measure(Task):
    """Peak memory of one step, then the share of some steps that waits for data."""

    def __init__(self, waits: DataWaits, first: FirstStep, notes: Callable[[], List[str]]) -> None:
        self._waits = waits
        self._first = first
        self._notes = notes
        self._profiler: Any = None
        self._allocated = 0
        self._answer: Optional[Dict[str, Any]] = None
        self._first_ns: Optional[int] = None
        self._last_ns = 0
        self._last_waits_ns = 0
        self._elapsed_ns = 0
        self._waited_ns = 0
        self._steps = 0

    def begin(self) -> None:
        if self._answer is not None:
            self._begin_waits()
            return
        synchronize()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
            self._allocated = torch.cuda.memory_allocated()
            return
        try:
            from torch.profiler import ProfilerActivity, profile

            self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            self._profiler.__enter__()
        except Exception as error:  # the script may profile itself
            self._profiler = None
            self._answer = {
                "unavailable": [["peak_memory_bytes", "no profile: " + type(error).__name__]]
            }

    def _begin_waits(self) -> None:
        self._last_ns, self._last_waits_ns = timing.clock(), self._waits.total_ns
        if self._first_ns is None:
            self._first_ns = self._last_ns

    def step(self, returned: Any) -> Answer:  # noqa: ARG002
        if self._answer is None:
            self._answer = self._memory()
            self._begin_waits()
            return None
        self._steps += 1
        synchronize()
        now_ns, waits_ns = timing.clock(), self._waits.total_ns
        self._elapsed_ns += now_ns - self._last_ns
        self._waited_ns += waits_ns - self._last_waits_ns
        self._last_ns, self._last_waits_ns = now_ns, waits_ns
        workers = len(multiprocessing.active_children())
        duration_ns = now_ns - (self._first_ns or now_ns)
        if self._steps < max(DATA_STEPS, workers) or duration_ns < DATA_S * 1e9:
            return None
        frames = dynamo_graphs.compiled_frames() - self._first.frames
        reasons: Dict[str, int] = {}
        for reason in dynamo_graphs.take_failures() if frames > 0 else []:
            reasons[reason] = reasons.get(reason, 0) + 1
        compiled = self._first.counters["graphs"] is not None
        return dict(
            self._answer,
            **self._first.counters,
            data_share=self._waited_ns / max(1, self._elapsed_ns),
            recompiles=max(0, frames) if compiled else None,
            recompile_reasons=[[reason, count] for reason, count in reasons.items()],
            notes=self._notes(),
            flops=None,
            flops_why_not="operations of a script are not counted",
        )

    def _memory(self) -> Dict[str, Any]:
        synchronize()
        if self._profiler is None:
            peak = torch.cuda.max_memory_allocated() - self._allocated
            method = "peak of live tensor bytes above the start, CUDA allocator"
        else:
            profiler, self._profiler = self._profiler, None
            profiler.__exit__(None, None, None)
            try:
                peak = metrics.peak_of(profiler)
            except Exception as error:
                reason = "the profiler cannot record allocations: " + type(error).__name__
                return {"unavailable": [["peak_memory_bytes", reason]]}
            method = "peak of live tensor bytes above the start, CPU allocator"
        return {"peak_memory_bytes": peak, "memory_method": method}

    def interrupt(self) -> None:
        if self._profiler is not None:
            self._profiler.__exit__(None, None, None)
            self._profiler = None


class Results(Task):
    """Losses, returned tensors and parameters of some steps from the second one on."""

    def __init__(
        self,
        parameters: Callable[[], List[Any]],
        finish: Callable[[Dict[str, Any]], Dict[str, Any]],
    ) -> None:
        self._parameters = parameters
        self._finish = finish
        self._results: Optional[StepResults] = None
        self._steps = 0

    def begin(self) -> None:
        self._results = StepResults(self._parameters())
        self._steps = 0

    def step(self, returned: Any) -> Answer:
        if self._results is None:
            return None
        self._results.add_returned(returned)
        self._steps += 1
        if self._steps < STEPS:
            return None
        results, self._results = self._results, None
        return self._finish(results.record())

    def interrupt(self) -> None:
        if self._results is not None:
            self._results.stop()
            self._results = None
