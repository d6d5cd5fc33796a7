"""A value profile from start to end: steps, patterns and the result file.

The result is written repeatedly while the program runs, so that the findings survive if the program
crashes or is killed.
"""

import os
import sys
import time
from typing import Any, Dict, List, Optional

import torch

from torchyard.worker.devices import current_accelerator, device_of
from torchyard.worker.values.compiled.examined_patterns import NOT_TESTED, NOT_TIMED, examines
from torchyard.worker.values.compiled.kernel_observer import KernelObserver
from torchyard.worker.values.dispatch_mode import ValueMode
from torchyard.worker.values.exchange import Options, write_result
from torchyard.worker.values.findings import Finding, Findings, count_surveyed
from torchyard.worker.values.observation import Observation
from torchyard.worker.values.operators import Operator
from torchyard.worker.values.patterns import open_patterns
from torchyard.worker.values.places import Place, calling_frame
from torchyard.worker.values.pricing.recipes import WorthNotes
from torchyard.worker.values.proofs.certainty import LIKELY
from torchyard.worker.values.proofs.proof import Proofs
from torchyard.worker.values.redispatch import never_compile
from torchyard.worker.values.scanning.cpu_scan import Scanner, TorchScanner, open_scanner
from torchyard.worker.values.scanning.scanners import Scanners
from torchyard.worker.values.surveys.follower import FollowLibrary
from torchyard.worker.values.unobserved import (
    CompileCalls,
    OtherThreads,
    UntrackedAccess,
    untracked_libraries,
)

FORMAT = 1
SLOW_SCANNER = (
    "no C compiler was found: memory was scanned with torch operators, which gives the same findings "
    "and takes about ten times as long"
)
_WRITE_EVERY_S = 5.0
_DDP_FILE = os.path.join(os.path.dirname(torch.__file__), "nn", "parallel", "distributed.py")
MOST_CLOSE = 5
"""Maximum number of closely observed steps, as a multiple of `close_steps`."""


