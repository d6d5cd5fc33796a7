"""From a prepared launch to a process that runs the target's interpreter, with its pipes.

Starts the trampoline, hands it its plan and hears from it how the execution went. Knows nothing of
questions and answers.
"""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.process import trampoline
from torchyard.process.launch import LaunchSpec, PreparedLaunch
from torchyard.process.markers import LAUNCH_VARIABLE, YARD_VARIABLE
from torchyard.process.output_log import OutputLog
from torchyard.process.question_pipes import QuestionPipes
from torchyard.process.starter import start_in_lasting_thread

__all__ = ["StartRefused", "StartedTarget", "start_target"]

_TRAMPOLINE_FILE: Final = Path(trampoline.__file__).resolve()
_LOG_PIPE_BYTES: Final = 1024 * 1024


class StartRefused(Exception):
    """The process did not become the target."""

    def __init__(self, error_number: int, step: str) -> None:
        super().__init__(f"{step}: {os.strerror(error_number)}")
        self.error_number = error_number
        self.step = step


@dataclass(frozen=True, kw_only=True)
class StartedTarget:
    """A process that is about to become the target, and the yard's ends of its pipes."""

    process: subprocess.Popen[bytes]
    pipes: QuestionPipes
    log: OutputLog
    plan: bytes
    plan_fd: int
    status_fd: int

    def wait_until_executed(self, *, limit_s: float) -> bool:
        """True once the target's interpreter runs, False when the time is up.

        Raises StartRefused when the system refused to enter the folder or to execute the target.
        """
        deadline = time.monotonic() + limit_s
        with os.fdopen(self.status_fd, "rb", buffering=0) as status:
            # A trampoline that is gone already shows in the status.
            with suppress(BrokenPipeError), os.fdopen(self.plan_fd, "wb") as plan:
                plan.write(self.plan)
            poll = select.poll()
            poll.register(status, select.POLLIN)
            said = b""
            while True:
                if not poll.poll(max(deadline - time.monotonic(), 0.0) * 1000.0):
                    return False
                chunk = status.read(4096)
                if not chunk:
                    break
                said += chunk
        report = said.decode("ascii", errors="replace").splitlines()
        if report == ["ready"]:  # and then the execution closed the pipe
            return True
        error_number, _, step = (report[-1] if report else "0 trampoline").partition(" ")
        raise StartRefused(int(error_number), step)


def start_target(spec: LaunchSpec, launch: PreparedLaunch, *, log_path: Path) -> StartedTarget:
    """Start the trampoline in a session of its own; it waits for its plan."""
    with ExitStack() as on_failure, ExitStack() as worker_ends:

        def pipe(*, yard_writes: bool) -> tuple[int, int]:
            """The yard's end and the worker's."""
            read_fd, write_fd = os.pipe()
            yard, worker = (write_fd, read_fd) if yard_writes else (read_fd, write_fd)
            on_failure.callback(os.close, yard)
            worker_ends.callback(os.close, worker)
            return yard, worker

        question_fd, worker_read_fd = pipe(yard_writes=True)
        answer_fd, worker_write_fd = pipe(yard_writes=False)
        plan_fd, worker_plan_fd = pipe(yard_writes=True)
        status_fd, worker_status_fd = pipe(yard_writes=False)
        log_fd, output_fd = os.pipe()
        worker_ends.callback(os.close, output_fd)
        with suppress(OSError):  # more than the user's share of pipe memory: slower, not wrong
            fcntl.fcntl(output_fd, fcntl.F_SETPIPE_SZ, _LOG_PIPE_BYTES)
        log = OutputLog(log_fd, log_path)
        on_failure.callback(log.finish)
        command = [
            *(sys.executable, "-I", "-S", str(_TRAMPOLINE_FILE)),
            *(str(number) for number in (os.getpid(), worker_plan_fd, worker_status_fd)),
        ]
        marks = {name: launch.environment[name] for name in (LAUNCH_VARIABLE, YARD_VARIABLE)}

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output_fd,
                stderr=output_fd,
                pass_fds=(worker_read_fd, worker_write_fd, worker_plan_fd, worker_status_fd),
                start_new_session=True,
                env={**os.environ, **marks},
            )

        started = StartedTarget(
            process=start_in_lasting_thread(start),
            pipes=QuestionPipes(read_fd=answer_fd, write_fd=question_fd),
            log=log,
            plan=_plan(spec, launch, worker_read_fd, worker_write_fd),
            plan_fd=plan_fd,
            status_fd=status_fd,
        )
        on_failure.pop_all()
        return started


def _plan(spec: LaunchSpec, launch: PreparedLaunch, read_fd: int, write_fd: int) -> bytes:
    command = launch.command(read_fd, write_fd)
    return b"\0".join(
        (
            b"1" if spec.randomize_addresses else b"0",
            os.fsencode(spec.working_folder or ""),
            str(len(command)).encode(),
            *(os.fsencode(argument) for argument in command),
            *(os.fsencode(f"{name}={value}") for name, value in launch.environment.items()),
            b"end",
        )
    )
