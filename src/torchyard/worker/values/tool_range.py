"""Enable an external profiler for some steps of the program only.

Two switches: cudaProfilerStart/Stop (for nsys and ncu), and Valgrind's instrumentation, which is slow
and must not cover the import of torch. Steps are optimizer steps. Records nothing itself.
"""

import os
import subprocess
import sys
from typing import Any, Callable, Dict, Optional

from torchyard.worker.values.exchange import write_result
from torchyard.worker.values.program import THREADS, Ending, SteppedProfiler

FORMAT = 1
_SWITCH_LIMIT_S = 120


class ToolRange(SteppedProfiler):
    """Enables the profiler after the skipped steps and disables it after the recorded ones."""

    def __init__(self, plan: Dict[str, Any]) -> None:
        super().__init__(plan)
        self._switch: Callable[[bool], Optional[str]] = SWITCHES[plan["switch"]]

    def start(self) -> None:
        """Import torch before recording, and enable the profiler if no steps are skipped."""
        try:
            from torch.optim import optimizer

            optimizer.register_optimizer_step_post_hook(lambda *_: self.step())
        except ImportError:
            self.note("the target has no torch: the program has no steps")
        self._save("running", 0)
        self._update_phase()

    def stop(self, ending: Ending) -> None:
        """Disable the profiler, so that process shutdown is not recorded."""
        if self._phase == "before":
            self._note_early_end()
        self._close()
        self._save(ending.state, ending.exit_code)

    def leave_child(self) -> None:
        """Do nothing in a forked child."""
        self._phase = "left"
        self._output = os.devnull

    def note(self, text: str) -> None:
        """Add a note; external tools record threads, so that note is dropped."""
        if text != THREADS:
            super().note(text)

    def _update_phase(self) -> None:
        if self._phase == "before" and self._steps >= self._first:
            self._phase = "recording"
            self._note_error(self._switch(True))
        if self._phase == "recording" and self._last is not None and self._steps >= self._last:
            self._close()

    def _close(self) -> None:
        if self._phase == "recording":
            self._phase = "closed"
            self._note_error(self._switch(False))

    def _note_error(self, error: Optional[str]) -> None:
        if error is not None:
            self.note("the profiler could not be switched: " + error)

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
    """Switch instrumentation with vgdb; there is no Python interface."""
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
