"""Run the program without value profiling: which operators it runs, and how long a step takes.

Torch's record of events is on until every requested chain occurred; then steps are timed. On request, steps alternate
in random order between gradients set to zero and set to None. Examines no values.
"""

import os
import random
import statistics
import threading
import time
from typing import Any, Dict, List, Optional

import torch

from torchyard.worker.values.exchange import write_result
from torchyard.worker.values.pricing.applied_fix import AppliedFix, ObservedResults
from torchyard.worker.values.pricing.checked_run import CheckedRun
from torchyard.worker.values.pricing.site_times import (
    SiteTimes,
    machine_costs,
    page_faults,
    speed_probe,
)
from torchyard.worker.values.program import (
    THREADS,
    Ending,
    ProgramProfiler,
    before_program_profiler,
    start_timer,
    stop_timer,
)
from torchyard.worker.values.redispatch import NativeEvents, count_chain, why_unavailable


class GradientTurns:
    """Selects what `zero_grad` does in each step, and stores the times of the steps."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._drop_first = False
        self._took_ns: List[int] = []
        self.pairs_ns: List[List[int]] = []
        """Step with zeros, step with None."""
        self._draw()

    @property
    def drops(self) -> bool:
        """Whether gradients are set to None in the step that runs now."""
        return self._drop_first != bool(self._took_ns)

    def start(self) -> None:
        """Replace `zero_grad`, so that it sets gradients to None in every second step."""
        for kind in (torch.optim.Optimizer, torch.nn.Module):
            self._take_over(kind)

    def step(self, took_ns: int) -> None:
        """Add the time of a step."""
        self._took_ns.append(took_ns)
        if len(self._took_ns) == 2:
            first, second = self._took_ns
            self.pairs_ns.append([second, first] if self._drop_first else [first, second])
            self._took_ns = []
            self._draw()

    def _draw(self) -> None:
        self._drop_first = self._chance.random() < 0.5

    def _take_over(self, kind: Any) -> None:
        clear = kind.zero_grad

        def in_turn(of: Any, set_to_none: bool = True) -> Any:
            return clear(of, set_to_none=set_to_none or self.drops)

        kind.zero_grad = in_turn


FORMAT = 1
MOST_RECORDED_STEPS = 8
"""Chains that do not occur in this many steps are not part of a step."""
MOST_SITE_STEPS = 16
"""Steps in which operators are timed at their call sites."""
_MOST_STEPS = 200
_HARVEST_EVERY_S = 1.0
_MOST_CHAINS = 50_000


class NativeRunRecorder(ProgramProfiler):
    """Records events of a program, then times its steps; `wanted` in the plan lists the chains."""

    def __init__(self, plan: Dict[str, Any]) -> None:
        self._output: str = plan["output"]
        self._chains = [tuple(chain) for chain in plan.get("wanted", ())]
        self._events = NativeEvents()
        self._pid = os.getpid()
        self._hooks: List[Any] = []
        self._recorded_steps = 0
        self._step_ns: List[int] = []
        self._step_cpu_ns: List[int] = []
        self._began_ns = 0
        self._began_cpu_ns = 0
        self._last_ns: Optional[int] = None
        self._last_cpu_ns = 0
        self._last_faults = 0
        self._step_faults: List[int] = []
        self._began_faults = 0
        self._probes: List[float] = []
        self._took_ns = 0
        self._steps = 0
        self._recorded_whole = False
        self._all_steps: bool = plan.get("all_steps", False)
        """Record all steps, to know every operator that runs."""
        self._times = SiteTimes(plan["sites"]) if plan.get("sites") else None
        """Times operators at call sites: in every second step, or in the whole program."""
        self._times_whole: bool = plan.get("sites_whole", False)
        self._times_on = False
        self._times_steps = 0
        self._turns = GradientTurns(plan.get("seed", 0)) if plan.get("turns") else None
        self._observed = ObservedResults()
        self._fix = AppliedFix(plan["fix"], self._observed) if plan.get("fix") else None
        """A fix that is applied: always, never, or in turns with steps without it."""
        self._fix_always: bool = plan.get("fix_on", False)
        self._checked = CheckedRun(plan["check"]) if plan.get("check") else None
        """Seeds and garbage in new memory, for the comparison of a patched program."""
        self.notes: List[str] = []

    def start(self) -> None:
        """Record events if the plan requests any, and count optimizer steps."""
        from torch.optim import optimizer

        self._hooks.append(optimizer.register_optimizer_step_post_hook(lambda *_: self.step()))
        if self._turns is not None and self._fix is None:
            self._turns.start()
        if self._chains:
            unavailable = why_unavailable()
            if unavailable is not None:
                self.notes.append("events were not recorded: " + unavailable)
                self._chains = []
            else:
                replacement = before_program_profiler(self._yield_to_program_profiler)
                self._hooks += [replacement] if replacement is not None else []
                self._events.start()
                self._harvest_periodically()
        if not self._events.on:
            self._probes.append(speed_probe())  # before any instrumentation
        if self._times is not None:
            self._times.__enter__()
            self._times_on = self._times_whole
            self._times.set_detached(not self._times_on)
        if self._checked is not None:
            self._checked.start()
        if self._fix is not None:
            self._observed.start()
            self._fix.on = self._fix_always or (self._turns is not None and self._turns.drops)
            self._fix.__enter__()
        self._began_faults = page_faults()
        self._began_waited_ns = waited_ns()
        self._began_ns, self._began_cpu_ns = time.perf_counter_ns(), time.process_time_ns()

    def step(self) -> None:
        """Handle the end of a step: check the recorded events, or store its time."""
        now_ns, now_cpu_ns = finished_ns(), time.process_time_ns()
        self._steps += 1
        recorded = self._events.on
        if recorded:
            self._harvest()
            self._recorded_steps += 1
            enough = self._all_occurred() or self._recorded_steps >= MOST_RECORDED_STEPS
            if enough and not self._all_steps:
                self._stop_recording()
        elif self._times_on:
            self._times_steps += 1
        elif self._last_ns is not None:
            self._step_ns.append(now_ns - self._last_ns)
            self._step_cpu_ns.append(now_cpu_ns - self._last_cpu_ns)
            self._step_faults.append(page_faults() - self._last_faults)
            if self._turns is not None:
                by_cpu = self._fix is not None and counts_cpu_time()
                cpu_ns = now_cpu_ns - self._last_cpu_ns
                self._turns.step(cpu_ns if by_cpu else now_ns - self._last_ns)
        self._switch_fix()
        self._switch_times()
        self._last_faults = page_faults()
        self._last_ns, self._last_cpu_ns = finished_ns(), time.process_time_ns()
        if recorded:
            self._last_ns = None

    def pause_sites(self) -> None:
        """Time no operators until `resume_sites`."""
        if self._times is not None:
            self._times.set_detached(True)

    def resume_sites(self) -> None:
        """Time operators again."""
        if self._times is not None:
            self._times.set_detached(False)

    def output(self, value: Any) -> None:
        """Keep the output of a workload for the comparison of results."""
        if self._fix is not None:
            self._observed.output(value)

    def finish(self, names: Dict[str, Any]) -> None:
        """Keep tensors of the main module for the comparison of results."""
        if self._checked is not None and self._fix is not None:
            self._checked.finish(names)

    def _switch_fix(self) -> None:
        """Apply the fix in the next step or not, as drawn."""
        if self._fix is None:
            return
        self._fix.end_step()
        if self._turns is not None:
            self._fix.on = self._turns.drops

    def _fixed(self) -> Dict[str, Any]:
        """Return how often the fix was applied, and the results that the program showed."""
        if self._fix is None:
            return {}
        return {
            "fix_matched": self._fix.matched,
            "fix_applied": self._fix.applied,
            "by_cpu": counts_cpu_time(),
            "loaded_files": self._checked.loaded_files() if self._checked is not None else [],
            "observed": {
                **self._observed.as_dict(),
                **(self._checked.results() if self._checked is not None else {}),
            },
        }

    def _switch_times(self) -> None:
        """Time operators in every second step, until enough of them were timed."""
        if self._times is None or self._times_whole or self._events.on:
            return
        self._times_on = not self._times_on and self._times_steps < MOST_SITE_STEPS
        self._times.set_detached(not self._times_on)

    def stop(self, ending: Ending) -> None:
        """Write the result."""
        self._took_ns = finished_ns() - self._began_ns
        cpu_ns, waited = time.process_time_ns() - self._began_cpu_ns, waited_ns()
        faults = page_faults() - self._began_faults
        self._recorded_whole = self._events.on
        if self._fix is not None:
            self._fix.__exit__(None, None, None)
            self._fix.close()
            self._observed.stop()
        if self._checked is not None:
            self._checked.stop()
        self._stop_recording()
        if self._times is not None:
            self._times.__exit__(None, None, None)
        if self._probes and ending.state == "finished":
            self._probes.append(speed_probe())
        for hook in self._hooks:
            hook.remove()
        chains = sorted(self._events.chains.items(), key=lambda item: -item[1])
        if len(chains) > _MOST_CHAINS:
            self.notes.append("%d chains of operators are left out" % (len(chains) - _MOST_CHAINS))
        write_result(
            self._output,
            {
                "format": FORMAT,
                "state": ending.state,
                "exit_code": ending.exit_code,
                "steps": self._steps,
                "recorded_steps": self._recorded_steps,
                "recorded_whole": self._recorded_whole,
                "step_ns": _median(self._step_ns),
                "step_cpu_ns": _median(self._step_cpu_ns),
                "timed_steps": len(self._step_ns),
                "steps_ns": self._step_ns[-_MOST_STEPS:],
                "steps_cpu_ns": self._step_cpu_ns[-_MOST_STEPS:],
                "sites": self._times.as_list() if self._times is not None else [],
                "site_steps": 1 if self._times_whole else self._times_steps,
                "other_ns": self._times.other_ns if self._times is not None else 0,
                "costs": machine_costs() if self._times is not None else {},
                "turns_ns": self._turns.pairs_ns if self._turns is not None else [],
                "program_ns": self._took_ns,
                "program_cpu_ns": cpu_ns,
                "program_waited_ns": max(0, waited - self._began_waited_ns),
                "step_faults": max(self._step_faults, default=None),
                "program_faults": faults,
                "probes_ns": self._probes,
                "threads": torch.get_num_threads(),
                "accelerated": torch.cuda.is_initialized(),
                "chains": [
                    {"chain": list(names), "count": n} for names, n in chains[:_MOST_CHAINS]
                ],
                "notes": self.notes,
                **self._fixed(),
            },
        )

    def leave_child(self) -> None:
        """Disable recording in a forked child."""
        self._output = os.devnull
        stop_timer(self._on_timer)
        if self._events.on:
            try:
                self._events.stop()
            except RuntimeError:  # forked in a thread that does not record
                self._events.on = False
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def note(self, text: str) -> None:
        """Add a note to the report."""
        if text != THREADS and text not in self.notes:  # the profiled run reports threads
            self.notes.append(text)

    def _all_occurred(self) -> bool:
        return all(count_chain(self._events.chains, chain) for chain in self._chains)

    def _harvest(self) -> None:
        self._events.stop()
        self._events.start()

    def _stop_recording(self) -> None:
        self._events.stop()
        stop_timer(self._on_timer)

    def _harvest_periodically(self) -> None:
        """Collect events periodically, so that a program without steps does not fill the memory."""
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread handles signals
        start_timer(self._on_timer, _HARVEST_EVERY_S)

    def _on_timer(self, _number: int, _frame: Any) -> None:
        if self._events.on and os.getpid() == self._pid:
            self._harvest()

    def _yield_to_program_profiler(self, _of: Any) -> None:
        """Stop recording before the program starts its own profiler."""
        if self._events.on:
            self._stop_recording()
            self.note("the program profiles itself: events were recorded until then")


def finished_ns() -> int:
    """Return the current time, after all device work has finished."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter_ns()


def waited_ns() -> int:
    """Return how long this thread was ready to run and waited for a core; 0 where that is not known."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def counts_cpu_time() -> bool:
    """Return whether CPU time measures the program: on one thread, without a GPU."""
    return torch.get_num_threads() == 1 and not torch.cuda.is_initialized()


def _median(values: List[int]) -> Optional[float]:
    return float(statistics.median(values)) if values else None
