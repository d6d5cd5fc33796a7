"""Run the user's program as Python would run it, with a profiler that a plan describes.

The profiler (value profiling, a native run, torch.profiler) is notified when the program starts, forks and ends, and
is imported only if the plan requests it.
"""

import json
import os
import runpy
import signal
import sys
import threading
import traceback
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from torchyard.worker.values.exchange import options_from

INTERRUPTED = 130
TERMINATED = 143
THREADS = "the program starts threads: operators in them are not recorded"


class Ending(NamedTuple):
    """How a program ended."""

    exit_code: int
    state: str
    """finished, crashed (an exception or an exit code other than 0) or interrupted."""


class ProgramProfiler:
    """Base class of profilers around a program; does nothing."""

    def start(self) -> None:
        """Called before the first line of the program."""

    def stop(self, ending: Ending) -> None:
        """Called after the program ended, also if it crashed."""

    def leave_child(self) -> None:
        """Called in a forked child, where nothing is profiled."""

    def is_inside_operator(self) -> bool:
        """Return whether an operator is being observed, so that profiling cannot stop now."""
        return False

    def step(self) -> None:
        """Handle the end of a step of a workload without an optimizer."""

    def output(self, value: Any) -> None:
        """Take what an iteration of a workload returned."""

    def finish(self, names: Dict[str, Any]) -> None:
        """Take the variables of the main module after its last line."""

    def note(self, text: str) -> None:
        """Add a note for the user."""


class Replacement:
    """An attribute that is replaced, until removed."""

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        self._owner, self._name, self._own = owner, name, getattr(owner, name)
        setattr(owner, name, value)

    def remove(self) -> None:
        """Restore the attribute."""
        setattr(self._owner, self._name, self._own)


def before_program_profiler(callback: Callable[[Any], None]) -> Optional[Replacement]:
    """Call back with the profiler before a torch profiler starts: two cannot be active. None without such a hook."""
    from torch.autograd import profiler

    prepare = getattr(profiler.profile, "_prepare_trace", None)
    if prepare is None:
        return None

    def prepare_alone(of: Any) -> Any:
        callback(of)
        return prepare(of)

    return Replacement(profiler.profile, "_prepare_trace", prepare_alone)


def start_timer(handler: Callable[[int, Any], None], period_s: float) -> None:
    """Call a handler periodically in process CPU time, unless the program uses that timer."""
    if signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL:
        signal.signal(signal.SIGVTALRM, handler)
        signal.setitimer(signal.ITIMER_VIRTUAL, period_s, period_s)


def stop_timer(handler: Callable[[int, Any], None]) -> None:
    """Stop the timer of a handler."""
    if signal.getsignal(signal.SIGVTALRM) == handler:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)


class SteppedProfiler(ProgramProfiler):
    """Base class of profilers that record some steps of the program."""

    def __init__(self, plan: Dict[str, Any]) -> None:
        options = plan["tool_options"]
        self._output: str = plan["output"]
        self._warm_from = int(options.get("skip_steps", 0))
        self._first = self._warm_from + int(options.get("warm_steps", 0))
        active = int(options.get("active_steps", 0))
        self._last: Optional[int] = self._first + active if active else None
        self._pid = os.getpid()
        self._steps = 0
        self._recorded_steps = 0
        self._phase = "before"
        self.notes: List[str] = []

    def step(self) -> None:
        """Handle the end of a step."""
        if os.getpid() != self._pid:
            return
        self._steps += 1
        if self._phase == "recording":
            self._recorded_steps += 1
        self._update_phase()

    def note(self, text: str) -> None:
        """Add a note to the report."""
        if text not in self.notes:
            self.notes.append(text)

    def _update_phase(self) -> None:
        """Change the phase according to the number of finished steps."""
        raise NotImplementedError

    def _note_early_end(self) -> None:
        self.note(
            "the program ended after %d steps, before step %d, where recording starts"
            % (self._steps, self._first)
        )


def run_program(words: List[str], profiler: ProgramProfiler, children: Any = None) -> int:
    """Run `SCRIPT ARGUMENTS...` or `-m MODULE ARGUMENTS...`; return its exit code."""
    return run_callable(lambda: profiler.finish(_run(words)), profiler, children)


def run_callable(body: Callable[[], Any], profiler: ProgramProfiler, children: Any = None) -> int:
    """Run a function like a program; return the exit code. `children` is a `ChildProcesses`, if they are profiled."""
    pid = os.getpid()
    os.register_at_fork(after_in_child=profiler.leave_child)
    _count_threads(profiler)
    ended: List[Ending] = []

    def end(ending: Ending) -> None:
        if not ended and os.getpid() == pid:
            ended.append(ending)
            if children is None:
                profiler.stop(ending)
        if children is not None and children.current is not None:
            children.current.end(ending)

    leave = os._exit

    def leave_at_once(code: int) -> None:
        end(Ending(code, "finished" if code == 0 else "crashed"))
        leave(code)

    os._exit = leave_at_once  # type: ignore[assignment]
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    profiler.start()
    if children is not None:
        children.adopt_main(profiler)
        children.install()
    try:
        body()
        ending = Ending(0, "finished")
    except BaseException as error:
        ending = ending_of(error)
        if isinstance(error, SystemExit):
            _show_message(error)
        elif not isinstance(error, KeyboardInterrupt):
            _show(error)
    finally:
        os._exit = leave
    end(ending)
    return ending.exit_code


