"""Run a program under torch.profiler: a Chrome trace and a summary of its operators.

Steps are optimizer steps. The recorded data are written however the program ends.
`operator_rows` reads a finished profiler of any supported version of torch.
"""

import atexit
import os
import resource
import sys
import time
from typing import Any, Dict, List

import torch

from torchyard.worker.values.exchange import write_result
from torchyard.worker.values.program import (
    THREADS,
    Ending,
    SteppedProfiler,
    before_program_profiler,
    start_timer,
    stop_timer,
)

MOST_SHAPES = 3
_LEFT_OUT = (
    "ProfilerStep",
    "[memory]",
    "PyTorch Profiler",
    "Activity Buffer Request",
    "Buffer Flush",
)


def operator_rows(profile: Any, by_shape: bool) -> List[Dict[str, Any]]:
    """Return operators and kernels with times in ns, sorted by self time."""
    shapes: Dict[str, List[Dict[str, Any]]] = {}
    if by_shape:
        for event in profile.key_averages(group_by_input_shape=True):
            text = _shape_text(getattr(event, "input_shapes", None))
            if text:
                shapes.setdefault(str(event.key), []).append(
                    {"shapes": text, "calls": int(event.count), "self_cost": _self_ns(event)}
                )
    rows = []
    for event in profile.key_averages():
        name = str(event.key)
        if name.startswith(_LEFT_OUT):
            continue
        costliest = sorted(shapes.get(name, ()), key=lambda one: -one["self_cost"])
        rows.append(
            {
                "name": name,
                "calls": int(event.count),
                "on_device": _on_device(event),
                "self_cost": _ns(event, "self_cpu_time_total"),
                "total_cost": _ns(event, "cpu_time_total"),
                "self_device_cost": _device_self_ns(event),
                "total_device_cost": _ns(event, "device_time_total", "cuda_time_total"),
                "memory_bytes": int(_number(event, "cpu_memory_usage")),
                "device_memory_bytes": int(
                    _number(event, "device_memory_usage", "cuda_memory_usage")
                ),
                "shapes": costliest[:MOST_SHAPES],
            }
        )
    return sorted(rows, key=lambda row: -(row["self_cost"] + row["self_device_cost"]))


def _on_device(event: Any) -> bool:
    """Return whether it is a kernel or memory copy; its operator contains the time, too."""
    kind = getattr(getattr(event, "device_type", None), "name", "CPU")
    return kind != "CPU"


def _self_ns(event: Any) -> float:
    return _ns(event, "self_cpu_time_total") + _device_self_ns(event)


def _device_self_ns(event: Any) -> float:
    return _ns(event, "self_device_time_total", "self_cuda_time_total")


def _ns(event: Any, *names: str) -> float:
    """Return a time in ns; torch reports microseconds."""
    return _number(event, *names) * 1000.0


def _number(event: Any, *names: str) -> float:
    """Return the first attribute that this torch version has."""
    for name in names:
        value = getattr(event, name, None)
        if isinstance(value, (int, float)):
            return float(value)
    return 0.0


def _shape_text(shapes: Any) -> str:
    """Format shapes as `32x64, 10`; empty for an operator without tensors."""
    parts = []
    for shape in shapes or ():
        if isinstance(shape, (list, tuple)) and shape:
            plain = all(isinstance(size, int) for size in shape)
            parts.append("x".join(map(str, shape)) if plain else str(shape))
    return ", ".join(parts)


FORMAT = 1
_TIMER_PERIOD_S = 0.5


