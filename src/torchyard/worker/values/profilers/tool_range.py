"""Switch an external profiler on for some steps of the program, and off after them.

Two kinds of switch: that of CUDA (nsys and ncu wait for it) and that of valgrind (instrumentation
is slow, and importing torch is no part of the program). Steps are those of optimisers. Records
nothing.
"""

import os
import subprocess
import sys
from typing import Any, Callable, Dict, List, Optional

from torchyard.worker.values.exchange import write_result
from torchyard.worker.values.program import THREADS, Ending, Surrounding

FORMAT = 1
_SWITCH_LIMIT_S = 120


class ToolRange(Surrounding):
    """Around a program: opens after the steps to skip, closes after those to record."""

    def __init__(self, plan: Dict[str, Any]) -> None:
        options = plan["tool_options"]
        self._output: str = plan["output"]
        self._first = int(options.get("skip_steps", 0)) + int(options.get("warm_steps", 0))
        active = int(options.get("active_steps", 0))
        self._last: Optional[int] = self._first + active if active else None
        self._switch: Callable[[bool], Optional[str]] = SWITCHES[plan["switch"]]
        self._pid = os.getpid()
        self._steps = 0
        self._recorded_steps = 0
        self._phase = "before"
        self.notes: List[str] = []

    def start(self) -> None:
        """Have torch loaded before anything is recorded, and open when no step is skipped."""
        try:
            from torch.optim import optimizer

            optimizer.register_optimizer_step_post_hook(lambda *_: self.step())
        except ImportError:
            self.note("the target has no torch: the program has no steps")
        self._save("running", 0)
        self._go_on()

    def step(self) -> None:
        """A step is over."""
        if os.getpid() != self._pid:
            return
        self._steps += 1
        if self._phase == "open":
            self._recorded_steps += 1
        self._go_on()

    def stop(self, ending: Ending) -> None:
        """Close, so that taking the process down is not recorded."""
        if self._phase == "before":
            self.note(
                "the program ended after %d steps, before step %d that recording begins with"
                % (self._steps, self._first)
            )
        self._close()
        self._save(ending.state, ending.exit_code)

    def leave_child(self) -> None:
        """A forked child switches nothing."""
        self._phase = "left"
        self._output = os.devnull

    def note(self, text: str) -> None:
        """For the report; threads are seen by tools outside the process."""
        if text != THREADS and text not in self.notes:
            self.notes.append(text)

    def _go_on(self) -> None:
        if self._phase == "before" and self._steps >= self._first:
            self._phase = "open"
            self._say(self._switch(True))
        if self._phase == "open" and self._last is not None and self._steps >= self._last:
            self._close()

    def _close(self) -> None:
        if self._phase == "open":
            self._phase = "closed"
            self._say(self._switch(False))

    def _say(self, error: Optional[str]) -> None:
        if error is not None:
            self.note("the tool could not be switched: " + error)

    def _save(self, state: str, exit_code: int) -> None:
        write_result(
            self._output,
            {
                "format": FORMAT,
                "pid": self._pid,
                "state": state,
                "exit_code": exit_code,
                "steps": self._steps,
                "recorded_steps": self._recorded_steps,
                "notes": self.notes,
            },
        )


def _cuda(on: bool) -> Optional[str]:
    try:
        import torch

        torch.cuda.synchronize()
        if on:
            torch.cuda.profiler.start()
        else:
            torch.cuda.profiler.stop()
    except Exception as error:
        return "%s: %s" % (type(error).__name__, error)
    return None


def _valgrind(on: bool) -> Optional[str]:
    """Through valgrind's own door for debuggers, because Python has no other."""
    sys.stdout.flush()
    words = ["vgdb", "--pid=%d" % os.getpid(), "instrumentation", "on" if on else "off"]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SWITCH_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return None if done.returncode == 0 else done.stdout.decode(errors="replace")[-500:]


SWITCHES: Dict[str, Callable[[bool], Optional[str]]] = {"cuda": _cuda, "valgrind": _valgrind}