def _run(words: List[str]) -> Dict[str, Any]:
    """Run the program; return the variables of its main module."""
    if words[:1] == ["-m"]:
        sys.argv = words[1:]
        sys.path.insert(0, os.getcwd())
        return runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    sys.argv = list(words)
    sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
    return runpy.run_path(words[0], run_name="__main__")


def ending_of(error: BaseException) -> Ending:
    """Return how a program ended that raised an exception."""
    if isinstance(error, KeyboardInterrupt):
        return Ending(INTERRUPTED, "interrupted")
    if not isinstance(error, SystemExit):
        return Ending(1, "crashed")
    code = 0 if error.code is None else error.code & 0xFF if isinstance(error.code, int) else 1
    state = "finished" if code == 0 else "interrupted" if code == TERMINATED else "crashed"
    return Ending(code, state)


def _show_message(request: SystemExit) -> None:
    if request.code is not None and not isinstance(request.code, int):
        sys.stderr.write(str(request.code) + "\n")


def _show(error: BaseException) -> None:
    """Print the traceback without the frames of the worker."""
    entry: Optional[Any] = error.__traceback__
    here = os.path.dirname(os.path.abspath(__file__))
    while entry is not None:
        name = entry.tb_frame.f_code.co_filename
        if not name.startswith((here, "<frozen runpy>")) and os.path.basename(name) != "runpy.py":
            break
        entry = entry.tb_next
    sys.stdout.flush()
    traceback.print_exception(type(error), error, entry)


def _terminate(_number: int, _frame: Any) -> None:
    raise SystemExit(TERMINATED)


def _count_threads(profiler: ProgramProfiler) -> None:
    start = threading.Thread.start
    reported: List[bool] = []

    def counted(thread: threading.Thread) -> None:
        if not reported:
            reported.append(True)
            profiler.note(THREADS)
        start(thread)

    threading.Thread.start = counted  # type: ignore[method-assign,assignment]


class ValueProfiledProgram(ProgramProfiler):
    """Value profiling of a program."""

    def __init__(self, plan: Dict[str, Any]) -> None:
        from torchyard.worker.values.profiling_session import ProfilingSession

        self.session = ProfilingSession(
            options_from(plan["options"]), plan["output"], plan.get("cache")
        )
        self.session.profiles_children = bool(plan.get("parts"))
        if plan.get("eager"):
            _turn_compiler_off()
            self.session.eager = True
            self.session.notes.append("torch.compile was disabled: the eager program was profiled")

    def start(self) -> None:
        """Write a first result, and start profiling."""
        self.session.write("running")
        self.session.start()

    def stop(self, ending: Ending) -> None:
        """Stop profiling and write the result."""
        self.session.exit_code = ending.exit_code
        self.session.stop(ending.state)

    def leave_child(self) -> None:
        """Remove the profiler of the parent from a forked child."""
        self.session.abandon()

    def is_inside_operator(self) -> bool:
        """Return whether an operator is being observed."""
        return self.session.mode.is_inside

    def step(self) -> None:
        """Mark the end of a step, as the optimizer hook does in training."""
        self.session.step()

    def note(self, text: str) -> None:
        """Add a note to the report."""
        if text != THREADS and text not in self.session.notes:  # the session counts them itself
            self.session.notes.append(text)


def main(plan_path: str, words: List[str]) -> int:
    """Run the program of a plan; return its exit code."""
    with open(plan_path, encoding="utf-8") as file:
        plan: Dict[str, Any] = json.load(file)
    os.environ.pop("TORCHYARD_VALUES_PLAN", None)
    if "sweep" in plan:
        from torchyard.worker.values.operator_sweep import sweep_plan

        return sweep_plan(plan)
    if "samples" in plan:
        from torchyard.worker.values.operator_samples import samples_plan

        return samples_plan(plan)
    if "price" in plan:
        from torchyard.worker.values.pricing.fix_timing import price_plan

        return price_plan(plan)
    if plan.get("ranks", 1) > 1:
        from torchyard.worker.values.rank_launcher import launch_ranks

        return launch_ranks(plan, words)
    if plan.get("tool") == "torch":
        from torchyard.worker.values.torch_profile import TorchProfiled

        profiled = TorchProfiled(plan)
        code = run_program(words, profiled)
        profiled.leave_process(code)
        return code
    profiler = profiler_of(plan)
    children = None
    if plan.get("parts"):
        from torchyard.worker.values.child_processes import ChildProcesses

        children = ChildProcesses(plan)
    if plan.get("workload"):
        from torchyard.worker.values.workload_run import body_of

        return run_callable(body_of(plan, profiler), profiler, children)
    return run_program(words, profiler, children)


def profiler_of(plan: Dict[str, Any]) -> ProgramProfiler:
    """Return the profiler that a plan describes."""
    if plan.get("tool") == "range":
        from torchyard.worker.values.tool_range import ToolRange

        return ToolRange(plan)
    if plan.get("native"):
        from torchyard.worker.values.pricing.native_run import NativeRunRecorder

        return NativeRunRecorder(plan)
    return ValueProfiledProgram(plan)


def _turn_compiler_off() -> None:
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    import torch._dynamo

    torch._dynamo.config.disable = True