class ProfilingSession:
    """Profiles a program between `start` and `stop`."""

    def __init__(
        self,
        options: Options,
        output: Optional[str] = None,
        cache: Optional[str] = None,
        *,
        follow: bool = True,
    ) -> None:
        """Create a session; `cache` is the folder of compiled files, `follow` enables the follower."""
        self.notes: List[str] = []
        scanner: Scanner
        compiled = open_scanner(cache)
        if compiled is None:
            scanner = TorchScanner()
            self.notes.append(SLOW_SCANNER)
        else:
            scanner = compiled
        self.options = options
        self.findings = Findings()
        self.worth_notes = WorthNotes()
        self.findings.on_add = self._on_finding
        self.findings.on_follow = self.worth_notes.followed
        self.proofs: Optional[Proofs] = None
        if options.prove:
            dispatch = ValueMode.__torch_dispatch__.__code__
            self.proofs = Proofs(self.findings, self._available_bytes, dispatch)
        scanners = Scanners(scanner)
        self.patterns = open_patterns(self.findings, options, scanners)
        self.library = FollowLibrary(cache) if follow else None
        self.mode = ValueMode(
            options,
            scanners,
            on_observation=self._observe,
            on_fill_covered=self._fill_covered,
            on_fill_read=self._fill_read,
            after_operator=self._after_operator,
            library=self.library,
        )
        self.worth_notes.graph.state_of = self.mode.state_of
        self.worth_notes.graph.states = self.mode.states
        self.kernels = KernelObserver(self.mode, cache)
        self._output = output
        self._pid = os.getpid()
        self._written_s = 0.0
        self._started_s = time.monotonic()
        self._on = False
        self._closely = 0
        self._since_close = 0
        self.exit_code: Optional[int] = None
        self.eager = False
        """Whether torch.compile is disabled for this profile only."""
        self._other_threads: Optional[OtherThreads] = None
        self._outside: Optional[UntrackedAccess] = None
        self._compiles: Optional[CompileCalls] = None
        self._several_threads = False
        self._abandoned = False
        self.profiles_children = False
        """Whether child processes profile themselves, so that notes about them are those of the controller."""
        self._hooks: List[Any] = []

    def start(self) -> None:
        """Start profiling this thread."""
        self.mode.places.track_modules()
        self._hooks.append(_after_optimizers(self._after_optimizer))
        if "torch._dynamo" in sys.modules:
            self._hide_from_compiler()
        self._compiles = CompileCalls(self._hide_from_compiler)
        self._hooks.append(self._compiles)
        self.kernels.install()
        self._hooks.append(self.kernels)
        self._outside = UntrackedAccess(self.mode.storages)
        self._other_threads = OtherThreads(self.mode.storages, self.leave)
        self._hooks += [self._outside, self._other_threads]
        devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        self._several_threads = devices > 1
        if devices == 1:
            # Backward passes on a GPU run in a separate thread, where a Python call costs twice as
            # much. With one GPU the choice of thread makes no other difference.
            self._hooks.append(SingleThreadBackward())
        self.mode.__enter__()
        self._on = True

    def stop(self, state: str = "finished") -> None:
        """Stop and write the result; `state` is how the program ended."""
        if not self._on:
            return
        self._on = False
        self.mode.__exit__(None, None, None)
        for hook in self._hooks:
            hook.remove()
        self.mode.places.close()
        for surveyed in self.mode.survey.drain():
            count_surveyed(self.findings, surveyed)
        for pattern in self.patterns:
            pattern.finish()
        self.worth_notes.graph.export()
        if self.proofs is not None:
            self.proofs.finish()
            self.proofs.conclude(self._unseen())
        self.mode.close()
        self.write(state)

    def leave(self) -> None:
        """Disable profiling in a forked child process."""
        self.mode.off = True
        self.mode.set_active(False)
        self._on = False

    def abandon(self) -> None:
        """Remove everything of this session in a forked child, where another session may start."""
        self.leave()
        if self._abandoned:
            return
        self._abandoned = True
        self.mode.leave_stack()
        for hook in self._hooks:
            hook.remove()
        self.mode.places.close()

    def _hide_from_compiler(self) -> None:
        """Replace the hook of optimizers: a compiled optimizer would compile the profiler, too.

        So would operators between the graphs of a compiled function.
        """
        import torch._dynamo

        self._hooks[0].remove()
        self._hooks[0] = _after_optimizers(torch._dynamo.disable(self._after_optimizer))
        never_compile(type(self.mode).__torch_dispatch__, *self.mode.places.hooks)

    def step(self) -> None:
        """Handle the end of a step."""
        if self.mode.off:
            return
        mode, surveyed_step = self.mode, self.mode.surveying
        # torch.compile guards on the mode stack and would recompile when a mode is pushed or popped.
        # The follower observes one thread; with several GPUs, backward passes run in other threads.
        mode.may_detach = not self._compiled and not self._several_threads
        self.findings.end_step()
        if not surveyed_step:
            for pattern in self.patterns:
                pattern.end_step()
            self.worth_notes.graph.resolve()
        for surveyed in mode.end_step(self._observe_closely):
            count_surveyed(self.findings, surveyed)
        if surveyed_step and mode.active:
            mode.counts.steps_surveyed += 1
        if mode.surveying and not surveyed_step:
            for pattern in self.patterns:
                pattern.pause()
        mode.set_active(self._is_profiled(mode.step))
        if not mode.active:
            mode.counts.steps_left_out += 1
        if time.monotonic() - self._written_s > _WRITE_EVERY_S:
            self.write(state="running")

    def result(self, state: str) -> Dict[str, Any]:
        """Return the current result."""
        return {
            "format": FORMAT,
            "state": state,
            "torch": torch.__version__,
            "device": _device(),
            "threads": torch.get_num_threads(),
            "options": self.options._asdict(),
            "exit_code": self.exit_code,
            "steps": self.mode.step,
            "seconds": time.monotonic() - self._started_s,
            "counts": self._counts(),
            "findings_left_out": self.findings.left_out,
            "findings": [finding.as_dict() for finding in self.findings.all()],
            "flow": self._flow() if self.options.graph else None,
            "notes": self._all_notes(),
            "compiled": self.eager or self._compiled_while_enabled,
        }

    def write(self, state: str) -> None:
        """Write the result file atomically."""
        self._written_s = time.monotonic()
        if self._output is None or os.getpid() != self._pid:
            return
        write_result(self._output, self.result(state))

    def _observe(self, observation: Observation) -> None:
        self.findings.count_call(observation)
        of_kernel = observation.operator.is_kernel
        if of_kernel or not _is_communication(observation):
            for pattern in self.patterns:
                if not of_kernel or examines(pattern, observation):
                    try:
                        pattern.observe(observation)
                    except Exception as error:  # an error of the profiler must not stop the program
                        self._leave_out(pattern, observation, error)
        if of_kernel:
            return
        if self.proofs is not None:
            self.proofs.observe(observation)

    def _leave_out(self, pattern: Any, observation: Observation, error: Exception) -> None:
        """Evaluate a pattern that failed no longer."""
        self.patterns = [one for one in self.patterns if one is not pattern]
        self.notes.append(
            "the pattern %s was not evaluated from %s in line %d of step %d on, because the profiler failed: %s: %s"
            % (
                *(pattern.name, observation.operator.name, observation.place.line),
                *(self.mode.step, type(error).__name__, error),
            )
        )

    def _fill_covered(self, fill: Observation, by: Operator, place: Place) -> None:
        for pattern in self.patterns:
            pattern.fill_covered(fill, by, place)

    def _fill_read(self, fill: Observation) -> None:
        for pattern in self.patterns:
            pattern.fill_read(fill)

    def _on_finding(self, finding: Finding, observation: Observation) -> None:
        if observation.operator.is_kernel or self.mode.in_kernel:
            # Trials and prices are made of operators, not of generated kernels.
            finding.proof = finding.proof or {"certainty": LIKELY, "why": NOT_TESTED, "tests": []}
            finding.recipe = finding.recipe or {"unavailable": NOT_TIMED}
            return
        self.worth_notes.found(finding, observation)
        if self.proofs is not None and not observation.packed:
            self.proofs.found(finding, observation)

    def _after_operator(self, func: Any, args: Any, keywords: Any, result: Any) -> None:
        try:
            if self.proofs is not None:
                self.proofs.after_operator(func, args, keywords, result)
            self.worth_notes.after_operator(func, args, keywords, result, self.mode.place)
        except Exception as error:
            self._end_profile(error)

    def _counts(self) -> Dict[str, int]:
        counts = self.mode.counts.as_dict()
        if self.proofs is not None:
            counts["trials"] = self.proofs.tried
            counts["not_tried"] = sum(self.proofs.untried.values())
            counts["trials_ms"] = int(self.proofs.spent_s * 1000)
        if self._other_threads is not None:
            counts.update(self._other_threads.counts())
        counts.update(self.kernels.counts())
        return counts

    def _flow(self) -> Dict[str, Any]:
        """Return the flow graph, with the classes of its modules."""
        return dict(self.mode.flow.as_dict(), classes=self.mode.places.classes)

    def _all_notes(self) -> List[str]:
        notes = list(self.notes) + self.kernels.notes(
            self._compiled_while_enabled and not self.eager
        )
        if self._other_threads is not None and self._outside is not None:
            notes += self._other_threads.notes(processes=not self.profiles_children)
            notes += self._outside.notes()
        return notes + (self.proofs.notes() if self.proofs is not None else [])

    def _unseen(self) -> str:
        """Return why memory may be accessed without being observed; empty if it cannot."""
        libraries = untracked_libraries()
        if libraries:
            return "compiled extensions may read it without being observed: " + ", ".join(libraries)
        if self._compiled:
            return "compiled functions may read it without being observed"
        return ""

    @property
    def _compiled_while_enabled(self) -> bool:
        if self.kernels.seen:
            return True
        return self._compiles is not None and self._compiles.compiled_while_enabled

    @property
    def _compiled(self) -> bool:
        """Whether the program called torch.compile, or code that was compiled before."""
        return self.kernels.seen or (self._compiles is not None and self._compiles.compiled)

    def _available_bytes(self) -> int:
        return self.mode.available_bytes()

    def _after_optimizer(self, *_: Any) -> None:
        try:
            self.step()
        except Exception as error:
            self._end_profile(error)

    def _end_profile(self, error: Exception) -> None:
        """Observe nothing more: an error of the profiler must not stop the program."""
        self.mode.off = True
        self.mode.set_active(False)
        self.notes.append(
            "the profile ends after step %d, because the profiler failed: %s: %s"
            % (self.mode.step, type(error).__name__, error)
        )

    def _observe_closely(self, new: bool) -> bool:
        """Return whether to observe the next step closely: the first ones, and after something new."""
        most = self.options.close_steps
        self._since_close += 1
        if not self.mode.surveying:
            self._closely += 1
            self._since_close = 0
        if not most or self._closely < most or self.kernels.seen:
            return True  # surveyed steps do not scan what kernels write
        if not new or self._closely >= MOST_CLOSE * most:
            return False
        return self.mode.surveying and self._since_close >= most

    def _is_profiled(self, step: int) -> bool:
        options = self.options
        if step <= options.first_steps or (options.last_step and step > options.last_step):
            return False
        return (step - options.first_steps - 1) % max(1, options.every) == 0


def _after_optimizers(hook: Any) -> Any:
    """Call a hook after the steps of all optimizers; return its handle."""
    from torch.optim import optimizer

    return optimizer.register_optimizer_step_post_hook(hook)


def _is_communication(observation: Observation) -> bool:
    """Return whether an operator prepares or finishes communication, as DDP does with its gradient buckets.

    What is equal then depends on other processes, and DDP decides about it, not the program.
    """
    operator = observation.operator
    if not operator.copies and not operator.fills:
        return False
    if observation.state.communicated or any(state.communicated for _, state in observation.inputs):
        return True
    frame = calling_frame(ValueMode.__torch_dispatch__.__code__)
    return frame is not None and frame.f_code.co_filename == _DDP_FILE


class SingleThreadBackward:
    """Runs backward passes in the calling thread, until removed."""

    def __init__(self) -> None:
        self._own = torch.autograd.set_multithreading_enabled(False)

    def remove(self) -> None:
        """Restore the previous setting."""
        self._own.__exit__(None, None, None)


def _device() -> str:
    """Return the device that the program uses."""
    current = current_accelerator()
    return "cpu" if current is None else "%s: %s" % (current.type, device_of(str(current)).label())