class TorchProfiled(SteppedProfiler):
    """Records the steps that the plan requests."""

    def __init__(self, plan: Dict[str, Any]) -> None:
        super().__init__(plan)
        self._trace: str = plan["trace"]
        self._options: Dict[str, Any] = plan["tool_options"]
        self._most_s = float(self._options.get("most_s", 0)) or None
        self._profile: Any = None
        self._began_ns = 0
        self._recorded_ns = 0
        self._hooks: List[Any] = []
        self._all_threads = False
        self._rows: List[Dict[str, Any]] = []

    def start(self) -> None:
        """Count optimizer steps, and record from the first requested one."""
        from torch.optim import optimizer

        self._save("running", 0)
        before_program_profiler(self._yield_to_program_profiler)
        self._hooks.append(optimizer.register_optimizer_step_post_hook(lambda *_: self.step()))
        self._update_phase()

    def stop(self, ending: Ending) -> None:
        """Write the recorded data."""
        for hook in self._hooks:
            hook.remove()
        if self._phase in ("before", "warming"):
            self._abandon()
            self._note_early_end()
        self._finish()
        self._save(ending.state, ending.exit_code)

    def leave_child(self) -> None:
        """Do nothing in a forked child."""
        self._phase = "left"
        self._output = self._trace = os.devnull

    def leave_process(self, exit_code: int) -> None:
        """Exit a forked child directly: C++ would wait for the profiler's threads, which it lacks (torch 2.13 hung)."""
        if os.getpid() != self._pid:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(exit_code)

    def note(self, text: str) -> None:
        """Add a note to the report."""
        if text != THREADS or not self._all_threads:
            super().note(text)

    def _update_phase(self) -> None:
        """Change the phase according to the number of finished steps."""
        if self._phase == "before" and self._steps >= self._warm_from:
            self._profile = self._new_profile()
            self._profile.prepare_trace()
            self._phase = "warming"
        if self._phase == "warming" and self._steps >= self._first:
            self._profile.start_trace()
            self._phase = "recording"
            self._began_ns = time.perf_counter_ns()
            if self._most_s is not None:
                start_timer(self._on_timer, _TIMER_PERIOD_S)
        if self._phase == "recording" and self._last is not None and self._steps >= self._last:
            self._finish()

    def _new_profile(self) -> Any:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        elif hasattr(torch, "xpu") and torch.xpu.is_available():
            activities.append(torch.profiler.ProfilerActivity.XPU)
        keys: Dict[str, Any] = {}
        if not self._options.get("memory", True):
            # Needed to record operators in threads of the program. With it, torch 2.13 reports no
            # memory: every operator had 0 bytes.
            try:
                keys["experimental_config"] = torch._C._profiler._ExperimentalConfig(
                    profile_all_threads=True
                )
                self._all_threads = True
            except (AttributeError, TypeError):
                pass
        return torch.profiler.profile(
            activities=activities,
            record_shapes=bool(self._options.get("shapes", True)),
            profile_memory=bool(self._options.get("memory", True)),
            with_stack=bool(self._options.get("stacks", False)),
            **keys,
        )

    def _finish(self) -> None:
        """Stop recording, and create the table and the trace."""
        if self._phase != "recording":
            return
        self._phase = "over"
        self._recorded_ns = time.perf_counter_ns() - self._began_ns
        stop_timer(self._on_timer)
        try:
            self._profile.stop_trace()
            self._rows = operator_rows(self._profile, bool(self._options.get("shapes", True)))
            self._profile.export_chrome_trace(self._trace)
        except Exception as error:
            self.note("the profiler failed: %s: %s" % (type(error).__name__, error))
        self._profile = None
        self._save("running", 0)

    def _abandon(self) -> None:
        """Discard a profiler that was warmed up and never used."""
        if self._phase == "warming":
            try:
                self._profile.start_trace()
                self._profile.stop_trace()
            except Exception:
                pass
        self._phase, self._profile = "over", None

    def _on_timer(self, _number: int, _frame: Any) -> None:
        if self._phase != "recording" or os.getpid() != self._pid or self._most_s is None:
            return
        if time.perf_counter_ns() - self._began_ns > self._most_s * 1e9:
            self.note("recording stopped after %g s" % self._most_s)
            self._finish()

    def _yield_to_program_profiler(self, of: Any) -> None:
        """Stop recording before the program starts its own profiler."""
        ours = self._profile is not None and getattr(self._profile, "profiler", None) is of
        if not ours and self._phase in ("warming", "recording"):
            self.note("the program profiles itself: recording ended there")
            self._finish()
            self._abandon()

    def _save(self, state: str, exit_code: int) -> None:
        if self._output == os.devnull:
            return
        write_result(
            self._output,
            {
                "format": FORMAT,
                "state": state,
                "exit_code": exit_code,
                "torch": str(torch.__version__),
                "steps": self._steps,
                "recorded_steps": self._recorded_steps,
                "recorded_ns": self._recorded_ns,
                "peak_memory_bytes": _peak_memory_bytes(),
                "peak_device_bytes": _peak_device_bytes(),
                "rows": self._rows,
                "notes": self.notes,
            },
        )


def _peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024


def _peak_device_bytes() -> int:
    if not torch.cuda.is_initialized():
        return 0
    return max(int(torch.cuda.max_memory_allocated(i)) for i in range(torch.cuda.device_count()))
