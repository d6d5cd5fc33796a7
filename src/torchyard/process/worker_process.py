"""A worker process as the controller sees it, and groups of workers.

If the worker dies, hangs, exhausts memory, prints gigabytes, forks or closes its pipes, `ask` raises
a WorkerFailure with the last lines of the log, and no process is left behind. Live workers are
registered, so that none outlives the controller. A WorkerGroup ends its workers together: gracefully
at the end of the block, immediately on an exception.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from torchyard.core.units import format_bytes
from torchyard.process.ending import (
    FAILURE_KINDS,
    FailureKind,
    WorkerFailure,
    kind_of_ending,
    oom_kill_counts,
)
from torchyard.process.nodes import NodePlace, start_on_node
from torchyard.process.start import (
    LaunchSpec,
    PreparedLaunch,
    StartedWorker,
    StartRefused,
    fork_target,
    prepare,
    start_target,
)
from torchyard.process.timing_turn import record_pause, record_waits, turn_fields
from torchyard.process.tree import (
    TreeMemory,
    kill_tree,
    move_processes,
    new_launch_mark,
    processes_of_launch,
    wait_until_stopped,
)
from torchyard.process.worker_io import BadMessage
from torchyard.worker.wire import LONGEST_TRACEBACK, phase_of, shortened

_lock = threading.Lock()
_live: dict[WorkerProcess, int] = {}
"""Each worker with the PID of the controller that started it: a fork must not kill them."""


def _own_workers() -> list[WorkerProcess]:
    with _lock:
        return [worker for worker, owner in _live.items() if owner == os.getpid()]


def kill_all() -> None:
    """Kill every worker this process started."""
    for worker in _own_workers():
        with suppress(Exception):  # a failure must not keep the others from being killed
            worker.kill()


atexit.register(kill_all)

_starting = threading.Lock()
"""Held while a process is started, and while all of them are paused."""


@contextmanager
def all_paused() -> Iterator[None]:
    """Stop the workers of this process and everything they started (SIGSTOP), and start no others."""
    with _starting, _paused(_own_workers(), counts=True):
        yield


@contextmanager
def some_paused(select: Callable[[int], bool]) -> Iterator[None]:
    """Stop the workers whose PID is selected; others, and new ones, continue."""
    workers = [worker for worker in _own_workers() if select(worker.pid)]
    with _paused(workers, counts=any(worker.is_busy for worker in workers)):
        yield


@contextmanager
def _paused(workers: Sequence[WorkerProcess], *, counts: bool) -> Iterator[None]:
    began_s = time.monotonic()
    try:
        for worker in workers:
            worker.pause()
        yield
    finally:
        if counts:  # recorded first: a worker may answer as soon as it continues
            record_pause(began_s, time.monotonic())
        for worker in workers:
            worker.resume()


def move_workers(cores: Collection[int]) -> None:
    """Move the workers of this process, with everything they started, to these CPUs."""
    marks = [worker.launch_mark for worker in _own_workers()]
    move_processes(lambda: [pid for mark in marks for pid in processes_of_launch(mark)], cores)


_CLOSE_LIMIT_S: Final = 5.0
_STOP_LIMIT_S: Final = 1.0
_MEMORY_CHECK_S: Final = 0.25
_STACKS_PAUSE_S: Final = 0.2
_DYING_LIMIT_S: Final = 2.0
"""How long to wait for the exit of a worker that closed its pipe."""
_REAP_LIMIT_S: Final = 5.0


class WorkerProcess:
    """One worker. Call `ask` from one thread at a time; `kill` is thread-safe."""

    def __init__(
        self,
        spec: LaunchSpec,
        launch: PreparedLaunch,
        started: StartedWorker,
        *,
        expects_boot_message: bool,
    ) -> None:
        self.spec = spec
        self.pid = started.process.pid
        self.launch_mark = launch.mark
        self.survivors: tuple[int, ...] = ()
        """Processes of the tree that survived SIGKILL, set by `kill`."""
        self._launch = launch
        self._process = started.process
        self._started = started
        self._pipes = started.pipes
        self._log = started.log
        self._exit = started.exit
        self._memory = TreeMemory(self.pid)
        self._oom_kills = oom_kill_counts()
        self._expects_boot_message = expects_boot_message
        self._preload_checked = False
        self._booted = False
        self._unanswered: str | None = None
        self._failure: WorkerFailure | None = None
        self._asking = threading.Lock()
        self._signalling = threading.Lock()
        self._paused = False
        self._killing = threading.Lock()
        self._stopped = False
        self._gone = False
        with _lock:
            _live[self] = os.getpid()

    @classmethod
    def start(
        cls,
        spec: LaunchSpec,
        *,
        log_path: Path,
        entry: Path | None = None,
        template: Path | None = None,
        node: NodePlace | None = None,
    ) -> WorkerProcess:
        """Start a worker; return once the target's interpreter runs, before its first message.

        `entry` is a script to run instead of `boot.py`, called with the same arguments. `template` is
        the socket of a template process to fork the worker from; NoTemplate is raised if it cannot.
        `node` is another node of the Slurm allocation to start it on.
        """
        mark = new_launch_mark()
        launch = prepare(spec, launch_mark=mark, entry=entry)
        started: StartedWorker
        with _starting:
            if node is not None:
                started = start_on_node(node, spec, launch, log_path=log_path)
            elif template is not None:
                started = fork_target(template, spec, launch, log_path=log_path)
            else:
                started = start_target(spec, launch, log_path=log_path)
            expects_boot_message = entry is None and template is None
            worker = cls(spec, launch, started, expects_boot_message=expects_boot_message)
            worker._preload_checked = node is not None  # its memory map is on another node
        try:
            worker._await_execution(started)
        except BaseException:
            worker.kill()
            raise
        return worker

    @property
    def name(self) -> str:
        """The worker's name in messages."""
        return self.spec.name

    @property
    def controller_address(self) -> str:
        """The address of this node, as the node of the worker reaches it; empty on the same node."""
        return self._started.controller_address

    @property
    def log_path(self) -> Path:
        """Path of the log of its output; complete once the worker has ended."""
        return self._log.path

    @property
    def log_tail(self) -> str:
        """The last lines of its output."""
        return self._log.tail()

    @property
    def is_alive(self) -> bool:
        """Whether the worker itself still runs."""
        return not self._gone and self._exit.ending() is None

    @property
    def is_busy(self) -> bool:
        """Whether a request is in progress."""
        return self._unanswered is not None

    def ask(
        self,
        verb: str,
        *,
        limit_s: float,
        on_note: Callable[[str], None] | None = None,
        **fields: object,
    ) -> dict[str, Any]:
        """Send one request and wait for its answer, without using CPU time.

        After a failure that the worker itself reported (such as kind "raised") further requests
        are possible; after any other failure the worker has been killed. A KeyboardInterrupt, or an
        exception in `on_note`, abandons the request: the worker can then only be closed or killed.
        """
        deadline = time.monotonic() + limit_s
        try:
            with self._asking:
                self._refuse_if_unusable(verb)
                self._set_unanswered(verb)
                self._pipes.queue({**fields, **turn_fields(), "ask": verb})
                message = self._await_answer(verb, deadline, limit_s, on_note)
                record_waits(message.get("waits"))
                self._set_unanswered(None)
        finally:
            self._release_if_gone()
        if "ok" in message:
            return dict(message["ok"])
        raise self._reported(message["error"])

    def close(self) -> None:
        """Ask the worker to quit, wait briefly, then kill the rest of its process tree."""
        try:
            if self.is_alive and self._unanswered is None and not self._stopped:
                with suppress(WorkerFailure):
                    self.ask("quit", limit_s=_CLOSE_LIMIT_S)
                    self._exit.wait(_CLOSE_LIMIT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the worker and everything it started, immediately. Idempotent."""
        self._stopped = True
        with self._killing:
            if self._gone:
                return
            self._started.end_elsewhere()
            self.survivors = kill_tree(self.pid, self.launch_mark)
            # A process whose main thread has ended appears as a zombie, but can be reaped only
            # when its other threads have ended too.
            if self._exit.wait(_REAP_LIMIT_S) is not None:
                self._process.wait()  # reaped last: until here the PID cannot be reused
            self._log.finish()
            self._gone = True
            with _lock:
                _live.pop(self, None)
        self._release_if_gone()

    def pause(self) -> None:
        """Stop the worker and everything it started until `resume`."""
        with self._signalling:
            self._paused = True
            stopped: set[int] = set()
            # A process that is not stopped yet may start another one.
            while new := set(processes_of_launch(self.launch_mark)) - stopped:
                for pid in new:
                    self._signal(pid, signal.SIGSTOP)
                stopped |= new
                wait_until_stopped(new, limit_s=_STOP_LIMIT_S)

    def resume(self) -> None:
        """Undo `pause`; a worker that is stopped between requests stays stopped."""
        with self._signalling:
            self._paused = False
            for pid in processes_of_launch(self.launch_mark):
                idle = self.spec.stopped_between and self._unanswered is None
                if pid != self.pid or not idle:
                    self._signal(pid, signal.SIGCONT)

    def _set_unanswered(self, verb: str | None) -> None:
        """Record the request in progress; stop the worker between requests if its spec says so."""
        with self._signalling:
            self._unanswered = verb
            if self.spec.stopped_between and not self._paused and self.is_alive:
                # Not reaped yet, so the PID is still its own.
                self._started.signal(signal.SIGSTOP if verb is None else signal.SIGCONT)

    def _signal(self, pid: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def _release_if_gone(self) -> None:
        """Close the pipes, unless a request in another thread still polls and will close them."""
        if self._gone and self._asking.acquire(blocking=False):
            try:
                self._pipes.close()
                self._exit.close()
            finally:
                self._asking.release()

    def _await_execution(self, started: StartedWorker) -> None:
        try:
            if started.wait_until_executed(limit_s=self.spec.start_limit_s):
                return
        except StartRefused as refusal:
            if refusal.step == "trampoline":
                raise self._end("crashed", "exited before its interpreter started") from refusal
            path = self.spec.python if refusal.step == "exec" else self.spec.working_folder
            raise self._end(
                "no-python",
                f"the interpreter {self.spec.python!r} cannot be started",
                why=f"{path}: {os.strerror(refusal.error_number)}",
                hint="give the path of a Python that has torch, such as .venv/bin/python",
            ) from refusal
        raise self._end("timeout", f"timed out after {self.spec.start_limit_s:g} s during start-up")

    def _refuse_if_unusable(self, verb: str) -> None:
        if self._failure is not None:
            raise self._failure.copy()
        if self._stopped or self._unanswered is not None:
            state = (
                "was already ended"
                if self._stopped
                else f"was interrupted during {phase_of(self._unanswered or '')}"
            )
            raise WorkerFailure(
                f"{self.name}: cannot start {phase_of(verb)}: the worker {state}",
                kind="interrupted",
                hint="start a new worker",
                log=str(self.log_path),
            )
        while (message := self._read(verb)) is not None:
            if "note" not in message:
                raise self._end("protocol", "sent an answer without a request")

    def _await_answer(
        self, verb: str, deadline: float, limit_s: float, on_note: Callable[[str], None] | None
    ) -> dict[str, Any]:
        next_memory_check = time.monotonic() + _MEMORY_CHECK_S
        while True:
            # The exit status is read before the pipe, so that the last message is never missed.
            ended = self._exit.ending() is not None
            self._pipes.write()
            while (message := self._read(verb)) is not None:
                if "note" not in message:
                    return message
                if on_note is not None:
                    on_note(message["note"])
                if time.monotonic() > deadline:
                    break
            if ended:
                raise self._died(verb)
            if self._pipes.at_end or self._pipes.reader_gone:
                if self._exit.wait(_DYING_LIMIT_S) is not None:
                    continue
                raise self._end("protocol", f"closed its pipe during {phase_of(verb)}")
            now = time.monotonic()
            if now >= deadline:
                raise self._timed_out(verb, limit_s)
            if self.spec.memory_limit_bytes is not None and now >= next_memory_check:
                self._check_memory(verb, self.spec.memory_limit_bytes)
                next_memory_check = now + _MEMORY_CHECK_S
            self._sleep_until(
                deadline
                if self.spec.memory_limit_bytes is None
                else min(deadline, next_memory_check)
            )

    def _sleep_until(self, moment: float) -> None:
        poll = select.poll()
        poll.register(self._exit, select.POLLIN)
        self._pipes.register(poll)
        poll.poll(max(moment - time.monotonic(), 0.0) * 1000.0 + 1.0)

    def _read(self, verb: str) -> dict[str, Any] | None:
        """Return the next message other than the boot message of boot.py."""
        while True:
            try:
                message = self._pipes.read()
            except BadMessage as error:
                raise self._end(
                    "protocol",
                    f"sent an invalid message during {phase_of(verb)}: {error}",
                    hint="code in the worker writes to file descriptors that it does not own",
                ) from error
            if message is not None and not self._preload_checked:
                self._preload_checked = True
                self._check_preload()
            if message is None:
                return None
            if "error" in message and self._expects_boot_message and not self._booted:
                raise self._end(
                    "no-python",
                    f"{self.spec.python!r}: {message['error'].get('message', '')}",
                    hint="give the path of a newer Python that has torch",
                )
            if "boot" not in message:
                return message
            self._booted = True

    def _check_preload(self) -> None:
        """Check that libraries are preloaded: the loader only warns about one that it cannot load."""
        if not self._launch.preload:
            return
        try:
            maps = Path(f"/proc/{self.pid}/maps").read_text(errors="replace")
        except OSError:
            return
        for library in self._launch.preload:
            if Path(library).resolve().name not in maps:
                raise self._end(
                    "crashed",
                    f"the library {library} could not be preloaded",
                    hint="the first lines of the log show why; often it has another architecture",
                )

    def _check_memory(self, verb: str, limit_bytes: int) -> None:
        used_bytes = self._memory.resident_bytes()
        if used_bytes > limit_bytes:
            raise self._end(
                "out-of-memory",
                f"used {format_bytes(used_bytes)} during {phase_of(verb)}, above its memory limit "
                f"of {format_bytes(limit_bytes)}",
                hint="use a smaller batch size or a higher memory limit",
            )

    def print_stacks(self) -> None:
        """Make the worker print the stacks of all its threads to its log, where it can."""
        if self._booted and self.is_alive:  # boot.py prints all stacks on this signal
            self._started.signal(signal.SIGUSR2)

    def _timed_out(self, verb: str, limit_s: float) -> WorkerFailure:
        if self._booted:
            self.print_stacks()
            self._exit.wait(_STACKS_PAUSE_S)
        return self._end(
            "timeout",
            f"timed out after {limit_s:g} s during {phase_of(verb)}",
            hint="the last lines of the log show where it was; try a higher limit",
        )

    def _died(self, verb: str) -> WorkerFailure:
        ending = self._exit.ending()
        assert ending is not None  # noqa: S101  # the caller has seen it
        if self._stopped:
            return self._end("interrupted", f"was ended during {phase_of(verb)}")
        if self._expects_boot_message and not self._booted and ending.exit_code is not None:
            return self._end(
                "no-python",
                f"{self.spec.python!r} is not a working Python interpreter: it {ending.description}",
                hint="give the path of a Python 3.8 or newer that has torch",
            )
        memory = oom_kill_counts() != self._oom_kills
        kind = kind_of_ending(ending, kernel_killed_for_memory=memory)
        if kind == "out-of-memory":
            return self._end(
                kind,
                f"was killed by the kernel's out-of-memory killer during {phase_of(verb)}",
                hint="use a smaller batch size, or set a memory limit below the machine's memory",
            )
        return self._end(kind, f"{ending.description} during {phase_of(verb)}", hint=ending.hint)

    def _reported(self, error: dict[str, Any]) -> WorkerFailure:
        """Return the error for an exception that the worker caught; the worker still runs."""
        error = {key: shortened(str(error.get(key, "")), LONGEST_TRACEBACK) for key in error}
        reported = error.get("kind")
        kind: FailureKind = next((kind for kind in FAILURE_KINDS if kind == reported), "raised")
        hint = str(error.get("hint", ""))
        if kind == "no-torch" and not hint:
            hint = (
                f"install torch for {self.spec.python}, or give another interpreter; packages in "
                "the user site directory are ignored"
            )
        return WorkerFailure(
            f"{self.name}: {error.get('message', '')}",
            kind=kind,
            traceback=str(error.get("traceback", "")),
            log_tail=self.log_tail,
            hint=hint,
            log=str(self.log_path),
        )

    def _end(
        self, kind: FailureKind, message: str, *, why: str = "", hint: str = ""
    ) -> WorkerFailure:
        """Kill the process tree, which completes the log, and return the error."""
        self.kill()
        self._failure = WorkerFailure(
            f"{self.name}: {message}",
            kind=kind,
            why=why,
            hint=hint,
            log=str(self.log_path),
            log_tail=self.log_tail,
        )
        return self._failure


class WorkersAsOne:
    """Workers that act as one."""

    def __init__(self, workers: Sequence[WorkerProcess]) -> None:
        self._workers = tuple(workers)

    @property
    def is_alive(self) -> bool:
        """Whether all workers run."""
        return all(worker.is_alive for worker in self._workers)

    def kill(self) -> None:
        """Kill all workers."""
        for worker in self._workers:
            worker.kill()


class WorkerGroup:
    """Workers that end together.

    Use as ``with WorkerGroup() as group: worker = group.start(spec, log_path=...)``.
    """

    def __init__(self) -> None:
        self._workers: list[WorkerProcess] = []

    @property
    def workers(self) -> tuple[WorkerProcess, ...]:
        """The workers started in this group, oldest first."""
        return tuple(self._workers)

    def start(
        self,
        spec: LaunchSpec,
        *,
        log_path: Path,
        entry: Path | None = None,
        template: Path | None = None,
        node: NodePlace | None = None,
    ) -> WorkerProcess:
        """Start a worker that belongs to the group."""
        worker = WorkerProcess.start(
            spec, log_path=log_path, entry=entry, template=template, node=node
        )
        self._workers.append(worker)
        return worker

    def close(self) -> None:
        """Close every worker, even if closing another one fails; an interrupt kills the rest."""
        try:
            while self._workers:
                self._workers[-1].close()
                self._workers.pop()
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill every worker, even if killing another one fails."""
        with ExitStack() as stack:
            while self._workers:
                stack.callback(self._workers.pop().kill)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()
